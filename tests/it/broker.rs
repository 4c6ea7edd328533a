//! Faults of the server under an agent: emptied, without JetStream, full, too old. The agent takes and answers commands,
//! results wait on disk, and the alarms and errors name the next step.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ensign::store::outbox::{Outbox, OutboxMessage as Waiting, Priority};
use ensign::transport::{Bus, BusSettings, Message, TransportError};
use ensign::wire::{Ack, AckStatus, CommandOutcome, CommandResult, NodeState};

use crate::support::fleet::ensign;
use crate::support::nats::{NatsServer, Options};
use crate::support::node_dir::{NodeDir, NodeSettings, as_operator, no_receipt, read, stored};
use crate::support::single_node::{Agent, FLEET, PATIENCE, SingleNodeFleet, on_every_server};
use crate::support::skip::{Reason, skip};

/// Returns the reason why results wait on a node. A message that was in flight when the server went down may time out first.
fn results_wait(state: &NodeState) -> Option<&str> {
    wait_reason(state, "results", "JOBS")
}

/// Returns the reason why a queue waits for a stream.
fn wait_reason<'a>(state: &'a NodeState, what: &str, stream: &str) -> Option<&'a str> {
    let alarm = format!("cannot publish {what} to stream ENSIGN_{FLEET}_{stream}: ");
    state.alarms.iter().find_map(|trouble| trouble.strip_prefix(alarm.as_str())?.strip_suffix("; kept on disk"))
}

async fn started(fleet: &SingleNodeFleet) -> (NodeDir, Agent) {
    let place = NodeDir::new(fleet, "web1", &fleet.server.url(), &NodeSettings::default());
    let agent = place.start(&fleet.bus, &mut place.process()).await;
    (place, agent)
}

/// Kills the server, changes it, and starts it again; returns when the agent is connected to it.
async fn restart_changed(fleet: &mut SingleNodeFleet, place: &NodeDir, change: impl FnOnce(&NatsServer)) {
    let connected = |place: &NodeDir| place.log().matches("connected to NATS").count();
    let before = connected(place);
    fleet.server.kill();
    change(&fleet.server);
    fleet.server.start_again();
    fleet.bus.watch().wait_for(|link| link.connected).await.unwrap();
    fleet.until("the agent is back", || connected(place) > before).await;
}

/// Sends a command that the agent must acknowledge and finish by direct reply. Repeats the same bytes while no agent listens.
async fn run_by_reply(fleet: &SingleNodeFleet, place: &NodeDir, name: &str) -> uuid::Uuid {
    let command = place.append_command(fleet, name);
    let (reply, mut inbox) = fleet.bus.request_inbox().await.unwrap();
    let (envelope, start) = (fleet.sign(&command), Instant::now());
    let mut acknowledged = false;
    let done = loop {
        if !acknowledged {
            fleet.publish(&command, envelope.clone(), &format!("{reply}.1")).await;
        }
        match tokio::time::timeout(Duration::from_secs(1), inbox.next()).await.map(|answer| answer.unwrap()) {
            Ok(answer) if answer.no_responders => tokio::time::sleep(Duration::from_millis(50)).await,
            Ok(answer) => match read::<Ack>(&answer) {
                Some(ack) => {
                    assert_eq!(ack.status, AckStatus::Accepted);
                    acknowledged = true;
                }
                None => break read::<CommandResult>(&answer).unwrap(),
            },
            Err(_) => assert!(start.elapsed() < PATIENCE, "no answer:\n{}", place.log()),
        }
    };
    assert!(acknowledged && done.outcome == CommandOutcome::Changed, "{done:?}");
    assert_eq!(place.lines(name), 1);
    command.id
}

#[test]
fn an_emptied_server_gets_the_queued_messages_once_the_streams_exist() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        let (place, _agent) = started(&fleet).await;
        restart_changed(&mut fleet, &place, NatsServer::wipe).await;
        let id = run_by_reply(&fleet, &place, "effect").await;
        place
            .until(&fleet.bus, "results wait", |state| {
                results_wait(state).is_some_and(|why| why.starts_with("there is no stream for ")) && state.outbox > 0
            })
            .await;
        let status = as_operator(&fleet, &["status"]);
        assert!(status.code == 4 && status.stderr.contains("`ensign fleet init` creates the streams"), "{}", status.stderr);
        assert_eq!(as_operator(&fleet, &["init"]).code, 0);
        assert_eq!(place.only_result(&fleet.bus, id).await.outcome, CommandOutcome::Changed);
        place.until(&fleet.bus, "nothing waits", |state| results_wait(state).is_none() && state.outbox == 0).await;
        assert_eq!(place.lines("effect"), 1);
        fleet.until("the operator sees the alarm", || as_operator(&fleet, &["status"]).stdout.contains("1 alive")).await;
    });
}

