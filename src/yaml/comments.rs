//! The comments of a section, each with its key. A comment belongs to the key before the comment on its line. A
//! comment on its own line belongs to the key below, unless a blank line comes between.
//!
//! The parser drops comments, so they come from the text itself. The events of the parser tell which `#` are inside of
//! values.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::error::YamlError;

/// A comment, without its `#`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocatedComment {
    /// The text, trimmed.
    pub(super) text: String,
    /// The line and the column of the `#`, both from 1.
    pub(super) at: (usize, usize),
    /// The key that the comment belongs to.
    pub(super) key: Option<CommentKey>,
}

/// A key, by its path from the section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommentKey {
    pub(super) path: Vec<String>,
    /// The line and the column, both from 1.
    pub(super) at: (usize, usize),
}

/// The comments in the section under a key of the root, in order.
pub(super) fn read(text: &str, section: &str) -> Result<Vec<LocatedComment>, YamlError> {
    let walked = Walk::through(text, section)?;
    let mut lines = Vec::new();
    let mut start = 0;
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        let length = line.chars().count();
        if walked.lines.contains(&number) {
            lines.push(Line::parse(line, number, start, &walked.values));
        }
        start += length;
    }
    Ok(assign_keys(&lines, &walked.keys))
}

/// A line of the section.
struct Line {
    number: usize,
    /// The column of the `#` from 1, and the text behind the `#`.
    comment: Option<(usize, String)>,
    /// True when the line has only the comment.
    alone: bool,
}

impl Line {
    fn parse(text: &str, number: usize, start: usize, values: &BTreeMap<usize, usize>) -> Self {
        let inside = |at: usize| values.range(..=at).next_back().is_some_and(|(_, end)| at < *end);
        let mut before = ' ';
        let mut found = None;
        for (column, (offset, character)) in text.char_indices().enumerate() {
            if character == '#' && before.is_whitespace() && !inside(start + column) {
                found = Some((column + 1, text.get(offset + 1..).unwrap_or_default().trim().to_owned(), offset));
                break;
            }
            before = character;
        }
        let alone = found.as_ref().is_some_and(|(.., offset)| text.get(..*offset).unwrap_or_default().trim().is_empty());
        Self { number, comment: found.map(|(column, text, _)| (column, text)), alone }
    }
}

/// Assigns comments to their keys.
fn assign_keys(lines: &[Line], keys: &BTreeMap<usize, CommentKey>) -> Vec<LocatedComment> {
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some((column, text)) = &line.comment else { continue };
        let below = lines.iter().skip(index).find(|line| !line.alone);
        let key = below.and_then(|line| keys.get(&line.number)).cloned();
        found.push(LocatedComment { text: text.clone(), at: (line.number, *column), key });
    }
    found
}

/// A list or map that is open.
enum OpenNode {
    List,
    /// A map; true when a key comes next.
    Map(bool),
}

/// A walk through the events of a text.
struct Walk<'a> {
    section: &'a str,
    /// The keys that lead to the current node; none for a part that no annotation can name.
    path: Vec<Option<String>>,
    open: Vec<OpenNode>,
    /// The begin and the end (exclusive) of each scalar, in characters.
    values: BTreeMap<usize, usize>,
    /// The first key on each line.
    keys: BTreeMap<usize, CommentKey>,
    /// The lines of the section.
    lines: std::ops::Range<usize>,
    /// The position of the last count, in characters and in bytes: events only go forward.
    counted: (usize, usize),
}

impl<'a> Walk<'a> {
    fn through(text: &str, section: &'a str) -> Result<Self, YamlError> {
        let mut walk = Walk {
            section,
            path: Vec::new(),
            open: Vec::new(),
            values: BTreeMap::new(),
            keys: BTreeMap::new(),
            lines: 0..0,
            counted: (0, 0),
        };
        let mut events = Parser::new_from_str(text);
        while let Some(event) = events.next_event() {
            let (event, span) = event.map_err(|error| YamlError {
                is_syntax_error: true,
                ..YamlError::new(error.info(), Span::empty(*error.marker()))
            })?;
            walk.event(&event, span, text);
        }
        Ok(walk)
    }

    fn event(&mut self, event: &Event<'_>, span: Span, text: &str) {
        if let Event::Scalar(_, style, ..) = event {
            // The parser gives no end of a quoted text, only the place where it went on.
            let end = match style {
                ScalarStyle::SingleQuoted => quoted_end(self.text_from(text, span.start.index()), span.start.index(), '\''),
                ScalarStyle::DoubleQuoted => quoted_end(self.text_from(text, span.start.index()), span.start.index(), '"'),
                _ => span.end.index(),
            };
            self.values.insert(span.start.index(), end);
        }
        if let Some(OpenNode::Map(due @ true)) = self.open.last_mut() {
            match event {
                Event::Scalar(key, ..) => {
                    *due = false;
                    self.key(key.clone().into_owned(), span);
                    return;
                }
                Event::Alias(_) => {
                    *due = false;
                    self.path.push(None);
                    return;
                }
                _ => {}
            }
        }
        match event {
            Event::SequenceStart(..) => {
                self.path.push(None);
                self.open.push(OpenNode::List);
            }
            Event::MappingStart(..) => self.open.push(OpenNode::Map(true)),
            Event::SequenceEnd => {
                self.path.pop();
                self.open.pop();
                self.value_ended();
            }
            Event::MappingEnd => {
                self.open.pop();
                self.value_ended();
            }
            Event::Scalar(..) | Event::Alias(_) => self.value_ended(),
            _ => {}
        }
    }

