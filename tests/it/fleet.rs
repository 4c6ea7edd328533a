//! The whole way, with real servers, real agents and the program itself: signed commands run, all others are refused.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use ensign::fleet::job::draft::CommandDraft;
use ensign::fleet::job::seal::{SealedCommand, sign};
use ensign::fleet::setup::permissions::MONITOR_INBOX;
use ensign::model::HumanDuration;
use ensign::transport::{Message, StartAt, TransportError};
use ensign::wire::command::Ensure;
use ensign::wire::report::RejectionEvent;
use ensign::wire::subject::{EventKind, ReportStage};
use ensign::wire::{Action, Command, CommandOptions, CommandResult, Target};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::fleet::{FLEET, Fleet, ensign};
use crate::support::nats::binaries;
use crate::support::port::Port;
use crate::support::single_node::PATIENCE;

const NODES: [(&str, &str); 3] = [("web1", "web"), ("web2", "web"), ("db1", "db")];

fn fleet(binary: &std::path::Path) -> Fleet {
    let mut fleet = Fleet::new(binary, &NODES);
    for (node, group) in NODES {
        fleet.start(node, group);
    }
    fleet
}

fn owner() -> [String; 2] {
    let own = std::fs::metadata("/proc/self").unwrap();
    [own.uid().to_string(), own.gid().to_string()]
}

fn outcomes(document: &Value) -> Vec<(&str, &str)> {
    document["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["node"].as_str().unwrap(), node["outcome"].as_str().unwrap()))
        .collect()
}

#[test]
fn a_signed_ensure_is_done_once_and_repeated_without_effect() {
    for binary in binaries() {
        let fleet = fleet(&binary);
        let file = fleet.path("web1/site/motd");
        let [uid, gid] = owner();
        let name = file.to_str().unwrap();
        let ensure = |content: &str, more: &[&str]| {
            let args = ["ensure", "file", name, "--content", content, "--owner", &uid, "--file-group", &gid, "--mode", "0640"];
            fleet.run(&[&args, more].concat())
        };
        let noop = ensure("hello\n", &["--node", "web1", "--noop", "--output", "json"]);
        assert_eq!((noop.code, outcomes(&noop.json())), (0, vec![("web1", "would_change")]), "{}", noop.stdout);
        assert!(!file.exists());
        let done = ensure("hello\n", &["--node", "web1", "--output", "json"]);
        assert_eq!((done.code, outcomes(&done.json())), (0, vec![("web1", "changed")]), "{}", done.stderr);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "hello\n");
        let again = ensure("hello\n", &["--node", "web1"]);
        assert!(again.code == 0 && again.stdout.contains("stable") && again.stdout.contains("web1"), "{}", again.stdout);
        // A failed result has its own exit code.
        let failed = ensure("x", &["--node", "web1", "--owner", "nobody-has-this-name"]);
        assert_eq!(failed.code, 2, "twice the same flag: {}", failed.stderr);
        let beyond = ensure("x", &["--node", "web2"]);
        assert!(beyond.code == 3 && beyond.stdout.contains("local_limit"), "{}", beyond.stdout);
        let unknown = ensure("x", &["--node", "typo"]);
        assert!(unknown.code == 4 && unknown.stdout.contains("offline"), "{}", unknown.stdout);
        let nobody = ensure("x", &[]);
        assert!(nobody.code == 2 && nobody.stderr.contains("--node, --group or --all"), "{}", nobody.stderr);
    }
}

