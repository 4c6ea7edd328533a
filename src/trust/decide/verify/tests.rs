use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::trust::{BundleAuthority, SigningKey, open_bundle, sign_envelope};
use crate::wire::TRUST_TYPE;

pub(super) const NOW: &str = "2026-11-20T10:01:00Z";
const SUBJECT: &str = "ensign.v1.prod.cmd.ensure.node.web1";

#[derive(Default)]
pub(super) struct Memory {
    ids: HashMap<Uuid, String>,
    channels: HashMap<String, ChannelPosition>,
    born: Option<Timestamp>,
    trust: Option<KnownTrust>,
}

impl ReplayStore for Memory {
    fn accepted_digest(&self, id: Uuid) -> Option<String> {
        self.ids.get(&id).cloned()
    }

    fn channel(&self, name: &str) -> Option<ChannelPosition> {
        self.channels.get(name).cloned()
    }

    fn remembers_since(&self) -> Option<Timestamp> {
        self.born
    }

    fn trust(&self) -> KnownTrust {
        self.trust.unwrap_or(KnownTrust::AtLeast(0))
    }
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

pub(super) fn trust() -> TrustedBundle {
    let public = |seed| key(seed).public().to_short();
    let bundle = json!({
        "fleet": "prod", "version": 1, "expires": "2027-01-01T00:00:00Z",
        "root": {"threshold": 1, "keys": [public(1)]},
        "keys": [{"id": "alice", "key": public(2)}, {"id": "bob", "key": public(3)}],
        "rules": [{"keys": ["alice"]}, {"keys": ["*"], "quorum": 2}],
    });
    let envelope = sign_envelope(TRUST_TYPE, bundle.to_string().into(), &[("root", &key(1))]);
    open_bundle(&envelope.encode(), BundleAuthority::Stored).unwrap()
}

fn ensure() -> Value {
    json!({
        "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "prod", "to": {"nodes": ["web1"]},
        "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z",
        "action": {"ensure": {"type": "service", "properties": {"name": "nginx"}}},
    })
}

fn apply(epoch: u64, serial: u64, digit: &str) -> Value {
    let mut value = ensure();
    value["action"] = json!({"apply": {"url": "https://h/m", "sha256": digit.repeat(64), "size": 1}});
    value["channel"] = json!({"name": "base", "epoch": epoch, "serial": serial});
    value
}

pub(super) fn signed(value: &Value, by: &[(&str, u8)]) -> Vec<u8> {
    let keys: Vec<(&str, SigningKey)> = by.iter().map(|(id, seed)| (*id, key(*seed))).collect();
    let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|(id, key)| (*id, key)).collect();
    sign_envelope(COMMAND_TYPE, value.to_string().into(), &keys).encode()
}

/// The effects of a service are its unit; the engine knows those of every type.
pub(super) fn effects(_: &str, properties: &serde_json::Map<String, Value>) -> crate::model::Effects {
    let name = properties.get("name").and_then(Value::as_str).unwrap_or_default();
    std::iter::once(crate::model::Effect::Unit(name.to_owned())).collect()
}

fn open_at(now: &str, seen: &Memory, bytes: &[u8], subject: Option<&str>) -> Result<OpenedMessage, Rejection> {
    open_with(&trust(), now, seen, bytes, subject)
}

fn open_with(
    trust: &TrustedBundle,
    now: &str,
    seen: &Memory,
    bytes: &[u8],
    subject: Option<&str>,
) -> Result<OpenedMessage, Rejection> {
    with_verifier(trust, &NodeLimits::default(), now, seen, |verifier| verifier.open(bytes, subject))
}

