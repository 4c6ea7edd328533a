//! A simulated service manager: every unit is a file of a directory, so that tests can see that observing changes nothing. The
//! name of the unit determines the effect of a start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::host::{Host, Unit};
use crate::resource::ResourceError;

use super::manager::{ServiceManager, ServiceRun, UnitAction};
use super::services::Services;

/// The requests, in order: `start a.service`, `daemon-reload`.
pub(in crate::resource) type Log = Arc<Mutex<Vec<String>>>;

struct Simulated {
    root: PathBuf,
    log: Log,
    /// Number of further queries in which a unit still appears as starting or stopping.
    patience: Mutex<BTreeMap<String, u32>>,
}

/// Returns the services of a directory, and the log of future requests.
pub(in crate::resource) fn services(root: &Path, host: &Host) -> (Services, Log) {
    let log = Log::default();
    let manager = Simulated { root: root.to_owned(), log: Arc::clone(&log), patience: Mutex::default() };
    (Services::new(Box::new(manager), host), log)
}

impl Simulated {
    fn read(&self, unit: &str) -> BTreeMap<String, String> {
        let text = std::fs::read_to_string(self.root.join(unit)).unwrap_or_else(|_| "load=not-found active=inactive".to_owned());
        text.split_whitespace().filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    fn write(&self, unit: &str, changes: &[(&str, &str)]) {
        let mut all = self.read(unit);
        all.extend(changes.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        let text: Vec<String> = all.iter().map(|(key, value)| format!("{key}={value}")).collect();
        std::fs::write(self.root.join(unit), text.join(" ")).unwrap();
    }

    fn note(&self, what: String) {
        self.log.lock().unwrap().push(what);
    }

    fn start(&self, unit: &str) -> Option<String> {
        let set = |active, sub, result| self.write(unit, &[("active", active), ("sub", sub), ("result", result)]);
        match unit {
            _ if self.read(unit).get("word").is_some_and(|word| word == "masked") => {
                return Some(format!("Unit {unit} is masked."));
            }
            _ if unit.starts_with("fail") => {
                set("failed", "failed", "exit-code");
                return Some(format!("the job to start {unit} ended with \"failed\""));
            }
            _ if unit.starts_with("flap") => set("activating", "auto-restart", "exit-code"),
            _ if unit.starts_with("once") => set("inactive", "dead", "success"),
            _ if unit.starts_with("slow") => {
                set("activating", "start", "success");
                self.patience.lock().unwrap().insert(unit.to_owned(), 2);
            }
            _ => set("active", "running", "success"),
        }
        None
    }
}

impl ServiceManager for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn unit(&self, unit: &str, _: &Host) -> Result<Unit, ResourceError> {
        if let Some(left) = self.patience.lock().unwrap().get_mut(unit).filter(|left| **left > 0) {
            *left -= 1;
            if *left == 0 {
                self.write(unit, &[("active", "active"), ("sub", "running")]);
            }
        }
        let found = self.read(unit);
        let get = |key: &str| found.get(key).cloned().unwrap_or_default();
        Ok(Unit {
            id: unit.to_owned(),
            load: found.get("load").cloned().unwrap_or_else(|| "loaded".to_owned()),
            active: get("active"),
            sub: get("sub"),
            fragment: String::new(),
            names: String::new(),
            drop_ins: String::new(),
            file_state: get("word"),
            outdated: get("outdated") == "yes",
            condition_failed: get("conditions") == "no",
        })
    }

    fn last_run(&self, unit: &str, _: &Host) -> Result<ServiceRun, ResourceError> {
        let found = self.read(unit);
        let kind = if unit.starts_with("once") { "oneshot" } else { "notify" };
        Ok(ServiceRun { kind: kind.to_owned(), result: found.get("result").cloned().unwrap_or_default() })
    }

    fn enabled(&self, unit: &str, _: &Host) -> Result<Option<String>, ResourceError> {
        Ok(self.read(unit).get("word").cloned())
    }

    fn unit_path(&self, _: &Host) -> Result<Vec<String>, ResourceError> {
        Ok(Vec::new())
    }

    fn run_action(&self, verb: UnitAction, unit: &str, _: Duration, _: &Host) -> Result<Option<String>, ResourceError> {
        self.note(format!("{} {unit}", verb.subcommand()));
        Ok(match verb {
            UnitAction::Stop => {
                self.write(unit, &[("active", "inactive"), ("sub", "dead")]);
                None
            }
            UnitAction::Reload => {
                Some(format!("Job type reload is not applicable for unit {unit}.")).filter(|_| !unit.starts_with("reloads"))
            }
            UnitAction::Start | UnitAction::StartNow | UnitAction::Restart | UnitAction::ReloadOrRestart => self.start(unit),
        })
    }

    fn enable(&self, unit: &str, on: bool, _: &Host) -> Result<(), ResourceError> {
        self.note(format!("{} {unit}", if on { "enable" } else { "disable" }));
        self.write(unit, &[("word", if on { "enabled" } else { "disabled" })]);
        Ok(())
    }

    fn reload(&self, _: &Host) -> Result<(), ResourceError> {
        self.note("daemon-reload".to_owned());
        for entry in std::fs::read_dir(&self.root).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if !name.starts_with("hopeless") {
                self.write(&name, &[("outdated", "no")]);
            }
        }
        Ok(())
    }
}
