//! Authentic messages: forged, altered, moved, replayed and withheld ones, with real servers, real agents and the program
//! itself. The NATS user of the node acts as the hostile broker: this user may publish every message of the node.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ensign::transport::{Bus, MESSAGE_ID, Message, StartAt};
use ensign::trust::{SigningKey, issue_receipt};
use ensign::wire::digest;
use ensign::wire::receipt::{HEADER, Receipt, ReceiptBody};
use serde_json::{Value, json};

use crate::support::fleet::{Fleet, Ran, ensign};
use crate::support::nats::binaries;
use crate::support::single_node::PATIENCE;

const NODES: [(&str, &str); 2] = [("web1", "web"), ("db1", "db")];

fn fleet(binary: &Path) -> Fleet {
    let mut fleet = Fleet::new(binary, &NODES);
    for (node, group) in NODES {
        fleet.start(node, group);
    }
    fleet
}

/// Ensures a file on a node, with further arguments.
fn ensure(fleet: &Fleet, node: &str, name: &str, more: &[&str]) -> Ran {
    let own = std::fs::metadata("/proc/self").unwrap();
    let (uid, gid) = (own.uid().to_string(), own.gid().to_string());
    let path = fleet.path(&format!("{node}/site/{name}")).display().to_string();
    let args = ["ensure", "file", &path, "--content", name, "--owner", &uid, "--file-group", &gid, "--mode", "0640"];
    fleet.run(&[&args, ["--node", node].as_slice(), more].concat())
}

/// Runs a job to its end; returns its id.
fn finished_job(fleet: &Fleet, node: &str, name: &str) -> String {
    let ran = ensure(fleet, node, name, &["--output", "json"]);
    let document = ran.json();
    let result = &document["nodes"][0];
    assert_eq!((ran.code, &result["outcome"], &result["verified"]), (0, &json!("changed"), &json!(true)), "{document}");
    assert_eq!((&result["done"]["rule"], &result["done"]["signers"]), (&json!(1), &json!(["ops-alice"])));
    document["id"].as_str().unwrap().to_owned()
}

/// Sends a job that no node answers any more; returns its id.
fn detached_job(fleet: &Fleet, node: &str, name: &str) -> String {
    ensure(fleet, node, name, &["--detach"]).stdout.trim().to_owned()
}

/// The operator's view of a job without further messages. Waits longer if the first wait was too short.
fn watch(fleet: &Fleet, id: &str) -> (i32, Value, String) {
    let look = |patience: &str| {
        let ran = fleet.run(&["job", "watch", id, "--timeout", patience, "--output", "json"]);
        let document = ran.json();
        (ran.code, document["nodes"][0].clone(), ran.stderr)
    };
    let found = look("2s");
    if found.1["outcome"] == "no_answer" { look("30s") } else { found }
}

/// The last message of a subject in the stream.
async fn stored(bus: &Bus, fleet: &Fleet, stream: &str, subject: &str) -> Message {
    bus.last_per_subject(&fleet.subjects.stream(stream), subject).await.unwrap().pop().unwrap()
}

async fn publish(bus: &Bus, subject: &str, receipt: Option<&str>, payload: Vec<u8>) {
    let headers: Vec<(&str, &str)> = receipt.iter().map(|receipt| (HEADER, *receipt)).collect();
    bus.publish_stored(subject, &headers, payload).await.unwrap();
}

fn subject(id: &str, node: &str) -> String {
    format!("ensign.v1.test.job.{id}.{node}.done")
}

/// The private key of a node. A holder of this key can act as the node.
fn node_key(fleet: &Fleet, node: &str) -> SigningKey {
    SigningKey::from_openssh(&std::fs::read_to_string(fleet.path(&format!("{node}/state/node.key"))).unwrap(), None).unwrap()
}

/// A statement outside of the chain.
fn statement(node: &str, subject: &str, payload: &[u8], command: Option<&str>) -> ReceiptBody {
    ReceiptBody {
        node: node.parse().unwrap(),
        boot: uuid::Uuid::now_v7(),
        seq: None,
        prev: None,
        subject: subject.to_owned(),
        sha256: digest(payload),
        at: jiff::Timestamp::now(),
        command: command.map(str::to_owned),
    }
}

