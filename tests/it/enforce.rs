//! Assignments whose drift is repaired when it happens. The interval is an hour: no run at the interval helps.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ensign::model::event::ChangeCause;
use ensign::model::{HumanDuration, TransactionEvent};
use ensign::wire::command::{Action, Assign, NoParameters};
use ensign::wire::subject::EventKind;
use ensign::wire::{AgentStatus, CommandOutcome, NodeState};

use crate::support::fleet::ensign;
use crate::support::node_dir;
use crate::support::single_node::{FLEET, PATIENCE, SingleNodeFleet, apply, assign_action, on_every_server};

/// Returns the enforced assignment of a manifest in a file.
fn enforced(manifest: &Path) -> Action {
    let Action::Assign(assign) = assign_action(apply(manifest)) else { panic!("an assignment") };
    Action::Assign(Assign { interval: HumanDuration::seconds(3600), watch: true, ..assign })
}

/// Writes a manifest of a directory and of files with this content.
fn manifest(fleet: &SingleNodeFleet, files: &[&str], content: &str) -> PathBuf {
    let path = fleet.path(&format!("{content}.yaml"));
    let directory = fleet.path("managed");
    let mut text = format!(
        "ccm:\n  resources:\n    - file:\n        - {}:\n            ensure: directory\n            owner: root\n            group: root\n            mode: \"0755\"\n",
        directory.display()
    );
    for file in files {
        text += &format!(
            "        - {}:\n            ensure: present\n            content: {content}\n            owner: root\n            group: root\n            mode: \"0644\"\n",
            directory.join(file).display()
        );
    }
    fs::write(&path, text).unwrap();
    path
}

fn content(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Waits until a file has this content, and returns the time.
async fn repaired(what: &str, path: &Path, wanted: &str) -> Duration {
    let start = Instant::now();
    while content(path).as_deref() != Some(wanted) {
        assert!(start.elapsed() < PATIENCE, "waited for a repair: {what}: {:?}", content(path));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    start.elapsed()
}

/// Waits until all resources of the assignment in force are watched, and clean.
async fn watched(fleet: &SingleNodeFleet, serial: u64) -> NodeState {
    let is_clean = |state: &NodeState| {
        let watches = state.assignments.first().and_then(|assignment| assignment.watch);
        let is_latest = state.channels.get("base").is_some_and(|at| at.serial == serial);
        state.alive && is_latest && watches.is_some_and(|watch| watch.resources > 0 && watch.clean == watch.resources)
    };
    fleet.state("everything is watched and clean", is_clean).await
}

fn status(fleet: &SingleNodeFleet) -> AgentStatus {
    let told = ensign(&["agent", "status", "--output", "json", "--config", fleet.path("agent.toml").to_str().unwrap()]);
    serde_json::from_str(&told.stdout).unwrap()
}

/// Returns the causes of the changes of a file, from its events.
async fn causes(fleet: &SingleNodeFleet, path: &Path) -> Vec<ChangeCause> {
    fleet.wait_until_published();
    let filter = format!("ensign.v1.{FLEET}.event.web1.{}", EventKind::Transaction.as_str());
    let all = node_dir::stored(&fleet.bus, &fleet.subjects.stream("EVENTS"), &filter).await;
    let events = all.iter().map(|message| serde_json::from_slice::<TransactionEvent>(&message.payload).unwrap());
    events.filter(|event| Path::new(&event.name) == path).filter_map(|event| event.change_cause).collect()
}

async fn event_count(fleet: &SingleNodeFleet) -> usize {
    fleet.wait_until_published();
    let filter = format!("ensign.v1.{FLEET}.event.>");
    node_dir::stored(&fleet.bus, &fleet.subjects.stream("EVENTS"), &filter).await.len()
}

#[test]
fn drift_is_repaired_when_it_happens() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let (directory, motd) = (fleet.path("managed"), fleet.path("managed/motd"));
        fleet.store_assignment(&fleet.assignment(1, enforced(&manifest(&fleet, &["motd", "issue"], "first")))).await;
        watched(&fleet, 1).await;

        fs::write(&motd, "drift").unwrap();
        repaired("overwritten", &motd, "first").await;
        fs::remove_file(&motd).unwrap();
        repaired("deleted", &motd, "first").await;
        fs::set_permissions(&motd, fs::Permissions::from_mode(0o600)).unwrap();
        fleet
            .until("the mode is repaired", || fs::metadata(&motd).is_ok_and(|meta| meta.permissions().mode() & 0o777 == 0o644))
            .await;
        fs::write(fleet.path("other"), "drift").unwrap();
        fs::rename(fleet.path("other"), &motd).unwrap();
        repaired("replaced", &motd, "first").await;
        fs::remove_dir_all(&directory).unwrap();
        repaired("the directory is gone", &motd, "first").await;
        repaired("the directory is gone", &fleet.path("managed/issue"), "first").await;
        fleet.until("the last repair has ended", || status(&fleet).running.is_none()).await;
        watched(&fleet, 1).await;
        let told = causes(&fleet, &motd).await;
        assert_eq!(told.first(), Some(&ChangeCause::Intentional), "{told:?}");
        assert_eq!(told.iter().filter(|cause| **cause == ChangeCause::Corrective).count(), told.len() - 1, "{told:?}");
        assert!(told.len() >= 6, "{told:?}");

        // A check that finds everything as wanted costs no message.
        let (before, checks) = (event_count(&fleet).await, status(&fleet).counts.repairs.checks);
        fs::write(&motd, "first").unwrap();
        fleet.until("the file is checked", || status(&fleet).counts.repairs.checks > checks).await;
        assert_eq!(event_count(&fleet).await, before);

        let mut times = Vec::new();
        for _ in 0..40 {
            fs::write(&motd, "drift").unwrap();
            times.push(repaired("overwritten", &motd, "first").await);
            tokio::time::sleep(Duration::from_millis(50)).await;
            if status(&fleet).watches["base"].flapping > 0 {
                break;
            }
        }
        println!("{}: from write to repair: {times:?}", binary.display());
        let repairs = status(&fleet).counts.repairs;
        assert!(repairs.changes >= 6 && repairs.latency.iter().sum::<u64>() >= 6, "{repairs:?}");
    });
}

