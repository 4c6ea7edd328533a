//! The retry of a job: a new command with the same action, for the nodes on which the job failed.
//!
//! The action, the options and the filter come from a command whose signature was checked. A node that ended the job well is
//! not targeted. `dispatch::resend` sends the same bytes again instead, to nodes that never had them.

use crate::model::{HumanDuration, NodeId};
use crate::wire::command::MAX_LIFETIME;
use crate::wire::{Action, Command, CommandOptions, Target};

use super::checked::CheckedCommand;
use super::draft::CommandDraft;
use super::tracker::NodeResult;

/// Outcomes that can be retried.
pub const RETRYABLE: [&str; 9] =
    ["failed", "refused", "busy", "expired", "interrupted", "halted", "offline", "no_answer", "unfinished"];
/// Outcomes that are retried by default. The others need a change, or the node may still run the job. A node that was offline and
/// has come back is `no_answer`.
pub const RETRIED: [&str; 5] = ["failed", "interrupted", "expired", "offline", "no_answer"];

/// The job is no single run of a resource or manifest.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("the job {id} is a command {action}, which is not retried")]
pub struct NotRetryable {
    /// The id of the job.
    pub id: uuid::Uuid,
    /// The name of its action.
    pub action: &'static str,
    /// True for an assignment or withdrawal: nodes retry these by themselves.
    pub is_desired_state: bool,
}

/// Checks that a job can be retried.
///
/// # Errors
/// When the job is neither an ensure nor an apply.
pub fn check_retryable(command: &Command) -> Result<(), NotRetryable> {
    match &command.action {
        Action::Ensure(_) | Action::Apply(_) => Ok(()),
        action => {
            let is_desired_state = action.is_desired_state();
            Err(NotRetryable { id: command.id, action: action.name(), is_desired_state })
        }
    }
}

/// Returns the results with one of these outcomes. A node outside of the target does not count, whatever the node reported.
pub fn select_results<'a>(command: &Command, results: &'a [NodeResult], outcomes: &[String]) -> Vec<&'a NodeResult> {
    let is_selected = |result: &&NodeResult| {
        outcomes.iter().any(|outcome| outcome == result.outcome.as_str())
            && command.to.includes_by_name(&result.node) != Some(false)
    };
    results.iter().filter(is_selected).collect()
}

/// Drafts the retry of a job for these nodes, without its waves.
///
/// The filter stays: an offline node has not evaluated it yet. The position in a channel stays too. So a node with a later
/// apply of the channel refuses the retry.
pub fn retry_draft(
    job: &CheckedCommand,
    nodes: Vec<NodeId>,
    timeout: Option<HumanDuration>,
    reason: Option<String>,
) -> CommandDraft {
    let command = job.command();
    let timeout = timeout.unwrap_or(command.options.timeout);
    CommandDraft {
        action: command.action.clone(),
        to: Target { filter: command.to.filter.clone(), ..Target::nodes(nodes) },
        options: CommandOptions { timeout, waves: None, ..command.options.clone() },
        channel: command.channel.clone(),
        reason: reason.or_else(|| command.reason.clone()),
        lifetime: timeout.min(MAX_LIFETIME),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::fleet::Checker;
    use crate::fleet::job::seal::sign;
    use crate::fleet::job::tracker::NodeOutcome;
    use crate::trust::SigningKey;

    fn command(change: &Value) -> Command {
        let mut value = json!({
            "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "f",
            "to": {"globs": ["web*"], "not": {"nodes": ["web9"]}, "where": "Facts.x == 1"},
            "action": {"apply": {"url": "https://h/m.tgz", "sha256": "0".repeat(64), "size": 1}},
            "channel": {"name": "base", "epoch": 1, "serial": 7},
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z", "reason": "CHG-1",
            "options": {"noop": false, "timeout": "2h", "approves": Uuid::nil(), "waves": {
                "steps": [{"upto": "ffffffffffffffff"}], "hold": "5m", "max_failed": 2, "health": true, "go": false,
            }},
        });
        value.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    fn checked(command: Command) -> CheckedCommand {
        let key = SigningKey::from_seed(&[1; 32]);
        let signed = sign(command, &[("ops", &key)]).unwrap();
        Checker::new("f", None, vec![key.public()]).unwrap().check(&signed.envelope).unwrap()
    }

    #[test]
    fn only_nodes_of_the_target_with_a_chosen_outcome_are_retried() {
        let ends = [
            ("web1", NodeOutcome::Changed),
            ("web2", NodeOutcome::Failed),
            ("web3", NodeOutcome::Offline(None)),
            ("web4", NodeOutcome::Refused("stale_serial".into())),
            ("web5", NodeOutcome::NotSelected),
            ("web6", NodeOutcome::Expired),
            ("web7", NodeOutcome::Interrupted),
            ("web8", NodeOutcome::Unfinished),
            ("web10", NodeOutcome::NoAnswer),
            // Not in the target.
            ("web9", NodeOutcome::Failed),
            ("db1", NodeOutcome::Failed),
        ];
        let results: Vec<NodeResult> =
            ends.into_iter().map(|(node, outcome)| NodeResult::new(node.parse().unwrap(), outcome, None)).collect();
        let command = command(&json!({}));
        let selected = |outcomes: &[&str]| {
            let outcomes: Vec<String> = outcomes.iter().map(|outcome| (*outcome).to_owned()).collect();
            let selected = select_results(&command, &results, &outcomes);
            selected.iter().map(|result| result.node.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(selected(&RETRIED), "web2 web3 web6 web7 web10");
        assert_eq!(selected(&["refused", "unfinished"]), "web4 web8");
        assert_eq!(selected(&[]), "");
    }

    #[test]
    fn a_retry_copies_the_checked_command_without_its_waves() {
        let job = checked(command(&json!({})));
        let draft = retry_draft(&job, vec!["web2".parse().unwrap()], None, None);
        let planned = job.command();
        assert_eq!((&draft.action, &draft.channel, &draft.reason), (&planned.action, &planned.channel, &planned.reason));
        assert_eq!(serde_json::to_value(&draft.to).unwrap(), json!({"nodes": ["web2"], "where": "Facts.x == 1"}));
        assert_eq!(draft.options, CommandOptions { waves: None, ..planned.options.clone() });
        assert_eq!((draft.options.approves, draft.lifetime), (Some(Uuid::nil()), MAX_LIFETIME));
        let (timeout, reason) = (HumanDuration::seconds(60), Some("CHG-2".to_owned()));
        let draft = retry_draft(&job, Vec::new(), Some(timeout), reason.clone());
        assert_eq!((draft.options.timeout, draft.lifetime, draft.reason), (timeout, timeout, reason));
    }

    #[test]
    fn desired_state_queries_and_overrides_are_not_retried() {
        assert_eq!(check_retryable(&command(&json!({}))), Ok(()));
        let manifest = json!({"url": "https://h/m.tgz", "sha256": "0".repeat(64), "size": 1});
        for (action, is_desired_state) in [
            (json!({"assign": {"manifest": manifest}}), true),
            (json!({"withdraw": {}}), true),
            (json!({"status": {}}), false),
            (json!({"halt": {"job": Uuid::nil()}}), false),
        ] {
            let error = check_retryable(&command(&json!({"action": action}))).unwrap_err();
            assert_eq!(error.is_desired_state, is_desired_state, "{error}");
        }
    }
}
