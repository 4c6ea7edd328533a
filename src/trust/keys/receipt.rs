//! Receipts, signed by nodes and verified by readers of their messages.
//!
//! The signature proves that the holder of the key sent exactly these bytes on exactly this subject. The caller knows the owner
//! of the key. The hash chain of receipts shows that no message is missing.

use uuid::Uuid;

use crate::model::NodeId;
use crate::wire::receipt::{MalformedReceipt, RECEIPT_TYPE, Receipt, ReceiptBody};
use crate::wire::report::{ROLLOUT_FAILURE, ROLLOUT_SUCCESS, RolloutResult};
use crate::wire::rollout_plan::Witness;
use crate::wire::{digest, json};

use crate::trust::keys::key::{PublicKey, SigningKey};

/// A message without a valid receipt.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// The message has no receipt.
    #[error("it has no receipt")]
    Missing,
    /// The receipt can't be read.
    #[error("its receipt can't be read")]
    Malformed(#[from] MalformedReceipt),
    /// The signature does not verify under this key.
    #[error("its receipt is not signed by the key of the node")]
    Signature,
    /// The receipt is of another node.
    #[error("its receipt is that of the node {0}")]
    Node(NodeId),
    /// The receipt is of a message on another subject.
    #[error("its receipt is that of a message on {0}")]
    Subject(String),
    /// The receipt is of other bytes.
    #[error("its receipt is that of another message: the content was changed")]
    Payload,
    /// The receipt is of an answer to another command.
    #[error("its receipt answers another command")]
    Command,
}

/// A statement with a verified signature, about the given message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedReceipt {
    /// The statement of the node.
    pub statement: ReceiptBody,
    /// SHA-256 of the statement, in lower-case hex.
    pub digest: String,
}

/// Signs a statement.
pub fn sign_receipt(key: &SigningKey, statement: &ReceiptBody) -> Receipt {
    // The statement has only texts and numbers, so serialisation can't fail.
    let statement = serde_json::to_vec(statement).unwrap_or_default();
    let signature = key.sign(RECEIPT_TYPE, &statement);
    Receipt { statement, signature }
}

/// Signs a statement and returns the text of the header.
pub fn issue_receipt(key: &SigningKey, statement: &ReceiptBody) -> String {
    sign_receipt(key, statement).encode()
}

/// Verifies the receipt of a message of `node` under its key.
///
/// # Errors
/// When the receipt is missing, not signed by this key, or about another message.
pub fn verify_receipt(
    receipt: Option<&str>,
    key: &PublicKey,
    node: &NodeId,
    subject: &str,
    payload: &[u8],
) -> Result<VerifiedReceipt, ReceiptError> {
    let receipt = Receipt::parse(receipt.ok_or(ReceiptError::Missing)?)?;
    if !key.verify(RECEIPT_TYPE, &receipt.statement, &receipt.signature) {
        return Err(ReceiptError::Signature);
    }
    let statement = receipt.read()?;
    if statement.node != *node {
        return Err(ReceiptError::Node(statement.node));
    }
    if statement.subject != subject {
        return Err(ReceiptError::Subject(statement.subject));
    }
    if statement.sha256 != digest(payload) {
        return Err(ReceiptError::Payload);
    }
    Ok(VerifiedReceipt { digest: receipt.digest(), statement })
}

/// True for a message of a witness that proves the success of the command `id`. The signed bytes of the command have the digest
/// `command`.
pub fn proves_success(witness: &Witness, id: Uuid, command: &str, subject: &str, receipt: Option<&str>, payload: &[u8]) -> bool {
    signed_result(witness, id, command, subject, receipt, payload).is_some_and(|mark| mark.protocol == ROLLOUT_SUCCESS)
}

/// True for a message of a witness that ran the assignment `id`, failed, and went back. The arguments are those of
/// [`proves_success`].
pub fn proves_return(witness: &Witness, id: Uuid, command: &str, subject: &str, receipt: Option<&str>, payload: &[u8]) -> bool {
    let mark = signed_result(witness, id, command, subject, receipt, payload);
    mark.is_some_and(|mark| mark.protocol == ROLLOUT_FAILURE && mark.reverts)
}

/// Returns the report of a witness about the command `id`, if the key of the witness signed the report.
fn signed_result(
    witness: &Witness,
    id: Uuid,
    command: &str,
    subject: &str,
    receipt: Option<&str>,
    payload: &[u8],
) -> Option<RolloutResult> {
    let key = witness.key.parse::<PublicKey>().ok()?;
    verify_receipt(receipt, &key, &witness.node, subject, payload).ok()?.check_command(command).ok()?;
    json::read::<RolloutResult>(payload).ok().filter(|mark| mark.id == id && mark.node == witness.node)
}

