//! Checks commands against the reports of nodes.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::model::NodeId;
use crate::wire::{Command, CommandOutcome};

use super::finding::{Finding, FindingKind};
use super::message_check::RecordedCommand;

/// Longest time for a command and its result to travel, beside the time of the work.
const TRAVEL_MARGIN: SignedDuration = SignedDuration::from_mins(5);

/// A command and the reports about it.
#[derive(Debug, Default)]
pub(super) struct JobAudit {
    pub(super) record: Option<RecordedCommand>,
    pub(super) nodes: BTreeMap<NodeId, NodeAnswers>,
}

/// The reports of one node about a command.
#[derive(Debug, Default)]
pub(super) struct NodeAnswers {
    /// The digests that its receipts name, one for each receipt.
    pub(super) digests: Vec<String>,
    pub(super) accepted: bool,
    pub(super) outcomes: Vec<CommandOutcome>,
}

/// Checks every job. Messages before `horizon` may be missing, and messages after the export may still come.
pub(super) fn check(jobs: &BTreeMap<Uuid, JobAudit>, horizon: Option<Timestamp>, exported: Timestamp) -> Vec<Finding> {
    jobs.iter().flat_map(|(id, job)| check_job(*id, job, horizon, exported)).collect()
}

fn check_job(id: Uuid, job: &JobAudit, horizon: Option<Timestamp>, exported: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find =
        |kind, node: Option<&NodeId>, what: String| found.push(Finding { kind, node: node.cloned(), job: Some(id), what });
    let Some(given) = &job.record else {
        if !is_before(id, horizon) {
            for (node, _) in job.nodes.iter().filter(|(_, answers)| was_accepted(answers)) {
                find(FindingKind::NoCommand, Some(node), "the node answered a command without a record".to_owned());
            }
        }
        return found;
    };
    if given.signers.as_ref().is_some_and(Vec::is_empty) {
        find(FindingKind::Unsigned, None, "no key of the trust bundle signed the command".to_owned());
    }
    for (node, answers) in &job.nodes {
        if answers.digests.iter().any(|digest| *digest != given.digest) {
            find(
                FindingKind::OtherCommand,
                Some(node),
                "the node answered another command with this id than the recorded command".to_owned(),
            );
        }
        let mut ends = answers.outcomes.clone();
        ends.dedup();
        if ends.len() > 1 {
            find(FindingKind::TwoEnds, Some(node), format!("the node reported several terminal states: {ends:?}"));
        }
        let over = has_timed_out(&given.command, exported);
        if answers.accepted && answers.outcomes.is_empty() && over {
            find(FindingKind::NoResult, Some(node), "the node accepted the command, and its result is missing".to_owned());
        }
    }
    if has_timed_out(&given.command, exported) {
        let to = &given.command.to;
        let must_answer = |node: &&NodeId| to.includes_by_name(node) == Some(true) && !job.nodes.contains_key(*node);
        for node in to.nodes.iter().flatten().filter(must_answer) {
            find(FindingKind::NoAnswer, Some(node), "the node never answered".to_owned());
        }
    }
    found
}

fn has_timed_out(command: &Command, now: Timestamp) -> bool {
    let timeout = SignedDuration::try_from(command.options.timeout.as_std()).unwrap_or(SignedDuration::MAX);
    let end = command.latest_start().saturating_add(timeout).and_then(|end| end.saturating_add(TRAVEL_MARGIN));
    end.is_ok_and(|end| end < now)
}

fn was_accepted(answers: &NodeAnswers) -> bool {
    let not_taken = |outcome: &CommandOutcome| {
        matches!(outcome, CommandOutcome::Refused | CommandOutcome::Busy | CommandOutcome::Expired | CommandOutcome::NotSelected)
    };
    answers.accepted || answers.outcomes.iter().any(|outcome| !not_taken(outcome))
}

/// True when the job was created before the horizon. A job id contains its time of creation.
fn is_before(id: Uuid, horizon: Option<Timestamp>) -> bool {
    let seconds = id.get_timestamp().and_then(|time| i64::try_from(time.to_unix().0).ok());
    let made = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    matches!((made, horizon), (Some(made), Some(horizon)) if made < horizon)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An id from November 2025.
    const ID: &str = "019aa0b1-2200-7c4d-8e5f-102030405060";

    fn given(signers: Option<&[&str]>) -> RecordedCommand {
        let command = json!({
            "id": ID, "fleet": "f", "to": {"nodes": ["web1"]}, "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z",
            "action": {"ensure": {"type": "file", "properties": {"name": "/a"}}},
        });
        let signers = signers.map(|signers| signers.iter().map(|signer| (*signer).to_owned()).collect());
        RecordedCommand { command: serde_json::from_value(command).unwrap(), digest: "d".into(), signers }
    }

    fn answers(digest: &str, accepted: bool, outcomes: &[CommandOutcome]) -> NodeAnswers {
        NodeAnswers { digests: vec![digest.to_owned()], accepted, outcomes: outcomes.to_vec() }
    }

    fn found(
        given: Option<RecordedCommand>,
        answers: Option<NodeAnswers>,
        horizon: Option<&str>,
        exported: &str,
    ) -> Vec<FindingKind> {
        let nodes = answers.into_iter().map(|answers| ("web1".parse().unwrap(), answers)).collect();
        let jobs = BTreeMap::from([(ID.parse().unwrap(), JobAudit { record: given, nodes })]);
        check(&jobs, horizon.map(|time| time.parse().unwrap()), exported.parse().unwrap())
            .iter()
            .map(|found| found.kind)
            .collect()
    }

    #[test]
    fn answers_are_checked_against_commands() {
        let (soon, late) = ("2026-11-20T10:01:00Z", "2026-11-20T12:00:00Z");
        let ok = || answers("d", true, &[CommandOutcome::Changed]);
        assert_eq!(found(Some(given(Some(&["ops"]))), Some(ok()), None, late), []);
        assert_eq!(found(Some(given(None)), Some(ok()), None, late), []);
        assert_eq!(found(Some(given(Some(&[]))), Some(ok()), None, late), [FindingKind::Unsigned]);
        assert_eq!(
            found(Some(given(None)), Some(answers("e", true, &[CommandOutcome::Changed])), None, late),
            [FindingKind::OtherCommand]
        );
        let twice = answers("d", true, &[CommandOutcome::Changed, CommandOutcome::Failed]);
        assert_eq!(found(Some(given(None)), Some(twice), None, late), [FindingKind::TwoEnds]);
        // A result that may still come is not missing.
        assert_eq!(found(Some(given(None)), Some(answers("d", true, &[])), None, soon), []);
        assert_eq!(found(Some(given(None)), Some(answers("d", true, &[])), None, late), [FindingKind::NoResult]);
        assert_eq!(found(Some(given(None)), None, None, soon), []);
        assert_eq!(found(Some(given(None)), None, None, late), [FindingKind::NoAnswer]);
    }

    #[test]
    fn answers_without_a_command_are_found_unless_that_is_too_long_ago() {
        let late = "2026-11-20T12:00:00Z";
        let ran = || Some(answers("d", false, &[CommandOutcome::Changed]));
        assert_eq!(found(None, ran(), None, late), [FindingKind::NoCommand]);
        assert_eq!(found(None, ran(), Some("2000-01-01T00:00:00Z"), late), [FindingKind::NoCommand]);
        assert_eq!(found(None, ran(), Some("2099-01-01T00:00:00Z"), late), []);
        assert_eq!(
            found(None, Some(answers("d", false, &[CommandOutcome::Refused])), None, late),
            [],
            "a rejection needs no record"
        );
    }
}
