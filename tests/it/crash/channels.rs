//! Desired state and the trust bundle, wherever the agent dies. The ledger is never behind the file of a channel, and nothing
//! older becomes active again. An assignment runs, a withdrawn one does not, and each is reported once.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ensign::host::Checkpoint;
use ensign::store::ChannelRecord;
use ensign::store::outbox::Outbox;
use ensign::wire::bundle::TrustBundle;
use ensign::wire::command::{Action, Command, NoParameters};
use ensign::wire::report::LifecycleEvent;
use ensign::wire::{CommandOutcome, Envelope, NodeState};
use futures_util::future::join_all;
use serde_json::Value;
use tempfile::TempDir;

use super::{Bundle, OLD, effects, is_armed, is_done, is_whole};
use crate::support::nats::binaries;
use crate::support::node_dir::{NodeDir, NodeSettings, read, stop, wait_for_exit};
use crate::support::single_node::{Agent, PATIENCE, SingleNodeFleet, assign_action};

/// Checkpoints that only these tests reach.
pub(super) const ONLY: &[Checkpoint] = &[
    Checkpoint::TrustActivated,
    Checkpoint::AssignmentStored,
    Checkpoint::AssignmentStarted,
    Checkpoint::BlobStored,
    Checkpoint::HostDataStored,
    Checkpoint::AssignmentPromoted,
];

/// The checkpoints of an assignment, from its arrival to its result.
const ASSIGNED: &[Checkpoint] = &[
    Checkpoint::IntakeVerified,
    Checkpoint::IntakeRecorded,
    Checkpoint::AssignmentStored,
    Checkpoint::IntakeQueued,
    Checkpoint::IntakeAnswered,
    Checkpoint::RunFetched,
    Checkpoint::BlobStored,
    Checkpoint::RunUnpacked,
    Checkpoint::AssignmentStarted,
    Checkpoint::HostDataStored,
    Checkpoint::RunPlanned,
    Checkpoint::FilePlaced,
    Checkpoint::RunEnded,
    Checkpoint::AssignmentPromoted,
    Checkpoint::ResultPosted,
    Checkpoint::ResultRecorded,
    Checkpoint::OutboxWritten,
    Checkpoint::OutboxSent,
    Checkpoint::OutboxPosition,
    Checkpoint::StateWritten,
];
/// The checkpoints of a withdrawal.
const WITHDRAWN: &[Checkpoint] = &[
    Checkpoint::IntakeVerified,
    Checkpoint::IntakeRecorded,
    Checkpoint::AssignmentStored,
    Checkpoint::IntakeQueued,
    Checkpoint::IntakeAnswered,
    Checkpoint::ResultPosted,
    Checkpoint::ResultRecorded,
    Checkpoint::StateWritten,
];
/// The checkpoints of the next trust bundle.
const TRUSTED: &[Checkpoint] =
    &[Checkpoint::StateWritten, Checkpoint::TrustStored, Checkpoint::TrustActivated, Checkpoint::OutboxWritten];

/// The number of nodes that die at once.
const NODES: usize = 5;
/// The number of passes at which the agent dies, from the first.
const TIMES: u32 = 2;
/// The data of the host, before and after.
const DATA: [&str; 2] = ["data:\n  greeting: one\n", "data:\n  greeting: another\n"];

struct Stage {
    fleet: SingleNodeFleet,
    older: Bundle,
    newer: Bundle,
    data: TempDir,
}

impl Stage {
    async fn new() -> Self {
        let fleet = SingleNodeFleet::new(binaries().last().unwrap(), "").await;
        Self { fleet, older: Bundle::new(), newer: Bundle::new(), data: TempDir::new().unwrap() }
    }

    fn data(&self, place: &NodeDir) -> PathBuf {
        self.data.path().join(format!("{}.yaml", place.node))
    }

    /// A node with a channel of its own: the assignments of others do not concern it.
    fn place(&self, node: &str) -> NodeDir {
        let data = self.data.path().join(format!("{node}.yaml"));
        std::fs::write(&data, DATA[0]).unwrap();
        let head = format!("data = \"{}\"", data.display());
        let wishes = NodeSettings { head, limits: "fetch_hosts = [\"127.0.0.1\"]".to_owned(), ..NodeSettings::default() };
        let place = NodeDir::new(&self.fleet, node, &self.fleet.server.url(), &wishes);
        std::fs::write(place.site().join("conf"), OLD).unwrap();
        place
    }

