//! Signed data: a value of a key-value bucket with its purpose, exactly as signed.
//!
//! The bucket holds an envelope in place of the plain value.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::{InvalidId, check_name};

/// Payload type of a signed value.
pub const DATA_TYPE: &str = "application/vnd.ensign.data.v1+json";

/// A value, exactly as signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SignedData {
    /// The fleet.
    pub fleet: String,
    /// The bucket.
    pub bucket: String,
    /// The key in the bucket.
    pub key: String,
    /// The time of the signature. Nodes never go back to an earlier value of the same key.
    #[schemars(with = "String")]
    pub issued: Timestamp,
    /// The time after which the value is not valid any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub expires: Option<Timestamp>,
    /// The value as text. Exactly one of `text` and `base64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The value as standard base64, when it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// A signed value that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedData {
    /// The fleet is not a token.
    #[error(transparent)]
    Fleet(#[from] InvalidId),
    /// No value, or two.
    #[error("it must have exactly one of \"text\" and \"base64\"")]
    Value,
    /// `base64` is not standard base64 with padding.
    #[error("\"base64\" is not base64")]
    Base64,
    /// The value expires before it was issued.
    #[error("\"expires\" must be after \"issued\"")]
    ExpiresBeforeIssue,
}

impl SignedData {
    /// Sets the value to these bytes: as text where they are UTF-8.
    #[must_use]
    pub fn with_value(self, value: &[u8]) -> Self {
        match std::str::from_utf8(value) {
            Ok(text) => Self { text: Some(text.to_owned()), base64: None, ..self },
            Err(_) => Self { text: None, base64: Some(STANDARD.encode(value)), ..self },
        }
    }

    /// Returns the bytes of the value.
    ///
    /// # Errors
    /// When the form is wrong.
    pub fn value(&self) -> Result<Vec<u8>, MalformedData> {
        check_name("fleet", &self.fleet)?;
        if self.expires.is_some_and(|time| time <= self.issued) {
            return Err(MalformedData::ExpiresBeforeIssue);
        }
        match (&self.text, &self.base64) {
            (Some(text), None) => Ok(text.clone().into_bytes()),
            (None, Some(encoded)) => STANDARD.decode(encoded).map_err(|_| MalformedData::Base64),
            _ => Err(MalformedData::Value),
        }
    }
}

/// True for signed data: JSON with the payload type of signed data. All other bytes are a plain value.
pub fn is_signed_data(bytes: &[u8]) -> bool {
    // Lenient on purpose: an almost valid envelope is a broken one, not a plain value.
    let written: Option<Value> = bytes.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(bytes).ok()).flatten();
    written.is_some_and(|value| value.get("payloadType").is_some_and(|kind| kind == DATA_TYPE))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn data(over: &Value) -> Result<Vec<u8>, String> {
        let mut value = json!({"fleet": "prod", "bucket": "conf", "key": "a/b", "issued": "2026-11-20T10:00:00Z", "text": "x"});
        for (key, item) in over.as_object().unwrap() {
            value[key] = item.clone();
        }
        let data: SignedData = serde_json::from_value(value).map_err(|error| error.to_string())?;
        data.value().map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_texts_or_bytes() {
        assert_eq!(data(&json!({})), Ok(b"x".to_vec()));
        assert_eq!(data(&json!({"text": null, "base64": "/w=="})), Ok(vec![255]));
        for (over, why) in [
            (json!({"text": null}), "exactly one"),
            (json!({"base64": "eA=="}), "exactly one"),
            (json!({"text": null, "base64": "eA"}), "not base64"),
            (json!({"fleet": "a.b"}), "\"a.b\" is not the name of a fleet"),
            (json!({"expires": "2026-11-20T10:00:00Z"}), "must be after"),
            (json!({"x": 1}), "unknown field"),
        ] {
            assert!(data(&over).unwrap_err().contains(why), "{over}");
        }
        let issued = Timestamp::UNIX_EPOCH;
        let empty = SignedData {
            fleet: "f".into(),
            bucket: "b".into(),
            key: "k".into(),
            issued,
            expires: None,
            text: None,
            base64: None,
        };
        for bytes in [&b"text"[..], b"", b"\xff\0"] {
            assert_eq!(empty.clone().with_value(bytes).value().unwrap(), bytes);
        }
    }

    #[test]
    fn signed_data_is_told_from_plain_values() {
        for (bytes, wanted) in [
            (&br#"{"payloadType":"application/vnd.ensign.data.v1+json"}"#[..], true),
            (br#" {"payloadType":"application/vnd.ensign.data.v1+json","x":1}"#, true),
            (br#"{"payloadType":"application/vnd.in-toto+json"}"#, false),
            (br#"{"a":1}"#, false),
            (b"plain", false),
            (b"", false),
            (b"\xff", false),
        ] {
            assert_eq!(is_signed_data(bytes), wanted);
        }
    }
}