fn with_verifier<T>(
    trust: &TrustedBundle,
    limits: &NodeLimits,
    now: &str,
    seen: &Memory,
    work: impl FnOnce(&Verifier<'_>) -> T,
) -> T {
    work(&Verifier {
        trust,
        node: &"web1".parse().unwrap(),
        groups: &["web".into()],
        limits,
        subjects: &Subjects::new("prod"),
        now: now.parse().unwrap(),
        replay_store: seen,
        evaluate_filter: &|text| match text {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err("unknown name".into()),
        },
        effects: &effects,
    })
}

fn open(bytes: &[u8]) -> Result<OpenedMessage, Rejection> {
    open_at(NOW, &Memory::default(), bytes, None)
}

fn code(result: &Result<OpenedMessage, Rejection>) -> &'static str {
    match result {
        Ok(OpenedMessage::New(_)) => "new",
        Ok(OpenedMessage::Duplicate { .. }) => "seen",
        Ok(OpenedMessage::FilteredOut(_)) => "not selected",
        Ok(OpenedMessage::ForOtherNodes(_)) => "elsewhere",
        Ok(OpenedMessage::NotTargeted) => "not targeted",
        Err(refusal) => refusal.code.as_str(),
    }
}

#[test]
fn a_good_command_opens_and_says_why() {
    let bytes = signed(&ensure(), &[("alice", 2)]);
    let Ok(OpenedMessage::New(command)) = open_at(NOW, &Memory::default(), &bytes, Some(SUBJECT)) else { panic!() };
    assert_eq!((command.signers(), command.rule()), (&["alice".to_owned()][..], 1));
    assert_eq!(command.digest(), digest(ensure().to_string().as_bytes()));
    assert_eq!(command.envelope(), bytes);
    assert_eq!(command.get().to.selector(), Some(Selector::Nodes(&["web1".parse().unwrap()])));
}

#[test]
fn the_key_id_is_only_a_hint() {
    for (by, wanted) in [
        (vec![("bob", 2)], "new"),
        (vec![("", 2)], "new"),
        (vec![("nobody", 2), ("alice", 9)], "new"),
        (vec![("alice", 9)], "bad_signature"),
        (vec![("nobody", 9)], "unknown_key"),
        (vec![], "unknown_key"),
        (vec![("bob", 3)], "not_allowed"),
        (vec![("bob", 3), ("alice", 3), ("nobody", 3)], "not_allowed"),
    ] {
        assert_eq!(code(&open(&signed(&ensure(), &by))), wanted, "{by:?}");
    }
    let refusal = open(&signed(&ensure(), &[("mallory", 9)])).unwrap_err();
    assert_eq!((refusal.keyids, refusal.id), (vec!["mallory".to_owned()], None));
}

#[test]
fn under_pressure_a_message_that_names_no_key_waits() {
    let open = |id: &str, effort: &mut SignatureBudget| {
        let (trust, memory, bytes) = (trust(), Memory::default(), signed(&ensure(), &[(id, 2)]));
        let opened =
            with_verifier(&trust, &NodeLimits::default(), NOW, &memory, |it| it.open_within(&bytes, Some(SUBJECT), effort));
        code(&opened)
    };
    let mut pressed = SignatureBudget::under_pressure();
    assert_eq!((open("", &mut pressed), open("alice", &mut pressed)), ("busy", "new"));
    assert_eq!(open("", &mut SignatureBudget::default()), "new");
}

#[test]
fn an_approval_is_judged_like_every_other_command() {
    let mut approval = ensure();
    approval["options"] = json!({"approves": "0198c1f2-7a3b-7c4d-8e5f-102030405061"});
    // Bob may not sign alone.
    for (by, wanted) in
        [(vec![("bob", 3)], "not_allowed"), (vec![("alice", 9)], "bad_signature"), (vec![("alice", 2), ("bob", 3)], "new")]
    {
        assert_eq!(code(&open(&signed(&approval, &by))), wanted, "{by:?}");
    }
}

