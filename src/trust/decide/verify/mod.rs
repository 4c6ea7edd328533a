//! Verification: from received bytes to a [`Verified`] command, or a [`Rejection`].
//!
//! Cheap checks come before costly checks, and all of them before the command has any effect. The order begins with size,
//! envelope, signatures by known keys, type, form, fleet and target. Then come time, replay, channel, trust, policy, local
//! limits, subject, and `where`. Only `where` examines the host.

use std::ops::Deref;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::diag::error_chain;
use crate::model::{Effects, NodeId};
use crate::wire::command::{Action, Command, Selector};
use crate::wire::report::ChannelPosition;
use crate::wire::subject::Route;
use crate::wire::{COMMAND_TYPE, Envelope, EnvelopeError, Subjects, digest, json};

use super::limits::NodeLimits;
use super::policy::{self, PolicyDecision};
use super::rejection::{Rejection, RejectionCode};
use super::rights::Rights;
use crate::trust::bundle::{TrustedBundle, TrustedKey};
use crate::trust::keys::signers::SignerSearch;

pub use crate::trust::keys::signers::SignatureBudget;

/// The largest difference between the clocks of operator and node.
pub const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(30);
/// The largest step of a channel's serial, so that no key can use up the serials.
pub const MAX_CHANNEL_STEP: u64 = 1_000_000;

/// The memory of the commands that this node accepted.
pub trait ReplayStore {
    /// The digest of the accepted command of this id, until the node forgets the command.
    fn accepted_digest(&self, id: Uuid) -> Option<String>;
    /// The latest accepted position of a channel.
    fn channel(&self, name: &str) -> Option<ChannelPosition>;
    /// The time since which the node remembers accepted commands; none when unknown.
    fn remembers_since(&self) -> Option<Timestamp>;
    /// Returns the known versions of earlier trust bundles.
    fn trust(&self) -> KnownTrust;
}

/// The knowledge of a node about its earlier trust bundles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownTrust {
    /// The latest known version of an active bundle.
    AtLeast(u64),
    /// The knowledge was lost, and no peer has answered since.
    Unknown,
}

/// A signed value that verification, policy and limits allow. Only [`Verifier`] creates it. Derefs to the signed value.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified<T> {
    value: T,
    digest: String,
    allowed: PolicyDecision,
    envelope: Vec<u8>,
    proof: Proof,
}

/// The keys behind the signatures of an envelope: a function of its bytes and the keys of the bundle. A proof is valid while both
/// are unchanged. The rights of the keys are not part of the proof.
#[derive(Debug, Clone, PartialEq)]
struct Proof {
    /// The digest of the trust bundle with the keys.
    bundle: String,
    /// The distinct keys, by their places in the bundle, valid or not.
    keys: Vec<usize>,
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Verified<T> {
    /// Returns the signed value.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// SHA-256 of the signed bytes, in lower-case hex.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The ids of the signing keys that the allowing rule counts.
    pub fn signers(&self) -> &[String] {
        &self.allowed.keys
    }

    /// The number of the allowing rule in the trust bundle, from 1.
    pub fn rule(&self) -> usize {
        self.allowed.rule
    }

    /// Returns the rights that the allowing rule grants the run.
    pub fn rights(&self) -> &Rights {
        &self.allowed.rights
    }

    /// The received envelope.
    pub fn envelope(&self) -> &[u8] {
        &self.envelope
    }
}

/// A message that was not rejected.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenedMessage {
    /// A new command, to be recorded and run.
    New(Verified<Command>),
    /// A repeated command: the node sends its answer again and runs nothing.
    Duplicate {
        /// The id of the command.
        id: Uuid,
        /// SHA-256 of the signed bytes.
        digest: String,
    },
    /// A command whose `where` is false on this node.
    FilteredOut(Verified<Command>),
    /// The latest assignment of a channel, for other nodes now. The assignment of this node in the channel ends.
    ForOtherNodes(Verified<Command>),
    /// A signed command for other nodes that listen on its subject: no attack, and no answer.
    NotTargeted,
}

