//! Sends a job, and follows it until every node has reached its terminal state.
//!
//! In: a signed command and the nodes that must answer. Out: [`JobEvent`]s while reports arrive, and the [`JobOutcome`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use crate::fleet::connection::FleetConnection;
use crate::fleet::desired_state::assign::DispatchError;
use crate::fleet::targeting::key_discovery::KeyDiscovery;
use crate::fleet::targeting::states::ExpectedNode;
use crate::model::NodeId;
use crate::transport::{Inbox, StartAt, StreamReader, TransportError};
use crate::wire::{Command, Selector};

use super::dispatch::{self, Dispatched};
use super::event::JobEvent;
use super::liveness_monitor::LivenessMonitor;
use super::seal::SealedCommand;
use super::tracker::{self, JobTracker, NodeResult};

/// Longest time for the messages of a command to travel, beside the time of the work.
pub const TRAVEL_TIME: Duration = Duration::from_secs(5);

/// Time after which the progress is emitted again, so that a reader sees the time pass.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The end of a job that was followed.
#[derive(Debug)]
pub struct JobOutcome {
    /// The terminal state of every node.
    pub results: Vec<NodeResult>,
    /// False when the user stopped the waiting.
    pub complete: bool,
    /// False when the targeted nodes are unknown, and only the nodes that answered are in `results`.
    pub all_known: bool,
    /// Time from the start to the end.
    pub took: Duration,
}

/// A job on its way, with the streams of its reports and answers.
#[derive(Debug)]
pub struct JobFollower {
    tracker: JobTracker,
    /// The stream of reports, with the monitor of the nodes; none without JetStream.
    stream: Option<(StreamReader, LivenessMonitor)>,
    all_known: bool,
    /// Answers to the reply subject, and the node of each number of that subject.
    answers: Option<(Inbox, Vec<Option<NodeId>>)>,
}

impl JobFollower {
    /// Sends a command to the nodes that must answer.
    ///
    /// # Errors
    /// As [`dispatch::dispatch`].
    pub async fn send(
        fleet: &FleetConnection,
        signed: &SealedCommand,
        expected: Vec<ExpectedNode>,
    ) -> Result<Self, DispatchError> {
        let tracker = tracker_of(fleet, &signed.command, &signed.digest, expected);
        let dispatched = dispatch::dispatch(&fleet.bus, &fleet.subjects, signed).await?;
        Ok(Self::new(fleet, tracker, dispatched))
    }

