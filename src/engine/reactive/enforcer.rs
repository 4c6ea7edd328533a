//! The enforcer: keeps a manifest in force. Watches report what may have changed, and the enforcer selects the resources to check.
//!
//! The caller runs the selection, and reports each event. The enforcer stays on its thread; a run may take place on another one.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::engine::settings::RunSelection;
use crate::host::file_writers::FileWriter;
use crate::host::waker::Waker;
use crate::model::{ResourceRef, TransactionEvent, WatchTarget};
use crate::watch::{self, Hub, HubOptions, HubStats, ResourceKey, WatchError};

use super::catalog::{Catalog, NewRow, StateCounts};
use super::convergence::ConvergenceMonitor;
use super::event::{DirtyCause, Notice, Outcome};
use super::fights::Fights;
use super::resource_state::{CheckReason, ResourceState};
use super::watched_resource::WatchedResource;

/// The key of the files of the manifest itself. A catalog does not reach this key.
const MANIFEST: ResourceKey = ResourceKey(u32::MAX);

/// The repair of drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repair {
    /// The time from the first event to the end of the repair.
    pub latency: Duration,
}

/// The meaning of the event of a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordedEvent {
    /// The repair, if the event is one.
    pub repair: Option<Repair>,
    /// True when the resource is only observed, and an earlier event has told of the same changes.
    pub is_repeated: bool,
}

/// The result of a new manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Resources that are equal to those of the earlier manifest, with their watches and their state.
    pub kept: usize,
    /// Resources that are new or changed.
    pub new: usize,
    /// Resources without a watch, which are checked at intervals instead: each with the reason.
    pub polled: Vec<(ResourceRef, String)>,
}

/// A transition of a resource, or of the whole manifest, with the name of the resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedNotice {
    /// The resource; none for the whole manifest.
    pub resource: Option<ResourceRef>,
    /// The transition.
    pub notice: Notice,
    /// The process that undid the last repair of a flapping resource, if the kernel named the process.
    pub writer: Option<FileWriter>,
}

/// A manifest in force.
pub struct Enforcer {
    hub: Hub,
    catalog: Catalog,
    convergence: Option<ConvergenceMonitor>,
    rows: Vec<Row>,
    numbers: HashMap<ResourceRef, usize>,
    /// The checks of the current pass that have not ended.
    running: HashMap<u32, CheckReason>,
    /// References of resources that failed when they ran last.
    failed: BTreeSet<ResourceRef>,
    notices: Vec<NamedNotice>,
    fights: Fights,
    manifest_changed: bool,
}

struct Row {
    key: u32,
    fingerprint: u64,
    references: Vec<ResourceRef>,
    /// True for a resource with watch targets.
    is_watched: bool,
    /// The keys of the resources that subscribe to this one.
    subscribers: Vec<u32>,
}

impl Enforcer {
    /// Opens the watches of this host. With a timeout, the enforcer reports when everything was as wanted for that time.
    ///
    /// # Errors
    /// When the kernel gives no watch.
    pub fn open(converged_timeout: Option<Duration>) -> Result<Self, WatchError> {
        Ok(Self {
            hub: Hub::open(HubOptions::default())?,
            catalog: Catalog::default(),
            convergence: converged_timeout.map(ConvergenceMonitor::new),
            rows: Vec::new(),
            numbers: HashMap::new(),
            running: HashMap::new(),
            failed: BTreeSet::new(),
            notices: Vec::new(),
            fights: Fights::default(),
            manifest_changed: false,
        })
    }

