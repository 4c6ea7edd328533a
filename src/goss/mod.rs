//! Health check rules in the language of Goss, run without the Goss program.
//!
//! A document of rules has sections, as `file`, `port` and `http`. A section has items by name. An item has attributes with
//! their wanted values. `rules.rs` reads and checks rules, `matcher.rs` compares, and these files probe the host:
//! - `local.rs`: files, mounts and kernel parameters
//! - `software.rs`: packages, services, processes and commands
//! - `accounts.rs`: users and groups
//! - `network.rs` and `web.rs`: ports, addresses, names, interfaces and URLs
//!
//! A probe reads the state at its source. Packages and services come from the caches of the run, which resources share. Only
//! commands of the author, and states without any other source, start programs.
//!
//! Neighbour: `engine::health` resolves templates, repeats a failed check, and reports the health check.

mod accounts;
mod effects;
mod error;
mod local;
mod matcher;
mod network;
mod probe;
mod rules;
mod sections;
mod semver;
mod software;
mod web;

pub use error::RuleError;
pub use rules::{GossOutcome, GossRules, effects};

#[cfg(test)]
mod tests;
