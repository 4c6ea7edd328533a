//! Escaping of text for HTML, JavaScript, URLs and JSON in HTML, as in Go.

use std::fmt::Write as _;

/// Escapes like Go's `html.EscapeString`.
pub(in crate::template) fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\0' => out.push('\u{FFFD}'),
            other => out.push(other),
        }
    }
    out
}

/// Escapes like the function `js` of Go's templates.
pub(in crate::template) fn js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' | '>' | '&' | '=' | '\0'..='\x1f' => {
                // Writing to a string can't fail.
                let _written = write!(out, "\\u{:04X}", u32::from(c));
            }
            other => out.push(other),
        }
    }
    out
}

/// Escapes like Go's `url.QueryEscape`.
pub(in crate::template) fn urlquery(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            other => {
                // Writing to a string can't fail.
                let _written = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

/// Escapes JSON for use inside HTML, as Go does.
pub(in crate::template) fn for_html(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
