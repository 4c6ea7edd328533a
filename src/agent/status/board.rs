//! The board: how the agent stands, for whoever shows it. Written by every part, read by the heartbeat.

use std::collections::BTreeMap;

use tokio::sync::watch;
use uuid::Uuid;

use crate::model::ApplyState;
use crate::wire::report::{AssignmentStatus, ChannelPosition, FailingResource};

/// What can be wrong with the agent itself; each stands on the board at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::agent) enum AlarmKind {
    /// The state directory can't be written.
    Disk,
    /// Something of the state was lost.
    State,
    /// Results are not stored by the server.
    Reports,
    /// Events are not stored by the server.
    Events,
    /// That this node failed a rollout is not stored by the server.
    Rollouts,
    /// The connection lost messages.
    Connection,
    /// The trust bundle is over its time, or will soon be.
    Trust,
    /// The next trust bundle can't be had, or not be taken.
    Succession,
    /// The clock is wrong.
    Clock,
    /// The clock and the server's are far apart.
    ServerClock,
    /// Another agent uses the id of this node.
    Identity,
    /// What is assigned is not in force as it should be.
    Channels,
    /// The stream of desired state has something else than is kept to here.
    Divergence,
    /// The server does not let this node listen for commands to it or to its groups.
    Permissions,
    /// The data from outside can't be had.
    Data,
    /// The configuration was read again, and is wrong.
    Config,
    /// The page for monitoring can't be served.
    Http,
    /// The file system of the state directory is nearly full.
    Space,
}

impl AlarmKind {
    /// Its name, for programs: `server_clock`.
    pub(in crate::agent) fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }
}

/// How the agent stands.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::agent) struct AgentSnapshot {
    /// The command that is running.
    pub(in crate::agent) running: Option<Uuid>,
    /// How many wait behind it.
    pub(in crate::agent) queued: u64,
    /// The last run.
    pub(in crate::agent) last_run: Option<ApplyState>,
    /// The first resources that failed, in the order of the run: by channel, and under "" those of the last command.
    pub(in crate::agent) failing: BTreeMap<String, Vec<FailingResource>>,
    /// The version of the trust bundle in force.
    pub(in crate::agent) trust: u64,
    /// The latest serial of each channel.
    pub(in crate::agent) channels: BTreeMap<String, ChannelPosition>,
    /// How the node stands to what is assigned to it, in the order in which it is applied.
    pub(in crate::agent) assignments: Vec<AssignmentStatus>,
    /// The keys of the configuration that wait for a restart.
    pub(in crate::agent) pending: Vec<String>,
    /// What is wrong.
    pub(in crate::agent) alarms: BTreeMap<AlarmKind, String>,
}

impl AgentSnapshot {
    /// True when nothing but what runs and waits is another than in `other`.
    pub(in crate::agent) fn differs_in_work_alone(&self, other: &Self) -> bool {
        Self { running: other.running, queued: other.queued, ..self.clone() } == *other
    }
}

/// Shared by reference; every change wakes those who watch.
#[derive(Debug)]
pub(in crate::agent) struct StatusBoard(watch::Sender<AgentSnapshot>);

impl StatusBoard {
    pub(in crate::agent) fn new(standing: AgentSnapshot) -> Self {
        Self(watch::Sender::new(standing))
    }

    pub(in crate::agent) fn watch(&self) -> watch::Receiver<AgentSnapshot> {
        self.0.subscribe()
    }

    pub(in crate::agent) fn read<T>(&self, reader: impl FnOnce(&AgentSnapshot) -> T) -> T {
        reader(&self.0.borrow())
    }

    /// Changes the standing; nobody is woken when it stays the same.
    pub(in crate::agent) fn change(&self, change: impl FnOnce(&mut AgentSnapshot)) {
        self.0.send_if_modified(|standing| {
            let before = standing.clone();
            change(standing);
            *standing != before
        });
    }

    /// Something is wrong: logged when it is news.
    pub(in crate::agent) fn raise(&self, topic: AlarmKind, what: impl Into<String>) {
        let what = what.into();
        if self.read(|standing| standing.alarms.get(&topic) != Some(&what)) {
            tracing::error!(trouble = ?topic, "{what}");
            self.change(|standing| {
                standing.alarms.insert(topic, what);
            });
        }
    }

    /// Something is wrong, or it is not.
    pub(in crate::agent) fn set(&self, topic: AlarmKind, what: Option<String>) {
        match what {
            Some(what) => self.raise(topic, what),
            None => self.clear(topic),
        }
    }

    /// It is right again.
    pub(in crate::agent) fn clear(&self, topic: AlarmKind) {
        if self.read(|standing| standing.alarms.contains_key(&topic)) {
            tracing::info!(trouble = ?topic, "over");
            self.change(|standing| {
                standing.alarms.remove(&topic);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_told_from_everything_else() {
        let at_rest = AgentSnapshot::default();
        let works = AgentSnapshot { running: Some(Uuid::nil()), queued: 2, ..AgentSnapshot::default() };
        let other = AgentSnapshot { trust: 1, ..works.clone() };
        assert!(works.differs_in_work_alone(&at_rest) && !other.differs_in_work_alone(&at_rest));
    }

    #[test]
    fn topics_have_names() {
        assert_eq!([AlarmKind::Disk.name(), AlarmKind::ServerClock.name()], ["disk", "server_clock"]);
    }

    #[test]
    fn only_changes_wake() {
        let board = StatusBoard::new(AgentSnapshot::default());
        let mut watcher = board.watch();
        board.clear(AlarmKind::Disk);
        board.change(|standing| standing.queued = 0);
        assert!(!watcher.has_changed().unwrap());
        board.raise(AlarmKind::Disk, "full");
        assert!(watcher.has_changed().unwrap());
        watcher.mark_unchanged();
        board.raise(AlarmKind::Disk, "full");
        assert!(!watcher.has_changed().unwrap());
        board.clear(AlarmKind::Disk);
        assert!(watcher.has_changed().unwrap());
        assert!(board.read(|standing| standing.alarms.is_empty()));
    }
}
