//! The summary of a run, and its publication.

use std::time::Duration;

use crate::agent::durable::stable_runs::RunNotice;
use crate::agent::status::messages;
use crate::config::PublishEvents;
use crate::model::summary::{APPLY_STATE, Summary};
use crate::model::{ApplyState, HealthStatus, ManifestId, RunOutcome};
use crate::store::{OutboxMessage, Priority};
use crate::wire::command::Action;
use crate::wire::subject::EventKind;

use super::context::RunContext;
use super::job::Job;

/// Returns the summary of a run.
pub(in crate::agent) fn summary(
    context: &RunContext,
    job: &Job,
    manifest: Option<ManifestId>,
    outcome: RunOutcome,
    error: Option<String>,
    summary: Summary,
) -> ApplyState {
    ApplyState {
        protocol: APPLY_STATE.to_owned(),
        event_id: context.identity.host.new_id(),
        node: context.settings.now().node.clone(),
        run_id: job.run,
        timestamp: context.identity.now(),
        outcome,
        noop: job.is_dry(),
        manifest,
        error,
        summary,
        corrective: 0,
        stable_runs: 0,
    }
}

/// Publishes the summary of an observation of health checks when the health is not well.
pub(in crate::agent) fn publish_health(context: &RunContext, job: &Job, state: &ApplyState, health: Option<HealthStatus>) {
    if health.is_some_and(|health| health != HealthStatus::Ok) {
        let event = context.publisher.event(EventKind::Health, state.event_id, messages::json(state), Priority::Result);
        context.publisher.post(&OutboxMessage { command: Some(job.digest().to_owned()), ..event });
    }
}

/// Publishes the summary of a run. Further stable runs of a channel are only counted.
pub(in crate::agent) fn publish_state(context: &RunContext, job: &Job, mut state: ApplyState) {
    // A noop run changes nothing: the last result stays in its place.
    if !state.noop {
        context.status.change(|snapshot| snapshot.last_run = Some(state.clone()));
    }
    let is_assigned = matches!(job.command.action, Action::Assign(_)) && !job.noop;
    if let Some(channel) = job.command.channel.as_ref().filter(|_| is_assigned) {
        let settings = context.settings.now();
        let interval = if settings.events == PublishEvents::All { Duration::ZERO } else { settings.stable_interval.as_std() };
        // The first run of an assignment is the result of its command.
        let interval = if job.run == job.id() { Duration::ZERO } else { interval };
        let telling = context.publisher.count_run(&channel.name, state.outcome, interval);
        match telling {
            RunNotice::Summary(before) => state.stable_runs = before,
            RunNotice::Counts(runs) => return context.publisher.post_stable_runs(runs),
            RunNotice::Nothing => return,
        }
    }
    let event = context.publisher.event(EventKind::Run, state.event_id, messages::json(&state), Priority::Result);
    context.publisher.post(&OutboxMessage { command: Some(job.digest().to_owned()), ..event });
}
