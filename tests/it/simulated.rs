//! Two hundred nodes at once: many copies of the agent's network half, with the real server and the real operator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ensign::fleet::job::dispatch;
use ensign::fleet::job::draft::CommandDraft;
use ensign::fleet::job::seal::sign;
use ensign::fleet::job::tracker;
use ensign::fleet::targeting::pinned_keys::PinnedKeys;
use ensign::fleet::targeting::states;
use ensign::fleet::{JobTracker, NodeKeys};
use ensign::model::HumanDuration;
use ensign::transport::{Bus, StartAt};
use ensign::wire::command::Ensure;
use ensign::wire::subject::ReportStage;
use ensign::wire::{Action, CommandOptions, CommandResult, Subjects, Target};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::nats::binaries;
use crate::support::sim::{FLEET, SimulatedFleet};

const NODES: u32 = 200;
const ENSURE: [&str; 10] =
    ["ensure", "file", "/srv/motd", "--content", "hello", "--owner", "root", "--file-group", "root", "--mode=0644"];

fn ensure(fleet: &SimulatedFleet, more: &[&str]) -> crate::support::fleet::Ran {
    fleet.run(&[&ENSURE, more].concat())
}

/// The number of nodes with each outcome.
fn counts(document: &Value) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for node in document["nodes"].as_array().unwrap() {
        *counts.entry(node["outcome"].as_str().unwrap()).or_default() += 1;
    }
    counts
}

#[test]
fn every_node_of_a_large_fleet_ends_and_failures_have_few_causes() {
    for binary in binaries() {
        let fleet = SimulatedFleet::new(&binary);
        let flags = ["--groups", "web:30%,db:70%", "--fail-rate", "10%", "--change-rate", "20%", "--work", "1ms..50ms"];
        let sim = fleet.start(NODES, &[&flags[..], &["--offline-rate", "5%"]].concat());
        let figures = sim.wait_for("the leaving nodes have left", |figures| figures["leaving"] == figures["left"]);
        let away = figures["leaving"].as_u64();
        let all = ensure(&fleet, &["--all", "--output", "json"]);
        let document = all.json();
        let counts = counts(&document);
        assert_eq!(counts.values().sum::<usize>(), NODES as usize, "{counts:?}");
        assert_eq!(counts.get("offline").map(|count| *count as u64), away, "{counts:?}");
        let outcomes: BTreeSet<_> = counts.keys().copied().collect();
        assert_eq!((all.code, outcomes), (1, BTreeSet::from(["changed", "failed", "offline", "stable"])), "{counts:?}");
        let clusters = document["clusters"].as_array().unwrap();
        let failed: Vec<_> = clusters.iter().filter(|cluster| cluster["outcome"] == "failed").collect();
        let nodes: usize = failed.iter().map(|cluster| cluster["nodes"].as_array().unwrap().len()).sum();
        assert!(failed.len() <= 3 && nodes == counts["failed"], "{failed:?}");
        // The text shows the causes instead of two hundred lines, and the time of the last answer.
        let shown = ensure(&fleet, &["--all"]);
        assert!(shown.stdout.lines().count() <= 6 && shown.stdout.contains('×'), "{}", shown.stdout);
        assert!(shown.stderr.contains("all online nodes answered"), "{}", shown.stderr);

        let part = ensure(&fleet, &["--group", "web", "--output", "json"]).json();
        assert_eq!(part["nodes"].as_array().unwrap().len(), 60);
        let quarter = ensure(&fleet, &["--all", "--where", "Facts.datacenter == 'dc2'", "--output", "json"]).json();
        let reached = quarter["nodes"].as_array().unwrap().iter().filter(|node| node["outcome"] != "offline");
        let selected = |number: u32| number % 4 == 1;
        for node in reached {
            let number: u32 = node["node"].as_str().unwrap().trim_start_matches("sim").parse().unwrap();
            assert_eq!(node["outcome"] != "not_selected", selected(number), "{node}");
        }
        // Each accepted command ran once, and the server has all messages.
        let at_rest = |figures: &Value| figures["waiting"] == 0 && figures["ended"] == figures["accepted"];
        sim.wait_for("everything has ended once", |figures| at_rest(figures) && figures["played"] == figures["ended"]);
        sim.stop();
        let status = fleet.run(&["status", "--output", "json"]).json();
        assert_eq!((status["nodes"].as_u64(), status["alive"].as_u64()), (Some(u64::from(NODES)), Some(0)), "{status}");
    }
}

