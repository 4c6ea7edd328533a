//! The integration tests: one binary, one module a subject.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of it is tests, which may stop at the first surprise"
)]

mod vectors;
