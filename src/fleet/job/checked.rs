//! Commands that were read back from the server and whose signatures were verified here.
//!
//! An operator signs values from arguments, from files of this machine, or from a [`CheckedCommand`]. The owner of the
//! server can write the records of jobs, channels and rollouts. No field of a record is signed again without this check.

use crate::trust::bundle::signing_keys;
use crate::trust::{PublicKey, TrustedBundle};
use crate::wire::{COMMAND_TYPE, Command, Envelope, EnvelopeError, json};

/// Errors of checking a record.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The record is no envelope.
    #[error("the record is not a signed envelope")]
    Envelope(#[from] EnvelopeError),
    /// The envelope has another payload type.
    #[error("the record holds {0}, not a command")]
    Type(String),
    /// The payload is no command.
    #[error("the record is not a command")]
    Command(#[from] json::JsonError),
    /// The command is for another fleet.
    #[error("the command is for the fleet {0}")]
    OtherFleet(String),
    /// The trust bundle is for another fleet.
    #[error("the trust bundle is for the fleet {0}")]
    OtherBundle(String),
    /// The plan has the digest of another command.
    #[error("the recorded command is not the planned command: its SHA-256 is {found}, not {wanted}")]
    OtherDigest {
        /// The digest in the plan.
        wanted: String,
        /// The digest of the record.
        found: String,
    },
    /// No key that was valid at the time of signing signed it.
    #[error("no key of the trust bundle that was valid at that time signed the command")]
    NotSigned,
    /// No key to check the signature with.
    #[error("cannot check the signature of the command: no trust bundle is configured, and no own key signed it")]
    NoBundle,
}

/// The keys by which commands are checked.
#[derive(Debug, Clone)]
pub struct Checker {
    fleet: String,
    trust: Option<TrustedBundle>,
    own: Vec<PublicKey>,
}

/// A command whose signature was checked. Only [`Checker`] creates it.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedCommand {
    command: Command,
    digest: String,
    signers: Vec<String>,
}

impl CheckedCommand {
    /// Returns the command.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// Returns the SHA-256 of its signed bytes.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the keys that signed it: ids of the trust bundle, or fingerprints of own keys.
    pub fn signers(&self) -> &[String] {
        &self.signers
    }
}

impl Checker {
    /// Checks the commands of a fleet with its trust bundle. Without a bundle, only the operator's own keys count.
    ///
    /// # Errors
    /// When the bundle is for another fleet.
    pub fn new(fleet: &str, trust: Option<TrustedBundle>, own: Vec<PublicKey>) -> Result<Self, CheckError> {
        match &trust {
            Some(trust) if trust.fleet() != fleet => Err(CheckError::OtherBundle(trust.fleet().to_owned())),
            _ => Ok(Self { fleet: fleet.to_owned(), trust, own }),
        }
    }

    /// Checks a record.
    ///
    /// # Errors
    /// When the record is no command of this fleet, or no valid key signed it.
    pub fn check(&self, envelope: &[u8]) -> Result<CheckedCommand, CheckError> {
        self.check_as(envelope, None)
    }

    /// Checks a record that must have this digest, from a file of this user. Without a trust bundle, the digest is enough.
    ///
    /// # Errors
    /// As [`Checker::check`], and when the digest differs.
    pub fn check_pinned(&self, envelope: &[u8], digest: &str) -> Result<CheckedCommand, CheckError> {
        self.check_as(envelope, Some(digest))
    }

