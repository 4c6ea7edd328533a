//! The current settings: every part reads them when it needs them, and a reload replaces them as a whole.
//!
//! A reader takes the current [`AgentSettings`] for each piece of work. A change counts from the next piece of work on, and no
//! reader sees half of a change.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::config::AgentSettings;
use crate::model::lock;
use crate::resource::Types;

/// The current settings, and the resource types that follow from them. Clones share both.
#[derive(Clone)]
pub(in crate::agent) struct SettingsHandle {
    settings: Arc<watch::Sender<Arc<AgentSettings>>>,
    types: Arc<Mutex<Types>>,
}

impl SettingsHandle {
    pub(in crate::agent) fn new(settings: AgentSettings) -> Self {
        Self { settings: Arc::new(watch::Sender::new(Arc::new(settings))), types: Arc::default() }
    }

    /// Returns the known resource types.
    pub(in crate::agent) fn types(&self) -> Types {
        lock(&self.types).clone()
    }

    /// Replaces the known resource types.
    pub(in crate::agent) fn set_types(&self, types: Types) {
        *lock(&self.types) = types;
    }

    /// Returns the current settings.
    pub(in crate::agent) fn now(&self) -> Arc<AgentSettings> {
        Arc::clone(&self.settings.borrow())
    }

    /// Returns a receiver that changes with the settings.
    pub(in crate::agent) fn watch(&self) -> watch::Receiver<Arc<AgentSettings>> {
        self.settings.subscribe()
    }

    /// Replaces the settings, except for keys that need a restart. Returns the changed ones of those keys.
    pub(in crate::agent) fn replace(&self, wanted: AgentSettings) -> Vec<&'static str> {
        let now = self.now();
        let differing = restart_only(&now, &wanted);
        let settings = AgentSettings {
            fleet: now.fleet.clone(),
            node: now.node.clone(),
            hostname: now.hostname.clone(),
            state_dir: now.state_dir.clone(),
            nats: now.nats.clone(),
            trust: now.trust.clone(),
            ..wanted
        };
        if settings != *now {
            self.settings.send_replace(Arc::new(settings));
        }
        differing
    }

    /// Returns the directories of facts.
    pub(in crate::agent) fn facts_dirs(&self) -> Vec<PathBuf> {
        self.now().facts_dirs.clone()
    }
}

/// Returns the changed keys that only a restart can apply: identity, state directory, connection, trust anchor. The
/// agent reads the trust anchor only when it starts.
fn restart_only(now: &AgentSettings, wanted: &AgentSettings) -> Vec<&'static str> {
    [
        ("fleet", now.fleet != wanted.fleet),
        ("node", now.node != wanted.node),
        ("state_dir", now.state_dir != wanted.state_dir),
        ("nats", now.nats != wanted.nats),
        ("trust", now.trust != wanted.trust),
    ]
    .into_iter()
    .filter_map(|(key, differs)| differs.then_some(key))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostDefaults;

    fn read(text: &str) -> AgentSettings {
        let around = HostDefaults { hostname: "web1".into(), state_dir: "/s".into(), directory: "/etc".into() };
        let rest = "[nats]\nservers = [\"nats://h\"]\n[trust]\nroot = [\"ed25519:AAAA\"]\n";
        AgentSettings::read(&format!("{text}\n{rest}"), "agent.toml", &around).unwrap()
    }

    #[test]
    fn what_can_change_does_and_what_can_not_is_named() {
        let live = SettingsHandle::new(read("fleet = \"prod\""));
        let mut watcher = live.watch();
        assert!(live.replace(read("fleet = \"prod\"")).is_empty() && !watcher.has_changed().unwrap());
        let changed = read("fleet = \"test\"\nnode = \"db1\"\nqueue = 3\ngroups = [\"a\"]\nstate_dir = \"/other\"");
        assert_eq!(live.replace(changed), ["fleet", "node", "state_dir"]);
        assert!(watcher.has_changed().unwrap());
        watcher.mark_unchanged();
        let now = live.now();
        assert_eq!((now.fleet.as_str(), now.node.as_str(), now.queue), ("prod", "web1", 3));
        assert_eq!((now.groups.as_slice(), now.state_dir.to_str()), (&["a".to_owned()][..], Some("/s")));
        // Only the file has changed since: no watcher wakes.
        let same = read("fleet = \"other\"\nqueue = 3\ngroups = [\"a\"]");
        assert_eq!(live.replace(same), ["fleet"]);
        assert!(!watcher.has_changed().unwrap());
    }
}
