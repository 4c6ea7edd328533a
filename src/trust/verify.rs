//! The way in: from bytes off the wire to a [`Verified`] command, or a [`Refusal`].
//!
//! Cheap checks before costly ones, and every one of them before the command reaches anything that
//! acts: size, envelope, signatures by known keys, type, form, fleet, audience, time, seen before,
//! channel, trust, policy, local limits, subject, and `where`, the only one that looks at the host.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::diag::chain;
use crate::model::NodeId;
use crate::wire::command::{Command, Target};
use crate::wire::report::ChannelState;
use crate::wire::subject::Route;
use crate::wire::{COMMAND_TYPE, Envelope, EnvelopeError, Subjects, digest, json, pae};

use super::bundle::TrustedBundle;
use super::limits::Limits;
use super::policy::{self, Allowed};
use super::refusal::{Code, Refusal};

/// How far the clocks of operator and node may differ.
pub const SKEW: SignedDuration = SignedDuration::from_secs(30);
/// How far a channel may go ahead in one step, so that nobody can use up its numbers.
pub const MAX_JUMP: u64 = 1_000_000;

/// What this node accepted before.
pub trait Seen {
    /// The digest of the command of this id, when one was accepted and not yet forgotten.
    fn seen(&self, id: Uuid) -> Option<String>;
    /// The latest accepted state of a channel.
    fn channel(&self, name: &str) -> Option<ChannelState>;
}

/// Something whose signatures were checked and that policy and limits allow. Only [`Verifier`] makes one.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified<T> {
    value: T,
    digest: String,
    allowed: Allowed,
    envelope: Vec<u8>,
}

impl<T> Verified<T> {
    /// What was signed.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// SHA-256 of the signed bytes, lower-case hex.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The ids of the signing keys that the allowing rule counts.
    pub fn signers(&self) -> &[String] {
        &self.allowed.keys
    }

    /// The rule of the trust bundle that allows it, from 1.
    pub fn rule(&self) -> usize {
        self.allowed.rule
    }

    /// The envelope as it came.
    pub fn envelope(&self) -> &[u8] {
        &self.envelope
    }
}

/// A message that was not refused.
#[derive(Debug, Clone, PartialEq)]
pub enum Opened {
    /// To be written down and run.
    New(Verified<Command>),
    /// Accepted before, the very same: its answer is to be sent again, nothing is to be run.
    Seen {
        /// The command.
        id: Uuid,
        /// SHA-256 of its signed bytes.
        digest: String,
    },
    /// Not for this node: its `where` is false here.
    NotSelected(Verified<Command>),
}

/// What one node measures commands by.
#[derive(Clone, Copy)]
pub struct Verifier<'a> {
    /// The trust bundle in force.
    pub trust: &'a TrustedBundle,
    /// This node.
    pub node: &'a NodeId,
    /// Its groups.
    pub groups: &'a [String],
    /// Its own limits.
    pub limits: &'a Limits,
    /// The subjects of its fleet.
    pub subjects: &'a Subjects,
    /// The time; not before the latest that this node knows has passed, whatever its clock says.
    pub now: Timestamp,
    /// What it accepted before.
    pub seen: &'a dyn Seen,
    /// Evaluates a `where` over the facts of this node.
    pub condition: &'a dyn Fn(&str) -> Result<bool, String>,
}

/// A refusal before it is known of what.
type Reason = (Code, String);

/// What is known of a message while it is looked at, for the refusal.
struct Known {
    digest: String,
    id: Option<Uuid>,
    keyids: Vec<String>,
}

impl Known {
    fn refuse(self, (code, message): Reason) -> Refusal {
        Refusal { code, message, digest: self.digest, id: self.id, keyids: self.keyids }
    }
}

/// A command that verified keys signed, with their ids. Not yet allowed anything.
struct Signed {
    command: Command,
    signers: Vec<String>,
}