#[test]
fn without_jetstream_commands_are_taken_and_results_wait() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        let (place, _agent) = started(&fleet).await;
        restart_changed(&mut fleet, &place, |server| server.reconfigure("")).await;
        let id = run_by_reply(&fleet, &place, "effect").await;
        place
            .until(&fleet.bus, "results wait", |state| {
                results_wait(state).is_some_and(|why| why.starts_with("JetStream is not available on the NATS server"))
                    && state.outbox > 0
            })
            .await;
        for command in ["status", "nodes", "init", "events"] {
            let ran = as_operator(&fleet, &[command]);
            assert!(ran.code == 4 && ran.stderr.contains("hint: the server needs `jetstream {}`"), "{command}: {}", ran.stderr);
        }
        restart_changed(&mut fleet, &place, |server| server.reconfigure("jetstream { store_dir: \"STORE\" }")).await;
        assert_eq!(place.only_result(&fleet.bus, id).await.outcome, CommandOutcome::Changed);
        place.until(&fleet.bus, "nothing waits", |state| results_wait(state).is_none() && state.outbox == 0).await;
        assert_eq!(place.lines("effect"), 1);
    });
}

/// Limits the stream of events to a number of messages, as an administrator may. -1 removes the limit.
async fn limit_events_stream(fleet: &SingleNodeFleet, messages: i64) {
    let name = fleet.subjects.stream("EVENTS");
    let config = serde_json::json!({
        "name": name, "subjects": [format!("ensign.v1.{FLEET}.event.>")], "retention": "limits", "storage": "file", "num_replicas": 1,
        "max_msgs": messages, "discard": "new", "allow_direct": true, "duplicate_window": 120_000_000_000_i64,
    });
    let (reply, mut inbox) = fleet.bus.request_inbox().await.unwrap();
    let subject = format!("$JS.API.STREAM.UPDATE.{name}");
    fleet.bus.publish_with_reply(&subject, &format!("{reply}.1"), &[], config.to_string().into_bytes()).await.unwrap();
    let answer: serde_json::Value = read(&inbox.next().await.unwrap()).unwrap();
    assert!(answer["error"].is_null(), "{answer}");
}