#[test]
fn time_has_a_little_skew() {
    let bytes = signed(&ensure(), &[("alice", 2)]);
    for (now, wanted) in [
        ("1970-01-01T00:00:00Z", "not_yet_valid"),
        ("2026-11-20T09:59:29Z", "not_yet_valid"),
        ("2026-11-20T09:59:30Z", "new"),
        ("2026-11-20T10:05:30Z", "new"),
        ("2026-11-20T10:05:31Z", "expired"),
        ("2027-06-01T00:00:00Z", "expired"),
    ] {
        assert_eq!(code(&open_at(now, &Memory::default(), &bytes, None)), wanted, "{now}");
    }
    let mut later = ensure();
    later["not_before"] = json!("2026-11-20T10:04:00Z");
    assert_eq!(code(&open(&signed(&later, &[("alice", 2)]))), "not_yet_valid");
}

#[test]
fn the_same_command_is_seen_and_another_of_its_id_refused() {
    let bytes = signed(&ensure(), &[("alice", 2)]);
    let id = "0198c1f2-7a3b-7c4d-8e5f-102030405060".parse().unwrap();
    let mut memory = Memory::default();
    memory.ids.insert(id, digest(ensure().to_string().as_bytes()));
    assert_eq!(code(&open_at(NOW, &memory, &bytes, Some(SUBJECT))), "seen");
    // The same command under other signatures is the same command.
    assert_eq!(code(&open_at(NOW, &memory, &signed(&ensure(), &[("alice", 2), ("bob", 3)]), None)), "seen");
    let mut other = ensure();
    other["reason"] = json!("x");
    let refusal = open_at(NOW, &memory, &signed(&other, &[("alice", 2)]), None).unwrap_err();
    assert_eq!((refusal.code, refusal.id), (RejectionCode::Replayed, Some(id)));
}

#[test]
fn channels_go_forward_in_bounded_steps() {
    let mut memory = Memory::default();
    memory.channels.insert("base".into(), ChannelPosition { epoch: 2, serial: 42, digest: "a".repeat(64) });
    for (epoch, serial, digit, wanted) in [
        (2, 43, "b", "new"),
        (2, 42, "a", "new"),
        (2, 42, "b", "serial_conflict"),
        (2, 41, "a", "stale_serial"),
        (1, 99, "b", "stale_serial"),
        (3, 1, "b", "new"),
        (2, 42 + MAX_CHANNEL_STEP, "b", "new"),
        (2, 43 + MAX_CHANNEL_STEP, "b", "serial_jump"),
        (2, u64::MAX, "b", "serial_jump"),
        (u64::MAX, 1, "b", "serial_jump"),
    ] {
        let bytes = signed(&apply(epoch, serial, digit), &[("alice", 2)]);
        assert_eq!(code(&open_at(NOW, &memory, &bytes, None)), wanted, "{epoch} {serial} {digit}");
    }
    for (epoch, wanted) in [(0, "new"), (1, "new"), (u64::MAX, "serial_jump")] {
        assert_eq!(code(&open(&signed(&apply(epoch, 42, "a"), &[("alice", 2)]))), wanted);
    }
}

#[test]
fn commands_signed_before_the_ledger_are_rejected() {
    let bytes = signed(&ensure(), &[("alice", 2)]);
    for (born, wanted) in
        [("2026-11-20T09:59:59.9Z", "new"), ("2026-11-20T10:00:00Z", "before_ledger"), ("2026-11-20T10:00:30Z", "before_ledger")]
    {
        let memory = Memory { born: Some(born.parse().unwrap()), ..Memory::default() };
        assert_eq!(code(&open_at(NOW, &memory, &bytes, None)), wanted, "{born}");
    }
    // Assignments are also for nodes that come later: the channel orders them.
    let memory = Memory { born: Some("2026-11-20T10:00:30Z".parse().unwrap()), ..Memory::default() };
    let mut value = apply(1, 1, "a");
    value["action"] = json!({"assign": {"manifest": value["action"]["apply"]}});
    assert_eq!(code(&open_at(NOW, &memory, &signed(&value, &[("alice", 2)]), None)), "new");
}

