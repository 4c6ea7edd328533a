//! Commands against what nodes say about them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::model::NodeId;
use crate::wire::{Command, DoneOutcome, Target};

use super::inspect::Given;
use super::verify::{Finding, Kind};

/// What the way there and back may take beside the work.
const MARGIN: SignedDuration = SignedDuration::from_mins(5);

/// Everything about one job.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) given: Option<Given>,
    pub(super) nodes: BTreeMap<NodeId, Answers>,
}

/// What one node said about it.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The digest that its receipts name, of each.
    pub(super) digests: Vec<String>,
    pub(super) accepted: bool,
    pub(super) outcomes: Vec<DoneOutcome>,
}

/// Checks every job; what is older than `horizon` may be missing, what is younger than the export may still come.
pub(super) fn check(jobs: &BTreeMap<Uuid, Job>, horizon: Option<Timestamp>, exported: Timestamp) -> Vec<Finding> {
    jobs.iter().flat_map(|(id, job)| check_job(*id, job, horizon, exported)).collect()
}

fn check_job(id: Uuid, job: &Job, horizon: Option<Timestamp>, exported: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find =
        |kind, node: Option<&NodeId>, what: String| found.push(Finding { kind, node: node.cloned(), job: Some(id), what });
    let Some(given) = &job.given else {
        if !is_before(id, horizon) {
            for (node, _) in job.nodes.iter().filter(|(_, answers)| was_taken(answers)) {
                find(Kind::NoCommand, Some(node), "it answers a command that is not on record".to_owned());
            }
        }
        return found;
    };
    if given.signers.as_ref().is_some_and(Vec::is_empty) {
        find(Kind::Unsigned, None, "the command is signed by no key of the trust bundle".to_owned());
    }
    for (node, answers) in &job.nodes {
        if answers.digests.iter().any(|digest| *digest != given.digest) {
            find(Kind::OtherCommand, Some(node), "it answers another command of this id than the one on record".to_owned());
        }
        let mut ends = answers.outcomes.clone();
        ends.dedup();
        if ends.len() > 1 {
            find(Kind::TwoEnds, Some(node), format!("it ended more than once: {ends:?}"));
        }
        let over = is_over(&given.command, exported);
        if answers.accepted && answers.outcomes.is_empty() && over {
            find(Kind::NoResult, Some(node), "it accepted the command, and how that ended is missing".to_owned());
        }
    }
    if let Some(Target::Nodes(nodes)) = given.command.to.target().filter(|_| is_over(&given.command, exported)) {
        for node in nodes.iter().filter(|node| !job.nodes.contains_key(node)) {
            find(Kind::NoAnswer, Some(node), "it never answered".to_owned());
        }
    }
    found
}

fn is_over(command: &Command, now: Timestamp) -> bool {
    let timeout = SignedDuration::try_from(command.options.timeout.get()).unwrap_or(SignedDuration::MAX);
    let end = command.expires.saturating_add(timeout).and_then(|end| end.saturating_add(MARGIN));
    end.is_ok_and(|end| end < now)
}

fn was_taken(answers: &Answers) -> bool {
    let not_taken = |outcome: &DoneOutcome| {
        matches!(outcome, DoneOutcome::Refused | DoneOutcome::Busy | DoneOutcome::Expired | DoneOutcome::NotSelected)
    };
    answers.accepted || answers.outcomes.iter().any(|outcome| !not_taken(outcome))
}

/// The id of a job has its time.
fn is_before(id: Uuid, horizon: Option<Timestamp>) -> bool {
    let seconds = id.get_timestamp().and_then(|time| i64::try_from(time.to_unix().0).ok());
    let made = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    matches!((made, horizon), (Some(made), Some(horizon)) if made < horizon)
}