impl Verifier<'_> {
    /// Opens a message that came on `subject`, or that somebody carried here by hand (`None`).
    ///
    /// # Errors
    /// The first reason for which it must not run.
    pub fn open(&self, bytes: &[u8], subject: Option<&str>) -> Result<Opened, Refusal> {
        let (mut known, signed) = self.signed(bytes)?;
        known.id = Some(signed.command.id);
        match self.judge(&signed, &known.digest, subject) {
            Ok(Verdict::Seen) => Ok(Opened::Seen { id: signed.command.id, digest: known.digest }),
            Ok(Verdict::Run(allowed)) => Ok(Opened::New(verified(signed, known, allowed, bytes))),
            Ok(Verdict::NotSelected(allowed)) => Ok(Opened::NotSelected(verified(signed, known, allowed, bytes))),
            Err(reason) => Err(known.refuse(reason)),
        }
    }

    /// Opens a command that this node accepted before it was stopped, from its own ledger.
    ///
    /// Its time, id, serial and subject were checked then; keys, policy and limits may have changed
    /// and are checked again. Whether it is still worth running is for the caller to say.
    ///
    /// # Errors
    /// The first reason for which it must not run any more.
    pub fn reopen(&self, bytes: &[u8]) -> Result<Verified<Command>, Refusal> {
        let (mut known, signed) = self.signed(bytes)?;
        known.id = Some(signed.command.id);
        match self.addressed(&signed.command).and_then(|()| self.allowed(&signed)) {
            Ok(allowed) => Ok(verified(signed, known, allowed, bytes)),
            Err(reason) => Err(known.refuse(reason)),
        }
    }

    fn signed(&self, bytes: &[u8]) -> Result<(Known, Signed), Refusal> {
        let envelope = Envelope::parse(bytes).map_err(|error| {
            let code = if matches!(error, EnvelopeError::TooLarge(_)) { Code::TooLarge } else { Code::BadEnvelope };
            Known { digest: digest(bytes), id: None, keyids: vec![] }.refuse((code, chain(&error)))
        })?;
        let keyids = envelope.signatures.iter().map(|s| s.keyid.clone()).collect();
        let known = Known { digest: envelope.digest(), id: None, keyids };
        let result = self.signers(&envelope).and_then(|signers| Ok(Signed { command: command(&envelope)?, signers }));
        match result {
            Ok(signed) => Ok((known, signed)),
            Err(reason) => Err(known.refuse(reason)),
        }
    }

    /// The ids of the distinct keys that are valid now and whose signatures verify.
    fn signers(&self, envelope: &Envelope) -> Result<Vec<String>, Reason> {
        let keys = self.trust.keys();
        let encoded = pae(&envelope.payload_type, &envelope.payload);
        let mut found = HashSet::new();
        let mut hinted = false;
        for signature in &envelope.signatures {
            let hint = keys.iter().position(|key| key.id == signature.keyid);
            hinted |= hint.is_some();
            // The hint saves time and decides nothing: without a match under it, the others are tried.
            let others = (0..keys.len()).filter(|index| Some(*index) != hint && !found.contains(index));
            let made_by = |index: &usize| keys.get(*index).is_some_and(|key| key.key.verify_encoded(&encoded, &signature.sig));
            let signer = hint.into_iter().chain(others).find(made_by);
            found.extend(signer);
        }
        let found: Vec<_> = keys.iter().enumerate().filter(|(index, _)| found.contains(index)).map(|(_, key)| key).collect();
        let valid: Vec<String> =
            found.iter().filter(|key| !key.revoked && key.is_in_time(self.now)).map(|key| key.id.clone()).collect();
        if !valid.is_empty() {
            return Ok(valid);
        }
        Err(match (found.iter().find(|key| key.revoked), found.first()) {
            (Some(key), _) => (Code::RevokedKey, format!("the key {} is revoked", key.id)),
            (None, Some(key)) => (Code::KeyNotValid, format!("the key {} is not valid at this time", key.id)),
            (None, None) if hinted => (Code::BadSignature, "no signature verifies".to_owned()),
            (None, None) => (Code::UnknownKey, "it is not signed by a key of the trust bundle".to_owned()),
        })
    }

    fn judge(&self, signed: &Signed, digest: &str, subject: Option<&str>) -> Result<Verdict, Reason> {
        let command = &signed.command;
        self.addressed(command)?;
        self.in_time(command)?;
        match self.seen.seen(command.id) {
            Some(before) if before == digest => return Ok(Verdict::Seen),
            Some(_) => return Err((Code::Replayed, "another command with this id was accepted before".to_owned())),
            None => {}
        }
        self.in_order(command)?;
        let allowed = self.allowed(signed)?;
        if let Some(subject) = subject {
            self.came_right(command, subject)?;
        }
        match &command.to.only_where {
            None => Ok(Verdict::Run(allowed)),
            Some(text) => match (self.condition)(text) {
                Ok(true) => Ok(Verdict::Run(allowed)),
                Ok(false) => Ok(Verdict::NotSelected(allowed)),
                Err(why) => Err((Code::BadWhere, format!("its \"where\" can't be evaluated: {why}"))),
            },
        }
    }

    fn addressed(&self, command: &Command) -> Result<(), Reason> {
        if command.fleet != self.trust.fleet() {
            return Err((Code::WrongFleet, format!("it is for the fleet {}", command.fleet)));
        }
        let mine = match command.to.target() {
            Some(Target::Nodes(nodes)) => nodes.contains(self.node),
            Some(Target::Groups(groups)) => groups.iter().any(|group| self.groups.contains(group)),
            Some(Target::All) => true,
            None => false,
        };
        if mine { Ok(()) } else { Err((Code::NotForMe, "it is for other nodes".to_owned())) }
    }

    fn in_time(&self, command: &Command) -> Result<(), Reason> {
        let start = command.not_before.map_or(command.issued, |time| time.max(command.issued));
        if self.now.duration_since(command.expires) > SKEW {
            return Err((Code::Expired, format!("it expired at {}", command.expires)));
        }
        if start.duration_since(self.now) > SKEW {
            return Err((Code::NotYetValid, format!("it is valid from {start}, and here it is {}", self.now)));
        }
        Ok(())
    }

    fn in_order(&self, command: &Command) -> Result<(), Reason> {
        let Some(wanted) = &command.channel else { return Ok(()) };
        let name = &wanted.name;
        // A channel that is new here may begin with any serial, but not with an epoch without a next one.
        let last = self.seen.channel(name).unwrap_or(ChannelState { epoch: 0, serial: wanted.serial, digest: String::new() });
        let reached = format!("channel {name} is at epoch {}, serial {}", last.epoch, last.serial);
        if wanted.epoch != last.epoch {
            return match wanted.epoch.checked_sub(last.epoch) {
                None => Err((Code::StaleSerial, reached)),
                Some(ahead) if ahead > MAX_JUMP => Err((Code::SerialJump, reached)),
                Some(_) => Ok(()),
            };
        }
        match wanted.serial.checked_sub(last.serial) {
            None => Err((Code::StaleSerial, reached)),
            Some(ahead) if ahead > MAX_JUMP => Err((Code::SerialJump, reached)),
            // The same once more is no harm: a run repeated with a new id.
            Some(0) if !last.digest.is_empty() && !same_artifact(command, &last) => {
                Err((Code::SerialConflict, format!("{reached}, with other content")))
            }
            Some(_) => Ok(()),
        }
    }

    fn allowed(&self, signed: &Signed) -> Result<Allowed, Reason> {
        if self.trust.is_expired(self.now) {
            return Err((Code::TrustExpired, format!("the trust bundle of this node expired at {}", self.trust.expires())));
        }
        let allowed = policy::decide(self.trust.rules(), &signed.command, &signed.signers)
            .map_err(|denied| (Code::NotAllowed, denied.to_string()))?;
        self.limits.check(&signed.command).map_err(|why| (Code::LocalLimit, why))?;
        Ok(allowed)
    }

    /// The subject routes and decides nothing; but what travels elsewhere than it was signed for is somebody's trick.
    fn came_right(&self, command: &Command, subject: &str) -> Result<(), Reason> {
        let right = self.subjects.route(subject).is_some_and(|(action, route)| {
            action == command.action.name()
                && match (route, command.to.target()) {
                    (Route::Node(id), Some(Target::Nodes(_))) => id == self.node.as_str(),
                    (Route::Group(name), Some(Target::Groups(groups))) => groups.contains(&name) && self.groups.contains(&name),
                    (Route::All, Some(Target::All)) => true,
                    _ => false,
                }
        });
        if right { Ok(()) } else { Err((Code::SubjectMismatch, format!("it was not signed for the subject {subject}"))) }
    }
}

