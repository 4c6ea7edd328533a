//! The types of scalars: text, number, true, false or null.

use std::borrow::Cow;

use saphyr_parser::{ScalarStyle, Span, Tag};
use serde_json::{Number, Value};

use super::error::YamlError;

/// The notation of numbers in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberSyntax {
    /// `1e6` is a text, and so is a number that does not fit into 64 bits.
    Yaml,
    /// `1e6` is a float, and so is a number that does not fit into 64 bits.
    Json,
}

impl NumberSyntax {
    /// The notation of a text: JSON begins with a bracket.
    pub(super) fn detect(text: &str) -> Self {
        if text.trim_start().starts_with(['{', '[']) { Self::Json } else { Self::Yaml }
    }
}

/// The value of a scalar.
pub(super) fn scalar(
    text: Cow<'_, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    form: NumberSyntax,
    at: Span,
) -> Result<Value, YamlError> {
    match tag {
        None if style == ScalarStyle::Plain => Ok(plain_scalar(text, form)),
        None => Ok(Value::String(text.into_owned())),
        Some(tag) if tag.is_yaml_core_schema() => tagged(text, tag, form, at),
        Some(tag) => Err(unsupported(tag, at)),
    }
}

fn tagged(text: Cow<'_, str>, tag: &Tag, form: NumberSyntax, at: Span) -> Result<Value, YamlError> {
    if tag.suffix == "str" {
        return Ok(Value::String(text.into_owned()));
    }
    let value = plain_scalar(Cow::Borrowed(&text), form);
    let fits = match tag.suffix.as_str() {
        "null" => value.is_null(),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        _ => return Err(unsupported(tag, at)),
    };
    match value {
        _ if !fits => Err(YamlError::new(format!("\"{text}\" is no {}", tag.suffix), at)),
        value if tag.suffix == "float" => Ok(value.as_f64().into()),
        value => Ok(value),
    }
}

/// The value of a scalar without quotes: YAML 1.2, with `_` between digits. The YAML library of other tools for these
/// documents reads scalars so. `yes`, `no` and `0644` are texts.
pub(super) fn plain_scalar(text: Cow<'_, str>, form: NumberSyntax) -> Value {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        // Data has no such numbers. Their text takes their place.
        ".inf" | ".Inf" | ".INF" => Value::from("+Inf"),
        "-.inf" | "-.Inf" | "-.INF" => Value::from("-Inf"),
        ".nan" | ".NaN" | ".NAN" => Value::from("NaN"),
        // The first byte rules out nearly every text that is no number.
        other if !other.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => {
            Value::String(text.into_owned())
        }
        other => match number(other, form) {
            Some(number) => Value::Number(number),
            None => Value::String(text.into_owned()),
        },
    }
}

/// The number in a text; none for any other text.
fn number(text: &str, form: NumberSyntax) -> Option<Number> {
    let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if unsigned.starts_with(['_', '+', '-']) {
        return None;
    }
    let unsigned = if unsigned.contains('_') { Cow::Owned(unsigned.replace('_', "")) } else { Cow::Borrowed(unsigned) };
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2)];
    let prefixed = prefixes.iter().find_map(|(prefix, radix)| Some((unsigned.strip_prefix(prefix)?, *radix)));
    let (digits, radix) = prefixed.unwrap_or((&unsigned, 10));
    if !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix)) {
        // A leading zero makes a text, as in the mode of a file.
        if radix == 10 && digits.len() > 1 && digits.starts_with('0') {
            return None;
        }
        let whole = i128::from_str_radix(digits, radix).map(|whole| if negative { -whole } else { whole });
        return match whole.ok().and_then(Number::from_i128) {
            None if form == NumberSyntax::Json => float(digits, negative),
            whole => whole,
        };
    }
    let is_float = unsigned.contains('.') || form == NumberSyntax::Json;
    let plain = unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    if is_float && plain { float(&unsigned, negative) } else { None }
}

fn float(unsigned: &str, negative: bool) -> Option<Number> {
    let value: f64 = unsigned.parse().ok()?;
    Number::from_f64(if negative { -value } else { value })
}

pub(super) fn unsupported(tag: &Tag, at: Span) -> YamlError {
    let tag = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
    YamlError::new(format!("the tag {tag} is not supported"), at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::load::load;

    #[test]
    fn plain_scalars() {
        let read = |text| load(text).map_err(|refused| refused.message);
        for (text, expected) in [
            ("0", json!(0)),
            ("-0", json!(0)),
            ("+7", json!(7)),
            ("00", json!("00")),
            ("-0644", json!("-0644")),
            ("0x1F", json!(31)),
            ("-0x1f", json!(-31)),
            ("0o17", json!(15)),
            ("0b101", json!(5)),
            ("0x", json!("0x")),
            ("0x-1", json!("0x-1")),
            ("0o8", json!("0o8")),
            ("9223372036854775808", json!(9_223_372_036_854_775_808_u64)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("1e3", json!("1e3")),
            ("1.5e3", json!(1500.0)),
            ("1_000", json!(1000)),
            ("1_000.5", json!(1000.5)),
            ("1__0_", json!(10)),
            ("_1", json!("_1")),
            ("0x_ff", json!(255)),
            ("0b1_0", json!(2)),
            ("0o1_7", json!(15)),
            ("0O17", json!("0O17")),
            ("0X1F", json!("0X1F")),
            ("0_7", json!("0_7")),
            ("1.8e308", json!("1.8e308")),
            (".inf", json!("+Inf")),
            ("-.Inf", json!("-Inf")),
            ("+.inf", json!("+.inf")),
            (".NaN", json!("NaN")),
            ("18446744073709551616", json!("18446744073709551616")),
            ("-9223372036854775809", json!("-9223372036854775809")),
            ("{a: 1e3, b: 18446744073709551616, c: 0o17}", json!({"a": 1000.0, "b": 18_446_744_073_709_551_616.0_f64, "c": 15})),
            (".5", json!(0.5)),
            ("-1.", json!(-1.0)),
            ("00.5", json!(0.5)),
            ("1e999", json!("1e999")),
            ("+-1.5", json!("+-1.5")),
            ("--1", json!("--1")),
            ("+inf", json!("+inf")),
            ("1.2.3", json!("1.2.3")),
            ("12:30", json!("12:30")),
            ("2026-11-20", json!("2026-11-20")),
            (".", json!(".")),
            ("~/x", json!("~/x")),
            ("nan", json!("nan")),
            ("'1'", json!("1")),
            ("!!str 1", json!("1")),
            ("!!int '1'", json!(1)),
            ("!!float 1", json!(1.0)),
            ("!!bool true", json!(true)),
            ("!!null ~", json!(null)),
            ("!!seq [1]", json!([1])),
            ("!!map {a: 1}", json!({"a": 1})),
            ("|\n  x\n", json!("x\n")),
            ("|\n  x\n  \n", json!("x\n")),
            ("|\n  x\n  ", json!("x\n")),
            ("|\n  x\n ", json!("x\n")),
            ("|\n  x ", json!("x ")),
            ("|\n  é\n  x", json!("é\nx")),
            (">\n  x\n  y", json!("x y")),
            ("|+\n  x", json!("x")),
            ("a: |\n  x\nb: x", json!({"a": "x\n", "b": "x"})),
            ("a: |\n  x\n# x", json!({"a": "x\n"})),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for text in ["!!int x", "!!bool yes", "!!binary eA==", "!!seq {}", "! x"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