#[test]
fn a_bundle_reaches_all_nodes_and_offline_nodes_are_named() {
    for binary in binaries() {
        let mut fleet = fleet(&binary);
        let [uid, gid] = owner();
        let site = fleet.path("site");
        std::fs::create_dir(&site).unwrap();
        std::fs::write(site.join("app.conf"), "listen = 80\n").unwrap();
        let manifest = format!(
            "ccm:\n  resources:\n    - file:\n        - \"{{{{ Facts.site }}}}/app.conf\":\n            ensure: present\n            source: app.conf\n            owner: \"{uid}\"\n            group: \"{gid}\"\n            mode: \"0644\"\n"
        );
        std::fs::write(site.join("manifest.yaml"), manifest).unwrap();
        let apply = |fleet: &Fleet, more: &[&str]| fleet.run(&[&["apply", site.to_str().unwrap()], more].concat());
        let first = apply(&fleet, &["--all", "--channel", "base", "--output", "jsonl"]);
        let lines: Vec<Value> = first.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((first.code, lines.len()), (0, 3), "{}{}", first.stdout, first.stderr);
        assert!(lines.iter().all(|line| line["outcome"] == "changed"), "{}", first.stdout);
        for (node, _) in NODES {
            assert_eq!(std::fs::read_to_string(fleet.path(node).join("site/app.conf")).unwrap(), "listen = 80\n");
        }
        let web = apply(&fleet, &["--group", "web", "--channel", "base", "--output", "json"]).json();
        assert_eq!(outcomes(&web), [("web1", "stable"), ("web2", "stable")]);
        let selected = apply(&fleet, &["--all", "--where", "Facts.role == 'db'", "--output", "json"]).json();
        assert_eq!(outcomes(&selected), [("db1", "stable"), ("web1", "not_selected"), ("web2", "not_selected")]);

        // Detached, and watched later, from the record alone.
        let detached = apply(&fleet, &["--all", "--detach"]);
        let watched = fleet.run(&["job", "watch", detached.stdout.trim(), "--output", "json"]);
        assert_eq!((watched.code, outcomes(&watched.json()).len()), (0, 3), "{}", watched.stderr);
        let unknown = fleet.run(&["job", "watch", &Uuid::nil().to_string()]);
        assert_eq!(unknown.code, 2, "{}", unknown.stderr);

        fleet.kill("db1");
        fleet.wait_for("db1 is silent", || fleet.node_row("db1").is_some_and(|row| row["presence"] == "silent"));
        let away = apply(&fleet, &["--all", "--output", "json"]);
        let document = away.json();
        assert_eq!((away.code, outcomes(&document)), (4, vec![("db1", "offline"), ("web1", "stable"), ("web2", "stable")]));
        assert!(document["nodes"][0]["since"].is_string());
        assert!(fleet.run(&["status"]).stdout.contains("silent since"));
        // The stream has the events, and the start of each agent.
        fleet.wait_until_published("web1");
        let events = fleet.run(&["events", "--node", "web1"]).stdout;
        for word in ["started", "changed", "run: 1 of 1 changed", "app.conf"] {
            assert!(events.contains(word), "{word}: {events}");
        }
        assert!(fleet.run(&["init"]).stdout.lines().all(|line| line.starts_with("unchanged")));
    }
}

/// A command that a node accepts: each test changes one property.
fn valid_command(fleet: &Fleet, name: &str) -> Command {
    let [uid, gid] = owner();
    let path = fleet.path(&format!("web1/site/{name}"));
    let properties = json!({"name": path, "ensure": "present", "content": "x", "owner": uid, "group": gid, "mode": "0644"});
    let Value::Object(properties) = properties else { unreachable!() };
    let action = Action::Ensure(Ensure { kind: "file".into(), properties });
    let (to, lifetime) = (Target::nodes(vec!["web1".parse().unwrap()]), HumanDuration::seconds(60));
    let order = CommandDraft { action, to, options: CommandOptions::default(), channel: None, reason: None, lifetime };
    order.command(FLEET, Uuid::now_v7(), Timestamp::now())
}

