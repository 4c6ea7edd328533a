//! The state machine of a channel: reconciles this node with the assignment of one channel.
//!
//! [`ChannelState`] names the event that the channel waits for. [`step`] is pure: an event leads to the next state and to
//! the [`ChannelEffect`]s that `reconciler.rs` carries out. Each effect that takes time ends in exactly one event. `terms.rs` has these terms.
//!
//! The last good assignment stays active while the latest one waits for its wave, cannot be applied, or was stopped.

mod terms;

use std::time::{Duration, Instant};

use crate::agent::rollout::gate::RolloutTurn;
use crate::agent::rollout::wave_verdict::WaveVerdict;
use crate::model::HealthStatus;

pub(in crate::agent) use terms::{
    AssignmentReport, ChannelEffect, ChannelEvent, ChannelRunEnd, ChannelWork, Enforced, RevertCause, Timers,
};

/// Pause before another attempt at an assignment that cannot be applied.
const RETRY: Duration = Duration::from_secs(30);
/// Pause before the next question to a closed rollout gate: `halt` and `resume` arrive within this time.
const GATE_POLL: Duration = Duration::from_secs(30);
/// Pause before the next question to the gate of a stopped rollout, in case its state changes.
const STOPPED_POLL: Duration = Duration::from_secs(3600);

/// The event that a channel waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum ChannelState {
    /// Waits for the time of the first run of a new assignment.
    AwaitingFirstRun {
        /// The time of the first run.
        run_at: Instant,
    },
    /// Waits for the evaluation of the filter (`where`) of the assignment.
    AwaitingFilter {
        /// The work to do when the filter selects the node.
        work: ChannelWork,
        /// The state that the channel came from.
        resume: Box<Self>,
    },
    /// Waits for the answer of the rollout gate.
    AwaitingGate {
        /// The state that the channel came from.
        resume: Box<Self>,
    },
    /// Waits for its wave. The last good assignment stays active.
    AwaitingTurn {
        /// The time at which the gate is asked again.
        ask_at: Instant,
        /// The next work of the last good assignment, if there is one.
        good: Option<Timers>,
        /// The reason for the alarm, if the wait deserves one.
        why: Option<String>,
    },
    /// Waits for the end of a run of the latest assignment.
    AwaitingRun {
        /// The state that the channel came from.
        resume: Box<Self>,
    },
    /// Waits for the end of a run of the last good assignment.
    AwaitingLastGoodRun {
        /// The state after the run.
        resume: Box<Self>,
    },
    /// Waits for the end of a run of the resources that may have drifted.
    AwaitingRepair {
        /// The state that the channel came from.
        resume: Box<Self>,
    },
    /// Waits for the verdict about the wave of this node.
    AwaitingVerdict {
        /// The state that the channel came from.
        resume: Box<Self>,
    },
    /// Waits for the result of the health checks.
    AwaitingHealth {
        /// The state that the channel came from.
        resume: Box<Self>,
    },
    /// The latest assignment is in force. Waits for the next run or health check.
    InForce(Timers),
    /// The latest assignment cannot be applied. The last good one stays active. Waits for the next attempt.
    Degraded {
        /// The next attempt, and the next health check of the last good assignment.
        timers: Timers,
        /// The reason, for the alarm.
        why: String,
    },
    /// The filter does not select this node. Waits for the next evaluation.
    NotSelected(Timers),
    /// The filter cannot be evaluated. Waits for the next attempt.
    Undecided {
        /// The next attempt.
        timers: Timers,
        /// The reason, for the alarm.
        why: String,
    },
    /// The rollout stopped before this node began. The last good assignment stays active.
    Stopped {
        /// The time at which the gate is asked again.
        ask_at: Instant,
        /// The next work of the last good assignment, if there is one.
        good: Option<Timers>,
        /// The reason, for the alarm.
        why: String,
    },
    /// The node went back: the rollout of the latest assignment failed. The assignment before is active, if there was one.
    Reverted(Option<Timers>),
    /// Nothing is assigned: the assignment was withdrawn, or names other nodes.
    Absent,
}

