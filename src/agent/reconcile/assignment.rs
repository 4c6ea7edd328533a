//! Assignments and the channels that they belong to.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::config::AgentSettings;
use crate::model::{HealthStatus, RunOutcome};
use crate::store::ChannelRecord;
use crate::store::desired_state::EnvelopeBytes;
use crate::trust::Verified;
use crate::wire::command::{Action, Assign, Command};
use crate::wire::rollout_plan::RolloutPosition;

use super::channel::{ChannelState, Enforced, Timers};

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

    /// Returns the assignment of the command; `None` for a withdrawal.
    pub(in crate::agent) fn assign(&self) -> Option<&Assign> {
        match &self.command.action {
            Action::Assign(assign) => Some(assign),
            _ => None,
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
        Self { latest, good, result_pending, state, unsaved: false, last_run: LastRun::default() }
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
        record(&self.latest, self.good.as_deref())
    }
}

/// Returns the file of a channel with these assignments.
pub(super) fn record(latest: &Assignment, good: Option<&Assignment>) -> ChannelRecord {
    let envelope = |assignment: &Assignment| assignment.command.envelope().to_vec();
    ChannelRecord { latest: envelope(latest), good: good.map(|good| EnvelopeBytes(envelope(good))) }
}
