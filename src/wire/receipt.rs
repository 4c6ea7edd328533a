//! The receipt: the signature of a node over each message that it sends, in a header of the message.
//!
//! `base64(statement) "." base64(signature)`. The signature is over DSSE's encoding of [`RECEIPT_TYPE`] and the bytes of the
//! statement. Readers parse exactly the signed bytes, which are never encoded again. Keys belong to `trust`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::NodeId;

use super::envelope::digest;
use super::json::{self, JsonError};

/// The header that carries a receipt.
pub const HEADER: &str = "Ensign-Receipt";
/// Payload type of a statement.
pub const RECEIPT_TYPE: &str = "application/vnd.ensign.receipt.v1+json";
/// The longest header; a statement has a subject, two digests and some numbers.
pub const MAX_RECEIPT: usize = 4096;

/// The statement of a node about a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiptBody {
    /// The sender.
    pub node: NodeId,
    /// The id of the start of the agent.
    pub boot: Uuid,
    /// The position of the message in the chain of the node, from 1. Messages that may get lost have none: acknowledgements,
    /// answers, states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// SHA-256 of the statement before it in the chain, lower-case hex; none for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<String>,
    /// The subject it is sent on.
    pub subject: String,
    /// SHA-256 of the payload, lower-case hex.
    pub sha256: String,
    /// The time of the signature.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// SHA-256 of the signed bytes of the command that it answers, or of what was refused; lower-case hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// A header that is not a receipt.
#[derive(Debug, thiserror::Error)]
pub enum MalformedReceipt {
    /// More bytes than a receipt may have; nothing was read.
    #[error("the receipt has {0} bytes, more than {MAX_RECEIPT}")]
    TooLarge(usize),
    /// The header is not two parts of standard base64 with padding.
    #[error("the receipt is not two parts of base64 with a point between them")]
    Parts,
    /// The statement is not strict JSON of its form.
    #[error("the statement of the receipt can't be read")]
    Statement(#[from] JsonError),
    /// Wrong position: `seq` begins with 1, and `prev` is present from 2 on.
    #[error("the position of the receipt in its chain is invalid")]
    Place,
}

/// A receipt with an unverified signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The signed bytes.
    pub statement: Vec<u8>,
    /// The signature over [`super::pae`] of [`RECEIPT_TYPE`] and the statement.
    pub signature: Vec<u8>,
}

impl Receipt {
    /// Parses the text of a header.
    ///
    /// # Errors
    /// When the text is too long, or not two parts of base64.
    pub fn parse(text: &str) -> Result<Self, MalformedReceipt> {
        if text.len() > MAX_RECEIPT {
            return Err(MalformedReceipt::TooLarge(text.len()));
        }
        let (statement, signature) = text.split_once('.').ok_or(MalformedReceipt::Parts)?;
        let decode = |part: &str| STANDARD.decode(part).map_err(|_| MalformedReceipt::Parts);
        Ok(Self { statement: decode(statement)?, signature: decode(signature)? })
    }

    /// Returns the text of the header.
    pub fn encode(&self) -> String {
        format!("{}.{}", STANDARD.encode(&self.statement), STANDARD.encode(&self.signature))
    }

    /// Returns the SHA-256 of the statement, in lower-case hex. The next receipt of the chain names this digest.
    pub fn digest(&self) -> String {
        digest(&self.statement)
    }

    /// Parses the statement.
    ///
    /// # Errors
    /// When the statement is not strict JSON, or its position in the chain is wrong.
    pub fn read(&self) -> Result<ReceiptBody, MalformedReceipt> {
        let statement: ReceiptBody = json::read(&self.statement)?;
        let sound = match (statement.seq, &statement.prev) {
            (None | Some(1), None) => true,
            (Some(seq), Some(_)) => seq > 1,
            (None, Some(_)) | (Some(_), None) => false,
        };
        if sound { Ok(statement) } else { Err(MalformedReceipt::Place) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn statement() -> Value {
        json!({
            "node": "web1", "boot": Uuid::nil(), "seq": 2, "prev": "ab", "subject": "ensign.v1.prod.event.web1.lifecycle",
            "sha256": "cd", "at": "2026-11-20T10:01:00Z", "command": "ef",
        })
    }

    fn with(key: &str, value: Value) -> Receipt {
        let mut changed = statement();
        changed[key] = value;
        Receipt { statement: changed.to_string().into_bytes(), signature: vec![1, 2, 3] }
    }

    #[test]
    fn receipts_round_trip() {
        let receipt = with("command", json!("ef"));
        assert_eq!(Receipt::parse(&receipt.encode()).unwrap(), receipt);
        assert_eq!(receipt.read().unwrap().seq, Some(2));
        assert!(receipt.encode().ends_with(".AQID"));
    }

    #[test]
    fn malformed_receipts_are_refused() {
        for text in ["", "e30=", "e30=.", "e30.AQID", "e30=.AQI", "e30=.AQID.", "e-_=.AQID"] {
            let read = Receipt::parse(text).and_then(|receipt| receipt.read());
            assert!(read.is_err(), "{text}");
        }
        assert!(matches!(Receipt::parse(&"A".repeat(MAX_RECEIPT + 1)), Err(MalformedReceipt::TooLarge(_))));
        for (key, value) in [
            ("seq", json!(null)),
            ("seq", json!(0)),
            ("seq", json!(1)),
            ("prev", json!(null)),
            ("node", json!("a.b")),
            ("extra", json!(1)),
            ("at", json!("yesterday")),
        ] {
            assert!(with(key, value.clone()).read().is_err(), "{key} {value}");
        }
        let twice = statement().to_string().replacen('{', "{\"node\":\"web1\",", 1).into_bytes();
        assert!(Receipt { statement: twice, signature: vec![] }.read().is_err());
    }
}
