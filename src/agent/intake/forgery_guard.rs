//! A limit on the cost of forged messages. A user that may publish to a node can send any number of them, and each costs
//! signature checks. Within the limit the node tries every key. Beyond it, the first wrong signature ends the check of a message.
//! So messages that name their keys are accepted without delay.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use crate::trust::{Rejection, SignatureBudget};

/// Most signature checks on forged messages at once: a third of a second of work.
const MAX_CHECKS: u32 = 4096;
/// Further signature checks for each second: a fiftieth of the time.
const CHECKS_PER_SECOND: u32 = 200;
/// Most forged messages that are remembered, for those that a sender repeats.
const MAX_REMEMBERED: usize = 64;

/// The recent cost of forged messages.
pub(in crate::agent) struct ForgeryGuard {
    /// The hash key of this process: no sender can make two messages with one hash.
    hasher: RandomState,
    known: VecDeque<(u64, Rejection)>,
    /// The trust bundle under which the messages are forged.
    trust: String,
    remaining: u32,
    refilled_at: Instant,
}

impl Default for ForgeryGuard {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            known: VecDeque::new(),
            trust: String::new(),
            remaining: MAX_CHECKS,
            refilled_at: Instant::now(),
        }
    }
}

impl ForgeryGuard {
    /// Returns the rejection of a message that came before, byte for byte, under the same trust bundle.
    pub(in crate::agent) fn known_rejection(&mut self, message: &[u8], trust: &str) -> Option<&Rejection> {
        if self.trust != trust {
            self.known.clear();
            trust.clone_into(&mut self.trust);
        }
        let hash = self.hasher.hash_one(message);
        self.known.iter().find(|(known, _)| *known == hash).map(|(_, refusal)| refusal)
    }

    /// Returns the signature budget of the next message.
    pub(in crate::agent) fn budget(&mut self) -> SignatureBudget {
        let gained =
            u64::from(CHECKS_PER_SECOND) * u64::try_from(self.refilled_at.elapsed().as_millis()).unwrap_or(u64::MAX) / 1000;
        if gained > 0 {
            self.remaining = self.remaining.saturating_add(u32::try_from(gained).unwrap_or(u32::MAX)).min(MAX_CHECKS);
            self.refilled_at += Duration::from_millis(gained * 1000 / u64::from(CHECKS_PER_SECOND));
        }
        if self.remaining > 0 { SignatureBudget::default() } else { SignatureBudget::under_pressure() }
    }

    /// Records a message that was rejected as forged after `spent` signature checks.
    pub(in crate::agent) fn record(&mut self, message: &[u8], refusal: &Rejection, spent: usize) {
        self.remaining = self.remaining.saturating_sub(u32::try_from(spent).unwrap_or(u32::MAX));
        // A message that was not checked completely may be valid at another time.
        if refusal.code == crate::trust::RejectionCode::Busy {
            return;
        }
        if self.known.len() >= MAX_REMEMBERED {
            self.known.pop_front();
        }
        self.known.push_back((self.hasher.hash_one(message), refusal.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::RejectionCode;

    fn refusal(code: RejectionCode) -> Rejection {
        Rejection { code, message: String::new(), digest: String::new(), id: None, keyids: vec![] }
    }

    #[test]
    fn what_was_forged_once_is_known_under_the_same_bundle() {
        let mut forged = ForgeryGuard::default();
        assert!(forged.known_rejection(b"x", "one").is_none());
        forged.record(b"x", &refusal(RejectionCode::BadSignature), 1);
        forged.record(b"y", &refusal(RejectionCode::Busy), 0);
        assert!(forged.known_rejection(b"x", "one").is_some() && forged.known_rejection(b"y", "one").is_none());
        assert!(forged.known_rejection(b"x", "two").is_none(), "another bundle may have the key");
        assert!(forged.known_rejection(b"x", "one").is_none());
        for number in 0..=MAX_REMEMBERED {
            forged.record(&[u8::try_from(number).unwrap()], &refusal(RejectionCode::UnknownKey), 0);
        }
        assert_eq!(forged.known.len(), MAX_REMEMBERED);
    }

    #[test]
    fn the_allowance_ends_and_comes_back() {
        let mut forged = ForgeryGuard::default();
        let pressed =
            |forged: &mut ForgeryGuard| format!("{:?}", forged.budget()) == format!("{:?}", SignatureBudget::under_pressure());
        assert!(!pressed(&mut forged));
        forged.record(b"x", &refusal(RejectionCode::BadSignature), usize::MAX);
        forged.refilled_at = Instant::now();
        assert!(pressed(&mut forged));
        forged.refilled_at = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        assert!(!pressed(&mut forged));
        assert_eq!(forged.remaining, MAX_CHECKS);
    }
}
