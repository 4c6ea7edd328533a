//! Strict JSON: a single meaning for every accepted text.
//!
//! Readers disagree about duplicate keys and about text after a value. Signer and verifier must read the same, so both are
//! refused. All of `wire` reads JSON with this module.
//! refused. Everything in this folder is read by this module.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_path_to_error::Track;

use super::value_decode;

/// The deepest nesting of arrays and objects.
pub const MAX_DEPTH: usize = 64;

/// A text that is not strict JSON, or not of the wanted shape.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text itself is wrong.
    #[error("invalid JSON at {path}")]
    Text {
        /// The path, as `action.ensure.type`; `.` is the top.
        path: String,
        /// The mistake.
        #[source]
        source: serde_json::Error,
    },
    /// The text is JSON, but something in it is missing, unknown or of another type.
    #[error("unexpected JSON at {path}")]
    Shape {
        /// The path.
        path: String,
        /// The mistake.
        #[source]
        source: serde_json::Error,
    },
}

/// Reads any JSON value; refuses duplicate keys, text after the value, and nesting over [`MAX_DEPTH`].
///
/// # Errors
/// When the bytes are not UTF-8, not JSON, or break one of these rules.
pub fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let mut track = Track::new();
    let value = StrictValue { depth: 0 }
        .deserialize(serde_path_to_error::Deserializer::new(&mut reader, &mut track))
        .map_err(|source| JsonError::Text { path: track.path().to_string(), source })?;
    reader.end().map_err(|source| JsonError::Text { path: ".".to_owned(), source })?;
    Ok(value)
}

/// Reads a message: strictly as [`parse`], then into its type.
///
/// # Errors
/// As [`parse`], and when the value has not the shape of `T`.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    // Building a value first takes longer than two passes over the text, and tracking the place of an error takes longer
    // still. So only a wrong text is read that way.
    if is_strict(bytes)
        && let Ok(message) = serde_json::from_slice(bytes)
    {
        return Ok(message);
    }
    from_value(&parse(bytes)?)
}

/// True when [`parse`] accepts the text.
fn is_strict(bytes: &[u8]) -> bool {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    StrictCheck { depth: 0 }.deserialize(&mut reader).is_ok() && reader.end().is_ok()
}

/// Decodes a message from a parsed value.
///
/// # Errors
/// When the value has not the shape of `T`.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, JsonError> {
    value_decode::read(value).map_err(|wrong| JsonError::Shape { path: wrong.path().to_string(), source: wrong.into_inner() })
}

/// Builds a [`Value`] and counts its depth.
#[derive(Clone, Copy)]
struct StrictValue {
    depth: usize,
}

impl StrictValue {
    fn descend<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for StrictValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let nested = self.descend()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(nested)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let nested = self.descend()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key \"{key}\"")));
            }
            let value = entries.next_value_seed(nested)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Checks like `Strict`, and builds no value.
#[derive(Clone, Copy)]
struct StrictCheck {
    depth: usize,
}

impl StrictCheck {
    fn nested<E: serde::de::Error>(self) -> Result<Self, E> {
        StrictValue { depth: self.depth }.descend().map(|StrictValue { depth }| Self { depth })
    }
}

impl<'de> DeserializeSeed<'de> for StrictCheck {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictCheck {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let nested = self.nested()?;
        while items.next_element_seed(nested)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let nested = self.nested()?;
        let mut keys = Vec::new();
        while let Some(key) = entries.next_key_seed(ObjectKey)? {
            keys.push(key);
            entries.next_value_seed(nested)?;
        }
        keys.sort_unstable();
        if keys.windows(2).any(|pair| matches!(pair, [one, other] if one == other)) {
            return Err(A::Error::custom("duplicate key"));
        }
        Ok(())
    }
}

/// Reads a key; copies only keys with escapes.
struct ObjectKey;

impl<'de> DeserializeSeed<'de> for ObjectKey {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for ObjectKey {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::diag::error_chain;