#[test]
fn a_new_assignment_takes_the_place_of_the_enforced_one_when_it_can_be_applied() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let motd = fleet.path("managed/motd");
        fleet.store_assignment(&fleet.assignment(1, enforced(&manifest(&fleet, &["motd"], "first")))).await;
        watched(&fleet, 1).await;
        fleet.store_assignment(&fleet.assignment(2, enforced(&manifest(&fleet, &["issue", "motd"], "second")))).await;
        repaired("the next assignment", &motd, "second").await;
        watched(&fleet, 2).await;
        fs::write(&motd, "drift").unwrap();
        repaired("drift of the next assignment", &motd, "second").await;

        // An assignment that cannot be applied leaves the one before enforced.
        let wrong = fleet.path("wrong.yaml");
        fs::write(&wrong, "ccm:\n  resources:\n    - nothing:\n        - x: {}\n").unwrap();
        fleet.store_assignment(&fleet.assignment(3, enforced(&wrong))).await;
        fleet
            .state("the wrong one is refused", |state| state.alarms.iter().any(|text| text.contains("cannot apply the new")))
            .await;
        fs::write(&motd, "drift").unwrap();
        repaired("drift while the latest cannot be applied", &motd, "second").await;

        // A killed agent watches again after its start.
        agent.kill();
        fs::write(&motd, "drift").unwrap();
        let _agent = fleet.start_agent().await;
        repaired("drift while no agent ran", &motd, "second").await;
        watched(&fleet, 3).await;
        fs::write(&motd, "drift").unwrap();
        repaired("drift after the start", &motd, "second").await;

        fleet.store_assignment(&fleet.assignment(4, Action::Withdraw(NoParameters {}))).await;
        fleet.until("nothing is watched", || status(&fleet).watches.is_empty()).await;
        fs::write(&motd, "drift").unwrap();
        let command = fleet.file_command("after", "x");
        fleet.send(&command).await;
        fleet.only_result(command.id).await;
        assert_eq!(content(&motd).as_deref(), Some("drift"), "a withdrawn assignment repairs nothing");
    });
}

#[test]
fn limits_bound_the_repairs() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "watch = false").await;
        let agent = fleet.start_agent().await;
        let first = fleet.assignment(1, enforced(&manifest(&fleet, &["motd"], "first")));
        fleet.store_assignment(&first).await;
        let result = fleet.only_result(first.id).await;
        assert_eq!((result.outcome, result.code.as_deref()), (CommandOutcome::Refused, Some("local_limit")), "{result:?}");
        assert_eq!(content(&fleet.path("managed/motd")), None);
        agent.stop();

        // A path outside of the limits is not repaired either.
        let managed = fleet.path("managed");
        let inside = format!("paths = [\"{}/\", \"{}\"]", managed.display(), managed.display());
        fs::create_dir(&managed).unwrap();
        fleet.write_config(&inside);
        let _agent = fleet.start_agent().await;
        let path = manifest(&fleet, &["motd", "../outside"], "second");
        fleet.store_assignment(&fleet.assignment(2, enforced(&path))).await;
        let is_watched = |state: &NodeState| {
            state.assignments.first().and_then(|assignment| assignment.watch).is_some_and(|watch| watch.failed == 1)
        };
        fleet.state("one file is outside", is_watched).await;
        fs::write(fleet.path("outside"), "drift").unwrap();
        fs::write(managed.join("motd"), "drift").unwrap();
        repaired("drift within the limits", &managed.join("motd"), "second").await;
        assert_eq!(content(&fleet.path("outside")).as_deref(), Some("drift"));
    });
}

#[test]
fn a_fight_over_a_file_is_bounded_and_reported() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let motd = fleet.path("managed/motd");
        fleet.store_assignment(&fleet.assignment(1, enforced(&manifest(&fleet, &["motd", "issue"], "first")))).await;
        watched(&fleet, 1).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, file) = (Arc::clone(&is_over), motd.clone());
        let fight = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                fs::write(&file, "drift").unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let is_told =
            |state: &NodeState| state.alarms.iter().any(|text| text.contains("again and again") && text.contains("motd"));
        let state = fleet.state("the fight is reported", is_told).await;
        assert_eq!(state.assignments[0].watch.unwrap().flapping, 1, "{state:?}");
        // Other files are repaired as before.
        let issue = fleet.path("managed/issue");
        fs::write(&issue, "drift").unwrap();
        repaired("another file", &issue, "first").await;
        let checks = status(&fleet).counts.repairs.checks;
        assert!(checks < 100, "{checks} checks");
        is_over.store(true, Ordering::Relaxed);
        fight.join().unwrap();
        repaired("the fight is over", &motd, "first").await;
    });
}
