//! Two operators and one channel: a conflict with the other operator's assignment is reported. A node that diverges from the
//! stream reports its divergence.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ensign::fleet::desired_state::assign::DispatchError;
use ensign::fleet::desired_state::view;
use ensign::fleet::job::dispatch;
use ensign::fleet::job::draft::next_in_channel;
use ensign::fleet::job::seal::{SealedCommand, sign};
use ensign::transport::{Bus, BusSettings};
use ensign::trust::SigningKey;
use ensign::wire::bundle::{OperatorKey, Rule};
use ensign::wire::command::{Command, Target};
use serde_json::Value;
use tokio::sync::Barrier;
use uuid::Uuid;

use crate::support::fleet::ensign;
use crate::support::node_dir::{NodeDir, NodeSettings, as_operator};
use crate::support::single_node::{SingleNodeFleet, apply, assign_action, on_every_server};
use crate::support::web::{Reply, Web};

const ROUNDS: usize = 100;
const ALARM: &str = "this node has serial";

fn first() -> SigningKey {
    SigningKey::from_seed(&[2; 32])
}

fn second() -> SigningKey {
    SigningKey::from_seed(&[3; 32])
}

/// A fleet with two operators who may do everything.
async fn fleet(binary: &Path) -> SingleNodeFleet {
    let fleet = SingleNodeFleet::new(binary, "").await;
    let trust = fleet.trust_with(1, |bundle| {
        let key = second().public().to_string();
        bundle.keys.push(OperatorKey { id: "other".into(), key, not_before: None, not_after: None });
        bundle.rules = vec![Rule { keys: vec!["ops".into(), "other".into()], quorum: 1, ..Rule::default() }];
    });
    std::fs::write(fleet.path("trust.json"), trust).unwrap();
    fleet
}