/// The state of a node against which commands are checked.
#[derive(Clone, Copy)]
pub struct Verifier<'a> {
    /// The active trust bundle.
    pub trust: &'a TrustedBundle,
    /// The id of this node.
    pub node: &'a NodeId,
    /// The groups of this node.
    pub groups: &'a [String],
    /// The local limits.
    pub limits: &'a NodeLimits,
    /// The subjects of the fleet.
    pub subjects: &'a Subjects,
    /// The current time; never before the latest time that this node has recorded, whatever its clock shows.
    pub now: Timestamp,
    /// The accepted commands.
    pub replay_store: &'a dyn ReplayStore,
    /// Evaluates a filter (`where`) over the facts of this node.
    pub evaluate_filter: &'a dyn Fn(&str) -> Result<bool, String>,
    /// Returns the effects of an `ensure` from its type and properties: `engine::effects::of_signed`.
    pub effects: &'a dyn Fn(&str, &Map<String, Value>) -> Effects,
}

/// A rejection without its context.
type Reason = (RejectionCode, String);

/// The known properties of a message during verification, for the rejection.
struct RejectionContext {
    digest: String,
    id: Option<Uuid>,
    keyids: Vec<String>,
}

impl RejectionContext {
    fn reject(self, (code, message): Reason) -> Rejection {
        Rejection { code, message, digest: self.digest, id: self.id, keyids: self.keyids }
    }
}

/// A command that verified keys signed, with the ids of the keys that are valid now. Policy has not allowed it yet.
struct SignedCommand {
    command: Command,
    signers: Vec<String>,
    proof: Proof,
}

