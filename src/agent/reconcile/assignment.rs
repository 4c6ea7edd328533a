//! Assignments and the channels that they belong to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::config::AgentSettings;
use crate::model::{HealthStatus, RunOutcome};
use crate::store::ChannelRecord;
use crate::store::desired_state::{EnvelopeBytes, RevertRecord, Reverted};
use crate::trust::Verified;
use crate::wire::command::{Action, Assign, Command};
use crate::wire::report::RevertStatus;
use crate::wire::rollout_plan::RolloutPosition;

use super::channel::{ChannelState, ChannelWork, Enforced, Timers, earlier};

/// An accepted command of a channel.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::agent) struct Assignment {
    /// The command as verified.
    pub(in crate::agent) command: Arc<Verified<Command>>,
}

impl Assignment {
    pub(super) fn new(command: Arc<Verified<Command>>) -> Arc<Self> {
        Arc::new(Self { command })
    }

    /// Returns the serial in the channel.
    fn serial(&self) -> Option<u64> {
        self.command.channel.as_ref().map(|channel| channel.serial)
    }

    /// Returns the assignment of the command; `None` for a withdrawal.
    pub(in crate::agent) fn assign(&self) -> Option<&Assign> {
        match &self.command.action {
            Action::Assign(assign) => Some(assign),
            _ => None,
        }
    }
}

/// The way back from the latest assignment of a channel.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::agent) enum RevertState {
    /// No way back: the rollout ended well, or nodes do not go back.
    #[default]
    None,
    /// This node ran the latest assignment, and its wave is undecided.
    Undecided {
        /// The assignment before, if there was one.
        previous: Option<Arc<Assignment>>,
        /// The time of the next question about the wave.
        ask_at: Instant,
    },
    /// This node went back, and never applies the latest assignment again.
    Reverted(Reverted),
}

impl RevertState {
    /// Returns the state as the file of the channel has it.
    pub(super) fn record(&self) -> Option<RevertRecord> {
        match self {
            Self::None => None,
            Self::Undecided { previous, .. } => {
                let envelope = |previous: &Arc<Assignment>| EnvelopeBytes(previous.command.envelope().to_vec());
                Some(RevertRecord::Undecided(previous.as_ref().map(envelope)))
            }
            Self::Reverted(reverted) => Some(RevertRecord::Reverted(reverted.clone())),
        }
    }
}

/// A channel with its latest and its last good assignment.
#[derive(Debug, Clone)]
pub(in crate::agent) struct ChannelAssignments {
    /// The latest accepted assignment.
    pub(in crate::agent) latest: Arc<Assignment>,
    /// The last assignment that could be applied: the latest one or an earlier one.
    pub(in crate::agent) good: Option<Arc<Assignment>>,
    /// True when the sender of the latest assignment still waits for its result.
    pub(in crate::agent) result_pending: bool,
    /// The event that the channel waits for.
    pub(in crate::agent) state: ChannelState,
    /// True when the file of the channel could not be written yet.
    pub(super) unsaved: bool,
    /// The last run.
    pub(in crate::agent) last_run: LastRun,
    /// The way back from the latest assignment.
    pub(in crate::agent) revert: RevertState,
}

/// The last run of a channel, and its last health check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::agent) struct LastRun {
    /// The end of the last run, and its outcome.
    pub(in crate::agent) ended: Option<(Timestamp, RunOutcome)>,
    /// The runs in a row, up to the last one, that found every resource as wanted.
    pub(in crate::agent) stable_runs: u64,
    /// The worst health check.
    pub(in crate::agent) health: Option<HealthStatus>,
}

impl ChannelAssignments {
    pub(super) fn new(latest: Arc<Assignment>, good: Option<Arc<Assignment>>, result_pending: bool, run_at: Instant) -> Self {
        let state = ChannelState::AwaitingFirstRun { run_at };
        Self { latest, good, result_pending, state, unsaved: false, last_run: LastRun::default(), revert: RevertState::None }
    }

    /// Returns true when the latest assignment is for this node.
    pub(in crate::agent) fn targets_node(&self, settings: &AgentSettings) -> bool {
        let is_named = settings.channels.as_ref().is_none_or(|names| names.contains(&self.name()));
        is_named && self.latest.assign().is_some() && self.latest.command.to.includes(&settings.node, &settings.groups)
    }