    /// Returns a handle that ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.hub.waker()
    }

    /// Watches the sources of the manifest. [`Enforcer::manifest_changed`] reports their changes.
    pub fn watch_manifest(&mut self, sources: &[WatchTarget]) {
        self.hub.set(MANIFEST, sources);
    }

    /// Returns true once after a change of the files of the manifest.
    pub fn manifest_changed(&mut self) -> bool {
        std::mem::take(&mut self.manifest_changed)
    }

    /// Puts a manifest in force. New and changed resources become due as soon as their watches are armed.
    pub fn replace(&mut self, resources: Vec<WatchedResource>, now: Instant) -> Replaced {
        // The digest alone finds the candidate: names need no copy.
        let old: HashMap<u64, usize> = self.rows.iter().enumerate().map(|(number, row)| (row.fingerprint, number)).collect();
        let mut left: HashMap<u32, usize> = self.rows.iter().enumerate().map(|(number, row)| (row.key, number)).collect();
        let rows = resources.iter().map(|resource| {
            let row = old.get(&resource.fingerprint).and_then(|number| self.rows.get(*number));
            let same_as = row.filter(|row| row.references == resource.references).map(|row| row.key);
            NewRow {
                same_as: same_as.filter(|key| left.remove(key).is_some()),
                policy: resource.policy,
                subscribes: resource.subscribes.clone(),
                requires: resource.requires.clone(),
            }
        });
        let new: Vec<NewRow> = rows.collect();
        let keys = self.catalog.swap(&new, now);
        for (key, number) in &left {
            self.hub.remove(ResourceKey(*key));
            self.fights.end(*key);
            for reference in self.rows.get(*number).into_iter().flat_map(|row| &row.references) {
                self.numbers.remove(reference);
            }
        }
        self.running.retain(|key, _| !left.contains_key(key));
        let mut subscribers: Vec<Vec<u32>> = vec![Vec::new(); keys.len()];
        for (resource, key) in resources.iter().zip(&keys) {
            for number in &resource.subscribes {
                subscribers.get_mut(*number).into_iter().for_each(|named| named.push(*key));
            }
        }
        let mut replaced = Replaced::default();
        let before = std::mem::take(&mut self.rows);
        let rows = resources.into_iter().zip(keys).zip(new).zip(subscribers);
        for (number, (((resource, key), NewRow { same_as, .. }), subscribers)) in rows.enumerate() {
            let armed = self.hub.set(ResourceKey(key), &resource.targets);
            self.catalog.armed(key, now);
            if same_as.is_some() && resource.reads_inputs {
                self.catalog.changed(key, DirtyCause::NewInputs, now);
            }
            *(if same_as.is_some() { &mut replaced.kept } else { &mut replaced.new }) += 1;
            let polled = armed.polled.first().map(|(_, why)| why.to_string());
            replaced.polled.extend(resource.references.first().zip(polled).map(|(name, why)| (name.clone(), why)));
            if before.get(number).is_none_or(|row| Some(row.key) != same_as) {
                self.numbers.extend(resource.references.iter().cloned().map(|reference| (reference, number)));
            }
            let (is_watched, fingerprint, references) = (!resource.targets.is_empty(), resource.fingerprint, resource.references);
            self.rows.push(Row { key, fingerprint, references, is_watched, subscribers });
        }
        let numbers = &self.numbers;
        self.failed.retain(|reference| numbers.contains_key(reference));
        self.observe_convergence(now);
        replaced
    }

    /// Takes the end of a run of all resources, before which no watch of a new resource was armed. `events` are those that are not
    /// stable.
    ///
    /// Watched resources are checked again, as a change may have been missed. Another run of the others has no use: a command would
    /// run twice. Resources that failed earlier are as the run left them.
    pub fn end_whole_run(&mut self, events: &[TransactionEvent], now: Instant) {
        let events: HashMap<ResourceRef, &TransactionEvent> =
            events.iter().map(|event| (ResourceRef::new(&event.kind, &event.name), event)).collect();
        for row in &self.rows {
            let is_settled = match self.catalog.state(row.key) {
                Some(ResourceState::Dirty { .. }) => !row.is_watched,
                Some(ResourceState::AwaitingRetry { .. } | ResourceState::Parked | ResourceState::Blocked) => true,
                _ => false,
            };
            let is_running = self.running.remove(&row.key).is_some();
            if !is_running && (!is_settled || self.catalog.join(row.key, now).is_none()) {
                continue;
            }
            let event = row.references.iter().find_map(|reference| events.get(reference));
            let outcome = event.map_or(Outcome::Stable, |event| outcome(event, DirtyCause::FirstCheck));
            set_failed(&mut self.failed, row, outcome);
            self.catalog.ended(row.key, outcome, now);
        }
        self.observe_convergence(now);
    }

    /// Watches the targets of a resource that only its run knows.
    pub fn watch_late(&mut self, resource: &ResourceRef, targets: &[WatchTarget]) {
        if let Some(row) = self.numbers.get(resource).and_then(|number| self.rows.get(*number)) {
            self.hub.set(ResourceKey(row.key), targets);
        }
    }

    /// Makes every resource due.
    pub fn sweep(&mut self, now: Instant) {
        self.catalog.sweep(now);
    }

    /// Waits for a change, a due check, `until`, or the waker.
    ///
    /// # Errors
    /// When the watches fail as a whole.
    pub fn wait(&mut self, until: Option<Instant>) -> Result<(), WatchError> {
        let at = [until, self.catalog.next_at(), self.convergence.as_ref().and_then(ConvergenceMonitor::converged_at)];
        let changes = self.hub.wait(at.into_iter().flatten().min())?;
        let now = Instant::now();
        self.fights.read(now);
        for change in changes {
            match change.key {
                MANIFEST => self.manifest_changed = true,
                ResourceKey(key) => self.catalog.changed(key, cause(&change.cause), now),
            }
        }
        self.observe_convergence(now);
        Ok(())
    }

    /// Begins a pass over all due resources; none when nothing is due.
    pub fn start(&mut self, now: Instant) -> Option<RunSelection> {
        let checks = self.catalog.start(now);
        if checks.is_empty() {
            return None;
        }
        let place = |key| self.catalog.place(key).and_then(|place| usize::try_from(place).ok());
        let resources = checks.iter().filter_map(|check| place(check.key)).collect();
        self.running.extend(checks.iter().map(|check| (check.key, check.reason)));
        Some(RunSelection { resources, failed: self.failed.clone() })
    }

    /// Takes the event of a resource of the pass.
    pub fn record(&mut self, event: &TransactionEvent, now: Instant) -> RecordedEvent {
        let reference = ResourceRef::new(&event.kind, &event.name);
        let row = self.numbers.get(&reference).and_then(|number| self.rows.get(*number));
        let Some(row) = row else { return RecordedEvent::default() };
        // The run adds the subscribers of what it changes.
        let reason = self.running.remove(&row.key).or_else(|| self.catalog.join(row.key, now));
        let Some(reason) = reason else { return RecordedEvent::default() };
        let outcome = outcome(event, reason.cause);
        set_failed(&mut self.failed, row, outcome);
        let notice = self.catalog.ended(row.key, outcome, now);
        // The subscribers of this pass run after this resource: their checks cover its change.
        for subscriber in row.subscribers.iter().filter(|key| self.running.contains_key(key)) {
            self.catalog.began(*subscriber, now);
        }
        if self.catalog.is_suspicious(row.key) {
            self.fights.watch(row.key, self.hub.targets(ResourceKey(row.key)), now);
        }
        self.notices.extend(notice.map(|notice| {
            let writer = if matches!(notice, Notice::FlappingBegan { .. }) { self.fights.end(row.key) } else { None };
            NamedNotice { resource: Some(reference), notice, writer }
        }));
        let is_repair = outcome == Outcome::Changed { corrective: true };
        RecordedEvent {
            repair: is_repair.then(|| Repair { latency: now.saturating_duration_since(reason.since) }),
            is_repeated: notice.is_none() && matches!(outcome, Outcome::WouldChange { .. }),
        }
    }

    /// Ends a pass. Resources without an event, as after the failure of another one, are tried again later.
    pub fn end_pass(&mut self, now: Instant) {
        for (key, _) in std::mem::take(&mut self.running) {
            self.catalog.ended(key, Outcome::Failed { changed: false, undone: false }, now);
        }
        self.observe_convergence(now);
    }

    /// Returns the transitions since the last call.
    pub fn notices(&mut self) -> Vec<NamedNotice> {
        std::mem::take(&mut self.notices)
    }

    /// Returns the number of resources in each state.
    pub fn counts(&self) -> StateCounts {
        self.catalog.counts()
    }

    /// Returns the statistics of the watches.
    pub fn watch_stats(&self) -> HubStats {
        self.hub.stats()
    }

    fn observe_convergence(&mut self, now: Instant) {
        let notice = self.convergence.as_mut().and_then(|convergence| convergence.observe(self.catalog.activity(), now));
        self.notices.extend(notice.map(|notice| NamedNotice { resource: None, notice, writer: None }));
    }
}

