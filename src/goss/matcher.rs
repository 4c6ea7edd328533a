//! Matchers: tests of a value, or of the lines of a text.
//!
//! The language is that of Goss (its `docs/gossfile.md`, "Matchers"). A plain value must be equal, and a list must be
//! contained. A map names a matcher. A matcher converts a found value of another type: to a number for `gt`, to lines for
//! `contain-element`.

use regex::Regex;
use serde_json::Value;

use super::error::RuleError;
use super::probe::ProbedValue;
use super::semver::Constraint;
use crate::diag::{did_you_mean, shorten};
use crate::template;

/// The most characters of a value that a failure shows.
const MAX_SHOWN_CHARS: usize = 160;
/// The deepest nesting of matchers: each level needs stack.
const MAX_DEPTH: usize = 16;
/// The names of matchers.
const NAMES: &[&str] = &[
    "equal",
    "have-prefix",
    "have-suffix",
    "match-regexp",
    "contain-substring",
    "gt",
    "ge",
    "lt",
    "le",
    "have-len",
    "have-key",
    "contain-element",
    "contain-elements",
    "consist-of",
    "not",
    "and",
    "or",
    "gjson",
    "semver-constraint",
];

/// The wanted value of an attribute.
#[derive(Debug, Clone)]
pub(super) struct Expectation {
    /// The value as written, for failures.
    written: Value,
    test: Test,
}

#[derive(Debug, Clone)]
enum Test {
    /// Patterns over the lines of a text.
    Patterns(Vec<LinePattern>),
    Matcher(Matcher),
}

#[derive(Debug, Clone)]
enum Matcher {
    /// Equal after conversion to the type of the wanted value.
    Like(Value),
    /// Equal without conversion.
    Equal(Value),
    Prefix(String),
    Suffix(String),
    Regexp(Regex),
    Substring(String),
    Order(Order, f64),
    Length(usize),
    Key(Box<Self>),
    Element(Box<Self>),
    Elements(Vec<Self>),
    ConsistOf(Vec<Self>),
    Not(Box<Self>),
    And(Vec<Self>),
    Or(Vec<Self>),
    Gjson(Vec<(String, Self)>),
    Semver(Constraint),
}

#[derive(Debug, Clone, Copy)]
enum Order {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

/// A pattern over lines: `text` or `/regex/`, either of them with `!` before it.
#[derive(Debug, Clone)]
struct LinePattern {
    written: String,
    inverse: bool,
    test: LineTest,
}

#[derive(Debug, Clone)]
enum LineTest {
    Holds(String),
    Matches(Regex),
}

impl Expectation {
    /// Reads the wanted value of an attribute. `lines` is true for a text that is tested line by line.
    pub(super) fn read(written: &Value, lines: bool) -> Result<Self, RuleError> {
        let test = match written {
            Value::Array(items) if lines && items.iter().all(|item| !item.is_array() && !item.is_object()) => {
                Test::Patterns(items.iter().map(LinePattern::read).collect::<Result<_, _>>()?)
            }
            other => Test::Matcher(Matcher::read(other, 0)?),
        };
        Ok(Self { written: written.clone(), test })
    }

