#![no_main]

#[allow(dead_code, reason = "each target runs one of the checks")]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::message(bytes));