async fn next(what: &str, wait: impl Future<Output = Option<Message>>) -> Message {
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("no {what}")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_not_signed_for_this_node_and_time_are_refused_and_published() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &NODES);
        fleet.start("web1", "web");
        let (alice, bob) = (fleet.key("ops-alice"), fleet.key("ops-bob"));
        let mallory = ensign::trust::SigningKey::generate().unwrap();
        let by_alice = |command: Command| sign(command, &[("ops-alice", &alice)]).unwrap();
        let node_subject = fleet.subjects.command(&valid_command(&fleet, "x"))[0].to_string();
        let all_subject = node_subject.replace("node.web1", "all");

        let accepted = by_alice(valid_command(&fleet, "accepted"));
        let mut replayed = valid_command(&fleet, "replayed");
        replayed.id = accepted.command.id;
        let mut expired = valid_command(&fleet, "expired");
        expired.issued = Timestamp::now() - SignedDuration::from_secs(600);
        expired.expires = Timestamp::now() - SignedDuration::from_secs(300);
        let mut early = valid_command(&fleet, "early");
        early.issued = Timestamp::now() + SignedDuration::from_secs(300);
        early.expires = Timestamp::now() + SignedDuration::from_secs(600);
        let other_node = Command { to: Target::nodes(vec!["db1".parse().unwrap()]), ..valid_command(&fleet, "other") };
        let other_fleet = Command { fleet: "other".into(), ..valid_command(&fleet, "fleet") };
        let tampered = SealedCommand {
            envelope: by_alice(valid_command(&fleet, "t")).envelope.replace_payload(),
            ..by_alice(valid_command(&fleet, "t"))
        };
        let over_policy = valid_command(&fleet, "not-bobs");

        let cases: Vec<(&str, SealedCommand, &str)> = vec![
            ("bad_signature", sign(valid_command(&fleet, "forged"), &[("ops-alice", &mallory)]).unwrap(), &node_subject),
            ("bad_signature", tampered, &node_subject),
            ("unknown_key", sign(valid_command(&fleet, "unknown"), &[("mallory", &mallory)]).unwrap(), &node_subject),
            ("replayed", by_alice(replayed), &node_subject),
            ("expired", by_alice(expired), &node_subject),
            ("not_yet_valid", by_alice(early), &node_subject),
            ("not_for_me", by_alice(other_node), &node_subject),
            ("wrong_fleet", by_alice(other_fleet), &node_subject),
            ("not_allowed", sign(over_policy, &[("ops-bob", &bob)]).unwrap(), &node_subject),
            ("subject_mismatch", by_alice(valid_command(&fleet, "moved")), &all_subject),
            ("bad_envelope", SealedCommand { envelope: b"{}".to_vec(), ..by_alice(valid_command(&fleet, "e")) }, &node_subject),
        ];

        let bus = fleet.connect("operator", None).await;
        let (reply, mut answers) = bus.request_inbox().await.unwrap();
        let refusals = fleet.subjects.event(&"web1".parse().unwrap(), EventKind::Refused).to_string();
        let mut published = bus.follow(&fleet.subjects.stream("EVENTS"), &refusals, StartAt::Beginning).await.unwrap();
        // First the accepted command, and its result.
        bus.publish_with_reply(&node_subject, &format!("{reply}.0"), &[], accepted.envelope.clone()).await.unwrap();
        let done = loop {
            let answer = next("answer", answers.next()).await;
            if let Ok(done) = serde_json::from_slice::<CommandResult>(&answer.payload) {
                break done;
            }
        };
        assert_eq!(done.outcome, ensign::wire::CommandOutcome::Changed, "{done:?}");

        for (number, (code, signed, subject)) in cases.iter().enumerate() {
            bus.publish_with_reply(subject, &format!("{reply}.case{number}"), &[], signed.envelope.clone()).await.unwrap();
            let answer: CommandResult = serde_json::from_slice(&next(code, answers.next()).await.payload).unwrap();
            assert_eq!(answer.code.as_deref(), Some(*code), "{answer:?}");
            let event = next("event", async { published.next().await.map(Result::unwrap) }).await;
            let event: RejectionEvent = serde_json::from_slice(&event.payload).unwrap();
            assert_eq!((event.code.as_str(), event.subject.as_str(), event.node.as_str()), (*code, *subject, "web1"));
        }
        // No refused command had an effect. The same bytes get the same answer again, without an effect.
        let site: Vec<_> = std::fs::read_dir(fleet.path("web1/site")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(site, ["accepted"]);
        std::fs::remove_file(fleet.path("web1/site/accepted")).unwrap();
        bus.publish_with_reply(&node_subject, &format!("{reply}.2"), &[], accepted.envelope.clone()).await.unwrap();
        let again: CommandResult = serde_json::from_slice(&next("answer again", answers.next()).await.payload).unwrap();
        assert_eq!((again.outcome, again.at), (done.outcome, done.at));
        assert!(!fleet.path("web1/site/accepted").exists());
        // Bob may do this.
        let allowed = sign(valid_command(&fleet, "bob1"), &[("ops-bob", &bob)]).unwrap();
        bus.publish_with_reply(&node_subject, &format!("{reply}.3"), &[], allowed.envelope).await.unwrap();
        fleet.wait_for("bob's file", || fleet.path("web1/site/bob1").exists());
    }
}

/// Changes one character of the signed bytes.
trait Tamper {
    fn replace_payload(self) -> Vec<u8>;
}

