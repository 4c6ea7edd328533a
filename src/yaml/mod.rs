//! YAML input and output, with the places of values.
//!
//! The only user of the YAML crates. Reading is one parse into [`serde_json::Value`]. A second walk through the text finds
//! a place, and only errors need places. `load.rs` reads, and `fallback.rs` is the parser for refused texts. `find.rs`
//! finds places, `numbers.rs` numbers as written, and `comments.rs` comments. `write.rs` writes. Neighbours: `manifest`,
//! `data` and `facts` read YAML, and `cli` prints YAML.

mod comments;
mod error;
mod fallback;
mod find;
mod load;
mod numbers;
mod path;
mod scalar;
mod write;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::OnceLock;

use saphyr_parser::{Parser, Span};
use serde_json::Value;

use crate::diag::{Diagnostic, SourceLocation};

use error::YamlError;
use find::{FoundNode, Search, SearchResult};
use numbers::Numbers;
use scalar::NumberSyntax;

pub use path::KeyOrIndex;
pub use write::to_string;

/// The largest text, in bytes: room for a manifest of 100 000 resources.
pub const MAX_BYTES: usize = 32 << 20;

/// The most unclosed brackets of a text for the lenient parser: its time grows with the square of the nesting.
const MAX_OPEN_BRACKETS: usize = 512;

/// The longest chain of aliases that lead to aliases: ample for a written document.
const MAX_ALIASES: usize = 16;

/// A comment in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlComment {
    /// The text without the `#`, trimmed.
    pub text: String,
    /// The place of the `#`.
    pub place: SourceLocation,
    /// The key below the comment, or before the comment on its line: its path from the section, and its place. None for a
    /// comment without a key, and inside of lists.
    pub key: Option<(Vec<String>, SourceLocation)>,
}

/// A YAML (or JSON) document: the text and its value.
#[derive(Debug, Clone)]
pub struct YamlDocument {
    file: String,
    text: String,
    value: Value,
    /// The numbers as written, read at the first use.
    numbers: OnceLock<Numbers>,
}

impl YamlDocument {
    /// Parses one document. `file` is only the name in errors. An empty document is null.
    ///
    /// `yes`, `no` and `0644` are texts. A number or `true` as a key becomes a text. `<<` merges maps. A text that begins
    /// with a bracket is JSON, where `1e6` is a number.
    ///
    /// # Errors
    /// Fails when the text is too large, is not YAML, is nested too deep or repeats a key. A custom tag fails too, and so
    /// does a key that is a list or a map.
    pub fn parse(text: &str, file: &str) -> Result<Self, Diagnostic> {
        if text.len() > MAX_BYTES {
            let message = format!("{file} has {} bytes, at most {MAX_BYTES} are read", text.len());
            return Err(Diagnostic::new(message));
        }
        let mut document = Self {
            file: file.to_owned(),
            text: join_surrogates(text.strip_prefix('\u{feff}').unwrap_or(text)).into_owned(),
            value: Value::Null,
            numbers: OnceLock::new(),
        };
        document.value = match load::load(&document.text) {
            // Many documents break the rule for indentation inside of quotes and brackets.
            Err(strict) if strict.is_syntax_error && !has_deep_brackets(&document.text) => {
                fallback::load(&document.text).map_err(|refused| YamlError { unclosed: strict.unclosed, ..refused })
            }
            result => result,
        }
        .map_err(|refused| document.to_diagnostic(refused))?;
        Ok(document)
    }

    /// A document for a value from another source, without places.
    pub fn from_value(value: Value) -> Self {
        Self { file: String::new(), text: String::new(), value, numbers: OnceLock::new() }
    }

    /// The first place of `needle` in the text, from this line on.
    pub fn find_from_line(&self, line: usize, needle: &str) -> Option<SourceLocation> {
        let needle = needle.lines().next().filter(|needle| !needle.trim().is_empty())?;
        self.text.lines().zip(1..).skip(line.saturating_sub(1)).find_map(|(text, number)| {
            let column = text.get(..text.find(needle)?)?.chars().count() + 1;
            Some(SourceLocation { file: self.file.clone(), line: number, column, text: text.to_owned() })
        })
    }

    /// The place that is `within` bytes into the first occurrence of `text`, from this line on. The document may write the
    /// text with the escapes of either kind of quotes.
    pub fn find_text(&self, line: usize, text: &str, within: usize) -> Option<SourceLocation> {
        let double = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let single = |text: &str| text.replace('\'', "\'\'");
        let lead = text.get(..within).filter(|lead| !lead.contains('\n')).unwrap_or_default();
        let forms = [(text.to_owned(), lead.to_owned()), (double(text), double(lead)), (single(text), single(lead))];
        forms.into_iter().find_map(|(text, lead)| {
            let mut place = self.find_from_line(line, &text)?;
            place.column += lead.chars().count();
            Some(place)
        })
    }

    /// The value of the document.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Takes the value at `path`, and leaves null there. The text stays, and so do all places.
    pub fn take_value(&mut self, path: &[KeyOrIndex]) -> Option<Value> {
        let found = path.iter().try_fold(&mut self.value, |value, step| match step {
            KeyOrIndex::Key(key) => value.get_mut(key),
            KeyOrIndex::Index(index) => value.get_mut(index),
        });
        found.map(Value::take)
    }

    /// The value of the document, without the text.
    pub fn into_value(self) -> Value {
        self.value
    }

    /// The text of the document.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name of the document, as passed to `parse`.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The place of the value at `path`; for a merged value, the place of its `<<`.
    pub fn place(&self, path: &[KeyOrIndex]) -> Option<SourceLocation> {
        self.find(path).map(|found| self.place_at(found.value))
    }

