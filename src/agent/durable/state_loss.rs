//! Loss of the state of a node: detected at the start, and reported from then on.
//!
//! A new node makes its ledger first, then keeps its trust bundle, then makes its key. A key or another file without a ledger
//! means that the ledger was lost. A loss of the whole state cannot be detected. The node is then a new node with another key,
//! which the operators see.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use crate::host::fs;
use crate::store::{Ledger, LedgerOrigin, LostState, StoreError};
use crate::trust::{KnownTrust, TrustedBundle};

use super::node_key;
use crate::agent::trust::anchor;

/// Duration of the alarm about a loss that cannot be undone.
const ALARM_DURATION: SignedDuration = SignedDuration::from_hours(7 * 24);

/// An opened ledger, and whether it is new.
pub(in crate::agent) struct OpenedLedger {
    pub(in crate::agent) ledger: Ledger,
    pub(in crate::agent) is_new: bool,
}

/// Opens the ledger: from then on this process owns the state directory. A new ledger records the time since which it
/// remembers, and the losses before.
pub(in crate::agent) fn open_ledger(state_dir: &Path, now: Timestamp) -> Result<OpenedLedger, StoreError> {
    let mut ledger = Ledger::open(state_dir)?;
    let is_new = ledger.is_new();
    if is_new {
        let lost = detect_loss(state_dir)?;
        if lost.ledger {
            tracing::error!("the ledger of accepted commands was lost: made a new one");
        }
        ledger.record_origin(LedgerOrigin { at: now, lost })?;
    }
    Ok(OpenedLedger { ledger, is_new })
}

/// Returns the losses of a state directory without a ledger.
fn detect_loss(dir: &Path) -> Result<LostState, StoreError> {
    let left = fs::list(dir)?;
    let is_there = |name: &str| left.iter().any(|path| path.file_name().is_some_and(|left| left == name));
    let trust = is_there(anchor::BUNDLE_FILE);
    let ledger = trust || [node_key::FILE, "outbox", "channels", "rollouts"].into_iter().any(is_there);
    Ok(LostState { ledger, trust: ledger && !trust })
}

/// Returns the text of the alarm about lost state. `known` is the version of the trust bundle that the ledger knows.
pub(in crate::agent) fn alarm(
    trust: &TrustedBundle,
    known: KnownTrust,
    origin: Option<LedgerOrigin>,
    now: Timestamp,
) -> Option<String> {
    let version = trust.version();
    match known {
        KnownTrust::AtLeast(known) if known > version => {
            return Some(format!(
                "the trust state was lost: version {known} of the trust bundle was in force, and only version {version} is left; \
                 no command is accepted until version {known} arrives"
            ));
        }
        KnownTrust::Unknown => {
            return Some(format!(
                "the trust state was lost: started again from version {version} of the trust bundle; \
                 no command is accepted until the stream of trust bundles was read"
            ));
        }
        KnownTrust::AtLeast(_) => {}
    }
    let birth = origin.filter(|birth| birth.lost.ledger && now.duration_since(birth.at) < ALARM_DURATION)?;
    let trust = if birth.lost.trust { " and the trust state were" } else { " was" };
    Some(format!("the ledger of accepted commands{trust} lost: commands signed before {} are rejected", birth.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_tells_what_was_lost() {
        for (left, ledger, trust) in [
            (&[][..], false, false),
            (&["work", "lock"], false, false),
            (&["node.key"], true, true),
            (&["outbox"], true, true),
            (&["trust.json"], true, false),
            (&["trust.json", "node.key", "channels"], true, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for name in left {
                std::fs::write(dir.path().join(name), "").unwrap();
            }
            assert_eq!(detect_loss(dir.path()).unwrap(), LostState { ledger, trust }, "{left:?}");
        }
    }
}