enum Verdict {
    Run(Allowed),
    NotSelected(Allowed),
    Seen,
}

fn verified(signed: Signed, known: Known, allowed: Allowed, bytes: &[u8]) -> Verified<Command> {
    Verified { value: signed.command, digest: known.digest, allowed, envelope: bytes.to_vec() }
}

/// Reads the very bytes that were verified.
fn command(envelope: &Envelope) -> Result<Command, Reason> {
    if envelope.payload_type != COMMAND_TYPE {
        return Err((Code::WrongType, format!("the payload type is \"{}\", not that of a command", envelope.payload_type)));
    }
    let command: Command = json::read(&envelope.payload).map_err(|error| (Code::Malformed, chain(&error)))?;
    command.check().map_err(|error| (Code::Malformed, error.to_string()))?;
    Ok(command)
}

fn same_artifact(command: &Command, last: &ChannelState) -> bool {
    matches!(&command.action, crate::wire::Action::Apply(apply) if apply.sha256 == last.digest)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::trust::{Pin, SigningKey, open_bundle, seal};
    use crate::wire::TRUST_TYPE;

    const NOW: &str = "2026-11-20T10:01:00Z";
    const SUBJECT: &str = "ensign.v1.prod.cmd.ensure.node.web1";

    #[derive(Default)]
    struct Memory {
        ids: HashMap<Uuid, String>,
        channels: HashMap<String, ChannelState>,
    }

    impl Seen for Memory {
        fn seen(&self, id: Uuid) -> Option<String> {
            self.ids.get(&id).cloned()
        }

        fn channel(&self, name: &str) -> Option<ChannelState> {
            self.channels.get(name).cloned()
        }
    }

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn trust() -> TrustedBundle {
        let public = |seed| key(seed).public().to_short();
        let bundle = json!({
            "fleet": "prod", "version": 1, "expires": "2027-01-01T00:00:00Z",
            "root": {"threshold": 1, "keys": [public(1)]},
            "keys": [{"id": "alice", "key": public(2)}, {"id": "bob", "key": public(3)}],
            "rules": [{"keys": ["alice"]}, {"keys": ["*"], "quorum": 2}],
        });
        let envelope = seal(TRUST_TYPE, bundle.to_string().into(), &[("root", &key(1))]);
        open_bundle(&envelope.encode(), Pin::Kept).unwrap()
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

    fn signed(value: &Value, by: &[(&str, u8)]) -> Vec<u8> {
        let keys: Vec<(&str, SigningKey)> = by.iter().map(|(id, seed)| (*id, key(*seed))).collect();
        let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|(id, key)| (*id, key)).collect();
        seal(COMMAND_TYPE, value.to_string().into(), &keys).encode()
    }

    fn open_at(now: &str, seen: &Memory, bytes: &[u8], subject: Option<&str>) -> Result<Opened, Refusal> {
        Verifier {
            trust: &trust(),
            node: &"web1".parse().unwrap(),
            groups: &["web".into()],
            limits: &Limits::default(),
            subjects: &Subjects::new("prod"),
            now: now.parse().unwrap(),
            seen,
            condition: &|text| match text {
                "yes" => Ok(true),
                "no" => Ok(false),
                _ => Err("unknown name".into()),
            },
        }
        .open(bytes, subject)
    }

    fn open(bytes: &[u8]) -> Result<Opened, Refusal> {
        open_at(NOW, &Memory::default(), bytes, None)
    }

    fn code(result: &Result<Opened, Refusal>) -> &'static str {
        match result {
            Ok(Opened::New(_)) => "new",
            Ok(Opened::Seen { .. }) => "seen",
            Ok(Opened::NotSelected(_)) => "not selected",
            Err(refusal) => refusal.code.as_str(),
        }
    }

    #[test]
    fn a_good_command_opens_and_says_why() {
        let bytes = signed(&ensure(), &[("alice", 2)]);
        let Ok(Opened::New(command)) = open_at(NOW, &Memory::default(), &bytes, Some(SUBJECT)) else { panic!() };
        assert_eq!((command.signers(), command.rule()), (&["alice".to_owned()][..], 1));
        assert_eq!(command.digest(), digest(ensure().to_string().as_bytes()));
        assert_eq!(command.envelope(), bytes);
        assert_eq!(command.get().to.target(), Some(Target::Nodes(&["web1".parse().unwrap()])));
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
        // The same once more under other signatures is still the same.
        assert_eq!(code(&open_at(NOW, &memory, &signed(&ensure(), &[("alice", 2), ("bob", 3)]), None)), "seen");
        let mut other = ensure();
        other["reason"] = json!("x");
        let refusal = open_at(NOW, &memory, &signed(&other, &[("alice", 2)]), None).unwrap_err();
        assert_eq!((refusal.code, refusal.id), (Code::Replayed, Some(id)));
    }

    #[test]
    fn channels_go_forward_in_bounded_steps() {
        let mut memory = Memory::default();
        memory.channels.insert("base".into(), ChannelState { epoch: 2, serial: 42, digest: "a".repeat(64) });
        for (epoch, serial, digit, wanted) in [
            (2, 43, "b", "new"),
            (2, 42, "a", "new"),
            (2, 42, "b", "serial_conflict"),
            (2, 41, "a", "stale_serial"),
            (1, 99, "b", "stale_serial"),
            (3, 1, "b", "new"),
            (2, 42 + MAX_JUMP, "b", "new"),
            (2, 43 + MAX_JUMP, "b", "serial_jump"),
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
        let (node, group, all) =
            (to(json!({"nodes": ["db1", "web1"]})), to(json!({"groups": ["web"]})), to(json!({"all": true})));
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
    fn an_accepted_command_can_be_opened_again() {
        let (trust, node, subjects) = (trust(), "web1".parse().unwrap(), Subjects::new("prod"));
        let memory = Memory::default();
        let verifier = Verifier {
            trust: &trust,
            node: &node,
            groups: &[],
            limits: &Limits::default(),
            subjects: &subjects,
            now: "2026-12-01T00:00:00Z".parse().unwrap(),
            seen: &memory,
            condition: &|_| Ok(true),
        };
        assert!(verifier.reopen(&signed(&ensure(), &[("alice", 2)])).is_ok());
        assert_eq!(verifier.reopen(&signed(&ensure(), &[("alice", 9)])).unwrap_err().code, Code::BadSignature);
        assert_eq!(verifier.reopen(&signed(&ensure(), &[("bob", 3)])).unwrap_err().code, Code::NotAllowed);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(open(&bytes).is_err());
        }

        #[test]
        fn no_signed_payload_makes_it_panic(payload in "[\\[\\]{}\":,a-z0-9.\\\\ \u{0}é-]{0,200}") {
            let envelope = seal(COMMAND_TYPE, payload.into(), &[("alice", &key(2))]);
            prop_assert!(open(&envelope.encode()).is_err());
        }

        #[test]
        fn a_flipped_bit_never_changes_what_is_run(place in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut bytes = signed(&ensure(), &[("alice", 2)]);
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            if let Ok(Opened::New(command)) = open(&bytes) {
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
}