    /// The difference from the wanted value; none when the found value matches.
    pub(super) fn difference(&self, found: &ProbedValue) -> Option<String> {
        let (value, shown) = match found {
            ProbedValue::Value(value) => (value.clone(), true),
            ProbedValue::Text { text, shown } => (Value::String(text.clone()), *shown),
        };
        match &self.test {
            Test::Patterns(patterns) => {
                let text = template::to_text(&value);
                let unmet: Vec<&str> = patterns.iter().filter(|p| !p.holds(&text)).map(|p| p.written.as_str()).collect();
                (!unmet.is_empty()).then(|| format!("patterns not met: {}", unmet.join(", ")))
            }
            Test::Matcher(matcher) if matcher.holds(&value) => None,
            Test::Matcher(_) => {
                let found = if shown { format!(", found {}", shortened(&value)) } else { ", found other content".to_owned() };
                Some(format!("expected {}{found}", shortened(&self.written)))
            }
        }
    }
}

fn shortened(value: &Value) -> String {
    shorten(&value.to_string(), MAX_SHOWN_CHARS).into_owned()
}

impl LinePattern {
    fn read(written: &Value) -> Result<Self, RuleError> {
        let written = template::to_text(written);
        let (inverse, rest) = match written.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, written.as_str()),
        };
        let test = match rest.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')).filter(|regex| !regex.is_empty()) {
            Some(regex) => LineTest::Matches(compile(regex)?),
            // `\!` and `\/` are a literal `!` or `/` at the beginning of a text.
            None => {
                LineTest::Holds(rest.strip_prefix('\\').filter(|rest| rest.starts_with(['!', '/'])).unwrap_or(rest).to_owned())
            }
        };
        Ok(Self { written, inverse, test })
    }

    fn holds(&self, text: &str) -> bool {
        let found = text.lines().any(|line| match &self.test {
            LineTest::Holds(part) => line.contains(part.as_str()),
            LineTest::Matches(regex) => regex.is_match(line),
        });
        found != self.inverse
    }
}

fn compile(pattern: &str) -> Result<Regex, RuleError> {
    Regex::new(pattern).map_err(|error| {
        let why = error.to_string();
        RuleError::new(format!(
            "the regular expression \"{pattern}\" can't be read: {}",
            why.lines().last().unwrap_or_default().trim()
        ))
    })
}

impl Matcher {
    fn read(written: &Value, depth: usize) -> Result<Self, RuleError> {
        if depth > MAX_DEPTH {
            return Err(RuleError::new("matchers are nested too deep"));
        }
        match written {
            Value::Null => Err(RuleError::new("the wanted value is missing")),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(Self::Like(written.clone())),
            Value::Array(items) => Ok(Self::Elements(Self::list(items, depth)?)),
            Value::Object(map) => {
                let mut entries = map.iter();
                match (entries.next(), entries.next()) {
                    (Some((name, value)), None) => Self::named(name, value, depth),
                    _ => Err(RuleError::new("a matcher is a map with one key; join several matchers with \"and\"")),
                }
            }
        }
    }

    fn list(items: &[Value], depth: usize) -> Result<Vec<Self>, RuleError> {
        items.iter().map(|item| Self::read(item, depth + 1)).collect()
    }

    fn named(name: &str, value: &Value, depth: usize) -> Result<Self, RuleError> {
        let text = || value.as_str().map(str::to_owned).ok_or_else(|| RuleError::new(format!("{name} takes a text")));
        let number = || to_number(value).ok_or_else(|| RuleError::new(format!("{name} takes a number")));
        let items = || value.as_array().ok_or_else(|| RuleError::new(format!("{name} takes a list")));
        let inner = || Self::read(value, depth + 1).map(Box::new);
        Ok(match name {
            "equal" => Self::Equal(value.clone()),
            "have-prefix" => Self::Prefix(text()?),
            "have-suffix" => Self::Suffix(text()?),
            "match-regexp" => Self::Regexp(compile(&text()?)?),
            "contain-substring" => Self::Substring(template::to_text(value)),
            "gt" => Self::Order(Order::Greater, number()?),
            "ge" => Self::Order(Order::GreaterOrEqual, number()?),
            "lt" => Self::Order(Order::Less, number()?),
            "le" => Self::Order(Order::LessOrEqual, number()?),
            "have-len" => {
                let length = value.as_u64().and_then(|length| usize::try_from(length).ok());
                Self::Length(length.ok_or_else(|| RuleError::new("have-len takes a whole number"))?)
            }
            "have-key" => Self::Key(inner()?),
            "contain-element" => Self::Element(inner()?),
            "contain-elements" => Self::Elements(Self::list(items()?, depth)?),
            "consist-of" => Self::ConsistOf(Self::list(items()?, depth)?),
            "not" => Self::Not(inner()?),
            "and" => Self::And(Self::list(items()?, depth)?),
            "or" => Self::Or(Self::list(items()?, depth)?),
            "gjson" => {
                let paths = value.as_object().ok_or_else(|| RuleError::new("gjson takes a map of paths and matchers"))?;
                let read = |(path, value): (&String, &Value)| Ok((path.clone(), Self::read(value, depth + 1)?));
                Self::Gjson(paths.iter().map(read).collect::<Result<_, RuleError>>()?)
            }
            "semver-constraint" => Self::Semver(Constraint::read(&text()?)?),
            _ => {
                let hint = did_you_mean(name, NAMES.iter().copied())
                    .map_or_else(|| format!("matchers are {}", NAMES.join(", ")), |near| format!("did you mean \"{near}\"?"));
                return Err(RuleError::new(format!("unknown matcher \"{name}\"")).key(name).hint(hint));
            }
        })
    }