    /// The next assignment of this node, in the channel of its name.
    fn assignment(&self, place: &NodeDir, serial: u64, action: Action) -> Command {
        let mut command = self.fleet.assignment(serial, action);
        command.channel.as_mut().unwrap().name = place.node.to_string();
        command.to = ensign::wire::Target::nodes(vec![place.node.clone()]);
        command
    }

    async fn desire(&self, place: &NodeDir, command: &Command) {
        let subject = self.fleet.subjects.desired(place.node.as_str());
        self.fleet.bus.publish_stored(subject.as_str(), &[], self.fleet.sign(command)).await.unwrap();
    }

    /// Lets an agent die at a checkpoint of the second assignment, and checks. False when the agent did not reach the
    /// checkpoint.
    async fn crash_at(&self, at: Checkpoint, count: u32, withdraws: bool) -> bool {
        let bus = &self.fleet.bus;
        let kind = if withdraws { "withdrawn" } else { "assigned" };
        let place = self.place(&format!("{kind}-{}-{count}", at.name().replace('.', "-")));
        let site = place.site();
        let first = self.assignment(&place, 1, assign_action(self.older.apply(&site, "first")));
        let mut agent = place.start(bus, &mut place.process()).await;
        self.desire(&place, &first).await;
        assert_eq!(place.only_result(bus, first.id).await.outcome, CommandOutcome::Changed);
        assert_eq!(stop(&mut agent).await.code(), Some(0));
        std::fs::write(site.join("conf"), OLD).unwrap();
        std::fs::write(self.data(&place), DATA[1]).unwrap();

        let action = if withdraws { Action::Withdraw(NoParameters {}) } else { assign_action(self.newer.apply(&site, "second")) };
        let second = self.assignment(&place, 2, action);
        let died = self.run_until_death(&place, &second, &format!("{}:{count}", at.name())).await;
        is_whole(&site);
        let recorded = self.check_disk(&place, &first, &second);
        let before = effects(&site, "first");
        std::fs::remove_file(self.data(&place)).unwrap();

        let mut states = place.states(bus).await;
        let mut agent = place.start(bus, &mut place.process()).await;
        let done = place.only_result(bus, second.id).await;
        let wanted = (!withdraws).then_some(second.id);
        let in_force = |state: &NodeState| state.assignments.first().map(|assignment| assignment.id);
        let quiet = |state: &NodeState| state.outbox == 0 && state.running.is_none();
        place.until(bus, "the second", |state| quiet(state) && in_force(state) == wanted && is_at(state, &place, 2)).await;
        assert_eq!(stop(&mut agent).await.code(), Some(0));
        while let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(1), states.next()).await {
            let state: NodeState = read(&message).unwrap();
            assert!(!recorded || in_force(&state) != Some(first.id), "an older assignment is active again: {state:?}");
        }
        if recorded {
            assert_eq!(effects(&site, "first"), before, "the first assignment ran again");
        }
        if withdraws {
            assert_eq!(done.outcome, CommandOutcome::Stable, "{done:?}");
        } else {
            assert!([CommandOutcome::Changed, CommandOutcome::Stable].contains(&done.outcome), "{done:?}");
            is_done(&site, &self.newer);
            assert!((1..=2).contains(&effects(&site, "second")), "{}", effects(&site, "second"));
        }
        assert_eq!(place.results(bus, second.id).await.len(), 1);
        let runs = self.check_events(&place, &second).await;
        assert!(runs == 0 || !withdraws, "{runs}");
        assert!(runs > 0 || withdraws, "the run of {} is not reported", second.id);
        // The unpacked bundle of an active assignment stays until the next run.
        let mut left = place.leftovers();
        left.retain(|path| !path.parent().unwrap().ends_with("work"));
        assert_eq!(left, Vec::<PathBuf>::new());
        assert!(Outbox::open(&place.state_dir().join("outbox"), 64 << 20).unwrap().is_empty());
        died
    }

    /// Starts an agent that must die, and that finds the command in the stream. True when it died.
    async fn run_until_death(&self, place: &NodeDir, command: &Command, checkpoint: &str) -> bool {
        let bus = &self.fleet.bus;
        let mut results = bus.subscribe(&format!("ensign.v1.test.job.{}.{}.done", command.id, place.node)).await.unwrap();
        bus.flush_roundtrip().await.unwrap();
        self.desire(place, command).await;
        let mut agent = Agent::start(place.process().env("ENSIGN_CHECKPOINT", checkpoint));
        tokio::select! {
            status = wait_for_exit(&mut agent) => {
                assert_eq!(status.signal(), Some(9), "{status:?}\n{}", place.log());
                return true;
            }
            heard = tokio::time::timeout(PATIENCE, results.next()) => assert!(heard.is_ok(), "{}", place.log()),
        }
        let status = stop(&mut agent).await;
        assert!(status.signal() == Some(9) || status.code() == Some(0), "{status:?}\n{}", place.log());
        status.signal() == Some(9)
    }

    /// Checks that every file is whole, and that none is ahead of the ledger. True when the ledger has the second assignment.
    fn check_disk(&self, place: &NodeDir, first: &Command, second: &Command) -> bool {
        let state = place.state_dir();
        let ledger = std::fs::read_to_string(state.join("ledger.jsonl")).unwrap();
        let is_recorded = ledger.lines().filter(|line| line.ends_with('}')).any(|line| line.contains(&second.id.to_string()));
        let file = std::fs::read(state.join(format!("channels/{}.json", place.node))).unwrap();
        let kept: ChannelRecord = serde_json::from_slice(&file).unwrap();
        let payload = Envelope::parse(&kept.latest).unwrap().payload;
        let latest: Command = serde_json::from_slice(&payload).unwrap();
        assert!(latest.id == first.id || (latest.id == second.id && is_recorded), "the file is ahead of the ledger");
        let data = std::fs::read_to_string(state.join("data.yaml")).unwrap();
        let data = data.split_once('\n').unwrap().1;
        assert!(DATA.contains(&data), "{data:?}");
        is_recorded
    }

    /// Checks that no event is double. Returns the number of summaries of the command's run.
    async fn check_events(&self, place: &NodeDir, command: &Command) -> usize {
        let events: Vec<(String, Value)> =
            place.events(&self.fleet.bus).await.iter().map(|event| (event.subject.clone(), read(event).unwrap())).collect();
        let mut ids: Vec<&str> = events.iter().map(|(_, event)| event["event_id"].as_str().unwrap()).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all, "double events");
        let of = |kind: &str| {
            let is_of = |(subject, event): &&(String, Value)| {
                subject.ends_with(kind) && event["run_id"] == command.id.to_string().as_str()
            };
            events.iter().filter(is_of).count()
        };
        assert!(of(".run") == 0 || of(".transaction") > 0, "a run without its events");
        of(".run")
    }

    async fn rounds(&self, checkpoints: &[Checkpoint], withdraws: bool) {
        let next = AtomicUsize::new(0);
        let worker = async || {
            while let Some(at) = checkpoints.get(next.fetch_add(1, Ordering::Relaxed)) {
                for count in 1..=TIMES {
                    let died = self.crash_at(*at, count, withdraws).await;
                    assert!(died || count > 1, "the agent does not come to {}", at.name());
                    if !died {
                        break;
                    }
                }
            }
        };
        join_all((0..NODES).map(|_| worker())).await;
    }
}

