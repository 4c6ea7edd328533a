//! Rollouts, wherever the agent dies: the health gate runs before the next command, and `halt` and `resume` are remembered.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ensign::host::Checkpoint;
use ensign::model::HumanDuration;
use ensign::trust::SigningKey;
use ensign::wire::command::{Action, Command, JobRef, RolloutPlan};
use ensign::wire::report::RolloutResult;
use ensign::wire::rollout_plan::{OnFailure, RolloutPosition as Turn, WAVE_MARGIN, Wave, Witness};
use ensign::wire::{CommandOutcome, CommandResult};
use futures_util::future::join_all;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::is_armed;
use crate::support::nats::binaries;
use crate::support::node_dir::{NodeDir, NodeSettings, read, stop, stored, wait_for_exit};
use crate::support::single_node::{PATIENCE, SingleNodeFleet, apply, assign_action, ensure_action};

/// Checkpoints that only these tests reach.
pub(super) const ONLY: &[Checkpoint] = &[
    Checkpoint::AssignmentReverted,
    Checkpoint::RevertReported,
    Checkpoint::HealthGateScheduled,
    Checkpoint::HealthGateCompleted,
    Checkpoint::OverrideStored,
];

/// From the end of a failed run to the report about the return to the assignment before.
const REVERTED: &[Checkpoint] = &[
    Checkpoint::RunEnded,
    Checkpoint::StateWritten,
    Checkpoint::AssignmentReverted,
    Checkpoint::ResultPosted,
    Checkpoint::ResultRecorded,
    Checkpoint::RevertReported,
    Checkpoint::OutboxSent,
];

/// From the end of the run to the end of the health gate.
const LOOKED: &[Checkpoint] =
    &[Checkpoint::HealthGateScheduled, Checkpoint::ResultPosted, Checkpoint::ResultRecorded, Checkpoint::HealthGateCompleted];

fn place(fleet: &SingleNodeFleet, node: &str) -> NodeDir {
    NodeDir::new(fleet, node, &fleet.server.url(), &NodeSettings::default())
}

/// A file that is healthy as long as there is no `broken` beside it.
fn resource(place: &NodeDir) -> Value {
    let own = nix::unistd::geteuid().as_raw().to_string();
    let check = format!("sh -c 'test ! -e {} || exit 2'", place.site().join("broken").display());
    json!({
        "ensure": "present", "content": "x", "owner": own, "group": own, "mode": "0644",
        "health_checks": [{"command": check, "tries": 1}],
    })
}

/// Puts the node into the first of two waves. The second begins soon, and further waves may begin within an hour.
fn gated(place: &NodeDir, mut command: Command) -> Command {
    let witness = Witness { node: place.node.clone(), key: SigningKey::from_seed(&[7; 32]).public().to_short() };
    let first = Wave { upto: Turn::for_node(command.id, &place.node), witnesses: vec![witness], min_ok: 1 };
    let steps = vec![first, Wave { upto: Turn::LAST, witnesses: vec![], min_ok: 0 }];
    command.options.waves = Some(RolloutPlan {
        steps,
        hold: HumanDuration::seconds(2),
        margin: WAVE_MARGIN,
        max_failed: 0,
        health: true,
        go: false,
        on_failure: OnFailure::Stop,
    });
    command
}

fn ensure_command(fleet: &SingleNodeFleet, place: &NodeDir) -> Command {
    let mut properties = resource(place);
    properties["name"] = json!(place.site().join("healthy"));
    gated(place, place.command(fleet, ensure_action("file", &properties)))
}

fn assignment(fleet: &SingleNodeFleet, place: &NodeDir) -> Command {
    let manifest = place.path("manifest.yaml");
    let file = json!({(place.site().join("healthy").display().to_string()): resource(place)});
    std::fs::write(&manifest, json!({"ccm": {"resources": [{"file": [file]}]}}).to_string()).unwrap();
    let mut command = fleet.assignment(1, assign_action(apply(&manifest)));
    command.channel.as_mut().unwrap().name = place.node.to_string();
    command.to = ensign::wire::Target::nodes(vec![place.node.clone()]);
    gated(place, command)
}

async fn send(fleet: &SingleNodeFleet, place: &NodeDir, command: &Command) {
    if command.channel.is_some() {
        let subject = fleet.subjects.desired(place.node.as_str());
        fleet.bus.publish_stored(subject.as_str(), &[], fleet.sign(command)).await.unwrap();
    } else {
        fleet.send(command).await;
    }
}

fn pending_health_gates(place: &NodeDir) -> Vec<PathBuf> {
    let directory = std::fs::read_dir(place.state_dir().join("rollouts")).unwrap();
    directory.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|ending| ending == "look")).collect()
}

async fn until(place: &NodeDir, what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited for {what}\n{}", place.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn rollout_failures(fleet: &SingleNodeFleet, command: &Command) -> Vec<RolloutResult> {
    let failures = fleet.subjects.rollout_failures(command.id);
    stored(&fleet.bus, &fleet.subjects.stream("ROLLOUTS"), failures.as_str())
        .await
        .iter()
        .map(|mark| read(mark).unwrap())
        .collect()
}