impl VerifiedReceipt {
    /// Checks that the message answers the command of this digest.
    ///
    /// # Errors
    /// When it answers another command, or none.
    pub fn check_command(self, command: &str) -> Result<Self, ReceiptError> {
        if self.statement.command.as_deref() == Some(command) { Ok(self) } else { Err(ReceiptError::Command) }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn node(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn statement() -> ReceiptBody {
        ReceiptBody {
            node: node("web1"),
            boot: Uuid::nil(),
            seq: None,
            prev: None,
            subject: "s".into(),
            sha256: digest(b"payload"),
            at: Timestamp::UNIX_EPOCH,
            command: Some("c".into()),
        }
    }

    #[test]
    fn a_success_is_proved_by_its_witness_for_one_command() {
        let (key, other, id) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]), Uuid::from_u128(7));
        let witness = |key: &SigningKey| Witness { node: node("web1"), key: key.public().to_short() };
        let result = |protocol: &str, id, reverts| {
            let (at, outcome) = (Timestamp::UNIX_EPOCH, crate::wire::CommandOutcome::Changed);
            let result = RolloutResult { protocol: protocol.to_owned(), id, node: node("web1"), at, outcome, reverts };
            serde_json::to_vec(&result).unwrap()
        };
        let mark = |id| result(ROLLOUT_SUCCESS, id, false);
        let payload = mark(id);
        let receipt =
            |key: &SigningKey, payload: &[u8]| issue_receipt(key, &ReceiptBody { sha256: digest(payload), ..statement() });
        let good = receipt(&key, &payload);
        assert!(proves_success(&witness(&key), id, "c", "s", Some(&good), &payload));
        for (witness, id, command, subject, receipt, payload) in [
            (witness(&other), id, "c", "s", Some(good.clone()), payload.clone()),
            (witness(&key), Uuid::from_u128(8), "c", "s", Some(good.clone()), payload.clone()),
            (witness(&key), id, "another command", "s", Some(good.clone()), payload.clone()),
            (witness(&key), id, "c", "another subject", Some(good.clone()), payload.clone()),
            (witness(&key), id, "c", "s", None, payload.clone()),
            (witness(&key), id, "c", "s", Some(receipt(&other, &payload)), payload.clone()),
            (witness(&key), id, "c", "s", Some(receipt(&key, &mark(Uuid::from_u128(8)))), mark(Uuid::from_u128(8))),
            (witness(&key), id, "c", "s", Some(good), b"{}".to_vec()),
            (Witness { node: node("web1"), key: "no key".into() }, id, "c", "s", None, payload.clone()),
        ] {
            assert!(!proves_success(&witness, id, command, subject, receipt.as_deref(), &payload));
        }
        // A success proves no return, nor does a failure of a node that did not run the assignment.
        for (protocol, reverts, is_return) in
            [(ROLLOUT_FAILURE, true, true), (ROLLOUT_FAILURE, false, false), (ROLLOUT_SUCCESS, true, false)]
        {
            let payload = result(protocol, id, reverts);
            let receipt = receipt(&key, &payload);
            assert_eq!(proves_return(&witness(&key), id, "c", "s", Some(&receipt), &payload), is_return, "{protocol}");
            assert!(!proves_return(&witness(&other), id, "c", "s", Some(&receipt), &payload), "another key");
            assert!(!proves_return(&witness(&key), id, "c", "s", None, &payload), "no receipt");
        }
    }

    #[test]
    fn a_receipt_is_of_one_node_subject_and_payload() {
        let key = SigningKey::from_seed(&[1; 32]);
        let receipt = issue_receipt(&key, &statement());
        let check = |receipt: Option<&str>, key: &SigningKey, name: &str, subject: &str, payload: &[u8]| {
            verify_receipt(receipt, &key.public(), &node(name), subject, payload)
        };
        let attested = check(Some(&receipt), &key, "web1", "s", b"payload").unwrap();
        assert_eq!(attested.statement, statement());
        assert!(attested.clone().check_command("c").is_ok());
        assert!(matches!(attested.check_command("d"), Err(ReceiptError::Command)));
        let other = SigningKey::from_seed(&[2; 32]);
        assert!(matches!(check(None, &key, "web1", "s", b"payload"), Err(ReceiptError::Missing)));
        assert!(matches!(check(Some("x"), &key, "web1", "s", b"payload"), Err(ReceiptError::Malformed(_))));
        assert!(matches!(check(Some(&receipt), &other, "web1", "s", b"payload"), Err(ReceiptError::Signature)));
        assert!(matches!(check(Some(&receipt), &key, "web2", "s", b"payload"), Err(ReceiptError::Node(_))));
        assert!(matches!(check(Some(&receipt), &key, "web1", "t", b"payload"), Err(ReceiptError::Subject(_))));
        assert!(matches!(check(Some(&receipt), &key, "web1", "s", b"payloae"), Err(ReceiptError::Payload)));
    }
}
