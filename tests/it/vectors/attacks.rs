//! Messages that must be refused: each is refused with its own code.

use std::collections::{BTreeMap, HashSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ensign::trust::{
    BundleAuthority, KnownTrust, NodeLimits, OpenedMessage, PublicKey, RejectionCode, ReplayStore, TrustedBundle, Verifier,
    open_bundle,
};
use ensign::wire::report::ChannelPosition;
use ensign::wire::{COMMAND_TYPE, MAX_ENVELOPE, Subjects, TRUST_TYPE, digest};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{ID, NOW, apply, check_files, ensure, files, folder, read, sealed, short, signed, with};

const ON: &str = "ensign.v1.prod.cmd.ensure.node.web1";
const ALICE: &[(&str, u8)] = &[("alice", 11)];
const ROOTS: &[(&str, u8)] = &[("root-1", 1), ("root-2", 2)];

/// The attacked node.
#[derive(Serialize, Deserialize)]
struct Setup {
    fleet: String,
    node: String,
    groups: Vec<String>,
    roots: Vec<String>,
    threshold: u32,
    /// The envelope of the active bundle.
    trust: String,
}

/// A message and its result.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attack {
    about: String,
    /// A code; `accepted`, `seen` and `not_selected` for messages that are no attack.
    expect: String,
    at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    message: String,
    /// Spaces extend the message to this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pad_to: Option<usize>,
    /// True for a trust bundle, the successor of the active one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_trust: bool,
    /// Another active bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trust: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limits: Option<LocalLimits>,
    /// Digests of accepted commands by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    seen: BTreeMap<Uuid, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    channels: BTreeMap<String, ChannelPosition>,
    /// The creation time of the node's ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    born: Option<String>,
    /// An earlier active version of the trust bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    obeyed: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct LocalLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_paths: Option<Vec<String>>,
    types: Option<Vec<String>>,
    paths: Option<Vec<String>>,
    exec: bool,
    fetch_hosts: Option<Vec<String>>,
    apply: bool,
}

struct Memory<'a>(&'a Attack);

impl ReplayStore for Memory<'_> {
    fn accepted_digest(&self, id: Uuid) -> Option<String> {
        self.0.seen.get(&id).cloned()
    }

    fn channel(&self, name: &str) -> Option<ChannelPosition> {
        self.0.channels.get(name).cloned()
    }

    fn remembers_since(&self) -> Option<jiff::Timestamp> {
        self.0.born.as_ref().map(|born| born.parse().unwrap())
    }

    fn trust(&self) -> KnownTrust {
        KnownTrust::AtLeast(self.0.obeyed.unwrap_or_default())
    }
}

fn bundle() -> Value {
    json!({
        "fleet": "prod", "version": 7, "expires": "2027-01-01T00:00:00Z",
        "root": {"threshold": 2, "keys": [short(1), short(2), short(3)]},
        "keys": [
            {"id": "alice", "key": short(11)},
            {"id": "bob", "key": short(12)},
            {"id": "ci", "key": short(13)},
            {"id": "gone", "key": short(14)},
            {"id": "past", "key": short(15), "not_after": "2026-11-20T10:00:00Z"},
            {"id": "future", "key": short(16), "not_before": "2026-11-20T11:00:00Z"},
            {"id": "release-1", "key": short(17)},
            {"id": "release-2", "key": short(18)},
        ],
        "revoked": ["gone"],
        "rules": [
            {"keys": ["alice", "gone", "past", "future"]},
            {"keys": ["bob"], "actions": ["ensure"], "types": ["file", "archive"], "names": ["/srv/www/**"], "max_nodes": 2},
            {"keys": ["ci"], "noop_only": true},
            {"keys": ["release-*"], "actions": ["apply"], "channels": ["base"], "quorum": 2},
        ],
    })
}

fn trust(bundle: &Value, by: &[(&str, u8)]) -> String {
    sealed(TRUST_TYPE, &bundle.to_string(), by)
}

fn setup() -> Setup {
    Setup {
        fleet: "prod".into(),
        node: "web1".into(),
        groups: vec!["web".into()],
        roots: vec![short(1), short(2), short(3)],
        threshold: 2,
        trust: trust(&bundle(), ROOTS),
    }
}

fn attack(expect: &str, about: &str, message: String) -> Attack {
    Attack {
        about: about.into(),
        expect: expect.into(),
        at: NOW.into(),
        subject: Some(ON.into()),
        message,
        pad_to: None,
        is_trust: false,
        trust: None,
        limits: None,
        seen: BTreeMap::new(),
        born: None,
        obeyed: None,
        channels: BTreeMap::new(),
    }
}

/// A command of alice's, under this rule alone.
fn ruled(expect: &str, about: &str, rule: &Value) -> Attack {
    let trust = trust(&with(bundle(), "/rules", json!([rule])), ROOTS);
    Attack { trust: Some(trust), ..attack(expect, about, signed(&nginx(), ALICE)) }
}

fn nginx() -> Value {
    ensure("service", json!({"name": "nginx", "ensure": "running"}))
}

fn www(properties: Value) -> String {
    signed(&ensure("file", properties), &[("bob", 12)])
}

fn changed(pointer: &str, change: Value) -> String {
    signed(&with(nginx(), pointer, change), ALICE)
}

fn raw(payload: &str) -> String {
    sealed(COMMAND_TYPE, payload, ALICE)
}

/// The identity as public key and as R, and S = 0: valid for any message if small-order points are accepted.
fn small_order() -> String {
    let mut signature = [0; 64];
    signature[0] = 1;
    let value = json!({
        "payloadType": COMMAND_TYPE,
        "payload": STANDARD.encode(nginx().to_string()),
        "signatures": [{"keyid": "alice", "sig": STANDARD.encode(signature)}],
    });
    value.to_string()
}

