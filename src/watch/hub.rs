//! The hub: one wait for all sources of changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::paths::PathWatches;
use super::report::{Armed, Cause, Dirty, HubStats, PollReason, ResourceKey};
use super::timers::IntervalQueue;
use super::trie::Depth;
use super::units::UnitWatches;
use crate::host::inotify::{Inotify, InotifyEvent};
use crate::host::mount_events::MountEvents;
use crate::host::waker::{Waker, wait_for_descriptors};
use crate::host::watch_probe::normalize_absolute;
use crate::model::WatchTarget;

/// The most events between two reports, four times the usual length of the kernel's queue. A storm thus delays no report.
const MAX_EVENTS: usize = 65_536;

/// Most watches of a hub. All programs of the user share the limit of the kernel, and a tree may be of any size.
const MAX_WATCHES: usize = 65_536;

/// A failure of the hub as a whole.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// No inotify instance or descriptor is left.
    #[error("could not create an inotify instance: see fs.inotify.max_user_instances and the limit of open files")]
    Open(#[source] io::Error),
    /// A wait or a read failed.
    #[error("could not read the changes of the host")]
    Read(#[source] io::Error),
}

/// Settings of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubOptions {
    /// The interval of the checks of a target that the host does not report.
    pub fallback_poll: Duration,
    /// Most watches of paths.
    pub max_watches: usize,
}

impl Default for HubOptions {
    fn default() -> Self {
        // The interval of the reconciler before the hub.
        Self { fallback_poll: Duration::from_secs(30), max_watches: MAX_WATCHES }
    }
}

/// The targets of a resource, sorted, with normal paths.
#[derive(Debug, Default)]
struct KeyEntry {
    targets: Box<[WatchTarget]>,
    is_polled: bool,
}

/// The watch hub of a process.
#[derive(Debug)]
pub struct Hub {
    options: HubOptions,
    events: Arc<Inotify>,
    paths: PathWatches<Arc<Inotify>>,
    units: UnitWatches,
    mounts: Option<MountEvents>,
    mount_keys: BTreeSet<ResourceKey>,
    intervals: IntervalQueue,
    keys: HashMap<ResourceKey, KeyEntry>,
    dirty: BTreeMap<ResourceKey, Cause>,
    waker: Waker,
    overflows: u64,
}

impl Hub {
    /// Creates a hub without resources.
    ///
    /// # Errors
    /// When the kernel grants no inotify instance.
    pub fn open(options: HubOptions) -> Result<Self, WatchError> {
        let events = Arc::new(Inotify::open().map_err(WatchError::Open)?);
        Ok(Self {
            options,
            paths: PathWatches::new(Arc::clone(&events), options.max_watches),
            events,
            units: UnitWatches::new(Waker::new().map_err(WatchError::Open)?),
            mounts: MountEvents::open().ok(),
            mount_keys: BTreeSet::new(),
            intervals: IntervalQueue::default(),
            keys: HashMap::new(),
            dirty: BTreeMap::new(),
            waker: Waker::new().map_err(WatchError::Open)?,
            overflows: 0,
        })
    }

    /// Returns a handle that ends a wait in progress.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns the targets of a resource.
    pub fn targets(&self, key: ResourceKey) -> &[WatchTarget] {
        self.keys.get(&key).map_or(&[], |entry| &entry.targets)
    }

    /// Returns the figures of the hub.
    pub fn stats(&self) -> HubStats {
        HubStats {
            watches: self.paths.armed.len(),
            keys: self.keys.len(),
            polled_keys: self.keys.values().filter(|entry| entry.is_polled).count(),
            overflows: self.overflows,
        }
    }

    /// Replaces the targets of a resource. Every change after the return is reported. Equal targets keep their watches.
    pub fn set(&mut self, key: ResourceKey, targets: &[WatchTarget]) -> Armed {
        // A new manifest sets the targets of all its resources again: most are as they were.
        if self.keys.get(&key).is_some_and(|entry| *entry.targets == *targets && !entry.is_polled) {
            return Armed::default();
        }
        let mut targets: Vec<WatchTarget> = targets.iter().map(normalize_target).collect();
        targets.sort_unstable();
        targets.dedup();
        let before = self.keys.remove(&key).unwrap_or_default();
        if *before.targets != *targets {
            // New targets first, so that a watch which both need stays.
            targets.iter().filter(|target| !before.targets.contains(target)).for_each(|target| self.subscribe(key, target));
            before.targets.iter().filter(|target| !targets.contains(target)).for_each(|target| self.unsubscribe(key, target));
        }
        let polled: Vec<(WatchTarget, PollReason)> =
            targets.iter().filter_map(|target| Some((target.clone(), self.poll_reason(target)?))).collect();
        let entry = KeyEntry { targets: targets.into_boxed_slice(), is_polled: !polled.is_empty() };
        self.set_interval(key, &entry);
        self.keys.insert(key, entry);
        Armed { polled }
    }

    /// Ends all watches of a resource.
    pub fn remove(&mut self, key: ResourceKey) {
        let Some(entry) = self.keys.remove(&key) else { return };
        entry.targets.iter().for_each(|target| self.unsubscribe(key, target));
        self.intervals.set(key, None, Instant::now());
        self.dirty.remove(&key);
    }

