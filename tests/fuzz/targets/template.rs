#![no_main]

#[allow(dead_code, reason = "each target runs one of the checks")]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|text: &str| targets::template(text));
