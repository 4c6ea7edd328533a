//! What a scalar is: text, number, true, false or nothing.

use std::borrow::Cow;

use saphyr_parser::{ScalarStyle, Span, Tag};
use serde_json::{Number, Value};

use super::load::Refused;

/// What a scalar is.
pub(super) fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>, at: Span) -> Result<Value, Refused> {
    match tag {
        None if style == ScalarStyle::Plain => plain(text, at),
        None => Ok(Value::String(text.into_owned())),
        Some(tag) if tag.is_yaml_core_schema() => tagged(text, tag, at),
        Some(tag) => Err(unsupported(tag, at)),
    }
}

fn tagged(text: Cow<'_, str>, tag: &Tag, at: Span) -> Result<Value, Refused> {
    if tag.suffix == "str" {
        return Ok(Value::String(text.into_owned()));
    }
    let value = plain(Cow::Borrowed(&text), at)?;
    let fits = match tag.suffix.as_str() {
        "null" => value.is_null(),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        _ => return Err(unsupported(tag, at)),
    };
    match value {
        _ if !fits => Err(Refused::new(format!("\"{text}\" is no {}", tag.suffix), at)),
        value if tag.suffix == "float" => Ok(value.as_f64().into()),
        value => Ok(value),
    }
}

/// A scalar without quotes, by the core schema of YAML 1.2: `yes`, `no` and `0644` are texts.
fn plain(text: Cow<'_, str>, at: Span) -> Result<Value, Refused> {
    Ok(match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        // Nearly every text is told from a number by its first byte.
        other if !other.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => {
            Value::String(text.into_owned())
        }
        other => match number(other) {
            Numeric::Number(number) => Value::Number(number),
            Numeric::No => Value::String(text.into_owned()),
            Numeric::TooLarge => {
                return Err(Refused::new(format!("the number {other} is too large; in quotes it is a text"), at));
            }
            Numeric::Endless => return Err(Refused::new(format!("{other} is no number that data can hold"), at)),
        },
    })
}

enum Numeric {
    Number(Number),
    /// Whole, of more than 64 bits.
    TooLarge,
    /// Infinite, or not a number.
    Endless,
    No,
}

fn number(text: &str) -> Numeric {
    let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    match unsigned {
        ".inf" | ".Inf" | ".INF" => return Numeric::Endless,
        ".nan" | ".NaN" | ".NAN" if unsigned.len() == text.len() => return Numeric::Endless,
        _ => {}
    }
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2)];
    let prefixed = prefixes.iter().find_map(|(prefix, radix)| Some((unsigned.strip_prefix(prefix)?, *radix)));
    let (digits, radix) = prefixed.unwrap_or((unsigned, 10));
    if !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix)) {
        // A zero in front makes it a text, as in the mode of a file.
        if radix == 10 && digits.len() > 1 && digits.starts_with('0') {
            return Numeric::No;
        }
        let whole = i128::from_str_radix(digits, radix).map(|whole| if negative { -whole } else { whole });
        let number = whole.ok().and_then(Number::from_i128);
        return number.map_or(Numeric::TooLarge, Numeric::Number);
    }
    match unsigned.parse::<f64>() {
        // The sign is the first byte; a second one is none.
        Ok(float) if float.is_finite() && !unsigned.starts_with(['+', '-']) => {
            Number::from_f64(if negative { -float } else { float }).map_or(Numeric::No, Numeric::Number)
        }
        _ => Numeric::No,
    }
}

pub(super) fn unsupported(tag: &Tag, at: Span) -> Refused {
    let tag = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
    Refused::new(format!("the tag {tag} is not supported"), at)
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
            ("1e3", json!(1000.0)),
            (".5", json!(0.5)),
            ("-1.", json!(-1.0)),
            ("00.5", json!(0.5)),
            ("1e999", json!("1e999")),
            ("+-1.5", json!("+-1.5")),
            ("--1", json!("--1")),
            ("+inf", json!("+inf")),
            ("1.2.3", json!("1.2.3")),
            ("1_000", json!("1_000")),
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
        for text in [
            "18446744073709551616",
            "-9223372036854775809",
            "-.inf",
            ".NAN",
            "!!int x",
            "!!bool yes",
            "!!binary eA==",
            "!!seq {}",
            "! x",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