/// Checks the events: one summary for each of these commands, and no event twice.
async fn assert_reported_once(fleet: &SingleNodeFleet, place: &NodeDir, commands: &[uuid::Uuid]) {
    let events = place.events(&fleet.bus).await;
    let bodies: Vec<serde_json::Value> = events.iter().map(|event| read(event).unwrap()).collect();
    let ids: BTreeSet<&str> = bodies.iter().map(|event| event["event_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), bodies.len(), "{bodies:?}");
    for id in commands {
        for kind in [".transaction", ".run"] {
            let is_of = |(event, body): &(&Message, &serde_json::Value)| {
                event.subject.ends_with(kind) && body["run_id"] == id.to_string().as_str()
            };
            assert_eq!(events.iter().zip(&bodies).filter(is_of).count(), 1, "{id}{kind}");
        }
    }
}

#[test]
fn a_full_stream_is_named_and_delays_only_its_own_messages() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let (place, agent) = started(&fleet).await;
        let before = run_by_reply(&fleet, &place, "before").await;
        place.until(&fleet.bus, "all events are published", |state| state.outbox == 0 && state.running.is_none()).await;
        let there = stored(&fleet.bus, &fleet.subjects.stream("EVENTS"), fleet.subjects.events(None).as_str()).await.len();
        // Room for one more message: too little for a run.
        limit_events_stream(&fleet, i64::try_from(there).unwrap() + 1).await;
        let mut ids = vec![before];
        for name in ["one", "two", "three"] {
            let id = run_by_reply(&fleet, &place, name).await;
            assert_eq!(place.only_result(&fleet.bus, id).await.outcome, CommandOutcome::Changed);
            ids.push(id);
        }
        let state = place
            .until(&fleet.bus, "events wait", |state| {
                wait_reason(state, "events", "EVENTS").is_some_and(|why| why.contains("maximum messages exceeded"))
            })
            .await;
        assert!(state.outbox >= 5 && results_wait(&state).is_none() && state.open.is_some(), "{state:?}");
        let config = place.path("agent.toml");
        let status = ensign(&["agent", "status", "--config", config.to_str().unwrap()]);
        assert!(status.stdout.contains("cannot publish events to stream ENSIGN_test_EVENTS"), "{}", status.stdout);

        // The reason stays the same after a kill, and after a message to another stream.
        agent.kill();
        let agent = place.start(&fleet.bus, &mut place.process()).await;
        ids.push(run_by_reply(&fleet, &place, "four").await);
        assert_eq!(place.only_result(&fleet.bus, ids[4]).await.outcome, CommandOutcome::Changed);
        let room = stored(&fleet.bus, &fleet.subjects.stream("EVENTS"), fleet.subjects.events(None).as_str()).await.len();
        assert!(room <= there + 1, "{room}");
        limit_events_stream(&fleet, -1).await;
        // Two events of each command, and the start of the agent. The pause before the next attempt is half a minute at most.
        let start = std::time::Instant::now();
        while place.events(&fleet.bus).await.len() < there + 9 {
            assert!(start.elapsed() < 4 * PATIENCE, "{}", place.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        place
            .until(&fleet.bus, "nothing waits", |state| state.outbox == 0 && state.alarms.is_empty() && state.open.is_none())
            .await;
        assert_reported_once(&fleet, &place, &ids).await;
        for id in ids {
            assert_eq!(place.results(&fleet.bus, id).await.len(), 1);
        }
        assert_eq!(agent.stop(), Some(0));
    });
}

#[test]
fn a_result_does_not_wait_behind_old_events() {
    on_every_server(async |binary| {
        const OLD: usize = 400;
        let fleet = SingleNodeFleet::new(binary, "").await;
        let wishes = NodeSettings { head: "outbox_rate = 10".to_owned(), ..NodeSettings::default() };
        let place = NodeDir::new(&fleet, "web1", &fleet.server.url(), &wishes);
        let agent = place.start(&fleet.bus, &mut place.process()).await;
        assert_eq!(agent.stop(), Some(0));
        let mut outbox = Outbox::open(&place.state_dir().join("outbox"), 64 << 20).unwrap();
        for _ in 0..OLD {
            let id = uuid::Uuid::now_v7().to_string();
            let payload = serde_json::json!({"event_id": id}).to_string().into_bytes();
            let subject = format!("ensign.v1.{FLEET}.event.web1.transaction");
            let waiting = Waiting { subject, msg_id: id, payload, priority: Priority::Event, command: None };
            outbox.push(&waiting, jiff::Timestamp::now(), &no_receipt).unwrap();
        }
        drop(outbox);
        let _agent = place.start(&fleet.bus, &mut place.process()).await;
        let id = run_by_reply(&fleet, &place, "effect").await;
        assert_eq!(place.only_result(&fleet.bus, id).await.outcome, CommandOutcome::Changed);
        let told = place.events(&fleet.bus).await.len();
        assert!(told < OLD, "{told} events before the limit");
    });
}

/// The server of Debian 12, from `tests/tools/get-nats-server.sh target/tools bookworm`.
fn too_old() -> Option<PathBuf> {
    let tools = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/bookworm/usr/sbin/nats-server"));
    let named = std::env::var_os("NATS_SERVER_2_9").map(PathBuf::from);
    let found = named.or(Some(tools)).filter(|path| path.is_file());
    if found.is_none() {
        skip(Reason::Missing, "no nats-server 2.9: run `tests/tools/get-nats-server.sh target/tools bookworm`");
    }
    found
}

#[tokio::test]
async fn a_server_that_is_too_old_is_named_with_its_version() {
    let Some(binary) = too_old() else { return };
    let server = NatsServer::start_binary(&binary, &Options { jetstream: true, ..Options::default() });
    let settings = BusSettings { servers: vec![server.url()], ..BusSettings::default() };
    assert!(matches!(Bus::connect(&settings).await, Err(TransportError::TooOld(version)) if version.starts_with("2.9.")));
    for command in ["status", "init"] {
        let ran = ensign(&["fleet", "--fleet", FLEET, "--nats", &server.url(), command]);
        assert!(ran.code == 4 && ran.stderr.contains("2.10 is the oldest that is supported"), "{command}: {}", ran.stderr);
    }
    // The agent reports the same and continues: an administrator may upgrade the server.
    let binary = crate::support::nats::binaries().remove(0);
    let fleet = SingleNodeFleet::new(&binary, "").await;
    let place = NodeDir::new(&fleet, "web1", &server.url(), &NodeSettings::default());
    let mut agent = Agent::start(&mut place.process());
    fleet.until("the state has the reason", || place.log().contains("2.10 is the oldest that is supported")).await;
    assert!(agent.0.try_wait().unwrap().is_none());
}

#[test]
fn messages_that_a_slow_client_dropped_are_counted() {
    on_every_server(async |binary| {
        let server = NatsServer::start_binary(binary, &Options::default());
        let connect = async |backlog| {
            let settings = BusSettings { servers: vec![server.url()], backlog, ..BusSettings::default() };
            Bus::connect(&settings).await.unwrap()
        };
        let (slow, fast) = (connect(2).await, connect(256).await);
        let mut inbox = slow.subscribe("burst").await.unwrap();
        slow.flush_roundtrip().await.unwrap();
        for _ in 0..20 {
            fast.publish("burst", &[], vec![]).await.unwrap();
        }
        let start = std::time::Instant::now();
        while slow.counters().slow_consumers == 0 {
            assert!(start.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The agent continues with the messages that fit, and with later ones.
        assert!(inbox.next().await.is_some());
        assert!(slow.is_connected());
    });
}
