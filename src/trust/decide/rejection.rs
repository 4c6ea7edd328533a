//! Rejections: a stable code for programs, a sentence for people.

use std::fmt;

use uuid::Uuid;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The reasons for a refusal. Their texts are part of the protocol: they never change meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RejectionCode {
            $($(#[$doc])* $name,)*
        }

        impl RejectionCode {
            /// Every code, in the order in which they are checked.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code as it travels.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// More bytes than an envelope may have.
    TooLarge = "too_large",
    /// Not a DSSE envelope in strict JSON.
    BadEnvelope = "bad_envelope",
    /// No signature names a key that is known, and none verifies.
    UnknownKey = "unknown_key",
    /// A known key is named, and no signature verifies.
    BadSignature = "bad_signature",
    /// Signed by revoked keys only.
    RevokedKey = "revoked_key",
    /// Signed by keys outside their time only.
    KeyNotValid = "key_not_valid",
    /// Signed, but as something else.
    WrongType = "wrong_type",
    /// The signed bytes are not a command of the right form.
    Malformed = "malformed",
    /// For another fleet.
    WrongFleet = "wrong_fleet",
    /// For other nodes.
    NotForMe = "not_for_me",
    /// Its time is over.
    Expired = "expired",
    /// Its time has not come; or this node's clock is behind.
    NotYetValid = "not_yet_valid",
    /// Another command with this id was accepted before.
    Replayed = "replayed",
    /// A later serial of the channel was accepted before.
    StaleSerial = "stale_serial",
    /// The same serial with other content was accepted before.
    SerialConflict = "serial_conflict",
    /// The serial is so far ahead that no room would be left.
    SerialJump = "serial_jump",
    /// The trust bundle that was in force was lost, and the one that is there is older.
    TrustLost = "trust_lost",
    /// The trust bundle of this node is out of date.
    TrustExpired = "trust_expired",
    /// No rule of the trust bundle allows it to these keys.
    NotAllowed = "not_allowed",
    /// The configuration of the node itself forbids it.
    LocalLimit = "local_limit",
    /// The command came on a subject that it was not signed for.
    SubjectMismatch = "subject_mismatch",
    /// The command was signed before the ledger of this node was made: it may have run here.
    BeforeLedger = "before_ledger",
    /// Its `where` can't be evaluated.
    BadWhere = "bad_where",
    /// The changes of the command differ from those approved.
    PlanChanged = "plan_changed",
    /// The job was halted, or too many nodes had failed before it was this node's turn.
    Halted = "halted",
    /// The queue of the node is full.
    Busy = "busy",
    /// The agent is stopping.
    ShuttingDown = "shutting_down",
    /// The node could not write it down, and what is not written down is not run.
    Storage = "storage",
    /// The fetched artifact differs from the signed artifact, or can't be used.
    BadArtifact = "bad_artifact",
    /// A trust bundle that contradicts itself.
    BadTrust = "bad_trust",
    /// A trust bundle with a weak key.
    WeakKey = "weak_key",
    /// A trust bundle that too few distinct root keys signed.
    TrustQuorum = "trust_quorum",
    /// A trust bundle that is not the next version.
    TrustVersion = "trust_version",
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal, with what is known of what was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Rejection {
    /// The reason.
    pub code: RejectionCode,
    /// The reason in words.
    pub message: String,
    /// SHA-256 of the payload where there is one, else of what came; lower-case hex.
    pub digest: String,
    /// The command, where its id could be read from verified bytes.
    pub id: Option<Uuid>,
    /// The key ids that the envelope names: hints, not facts.
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