    fn holds(&self, found: &Value) -> bool {
        match self {
            Self::Like(wanted) => equals_converted(wanted, found),
            Self::Equal(wanted) => {
                wanted == found || (!wanted.is_array() && !wanted.is_object() && equals_converted(wanted, found))
            }
            Self::Prefix(part) => text(found).is_some_and(|text| text.starts_with(part.as_str())),
            Self::Suffix(part) => text(found).is_some_and(|text| text.ends_with(part.as_str())),
            Self::Regexp(regex) => text(found).is_some_and(|text| regex.is_match(&text)),
            Self::Substring(part) => text(found).is_some_and(|text| text.contains(part.as_str())),
            Self::Order(order, wanted) => to_number(found).is_some_and(|found| match order {
                Order::Greater => found > *wanted,
                Order::GreaterOrEqual => found >= *wanted,
                Order::Less => found < *wanted,
                Order::LessOrEqual => found <= *wanted,
            }),
            Self::Length(wanted) => match found {
                Value::Array(items) => items.len() == *wanted,
                Value::Object(map) => map.len() == *wanted,
                other => template::to_text(other).chars().count() == *wanted,
            },
            Self::Key(matcher) => found.as_object().is_some_and(|map| map.keys().any(|key| matcher.holds(&key.as_str().into()))),
            Self::Element(matcher) => elements(found).iter().any(|element| matcher.holds(element)),
            Self::Elements(wanted) => all_paired(wanted, &elements(found)),
            Self::ConsistOf(wanted) => {
                let found = elements(found);
                found.len() == wanted.len() && all_paired(wanted, &found)
            }
            Self::Not(matcher) => !matcher.holds(found),
            Self::And(matchers) => matchers.iter().all(|matcher| matcher.holds(found)),
            Self::Or(matchers) => matchers.iter().any(|matcher| matcher.holds(found)),
            Self::Gjson(paths) => {
                let parsed = found.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
                let document = parsed.as_ref().unwrap_or(found);
                paths.iter().all(|(path, matcher)| template::query(document, path).is_some_and(|found| matcher.holds(&found)))
            }
            Self::Semver(constraint) => {
                let found = elements(found);
                !found.is_empty() && found.iter().all(|version| text(version).is_some_and(|version| constraint.holds(&version)))
            }
        }
    }
}

/// True when `found` equals `wanted` after conversion to its type. A text may have one more line end than wanted.
fn equals_converted(wanted: &Value, found: &Value) -> bool {
    match wanted {
        Value::String(wanted) => {
            text(found).is_some_and(|found| found == *wanted || found.strip_suffix('\n').is_some_and(|line| line == wanted))
        }
        Value::Number(number) => match (number.as_f64(), to_number(found)) {
            (Some(wanted), Some(found)) => (wanted - found).abs() <= f64::EPSILON * wanted.abs(),
            _ => false,
        },
        other => other == found,
    }
}

