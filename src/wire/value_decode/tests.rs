use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inner {
    n: u8,
    #[serde(default)]
    of: Option<Kind>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Unit,
    New(i32),
    Pair(bool, String),
    Named { x: Vec<u16> },
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
struct Name(String);

#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Tagged {
    A { list: Vec<Inner> },
    B(Inner),
    C,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Either {
    Text(String),
    List(Vec<f64>),
    Empty(()),
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(default)]
struct All {
    names: BTreeMap<Name, Inner>,
    numbers: BTreeMap<i32, Either>,
    kinds: BTreeMap<Kind, bool>,
    tagged: Vec<Tagged>,
    pair: (i64, Option<char>),
    unit: (),
    any: Value,
    #[serde(flatten)]
    rest: BTreeMap<String, f32>,
}

impl Default for All {
    fn default() -> Self {
        Self {
            names: BTreeMap::new(),
            numbers: BTreeMap::new(),
            kinds: BTreeMap::new(),
            tagged: Vec::new(),
            pair: (0, None),
            unit: (),
            any: Value::Null,
            rest: BTreeMap::new(),
        }
    }
}

/// The results of both decoders, with their errors as text.
fn both<T: serde::de::DeserializeOwned>(value: &Value) -> [Result<T, String>; 2] {
    let here = read(value).map_err(|wrong: Mismatch| wrong.into_inner().to_string());
    [here, serde_json::from_value(value.clone()).map_err(|wrong| wrong.to_string())]
}

#[test]
fn a_value_that_fits_is_decoded() {
    let value = json!({
        "names": {"a": {"n": 1}, "b": {"n": 255, "of": "unit"}, "c": {"n": 0, "of": {"new": -3}}},
        "numbers": {"-1": "text", "7": [1, 2.5], "8": null}, "kinds": {"unit": true},
        "tagged": [{"type": "a", "list": [{"n": 1, "of": {"pair": [true, "x"]}}]}, {"type": "b", "n": 4}, {"type": "c"}],
        "pair": [-5, "c"], "unit": null, "any": {"x": [1]}, "further": 1.5,
    });
    let [here, there] = both::<All>(&value);
    assert!(here.is_ok(), "{here:?}");
    assert_eq!(here, there);
}

#[test]
fn an_error_names_its_path() {
    let cases = [
        (json!({"names": {"a": {"n": 256}}}), "names.a.n: invalid value: integer `256`, expected u8"),
        (json!({"names": {"a": {}}}), "names.a: missing field `n`"),
        (json!({"names": {"a": {"n": 1, "m": 2}}}), "names.a.m: unknown field `m`, expected `n` or `of`"),
        (json!({"names": {"a": {"n": 1, "of": "no"}}}), "names.a.of: unknown variant `no`, expected one of"),
        (json!({"names": {"a": {"n": 1, "of": {"new": "x"}}}}), "names.a.of.new: invalid type: string \"x\", expected i32"),
        (json!({"names": {"a": {"n": 1, "of": "new"}}}), "names.a.of.new: invalid type: unit variant, expected newtype variant"),
        (json!({"names": {"a": {"n": 1, "of": {"named": {"x": [1, null]}}}}}), "names.a.of.named.x[1]: invalid type: null"),
        (json!({"numbers": {"x": ""}}), "numbers.?: invalid value: expected key to be a number in quotes"),
        (json!({"pair": [1, "a", 2]}), "pair: invalid length 3, expected fewer elements in array"),
        (json!({"tagged": [{"type": 0}]}), "tagged[0]"),
        (json!([]), "invalid type: sequence, expected"),
    ];
    for (value, expected) in cases {
        let wrong = read::<All>(&value).expect_err("it is wrong").to_string();
        assert!(wrong.starts_with(expected), "{value}: {wrong}");
    }
    assert_eq!(read::<bool>(&json!(1)).expect_err("a number").path().to_string(), ".");
}

fn values() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec!["unit", "new", "pair", "named", "a", "b", "c", "x", "1", "-1", "true", ""]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop::sample::select(vec![0i64, 1, -1, 255, 256, i64::MAX]).prop_map(Value::from),
        Just(json!(u64::MAX)),
        Just(json!(1.5)),
        words.clone().prop_map(Value::from),
    ];
    let keys = prop::sample::select(vec![
        "names", "numbers", "kinds", "tagged", "pair", "unit", "any", "rest", "type", "list", "n", "of", "new", "named", "x", "1",
    ]);
    leaf.prop_recursive(5, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(keys.clone(), inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_result_is_that_of_serde_json(value in values()) {
        let same = |[here, there]: [Result<(), String>; 2]| here.is_ok() == there.is_ok();
        macro_rules! check {
            ($($kind:ty),*) => {
                $(let [here, there] = both::<$kind>(&value);
                prop_assert_eq!(here.as_ref().ok(), there.as_ref().ok());
                prop_assert!(same([here.map(drop), there.map(drop)]));)*
            };
        }
        check!(All, Inner, Kind, Tagged, Either, Vec<Kind>, BTreeMap<Name, Tagged>, BTreeMap<i32, Kind>, BTreeMap<Kind, Inner>,
            Option<u64>, (bool, f32), String, Value);
    }
}
