//! Hostile texts: control characters, directions, line ends and megabytes. They are in every field that a node or an unknown
//! sender fills, and in the records of a plan.

use ensign::diag::clean::is_shown;
use ensign::transport::{Bus, BusSettings};
use ensign::trust::{SigningKey, issue_receipt, sign_envelope};
use ensign::wire::receipt::{HEADER, ReceiptBody};
use ensign::wire::{COMMAND_TYPE, Envelope, digest};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::fleet::{Fleet, Ran, ensign};
use crate::support::nats::{NatsServer, Options, binaries};

/// Clears the screen, begins lines that look like those of the program, turns the direction, hides characters.
const HOSTILE: &str =
    "x\x1b[2J\x1b]0;t\x07\x08\r\nweb9  alive  stable\t\u{202e}\u{2066}\u{9b}31m\u{200b}\u{feff}\u{7f}\u{2028}\u{e0041}";

fn key() -> SigningKey {
    SigningKey::from_seed(&[7; 32])
}

/// Publishes a message of a node, with its receipt.
async fn publish_signed(bus: &Bus, subject: &str, value: &Value, command: Option<&str>) {
    let payload = value.to_string().into_bytes();
    let statement = ReceiptBody {
        node: "web1".parse().unwrap(),
        boot: Uuid::now_v7(),
        seq: None,
        prev: None,
        subject: subject.to_owned(),
        sha256: digest(&payload),
        at: jiff::Timestamp::now(),
        command: command.map(str::to_owned),
    };
    bus.publish_stored(subject, &[(HEADER, issue_receipt(&key(), &statement).as_str())], payload).await.unwrap();
}

fn state(long: &str) -> Value {
    let now = jiff::Timestamp::now();
    json!({
        "protocol": "io.ensign.v1.node.state", "node": "web1", "at": now, "interval": 3600, "alive": true,
        "hostname": HOSTILE, "boot": Uuid::nil(), "started": now, "version": HOSTILE, "groups": [HOSTILE, "web"], "trust": 1,
        "channels": {(HOSTILE): {"epoch": 1, "serial": 1, "digest": HOSTILE}}, "assignments": [],
        "queued": 0, "outbox": 0, "dropped": 0, "key": key().public().to_short(), "chain": 0,
        "alarms": [HOSTILE, long],
    })
}

fn command(id: Uuid, long: &str) -> Value {
    let now = jiff::Timestamp::now();
    json!({
        "id": id, "fleet": "test", "to": {"nodes": ["web1"], "where": format!("true{HOSTILE}")}, "issued": now,
        "expires": now + jiff::SignedDuration::from_mins(5), "reason": format!("{HOSTILE}{long}"),
        "action": {"ensure": {"type": "file", "properties": {"name": HOSTILE}}}, "options": {"noop": true},
    })
}