#[test]
fn a_node_with_lost_trust_rejects_commands_until_recovery() {
    let bytes = signed(&ensure(), &[("alice", 2)]);
    for (known, wanted) in
        [(KnownTrust::AtLeast(1), "new"), (KnownTrust::AtLeast(2), "trust_lost"), (KnownTrust::Unknown, "trust_lost")]
    {
        let memory = Memory { trust: Some(known), ..Memory::default() };
        assert_eq!(code(&open_at(NOW, &memory, &bytes, None)), wanted, "{known:?}");
        let reopened =
            with_verifier(&trust(), &NodeLimits::default(), NOW, &memory, |verifier| verifier.reverify_queued(&bytes).is_ok());
        assert_eq!(reopened, wanted == "new");
    }
}

#[test]
fn where_selects_after_everything_else() {
    for (text, wanted) in [("yes", "new"), ("no", "not selected"), ("oops", "bad_where")] {
        let mut value = ensure();
        value["to"] = json!({"all": true, "where": text});
        assert_eq!(code(&open(&signed(&value, &[("alice", 2)]))), wanted);
        assert_eq!(code(&open(&signed(&value, &[("bob", 3)]))), "not_allowed");
    }
}

#[test]
fn a_command_travels_only_where_it_was_signed_for() {
    let to = |to: Value| {
        let mut value = ensure();
        value["to"] = to;
        signed(&value, &[("alice", 2)])
    };
    let (node, group, all) = (to(json!({"nodes": ["db1", "web1"]})), to(json!({"groups": ["web"]})), to(json!({"all": true})));
    for (bytes, subject, wanted) in [
        (&node, "ensign.v1.prod.cmd.ensure.node.web1", "new"),
        (&node, "ensign.v1.prod.cmd.ensure.node.db1", "subject_mismatch"),
        (&node, "ensign.v1.prod.cmd.ensure.group.web", "subject_mismatch"),
        (&node, "ensign.v1.prod.cmd.ensure.all", "subject_mismatch"),
        (&node, "ensign.v1.prod.cmd.apply.node.web1", "subject_mismatch"),
        (&node, "ensign.v1.test.cmd.ensure.node.web1", "subject_mismatch"),
        (&group, "ensign.v1.prod.cmd.ensure.group.web", "new"),
        (&group, "ensign.v1.prod.cmd.ensure.group.db", "subject_mismatch"),
        (&all, "ensign.v1.prod.cmd.ensure.all", "new"),
        (&all, "ensign.v1.prod.cmd.ensure.node.web1", "subject_mismatch"),
    ] {
        assert_eq!(code(&open_at(NOW, &Memory::default(), bytes, Some(subject))), wanted, "{subject}");
    }
    assert_eq!(code(&open(&to(json!({"nodes": ["db1"]})))), "not_for_me");
    assert_eq!(code(&open(&to(json!({"groups": ["db"]})))), "not_for_me");
}

