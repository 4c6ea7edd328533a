//! The decision table, and requests to a simulated manager.

use serde_json::json;
use tempfile::TempDir;

use crate::host::Unit;
use crate::host::fake::{FakeRunner, host};

use super::simulated::{Log, services};
use super::*;

fn properties(extra: &serde_json::Value) -> Properties {
    let mut all = json!({"name": "x", "timeout": "2s"});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn state(activity: Activity, word: &str) -> ServiceState {
    let metadata = Metadata {
        name: "x".into(),
        provider: "simulated",
        enabled: is_enabled(word),
        running: activity == Activity::Running,
        unit: "x.service".into(),
        active_state: "activating".into(),
        sub_state: String::new(),
        unit_file_state: word.into(),
    };
    ServiceState { activity, metadata }
}

/// The decision table: properties, activity, enablement; the steps, and those of a refresh.
#[test]
fn decisions() {
    use Activity::{Running, Starting, Stopped, Stopping, Waiting};
    for (wanted, activity, word, steps, refresh) in [
        (json!({}), Stopped, "disabled", "started", ""),
        (json!({}), Running, "disabled", "", "restarted via subscribe"),
        (json!({}), Waiting, "disabled", "started", ""),
        (json!({}), Starting, "disabled", "still activating", ""),
        (json!({}), Stopping, "disabled", "still activating", ""),
        (json!({"ensure": ""}), Stopped, "enabled", "started", ""),
        (json!({"enable": true}), Stopped, "disabled", "started, enabled", ""),
        (json!({"enable": true}), Running, "disabled", "enabled", "restarted via subscribe, enabled"),
        (json!({"enable": true}), Running, "static", "", "restarted via subscribe"),
        (json!({"enable": true}), Running, "masked", "enabled", "restarted via subscribe, enabled"),
        (json!({"enable": true}), Running, "linked", "enabled", "restarted via subscribe, enabled"),
        (json!({"enable": false}), Running, "enabled", "disabled", "restarted via subscribe, disabled"),
        (json!({"enable": false}), Running, "enabled-runtime", "disabled", "restarted via subscribe, disabled"),
        (json!({"enable": false}), Running, "static", "disabled", "restarted via subscribe, disabled"),
        (json!({"enable": false}), Running, "masked", "", "restarted via subscribe"),
        (json!({"enable": null}), Running, "enabled", "", "restarted via subscribe"),
        (json!({"ensure": "stopped"}), Running, "enabled", "stopped", ""),
        (json!({"ensure": "stopped"}), Stopped, "enabled", "", ""),
        (json!({"ensure": "stopped"}), Waiting, "enabled", "stopped", ""),
        (json!({"ensure": "stopped"}), Starting, "enabled", "stopped", ""),
        (json!({"ensure": "stopped"}), Stopping, "enabled", "still activating", ""),
        (json!({"ensure": "stopped", "enable": false}), Running, "enabled", "stopped, disabled", ""),
        (json!({"ensure": "stopped", "enable": true}), Stopped, "disabled", "enabled", ""),
        (json!({"refresh": "reload"}), Running, "enabled", "", "reloaded via subscribe"),
        (json!({"refresh": "reload-or-restart"}), Running, "enabled", "", "reloaded or restarted via subscribe"),
        (json!({"refresh": "reload"}), Stopped, "enabled", "started", ""),
    ] {
        let (p, state) = (properties(&wanted), state(activity, word));
        let words = |changes: Vec<ServiceChange>| changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match ServiceType::diff(&p, &state) {
            Ok(changes) => assert_eq!(words(changes), steps, "{wanted} {activity:?} {word}"),
            Err(error) => assert!(!steps.is_empty() && error.to_string().contains(steps), "{wanted} {activity:?}: {error}"),
        }
        assert_eq!(words(ServiceType::on_refresh(&p, &state)), refresh, "{wanted} {activity:?} {word}");
    }
}

#[test]
fn states_are_sorted() {
    for (active, sub, wanted) in [
        ("active", "running", Activity::Running),
        ("active", "exited", Activity::Running),
        ("reloading", "reload", Activity::Running),
        ("refreshing", "", Activity::Running),
        ("inactive", "dead", Activity::Stopped),
        ("failed", "failed", Activity::Stopped),
        ("maintenance", "", Activity::Stopped),
        ("activating", "start-pre", Activity::Starting),
        ("activating", "auto-restart", Activity::Waiting),
        ("activating", "auto-restart-queued", Activity::Waiting),
        ("deactivating", "stop-sigterm", Activity::Stopping),
    ] {
        let unit = Unit { active: active.into(), sub: sub.into(), ..Unit::default() };
        assert_eq!(Activity::from_unit(&unit), wanted, "{active} {sub}");
    }
}

#[test]
fn properties_are_read() {
    let refused = |value: serde_json::Value| serde_json::from_value::<Properties>(value).unwrap_err().to_string();
    assert!(refused(json!({"name": "x", "ensure": "restarted"})).contains("expects \"running\" or \"stopped\""));
    assert!(refused(json!({"name": "x", "refresh": "kick"})).contains("reload-or-restart"));
    assert!(refused(json!({"name": "x", "enable": "maybe"})).contains("boolean"));
    assert_eq!(properties(&json!({"timeout": "5m"})).timeout, HumanDuration::seconds(300));
    assert_eq!(serde_json::from_value::<Properties>(json!({"name": "x"})).unwrap().timeout, HumanDuration::seconds(120));
}

/// A directory of units, the log of requests, and a host without a journal.
struct Bench {
    /// Dropped before the directory.
    services: Option<Services>,
    dir: TempDir,
    log: Log,
    host: Host,
}

impl Bench {
    fn new(units: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in units {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let host = host(FakeRunner::exiting(&[]));
        let (services, log) = services(dir.path(), &host);
        Self { dir, services: Some(services), log, host }
    }

    /// Converges as a run does. Returns the error, or the remaining steps.
    fn converge(&self, wanted: &serde_json::Value, refresh: bool) -> Result<Vec<ServiceChange>, String> {
        let (p, services) = (properties(wanted), self.services.as_ref().unwrap());
        let text = |error: ResourceError| error.to_string();
        ServiceType::refresh_cache(&p, services, &self.host).map_err(text)?;
        let mut state = ServiceType::observe(&p, services, &self.host).map_err(text)?;
        let mut changes = if refresh { ServiceType::on_refresh(&p, &state) } else { Vec::new() };
        if changes.is_empty() {
            changes = ServiceType::diff(&p, &state).map_err(text)?;
        }
        for change in &changes {
            ServiceType::apply(change, &p, &mut state, services, &self.host).map_err(text)?;
        }
        ServiceType::diff(&p, &ServiceType::observe(&p, services, &self.host).map_err(text)?).map_err(text)
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

#[test]
fn units_are_brought_to_their_state() {
    let bench = Bench::new(&[
        ("a.service", "active=inactive word=disabled"),
        ("slow.service", "active=inactive word=disabled"),
        ("flap.service", "active=activating sub=auto-restart word=disabled"),
        ("a.timer", "active=active word=enabled"),
    ]);
    for (wanted, told) in [
        (json!({"name": "a", "enable": true}), vec!["start a.service", "enable a.service"]),
        (json!({"name": "a", "enable": true}), vec![]),
        (json!({"name": "slow"}), vec!["start slow.service"]),
        (json!({"name": "flap", "ensure": "stopped"}), vec!["stop flap.service"]),
        (json!({"name": "a.timer", "ensure": "stopped", "enable": false}), vec!["stop a.timer", "disable a.timer"]),
    ] {
        assert_eq!(bench.converge(&wanted, false), Ok(vec![]), "{wanted}");
        assert_eq!(bench.log(), told, "{wanted}");
    }
}

#[test]
fn failures_have_a_reason_and_a_remedy() {
    let bench = Bench::new(&[
        ("fail.service", "active=inactive word=disabled"),
        ("flap.service", "active=inactive word=disabled"),
        ("once.service", "active=inactive word=disabled"),
        ("once-cond.service", "active=inactive word=disabled conditions=no"),
        ("masked.service", "active=inactive word=masked load=masked"),
        ("static.service", "active=active word=static"),
        ("a.service", "active=active word=enabled"),
    ]);
    for (wanted, refresh, why) in [
        (json!({"name": "fail"}), false, "service is stopped, expected running: the job to start fail.service ended with"),
        (json!({"name": "flap"}), false, "it failed (exit-code), and systemd will try again"),
        (json!({"name": "once"}), false, "RemainAfterExit=yes"),
        (json!({"name": "once-cond"}), false, "a condition in its unit does not hold"),
        (json!({"name": "masked"}), false, "is masked; `systemctl unmask masked.service` makes it startable"),
        (json!({"name": "static", "enable": false}), false, "the unit is static"),
        (json!({"name": "a", "refresh": "reload"}), true, "the reload failed: Job type reload is not applicable"),
        (json!({"name": "none"}), false, "service none not found: there is no unit none.service"),
        (json!({"name": "none", "ensure": "stopped"}), false, "service none not found"),
    ] {
        let error = bench.converge(&wanted, refresh).unwrap_err();
        assert!(error.contains(why), "{wanted}: {error}");
    }
}

#[test]
fn a_service_that_fails_to_start_is_enabled_nevertheless() {
    let bench = Bench::new(&[("fail.service", "active=inactive word=disabled")]);
    assert!(bench.converge(&json!({"name": "fail", "enable": true}), false).is_err());
    assert_eq!(bench.log(), ["start fail.service", "enable fail.service"]);
}

#[test]
fn subscribers_do_what_they_are_asked_to() {
    let bench = Bench::new(&[
        ("a.service", "active=active word=enabled"),
        ("reloads.service", "active=active word=enabled"),
        ("down.service", "active=inactive word=enabled"),
    ]);
    for (wanted, told) in [
        (json!({"name": "a"}), vec!["restart a.service"]),
        (json!({"name": "reloads", "refresh": "reload"}), vec!["reload reloads.service"]),
        (json!({"name": "a", "refresh": "reload-or-restart"}), vec!["reload-or-restart a.service"]),
        (json!({"name": "down"}), vec!["start down.service"]),
        (json!({"name": "down", "ensure": "stopped"}), vec!["stop down.service"]),
        (json!({"name": "down", "ensure": "stopped"}), vec![]),
    ] {
        assert_eq!(bench.converge(&wanted, true), Ok(vec![]), "{wanted}");
        assert_eq!(bench.log(), told, "{wanted}");
    }
}

#[test]
fn unit_files_are_read_again_when_they_have_changed_and_only_then() {
    let units = [
        ("a.service", "active=active word=enabled outdated=yes"),
        ("b.service", "active=active word=enabled outdated=yes"),
        ("hopeless.service", "active=active word=enabled outdated=yes"),
    ];
    let bench = Bench::new(&units);
    for (name, told) in
        [("a", vec!["daemon-reload"]), ("b", vec![]), ("a", vec![]), ("hopeless", vec!["daemon-reload"]), ("hopeless", vec![])]
    {
        assert_eq!(bench.converge(&json!({"name": name}), false), Ok(vec![]));
        assert_eq!(bench.log(), told, "{name}");
    }
    // Changed again in the same run.
    std::fs::write(bench.dir.path().join("a.service"), units[0].1).unwrap();
    assert_eq!(bench.converge(&json!({"name": "a"}), false), Ok(vec![]));
    assert_eq!(bench.log(), ["daemon-reload"]);
}

#[test]
fn systemd_reloads_once_for_all_enabled_units() {
    let mut bench = Bench::new(&[
        ("a.service", "active=active word=disabled"),
        ("b.service", "active=active word=disabled"),
        ("c.target", "active=inactive word=static"),
    ]);
    let converge = |name: &str, bench: &Bench| bench.converge(&json!({"name": name, "enable": true}), false).unwrap();
    converge("a", &bench);
    converge("b", &bench);
    assert_eq!(bench.log(), ["enable a.service", "enable b.service"]);
    bench.services = None;
    assert_eq!(bench.log(), ["daemon-reload"]);

    // A target must know its units before it is started; then no reload is pending.
    let mut bench = Bench::new(&[("a.service", "active=active word=disabled"), ("c.target", "active=inactive word=static")]);
    converge("a", &bench);
    converge("c.target", &bench);
    bench.services = None;
    assert_eq!(bench.log(), ["enable a.service", "daemon-reload", "start c.target"]);
}

#[test]
fn a_query_does_not_wait() {
    let bench = Bench::new(&[("slow.service", "active=activating sub=start word=enabled")]);
    let p = ServiceType::query("slow").unwrap();
    let state = ServiceType::observe(&p, bench.services.as_ref().unwrap(), &bench.host).unwrap();
    assert_eq!((state.ensure(), state.metadata.active_state.as_str(), state.metadata.enabled), ("stopped", "activating", true));
}
