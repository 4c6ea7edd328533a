//! The settings in force: read by every part when it needs them, exchanged as a whole by a reload.
//!
//! Whoever reads takes a fresh [`Settings`] and keeps it for one piece of work only, so that a change reaches
//! everything at its next step and nothing sees half of one.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::config::Settings;

/// The settings in force. Clones share them.
#[derive(Debug, Clone)]
pub(in crate::agent) struct SettingsHandle(Arc<watch::Sender<Arc<Settings>>>);

impl SettingsHandle {
    pub(in crate::agent) fn new(settings: Settings) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(settings))))
    }

    /// The settings as they are now.
    pub(in crate::agent) fn now(&self) -> Arc<Settings> {
        Arc::clone(&self.0.borrow())
    }

    /// Wakes whoever must act when they change.
    pub(in crate::agent) fn watch(&self) -> watch::Receiver<Arc<Settings>> {
        self.0.subscribe()
    }

    /// Puts others in force, except for what only a restart changes: those keys stay as they are, and are named.
    pub(in crate::agent) fn replace(&self, wanted: Settings) -> Vec<&'static str> {
        let now = self.now();
        let differing = restart_only(&now, &wanted);
        let settings = Settings {
            fleet: now.fleet.clone(),
            node: now.node.clone(),
            hostname: now.hostname.clone(),
            state_dir: now.state_dir.clone(),
            nats: now.nats.clone(),
            trust: now.trust.clone(),
            ..wanted
        };
        if settings != *now {
            self.0.send_replace(Arc::new(settings));
        }
        differing
    }

    /// The directories of facts, as they are now.
    pub(in crate::agent) fn facts_dirs(&self) -> Vec<PathBuf> {
        self.now().facts_dirs.clone()
    }
}

/// The keys that differ and can't change while the agent runs: who it is, where its state is, to whom it is connected,
/// and where trust begins, which is looked at when it starts.
fn restart_only(now: &Settings, wanted: &Settings) -> Vec<&'static str> {
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
    use crate::config::Surroundings;

    fn read(text: &str) -> Settings {
        let around = Surroundings { hostname: "web1".into(), state_dir: "/s".into(), directory: "/etc".into() };
        let rest = "[nats]\nservers = [\"nats://h\"]\n[trust]\nroot = [\"ed25519:AAAA\"]\n";
        Settings::read(&format!("{text}\n{rest}"), "agent.toml", &around).unwrap()
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
        // Only the file has changed since: nobody is woken.
        let same = read("fleet = \"other\"\nqueue = 3\ngroups = [\"a\"]");
        assert_eq!(live.replace(same), ["fleet"]);
        assert!(!watcher.has_changed().unwrap());
    }
}
