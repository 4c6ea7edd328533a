//! Simulation of runs: a simulated node ends a command after some time, without changes on a host.
//!
//! In: the answer of a [`Simulate`] to a command. Out: the same events, summary and result as from a run of the engine.

use std::sync::Arc;
use std::time::Instant;

use crate::host::Cancel;
use crate::manifest::ManifestText;
use crate::model::summary::SummaryBuilder;
use crate::model::{ApplyState, ManifestId, RunOutcome};

use super::backend::{Simulate, SimulatedRun};
use super::context::RunContext;
use super::event_sink::{RunEventSink, RunRecord};
use super::job::Job;
use super::result::{RunResult, outcome_and_reason};
use super::summary::{publish_state, summary};

/// Simulates a command until its end or `until`.
pub(in crate::agent) async fn simulate(
    context: Arc<RunContext>,
    job: Job,
    simulation: Arc<dyn Simulate>,
    source: Option<ManifestText>,
    until: Instant,
) -> RunResult {
    let SimulatedRun { duration: takes, events } = simulation.simulate(&context.settings.now().node, &job.command);
    let end = Instant::now() + takes;
    tokio::time::sleep_until(end.min(until).into()).await;
    if end > until {
        return RunResult::failed(format!("the run took longer than {} and was stopped", job.command.options.timeout));
    }
    let mut heard = RunEventSink::new(&context, &job);
    let mut tally = SummaryBuilder::default();
    for event in &events {
        tally.add(event);
        heard.receive(event.clone());
    }
    let RunRecord { last: event, failures, changes, causes, .. } = heard.record;
    let plan = changes.map(|changes| changes.into_plan(&job));
    let counts = tally.summary();
    let run = RunOutcome::from_summary(&counts);
    let (outcome, _) = outcome_and_reason(run, None, &Cancel::default(), &job);
    let manifest = source.map(|source| ManifestId { source: source.name, digest: source.digest });
    let corrective = causes.finish(&context, true);
    let state = ApplyState { corrective, ..summary(&context, &job, manifest, run, None, counts) };
    publish_state(&context, &job, state.clone());
    RunResult { event, apply: Some(state), failures, plan, planned: true, ..RunResult::new(outcome, None) }
}
