//! An agent whose clock is wrong: it raises an alarm, refuses commands of another time, and continues when the clock is right.

use std::sync::Arc;

use ensign::fleet::status;
use ensign::fleet::targeting::node_identity::NodeKeys;
use ensign::fleet::targeting::pinned_keys::PinnedKeys;
use ensign::fleet::targeting::states;
use ensign::fleet::targeting::states::{NodeLiveness, NodeStates};
use ensign::wire::command::Command;
use ensign::wire::{CommandOutcome, CommandResult, NodeState};
use jiff::{SignedDuration, Timestamp};

use crate::support::clock::{Clock, library};
use crate::support::nats::binaries;
use crate::support::node_dir::{NodeDir, NodeSettings, read};
use crate::support::single_node::{Agent, FLEET, PATIENCE, SingleNodeFleet};

/// True without an alarm, except the one about the difference to the clock of the server, which is checked rarely.
fn is_right(state: &NodeState) -> bool {
    state.alarms.iter().all(|trouble| trouble.ends_with("the server's"))
}

/// The states as a new operator reads them.
async fn states(fleet: &SingleNodeFleet) -> NodeStates {
    let roster = Arc::new(NodeKeys::new(FLEET, PinnedKeys::default(), None));
    states::read_states(&fleet.bus, &fleet.subjects, &roster, Timestamp::now()).await.unwrap()
}

/// A node with a clock of its own, with an offset in seconds.
struct Skewed {
    fleet: SingleNodeFleet,
    place: NodeDir,
    clock: Clock,
    agent: Agent,
}

impl Skewed {
    async fn new(seconds: i64) -> Option<Self> {
        let library = library()?;
        let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
        // An operator takes a node for silent after twice this interval, also when this machine is only busy.
        let wishes = NodeSettings { heartbeat: "5s".to_owned(), ..NodeSettings::default() };
        let place = NodeDir::new(&fleet, "web1", &fleet.server.url(), &wishes);
        let clock = Clock::new(&place.path("clock"));
        clock.off_by(seconds);
        let mut process = place.process();
        clock.set_environment(&library, &mut process);
        let agent = place.start(&fleet.bus, &mut process).await;
        Some(Self { fleet, place, clock, agent })
    }

    async fn refusal(&self, command: &Command) -> CommandResult {
        let answer = self.place.first_answer(&self.fleet, command, &self.fleet.sign(command), PATIENCE).await.expect("an answer");
        read(&answer).unwrap_or_else(|| panic!("the command was accepted: {}", String::from_utf8_lossy(&answer.payload)))
    }

    async fn works(&self, name: &str) {
        let command = self.place.append_command(&self.fleet, name);
        self.fleet.send(&command).await;
        assert_eq!(self.place.only_result(&self.fleet.bus, command.id).await.outcome, CommandOutcome::Changed);
        assert_eq!(self.place.lines(name), 1);
    }

    /// The view of the operator: liveness and alarms.
    async fn operator_view(&self) -> (&'static str, Vec<String>) {
        let states = states(&self.fleet).await;
        let row = status::node_statuses(&states).remove(0);
        (row.presence.as_str(), row.state.alarms)
    }
}

#[tokio::test]
async fn a_clock_in_the_past_raises_an_alarm_until_it_is_right() {
    let now = Timestamp::now().as_second();
    let Some(node) = Skewed::new(60 - now).await else { return };
    let state = node.place.until(&node.fleet.bus, "an alarm", |state| !state.alarms.is_empty()).await;
    assert!(state.alarms[0].starts_with("the clock of this host is wrong: it shows 1970-01-01T00:0"), "{state:?}");
    let done = node.refusal(&node.place.append_command(&node.fleet, "effect")).await;
    assert_eq!(done.code.as_deref(), Some("not_yet_valid"), "{done:?}");
    assert!(done.message.unwrap().contains("here it is 1970-01-01T00:0"));
    let (presence, alarms) = node.operator_view().await;
    assert!(presence == "silent" && alarms.iter().any(|text| text.contains("it shows 1970")), "{presence}: {alarms:?}");
    node.clock.off_by(0);
    node.place.until(&node.fleet.bus, "no alarm", is_right).await;
    assert_eq!(node.place.lines("effect"), 0);
    node.works("effect").await;
    // The stream keeps the messages of 1970, too.
    node.place.wait_until_published();
    let lives = node.place.events(&node.fleet.bus).await.iter().filter(|event| event.subject.ends_with(".lifecycle")).count();
    assert_eq!(lives, 1);
}

