//! Reads a text into a value, in one pass over the events of the parser.
//!
//! Refuses everything that cannot be data, with its place. Examples are endless nesting, a duplicate key, a custom tag, and
//! aliases that blow up a small text.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::map::Entry;
use serde_json::{Map, Value};

use super::error::{YamlError, position};
use super::scalar::{NumberSyntax, scalar, unsupported};

/// The deepest nesting of lists and maps.
pub(super) const MAX_DEPTH: usize = 128;

/// The most memory of anchors and aliases in one document, in bytes: the text, and [`NODE_WEIGHT`] for each value.
const MAX_COPIED: usize = 16 << 20;

/// The approximate memory of a value beside its text, in bytes.
const NODE_WEIGHT: usize = 32;

/// Parses a text. An empty text is null.
pub(super) fn load(text: &str) -> Result<Value, YamlError> {
    // The parser adds a line end to the last line. Other parsers do not, and ignore a last line of blanks.
    let without_blanks = text.trim_end_matches(' ');
    let text = if without_blanks.ends_with('\n') { without_blanks } else { text };
    let cut = if text.ends_with('\n') { None } else { Some(text.chars().count()) };
    let events = Parser::new_from_str(text);
    let form = NumberSyntax::detect(text);
    Loader { text, events, anchors: HashMap::new(), copied: 0, end_without_newline: cut, form, open: Vec::new() }.document()
}

/// The complete value of an anchor.
struct Anchored {
    value: Value,
    weight: usize,
    height: usize,
}

struct Loader<'a> {
    text: &'a str,
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Anchored>,
    copied: usize,
    /// The end of a text without a final line end, in characters.
    end_without_newline: Option<usize>,
    form: NumberSyntax,
    /// The beginnings of the open lists and maps.
    open: Vec<Span>,
}

