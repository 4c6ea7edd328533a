//! The cost of the decision whether a command may run: signature, form, target, time, ledger, rules, limits, subject.
//!
//! Prints nanoseconds and, beside each, the ratio to a bare Ed25519 verification of the same bytes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a measuring stick, not a part of the program"
)]

use std::hint::black_box;
use std::time::Instant;

use ed25519_dalek::Signature;
use ensign::model::NodeId;
use ensign::store::Ledger;
use ensign::store::ledger::Acceptance;
use ensign::trust::{
    BundleAuthority, KnownTrust, NodeLimits, OpenedMessage, Rejection, ReplayStore, SigningKey, TrustedBundle, Verifier,
    open_bundle, sign_envelope,
};
use ensign::wire::report::ChannelPosition;
use ensign::wire::{COMMAND_TYPE, Envelope, Subjects, TRUST_TYPE, pae};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

const ROUNDS: usize = 31;
const BATCH: u32 = 200;
/// Keys and rules in the trust bundle.
const KEYS: u8 = 8;
/// Commands in the ledger.
const KNOWN: u8 = 200;

struct BenchReplayStore(Ledger);

impl ReplayStore for BenchReplayStore {
    fn accepted_digest(&self, id: Uuid) -> Option<String> {
        self.0.accepted_digest(id).map(str::to_owned)
    }

    fn channel(&self, name: &str) -> Option<ChannelPosition> {
        self.0.channel(name).cloned()
    }

    fn remembers_since(&self) -> Option<Timestamp> {
        self.0.origin().map(|birth| birth.at)
    }

    fn trust(&self) -> KnownTrust {
        KnownTrust::AtLeast(1)
    }
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// `op1` may do everything by the last rule. Each of the other operators may only restart one service.
fn trust() -> TrustedBundle {
    let keys: Vec<Value> = (1..=KEYS).map(|n| json!({"id": format!("op{n}"), "key": key(n).public().to_short()})).collect();
    let mut rules: Vec<Value> =
        (2..=KEYS).map(|n| json!({"keys": [format!("op{n}")], "types": ["service"], "names": [format!("app{n}-*")]})).collect();
    rules.push(json!({"keys": ["op1"]}));
    let bundle = json!({
        "fleet": "prod", "version": 1, "expires": "2027-01-01T00:00:00Z",
        "root": {"threshold": 1, "keys": [key(99).public().to_short()]},
        "keys": keys, "rules": rules,
    });
    let envelope = sign_envelope(TRUST_TYPE, bundle.to_string().into(), &[("root", &key(99))]);
    open_bundle(&envelope.encode(), BundleAuthority::Stored).unwrap()
}

fn command() -> Value {
    json!({
        "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "prod", "to": {"nodes": ["web1"]},
        "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z", "reason": "the page is down",
        "action": {"ensure": {"type": "service", "properties": {"name": "nginx", "ensure": "running", "enable": true}}},
    })
}

fn ledger(dir: &std::path::Path) -> Ledger {
    let mut ledger = Ledger::open(dir).unwrap();
    for number in 0..KNOWN {
        let command = Acceptance {
            id: Uuid::from_bytes([number; 16]),
            digest: &"0".repeat(64),
            issued: "2026-11-20T10:00:00Z".parse().unwrap(),
            expires: "2026-11-20T10:05:00Z".parse().unwrap(),
            subject: None,
            envelope: b"{}",
            channel: None,
            signers: &[],
        };
        ledger.record_acceptance(&command).unwrap();
    }
    ledger
}

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let (trust, seen) = (trust(), BenchReplayStore(ledger(dir.path())));
    let (node, groups): (NodeId, _) = ("web1".parse().unwrap(), ["web".to_owned()]);
    let (limits, subjects) = (NodeLimits::default(), Subjects::new("prod"));
    let now = "2026-11-20T10:01:00Z".parse().unwrap();
    let (node, groups, condition) = (&node, &groups, &|_: &str| Ok(true));
    let types = ensign::resource::Types::default();
    let effects = &|kind: &str, properties: &serde_json::Map<String, serde_json::Value>| {
        ensign::engine::effects::of_signed(&types, kind, properties)
    };
    let verifier = Verifier {
        trust: &trust,
        node,
        groups,
        limits: &limits,
        subjects: &subjects,
        now,
        replay_store: &seen,
        evaluate_filter: condition,
        effects,
    };
    let open = |bytes: &[u8]| -> Result<OpenedMessage, Rejection> {
        verifier.open(black_box(bytes), Some("ensign.v1.prod.cmd.ensure.node.web1"))
    };

    let payload = command().to_string().into_bytes();
    let signed = |by: &[(&str, &SigningKey)]| sign_envelope(COMMAND_TYPE, payload.clone(), by).encode();
    let good = signed(&[("op1", &key(1))]);
    let unhinted = signed(&[("", &key(KEYS))]);
    let twice = signed(&[("op1", &key(1)), ("op2", &key(2))]);
    let forged = signed(&[("op1", &key(77))]);
    assert!(matches!(open(&good), Ok(OpenedMessage::New(_))));
    assert!(matches!(open(&twice), Ok(OpenedMessage::New(_))));
    assert!(open(&unhinted).is_err() && open(&forged).is_err());

    let envelope = Envelope::parse(&good).unwrap();
    let encoded = pae(&envelope.payload_type, &envelope.payload);
    let public = ed25519_dalek::SigningKey::from_bytes(&[1; 32]).verifying_key();
    let signature = Signature::from_slice(&envelope.signatures[0].sig).unwrap();

    let cases: [(&str, &dyn Fn()); 6] = [
        ("bare ed25519 verify", &|| public.verify_strict(black_box(&encoded), &signature).unwrap()),
        ("envelope, without signature", &|| drop(black_box(Envelope::parse(black_box(&good)).unwrap()))),
        ("open, one signature", &|| drop(black_box(open(&good)))),
        ("open, two signatures", &|| drop(black_box(open(&twice)))),
        ("refused: forged", &|| drop(black_box(open(&forged)))),
        ("refused: last of 8 keys, no hint", &|| drop(black_box(open(&unhinted)))),
    ];
    let mut times = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for ((_, run), times) in cases.iter().zip(&mut times) {
            let started = Instant::now();
            for _ in 0..BATCH {
                run();
            }
            times.push((started.elapsed() / BATCH).as_nanos());
        }
    }
    println!("{:<36} {:>10} {:>10} {:>8}", "", "median ns", "min ns", "ratio");
    times.iter_mut().for_each(|times| times.sort_unstable());
    let base = u32::try_from(times[0][0]).map(f64::from).unwrap();
    for ((name, _), times) in cases.iter().zip(&times) {
        let ratio = u32::try_from(times[0]).map(f64::from).unwrap() / base;
        println!("{name:<36} {:>10} {:>10} {ratio:>7.2}x", times[ROUNDS / 2], times[0]);
    }
    println!("({} bytes of envelope, {KEYS} keys and rules, {KNOWN} commands in the ledger; no sync)", good.len());
}