/// Dies at a checkpoint and starts again. An unhealthy node reports its failure; a healthy one reports nothing.
async fn crash_at(fleet: &SingleNodeFleet, at: Checkpoint, stands: bool, breaks: bool) {
    let (kind, end) = (if stands { "stands" } else { "once" }, if breaks { "ill" } else { "well" });
    let place = place(fleet, &format!("{kind}-{end}-{}", at.name().replace('.', "-")));
    let mut agent = place.start(&fleet.bus, place.process().env("ENSIGN_CHECKPOINT", at.name())).await;
    // The node refuses a command that was signed before its ledger begins.
    let command = if stands { assignment(fleet, &place) } else { ensure_command(fleet, &place) };
    send(fleet, &place, &command).await;
    assert_eq!(wait_for_exit(&mut agent).await.signal(), Some(9), "{}\n{}", at.name(), place.log());
    assert_eq!(pending_health_gates(&place).len(), 1, "{}: no record on disk", at.name());
    if breaks {
        std::fs::write(place.site().join("broken"), "").unwrap();
    }
    let mut agent = place.start(&fleet.bus, &mut place.process()).await;
    let done = place.only_result(&fleet.bus, command.id).await;
    // A command that died between its end and its result is interrupted, which is a failure. An assignment runs again.
    let fails = breaks || done.outcome == CommandOutcome::Interrupted;
    assert!(done.outcome != CommandOutcome::Interrupted || (at == Checkpoint::HealthGateScheduled && !stands), "{done:?}");
    until(&place, "the look", || pending_health_gates(&place).is_empty()).await;
    if fails {
        let subject = fleet.subjects.rollout_failed(command.id, &place.node);
        let stream = fleet.subjects.stream("ROLLOUTS");
        let mut feed = fleet.bus.follow(&stream, subject.as_str(), ensign::transport::StartAt::Beginning).await.unwrap();
        assert!(tokio::time::timeout(PATIENCE, feed.next()).await.is_ok(), "{}: no mark\n{}", at.name(), place.log());
    }
    place.until(&fleet.bus, "nothing waits", |state| state.outbox == 0 && state.running.is_none()).await;
    assert_eq!(stop(&mut agent).await.code(), Some(0));
    let marks = rollout_failures(fleet, &command).await;
    assert_eq!(marks.len(), usize::from(fails), "{} {marks:?}", at.name());
    let ok = fleet.subjects.rollout_successes(command.id);
    let ok = stored(&fleet.bus, &fleet.subjects.stream("ROLLOUTS"), ok.as_str()).await.len();
    // A node that died right after its success reports its failure at the next health gate.
    let was_well = !fails || at == Checkpoint::HealthGateCompleted;
    assert_eq!(ok, usize::from(was_well), "{}: one report of the success", at.name());
    assert_eq!(pending_health_gates(&place), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_check_after_a_run_survives_the_death_of_the_agent() {
    if !is_armed() {
        return;
    }
    let fleet = SingleNodeFleet::new(binaries().last().unwrap(), "").await;
    for stands in [false, true] {
        let rounds = LOOKED.iter().flat_map(|at| [true, false].map(|breaks| crash_at(&fleet, *at, stands, breaks)));
        join_all(rounds).await;
    }
}

/// A `halt` or `resume` of a job, signed this many milliseconds after the job.
fn override_command(fleet: &SingleNodeFleet, place: &NodeDir, halt: bool, job: &Command, after: i64) -> Command {
    let about = JobRef { job: job.id };
    let mut word = place.command(fleet, if halt { Action::Halt(about) } else { Action::Resume(about) });
    word.issued = job.issued + SignedDuration::from_millis(after);
    word.expires = word.issued + SignedDuration::from_mins(5);
    word
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_halt_survives_the_death_of_the_agent() {
    if !is_armed() {
        return;
    }
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let place = place(&fleet, "web1");
    let mut agent = place.start(&fleet.bus, place.process().env("ENSIGN_CHECKPOINT", Checkpoint::OverrideStored.name())).await;
    let job = ensure_command(&fleet, &place);
    let (before, halt, after) = (
        override_command(&fleet, &place, false, &job, 1),
        override_command(&fleet, &place, true, &job, 2),
        override_command(&fleet, &place, false, &job, 3),
    );
    // By direct message alone: the stream lacks this command, and will have an older one.
    fleet.send(&halt).await;
    assert_eq!(wait_for_exit(&mut agent).await.signal(), Some(9), "{}", place.log());
    fleet.bus.publish_stored(fleet.subjects.rollout_control(job.id).as_str(), &[], fleet.sign(&before)).await.unwrap();

    let mut agent = place.start(&fleet.bus, &mut place.process()).await;
    send(&fleet, &place, &job).await;
    let said = async |word: &Command| -> CommandResult {
        read(&place.first_answer(&fleet, word, &fleet.sign(word), PATIENCE).await.expect("an answer")).unwrap()
    };
    assert_eq!(said(&before).await.message.as_deref(), Some("a later `halt` or `resume` of this job is active"));
    // An operator without an answer sends again; the command counts already.
    assert_eq!(said(&halt).await.message.as_deref(), Some("a later `halt` or `resume` of this job is active"));
    assert!(!place.site().join("healthy").exists());
    assert_eq!(said(&after).await.outcome, CommandOutcome::Changed);
    assert_eq!(place.only_result(&fleet.bus, job.id).await.outcome, CommandOutcome::Changed);
    assert_eq!(stop(&mut agent).await.code(), Some(0));
}

/// An assignment in the first of two waves whose nodes go back. It appends its name to `effect`, and may fail at the end.
fn reverting(fleet: &SingleNodeFleet, place: &NodeDir, serial: u64, name: &str) -> Command {
    let at = |file: &str| place.site().join(file).display().to_string();
    let own = nix::unistd::geteuid().as_raw().to_string();
    let file = json!({at("conf"): {"ensure": "present", "content": name, "owner": own, "group": own, "mode": "0644"}});
    let effect = json!({"effect": {"command": format!("echo {name} >> {}", at("effect")), "provider": "shell"}});
    let last = json!({"last": {"command": if name == "bad" { "false" } else { "true" }, "provider": "shell"}});
    let manifest = place.path(&format!("{name}.yaml"));
    std::fs::write(&manifest, json!({"ccm": {"resources": [{"file": [file]}, {"exec": [effect, last]}]}}).to_string()).unwrap();
    let mut command = fleet.assignment(serial, assign_action(apply(&manifest)));
    command.channel.as_mut().unwrap().name = place.node.to_string();
    command.to = ensign::wire::Target::nodes(vec![place.node.clone()]);
    let mut command = gated(place, command);
    let waves = command.options.waves.as_mut().unwrap();
    (waves.hold, waves.on_failure) = (HumanDuration::seconds(60), OnFailure::Revert);
    command
}

/// Dies at a checkpoint on the way back from a failed assignment, and starts again.
async fn crash_on_the_way_back(fleet: &SingleNodeFleet, at: Checkpoint) {
    let place = place(fleet, &format!("back-{}", at.name().replace('.', "-")));
    let mut agent = place.start(&fleet.bus, &mut place.process()).await;
    let good = reverting(fleet, &place, 1, "good");
    send(fleet, &place, &good).await;
    assert_eq!(place.only_result(&fleet.bus, good.id).await.outcome, CommandOutcome::Changed);
    assert_eq!(stop(&mut agent).await.code(), Some(0));
    let mut agent = place.start(&fleet.bus, place.process().env("ENSIGN_CHECKPOINT", at.name())).await;
    let bad = reverting(fleet, &place, 2, "bad");
    send(fleet, &place, &bad).await;
    assert_eq!(wait_for_exit(&mut agent).await.signal(), Some(9), "{}\n{}", at.name(), place.log());
    let file = std::fs::read_to_string(place.state_dir().join(format!("channels/{}.json", place.node))).unwrap();
    let (is_back, runs) = (file.contains("reverted"), place.lines("effect"));

    let mut agent = place.start(&fleet.bus, &mut place.process()).await;
    let conf = place.site().join("conf");
    until(&place, "the content before", || std::fs::read_to_string(&conf).unwrap() == "good").await;
    let done = place.only_result(&fleet.bus, bad.id).await;
    let said = done.message.clone().unwrap_or_default();
    assert!(done.outcome == CommandOutcome::Failed && said.contains("reverted from serial 2 to serial 1"), "{done:?}");
    let back = |state: &ensign::wire::NodeState| {
        state.assignments.first().and_then(|assignment| assignment.reverted.as_ref()?.to) == Some(1)
    };
    place.until(&fleet.bus, "the return", |state| back(state) && state.outbox == 0 && state.running.is_none()).await;
    assert_eq!(stop(&mut agent).await.code(), Some(0));
    let text = std::fs::read_to_string(place.site().join("effect")).unwrap();
    let bad_runs = text.lines().filter(|line| *line == "bad").count();
    assert!(!is_back || bad_runs == 1, "{}: the failed assignment ran again: {text} ({runs})", at.name());
    let marks = rollout_failures(fleet, &bad).await;
    assert!(marks.len() == 1 && marks[0].reverts, "{}: {marks:?}", at.name());
    let events = place.events(&fleet.bus).await;
    let returns = events.iter().filter(|event| read::<Value>(event).is_some_and(|event| event["what"] == "reverted"));
    assert_eq!(returns.count(), 1, "{}: one event", at.name());
    assert_eq!(place.results(&fleet.bus, bad.id).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_return_to_the_assignment_before_survives_the_death_of_the_agent() {
    if !is_armed() {
        return;
    }
    let fleet = SingleNodeFleet::new(binaries().last().unwrap(), "").await;
    join_all(REVERTED.iter().map(|at| crash_on_the_way_back(&fleet, *at))).await;
}
