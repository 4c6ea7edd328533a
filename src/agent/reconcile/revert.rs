//! The way back of a node: from an assignment whose rollout failed to the assignment before.
//!
//! The order has four steps. The node publishes its failure, and writes the return into the file of the channel. Then the node
//! publishes the result and the event, and applies the assignment before. A crash in between repeats the rest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::SignedDuration;

use crate::agent::jitter;
use crate::agent::rollout::gate::poll_interval;
use crate::agent::rollout::wave_verdict::{HoldPhase, WaveReports, WaveVerdict};
use crate::agent::status::messages;
use crate::diag::error_chain;
use crate::host::{Checkpoint, checkpoint};
use crate::store::desired_state::Reverted;
use crate::wire::report::LifecycleEvent;

use super::channel::RevertCause;
use super::desired_state::{Assignment, ChannelAssignments, RevertState};
use super::reconciler::Reconciler;

/// Longest pause between two questions about the wave of this node, before jitter.
const MAX_VERDICT_PAUSE: Duration = Duration::from_secs(13);

impl Reconciler {
    /// Returns true from the first run to the end of the hold. A failure of this node then leads back to the assignment before.
    pub(super) fn may_revert(&self, channel: &ChannelAssignments) -> bool {
        let latest = &channel.latest;
        match channel.revert {
            RevertState::None => {
                latest.command.reverts_on_failure()
                    && channel.good.as_ref().is_none_or(|good| good.command.id != latest.command.id)
            }
            RevertState::Undecided { .. } => self.hold_phase(latest) == HoldPhase::Holding,
            RevertState::Reverted(_) => false,
        }
    }

    /// Returns the time of this node in its rollout, after its own run.
    fn hold_phase(&self, latest: &Assignment) -> HoldPhase {
        let (command, now) = (&latest.command, self.identity.now());
        let Some((plan, counts_at)) = command.options.waves.as_ref().zip(self.success_counts_at(latest)) else {
            return HoldPhase::Over;
        };
        // All nodes of a wave begin at about the same time: a witness has the time of one wave more.
        let witnesses = SignedDuration::try_from(plan.max_wait(2, command.options.timeout)).unwrap_or(SignedDuration::MAX);
        if counts_at > now || self.rollouts.health_gates.is_pending(command.id) {
            HoldPhase::Holding
        } else if counts_at.saturating_add(witnesses).is_ok_and(|last| last > now) {
            HoldPhase::AwaitingWitnesses
        } else {
            HoldPhase::Over
        }
    }

    /// Goes back to the assignment before, on disk.
    pub(super) fn revert(&self, name: &str, latest: &Arc<Assignment>, cause: RevertCause) {
        let why = match cause {
            RevertCause::Node(why) => {
                self.rollouts.results.publish_return(&latest.command);
                why
            }
            RevertCause::Wave(why) => why,
        };
        let (event, at) = (self.identity.host.new_id(), self.identity.now());
        let written = self.desired_state.revert(name, latest, &Reverted { event, at, why, reported: false });
        self.status.report_storage_error(written);
        // A success that was not published yet does not count any more.
        self.rollouts.health_gates.complete(latest.command.id);
    }

    /// Publishes the event about the return to the assignment before, unless it is published. A repetition after a crash has the
    /// same id.
    pub(super) fn report_revert(&self, name: &str, latest: &Arc<Assignment>, channel: &ChannelAssignments) {
        let Some((reverted, text)) = channel.reverted().zip(channel.revert_text()).filter(|(reverted, _)| !reverted.reported)
        else {
            return;
        };
        tracing::error!(channel = name, "{text}");
        let (event_id, timestamp) = (reverted.event, reverted.at);
        let message = Some(format!("channel {name}: {text}"));
        let event = messages::lifecycle(&self.identity, "reverted");
        self.publisher.post_lifecycle(&LifecycleEvent { event_id, timestamp, message, ..event });
        checkpoint(Checkpoint::RevertReported);
        self.status.report_storage_error(self.desired_state.record_revert_reported(name, latest));
    }

    /// Asks whether the wave of this node failed. An unreadable stream leaves that open, until the time of the wave is over.
    pub(super) async fn ask_verdict(&self, name: &str, latest: &Arc<Assignment>, reports: &mut WaveReports) -> WaveVerdict {
        let phase = self.hold_phase(latest);
        let verdict = reports.verdict(&latest.command, phase, &self.rollouts.gate, &self.bus).await;
        self.desired_state.change(name, latest, |channel| {
            if let RevertState::Undecided { ask_at, .. } = &mut channel.revert {
                *ask_at = next_question(latest);
            }
        });
        verdict.unwrap_or_else(|error| {
            tracing::debug!(channel = name, "cannot read whether the wave failed: {}", error_chain(&error));
            if phase == HoldPhase::Over { WaveVerdict::Stays } else { WaveVerdict::Undecided }
        })
    }

    /// Returns the time of the first question about the wave, if its rollout may send this node back.
    pub(super) fn first_question(latest: &Assignment) -> Option<Instant> {
        latest.command.reverts_on_failure().then(|| next_question(latest))
    }
}

/// Returns the time of the next question about the wave of this node, with jitter.
fn next_question(latest: &Assignment) -> Instant {
    let pause = latest.command.options.waves.as_ref().map_or(MAX_VERDICT_PAUSE, poll_interval).min(MAX_VERDICT_PAUSE);
    Instant::now() + pause / 2 + jitter::random_delay(pause)
}