    fn check_as(&self, envelope: &[u8], pinned: Option<&str>) -> Result<CheckedCommand, CheckError> {
        let envelope = Envelope::parse(envelope)?;
        if envelope.payload_type != COMMAND_TYPE {
            return Err(CheckError::Type(envelope.payload_type));
        }
        let digest = envelope.digest();
        if let Some(wanted) = pinned.filter(|wanted| **wanted != digest) {
            return Err(CheckError::OtherDigest { wanted: wanted.to_owned(), found: digest });
        }
        let command: Command = json::read(&envelope.payload)?;
        if command.fleet != self.fleet {
            return Err(CheckError::OtherFleet(command.fleet));
        }
        let signers: Vec<String> = match &self.trust {
            Some(trust) => {
                let valid = trust.signers(&envelope).into_iter();
                let valid = valid.filter(|key| !key.revoked && key.is_valid_at(command.issued));
                valid.map(|key| key.id.clone()).collect()
            }
            None => signing_keys(&envelope, &self.own).into_iter().map(PublicKey::fingerprint).collect(),
        };
        match (signers.is_empty(), &self.trust, pinned) {
            (true, Some(_), _) => Err(CheckError::NotSigned),
            (true, None, None) => Err(CheckError::NoBundle),
            _ => Ok(CheckedCommand { command, digest, signers }),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::super::draft::CommandDraft;
    use super::super::seal::sign;
    use super::*;
    use crate::model::HumanDuration;
    use crate::trust::{BundleAuthority, SigningKey, open_bundle, sign_envelope};
    use crate::wire::{Action, CommandOptions, TRUST_TYPE, Target};

    const NOW: Timestamp = Timestamp::constant(1_795_000_000, 0);

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn envelope(seed: u8, fleet: &str) -> (Vec<u8>, String) {
        let action: Action = serde_json::from_value(serde_json::json!({"status": {}})).unwrap();
        let (to, options, lifetime) = (Target::all(), CommandOptions::default(), HumanDuration::seconds(60));
        let order = CommandDraft { action, to, options, channel: None, reason: None, lifetime };
        let signed = sign(order.command(fleet, Uuid::nil(), NOW), &[("ops", &key(seed))]).unwrap();
        (signed.envelope, signed.digest)
    }

    fn bundle(fleet: &str) -> TrustedBundle {
        let bundle = serde_json::json!({
            "fleet": fleet, "version": 1, "expires": "2030-01-01T00:00:00Z",
            "root": {"keys": [key(9).public().to_short()], "threshold": 1},
            "keys": [
                {"id": "ops", "key": key(1).public().to_short()},
                {"id": "gone", "key": key(2).public().to_short()},
                {"id": "over", "key": key(3).public().to_short(), "not_after": "2020-01-01T00:00:00Z"},
            ],
            "rules": [{"keys": ["ops"], "actions": ["*"]}], "revoked": ["gone"],
        });
        let sealed = sign_envelope(TRUST_TYPE, bundle.to_string().into_bytes(), &[("root", &key(9))]);
        open_bundle(&sealed.encode(), BundleAuthority::Stored).unwrap()
    }

    #[test]
    fn only_what_a_known_key_signed_counts() {
        let with = Checker::new("f", Some(bundle("f")), vec![key(4).public()]).unwrap();
        let without = Checker::new("f", None, vec![key(4).public()]).unwrap();
        let said = |result: Result<CheckedCommand, CheckError>| match result {
            Ok(checked) => checked.signers().join(","),
            Err(error) => error.to_string(),
        };
        let (ops, digest) = envelope(1, "f");
        assert_eq!(said(with.check(&ops)), "ops");
        for seed in [2, 3, 4, 5] {
            assert!(matches!(with.check(&envelope(seed, "f").0), Err(CheckError::NotSigned)), "{seed}");
        }
        assert!(matches!(with.check_pinned(&envelope(5, "f").0, &envelope(5, "f").1), Err(CheckError::NotSigned)));
        assert!(matches!(with.check_pinned(&ops, &"0".repeat(64)), Err(CheckError::OtherDigest { .. })));
        assert!(matches!(with.check(&envelope(1, "g").0), Err(CheckError::OtherFleet(_))));
        // A signature covers the payload type too.
        let mut other = Envelope::parse(&ops).unwrap();
        other.payload_type = TRUST_TYPE.to_owned();
        assert!(matches!(with.check(&other.encode()), Err(CheckError::Type(_))));
        let mut changed = Envelope::parse(&ops).unwrap();
        changed.payload = String::from_utf8(changed.payload).unwrap().replace("status", "facts").into_bytes();
        assert!(matches!(with.check(&changed.encode()), Err(CheckError::NotSigned)));
        changed.signatures.clear();
        assert!(with.check(&changed.encode()).is_err() && with.check(b"{}").is_err());
        // Without a bundle, only commands that this operator signed or planned count.
        assert_eq!(said(without.check(&envelope(4, "f").0)), key(4).public().fingerprint());
        assert!(matches!(without.check(&ops), Err(CheckError::NoBundle)));
        assert_eq!(said(without.check_pinned(&ops, &digest)), "");
        assert!(matches!(Checker::new("f", Some(bundle("g")), vec![]), Err(CheckError::OtherBundle(_))));
    }
}
