//! Assignments whose drift is repaired when it happens. The interval is an hour: no run at the interval helps.

mod beside_commands;
mod interrupted;
mod rights;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ensign::model::event::ChangeCause;
use ensign::model::{HumanDuration, TransactionEvent};
use ensign::wire::command::{Action, Assign, NoParameters};
use ensign::wire::report::LifecycleEvent;
use ensign::wire::subject::EventKind;
use ensign::wire::{AgentStatus, NodeState};

use crate::support::fleet::ensign;
use crate::support::node_dir;
use crate::support::single_node::{FLEET, PATIENCE, SingleNodeFleet, apply, assign_action, on_every_server};

/// The files of the test of each kind of drift.
const KINDS: [&str; 4] = ["overwritten", "deleted", "mode", "replaced"];

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
        write!(
            text,
            "        - {}:\n            ensure: present\n            content: {content}\n            owner: root\n            group: root\n            mode: \"0644\"\n",
            directory.join(file).display()
        )
        .unwrap();
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

/// Returns the messages of the lifecycle events of a kind.
async fn lifecycle(fleet: &SingleNodeFleet, what: &str) -> Vec<String> {
    fleet.wait_until_published();
    let filter = format!("ensign.v1.{FLEET}.event.web1.{}", EventKind::Lifecycle.as_str());
    let all = node_dir::stored(&fleet.bus, &fleet.subjects.stream("EVENTS"), &filter).await;
    let events = all.iter().map(|message| serde_json::from_slice::<LifecycleEvent>(&message.payload).unwrap());
    events.filter(|event| event.what == what).filter_map(|event| event.message).collect()
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
        let directory = fleet.path("managed");
        let measured: Vec<String> = (0..10).map(|number| format!("measured{number}")).collect();
        let files: Vec<&str> = KINDS.into_iter().chain(measured.iter().map(String::as_str)).collect();
        fleet.store_assignment(&fleet.assignment(1, enforced(&manifest(&fleet, &files, "first")))).await;
        watched(&fleet, 1).await;

        let [overwritten, deleted, mode, replaced] = KINDS.map(|name| directory.join(name));
        fs::write(&overwritten, "drift").unwrap();
        repaired("overwritten", &overwritten, "first").await;
        fs::remove_file(&deleted).unwrap();
        repaired("deleted", &deleted, "first").await;
        fs::set_permissions(&mode, fs::Permissions::from_mode(0o600)).unwrap();
        fleet
            .until("the mode is repaired", || fs::metadata(&mode).is_ok_and(|meta| meta.permissions().mode() & 0o777 == 0o644))
            .await;
        fs::write(fleet.path("other"), "drift").unwrap();
        fs::rename(fleet.path("other"), &replaced).unwrap();
        repaired("replaced", &replaced, "first").await;
        // A run that still verifies its repair would find the directory gone.
        fleet.until("the repair has ended", || status(&fleet).running.is_none()).await;
        fs::remove_dir_all(&directory).unwrap();
        for file in &files {
            repaired("the directory is gone", &directory.join(file), "first").await;
        }
        fleet.until("the last repair has ended", || status(&fleet).running.is_none()).await;
        watched(&fleet, 1).await;
        for name in KINDS {
            let told = causes(&fleet, &directory.join(name)).await;
            assert!(told.len() >= 3 && told.first() == Some(&ChangeCause::Intentional), "{name}: {told:?}");
            assert!(told.iter().skip(1).all(|cause| *cause == ChangeCause::Corrective), "{name}: {told:?}");
        }

        // A check that finds everything as wanted costs no message.
        let (before, checks) = (event_count(&fleet).await, status(&fleet).counts.repairs.checks);
        fs::write(&overwritten, "first").unwrap();
        fleet.until("the file is checked", || status(&fleet).counts.repairs.checks > checks).await;
        assert_eq!(event_count(&fleet).await, before);

        // Few drifts of each file: more of them would be a fight.
        let mut times = Vec::new();
        for file in measured.iter().chain(&measured) {
            let path = directory.join(file);
            fs::write(&path, "drift").unwrap();
            times.push(repaired("overwritten", &path, "first").await);
        }
        times.sort();
        println!("{}: from write to repair: median {:?} of {times:?}", binary.display(), times[times.len() / 2]);
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
        let fleet = SingleNodeFleet::new(binary, "").await;
        // A path outside of the limits is not repaired.
        let managed = fleet.path("managed");
        let inside = format!("paths = [\"{}/\", \"{}\"]", managed.display(), managed.display());
        fs::create_dir(&managed).unwrap();
        fleet.write_config(&inside);
        let _agent = fleet.start_agent().await;
        let outside = fleet.path("outside");
        let path = manifest(&fleet, &["motd", outside.to_str().unwrap()], "second");
        fleet.store_assignment(&fleet.assignment(2, enforced(&path))).await;
        let is_watched = |state: &NodeState| {
            state.assignments.first().and_then(|assignment| assignment.watch).is_some_and(|watch| watch.failed == 1)
        };
        fleet.state("one file is outside", is_watched).await;
        fs::write(&outside, "drift").unwrap();
        fs::write(managed.join("motd"), "drift").unwrap();
        repaired("drift within the limits", &managed.join("motd"), "second").await;
        assert_eq!(content(&outside).as_deref(), Some("drift"));
    });
}

#[test]
fn a_repair_uses_the_outputs_of_resources_that_it_does_not_run() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let (runs, receiver, path) = (fleet.path("runs"), fleet.path("receiver"), fleet.path("outputs.yaml"));
        let text = format!(
            "ccm:\n  resources:\n    - exec:\n        - sender:\n            provider: shell\n            command: echo one | tee -a {}\n    - file:\n        - {}:\n            ensure: present\n            content: \"{{{{ resources['exec#sender'].stdout }}}}\"\n            owner: root\n            group: root\n            mode: \"0644\"\n",
            runs.display(),
            receiver.display()
        );
        fs::write(&path, text).unwrap();
        fleet.store_assignment(&fleet.assignment(1, enforced(&path))).await;
        watched(&fleet, 1).await;
        let wanted = content(&receiver).unwrap();
        assert!(wanted.starts_with("one"), "{wanted:?}");
        fs::write(&receiver, "drift").unwrap();
        repaired("a receiver", &receiver, &wanted).await;
        fleet.until("the repair has ended", || status(&fleet).running.is_none()).await;
        // The command has no guard: only the run of all resources ran it.
        assert_eq!(content(&runs).as_deref(), Some("one\n"));
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
        let told = lifecycle(&fleet, "flapping").await;
        assert!(
            matches!(told.as_slice(), [one] if one.starts_with("channel base: file#") && one.contains("motd was repaired")),
            "{told:?}"
        );
        is_over.store(true, Ordering::Relaxed);
        fight.join().unwrap();
        repaired("the fight is over", &motd, "first").await;
    });
}
