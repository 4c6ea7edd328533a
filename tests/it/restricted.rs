//! Attacks by holders of valid but restricted keys, and against the limits of a node, on running agents.
//!
//! `restricted/cases.rs` has the attacks, `restricted/arena.rs` the attacked node. After every attack the test makes the same
//! checks, whatever the agent answered. No program ran, no secret left the node, nothing was mounted. Nothing outside of the
//! rule and the limits was written.

mod arena;
mod carriers;
mod cases;
mod expressions;

use crate::support::nats::binaries;
use crate::support::skip::is_root;

use arena::Arena;
use cases::Case;

/// Sends every case to one agent with these limits, and collects the successful attacks.
async fn attack(limits: &str, cases: impl FnOnce(&Arena) -> Vec<Case>) {
    if !is_root("an agent that could do harm runs as root") {
        return;
    }
    let mut arena = Arena::new(binaries().last().unwrap(), limits).await;
    let cases = cases(&arena);
    let mut through = Vec::new();
    for case in &cases {
        if let Err(harm) = arena.send(case).await {
            through.push(format!("{}: {harm}", case.about));
        }
    }
    assert!(through.is_empty(), "{} of {} got through:\n{}", through.len(), cases.len(), through.join("\n"));
    arena.check_permitted_commands().await;
    println!("{} attacks, none got through", cases.len());
}

#[tokio::test]
async fn a_restricted_key_runs_nothing_in_a_dry_run() {
    attack("exec = true", cases::dry_runs).await;
}

#[tokio::test]
async fn a_restricted_key_reads_nothing() {
    attack("exec = true", cases::reads).await;
}

#[tokio::test]
async fn a_restricted_key_stays_within_its_names() {
    attack("exec = true", cases::names).await;
}

#[tokio::test]
async fn no_property_carries_more_than_the_rule_allows() {
    attack("exec = true", carriers::of_rules).await;
}

#[tokio::test]
async fn no_expression_takes_the_agent_down() {
    attack("exec = true", expressions::bombs).await;
}

#[tokio::test]
async fn the_limits_of_a_node_hold_for_every_key() {
    attack("exec = false\npaths = [\"W/www\"]", cases::limits).await;
}