impl<'a> Loader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.events.next_event() {
            Some(Ok((event, at))) => {
                match event {
                    Event::SequenceStart(..) | Event::MappingStart(..) => self.open.push(at),
                    Event::SequenceEnd | Event::MappingEnd => drop(self.open.pop()),
                    _ => {}
                }
                Ok((event, at))
            }
            Some(Err(error)) => {
                let at = Span::empty(*error.marker());
                let opener = self.find_unclosed(error.info(), at);
                Err(YamlError { is_syntax_error: true, unclosed: opener, ..YamlError::new(error.info(), at) })
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The quote or bracket that is probably not closed. A quote is where the parser stopped. A bracket is open since an
    /// earlier line.
    fn find_unclosed(&self, why: &str, stopped: Span) -> Option<(char, (usize, usize))> {
        let first = |at: Span| self.text.chars().nth(at.start.index());
        // Other errors in quotes, as an unknown escape, have their own place.
        let endless = ["indentation in quoted scalar", "end of stream", "document indicator"];
        if let Some(quote @ ('"' | '\'')) = first(stopped)
            && endless.iter().any(|part| why.contains(part))
        {
            return Some((quote, position(stopped)));
        }
        let bracket = self.open.last().filter(|span| span.start.line() < stopped.start.line())?;
        let opener = first(*bracket).filter(|first| matches!(first, '[' | '{'))?;
        Some((opener, position(*bracket)))
    }

    fn document(mut self) -> Result<Value, YamlError> {
        let mut root = None;
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root.unwrap_or_default()),
                Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
                _ if root.is_some() => return Err(YamlError::new("more than one document", at)),
                event => root = Some(self.node(event, at, 0)?),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, at: Span, depth: usize) -> Result<Value, YamlError> {
        let (value, anchor) = match event {
            Event::Scalar(mut text, style, anchor, tag) => {
                let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                if block && self.end_without_newline == Some(at.end.index()) && text.ends_with('\n') {
                    text.to_mut().pop();
                }
                (scalar(text, style, tag.as_deref(), self.form, at)?, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                check_collection_start(tag.as_deref(), "seq", depth, at)?;
                (self.sequence(depth)?, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                check_collection_start(tag.as_deref(), "map", depth, at)?;
                (self.mapping(depth, at)?, anchor)
            }
            Event::Alias(anchor) => return self.alias(anchor, at, depth),
            _ => return Err(YamlError::new("the text ends inside of a value", at)),
        };
        // The parser counts anchors from 1.
        if anchor != 0 {
            self.store_anchor(anchor, &value, at)?;
        }
        Ok(value)
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut list = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(Value::Array(list));
            }
            list.push(self.node(event, at, depth + 1)?);
        }
    }

    fn mapping(&mut self, depth: usize, start: Span) -> Result<Value, YamlError> {
        // Room for one key: most maps of a large manifest are a name with its properties. A map that grows begins with three.
        let mut map = Map::with_capacity(1);
        let mut merged = None;
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.key(event, at, depth, start)?;
            let twice = |key: &str| YamlError::new(format!("duplicate key: the key \"{key}\" is there twice"), at);
            if key == "<<" {
                let (event, value) = self.next()?;
                let from = self.node(event, value, depth + 1)?;
                if merged.replace((from, at)).is_some() {
                    return Err(twice(&key));
                }
                continue;
            }
            match map.entry(key) {
                Entry::Occupied(entry) => return Err(twice(entry.key())),
                Entry::Vacant(entry) => {
                    let (event, at) = self.next()?;
                    entry.insert(self.node(event, at, depth + 1)?);
                }
            }
        }
        if let Some((from, at)) = merged {
            merge(&mut map, from, at)?;
        }
        Ok(Value::Object(map))
    }

    /// Reads the key that `event` begins, in the map that begins at `start`.
    fn key(&mut self, event: Event<'a>, at: Span, depth: usize, start: Span) -> Result<String, YamlError> {
        let no_text = |at| YamlError::new("a key must be a text", at).hint("a value that begins with {{ must be in quotes");
        let key = match event {
            Event::Scalar(..) | Event::Alias(_) => self.node(event, at, depth)?,
            // A template without quotes: the outer map is the text of the author.
            Event::MappingStart(..) => return Err(no_text(start)),
            _ => return Err(no_text(at)),
        };
        match key {
            Value::String(text) => Ok(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(key.to_string()),
            Value::Array(_) | Value::Object(_) => Err(no_text(at)),
        }
    }

    fn store_anchor(&mut self, anchor: usize, value: &Value, at: Span) -> Result<(), YamlError> {
        let (weight, height) = measure(value);
        self.charge_copy(weight, at)?;
        self.anchors.insert(anchor, Anchored { value: value.clone(), weight, height });
        Ok(())
    }

    fn alias(&mut self, anchor: usize, at: Span, depth: usize) -> Result<Value, YamlError> {
        let Some(known) = self.anchors.get(&anchor) else {
            return Err(YamlError::new("an alias can't be inside of its own anchor", at));
        };
        if depth + known.height > MAX_DEPTH {
            return Err(too_deep(at));
        }
        let (value, weight) = (known.value.clone(), known.weight);
        self.charge_copy(weight, at)?;
        Ok(value)
    }

    fn charge_copy(&mut self, weight: usize, at: Span) -> Result<(), YamlError> {
        self.copied += weight;
        if self.copied > MAX_COPIED {
            Err(YamlError::new("the aliases expand to more than a document may hold", at))
        } else {
            Ok(())
        }
    }
}

/// The weight of a value, and its depth of lists and maps.
fn measure(value: &Value) -> (usize, usize) {
    let beside = |(weight, height): (usize, usize), value: &Value| {
        let (more, below) = measure(value);
        (weight + more, height.max(below + 1))
    };
    match value {
        Value::String(text) => (NODE_WEIGHT + text.len(), 0),
        Value::Array(list) => list.iter().fold((NODE_WEIGHT, 1), beside),
        Value::Object(map) => {
            let keys = map.keys().map(String::len).sum::<usize>();
            map.values().fold((NODE_WEIGHT + keys, 1), beside)
        }
        _ => (NODE_WEIGHT, 0),
    }
}