/// The facts about a channel that a step depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct ChannelView {
    /// True when the latest assignment is for this node.
    pub(in crate::agent) targets_node: bool,
    /// True when the latest assignment has a filter.
    pub(in crate::agent) has_filter: bool,
    /// True when the latest assignment comes in waves.
    pub(in crate::agent) has_waves: bool,
    /// True when the sender of the latest assignment still waits for its result.
    pub(in crate::agent) result_pending: bool,
    /// The next times of the latest assignment after a run or a health check at this moment.
    pub(in crate::agent) next_timers: Timers,
    /// The same times of the last good assignment, if it is an earlier one.
    pub(in crate::agent) good_timers: Option<Timers>,
    /// The time between two questions to the rollout gate of this assignment.
    pub(in crate::agent) gate_interval: Duration,
    /// True when the health gate is due without health checks to observe.
    pub(in crate::agent) is_gate_only: bool,
    /// True when a failure of this node, now, leads back to the assignment before.
    pub(in crate::agent) may_revert: bool,
    /// True when this node went back to the assignment before.
    pub(in crate::agent) is_reverted: bool,
    /// The next times of the assignment before, while the node may go back to it.
    pub(in crate::agent) previous_timers: Option<Timers>,
}

/// The next state of a channel, and the effects to carry out.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::agent) struct ChannelStep {
    /// The next state.
    pub(in crate::agent) state: ChannelState,
    /// The effects, in order. At most the last one takes time.
    pub(in crate::agent) effects: Vec<ChannelEffect>,
}

impl ChannelStep {
    fn to(state: ChannelState, effects: impl Into<Vec<ChannelEffect>>) -> Self {
        Self { state, effects: effects.into() }
    }
}

impl ChannelState {
    /// Returns the next work and its time; `None` while the channel does not wait for time.
    ///
    /// `gate_at` is the time of the health gate of the rollout, while the gate is pending.
    pub(in crate::agent) fn due(&self, gate_at: Option<Instant>) -> Option<(Instant, ChannelWork)> {
        let gate = gate_at.map(|at| (at, ChannelWork::HealthCheck));
        let timed = |timers: &Timers, run: ChannelWork| {
            let health = timers.health_at.map(|at| (at, ChannelWork::HealthCheck));
            earlier(Some((timers.run_at, run)), health)
        };
        match self {
            Self::AwaitingFirstRun { run_at } => Some((*run_at, ChannelWork::Latest)),
            Self::InForce(timers) => earlier(timed(timers, ChannelWork::Latest), gate),
            Self::NotSelected(timers) | Self::Degraded { timers, .. } | Self::Undecided { timers, .. } => {
                timed(timers, ChannelWork::Latest)
            }
            Self::AwaitingTurn { ask_at, good, .. } | Self::Stopped { ask_at, good, .. } => {
                earlier(Some((*ask_at, ChannelWork::Latest)), good.as_ref().and_then(|good| timed(good, ChannelWork::LastGood)))
            }
            Self::Reverted(good) => good.as_ref().and_then(|good| timed(good, ChannelWork::LastGood)),
            Self::AwaitingFilter { .. }
            | Self::AwaitingGate { .. }
            | Self::AwaitingRun { .. }
            | Self::AwaitingLastGoodRun { .. }
            | Self::AwaitingRepair { .. }
            | Self::AwaitingVerdict { .. }
            | Self::AwaitingHealth { .. }
            | Self::Absent => None,
        }
    }

    /// Returns the assignment whose drift is repaired between the runs, if it asks for that.
    pub(in crate::agent) fn enforced(&self) -> Enforced {
        match self.at_rest() {
            Self::InForce(_) => Enforced::Latest,
            Self::AwaitingFirstRun { .. }
            | Self::AwaitingTurn { .. }
            | Self::Degraded { .. }
            | Self::Stopped { .. }
            | Self::Reverted(_) => Enforced::EarlierGood,
            _ => Enforced::None,
        }
    }

    /// Returns true when the filter selects this node, as far as it was evaluated.
    pub(in crate::agent) fn is_selected(&self) -> bool {
        !matches!(self.at_rest(), Self::NotSelected(_))
    }

    /// Returns the reason for the alarm, while the latest assignment is not in force.
    pub(in crate::agent) fn alarm(&self) -> Option<&str> {
        match self.at_rest() {
            Self::Degraded { why, .. } | Self::Undecided { why, .. } | Self::Stopped { why, .. } => Some(why),
            Self::AwaitingTurn { why, .. } => why.as_deref(),
            _ => None,
        }
    }

