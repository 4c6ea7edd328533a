//! What stands when the agent starts: of each channel what the ledger says was accepted last.
//!
//! The ledger is written first and the file of the channel after it, so a file may be one behind: then it is written anew
//! from what the ledger has. It can't be ahead, nor further behind, unless somebody restored or removed one of the two. A
//! file that is ahead is told to the ledger, as else an older serial could come again; one that is behind is not in force,
//! and `catch_up.rs` asks for what is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::{ChannelRecord, DesiredStateStore, StoreError};
use crate::trust::{Rejection, Verified};
use crate::wire::command::Command;
use crate::wire::report::ChannelPosition;

use super::assignment::{Assignment, Channel, record};
use crate::agent::durable::state::DurableState;
use crate::agent::jitter;

/// After a start, assignments are first applied within this time: hosts that were switched on together spread.
const AFTER_START: Duration = Duration::from_secs(5);

/// What the ledger has of commands without an end: of each channel the one that was accepted last.
fn to_redo<R>(
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

/// The channels as they stand.
///
/// # Errors
/// When what must be written can't be.
pub(super) fn channels<R>(
    store: &DesiredStateStore,
    mut found: BTreeMap<String, ChannelRecord>,
    durable: &DurableState,
    reverify: &R,
) -> Result<BTreeMap<String, Channel>, StoreError>
where
    R: Fn(&[u8]) -> Result<Verified<Command>, Rejection>,
{
    let accepted = durable.channels();
    let mut redo = to_redo(durable, &accepted, reverify);
    let names: BTreeSet<String> = found.keys().chain(redo.keys()).cloned().collect();
    let mut channels = BTreeMap::new();
    for name in names {
        let file = found.remove(&name);
        let good =
            file.as_ref().and_then(|kept| reverify(&kept.good.as_ref()?.0).ok()).map(|good| Assignment::of(Arc::new(good)));
        let due = Instant::now() + jitter::random_delay(AFTER_START);
        if let Some(verified) = redo.remove(&name) {
            let latest = Assignment::of(Arc::new(verified));
            let good = good.filter(|_| latest.assign().is_some());
            if file.is_none_or(|kept| kept.latest != latest.command.envelope()) {
                store.write(&name, &record(&latest, good.as_deref()))?;
                tracing::info!(channel = name, id = %latest.command.id, "stands: it was accepted when the agent ended");
            }
            channels.insert(name, Channel::new(latest, good, false, due));
            continue;
        }
        let Some(file) = file else { continue };
        match (reverify(&file.latest), good) {
            (Ok(verified), good) => match verified.get().channel_state().map(|(_, state)| state) {
                Some(state) if accepted.get(&name).is_some_and(|last| order(last) > order(&state)) => {
                    tracing::error!(
                        channel = name,
                        "its file is older than the ledger: it is not kept to until the latest is here"
                    );
                }
                Some(state) if accepted.get(&name).is_none_or(|last| order(last) < order(&state)) => {
                    tracing::error!(channel = name, "its file is newer than the ledger, which is told");
                    durable.accept(&verified, None)?;
                    channels.insert(name, Channel::new(Assignment::of(Arc::new(verified)), good, false, due));
                }
                _ => {
                    channels.insert(name, Channel::new(Assignment::of(Arc::new(verified)), good, false, due));
                }
            },
            (Err(refusal), Some(good)) => {
                tracing::error!(channel = name, why = refusal.message, "the latest of the channel is not kept to any more");
                channels.insert(name, Channel::new(Arc::clone(&good), Some(good), false, due));
            }
            (Err(refusal), None) => {
                tracing::error!(channel = name, why = refusal.message, "the channel is not kept to any more");
            }
        }
    }
    Ok(channels)
}

fn order(state: &ChannelPosition) -> (u64, u64) {
    (state.epoch, state.serial)
}
