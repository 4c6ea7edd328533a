//! The rollout plan: the order in which the nodes begin a command (waves), and the failures that end it.
//!
//! The signed command holds the plan, and every node follows it without the sender. The position of a node comes from the ids
//! of command and node, so every command has its own order. A wave begins after the wave before it, and only with signed
//! successes of that wave. The command names these *witnesses* with their keys, so that no broker can forge a success. Time
//! alone begins nothing.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::model::{HumanDuration, NodeId};

/// The longest possible time of all waves of an assignment.
pub const MAX_ASSIGNMENT_ROLLOUT: HumanDuration = HumanDuration::seconds(7 * 86_400);
/// The longest possible time of all waves of a one-shot command. The command takes up a queue entry on each waiting node.
pub const MAX_COMMAND_ROLLOUT: HumanDuration = HumanDuration::seconds(86_400);
/// Extra time after all waves in which nodes may begin, for a job that was halted and resumed.
pub const LATE_START_GRACE: HumanDuration = HumanDuration::seconds(3600);
/// Default time of a wave beside its run and its hold: for a busy node's queue, and for its report.
pub const WAVE_MARGIN: HumanDuration = HumanDuration::seconds(30);
/// The most witnesses of a wave: a node reads the results of one wave.
pub const MAX_WITNESSES: usize = 50;
/// The highest error budget: a node reads the failures of all failed nodes.
pub const MAX_BUDGET: u64 = 50;
/// The most waves; no operator needs more.
const MAX_STEPS: usize = 64;

/// The waves of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutPlan {
    /// The steps: each has more nodes than the one before, the last has all.
    pub steps: Vec<Wave>,
    /// The time for which a node must be healthy after its run before its success counts.
    pub hold: HumanDuration,
    /// Time of a wave beside its run and its hold: for a busy node's queue, and for its report.
    #[serde(default = "usual_margin", skip_serializing_if = "is_usual_margin")]
    pub margin: HumanDuration,
    /// The number of nodes that may fail. After more failures no further node begins. A silent witness counts as failed.
    pub max_failed: u64,
    /// True: a node whose health checks are critical at the end of the hold has failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub health: bool,
    /// True: each wave after the first also needs a signed go-ahead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub go: bool,
    /// The reaction of the nodes of a failed wave. `revert` is for assignments only.
    #[serde(default, skip_serializing_if = "OnFailure::is_stop")]
    pub on_failure: OnFailure,
}

/// The reaction of nodes that took a command of a rollout which failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// No further node begins.
    #[default]
    Stop,
    /// No further node begins, and the nodes of the failed wave go back to their assignment before.
    Revert,
}

impl OnFailure {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
    fn is_stop(&self) -> bool {
        *self == Self::Stop
    }
}

impl FromStr for OnFailure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stop" => Ok(Self::Stop),
            "revert" => Ok(Self::Revert),
            _ => Err(format!("\"{text}\" is neither stop nor revert")),
        }
    }
}

fn usual_margin() -> HumanDuration {
    WAVE_MARGIN
}

fn is_usual_margin(margin: &HumanDuration) -> bool {
    *margin == WAVE_MARGIN
}

/// A wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wave {
    /// The highest position in the wave: 16 digits of lower-case hex.
    pub upto: RolloutPosition,
    /// Nodes of the wave whose signed successes the next wave waits for; none in the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub witnesses: Vec<Witness>,
    /// The number of witnesses that must succeed before the next wave begins.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min_ok: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A node whose success counts for the next wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Witness {
    /// The node.
    pub node: NodeId,
    /// Its public key, as `ed25519:...`.
    pub key: String,
}

/// The position of a node in the order of a command: the first eight bytes of the SHA-256 of `<id>/<node>`. The id is in
/// lower-case hex with hyphens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct RolloutPosition(u64);

impl RolloutPosition {
    /// The highest position.
    pub const LAST: Self = Self(u64::MAX);