fn manifest(fleet: &SingleNodeFleet, content: &str) -> std::path::PathBuf {
    let path = fleet.path(&format!("{content}.yaml"));
    let text = format!(
        "ccm:\n  resources:\n    - file:\n        - {}:\n            ensure: present\n            content: {content}\n            owner: root\n            group: root\n            mode: \"0644\"\n",
        fleet.path("motd").display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

async fn connect(fleet: &SingleNodeFleet) -> Bus {
    Bus::connect(&BusSettings { servers: vec![fleet.server.url()], ..BusSettings::default() }).await.unwrap()
}

/// An assignment as the tool makes it: the next serial after the stored assignment.
async fn next(fleet: &SingleNodeFleet, bus: &Bus, id: &str, key: &SigningKey, content: &str) -> SealedCommand {
    let latest = view::read_channel(bus, &fleet.subjects, "base").await.unwrap();
    let place = latest.desired.map(|desired| desired.place);
    let place = next_in_channel("base", &BTreeMap::new(), place.as_ref());
    let command = fleet.command(assign_action(apply(&manifest(fleet, content))));
    let command = Command { id: Uuid::now_v7(), channel: Some(place), to: Target::all(), ..command };
    SealedCommand { last_sequence: latest.sequence, ..sign(command, &[(id, key)]).unwrap() }
}

/// True when the record has a message of a job.
async fn is_on_record(fleet: &SingleNodeFleet, id: Uuid) -> bool {
    let subject = fleet.subjects.job_command(id);
    fleet.bus.last(&fleet.subjects.stream("JOBS"), subject.as_str()).await.unwrap().is_some()
}

async fn latest(fleet: &SingleNodeFleet) -> view::ChannelCommand {
    view::read_channel(&fleet.bus, &fleet.subjects, "base").await.unwrap().desired.unwrap()
}

#[test]
fn of_two_simultaneous_assignments_one_is_stored_and_the_other_operator_learns_it() {
    on_every_server(async |binary| {
        let fleet = fleet(binary).await;
        let _old = fleet.start_agent().await;
        let buses = [connect(&fleet).await, connect(&fleet).await];
        let keys = [("ops", first()), ("other", second())];
        let mut won = [0, 0];
        for round in 0..ROUNDS {
            let barrier = Arc::new(Barrier::new(2));
            let attempt = async |number: usize| {
                let (bus, (id, key)) = (&buses[number], &keys[number]);
                let signed = next(&fleet, bus, id, key, if number == 0 { "one" } else { "two" }).await;
                // Both chose the same serial.
                barrier.wait().await;
                let sent = dispatch::dispatch(bus, &fleet.subjects, &signed).await.map(drop);
                (signed, sent)
            };
            let (first, second) = tokio::join!(attempt(0), attempt(1));
            let serial = |signed: &SealedCommand| signed.command.channel.as_ref().unwrap().serial;
            assert_eq!((serial(&first.0), serial(&second.0)), (round as u64 + 1, round as u64 + 1));
            let (winner, loser) = match (&first.1, &second.1) {
                (Ok(()), Err(_)) => (&first, &second),
                (Err(_), Ok(())) => (&second, &first),
                both => panic!("round {round}: {both:?}"),
            };
            won[usize::from(winner.0.digest != first.0.digest)] += 1;
            assert_eq!(latest(&fleet).await.digest, winner.0.digest);
            let Err(DispatchError::Conflict(conflict)) = &loser.1 else { panic!("{:?}", loser.1) };
            let named = conflict.winner.as_ref().unwrap();
            assert_eq!((&named.digest, named.command.id, conflict.maybe_stored), (&winner.0.digest, winner.0.command.id, false));
            assert!(conflict.to_string().contains(&winner.0.digest), "{conflict}");
            // The record has nothing of the loser.
            assert!(is_on_record(&fleet, winner.0.command.id).await && !is_on_record(&fleet, loser.0.command.id).await);
        }
        println!("{}: {won:?} of {ROUNDS} rounds were won by each", binary.display());
        // An old node and a later node apply the same assignment.
        let late = NodeDir::new(&fleet, "late", &fleet.server.url(), &NodeSettings::default());
        let _late = late.start(&fleet.bus, &mut late.process()).await;
        let last = latest(&fleet).await;
        let sha256 = last.command.channel_state().unwrap().1.digest;
        let agrees = |state: &ensign::wire::NodeState| {
            let kept = state.assignments.iter().any(|kept| kept.id == last.command.id && kept.in_force.as_ref() == Some(&sha256));
            kept && state.channels["base"].digest == sha256 && state.channels["base"].serial == ROUNDS as u64
        };
        late.until(&fleet.bus, "the late node agrees", agrees).await;
        let web1 = |state: &ensign::wire::NodeState| state.node.as_str() != "web1" || agrees(state);
        let stream = fleet.subjects.stream("STATE");
        let start = std::time::Instant::now();
        loop {
            let all = fleet.bus.last_per_subject(&stream, fleet.subjects.states().as_str()).await.unwrap();
            let all: Vec<ensign::wire::NodeState> =
                all.iter().map(|message| serde_json::from_slice(&message.payload).unwrap()).collect();
            if all.len() == 2 && all.iter().all(&web1) {
                assert!(all.iter().all(|state| !state.alarms.iter().any(|text| text.contains(ALARM))), "{all:?}");
                break;
            }
            assert!(start.elapsed() < crate::support::single_node::PATIENCE, "{all:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let rows = as_operator(&fleet, &["channels", "--output", "json"]).json();
        assert_eq!((&rows[0]["in_force"], &rows[0]["differing"]), (&Value::from(2), &Value::from(0)), "{rows}");
    });
}

#[test]
fn a_lost_acknowledgement_is_no_conflict() {
    on_every_server(async |binary| {
        let fleet = fleet(binary).await;
        let (bus, key) = (connect(&fleet).await, first());
        let subject = fleet.subjects.desired("base");
        // An attempt without an answer stored the assignment: with its message id, and without, as on a server that forgot the
        // id.
        for with_id in [true, false] {
            let signed = next(&fleet, &bus, "ops", &key, "one").await;
            let id = signed.command.id.to_string();
            let headers = [("Nats-Msg-Id", id.as_str())];
            let headers = if with_id { &headers[..] } else { &[] };
            bus.publish_stored(subject.as_str(), headers, signed.envelope.clone()).await.unwrap();
            let before = view::read_channel(&bus, &fleet.subjects, "base").await.unwrap().sequence;
            dispatch::dispatch(&bus, &fleet.subjects, &signed).await.unwrap();
            let after = view::read_channel(&bus, &fleet.subjects, "base").await.unwrap().sequence;
            assert_eq!(before, after, "stored once");
            assert!(is_on_record(&fleet, signed.command.id).await);
        }
        // An unreadable message has a place in the stream as well.
        let signed = next(&fleet, &bus, "ops", &key, "one").await;
        bus.publish_stored(subject.as_str(), &[], b"?".to_vec()).await.unwrap();
        let conflict = dispatch::dispatch(&bus, &fleet.subjects, &signed).await.map(drop).unwrap_err();
        assert!(matches!(&conflict, DispatchError::Conflict(conflict) if conflict.winner.is_none()), "{conflict}");
        let signed = next(&fleet, &bus, "ops", &key, "one").await;
        dispatch::dispatch(&bus, &fleet.subjects, &signed).await.unwrap();
    });
}

/// The other operator is quicker, while this one still reads the bundle from the URL.
#[test]
fn the_second_of_two_operators_learns_of_the_first_and_gets_a_hint() {
    on_every_server(async |binary| {
        let fleet = Arc::new(fleet(binary).await);
        // The thread of the web server outlives the test: the thread must not keep the fleet.
        let other = Arc::downgrade(&fleet);
        let content = std::fs::read(manifest(&fleet, "one")).unwrap();
        let web = Web::new(move |asked| {
            if let ("/raced.yaml", Some(other)) = (asked.path.as_str(), other.upgrade()) {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let bus = connect(&other).await;
                    let signed = next(&other, &bus, "other", &second(), "two").await;
                    dispatch::dispatch(&bus, &other.subjects, &signed).await.unwrap();
                });
            }
            Reply::ok(&content)
        });
        as_operator(&fleet, &["status"]);
        let trust = fleet.path("trust.json").display().to_string();
        let run = async |path: &str| {
            let url = web.url(path);
            let operator = fleet.path("operator.toml").display().to_string();
            let args = [
                "fleet",
                "--operator",
                &operator,
                "--trust",
                &trust,
                "assign",
                "base",
                &url,
                "--all",
                "--detach",
                "--output",
                "json",
            ]
            .map(str::to_owned);
            tokio::task::spawn_blocking(move || ensign(&args.each_ref().map(String::as_str))).await.unwrap()
        };
        let lost = run("/raced.yaml").await;
        let winner = latest(&fleet).await;
        assert_eq!((lost.code, lost.stdout.as_str()), (3, ""), "{}", lost.stderr);
        let serial = format!("serial {}", winner.place.serial);
        for part in [
            &serial,
            &winner.digest,
            &winner.command.id.to_string(),
            "signed as other",
            "the signature of other was checked",
            "fleet channels",
            "run it again",
        ] {
            assert!(lost.stderr.contains(part), "{part}: {}", lost.stderr);
        }
        let records = fleet.subjects.job_commands();
        let jobs = fleet.bus.last_per_subject(&fleet.subjects.stream("JOBS"), records.as_str()).await.unwrap();
        assert_eq!(jobs.len(), 1, "only that of the other is on record");
        let again = run("/m.yaml").await;
        assert_eq!((again.code, latest(&fleet).await.place.serial), (0, winner.place.serial + 1), "{}", again.stderr);
    });
}

#[test]
fn an_assignment_that_the_stream_does_not_have_raises_an_alarm() {
    on_every_server(async |binary| {
        let fleet = fleet(binary).await;
        let agent = fleet.start_agent().await;
        let bus = connect(&fleet).await;
        let (one, two) = (next(&fleet, &bus, "ops", &first(), "one").await, next(&fleet, &bus, "other", &second(), "two").await);
        dispatch::dispatch(&bus, &fleet.subjects, &one).await.unwrap();
        fleet
            .state("the node keeps version one", |state| {
                state.assignments.iter().any(|kept| kept.id == one.command.id && kept.ran.is_some())
            })
            .await;
        // A tool that ignores the sequence, or a restored copy of the stream: the same serial has other content.
        bus.publish_stored(fleet.subjects.desired("base").as_str(), &[], two.envelope.clone()).await.unwrap();
        let alarmed = |state: &ensign::wire::NodeState, part: &str| {
            state.alarms.iter().any(|text| text.contains(ALARM) && text.contains(part))
        };
        let said = format!("and the stream has serial 1 ({}", two.command.id);
        let state = fleet.state("an alarm", |state| alarmed(state, &said)).await;
        assert!(state.assignments.iter().any(|kept| kept.id == one.command.id), "the node changed something: {state:?}");
        let status = as_operator(&fleet, &["status"]);
        assert!(status.stdout.contains(ALARM) && status.stdout.contains("signed as other"), "{}", status.stdout);
        let shown = as_operator(&fleet, &["channels"]);
        assert!(shown.stdout.contains("1 node keeps an assignment that is not in the stream: web1"), "{}", shown.stdout);
        // The next assignment ends the divergence.
        let next_one = next(&fleet, &bus, "ops", &first(), "two").await;
        dispatch::dispatch(&bus, &fleet.subjects, &next_one).await.unwrap();
        fleet.state("no alarm", |state| !state.alarms.iter().any(|text| text.contains(ALARM))).await;
        // The stream is lost: the agent notices at the next check.
        agent.stop();
        bus.purge(&fleet.subjects.stream("DESIRED"), fleet.subjects.desired("base").as_str()).await.unwrap();
        let _agent = fleet.start_agent().await;
        fleet.state("an alarm", |state| alarmed(state, "the stream has no message of the channel")).await;
        let shown = as_operator(&fleet, &["channels"]);
        assert!(shown.stdout.contains("base  not in the stream"), "{}", shown.stdout);
    });
}

/// The operator's tool refuses an assignment that every node would refuse, and stores nothing of it.
#[test]
fn commands_that_every_node_would_refuse_are_neither_signed_nor_stored() {
    on_every_server(async |binary| {
        let fleet = fleet(binary).await;
        as_operator(&fleet, &["status"]);
        let site = fleet.path("site");
        std::fs::create_dir(&site).unwrap();
        let wrong = "ccm:\n  resources:\n    - file:\n        - /x:\n            colour: \"{{ Facts.colour }}\"\n";
        std::fs::write(site.join("manifest.yaml"), wrong).unwrap();
        let packed = fleet.path("site.tar.gz").display().to_string();
        // A bundle of another tool.
        let made = std::process::Command::new("tar")
            .args(["-C", &site.display().to_string(), "-czf", &packed, "manifest.yaml"])
            .status();
        assert!(made.unwrap().success());
        let content = wrong.as_bytes().to_vec();
        let web = Web::new(move |_| Reply::ok(&content));
        let (directory, url) = (site.display().to_string(), web.url("/manifest.yaml"));
        let refused = |args: &[&str], part: &str| {
            let ran = as_operator(&fleet, args);
            assert!(ran.code == 2 && ran.stderr.contains(part), "{args:?}: {}{}", ran.stdout, ran.stderr);
        };
        for source in [&directory, &packed, &url] {
            refused(&["apply", source, "--all"], "manifest.yaml:5:13");
            refused(&["assign", "base", source, "--all"], "colour");
            refused(&["plan", "apply", source, "--all"], "--no-check");
        }
        refused(&["ensure", "file", "/x", "absent", "--mode", "rw", "--all"], "mode");
        let content = "x".repeat(70_000);
        let file =
            ["ensure", "file", "/x", "present", "--owner", "{{ Facts.o }}", "--file-group", "g", "--mode", "0644", "--content"];
        let started = std::time::Instant::now();
        refused(&[&file[..], &[&content, "--all"]].concat(), "nodes accept at most 65536");
        refused(&[&file[..], &[&content, "--all"]].concat(), "ensign fleet apply DIR");
        let names = (0..2000).map(|number| format!("a-node-with-a-rather-long-name-{number}")).collect::<Vec<_>>().join(",");
        refused(&[&file[..], &["x", "--node", &names]].concat(), "--group");
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "the tool waits for no node");
        for (stream, subject) in [("JOBS", "ensign.v1.test.job.>"), ("DESIRED", "ensign.v1.test.desired.>")] {
            let there = fleet.bus.last_per_subject(&fleet.subjects.stream(stream), subject).await.unwrap();
            assert!(there.is_empty(), "{there:?}");
        }
        // `--no-check` sends the assignment all the same.
        let sent = as_operator(&fleet, &["assign", "base", &url, "--all", "--no-check", "--detach"]);
        assert_eq!((sent.code, latest(&fleet).await.place.serial), (0, 1), "{}", sent.stderr);
    });
}
