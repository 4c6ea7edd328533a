//! The catalog: all resources of the manifest in force, and the agenda of their checks.
//!
//! Each method touches the resources that are concerned, and the agenda. Only a sweep, an overflow and a swap touch all.

mod counts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::convergence::CatalogActivity;
use super::event::{DirtyCause, Notice, Outcome};
use super::history::RepairHistory;
use super::policy::RepairPolicy;
use super::resource_state::{CheckReason, ResourceEvent, ResourceState, step};

pub use counts::StateCounts;

/// A check to run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// The resource.
    pub key: u32,
    /// The reason for the check.
    pub reason: CheckReason,
}

/// A resource of a new manifest.
#[derive(Debug, Clone, Default)]
pub struct NewRow {
    /// The key of the equal resource of the manifest in force, if there is one.
    pub same_as: Option<u32>,
    /// The policy of the resource.
    pub policy: RepairPolicy,
    /// The resources that this one subscribes to: their places in the new manifest.
    pub subscribes: Vec<usize>,
    /// The resources that this one requires: their places in the new manifest.
    pub requires: Vec<usize>,
}

/// The resources of the manifest in force, by key.
///
/// A key belongs to one resource, until a manifest drops or changes the resource. No later resource gets the same key.
/// Watches and running checks of an equal resource therefore survive [`Catalog::swap`].
#[derive(Debug, Default)]
pub struct Catalog {
    rows: BTreeMap<u32, Row>,
    agenda: BTreeSet<(Instant, u32)>,
    counts: StateCounts,
    disturbed_at: Option<Instant>,
    next_key: u32,
}

#[derive(Debug)]
struct Row {
    state: ResourceState,
    history: RepairHistory,
    /// The policy, unless it is the default.
    policy: Option<Box<RepairPolicy>>,
    subscribers: Box<[u32]>,
    dependents: Box<[u32]>,
    place: u32,
}

impl Row {
    fn policy(&self) -> RepairPolicy {
        self.policy.as_deref().copied().unwrap_or_default()
    }

    fn due_at(&self) -> Option<Instant> {
        self.state.due_at(&self.history, &self.policy())
    }

    fn step(&mut self, event: ResourceEvent, now: Instant) {
        self.state = step(self.state, event, &self.history, &self.policy(), now);
    }
}

impl Catalog {
    /// Arms a resource, whose watch now reports every change. A new resource becomes due.
    pub fn armed(&mut self, key: u32, now: Instant) {
        self.update(key, |row| row.step(ResourceEvent::Armed, now));
    }

    /// Makes a resource due, now or after its pauses. A running check is followed by exactly one more.
    pub fn changed(&mut self, key: u32, cause: DirtyCause, now: Instant) {
        self.update(key, |row| row.step(ResourceEvent::Dirtied(CheckReason { cause, since: now }), now));
    }

    /// Makes every resource due, as the queue of a watch overflowed.
    pub fn overflow(&mut self, now: Instant) {
        self.all_changed(DirtyCause::Overflow, now);
    }

    /// Makes every resource due.
    pub fn sweep(&mut self, now: Instant) {
        self.all_changed(DirtyCause::Sweep, now);
    }

    /// Starts all checks that are due, in the order of the manifest.
    pub fn start(&mut self, now: Instant) -> Vec<Check> {
        let mut started = Vec::new();
        while self.next_at().is_some_and(|at| at <= now) {
            let Some((_, key)) = self.agenda.pop_first() else { break };
            let check = self.update(key, |row| {
                let reason = row.state.reason(now)?;
                row.history.started(reason.cause, &row.policy(), now);
                row.step(ResourceEvent::Started, now);
                Some((row.place, Check { key, reason }))
            });
            started.extend(check.flatten());
        }
        started.sort_unstable_by_key(|(place, _)| *place);
        started.into_iter().map(|(_, check)| check).collect()
    }

    /// Starts the check of a resource that a run has added, as a subscriber of what it changed. None for a key that is gone, and
    /// while another check runs.
    pub fn join(&mut self, key: u32, now: Instant) -> Option<CheckReason> {
        let reason = CheckReason { cause: DirtyCause::Refresh, since: now };
        let joined = self.update(key, |row| {
            row.step(ResourceEvent::Dirtied(reason), now);
            if !matches!(row.state, ResourceState::Dirty { .. }) {
                return None;
            }
            row.history.started(reason.cause, &row.policy(), now);
            row.step(ResourceEvent::Started, now);
            Some(reason)
        });
        joined.flatten()
    }

    /// Takes note that a started check looks at the host only now. The check covers all events until now.
    ///
    /// Without this call, a change of a resource costs one more check of the subscribers that were started with it.
    pub fn began(&mut self, key: u32, now: Instant) {
        self.update(key, |row| row.step(ResourceEvent::Began, now));
    }

