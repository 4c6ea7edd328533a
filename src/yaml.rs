//! YAML in and out, with the place of everything that was read.
//!
//! The only user of the YAML crates. Reading is one parse into [`serde_json::Value`]; a place is
//! looked up in the text only when somebody asks, which is when something is wrong. `load.rs`
//! reads, `lenient.rs` what it does not, `find.rs` looks up, `numbers.rs` knows how numbers
//! were written, `remarks.rs` what comments say. Neighbours:
//! `manifest`, `data` and `facts` read with it, `cli` prints with it.

mod find;
mod lenient;
mod load;
mod numbers;
mod remarks;
mod scalar;

use std::sync::OnceLock;

use saphyr_parser::{Parser, Span};
use serde_json::Value;

use crate::diag::{Diagnostic, Place};

use find::{Answer, Found, Search};
use load::Refused;
use numbers::Numbers;

/// The largest text that is read, in bytes: room for a manifest of 100 000 resources.
pub const MAX_BYTES: usize = 32 << 20;

/// With more unclosed brackets than this a text that is refused is not looked at again: the time of the lenient
/// parser grows with the square of the nesting.
const SUSPICIOUS_BRACKETS: usize = 512;

/// An alias can lead to an alias; no honest document goes further.
const MAX_ALIASES: usize = 16;

/// One step of a path into a document.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// The value of this key.
    Key(String),
    /// The element at this index, from 0.
    Index(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// A comment in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// What it says, without its `#`, trimmed.
    pub text: String,
    /// Where it stands.
    pub place: Place,
    /// The key that it stands above, or behind on its line: the keys that lead there from the section, and its place.
    /// None where there is no such key, and inside of lists.
    pub key: Option<(Vec<String>, Place)>,
}

/// A YAML (or JSON) text, with what it says.
#[derive(Debug, Clone)]
pub struct Document {
    file: String,
    text: String,
    value: Value,
    /// Made when the first number is asked for as it was written.
    numbers: OnceLock<Numbers>,
}

impl Document {
    /// Reads one document; `file` is only named in errors. An empty document is null.
    ///
    /// `yes`, `no` and `0644` are texts; keys that are no texts become theirs; `<<` merges.
    ///
    /// # Errors
    /// When the text is too large, is no YAML, nests too deep, repeats a key, or holds something
    /// that data has no form for: a custom tag, a key that is a map, a number without end.
    pub fn parse(text: &str, file: &str) -> Result<Self, Diagnostic> {
        if text.len() > MAX_BYTES {
            let message = format!("{file} has {} bytes, at most {MAX_BYTES} are read", text.len());
            return Err(Diagnostic::new(message));
        }
        let mut document = Self {
            file: file.to_owned(),
            text: text.strip_prefix('\u{feff}').unwrap_or(text).to_owned(),
            value: Value::Null,
            numbers: OnceLock::new(),
        };
        document.value = match load::load(&document.text) {
            // The rule for indentation inside of quotes and brackets is one that the world does not keep.
            Err(refused) if refused.syntax && !is_suspicious(&document.text) => lenient::load(&document.text),
            result => result,
        }
        .map_err(|refused| document.refused(refused))?;
        Ok(document)
    }

    /// A value that was not read from YAML: it has no places.
    pub fn of(value: Value) -> Self {
        Self { file: String::new(), text: String::new(), value, numbers: OnceLock::new() }
    }

    /// The first place, from this line on, where `needle` stands in the text.
    pub fn find_below(&self, line: usize, needle: &str) -> Option<Place> {
        let needle = needle.lines().next().filter(|needle| !needle.trim().is_empty())?;
        self.text.lines().zip(1..).skip(line.saturating_sub(1)).find_map(|(text, number)| {
            let column = text.get(..text.find(needle)?)?.chars().count() + 1;
            Some(Place { file: self.file.clone(), line: number, column, text: text.to_owned() })
        })
    }

    /// What the document says.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Takes what is at `path` out of what the document says, and leaves null there. The text, and so every place, stays.
    pub fn take(&mut self, path: &[Step]) -> Option<Value> {
        let found = path.iter().try_fold(&mut self.value, |value, step| match step {
            Step::Key(key) => value.get_mut(key),
            Step::Index(index) => value.get_mut(index),
        });
        found.map(Value::take)
    }

    /// What the document says, without the text.
    pub fn into_value(self) -> Value {
        self.value
    }

