use std::fmt::Write;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn parse(text: &str) -> YamlDocument {
    YamlDocument::parse(text, "m.yaml").unwrap()
}

fn refused(text: &str) -> Diagnostic {
    YamlDocument::parse(text, "m.yaml").unwrap_err()
}

fn steps(path: &str) -> Vec<KeyOrIndex> {
    let step = |part: &str| part.parse().map_or_else(|_| KeyOrIndex::from(part), KeyOrIndex::Index);
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
        (r#"{"a": "\ud83d\ude00 \u00e9 \\ud83d\n"}"#, json!({"a": "\u{1f600} \u{e9} \\ud83d\n"})),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text).value(), &expected, "{text}");
    }
}

#[test]
fn errors_have_their_place() {
    let cases = [
        ("a: 1\nb: [1\n", "did not find expected ',' or ']'", Some(2)),
        ("a: 1\nb: 2\na: 3\n", "duplicate", Some(3)),
        ("a:\n\tb: 1\n", "", Some(2)),
        ("a: {{ Data.x }}\n", "a key must be a text", Some(1)),
        ("a:\n  b: !secret x\n", "the tag !secret is not supported", Some(2)),
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
fn unclosed_quotes_and_brackets_have_their_place() {
    for (text, line, column, opener) in [
        ("data:\n  port: \"8080\nccm:\n  a: {m: \"0644\", c: x}\n", 2, 9, "the \" here is"),
        ("data:\n  port: '8080\nccm:\n  a: 'b'\n", 2, 9, "the ' here is"),
        ("a: 1\nb: \"abc\nc: 2\n", 2, 4, "the \" here is"),
        ("a: [1,\nb: 2\n", 1, 4, "the [ here is"),
        ("a:\n  - x: {b: 1\n  - y: {c: 2}\n", 2, 8, "the { here is"),
        ("a: {b: [1, 2}\nc: d\n", 1, 13, "expected"),
        ("a: 'it's'\n", 1, 8, "expected"),
        ("a: 1\nb: \"x\\q\"\n", 2, 6, "escape"),
    ] {
        let found = refused(text);
        let place = found.place.unwrap();
        assert_eq!((place.line, place.column), (line, column), "{text}: {}", found.message);
        assert!(found.message.contains(opener), "{text}: {}", found.message);
    }
}

#[test]
fn common_documents_are_read() {
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
fn alias_bombs_fail_fast() {
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
        // Not measured: a quadratic walk over these texts would take minutes.
        assert!(started.elapsed() < Duration::from_secs(60), "{}", text.get(..20).unwrap());
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
        let at = |place: Option<SourceLocation>| place.map(|place| (place.line, place.column)).unwrap();
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
fn written_values_read_back() {
    let value = json!({"a": ["yes", "0644", "1.10", "", "a\nb\n", null, true, 1, 2.5], "b": {"c": {}}, "~": "- x"});
    assert_eq!(parse(&to_string(&value)).value(), &value);
}

/// Texts as manifests have them, and texts that parsers disagree about.
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
        "1.10",
        ".5",
        "5.",
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
        "-9223372036854775809",
        "0777777777777777777777777",
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
    fn both_parsers_agree(text in texts()) {
        if let (Ok(strict), Ok(lenient)) = (load::load(&text), fallback::load(&text)) {
            prop_assert_eq!(strict, lenient);
        }
    }
}
