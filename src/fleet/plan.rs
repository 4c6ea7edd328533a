//! Plans of a dry run: the changes of every targeted node. Their forms are a file, groups, and the command that approves them.
//!
//! In: a dry run that was sent (`job/dispatch.rs`) and its results (`job/tracker`, `job/records.rs`). Out: groups of nodes
//! with the same changes, and the `CommandDraft` that approves the plan of each node. Nodes enforce their own plan: the file
//! decides nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::host::fs;
use crate::model::{HumanDuration, NodeId};
use crate::store::{StoreError, ledger, state_dir};
use crate::wire::command::{Channel, Command, MAX_LIFETIME};
use crate::wire::report::{PlannedChange, PlannedChanges};
use crate::wire::{Action, CommandOptions, Target, json};

use crate::fleet::job::checked::CheckedCommand;
use crate::fleet::job::draft::CommandDraft;
use crate::fleet::job::error_normalizer;
use crate::fleet::job::outcome_groups;
use crate::fleet::job::tracker::{Grade, NodeOutcome, NodeResult};

/// Protocol of a plan file.
pub const PROTOCOL: &str = "io.ensign.v1.fleet.plan";
/// Largest plan file in bytes: enough for a hundred thousand nodes.
const MAX_FILE_SIZE: u64 = 256 << 20;

/// A dry run with the planned changes of every node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetPlan {
    /// Always `io.ensign.v1.fleet.plan`.
    pub protocol: String,
    /// The id of the dry run, which an approval names.
    pub id: Uuid,
    /// SHA-256 of its signed bytes.
    pub digest: String,
    /// The fleet.
    pub fleet: String,
    /// Time of the signature.
    pub issued: Timestamp,
    /// Time until which nodes could accept it.
    pub expires: Timestamp,
    /// Its target.
    pub to: Target,
    /// The planned action. The action may hold secrets, as the command itself.
    pub action: Action,
    /// Longest time of a run.
    pub timeout: HumanDuration,
    /// The channel of an apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The answer of every node.
    pub nodes: BTreeMap<NodeId, NodePlan>,
    /// The nodes in groups with the same changes.
    pub groups: Vec<PlanGroup>,
}

/// The answer of one node to a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlan {
    /// The outcome of its dry run, in one word.
    pub outcome: String,
    /// The digest of its plan, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Nodes with the same planned changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanGroup {
    /// The outcome of their dry run, in one word.
    pub outcome: String,
    /// The cause, when the dry run has no plan or failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The first planned changes, with `<node>` for the name of the node.
    pub changes: Vec<PlannedChange>,
    /// True when the nodes would change the same resources with different diffs; those diffs are left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub diffs_differ: bool,
    /// Number of resources that would be changed.
    pub count: u64,
    /// The digests of their plans: several when only names of nodes differ.
    pub digests: Vec<String>,
    /// The nodes, by name.
    pub nodes: Vec<NodeId>,
}

/// Errors of reading, writing or approving a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file can't be read or written.
    #[error(transparent)]
    File(#[from] fs::FsError),
    /// The file can't be written atomically.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file is no plan.
    #[error("{} is not a plan", path.display())]
    NotAPlan {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: json::JsonError,
    },
    /// The command was no dry run.
    #[error("{0} was not a dry run of an ensure or apply")]
    NotDryRun(Uuid),
    /// Nodes no longer remember the plan.
    #[error("the plan {id} is too old: nodes remembered it until {until}")]
    TooOld {
        /// The id of the plan.
        id: Uuid,
        /// End of the time for an approval.
        until: Timestamp,
    },
    /// The plan is for another fleet.
    #[error("the plan {id} is for the fleet {fleet}")]
    OtherFleet {
        /// The id of the plan.
        id: Uuid,
        /// The fleet of the plan.
        fleet: String,
    },
}