    /// Returns the position of a node.
    pub fn for_node(id: Uuid, node: &NodeId) -> Self {
        let sum: [u8; 32] = Sha256::digest(format!("{id}/{node}")).into();
        Self(sum.iter().take(8).fold(0, |place, byte| (place << 8) | u64::from(*byte)))
    }
}

impl RolloutPosition {
    /// Returns the share of `whole` that corresponds to this position, from 0 up to but not including `whole`.
    pub fn fraction_of(self, whole: i64) -> i64 {
        let share = (u128::from(self.0) * u128::from(whole.unsigned_abs())) >> 64;
        i64::try_from(share).unwrap_or(i64::MAX)
    }
}

impl From<RolloutPosition> for String {
    fn from(place: RolloutPosition) -> Self {
        format!("{:016x}", place.0)
    }
}

impl TryFrom<String> for RolloutPosition {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_hex = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let place = u64::from_str_radix(&text, 16).ok().filter(|_| is_hex);
        place.map(Self).ok_or_else(|| format!("\"{text}\" is not 16 digits of lower-case hex"))
    }
}

/// A rollout plan that nodes can't follow.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidRolloutPlan {
    /// No waves, or too many.
    #[error("\"waves\" must have between 1 and {MAX_STEPS} steps")]
    Count,
    /// A wave that has no more nodes than the one before.
    #[error("step {0} of \"waves\" must reach further than the one before it")]
    Order(usize),
    /// Some nodes are in no wave.
    #[error("the last step of \"waves\" must reach ffffffffffffffff: every node is in one")]
    Rest,
    /// The next wave would wait for no node, for too many, or for a node of another wave.
    #[error(
        "step {0} of \"waves\" must name 1 to {MAX_WITNESSES} witnesses that are in it, each once, and the last step none; \
         \"min_ok\" is at least 1 and at most their number"
    )]
    Witnesses(usize),
    /// An error budget with more failures than a node could read.
    #[error("\"max_failed\" of \"waves\" is at most {MAX_BUDGET}")]
    Budget,
    /// The waves take too long.
    #[error("\"waves\" may take more than {0}: waves, times the timeout, the hold and the margin")]
    TooLong(HumanDuration),
}

impl RolloutPlan {
    /// Checks that nodes can follow the plan, for the command `id` with this `timeout`. All waves together may take
    /// `longest`.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self, id: Uuid, timeout: HumanDuration, longest: HumanDuration) -> Result<(), InvalidRolloutPlan> {
        let last = self.steps.last().filter(|_| self.steps.len() <= MAX_STEPS).ok_or(InvalidRolloutPlan::Count)?;
        for (number, pair) in (2..).zip(self.steps.windows(2)) {
            if let [before, step] = pair
                && step.upto <= before.upto
            {
                return Err(InvalidRolloutPlan::Order(number));
            }
        }
        if last.upto != RolloutPosition::LAST {
            return Err(InvalidRolloutPlan::Rest);
        }
        if self.max_failed > MAX_BUDGET {
            return Err(InvalidRolloutPlan::Budget);
        }
        for number in 1..=self.steps.len() {
            if !self.has_valid_witnesses(number, id) {
                return Err(InvalidRolloutPlan::Witnesses(number));
            }
        }
        if self.max_wait(self.steps.len(), timeout) > longest.as_std() {
            Err(InvalidRolloutPlan::TooLong(longest))
        } else {
            Ok(())
        }
    }

    fn has_valid_witnesses(&self, number: usize, id: Uuid) -> bool {
        let Some(step) = number.checked_sub(1).and_then(|index| self.steps.get(index)) else { return false };
        let count = step.witnesses.len();
        if number == self.steps.len() {
            return count == 0 && step.min_ok == 0;
        }
        let distinct: BTreeSet<&NodeId> = step.witnesses.iter().map(|witness| &witness.node).collect();
        (1..=MAX_WITNESSES).contains(&count)
            && distinct.len() == count
            && (1..=count as u64).contains(&step.min_ok)
            && distinct.iter().all(|node| self.wave_number(RolloutPosition::for_node(id, node)) == number)
    }

    /// Returns the number of the wave that has a position, from 1.
    pub fn wave_number(&self, place: RolloutPosition) -> usize {
        let found = (1..).zip(&self.steps).find(|(_, step)| place <= step.upto);
        found.map_or(self.steps.len(), |(number, _)| number)
    }

    /// Returns the wave of a number, from 1.
    pub fn wave(&self, number: usize) -> Option<&Wave> {
        number.checked_sub(1).and_then(|index| self.steps.get(index))
    }

    /// Returns the wave that a wave waits for; none for the first.
    pub fn previous_wave(&self, wave: usize) -> Option<&Wave> {
        self.wave(wave.checked_sub(1)?)
    }

    /// True when the success of a node counts for the next wave.
    pub fn is_witness(&self, node: &NodeId) -> bool {
        self.steps.iter().any(|step| step.witnesses.iter().any(|witness| witness.node == *node))
    }

    /// Returns the longest time of all waves before `wave`, for runs of at most `timeout`. A witness that is silent for longer
    /// has failed.
    pub fn max_wait(&self, wave: usize, timeout: HumanDuration) -> Duration {
        let each = timeout.as_std().saturating_add(self.hold.as_std()).saturating_add(self.margin.as_std());
        each.saturating_mul(u32::try_from(wave.saturating_sub(1)).unwrap_or(u32::MAX))
    }

    /// Returns the time after which no node begins any more.
    pub fn latest_start(&self, issued: Timestamp, timeout: HumanDuration) -> Timestamp {
        let waves = SignedDuration::try_from(self.max_wait(self.steps.len(), timeout)).unwrap_or(SignedDuration::MAX);
        add_duration(issued.saturating_add(waves).unwrap_or(Timestamp::MAX), LATE_START_GRACE)
    }

    /// Returns the time at which the success of a run that ended at `ended` counts.
    pub fn success_counts_at(&self, ended: Timestamp) -> Timestamp {
        add_duration(ended, self.hold)
    }
}