    /// The place of the key of the value at `path`. An element of a list has its own place.
    pub fn key_place(&self, path: &[KeyOrIndex]) -> Option<SourceLocation> {
        self.find(path).map(|found| self.place_at(found.key.unwrap_or(found.value)))
    }

    /// The number at `path` as written, without quotes: `1.10`, which as a number is 1.1.
    pub fn number_text(&self, path: &[KeyOrIndex]) -> Option<String> {
        let numbers = self.numbers.get_or_init(|| Numbers::read(&self.text));
        if let Some(text) = numbers.written.get(path) {
            return Some(text.clone());
        }
        let aliased = !numbers.aliases.is_empty()
            && (1..=path.len()).any(|end| path.get(..end).is_some_and(|head| numbers.aliases.contains(head)));
        if aliased { self.scalar_text(path) } else { None }
    }

    /// The comments in the section under this key of the root, in order.
    ///
    /// # Errors
    /// Fails when only the lenient parser reads the text: that parser gives no places.
    pub fn comments(&self, section: &str) -> Result<Vec<YamlComment>, Diagnostic> {
        let found = comments::read(&self.text, section).map_err(|refused| self.to_diagnostic(refused))?;
        let place = |(line, column): (usize, usize)| self.place_of(line, column);
        let remark = |found: comments::LocatedComment| YamlComment {
            text: found.text,
            place: place(found.at),
            key: found.key.map(|key| (key.path, place(key.at))),
        };
        Ok(found.into_iter().map(remark).collect())
    }

    /// True when a line has a `#` with this text behind the `#` and blanks. Quick, without a parser: the `#` may be inside of
    /// a value.
    pub fn may_have_comment(&self, start: &str) -> bool {
        self.text.contains(start)
            && self.text.lines().any(|line| line.split('#').skip(1).any(|rest| rest.trim_start().starts_with(start)))
    }

    /// The scalar at `path`, with aliases resolved.
    fn scalar_text(&self, path: &[KeyOrIndex]) -> Option<String> {
        let mut found = self.find(path)?;
        for _ in 0..MAX_ALIASES {
            let Some(anchor) = found.alias else { break };
            found = self.find_from(Some(anchor), &[])?;
        }
        found.scalar
    }

    fn place_at(&self, span: Span) -> SourceLocation {
        self.place_of(span.start.line(), span.start.col() + 1)
    }

    /// A place by line and column, both from 1.
    fn place_of(&self, line: usize, column: usize) -> SourceLocation {
        let text = self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        SourceLocation { file: self.file.clone(), line, column: column.max(1), text: text.to_owned() }
    }

    fn to_diagnostic(&self, refused: YamlError) -> Diagnostic {
        if let (Some((opener, (line, column))), true) = (refused.unclosed, refused.is_syntax_error) {
            let (reached, _) = refused.at.unwrap_or((line, column));
            let message = format!("{} in line {reached}: the {opener} here is most likely not closed", refused.message);
            let hint = match opener {
                '[' | '{' => "close the bracket; put a text that begins with a bracket in quotes",
                _ => "close the quote; write a quote twice within single quotes, and behind a backslash within double quotes",
            };
            return Diagnostic::new(message).at(Some(self.place_of(line, column))).hint(hint);
        }
        let place = refused.at.map(|(line, column)| self.place_of(line, column));
        let tab = place.as_ref().is_some_and(|place| place.text.trim_start_matches(' ').starts_with('\t'));
        let hint = if tab { Some("YAML is indented with spaces, never with tabs") } else { refused.hint };
        let message = if place.is_some() { refused.message } else { format!("{}: {}", self.file, refused.message) };
        let diagnostic = Diagnostic::new(message).at(place);
        match hint {
            Some(hint) => diagnostic.hint(hint),
            None => diagnostic,
        }
    }

    fn find(&self, path: &[KeyOrIndex]) -> Option<FoundNode> {
        self.find_from(None, path)
    }

    /// The node at `path` from the node with `anchor`, else from the root.
    fn find_from(&self, mut anchor: Option<usize>, mut path: &[KeyOrIndex]) -> Option<FoundNode> {
        for _ in 0..MAX_ALIASES {
            let mut search = Search { events: Parser::new_from_str(&self.text), key: None };
            match search.search_from(anchor, path)? {
                SearchResult::Found(found) => return Some(found),
                SearchResult::Alias(id, rest) => {
                    anchor = Some(id);
                    path = path.get(path.len().checked_sub(rest)?..)?;
                }
            }
        }
        None
    }
}

/// Joins the surrogate pairs of a JSON text, as `\ud83d\ude00`, into escapes that YAML knows.
fn join_surrogates(text: &str) -> Cow<'_, str> {
    if NumberSyntax::detect(text) == NumberSyntax::Yaml || !["\\ud", "\\uD"].iter().any(|half| text.contains(half)) {
        return Cow::Borrowed(text);
    }
    let half = |rest: &str| u32::from_str_radix(rest.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        let (plain, escape) = rest.split_at(at);
        out.push_str(plain);
        let pair = half(escape).zip(escape.get(6..).and_then(half));
        let code = pair
            .filter(|(high, low)| (0xd800..0xdc00).contains(high) && (0xdc00..0xe000).contains(low))
            .map(|(high, low)| 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00));
        let length = match code {
            Some(code) => {
                // Writing to a string can't fail.
                let _written = write!(out, "\\U{code:08x}");
                12
            }
            None => {
                let length = escape.chars().take(2).map(char::len_utf8).sum();
                out.push_str(escape.get(..length).unwrap_or(escape));
                length
            }
        };
        rest = escape.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn has_deep_brackets(text: &str) -> bool {
    let mut open = 0_usize;
    text.bytes().any(|byte| {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > MAX_OPEN_BRACKETS
    })
}

#[cfg(test)]
mod tests;
