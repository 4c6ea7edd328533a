//! Groups the answers to a query: nodes with the same answer form one group.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::model::NodeId;

use crate::fleet::job::tracker::{NodeOutcome, NodeResult};

/// Nodes with the same answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResponseGroup {
    /// The answer; null when the query finds no value on the node.
    pub value: Value,
    /// The nodes, by name.
    pub nodes: Vec<NodeId>,
}

/// Groups answers by value, the most frequent first. Returns the results without an answer too.
pub fn group_responses(results: &[NodeResult]) -> (Vec<ResponseGroup>, Vec<&NodeResult>) {
    let mut same: BTreeMap<String, ResponseGroup> = BTreeMap::new();
    let mut without = Vec::new();
    for result in results {
        let Some(done) = result.done.as_ref().filter(|_| result.outcome == NodeOutcome::Stable) else {
            without.push(result);
            continue;
        };
        let value = done.answer.clone().unwrap_or_default();
        let known = same.entry(value.to_string()).or_insert_with(|| ResponseGroup { value, nodes: Vec::new() });
        known.nodes.push(result.node.clone());
    }
    let mut same: Vec<ResponseGroup> = same.into_values().collect();
    same.iter_mut().for_each(|same| same.nodes.sort());
    // Null last, for any number of nodes.
    same.sort_by_key(|same| (same.value.is_null(), std::cmp::Reverse(same.nodes.len())));
    (same, without)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_most_frequent_answer_comes_first() {
        let answer = |node: &str, value: Value| {
            let done = json!({"protocol": "p", "digest": "d", "node": node, "at": "2026-01-01T00:00:00Z", "outcome": "stable", "answer": value});
            let done = serde_json::from_value(done).unwrap();
            NodeResult::new(node.parse().unwrap(), NodeOutcome::Stable, Some(done))
        };
        let gone = NodeResult::new("x".parse().unwrap(), NodeOutcome::NoAnswer, None);
        let results = [
            answer("a", json!("11")),
            answer("c", json!("12")),
            answer("b", json!("12")),
            answer("d", Value::Null),
            answer("e", Value::Null),
            answer("f", Value::Null),
            gone,
        ];
        let (same, without) = group_responses(&results);
        let shown: Vec<_> = same.iter().map(|same| (same.value.to_string(), same.nodes.len())).collect();
        assert_eq!(shown, [("\"12\"".to_owned(), 2), ("\"11\"".to_owned(), 1), ("null".to_owned(), 3)]);
        assert_eq!((same[0].nodes[0].as_str(), without.len()), ("b", 1));
    }
}