#[tokio::test]
async fn a_clock_in_the_future_is_reported_and_does_no_lasting_harm() {
    let Some(node) = Skewed::new(25 * 365 * 86_400).await else { return };
    let state = node.place.until(&node.fleet.bus, "an alarm", |state| !state.alarms.is_empty()).await;
    assert!(state.alarms[0].starts_with("the trust bundle expired at "), "{state:?}");
    let done = node.refusal(&node.place.append_command(&node.fleet, "effect")).await;
    assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Expired, Some("expired")), "{done:?}");
    assert!(done.message.as_ref().unwrap().contains("and here it is 205"), "{done:?}");
    let (presence, alarms) = node.operator_view().await;
    assert!(presence == "alive" && alarms.iter().any(|text| text.contains("the trust bundle expired")), "{presence}: {alarms:?}");
    node.clock.off_by(0);
    node.place.until(&node.fleet.bus, "no alarm", is_right).await;
    node.works("effect").await;
    // An agent that died with its clock in the future is offline.
    node.clock.off_by(7200);
    node.place
        .until(&node.fleet.bus, "the later time", |state| {
            state.at.duration_since(Timestamp::now()) > SignedDuration::from_mins(30)
        })
        .await;
    let Skewed { fleet, agent, .. } = node;
    agent.kill();
    let start = std::time::Instant::now();
    loop {
        let states = states(&fleet).await;
        if status::node_statuses(&states)[0].presence == NodeLiveness::Silent {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "a stopped node counts as online");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_no_expired_command_valid() {
    let Some(node) = Skewed::new(0).await else { return };
    node.works("first").await;
    let mut old = node.place.append_command(&node.fleet, "old");
    old.issued -= SignedDuration::from_mins(40);
    old.expires = old.issued + SignedDuration::from_mins(10);
    // By this clock alone the old command is of its time now.
    node.clock.off_by(-35 * 60);
    let wrong = SignedDuration::from_mins(-30);
    node.place.until(&node.fleet.bus, "the earlier time", |state| state.at.duration_since(Timestamp::now()) < wrong).await;
    let done = node.refusal(&old).await;
    assert_eq!(done.code.as_deref(), Some("expired"), "{done:?}");
    assert_eq!(node.place.lines("old"), 0);
    // The node accepts commands of the right time all the same: they are later than the accepted ones.
    node.works("second").await;
}

#[test]
fn an_operator_with_a_wrong_clock_is_warned_and_sees_the_true_fleet() {
    let Some(library) = library() else { return };
    let mut fleet = crate::support::fleet::Fleet::new(&binaries()[0], &[("web1", "web")]);
    fleet.start("web1", "web");
    let clock = Clock::new(&fleet.path("clock"));
    let status = |seconds: i64| {
        clock.off_by(seconds);
        let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_ensign"));
        process.args(["fleet", "--operator", fleet.path("operator.toml").to_str().unwrap(), "status"]);
        process.env("XDG_CONFIG_HOME", fleet.path("home")).env("XDG_STATE_HOME", fleet.path("home"));
        clock.set_environment(&library, &mut process);
        let output = process.output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for (seconds, said) in [(0, ""), (3600, "s ahead of the server's"), (-3600, "s behind the server's")] {
        let (stdout, stderr) = status(seconds);
        assert!(stdout.contains("1 node, 1 alive"), "{seconds}: {stdout}{stderr}");
        assert!(if said.is_empty() { !stderr.contains("clock") } else { stderr.contains(said) }, "{seconds}: {stderr}");
    }
}
