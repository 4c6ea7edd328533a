//! The desired state of this node: its channels with their assignments, in memory and on disk.
//!
//! Order: accepted in the ledger → written to the file of the channel → in force. The ledger decides; after a crash the
//! file follows it (`restore.rs`). A channel keeps its last good assignment until the next one can be applied.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::agent::durable::state::DurableState;
use crate::agent::exec::result::RunResult;
use crate::agent::jitter;
use crate::config::AgentSettings;
use crate::host::{Checkpoint, checkpoint};
use crate::model::{RunOutcome, lock};
use crate::store::desired_state::Reverted;
use crate::store::{BlobCache, DesiredStateStore, StoreError};
use crate::trust::{Rejection, Verified};
use crate::wire::command::Command;
use crate::wire::report::AssignmentStatus;

use super::channel::{ChannelState, ChannelWork};
use super::restore;

pub(in crate::agent) use super::assignment::{Assignment, ChannelAssignments, LastRun, RevertState};

/// The desired state of this node.
#[derive(Debug)]
pub(in crate::agent) struct DesiredState {
    store: DesiredStateStore,
    blobs: BlobCache,
    channels: Mutex<BTreeMap<String, ChannelAssignments>>,
    changed: Notify,
    sync_requested: Notify,
}

impl DesiredState {
    /// Opens the desired state on disk. `reverify` verifies an envelope again; a rejected assignment is not applied.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub(in crate::agent) fn open(
        settings: &AgentSettings,
        durable: &DurableState,
        reverify: impl Fn(&[u8]) -> Result<Verified<Command>, Rejection>,
    ) -> Result<Self, StoreError> {
        let (store, found) = DesiredStateStore::open(&settings.state_dir)?;
        let channels = restore::restore_channels(&store, found, durable, &reverify)?;
        Ok(Self {
            store,
            blobs: BlobCache::open(&settings.state_dir)?,
            channels: Mutex::new(channels),
            changed: Notify::new(),
            sync_requested: Notify::new(),
        })
    }

    /// Returns the cache of fetched bundles.
    pub(in crate::agent) fn blobs(&self) -> &BlobCache {
        &self.blobs
    }

    /// Accepts the latest assignment of a channel, which the ledger has. `result_pending`: its sender waits for the result.
    ///
    /// # Errors
    /// When its file cannot be written. The assignment is accepted all the same, and [`Self::save`] writes the file later.
    pub(in crate::agent) fn accept(&self, verified: &Arc<Verified<Command>>, result_pending: bool) -> Result<(), StoreError> {
        let Some(name) = verified.channel.as_ref().map(|channel| channel.name.clone()) else { return Ok(()) };
        let latest = Assignment::new(Arc::clone(verified));
        let mut channels = lock(&self.channels);
        let good = channels.get(&name).and_then(|channel| channel.good.clone()).filter(|_| latest.assign().is_some());
        let splay = latest.assign().map(|assign| assign.splay.as_std()).unwrap_or_default();
        let mut channel = ChannelAssignments::new(latest, good, result_pending, Instant::now() + jitter::random_delay(splay));
        let written = self.store.write(&name, &channel.record());
        checkpoint(Checkpoint::AssignmentStored);
        channel.unsaved = written.is_err();
        channels.insert(name, channel);
        drop(channels);
        self.changed.notify_one();
        written
    }

    /// Writes the file of a channel that could not be written before.
    ///
    /// Called before the result is persisted: the ledger forgets the assignment after that.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(in crate::agent) fn save(&self, name: &str) -> Result<(), StoreError> {
        let mut channels = lock(&self.channels);
        if let Some(channel) = channels.get_mut(name).filter(|channel| channel.unsaved) {
            self.store.write(name, &channel.record())?;
            channel.unsaved = false;
        }
        Ok(())
    }

    /// Returns true when this command is the latest assignment of a channel.
    pub(in crate::agent) fn is_latest(&self, id: Uuid) -> bool {
        lock(&self.channels).values().any(|channel| channel.latest.command.id == id)
    }

    /// Marks the result of an assignment as pending after a restart. Returns false when a later assignment took its place.
    pub(in crate::agent) fn mark_result_pending(&self, command: &Command) -> bool {
        let mut channels = lock(&self.channels);
        let latest = channels.values_mut().find(|channel| channel.latest.command.id == command.id);
        latest.is_some_and(|channel| {
            channel.result_pending = true;
            true
        })
    }

    /// Returns when an assignment was accepted since the last call.
    pub(in crate::agent) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Requests a sync with the stream: a message disagrees with the assignments here, or may end such a difference.
    pub(in crate::agent) fn request_sync(&self) {
        self.sync_requested.notify_one();
    }

    /// Returns when a sync was requested since the last call.
    pub(in crate::agent) async fn sync_requested(&self) {
        self.sync_requested.notified().await;
    }

    /// Returns the channels in the order in which they are applied: that of the configuration, or by name.
    pub(in crate::agent) fn in_order(&self, settings: &AgentSettings) -> Vec<(String, ChannelAssignments)> {
        let channels = lock(&self.channels);
        let mut all: Vec<(String, ChannelAssignments)> =
            channels.iter().map(|(name, channel)| (name.clone(), channel.clone())).collect();
        let place = |name: &String| settings.channels.as_ref().and_then(|names| names.iter().position(|other| other == name));
        all.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
        all
    }

    /// Returns the next work of all channels and its time; of several due ones, the first in order.
    ///
    /// `gate_at` gives the time of a pending health gate.
    pub(in crate::agent) fn next(
        &self,
        settings: &AgentSettings,
        gate_at: impl Fn(&Assignment) -> Option<Instant>,
    ) -> Option<(Instant, String, ChannelWork)> {
        let now = Instant::now();
        let mut next: Option<(Instant, String, ChannelWork)> = None;
        for (name, channel) in self.in_order(settings) {
            let is_absent = channel.state == ChannelState::Absent;
            let due = match channel.targets_node(settings) {
                // A group or the list of channels changed: the assignment applies now, or no longer.
                is_here if is_here == is_absent => Some((now, ChannelWork::Latest)),
                false if channel.result_pending => Some((now, ChannelWork::Latest)),
                _ => channel.due(gate_at(&channel.latest)).map(|(at, work)| (at.max(now), work)),
            };
            if let Some((at, work)) = due
                && next.as_ref().is_none_or(|(first, ..)| at < *first)
            {
                next = Some((at, name, work));
            }
        }
        next
    }

    /// Returns the id of the assignment whose drift is repaired between the runs, by channel.
    pub(super) fn watched(&self, settings: &AgentSettings) -> BTreeMap<String, Uuid> {
        let channels = lock(&self.channels);
        let here = channels.iter().filter(|(_, channel)| settings.limits.watch && channel.targets_node(settings));
        here.filter_map(|(name, channel)| Some((name.clone(), channel.watched()?.command.id))).collect()
    }

    /// Returns one channel.
    pub(in crate::agent) fn channel(&self, name: &str) -> Option<ChannelAssignments> {
        lock(&self.channels).get(name).cloned()
    }

    /// Changes a channel. Returns false when a later assignment took the place of this one.
    pub(in crate::agent) fn change(&self, name: &str, latest: &Assignment, change: impl FnOnce(&mut ChannelAssignments)) -> bool {
        let mut channels = lock(&self.channels);
        let channel = channels.get_mut(name).filter(|channel| channel.latest.command.id == latest.command.id);
        channel.map(change).is_some()
    }

    /// Records the end of a run of a channel, unless the channel has lost this assignment meanwhile.
    pub(in crate::agent) fn record_run(&self, name: &str, assignment: Uuid, result: &RunResult) {
        let ran = result.apply().map(|state| (state.timestamp, state.outcome));
        let mut channels = lock(&self.channels);
        let is_of = |channel: &&mut ChannelAssignments| {
            let good = channel.good.as_ref().map(|good| good.command.id);
            channel.latest.command.id == assignment || good == Some(assignment)
        };
        let Some(channel) = channels.get_mut(name).filter(is_of) else { return };
        let last = &mut channel.last_run;
        last.ended = ran.or(last.ended);
        if let Some((_, outcome)) = ran {
            last.stable_runs = if outcome == RunOutcome::Stable { last.stable_runs + 1 } else { 0 };
        }
        last.health = result.health.or(last.health);
        drop(channels);
        // The reconciler shows the run on the status board.
        self.changed.notify_one();
    }

    /// Makes an assignment that could be applied the last good one. `ask_at`: its rollout may still fail, and the time of the
    /// first question about that. Then the assignment before is kept.
    ///
    /// # Errors
    /// When the file of the channel cannot be written.
    pub(in crate::agent) fn promote(
        &self,
        name: &str,
        assignment: &Arc<Assignment>,
        ask_at: Option<Instant>,
    ) -> Result<(), StoreError> {
        let is_written = self.replace(name, assignment, |channel| {
            if channel.good.as_ref().is_none_or(|good| good.command.id != assignment.command.id) {
                let previous = channel.good.replace(Arc::clone(assignment));
                channel.revert = ask_at.map_or(RevertState::None, |ask_at| RevertState::Undecided { previous, ask_at });
            }
        })?;
        if is_written {
            checkpoint(Checkpoint::AssignmentPromoted);
        }
        self.remove_unused_blobs(is_written)
    }

    /// Makes the assignment before the latest one active again, for good.
    ///
    /// # Errors
    /// When the file of the channel cannot be written. The node goes back all the same, and [`Self::save`] writes the file
    /// later.
    pub(in crate::agent) fn revert(&self, name: &str, latest: &Arc<Assignment>, reverted: &Reverted) -> Result<(), StoreError> {
        let back = |channel: &mut ChannelAssignments| {
            channel.good = channel.previous().cloned();
            channel.revert = RevertState::Reverted(reverted.clone());
        };
        let is_written = self.replace(name, latest, back).inspect_err(|_| {
            self.change(name, latest, |channel| {
                back(channel);
                channel.unsaved = true;
            });
        })?;
        checkpoint(Checkpoint::AssignmentReverted);
        self.remove_unused_blobs(is_written)
    }

    /// Removes the last good assignment of a channel that is no longer for this node. A node that went back keeps it.
    ///
    /// # Errors
    /// When the file of the channel cannot be written.
    pub(in crate::agent) fn remove_good(&self, name: &str, latest: &Arc<Assignment>) -> Result<(), StoreError> {
        let is_written = self.replace(name, latest, |channel| {
            if channel.reverted().is_none() {
                (channel.good, channel.revert) = (None, RevertState::None);
            }
        })?;
        self.remove_unused_blobs(is_written)
    }

    /// Removes the way back from an assignment that stays.
    ///
    /// # Errors
    /// When the file of the channel cannot be written.
    pub(in crate::agent) fn remove_previous(&self, name: &str, latest: &Arc<Assignment>) -> Result<(), StoreError> {
        let is_written = self.replace(name, latest, |channel| channel.revert = RevertState::None)?;
        self.remove_unused_blobs(is_written)
    }

    /// Records that the event about the return to the assignment before is in the outbox.
    ///
    /// # Errors
    /// When the file of the channel cannot be written.
    pub(in crate::agent) fn record_revert_reported(&self, name: &str, latest: &Arc<Assignment>) -> Result<(), StoreError> {
        let reported = self.replace(name, latest, |channel| {
            if let RevertState::Reverted(reverted) = &mut channel.revert {
                reverted.reported = true;
            }
        });
        reported.map(|_| ())
    }

    /// Changes the assignments of a channel, on disk and then in memory. Returns false without a change, or when a later
    /// assignment took the place of this one.
    fn replace(
        &self,
        name: &str,
        latest: &Arc<Assignment>,
        change: impl FnOnce(&mut ChannelAssignments),
    ) -> Result<bool, StoreError> {
        let mut channels = lock(&self.channels);
        let Some(channel) = channels.get_mut(name).filter(|channel| channel.latest.command.id == latest.command.id) else {
            return Ok(false);
        };
        let mut changed = channel.clone();
        change(&mut changed);
        let record = changed.record();
        if record == channel.record() {
            return Ok(false);
        }
        self.store.write(name, &record)?;
        changed.unsaved = false;
        *channel = changed;
        Ok(true)
    }

    /// Removes the bundles that no channel needs any more, if an assignment was replaced.
    fn remove_unused_blobs(&self, is_replaced: bool) -> Result<(), StoreError> {
        if !is_replaced {
            return Ok(());
        }
        let channels = lock(&self.channels);
        let all = channels.values().flat_map(|channel| [Some(&channel.latest), channel.good.as_ref(), channel.previous()]);
        let wanted = all.flatten().filter_map(|assignment| Some(assignment.assign()?.manifest.sha256.clone()));
        self.blobs.keep_only(&wanted.collect::<HashSet<String>>())
    }

    /// Returns the status of each assignment, and the text of the alarm if one is not in force.
    pub(in crate::agent) fn report(&self, settings: &AgentSettings, now: Timestamp) -> (Vec<AssignmentStatus>, Option<String>) {
        let (mut states, mut wrong) = (Vec::new(), Vec::new());
        for (name, channel) in self.in_order(settings) {
            let Some(assign) = channel.latest.assign().filter(|_| channel.targets_node(settings)) else { continue };
            let expires = channel.latest.command.expires;
            if now > expires {
                wrong.push(format!(
                    "channel {name}: the assignment expired at {expires} and was not signed again; it stays active"
                ));
            }
            let alarm = channel.revert_text().or_else(|| channel.state.alarm().map(str::to_owned));
            wrong.extend(alarm.map(|why| format!("channel {name}: {why}")));
            let in_force = channel.good.as_ref().and_then(|good| good.assign());
            let LastRun { ended: ran, stable_runs, health } = channel.last_run;
            states.push(AssignmentStatus {
                in_force: in_force.map(|assign| assign.manifest.sha256.clone()),
                id: channel.latest.command.id,
                selected: channel.state.is_selected(),
                enforce: assign.enforce,
                expires,
                ran: ran.map(|(at, _)| at),
                outcome: ran.map(|(_, outcome)| outcome),
                stable_runs,
                health: health.map(|status| status.as_str().to_ascii_lowercase()),
                watch: None,
                reverted: channel.revert_status(),
                channel: name,
            });
        }
        (states, Some(wrong.join("; ")).filter(|text| !text.is_empty()))
    }
}