fn order() -> CommandDraft {
    let properties = json!({"name": "/srv/x", "ensure": "absent"});
    CommandDraft {
        action: Action::Ensure(Ensure { kind: "file".into(), properties: properties.as_object().unwrap().clone() }),
        to: Target::all(),
        options: CommandOptions { timeout: HumanDuration::seconds(60), ..CommandOptions::default() },
        channel: None,
        reason: None,
        lifetime: HumanDuration::seconds(300),
    }
}

/// The results in the stream, by node; more than one of a node is an error.
async fn results(bus: &Bus, subjects: &Subjects, id: Uuid) -> BTreeMap<String, CommandResult> {
    let reports = subjects.job_reports(id);
    let mut feed = bus.follow(&subjects.stream("JOBS"), reports.as_str(), StartAt::Beginning).await.unwrap();
    let mut results = BTreeMap::new();
    for _ in 0..feed.backlog() {
        let message = feed.next().await.unwrap().unwrap();
        if let Some((_, node, ReportStage::Done)) = subjects.report(&message.subject) {
            let done: CommandResult = serde_json::from_slice(&message.payload).unwrap();
            assert!(results.insert(node.to_string(), done).is_none(), "two results of {node}");
        }
    }
    results
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn the_same_command_again_is_answered_and_not_run_again() {
    for binary in binaries() {
        let fleet = SimulatedFleet::new(&binary);
        let sim = fleet.start(NODES, &["--fail-rate", "10%", "--work", "1ms..20ms"]);
        runtime().block_on(async {
            let bus = fleet.connect().await;
            let roster = Arc::new(NodeKeys::new(FLEET, PinnedKeys::default(), None));
            let states = states::read_states(&bus, &fleet.subjects, &roster, Timestamp::now()).await.unwrap();
            let command = order().command(FLEET, Uuid::now_v7(), Timestamp::now());
            let expected = states.expected(&command.to);
            let signed = sign(command, &[("ops", &fleet.key())]).unwrap();
            let mut all = JobTracker::new(fleet.subjects.clone(), roster, signed.command.id, signed.digest.as_str(), expected);
            let mut sent = dispatch::dispatch(&bus, &fleet.subjects, &signed).await.unwrap();
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            let answers = Some((&mut sent.inbox, sent.asked.as_slice()));
            tracker::read_reports(&mut all, Some(&mut sent.reports), answers, deadline, &mut |_, _| ()).await.unwrap();
            let progress = all.progress();
            assert_eq!((progress.done, progress.total), (NODES as usize, NODES as usize));
            sim.wait_for("all results are stored", |figures| figures["ended"] == NODES && figures["waiting"] == 0);
            let first = results(&bus, &fleet.subjects, signed.command.id).await;

            let (reply, mut inbox) = bus.request_inbox().await.unwrap();
            let subject = fleet.subjects.command(&signed.command).remove(0);
            bus.publish_with_reply(subject.as_str(), &format!("{reply}.0"), &[], signed.envelope.clone()).await.unwrap();
            let mut again = BTreeMap::new();
            while again.len() < NODES as usize {
                let answer = tokio::time::timeout(Duration::from_secs(60), inbox.next()).await.unwrap().unwrap();
                let done: CommandResult = serde_json::from_slice(&answer.payload).unwrap();
                again.insert(done.node.to_string(), done);
            }
            assert_eq!(again, first);
            assert_eq!(results(&bus, &fleet.subjects, signed.command.id).await, first);
        });
        let figures = sim.figures();
        assert_eq!((&figures["played"], &figures["accepted"]), (&json!(NODES), &json!(NODES)));
    }
}

#[test]
fn nothing_is_lost_when_the_server_dies_in_the_middle_of_a_job() {
    for binary in binaries() {
        let mut fleet = SimulatedFleet::new(&binary);
        let sim = fleet.start(NODES, &["--work", "200ms..3s"]);
        let sent = ensure(&fleet, &["--all", "--detach"]);
        let id = sent.stdout.trim().to_owned();
        sim.wait_for("some have ended, some have not", |figures| {
            figures["accepted"] == NODES && figures["ended"].as_u64() > Some(0)
        });
        fleet.server.kill();
        sim.wait_for("all commands have ended, without an operator", |figures| figures["ended"] == NODES);
        fleet.server.start_again();
        let watched = fleet.run(&["job", "watch", &id, "--output", "json"]);
        let document = watched.json();
        assert_eq!((watched.code, document["nodes"].as_array().unwrap().len()), (0, NODES as usize), "{}", watched.stderr);
        let figures = sim.wait_for("all results are stored", |figures| figures["waiting"] == 0 && figures["connected"] == NODES);
        assert_eq!(figures["played"], NODES);
        let stored = runtime().block_on(async { results(&fleet.connect().await, &fleet.subjects, id.parse().unwrap()).await });
        assert_eq!(stored.len(), NODES as usize);
    }
}