/// Panics unless the output has only lines of the program, each of limited length.
fn is_clean(what: &str, ran: &Ran) {
    for text in [&ran.stdout, &ran.stderr] {
        let wrong = text.chars().find(|c| *c != '\n' && !is_shown(*c));
        assert_eq!(wrong, None, "{what}: {text}");
        let forged = text.lines().find(|line| line.starts_with("web9"));
        assert_eq!(forged, None, "{what}: {text}");
        assert!(text.lines().all(|line| line.chars().count() < 20_000), "{what}: {} bytes", text.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_texts_are_shown_escaped() {
    for binary in binaries() {
        let fleet = Fleet::new(&binary, &[("web1", "web")]);
        let web1 = fleet.connect("web1", Some("_INBOX_web1")).await;
        let operator = fleet.connect("operator", None).await;
        let long = "y".repeat(500_000);
        publish_signed(&web1, "ensign.v1.test.state.web1", &state(&long), None).await;
        let id = Uuid::now_v7();
        let payload = serde_json::to_vec(&command(id, &long)).unwrap();
        let envelope = sign_envelope(COMMAND_TYPE, payload, &[(HOSTILE, &fleet.key("ops-alice"))]);
        operator.publish_stored(&format!("ensign.v1.test.job.{id}.command"), &[], envelope.encode()).await.unwrap();
        let done = json!({
            "protocol": "io.ensign.v1.job.done", "id": id, "digest": envelope.digest(), "node": "web1",
            "at": jiff::Timestamp::now(), "outcome": "refused", "code": HOSTILE, "message": format!("{HOSTILE}{long}"),
            "failures": {(HOSTILE): HOSTILE}, "answer": {(HOSTILE): [HOSTILE, long]}, "signers": [HOSTILE],
        });
        publish_signed(&web1, &format!("ensign.v1.test.job.{id}.web1.done"), &done, Some(&envelope.digest())).await;
        let life = json!({
            "protocol": "io.ensign.v1.event.lifecycle", "event_id": Uuid::now_v7(), "node": "web1",
            "timestamp": jiff::Timestamp::now(), "what": HOSTILE, "message": HOSTILE, "version": HOSTILE, "boot": Uuid::nil(),
        });
        publish_signed(&web1, "ensign.v1.test.event.web1.lifecycle", &life, None).await;
        publish_signed(&web1, "ensign.v1.test.event.web1.refused", &done, None).await;
        publish_signed(&web1, "ensign.v1.test.event.web1.transaction", &json!({"errors": HOSTILE}), None).await;
        let id = id.to_string();
        let trust = fleet.path("trust.dsse.json");
        let trust = trust.to_str().unwrap();
        for args in [
            &["nodes"] as &[&str],
            &["status"],
            &["channels"],
            &["events"],
            &["audit"],
            &["audit", "--trust", trust],
            &["job", "list"],
            &["job", "show", &id],
            &["job", "show", &id, "--node", "web1"],
            &["job", "watch", &id, "--timeout", "1s"],
            &["why", &id, "web1"],
            &["node", "web1"],
            &["node", "keys"],
            &["plan", "--approve", &id],
            &["rollout", "status", &id],
            &["job", HOSTILE],
            &["facts", HOSTILE, "--node", HOSTILE],
        ] {
            is_clean(&args.join(" "), &fleet.run(args));
        }
        let rows = |args: &[&str]| fleet.run(args).stdout.lines().count();
        assert_eq!((rows(&["nodes"]), rows(&["job", "list"]), rows(&["events"])), (2, 2, 3));
        let nodes = fleet.run(&["nodes"]).stdout;
        assert!(nodes.contains(r"x\x1b[2J\x1b]0;t\x07\x08\r\nweb9 alive stable\t\u{202e}"), "{nodes}");
        assert!(nodes.contains("more characters)") && nodes.len() < 20_000, "{}", nodes.len());
        // JSON output has the text unchanged.
        let json = fleet.run(&["nodes", "--output", "json"]).json();
        assert_eq!((&json[0]["hostname"], json[0]["alarms"][1].as_str().map(str::len)), (&json!(HOSTILE), Some(500_000)));
        let file = fleet.path("hostile.json");
        std::fs::write(&file, envelope.encode()).unwrap();
        is_clean("verify", &ensign(&["verify", file.to_str().unwrap(), "--trust", trust]));
        std::fs::write(&file, format!("ccm:\n  resources:\n    - file:\n        - /x:\n            {HOSTILE}: 1\n")).unwrap();
        is_clean("check", &ensign(&["check", file.to_str().unwrap()]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_covers_only_the_signed_command() {
    for binary in binaries() {
        let fleet = Fleet::new(&binary, &[("web1", "web")]);
        let operator = fleet.connect("operator", None).await;
        let file = ["ensure", "file", "/srv/x", "--content", "a", "--owner", "root", "--file-group", "root", "--mode", "0644"];
        let sent = fleet.run(&[&["plan"], &file as &[&str], &["--node", "web1", "--detach"]].concat());
        assert_eq!(sent.code, 0, "{}", sent.stderr);
        let id = sent.stdout.trim();
        let subject = format!("ensign.v1.test.job.{id}.command");
        let record = operator.last_per_subject(&fleet.subjects.stream("JOBS"), &subject).await.unwrap().pop().unwrap();
        let honest = Envelope::parse(&record.payload).unwrap();
        let trust = fleet.path("trust.dsse.json").display().to_string();
        let jobs = || fleet.run(&["job", "list", "--output", "json"]).json().as_array().unwrap().len();
        let with = |change: &dyn Fn(&mut Value)| {
            let mut command: Value = serde_json::from_slice(&honest.payload).unwrap();
            change(&mut command);
            serde_json::to_vec(&command).unwrap()
        };
        let everybody = with(&|command| command["to"] = json!({"all": true}));
        let elsewhere = with(&|command| command["fleet"] = json!("other"));
        let stranger = SigningKey::from_seed(&[8; 32]);
        let unsigned = |payload: Vec<u8>| Envelope { payload, ..honest.clone() };
        for (what, forged) in [
            ("another audience", unsigned(everybody.clone())),
            ("a stranger's key", sign_envelope(COMMAND_TYPE, everybody.clone(), &[("ops-alice", &stranger)])),
            ("no signature", Envelope { signatures: vec![], ..honest.clone() }),
            ("another type", sign_envelope("application/json", everybody, &[("ops-alice", &fleet.key("ops-alice"))])),
            ("another fleet", sign_envelope(COMMAND_TYPE, elsewhere, &[("ops-alice", &fleet.key("ops-alice"))])),
        ] {
            operator.publish_stored(&subject, &[], forged.encode()).await.unwrap();
            for more in [&["--trust", trust.as_str()] as &[&str], &[]] {
                let ran = fleet.run(&[&["plan", "--approve", id], more].concat());
                assert!([2, 3].contains(&ran.code), "{what}: {} {}", ran.code, ran.stderr);
                assert_eq!(jobs(), 1, "{what}: {}", ran.stderr);
            }
        }
        // The operator's tool shows the signed text, and signs it again.
        operator.publish_stored(&subject, &[], record.payload.clone()).await.unwrap();
        let ran = fleet.run(&["plan", "--approve", id, "--trust", &trust, "--detach"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        for line in ["planned   by ops-alice, at ", "action    ensure file#/srv/x", "of        nodes web1", "timeout   5m"] {
            assert!(ran.stderr.lines().any(|found| found.starts_with(line)), "{line} is not in\n{}", ran.stderr);
        }
        assert_eq!(jobs(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invented_nodes_are_not_pinned() {
    for binary in binaries().into_iter().take(1) {
        // A server without users: every client may publish everything, as its owner may.
        let server = NatsServer::start_binary(&binary, &Options { jetstream: true, config: String::new() });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_nodes");
        let (url, path) = (server.url(), file.display().to_string());
        let run = |args: &[&str]| ensign(&[&["fleet", "--fleet", "test", "--nats", &url, "--known-nodes", &path], args].concat());
        assert_eq!(run(&["init"]).code, 0);
        let bus = Bus::connect(&BusSettings { servers: vec![url.clone()], ..BusSettings::default() }).await.unwrap();
        let invent = async |node: String| {
            let mut body = state("");
            body["node"] = json!(node);
            let subject = format!("ensign.v1.test.state.{node}");
            let payload = body.to_string().into_bytes();
            let statement = ReceiptBody {
                node: node.parse().unwrap(),
                boot: Uuid::nil(),
                seq: None,
                prev: None,
                subject: subject.clone(),
                sha256: digest(&payload),
                at: jiff::Timestamp::now(),
                command: None,
            };
            bus.publish_stored(&subject, &[(HEADER, issue_receipt(&key(), &statement).as_str())], payload).await.unwrap();
        };
        invent("web1".to_owned()).await;
        assert_eq!(run(&["nodes"]).code, 0);
        let known = || std::fs::read_to_string(&file).unwrap().lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(known(), 1);
        for number in 0..1000 {
            invent(format!("x{number}")).await;
        }
        let nodes = run(&["nodes"]);
        assert_eq!((nodes.stdout.lines().count(), known()), (2, 1), "{}", nodes.stderr);
        assert!(nodes.stderr.contains("ignored 1000 nodes with unknown keys"), "{}", nodes.stderr);
        assert_eq!(run(&["status", "--output", "json"]).json()["strangers"], 1000);
        // A named key is pinned; all keys, when the operator asks for them.
        run(&["nodes", "--node", "x7"]);
        assert_eq!(known(), 2);
        let trusted = run(&["node", "trust", "--all-new"]);
        assert_eq!((trusted.code, known()), (0, 1001), "{}", trusted.stderr);
    }
}
