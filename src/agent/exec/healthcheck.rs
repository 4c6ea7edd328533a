//! `healthcheck`: the health checks of what stands on this node, looked at because somebody asks.
//!
//! In: the channels, from `standing.rs`. The supervisor runs each as the enforcer's own looks are; out comes the answer.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use crate::manifest::Source;
use crate::transport::Bus;
use crate::wire::CommandOutcome;
use crate::wire::command::Healthcheck;
use crate::wire::report::HealthReport;

use super::fetch::{self, FetchFailure};
use crate::agent::Node;
use crate::agent::exec::run::{Job, RunOutcomeReport};
use crate::agent::reconcile::desired_state::{Assignment, DueWork};
use crate::agent::reconcile::reconciler;

/// What is in force here, in the order in which it is applied; of one channel when only that is wanted.
pub(in crate::agent) fn assignments_in_force(node: &Node, wanted: &Healthcheck) -> Vec<Arc<Assignment>> {
    let names = node.board.read(|standing| standing.assignments.iter().map(|state| state.channel.clone()).collect::<Vec<_>>());
    let wanted = |name: &String| wanted.channel.as_ref().is_none_or(|wanted| wanted == name);
    let settings = node.settings();
    let here = |name: &String| node.standing.channel(name).filter(|channel| channel.is_here(&settings))?.good.clone();
    names.iter().filter(|name| wanted(name)).filter_map(here).collect()
}

/// The manifest of one.
pub(in crate::agent) async fn source(
    node: &Arc<Node>,
    bus: &Bus,
    statement: &Assignment,
    until: Instant,
) -> Result<Source, FetchFailure> {
    match statement.assign() {
        Some(assign) => fetch::assigned_manifest(node, bus, &assign.manifest, until).await,
        None => Err(FetchFailure { code: None, why: "nothing is assigned".to_owned() }),
    }
}

/// A look at the checks of one.
pub(in crate::agent) fn job(node: &Node, statement: &Arc<Assignment>) -> Job {
    reconciler::job_of(statement, node.host.new_id(), DueWork::Health)
}

/// What all of them came to: a list of [`CheckedHealth`].
pub(in crate::agent) fn answer(looked: Vec<(Arc<Assignment>, RunOutcomeReport)>, wanted: &Healthcheck) -> RunOutcomeReport {
    if looked.is_empty() {
        return match &wanted.channel {
            None => RunOutcomeReport::answered(Value::Array(Vec::new())).saying("nothing is assigned to this node"),
            Some(channel) => RunOutcomeReport::failed(format!("nothing is assigned to this node in the channel {channel}")),
        };
    }
    let (mut checks, mut wrong) = (Vec::new(), Vec::new());
    let mut outcome = CommandOutcome::Stable;
    for (statement, ended) in looked {
        let channel = statement.command.channel.as_ref().map_or_else(String::new, |channel| channel.name.clone());
        if ended.is_interrupted() {
            return ended;
        }
        if ended.is_failed() {
            outcome = CommandOutcome::Failed;
            wrong.extend(Some(ended.why()).filter(|why| !why.is_empty()).map(|why| format!("{channel}: {why}")));
        }
        checks.extend(ended.checked.into_iter().map(|check| HealthReport { channel: channel.clone(), ..check }));
    }
    wrong.extend(checks.iter().filter(|check| check.result.status.severity() > 0).map(|check| {
        format!("{} {} is {}: {}", check.resource, check.result.name, check.result.status.as_str(), check.result.output)
    }));
    let answer = serde_json::to_value(&checks).unwrap_or_default();
    let ended = RunOutcomeReport::answered(answer).ending(outcome);
    if wrong.is_empty() { ended } else { ended.saying(wrong.join("; ")) }
}
