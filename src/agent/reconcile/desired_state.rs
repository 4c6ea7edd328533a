//! What stands on this node, channel by channel: what was accepted, what of it is in force, when it is due.
//!
//! Written by `intake.rs` (what comes) and `enforcer.rs` (how it went), kept on disk by `store`. A channel keeps to its
//! last assignment that could be used until the next one can.
//!
//! Order: in the ledger that it was accepted → in the file of its channel → in force. What is in force is what the ledger
//! says; after a crash the file follows it (`standing/opening.rs`).

use crate::agent::reconcile::restore;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::config::Settings;
use crate::host::{Checkpoint, checkpoint};
use crate::model::{HealthStatus, RunOutcome};
use crate::store::{BlobCache, ChannelRecord, DesiredStateStore, StoreError, desired_state::EnvelopeBytes};
use crate::trust::{Rejection, Verified};
use crate::wire::command::{Action, Assign, Command};
use crate::wire::report::AssignmentStatus;
use crate::wire::rollout_plan::RolloutPosition;

use crate::agent::durable::state::DurableState;
use crate::agent::jitter;

/// After a start, what stands is first looked at within this time: a site that was switched on together spreads.
pub(in crate::agent) const AFTER_START: Duration = Duration::from_secs(5);

/// A command of a channel that was accepted.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::agent) struct Assignment {
    /// What was signed, as the verifier gave it.
    pub(in crate::agent) command: Arc<Verified<Command>>,
}

impl Assignment {
    pub(in crate::agent) fn of(command: Arc<Verified<Command>>) -> Arc<Self> {
        Arc::new(Self { command })
    }

    /// What it assigns; nothing when it withdraws.
    pub(in crate::agent) fn assign(&self) -> Option<&Assign> {
        match &self.command.action {
            Action::Assign(assign) => Some(assign),
            _ => None,
        }
    }
}

/// What is to be done with a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum DueWork {
    /// Run its resources.
    Run,
    /// Look at its health checks.
    Health,
}

/// How a channel stands.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Channel {
    /// The latest that was accepted.
    pub(in crate::agent) latest: Arc<Assignment>,
    /// The last assignment that could be used; the latest one or one before it.
    pub(in crate::agent) good: Option<Arc<Assignment>>,
    /// The result of the latest is still owed to whoever sent it.
    pub(in crate::agent) owed: bool,
    /// When it runs next.
    pub(in crate::agent) due: Instant,
    /// The file does not say this yet, as it could not be written.
    unkept: bool,
    /// When its health checks are looked at next.
    pub(in crate::agent) health_due: Option<Instant>,
    /// How it went.
    pub(in crate::agent) went: LastRun,
}

/// How the last run and the last look at the health of a channel went.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::agent) struct LastRun {
    /// Whether the `where` of the command holds here.
    pub(in crate::agent) selected: bool,
    /// When the last run ended, and how.
    pub(in crate::agent) ran: Option<(Timestamp, RunOutcome)>,
    /// The runs in a row, up to the last one, that found everything as wanted.
    pub(in crate::agent) stable_runs: u64,
    /// The worst health check.
    pub(in crate::agent) health: Option<HealthStatus>,
    /// Why the latest is not in force.
    pub(in crate::agent) trouble: Option<String>,
}

impl Default for LastRun {
    fn default() -> Self {
        Self { selected: true, ran: None, stable_runs: 0, health: None, trouble: None }
    }
}

impl Channel {
    pub(in crate::agent) fn new(latest: Arc<Assignment>, good: Option<Arc<Assignment>>, owed: bool, due: Instant) -> Self {
        Self { latest, good, owed, due, unkept: false, health_due: None, went: LastRun::default() }
    }

    /// Whether there is something to keep to on this node.
    pub(in crate::agent) fn is_here(&self, settings: &Settings) -> bool {
        let named = settings.channels.as_ref().is_none_or(|names| names.contains(&self.name()));
        named && self.latest.assign().is_some() && self.latest.command.to.includes(&settings.node, &settings.groups)
    }

    fn name(&self) -> String {
        self.latest.command.channel.as_ref().map(|channel| channel.name.clone()).unwrap_or_default()
    }