impl Verifier<'_> {
    /// Opens a message that arrived on `subject`, or without the bus (`None`).
    ///
    /// # Errors
    /// The first reason to reject the message.
    pub fn open(&self, bytes: &[u8], subject: Option<&str>) -> Result<OpenedMessage, Rejection> {
        self.open_within(bytes, subject, &mut SignatureBudget::default())
    }

    /// Acts as [`Self::open`], with a limit on the computed signatures. Afterwards `effort` has their number.
    ///
    /// # Errors
    /// The first reason to reject the message.
    pub fn open_within(
        &self,
        bytes: &[u8],
        subject: Option<&str>,
        effort: &mut SignatureBudget,
    ) -> Result<OpenedMessage, Rejection> {
        let (mut known, signed) = self.signed(bytes, effort)?;
        known.id = Some(signed.command.id);
        match self.evaluate(&signed, &known.digest, subject) {
            Ok(Verdict::Seen) => Ok(OpenedMessage::Duplicate { id: signed.command.id, digest: known.digest }),
            Ok(Verdict::Run(allowed)) => Ok(OpenedMessage::New(verified(signed, known, allowed, bytes))),
            Ok(Verdict::NotSelected(allowed)) => Ok(OpenedMessage::FilteredOut(verified(signed, known, allowed, bytes))),
            Ok(Verdict::NotTargeted) => Ok(OpenedMessage::NotTargeted),
            Ok(Verdict::Elsewhere(allowed)) => Ok(OpenedMessage::ForOtherNodes(verified(signed, known, allowed, bytes))),
            Err(reason) => Err(known.reject(reason)),
        }
    }

    /// Opens a command from the ledger that this node accepted before its restart.
    ///
    /// Its time, id, serial and subject were checked before. Keys, policy and limits may have changed and are checked again. The
    /// caller decides whether a run is still useful.
    ///
    /// # Errors
    /// The first reason to reject the command now.
    pub fn reverify_queued(&self, bytes: &[u8]) -> Result<Verified<Command>, Rejection> {
        let (mut known, signed) = self.signed(bytes, &mut SignatureBudget::default())?;
        known.id = Some(signed.command.id);
        match self.check_target(&signed.command).and_then(|()| self.check_policy(&signed.command, &signed.signers)) {
            Ok(allowed) => Ok(verified(signed, known, allowed, bytes)),
            Err(reason) => Err(known.reject(reason)),
        }
    }

    /// Checks a command again that was verified on arrival and has waited since. The result equals that of
    /// [`Self::reverify_queued`] of its envelope, for less work.
    ///
    /// All checks with changeable inputs run again: revoked and expired keys, target, the expiry of the bundle, rules, limits.
    /// Only the signatures are not computed again while the bundle is the same. A rejection is not final: then the caller
    /// verifies the bytes from the beginning. Returns the present rights of the command.
    ///
    /// # Errors
    /// The first reason to reject the command now.
    pub fn recheck(&self, verified: &Verified<Command>) -> Result<Rights, Rejection> {
        match self.still_allowed(verified) {
            Ok(allowed) => Ok(allowed.rights),
            Err(_) => self.reverify_queued(&verified.envelope).map(|verified| verified.allowed.rights),
        }
    }

    fn still_allowed(&self, verified: &Verified<Command>) -> Result<PolicyDecision, Reason> {
        let proof = &verified.proof;
        if proof.bundle != self.trust.digest() {
            return Err((RejectionCode::UnknownKey, "it was verified under another trust bundle".to_owned()));
        }
        let signers = self.valid(proof, false)?;
        self.check_target(&verified.value)?;
        self.check_policy(&verified.value, &signers)
    }

    /// Verifies an assignment again that this node accepted, from its own disk.
    ///
    /// An assignment stays active until a later assignment replaces it, without any time limit. The assignment, its key or the
    /// trust bundle may have expired, and the key may be revoked. Only two checks run again: a bundle key's signature, against
    /// damage, and the limits of the host.
    ///
    /// # Errors
    /// When no known key signed the assignment, or the limits do not allow it any more.
    pub fn reverify_assignment(&self, bytes: &[u8]) -> Result<Verified<Command>, Rejection> {
        let (mut known, envelope) = open_envelope(bytes)?;
        let proof = self.proof(self.trust.find_signers(&envelope, &mut SignatureBudget::default()).keys);
        let signers: Vec<String> = self.keys_of(&proof).map(|key| key.id.clone()).collect();
        let recalled = parse_command(&envelope).and_then(|command| {
            known.id = Some(command.id);
            if signers.is_empty() {
                return Err((RejectionCode::UnknownKey, "it is not signed by a key of the trust bundle".to_owned()));
            }
            self.limits.check(&command, &self.effects_of(&command)).map_err(|why| (RejectionCode::LocalLimit, why))?;
            Ok(command)
        });
        match recalled {
            Ok(command) => {
                let rights = policy::assignment_rights(self.trust.rules(), &command, &signers);
                let allowed = PolicyDecision { rule: 0, keys: signers.clone(), for_all: false, rights };
                Ok(verified(SignedCommand { command, signers, proof }, known, allowed, bytes))
            }
            Err(reason) => Err(known.reject(reason)),
        }
    }

    fn signed(&self, bytes: &[u8], effort: &mut SignatureBudget) -> Result<(RejectionContext, SignedCommand), Rejection> {
        let (known, envelope) = open_envelope(bytes)?;
        let result = self.signers(&envelope, effort).and_then(|(signers, proof)| {
            let command = parse_command(&envelope)?;
            Ok(SignedCommand { command, signers, proof })
        });
        match result {
            Ok(signed) => Ok((known, signed)),
            Err(reason) => Err(known.reject(reason)),
        }
    }

    fn proof(&self, keys: Vec<usize>) -> Proof {
        Proof { bundle: self.trust.digest().to_owned(), keys }
    }

    /// The keys of a proof under the active bundle.
    fn keys_of(&self, proof: &Proof) -> impl Iterator<Item = &TrustedKey> {
        proof.keys.iter().filter_map(|index| self.trust.keys().get(*index))
    }

    /// The ids of the distinct keys that are valid now and whose signatures verify.
    fn signers(&self, envelope: &Envelope, effort: &mut SignatureBudget) -> Result<(Vec<String>, Proof), Reason> {
        let SignerSearch { keys, named, cut_short } = self.trust.find_signers(envelope, effort);
        if keys.is_empty() && cut_short {
            let why = "too many forged messages arrive at present: only signatures whose keyid names their key are verified";
            return Err((RejectionCode::Busy, why.to_owned()));
        }
        let proof = self.proof(keys);
        Ok((self.valid(&proof, named)?, proof))
    }

    /// The ids of the keys of a proof that are valid now. `hinted` is true when the envelope names a known key.
    fn valid(&self, proof: &Proof, hinted: bool) -> Result<Vec<String>, Reason> {
        let is_valid = |key: &&TrustedKey| !key.revoked && key.is_valid_at(self.now);
        let valid: Vec<String> = self.keys_of(proof).filter(is_valid).map(|key| key.id.clone()).collect();
        if !valid.is_empty() {
            return Ok(valid);
        }
        Err(match (self.keys_of(proof).find(|key| key.revoked), self.keys_of(proof).next()) {
            (Some(key), _) => (RejectionCode::RevokedKey, format!("the key {} is revoked", key.id)),
            (None, Some(key)) => (RejectionCode::KeyNotValid, format!("the key {} is not valid at this time", key.id)),
            (None, None) if hinted => (RejectionCode::BadSignature, "no signature verifies".to_owned()),
            (None, None) => (RejectionCode::UnknownKey, "it is not signed by a key of the trust bundle".to_owned()),
        })
    }

    fn evaluate(&self, signed: &SignedCommand, digest: &str, subject: Option<&str>) -> Result<Verdict, Reason> {
        let command = &signed.command;
        let addressed = self.check_target(command);
        let for_others = matches!(addressed, Err((RejectionCode::NotForMe, _)));
        // A channel has one latest message for all nodes. It also tells a node that the channel no longer targets the node.
        let left_out = command.action.is_desired_state() && for_others;
        // Excluded nodes hear a command too, and so do all nodes where patterns or several kinds of names select.
        if for_others && !left_out && subject.is_some_and(|subject| self.check_subject(command, subject).is_ok()) {
            return Ok(Verdict::NotTargeted);
        }
        if !left_out {
            addressed.clone()?;
        }
        self.check_time(command)?;
        match self.replay_store.accepted_digest(command.id) {
            Some(before) if before == digest => {
                // An older assignment after a newer one: another process set the channel back.
                return match self.check_serial(command) {
                    Err((RejectionCode::StaleSerial, why)) if command.action.is_desired_state() => {
                        Err((RejectionCode::StaleSerial, why))
                    }
                    _ => Ok(Verdict::Seen),
                };
            }
            Some(_) => return Err((RejectionCode::Replayed, "another command with this id was accepted before".to_owned())),
            None => {}
        }
        self.check_serial(command)?;
        let allowed = self.check_policy(command, &signed.signers)?;
        if let Some(subject) = subject {
            self.check_subject(command, subject)?;
        }
        self.check_replay_memory(command)?;
        if left_out {
            // An operator with rights on some nodes can't end the assignments of the others.
            return match addressed {
                Err(reason) if !allowed.for_all => Err(reason),
                _ => Ok(Verdict::Elsewhere(allowed)),
            };
        }
        match &command.to.filter {
            // Facts change, so an assignment is filtered again before every run.
            Some(_) if command.action.is_desired_state() => Ok(Verdict::Run(allowed)),
            None => Ok(Verdict::Run(allowed)),
            Some(text) => match (self.evaluate_filter)(text) {
                Ok(true) => Ok(Verdict::Run(allowed)),
                Ok(false) => Ok(Verdict::NotSelected(allowed)),
                Err(why) => Err((RejectionCode::BadWhere, format!("its \"where\" can't be evaluated: {why}"))),
            },
        }
    }

    /// Rejects commands signed before the ledger was made, as they may have run here. Assignments are ordered by their channel.
    fn check_replay_memory(&self, command: &Command) -> Result<(), Reason> {
        match self.replay_store.remembers_since() {
            Some(born) if command.issued <= born && !command.action.is_desired_state() => {
                let why = format!("it was signed at {}; this node remembers commands from {born} on", command.issued);
                Err((RejectionCode::BeforeLedger, why))
            }
            _ => Ok(()),
        }
    }

    /// Rejects a bundle older than an earlier active bundle: its keys may be revoked since.
    fn check_trust_version(&self) -> Result<(), Reason> {
        let version = self.trust.version();
        let lost = match self.replay_store.trust() {
            KnownTrust::AtLeast(known) if known <= version => return Ok(()),
            KnownTrust::AtLeast(known) => format!("version {known} of the trust bundle was active on this node, and is lost"),
            KnownTrust::Unknown => "the active trust bundle of this node is lost".to_owned(),
        };
        Err((RejectionCode::TrustLost, format!("{lost}; this node has version {version}")))
    }

    fn check_target(&self, command: &Command) -> Result<(), Reason> {
        if command.fleet != self.trust.fleet() {
            return Err((RejectionCode::WrongFleet, format!("it is for the fleet {}", command.fleet)));
        }
        let mine = command.to.includes(self.node, self.groups);
        if mine { Ok(()) } else { Err((RejectionCode::NotForMe, "it is for other nodes".to_owned())) }
    }

    fn check_time(&self, command: &Command) -> Result<(), Reason> {
        let start = command.not_before.map_or(command.issued, |time| time.max(command.issued));
        if self.now.duration_since(command.expires) > MAX_CLOCK_SKEW {
            return Err((RejectionCode::Expired, format!("it expired at {}, and here it is {}", command.expires, self.now)));
        }
        if start.duration_since(self.now) > MAX_CLOCK_SKEW {
            return Err((RejectionCode::NotYetValid, format!("it is valid from {start}, and here it is {}", self.now)));
        }
        Ok(())
    }

    fn check_serial(&self, command: &Command) -> Result<(), Reason> {
        let Some(wanted) = &command.channel else { return Ok(()) };
        let name = &wanted.name;
        // A channel that is new here may begin with any serial, but its epoch must have a successor.
        let last = self.replay_store.channel(name);
        let first = last.is_none();
        let last = last.unwrap_or(ChannelPosition { epoch: 0, serial: wanted.serial, digest: String::new() });
        let reached = format!("channel {name} is at epoch {}, serial {}", last.epoch, last.serial);
        if wanted.epoch != last.epoch {
            return match wanted.epoch.checked_sub(last.epoch) {
                None => Err((RejectionCode::StaleSerial, reached)),
                Some(ahead) if ahead > MAX_CHANNEL_STEP => Err((RejectionCode::SerialJump, reached)),
                Some(_) => Ok(()),
            };
        }
        match wanted.serial.checked_sub(last.serial) {
            None => Err((RejectionCode::StaleSerial, reached)),
            Some(ahead) if ahead > MAX_CHANNEL_STEP => Err((RejectionCode::SerialJump, reached)),
            // The same artifact again is allowed: a repeated run with a new id. An assignment has one message only.
            Some(0) if !first && (command.action.is_desired_state() || !same_artifact(command, &last)) => {
                Err((RejectionCode::SerialConflict, format!("{reached}, with other content")))
            }
            Some(_) => Ok(()),
        }
    }

    fn check_policy(&self, command: &Command, signers: &[String]) -> Result<PolicyDecision, Reason> {
        self.check_trust_version()?;
        if self.trust.is_expired(self.now) {
            return Err((
                RejectionCode::TrustExpired,
                format!("the trust bundle of this node expired at {}", self.trust.expires()),
            ));
        }
        let effects = self.effects_of(command);
        let allowed = policy::decide(self.trust.rules(), command, &effects, signers)
            .map_err(|denied| (RejectionCode::NotAllowed, denied.to_string()))?;
        self.limits.check(command, &effects).map_err(|why| (RejectionCode::LocalLimit, why))?;
        Ok(allowed)
    }

    /// The effects of an `ensure`; other actions have none of their own.
    fn effects_of(&self, command: &Command) -> Effects {
        match &command.action {
            Action::Ensure(ensure) => (self.effects)(&ensure.kind, &ensure.properties),
            _ => Effects::default(),
        }
    }

    /// Rejects a command on another subject than its own. The subject only routes, but such a message is an attack.
    fn check_subject(&self, command: &Command, subject: &str) -> Result<(), Reason> {
        let right = self.subjects.route(subject).is_some_and(|(action, route)| {
            action.is_none_or(|action| action == command.action.name())
                && match (route, command.to.selector()) {
                    (Route::Desired(name), _) => {
                        command.action.is_desired_state() && command.channel.as_ref().is_some_and(|channel| channel.name == name)
                    }
                    _ if command.action.is_desired_state() => false,
                    (Route::Node(id), Some(Selector::Nodes(nodes))) => id == self.node.as_str() && nodes.contains(self.node),
                    (Route::Group(name), Some(Selector::Groups(groups))) => groups.contains(&name) && self.groups.contains(&name),
                    (Route::All, Some(Selector::All | Selector::Mixed)) => true,
                    _ => false,
                }
        });
        if right { Ok(()) } else { Err((RejectionCode::SubjectMismatch, format!("it was not signed for the subject {subject}"))) }
    }
}

