//! What of the state of a node was lost, found out at its start and said from then on.
//!
//! A new node makes its ledger first, then keeps its trust bundle, then makes its key. So a key or anything else without a
//! ledger means that there was one. What is gone with all the rest can't be known: such a node is a new one, with another
//! key, which the operators see.

use std::path::Path;

use jiff::{SignedDuration, Timestamp};

use crate::agent::durable::state::DurableState;
use crate::config::Settings;
use crate::host::fs;
use crate::store::{Ledger, LedgerOrigin, LostState, StoreError};
use crate::trust::{KnownTrust, ReplayStore, TrustedBundle};

use super::node_key;
use crate::agent::trust::anchor;

/// Duration of the alarm for a loss that can't be undone.
const SAID: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A ledger, and whether it was just made.
pub(in crate::agent) struct OpenedLedger {
    pub(in crate::agent) ledger: Ledger,
    pub(in crate::agent) is_new: bool,
}

/// Opens the ledger, after which the state directory is this process's alone. A new one says since when it is, and what
/// was lost before.
pub(in crate::agent) fn open_ledger(settings: &Settings, now: Timestamp) -> Result<OpenedLedger, StoreError> {
    let mut ledger = Ledger::open(&settings.state_dir)?;
    let is_new = ledger.is_new();
    if is_new {
        let lost = lost(&settings.state_dir)?;
        if lost.ledger {
            tracing::error!("the ledger of accepted commands was lost: it is made anew");
        }
        ledger.record_origin(LedgerOrigin { at: now, lost })?;
    }
    Ok(OpenedLedger { ledger, is_new })
}

/// What was lost of a state directory that has no ledger.
fn lost(dir: &Path) -> Result<LostState, StoreError> {
    let left = fs::list(dir)?;
    let is_there = |name: &str| left.iter().any(|path| path.file_name().is_some_and(|left| left == name));
    let trust = is_there(anchor::BUNDLE_FILE);
    let ledger = trust || [node_key::FILE, "outbox", "channels", "rollouts"].into_iter().any(is_there);
    Ok(LostState { ledger, trust: ledger && !trust })
}

/// What is to be said about what was lost.
pub(in crate::agent) fn alarm(trust: &TrustedBundle, durable: &DurableState, now: Timestamp) -> Option<String> {
    let version = trust.version();
    match durable.trust() {
        KnownTrust::AtLeast(known) if known > version => {
            return Some(format!(
                "the trust state was lost: version {known} of the trust bundle was in force, and version {version} is all there is; \
                 no command is accepted before version {known} comes"
            ));
        }
        KnownTrust::Unknown => {
            return Some(format!(
                "the trust state was lost: started again from version {version} of the trust bundle; \
                 no command is accepted before the stream of trust bundles was read"
            ));
        }
        KnownTrust::AtLeast(_) => {}
    }
    let birth = durable.ledger_origin().filter(|birth| birth.lost.ledger && now.duration_since(birth.at) < SAID)?;
    let trust = if birth.lost.trust { " and the trust state were" } else { " was" };
    Some(format!("the ledger of accepted commands{trust} lost: commands that were signed before {} are refused", birth.at))
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
            assert_eq!(lost(dir.path()).unwrap(), LostState { ledger, trust }, "{left:?}");
        }
    }
}
