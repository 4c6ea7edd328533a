//! Any text as a manifest: it is read, resolved and validated, or refused; nothing runs.

#![no_main]

use std::collections::BTreeMap;

use ensign::engine::{Inputs, plan_manifest};
use ensign::host::Host;
use ensign::manifest::Source;
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|text: &str| {
    let facts = || json!({"host": {"info": {"hostname": "web1", "platformFamily": "debian"}}, "role": "web"});
    let inputs = Inputs::new(facts, BTreeMap::from([("HOME".to_owned(), "/root".to_owned())]), None);
    let source = Source { text: text.to_owned(), name: "fuzz.yaml".to_owned(), directory: None, digest: None };
    let _planned = plan_manifest(&source, &inputs, &Host::system(None));
});
