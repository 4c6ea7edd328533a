//! Any text as a template: in texts of manifests, and as a file in each of the three languages.

#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ensign::template::{Engine, Options, Scope, render_tree};
use jiff::{Timestamp, tz::TimeZone};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

/// Longer than any input of this size may take.
const PATIENCE: Duration = Duration::from_secs(20);

fuzz_target!(|text: &str| {
    let data = json!({
        "name": "shop", "port": 8080, "on": true, "none": null, "list": ["a", "b", "c"], "nums": [1, 2.5, -3],
        "users": [{"name": "x", "uid": 1}, {"name": "y", "uid": 2}], "m": {"k": "v", "n": {"x": 1}},
    });
    let scope = Scope::new(Arc::new(|| json!({"role": "web"})), data, BTreeMap::from([("ZONE".to_owned(), "dmz".to_owned())]));
    let _text = scope.text(text);
    let _value = scope.value(text);
    let _condition = scope.condition(text);
    for engine in [Engine::Jinja, Engine::Jet, Engine::Go] {
        let until = Instant::now() + PATIENCE / 4;
        let options = Options {
            engine,
            left: String::new(),
            right: String::new(),
            skip_empty: false,
            now: Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC),
            is_over: Arc::new(move || Instant::now() > until),
        };
        let _made = render_tree(&scope, BTreeMap::from([("a".to_owned(), text.to_owned())]), options);
    }
});
