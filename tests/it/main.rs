//! Tests over the whole program and its edges, with real parts: one binary, one module a subject.
//! The integration tests: one binary, one module a subject.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    unreachable_pub,
    reason = "a test says that it failed by panicking"
)]
#[allow(dead_code, reason = "not every helper is used all the time")]
mod support;
mod transport;
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of it is tests, which may stop at the first surprise"
mod vectors;