/// Adds the names of a resource to those that failed, or removes them.
fn set_failed(failed: &mut BTreeSet<ResourceRef>, row: &Row, outcome: Outcome) {
    for reference in &row.references {
        match outcome {
            Outcome::Failed { .. } | Outcome::Unmet => failed.insert(reference.clone()),
            _ => failed.remove(reference),
        };
    }
}

fn cause(cause: &watch::Cause) -> DirtyCause {
    match cause {
        watch::Cause::Overflow => DirtyCause::Overflow,
        watch::Cause::Poll => DirtyCause::Poll,
        watch::Cause::Path { .. } | watch::Cause::Unit(_) | watch::Cause::Mounts | watch::Cause::Rearmed => DirtyCause::Event,
    }
}

fn outcome(event: &TransactionEvent, cause: DirtyCause) -> Outcome {
    let is_drift = !event.refreshed
        && !matches!(cause, DirtyCause::FirstCheck | DirtyCause::NewInputs | DirtyCause::Refresh | DirtyCause::RequirementMet);
    match event {
        _ if event.failed => Outcome::Failed {
            changed: event.changed && !event.noop,
            undone: is_drift && !event.changed && !event.changes.is_empty(),
        },
        _ if !event.unmet_requirements.is_empty() => Outcome::Unmet,
        _ if event.skipped => Outcome::Skipped,
        _ if event.noop && event.changed => Outcome::WouldChange { digest: super::watched_resource::digest(&event.changes) },
        _ if event.changed => Outcome::Changed { corrective: is_drift },
        _ => Outcome::Stable,
    }
}