/// The same signature with the group order added to S: valid if S is not checked.
fn malleable() -> String {
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut value: Value = serde_json::from_str(&signed(&nginx(), ALICE)).unwrap();
    let mut signature = STANDARD.decode(value["signatures"][0]["sig"].as_str().unwrap()).unwrap();
    let mut carry = 0;
    for (byte, add) in signature[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(add) + carry;
        (*byte, carry) = (sum.to_le_bytes()[0], sum >> 8);
    }
    value["signatures"][0]["sig"] = json!(STANDARD.encode(signature));
    value.to_string()
}

fn edited(pointer: &str, change: Value) -> String {
    with(serde_json::from_str(&signed(&nginx(), ALICE)).unwrap(), pointer, change).to_string()
}

fn controls() -> Vec<(&'static str, Attack)> {
    let seen = BTreeMap::from([(ID.parse().unwrap(), digest(nginx().to_string().as_bytes()))]);
    let release = signed(&apply(1, 43, "b"), &[("release-1", 17), ("release-2", 18)]);
    let mut noop = with(nginx(), "/options/noop", json!(true));
    noop["to"] = json!({"all": true});
    vec![
        ("control", attack("accepted", "No attack: the base of all the others.", signed(&nginx(), ALICE))),
        (
            "control-seen",
            Attack { seen, ..attack("seen", "No attack: a repetition, which is answered and not run.", signed(&nginx(), ALICE)) },
        ),
        (
            "control-by-hand",
            Attack {
                subject: None,
                ..attack("accepted", "No attack: the same envelope, carried in a file.", signed(&nginx(), ALICE))
            },
        ),
        ("control-path", attack("accepted", "No attack: a path that its rule allows.", www(json!({"name": "/srv/www/a/b"})))),
        (
            "control-noop",
            Attack {
                subject: Some("ensign.v1.prod.cmd.ensure.all".into()),
                ..attack("accepted", "No attack: a dry run by a key for dry runs.", signed(&noop, &[("ci", 13)]))
            },
        ),
        ("control-quorum", Attack { subject: None, ..attack("accepted", "No attack: signed by two.", release) }),
        (
            "control-where",
            Attack {
                subject: None,
                ..attack("not_selected", "No attack: for other nodes.", changed("/to", json!({"all": true, "where": "false"})))
            },
        ),
        (
            "control-trust",
            Attack {
                is_trust: true,
                ..attack("accepted", "No attack: the next bundle.", trust(&with(bundle(), "/version", json!(8)), ROOTS))
            },
        ),
    ]
}

fn signatures() -> Vec<(&'static str, Attack)> {
    let value: Value = serde_json::from_str(&signed(&nginx(), ALICE)).unwrap();
    let other = STANDARD.encode(with(nginx(), "/action/ensure/properties/name", json!("sshd")).to_string());
    vec![
        (
            "forged",
            attack("bad_signature", "Signed by another key in the name of a known one.", signed(&nginx(), &[("alice", 99)])),
        ),
        ("unknown-key", attack("unknown_key", "Signed by an unknown key.", signed(&nginx(), &[("mallory", 99)]))),
        ("unsigned", attack("unknown_key", "No signature at all.", signed(&nginx(), &[]))),
        (
            "root-key",
            attack("unknown_key", "Signed by a root key, which may change trust and nothing else.", signed(&nginx(), ROOTS)),
        ),
        (
            "swapped-payload",
            attack("bad_signature", "The signature of one command under another.", edited("/payload", json!(other))),
        ),
        (
            "swapped-type",
            attack("bad_signature", "The payload type changed after signing.", edited("/payloadType", json!(TRUST_TYPE))),
        ),
        ("small-order", attack("bad_signature", "A signature that weak verifiers take for any message.", small_order())),
        ("malleable", attack("bad_signature", "A second encoding of a good signature.", malleable())),
        ("cut-signature", attack("bad_signature", "A truncated signature.", edited("/signatures/0/sig", json!("AAAA")))),
        (
            "wrong-type",
            attack("wrong_type", "Signed as something else.", sealed("application/json", &nginx().to_string(), ALICE)),
        ),
        (
            "trust-as-command",
            attack("wrong_type", "A trust bundle in the place of a command.", sealed(TRUST_TYPE, &bundle().to_string(), ALICE)),
        ),
        ("revoked-key", attack("revoked_key", "Signed by a revoked key.", signed(&nginx(), &[("gone", 14)]))),
        ("key-too-old", attack("key_not_valid", "Signed by a key after its time.", signed(&nginx(), &[("past", 15)]))),
        ("key-too-young", attack("key_not_valid", "Signed by a key before its time.", signed(&nginx(), &[("future", 16)]))),
        (
            "quorum-one-key-twice",
            Attack {
                subject: None,
                ..attack(
                    "not_allowed",
                    "Two signatures by one key, under two names.",
                    signed(&apply(1, 43, "b"), &[("release-1", 17), ("release-2", 17)]),
                )
            },
        ),
        (
            "quorum-with-stranger",
            Attack {
                subject: None,
                ..attack(
                    "not_allowed",
                    "Two keys, one of another rule.",
                    signed(&apply(1, 43, "b"), &[("release-1", 17), ("bob", 12)]),
                )
            },
        ),
        ("not-base64", attack("bad_envelope", "A payload that is not base64.", edited("/payload", json!("***")))),
        ("base64-url", attack("bad_envelope", "The other alphabet of base64.", edited("/signatures/0/sig", json!("_-8=")))),
        ("unknown-envelope-key", attack("bad_envelope", "An algorithm that the sender chose.", edited("/alg", json!("none")))),
        (
            "duplicate-envelope-key",
            attack("bad_envelope", "Two payloads.", value.to_string().replacen('{', &format!("{{\"payload\":\"{other}\","), 1)),
        ),
        ("many-signatures", attack("bad_envelope", "More signatures than the limit.", signed(&nginx(), &[("alice", 99); 17]))),
        ("deep-envelope", attack("bad_envelope", "Nested without end.", "[".repeat(60_000))),
        ("not-json", attack("bad_envelope", "No JSON.", "ensure nginx".into())),
        ("empty", attack("bad_envelope", "Nothing.", String::new())),
        (
            "oversized",
            Attack {
                pad_to: Some(MAX_ENVELOPE + 1),
                ..attack("too_large", "A valid command, one byte too large.", signed(&nginx(), ALICE))
            },
        ),
    ]
}

