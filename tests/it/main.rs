//! Tests over the whole program and its edges, with real parts: one binary, one module a subject.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a test says that it failed by panicking, and that it was skipped by printing"
)]

mod agent;
mod architecture;
mod archive;
mod artifacts;
mod attacks;
mod broker;
mod bundles;
mod channels;
mod clock;
mod conformance;
mod crash;
mod data;
mod disk;
mod documents;
mod examples;
mod fleet;
mod generated;
mod health;
mod jobs;
mod link;
mod local;
mod nodes;
mod operations;
mod operator;
mod origin;
mod package;
mod partition;
mod permissions;
mod plan;
mod receipts;
mod redaction;
mod registration;
mod rollout;
mod scenarios;
mod service;
mod services;
#[cfg(feature = "simulator")]
mod simulated;
#[allow(dead_code, reason = "not every helper is used all the time")]
mod support;
mod system;
mod tls;
mod transport;
mod trust;
mod twins;
mod vectors;