fn too_deep(at: Span) -> YamlError {
    YamlError::new(format!("nested more than {MAX_DEPTH} deep"), at)
}

fn check_collection_start(tag: Option<&Tag>, own: &str, depth: usize, at: Span) -> Result<(), YamlError> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == own) => Err(unsupported(tag, at)),
        _ if depth >= MAX_DEPTH => Err(too_deep(at)),
        _ => Ok(()),
    }
}

/// Adds the keys that a map lacks. Of several merged maps, an earlier map wins.
fn merge(map: &mut Map<String, Value>, from: Value, at: Span) -> Result<(), YamlError> {
    let list = match from {
        Value::Array(list) => list,
        one => vec![one],
    };
    for from in list {
        let Value::Object(from) = from else { return Err(YamlError::new("<< merges a map, or a list of maps", at)) };
        for (key, value) in from {
            map.entry(key).or_insert(value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        load(text).map_err(|refused| refused.message)
    }

    #[test]
    fn aliases_and_merges() {
        let base = "x: &x {a: 1, b: {c: 2}}\n";
        for (text, expected) in [
            ("y: *x", json!({"a": 1, "b": {"c": 2}})),
            ("y: {<<: *x, a: 3}", json!({"a": 3, "b": {"c": 2}})),
            ("y: {<<: [{a: 0}, *x]}", json!({"a": 0, "b": {"c": 2}})),
            ("z: &z {<<: *x, d: 4}\ny: {<<: *z}", json!({"d": 4, "a": 1, "b": {"c": 2}})),
            ("k: &k key\ny: {*k : 1}", json!({"key": 1})),
            ("&k y: *k", json!("y")),
        ] {
            assert_eq!(read(&format!("{base}{text}")).unwrap()["y"], expected, "{text}");
        }
        for (text, message) in [
            ("y: {<<: 1}", "<< merges a map"),
            ("y: {<<: [1]}", "<< merges a map"),
            ("y: {<<: *x, <<: *x}", "twice"),
            ("y: &y [*y]", "inside of its own anchor"),
            ("y: *nosuch", "unknown anchor"),
        ] {
            let refused = read(&format!("{base}{text}")).unwrap_err();
            assert!(refused.contains(message), "{text}: {refused}");
        }
    }

    #[test]
    fn aliases_are_bounded_in_size_and_depth() {
        let wide = format!("a: &a {}\nb: [{}]", "x".repeat(1 << 20), "*a, ".repeat(20));
        assert!(read(&wide).unwrap_err().contains("more than a document may hold"));
        let nest = |inside: &str| format!("{}{inside}{}", "[".repeat(60), "]".repeat(60));
        let mut deep = format!("a0: &a0 {}\n", nest("x"));
        for level in 1..4 {
            writeln!(deep, "a{level}: &a{level} {}", nest(&format!("*a{}", level - 1))).unwrap();
        }
        assert!(read(&deep).unwrap_err().contains("deep"));
        for (depth, fine) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false)] {
            assert_eq!(read(&format!("{}{}", "[".repeat(depth), "]".repeat(depth))).is_ok(), fine, "{depth}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            "[ -~\u{e9}\n\t]{0,12}".prop_map(Value::from),
            "[-+.0-9xobe_~a-f]{1,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec(("[a-z0-9.~<]{1,4}", inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().filter(|(key, _)| key != "<<").collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// The writer is another crate. Its YAML and JSON must read as the same value.
        #[test]
        fn written_values_read_back(value in value()) {
            prop_assert_eq!(read(&super::super::to_string(&value)).unwrap(), value.clone());
            prop_assert_eq!(read(&value.to_string()).unwrap(), value);
        }

        #[test]
        fn no_text_panics(text in "[-\\[\\]{}:,&*!|>'\"# \n\ta-c0-9<.?@%]{0,60}") {
            drop(read(&text));
        }
    }
}
