//! The interface of service managers: over D-Bus, or with `systemctl` where there is no bus.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::host::{Host, Output, ProcessCommand, Systemd, SystemdError, Unit};
use crate::resource::ResourceError;

/// An action on a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitAction {
    /// Start the unit.
    Start,
    /// Start the unit immediately, although it waits for its automatic restart: a start job would wait as well.
    StartNow,
    /// Stop the unit.
    Stop,
    /// Stop and start the unit.
    Restart,
    /// Make the unit reload its configuration.
    Reload,
    /// Reload, or restart if the unit can't reload.
    ReloadOrRestart,
}

impl UnitAction {
    /// Returns the subcommand of `systemctl`.
    pub(super) const fn subcommand(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::StartNow | Self::Restart => "restart",
            Self::Reload => "reload",
            Self::ReloadOrRestart => "reload-or-restart",
        }
    }

    /// Returns the method of the manager's interface on D-Bus.
    const fn method(self) -> &'static str {
        match self {
            Self::Start => "StartUnit",
            Self::Stop => "StopUnit",
            Self::StartNow | Self::Restart => "RestartUnit",
            Self::Reload => "ReloadUnit",
            Self::ReloadOrRestart => "ReloadOrRestartUnit",
        }
    }
}

/// The state of the present or last run of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ServiceRun {
    /// `simple`, `notify`, `oneshot`, ...; empty for units that are no services.
    pub(super) kind: String,
    /// `success`, `exit-code`, `timeout`, ...
    pub(super) result: String,
}

/// A connection to systemd. Unit names have their suffix.
pub(super) trait ServiceManager: Send + Sync {
    /// Returns the name.
    fn name(&self) -> &'static str;
    /// Returns the present state of a unit.
    ///
    /// # Errors
    /// When systemd can't be reached.
    fn unit(&self, unit: &str, host: &Host) -> Result<Unit, ResourceError>;
    /// Returns the run of a service.
    ///
    /// # Errors
    /// When systemd can't be reached.
    fn last_run(&self, unit: &str, host: &Host) -> Result<ServiceRun, ResourceError>;
    /// Returns the state as `systemctl is-enabled` prints it; none for a unit without a file.
    ///
    /// # Errors
    /// When systemd can't be reached.
    fn enabled(&self, unit: &str, host: &Host) -> Result<Option<String>, ResourceError>;
    /// Returns the directories of unit files, by precedence.
    ///
    /// # Errors
    /// When systemd can't be reached.
    fn unit_path(&self, host: &Host) -> Result<Vec<String>, ResourceError>;
    /// Runs an action on a unit and waits for its end. Returns the reason of a failure, if the manager reports one.
    ///
    /// # Errors
    /// When the request fails, or takes longer than `limit`.
    fn run_action(&self, verb: UnitAction, unit: &str, limit: Duration, host: &Host) -> Result<Option<String>, ResourceError>;
    /// Enables or disables a unit, without [`Self::reload`].
    ///
    /// # Errors
    /// When systemd refuses.
    fn enable(&self, unit: &str, on: bool, host: &Host) -> Result<(), ResourceError>;
    /// Makes systemd read all unit files again.
    ///
    /// # Errors
    /// When systemd refuses.
    fn reload(&self, host: &Host) -> Result<(), ResourceError>;
}

/// Returns the best connection on this host.
pub(super) fn best(host: &Host) -> Box<dyn ServiceManager> {
    match host.systemd() {
        Some(systemd) => Box::new(Bus(systemd)),
        // `systemctl` also has a private socket to systemd.
        None => Box::new(Systemctl),
    }
}

/// The state of a generated unit.
const GENERATED: &str = "generated";

/// systemd over D-Bus.
struct Bus(Arc<Systemd>);

