//! Writes values as YAML.
//!
//! The library that writes reads other numbers than `scalar.rs`. So texts that would read as numbers get quotes, and floats
//! get the point that marks a float.

use std::borrow::Cow;

use serde_json::Value;

use super::scalar::{NumberSyntax, plain_scalar};

/// A value as YAML, with a line end.
pub fn to_string(value: &Value) -> String {
    // JSON is YAML too. A write to memory fails only by a bug in the writer.
    let written = |value: &Value| serde_yaml::to_string(value).unwrap_or_else(|_| format!("{value}\n"));
    if !needs_placeholder(value) {
        return written(value);
    }
    let text = value.to_string();
    let mark = (0..).map(|number| format!("x{number}x")).find(|mark| !text.contains(mark.as_str())).unwrap_or_default();
    let mut special = Placeholders { mark, found: Vec::new() };
    let marked = written(&special.marked(value));
    let mut parts = marked.split(&special.mark);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Behind each mark come the index of the text, and an x.
        let (number, rest) = part.split_once('x').unwrap_or_default();
        out.push_str(number.parse().ok().and_then(|number: usize| special.found.get(number)).map_or("", String::as_str));
        out.push_str(rest);
    }
    out
}

/// True when a part of a value would read back as another value.
fn needs_placeholder(value: &Value) -> bool {
    match value {
        Value::String(text) => needs_quotes(text),
        Value::Number(number) => number.is_f64() && with_point(&number.to_string()).is_some(),
        Value::Array(items) => items.iter().any(needs_placeholder),
        Value::Object(map) => map.iter().any(|(key, item)| needs_quotes(key) || needs_placeholder(item)),
        _ => false,
    }
}

/// True for a text that reads as another value without quotes.
fn needs_quotes(text: &str) -> bool {
    plain_scalar(Cow::Borrowed(text), NumberSyntax::Yaml) != text
}

/// Adds the point to a float with an exponent and no point; none for any other number.
fn with_point(number: &str) -> Option<String> {
    let (digits, exponent) = number.split_once('e')?;
    (!digits.contains('.')).then(|| format!("{digits}.0e{exponent}"))
}

/// The texts that the library would write wrong. A mark that the library writes unchanged takes their places.
struct Placeholders {
    mark: String,
    found: Vec<String>,
}

impl Placeholders {
    fn keep(&mut self, written: String) -> String {
        self.found.push(written);
        format!("{}{}x", self.mark, self.found.len() - 1)
    }

    fn text(&mut self, text: &str) -> String {
        if needs_quotes(text) { self.keep(Value::from(text).to_string()) } else { text.to_owned() }
    }

    fn marked(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Number(number) if number.is_f64() => match with_point(&number.to_string()) {
                Some(written) => Value::String(self.keep(written)),
                None => value.clone(),
            },
            Value::Array(items) => items.iter().map(|item| self.marked(item)).collect(),
            Value::Object(map) => Value::Object(map.iter().map(|(key, item)| (self.text(key), self.marked(item))).collect()),
            plain => plain.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::load::load;
    use super::*;

    #[test]
    fn texts_like_numbers_are_quoted() {
        for (value, written) in [
            (json!({"a": "1_000", "1_0": 1e300}), "a: \"1_000\"\n\"1_0\": 1.0e+300\n"),
            (json!(["1_000", "x0x0x"]), "- \"1_000\"\n- x0x0x\n"),
            (json!("plain"), "plain\n"),
        ] {
            assert_eq!(to_string(&value), written);
            assert_eq!(load(written).ok(), Some(value));
        }
    }
}