impl FleetPlan {
    /// Builds the plan of a dry run from its results.
    ///
    /// # Errors
    /// When `command` was no dry run of an ensure or apply.
    pub fn from_results(command: &Command, digest: &str, results: &[NodeResult]) -> Result<Self, PlanError> {
        if !command.options.noop || !command.action.runs() {
            return Err(PlanError::NotDryRun(command.id));
        }
        let node = |result: &NodeResult| {
            let plan = planned_changes(result).map(|planned| planned.digest.clone());
            (result.node.clone(), NodePlan { outcome: result.outcome.as_str().to_owned(), digest: plan })
        };
        Ok(Self {
            protocol: PROTOCOL.to_owned(),
            id: command.id,
            digest: digest.to_owned(),
            fleet: command.fleet.clone(),
            issued: command.issued,
            expires: command.expires,
            to: command.to.clone(),
            action: command.action.clone(),
            timeout: command.options.timeout,
            channel: command.channel.as_ref().map(|channel| channel.name.clone()),
            reason: command.reason.clone(),
            nodes: results.iter().map(node).collect(),
            groups: group_by_changes(results),
        })
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// When the file does not exist, or is no plan.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let bytes = fs::read(path, MAX_FILE_SIZE)?;
        json::read(&bytes).map_err(|source| PlanError::NotAPlan { path: path.to_owned(), source })
    }

    /// Writes the plan to a file, readable for its owner only: the action may hold secrets.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), PlanError> {
        let text = serde_json::to_vec_pretty(self).map_err(StoreError::from)?;
        Ok(state_dir::write_atomic(path, &text)?)
    }

    /// Returns the end of the time for an approval: nodes remember their plan until then.
    pub fn approval_deadline(&self) -> Timestamp {
        self.expires.saturating_add(ledger::REPLAY_MEMORY).unwrap_or(self.expires)
    }

    /// Checks that nodes of this fleet can still know the plan.
    ///
    /// # Errors
    /// When the plan is for another fleet, or too old.
    pub fn check_approvable(&self, fleet: &str, now: Timestamp) -> Result<(), PlanError> {
        if self.fleet != fleet {
            return Err(PlanError::OtherFleet { id: self.id, fleet: self.fleet.clone() });
        }
        let until = self.approval_deadline();
        if now > until { Err(PlanError::TooOld { id: self.id, until }) } else { Ok(()) }
    }

    /// Counts the nodes with planned changes, and the nodes without.
    pub fn counts(&self) -> (usize, usize) {
        self.counts_of(|_| true)
    }

    /// Counts the same over some of the nodes.
    pub fn counts_of(&self, meant: impl Fn(&NodeId) -> bool) -> (usize, usize) {
        let planned = |changes: bool| {
            let groups = self.groups.iter().filter(|group| !group.digests.is_empty() && (group.count > 0) == changes);
            groups.map(|group| group.nodes.iter().filter(|node| meant(node)).count()).sum()
        };
        (planned(true), planned(false))
    }
}

/// Drafts the command that approves the plan of a dry run, for the same nodes or for some of them.
///
/// All values come from the signed dry run or from the arguments. The server and the plan file supply none.
pub fn approval_draft(
    planned: &CheckedCommand,
    to: Option<Target>,
    timeout: Option<HumanDuration>,
    reason: Option<String>,
    channel: Option<Channel>,
) -> CommandDraft {
    let planned = planned.command();
    let timeout = timeout.unwrap_or(planned.options.timeout);
    CommandDraft {
        action: planned.action.clone(),
        to: to.unwrap_or_else(|| planned.to.clone()),
        options: CommandOptions { timeout, approves: Some(planned.id), ..CommandOptions::default() },
        channel,
        reason: reason.or_else(|| planned.reason.clone()),
        lifetime: timeout.min(MAX_LIFETIME),
    }
}

fn planned_changes(result: &NodeResult) -> Option<&PlannedChanges> {
    result.done.as_ref().and_then(|done| done.plan.as_ref())
}

