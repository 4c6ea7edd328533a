//! Requests of rollouts: counts of nodes become signed positions, since a node knows only its own position.
//!
//! In: `1,10%,50%,100%` and the nodes that must answer. Out: the [`RolloutPlan`] of the command.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::model::{HumanDuration, NodeId};
use crate::trust::PublicKey;
use crate::wire::command::RolloutPlan;
use crate::wire::rollout_plan::{MAX_BUDGET, MAX_WITNESSES, OnFailure, RolloutPosition, WAVE_MARGIN, Wave, Witness};

use crate::fleet::targeting::states::{ExpectedNode, Liveness};

/// A number of nodes, or a part of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// A number of nodes.
    Nodes(u64),
    /// Hundredths of a percent of all nodes.
    Part(u64),
}

/// Errors of a rollout request.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidPlan {
    /// The text is no count.
    #[error("\"{0}\" is neither a number of nodes nor a percentage, as 5 or 2.5%")]
    Count(String),
    /// A wave without nodes.
    #[error("a wave needs at least one node, not \"{0}\"")]
    Empty(String),
    /// The last wave does not include all nodes.
    #[error("the last wave must be 100%, so that every node is in a wave")]
    Rest,
    /// A wave is not larger than the wave before.
    #[error("each count includes the counts before it: {count} after {before} adds no node")]
    Shrinks {
        /// The count of the wave before.
        before: String,
        /// The count that is not larger.
        count: String,
    },
    /// The hold is too short.
    #[error("waves must be at least one second apart")]
    Hold,
    /// The error budget has more failures than a node reads.
    #[error("at most {MAX_BUDGET} nodes may fail, not {0}: each node reads the list of failed nodes before it begins")]
    Budget(u64),
    /// No node could prove the success of a wave.
    #[error("no node of wave {0} can prove its success: such a node must be online, and its key pinned")]
    NoWitness(usize),
}

impl FromStr for Count {
    type Err = InvalidPlan;

    fn from_str(text: &str) -> Result<Self, InvalidPlan> {
        let invalid = || InvalidPlan::Count(text.to_owned());
        let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
        let Some(percent) = text.strip_suffix('%') else { return number(text).map(Self::Nodes).ok_or_else(invalid) };
        let (whole, part) = percent.split_once('.').unwrap_or((percent, "0"));
        let part = match part.len() {
            1 => number(part).map(|tenths| tenths * 10),
            2 => number(part),
            _ => None,
        };
        let parts = number(whole).filter(|whole| *whole <= 100).zip(part).map(|(whole, part)| whole * 100 + part);
        parts.filter(|parts| *parts <= 10_000).map(Self::Part).ok_or_else(invalid)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(count) => write!(f, "{count}"),
            Self::Part(parts) if parts % 100 == 0 => write!(f, "{}%", parts / 100),
            Self::Part(parts) => write!(f, "{}.{:02}%", parts / 100, parts % 100),
        }
    }
}

impl Count {
    /// Returns the count out of `all` nodes, rounded up.
    fn rounded_up(self, all: u64) -> u64 {
        match self {
            Self::Nodes(count) => count,
            Self::Part(parts) => all.saturating_mul(parts).div_ceil(10_000),
        }
    }

    /// Returns the count out of `all` nodes, rounded down.
    pub fn rounded_down(self, all: u64) -> u64 {
        match self {
            Self::Nodes(count) => count,
            Self::Part(parts) => all.saturating_mul(parts) / 10_000,
        }
    }
}

/// A rollout as an operator requests it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutRequest {
    counts: Vec<Count>,
    hold: HumanDuration,
    margin: HumanDuration,
    budget: Count,
    min_ok: Option<Count>,
    health: bool,
    go: bool,
    on_failure: OnFailure,
}

/// Most witnesses of all waves together: their names and keys must fit into the command.
const WITNESSES: usize = 200;

impl RolloutRequest {
    /// Requests waves of these sizes, at this interval. In `1,10%,100%` each count includes the counts before it.
    ///
    /// # Errors
    /// When a size is no count or a wave adds no node. When the last size is not 100%, or a limit is exceeded.
    pub fn new(counts: &str, hold: HumanDuration, budget: Count, health: bool) -> Result<Self, InvalidPlan> {
        let counts = counts.split(',').map(|text| text.trim().parse()).collect::<Result<Vec<Count>, _>>()?;
        if let Some(empty) = counts.iter().find(|count| matches!(count, Count::Nodes(0) | Count::Part(0))) {
            return Err(InvalidPlan::Empty(empty.to_string()));
        }
        if counts.last() != Some(&Count::Part(10_000)) {
            return Err(InvalidPlan::Rest);
        }
        // Counts and percentages can't be compared before the nodes are counted.
        let shrinks = |pair: &[Count]| match pair {
            [Count::Nodes(one), Count::Nodes(next)] | [Count::Part(one), Count::Part(next)] => next <= one,
            _ => false,
        };
        if let Some([before, count]) = counts.windows(2).find(|pair| shrinks(pair)) {
            return Err(InvalidPlan::Shrinks { before: before.to_string(), count: count.to_string() });
        }
        if let Count::Nodes(count) = budget
            && count > MAX_BUDGET
        {
            return Err(InvalidPlan::Budget(count));
        }
        let hold = HumanDuration::seconds(hold.as_std().as_secs());
        if hold == HumanDuration::default() {
            return Err(InvalidPlan::Hold);
        }
        Ok(Self { counts, hold, margin: WAVE_MARGIN, budget, min_ok: None, health, go: false, on_failure: OnFailure::Stop })
    }

