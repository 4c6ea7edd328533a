//! The status board: the snapshot of the agent with its alarms. Every task writes it, the heartbeat publishes it.

use std::collections::BTreeMap;

use tokio::sync::watch;
use uuid::Uuid;

use crate::diag::error_chain;
use crate::model::ApplyState;
use crate::store::StoreError;
use crate::wire::command::Command;
use crate::wire::report::{AssignmentStatus, ChannelPosition, FailingResource};

/// Most failing resources that a node state names: the first ones, as later failures often follow from them.
pub(in crate::agent) const MAX_FAILING: usize = 5;

/// The kinds of alarms of the agent itself. Each kind has at most one alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::agent) enum AlarmKind {
    /// The state directory cannot be written.
    Disk,
    /// A part of the state was lost.
    State,
    /// The server does not store results.
    Reports,
    /// The server does not store events.
    Events,
    /// The server does not store the failure of this node in a rollout.
    Rollouts,
    /// The connection lost messages.
    Connection,
    /// The trust bundle has expired, or will soon expire.
    Trust,
    /// The next trust bundle cannot be fetched, or is rejected.
    Succession,
    /// The clock is wrong.
    Clock,
    /// The clocks of this host and of the server differ too much.
    ServerClock,
    /// Another agent uses the id of this node.
    Identity,
    /// An assignment is not in force.
    Channels,
    /// A due run of a channel has waited too long for the running command.
    RepairWait,
    /// Drift is not repaired when it happens, or something else causes the same drift again and again.
    Watches,
    /// The stream of desired state differs from the assignments of this node.
    Divergence,
    /// The server denies this node the subscription to its commands, or to those of its groups.
    Permissions,
    /// The data of the host cannot be read.
    Data,
    /// The reloaded configuration is wrong.
    Config,
    /// A program of the directory of types is no resource type.
    Types,
    /// Another program is at the path of the agent, and does not accept the configuration.
    Upgrade,
    /// The page for monitoring cannot be served.
    Http,
    /// The file system of the state directory is nearly full.
    Space,
}

impl AlarmKind {
    /// Returns the name for programs: `server_clock`.
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

/// A snapshot of the agent.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::agent) struct AgentSnapshot {
    /// The command that is running.
    pub(in crate::agent) running: Option<Uuid>,
    /// The command whose result cannot be written to the disk.
    pub(in crate::agent) unwritten: Option<Uuid>,
    /// The number of commands that wait behind it.
    pub(in crate::agent) queued: u64,
    /// The last run.
    pub(in crate::agent) last_run: Option<ApplyState>,
    /// The first resources that failed, in the order of the run: by channel, and under "" those of the last command.
    pub(in crate::agent) failing: BTreeMap<String, Vec<FailingResource>>,
    /// The version of the trust bundle in force.
    pub(in crate::agent) trust: u64,
    /// The latest serial of each channel.
    pub(in crate::agent) channels: BTreeMap<String, ChannelPosition>,
    /// The status of each assignment, in the order in which they are applied.
    pub(in crate::agent) assignments: Vec<AssignmentStatus>,
    /// The keys of the configuration that wait for a restart.
    pub(in crate::agent) pending: Vec<String>,
    /// The alarms.
    pub(in crate::agent) alarms: BTreeMap<AlarmKind, String>,
}

impl AgentSnapshot {
    /// Returns true when only the running and waiting work differs from `other`.
    pub(in crate::agent) fn differs_in_work_alone(&self, other: &Self) -> bool {
        Self { running: other.running, queued: other.queued, ..self.clone() } == *other
    }
}

/// The status board. Every change wakes the watchers.
#[derive(Debug)]
pub(in crate::agent) struct StatusBoard(watch::Sender<AgentSnapshot>);

impl StatusBoard {
    pub(in crate::agent) fn new(snapshot: AgentSnapshot) -> Self {
        Self(watch::Sender::new(snapshot))
    }

    pub(in crate::agent) fn watch(&self) -> watch::Receiver<AgentSnapshot> {
        self.0.subscribe()
    }

    pub(in crate::agent) fn read<T>(&self, reader: impl FnOnce(&AgentSnapshot) -> T) -> T {
        reader(&self.0.borrow())
    }

    /// Changes the snapshot. An equal snapshot wakes no watcher.
    pub(in crate::agent) fn change(&self, change: impl FnOnce(&mut AgentSnapshot)) {
        self.0.send_if_modified(|snapshot| {
            let before = snapshot.clone();
            change(snapshot);
            *snapshot != before
        });
    }

    /// Raises an alarm. A new text is logged.
    pub(in crate::agent) fn raise(&self, kind: AlarmKind, text: impl Into<String>) {
        let text = text.into();
        if self.read(|snapshot| snapshot.alarms.get(&kind) != Some(&text)) {
            tracing::error!(alarm = ?kind, "{text}");
            self.change(|snapshot| {
                snapshot.alarms.insert(kind, text);
            });
        }
    }

    /// Raises an alarm with a text. Clears the alarm without a text.
    pub(in crate::agent) fn set(&self, kind: AlarmKind, text: Option<String>) {
        match text {
            Some(text) => self.raise(kind, text),
            None => self.clear(kind),
        }
    }

    /// Raises the alarm of the disk when durable state cannot be written.
    ///
    /// The heartbeat clears the alarm: a small record may still fit where the next one does not.
    pub(in crate::agent) fn report_storage_error<T>(&self, written: Result<T, StoreError>) -> Option<T> {
        written.inspect_err(|error| self.raise(AlarmKind::Disk, error_chain(error))).ok()
    }

    /// Shows the channel position that an accepted command leads to.
    pub(in crate::agent) fn command_accepted(&self, command: &Command) {
        if let Some((channel, position)) = command.channel_state() {
            self.change(|snapshot| {
                snapshot.channels.insert(channel.to_owned(), position);
            });
        }
    }

    /// Clears an alarm.
    pub(in crate::agent) fn clear(&self, kind: AlarmKind) {
        if self.read(|snapshot| snapshot.alarms.contains_key(&kind)) {
            tracing::info!(alarm = ?kind, "cleared");
            self.change(|snapshot| {
                snapshot.alarms.remove(&kind);
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
    fn alarm_kinds_have_names() {
        assert_eq!([AlarmKind::Disk.name(), AlarmKind::ServerClock.name()], ["disk", "server_clock"]);
    }

    #[test]
    fn only_changes_wake() {
        let board = StatusBoard::new(AgentSnapshot::default());
        let mut watcher = board.watch();
        board.clear(AlarmKind::Disk);
        board.change(|snapshot| snapshot.queued = 0);
        assert!(!watcher.has_changed().unwrap());
        board.raise(AlarmKind::Disk, "full");
        assert!(watcher.has_changed().unwrap());
        watcher.mark_unchanged();
        board.raise(AlarmKind::Disk, "full");
        assert!(!watcher.has_changed().unwrap());
        board.clear(AlarmKind::Disk);
        assert!(watcher.has_changed().unwrap());
        assert!(board.read(|snapshot| snapshot.alarms.is_empty()));
    }
}
