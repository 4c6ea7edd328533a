//! Text that must not be shown.
//!
//! A property that is always a secret has the type [`Secret`]. Texts that are secret by origin, as of `secret()` in a template,
//! are added to [`Secrets`], which redacts all output. Redacted values of properties, as environment variables of commands, are
//! added too. [`Secrets`] redacts these in the output of programs and in texts about the host. Names and the author's own text
//! stay.

use std::borrow::Cow;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use zeroize::Zeroize;

use super::encoded_forms::encoded_forms;
use super::lock;

/// Replacement for a secret in all printed and serialised text.
pub const REDACTED: &str = "***";

/// A secret text: never printed, never serialised, wiped when dropped.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text as a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, for the one place that needs the text.
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

/// Minimum length, in bytes, of a line of a multi-line secret that is a secret by itself. Shorter lines are ends of blocks,
/// braces and similar text.
const MIN_LINE: usize = 8;
/// Minimum length, in bytes, of a value derived from a secret. A shorter value reveals nothing, and its redaction would blank
/// half of every text.
const MIN_DERIVED: usize = 4;
/// Minimum length, in characters, of a redacted password or header, for the same reason.
const MIN_VALUE: usize = MIN_DERIVED;
/// Minimum length, in characters, of the redacted value of a variable. Most variables are switches, levels, numbers and
/// languages, and so short a text can be guessed anyway. After its name and `=`, a shorter value is redacted too.
const MIN_VARIABLE: usize = 6;

/// A redacted property.
#[derive(Clone, Copy)]
pub enum RedactedProperty<'a> {
    /// A variable, as `NAME=value`.
    Variable(&'a str),
    /// A password, a header, a hash.
    Value(&'a str),
}

impl<'a> RedactedProperty<'a> {
    /// Returns the text as written.
    pub fn text(self) -> &'a str {
        match self {
            Self::Variable(text) | Self::Value(text) => text,
        }
    }
}

/// A redacted text.
struct KnownSecret {
    text: Secret,
    /// The replacement.
    replacement: String,
    /// True for a secret in everything that leaves the run, false for a secret in outputs alone.
    in_all_output: bool,
}

/// The secrets that a run has read. All output of the run passes through [`Secrets`].
#[derive(Default)]
pub struct Secrets {
    /// Longest first, so that a secret within a secret leaves nothing of the outer one.
    known: Mutex<Vec<KnownSecret>>,
    uses: AtomicUsize,
}

impl Secrets {
    /// Adds a secret: the text, its longer lines, and both in their quoted forms.
    pub fn add(&self, text: &str) {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.add_forms(text, true);
    }

    /// Adds a redacted property, for outputs: see [`Secrets::redact_output`].
    pub fn add_hidden(&self, property: RedactedProperty<'_>) {
        let (name, value, shortest) = match property {
            RedactedProperty::Variable(pair) => match pair.split_once('=') {
                Some((name, value)) => (Some(name), value, MIN_VARIABLE),
                None => (None, pair, MIN_VARIABLE),
            },
            RedactedProperty::Value(value) => (None, value, MIN_VALUE),
        };
        if value.trim().chars().count() >= shortest {
            self.add_forms(value, false);
            self.add_forms(value.trim(), false);
        } else if let Some(name) = name.filter(|_| !value.trim().is_empty()) {
            self.add_text_as(&format!("{name}={value}"), &format!("{name}={REDACTED}"), false);
        }
    }

