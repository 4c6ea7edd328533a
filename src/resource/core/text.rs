//! Parsers of text properties: `owner: 1000` or `content: 5` in YAML is still text. Checks of paths and command lines.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Visitor};

use crate::resource::Invalid;

struct Text;

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<String, E> {
        Ok(value.to_string())
    }
}

/// Reads a text that may be written without quotes.
///
/// # Errors
/// For a list, a map or null.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(Text)
}

/// Reads a text, where null counts as left out.
///
/// # Errors
/// For a list or a map.
pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct Optional;
    impl<'de> Visitor<'de> for Optional {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text or null")
        }

        fn visit_none<E: Error>(self) -> Result<Option<String>, E> {
            Ok(None)
        }

        fn visit_unit<E: Error>(self) -> Result<Option<String>, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<String>, D::Error> {
            text(deserializer).map(Some)
        }
    }
    deserializer.deserialize_option(Optional)
}

/// Reads a text, where null means the empty text.
///
/// # Errors
/// For a list or a map.
pub fn or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    optional(deserializer).map(Option::unwrap_or_default)
}

/// Reads a text, where null and the empty text count as left out.
///
/// # Errors
/// For a list or a map.
pub fn filled<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    optional(deserializer).map(|text| text.filter(|text| !text.is_empty()))
}

/// Reads a whole number that may be written as text, as templates do; null counts as left out.
///
/// # Errors
/// For all other values.
pub fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let written = optional(deserializer)?;
    let parse = |text: &String| {
        text.trim().parse().map_err(|_| D::Error::custom(format_args!("expected a whole number, not \"{text}\"")))
    };
    written.as_ref().map(parse).transpose()
}

/// Splits a command line into words, as a shell would, without any expansion.
///
/// # Errors
/// When a quote is not closed.
pub fn words(line: &str) -> Result<Vec<String>, shell_words::ParseError> {
    shell_words::split(line)
}

/// Returns the unclosed quote in a command line, and its position in bytes.
pub fn unclosed(line: &str) -> Option<(char, usize)> {
    let mut open: Option<(char, usize)> = None;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        match (c, open) {
            ('\\', None | Some(('"', _))) => drop(chars.next()),
            ('\'' | '"', None) => open = Some((c, at)),
            (c, Some((quote, _))) if c == quote => open = None,
            _ => {}
        }
    }
    open
}

/// Quotes a word for a shell.
pub fn quote(word: &str) -> String {
    shell_words::quote(word).into_owned()
}

/// The path to which a link at `link` with this target leads. A relative target begins in the directory of the link.
pub fn link_target_path(link: &str, target: &str) -> String {
    match link.rsplit_once('/') {
        Some((directory, _)) if !target.starts_with('/') => format!("{directory}/{target}"),
        _ => target.to_owned(),
    }
}

/// Checks a path: absolute, without `.`, `..` or doubled slashes. Errors call the path `what`.
///
/// # Errors
/// When the path is empty, relative, not canonical, or contains a NUL.
pub fn check_path(property: &'static str, what: &str, path: &str) -> Result<(), Invalid> {
    let wrong = |message: String| Err(Invalid::new(property, message));
    if path.is_empty() {
        return wrong(format!("{property} is required"));
    }
    let below = path.strip_prefix('/').unwrap_or(path);
    if path != "/" && below.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return wrong(format!("{what} must be canonical, without \".\", \"..\" or extra slashes: \"{path}\""));
    }
    if !path.starts_with('/') {
        return wrong(format!("{what} must be absolute: \"{path}\""));
    }
    if path.contains('\0') {
        return wrong(format!("{what} must not contain a NUL character"));
    }
    Ok(())
}