#[test]
fn a_command_for_some_listeners_of_its_subject_is_no_rejection_on_the_others() {
    let (one, all, group) = ("node.web1", "all", "group.web");
    for (to, subject, wanted) in [
        (json!({"globs": ["web*"]}), all, "new"),
        (json!({"globs": ["db*"]}), all, "not targeted"),
        (json!({"globs": ["db*"]}), one, "not_for_me"),
        (json!({"globs": ["db*"]}), group, "not_for_me"),
        (json!({"nodes": ["db1"], "groups": ["db"]}), all, "not targeted"),
        (json!({"nodes": ["db1"]}), all, "not_for_me"),
        (json!({"groups": ["db"]}), all, "not_for_me"),
        (json!({"all": true, "not": {"nodes": ["web1"]}}), all, "not targeted"),
        (json!({"groups": ["web"], "not": {"globs": ["web*"]}}), group, "not targeted"),
        (json!({"groups": ["db"], "not": {"globs": ["web*"]}}), group, "not_for_me"),
        (json!({"nodes": ["web1"], "not": {"groups": ["web"]}}), one, "not targeted"),
        (json!({"nodes": ["db1"], "not": {"groups": ["web"]}}), one, "not_for_me"),
    ] {
        let mut value = ensure();
        value["to"] = to.clone();
        let subject = format!("ensign.v1.prod.cmd.ensure.{subject}");
        let open = |by| open_at(NOW, &Memory::default(), &signed(&value, by), Some(&subject));
        assert_eq!(code(&open(&[("alice", 2)])), wanted, "{to} {subject}");
        assert_eq!(code(&open(&[("mallory", 9)])), "unknown_key", "only a signature decides about the target");
        // Without a subject, the sender waits for an answer.
        let by_file = code(&open_at(NOW, &Memory::default(), &signed(&value, &[("alice", 2)]), None));
        assert_eq!(by_file == "not_for_me", wanted != "new", "{to}");
    }
    // An assignment is for the whole channel, and ends on the nodes that it leaves out.
    let mut assignment = apply(1, 1, "a");
    assignment["to"] = json!({"globs": ["db*"]});
    assignment["action"] = json!({"assign": {"manifest": assignment["action"]["apply"]}});
    let bytes = signed(&assignment, &[("alice", 2)]);
    let open = |subject| open_at(NOW, &Memory::default(), &bytes, Some(subject));
    assert_eq!(code(&open("ensign.v1.prod.live.desired.base")), "elsewhere");
    assert_eq!(code(&open("ensign.v1.prod.cmd.assign.all")), "subject_mismatch");
}

#[test]
fn a_node_that_entered_an_excluded_group_is_no_target() {
    let mut to_glob = ensure();
    to_glob["to"] = json!({"globs": ["web*"], "not": {"groups": ["canary"]}});
    let (trust, command) = (trust(), opened(&trust(), &signed(&to_glob, &[("alice", 2)])));
    let confirm = |groups: &[String]| {
        with_verifier(&trust, &NodeLimits::default(), NOW, &Memory::default(), |it| Verifier { groups, ..*it }.recheck(&command))
    };
    assert!(confirm(&["web".to_owned()]).is_ok());
    assert_eq!(confirm(&["canary".to_owned()]).unwrap_err().code, RejectionCode::NotForMe);
}

#[test]
fn an_accepted_command_can_be_opened_again() {
    let (trust, node, subjects) = (trust(), "web1".parse().unwrap(), Subjects::new("prod"));
    let memory = Memory::default();
    let verifier = Verifier {
        trust: &trust,
        node: &node,
        groups: &[],
        limits: &NodeLimits::default(),
        subjects: &subjects,
        now: "2026-12-01T00:00:00Z".parse().unwrap(),
        replay_store: &memory,
        evaluate_filter: &|_| Ok(true),
        effects: &effects,
    };
    assert!(verifier.reverify_queued(&signed(&ensure(), &[("alice", 2)])).is_ok());
    assert_eq!(verifier.reverify_queued(&signed(&ensure(), &[("alice", 9)])).unwrap_err().code, RejectionCode::BadSignature);
    assert_eq!(verifier.reverify_queued(&signed(&ensure(), &[("bob", 3)])).unwrap_err().code, RejectionCode::NotAllowed);
}

/// Returns [`trust`] as a later version.
pub(super) fn changed_trust(change: &dyn Fn(&mut Value)) -> TrustedBundle {
    let mut bundle = serde_json::to_value(trust().bundle()).unwrap();
    bundle["version"] = json!(2);
    change(&mut bundle);
    let envelope = sign_envelope(TRUST_TYPE, bundle.to_string().into(), &[("root", &key(1))]);
    open_bundle(&envelope.encode(), BundleAuthority::Stored).unwrap()
}

fn opened(trust: &TrustedBundle, bytes: &[u8]) -> Verified<Command> {
    let Ok(OpenedMessage::New(command)) = open_with(trust, NOW, &Memory::default(), bytes, None) else { panic!() };
    command
}