fn forms() -> Vec<(&'static str, Attack)> {
    let text = nginx().to_string();
    let twice = |key: &str, value: &str| raw(&text.replacen('{', &format!("{{\"{key}\":{value},"), 1));
    let deep = with(nginx(), "/action/ensure/properties/x", json!("DEEP")).to_string();
    let deep = deep.replace("\"DEEP\"", &format!("{}{}", "[".repeat(70), "]".repeat(70)));
    vec![
        (
            "duplicate-key",
            attack("malformed", "Two targets: one reader takes the first, another the last.", twice("to", r#"{"all":true}"#)),
        ),
        (
            "duplicate-property",
            attack(
                "malformed",
                "Two names, deep inside.",
                raw(&text.replace(r#""name":"nginx""#, r#""name":"nginx","name":"sshd""#)),
            ),
        ),
        ("unknown-field", attack("malformed", "A field that this version does not know.", changed("/sudo", json!(true)))),
        (
            "unknown-option",
            attack("malformed", "An option that this version does not know.", changed("/options/force", json!(true))),
        ),
        (
            "unknown-action",
            attack("malformed", "An action that this version does not know.", changed("/action", json!({"reboot": {}}))),
        ),
        (
            "two-actions",
            attack("malformed", "Two actions.", changed("/action/apply", apply(1, 1, "a")["action"]["apply"].clone())),
        ),
        ("trailing", attack("malformed", "Something after the command.", raw(&format!("{text} {{}}")))),
        ("deep-nesting", attack("malformed", "Nested too deep.", raw(&deep))),
        ("two-selectors", attack("malformed", "Two targets at once.", changed("/to", json!({"nodes": ["web1"], "all": true})))),
        ("empty-audience", attack("malformed", "A command without a target.", changed("/to", json!({})))),
        ("empty-nodes", attack("malformed", "An empty list of nodes.", changed("/to", json!({"nodes": []})))),
        ("all-false", attack("malformed", "A target with `all` set to false.", changed("/to", json!({"all": false})))),
        ("wildcard-node", attack("malformed", "A node that is a pattern.", changed("/to", json!({"nodes": ["*"]})))),
        ("window-too-long", attack("malformed", "Valid for an hour.", changed("/expires", json!("2026-11-20T11:00:00Z")))),
        (
            "window-backwards",
            attack("malformed", "An end before the beginning.", changed("/expires", json!("2026-11-20T09:59:00Z"))),
        ),
        (
            "name-with-newline",
            attack("malformed", "A name of two lines.", changed("/action/ensure/properties/name", json!("a\nb"))),
        ),
        ("name-missing", attack("malformed", "No name.", changed("/action/ensure/properties", json!({"ensure": "running"})))),
        (
            "ensure-in-channel",
            attack(
                "malformed",
                "A single resource that would move a channel.",
                changed("/channel", json!({"name": "base", "epoch": 1, "serial": 9})),
            ),
        ),
    ]
}

fn context() -> Vec<(&'static str, Attack)> {
    let at = |at: &str, attack: Attack| Attack { at: at.into(), ..attack };
    let on = |subject: &str, attack: Attack| Attack { subject: Some(subject.into()), ..attack };
    let known = |epoch, serial, digit: &str, expect, about| Attack {
        subject: None,
        channels: BTreeMap::from([("base".into(), ChannelPosition { epoch: 2, serial: 42, digest: "a".repeat(64) })]),
        ..attack(expect, about, signed(&apply(epoch, serial, digit), ALICE))
    };
    let good = || signed(&nginx(), ALICE);
    let seen = BTreeMap::from([(ID.parse().unwrap(), "0".repeat(64))]);
    let old = trust(&with(bundle(), "/expires", json!("2026-11-20T10:00:59Z")), ROOTS);
    vec![
        ("wrong-fleet", attack("wrong_fleet", "Signed for the test fleet.", changed("/fleet", json!("test")))),
        (
            "redirect",
            attack("not_for_me", "Signed for another node, sent to this one.", changed("/to", json!({"nodes": ["db1"]}))),
        ),
        (
            "redirect-group",
            on(
                "ensign.v1.prod.cmd.ensure.group.web",
                attack("not_for_me", "Signed for another group.", changed("/to", json!({"groups": ["db"]}))),
            ),
        ),
        ("expired", at("2026-11-20T10:05:31Z", attack("expired", "Recorded, and sent later.", good()))),
        ("not-yet-valid", at("2026-11-20T09:59:29Z", attack("not_yet_valid", "From the future.", good()))),
        ("clock-1970", at("1970-01-01T00:00:10Z", attack("not_yet_valid", "To a node whose clock is wrong.", good()))),
        ("held-back", attack("not_yet_valid", "Before its own time.", changed("/not_before", json!("2026-11-20T10:04:00Z")))),
        ("replay-other-digest", Attack { seen, ..attack("replayed", "Another command under an id that was used.", good()) }),
        ("stale-serial", known(2, 41, "c", "stale_serial", "Back to an earlier state.")),
        ("stale-epoch", known(1, 99, "c", "stale_serial", "Back to an earlier epoch.")),
        ("same-serial", known(2, 42, "c", "serial_conflict", "Other content under the same serial.")),
        ("serial-jump", known(2, 1_000_043, "c", "serial_jump", "Ahead until no serial is left.")),
        ("epoch-jump", known(u64::MAX, 1, "c", "serial_jump", "Ahead until no epoch is left.")),
        (
            "trust-expired",
            Attack { trust: Some(old), ..attack("trust_expired", "To a node without the newer trust bundle.", good()) },
        ),
        (
            "subject-of-all",
            on("ensign.v1.prod.cmd.ensure.all", attack("subject_mismatch", "Signed for one node, sent to all.", good())),
        ),
        (
            "subject-action",
            on("ensign.v1.prod.cmd.apply.node.web1", attack("subject_mismatch", "Sent as another action.", good())),
        ),
        (
            "subject-fleet",
            on("ensign.v1.test.cmd.ensure.node.web1", attack("subject_mismatch", "Sent through another fleet.", good())),
        ),
        (
            "bad-where",
            Attack {
                subject: None,
                ..attack("bad_where", "A condition that means nothing.", changed("/to", json!({"all": true, "where": "("})))
            },
        ),
    ]
}

fn permissions() -> Vec<(&'static str, Attack)> {
    let bob = |value: Value| signed(&value, &[("bob", 12)]);
    let file = || ensure("file", json!({"name": "/srv/www/a"}));
    let limited = |limits: Value, message: String, about| {
        let mut all = json!({"types": null, "paths": null, "exec": true, "fetch_hosts": null, "apply": true});
        all.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
        let limits = Some(serde_json::from_value(all).unwrap());
        Attack { subject: None, limits, ..attack("local_limit", about, message) }
    };
    let alice = |kind: &str, properties| signed(&ensure(kind, properties), ALICE);
    vec![
        (
            "before-ledger",
            Attack {
                born: Some("2026-11-20T10:00:00Z".into()),
                ..attack("before_ledger", "A command that ran before the ledger was lost.", signed(&nginx(), ALICE))
            },
        ),
        (
            "trust-lost",
            Attack {
                obeyed: Some(8),
                ..attack(
                    "trust_lost",
                    "A key of an older bundle, after the loss of the bundle that revoked the key.",
                    signed(&nginx(), ALICE),
                )
            },
        ),
        ("policy-type", attack("not_allowed", "A type outside the rule.", bob(nginx()))),
        ("policy-name", attack("not_allowed", "A path outside the rule.", www(json!({"name": "/etc/passwd"})))),
        (
            "policy-dotdot",
            attack("not_allowed", "A path that leaves by `..`.", www(json!({"name": "/srv/www/../../etc/passwd"}))),
        ),
        (
            "policy-prefix",
            attack("not_allowed", "A path whose name begins like the allowed one.", www(json!({"name": "/srv/www2/a"}))),
        ),
        (
            "policy-template",
            attack("not_allowed", "A path that the node would make.", www(json!({"name": "/srv/www/{{ '../../etc/x' }}"}))),
        ),
        (
            "policy-source",
            attack(
                "not_allowed",
                "A secret copied to a readable place.",
                www(json!({"name": "/srv/www/a", "source": "/etc/shadow"})),
            ),
        ),
        (
            "policy-health-check",
            attack(
                "not_allowed",
                "A command hidden in a health check.",
                www(json!({"name": "/srv/www/a", "health_checks": [{"command": "id"}]})),
            ),
        ),
        (
            "policy-goss-command",
            attack(
                "not_allowed",
                "A command hidden in the rules of a health check.",
                www(
                    json!({"name": "/srv/www/a", "health_checks": [{"goss_rules": {"command": {"x": {"exec": "id", "exit-status": 0}}}}]}),
                ),
            ),
        ),
        (
            "policy-goss-content",
            attack(
                "not_allowed",
                "A secret guessed by the rules of a health check.",
                www(json!({"name": "/srv/www/a", "health_checks": [
                    {"goss_rules": {"file": {"x": {"path": "/etc/shadow", "exists": true, "contents": ["/^root:[$]6/"]}}}},
                ]})),
            ),
        ),
        (
            "policy-extract",
            attack(
                "not_allowed",
                "An archive unpacked elsewhere.",
                bob(ensure("archive", json!({"name": "/srv/www/a.tgz", "extract_parent": "/etc"}))),
            ),
        ),
        (
            "policy-max-nodes",
            attack("not_allowed", "One node too many.", bob(with(file(), "/to", json!({"nodes": ["web1", "web2", "web3"]})))),
        ),
        (
            "policy-unnamed-nodes",
            Attack {
                subject: None,
                ..attack(
                    "not_allowed",
                    "A group as the target, where the rule lists nodes.",
                    bob(with(file(), "/to", json!({"groups": ["web"]}))),
                )
            },
        ),
        ("policy-noop", attack("not_allowed", "A change by a key for dry runs.", signed(&nginx(), &[("ci", 13)]))),
        (
            "policy-action",
            ruled(
                "not_allowed",
                "An action that the rule does not list.",
                &json!({"keys": ["alice"], "actions": ["app*", "status"]}),
            ),
        ),
        (
            "control-action-glob",
            ruled("accepted", "No attack: actions by pattern.", &json!({"keys": ["alice"], "actions": ["status", "ens*"]})),
        ),
        (
            "policy-node",
            ruled("not_allowed", "A node that the rule does not list.", &json!({"keys": ["alice"], "nodes": ["web2", "db*"]})),
        ),
        (
            "policy-group",
            ruled(
                "not_allowed",
                "A node as the target, where the rule lists groups.",
                &json!({"keys": ["alice"], "groups": ["*"]}),
            ),
        ),
        (
            "policy-channel",
            Attack {
                subject: None,
                ..attack(
                    "not_allowed",
                    "Another channel.",
                    signed(&with(apply(1, 43, "b"), "/channel/name", json!("edge")), &[("release-1", 17), ("release-2", 18)]),
                )
            },
        ),
        ("limit-exec", limited(json!({"exec": false}), alice("exec", json!({"name": "id"})), "A command where none may run.")),
        (
            "limit-exec-in-check",
            limited(
                json!({"exec": false}),
                alice("file", json!({"name": "/a", "health_checks": [{"command": "id"}]})),
                "A command in a health check where none may run.",
            ),
        ),
        (
            "limit-exec-in-goss",
            limited(
                json!({"exec": false}),
                alice("file", json!({"name": "/a", "health_checks": [{"goss_rules": {"command": {"id": {"exit-status": 0}}}}]})),
                "A command in the rules of a health check where none may run.",
            ),
        ),
        (
            "limit-host-in-goss",
            limited(
                json!({"fetch_hosts": ["repo.example"]}),
                alice(
                    "file",
                    json!({"name": "/a", "health_checks": [{"goss_rules": {"http": {"http://169.254.169.254/": {"status": 200}}}}]}),
                ),
                "A request to a host that is not allowed, in the rules of a health check.",
            ),
        ),
        (
            "limit-own-content-in-goss",
            limited(
                json!({"fetch_hosts": ["repo.example"]}),
                alice(
                    "file",
                    json!({"name": "/a", "health_checks": [{"goss_rules": {"http": {
                        "http://127.0.0.1:1/": {"status": 200, "body": ["secret=a"]},
                    }}}]}),
                ),
                "The answer of a local service, guessed by the rules of a health check.",
            ),
        ),
        (
            "limit-type",
            limited(json!({"types": ["file"]}), alice("service", json!({"name": "a"})), "A type that is not managed here."),
        ),
        (
            "limit-path",
            limited(
                json!({"paths": ["/srv"]}),
                alice("file", json!({"name": "/srv/../etc/passwd"})),
                "A path that leaves by `..`.",
            ),
        ),
        (
            "limit-prefix",
            limited(
                json!({"paths": ["/srv"]}),
                alice("file", json!({"name": "/srv2/a"})),
                "A path whose name begins like the allowed one.",
            ),
        ),
        (
            "limit-host",
            limited(
                json!({"fetch_hosts": ["repo.example"]}),
                signed(&with(apply(1, 1, "a"), "/action/apply/url", json!("https://repo.example@evil.example/a")), ALICE),
                "A host that only looks like the allowed one.",
            ),
        ),
        ("limit-apply", limited(json!({"apply": false}), signed(&apply(1, 1, "a"), ALICE), "A manifest where none is applied.")),
    ]
}

/// Resources with further effects, by keys with fewer rights.
/// A command of alice's on the subject of all nodes, for this target.
fn aimed(expect: &str, about: &str, to: Value) -> Attack {
    Attack { subject: Some("ensign.v1.prod.cmd.ensure.all".into()), ..attack(expect, about, changed("/to", to)) }
}

/// The same under one rule, which narrows the target.
fn narrowed(expect: &str, about: &str, mut rule: Value, to: Value) -> Attack {
    rule["keys"] = json!(["alice"]);
    Attack { trust: ruled(expect, about, &rule).trust, ..aimed(expect, about, to) }
}

/// Patterns, combinations and exclusions.
fn targets() -> Vec<(&'static str, Attack)> {
    let malformed = |about: &str, to: Value| aimed("malformed", about, to);
    let denied = |about: &str, rule: Value, to: Value| narrowed("not_allowed", about, rule, to);
    let on = |subject: &str, attack: Attack| Attack { subject: Some(format!("ensign.v1.prod.cmd.ensure.{subject}")), ..attack };
    let mixed = json!({"nodes": ["db1"], "globs": ["web*"], "groups": ["db"], "not": {"nodes": ["web3"], "groups": ["canary"]}});
    let web = json!({"nodes": ["web*", "db1"], "groups": ["db"]});
    vec![
        ("control-glob", narrowed("accepted", "No attack: a narrower pattern.", web.clone(), json!({"globs": ["web*1"]}))),
        ("control-mixed", narrowed("accepted", "No attack: every part is allowed.", web, mixed)),
        ("control-outside", aimed("not_targeted", "No attack: for other nodes.", json!({"globs": ["db*"]}))),
        (
            "control-excluded",
            on(
                "group.web",
                aimed("not_targeted", "No attack: without this node.", json!({"groups": ["web"], "not": {"globs": ["web*"]}})),
            ),
        ),
        ("target-glob-question", malformed("Another wildcard than `*`.", json!({"globs": ["web?"]}))),
        ("target-glob-plain", malformed("A pattern without a wildcard.", json!({"globs": ["web1"]}))),
        ("target-glob-stars", malformed("A second form of the same pattern.", json!({"globs": ["web**"]}))),
        ("target-glob-unicode", malformed("A letter that no node id has.", json!({"globs": ["w\u{435}b*"]}))),
        ("target-glob-subject", malformed("A wildcard of subjects.", json!({"globs": ["web1.>*"]}))),
        ("target-glob-empty", malformed("An empty list of patterns.", json!({"nodes": ["web1"], "globs": []}))),
        ("target-glob-twice", malformed("The same pattern twice.", json!({"globs": ["web*", "web*"]}))),
        ("target-all-and-glob", malformed("All nodes, and a pattern.", json!({"all": true, "globs": ["web*"]}))),
        ("target-not-alone", malformed("An exclusion that selects nothing.", json!({"not": {"nodes": ["db1"]}}))),
        ("target-not-empty", malformed("An empty exclusion.", json!({"all": true, "not": {}}))),
        ("target-not-all", malformed("An exclusion of all nodes.", json!({"all": true, "not": {"all": true}}))),
        ("target-not-where", malformed("An exclusion by facts.", json!({"all": true, "not": {"where": "true"}}))),
        (
            "target-not-not",
            malformed("An exclusion from the exclusion.", json!({"all": true, "not": {"not": {"nodes": ["web1"]}}})),
        ),
        (
            "target-not-same",
            malformed("A node that is selected and excluded.", json!({"nodes": ["web1"], "not": {"nodes": ["web1"]}})),
        ),
        (
            "policy-glob-wider",
            denied("A pattern wider than that of the rule.", json!({"nodes": ["web*"]}), json!({"globs": ["we*"]})),
        ),
        ("policy-glob-star", denied("The pattern of all nodes.", json!({"nodes": ["web1", "web*"]}), json!({"globs": ["*"]}))),
        (
            "policy-glob-question",
            denied("A `*` in the place of a `?` of the rule.", json!({"nodes": ["web?"]}), json!({"globs": ["web*"]})),
        ),
        (
            "policy-glob-group",
            denied("A pattern, where the rule lists groups.", json!({"groups": ["*"]}), json!({"globs": ["web*"]})),
        ),
        (
            "policy-glob-second",
            denied(
                "A second pattern that the rule does not cover.",
                json!({"nodes": ["web*"]}),
                json!({"globs": ["web*", "*1"]}),
            ),
        ),
        (
            "policy-not-narrows",
            denied(
                "A pattern that an exclusion narrows to the nodes of the rule.",
                json!({"nodes": ["web1"]}),
                json!({"globs": ["web*"], "not": {"nodes": ["web2", "web3"]}}),
            ),
        ),
        (
            "policy-not-of-all",
            denied(
                "All nodes without a group.",
                json!({"nodes": ["*"], "groups": ["*"]}),
                json!({"all": true, "not": {"groups": ["db"]}}),
            ),
        ),
        (
            "policy-mixed-group",
            denied("A group beside an allowed node.", json!({"nodes": ["web1"]}), json!({"nodes": ["web1"], "groups": ["web"]})),
        ),
        (
            "policy-mixed-node",
            denied("A node beside an allowed group.", json!({"groups": ["web"]}), json!({"nodes": ["web1"], "groups": ["web"]})),
        ),
        (
            "policy-mixed-glob",
            denied(
                "A pattern beside an allowed node and group.",
                json!({"nodes": ["web1"], "groups": ["web"]}),
                json!({"nodes": ["web1"], "globs": ["web1*"], "groups": ["web"]}),
            ),
        ),
        ("policy-max-glob", denied("A pattern, where nodes are counted.", json!({"max_nodes": 50}), json!({"globs": ["web1*"]}))),
        (
            "policy-max-mixed",
            denied("A group beside a counted node.", json!({"max_nodes": 50}), json!({"nodes": ["web1"], "groups": ["web"]})),
        ),
        (
            "subject-glob-node",
            on("node.web1", aimed("subject_mismatch", "A pattern on the subject of a node.", json!({"globs": ["web*"]}))),
        ),
        (
            "subject-mixed-group",
            on(
                "group.web",
                aimed(
                    "subject_mismatch",
                    "A combination on the subject of its group.",
                    json!({"nodes": ["db1"], "groups": ["web"]}),
                ),
            ),
        ),
        (
            "subject-excluded",
            on(
                "node.web1",
                aimed(
                    "not_for_me",
                    "On the subject of an excluded node.",
                    json!({"globs": ["web*"], "not": {"nodes": ["web1"]}}),
                ),
            ),
        ),
    ]
}

fn effects() -> Vec<(&'static str, Attack)> {
    let rule = |more: Value| {
        let mut rule = json!({"keys": ["alice"]});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule
    };
    let by = |about: &str, only: Value, message: Value| {
        let base = ruled("not_allowed", about, &rule(only));
        Attack { message: signed(&message, ALICE), subject: None, ..base }
    };
    let dry = |kind: &str, properties: Value| with(ensure(kind, properties), "/options/noop", json!(true));
    let www = || json!({"names": ["/srv/www/**"]});
    let kinds = |kind: &str| json!({"types": [kind]});
    let file = |more: Value| {
        let mut all = json!({"name": "/srv/www/a", "ensure": "present", "owner": "root", "group": "root", "mode": "0644"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ensure("file", all)
    };
    let mount = |device: &str, fstype: &str, options: &str| {
        let all = json!({"name": "/srv/www/m", "ensure": "mounted", "device": device, "fstype": fstype, "options": options});
        ensure("mount", all)
    };
    let command = |line: &str| ensure("exec", json!({"name": line, "provider": "shell"}));
    let ls = || json!({"types": ["exec"], "names": ["/bin/ls **"]});
    let limited = |about: &str, message: Value| {
        let all = json!({"types": null, "paths": ["/srv"], "exec": true, "fetch_hosts": null, "apply": true});
        let limits = Some(serde_json::from_value(all).unwrap());
        Attack { subject: None, limits, ..attack("local_limit", about, signed(&message, ALICE)) }
    };
    let control = |action: &str, about: &str| {
        let mut value = with(nginx(), "/action", json!({action: {"job": "0198c1f2-7a3b-7c4d-8e5f-102030405061"}}));
        value["options"] = json!({"noop": true});
        Attack { subject: None, ..attack("malformed", about, signed(&value, ALICE)) }
    };
    let long = with(nginx(), "/options/timeout", json!("876000h"));
    vec![
        (
            "noop-onlyif",
            by(
                "A guard run by a key for dry runs.",
                json!({"noop_only": true}),
                dry("exec", json!({"name": "x", "onlyif": "id"})),
            ),
        ),
        (
            "noop-unless",
            by(
                "A guard run by a key for dry runs.",
                json!({"noop_only": true}),
                dry("exec", json!({"name": "x", "unless": "id"})),
            ),
        ),
        (
            "noop-health-check",
            by(
                "A health check run by a key for dry runs.",
                json!({"noop_only": true}),
                dry("service", json!({"name": "nginx", "health_checks": [{"command": "id"}]})),
            ),
        ),
        (
            "noop-goss-command",
            by(
                "A command in the rules of a health check, run by a key for dry runs.",
                json!({"noop_only": true}),
                dry(
                    "service",
                    json!({"name": "nginx", "health_checks": [{"goss_rules": {"command": {"id": {"exit-status": 0}}}}]}),
                ),
            ),
        ),
        (
            "noop-post",
            by(
                "A command on rendered files, run by a key for dry runs.",
                json!({"noop_only": true}),
                dry("scaffold", json!({"name": "/srv/a", "ensure": "present", "source": "/srv/b", "post": [{"*": "id"}]})),
            ),
        ),
        (
            "noop-line-match",
            by(
                "A file guessed by the pattern of a line.",
                json!({"noop_only": true}),
                dry("line", json!({"name": "/etc/shadow", "line": "x", "match": "^root:[$]6"})),
            ),
        ),
        ("noop-halt", control("halt", "A halt that calls itself a dry run.")),
        ("noop-resume", control("resume", "A resume that calls itself a dry run.")),
        ("noop-cancel", control("cancel", "A cancel that calls itself a dry run.")),
        ("long-timeout", Attack { subject: None, ..attack("malformed", "A run of a hundred years.", signed(&long, ALICE)) }),
        ("effect-source", by("A secret copied by a rule for types.", kinds("file"), file(json!({"source": "/etc/shadow"})))),
        (
            "effect-template",
            by("A state that the node would make.", www(), file(json!({"ensure": "{{ readFile('/etc/shadow') }}"}))),
        ),
        ("effect-validate", by("A program that judges new content.", www(), file(json!({"content": "x", "validate": "sh %s"})))),
        ("effect-backup", by("Old content kept elsewhere.", www(), file(json!({"content": "x", "backup": "/etc/cron.d"})))),
        (
            "effect-link",
            by("A link that leads elsewhere.", www(), ensure("symlink", json!({"name": "/srv/www/a", "target": "../../etc"}))),
        ),
        (
            "effect-recurse",
            by(
                "A directory removed with files outside of the rule.",
                json!({"names": ["/srv/*"]}),
                ensure("file", json!({"name": "/srv/www", "ensure": "absent", "force": true})),
            ),
        ),
        (
            "effect-group",
            by(
                "A user put into a group that the rule does not name.",
                json!({"types": ["user"], "names": ["web*"]}),
                ensure("user", json!({"name": "web1", "groups": ["sudo"]})),
            ),
        ),
        (
            "effect-superuser",
            by(
                "A user with the number of root.",
                json!({"types": ["user"], "names": ["web*", "/home/**"]}),
                ensure("user", json!({"name": "web1", "uid": 0, "home": "/home/web1"})),
            ),
        ),
        (
            "effect-cron",
            by(
                "A command for cron where no program may run.",
                json!({"types": ["cron"], "names": ["backup", "id"]}),
                ensure("cron", json!({"name": "backup", "command": "id", "minute": "1"})),
            ),
        ),
        (
            "effect-nested",
            by("A manifest within.", json!({"types": ["apply"]}), ensure("apply", json!({"name": "/srv/www/m.yaml"}))),
        ),
        ("shell-semicolon", by("Another command after the allowed one.", ls(), command("/bin/ls /; reboot"))),
        (
            "shell-newline",
            by(
                "Another command on a line of its own.",
                ls(),
                ensure("exec", json!({"name": "/bin/ls /", "command": "/bin/ls /\nreboot"})),
            ),
        ),
        ("shell-backtick", by("A command within the allowed one.", ls(), command("/bin/ls `reboot`"))),
        ("shell-dollar", by("A command within the allowed one.", ls(), command("/bin/ls $(reboot)"))),
        ("shell-redirect", by("Output that becomes a file.", ls(), command("/bin/ls / > /etc/cron.d/x"))),
        ("shell-pipe", by("Output that another program reads.", ls(), command("/bin/ls / | sh"))),
        ("shell-background", by("Another command beside the allowed one.", ls(), command("/bin/ls / & reboot"))),
        ("mount-bind", by("A directory mounted a second time.", www(), mount("/etc", "tmpfs", "bind"))),
        ("mount-fuse", by("A program as a file system.", kinds("mount"), mount("/srv/www/evil#x", "fuse", "defaults"))),
        ("mount-helper", by("A program as a helper.", kinds("mount"), mount("tmpfs", "tmpfs", "helper=evil"))),
        ("mount-layer", by("A layer with a relative path.", www(), mount("/srv/www/x", "overlay", "lowerdir=../../etc"))),
        ("mount-proc", by("The processes of the node.", www(), mount("proc", "proc", "defaults"))),
        ("limit-bind", limited("A directory mounted a second time.", mount("/etc", "tmpfs", "bind"))),
        ("limit-rbind", limited("The root mounted a second time.", mount("/", "ramfs", "rbind"))),
        ("limit-layer", limited("A layer with a relative path.", mount("overlay", "overlay", "lowerdir=../../etc"))),
        ("limit-proc", limited("The processes of the node.", mount("proc", "proc", "defaults"))),
        ("limit-devtmpfs", limited("The devices of the node.", mount("x", "devtmpfs", "defaults"))),
        ("limit-fuse", limited("A program as a file system.", mount("/srv/evil#x", "fuse", "defaults"))),
        ("limit-tmpfs", limited("A file system that the owner did not list.", mount("tmpfs", "tmpfs", "defaults"))),
        ("limit-source", limited("A secret copied to a readable place.", file(json!({"source": "/etc/shadow"})))),
        (
            "limit-templates",
            limited(
                "A directory of secrets as templates.",
                ensure("scaffold", json!({"name": "/srv/a", "ensure": "present", "source": "/root"})),
            ),
        ),
    ]
}

fn bundles() -> Vec<(&'static str, Attack)> {
    let next = || with(bundle(), "/version", json!(8));
    let trusting = |expect, about, message| Attack { is_trust: true, subject: None, ..attack(expect, about, message) };
    let roots = |seeds: &[u8]| json!({"threshold": 1, "keys": seeds.iter().map(|seed| short(*seed)).collect::<Vec<_>>()});
    let weak = "ed25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    vec![
        ("trust-one-root", trusting("trust_quorum", "One root of two.", trust(&next(), &[("root-1", 1)]))),
        ("trust-one-root-twice", trusting("trust_quorum", "One root, twice.", trust(&next(), &[("root-1", 1), ("root-2", 1)]))),
        ("trust-by-operator", trusting("trust_quorum", "Signed by operators.", trust(&next(), &[("alice", 11), ("bob", 12)]))),
        (
            "trust-new-roots-only",
            trusting(
                "trust_quorum",
                "Signed by the roots that it brings along.",
                trust(&with(next(), "/root", roots(&[8])), &[("r", 8)]),
            ),
        ),
        (
            "trust-old-roots-only",
            trusting("trust_quorum", "New roots that did not sign.", trust(&with(next(), "/root", roots(&[8])), ROOTS)),
        ),
        ("trust-rollback", trusting("trust_version", "The version before.", trust(&with(bundle(), "/version", json!(6)), ROOTS))),
        (
            "trust-same-version",
            trusting("trust_version", "The same version, changed.", trust(&with(bundle(), "/revoked", json!([])), ROOTS)),
        ),
        ("trust-skip", trusting("trust_version", "A version left out.", trust(&with(bundle(), "/version", json!(9)), ROOTS))),
        (
            "trust-oversized",
            Attack {
                pad_to: Some(MAX_ENVELOPE + 1),
                ..trusting("too_large", "More bytes than an envelope may have.", trust(&next(), ROOTS))
            },
        ),
        (
            "trust-fleet",
            trusting("wrong_fleet", "A command of another fleet.", trust(&with(next(), "/fleet", json!("test")), ROOTS)),
        ),
        (
            "trust-weak-key",
            trusting(
                "weak_key",
                "A weak key: every user can sign for it.",
                trust(&with(next(), "/keys/0/key", json!(weak)), ROOTS),
            ),
        ),
        (
            "trust-weak-root",
            trusting(
                "weak_key",
                "A weak root key: every user can sign for it.",
                trust(&with(next(), "/root/keys/2", json!(weak)), ROOTS),
            ),
        ),
        (
            "trust-key-twice",
            trusting(
                "bad_trust",
                "One key under two names, to sign for two.",
                trust(&with(next(), "/keys/7/key", json!(short(17))), ROOTS),
            ),
        ),
        (
            "trust-threshold-zero",
            trusting("bad_trust", "No signature needed from now on.", trust(&with(next(), "/root/threshold", json!(0)), ROOTS)),
        ),
        (
            "trust-unknown-field",
            trusting("malformed", "A field that this version does not know.", trust(&with(next(), "/x", json!(1)), ROOTS)),
        ),
        (
            "command-as-trust",
            trusting("wrong_type", "A command in the place of a bundle.", sealed(COMMAND_TYPE, &next().to_string(), ROOTS)),
        ),
    ]
}

fn attacks() -> Vec<(String, Value)> {
    [controls(), signatures(), forms(), context(), permissions(), targets(), effects(), bundles()]
        .into_iter()
        .flatten()
        .map(|(name, attack)| (format!("{name}.json"), serde_json::to_value(attack).unwrap()))
        .collect()
}

fn outcome(setup: &Setup, attack: &Attack) -> String {
    let roots: Vec<PublicKey> = setup.roots.iter().map(|key| key.parse().unwrap()).collect();
    let pin = BundleAuthority::Roots { fleet: &setup.fleet, keys: &roots, threshold: setup.threshold };
    let trust = open_bundle(attack.trust.as_ref().unwrap_or(&setup.trust).as_bytes(), pin).unwrap();
    let mut message = attack.message.clone().into_bytes();
    message.resize(attack.pad_to.unwrap_or(message.len()), b' ');
    if attack.is_trust {
        return open_bundle(&message, BundleAuthority::Current(&trust))
            .map_or_else(|error| error.code().to_string(), |_| "accepted".into());
    }
    opened(setup, attack, &trust, &message)
}

fn opened(setup: &Setup, attack: &Attack, trust: &TrustedBundle, message: &[u8]) -> String {
    let limits = attack.limits.as_ref().map_or_else(
        || NodeLimits { exec: true, ..NodeLimits::default() },
        |limits| NodeLimits {
            types: limits.types.clone(),
            paths: limits.paths.clone(),
            read_paths: limits.read_paths.clone(),
            exec: limits.exec,
            fetch_hosts: limits.fetch_hosts.clone(),
            apply: limits.apply,
            ..NodeLimits::default()
        },
    );
    let verifier = Verifier {
        trust,
        node: &setup.node.parse().unwrap(),
        groups: &setup.groups,
        limits: &limits,
        subjects: &Subjects::new(&setup.fleet),
        now: attack.at.parse().unwrap(),
        replay_store: &Memory(attack),
        evaluate_filter: &|text| text.parse().map_err(|_| "not a condition".into()),
        effects: &|kind, properties| ensign::engine::effects::of_signed(&ensign::resource::Types::default(), kind, properties),
    };
    match verifier.open(message, attack.subject.as_deref()) {
        Ok(OpenedMessage::New(_)) => "accepted".into(),
        Ok(OpenedMessage::Duplicate { .. }) => "seen".into(),
        Ok(OpenedMessage::ForOtherNodes(_)) => "elsewhere".into(),
        Ok(OpenedMessage::FilteredOut(_)) => "not_selected".into(),
        Ok(OpenedMessage::NotTargeted) => "not_targeted".into(),
        Err(refusal) => refusal.code.to_string(),
    }
}

#[test]
fn every_attack_is_refused_with_its_own_code() {
    let mut built = attacks();
    let count = built.len();
    built.push(("../setup.json".into(), serde_json::to_value(setup()).unwrap()));
    check_files("attacks", &built);
    let setup: Setup = serde_json::from_value(read(&folder("setup.json"))).unwrap();
    let mut wrong = vec![];
    let mut covered = HashSet::new();
    let paths = files("attacks");
    for path in &paths {
        let attack: Attack = serde_json::from_value(read(path)).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let outcome = outcome(&setup, &attack);
        if outcome != attack.expect {
            wrong.push(format!("{name}: {outcome}, expected {}", attack.expect));
        }
        let is_code = RejectionCode::ALL.iter().any(|code| code.as_str() == attack.expect);
        assert_ne!(name.starts_with("control"), is_code, "{name}");
        covered.insert(attack.expect);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(paths.len(), count, "a file without a case here");
    // The other codes belong to the agent: they depend on its state, not on the message.
    let own = [
        RejectionCode::Busy,
        RejectionCode::ShuttingDown,
        RejectionCode::Storage,
        RejectionCode::BadArtifact,
        RejectionCode::PlanChanged,
        RejectionCode::Halted,
        RejectionCode::NoChannel,
        RejectionCode::Cancelled,
        RejectionCode::NotCancellable,
    ];
    for code in RejectionCode::ALL.iter().filter(|code| !own.contains(code)) {
        assert!(covered.contains(code.as_str()), "no attack is refused with {code}");
    }
}
