//! The terms of the state machine of a channel: its work, its events and its effects.

use std::time::Instant;

use crate::agent::rollout::gate::RolloutTurn;
use crate::agent::rollout::wave_verdict::WaveVerdict;
use crate::model::HealthStatus;

/// The work that a channel can be due for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum ChannelWork {
    /// Reconcile the node with the latest assignment.
    Latest,
    /// Reconcile the node with the last good assignment, while the latest one waits.
    LastGood,
    /// Observe the health checks of the assignment in force.
    HealthCheck,
    /// Check the resources that may have drifted, of the assignment that is enforced.
    Repair,
    /// Ask whether the wave of this node failed.
    Verdict,
}

/// The assignment of a channel whose drift is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum Enforced {
    /// The latest one.
    Latest,
    /// The last good one, if it is an earlier one than the latest.
    EarlierGood,
    /// None.
    None,
}

/// The times of the next work of an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct Timers {
    /// The next run.
    pub(in crate::agent) run_at: Instant,
    /// The next observation of the health checks, if there is one.
    pub(in crate::agent) health_at: Option<Instant>,
}

/// An event in the life of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum ChannelEvent {
    /// The time of this work has come.
    Due(ChannelWork),
    /// Resources of the enforced assignment may have drifted.
    Drifted,
    /// The filter selects this node, or not, or cannot be evaluated.
    FilterEvaluated(Result<bool, String>),
    /// The rollout gate answered.
    GateAnswered(RolloutTurn),
    /// A run of the latest assignment, or of the last good one, ended, or a run of selected resources.
    RunEnded(ChannelRunEnd),
    /// The verdict about the wave of this node.
    VerdictGiven(WaveVerdict),
    /// The health checks were observed; `None` without health checks.
    HealthChecked(Option<HealthStatus>),
    /// The agent stops: the work ended early, and the next start does it again.
    Interrupted,
}

/// The end of a run, as far as the channel depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum ChannelRunEnd {
    /// The manifest was planned and run, and the run did not fail. Has the worst health check, if there was one.
    Planned(Option<HealthStatus>),
    /// The manifest was planned and run, and the run failed for this reason. Has the worst health check, if there was one.
    Failed(String, Option<HealthStatus>),
    /// The manifest could not be fetched or planned, for this reason.
    NotPlanned(String),
}

/// An action that a step asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum ChannelEffect {
    /// Evaluate the filter. Ends in [`ChannelEvent::FilterEvaluated`].
    EvaluateFilter,
    /// Ask the rollout gate. Ends in [`ChannelEvent::GateAnswered`].
    AskGate,
    /// Run the latest assignment. Ends in [`ChannelEvent::RunEnded`].
    RunLatest,
    /// Run the last good assignment. Ends in [`ChannelEvent::RunEnded`].
    RunLastGood,
    /// Run the resources that may have drifted. Ends in [`ChannelEvent::RunEnded`].
    RunSelected,
    /// Observe the health checks. Ends in [`ChannelEvent::HealthChecked`].
    CheckHealth,
    /// Make the latest assignment the last good one.
    Promote,
    /// Ask whether the wave of this node failed. Ends in [`ChannelEvent::VerdictGiven`].
    AskVerdict,
    /// Go back to the assignment before, for good.
    Revert(RevertCause),
    /// Publish the event about the return, unless it is published.
    ReportRevert,
    /// Remove the way back: the assignment stays.
    RemovePrevious,
    /// Forget the convergence records of the channel.
    Forget,
    /// Publish the result of the assignment, if the sender still waits for one.
    Publish(AssignmentReport),
    /// Report a critical health check as a failure of the rollout.
    ReportHealth(Option<HealthStatus>),
    /// Complete the health gate of the rollout, if its time has come.
    CompleteHealthGate(Option<HealthStatus>),
}

/// The result of an assignment, for its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum AssignmentReport {
    /// The assignment needed no run.
    Stable,
    /// The filter did not select this node.
    NotSelected,
    /// The filter could not be evaluated, for this reason.
    BadFilter(String),
    /// The rollout stopped, for this reason.
    Halted(String),
    /// The node went back to the assignment before.
    Reverted,
    /// The result of the run that just ended.
    Run,
}

/// The cause of a return to the assignment before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum RevertCause {
    /// The run or a health check of this node failed, for this reason.
    Node(String),
    /// The wave of this node failed, for this reason.
    Wave(String),
}
