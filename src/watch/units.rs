//! The watched units of systemd, and the resources that they matter to.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::report::{Cause, ResourceKey};
use crate::host::systemd::is_booted;
use crate::host::unit_events::{UnitEvents, UnitReport};
use crate::host::waker::Waker;

/// The watched units. The connection to systemd begins with the first unit.
#[derive(Debug)]
pub(super) struct UnitWatches {
    keys: BTreeMap<Arc<str>, BTreeSet<ResourceKey>>,
    events: Option<UnitEvents>,
    waker: Waker,
    is_connected: bool,
}

impl UnitWatches {
    pub(super) fn new(waker: Waker) -> Self {
        Self { keys: BTreeMap::new(), events: None, waker, is_connected: false }
    }

    /// True when systemd reports changes.
    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Adds a unit of a resource.
    pub(super) fn subscribe(&mut self, key: ResourceKey, name: &str) {
        if self.events.is_none() && is_booted() {
            self.events = UnitEvents::start(self.waker.clone()).ok();
            self.is_connected = self.events.as_ref().is_some_and(|events| events.report().is_connected);
        }
        if let Some(events) = &self.events {
            events.watch(name);
        }
        self.keys.entry(Arc::from(name)).or_default().insert(key);
    }

    /// Ends the interest of a resource in a unit.
    pub(super) fn unsubscribe(&mut self, key: ResourceKey, name: &str) {
        if let Some(keys) = self.keys.get_mut(name) {
            keys.remove(&key);
            if keys.is_empty() {
                self.keys.remove(name);
                self.events.iter().for_each(|events| events.unwatch(name));
            }
        }
    }

    /// Returns the resources whose units may have changed.
    pub(super) fn collect(&mut self) -> Vec<(ResourceKey, Cause)> {
        match self.events.as_ref().filter(|_| self.waker.clear()) {
            Some(events) => {
                let report = events.report();
                self.apply(&report)
            }
            None => Vec::new(),
        }
    }

    fn apply(&mut self, report: &UnitReport) -> Vec<(ResourceKey, Cause)> {
        let is_new = report.is_connected && !self.is_connected;
        self.is_connected = report.is_connected;
        let changed = self.keys.iter().filter(|(name, _)| report.changed.contains(&***name));
        let cause = |name: &Arc<str>| if is_new { Cause::Rearmed } else { Cause::Unit(Arc::clone(name)) };
        changed.flat_map(|(name, keys)| keys.iter().map(move |key| (*key, cause(name)))).collect()
    }
}

impl AsFd for UnitWatches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reaches_the_resources_of_a_unit() {
        let mut units = UnitWatches::new(Waker::new().unwrap());
        let [a, b] = [1, 2].map(ResourceKey);
        units.keys.insert(Arc::from("x.service"), BTreeSet::from([a, b]));
        units.keys.insert(Arc::from("y.service"), BTreeSet::from([b]));
        let report = |names: &[&str], is_connected| UnitReport {
            changed: names.iter().map(|name| (*name).to_owned()).collect(),
            is_connected,
        };
        let (x, y) = (Arc::from("x.service"), Arc::from("y.service"));
        for (names, is_connected, expected) in [
            (vec!["x.service", "y.service"], true, vec![(a, Cause::Rearmed), (b, Cause::Rearmed), (b, Cause::Rearmed)]),
            (vec!["x.service"], true, vec![(a, Cause::Unit(Arc::clone(&x))), (b, Cause::Unit(Arc::clone(&x)))]),
            (vec!["z.service"], true, vec![]),
            (vec!["y.service"], false, vec![(b, Cause::Unit(y))]),
        ] {
            assert_eq!(units.apply(&report(&names, is_connected)), expected, "{names:?}");
            assert_eq!(units.is_connected(), is_connected);
        }
    }
}
