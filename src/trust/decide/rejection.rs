//! Rejections: a stable code for programs, a message for people.

use std::fmt;

use uuid::Uuid;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The reasons for a rejection. Their codes are part of the protocol and never change meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RejectionCode {
            $($(#[$doc])* $name,)*
        }

        impl RejectionCode {
            /// Every code, in the order of the checks.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code on the wire.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// The envelope exceeds the size limit.
    TooLarge = "too_large",
    /// The bytes are no DSSE envelope in strict JSON.
    BadEnvelope = "bad_envelope",
    /// No signature names a known key, and none verifies.
    UnknownKey = "unknown_key",
    /// A signature names a known key, and none verifies.
    BadSignature = "bad_signature",
    /// Only revoked keys signed the message.
    RevokedKey = "revoked_key",
    /// Only keys outside their validity signed the message.
    KeyNotValid = "key_not_valid",
    /// The signed payload has another type.
    WrongType = "wrong_type",
    /// The signed bytes are not a command of the right form.
    Malformed = "malformed",
    /// The command is for another fleet.
    WrongFleet = "wrong_fleet",
    /// The command is for other nodes.
    NotForMe = "not_for_me",
    /// The command has expired.
    Expired = "expired",
    /// The command is not valid yet, or the clock of this node is behind.
    NotYetValid = "not_yet_valid",
    /// This node accepted another command with this id before.
    Replayed = "replayed",
    /// This node accepted a later serial of the channel before.
    StaleSerial = "stale_serial",
    /// This node accepted the same serial with other content before.
    SerialConflict = "serial_conflict",
    /// The serial is so far ahead that the channel would run out of serials.
    SerialJump = "serial_jump",
    /// The active trust bundle was lost, and the stored bundle is older.
    TrustLost = "trust_lost",
    /// The trust bundle of this node has expired.
    TrustExpired = "trust_expired",
    /// No rule of the trust bundle allows the command to these keys.
    NotAllowed = "not_allowed",
    /// The configuration of the node itself forbids the command.
    LocalLimit = "local_limit",
    /// The command arrived on a subject that it was not signed for.
    SubjectMismatch = "subject_mismatch",
    /// The operator signed the command before this node created its ledger, so the command may have run here.
    BeforeLedger = "before_ledger",
    /// The filter (`where`) can't be evaluated.
    BadWhere = "bad_where",
    /// The changes of the command differ from the approved changes.
    PlanChanged = "plan_changed",
    /// The job was halted, or too many nodes failed before the wave of this node.
    Halted = "halted",
    /// No assignment of the channel is in force on this node.
    NoChannel = "no_channel",
    /// An operator cancelled the job.
    Cancelled = "cancelled",
    /// The job is an assignment, which only a withdrawal ends.
    NotCancellable = "not_cancellable",
    /// The queue of the node is full.
    Busy = "busy",
    /// The agent is stopping.
    ShuttingDown = "shutting_down",
    /// The node could not record the command, and does not run unrecorded commands.
    Storage = "storage",
    /// The fetched artifact differs from the signed artifact, or can't be used.
    BadArtifact = "bad_artifact",
    /// The trust bundle contradicts itself.
    BadTrust = "bad_trust",
    /// The trust bundle has a weak key.
    WeakKey = "weak_key",
    /// Too few distinct root keys signed the trust bundle.
    TrustQuorum = "trust_quorum",
    /// The trust bundle is not the next version.
    TrustVersion = "trust_version",
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A rejection, with the known properties of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Rejection {
    /// The reason.
    pub code: RejectionCode,
    /// The reason as a message.
    pub message: String,
    /// SHA-256 of the payload, or of the whole message without a payload; lower-case hex.
    pub digest: String,
    /// The id of the command, where verified bytes contain it.
    pub id: Option<Uuid>,
    /// The key ids in the envelope: hints, not facts.
    pub keyids: Vec<String>,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_distinct_words() {
        let texts: HashSet<_> = RejectionCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), RejectionCode::ALL.len());
        assert!(texts.iter().all(|text| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }
}
