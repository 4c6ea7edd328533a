//! JSON as Go writes it: sorted keys, shortest numbers, safe inside HTML.

use std::fmt::Write as _;

use serde_json::Value;

use super::bus_functions::is_registration;
use super::print;

/// Writes a value on one line.
pub(in crate::template) fn compact(value: &Value) -> String {
    let mut out = String::new();
    push(&mut out, value, None);
    out
}

/// Writes a value in several lines, indented by two spaces a level.
pub(in crate::template) fn indented(value: &Value) -> String {
    let mut out = String::new();
    push(&mut out, value, Some(0));
    out
}

fn push(out: &mut String, value: &Value, depth: Option<usize>) {
    let line = |out: &mut String, deeper: usize| {
        if let Some(depth) = depth {
            out.push('\n');
            out.push_str(&"  ".repeat(depth + deeper));
        }
    };
    let below = depth.map(|depth| depth + 1);
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                line(out, 1);
                push(out, item, below);
            }
            line(out, 0);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            let mut pairs: Vec<_> = map.iter().collect();
            // In Go a registration is a struct, not a map: its fields keep their order.
            if !is_registration(|field| map.contains_key(field)) {
                pairs.sort_by_key(|(key, _)| key.as_str());
            }
            out.push('{');
            for (index, (key, item)) in pairs.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                line(out, 1);
                push_text(out, key);
                out.push_str(if depth.is_some() { ": " } else { ":" });
                push(out, item, below);
            }
            line(out, 0);
            out.push('}');
        }
        Value::String(text) => push_text(out, text),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            // Plain digits in the same range as Go, else an exponent without a leading zero.
            Some(float) if float == 0.0 || (1e-6..1e21).contains(&float.abs()) => out.push_str(&float.to_string()),
            Some(float) => out.push_str(&print::float_text(float).replace("e-0", "e-")),
            None => out.push_str(&number.to_string()),
        },
        plain => out.push_str(&plain.to_string()),
    }
}

fn push_text(out: &mut String, text: &str) {
    for c in Value::from(text).to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a string can't fail.
                let _written = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_in_go() {
        for (value, one_line) in [
            (json!(null), "null"),
            (json!(1.0), "1"),
            (json!(2_500_000.0), "2500000"),
            (json!(1e21), "1e+21"),
            (json!(1e-7), "1e-7"),
            (json!(-2.5e-12), "-2.5e-12"),
            (json!("a<b>&\u{2028}\u{7}"), "\"a\\u003cb\\u003e\\u0026\\u2028\\u0007\""),
            (json!({"b": [], "a": {}}), "{\"a\":{},\"b\":[]}"),
            (
                json!({"cluster": "c", "service": "s", "protocol": "p", "address": "a", "b": 1}),
                "{\"cluster\":\"c\",\"service\":\"s\",\"protocol\":\"p\",\"address\":\"a\",\"b\":1}",
            ),
        ] {
            assert_eq!(compact(&value), one_line);
        }
        assert_eq!(indented(&json!({"b": 1, "a": [1, {}]})), "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": 1\n}");
    }
}