#[test]
fn a_queued_command_is_rejected_after_changes() {
    let ending = |bundle: &mut Value| bundle["keys"][0]["not_after"] = json!("2026-11-20T10:04:00Z");
    let ends = changed_trust(&ending);
    let by_alice = signed(&ensure(), &[("alice", 2)]);
    let confirm = |bytes: &[u8], before: &TrustedBundle, after: &TrustedBundle, limits: &NodeLimits, now: &str| {
        let command = opened(before, bytes);
        let refusal = with_verifier(after, limits, now, &Memory::default(), |it| it.recheck(&command)).err();
        refusal.map(|refusal| (refusal.code.as_str(), refusal.keyids, refusal.id.is_some()))
    };
    let code = |bytes: &[u8], before: &TrustedBundle, after: &TrustedBundle, limits: &NodeLimits, now: &str| {
        confirm(bytes, before, after, limits, now).map(|(code, ..)| code)
    };
    let open = NodeLimits::default();
    let narrow = NodeLimits { types: Some(vec!["file".into()]), ..NodeLimits::default() };
    let later = |change: fn(&mut Value)| changed_trust(&change);
    for (what, before, after, limits, now, wanted) in [
        ("nothing", trust(), trust(), &open, NOW, None),
        ("another bundle that says the same", trust(), later(|_| ()), &open, NOW, None),
        ("the key is revoked", trust(), later(|b| b["revoked"] = json!(["alice"])), &open, NOW, Some("revoked_key")),
        (
            "the key is gone",
            trust(),
            later(|b| drop(b["keys"].as_array_mut().unwrap().remove(0))),
            &open,
            NOW,
            Some("unknown_key"),
        ),
        ("the keys changed places", trust(), later(|b| b["keys"].as_array_mut().unwrap().reverse()), &open, NOW, None),
        (
            "the key is another's",
            trust(),
            later(|b| b["keys"][0]["key"] = json!(key(9).public().to_short())),
            &open,
            NOW,
            Some("bad_signature"),
        ),
        (
            "the rules are others",
            trust(),
            later(|b| drop(b["rules"].as_array_mut().unwrap().remove(0))),
            &open,
            NOW,
            Some("not_allowed"),
        ),
        ("the time of the key is over, in a moment", ends.clone(), ends.clone(), &open, "2026-11-20T10:03:59Z", None),
        ("the time of the key is over", ends.clone(), ends.clone(), &open, "2026-11-20T10:04:31Z", Some("key_not_valid")),
        ("the time of the bundle is over", trust(), trust(), &open, "2027-01-01T00:00:01Z", Some("trust_expired")),
        ("the limits are narrower", trust(), trust(), &narrow, NOW, Some("local_limit")),
    ] {
        assert_eq!(code(&by_alice, &before, &after, limits, now), wanted, "{what}");
    }
    // A rejection names the command, as everywhere.
    let refused = confirm(&by_alice, &trust(), &trust(), &narrow, NOW).unwrap();
    assert_eq!(refused, ("local_limit", vec!["alice".to_owned()], true));
    // One of two keys has expired: the other is no quorum.
    let quorum = |b: &mut Value| {
        ending(b);
        b["rules"].as_array_mut().unwrap().remove(0);
    };
    let (both, quorum) = (signed(&ensure(), &[("alice", 2), ("bob", 3)]), changed_trust(&quorum));
    assert_eq!(code(&both, &quorum, &quorum, &open, NOW), None);
    assert_eq!(code(&both, &quorum, &quorum, &open, "2026-11-20T10:04:31Z"), Some("not_allowed"));
}

#[test]
fn a_node_that_left_a_group_is_no_target() {
    let mut to_group = ensure();
    to_group["to"] = json!({"groups": ["web"]});
    let (trust, command) = (trust(), opened(&trust(), &signed(&to_group, &[("alice", 2)])));
    let confirm = |groups: &[String]| {
        with_verifier(&trust, &NodeLimits::default(), NOW, &Memory::default(), |it| Verifier { groups, ..*it }.recheck(&command))
    };
    assert!(confirm(&["web".to_owned()]).is_ok());
    assert_eq!(confirm(&[]).unwrap_err().code, RejectionCode::NotForMe);
}