    /// Returns the state that waits for time: this one, or the one that work in progress came from.
    fn at_rest(&self) -> &Self {
        match self {
            Self::AwaitingFilter { resume, .. }
            | Self::AwaitingGate { resume }
            | Self::AwaitingRun { resume }
            | Self::AwaitingLastGoodRun { resume }
            | Self::AwaitingRepair { resume }
            | Self::AwaitingVerdict { resume }
            | Self::AwaitingHealth { resume } => resume.at_rest(),
            state => state,
        }
    }

    fn good(&self) -> Option<Timers> {
        match self {
            Self::AwaitingTurn { good, .. } | Self::Stopped { good, .. } => *good,
            _ => None,
        }
    }

    /// Returns the same state, with the times after work that just ended.
    fn with_next_timers(self, work: ChannelWork, view: &ChannelView, now: Instant, is_critical: bool) -> Self {
        let moved = |timers: Timers, next: Timers| match work {
            ChannelWork::HealthCheck if is_critical => Timers { run_at: now, health_at: next.health_at },
            ChannelWork::HealthCheck => Timers { health_at: next.health_at, ..timers },
            _ => next,
        };
        let good_moved = |good: Option<Timers>| good.map(|timers| moved(timers, view.good_timers.unwrap_or(view.next_timers)));
        match self {
            Self::InForce(timers) => Self::InForce(moved(timers, view.next_timers)),
            Self::NotSelected(timers) => Self::NotSelected(moved(timers, view.next_timers)),
            Self::Degraded { timers, why } => Self::Degraded { timers: moved(timers, view.next_timers), why },
            Self::Undecided { timers, why } => Self::Undecided { timers: moved(timers, view.next_timers), why },
            Self::AwaitingTurn { ask_at, good, why } => Self::AwaitingTurn { ask_at, good: good_moved(good), why },
            Self::Stopped { ask_at, good, why } => Self::Stopped { ask_at, good: good_moved(good), why },
            Self::Reverted(good) => Self::Reverted(good_moved(good)),
            state => state,
        }
    }
}

/// Returns the earlier one of two times of work.
pub(in crate::agent) fn earlier(
    one: Option<(Instant, ChannelWork)>,
    other: Option<(Instant, ChannelWork)>,
) -> Option<(Instant, ChannelWork)> {
    match (one, other) {
        (Some(one), Some(other)) if other.0 < one.0 => Some(other),
        (one, other) => one.or(other),
    }
}