    /// Sends a command without a record, and follows the answers to its reply subject alone: JetStream does not answer.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn send_unrecorded(
        fleet: &FleetConnection,
        signed: &SealedCommand,
        expected: Vec<ExpectedNode>,
    ) -> Result<Self, TransportError> {
        let FleetConnection { bus, subjects, node_keys, .. } = fleet;
        // Only the names of nodes are known; groups, patterns and `all` are those that answer.
        let to = &signed.command.to;
        let is_certain = |node: &NodeId| to.includes_by_name(node).is_some();
        let all_known = matches!(to.selector(), Some(Selector::Nodes(nodes)) if nodes.iter().all(is_certain));
        let tracker = JobTracker::new(subjects.clone(), Arc::clone(node_keys), signed.command.id, &*signed.digest, expected);
        let answers = dispatch::dispatch_unrecorded(bus, subjects, signed).await?;
        Ok(Self { tracker: tracker.without_stream(!all_known), stream: None, all_known, answers: Some(answers) })
    }

    /// Sends the same bytes again to the nodes that have not answered.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn resend(
        fleet: &FleetConnection,
        signed: &SealedCommand,
        expected: Vec<ExpectedNode>,
    ) -> Result<Self, TransportError> {
        let missing: Vec<NodeId> = expected.iter().map(|expected| expected.node.clone()).collect();
        let tracker = tracker_of(fleet, &signed.command, &signed.digest, expected);
        let dispatched = dispatch::resend(&fleet.bus, &fleet.subjects, signed, &missing).await?;
        Ok(Self::new(fleet, tracker, dispatched))
    }

    /// Follows a command that was sent before, from its first report on.
    ///
    /// # Errors
    /// When the stream of jobs can't be read.
    pub async fn attach(
        fleet: &FleetConnection,
        command: &Command,
        digest: &str,
        expected: Vec<ExpectedNode>,
    ) -> Result<Self, TransportError> {
        let (stream, filter) = (fleet.subjects.stream("JOBS"), fleet.subjects.job_reports(command.id));
        let reports = fleet.bus.follow(&stream, filter.as_str(), StartAt::Beginning).await?;
        let tracker = tracker_of(fleet, command, digest, expected);
        Ok(Self { tracker, stream: Some((reports, monitor_of(fleet))), all_known: true, answers: None })
    }

    fn new(fleet: &FleetConnection, tracker: JobTracker, dispatched: Dispatched) -> Self {
        let Dispatched { reports: feed, inbox, asked } = dispatched;
        Self { tracker, stream: Some((feed, monitor_of(fleet))), all_known: true, answers: Some((inbox, asked)) }
    }

    /// Reads reports until every node is in its terminal state, `wait` has passed, or `stop` resolves.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn run(
        mut self,
        wait: Duration,
        stop: impl Future<Output = ()>,
        emit: &mut dyn FnMut(JobEvent),
    ) -> Result<JobOutcome, TransportError> {
        let deadline = Instant::now() + wait;
        emit(JobEvent::Started { id: self.tracker.id(), nodes: self.tracker.progress().total });
        let complete = tokio::select! {
            // Either branch ends the waiting: the dropped future is not used again.
            read = self.read(deadline, emit) => {
                read?;
                true
            }
            // Safe to cancel: a pending signal has no state.
            () = stop => false,
        };
        emit(JobEvent::Finished { complete });
        let took = self.tracker.began().elapsed();
        Ok(JobOutcome { results: self.tracker.finish(), complete, all_known: self.all_known, took })
    }

    async fn read(&mut self, deadline: Instant, emit: &mut dyn FnMut(JobEvent)) -> Result<(), TransportError> {
        let Self { tracker, stream, answers, .. } = self;
        let mut emitter = Emitter { emit, all_answered: false };
        loop {
            let answers = answers.as_mut().map(|(inbox, asked)| (inbox, asked.as_slice()));
            let check = stream.as_ref().map(|(_, monitor)| monitor.next());
            let tick = Some(Instant::now() + PROGRESS_INTERVAL);
            let until = [check, tracker.open_until(), tick].into_iter().flatten().fold(deadline, Instant::min);
            let reports = stream.as_mut().map(|(reports, _)| reports);
            tracker::read_reports(tracker, reports, answers, until, &mut |tracker, event| emitter.emit(tracker, event)).await?;
            if tracker.is_done() || Instant::now() >= deadline {
                break;
            }
            (emitter.emit)(JobEvent::Progress(tracker.progress()));
            let Some((_, monitor)) = stream else { continue };
            if Instant::now() < monitor.next() {
                continue;
            }
            let (events, missing) = monitor.check(tracker).await;
            events.into_iter().for_each(|event| emitter.emit(tracker, event));
            if !missing.is_empty() {
                (emitter.emit)(JobEvent::Waiting { progress: tracker.progress(), missing, at: monitor.now() });
            }
        }
        tracker.give_up().into_iter().for_each(|event| emitter.emit(tracker, event));
        Ok(())
    }
}

/// Emits events, and adds the events that follow from the state of the tracker.
struct Emitter<'a> {
    emit: &'a mut dyn FnMut(JobEvent),
    all_answered: bool,
}

impl Emitter<'_> {
    fn emit(&mut self, tracker: &JobTracker, event: JobEvent) {
        (self.emit)(event);
        if !self.all_answered && tracker.is_answered() {
            self.all_answered = true;
            (self.emit)(JobEvent::AllAnswered(tracker.began().elapsed()));
        }
        (self.emit)(JobEvent::Progress(tracker.progress()));
    }
}