    /// Sets the number of successes of a wave that are enough for the next wave.
    #[must_use]
    pub fn with_min_ok(self, min_ok: Option<Count>) -> Self {
        Self { min_ok, ..self }
    }

    /// Makes each wave after the first need a signed go-ahead.
    #[must_use]
    pub fn with_go(self, go: bool) -> Self {
        Self { go, ..self }
    }

    /// Sets the reaction of nodes whose wave failed.
    #[must_use]
    pub fn with_on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// Sets the time that a wave may take beside its timeout and its hold.
    #[must_use]
    pub fn with_margin(self, margin: HumanDuration) -> Self {
        Self { margin: HumanDuration::seconds(margin.as_std().as_secs()), ..self }
    }

    /// Builds the waves of the command `id` for these nodes, with the witnesses of each wave and their keys.
    ///
    /// Offline nodes are in a wave too, but do not count for its size. So a first wave of one node has a node that answers.
    /// Waves that would add no node are left out.
    ///
    /// # Errors
    /// When no node of a wave can prove its success.
    pub fn waves(
        &self,
        id: Uuid,
        nodes: &[ExpectedNode],
        key: impl Fn(&NodeId) -> Option<PublicKey>,
    ) -> Result<RolloutPlan, InvalidPlan> {
        let is_there = |node: &&ExpectedNode| !matches!(node.liveness, Liveness::Offline(_));
        let mut placed: Vec<(RolloutPosition, &ExpectedNode)> =
            nodes.iter().filter(is_there).map(|node| (RolloutPosition::for_node(id, &node.node), node)).collect();
        placed.sort_by_key(|(place, _)| *place);
        let all = placed.len() as u64;
        let mut uptos: Vec<RolloutPosition> = Vec::new();
        for count in &self.counts {
            let count = count.rounded_up(all);
            let last = count.checked_sub(1).and_then(|index| placed.get(usize::try_from(index).ok()?));
            let upto = last.map(|(place, _)| *place).filter(|_| count < all).unwrap_or(RolloutPosition::LAST);
            if uptos.last().is_none_or(|before| *before < upto) {
                uptos.push(upto);
            }
        }
        let most = (WITNESSES / uptos.len().saturating_sub(1).max(1)).clamp(1, MAX_WITNESSES);
        let max_failed = self.budget.rounded_down(nodes.len() as u64).min(MAX_BUDGET);
        let mut steps = Vec::new();
        let mut rest = placed.as_slice();
        for (number, upto) in (1..).zip(&uptos) {
            let (wave, after) = rest.split_at(rest.partition_point(|(place, _)| place <= upto));
            rest = after;
            let mut step = Wave { upto: *upto, witnesses: Vec::new(), min_ok: 0 };
            if number < uptos.len() {
                let usable =
                    wave.iter().filter(|(_, node)| node.liveness == Liveness::Alive && node.verification_error.is_none());
                let witnesses = usable.filter_map(|(_, node)| Some((node.node.clone(), key(&node.node)?))).take(most);
                step.witnesses = witnesses.map(|(node, key)| Witness { node, key: key.to_short() }).collect();
                step.min_ok = self.required_successes(step.witnesses.len() as u64, wave.len() as u64, max_failed);
                if step.witnesses.is_empty() {
                    return Err(InvalidPlan::NoWitness(number));
                }
            }
            steps.push(step);
        }
        Ok(RolloutPlan {
            steps,
            hold: self.hold,
            margin: self.margin,
            max_failed,
            health: self.health,
            go: self.go,
            on_failure: self.on_failure,
        })
    }

    /// Returns the number of witnesses of a wave that must succeed: all except for their share of the error budget.
    fn required_successes(&self, witnesses: u64, wave: u64, max_failed: u64) -> u64 {
        let may_fail = max_failed.saturating_mul(witnesses) / wave.max(1);
        let least = self.min_ok.map_or(witnesses.saturating_sub(may_fail), |count| count.rounded_up(witnesses));
        least.clamp(1, witnesses.max(1))
    }
}

