//! Ensign: signed, self-healing configuration for fleets, over NATS.
//!
//! The nouns:
//! - **Resource**: one thing of one type (`file#/etc/motd`) with the properties its author wrote.
//! - **Resource type**: three functions over a resource: `observe` (never writes), `diff` (pure), `apply` (one step).
//! - **Provider**: the way in which a type works on this kind of host.
//! - **Manifest**: YAML: data, and an ordered list of resources; alone or in a *bundle* with its files.
//! - **Session**: the record of one run, an event for every resource; answers `require` and `subscribe`.
//! - **Event**: the report about one resource ([`model::TransactionEvent`]).
//! - **Envelope** and [`trust::Verified`]: signed bytes, and the only type the agent accepts work in.
//!
//! The layers; each module uses only what is above it in this table, never its own row:
//!
//! | layer | modules |
//! |---|---|
//! | L0 | [`model`], [`diag`] |
//! | L1 | [`host`], [`wire`], [`template`], [`yaml`], [`config`], [`http`], [`unpack`] |
//! | L2 | [`trust`], [`facts`], [`data`], [`goss`], [`resource`], [`manifest`], [`store`], [`transport`], [`watch`] |
//! | L3 | [`engine`], [`registry`] |
//! | L4 | [`agent`], [`fleet`], [`web`] |
//! | L5 | [`cli`] |
//!
//! `tests/it/architecture` checks the layers.

pub mod agent;
pub mod cli;
pub mod config;
pub mod data;
pub mod diag;
pub mod engine;
pub mod facts;
pub mod fleet;
pub mod goss;
pub mod host;
pub mod http;
pub mod manifest;
pub mod model;
pub mod registry;
pub mod resource;
#[cfg(test)]
#[path = "../tests/it/support/skip.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "the tests of the whole program include the same file, and use other parts"
)]
mod skip;
pub mod store;
pub mod template;
pub mod transport;
pub mod trust;
pub mod unpack;
pub mod watch;
pub mod web;
pub mod wire;
pub mod yaml;