#[test]
fn signatures_are_computed_again_under_another_bundle_only() {
    let bytes = signed(&ensure(), &[("alice", 2)]);
    let forged = Verified { envelope: signed(&ensure(), &[("alice", 9)]), ..opened(&trust(), &bytes) };
    let confirm = |trust: &TrustedBundle| {
        with_verifier(trust, &NodeLimits::default(), NOW, &Memory::default(), |it| it.recheck(&forged))
            .map(drop)
            .map_err(|refusal| refusal.code)
    };
    assert_eq!(confirm(&trust()), Ok(()), "they were computed when it came");
    assert_eq!(confirm(&changed_trust(&|_| ())), Err(RejectionCode::BadSignature));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(open(&bytes).is_err());
    }

    #[test]
    fn no_signed_payload_makes_it_panic(payload in "[\\[\\]{}\":,a-z0-9.\\\\ \u{0}é-]{0,200}") {
        let envelope = sign_envelope(COMMAND_TYPE, payload.into(), &[("alice", &key(2))]);
        prop_assert!(open(&envelope.encode()).is_err());
    }

    #[test]
    fn a_flipped_bit_never_changes_what_is_run(place in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = signed(&ensure(), &[("alice", 2)]);
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        if let Ok(OpenedMessage::New(command)) = open(&bytes) {
            // Only the hint is outside the signature.
            prop_assert_eq!(command.digest(), digest(ensure().to_string().as_bytes()));
            let hint = Envelope::parse(&bytes).unwrap().signatures[0].keyid.clone();
            prop_assert_ne!(hint, "alice");
        }
    }

    #[test]
    fn a_flipped_bit_in_what_is_signed_never_verifies(place in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut envelope = Envelope::parse(&signed(&ensure(), &[("alice", 2)])).unwrap();
        let (payload, sig) = (envelope.payload.len(), envelope.signatures[0].sig.len());
        let place = place.index(payload + sig);
        match place.checked_sub(payload) {
            None => envelope.payload[place] ^= 1 << bit,
            Some(place) => envelope.signatures[0].sig[place] ^= 1 << bit,
        }
        prop_assert_eq!(code(&open(&envelope.encode())), "bad_signature");
    }
}

fn assign(to: Value, serial: u64, id: u8) -> Value {
    let mut value = ensure();
    value["id"] = json!(format!("0198c1f2-7a3b-7c4d-8e5f-1020304050{id:02x}"));
    value["to"] = to;
    value["expires"] = json!("2026-12-20T10:00:00Z");
    value["action"] = json!({"assign": {"manifest": {"url": "https://h/m", "sha256": "a".repeat(64), "size": 1}}});
    value["channel"] = json!({"name": "base", "epoch": 1, "serial": serial});
    value
}