enum Verdict {
    Run(PolicyDecision),
    NotSelected(PolicyDecision),
    Elsewhere(PolicyDecision),
    NotTargeted,
    Seen,
}

fn verified(signed: SignedCommand, known: RejectionContext, allowed: PolicyDecision, bytes: &[u8]) -> Verified<Command> {
    let SignedCommand { command, proof, .. } = signed;
    Verified { value: command, digest: known.digest, allowed, envelope: bytes.to_vec(), proof }
}

fn open_envelope(bytes: &[u8]) -> Result<(RejectionContext, Envelope), Rejection> {
    let envelope = Envelope::parse(bytes).map_err(|error| {
        let code = if matches!(error, EnvelopeError::TooLarge(_)) { RejectionCode::TooLarge } else { RejectionCode::BadEnvelope };
        RejectionContext { digest: digest(bytes), id: None, keyids: vec![] }.reject((code, error_chain(&error)))
    })?;
    let keyids = envelope.signatures.iter().map(|s| s.keyid.clone()).collect();
    Ok((RejectionContext { digest: envelope.digest(), id: None, keyids }, envelope))
}

/// Parses exactly the verified bytes.
fn parse_command(envelope: &Envelope) -> Result<Command, Reason> {
    if envelope.payload_type != COMMAND_TYPE {
        return Err((
            RejectionCode::WrongType,
            format!("the payload type is \"{}\", not that of a command", envelope.payload_type),
        ));
    }
    let command: Command = json::read(&envelope.payload).map_err(|error| (RejectionCode::Malformed, error_chain(&error)))?;
    command.check().map_err(|error| (RejectionCode::Malformed, error.to_string()))?;
    Ok(command)
}

fn same_artifact(command: &Command, last: &ChannelPosition) -> bool {
    matches!(&command.action, crate::wire::Action::Apply(apply) if apply.sha256 == last.digest)
}

mod control;
#[cfg(test)]
mod tests;