/// The text of a scalar; none for null, a list or a map.
fn text(value: &Value) -> Option<String> {
    (!value.is_array() && !value.is_object() && !value.is_null()).then(|| template::to_text(value))
}

fn to_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

/// The elements of a list, the lines of a text, or a single other value.
fn elements(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items.clone(),
        Value::String(text) => text.lines().map(Value::from).collect(),
        Value::Null => Vec::new(),
        other => vec![other.clone()],
    }
}

/// True when each matcher can have an element of its own (a bipartite matching).
fn all_paired(wanted: &[Matcher], found: &[Value]) -> bool {
    let mut owner: Vec<Option<usize>> = vec![None; found.len()];
    (0..wanted.len()).all(|matcher| find_pair(matcher, wanted, found, &mut owner, &mut vec![false; found.len()]))
}

/// Finds an element for a matcher. Another matcher may give up its element and move to the next fitting element.
fn find_pair(matcher: usize, wanted: &[Matcher], found: &[Value], owner: &mut [Option<usize>], seen: &mut [bool]) -> bool {
    for (at, element) in found.iter().enumerate() {
        let fits = wanted.get(matcher).is_some_and(|matcher| matcher.holds(element));
        if !fits || seen.get(at).copied().unwrap_or(true) {
            continue;
        }
        seen.iter_mut().skip(at).take(1).for_each(|seen| *seen = true);
        let free = match owner.get(at).copied().flatten() {
            None => true,
            Some(other) => find_pair(other, wanted, found, owner, seen),
        };
        if free {
            owner.iter_mut().skip(at).take(1).for_each(|owner| *owner = Some(matcher));
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn holds(wanted: &Value, found: &Value) -> bool {
        Expectation::read(wanted, false).unwrap().difference(&ProbedValue::Value(found.clone())).is_none()
    }

    #[test]
    fn values_match() {
        let list = json!(["foo", "bar", "moo"]);
        for (wanted, found, expected) in [
            (json!("foo"), json!("foo"), true),
            (json!("foo"), json!("food"), false),
            (json!("55"), json!(55), true),
            (json!(128), json!("128"), true),
            (json!(42.0), json!("42"), true),
            (json!(true), json!(true), true),
            (json!(true), json!(false), false),
            (json!({"gt": 200}), json!("128"), false),
            (json!({"gt": 40}), json!("42"), true),
            (json!({"ge": 42}), json!(42), true),
            (json!({"lt": 42}), json!(42), false),
            (json!({"le": "42"}), json!(42), true),
            (json!({"gt": 1}), json!("text"), false),
            (json!({"have-prefix": "4"}), json!(42), true),
            (json!({"have-suffix": "2"}), json!(42), true),
            (json!({"match-regexp": "\\d{2}"}), json!(42), true),
            (json!({"contain-substring": "oo"}), json!("foo"), true),
            (json!({"have-len": 3}), list.clone(), true),
            (json!({"have-len": 3}), json!("foo"), true),
            (json!({"have-key": "a"}), json!({"a": 1}), true),
            (json!({"have-key": "b"}), json!({"a": 1}), false),
            (json!(["foo", "bar"]), list.clone(), true),
            (json!([]), list.clone(), true),
            (json!(["foo", "foo"]), list.clone(), false),
            (json!(["foo", "foo"]), json!(["foo", "foo", "x"]), true),
            (json!({"contain-elements": ["moo"]}), list.clone(), true),
            (json!({"contain-element": {"have-prefix": "b"}}), list.clone(), true),
            (json!({"contain-element": {"have-prefix": "z"}}), list.clone(), false),
            (json!({"equal": ["foo", "bar", "moo"]}), list.clone(), true),
            (json!({"equal": ["bar", "foo", "moo"]}), list.clone(), false),
            (json!({"consist-of": ["foo", {"have-prefix": "m"}, "bar"]}), list.clone(), true),
            (json!({"consist-of": [{"have-len": 3}, "moo", {"have-suffix": "o"}]}), list.clone(), true),
            (json!({"consist-of": ["foo", "bar"]}), list.clone(), false),
            (json!({"not": "foo"}), json!("bar"), true),
            (json!({"and": ["42", {"gt": 40}, {"lt": 45}]}), json!(42), true),
            (json!({"or": [1, 2]}), json!(2), true),
            (json!({"or": []}), json!(2), false),
            (json!("one"), json!(["one"]), false),
            (json!(["a", "b"]), json!("a\nb\n"), true),
            (
                json!({"gjson": {"moo.nested": "cow", "count": {"le": 25}}}),
                json!(r#"{"moo": {"nested": "cow"}, "count": "15"}"#),
                true,
            ),
            (json!({"gjson": {"nope": "cow"}}), json!({"a": 1}), false),
            (json!({"semver-constraint": ">1.0.0 <2.0.0 !=1.5.0"}), json!(["1.0.1", "1.9.9"]), true),
            (json!({"not": {"semver-constraint": ">1.0.0 <2.0.0 !=1.5.0"}}), json!(["1.0.1", "1.5.0"]), true),
        ] {
            assert_eq!(holds(&wanted, &found), expected, "{wanted} {found}");
        }
    }

    #[test]
    fn lines_match() {
        let text = "[server]\nport = 80\n!loud\n/slash/\n";
        for (wanted, unmet) in [
            (json!(["port", "/^port\\s*=\\s*\\d+$/", "!ssl", "!/^SSL/", "\\!loud", "\\/slash/"]), None),
            (json!([]), None),
            (json!(["ssl", "!port", "/^x/", "server"]), Some("patterns not met: ssl, !port, /^x/")),
            (json!([80]), None),
            (json!({"contain-substring": "port"}), None),
            (json!({"and": [{"contain-element": "!loud"}, {"not": {"contain-element": {"have-prefix": "ssl"}}}]}), None),
            (json!([{"have-prefix": "port"}, "!loud"]), None),
            (json!({"have-prefix": "x"}), Some("expected {\"have-prefix\":\"x\"}, found other content")),
        ] {
            let wanted = Expectation::read(&wanted, true).unwrap();
            let found = ProbedValue::Text { text: text.to_owned(), shown: false };
            assert_eq!(wanted.difference(&found).as_deref(), unmet);
        }
        let ok = Expectation::read(&json!("ok"), true).unwrap();
        let said = |text: &str| ok.difference(&ProbedValue::Text { text: text.to_owned(), shown: true });
        assert_eq!(said("ok\n"), None);
        assert_eq!(said("ok\n\n").as_deref(), Some("expected \"ok\", found \"ok\\n\\n\""));
    }

    #[test]
    fn invalid_matchers_are_refused() {
        for (wanted, part) in [
            (json!({"haveprefix": "x"}), "unknown matcher \"haveprefix\""),
            (json!({"gt": 1, "lt": 3}), "join several matchers with \"and\""),
            (json!({"gt": "x"}), "gt takes a number"),
            (json!({"match-regexp": "("}), "can't be read"),
            (json!({"and": 1}), "and takes a list"),
            (json!({"have-len": -1}), "a whole number"),
            (json!({"semver-constraint": ">x"}), "semver"),
            (json!(null), "wanted value is missing"),
            (json!({"gjson": []}), "a map of paths"),
        ] {
            let wrong = Expectation::read(&wanted, false).unwrap_err();
            assert!(wrong.message.contains(part), "{wanted}: {wrong:?}");
        }
        assert_eq!(
            Expectation::read(&json!({"have-prefx": "x"}), false).unwrap_err().hint.as_deref(),
            Some("did you mean \"have-prefix\"?")
        );
        assert!(Expectation::read(&json!(["/(/"]), true).is_err());
        let mut deep = json!(1);
        for _ in 0..40 {
            deep = json!({"not": deep});
        }
        assert!(Expectation::read(&deep, false).unwrap_err().message.contains("too deep"));
    }
}