#[test]
fn assignments_are_ordered_and_accepted_once() {
    let mut memory = Memory::default();
    let state = ChannelPosition { epoch: 1, serial: 5, digest: "a".repeat(64) };
    memory.channels.insert("base".into(), state);
    let all = json!({"all": true});
    let mut withdraw = assign(all.clone(), 6, 3);
    withdraw["action"] = json!({"withdraw": {}});
    for (command, wanted) in [
        (assign(all.clone(), 6, 1), "new"),
        (withdraw, "new"),
        (assign(all.clone(), 4, 1), "stale_serial"),
        // The same serial under another id is another command, even with the same content.
        (assign(all.clone(), 5, 2), "serial_conflict"),
        (assign(json!({"nodes": ["db1"]}), 6, 1), "elsewhere"),
        (assign(json!({"nodes": ["db1"]}), 4, 1), "stale_serial"),
        (assign(json!({"all": true, "where": "nonsense"}), 6, 1), "new"),
    ] {
        let bytes = signed(&command, &[("alice", 2)]);
        assert_eq!(code(&open_at(NOW, &memory, &bytes, Some("ensign.v1.prod.desired.base"))), wanted, "{command}");
        assert_eq!(code(&open_at(NOW, &memory, &bytes, Some("ensign.v1.prod.live.desired.base"))), wanted, "{command}");
    }
    // The same assignment again is a duplicate, unless a later one was accepted.
    for (serial, wanted) in [(4, "stale_serial"), (5, "seen"), (6, "seen")] {
        let command = assign(all.clone(), serial, 1);
        let mut memory = Memory { channels: memory.channels.clone(), ..Memory::default() };
        memory.ids.insert(command["id"].as_str().unwrap().parse().unwrap(), digest(command.to_string().as_bytes()));
        assert_eq!(code(&open_at(NOW, &memory, &signed(&command, &[("alice", 2)]), None)), wanted, "{serial}");
    }
    let bytes = signed(&assign(all, 6, 1), &[("alice", 2)]);
    for subject in ["ensign.v1.prod.desired.other", "ensign.v1.prod.cmd.assign.all", "ensign.v1.prod.cmd.apply.all"] {
        assert_eq!(code(&open_at(NOW, &memory, &bytes, Some(subject))), "subject_mismatch", "{subject}");
    }
    let once = signed(&ensure(), &[("alice", 2)]);
    assert_eq!(code(&open_at(NOW, &memory, &once, Some("ensign.v1.prod.desired.base"))), "subject_mismatch");
}

#[test]
fn rights_on_some_nodes_end_no_assignment_of_others() {
    let bundle = json!({
        "fleet": "prod", "version": 1, "expires": "2027-01-01T00:00:00Z",
        "root": {"threshold": 1, "keys": [key(1).public().to_short()]},
        "keys": [{"id": "alice", "key": key(2).public().to_short()}],
        "rules": [{"keys": ["alice"], "nodes": ["db*"]}],
    });
    let envelope = sign_envelope(TRUST_TYPE, bundle.to_string().into(), &[("root", &key(1))]);
    let narrow = open_bundle(&envelope.encode(), BundleAuthority::Stored).unwrap();
    let bytes = signed(&assign(json!({"nodes": ["db1"]}), 6, 1), &[("alice", 2)]);
    let opened = open_with(&narrow, NOW, &Memory::default(), &bytes, Some("ensign.v1.prod.desired.base"));
    assert_eq!(code(&opened), "not_for_me");
}

#[test]
fn an_accepted_assignment_is_valid_after_its_expiry() {
    let bytes = signed(&assign(json!({"all": true}), 6, 1), &[("alice", 2)]);
    let trust = trust();
    let recall = |bytes: &[u8], limits: &NodeLimits| {
        let recalled =
            with_verifier(&trust, limits, "2030-01-01T00:00:00Z", &Memory::default(), |it| it.reverify_assignment(bytes));
        recalled.map(|verified| verified.get().id.to_string()).map_err(|refusal| refusal.code.as_str())
    };
    assert!(recall(&bytes, &NodeLimits::default()).is_ok());
    assert_eq!(recall(&bytes, &NodeLimits { apply: false, ..NodeLimits::default() }), Err("local_limit"));
    assert_eq!(recall(&signed(&assign(json!({"all": true}), 6, 1), &[("alice", 9)]), &NodeLimits::default()), Err("unknown_key"));
    assert_eq!(recall(b"{}", &NodeLimits::default()), Err("bad_envelope"));
    // A revoked key does not end the assignment.
    let revoked = changed_trust(&|bundle| bundle["revoked"] = json!(["alice"]));
    let now = "2030-01-01T00:00:00Z";
    assert!(
        with_verifier(&revoked, &NodeLimits::default(), now, &Memory::default(), |it| it.reverify_assignment(&bytes)).is_ok()
    );
}
