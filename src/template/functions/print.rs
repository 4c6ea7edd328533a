//! Values as templates print them, as Go's `%v` does.

use std::fmt::Write;

use serde_json::Value;

/// Returns a value as text. Null is `<nil>`.
pub fn to_text(value: &Value) -> String {
    let mut text = String::new();
    push(&mut text, value);
    text
}

fn push(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.push_str(&float_text(float)),
            _ => out.push_str(&number.to_string()),
        },
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                push(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            out.push_str("map[");
            for (index, (key, item)) in pairs.into_iter().enumerate() {
                if index > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                push(out, item);
            }
            out.push(']');
        }
    }
}

/// Converts to upper case, character by character as in Go: `ß` stays, as two letters would replace it.
pub(in crate::template) fn upper(text: &str) -> String {
    let upper = |c: char| {
        let mut letters = c.to_uppercase();
        letters.next().filter(|_| letters.next().is_none()).unwrap_or(c)
    };
    text.chars().map(upper).collect()
}

/// Converts to lower case, character by character.
pub(in crate::template) fn lower(text: &str) -> String {
    text.chars().map(|c| c.to_lowercase().next().unwrap_or(c)).collect()
}

/// Formats a float with the fewest digits that read back the same.
///
/// A decimal exponent below -4 or from 6 on is written out, with at least two digits.
pub(in crate::template) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let shortest = format!("{value:e}");
    let Some((mantissa, exponent)) = shortest.split_once('e') else { return shortest };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let mut text = mantissa.to_owned();
    let sign = if exponent < 0 { '-' } else { '+' };
    // Writing to a string can't fail.
    if write!(text, "e{sign}{:02}", exponent.unsigned_abs()).is_err() {
        return shortest;
    }
    text
}

/// Converts a float to an integer, without its fraction and within the bounds of an integer.
#[expect(clippy::cast_possible_truncation, reason = "the conversion keeps to the bounds")]
pub(in crate::template) fn truncate(value: f64) -> i64 {
    value as i64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_print_as_in_go() {
        let cases = [
            (json!(8080), "8080"),
            (json!(-42), "-42"),
            (json!(u64::MAX), "18446744073709551615"),
            (json!(true), "true"),
            (json!(""), ""),
            (json!(8080.0), "8080"),
            (json!(3.25159), "3.25159"),
            (json!(0.5), "0.5"),
            (json!(1_000_000.0), "1e+06"),
            (json!(1_000_000), "1000000"),
            (json!(123_456_789.0), "1.23456789e+08"),
            (json!(1_234_567.5), "1.2345675e+06"),
            (json!(0.0001), "0.0001"),
            (json!(0.00001), "1e-05"),
            (json!(-2.5e-7), "-2.5e-07"),
            (json!(1e100), "1e+100"),
            (json!(0.0), "0"),
            (json!(["a", "b", "c"]), "[a b c]"),
            (json!({"n": {"x": 1}, "k": "v", "z": null}), "map[k:v n:map[x:1] z:<nil>]"),
            (json!([]), "[]"),
            (json!({}), "map[]"),
        ];
        for (value, text) in cases {
            assert_eq!(to_text(&value), text);
        }
    }
}