    /// The text that it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name that was given for the text.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Where the value at `path` stands; what a merge brought in stands at its `<<`.
    pub fn place(&self, path: &[Step]) -> Option<Place> {
        self.find(path).map(|found| self.place_at(found.value))
    }

    /// Where the key of the value at `path` stands; an element of a list stands for itself.
    pub fn key_place(&self, path: &[Step]) -> Option<Place> {
        self.find(path).map(|found| self.place_at(found.key.unwrap_or(found.value)))
    }

    /// The number at `path` as it was written, without quotes: `1.10`, which as a number is 1.1.
    pub fn number_text(&self, path: &[Step]) -> Option<String> {
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
    /// When only the lenient parser reads the text: it does not tell where anything stands.
    pub fn remarks(&self, section: &str) -> Result<Vec<Remark>, Diagnostic> {
        let found = remarks::read(&self.text, section).map_err(|refused| self.refused(refused))?;
        let place = |(line, column): (usize, usize)| self.place_of(line, column);
        let remark = |found: remarks::Found| Remark {
            text: found.text,
            place: place(found.at),
            key: found.key.map(|key| (key.path, place(key.at))),
        };
        Ok(found.into_iter().map(remark).collect())
    }

    /// Whether any line has a `#` and, after it and blanks, this text. Quick, and without a parser: it may be in a value.
    pub fn may_remark(&self, start: &str) -> bool {
        self.text.contains(start)
            && self.text.lines().any(|line| line.split('#').skip(1).any(|rest| rest.trim_start().starts_with(start)))
    }

    /// The scalar at `path`, aliases followed.
    fn scalar_text(&self, path: &[Step]) -> Option<String> {
        let mut found = self.find(path)?;
        for _ in 0..MAX_ALIASES {
            let Some(anchor) = found.alias else { break };
            found = self.find_from(Some(anchor), &[])?;
        }
        found.scalar
    }

    fn place_at(&self, span: Span) -> Place {
        self.place_of(span.start.line(), span.start.col() + 1)
    }

    /// A place by line and column, both from 1.
    fn place_of(&self, line: usize, column: usize) -> Place {
        let text = self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
        Place { file: self.file.clone(), line, column: column.max(1), text: text.to_owned() }
    }

    fn refused(&self, refused: Refused) -> Diagnostic {
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

    fn find(&self, path: &[Step]) -> Option<Found> {
        self.find_from(None, path)
    }

    /// What is at `path` from the node with `anchor`, else from the root.
    fn find_from(&self, mut anchor: Option<usize>, mut path: &[Step]) -> Option<Found> {
        for _ in 0..MAX_ALIASES {
            let mut search = Search { events: Parser::new_from_str(&self.text), key: None };
            match search.from(anchor, path)? {
                Answer::Found(found) => return Some(found),
                Answer::Alias(id, rest) => {
                    anchor = Some(id);
                    path = path.get(path.len().checked_sub(rest)?..)?;
                }
            }
        }
        None
    }
}

fn is_suspicious(text: &str) -> bool {
    let mut open = 0_usize;
    text.bytes().any(|byte| {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > SUSPICIOUS_BRACKETS
    })
}

/// A value as YAML, with a line end.
pub fn to_string(value: &Value) -> String {
    // JSON is YAML too; writing to memory has no other way to fail than a bug in the writer.
    serde_yaml::to_string(value).unwrap_or_else(|_| format!("{value}\n"))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> Document {
        Document::parse(text, "m.yaml").unwrap()
    }

    fn refused(text: &str) -> Diagnostic {
        Document::parse(text, "m.yaml").unwrap_err()
    }

    fn steps(path: &str) -> Vec<Step> {
        let step = |part: &str| part.parse().map_or_else(|_| Step::from(part), Step::Index);
        path.split('.').filter(|part| !part.is_empty()).map(step).collect()
    }

    #[test]
    fn texts_stay_texts() {
        let cases = [
            ("", json!(null)),
            ("# only a comment\n", json!(null)),
            ("a: 0644", json!({"a": "0644"})),
            ("a: [yes, no, on, off]", json!({"a": ["yes", "no", "on", "off"]})),
            ("a: true", json!({"a": true})),
            ("a: -3\nb: 2.5\nc: 18446744073709551615", json!({"a": -3, "b": 2.5, "c": u64::MAX})),
            ("1: x\ntrue: y\n~: z", json!({"1": "x", "true": "y", "null": "z"})),
            ("{\"a\": [1, {\"b\": null}]}", json!({"a": [1, {"b": null}]})),
            ("a: |\n  one\n  two\nb: >-\n  one\n  two\n", json!({"a": "one\ntwo\n", "b": "one two"})),
            ("a: 1\r\nb:\r\n  - 2\r\n", json!({"a": 1, "b": [2]})),
            ("\u{feff}a: 1", json!({"a": 1})),
            ("x: &x {a: 1, b: 1}\ny:\n  <<: *x\n  b: 2\n", json!({"x": {"a": 1, "b": 1}, "y": {"b": 2, "a": 1}})),
            ("a: \"{{ Data.x }}\"", json!({"a": "{{ Data.x }}"})),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).value(), &expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let cases = [
            ("a: 1\nb: [1\n", "did not find expected ',' or ']'", Some(3)),
            ("a: 1\nb: 2\na: 3\n", "duplicate", Some(3)),
            ("a:\n\tb: 1\n", "", Some(2)),
            ("a: {{ Data.x }}\n", "a key must be a text", Some(1)),
            ("a:\n  b: !secret x\n", "the tag !secret is not supported", Some(2)),
            ("a:\n  b: .inf\n", "is no number", Some(2)),
            ("a: 1\n---\nb: 2\n", "more than one document", Some(3)),
            ("1: a\n\"1\": b\n", "the key \"1\" is there twice", None),
        ];
        for (text, message, line) in cases {
            let found = refused(text);
            assert!(found.message.contains(message), "{text}: {found}");
            if let Some(line) = line {
                assert_eq!(found.place.map(|place| place.line), Some(line), "{text}");
            }
        }
        assert!(refused("a:\n\tb: 1\n").hint.unwrap().contains("tabs"));
    }

    #[test]
    fn what_everybody_else_reads_is_read() {
        for (text, expected) in [
            ("a: \"one\ntwo\"\n", json!({"a": "one two"})),
            ("x:\n  a: 'one\n  two'\n", json!({"x": {"a": "one two"}})),
            ("a: [\n\"x\",\n\"y\"\n]\nb: 1\n", json!({"a": ["x", "y"], "b": 1})),
            ("a:\n- b: {\n  d: 0644\n  }\n", json!({"a": [{"b": {"d": "0644"}}]})),
        ] {
            assert_eq!(parse(text).value(), &expected, "{text}");
        }
        let refused = refused("a: [\n1\n]\nb: !own x\n");
        assert_eq!(refused.message, "m.yaml: the tag !own is not supported");
    }

    #[test]
    fn bombs_end_at_once() {
        let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let items = vec![format!("*a{}", level - 1); 10].join(", ");
            writeln!(aliases, "a{level}: &a{level} [{items}]").unwrap();
        }
        let cases = [
            aliases,
            "[".repeat(20_000),
            format!("{}{}", "[".repeat(20_000), "]".repeat(20_000)),
            "{a: ".repeat(20_000),
            "[".repeat(MAX_BYTES),
            "- ".repeat(20_000),
            "a: ".repeat(20_000),
            "x".repeat(MAX_BYTES + 1),
        ];
        for text in cases {
            let started = Instant::now();
            refused(&text);
            assert!(started.elapsed() < Duration::from_secs(5), "{}", text.get(..20).unwrap());
        }
    }

    #[test]
    fn brackets_in_texts_are_no_nesting() {
        let text = format!("a: |\n  {}\n", "[[".repeat(2000));
        assert_eq!(parse(&text).value()["a"].as_str().unwrap().len(), 4001);
    }

    #[test]
    fn places_are_found_in_block_and_flow() {
        let text = "base: &base\n  mode: \"0644\"\nccm:\n  resources:\n    - file:\n        <<: *base\n        name: /a\n    - package: {name: zsh, list: [1, two]}\n  again: *base\nänd: é\n";
        let document = parse(text);
        let cases = [
            ("", (1, 1), (1, 1)),
            ("ccm", (4, 3), (3, 1)),
            ("ccm.resources.0.file.name", (7, 15), (7, 9)),
            ("ccm.resources.0.file.mode", (6, 9), (6, 9)),
            ("ccm.resources.1.package.name", (8, 23), (8, 17)),
            ("ccm.resources.1.package.list.1", (8, 38), (8, 38)),
            ("ccm.again.mode", (2, 9), (2, 3)),
            ("änd", (10, 6), (10, 1)),
        ];
        for (path, value, key) in cases {
            let at = |place: Option<Place>| place.map(|place| (place.line, place.column)).unwrap();
            assert_eq!(at(document.place(&steps(path))), value, "{path}");
            assert_eq!(at(document.key_place(&steps(path))), key, "{path}");
        }
        assert_eq!(document.place(&steps("ccm.nope")), None);
        assert_eq!(document.place(&steps("ccm.resources.7")), None);
        assert_eq!(document.place(&steps("ccm.resources.0")).unwrap().text, "    - file:");
    }

    #[test]
    fn a_number_is_given_back_as_written() {
        let document = parse("a:\n  version: 1.10\n  mode: 0x1F\n  text: \"1\\t2\"\n  map: {}\n  v: &v 2.0\nb: *v\nc: [*v]\n");
        assert_eq!(document.value()["a"]["version"], json!(1.1));
        assert_eq!(document.number_text(&steps("a.version")).as_deref(), Some("1.10"));
        assert_eq!(document.number_text(&steps("a.mode")).as_deref(), Some("0x1F"));
        assert_eq!(document.number_text(&steps("a.text")), None, "it is no number");
        assert_eq!(document.number_text(&steps("a.map")), None);
        assert_eq!(document.number_text(&steps("b")).as_deref(), Some("2.0"));
        assert_eq!(document.number_text(&steps("c.0")).as_deref(), Some("2.0"));
        let document = parse("- [[1.0, {a: [2.0, []], b: 3.0}], 4.0]\n- {}\n- - x: 5.0\n  - 6.0\n- 7.0\n");
        for (path, text) in [
            ("0.0.0", "1.0"),
            ("0.0.1.a.0", "2.0"),
            ("0.0.1.b", "3.0"),
            ("0.1", "4.0"),
            ("2.0.x", "5.0"),
            ("2.1", "6.0"),
            ("3", "7.0"),
        ] {
            assert_eq!(document.number_text(&steps(path)).as_deref(), Some(text), "{path}");
        }
    }

    #[test]
    fn what_is_written_reads_the_same() {
        let value = json!({"a": ["yes", "0644", "1.10", "", "a\nb\n", null, true, 1, 2.5], "b": {"c": {}}, "~": "- x"});
        assert_eq!(parse(&to_string(&value)).value(), &value);
    }

    /// Texts of the kinds that manifests are made of, and of the kinds that parsers disagree about.
    fn texts() -> impl Strategy<Value = String> {
        let scalars = vec![
            "",
            "x",
            "a b",
            "0",
            "-0",
            "+1",
            "12",
            "-3",
            "0644",
            "00",
            "0o17",
            "0x1F",
            "0b11",
            "1_000",
            "1.10",
            ".5",
            "5.",
            "1e3",
            "1E-2",
            "-1.5e+3",
            ".inf",
            "-.inf",
            ".nan",
            "~",
            "null",
            "Null",
            "NULL",
            "nul",
            "true",
            "True",
            "TRUE",
            "yes",
            "no",
            "on",
            "y",
            "'0644'",
            "'it''s'",
            "\"b\\n\\u00e9\"",
            "\"0644\"",
            "12:30",
            "2026-01-01",
            "2026-01-01T10:00:00Z",
            "=",
            "a#b",
            "a #c",
            "a: b",
            "[a, 1, '2']",
            "[]",
            "{}",
            "{a: 1, b: [x]}",
            "|\n      one\n       two\n",
            ">-\n      one\n      two\n",
            "&a x",
            "*a",
            "!!str 5",
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775809",
            "0777777777777777777777777",
            "1e400",
            "\u{e9}",
            "@x",
            "%x",
            "`x",
            "- x",
            "? x",
        ];
        let keys = vec!["a", "b", "'c'", "1", "true", "~", "<<", "0644", "d e"];
        let line = (0_usize..3, prop::sample::select(keys), prop::sample::select(scalars), any::<bool>());
        prop::collection::vec(line, 0..6).prop_map(|lines| {
            let line = |(indent, key, scalar, item): (usize, &str, &str, bool)| {
                format!("{}{}{key}: {scalar}\n", "  ".repeat(indent), if item { "- " } else { "" })
            };
            lines.into_iter().map(line).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_both_parsers_read_they_read_alike(text in texts()) {
            if let (Ok(strict), Ok(lenient)) = (load::load(&text), lenient::load(&text)) {
                prop_assert_eq!(strict, lenient);
            }
        }
    }
}
