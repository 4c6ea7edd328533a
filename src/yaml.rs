//! YAML in and out, with the place of everything that was read.
//!
//! The only user of the YAML crates. Reading is one parse into [`serde_json::Value`]; a place is
//! looked up in the text only when somebody asks, which is when something is wrong. Neighbours:
//! `manifest`, `data` and `facts` read with it, `cli` prints with it.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};
use serde_json::{Map, Value};

use crate::diag::{Diagnostic, Place};

/// The largest text that is read, in bytes.
pub const MAX_BYTES: usize = 4 << 20;

/// The deepest nesting that is read; the parser below has the same limit, but pays for more.
const MAX_DEPTH: usize = 128;

/// More unclosed brackets than this make the text suspicious enough to be counted properly.
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
        document.check_depth()?;
        let mut tree: serde_yaml::Value = serde_yaml::from_str(&document.text).map_err(|error| document.syntax_error(&error))?;
        tree.apply_merge().map_err(|error| document.syntax_error(&error))?;
        document.value = document.to_json(tree, &mut Vec::new())?;
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

    /// What the document says, without the text.
    pub fn into_value(self) -> Value {
        self.value
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

    fn syntax_error(&self, error: &serde_yaml::Error) -> Diagnostic {
        let shown = error.to_string();
        let message = shown.split(" at line ").next().unwrap_or(&shown);
        let message = kinder(message).unwrap_or_else(|| message.to_owned());
        let Some(location) = error.location() else { return Diagnostic::new(format!("{}: {message}", self.file)) };
        let place = self.place_of(location.line(), location.column());
        let tab = place.text.trim_start_matches(' ').starts_with('\t');
        let diagnostic = Diagnostic::new(message).at(Some(place));
        if tab { diagnostic.hint("YAML is indented with spaces, never with tabs") } else { diagnostic }
    }

    /// Refuses deep nesting before the parser below, whose time grows with its square.
    fn check_depth(&self) -> Result<(), Diagnostic> {
        // Brackets in texts count here too; that only costs the proper count.
        let mut open = 0_usize;
        let suspicious = self.text.bytes().any(|byte| {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            open > SUSPICIOUS_BRACKETS
        });
        if !suspicious {
            return Ok(());
        }
        let mut depth = 0_usize;
        let mut events = Parser::new_from_str(&self.text);
        while let Some(next) = events.next_event() {
            let (event, span) = next.map_err(|error| {
                let place = self.place_of(error.marker().line(), error.marker().col() + 1);
                Diagnostic::new(error.info()).at(Some(place))
            })?;
            match event {
                Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
                Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MAX_DEPTH {
                let message = format!("nested more than {MAX_DEPTH} deep");
                return Err(Diagnostic::new(message).at(Some(self.place_at(span))));
            }
        }
        Ok(())
    }

    fn to_json(&self, tree: serde_yaml::Value, path: &mut Vec<Step>) -> Result<Value, Diagnostic> {
        use serde_yaml::Value as Yaml;
        match tree {
            Yaml::Null => Ok(Value::Null),
            Yaml::Bool(value) => Ok(Value::Bool(value)),
            Yaml::String(text) => Ok(Value::String(text)),
            Yaml::Number(number) => {
                if let Some(value) = number.as_i64() {
                    return Ok(value.into());
                }
                if let Some(value) = number.as_u64() {
                    return Ok(value.into());
                }
                let value = number.as_f64().and_then(serde_json::Number::from_f64).map(Value::Number);
                value.ok_or_else(|| self.refused(path, format!("{number} is no number that data can hold")))
            }
            Yaml::Sequence(items) => {
                let mut list = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    path.push(Step::Index(index));
                    list.push(self.to_json(item, path)?);
                    path.pop();
                }
                Ok(Value::Array(list))
            }
            Yaml::Mapping(pairs) => {
                let mut map = Map::with_capacity(pairs.len());
                for (key, item) in pairs {
                    let Some(key) = key_text(key) else {
                        let refused = self.refused(path, "a key must be a text".to_owned());
                        return Err(refused.hint("a value that begins with {{ must be in quotes"));
                    };
                    path.push(Step::Key(key.clone()));
                    let item = self.to_json(item, path)?;
                    path.pop();
                    if map.contains_key(&key) {
                        return Err(self.refused(path, format!("the key \"{key}\" is there twice")));
                    }
                    map.insert(key, item);
                }
                Ok(Value::Object(map))
            }
            Yaml::Tagged(tagged) => Err(self.refused(path, format!("the tag {} is not supported", tagged.tag))),
        }
    }

    fn refused(&self, path: &[Step], message: String) -> Diagnostic {
        Diagnostic::new(message).at(self.place(path))
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

/// What the YAML library says in its own terms, in ours.
fn kinder(message: &str) -> Option<String> {
    if message.contains("repetition limit exceeded") {
        return Some("its aliases stand for more than a document may hold".to_owned());
    }
    let (_, number) = message.split_once("integer `")?;
    let (number, _) = number.split_once("` as ")?;
    Some(format!("the number {number} is too large; in quotes it is a text"))
}

fn key_text(key: serde_yaml::Value) -> Option<String> {
    match key {
        serde_yaml::Value::String(text) => Some(text),
        serde_yaml::Value::Bool(value) => Some(value.to_string()),
        serde_yaml::Value::Number(number) => Some(number.to_string()),
        serde_yaml::Value::Null => Some("null".to_owned()),
        _ => None,
    }
}

/// The numbers of a text as they were written, and where aliases stand. One walk through the text finds all of
/// them: a walk for each would cost the square of what a long manifest has.
#[derive(Debug, Clone, Default)]
struct Numbers {
    written: HashMap<Vec<Step>, String>,
    aliases: HashSet<Vec<Step>>,
}

impl Numbers {
    fn read(text: &str) -> Self {
        let mut numbers = Self::default();
        let (mut path, mut open) = (Vec::new(), Vec::new());
        let mut events = Parser::new_from_str(text);
        while let Some(Ok((event, _))) = events.next_event() {
            // Where in a map a key is due, a scalar is no value.
            match (open.last_mut(), &event) {
                (Some(due @ Open::Key), Event::Scalar(..) | Event::Alias(_)) => {
                    let key = if let Event::Scalar(key, ..) = &event { key.clone().into_owned() } else { String::new() };
                    path.push(Step::Key(key));
                    *due = Open::Value;
                    continue;
                }
                (Some(Open::Index(index)), _) => path.push(Step::Index(*index)),
                _ => {}
            }
            match event {
                Event::Scalar(text, ScalarStyle::Plain, ..)
                    if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) =>
                {
                    numbers.written.insert(path.clone(), text.into_owned());
                }
                Event::Alias(_) => {
                    numbers.aliases.insert(path.clone());
                }
                Event::SequenceStart(..) => {
                    open.push(Open::Index(0));
                    continue;
                }
                Event::MappingStart(..) => {
                    open.push(Open::Key);
                    continue;
                }
                Event::SequenceEnd => {
                    // The step to the element that did not come.
                    path.pop();
                    open.pop();
                }
                Event::MappingEnd => {
                    open.pop();
                }
                Event::Scalar(..) => {}
                _ => continue,
            }
            // A value is over: its step goes, and the next one is due.
            match open.last_mut() {
                Some(Open::Index(index)) => *index += 1,
                Some(due @ Open::Value) => *due = Open::Key,
                Some(Open::Key) | None => {}
            }
            path.pop();
        }
        numbers
    }
}

/// What is due next in a list or map that is open.
enum Open {
    Index(usize),
    Key,
    Value,
}

/// A value in the text.
struct Found {
    key: Option<Span>,
    value: Span,
    scalar: Option<String>,
    /// The anchor that stands here instead of a value.
    alias: Option<usize>,
}

enum Answer {
    Found(Found),
    /// The rest of the path (so many steps) goes on at the node with this anchor.
    Alias(usize, usize),
}

/// A walk through the events of a text along a path.
struct Search<'a> {
    events: Parser<'a, StrInput<'a>>,
    key: Option<Span>,
}