    /// Adds a text, its longer lines, and both in their quoted forms. Adds the encoded forms of the text, too.
    fn add_forms(&self, text: &str, everywhere: bool) {
        encoded_forms(text).iter().for_each(|form| self.add_text_as(form, REDACTED, everywhere));
        let lines = text.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE);
        for part in std::iter::once(text).chain(lines) {
            self.add_text_as(part, REDACTED, everywhere);
            let quoted = Value::String(part.to_owned()).to_string();
            self.add_text_as(quoted.trim_matches('"'), REDACTED, everywhere);
        }
    }

    /// Adds values derived from a secret: every text in `value` that does not contain the secret itself.
    pub fn add_derived(&self, value: &Value) {
        match value {
            Value::String(text) if text.len() >= MIN_DERIVED && !self.contains_secret(text) => self.add_text(text),
            Value::Number(number) if number.to_string().len() >= MIN_DERIVED => self.add_text(&number.to_string()),
            Value::Array(items) => items.iter().for_each(|item| self.add_derived(item)),
            Value::Object(map) => map.values().for_each(|item| self.add_derived(item)),
            _ => {}
        }
    }

    fn add_text(&self, text: &str) {
        self.add_text_as(text, REDACTED, true);
    }

    fn add_text_as(&self, text: &str, shown: &str, everywhere: bool) {
        if text.is_empty() {
            return;
        }
        let mut known = lock(&self.known);
        if let Some(known) = known.iter_mut().find(|known| known.text.reveal() == text) {
            known.in_all_output |= everywhere;
            return;
        }
        let place = known.partition_point(|known| known.text.reveal().len() >= text.len());
        known.insert(place, KnownSecret { text: Secret::new(text), replacement: shown.to_owned(), in_all_output: everywhere });
    }

    /// Returns the number of additions and look-ups of secrets. A change during some work shows that the work used a secret.
    pub fn use_count(&self) -> usize {
        self.uses.load(Ordering::Relaxed)
    }

    /// Counts a use of a value that is a secret by its origin.
    pub fn note_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a look-up of a value that contains a secret.
    pub fn note_lookup(&self, value: &Value) {
        if self.value_contains_secret(value) {
            self.uses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True when no secret is known; outputs may still need redaction.
    pub fn is_empty(&self) -> bool {
        !lock(&self.known).iter().any(|known| known.in_all_output)
    }

    /// True when no redaction is needed, not even of outputs.
    pub fn redacts_nothing(&self) -> bool {
        lock(&self.known).is_empty()
    }

    /// Returns true when a text contains a secret.
    pub fn contains_secret(&self, text: &str) -> bool {
        lock(&self.known).iter().any(|known| known.in_all_output && text.contains(known.text.reveal()))
    }

    /// Returns true when any text in a value contains a secret.
    pub fn value_contains_secret(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.contains_secret(text),
            Value::Number(number) => self.contains_secret(&number.to_string()),
            Value::Array(items) => items.iter().any(|item| self.value_contains_secret(item)),
            Value::Object(map) => map.iter().any(|(key, item)| self.contains_secret(key) || self.value_contains_secret(item)),
            _ => false,
        }
    }

    /// Redacts the secrets in a text, with [`REDACTED`] in their place.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redacted(text, false)
    }

    /// Redacts a text of a program or about the host: secrets, and redacted values of properties.
    pub fn redact_output<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redacted(text, true)
    }

    fn redacted<'a>(&self, text: &'a str, output: bool) -> Cow<'a, str> {
        let known = lock(&self.known);
        known.iter().filter(|known| output || known.in_all_output).fold(Cow::Borrowed(text), |text, known| {
            match text.contains(known.text.reveal()) {
                true => Cow::Owned(text.replace(known.text.reveal(), &known.replacement)),
                false => text,
            }
        })
    }

    /// Redacts a text in place.
    pub fn redact_in(&self, text: &mut String) {
        replace_redacted(text, into_changed(self.redact(text)));
    }

    /// Redacts an output in place.
    pub fn redact_output_in(&self, text: &mut String) {
        replace_redacted(text, into_changed(self.redact_output(text)));
    }

    /// Redacts every text in a value about the host, as an output. Keys stay, because they are the program's own.
    pub fn redact_output_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.redact_output_in(text),
            Value::Number(number) => {
                let text = number.to_string();
                if self.redact_output(&text) != text {
                    *value = Value::String(REDACTED.to_owned());
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_output_value(item)),
            Value::Object(map) => map.values_mut().for_each(|item| self.redact_output_value(item)),
            _ => {}
        }
    }

    /// Redacts every text and key in a value. A number that is a secret becomes a text.
    pub fn redact_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.redact_in(text),
            Value::Number(number) if self.contains_secret(&number.to_string()) => *value = Value::String(REDACTED.to_owned()),
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item)),
            Value::Object(map) => {
                if map.keys().any(|key| self.contains_secret(key)) {
                    *map = std::mem::take(map).into_iter().map(|(key, item)| (self.redact(&key).into_owned(), item)).collect();
                }
                map.values_mut().for_each(|item| self.redact_value(item));
            }
            _ => {}
        }
    }
}