fn verify(fleet: &Fleet, file: &Path) -> (i32, Value) {
    let (known, trust) = (fleet.path("known_nodes"), fleet.path("trust.dsse.json"));
    let ran = ensign(&[
        "audit",
        "verify",
        file.to_str().unwrap(),
        "--known-nodes",
        known.to_str().unwrap(),
        "--trust",
        trust.to_str().unwrap(),
        "--output",
        "json",
    ]);
    (ran.code, ran.json())
}

fn export(fleet: &Fleet, name: &str) -> std::path::PathBuf {
    let file = fleet.path(name);
    let ran = fleet.run(&["audit", "export", file.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    file
}

fn kinds(report: &Value) -> Vec<&str> {
    let mut kinds: Vec<&str> =
        report["findings"].as_array().unwrap().iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn only_results_signed_by_a_node_count_as_its_results() {
    for binary in binaries() {
        let mut fleet = fleet(&binary);
        let earlier = finished_job(&fleet, "web1", "one");
        finished_job(&fleet, "db1", "two");
        let (web1, db1) = (fleet.connect("web1", Some("_INBOX_web1")).await, fleet.connect("db1", Some("_INBOX_db1")).await);
        let operator = fleet.connect("operator", None).await;
        let honest = stored(&operator, &fleet, "JOBS", &subject(&earlier, "web1")).await;
        let receipt = honest.header(HEADER).unwrap().to_owned();

        // Altered: published under its job, before and after the genuine result.
        let altered = String::from_utf8(honest.payload.clone()).unwrap().replace("\"changed\"", "\"stable\"").into_bytes();
        publish(&web1, &subject(&earlier, "web1"), Some(&receipt), altered).await;
        let (code, node, _) = watch(&fleet, &earlier);
        assert_eq!((code, &node["outcome"], &node["verified"]), (0, &json!("changed"), &json!(true)), "{node}");

        // From here on, only the forger answers.
        fleet.kill("web1");
        fleet.kill("db1");
        let web1_key = node_key(&fleet, "web1");
        // The operator waits as long as the node's state is online.
        let mut state = stored(&operator, &fleet, "STATE", "ensign.v1.test.state.web1").await;
        let mut body: Value = serde_json::from_slice(&state.payload).unwrap();
        (body["interval"], body["alive"]) = (json!(3600), json!(true));
        state.payload = body.to_string().into_bytes();
        let signed = issue_receipt(&web1_key, &statement("web1", &state.subject, &state.payload, None));
        publish(&web1, &state.subject, Some(&signed), state.payload).await;
        let id = detached_job(&fleet, "web1", "three");
        let command = stored(&operator, &fleet, "JOBS", &format!("ensign.v1.test.job.{id}.command")).await;
        let command = ensign::wire::Envelope::parse(&command.payload).unwrap().digest();
        let mut forged: Value = serde_json::from_slice(&honest.payload).unwrap();
        (forged["id"], forged["digest"]) = (json!(id), json!(command));
        let payload = forged.to_string().into_bytes();
        let mallory = SigningKey::generate().unwrap();
        let ours = subject(&id, "web1");
        let db1_key = node_key(&fleet, "db1");
        let of = |node: &str, command: &str| statement(node, &ours, &payload, Some(command));
        for (what, receipt, why) in [
            ("forged", None, "it has no receipt"),
            ("forged by a stranger", Some(issue_receipt(&mallory, &of("web1", &command))), "not signed by the key of the node"),
            ("forged by another node", Some(issue_receipt(&db1_key, &of("web1", &command))), "not signed by the key of the node"),
            ("of another node", Some(issue_receipt(&web1_key, &of("db1", &command))), "that of the node db1"),
            ("an old receipt", Some(receipt), "that of a message on"),
            (
                "the node's own, for another command",
                Some(issue_receipt(&web1_key, &of("web1", "old"))),
                "answers another command",
            ),
        ] {
            publish(&web1, &ours, receipt.as_deref(), payload.clone()).await;
            let (code, node, stderr) = watch(&fleet, &id);
            assert_eq!((code, &node["outcome"], &node["verified"]), (4, &json!("unverified"), &json!(false)), "{what}: {node}");
            assert!(node["doubt"].as_str().unwrap().contains(why), "{what}: {node}");
            assert!(stderr.contains("web1: a result: it"), "{what}: {stderr}");
        }
        let why = fleet.run(&["why", &id, "web1", "--output", "json"]).json();
        assert_eq!((&why["verdict"], &why["signers"]), (&json!("no_answer"), &json!(["ops-alice"])), "{why}");
        assert!(why["because"].as_str().unwrap().contains("messages in its name failed verification"), "{why}");

        // A forged event and a forged state.
        publish(&web1, "ensign.v1.test.event.web1.lifecycle", None, b"{\"what\":\"started\"}".to_vec()).await;
        let events = fleet.run(&["events", "--node", "web1", "--output", "json"]).json();
        let verified: Vec<&Value> = events.as_array().unwrap().iter().map(|event| &event["verified"]).collect();
        assert!(verified.len() > 1 && verified.iter().rev().skip(1).all(|verified| **verified == json!(true)), "{events}");
        assert_eq!(verified.last(), Some(&&json!(false)));
        let mut state: Value =
            serde_json::from_slice(&stored(&operator, &fleet, "STATE", "ensign.v1.test.state.db1").await.payload).unwrap();
        (state["at"], state["alive"]) = (json!(jiff::Timestamp::now()), json!(true));
        publish(&db1, "ensign.v1.test.state.db1", None, state.to_string().into_bytes()).await;
        let nodes = fleet.run(&["nodes", "--output", "json"]).json();
        assert_eq!(
            (&nodes[0]["node"], &nodes[0]["presence"], &nodes[0]["verified"]),
            (&json!("db1"), &json!("unverified"), &json!(false))
        );
        let status = fleet.run(&["status"]).stdout;
        assert!(status.contains("its state: it has no receipt: forged?"), "{status}");
        // The node is still expected: otherwise the forged state would be believed.
        let all = ensure(&fleet, "web1", "four", &["--detach"]).stdout;
        assert!(!all.is_empty());

        // The record has all forged messages, and the audit finds them.
        let (code, report) = verify(&fleet, &export(&fleet, "attacked.jsonl"));
        assert_eq!((code, kinds(&report)), (1, vec!["forged"]), "{report}");
        assert_eq!(
            (&report["nodes"]["web1"]["unverified"], &report["nodes"]["db1"]["unverified"]),
            (&json!(8), &json!(1)),
            "{report}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn withheld_messages_leave_a_gap_in_the_audit() {
    for binary in binaries() {
        let mut fleet = fleet(&binary);
        for name in ["one", "two", "three"] {
            finished_job(&fleet, "web1", name);
        }
        // Killed and started again: the chain continues.
        fleet.kill("web1");
        fleet.start("web1", "web");
        let last = finished_job(&fleet, "web1", "four");
        let refused = fleet.run(&[
            "--key",
            fleet.path("ops-bob.key").to_str().unwrap(),
            "ensure",
            "exec",
            "true",
            "--node",
            "web1",
            "--output",
            "json",
        ]);
        assert_eq!(refused.code, 3, "{}", refused.stderr);
        let operator = fleet.connect("operator", None).await;
        // The node publishes a state per second. Each covers all messages of the chain, up to the rejection.
        let mut refusals = operator
            .follow(&fleet.subjects.stream("EVENTS"), "ensign.v1.test.event.web1.refused", StartAt::Beginning)
            .await
            .unwrap();
        let told = tokio::time::timeout(PATIENCE, refusals.next()).await.unwrap().unwrap().unwrap();
        let last_link = Receipt::parse(told.header(HEADER).unwrap()).unwrap().read().unwrap().seq;
        fleet.wait_for("its state speaks of the refusal", || {
            let nodes = fleet.run(&["nodes", "--output", "json"]).json();
            nodes[1]["outbox"] == 0 && nodes[1]["chain"].as_u64() >= last_link && nodes[1]["running"].is_null()
        });
        NODES.iter().for_each(|(node, _)| fleet.wait_until_published(node));
        let file = export(&fleet, "whole.jsonl");
        let (code, report) = verify(&fleet, &file);
        assert_eq!((code, report["findings"].as_array().unwrap().len()), (0, 0), "{report}");
        assert_eq!(report["commands_checked"], true);
        assert_eq!(report["nodes"]["web1"]["chain"][0], 1);
        assert!(fleet.run(&["audit", "export", file.to_str().unwrap()]).code == 2, "a record is never overwritten");

        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let place = |matches: &dyn Fn(&str) -> bool| lines.iter().position(|line| matches(line)).unwrap();
        let event = place(&|line| line.contains("event.web1.transaction"));
        let result = place(&|line| line.contains(&format!("{last}.web1.done")));
        let command = place(&|line| line.contains(&format!("{last}.command")));
        let refusal = place(&|line| line.contains("event.web1.refused"));
        let of_web1 = |line: &&str| line.contains(".web1.") || line.contains("state.web1\"");
        let all: Vec<usize> = (0..lines.len()).filter(|line| of_web1(&lines[*line])).collect();
        let said: Vec<usize> = all.iter().copied().filter(|line| !lines[*line].contains("state.web1\"")).collect();
        assert!(said.len() + 1 == all.len() && said.len() > 8, "{said:?} of {all:?}");
        let without = |gone: &[usize]| {
            let kept: Vec<&str> =
                lines.iter().enumerate().filter(|(line, _)| !gone.contains(line)).map(|(_, line)| *line).collect();
            let path = fleet.path("without.jsonl");
            std::fs::write(&path, kept.join("\n") + "\n").unwrap();
            verify(&fleet, &path)
        };
        for (gone, wanted) in [
            (vec![event], vec!["gap"]),
            // The end of the chain: the state has the length.
            (vec![refusal], vec!["gap"]),
            (vec![result], vec!["gap"]),
            (vec![command], vec!["no_command"]),
            // All messages of the node, and then its state too.
            (said, vec!["gap"]),
            (all, vec!["absent"]),
        ] {
            let (code, report) = without(&gone);
            assert_eq!((code, kinds(&report)), (1, wanted), "{gone:?} {report}");
        }
        // A repeated line counts once. A line without JSON is no export.
        let twice = format!("{text}{}\n", lines[event]);
        std::fs::write(fleet.path("twice.jsonl"), twice).unwrap();
        let (code, report) = verify(&fleet, &fleet.path("twice.jsonl"));
        assert_eq!((code, &report["nodes"]["web1"]["duplicates"]), (0, &json!(1)), "{report}");
        std::fs::write(fleet.path("torn.jsonl"), &text[..text.len() - 20]).unwrap();
        let torn = fleet.path("torn.jsonl");
        let known = fleet.path("known_nodes");
        let ran = ensign(&["audit", "verify", torn.to_str().unwrap(), "--known-nodes", known.to_str().unwrap()]);
        assert!(ran.code == 2 && ran.stderr.contains("can't be read"), "{}", ran.stderr);

        // The author of each command.
        let trust = fleet.path("trust.dsse.json");
        let rows = fleet.run(&["audit", "--trust", trust.to_str().unwrap(), "--output", "json"]).json();
        let shown: Vec<(&str, &Value)> =
            rows.as_array().unwrap().iter().map(|row| (row["signers"][0].as_str().unwrap(), &row["outcomes"])).collect();
        let changed = json!({"changed": 1});
        assert_eq!(shown[..4], [("ops-alice", &changed); 4], "{rows}");
        assert_eq!((shown[4].0, &rows[4]["unverified"], &rows[4]["signers_verified"]), ("ops-bob", &json!(0), &json!(true)));
        // The reason: the rule that came closest.
        let id = rows[4]["id"].as_str().unwrap();
        let why = fleet.run(&["why", id, "web1"]).stdout;
        assert!(why.contains("not_allowed: no rule allows it; the closest is rule 2"), "{why}");
        let why = fleet.run(&["why", &last, "web1"]).stdout;
        assert!(why.contains("changed") && why.contains("signed by ops-alice, allowed by rule 1"), "{why}");
        // The stream has a receipt beside each message, under the message id of the server.
        let result = stored(&operator, &fleet, "JOBS", &subject(&last, "web1")).await;
        assert_eq!(result.header(MESSAGE_ID), Some(format!("{last}.web1.done").as_str()));
        let statement = Receipt::parse(result.header(HEADER).unwrap()).unwrap().read().unwrap();
        assert!(statement.seq > Some(1) && statement.prev.is_some());
        let mut acks =
            operator.follow(&fleet.subjects.stream("JOBS"), "ensign.v1.test.job.*.web1.ack", StartAt::Beginning).await.unwrap();
        let ack = acks.next().await.unwrap().unwrap();
        assert_eq!(Receipt::parse(ack.header(HEADER).unwrap()).unwrap().read().unwrap().seq, None);
    }
}

#[test]
fn a_changed_node_key_is_an_alarm_until_an_operator_trusts_it() {
    let binary = &binaries()[0];
    let mut fleet = Fleet::new(binary, &NODES);
    let config = fleet.path("web1/agent.toml");
    fleet.start("web1", "web");
    let key = ensign(&["agent", "key", "--config", config.to_str().unwrap()]);
    let lines: Vec<&str> = key.stdout.lines().collect();
    assert!(
        lines[0].starts_with("ssh-ed25519 ") && lines[0].ends_with(" web1") && lines[2].starts_with("SHA256:"),
        "{}",
        key.stdout
    );
    let keys = fleet.run(&["node", "keys", "--output", "json"]).json();
    assert_eq!((&keys[0]["node"], &keys[0]["key"]), (&json!("web1"), &json!(lines[1])));

    let presence = || fleet.run(&["nodes", "--output", "json"]).json()[0]["presence"].clone();
    let other = SigningKey::generate().unwrap().public();
    assert_eq!(fleet.run(&["node", "trust", "web1", &other.to_short()]).code, 0);
    assert_eq!(presence(), "unverified");
    let status = fleet.run(&["status"]).stdout;
    let wanted = format!("its key has changed: {} is pinned, {} signed", other.fingerprint(), lines[2]);
    assert!(status.contains(&wanted) && status.contains("fleet node forget web1"), "{status}");
    // The node runs the command, but its messages do not verify: the operator does not wait for ever.
    let ran = ensure(&fleet, "web1", "one", &["--output", "json"]);
    let node = &ran.json()["nodes"][0];
    assert_eq!((ran.code, &node["outcome"], &node["verified"]), (4, &json!("unverified"), &json!(false)), "{node}");

    assert_eq!(fleet.run(&["node", "forget", "web1"]).code, 0);
    assert_eq!(fleet.run(&["node", "forget", "web1"]).code, 2, "it is not known any more");
    assert_eq!(presence(), "alive");
    assert_eq!(fleet.run(&["node", "trust", "web1", lines[0]]).code, 0);
    assert_eq!(presence(), "alive");
    std::fs::write(fleet.path("known_nodes"), "nonsense\n").unwrap();
    let ran = fleet.run(&["nodes"]);
    assert!(ran.code == 2 && ran.stderr.contains("line 1"), "{}", ran.stderr);
    fleet.kill("web1");
    // An invalid key: the agent reports it, and makes no new key.
    std::fs::write(fleet.path("web1/state/node.key"), "").unwrap();
    let ran = ensign(&["agent", "run", "--config", config.to_str().unwrap()]);
    assert!(ran.code == 1 && ran.stderr.contains("node.key"), "{}", ran.stderr);
}