impl Tamper for Vec<u8> {
    fn replace_payload(self) -> Vec<u8> {
        let mut envelope: Value = serde_json::from_slice(&self).unwrap();
        let payload = envelope["payload"].as_str().unwrap().to_owned();
        let middle = payload.len() / 2;
        let other = if payload.as_bytes()[middle] == b'A' { "B" } else { "A" };
        envelope["payload"] = format!("{}{other}{}", &payload[..middle], &payload[middle + 1..]).into();
        serde_json::to_vec(&envelope).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_confine_a_node_and_let_it_do_its_work() {
    for binary in binaries() {
        let fleet = Fleet::new(&binary, &NODES);
        let (subjects, web1) = (&fleet.subjects, "web1".parse().unwrap());
        let db1 = "db1".parse().unwrap();
        let operator = fleet.connect("operator", None).await;
        operator.object_put(&subjects.bucket(), "k", &vec![7; 300_000]).await.unwrap();
        let node = fleet.connect("web1", Some("_INBOX_web1")).await;

        // A node may publish and receive its own messages.
        node.flush_roundtrip().await.unwrap();
        node.publish_stored(subjects.event(&web1, EventKind::Lifecycle).as_str(), &[], vec![]).await.unwrap();
        node.publish_stored(subjects.state(&web1).as_str(), &[], vec![]).await.unwrap();
        node.publish_stored(subjects.job(Uuid::nil(), &web1, ReportStage::Done).as_str(), &[], vec![]).await.unwrap();
        assert_eq!(node.object_get(&subjects.bucket(), "k", 1 << 20).await.unwrap().len(), 300_000);
        let mut inbox = node.subscribe(&format!("ensign.v1.{FLEET}.cmd.*.node.web1")).await.unwrap();
        node.flush_roundtrip().await.unwrap();
        let (reply, mut answers) = operator.request_inbox().await.unwrap();
        operator
            .publish_with_reply(&format!("ensign.v1.{FLEET}.cmd.ensure.node.web1"), &format!("{reply}.0"), &[], vec![])
            .await
            .unwrap();
        let asked = next("command", inbox.next()).await;
        for _ in 0..3 {
            node.publish(asked.reply.as_deref().unwrap(), &[], vec![]).await.unwrap();
            assert!(!next("answer", answers.next()).await.no_responders);
        }
        assert_eq!(node.counters().denied, 0);

        // Everything else is forbidden.
        let forbidden = [
            subjects.event(&db1, EventKind::Lifecycle).to_string(),
            subjects.state(&db1).to_string(),
            subjects.job(Uuid::nil(), &db1, ReportStage::Done).to_string(),
            subjects.job_command(Uuid::nil()).to_string(),
            format!("ensign.v1.{FLEET}.cmd.ensure.node.db1"),
            format!("$JS.API.STREAM.DELETE.{}", subjects.stream("JOBS")),
            format!("$JS.API.CONSUMER.CREATE.{}", subjects.stream("JOBS")),
            format!("$O.{}.M.x", subjects.bucket()),
            "_INBOX.stranger".to_owned(),
        ];
        let mut denied = 0;
        for subject in &forbidden {
            node.publish(subject, &[], vec![]).await.unwrap();
            denied += 1;
            wait_until(|| node.counters().denied == denied, subject).await;
        }
        for subject in
            [format!("ensign.v1.{FLEET}.cmd.*.node.db1"), subjects.all_jobs().to_string(), "_INBOX_db1.>".into(), ">".into()]
        {
            let _inbox = node.subscribe(&subject).await.unwrap();
            denied += 1;
            wait_until(|| node.counters().denied == denied, &subject).await;
        }

        // The monitor reads everything and sends nothing.
        let monitor = fleet.connect("monitor", Some(MONITOR_INBOX)).await;
        let states = monitor.last_per_subject(&subjects.stream("STATE"), subjects.states().as_str()).await.unwrap();
        assert_eq!(states.len(), 1);
        let mut feed =
            monitor.follow(&subjects.stream("EVENTS"), subjects.events(None).as_str(), StartAt::Beginning).await.unwrap();
        assert_eq!(
            next("event", async { feed.next().await.map(Result::unwrap) }).await.subject,
            subjects.event(&web1, EventKind::Lifecycle).as_str()
        );
        assert_eq!(monitor.counters().denied, 0);
        monitor.publish(&format!("ensign.v1.{FLEET}.cmd.ensure.all"), &[], vec![]).await.unwrap();
        wait_until(|| monitor.counters().denied == 1, "the monitor's command").await;
        // A user without an nkey can't connect.
        let nobody = ensign::transport::BusSettings { servers: vec![fleet.server.url()], ..Default::default() };
        assert!(matches!(ensign::transport::Bus::connect(&nobody).await, Err(TransportError::Connect { .. })));
    }
}

async fn wait_until(holds: impl Fn() -> bool, what: &str) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "no denial, or further errors: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn the_demonstration_succeeds() {
    for binary in binaries() {
        let demo = ensign(&["demo", "--nats-server", binary.to_str().unwrap()]);
        assert_eq!(demo.code, 0, "{}{}", demo.stdout, demo.stderr);
        for word in ["bad_signature", "replayed", "local_limit", "repaired ", " after the edit", "ensign fleet apply"] {
            assert!(demo.stdout.contains(word), "{word}: {}", demo.stdout);
        }
        let said = format!("{}{}", demo.stdout, demo.stderr);
        assert!(!said.contains("\\n") && !said.contains("CleanFormat("), "{said}");
    }
}

#[test]
fn without_a_server_a_hint_is_printed() {
    let port = Port::new();
    let nobody = format!("nats://{}", port.address());
    let ran = ensign(&["fleet", "--fleet", "f", "--nats", &nobody, "status"]);
    assert!(ran.code == 4 && ran.stderr.contains("hint: check that the server runs"), "{}", ran.stderr);
    let ran = ensign(&["fleet", "--nats", &nobody, "--operator", "/dev/null", "status"]);
    assert!(ran.code == 2 && ran.stderr.contains("--fleet NAME"), "{}", ran.stderr);
}