    fn name(&self) -> String {
        self.latest.command.channel.as_ref().map(|channel| channel.name.clone()).unwrap_or_default()
    }

    /// Returns the last good assignment, if it is an earlier one than the latest.
    pub(super) fn earlier_good(&self) -> Option<&Arc<Assignment>> {
        self.good.as_ref().filter(|good| good.command.id != self.latest.command.id)
    }

    /// Returns the assignment whose drift is repaired between the runs.
    pub(super) fn watched(&self) -> Option<&Arc<Assignment>> {
        let enforced = match self.state.enforced() {
            Enforced::Latest => Some(&self.latest),
            Enforced::EarlierGood => self.earlier_good(),
            Enforced::None => None,
        };
        enforced.filter(|assignment| assignment.assign().is_some_and(Assign::is_watched))
    }

    /// Returns the next times of an assignment.
    ///
    /// The times are this node's own: nodes that got an assignment together do not run it together.
    pub(super) fn timers(&self, assign: &Assign, settings: &AgentSettings, now: Timestamp) -> Timers {
        let slot = |interval: Duration| self.next_slot(interval, settings, now);
        Timers {
            run_at: slot(assign.interval.as_std()),
            health_at: assign.health_interval.map(|interval| slot(interval.as_std())),
        }
    }

    fn next_slot(&self, interval: Duration, settings: &AgentSettings, now: Timestamp) -> Instant {
        let every = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).max(1);
        let own = RolloutPosition::for_node(self.latest.command.id, &settings.node).fraction_of(every);
        let mut wait = (own - now.as_millisecond()).rem_euclid(every);
        if wait < every / 2 {
            // The last run has just ended.
            wait = wait.saturating_add(every);
        }
        Instant::now() + Duration::from_millis(wait.unsigned_abs())
    }

    /// Returns the channel as its file has it.
    pub(super) fn record(&self) -> ChannelRecord {
        let envelope = |assignment: &Assignment| assignment.command.envelope().to_vec();
        ChannelRecord {
            latest: envelope(&self.latest),
            good: self.good.as_deref().map(|good| EnvelopeBytes(envelope(good))),
            revert: self.revert.record(),
        }
    }

    /// Returns the next work and its time; `None` while the channel does not wait for time.
    ///
    /// `gate_at` is the time of the health gate of the rollout, while the gate is pending.
    pub(super) fn due(&self, gate_at: Option<Instant>) -> Option<(Instant, ChannelWork)> {
        let due = self.state.due(gate_at);
        match (&self.revert, &self.state) {
            (RevertState::Undecided { ask_at, .. }, ChannelState::InForce(_)) => {
                earlier(due, Some((*ask_at, ChannelWork::Verdict)))
            }
            _ => due,
        }
    }

    /// Returns the assignment that the node would go back to.
    pub(super) fn previous(&self) -> Option<&Arc<Assignment>> {
        match &self.revert {
            RevertState::Undecided { previous, .. } => previous.as_ref(),
            RevertState::None | RevertState::Reverted(_) => self.earlier_good(),
        }
    }

    /// Returns the return to the assignment before, if the node went back.
    pub(in crate::agent) fn reverted(&self) -> Option<&Reverted> {
        match &self.revert {
            RevertState::Reverted(reverted) => Some(reverted),
            RevertState::None | RevertState::Undecided { .. } => None,
        }
    }

    /// Returns the return to the assignment before, as node states have it.
    pub(super) fn revert_status(&self) -> Option<RevertStatus> {
        let Reverted { at, why, .. } = self.reverted()?;
        let to = self.earlier_good().and_then(|good| good.serial());
        Some(RevertStatus { to, at: *at, why: why.clone() })
    }

    /// Returns the return to the assignment before in words.
    pub(in crate::agent) fn revert_text(&self) -> Option<String> {
        let RevertStatus { to, why, .. } = self.revert_status()?;
        let serial = self.latest.serial().unwrap_or_default();
        Some(match to {
            Some(to) => format!("reverted from serial {serial} to serial {to}: {why}"),
            None => format!("ended serial {serial} and undid nothing, as no assignment was before: {why}"),
        })
    }
}
