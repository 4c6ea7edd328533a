//! Work that is only played: how a simulated node ends a command, after some time, without touching a host.
//!
//! In: what a [`Simulate`] says about a command. Out: the same events, summary and result that a run of the engine leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::manifest::Source;
use crate::model::summary::SummaryBuilder;
use crate::model::{ApplyState, ManifestId, NodeId, RunOutcome, TransactionEvent};
use crate::wire::command::Command;

use super::context::RunContext;
use super::event_sink::{RunEventSink, RunRecord};
use super::job::Job;
use super::result::RunResult;
use super::summary::{publish_state, summary};
use crate::wire::CommandOutcome;

/// What runs the commands of an agent.
#[derive(Clone, Default)]
pub enum Work {
    /// The engine, on this host.
    #[default]
    Engine,
    /// Nothing runs: this says how commands end. For simulators, which need ten thousand nodes and have one host.
    Simulation(Arc<dyn Simulate>),
}

/// Says how commands end.
pub trait Simulate: Send + Sync {
    /// What would happen if `node` ran `command`.
    fn simulate(&self, node: &NodeId, command: &Command) -> SimulatedRun;
}

/// A run that did not take place.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedRun {
    /// How long it takes; past the time limit of the command it is ended, as a real one is.
    pub takes: Duration,
    /// What happens to each resource, in order. How the run ends follows from them.
    pub events: Vec<TransactionEvent>,
}

/// Plays a command until done or `until`.
pub(in crate::agent) async fn simulate(
    node: Arc<RunContext>,
    job: Job,
    simulation: Arc<dyn Simulate>,
    source: Option<Source>,
    until: Instant,
) -> RunResult {
    let SimulatedRun { takes, events } = simulation.simulate(&node.settings.now().node, &job.command);
    let end = Instant::now() + takes;
    tokio::time::sleep_until(end.min(until).into()).await;
    if end > until {
        return RunResult::failed(format!("it took longer than {}, and was ended", job.command.options.timeout));
    }
    let mut heard = RunEventSink::new(&node, &job);
    let mut tally = SummaryBuilder::default();
    for event in &events {
        tally.add(event);
        heard.hear(event.clone());
    }
    let RunRecord { last: event, failures, changes, causes, .. } = heard.told;
    let plan = changes.map(|changes| changes.planned(&job));
    let counts = tally.summary();
    let run = RunOutcome::of(&counts);
    let outcome = match run {
        RunOutcome::Stable => CommandOutcome::Stable,
        RunOutcome::Changed if job.is_dry() => CommandOutcome::WouldChange,
        RunOutcome::Changed => CommandOutcome::Changed,
        RunOutcome::Failed | RunOutcome::Interrupted => CommandOutcome::Failed,
    };
    let manifest = source.map(|source| ManifestId { source: source.name, digest: source.digest });
    let corrective = causes.end(&node, true);
    let state = ApplyState { corrective, ..summary(&node, &job, manifest, run, None, counts) };
    publish_state(&node, &job, state.clone());
    RunResult { event, apply: Some(state), failures, plan, planned: true, ..RunResult::of(outcome, None) }
}