/// Returns the text if redaction has changed it.
fn into_changed(text: Cow<'_, str>) -> Option<String> {
    match text {
        Cow::Owned(text) => Some(text),
        Cow::Borrowed(_) => None,
    }
}

fn replace_redacted(text: &mut String, veiled: Option<String>) {
    if let Some(veiled) = veiled {
        text.zeroize();
        *text = veiled;
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
    fn known_secrets_are_redacted() {
        let secrets = Secrets::default();
        assert!(secrets.is_empty() && secrets.redact("hunter2") == "hunter2");
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
            assert_eq!(secrets.redact(text), expected);
            assert_eq!(secrets.contains_secret(text), text != expected);
        }
        let mut value = json!({"a": ["hunter2", 1, null], "hunter2": {"b": "x hunter2"}});
        assert!(secrets.value_contains_secret(&value));
        secrets.redact_value(&mut value);
        assert_eq!(value, json!({"a": ["***", 1, null], "***": {"b": "x ***"}}));
        assert_eq!(format!("{secrets:?}"), "***");
    }

    #[test]
    fn derived_values_are_secrets() {
        let secrets = Secrets::default();
        secrets.add("hunter2");
        let uses = secrets.use_count();
        secrets.note_lookup(&json!({"a": "nothing"}));
        assert_eq!(secrets.use_count(), uses);
        secrets.note_lookup(&json!(["x hunter2"]));
        assert_eq!(secrets.use_count(), uses + 1);
        secrets.add_derived(&json!(["HUNTER2", "abc", "with hunter2 in it", 4711, {"x": "dHVu"}, true]));
        assert_eq!(secrets.redact("HUNTER2 abc with hunter2 in it 4711 dHVu true"), "*** abc with *** in it *** *** true");
        let mut number = json!(4711);
        secrets.redact_value(&mut number);
        assert_eq!(number, json!("***"));
    }

    #[test]
    fn hidden_properties_are_redacted_in_outputs() {
        let secrets = Secrets::default();
        for pair in
            ["TOKEN=hunter2", "LEVEL=1", "FLAG=true", "PIN=1234", "LONG= spaced out ", "EMPTY=", "QUOTED=a\"b\"cd", "none"]
        {
            secrets.add_hidden(RedactedProperty::Variable(pair));
        }
        for value in ["passw", "abc"] {
            secrets.add_hidden(RedactedProperty::Value(value));
        }
        assert!(secrets.is_empty() && !secrets.redacts_nothing());
        for (text, expected) in [
            ("the token is hunter2", "the token is ***"),
            ("TOKEN=hunter2", "TOKEN=***"),
            ("1 of 1234 is true", "1 of 1234 is true"),
            ("LEVEL=1 FLAG=true PIN=1234 EMPTY=", "LEVEL=*** FLAG=*** PIN=*** EMPTY="),
            ("spaced out", "***"),
            (r#"said "a\"b\"cd""#, r#"said "***""#),
            ("passw abc none", "*** abc none"),
        ] {
            assert_eq!(secrets.redact_output(text), expected);
            // Names and the author's own text keep the value.
            assert_eq!(secrets.redact(text), text);
        }
        let mut status = json!({"output": ["hunter2"], "code": 1});
        secrets.redact_output_value(&mut status);
        assert_eq!(status, json!({"output": ["***"], "code": 1}));
        // A secret that is a hidden property too is redacted everywhere; the longer text goes first.
        secrets.add("hunter2");
        secrets.add_hidden(RedactedProperty::Variable("BOTH=prefix-hunter2"));
        assert_eq!(secrets.redact("hunter2"), "***");
        assert_eq!(secrets.redact_output("prefix-hunter2 hunter2"), "*** ***");
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret: Secret = serde_json::from_str("\"hunter2\"").unwrap();
        assert_eq!(secret.reveal(), "hunter2");
        assert_eq!(format!("{secret} {secret:?} {}", serde_json::to_string(&secret).unwrap()), "*** *** \"***\"");
    }
}
