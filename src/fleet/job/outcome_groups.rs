//! Groups results: nodes with the same outcome for the same cause form one group.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::diag::count_noun;
use crate::model::NodeId;

use super::error_normalizer;
use crate::fleet::job::tracker::{Grade, NodeOutcome, NodeResult};

/// Nodes with the same outcome for the same cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutcomeGroup {
    /// The outcome.
    pub outcome: NodeOutcome,
    /// The cause, with placeholders for the parts that differ between nodes; empty when the outcome needs none.
    pub cause: String,
    /// With placeholders: the original cause of the first node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub example: Option<String>,
    /// The nodes, by name.
    pub nodes: Vec<NodeId>,
}

/// Groups results: the worst grade first, and within a grade the largest group first.
pub fn group_results(results: &[NodeResult]) -> Vec<OutcomeGroup> {
    let mut groups: BTreeMap<(&str, String), OutcomeGroup> = BTreeMap::new();
    for result in results {
        let cause = outcome_cause(result);
        let general = match result.outcome {
            // The number of changes is the outcome, not noise.
            NodeOutcome::Changed | NodeOutcome::WouldChange => error_normalizer::without_name(&cause, &result.node),
            _ => error_normalizer::normalize(&cause, &result.node),
        };
        let new = OutcomeGroup { outcome: result.outcome.clone(), cause: cause.clone(), example: None, nodes: Vec::new() };
        let known = groups.entry((result.outcome.as_str(), general.clone())).or_insert(new);
        if known.example.is_none() && known.cause != cause {
            known.example = Some(std::mem::replace(&mut known.cause, general));
        }
        known.nodes.push(result.node.clone());
    }
    let mut clusters: Vec<OutcomeGroup> = groups.into_values().collect();
    for cluster in &mut clusters {
        cluster.nodes.sort();
    }
    clusters.sort_by_key(|cluster| (std::cmp::Reverse(cluster.outcome.grade()), std::cmp::Reverse(cluster.nodes.len())));
    clusters
}

/// Returns the worst grade of all results.
pub fn worst_grade(results: &[NodeResult]) -> Grade {
    results.iter().map(|result| result.outcome.grade()).max().unwrap_or(Grade::Incomplete)
}

/// Returns the cause of an outcome, in the same words for all nodes.
pub(in crate::fleet) fn outcome_cause(result: &NodeResult) -> String {
    let message = || result.done.as_ref().and_then(|done| done.message.clone());
    match &result.outcome {
        NodeOutcome::Refused(code) => message().map_or_else(|| code.clone(), |message| format!("{code}: {message}")),
        NodeOutcome::Failed => describe_failures(result).or_else(message).unwrap_or_default(),
        NodeOutcome::Interrupted | NodeOutcome::Busy | NodeOutcome::Expired | NodeOutcome::Halted | NodeOutcome::Stable => {
            message().unwrap_or_default()
        }
        NodeOutcome::Changed | NodeOutcome::WouldChange => describe_changes(result),
        NodeOutcome::Offline(None) => "no agent is connected".to_owned(),
        NodeOutcome::Unverified => result.doubt.clone().unwrap_or_default(),
        _ => String::new(),
    }
}

/// Returns the errors of a resource or of a run.
fn describe_failures(result: &NodeResult) -> Option<String> {
    let done = result.done.as_ref()?;
    if let Some(event) = done.event.as_ref().filter(|event| event.failed) {
        return Some(format!("{}: {}", event.label(), event.errors.join("; ")));
    }
    if done.failures.is_empty() {
        return None;
    }
    Some(done.failures.iter().map(|(resource, error)| format!("{resource}: {error}")).collect::<Vec<_>>().join("; "))
}

/// Describes changes: the steps of a single resource, or the number of changed resources of a run.
fn describe_changes(result: &NodeResult) -> String {
    let Some(done) = &result.done else { return String::new() };
    if let Some(event) = &done.event {
        let steps = if event.changes.is_empty() { event.noop_message.clone() } else { event.changes.join(", ") };
        return if steps.is_empty() { event.label() } else { format!("{}: {steps}", event.label()) };
    }
    let counts = done.apply.as_ref().map(|apply| (apply.noop, &apply.summary));
    let message = || done.message.clone().unwrap_or_default();
    counts.map_or_else(message, |(noop, summary)| {
        let would = if noop { "would change" } else { "changed" };
        format!("{would} {} of {}", summary.changed_resources, count_noun(summary.total_resources, "resource"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(node: &str, done: &serde_json::Value) -> NodeResult {
        let mut body = json!({"protocol": "p", "digest": "d", "node": node, "at": "2026-01-01T00:00:00Z"});
        body.as_object_mut().unwrap().extend(done.as_object().unwrap().clone());
        let done: crate::wire::CommandResult = serde_json::from_value(body).unwrap();
        let outcome = match done.outcome {
            crate::wire::CommandOutcome::Failed => NodeOutcome::Failed,
            crate::wire::CommandOutcome::Refused => NodeOutcome::Refused(done.code.clone().unwrap()),
            _ => NodeOutcome::Stable,
        };
        NodeResult::new(node.parse().unwrap(), outcome, Some(done))
    }

    #[test]
    fn same_causes_form_one_group_and_the_worst_is_first() {
        let package = json!({"outcome": "failed", "failures": {"package#nginx": "no such package"}});
        let results = [
            result("a", &json!({"outcome": "stable"})),
            result("d", &package),
            result("b", &package),
            result("c", &json!({"outcome": "failed", "message": "the manifest can't be read"})),
            result("e", &json!({"outcome": "refused", "code": "policy", "message": "no rule"})),
        ];
        let shown: Vec<String> = group_results(&results)
            .iter()
            .map(|cluster| {
                let nodes: Vec<_> = cluster.nodes.iter().map(NodeId::as_str).collect();
                format!("{} {} {}", nodes.join(","), cluster.outcome.as_str(), cluster.cause)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "b,d failed package#nginx: no such package",
                "c failed the manifest can't be read",
                "e refused policy: no rule",
                "a stable "
            ]
        );
        let locked = |node: &str, pid: u32| {
            let error = format!("E: Could not get lock /var/lib/dpkg/lock. It is held by process {pid} (apt) on {node}");
            result(node, &json!({"outcome": "failed", "failures": {"package#nginx": error}}))
        };
        let many: Vec<NodeResult> = (1..=200).map(|number| locked(&format!("web{number}"), 4000 + number)).collect();
        let clusters = group_results(&many);
        assert_eq!((clusters.len(), clusters[0].nodes.len()), (1, 200));
        assert!(clusters[0].cause.ends_with("held by process <n> (apt) on <node>"), "{}", clusters[0].cause);
        assert!(clusters[0].example.as_deref().unwrap().ends_with("held by process 4001 (apt) on web1"));
        assert_eq!(group_results(&many[..1])[0].example, None);
        assert_eq!(worst_grade(&results), Grade::Failed);
        assert_eq!(worst_grade(&results[..1]), Grade::Success);
        assert_eq!(worst_grade(&[]), Grade::Incomplete);
    }
}
