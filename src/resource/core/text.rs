//! Reading text properties: what YAML makes of `owner: 1000` or `content: 5` is still text. And what paths must be.

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

/// A text that may have been written without quotes.
///
/// # Errors
/// For a list, a map or nothing.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(Text)
}

/// The same, where nothing (`null`) counts as left out.
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

/// The same, where nothing means the empty text.
///
/// # Errors
/// For a list or a map.
pub fn or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    optional(deserializer).map(Option::unwrap_or_default)
}

/// The same, where the empty text means nothing too.
///
/// # Errors
/// For a list or a map.
pub fn filled<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    optional(deserializer).map(|text| text.filter(|text| !text.is_empty()))
}

/// A whole number that may have been written as text, as templates do; nothing (`null`) counts as left out.
///
/// # Errors
/// For anything else.
pub fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let written = optional(deserializer)?;
    let parse = |text: &String| {
        text.trim().parse().map_err(|_| D::Error::custom(format_args!("expected a whole number, not \"{text}\"")))
    };
    written.as_ref().map(parse).transpose()
}

/// The words of a command line, split as a shell would, without any expansion.
///
/// # Errors
/// When a quote is not closed.
pub fn words(line: &str) -> Result<Vec<String>, shell_words::ParseError> {
    shell_words::split(line)
}

/// The quote in a command line that is not closed, and where it begins, in bytes.
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

/// A word as a shell reads it back.
pub fn quote(word: &str) -> String {
    shell_words::quote(word).into_owned()
}

/// The path to which a link at `link` with this target leads: a relative target begins in the directory of the link.
pub fn beside(link: &str, target: &str) -> String {
    match link.rsplit_once('/') {
        Some((directory, _)) if !target.starts_with('/') => format!("{directory}/{target}"),
        _ => target.to_owned(),
    }
}

/// Checks a path that is given: absolute, without `.`, `..` or doubled slashes. Errors call it `what`.
///
/// # Errors
/// When it is something else.
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
