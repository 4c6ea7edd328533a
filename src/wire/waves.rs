//! Waves: which nodes begin when, and how many may fail before nobody begins any more.
//!
//! They stand in the signed command, and every node keeps to them by itself: who sent the command may be gone. A node's
//! place is a number made from the id of the command and its own, so that each command has an order of its own.

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::model::{NodeId, Span};

/// The last wave begins at most this long after the command was signed.
const MAX_ROLLOUT: Span = Span::seconds(7 * 86_400);
/// How long after the last wave has begun nodes may still begin: those that could not ask before, and those of a job that
/// was halted and then resumed.
pub const GRACE: Span = Span::seconds(3600);
/// A node looks at its health this long before the next wave begins, or a quarter of the time that there is.
const BEFORE_NEXT: SignedDuration = SignedDuration::from_secs(10);
/// More steps are nobody's plan.
const MAX_STEPS: usize = 64;

/// The waves of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Waves {
    /// The steps: each has more nodes than the one before, the last has all.
    pub steps: Vec<Step>,
    /// How many nodes may fail: when more have, no further node begins.
    pub max_failed: u64,
    /// True: a node whose health checks are critical after its run, when the next wave is about to begin, counts as failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub health: bool,
}

/// A wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The highest place that is in it: 16 digits of lower-case hex.
    pub upto: Place,
    /// When it begins, after the command was signed.
    pub after: Span,
}

/// Where a node is in the order of a command. The first eight bytes of the SHA-256 of `<id>/<node>`, the id in its usual
/// form of lower-case hex with hyphens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Place(u64);

impl Place {
    /// The last there can be.
    pub const LAST: Self = Self(u64::MAX);

    /// The place of a node.
    pub fn of(id: Uuid, node: &NodeId) -> Self {
        let sum: [u8; 32] = Sha256::digest(format!("{id}/{node}")).into();
        Self(sum.iter().take(8).fold(0, |place, byte| (place << 8) | u64::from(*byte)))
    }
}

impl Place {
    /// The same share of `whole` (from nothing up to but not including it) that the place is of all places.
    pub fn share(self, whole: i64) -> i64 {
        let share = (u128::from(self.0) * u128::from(whole.unsigned_abs())) >> 64;
        i64::try_from(share).unwrap_or(i64::MAX)
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        format!("{:016x}", place.0)
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_hex = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let place = u64::from_str_radix(&text, 16).ok().filter(|_| is_hex);
        place.map(Self).ok_or_else(|| format!("\"{text}\" is not 16 digits of lower-case hex"))
    }
}

/// Waves that no node could keep to.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MalformedWaves {
    /// No steps, or too many.
    #[error("\"waves\" must have between 1 and {MAX_STEPS} steps")]
    Count,
    /// A step that comes before, or has no more nodes than, the one before it.
    #[error("step {0} of \"waves\" must come later and reach further than the one before it")]
    Order(usize),
    /// Some nodes are in none.
    #[error("the last step of \"waves\" must reach ffffffffffffffff: every node is in one")]
    Rest,
    /// It takes too long.
    #[error("the last step of \"waves\" begins more than {MAX_ROLLOUT} after the command")]
    TooLong,
}

impl Waves {
    /// Whether they can be kept to.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), MalformedWaves> {
        let last = self.steps.last().filter(|_| self.steps.len() <= MAX_STEPS).ok_or(MalformedWaves::Count)?;
        for (number, pair) in (2..).zip(self.steps.windows(2)) {
            if let [before, step] = pair
                && (step.upto <= before.upto || step.after < before.after)
            {
                return Err(MalformedWaves::Order(number));
            }
        }
        if last.upto != Place::LAST {
            return Err(MalformedWaves::Rest);
        }
        if last.after > MAX_ROLLOUT { Err(MalformedWaves::TooLong) } else { Ok(()) }
    }

    /// The number of the wave that a place is in, from 1, and when it begins.
    pub fn turn(&self, place: Place, issued: Timestamp) -> (usize, Timestamp) {
        let found = (1..).zip(&self.steps).find(|(_, step)| place <= step.upto);
        let (number, after) = found.map_or((self.steps.len(), MAX_ROLLOUT), |(number, step)| (number, step.after));
        (number, later(issued, after))
    }

    /// When each wave begins, in their order.
    pub fn begins(&self, issued: Timestamp) -> Vec<Timestamp> {
        self.steps.iter().map(|step| later(issued, step.after)).collect()
    }

    /// When the last wave begins.
    pub fn last_begins(&self, issued: Timestamp) -> Timestamp {
        self.turn(Place::LAST, issued).1
    }

    /// After this time no node begins any more.
    pub fn closes(&self, issued: Timestamp) -> Timestamp {
        later(self.last_begins(issued), GRACE)
    }

    /// When a node of this place looks at its health once more: shortly before the next wave begins. A node of the last
    /// wave takes the time that the wave before it had; where there is but one, it does not wait.
    pub fn looks(&self, place: Place, issued: Timestamp) -> Timestamp {
        let (number, turn) = self.turn(place, issued);
        let begins = self.begins(issued);
        let before = number.checked_sub(2).and_then(|index| begins.get(index));
        let hold = match (begins.get(number), before) {
            (Some(next), _) => next.duration_since(turn),
            (None, Some(before)) => turn.duration_since(*before),
            (None, None) => return turn,
        };
        turn.saturating_add(hold - BEFORE_NEXT.min(hold / 4)).unwrap_or(Timestamp::MAX)
    }
}

