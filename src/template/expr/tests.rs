//! A table test of the language, `cases.tsv`, and the places of errors.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::names::NameScope;
use super::parse::parse;
use crate::template::Scope;

fn data() -> Value {
    json!({
        "port": 8080, "name": "shop", "on": true, "off": false, "ratio": 3.25159, "list": ["a", "b", "c"], "nums": [3, 1, 2],
        "floats": [1.5, 2.5], "m": {"k": "v", "n": {"x": 1}}, "empty": "", "zero": 0, "neg": -42, "big": 1_000_000, "nul": null,
        "el": [], "em": {}, "key": "k", "uni": "h\u{e9}llo",
        "users": [
            {"name": "bob", "age": 30, "admin": true},
            {"name": "amy", "age": 25, "admin": false},
            {"name": "cat", "age": 41, "admin": true},
        ],
    })
}

#[test]
fn expressions_have_the_values_of_the_table() {
    let scope = Scope::new(Arc::new(|| json!({})), data(), BTreeMap::new());
    let mut wrong = Vec::new();
    for line in include_str!("cases.tsv").lines().filter(|line| !line.starts_with('#')) {
        let (expression, expected) = line.split_once('\t').unwrap();
        let expected = expected.replace("\\n", "\n").replace("\\\\", "\\");
        let found = scope.resolve_value(&format!("${{ {expression} }}")).map(|value| match value {
            Value::Null => "nothing".to_owned(),
            value => crate::template::to_text(&value),
        });
        match (found, expected.as_str()) {
            (Ok(found), expected) if found == expected && expected != "!" => {}
            (Err(_), "!") => {}
            (Ok(found), _) => wrong.push(format!("{expression}: expected {expected:?}, got {found:?}")),
            (Err(error), _) => wrong.push(format!("{expression}: expected {expected:?}, got the error {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn refused(source: &str) -> Option<String> {
    let names = NameScope { functions: &["lookup"], facts_only: false, value_only: false };
    parse(source, &names).err().map(|error| format!("{}: {}", error.offset, error.detail))
}

#[test]
fn invalid_expressions_are_refused_with_their_place() {
    for (source, expected) in [
        ("", "0: the expression is empty"),
        ("nosuch", "0: unknown name nosuch"),
        ("true ? 1 : nosuch", "11: unknown name nosuch"),
        ("1 + nosuch()", "4: unknown name nosuch"),
        ("uper('a')", "0: unknown name uper, did you mean upper?"),
        ("filtr([1], # > 0)", "0: unknown name filtr, did you mean filter?"),
        ("kvGet('a', 'b')", "0: the function kvGet is not available"),
        ("(1", "0: the ( is not closed"),
        ("[1, {a: (2}", "10: unexpected '}'"),
        ("[1, (2", "4: the ( is not closed"),
        ("1 + upper('a'", "9: the ( is not closed"),
        ("Data[0", "4: the [ is not closed"),
        ("{a: 1", "0: the { is not closed"),
        ("1 + 'abc", "4: the text is not closed"),
        ("1 + \"a\\q\"", "6: unknown escape in the text; a backslash is written \\\\"),
        ("1)", "1: unexpected ')'"),
        ("..3", "0: unexpected '..3'"),
        ("1..2..", "6: unexpected end"),
        ("Data.a ?? 1 + 2", "12: + and ?? can't be mixed: put one of them into parentheses"),
        ("map([1])", "0: map requires a list and a predicate, as map(list, # > 1)"),
        ("# > 1", "0: unexpected '#': only predicates have it"),
        ("map([1], #nope)", "9: unknown pointer #nope, there are #, #index and #acc"),
        ("'a' matches '('", "15: the regular expression can't be read: unclosed group"),
        ("99999999999999999999", "0: 99999999999999999999 is no number"),
    ] {
        assert_eq!(refused(source).as_deref(), Some(expected), "{source}");
    }
    assert!(refused(&"(".repeat(100)).unwrap().contains("nested too deep"));
    assert!(refused(&"1<(".repeat(30)).is_some());
    assert!(refused(&"1+".repeat(2000)).unwrap().contains("operators"));
    assert!(refused(&"-".repeat(2000)).unwrap().contains("operators"));
    let restricted = NameScope { functions: &[], facts_only: true, value_only: false };
    assert!(parse("Data.x", &restricted).unwrap_err().detail.contains("only Facts"));
    assert!(parse("Facts.x", &restricted).is_ok());
}

#[test]
fn endless_expressions_fail() {
    let scope = Scope::new(Arc::new(|| json!({})), json!({}), BTreeMap::new());
    for source in ["map(1..3000, map(1..3000, # * 2))", "repeat('abc', 1000000000)", "repeat(repeat('a', 1000000), 1000000)"] {
        assert!(scope.resolve_value(&format!("${{ {source} }}")).is_err(), "{source}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(source in "[\\x20-\\x7e\u{e9}]{0,40}") {
        let names = NameScope { functions: &["lookup"], facts_only: false, value_only: false };
        drop(parse(&source, &names));
    }

    #[test]
    fn any_words_are_read_or_refused(words in prop::collection::vec(
        prop::sample::select(vec![
            "Data", ".a", "?.b", "[", "]", "(", ")", "{", "}", "+", "-", "<", "??", "?", ":", "|", "map(", "#", ",", "1", "'x'",
            "not", "in", "let x =", ";", "x", "if", "else", "..", "and", "matches",
        ]), 0..24,
    )) {
        let scope = Scope::new(Arc::new(|| json!({})), json!({"a": [1]}), BTreeMap::new());
        drop(scope.resolve_value(&format!("${{ {} }}", words.join(" "))));
    }
}