    /// The text from a character on.
    fn text_from<'t>(&mut self, text: &'t str, index: usize) -> &'t str {
        let (characters, bytes) = self.counted;
        let rest = text.get(bytes..).unwrap_or_default();
        let further = index.saturating_sub(characters);
        let passed = rest.char_indices().nth(further).map_or(rest.len(), |(at, _)| at);
        self.counted = (characters + further, bytes + passed);
        rest.get(passed..).unwrap_or_default()
    }

    fn key(&mut self, key: String, span: Span) {
        let line = span.start.line();
        if self.path.is_empty() {
            if key == self.section {
                self.lines = line..usize::MAX;
            } else if self.lines.end == usize::MAX {
                self.lines.end = line;
            }
        }
        self.path.push(Some(key).filter(|key| key != "<<"));
        let path: Option<Vec<String>> = self.path.iter().cloned().collect();
        if let Some((root, below)) = path.as_deref().and_then(<[String]>::split_first)
            && root == self.section
            && !below.is_empty()
        {
            let key = CommentKey { path: below.to_vec(), at: (line, span.start.col() + 1) };
            self.keys.entry(line).or_insert(key);
        }
    }

    fn value_ended(&mut self) {
        if let Some(OpenNode::Map(due)) = self.open.last_mut() {
            *due = true;
            self.path.pop();
        }
    }
}

/// The end of the quoted text at the beginning of a text, in characters from `start`.
fn quoted_end(text: &str, start: usize, quote: char) -> usize {
    let mut characters = text.chars().zip(start + 1..).skip(1).peekable();
    while let Some((character, end)) = characters.next() {
        match character {
            '\\' if quote == '"' => drop(characters.next()),
            // Within single quotes, two quotes mean one quote.
            '\'' if quote == '\'' && characters.peek().is_some_and(|(next, _)| *next == '\'') => drop(characters.next()),
            _ if character == quote => return end,
            _ => {}
        }
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comments(text: &str) -> Vec<(usize, usize, String, Option<String>)> {
        let found = read(text, "data").map_err(|refused| refused.message).unwrap();
        let shown = |found: LocatedComment| (found.at.0, found.at.1, found.text, found.key.map(|key| key.path.join(".")));
        found.into_iter().map(shown).collect()
    }

    #[test]
    fn comments_belong_to_the_key_below_or_before() {
        let text = "# top\nccm: {} # no\n# data\ndata: # here\n  # one\n  #two\n  a: 1 # three\n  # lost\n\n  b: # four\n    # five\n    c: 'x # ''y' # six\n  d: |  # seven\n    # text\n    more\n  # eight\n  e: {f: 1, g: 2} # nine\n  h: a#b # ten\n  i:\n    # list\n    - j: 1 # in\n  k:\n    multi line # cont\n  l: \"é # \\\" é\" # elf\n  # before\n# end\nother: 1 # out\n";
        let expected = [
            (4, 7, "here", None),
            (5, 3, "one", Some("a")),
            (6, 3, "two", Some("a")),
            (7, 8, "three", Some("a")),
            (8, 3, "lost", None),
            (10, 6, "four", Some("b")),
            (11, 5, "five", Some("b.c")),
            (12, 18, "six", Some("b.c")),
            (13, 9, "seven", Some("d")),
            (16, 3, "eight", Some("e")),
            (17, 19, "nine", Some("e")),
            (18, 10, "ten", Some("h")),
            (20, 5, "list", None),
            (21, 12, "in", None),
            (23, 16, "cont", None),
            (24, 17, "elf", Some("l")),
            (25, 3, "before", None),
            (26, 1, "end", None),
        ];
        let expected = expected.map(|(line, column, text, key)| (line, column, text.to_owned(), key.map(str::to_owned)));
        assert_eq!(comments(text), expected);
    }

    #[test]
    fn odd_documents() {
        for text in ["", "data:\n", "data: [1] # x\n", "data: 1", "# only\n", "a: 1\n", "- data: 1 # x\n"] {
            assert!(comments(text).iter().all(|(.., key)| key.is_none()), "{text}");
        }
        let merged = "b: &b {x: 1}\ndata:\n  <<: *b # m\n  a: &a # n\n    y: 1 # o\n  c: *a # p\n  <<:\n    z: 1 # q\n";
        let keys: Vec<_> = comments(merged).into_iter().map(|(.., text, key)| (text, key.unwrap_or_default())).collect();
        let expected = [("m", ""), ("n", "a"), ("o", "a.y"), ("p", "c"), ("q", "")];
        assert_eq!(keys, expected.map(|(text, key)| (text.to_owned(), key.to_owned())));
        assert_eq!(comments("{\"data\": {\"a\": 1, # x\n\"b\": 2}}\n")[0].3.as_deref(), Some("a"));
        assert!(read("data:\n  a: [\n1\n]\n", "data").is_err());
    }
}