fn later(time: Timestamp, span: Span) -> Timestamp {
    let span = SignedDuration::try_from(span.get()).unwrap_or(SignedDuration::MAX);
    time.saturating_add(span).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        Place::try_from(text.to_owned()).unwrap()
    }

    fn waves(steps: &[(&str, u64)]) -> Waves {
        let steps = steps.iter().map(|(upto, after)| Step { upto: place(upto), after: Span::seconds(*after) }).collect();
        Waves { steps, max_failed: 0, health: false }
    }

    #[test]
    fn a_node_is_in_the_first_wave_that_reaches_it() {
        let issued: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let waves = waves(&[("0fffffffffffffff", 0), ("7fffffffffffffff", 60), ("ffffffffffffffff", 120)]);
        waves.check().unwrap();
        for (at, number, begins) in [
            ("0000000000000000", 1, "2026-01-01T00:00:00Z"),
            ("0fffffffffffffff", 1, "2026-01-01T00:00:00Z"),
            ("1000000000000000", 2, "2026-01-01T00:01:00Z"),
            ("ffffffffffffffff", 3, "2026-01-01T00:02:00Z"),
        ] {
            assert_eq!(waves.turn(place(at), issued), (number, begins.parse().unwrap()), "{at}");
        }
    }

    #[test]
    fn health_is_looked_at_before_the_next_wave_begins() {
        let issued: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let three = waves(&[("0fffffffffffffff", 0), ("7fffffffffffffff", 60), ("ffffffffffffffff", 64)]);
        for (waves, at, looks) in [
            (&three, "0000000000000000", "2026-01-01T00:00:50Z"),
            (&three, "1000000000000000", "2026-01-01T00:01:03Z"),
            (&three, "ffffffffffffffff", "2026-01-01T00:01:07Z"),
            (&waves_of_one(), "ffffffffffffffff", "2026-01-01T00:00:07Z"),
        ] {
            assert_eq!(waves.looks(place(at), issued), looks.parse().unwrap(), "{at}");
        }
        assert_eq!(three.closes(issued).to_string(), "2026-01-01T01:01:04Z");
        assert_eq!(three.begins(issued).len(), 3);
    }

    fn waves_of_one() -> Waves {
        waves(&[("ffffffffffffffff", 7)])
    }

    #[test]
    fn places_are_spread_and_differ_from_command_to_command() {
        let nodes: Vec<NodeId> = (0..1000).map(|n| format!("n{n}").parse().unwrap()).collect();
        let half = place("7fffffffffffffff");
        let first = nodes.iter().filter(|node| Place::of(Uuid::from_u128(1), node) <= half).count();
        assert!((400..600).contains(&first), "{first}");
        assert_ne!(Place::of(Uuid::from_u128(1), &nodes[0]), Place::of(Uuid::from_u128(2), &nodes[0]));
        // printf '00000000-0000-0000-0000-000000000001/web1' | sha256sum
        let place: String = Place::of(Uuid::from_u128(1), &"web1".parse().unwrap()).into();
        assert_eq!(place, "69978708b5bf7d96");
    }

    #[test]
    fn what_cannot_be_kept_to_is_refused() {
        for (steps, wanted) in [
            (waves(&[]), MalformedWaves::Count),
            (waves(&[("0000000000000001", 0)]), MalformedWaves::Rest),
            (waves(&[("00000000000000ff", 0), ("00000000000000ff", 1)]), MalformedWaves::Order(2)),
            (waves(&[("00000000000000ff", 9), ("ffffffffffffffff", 1)]), MalformedWaves::Order(2)),
            (waves(&[("ffffffffffffffff", 8 * 86_400)]), MalformedWaves::TooLong),
        ] {
            assert_eq!(steps.check(), Err(wanted));
        }
        for text in ["", "F000000000000000", "+000000000000001", "00000000000000001"] {
            assert!(Place::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