impl ServiceManager for Bus {
    fn name(&self) -> &'static str {
        "systemd"
    }

    fn unit(&self, unit: &str, _: &Host) -> Result<Unit, ResourceError> {
        Ok(self.0.unit(unit)?)
    }

    fn last_run(&self, unit: &str, _: &Host) -> Result<ServiceRun, ResourceError> {
        let mut values = self.0.own_properties(unit, &["Type", "Result"])?.into_iter();
        Ok(ServiceRun { kind: values.next().unwrap_or_default(), result: values.next().unwrap_or_default() })
    }

    fn enabled(&self, unit: &str, host: &Host) -> Result<Option<String>, ResourceError> {
        match self.0.unit_file_state(unit)? {
            // An init script behind a generated unit: only the command examines the links of scripts.
            Some(word) if word == GENERATED => Systemctl.enabled(unit, host),
            word => Ok(word),
        }
    }

    fn unit_path(&self, _: &Host) -> Result<Vec<String>, ResourceError> {
        Ok(self.0.unit_path()?)
    }

    fn run_action(&self, verb: UnitAction, unit: &str, limit: Duration, host: &Host) -> Result<Option<String>, ResourceError> {
        match self.0.job(verb.method(), unit, limit, host.scope()) {
            // Without a result of the job, the state of the unit shows the outcome.
            Ok(None) => Ok(None),
            Ok(Some(result)) if result == "done" => Ok(None),
            Ok(Some(result)) => Ok(Some(format!("the job to {} {unit} ended with \"{result}\"", verb.subcommand()))),
            Err(SystemdError::Refused(why)) => Ok(Some(why)),
            Err(error) => Err(error.into()),
        }
    }

    fn enable(&self, unit: &str, on: bool, host: &Host) -> Result<(), ResourceError> {
        if self.0.unit_file_state(unit)?.is_some_and(|word| word == GENERATED) {
            return Systemctl.enable(unit, on, host);
        }
        Ok(self.0.enable(unit, on)?)
    }

    fn reload(&self, _: &Host) -> Result<(), ResourceError> {
        Ok(self.0.reload()?)
    }
}

/// The command `systemctl`.
pub(super) struct Systemctl;

impl Systemctl {
    fn call(host: &Host, words: &[&str], limit: Option<Duration>) -> Result<Output, ResourceError> {
        let fixed = ["--system", "--no-pager", "--no-ask-password"];
        let mut command = ProcessCommand::new("systemctl", fixed.iter().chain(words).copied());
        command.timeout = limit;
        Ok(host.run(&command)?)
    }

    fn show(host: &Host, unit: &[&str], keys: &[&str]) -> Result<BTreeMap<String, String>, ResourceError> {
        let property = format!("--property={}", keys.join(","));
        let words: Vec<&str> = ["show", &property].into_iter().chain(unit.iter().copied()).collect();
        let output = expect(&Self::call(host, &words, None)?)?;
        let lines = output.lines().filter_map(|line| line.split_once('='));
        Ok(lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }
}

/// Returns the output of a command that must exit with 0.
fn expect(output: &Output) -> Result<String, ResourceError> {
    if output.code == 0 {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(ResourceError::State(first_line(output)))
}

/// Returns the first line of the errors; the others are about further diagnosis.
fn first_line(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().map(str::trim).find(|line| !line.is_empty());
    line.map_or_else(|| format!("systemctl exited with {}", output.code), str::to_owned)
}

impl ServiceManager for Systemctl {
    fn name(&self) -> &'static str {
        "systemctl"
    }

    fn unit(&self, unit: &str, host: &Host) -> Result<Unit, ResourceError> {
        let mut shown = Self::show(host, &["--", unit], Unit::PROPERTIES)?;
        Ok(Unit::from_properties(|key| shown.remove(key).unwrap_or_default()))
    }

    fn last_run(&self, unit: &str, host: &Host) -> Result<ServiceRun, ResourceError> {
        let mut shown = Self::show(host, &["--", unit], &["Type", "Result"])?;
        Ok(ServiceRun { kind: shown.remove("Type").unwrap_or_default(), result: shown.remove("Result").unwrap_or_default() })
    }

    fn enabled(&self, unit: &str, host: &Host) -> Result<Option<String>, ResourceError> {
        // The exit code depends on the state; unknown units have no state, or `not-found`.
        let output = Self::call(host, &["is-enabled", "--", unit], None)?;
        let word = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Some(word).filter(|word| !word.is_empty() && word != "not-found"))
    }

    fn unit_path(&self, host: &Host) -> Result<Vec<String>, ResourceError> {
        let shown = Self::show(host, &[], &["UnitPath"])?;
        Ok(shown.get("UnitPath").map(|path| path.split(' ').map(str::to_owned).collect()).unwrap_or_default())
    }

    fn run_action(&self, verb: UnitAction, unit: &str, limit: Duration, host: &Host) -> Result<Option<String>, ResourceError> {
        let output = Self::call(host, &[verb.subcommand(), "--", unit], Some(limit))?;
        Ok((output.code != 0).then(|| first_line(&output)))
    }

    fn enable(&self, unit: &str, on: bool, host: &Host) -> Result<(), ResourceError> {
        let verb = if on { "enable" } else { "disable" };
        expect(&Self::call(host, &["--no-reload", "--quiet", verb, "--", unit], None)?).map(drop)
    }

    fn reload(&self, host: &Host) -> Result<(), ResourceError> {
        expect(&Self::call(host, &["daemon-reload"], None)?).map(drop)
    }
}
