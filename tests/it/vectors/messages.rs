//! One file for each kind of message: read strictly, and without loss.

use ensign::model::{ApplyState, TransactionEvent};
use ensign::trust::{BundleAuthority, PublicKey, issue_receipt, open_bundle, verify_receipt};
use ensign::wire::digest;
use ensign::wire::receipt::{Receipt, ReceiptBody};
use ensign::wire::report::LifecycleEvent;
use ensign::wire::{Ack, Command, CommandResult, Envelope, NodeState, RejectionEvent, TRUST_TYPE, TrustBundle, json as strict};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ID, NOW, apply, check_files, ensure, files, folder, key, read, sealed, short, signed, with};

const OTHER: &str = "0198c1f2-7a3b-7c4d-8e5f-aaaaaaaaaaaa";
const DIGEST: &str = "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9";

fn bundle() -> Value {
    json!({
        "fleet": "prod",
        "version": 7,
        "expires": "2027-01-01T00:00:00Z",
        "root": {"threshold": 2, "keys": [short(1), short(2), key(3).public().to_openssh("root-3")]},
        "keys": [
            {"id": "ops-alice", "key": short(11), "not_before": "2026-01-01T00:00:00Z", "not_after": "2027-01-01T00:00:00Z"},
            {"id": "ops-bob", "key": short(12)},
        ],
        "revoked": ["ops-bob"],
        "rules": [{
            "keys": ["ops-*"], "actions": ["ensure"], "types": ["package", "service"], "names": ["nginx*"], "nodes": ["web*"],
            "groups": ["web"], "max_nodes": 50, "noop_only": true, "quorum": 2,
        }, {"keys": ["release"], "channels": ["base"]}],
    })
}

fn event() -> Value {
    json!({
        "protocol": "io.choria.ccm.v1.transaction.event", "event_id": OTHER, "timestamp": NOW,
        "type": "file", "provider": "posix", "name": "/etc/motd", "alias": "motd",
        "requested_ensure": "present", "final_ensure": "present", "duration": 1_500_000,
        "properties": {"name": "/etc/motd", "ensure": "present", "mode": "0644"},
        "status": {"ensure": "present", "changed": true},
        "noop_message": "Would have created the file",
        "health_check": [{"status": 0, "tries": 1, "Output": "OK", "name": "check"}],
        "health_check_only": true,
        "error": ["one"], "changed": true, "refreshed": true, "failed": true, "skipped": true, "noop": true,
        "unmet_requirements": ["file#/etc"], "node": "web1", "run_id": ID, "seq": 3,
        "manifest": {"source": "obj://bundles/base.tar.gz", "digest": DIGEST}, "changes": ["create"], "diff": "+x\n",
    })
}

fn apply_state() -> Value {
    json!({
        "protocol": "io.ensign.v1.apply.state", "event_id": OTHER, "node": "web1", "run_id": ID, "timestamp": NOW,
        "outcome": "changed", "noop": false, "manifest": {"source": "obj://bundles/base.tar.gz", "digest": DIGEST},
        "error": "none",
        "summary": {
            "start_time": NOW, "end_time": NOW, "total_duration": 5, "total_resources": 9, "unique_resources": 9,
            "changed_resources": 1, "failed_resources": 2, "skipped_resources": 3, "stable_resources": 3, "refreshed_count": 1,
            "requirements_unmet_count": 1, "health_checked_count": 4, "health_check_ok_count": 1, "health_check_warning_count": 1,
            "health_check_critical_count": 1, "health_check_unknown_count": 1, "total_errors": 2,
        },
    })
}

