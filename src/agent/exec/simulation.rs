//! Work that is only played: how a simulated node ends a command, after some time, without touching a host.
//!
//! In: what a [`Rehearse`] says about a command. Out: the same events, summary and result that a run of the engine leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::manifest::Source;
use crate::model::summary::SummaryBuilder;
use crate::model::{ApplyState, ManifestId, NodeId, RunOutcome, TransactionEvent};
use crate::wire::command::Command;

use crate::agent::Node;
use crate::agent::exec::run::event_sink::{Heard, Told};
use crate::agent::exec::run::{Job, RunOutcomeReport, publish_state, state};
use crate::wire::CommandOutcome;

/// What runs the commands of an agent.
#[derive(Clone, Default)]
pub enum Work {
    /// The engine, on this host.
    #[default]
    Engine,
    /// Nothing runs: this says how commands end. For simulators, which need ten thousand nodes and have one host.
    Rehearsal(Arc<dyn Rehearse>),
}

/// Says how commands end.
pub trait Rehearse: Send + Sync {
    /// What would happen if `node` ran `command`.
    fn play(&self, node: &NodeId, command: &Command) -> Played;
}

/// A run that did not take place.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// How long it takes; past the time limit of the command it is ended, as a real one is.
    pub takes: Duration,
    /// What happens to each resource, in order. How the run ends follows from them.
    pub events: Vec<TransactionEvent>,
}

/// Plays a command until done or `until`.
pub(in crate::agent) async fn rehearse(
    node: Arc<Node>,
    job: Job,
    play: Arc<dyn Rehearse>,
    source: Option<Source>,
    until: Instant,
) -> RunOutcomeReport {
    let Played { takes, events } = play.play(&node.settings().node, &job.command);
    let end = Instant::now() + takes;
    tokio::time::sleep_until(end.min(until).into()).await;
    if end > until {
        return RunOutcomeReport::failed(format!("it took longer than {}, and was ended", job.command.options.timeout));
    }
    let mut heard = Heard::new(&node, &job);
    let mut tally = SummaryBuilder::default();
    for event in &events {
        tally.add(event);
        heard.hear(event.clone());
    }
    let Told { last: event, failures, changes, causes, .. } = heard.told;
    let plan = changes.map(|changes| changes.planned(&job));
    let summary = tally.summary();
    let run = RunOutcome::of(&summary);
    let outcome = match run {
        RunOutcome::Stable => CommandOutcome::Stable,
        RunOutcome::Changed if job.is_dry() => CommandOutcome::WouldChange,
        RunOutcome::Changed => CommandOutcome::Changed,
        RunOutcome::Failed | RunOutcome::Interrupted => CommandOutcome::Failed,
    };
    let manifest = source.map(|source| ManifestId { source: source.name, digest: source.digest });
    let corrective = causes.end(&node, true);
    let state = ApplyState { corrective, ..state(&node, &job, manifest, run, None, summary) };
    publish_state(&node, &job, state.clone());
    RunOutcomeReport { event, apply: Some(state), failures, plan, planned: true, ..RunOutcomeReport::of(outcome, None) }
}
