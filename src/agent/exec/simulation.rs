//! Simulation of runs: a simulated node ends a command after some time, without changes on a host.
//!
//! In: the answer of a [`Simulate`] to a command. Out: the same events, summary and result as from a run of the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::manifest::ManifestText;
use crate::model::summary::SummaryBuilder;
use crate::model::{ApplyState, ManifestId, NodeId, RunOutcome, TransactionEvent};
use crate::wire::command::Command;

use super::context::RunContext;
use super::event_sink::{RunEventSink, RunRecord};
use super::job::Job;
use super::result::RunResult;
use super::summary::{publish_state, summary};
use crate::wire::CommandOutcome;

/// The way in which an agent runs commands.
#[derive(Clone, Default)]
pub enum RunBackend {
    /// The engine, on this host.
    #[default]
    Engine,
    /// A simulation. For simulators, which run ten thousand nodes on one host.
    Simulation(Arc<dyn Simulate>),
}

/// Decides the ends of commands.
pub trait Simulate: Send + Sync {
    /// Returns the run of `command` on `node`.
    fn simulate(&self, node: &NodeId, command: &Command) -> SimulatedRun;
}

/// A simulated run.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedRun {
    /// The duration. A run ends at the time limit of its command, as a real run does.
    pub duration: Duration,
    /// The events of its resources, in order. The outcome follows from them.
    pub events: Vec<TransactionEvent>,
}

/// Simulates a command until its end or `until`.
pub(in crate::agent) async fn simulate(
    node: Arc<RunContext>,
    job: Job,
    simulation: Arc<dyn Simulate>,
    source: Option<ManifestText>,
    until: Instant,
) -> RunResult {
    let SimulatedRun { duration: takes, events } = simulation.simulate(&node.settings.now().node, &job.command);
    let end = Instant::now() + takes;
    tokio::time::sleep_until(end.min(until).into()).await;
    if end > until {
        return RunResult::failed(format!("the run took longer than {} and was stopped", job.command.options.timeout));
    }
    let mut heard = RunEventSink::new(&node, &job);
    let mut tally = SummaryBuilder::default();
    for event in &events {
        tally.add(event);
        heard.receive(event.clone());
    }
    let RunRecord { last: event, failures, changes, causes, .. } = heard.record;
    let plan = changes.map(|changes| changes.into_plan(&job));
    let counts = tally.summary();
    let run = RunOutcome::from_summary(&counts);
    let outcome = match run {
        RunOutcome::Stable => CommandOutcome::Stable,
        RunOutcome::Changed if job.is_dry() => CommandOutcome::WouldChange,
        RunOutcome::Changed => CommandOutcome::Changed,
        RunOutcome::Failed | RunOutcome::Interrupted => CommandOutcome::Failed,
    };
    let manifest = source.map(|source| ManifestId { source: source.name, digest: source.digest });
    let corrective = causes.finish(&node, true);
    let state = ApplyState { corrective, ..summary(&node, &job, manifest, run, None, counts) };
    publish_state(&node, &job, state.clone());
    RunResult { event, apply: Some(state), failures, plan, planned: true, ..RunResult::new(outcome, None) }
}