    /// The next of the moments, `interval` apart, that are this node's own: nodes that were told together do not go on
    /// together.
    pub(in crate::agent) fn slot(&self, interval: Duration, settings: &Settings, now: Timestamp) -> Instant {
        let every = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).max(1);
        let own = RolloutPosition::of(self.latest.command.id, &settings.node).share(every);
        let mut wait = (own - now.as_millisecond()).rem_euclid(every);
        if wait < every / 2 {
            // It has just run.
            wait = wait.saturating_add(every);
        }
        Instant::now() + Duration::from_millis(wait.unsigned_abs())
    }
}

/// What stands on this node.
#[derive(Debug)]
pub(in crate::agent) struct DesiredState {
    store: DesiredStateStore,
    objects: BlobCache,
    channels: Mutex<BTreeMap<String, Channel>>,
    changed: Notify,
    /// Something came that is at odds with what stands here.
    doubt: Notify,
}

impl DesiredState {
    /// Opens what is on disk. `recall` checks an envelope again; what it refuses is not kept to, and is said.
    pub(in crate::agent) fn open(
        settings: &Settings,
        disk: &DurableState,
        recall: impl Fn(&[u8]) -> Result<Verified<Command>, Rejection>,
    ) -> Result<Self, StoreError> {
        let (store, found) = DesiredStateStore::open(&settings.state_dir)?;
        let channels = restore::channels(&store, found, disk, &recall)?;
        Ok(Self {
            store,
            objects: BlobCache::open(&settings.state_dir)?,
            channels: Mutex::new(channels),
            changed: Notify::new(),
            doubt: Notify::new(),
        })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Channel>> {
        // Every change of it is one assignment: a panic elsewhere leaves none half made.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was fetched.
    pub(in crate::agent) fn objects(&self) -> &BlobCache {
        &self.objects
    }

    /// Takes the latest of a channel, of which the ledger says that it was accepted: in force from the next turn on.
    /// `owed`: its result is.
    ///
    /// # Errors
    /// When its file can't be written: it is in force all the same, and [`Self::keep`] writes it later.
    pub(in crate::agent) fn accept(&self, verified: &Arc<Verified<Command>>, owed: bool) -> Result<(), StoreError> {
        let Some(name) = verified.channel.as_ref().map(|channel| channel.name.clone()) else { return Ok(()) };
        let latest = Assignment::of(Arc::clone(verified));
        let mut channels = self.held();
        let good = channels.get(&name).and_then(|channel| channel.good.clone()).filter(|_| latest.assign().is_some());
        let written = self.store.write(&name, &kept(&latest, good.as_deref()));
        checkpoint(Checkpoint::StandingKept);
        let due = Instant::now() + jitter::random_delay(latest.assign().map(|assign| assign.splay.get()).unwrap_or_default());
        channels.insert(name, Channel { unkept: written.is_err(), ..Channel::new(latest, good, owed, due) });
        drop(channels);
        self.changed.notify_one();
        written
    }

    /// Writes the file of a channel where that could not be done before: not before its end may be written down, after
    /// which the ledger does not have it any more.
    pub(in crate::agent) fn save(&self, name: &str) -> Result<(), StoreError> {
        let mut channels = self.held();
        if let Some(channel) = channels.get_mut(name).filter(|channel| channel.unkept) {
            self.store.write(name, &kept(&channel.latest, channel.good.as_deref()))?;
            channel.unkept = false;
        }
        Ok(())
    }

    /// Whether this command is the latest of its channel here.
    pub(in crate::agent) fn has(&self, id: Uuid) -> bool {
        self.held().values().any(|channel| channel.latest.command.id == id)
    }

    /// The result of the latest of a channel is owed: it was accepted before a restart, and its end not written down.
    /// False when something later has taken its place.
    pub(in crate::agent) fn mark_result_pending(&self, command: &Command) -> bool {
        let mut channels = self.held();
        let latest = channels.values_mut().find(|channel| channel.latest.command.id == command.id);
        latest.is_some_and(|channel| {
            channel.owed = true;
            true
        })
    }

    /// Returns when something was taken since the last time.
    pub(in crate::agent) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Something came for a channel that does not fit what stands here, or may end such a difference.
    pub(in crate::agent) fn request_sync(&self) {
        self.doubt.notify_one();
    }

    /// Returns when there was a doubt since the last time.
    pub(in crate::agent) async fn sync_requested(&self) {
        self.doubt.notified().await;
    }

    /// The channels, in the order in which they are applied: that of the configuration, or by name.
    pub(in crate::agent) fn in_order(&self, settings: &Settings) -> Vec<(String, Channel)> {
        let channels = self.held();
        let mut all: Vec<(String, Channel)> = channels.iter().map(|(name, channel)| (name.clone(), channel.clone())).collect();
        let place = |name: &String| settings.channels.as_ref().and_then(|names| names.iter().position(|other| other == name));
        all.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
        all
    }

    /// What is due next, and when: of several that are, the first in order.
    pub(in crate::agent) fn next(&self, settings: &Settings) -> Option<(Instant, String, DueWork)> {
        let now = Instant::now();
        let mut next: Option<(Instant, String, DueWork)> = None;
        for (name, channel) in self.in_order(settings) {
            if !channel.owed && !channel.is_here(settings) {
                continue;
            }
            let health = channel.health_due.filter(|_| channel.is_here(settings));
            for (at, turn) in [(Some(channel.due), DueWork::Run), (health, DueWork::Health)] {
                let Some(at) = at.map(|at| at.max(now)) else { continue };
                if next.as_ref().is_none_or(|(first, ..)| at < *first) {
                    next = Some((at, name.clone(), turn));
                }
            }
        }
        next
    }

    /// One channel as it stands.
    pub(in crate::agent) fn channel(&self, name: &str) -> Option<Channel> {
        self.held().get(name).cloned()
    }

    /// Changes how a channel stands, unless something later than `statement` has taken its place meanwhile.
    pub(in crate::agent) fn change(&self, name: &str, statement: &Assignment, change: impl FnOnce(&mut Channel)) {
        let mut channels = self.held();
        if let Some(channel) = channels.get_mut(name).filter(|channel| channel.latest.command.id == statement.command.id) {
            change(channel);
        }
    }

    /// The manifest of this assignment could be used: from here on it is the one to fall back to.
    pub(in crate::agent) fn promote(&self, name: &str, statement: &Arc<Assignment>) -> Result<(), StoreError> {
        let mut channels = self.held();
        let Some(channel) = channels.get_mut(name) else { return Ok(()) };
        if channel.good.as_ref().is_some_and(|good| good.command.id == statement.command.id) {
            return Ok(());
        }
        self.store.write(name, &kept(&channel.latest, Some(statement)))?;
        checkpoint(Checkpoint::StandingProved);
        (channel.good, channel.unkept) = (Some(Arc::clone(statement)), false);
        let all = channels.values().flat_map(|channel| [Some(&channel.latest), channel.good.as_ref()]);
        let wanted = all.flatten().filter_map(|statement| Some(statement.assign()?.manifest.sha256.clone()));
        self.objects.keep_only(&wanted.collect::<HashSet<String>>())
    }

    /// How the node stands to what is assigned to it, and what is wrong with that, in words.
    pub(in crate::agent) fn report(&self, settings: &Settings, now: Timestamp) -> (Vec<AssignmentStatus>, Option<String>) {
        let (mut states, mut wrong) = (Vec::new(), Vec::new());
        for (name, channel) in self.in_order(settings) {
            let Some(assign) = channel.latest.assign().filter(|_| channel.is_here(settings)) else { continue };
            let expires = channel.latest.command.expires;
            if now > expires {
                wrong.push(format!("channel {name} was to be signed again by {expires}; it is still kept to"));
            }
            wrong.extend(channel.went.trouble.as_ref().map(|why| format!("channel {name}: {why}")));
            let in_force = channel.good.as_ref().and_then(|good| good.assign());
            states.push(AssignmentStatus {
                in_force: in_force.map(|assign| assign.manifest.sha256.clone()),
                id: channel.latest.command.id,
                selected: channel.went.selected,
                enforce: assign.enforce,
                expires,
                ran: channel.went.ran.map(|(at, _)| at),
                outcome: channel.went.ran.map(|(_, outcome)| outcome),
                stable_runs: channel.went.stable_runs,
                health: channel.went.health.map(|status| status.as_str().to_ascii_lowercase()),
                channel: name,
            });
        }
        (states, Some(wrong.join("; ")).filter(|text| !text.is_empty()))
    }
}

pub(in crate::agent) fn kept(latest: &Assignment, good: Option<&Assignment>) -> ChannelRecord {
    let envelope = |statement: &Assignment| statement.command.envelope().to_vec();
    ChannelRecord { latest: envelope(latest), good: good.map(|good| EnvelopeBytes(envelope(good))) }
}