    /// Takes the end of a check, and makes subscribers and dependents due. Returns the transition to report.
    ///
    /// Subscribers are due after a change, and after a recovery: a refresh stays pending while the changed resource fails.
    /// The end of a check that was not started, or whose resource is gone, changes nothing.
    pub fn ended(&mut self, key: u32, outcome: Outcome, now: Instant) -> Option<Notice> {
        let is_running = |row: &&Row| matches!(row.state, ResourceState::Running { .. });
        let was_failing = self.rows.get(&key).filter(is_running)?.history.is_failing();
        let notice = self.update(key, |row| {
            let notice = row.history.ended(key, outcome, &row.policy(), now);
            row.step(ResourceEvent::Ended(outcome), now);
            notice
        });
        let notice = notice.flatten();
        let is_quiet = match outcome {
            Outcome::Stable | Outcome::Skipped => true,
            // A wanted change that was reported before is no news.
            Outcome::WouldChange { .. } => notice.is_none(),
            Outcome::Changed { .. } | Outcome::Failed { .. } | Outcome::Unmet => false,
        };
        if !is_quiet {
            self.disturbed_at = Some(now);
        }
        let row = self.rows.get(&key)?;
        let must_refresh = outcome.has_changed() || was_failing && outcome.has_succeeded();
        let subscribers = must_refresh.then(|| row.subscribers.clone());
        let dependents = outcome.has_succeeded().then(|| row.dependents.clone());
        for subscriber in subscribers.unwrap_or_default() {
            self.changed(subscriber, DirtyCause::Refresh, now);
        }
        for dependent in dependents.unwrap_or_default() {
            self.update(dependent, |row| row.step(ResourceEvent::RequirementMet, now));
        }
        notice
    }

    /// Puts a new manifest in force, without a wait for running checks. Returns the key of each resource, by its place.
    ///
    /// An equal resource keeps its key, state, failures and flapping; the end of its running check is taken.
    /// All other resources are new, and wait for their watches. The end of a check of an old key that is gone is dropped.
    pub fn swap(&mut self, new: &[NewRow], now: Instant) -> Vec<u32> {
        let mut old = std::mem::take(self);
        (self.next_key, self.disturbed_at) = (old.next_key, old.disturbed_at);
        let mut keys = Vec::with_capacity(new.len());
        let mut kept = Vec::with_capacity(new.len());
        for row in new {
            let equal = row.same_as.and_then(|key| Some((key, old.rows.remove(&key)?)));
            keys.push(equal.as_ref().map_or_else(|| self.new_key(now), |(key, _)| *key));
            kept.push(equal.map(|(_, row)| (row.state, row.history)));
        }
        let subscribers = reversed(&keys, new.iter().map(|row| row.subscribes.as_slice()));
        let dependents = reversed(&keys, new.iter().map(|row| row.requires.as_slice()));
        let edges = subscribers.into_iter().zip(dependents);
        let rows = new.iter().zip(kept).zip(edges).zip(0..).map(|(((new, kept), (subscribers, dependents)), place)| {
            let (state, history) = kept.unwrap_or_default();
            let policy = (new.policy != RepairPolicy::default()).then(|| Box::new(new.policy));
            Row { state, history, policy, subscribers, dependents, place }
        });
        self.rows = keys.iter().copied().zip(rows).collect();
        for row in self.rows.values() {
            *self.counts.slot(&row.state, row.history.quiet_at().is_some()) += 1;
        }
        self.agenda = self.rows.iter().filter_map(|(key, row)| Some((row.due_at()?, *key))).collect();
        keys
    }

    /// Returns the earliest time at which a check is due; `None` while the catalog waits for events only.
    pub fn next_at(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    /// Returns the number of resources in each state.
    pub fn counts(&self) -> StateCounts {
        self.counts
    }

    /// Returns the activity, for [`super::ConvergenceMonitor::observe`].
    pub fn activity(&self) -> CatalogActivity {
        match self.counts {
            counts if counts.unsettled() > 0 => CatalogActivity::Unsettled,
            counts if counts.dirty + counts.running > 0 => CatalogActivity::Busy,
            counts => CatalogActivity::Settled { disturbed_at: self.disturbed_at, would_change: counts.would_change },
        }
    }

    /// Returns the state of a resource; `None` for a key that is gone.
    pub fn state(&self, key: u32) -> Option<ResourceState> {
        self.rows.get(&key).map(|row| row.state)
    }

    /// Returns true while few further repairs would make the resource flapping.
    pub fn is_suspicious(&self, key: u32) -> bool {
        self.rows.get(&key).is_some_and(|row| row.history.is_suspicious())
    }

    /// Returns the place of a resource in the manifest; `None` for a key that is gone.
    pub fn place(&self, key: u32) -> Option<u32> {
        self.rows.get(&key).map(|row| row.place)
    }

    fn all_changed(&mut self, cause: DirtyCause, now: Instant) {
        let keys: Vec<u32> = self.rows.keys().copied().collect();
        for key in keys {
            self.changed(key, cause, now);
        }
    }

    fn new_key(&mut self, now: Instant) -> u32 {
        let key = self.next_key;
        self.next_key = self.next_key.wrapping_add(1);
        self.disturbed_at = Some(now);
        key
    }

    /// Changes a row, and lets the agenda and the counts follow.
    fn update<T>(&mut self, key: u32, change: impl FnOnce(&mut Row) -> T) -> Option<T> {
        let row = self.rows.get_mut(&key)?;
        let due_before = row.due_at();
        *self.counts.slot(&row.state, row.history.quiet_at().is_some()) -= 1;
        let result = change(row);
        *self.counts.slot(&row.state, row.history.quiet_at().is_some()) += 1;
        let due_at = row.due_at();
        if due_at != due_before {
            due_before.map(|at| self.agenda.remove(&(at, key)));
            self.agenda.extend(due_at.map(|at| (at, key)));
        }
        Some(result)
    }
}

/// Returns the reversed edges: for each place, the keys of the resources that name the place.
fn reversed<'a>(keys: &[u32], edges: impl Iterator<Item = &'a [usize]>) -> Vec<Box<[u32]>> {
    let mut reversed = vec![Vec::new(); keys.len()];
    for (key, places) in keys.iter().zip(edges) {
        for place in places {
            if let Some(named) = reversed.get_mut(*place) {
                named.push(*key);
            }
        }
    }
    reversed.into_iter().map(Vec::into_boxed_slice).collect()
}

#[cfg(test)]
mod tests;