/// Returns the next state of a channel after an event, and the effects to carry out.
///
/// An event that the state does not wait for changes nothing.
pub(in crate::agent) fn step(state: ChannelState, event: ChannelEvent, view: &ChannelView, now: Instant) -> ChannelStep {
    use ChannelState as S;
    match (state, event) {
        (state, ChannelEvent::Due(_)) if !view.targets_node && state.due(None).is_some() => {
            ChannelStep::to(S::Absent, [ChannelEffect::Forget, ChannelEffect::Publish(AssignmentReport::Stable)])
        }
        (S::Absent, ChannelEvent::Due(work)) if view.targets_node => {
            begin_work(S::AwaitingFirstRun { run_at: now }, work, view, now)
        }
        (state, ChannelEvent::Due(work)) if state.due(None).is_some() => begin_work(state, work, view, now),
        (state, ChannelEvent::Drifted) if view.targets_node && state.due(None).is_some() => repair(state, view, now),
        (S::AwaitingFilter { work, resume }, ChannelEvent::FilterEvaluated(Ok(true))) => filter_passed(*resume, work, view, now),
        (S::AwaitingFilter { .. }, ChannelEvent::FilterEvaluated(Ok(false))) => {
            ChannelStep::to(S::NotSelected(view.next_timers), [ChannelEffect::Publish(AssignmentReport::NotSelected)])
        }
        (S::AwaitingFilter { .. }, ChannelEvent::FilterEvaluated(Err(why))) => {
            let report = ChannelEffect::Publish(AssignmentReport::BadFilter(why.clone()));
            let why = format!("cannot evaluate the filter (`where`) of the assignment: {why}");
            ChannelStep::to(S::Undecided { timers: retry_timers(view.next_timers, now), why }, [report])
        }
        (S::AwaitingGate { resume }, ChannelEvent::GateAnswered(turn)) => gate_answered(*resume, turn, view, now),
        (S::AwaitingRun { .. }, ChannelEvent::RunEnded(ChannelRunEnd::Failed(why, _))) if view.may_revert => {
            revert(RevertCause::Node(format!("its run failed: {why}")), view)
        }
        (S::AwaitingRun { .. }, ChannelEvent::RunEnded(ChannelRunEnd::Planned(Some(HealthStatus::Critical))))
            if view.may_revert =>
        {
            revert(unhealthy(), view)
        }
        (S::AwaitingRun { .. }, ChannelEvent::RunEnded(ChannelRunEnd::Planned(health) | ChannelRunEnd::Failed(_, health))) => {
            // The first run reports its health with its result.
            let health = (!view.result_pending).then_some(ChannelEffect::ReportHealth(health));
            let effects: Vec<ChannelEffect> = [ChannelEffect::Promote]
                .into_iter()
                .chain(health)
                .chain([ChannelEffect::Publish(AssignmentReport::Run)])
                .collect();
            ChannelStep::to(S::InForce(view.next_timers), effects)
        }
        (S::AwaitingRun { .. }, ChannelEvent::RunEnded(ChannelRunEnd::NotPlanned(why))) => {
            let kept = if view.good_timers.is_some() { "; the previous one stays active" } else { "" };
            let why = format!("cannot apply the new assignment: {why}{kept}");
            let degraded = S::Degraded { timers: retry_timers(view.next_timers, now), why };
            match view.good_timers {
                Some(_) => ChannelStep::to(
                    S::AwaitingLastGoodRun { resume: Box::new(degraded) },
                    [ChannelEffect::Publish(AssignmentReport::Run), ChannelEffect::RunLastGood],
                ),
                None => ChannelStep::to(degraded, [ChannelEffect::Publish(AssignmentReport::Run)]),
            }
        }
        (S::AwaitingLastGoodRun { resume }, ChannelEvent::RunEnded(_)) => {
            let resume = match *resume {
                // The times of another attempt at the latest assignment stay.
                state @ S::Degraded { .. } => state,
                state => state.with_next_timers(ChannelWork::LastGood, view, now, false),
            };
            ChannelStep::to(resume, [])
        }
        (S::AwaitingRepair { resume }, ChannelEvent::RunEnded(ChannelRunEnd::Failed(why, _)))
            if view.may_revert && matches!(*resume, S::InForce(_)) =>
        {
            revert(RevertCause::Node(format!("its run failed: {why}")), view)
        }
        (S::AwaitingRepair { resume }, ChannelEvent::RunEnded(_)) => ChannelStep::to(*resume, []),
        (S::AwaitingVerdict { .. }, ChannelEvent::VerdictGiven(WaveVerdict::Failed(why))) => revert(RevertCause::Wave(why), view),
        (S::AwaitingVerdict { resume }, ChannelEvent::VerdictGiven(WaveVerdict::Stays)) => {
            ChannelStep::to(*resume, [ChannelEffect::RemovePrevious])
        }
        (S::AwaitingVerdict { resume }, ChannelEvent::VerdictGiven(WaveVerdict::Undecided)) => ChannelStep::to(*resume, []),
        (S::AwaitingHealth { resume }, ChannelEvent::HealthChecked(Some(HealthStatus::Critical)))
            if view.may_revert && matches!(*resume, S::InForce(_)) =>
        {
            revert(unhealthy(), view)
        }
        (S::AwaitingHealth { resume }, ChannelEvent::HealthChecked(health)) => {
            let is_critical = health == Some(HealthStatus::Critical);
            let effects = [ChannelEffect::ReportHealth(health), ChannelEffect::CompleteHealthGate(health)];
            ChannelStep::to(resume.with_next_timers(ChannelWork::HealthCheck, view, now, is_critical), effects)
        }
        // The agent stops: the next start begins with what is on disk.
        (state, ChannelEvent::Interrupted) => ChannelStep::to(state.at_rest().clone(), []),
        (state, _) => ChannelStep::to(state, []),
    }
}

fn begin_work(state: ChannelState, work: ChannelWork, view: &ChannelView, now: Instant) -> ChannelStep {
    let resume = Box::new(state);
    match work {
        ChannelWork::Verdict => ChannelStep::to(ChannelState::AwaitingVerdict { resume }, [ChannelEffect::AskVerdict]),
        // After a restart too, a failed assignment is not applied again.
        ChannelWork::Latest if view.is_reverted => ChannelStep::to(
            ChannelState::Reverted(view.good_timers.map(|next| Timers { run_at: now, ..next })),
            [ChannelEffect::Publish(AssignmentReport::Reverted), ChannelEffect::ReportRevert],
        ),
        // The filter of the latest assignment does not apply to the last good one.
        ChannelWork::LastGood => ChannelStep::to(ChannelState::AwaitingLastGoodRun { resume }, [ChannelEffect::RunLastGood]),
        ChannelWork::HealthCheck if view.is_reverted => filter_passed(*resume, work, view, now),
        _ if view.has_filter => ChannelStep::to(ChannelState::AwaitingFilter { work, resume }, [ChannelEffect::EvaluateFilter]),
        work => filter_passed(*resume, work, view, now),
    }
}

