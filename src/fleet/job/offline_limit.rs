//! The limit of offline nodes: a command to too many of them is not signed.

use crate::fleet::rollout::request::Count;
use crate::fleet::targeting::states::{ExpectedNode, Liveness};
use crate::model::NodeId;

/// More targeted nodes are offline than the operator allows.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{} of {targeted} targeted nodes are not online, and at most {limit} may be", offline.len())]
pub struct TooManyOffline {
    /// The nodes that are not online.
    pub offline: Vec<NodeId>,
    /// Number of targeted nodes.
    pub targeted: usize,
    /// The limit.
    pub limit: Count,
}

/// Compares the offline nodes with a limit. A node without a verified state counts as offline.
///
/// # Errors
/// When more nodes are offline than `limit` allows. A percentage of the targeted nodes is rounded down.
pub fn check_offline(expected: &[ExpectedNode], limit: Count) -> Result<(), TooManyOffline> {
    let offline = expected.iter().filter(|node| node.liveness != Liveness::Alive);
    let offline: Vec<NodeId> = offline.map(|node| node.node.clone()).collect();
    let targeted = expected.len();
    if offline.len() as u64 > limit.rounded_down(targeted as u64) {
        return Err(TooManyOffline { offline, targeted, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn offline_and_unknown_nodes_count() {
        let node = |number: usize, liveness| ExpectedNode {
            node: format!("n{number}").parse().unwrap(),
            liveness,
            verification_error: None,
        };
        let mut nodes: Vec<ExpectedNode> = (0..10).map(|number| node(number, Liveness::Alive)).collect();
        nodes[1] = node(1, Liveness::Offline(Timestamp::UNIX_EPOCH));
        nodes[2] = node(2, Liveness::Unknown);
        for (limit, wanted) in [
            ("0", false),
            ("1", false),
            ("2", true),
            ("100", true),
            ("0%", false),
            ("19.99%", false),
            ("20%", true),
            ("100%", true),
        ] {
            assert_eq!(check_offline(&nodes, limit.parse().unwrap()).is_ok(), wanted, "{limit}");
        }
        let error = check_offline(&nodes, "10%".parse().unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "2 of 10 targeted nodes are not online, and at most 10% may be");
        assert_eq!(error.offline, ["n1".parse().unwrap(), "n2".parse().unwrap()]);
        assert_eq!(check_offline(&[], Count::Nodes(0)), Ok(()));
    }
}