/// Groups nodes by their planned changes: failures first, then changes by number of nodes, then nodes without changes.
pub fn group_by_changes(results: &[NodeResult]) -> Vec<PlanGroup> {
    let mut found: BTreeMap<(Reverse<Grade>, bool, String), PlanGroup> = BTreeMap::new();
    for result in results {
        let (group, key) = group_of_node(result);
        let key = (Reverse(result.outcome.grade()), group.count == 0, key);
        let known = found.entry(key).or_insert_with(|| group.clone());
        for (change, other) in known.changes.iter_mut().zip(&group.changes) {
            if change.diff != other.diff {
                (change.diff, known.diffs_differ) = (None, true);
            }
        }
        known.nodes.push(result.node.clone());
        known.digests.extend(group.digests);
    }
    let mut all: Vec<(Reverse<Grade>, bool, PlanGroup)> =
        found.into_iter().map(|((grade, idle, _), group)| (grade, idle, group)).collect();
    all.sort_by_key(|(grade, idle, group)| (*grade, *idle, Reverse(group.nodes.len())));
    all.into_iter()
        .map(|(_, _, mut group)| {
            group.nodes.sort();
            group.digests.sort();
            group.digests.dedup();
            group
        })
        .collect()
}

/// Returns the group of one node, without the node, and the key that tells groups apart.
fn group_of_node(result: &NodeResult) -> (PlanGroup, String) {
    let word = result.outcome.as_str();
    let plan = planned_changes(result);
    // A plan describes the changes; the cause is for failures.
    let cause = match (&result.outcome, plan) {
        (NodeOutcome::WouldChange | NodeOutcome::Stable, Some(_)) => String::new(),
        _ => error_normalizer::normalize(&outcome_groups::outcome_cause(result), &result.node),
    };
    let named = |change: &PlannedChange| PlannedChange {
        resource: error_normalizer::without_name(&change.resource, &result.node),
        what: error_normalizer::without_name(&change.what, &result.node),
        diff: change.diff.as_ref().map(|diff| error_normalizer::diff_without_name(diff, &result.node)),
    };
    let changes: Vec<PlannedChange> = plan.map(|plan| plan.changes.iter().map(named).collect()).unwrap_or_default();
    // The digest tells plans apart whose changes are not all listed.
    let beyond = plan.filter(|plan| plan.more > 0).map(|plan| plan.digest.as_str()).unwrap_or_default();
    let lines: Vec<String> = changes.iter().map(|change| format!("{}\t{}", change.resource, change.what)).collect();
    let key = format!("{word}\n{cause}\n{beyond}\n{}", lines.join("\n"));
    let group = PlanGroup {
        outcome: word.to_owned(),
        cause,
        changes,
        diffs_differ: false,
        count: plan.map_or(0, PlannedChanges::count),
        digests: plan.map(|plan| plan.digest.clone()).into_iter().collect(),
        nodes: Vec::new(),
    };
    (group, key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::Checker;
    use crate::trust::SigningKey;
    use crate::wire::plan::PlanBuilder;
    use crate::wire::{CommandOutcome, CommandResult};

    fn result(node: &str, outcome: CommandOutcome, changes: &[(&str, &str)]) -> NodeResult {
        let mut planning = PlanBuilder::new("");
        changes.iter().for_each(|(resource, what)| planning.change(resource, what, "", None));
        let plan = planning.build(&action());
        let done =
            json!({"protocol": "p", "digest": "d", "node": node, "at": "2026-01-01T00:00:00Z", "outcome": outcome, "plan": plan});
        let done: CommandResult = serde_json::from_value(done).unwrap();
        let outcome = match outcome {
            CommandOutcome::WouldChange => NodeOutcome::WouldChange,
            CommandOutcome::Stable => NodeOutcome::Stable,
            _ => NodeOutcome::Failed,
        };
        NodeResult::new(node.parse().unwrap(), outcome, Some(done))
    }

    fn action() -> Action {
        serde_json::from_value(json!({"ensure": {"type": "file", "properties": {"name": "/a"}}})).unwrap()
    }

    fn command(noop: bool) -> Command {
        let value = json!({
            "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "f", "to": {"all": true}, "action": action(),
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z", "options": {"noop": noop, "timeout": "5m"},
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn nodes_with_the_same_plan_form_one_group() {
        let nginx = [("package#nginx", "installed version 1.24"), ("file#/srv/web1/a", "content")];
        let results = [
            result("web1", CommandOutcome::WouldChange, &nginx),
            result("web2", CommandOutcome::WouldChange, &[nginx[0], ("file#/srv/web2/a", "content")]),
            result("web3", CommandOutcome::WouldChange, &[("package#nginx", "installed version 1.22")]),
            result("db1", CommandOutcome::Stable, &[]),
            result("db2", CommandOutcome::Failed, &[]),
            NodeResult::new("gone".parse().unwrap(), NodeOutcome::Offline(None), None),
        ];
        let groups = group_by_changes(&results);
        let shown: Vec<_> = groups
            .iter()
            .map(|group| {
                (
                    group.outcome.as_str(),
                    group.count,
                    group.digests.len(),
                    group.nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(","),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("failed", 0, 1, "db2".to_owned()),
                ("offline", 0, 0, "gone".to_owned()),
                ("would_change", 2, 2, "web1,web2".to_owned()),
                ("would_change", 1, 1, "web3".to_owned()),
                ("stable", 0, 1, "db1".to_owned()),
            ]
        );
        assert_eq!(groups[2].changes[1].resource, "file#/srv/<node>/a");
        let plan = FleetPlan::from_results(&command(true), "d", &results).unwrap();
        assert_eq!(plan.counts(), (3, 2));
    }

    #[test]
    fn a_group_shows_the_diff_that_all_its_nodes_have() {
        let planned = |node: &str, diffs: [&str; 2]| {
            let mut result = result(node, CommandOutcome::WouldChange, &[("file#/a", "content"), ("file#/b", "content")]);
            let changes = &mut result.done.as_mut().unwrap().plan.as_mut().unwrap().changes;
            changes.iter_mut().zip(diffs).for_each(|(change, diff)| change.diff = Some(diff.to_owned()));
            result
        };
        let groups = group_by_changes(&[planned("web1", ["+x\n", "+name web1\n"]), planned("web2", ["+y\n", "+name web2\n"])]);
        let shown: Vec<Option<&str>> = groups[0].changes.iter().map(|change| change.diff.as_deref()).collect();
        assert_eq!((groups.len(), groups[0].diffs_differ, shown), (1, true, vec![None, Some("+name <node>\n")]));
    }

    #[test]
    fn a_plan_is_read_back_and_approved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plan.json");
        assert!(matches!(FleetPlan::from_results(&command(false), "d", &[]), Err(PlanError::NotDryRun(_))));
        let plan = FleetPlan::from_results(
            &command(true),
            "d",
            &[result("web1", CommandOutcome::WouldChange, &[("file#/a", "content")])],
        )
        .unwrap();
        plan.write(&path).unwrap();
        assert_eq!(FleetPlan::read(&path).unwrap(), plan);
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(FleetPlan::read(&path), Err(PlanError::NotAPlan { .. })));
        let at = |text: &str| text.parse().unwrap();
        assert!(plan.check_approvable("f", at("2026-11-20T11:05:00Z")).is_ok());
        assert!(matches!(plan.check_approvable("f", at("2026-11-20T11:05:01Z")), Err(PlanError::TooOld { .. })));
        assert!(matches!(plan.check_approvable("g", at("2026-11-20T10:05:01Z")), Err(PlanError::OtherFleet { .. })));
        let key = SigningKey::from_seed(&[1; 32]);
        let signed = crate::fleet::job::seal::sign(command(true), &[("ops", &key)]).unwrap();
        let checker = Checker::new("f", None, vec![key.public()]).unwrap();
        let order = approval_draft(&checker.check(&signed.envelope).unwrap(), None, None, None, None);
        assert_eq!((order.options.approves, order.options.noop, &order.action), (Some(plan.id), false, &plan.action));
        assert_eq!(order.to, plan.to);
    }
}
