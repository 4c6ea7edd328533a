//! Text that must not be shown.
//!
//! A property that is always a secret has the type [`Secret`]. Texts that become secret because of where they come
//! from, as `secret()` in a template, are noted in [`Secrets`], which takes them out of whatever is about to be shown.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use zeroize::Zeroize;

/// What stands in the place of a secret wherever one would be printed or serialised.
pub const REDACTED: &str = "***";

/// A secret text: never printed, never serialised, wiped when dropped.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Takes a text under protection.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

impl schemars::JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "description": "A secret: never shown in events, logs or errors.", "writeOnly": true})
    }
}

/// What of a secret in several lines is a secret by itself; shorter lines are ends of blocks, braces and the like.
const MIN_LINE: usize = 8;
/// What was made of a secret and is shorter tells nothing, and would blank half of every text.
const MIN_DERIVED: usize = 4;

/// The secrets that a run has come to know. Whatever leaves the run goes through it.
#[derive(Default)]
pub struct Secrets {
    /// Longest first, so that a secret within a secret leaves nothing of the outer one.
    known: Mutex<Vec<Secret>>,
    uses: AtomicUsize,
}

impl Secrets {
    /// Notes a secret: the text, its longer lines, and both as they are inside of quotes.
    pub fn add(&self, text: &str) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        let lines = text.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE);
        for part in std::iter::once(text).chain(lines) {
            self.note(part);
            let quoted = Value::String(part.to_owned()).to_string();
            self.note(quoted.trim_matches('"'));
        }
    }

    /// Notes what was made of a secret: every text in `value` that does not show it as it is anyway.
    pub fn add_derived(&self, value: &Value) {
        match value {
            Value::String(text) if text.len() >= MIN_DERIVED && !self.hides(text) => self.note(text),
            Value::Number(number) if number.to_string().len() >= MIN_DERIVED => self.note(&number.to_string()),
            Value::Array(items) => items.iter().for_each(|item| self.add_derived(item)),
            Value::Object(map) => map.values().for_each(|item| self.add_derived(item)),
            _ => {}
        }
    }

    fn note(&self, text: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if text.is_empty() || known.iter().any(|secret| secret.reveal() == text) {
            return;
        }
        let place = known.partition_point(|secret| secret.reveal().len() >= text.len());
        known.insert(place, Secret::new(text));
    }

    /// How often a secret was taken or looked up: when it has changed over some work, the work has seen one.
    pub fn uses(&self) -> usize {
        self.uses.load(Ordering::Relaxed)
    }

    /// Notes that a value was looked up; counts when it holds a secret.
    pub fn seen(&self, value: &Value) {
        if self.hides_value(value) {
            self.uses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True when none is known: then there is nothing to take out.
    pub fn is_empty(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether a text holds a secret.
    pub fn hides(&self, text: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|secret| text.contains(secret.reveal()))
    }

    /// Whether a text anywhere in a value holds a secret.
    pub fn hides_value(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.hides(text),
            Value::Number(number) => self.hides(&number.to_string()),
            Value::Array(items) => items.iter().any(|item| self.hides_value(item)),
            Value::Object(map) => map.iter().any(|(key, item)| self.hides(key) || self.hides_value(item)),
            _ => false,
        }
    }

    /// The text with [`REDACTED`] in the place of secrets.
    pub fn veil<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().fold(Cow::Borrowed(text), |text, secret| match text.contains(secret.reveal()) {
            true => Cow::Owned(text.replace(secret.reveal(), REDACTED)),
            false => text,
        })
    }

    /// The same for a text that is kept.
    pub fn veil_in(&self, text: &mut String) {
        if let Cow::Owned(veiled) = self.veil(text) {
            text.zeroize();
            *text = veiled;
        }
    }

    /// The same for every text and key in a value. A number that is a secret becomes a text.
    pub fn veil_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.veil_in(text),
            Value::Number(number) if self.hides(&number.to_string()) => *value = Value::String(REDACTED.to_owned()),
            Value::Array(items) => items.iter_mut().for_each(|item| self.veil_value(item)),
            Value::Object(map) => {
                if map.keys().any(|key| self.hides(key)) {
                    *map = std::mem::take(map).into_iter().map(|(key, item)| (self.veil(&key).into_owned(), item)).collect();
                }
                map.values_mut().for_each(|item| self.veil_value(item));
            }
            _ => {}
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn known_secrets_are_taken_out() {
        let secrets = Secrets::default();
        assert!(secrets.is_empty() && secrets.veil("hunter2") == "hunter2");
        for text in ["hunter2", "hunter2\"x", "key line one\n}\nkey line two", "", "pa\tss"] {
            secrets.add(text);
        }
        for (text, expected) in [
            ("-p hunter2 -u x", "-p *** -u x"),
            ("hunter2\"x", "***"),
            (r#"invalid "hunter2\"x""#, r#"invalid "***""#),
            ("+key line two\n+}", "+***\n+}"),
            (r"pa\tss", "***"),
            ("nothing", "nothing"),
            ("", ""),
        ] {
            assert_eq!(secrets.veil(text), expected);
            assert_eq!(secrets.hides(text), text != expected);
        }
        let mut value = json!({"a": ["hunter2", 1, null], "hunter2": {"b": "x hunter2"}});
        assert!(secrets.hides_value(&value));
        secrets.veil_value(&mut value);
        assert_eq!(value, json!({"a": ["***", 1, null], "***": {"b": "x ***"}}));
        assert_eq!(format!("{secrets:?}"), "***");
    }

    #[test]
    fn what_is_made_of_a_secret_is_one() {
        let secrets = Secrets::default();
        secrets.add("hunter2");
        let uses = secrets.uses();
        secrets.seen(&json!({"a": "nothing"}));
        assert_eq!(secrets.uses(), uses);
        secrets.seen(&json!(["x hunter2"]));
        assert_eq!(secrets.uses(), uses + 1);
        secrets.add_derived(&json!(["HUNTER2", "abc", "with hunter2 in it", 4711, {"x": "dHVu"}, true]));
        assert_eq!(secrets.veil("HUNTER2 abc with hunter2 in it 4711 dHVu true"), "*** abc with *** in it *** *** true");
        let mut number = json!(4711);
        secrets.veil_value(&mut number);
        assert_eq!(number, json!("***"));
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret: Secret = serde_json::from_str("\"hunter2\"").unwrap();
        assert_eq!(secret.reveal(), "hunter2");
        assert_eq!(format!("{secret} {secret:?} {}", serde_json::to_string(&secret).unwrap()), "*** *** \"***\"");
    }
}
