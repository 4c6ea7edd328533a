//! Tests of the whole program and its edges, with real parts: one binary, one module per subject.

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
mod assign;
mod attacks;
mod bad_network;
mod broker;
mod bundles;
mod cancel;
mod channel_history;
mod channels;
mod clock;
mod confinement;
mod crash;
mod daily_work;
mod data;
mod disk;
mod documents;
mod duplicate_node_ids;
mod enforce;
mod enrol;
mod examples;
mod external;
mod fleet;
mod fuzz;
mod generated;
mod golden;
mod health;
mod hostile;
mod jobs;
mod language;
mod leaf_nodes;
mod local;
mod lost_state;
mod manifest_sources;
mod nodes;
mod operations;
mod operator;
mod orphans;
mod package;
mod page_facts;
mod page_language;
mod partition;
mod permissions;
mod plan;
mod races;
mod random;
mod receipts;
mod redaction;
mod refreshes;
mod registration;
mod removal;
mod resource_output;
mod restricted;
mod reversal;
mod rollout;
mod run_channel;
mod run_lock;
mod scenarios;
mod security_page;
mod service;
mod services;
mod signed_values;
#[cfg(feature = "simulator")]
mod simulated;
#[cfg(feature = "simulator")]
mod stable;
#[allow(dead_code, reason = "not every helper is used all the time")]
mod support;
mod system;
mod targets;
mod tls;
mod transport;
mod trust;
mod trust_chain;
mod tutorial;
mod upgrade;
mod vectors;
mod watch;