/// Builds the tracker of a command. The tracker looks up nodes that join meanwhile.
fn tracker_of(fleet: &FleetConnection, command: &Command, digest: &str, expected: Vec<ExpectedNode>) -> JobTracker {
    let FleetConnection { bus, subjects, node_keys, .. } = fleet;
    let discovery = KeyDiscovery::new(bus.clone(), subjects.clone(), Arc::clone(node_keys), fleet.now());
    JobTracker::new(subjects.clone(), Arc::clone(node_keys), command.id, digest, expected).with_key_discovery(discovery)
}

fn monitor_of(fleet: &FleetConnection) -> LivenessMonitor {
    LivenessMonitor::new(fleet.bus.clone(), fleet.subjects.clone(), Arc::clone(&fleet.node_keys), fleet.now())
}

/// Returns the longest time that the waves before the last may take; zero for a command without waves.
fn wave_time(command: &Command) -> Duration {
    let waves = command.options.waves.as_ref();
    waves.map_or(Duration::ZERO, |waves| waves.max_wait(waves.steps.len(), command.options.timeout))
}

/// Returns the time to wait for a command that is sent now, with `timeout` for the work on a node.
pub fn max_wait(command: &Command, timeout: Duration) -> Duration {
    timeout + TRAVEL_TIME + wave_time(command)
}

/// Returns the time for which nodes may still work on a command that was sent before.
pub fn remaining_wait(command: &Command, now: Timestamp) -> Duration {
    let waves = SignedDuration::try_from(wave_time(command)).unwrap_or(SignedDuration::MAX);
    let expires = command.expires.max(command.issued.saturating_add(waves).unwrap_or(command.expires));
    let until_expired = Duration::try_from(expires.duration_since(now)).unwrap_or_default();
    let since_expired = Duration::try_from(now.duration_since(expires)).unwrap_or_default();
    until_expired + command.options.timeout.as_std().saturating_sub(since_expired) + TRAVEL_TIME
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::model::HumanDuration;
    use crate::wire::command::RolloutPlan;
    use crate::wire::rollout_plan::{OnFailure, RolloutPosition, WAVE_MARGIN, Wave};

    fn command(waves: usize) -> Command {
        let mut command: Command = serde_json::from_value(json!({
            "id": Uuid::nil(), "fleet": "f", "to": {"all": true}, "action": {"status": {}},
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z", "options": {"timeout": "1m"},
        }))
        .unwrap();
        let step = Wave { upto: RolloutPosition::LAST, witnesses: Vec::new(), min_ok: 0 };
        let hold = HumanDuration::seconds(600);
        let plan = RolloutPlan {
            steps: vec![step; waves],
            hold,
            margin: WAVE_MARGIN,
            max_failed: 0,
            health: false,
            go: false,
            on_failure: OnFailure::Stop,
        };
        command.options.waves = (waves > 0).then_some(plan);
        command
    }

    #[test]
    fn a_job_is_followed_until_no_node_can_still_report() {
        let one = command(0);
        for (now, seconds) in [
            ("2026-11-20T10:00:00Z", 300 + 60 + 5),
            ("2026-11-20T10:05:00Z", 60 + 5),
            ("2026-11-20T10:05:50Z", 10 + 5),
            ("2026-11-20T11:00:00Z", 5),
        ] {
            assert_eq!(remaining_wait(&one, now.parse().unwrap()).as_secs(), seconds, "{now}");
        }
        assert_eq!(max_wait(&one, Duration::from_secs(60)).as_secs(), 65);
        // Waves that take longer than the lifetime of the command.
        let waves = command(3);
        let longest = waves.options.waves.as_ref().unwrap().max_wait(3, waves.options.timeout);
        assert!(longest > Duration::from_secs(1200), "{longest:?}");
        assert_eq!(max_wait(&waves, Duration::from_secs(60)), longest + Duration::from_secs(65));
        assert_eq!(remaining_wait(&waves, waves.issued), longest + Duration::from_secs(65));
    }
}
