//! Restore of the desired state at the start: for each channel the command that the ledger accepted last.
//!
//! The ledger is written before the file of the channel. So a file may be one command behind, and is then written again
//! from the ledger. Another difference means that a user restored or removed one of the two. A newer file is recorded
//! in the ledger, so that no older serial can return. An older file is not in force, and `desired_state_sync.rs`
//! fetches the latest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::desired_state::RevertRecord;
use crate::store::{ChannelRecord, DesiredStateStore, StoreError};
use crate::trust::{Rejection, Verified};
use crate::wire::command::Command;
use crate::wire::report::ChannelPosition;

use super::assignment::{Assignment, ChannelAssignments, RevertState};
use crate::agent::durable::state::DurableState;
use crate::agent::jitter;

/// The time over which hosts that start together spread their first runs.
const AFTER_START: Duration = Duration::from_secs(5);

/// Returns the assignments in the ledger without an end: of each channel the latest accepted one.
fn unfinished_assignments<R>(
    durable: &DurableState,
    accepted: &BTreeMap<String, ChannelPosition>,
    reverify: &R,
) -> BTreeMap<String, Verified<Command>>
where
    R: Fn(&[u8]) -> Result<Verified<Command>, Rejection>,
{
    let verified = durable.unfinished().into_iter().filter_map(|left| reverify(&left.envelope).ok());
    let named = verified.filter(|verified| verified.get().action.is_desired_state()).filter_map(|verified| {
        let (name, state) = verified.get().channel_state().map(|(name, state)| (name.to_owned(), state))?;
        (accepted.get(&name) == Some(&state)).then_some((name, verified))
    });
    named.collect()
}

/// Returns the channels at the start.
///
/// # Errors
/// When a file or the ledger cannot be written.
pub(super) fn restore_channels<R>(
    store: &DesiredStateStore,
    mut found: BTreeMap<String, ChannelRecord>,
    durable: &DurableState,
    reverify: &R,
) -> Result<BTreeMap<String, ChannelAssignments>, StoreError>
where
    R: Fn(&[u8]) -> Result<Verified<Command>, Rejection>,
{
    let accepted = durable.channels();
    let mut redo = unfinished_assignments(durable, &accepted, reverify);
    let names: BTreeSet<String> = found.keys().chain(redo.keys()).cloned().collect();
    let mut channels = BTreeMap::new();
    for name in names {
        let file = found.remove(&name);
        let good =
            file.as_ref().and_then(|kept| reverify(&kept.good.as_ref()?.0).ok()).map(|good| Assignment::new(Arc::new(good)));
        let due = Instant::now() + jitter::random_delay(AFTER_START);
        if let Some(verified) = redo.remove(&name) {
            let latest = Assignment::new(Arc::new(verified));
            let good = good.filter(|_| latest.assign().is_some());
            let mut channel = ChannelAssignments::new(latest, good, false, due);
            match file {
                Some(kept) if kept.latest == channel.latest.command.envelope() => {
                    channel.revert = restore_revert(kept.revert, due, reverify);
                }
                _ => {
                    store.write(&name, &channel.record())?;
                    tracing::info!(channel = name, id = %channel.latest.command.id, "restored the assignment from the ledger");
                }
            }
            channels.insert(name, channel);
            continue;
        }
        let Some(file) = file else { continue };
        match (reverify(&file.latest), good) {
            (Ok(verified), good) => match verified.get().channel_state().map(|(_, state)| state) {
                Some(state) if accepted.get(&name).is_some_and(|last| version(last) > version(&state)) => {
                    tracing::error!(
                        channel = name,
                        "the file of the channel is older than the ledger: the channel is inactive until the latest assignment arrives"
                    );
                }
                Some(state) if accepted.get(&name).is_none_or(|last| version(last) < version(&state)) => {
                    tracing::error!(channel = name, "the file of the channel is newer than the ledger: recorded in the ledger");
                    durable.record_accepted(&verified, None)?;
                    let mut channel = ChannelAssignments::new(Assignment::new(Arc::new(verified)), good, false, due);
                    channel.revert = restore_revert(file.revert, due, reverify);
                    channels.insert(name, channel);
                }
                _ => {
                    let mut channel = ChannelAssignments::new(Assignment::new(Arc::new(verified)), good, false, due);
                    channel.revert = restore_revert(file.revert, due, reverify);
                    channels.insert(name, channel);
                }
            },
            (Err(refusal), Some(good)) => {
                tracing::error!(
                    channel = name,
                    why = refusal.message,
                    "the latest assignment is rejected now: the last good one stays active"
                );
                channels.insert(name, ChannelAssignments::new(Arc::clone(&good), Some(good), false, due));
            }
            (Err(refusal), None) => {
                tracing::error!(channel = name, why = refusal.message, "the assignment is rejected now: the channel is inactive");
            }
        }
    }
    Ok(channels)
}

/// Returns the way back as it was on disk. A rejected assignment before is none.
fn restore_revert<R>(record: Option<RevertRecord>, ask_at: Instant, reverify: &R) -> RevertState
where
    R: Fn(&[u8]) -> Result<Verified<Command>, Rejection>,
{
    match record {
        None => RevertState::None,
        Some(RevertRecord::Reverted(reverted)) => RevertState::Reverted(reverted),
        Some(RevertRecord::Undecided(previous)) => {
            let previous = previous.and_then(|previous| reverify(&previous.0).ok());
            RevertState::Undecided { previous: previous.map(|previous| Assignment::new(Arc::new(previous))), ask_at }
        }
    }
}

fn version(state: &ChannelPosition) -> (u64, u64) {
    (state.epoch, state.serial)
}
