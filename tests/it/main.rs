//! Tests over the whole program and its edges, with real parts: one binary, one module a subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    unreachable_pub,
    reason = "a test says that it failed by panicking"
)]

mod architecture;
mod conformance;
mod generated;
mod local;
mod scenarios;