/// A chain of three, and an acknowledgement beside it. The seed of the node's key is 32 times 21.
fn receipts() -> Value {
    let node_key = key(21);
    let mut prev = None;
    let mut message = |seq: Option<u64>, subject: &str, payload: Value, command: Option<&str>| {
        let payload = payload.to_string();
        let statement = ReceiptBody {
            node: "web1".parse().unwrap(),
            boot: OTHER.parse().unwrap(),
            seq,
            prev: prev.clone().filter(|_| seq.is_some()),
            subject: subject.to_owned(),
            sha256: digest(payload.as_bytes()),
            at: NOW.parse().unwrap(),
            command: command.map(str::to_owned),
        };
        let receipt = issue_receipt(&node_key, &statement);
        if seq.is_some() {
            prev = Some(Receipt::parse(&receipt).unwrap().digest());
        }
        json!({"subject": subject, "payload": payload, "receipt": receipt})
    };
    let messages = [
        message(Some(1), "ensign.v1.prod.event.web1.lifecycle", json!({"what": "started"}), None),
        message(None, &format!("ensign.v1.prod.job.{ID}.web1.ack"), json!({"status": "accepted"}), Some(DIGEST)),
        message(Some(2), "ensign.v1.prod.event.web1.transaction", json!({"type": "file"}), Some(DIGEST)),
        message(Some(3), &format!("ensign.v1.prod.job.{ID}.web1.done"), json!({"outcome": "changed"}), Some(DIGEST)),
    ];
    json!({"node": "web1", "seed": "15".repeat(32), "key": short(21), "messages": messages})
}

fn check_receipts(value: &Value) -> Result<(), String> {
    let key: PublicKey = value["key"].as_str().unwrap().parse().unwrap();
    let mut prev = None;
    for message in value["messages"].as_array().unwrap() {
        let text = |name: &str| message[name].as_str().unwrap();
        let node = "web1".parse().unwrap();
        let attested = verify_receipt(Some(text("receipt")), &key, &node, text("subject"), text("payload").as_bytes())
            .map_err(|error| ensign::diag::error_chain(&error))?;
        if attested.statement.seq.is_some() {
            assert_eq!(attested.statement.prev, prev);
            prev = Some(attested.digest);
        }
    }
    Ok(())
}

fn messages() -> Vec<(String, Value)> {
    let text = |text: String| serde_json::from_str(&text).unwrap();
    let nginx = ensure("service", json!({"name": "nginx", "ensure": "running"}));
    let roots: Vec<(&str, u8)> = vec![("root-1", 1), ("root-3", 3)];
    [
        ("command-ensure", with(nginx.clone(), "/not_before", json!("2026-11-20T10:01:00Z"))),
        (
            "command-apply",
            with(with(apply(1, 1, "a"), "/channel", Value::Null), "/to", json!({"all": true, "where": "Facts.os == 'x'"})),
        ),
        (
            "command-channel",
            with(with(apply(1, 42, "a"), "/to", json!({"groups": ["web"]})), "/action/apply/data", json!({"a": [1]})),
        ),
        (
            "command-target",
            with(
                nginx.clone(),
                "/to",
                json!({
                    "nodes": ["db1"], "globs": ["web*"], "groups": ["db"],
                    "not": {"nodes": ["web3"], "globs": ["*-old"], "groups": ["canary"]}, "where": "Facts.os == 'x'",
                }),
            ),
        ),
        ("envelope", text(signed(&nginx, &[("ops-alice", 11)]))),
        ("trust", text(sealed(TRUST_TYPE, &bundle().to_string(), &roots))),
        (
            "ack",
            json!({
                "protocol": "io.ensign.v1.job.ack", "id": ID, "digest": DIGEST, "node": "web1", "at": NOW,
                "status": "accepted", "queued": 2,
            }),
        ),
        (
            "done",
            json!({
                "protocol": "io.ensign.v1.job.done", "id": ID, "digest": DIGEST, "node": "web1", "at": NOW, "outcome": "failed",
                "code": "busy", "message": "why", "event": event(), "apply": apply_state(), "failures": {"file#/a": "no"},
            }),
        ),
        (
            "refused",
            json!({
                "protocol": "io.ensign.v1.event.refused", "event_id": OTHER, "node": "web1", "timestamp": NOW,
                "code": "not_allowed", "message": "why", "subject": "ensign.v1.prod.cmd.ensure.all", "digest": DIGEST,
                "id": ID, "keyids": ["ops-alice"],
            }),
        ),
        (
            "lifecycle",
            json!({
                "protocol": "io.ensign.v1.event.lifecycle", "event_id": OTHER, "node": "web1", "timestamp": NOW,
                "what": "started", "version": "1.0.0", "boot": ID,
            }),
        ),
        (
            "state",
            json!({
                "protocol": "io.ensign.v1.node.state", "node": "web1", "at": NOW, "interval": 60, "alive": true,
                "hostname": "web1.example.org", "boot": ID, "started": NOW, "version": "1.0.0", "groups": ["web"], "trust": 7,
                "channels": {"base": {"epoch": 1, "serial": 42, "digest": DIGEST}}, "running": OTHER, "queued": 1,
                "last_run": apply_state(), "outbox": 5, "dropped": 6, "alarms": ["the disk is full"],
            }),
        ),
        ("receipt", receipts()),
        ("transaction-event", event()),
        ("apply-state", apply_state()),
    ]
    .into_iter()
    .map(|(name, value)| (format!("{name}.json"), value))
    .collect()
}