impl<'a> Search<'a> {
    fn next(&mut self) -> Option<(Event<'a>, Span)> {
        self.events.next_event()?.ok()
    }

    /// Starts at the node with `anchor`, else at the root.
    fn from(&mut self, anchor: Option<usize>, path: &[Step]) -> Option<Answer> {
        loop {
            let (event, span) = self.next()?;
            let found = match (anchor, &event) {
                (None, Event::StreamStart | Event::DocumentStart(_)) => false,
                (None, _) => true,
                (Some(wanted), Event::Scalar(_, _, id, _) | Event::SequenceStart(id, _) | Event::MappingStart(id, _)) => {
                    *id == wanted
                }
                (Some(_), _) => false,
            };
            if found {
                return self.node(event, span, path);
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, path: &[Step]) -> Option<Answer> {
        let Some((step, rest)) = path.split_first() else {
            let (scalar, alias) = match event {
                Event::Scalar(text, ..) => (Some(text.into_owned()), None),
                Event::Alias(id) => (None, Some(id)),
                _ => (None, None),
            };
            return Some(Answer::Found(Found { key: self.key, value: span, scalar, alias }));
        };
        match (event, step) {
            (Event::Alias(id), _) => Some(Answer::Alias(id, path.len())),
            (Event::SequenceStart(..), Step::Index(index)) => {
                for _ in 0..*index {
                    let (event, _) = self.next()?;
                    if event == Event::SequenceEnd {
                        return None;
                    }
                    self.skip(&event)?;
                }
                self.key = None;
                let (event, span) = self.next()?;
                if event == Event::SequenceEnd { None } else { self.node(event, span, rest) }
            }
            (Event::MappingStart(..), Step::Key(wanted)) => self.mapping(wanted, rest),
            _ => None,
        }
    }

    fn mapping(&mut self, wanted: &str, rest: &[Step]) -> Option<Answer> {
        let mut merge = None;
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                // Not written here: then a merge brought it in.
                return merge.map(|span| Answer::Found(Found { key: Some(span), value: span, scalar: None, alias: None }));
            }
            let key = if let Event::Scalar(text, ..) = &event { Some(text.clone()) } else { None };
            if key.is_none() {
                self.skip(&event)?;
            }
            let (event, value) = self.next()?;
            match key.as_deref() {
                Some(key) if key == wanted => {
                    self.key = Some(span);
                    return self.node(event, value, rest);
                }
                Some("<<") => merge = Some(span),
                _ => {}
            }
            self.skip(&event)?;
        }
    }

    /// Goes past the node that `event` begins.
    fn skip(&mut self, event: &Event<'_>) -> Option<()> {
        let mut depth = usize::from(matches!(event, Event::SequenceStart(..) | Event::MappingStart(..)));
        while depth > 0 {
            match self.next()?.0 {
                Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
                Event::SequenceEnd | Event::MappingEnd => depth -= 1,
                _ => {}
            }
        }
        Some(())
    }
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
            ("a: 1\nb: 2\na: 3\n", "duplicate", None),
            ("a:\n\tb: 1\n", "", Some(2)),
            ("a: {{ Data.x }}\n", "a key must be a text", None),
            ("a:\n  b: !secret x\n", "the tag !secret is not supported", Some(2)),
            ("a:\n  b: .inf\n", "is no number", Some(2)),
            ("a: 1\n---\nb: 2\n", "more than one document", None),
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
}
