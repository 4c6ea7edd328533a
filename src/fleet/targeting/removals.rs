//! Removals of nodes: signed records of operators, beside the states.
//!
//! A removal takes a node out of the view of every operator, and its pinned key with it. A later state of the node does not
//! count, and its key is not pinned from that state. A key that an operator pins after the removal ends it there.

use jiff::Timestamp;

use crate::diag::error_chain;
use crate::fleet::job::checked::{CheckError, Checker};
use crate::model::{Effects, NodeId};
use crate::transport::Message;
use crate::trust::TrustedBundle;
use crate::trust::decide::policy::{self, PolicyDenial};
use crate::wire::{Action, Selector, Subjects};

/// A node that an operator has removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The node.
    pub node: NodeId,
    /// Time of the removal: of its signature, or of the server where that is earlier.
    pub at: Timestamp,
    /// The ids of the keys that signed it.
    pub by: Vec<String>,
    /// The reason of the operator.
    pub reason: Option<String>,
    /// The number of its message in the stream of states.
    pub seq: Option<u64>,
}

/// A removal that does not count.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// The record is no command that a known key signed.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The command is not the removal of the node in the subject.
    #[error("the record is not a removal of the node in its subject")]
    OtherNode,
    /// No rule allows the removal to its signers.
    #[error("the trust bundle does not allow the removal")]
    Denied(#[from] PolicyDenial),
}

/// Verifies removals with the trust bundle of the operator: the signature, the node and the rules.
#[derive(Debug, Clone)]
pub struct RemovalVerifier {
    subjects: Subjects,
    trust: TrustedBundle,
    checker: Checker,
}

impl RemovalVerifier {
    /// Creates the verifier of a fleet.
    ///
    /// # Errors
    /// When the bundle is for another fleet.
    pub fn new(subjects: &Subjects, trust: TrustedBundle) -> Result<Self, CheckError> {
        let checker = Checker::new(subjects.fleet(), Some(trust.clone()), Vec::new())?;
        Ok(Self { subjects: subjects.clone(), trust, checker })
    }

    /// Returns the trust bundle.
    pub fn trust(&self) -> &TrustedBundle {
        &self.trust
    }

    /// Verifies a removal.
    ///
    /// # Errors
    /// The reason why it does not count.
    pub fn verify(&self, message: &Message) -> Result<Removal, RemovalError> {
        let checked = self.checker.check(&message.payload)?;
        let command = checked.command();
        // The rules are about nodes by name: one node, without a filter or an exclusion.
        let node = match command.to.selector() {
            Some(Selector::Nodes([node])) if command.to.filter.is_none() && command.to.exclusion.is_none() => node.clone(),
            _ => return Err(RemovalError::OtherNode),
        };
        let is_removal = matches!(command.action, Action::Remove(_)) && command.check().is_ok();
        if !is_removal || self.subjects.removal(&node).as_str() != message.subject {
            return Err(RemovalError::OtherNode);
        }
        policy::decide(self.trust.rules(), command, &Effects::default(), checked.signers())?;
        let at = message.time.map_or(command.issued, |stored| stored.min(command.issued));
        Ok(Removal { node, at, by: checked.signers().to_vec(), reason: command.reason.clone(), seq: message.seq })
    }

    /// Returns the removals that count. Others are logged.
    pub fn verified(&self, messages: &[Message]) -> Vec<Removal> {
        let checked = messages.iter().map(|message| (message, self.verify(message)));
        let valid = checked.filter_map(|(message, removal)| match removal {
            Ok(removal) => Some(removal),
            Err(error) => {
                tracing::warn!(subject = %message.subject, "a removal does not count: {}", error_chain(&error));
                None
            }
        });
        valid.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::fleet::job::draft::CommandDraft;
    use crate::fleet::job::seal::sign;
    use crate::model::HumanDuration;
    use crate::trust::{BundleAuthority, SigningKey, open_bundle, sign_envelope};
    use crate::wire::command::NoParameters;
    use crate::wire::{CommandOptions, TRUST_TYPE, Target};

    const NOW: Timestamp = Timestamp::constant(1_795_000_000, 0);

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn verifier(rule: &Value) -> RemovalVerifier {
        let bundle = json!({
            "fleet": "f", "version": 1, "expires": "2030-01-01T00:00:00Z",
            "root": {"keys": [key(9).public().to_short()], "threshold": 1},
            "keys": [{"id": "ops", "key": key(1).public().to_short()}, {"id": "gone", "key": key(2).public().to_short()}],
            "rules": [rule], "revoked": ["gone"],
        });
        let sealed = sign_envelope(TRUST_TYPE, bundle.to_string().into_bytes(), &[("root", &key(9))]);
        let trust = open_bundle(&sealed.encode(), BundleAuthority::Stored).unwrap();
        RemovalVerifier::new(&Subjects::new("f"), trust).unwrap()
    }

    fn message(seed: u8, stored: Option<Timestamp>) -> Message {
        let draft = CommandDraft {
            action: Action::Remove(NoParameters {}),
            to: Target::nodes(vec!["web1".parse().unwrap()]),
            options: CommandOptions::default(),
            channel: None,
            reason: None,
            lifetime: HumanDuration::seconds(60),
        };
        let signed = sign(draft.command("f", Uuid::nil(), NOW), &[("ops", &key(seed))]).unwrap();
        let subject = "ensign.v1.f.state.web1.removed".to_owned();
        Message { subject, payload: signed.envelope, time: stored, seq: Some(7), ..Message::default() }
    }

    #[test]
    fn a_removal_counts_by_the_rules_of_the_bundle() {
        for (rule, is_allowed) in [
            (json!({"keys": ["*"]}), true),
            (json!({"keys": ["ops"], "actions": ["remove"], "nodes": ["web*"], "max_nodes": 1}), true),
            (json!({"keys": ["ops"], "nodes": ["db*"]}), false),
            (json!({"keys": ["ops"], "groups": ["web"]}), false),
            (json!({"keys": ["ops"], "actions": ["cancel", "withdraw"]}), false),
            (json!({"keys": ["ops"], "noop_only": true}), false),
            (json!({"keys": ["ops"], "types": ["file"]}), false),
            (json!({"keys": ["ops"], "channels": ["*"]}), false),
            (json!({"keys": ["*"], "quorum": 2}), false),
        ] {
            let verdict = verifier(&rule).verify(&message(1, None));
            assert_eq!(verdict.is_ok(), is_allowed, "{rule}: {verdict:?}");
        }
    }

    #[test]
    fn a_removal_by_another_key_or_for_another_node_does_not_count() {
        let verifier = verifier(&json!({"keys": ["*"]}));
        assert!(matches!(verifier.verify(&message(2, None)), Err(RemovalError::Check(CheckError::NotSigned))), "revoked");
        assert!(matches!(verifier.verify(&message(3, None)), Err(RemovalError::Check(CheckError::NotSigned))), "unknown");
        let moved = Message { subject: "ensign.v1.f.state.db1.removed".to_owned(), ..message(1, None) };
        assert!(matches!(verifier.verify(&moved), Err(RemovalError::OtherNode)));
        // A clock that is ahead does not remove a node for longer than the server knows.
        let (before, after) = (NOW - jiff::SignedDuration::from_secs(60), NOW + jiff::SignedDuration::from_secs(60));
        for (stored, at) in [(None, NOW), (Some(before), before), (Some(after), NOW)] {
            let removal = verifier.verify(&message(1, stored)).unwrap();
            assert_eq!((removal.at, removal.by, removal.seq), (at, vec!["ops".to_owned()], Some(7)));
        }
    }
}
