//! The provider: a manager, and the state that must be known during a run.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::diag::error_chain;
use crate::host::{Host, Unit};
use crate::model::{HumanDuration, lock};
use crate::resource::ResourceError;

use super::activity::Activity;
use super::daemon_reload::needs_daemon_reload;
use super::journal;
use super::manager::{ServiceManager, UnitAction};

/// Interval of polls of a unit that is starting or stopping.
const POLL: Duration = Duration::from_millis(50);
/// Time that a process must live to count as started, if the unit does not signal readiness.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// The kinds of services that count as started as soon as the process exists.
const NO_READINESS: [&str; 3] = ["simple", "exec", "idle"];

/// The services of this host, during a run.
pub struct Services {
    pub(super) manager: Box<dyn ServiceManager>,
    host: Host,
    unit_path: OnceLock<Vec<String>>,
    told: Mutex<ReloadState>,
    /// The unit of the last observation, so that an immediate second one needs no query.
    last_unit: Mutex<Option<(String, Unit)>>,
}

#[derive(Default)]
struct ReloadState {
    /// Units that are outdated even after a reload; another reload would not help.
    still_outdated: BTreeSet<String>,
    /// True when units were enabled or disabled since the last reload.
    links_changed: bool,
}

impl Services {
    pub(super) fn new(manager: Box<dyn ServiceManager>, host: &Host) -> Self {
        Self { manager, host: host.clone(), unit_path: OnceLock::new(), told: Mutex::default(), last_unit: Mutex::default() }
    }

    fn is_outdated(&self, unit: &str, host: &Host) -> Result<bool, ResourceError> {
        if self.unit_path.get().is_none() {
            let _first = self.unit_path.set(self.manager.unit_path(host)?);
        }
        let now = self.manager.unit(unit, host)?;
        let outdated = needs_daemon_reload(&now, self.unit_path.get().map_or(&[], Vec::as_slice));
        *lock(&self.last_unit) = Some((unit.to_owned(), now));
        Ok(outdated)
    }

    fn reload(&self, host: &Host) -> Result<(), ResourceError> {
        self.manager.reload(host)?;
        lock(&self.told).links_changed = false;
        Ok(())
    }

    /// Makes systemd read its unit files again if those of this unit have changed.
    pub(super) fn refresh_cache(&self, unit: &str, host: &Host) -> Result<(), ResourceError> {
        if lock(&self.told).still_outdated.contains(unit) || !self.is_outdated(unit, host)? {
            return Ok(());
        }
        self.reload(host)?;
        if self.is_outdated(unit, host)? {
            lock(&self.told).still_outdated.insert(unit.to_owned());
        }
        Ok(())
    }

    /// Returns the unit as soon as `transient` is false for its state, or the time is over.
    pub(super) fn unit(
        &self,
        unit: &str,
        limit: HumanDuration,
        transient: impl Fn(Activity) -> bool,
        host: &Host,
    ) -> Result<Unit, ResourceError> {
        let began = Instant::now();
        let mut seen = lock(&self.last_unit).take().filter(|(name, _)| name == unit);
        loop {
            let now = seen.take().map_or_else(|| self.manager.unit(unit, host), |(_, now)| Ok(now))?;
            if !transient(Activity::from_unit(&now)) || began.elapsed() >= limit.as_std() || host.is_over() {
                return Ok(now);
            }
            host.sleep(POLL);
        }
    }

    /// Runs an action on a unit after which the unit must be running.
    pub(super) fn run_until_active(
        &self,
        verb: UnitAction,
        unit: &str,
        limit: HumanDuration,
        host: &Host,
    ) -> Result<(), ResourceError> {
        if unit.ends_with(".target") && lock(&self.told).links_changed {
            // Units that were enabled in this run belong to the target from now on.
            self.reload(host)?;
        }
        let began = host.now();
        let why = match self.manager.run_action(verb, unit, limit.as_std(), host) {
            Ok(None) => self.not_running_reason(verb, unit, limit, host)?,
            Ok(Some(why)) => Some(why),
            Err(error) => Some(error_chain(&error)),
        };
        let Some(why) = why else { return Ok(()) };
        let mut message = format!("{}: {}{}", failed_to(verb), why.trim_end_matches('.'), hint(&why, unit));
        let lines = journal::last_lines(unit, began, host);
        if !lines.is_empty() {
            message = format!("{message}; the end of its journal:\n    {}", lines.join("\n    "));
        }
        Err(ResourceError::State(message))
    }

