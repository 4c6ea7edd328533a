//! The watched units of systemd, with their last states.
//!
//! A look at a unit makes systemd load and unload the unit, and systemd signals both. So only a different state is a change.

use std::collections::{BTreeMap, BTreeSet};

use super::systemd::path_of;

/// The state of a unit: `ActiveState` and `SubState`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnitState {
    pub(super) active: String,
    pub(super) sub: String,
}

impl UnitState {
    /// The state of a unit that is not in the memory of systemd.
    pub(super) fn unloaded() -> Self {
        Self { active: "inactive".to_owned(), sub: "dead".to_owned() }
    }
}

/// A signal of systemd, reduced to what may change a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnitSignal {
    /// A unit has another state.
    State { path: String, active: Option<String>, sub: Option<String> },
    /// Another property of the unit changed, as its enablement.
    Property { path: String },
    /// A unit was loaded, in a state that the signal does not name.
    Loaded { path: String },
    /// A unit was unloaded.
    Unloaded { path: String },
    /// Unit files changed, or systemd read all of them again.
    Everything,
}

/// The watched units with the same object path: a unit and its aliases.
#[derive(Debug, Default)]
struct WatchedUnit {
    names: BTreeSet<String>,
    /// The last state; none before the first signal.
    state: Option<UnitState>,
}

/// The watched units and their changes.
#[derive(Debug, Default)]
pub(super) struct UnitTable {
    units: BTreeMap<String, WatchedUnit>,
    paths: BTreeMap<String, String>,
    pub(super) changed: BTreeSet<String>,
    /// Names whose object path systemd has not confirmed yet.
    pub(super) unresolved: BTreeSet<String>,
}

impl UnitTable {
    pub(super) fn watch(&mut self, name: &str) {
        if !self.paths.contains_key(name) {
            self.assign(name, path_of(name));
            self.unresolved.insert(name.to_owned());
        }
    }

    pub(super) fn unwatch(&mut self, name: &str) {
        if let Some(path) = self.paths.remove(name)
            && let Some(unit) = self.units.get_mut(&path)
        {
            unit.names.remove(name);
            if unit.names.is_empty() {
                self.units.remove(&path);
            }
        }
        self.changed.remove(name);
        self.unresolved.remove(name);
    }

    /// Returns the watched names with an object path.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        self.units.get(path).map(|unit| unit.names.iter().cloned().collect()).unwrap_or_default()
    }

    pub(super) fn is_watched(&self, name: &str) -> bool {
        self.paths.contains_key(name)
    }

    /// Moves a name to the object path that systemd reports for it. True when the path is another one.
    pub(super) fn assign(&mut self, name: &str, path: String) -> bool {
        if self.paths.get(name) == Some(&path) {
            return false;
        }
        self.unwatch(name);
        self.units.entry(path.clone()).or_default().names.insert(name.to_owned());
        self.paths.insert(name.to_owned(), path);
        true
    }

    pub(super) fn mark_all(&mut self) {
        self.changed.extend(self.paths.keys().cloned());
    }

    /// Applies a signal. Returns the object path of a watched unit whose state must be asked for.
    pub(super) fn apply(&mut self, signal: UnitSignal) -> Option<String> {
        match signal {
            UnitSignal::State { path, active, sub } => {
                let unit = self.units.get(&path)?;
                let last = unit.state.clone().unwrap_or_else(UnitState::unloaded);
                let state = UnitState { active: active.unwrap_or(last.active), sub: sub.unwrap_or(last.sub) };
                self.set_state(&path, state);
                None
            }
            UnitSignal::Property { path } => {
                self.changed.extend(self.units.get(&path)?.names.iter().cloned());
                None
            }
            UnitSignal::Loaded { path } => self.units.contains_key(&path).then_some(path),
            UnitSignal::Unloaded { path } => {
                self.set_state(&path, UnitState::unloaded());
                None
            }
            UnitSignal::Everything => {
                self.mark_all();
                self.unresolved.extend(self.paths.keys().cloned());
                None
            }
        }
    }

    /// Records a state, and marks the unit if the last state is another one.
    pub(super) fn set_state(&mut self, path: &str, state: UnitState) {
        let Some(unit) = self.units.get_mut(path) else { return };
        if unit.state.as_ref() != Some(&state) {
            unit.state = Some(state);
            self.changed.extend(unit.names.iter().cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/org/freedesktop/systemd1/unit/a_2eservice";

    fn state(active: &str, sub: &str) -> UnitSignal {
        UnitSignal::State { path: PATH.to_owned(), active: Some(active.to_owned()), sub: Some(sub.to_owned()) }
    }

    fn changes(table: &mut UnitTable, signal: UnitSignal) -> Vec<String> {
        table.apply(signal);
        std::mem::take(&mut table.changed).into_iter().collect()
    }

    #[test]
    fn only_another_state_is_a_change() {
        let mut table = UnitTable::default();
        table.watch("a.service");
        table.watch("b.service");
        let loaded = || UnitSignal::Loaded { path: PATH.to_owned() };
        let unloaded = || UnitSignal::Unloaded { path: PATH.to_owned() };
        for (signal, is_change) in [
            (state("inactive", "dead"), true),
            (state("inactive", "dead"), false),
            // A look at an inactive unit loads and unloads it.
            (loaded(), false),
            (unloaded(), false),
            (state("activating", "start"), true),
            (UnitSignal::State { path: PATH.to_owned(), active: Some("active".to_owned()), sub: None }, true),
            (state("active", "start"), false),
            (unloaded(), true),
            (UnitSignal::Property { path: PATH.to_owned() }, true),
            (UnitSignal::State { path: "/other".to_owned(), active: None, sub: None }, false),
        ] {
            let text = format!("{signal:?}");
            let expected = if is_change { vec!["a.service".to_owned()] } else { vec![] };
            assert_eq!(changes(&mut table, signal), expected, "{text}");
        }
        assert_eq!(table.apply(loaded()), Some(PATH.to_owned()), "a loaded unit may have another state");
        assert_eq!(changes(&mut table, UnitSignal::Everything), ["a.service", "b.service"]);
    }

    #[test]
    fn an_alias_follows_its_unit() {
        let mut table = UnitTable::default();
        table.watch("alias.service");
        table.watch("a.service");
        assert_eq!(changes(&mut table, state("active", "running")), ["a.service"]);
        assert!(table.assign("alias.service", PATH.to_owned()));
        assert!(!table.assign("alias.service", PATH.to_owned()));
        assert_eq!(changes(&mut table, state("failed", "failed")), ["a.service", "alias.service"]);
        table.unwatch("a.service");
        assert_eq!(changes(&mut table, state("active", "running")), ["alias.service"]);
        table.unwatch("alias.service");
        assert!(table.units.is_empty() && table.paths.is_empty() && table.unresolved.is_empty());
        assert_eq!(table.apply(UnitSignal::Loaded { path: PATH.to_owned() }), None);
    }
}