fn is_at(state: &NodeState, place: &NodeDir, serial: u64) -> bool {
    state.channels.get(place.node.as_str()).is_some_and(|channel| channel.serial == serial)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assignment_becomes_active_wherever_the_agent_dies() {
    if is_armed() {
        Stage::new().await.rounds(ASSIGNED, false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_assignment_stays_withdrawn_wherever_the_agent_dies() {
    if is_armed() {
        Stage::new().await.rounds(WITHDRAWN, true).await;
    }
}

/// Returns the version in the file of the trust bundle, which is whole.
fn kept_version(place: &NodeDir) -> u64 {
    let kept = std::fs::read(place.state_dir().join("trust.json")).unwrap();
    let bundle: TrustBundle = serde_json::from_slice(&Envelope::parse(&kept).unwrap().payload).unwrap();
    bundle.version
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_trust_bundle_is_active_and_reported_wherever_the_agent_dies() {
    if !is_armed() {
        return;
    }
    let stage = Stage::new().await;
    let bus = &stage.fleet.bus;
    let mut places = Vec::new();
    for at in TRUSTED {
        let place = stage.place(&format!("trust-{}", at.name().replace('.', "-")));
        let mut agent = place.start(bus, &mut place.process()).await;
        assert_eq!(stop(&mut agent).await.code(), Some(0));
        assert_eq!(kept_version(&place), 1);
        places.push((at, place));
    }
    stage.fleet.store_trust(2).await;
    join_all(places.iter().map(|(at, place)| async {
        let mut agent = Agent::start(place.process().env("ENSIGN_CHECKPOINT", at.name()));
        assert_eq!(wait_for_exit(&mut agent).await.signal(), Some(9), "{}\n{}", at.name(), place.log());
        let kept = kept_version(place);
        let mut states = place.states(bus).await;
        let mut agent = place.start(bus, &mut place.process()).await;
        place.until(bus, "version 2", |state| state.trust == 2).await;
        while let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(1), states.next()).await {
            let state: NodeState = read(&message).unwrap();
            assert!(state.trust >= kept, "{}: an older bundle is active again", at.name());
        }
        let command = place.append_command(&stage.fleet, "effect");
        stage.fleet.send(&command).await;
        assert_eq!(place.only_result(bus, command.id).await.outcome, CommandOutcome::Changed);
        place.until(bus, "nothing waits", |state| state.outbox == 0).await;
        assert_eq!(stop(&mut agent).await.code(), Some(0));
        stage.check_events(place, &command).await;
        // By the trust update, or by the start after it.
        let events = place.events(bus).await;
        let lives = events.iter().filter(|event| event.subject.ends_with(".lifecycle")).filter_map(read::<LifecycleEvent>);
        let said = lives.filter_map(|life| life.message).filter(|message| message.contains("uses version 2")).count();
        assert!(said >= 1, "{}: no event", at.name());
    }))
    .await;
}

/// Lost files of channels, or files from a copy: nothing older becomes active, and the stream has the desired state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assignment_file_that_differs_from_the_ledger_is_not_applied() {
    let stage = Stage::new().await;
    let bus = &stage.fleet.bus;
    let place = stage.place("restored");
    let site = place.site();
    let first = stage.assignment(&place, 1, assign_action(stage.older.apply(&site, "first")));
    let second = stage.assignment(&place, 2, assign_action(stage.newer.apply(&site, "second")));
    let (state, file) = (place.state_dir().to_owned(), place.state_dir().join("channels/restored.json"));
    let ledger = state.join("ledger.jsonl");
    let mut agent = place.start(bus, &mut place.process()).await;
    stage.desire(&place, &first).await;
    place.only_result(bus, first.id).await;
    assert_eq!(stop(&mut agent).await.code(), Some(0));
    let older = [&file, &ledger].map(|path| std::fs::read(path).unwrap());
    let mut agent = place.start(bus, &mut place.process()).await;
    stage.desire(&place, &second).await;
    place.only_result(bus, second.id).await;
    assert_eq!(stop(&mut agent).await.code(), Some(0));
    let newer = std::fs::read(&file).unwrap();
    let mut ran = effects(&site, "first");

    let is_in_force = |state: &NodeState, id| state.assignments.first().is_some_and(|assignment| assignment.id == id);
    let again = async |what: &str| {
        std::fs::write(site.join("conf"), OLD).unwrap();
        let mut agent = place.start(bus, &mut place.process()).await;
        place.until(bus, what, |state| is_in_force(state, second.id) && is_at(state, &place, 2)).await;
        let start = Instant::now();
        while std::fs::read_to_string(site.join("conf")).unwrap() == OLD {
            assert!(start.elapsed() < PATIENCE, "{what}: the assignment is not active\n{}", place.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(stop(&mut agent).await.code(), Some(0));
    };
    // The file from a copy, or none: the ledger is newer.
    std::fs::write(&file, &older[0]).unwrap();
    again("the file is older").await;
    std::fs::remove_file(&file).unwrap();
    again("there is no file").await;
    assert_eq!(std::fs::read(&file).unwrap(), newer);
    // The ledger from a copy: the agent writes the active assignment to it, so that nothing older is accepted.
    std::fs::write(&ledger, &older[1]).unwrap();
    again("the ledger is older").await;
    assert_eq!(effects(&site, "first"), ran, "the first assignment ran again");
    let mut agent = place.start(bus, &mut place.process()).await;
    stage.desire(&place, &first).await;
    let start = Instant::now();
    while !place.log().contains("stale_serial") {
        assert!(start.elapsed() < PATIENCE, "the command is not refused\n{}", place.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(stop(&mut agent).await.code(), Some(0));
    ran = effects(&site, "first") - ran;
    assert_eq!(ran, 0, "the first assignment ran again");
}