/// Counts these nodes by wave.
pub fn wave_sizes(waves: &RolloutPlan, id: Uuid, nodes: &[ExpectedNode]) -> Vec<usize> {
    let mut sizes = vec![0; waves.steps.len()];
    for node in nodes {
        let number = waves.wave_number(RolloutPosition::for_node(id, &node.node));
        if let Some(size) = sizes.get_mut(number.saturating_sub(1)) {
            *size += 1;
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn nodes(alive: usize, gone: usize) -> Vec<ExpectedNode> {
        let expected = |number: usize| ExpectedNode {
            node: format!("n{number}").parse().unwrap(),
            verification_error: None,
            liveness: if number < alive { Liveness::Alive } else { Liveness::Offline(Timestamp::UNIX_EPOCH) },
        };
        (0..alive + gone).map(expected).collect()
    }

    fn key(_: &NodeId) -> Option<PublicKey> {
        Some(crate::trust::SigningKey::from_seed(&[1; 32]).public())
    }

    /// Returns the sizes of the waves, the witnesses of each with those that must succeed, and the budget.
    fn planned(counts: &str, budget: &str, nodes: &[ExpectedNode]) -> (Vec<usize>, Vec<(usize, u64)>, u64) {
        let plan = RolloutRequest::new(counts, HumanDuration::seconds(60), budget.parse().unwrap(), false).unwrap();
        let id = Uuid::from_u128(7);
        let waves = plan.waves(id, nodes, key).unwrap();
        waves.check(id, HumanDuration::seconds(300), crate::wire::rollout_plan::MAX_COMMAND_ROLLOUT).unwrap();
        let there: Vec<ExpectedNode> = nodes.iter().filter(|node| node.liveness == Liveness::Alive).cloned().collect();
        let proofs = waves.steps.iter().map(|step| (step.witnesses.len(), step.min_ok)).collect();
        (wave_sizes(&waves, id, &there), proofs, waves.max_failed)
    }

    #[test]
    fn counts_become_positions() {
        for (counts, budget, alive, gone, sizes, proofs, max_failed) in [
            ("1,10%,50%,100%", "2%", 200, 0, vec![1, 19, 80, 100], vec![(1, 1), (19, 15), (50, 48), (0, 0)], 4),
            ("1,10%,50%,100%", "0", 3, 0, vec![1, 1, 1], vec![(1, 1), (1, 1), (0, 0)], 0),
            ("5,100%", "1", 3, 0, vec![3], vec![(0, 0)], 1),
            ("1, 100%", "10%", 4, 6, vec![1, 3], vec![(1, 1), (0, 0)], 1),
            ("100%", "0", 0, 5, vec![0], vec![(0, 0)], 0),
            ("0.5%,100%", "1.25%", 1000, 0, vec![5, 995], vec![(5, 1), (0, 0)], 12),
            ("50%,100%", "20%", 1000, 0, vec![500, 500], vec![(50, 45), (0, 0)], 50),
        ] {
            assert_eq!(planned(counts, budget, &nodes(alive, gone)), (sizes, proofs, max_failed), "{counts} of {alive}");
        }
        let plan = || RolloutRequest::new("4,100%", HumanDuration::seconds(1), Count::Nodes(0), false).unwrap();
        let enough = plan().with_min_ok(Some("50%".parse().unwrap())).waves(Uuid::nil(), &nodes(9, 0), key).unwrap();
        assert_eq!(enough.steps.first().map(|step| step.min_ok), Some(2));
        assert_eq!(plan().waves(Uuid::nil(), &nodes(9, 0), |_| None), Err(InvalidPlan::NoWitness(1)));
    }

    #[test]
    fn invalid_requests_are_rejected() {
        let plan = |counts: &str| RolloutRequest::new(counts, HumanDuration::seconds(1), Count::Nodes(0), false).unwrap_err();
        assert_eq!(plan("1,10%"), InvalidPlan::Rest);
        assert_eq!(plan("0,100%"), InvalidPlan::Empty("0".into()));
        for wrong in ["", "1,,100%", "x", "-1,100%", "101%,100%", "1.234%,100%", "+1,100%"] {
            assert!(matches!(plan(wrong), InvalidPlan::Count(_)), "{wrong}");
        }
        assert_eq!(RolloutRequest::new("100%", HumanDuration::default(), Count::Nodes(0), false), Err(InvalidPlan::Hold));
        assert_eq!(RolloutRequest::new("100%", HumanDuration::seconds(1), Count::Nodes(51), false), Err(InvalidPlan::Budget(51)));
        for text in ["7", "10%", "2.50%"] {
            assert_eq!(text.parse::<Count>().unwrap().to_string(), text);
        }
    }
}