    /// Stops a unit.
    pub(super) fn stop(&self, unit: &str, limit: HumanDuration, host: &Host) -> Result<(), ResourceError> {
        match self.manager.run_action(UnitAction::Stop, unit, limit.as_std(), host)? {
            None => Ok(()),
            Some(why) => Err(ResourceError::State(format!("{}: {why}", failed_to(UnitAction::Stop)))),
        }
    }

    /// Enables or disables a unit.
    pub(super) fn enable(&self, unit: &str, on: bool, host: &Host) -> Result<(), ResourceError> {
        self.manager.enable(unit, on, host)?;
        lock(&self.told).links_changed = true;
        Ok(())
    }

    /// Returns the reason why a unit is not running although systemd reported no error; none when it runs.
    fn not_running_reason(
        &self,
        verb: UnitAction,
        unit: &str,
        limit: HumanDuration,
        host: &Host,
    ) -> Result<Option<String>, ResourceError> {
        let on_its_way = |activity| matches!(activity, Activity::Starting | Activity::Stopping);
        let mut now = self.unit(unit, limit, on_its_way, host)?;
        let how = self.manager.last_run(unit, host)?;
        let began = Instant::now();
        while verb != UnitAction::Reload
            && Activity::from_unit(&now) == Activity::Running
            && NO_READINESS.contains(&how.kind.as_str())
            && began.elapsed() < SETTLE_TIME
            && !host.is_over()
        {
            host.sleep(POLL);
            now = self.manager.unit(unit, host)?;
        }
        let result = || self.manager.last_run(unit, host).map(|how| how.result);
        Ok(match Activity::from_unit(&now) {
            Activity::Running => None,
            Activity::Starting | Activity::Stopping => Some(format!("it is still {} after {limit}", now.active)),
            Activity::Waiting => Some(format!("it failed ({}), and systemd will try again", result()?)),
            Activity::Stopped => Some(match result()?.as_str() {
                "success" | "" if now.condition_failed => "a condition in its unit does not hold".to_owned(),
                "success" | "" if how.kind == "oneshot" => {
                    "it has ended, as units of Type=oneshot do; with RemainAfterExit=yes it would stay active".to_owned()
                }
                "success" | "" => "it has ended by itself, without an error".to_owned(),
                failure => format!("it failed ({failure})"),
            }),
        })
    }
}

impl Drop for Services {
    /// At the end of the run, reloads systemd once for all enabled and disabled units.
    fn drop(&mut self) {
        if lock(&self.told).links_changed {
            // The next boot reads the files in any case, and an error can't be reported here.
            let _best_effort = self.manager.reload(&self.host);
        }
    }
}

fn failed_to(verb: UnitAction) -> &'static str {
    match verb {
        UnitAction::Start | UnitAction::StartNow => {
            "failed to reach desired state: running: service is stopped, expected running"
        }
        UnitAction::Stop => "failed to reach desired state: stopped: service is running, expected stopped",
        UnitAction::Restart => "the restart failed",
        UnitAction::Reload => "the reload failed",
        UnitAction::ReloadOrRestart => "the reload or restart failed",
    }
}

/// Returns a remedy, if the error of systemd has none.
fn hint(why: &str, unit: &str) -> String {
    if why.contains("is masked") {
        format!("; `systemctl unmask {unit}` makes it startable")
    } else if why.contains("not applicable") {
        "; `refresh: reload-or-restart` restarts units that can't reload".to_owned()
    } else {
        String::new()
    }
}
