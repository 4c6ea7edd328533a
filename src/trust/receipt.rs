//! Receipts, made by nodes and checked by whoever reads what they say.
//!
//! The signature says that the holder of the node's key sent exactly these bytes on exactly this subject. That the key
//! is the node's is for the caller to know; that nothing is missing is what the chain of statements tells.

use crate::model::NodeId;
use crate::wire::digest;
use crate::wire::receipt::{MalformedReceipt, RECEIPT_TYPE, Receipt, Statement};

use super::keys::{PublicKey, SigningKey};

/// A message whose receipt does not hold.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// There is none.
    #[error("it has no receipt")]
    Missing,
    /// It can't be read.
    #[error("its receipt can't be read")]
    Malformed(#[from] MalformedReceipt),
    /// The signature is not one of this key over this statement.
    #[error("its receipt is not signed by the key of the node")]
    Signature,
    /// The receipt of another node.
    #[error("its receipt is that of the node {0}")]
    Node(NodeId),
    /// The receipt of a message on another subject.
    #[error("its receipt is that of a message on {0}")]
    Subject(String),
    /// The receipt of other bytes.
    #[error("its receipt is that of another message: what it says was changed")]
    Payload,
    /// The answer to another command.
    #[error("its receipt answers another command")]
    Command,
}

/// A statement whose signature was checked, about a message that it fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attested {
    /// What the node says.
    pub statement: Statement,
    /// SHA-256 of the statement, lower-case hex.
    pub digest: String,
}

/// Signs a statement.
pub fn sign(key: &SigningKey, statement: &Statement) -> Receipt {
    // Texts and numbers only: there is nothing in it that could fail to be written.
    let statement = serde_json::to_vec(statement).unwrap_or_default();
    let signature = key.sign(RECEIPT_TYPE, &statement);
    Receipt { statement, signature }
}

/// Signs a statement; gives the text of the header.
pub fn issue(key: &SigningKey, statement: &Statement) -> String {
    sign(key, statement).encode()
}

/// Checks the receipt of a message of `node`, whose key this is.
///
/// # Errors
/// When it is missing, not signed by this key, or about something else.
pub fn attest(
    receipt: Option<&str>,
    key: &PublicKey,
    node: &NodeId,
    subject: &str,
    payload: &[u8],
) -> Result<Attested, ReceiptError> {
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
    Ok(Attested { digest: receipt.digest(), statement })
}

impl Attested {
    /// Holds it to be an answer to the command of this digest.
    ///
    /// # Errors
    /// When it answers another one, or none.
    pub fn answering(self, command: &str) -> Result<Self, ReceiptError> {
        if self.statement.command.as_deref() == Some(command) { Ok(self) } else { Err(ReceiptError::Command) }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn node(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn statement() -> Statement {
        Statement {
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
    fn a_receipt_is_of_one_node_subject_and_payload() {
        let key = SigningKey::from_seed(&[1; 32]);
        let receipt = issue(&key, &statement());
        let check = |receipt: Option<&str>, key: &SigningKey, name: &str, subject: &str, payload: &[u8]| {
            attest(receipt, &key.public(), &node(name), subject, payload)
        };
        let attested = check(Some(&receipt), &key, "web1", "s", b"payload").unwrap();
        assert_eq!(attested.statement, statement());
        assert!(attested.clone().answering("c").is_ok());
        assert!(matches!(attested.answering("d"), Err(ReceiptError::Command)));
        let other = SigningKey::from_seed(&[2; 32]);
        assert!(matches!(check(None, &key, "web1", "s", b"payload"), Err(ReceiptError::Missing)));
        assert!(matches!(check(Some("x"), &key, "web1", "s", b"payload"), Err(ReceiptError::Malformed(_))));
        assert!(matches!(check(Some(&receipt), &other, "web1", "s", b"payload"), Err(ReceiptError::Signature)));
        assert!(matches!(check(Some(&receipt), &key, "web2", "s", b"payload"), Err(ReceiptError::Node(_))));
        assert!(matches!(check(Some(&receipt), &key, "web1", "t", b"payload"), Err(ReceiptError::Subject(_))));
        assert!(matches!(check(Some(&receipt), &key, "web1", "s", b"payloae"), Err(ReceiptError::Payload)));
    }
}