fn unhealthy() -> RevertCause {
    RevertCause::Node("a health check is critical".to_owned())
}

/// Goes back to the assignment before: on disk first, then reported, then applied.
fn revert(cause: RevertCause, view: &ChannelView) -> ChannelStep {
    let effects = [ChannelEffect::Revert(cause), ChannelEffect::Publish(AssignmentReport::Run), ChannelEffect::ReportRevert];
    match view.previous_timers {
        Some(next) => ChannelStep::to(
            ChannelState::AwaitingLastGoodRun { resume: Box::new(ChannelState::Reverted(Some(next))) },
            effects.into_iter().chain([ChannelEffect::RunLastGood]).collect::<Vec<_>>(),
        ),
        None => ChannelStep::to(ChannelState::Reverted(None), effects),
    }
}

/// Begins the repair of drift. The filter of the latest assignment does not apply to an earlier one.
fn repair(state: ChannelState, view: &ChannelView, now: Instant) -> ChannelStep {
    match state.enforced() {
        Enforced::Latest => begin_work(state, ChannelWork::Repair, view, now),
        Enforced::EarlierGood if view.good_timers.is_some() => filter_passed(state, ChannelWork::Repair, view, now),
        Enforced::EarlierGood | Enforced::None => ChannelStep::to(state, []),
    }
}

fn filter_passed(state: ChannelState, work: ChannelWork, view: &ChannelView, now: Instant) -> ChannelStep {
    if work == ChannelWork::HealthCheck && view.is_gate_only {
        return ChannelStep::to(state.with_next_timers(work, view, now, false), [ChannelEffect::CompleteHealthGate(None)]);
    }
    let resume = Box::new(state);
    match work {
        ChannelWork::LastGood => ChannelStep::to(ChannelState::AwaitingLastGoodRun { resume }, [ChannelEffect::RunLastGood]),
        ChannelWork::Repair => ChannelStep::to(ChannelState::AwaitingRepair { resume }, [ChannelEffect::RunSelected]),
        ChannelWork::HealthCheck => ChannelStep::to(ChannelState::AwaitingHealth { resume }, [ChannelEffect::CheckHealth]),
        ChannelWork::Verdict => ChannelStep::to(ChannelState::AwaitingVerdict { resume }, [ChannelEffect::AskVerdict]),
        ChannelWork::Latest if view.has_waves => ChannelStep::to(ChannelState::AwaitingGate { resume }, [ChannelEffect::AskGate]),
        ChannelWork::Latest => ChannelStep::to(ChannelState::AwaitingRun { resume }, [ChannelEffect::RunLatest]),
    }
}

fn gate_answered(state: ChannelState, turn: RolloutTurn, view: &ChannelView, now: Instant) -> ChannelStep {
    let good = state.good().or(view.good_timers.map(|next| Timers { run_at: now, ..next }));
    let wait =
        |pause: Duration, why: Option<String>| ChannelStep::to(ChannelState::AwaitingTurn { ask_at: now + pause, good, why }, []);
    match turn {
        RolloutTurn::Begin => ChannelStep::to(ChannelState::AwaitingRun { resume: Box::new(state) }, [ChannelEffect::RunLatest]),
        RolloutTurn::Wait(_) => wait(view.gate_interval, None),
        RolloutTurn::Halted(by) => wait(GATE_POLL, Some(format!("the new assignment is {by}"))),
        RolloutTurn::Unknown(why) => wait(GATE_POLL, Some(format!("cannot ask whether the new assignment may begin: {why}"))),
        RolloutTurn::Ended(why) => {
            let report = ChannelEffect::Publish(AssignmentReport::Halted(why.clone()));
            let why = format!("the new assignment was not begun: {why}");
            ChannelStep::to(ChannelState::Stopped { ask_at: now + STOPPED_POLL, good, why }, [report])
        }
    }
}

fn retry_timers(next: Timers, now: Instant) -> Timers {
    Timers { run_at: next.run_at.min(now + RETRY), ..next }
}

#[cfg(test)]
mod tests;