    #[test]
    fn ordinary_json_is_read() {
        let text = br#" {"a": [1, -2, 2.5, null, true, "x\u00e9"], "b": {"a": {}}} "#;
        assert_eq!(parse(text).unwrap(), json!({"a": [1, -2, 2.5, null, true, "xé"], "b": {"a": {}}}));
    }

    #[test]
    fn ambiguous_json_is_refused_with_its_path() {
        for (text, wanted) in [
            (r#"{"a":1,"a":1}"#, "invalid JSON at .: duplicate key \"a\" at line 1 column 10"),
            (r#"{"a":{"b":[0,{"c":1,"c":2}]}}"#, "invalid JSON at a.b[1]: duplicate key \"c\" at line 1 column 23"),
            (r#"{"a":1,"\u0061":2}"#, "invalid JSON at .: duplicate key \"a\" at line 1 column 15"),
            ("{} {}", "invalid JSON at .: trailing characters at line 1 column 4"),
            ("{}x", "invalid JSON at .: trailing characters at line 1 column 3"),
            ("{}\0", "invalid JSON at .: trailing characters at line 1 column 3"),
            ("", "invalid JSON at .: EOF while parsing a value at line 1 column 0"),
            ("{\"a\":1e999}", "invalid JSON at a: number out of range at line 1 column 10"),
            (r#"{"a":"\ud800"}"#, "invalid JSON at a: unexpected end of hex escape at line 1 column 13"),
        ] {
            assert_eq!(error_chain(&parse(text.as_bytes()).unwrap_err()), wanted, "{text}");
            assert_eq!(error_chain(&read::<Value>(text.as_bytes()).unwrap_err()), wanted, "{text}");
        }
        assert!(parse(b"{\"a\":\"\xff\"}").is_err());
        assert!(parse(b"\xef\xbb\xbf{}").is_err());
    }

    #[test]
    fn nesting_has_a_limit() {
        let nest = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nest(MAX_DEPTH).as_bytes()).is_ok());
        let error = parse(nest(MAX_DEPTH + 1).as_bytes()).unwrap_err();
        assert!(error_chain(&error).contains("nested deeper than 64 levels"), "{}", error_chain(&error));
        assert!(parse("[".repeat(1_000_000).as_bytes()).is_err());
        for depth in [MAX_DEPTH, MAX_DEPTH + 1, 1_000_000] {
            assert_eq!(is_strict(nest(depth).as_bytes()), depth == MAX_DEPTH);
        }
    }

    /// JSON and what is nearly JSON: small pieces in any order.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"a\":",
            "\"b\":",
            "\"\\u0061\":",
            "1",
            "-0",
            "1e999",
            "2.5",
            "null",
            "true",
            "\"a\"",
            "\"é\"",
            "\"\\ud800\"",
            " ",
            "{\"a\":1,\"b\":[2]}",
            "{\"a\":{},\"a\":1}",
            "\u{0}",
        ]);
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// The short way takes what the long one takes, and reads the same in it.
        #[test]
        fn both_ways_to_read_are_one(text in pieces(), cut in any::<prop::sample::Index>()) {
            for bytes in [text.as_bytes(), &text.as_bytes()[..cut.index(text.len() + 1)]] {
                let value = parse(bytes);
                prop_assert_eq!(is_strict(bytes), value.is_ok());
                prop_assert_eq!(read::<Value>(bytes).ok(), value.ok());
            }
        }
    }

    #[test]
    fn a_wrong_shape_names_its_path() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Inner {
            #[serde(rename = "n")]
            _n: u8,
        }
        let error = read::<std::collections::BTreeMap<String, Vec<Inner>>>(br#"{"x":[{"n":1},{"n":"two"}]}"#).unwrap_err();
        assert_eq!(error_chain(&error), "unexpected JSON at x[1].n: invalid type: string \"two\", expected u8");
        let error = read::<Inner>(br#"{"n":1,"m":2}"#).unwrap_err();
        assert_eq!(error_chain(&error), "unexpected JSON at m: unknown field `m`, expected `n`");
    }
}