fn add_duration(time: Timestamp, span: HumanDuration) -> Timestamp {
    let span = SignedDuration::try_from(span.as_std()).unwrap_or(SignedDuration::MAX);
    time.saturating_add(span).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> RolloutPosition {
        RolloutPosition::try_from(text.to_owned()).unwrap()
    }

    const ID: Uuid = Uuid::from_u128(1);
    const TIMEOUT: HumanDuration = HumanDuration::seconds(300);

    /// Some node in the part of all places that ends there.
    fn witness(from: RolloutPosition, upto: RolloutPosition) -> Witness {
        let mut names = (0..10_000).map(|n| format!("n{n}").parse::<NodeId>().unwrap());
        let node = names.find(|node| (from..=upto).contains(&RolloutPosition::for_node(ID, node))).unwrap();
        Witness { node, key: "ed25519:".into() }
    }

    fn waves(uptos: &[&str]) -> RolloutPlan {
        let mut from = place("0000000000000000");
        let mut steps = Vec::new();
        for (number, upto) in (1..).zip(uptos) {
            let upto = place(upto);
            let witnesses = if number < uptos.len() { vec![witness(from, upto)] } else { vec![] };
            steps.push(Wave { upto, min_ok: witnesses.len() as u64, witnesses });
            from = upto;
        }
        RolloutPlan {
            steps,
            hold: HumanDuration::seconds(60),
            margin: WAVE_MARGIN,
            max_failed: 0,
            health: false,
            go: false,
            on_failure: OnFailure::Stop,
        }
    }

    #[test]
    fn a_node_is_in_the_first_wave_that_reaches_it() {
        let waves = waves(&["0fffffffffffffff", "7fffffffffffffff", "ffffffffffffffff"]);
        waves.check(ID, TIMEOUT, MAX_COMMAND_ROLLOUT).unwrap();
        for (at, number) in [("0000000000000000", 1), ("0fffffffffffffff", 1), ("1000000000000000", 2), ("ffffffffffffffff", 3)] {
            assert_eq!(waves.wave_number(place(at)), number, "{at}");
        }
        assert!(waves.previous_wave(1).is_none());
        assert_eq!((waves.previous_wave(2), waves.previous_wave(3)), (waves.steps.first(), waves.steps.get(1)));
        assert!(waves.is_witness(&waves.steps[1].witnesses[0].node) && !waves.is_witness(&"stranger".parse().unwrap()));
    }

    #[test]
    fn every_wave_before_has_its_time() {
        let issued: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let waves = waves(&["0fffffffffffffff", "7fffffffffffffff", "ffffffffffffffff"]);
        let patience = |wave| waves.max_wait(wave, TIMEOUT).as_secs();
        assert_eq!((patience(1), patience(2), patience(3)), (0, 390, 780));
        assert_eq!(waves.latest_start(issued, TIMEOUT).to_string(), "2026-01-01T01:13:00Z");
        assert_eq!(waves.success_counts_at(issued).to_string(), "2026-01-01T00:01:00Z");
    }

    #[test]
    fn places_are_spread_and_differ_from_command_to_command() {
        let nodes: Vec<NodeId> = (0..1000).map(|n| format!("n{n}").parse().unwrap()).collect();
        let half = place("7fffffffffffffff");
        let first = nodes.iter().filter(|node| RolloutPosition::for_node(Uuid::from_u128(1), node) <= half).count();
        assert!((400..600).contains(&first), "{first}");
        assert_ne!(
            RolloutPosition::for_node(Uuid::from_u128(1), &nodes[0]),
            RolloutPosition::for_node(Uuid::from_u128(2), &nodes[0])
        );
        // printf '00000000-0000-0000-0000-000000000001/web1' | sha256sum
        let place: String = RolloutPosition::for_node(Uuid::from_u128(1), &"web1".parse().unwrap()).into();
        assert_eq!(place, "69978708b5bf7d96");
    }

    #[test]
    fn impossible_plans_are_refused() {
        let three = || waves(&["0fffffffffffffff", "7fffffffffffffff", "ffffffffffffffff"]);
        three().check(ID, TIMEOUT, MAX_COMMAND_ROLLOUT).unwrap();
        let changed = |change: &dyn Fn(&mut RolloutPlan)| {
            let mut waves = three();
            change(&mut waves);
            waves.check(ID, TIMEOUT, MAX_COMMAND_ROLLOUT)
        };
        let twice = |waves: &mut RolloutPlan| {
            let again = waves.steps[0].witnesses[0].clone();
            waves.steps[0].witnesses.push(again);
        };
        for (change, wanted) in [
            (&(|waves: &mut RolloutPlan| waves.steps.clear()) as &dyn Fn(&mut RolloutPlan), InvalidRolloutPlan::Count),
            (&|waves| drop(waves.steps.pop()), InvalidRolloutPlan::Rest),
            (&|waves| waves.steps[1].upto = waves.steps[0].upto, InvalidRolloutPlan::Order(2)),
            (&|waves| waves.steps[0].witnesses.clear(), InvalidRolloutPlan::Witnesses(1)),
            (&|waves| waves.steps[1].min_ok = 0, InvalidRolloutPlan::Witnesses(2)),
            (&|waves| waves.steps[1].min_ok = 2, InvalidRolloutPlan::Witnesses(2)),
            (&|waves| waves.steps[1].witnesses = waves.steps[0].witnesses.clone(), InvalidRolloutPlan::Witnesses(2)),
            (&|waves| waves.steps[2].witnesses = waves.steps[0].witnesses.clone(), InvalidRolloutPlan::Witnesses(3)),
            (&twice, InvalidRolloutPlan::Witnesses(1)),
            (&|waves| waves.max_failed = 51, InvalidRolloutPlan::Budget),
            (&|waves| waves.hold = HumanDuration::seconds(86_400), InvalidRolloutPlan::TooLong(MAX_COMMAND_ROLLOUT)),
        ] {
            assert_eq!(changed(change), Err(wanted));
        }
        for text in ["", "F000000000000000", "+000000000000001", "00000000000000001"] {
            assert!(RolloutPosition::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
