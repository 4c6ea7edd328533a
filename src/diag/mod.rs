//! A diagnostic: the error, its place (file, line, column and the line itself), and the remedy.
//!
//! All readers of text that people write report with diagnostics. `cli` prints them.

pub mod clean;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// A place in a text that a person wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// The file (or URL, without credentials).
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line itself, without its end.
    pub text: String,
}

/// An error, with its place and its remedy where known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The mistake.
    pub message: String,
    /// The place.
    pub place: Option<SourceLocation>,
    /// The remedy.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// Creates a diagnostic without a place.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), place: None, hint: None }
    }

    /// Adds a place.
    #[must_use]
    pub fn at(mut self, place: Option<SourceLocation>) -> Self {
        self.place = place;
        self
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl Diagnostic {
    /// Returns the message with its place, which may have several lines, and the lines that follow. These are the line of the
    /// place, the mark below it, and the hint.
    pub fn lines(&self) -> (String, Vec<String>) {
        let mut more = Vec::new();
        // Line ends stay: some messages have a list.
        let mut head = self.message.split('\n').map(clean::line).collect::<Vec<_>>().join("\n");
        if let Some(place) = &self.place {
            head = format!("{}:{}:{}: {head}", clean::line(&place.file), place.line, place.column);
            let number = place.line.to_string();
            let shown: String = redact_line(&place.text).chars().take(160).collect();
            more.push(format!("  {number} | {}", clean::line(&shown)));
            let lead: String = shown.chars().take(place.column.saturating_sub(1)).collect();
            let lead = clean::line(&lead).chars().count();
            more.push(format!("  {:width$} | {:lead$}^", "", "", width = number.len()));
        }
        more.extend(self.hint.iter().map(|hint| format!("hint: {}", clean::line(hint))));
        (head, more)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, more) = self.lines();
        f.write_str(&head)?;
        more.iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

impl Error for Diagnostic {}

/// Returns the line without credentials of URLs and without literal passwords.
fn redact_line(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    let stars = |secret: &str| "*".repeat(secret.chars().count());
    while let Some((head, tail)) = rest.split_once("://") {
        let authority = tail.split(|c: char| c.is_whitespace() || "/?#\"'".contains(c)).next().unwrap_or_default();
        let credentials = authority.rsplit_once('@').map_or("", |(credentials, _)| credentials);
        text.extend([head, "://", &stars(credentials)]);
        rest = tail.strip_prefix(credentials).unwrap_or(tail);
    }
    text.push_str(rest);
    let ends = SECRET_KEYS.iter().filter_map(|key| text.find(key).map(|at| at + key.len())).chain(variable_value_start(&text));
    match ends.min().and_then(|end| text.split_at_checked(end)) {
        // An expression is not a secret, and usually contains the error.
        Some((head, value)) if !value.contains("{{") && !value.contains("${") => {
            let blank = if value.starts_with(' ') { " " } else { "" };
            format!("{head}{blank}{}", stars(value.get(blank.len()..).unwrap_or_default()))
        }
        _ => text,
    }
}

/// Keys of manifests whose values may be literal secrets.
const SECRET_KEYS: [&str; 4] = ["password:", "password_hash:", "environment:", "headers:"];

/// Returns the start of the value in a line that is an item of a list of variables: `- NAME=value`.
fn variable_value_start(line: &str) -> Option<usize> {
    let item = line.trim_start().strip_prefix("- ")?.trim_start().trim_start_matches(['"', '\'']);
    let (name, value) = item.split_once('=')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    is_name.then(|| line.len() - value.len())
}

/// Returns a count with its noun: `1 resource`, `2 resources`.
pub fn count_noun(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// Returns a text of at most `longest` characters. A longer text ends with `…`.
pub fn shorten(text: &str, longest: usize) -> Cow<'_, str> {
    match text.char_indices().nth(longest) {
        None => text.into(),
        Some(_) => text.chars().take(longest.saturating_sub(1)).chain(['…']).collect::<String>().into(),
    }
}

/// Returns an error with all its causes as one text: `A: B: C`.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some libraries repeat their cause in their own text.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// Returns the known name nearest to `given`, when it is near enough for a typing error.
pub fn did_you_mean<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&given.replace('-', "_"), &name.replace('-', "_")), name))
        .filter(|(distance, name)| *distance <= (name.chars().count().max(given.chars().count()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened_at_characters() {
        for (text, expected) in [("äöü", "äöü"), ("äöüß", "äö…"), ("", "")] {
            assert_eq!(shorten(text, 3), expected);
        }
    }

    #[test]
    fn shows_the_line_and_points_at_the_column() {
        let place = SourceLocation { file: "m.yaml".into(), line: 12, column: 5, text: "    mdoe: x".into() };
        let shown = Diagnostic::new("unknown property \"mdoe\"").at(Some(place)).hint("did you mean \"mode\"?").to_string();
        assert_eq!(
            shown,
            "m.yaml:12:5: unknown property \"mdoe\"\n  12 |     mdoe: x\n     |     ^\nhint: did you mean \"mode\"?"
        );
    }

    #[test]
    fn lines_are_shown_without_secrets() {
        for (line, shown) in [
            ("url: http://joe:hunter2@h/a.zip", "url: http://***********@h/a.zip"),
            ("a: \"http://u:p@h\" # and https://é@h/x@y", "a: \"http://***@h\" # and https://*@h/x@y"),
            ("url: http://h/a@b", "url: http://h/a@b"),
            ("  password: hünter2", "  password: *******"),
            ("  password: \"{{ Data.x }}\"", "  password: \"{{ Data.x }}\""),
            ("password:", "password:"),
            ("  environment: [\"TOKEN=x\"]", "  environment: ***********"),
            ("- x: {environment: [A=b], password: c}", "- x: {environment: *******************"),
            ("  - \"TOKEN=hunter2\"", "  - \"TOKEN=********"),
            ("  - TOKEN={{ Data.x }}", "  - TOKEN={{ Data.x }}"),
            ("  - require: file#/a=b", "  - require: file#/a=b"),
            ("- user: {name: a, password_hash: $6$a$b}", "- user: {name: a, password_hash: *******"),
        ] {
            assert_eq!(redact_line(line), shown);
        }
    }

    #[test]
    fn near_names_are_suggested() {
        assert_eq!(did_you_mean("mdoe", ["mode", "owner"]), Some("mode"));
        assert_eq!(did_you_mean("timout", ["timeout", "returns"]), Some("timeout"));
        assert_eq!(did_you_mean("colour", ["content", "owner", "mode"]), None);
    }
}