/// Reads a file as its type, and writes it again: the result must have everything in the file.
fn survives<T: DeserializeOwned + Serialize>(value: &Value) -> Result<T, String> {
    let message: T = strict::read(value.to_string().as_bytes()).map_err(|error| ensign::diag::error_chain(&error))?;
    let again = serde_json::to_value(&message).unwrap();
    if within(value, &again) { Ok(message) } else { Err(format!("{value}\nbecame {again}")) }
}

fn within(small: &Value, large: &Value) -> bool {
    match (small, large) {
        (Value::Object(small), Value::Object(large)) => {
            small.iter().all(|(key, value)| value.is_null() || large.get(key).is_some_and(|other| within(value, other)))
        }
        (small, large) => small == large,
    }
}

fn check(name: &str, value: &Value) -> Result<(), String> {
    match name {
        "command-ensure" | "command-apply" | "command-channel" | "command-target" => {
            survives::<Command>(value)?.check().map_err(|error| error.to_string())
        }
        "envelope" => {
            let envelope = Envelope::parse(value.to_string().as_bytes()).map_err(|error| error.to_string())?;
            let signature = &envelope.signatures[0];
            assert!(key(11).public().verify(&envelope.payload_type, &envelope.payload, &signature.sig));
            survives::<Command>(&serde_json::from_slice(&envelope.payload).unwrap()).map(drop)
        }
        "trust" => {
            let roots = [key(1).public(), key(2).public(), key(3).public()];
            let pin = BundleAuthority::Roots { fleet: "prod", keys: &roots, threshold: 2 };
            let trusted = open_bundle(value.to_string().as_bytes(), pin).map_err(|error| error.to_string())?;
            survives::<TrustBundle>(&serde_json::to_value(trusted.bundle()).unwrap()).map(drop)
        }
        "ack" => survives::<Ack>(value).map(drop),
        "done" => survives::<CommandResult>(value).map(drop),
        "refused" => survives::<RejectionEvent>(value).map(drop),
        "lifecycle" => survives::<LifecycleEvent>(value).map(drop),
        "state" => survives::<NodeState>(value).map(drop),
        "transaction-event" => survives::<TransactionEvent>(value).map(drop),
        "receipt" => check_receipts(value),
        "apply-state" => survives::<ApplyState>(value).map(drop),
        other => Err(format!("{other}: no such kind of message")),
    }
}

#[test]
fn every_message_is_read_as_it_was_written() {
    check_files("v1", &messages());
    assert_eq!(files("v1").len(), messages().len());
    for path in files("v1") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if let Err(why) = check(name, &read(&path)) {
            panic!("{}: {why}", folder("v1").join(name).display());
        }
    }
}