    /// Blocks until resources may have changed, and returns each of them once. Empty after a call of the waker, and at `until`.
    ///
    /// # Errors
    /// When the kernel refuses the wait.
    pub fn wait(&mut self, until: Option<Instant>) -> Result<Vec<Dirty>, WatchError> {
        loop {
            let limit = match self.dirty.is_empty() && !self.paths.has_work() {
                true => [until, self.intervals.next()].into_iter().flatten().min(),
                false => Some(Instant::now()),
            };
            let sources = [self.events.as_fd(), self.units.as_fd(), self.waker.as_fd()];
            let are_mounts_changed =
                wait_for_descriptors(&sources, self.mounts.as_ref().map(AsFd::as_fd), limit).map_err(WatchError::Read)?;
            if are_mounts_changed {
                self.collect_mounts()?;
            }
            self.collect_intervals();
            self.collect_units();
            self.collect_paths()?;
            let is_woken = self.waker.clear();
            if !self.dirty.is_empty() || is_woken || until.is_some_and(|until| Instant::now() >= until) {
                let dirty = std::mem::take(&mut self.dirty);
                return Ok(dirty.into_iter().map(|(key, cause)| Dirty { key, cause }).collect());
            }
        }
    }

    fn subscribe(&mut self, key: ResourceKey, target: &WatchTarget) {
        match target {
            WatchTarget::Path(path) => self.paths.armed.subscribe(key, path, Depth::Object),
            WatchTarget::Tree(path) => self.paths.armed.subscribe(key, path, Depth::Tree),
            WatchTarget::Unit(name) => self.units.subscribe(key, name),
            WatchTarget::Mounts => _ = self.mount_keys.insert(key),
            WatchTarget::Poll(_) => {}
        }
    }

    fn unsubscribe(&mut self, key: ResourceKey, target: &WatchTarget) {
        match target {
            WatchTarget::Path(path) => self.paths.armed.unsubscribe(key, path, Depth::Object),
            WatchTarget::Tree(path) => self.paths.armed.unsubscribe(key, path, Depth::Tree),
            WatchTarget::Unit(name) => self.units.unsubscribe(key, name),
            WatchTarget::Mounts => _ = self.mount_keys.remove(&key),
            WatchTarget::Poll(_) => {}
        }
    }

    /// Returns the reason for which a target must be polled.
    fn poll_reason(&self, target: &WatchTarget) -> Option<PollReason> {
        match target {
            WatchTarget::Path(path) => self.paths.armed.refusal(path, Depth::Object),
            WatchTarget::Tree(path) => self.paths.armed.refusal(path, Depth::Tree),
            WatchTarget::Unit(_) => (!self.units.is_connected()).then_some(PollReason::NoSystemd),
            WatchTarget::Mounts => self.mounts.is_none().then_some(PollReason::NoMountTable),
            WatchTarget::Poll(_) => None,
        }
    }

    fn set_interval(&mut self, key: ResourceKey, entry: &KeyEntry) {
        let own = entry.targets.iter().filter_map(|target| match target {
            WatchTarget::Poll(interval) => Some(*interval),
            _ => None,
        });
        let interval = own.chain(entry.is_polled.then_some(self.options.fallback_poll)).min();
        self.intervals.set(key, interval, Instant::now());
    }

    /// Decides again which resources are polled.
    fn update_polled(&mut self) {
        let mut keys = std::mem::take(&mut self.keys);
        for (key, entry) in &mut keys {
            let is_polled = entry.targets.iter().any(|target| self.poll_reason(target).is_some());
            if std::mem::replace(&mut entry.is_polled, is_polled) != is_polled {
                self.set_interval(*key, entry);
            }
        }
        self.keys = keys;
    }

    fn mark(&mut self, key: ResourceKey, cause: Cause) {
        self.dirty.entry(key).or_insert(cause);
    }

    fn collect_mounts(&mut self) -> Result<(), WatchError> {
        let Some(mounts) = &mut self.mounts else { return Ok(()) };
        let points = mounts.reload().map_err(WatchError::Read)?;
        self.paths.mounts_changed(points.iter().map(PathBuf::as_path));
        for key in self.mount_keys.clone() {
            self.mark(key, Cause::Mounts);
        }
        Ok(())
    }

    fn collect_intervals(&mut self) {
        for key in self.intervals.expire(Instant::now()) {
            if self.keys.get(&key).is_some_and(|entry| entry.is_polled) {
                // The limit may have been raised meanwhile.
                self.paths.armed.retry();
            }
            self.mark(key, Cause::Poll);
        }
    }

    fn collect_units(&mut self) {
        let was_connected = self.units.is_connected();
        for (key, cause) in self.units.collect() {
            self.mark(key, cause);
        }
        if self.units.is_connected() != was_connected {
            self.update_polled();
        }
    }

    fn collect_paths(&mut self) -> Result<(), WatchError> {
        let Self { paths, events, overflows, .. } = self;
        let handle = |event: InotifyEvent<'_>| {
            *overflows += u64::from(event == InotifyEvent::Overflow);
            paths.handle(event);
        };
        events.read(MAX_EVENTS, handle).map_err(WatchError::Read)?;
        for (key, cause) in self.paths.finish() {
            self.mark(key, cause);
        }
        if self.paths.armed.refusals_changed() {
            self.update_polled();
        }
        Ok(())
    }
}

/// Returns the target with a normal path, so that equal targets are the same.
fn normalize_target(target: &WatchTarget) -> WatchTarget {
    match target {
        WatchTarget::Path(path) => WatchTarget::Path(normalize_absolute(path)),
        WatchTarget::Tree(path) => WatchTarget::Tree(normalize_absolute(path)),
        WatchTarget::Unit(_) | WatchTarget::Mounts | WatchTarget::Poll(_) => target.clone(),
    }
}
