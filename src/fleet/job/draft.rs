//! Drafts of commands, and the next position in a channel.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::model::{HumanDuration, NodeId};
use crate::wire::command::{Channel, MAX_ASSIGNMENT_LIFETIME, MAX_LIFETIME};
use crate::wire::{Action, Command, CommandOptions, NodeState, Target};

/// A command before it has an id and times.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandDraft {
    /// The action.
    pub action: Action,
    /// The nodes.
    pub to: Target,
    /// The options.
    pub options: CommandOptions,
    /// Its position in a channel.
    pub channel: Option<Channel>,
    /// The reason, for the audit trail.
    pub reason: Option<String>,
    /// Time for which nodes may accept it: at most [`MAX_LIFETIME`], or [`MAX_ASSIGNMENT_LIFETIME`] for assignments.
    pub lifetime: HumanDuration,
}

impl CommandDraft {
    /// Builds the command of this draft.
    pub fn command(self, fleet: &str, id: Uuid, now: Timestamp) -> Command {
        let longest = if self.action.is_desired_state() { MAX_ASSIGNMENT_LIFETIME } else { MAX_LIFETIME };
        let lifetime = SignedDuration::try_from(self.lifetime.min(longest).as_std()).unwrap_or(SignedDuration::ZERO);
        Command {
            id,
            fleet: fleet.to_owned(),
            to: self.to,
            issued: now,
            not_before: None,
            expires: now.saturating_add(lifetime).unwrap_or(now),
            channel: self.channel,
            action: self.action,
            options: self.options,
            reason: self.reason,
        }
    }
}

/// Largest step of the epoch and of the serial that states of nodes can cause in one command. The limit keeps a compromised
/// node from using up the serials of a channel.
const MAX_STEP: (u64, u64) = (16, 1 << 20);

/// Returns the next position in a channel: one serial after the latest known position.
///
/// The latest position is `published`, whose signature was checked, or the position of a node. A node can report any
/// position: only positions within `MAX_STEP` of the published position count.
pub fn next_in_channel(name: &str, states: &BTreeMap<NodeId, NodeState>, published: Option<&Channel>) -> Channel {
    let (epoch, serial) = published.map_or((1, 0), |channel| (channel.epoch, channel.serial));
    let is_near = |at: &(u64, u64)| {
        let base = if at.0 == epoch { serial } else { 0 };
        at.0 <= epoch.saturating_add(MAX_STEP.0) && at.1 <= base.saturating_add(MAX_STEP.1)
    };
    let reached = states.values().filter_map(|state| state.channels.get(name)).map(|at| (at.epoch, at.serial));
    let (epoch, serial) = reached.filter(is_near).fold((epoch, serial), Ord::max);
    Channel { name: name.to_owned(), epoch, serial: serial.saturating_add(1) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::command::Ensure;

    pub(in crate::fleet::job) fn draft(to: Target) -> CommandDraft {
        let ensure = Ensure { kind: "file".into(), properties: serde_json::Map::new() };
        let lifetime = HumanDuration::seconds(3600);
        CommandDraft {
            action: Action::Ensure(ensure),
            to,
            options: CommandOptions::default(),
            channel: None,
            reason: None,
            lifetime,
        }
    }

    #[test]
    fn a_command_never_lives_longer_than_nodes_accept() {
        let command = draft(Target::all()).command("f", Uuid::nil(), "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(command.expires.to_string(), "2026-01-01T00:15:00Z");
    }

    #[test]
    fn a_channel_goes_on_after_the_latest_of_all_nodes() {
        let at = |node: &str, epoch, serial| {
            let mut state = crate::fleet::targeting::states::tests::state(node, &[], "2026-01-01T00:00:00Z", true);
            state.channels.insert("base".into(), crate::wire::report::ChannelPosition { epoch, serial, digest: String::new() });
            (state.node.clone(), state)
        };
        let states = BTreeMap::from([at("a", 1, 9), at("b", 2, 3)]);
        let next = |name| next_in_channel(name, &states, None);
        let published = Channel { name: "base".into(), epoch: 2, serial: 7 };
        assert_eq!(next_in_channel("base", &states, Some(&published)).serial, 8);
        assert_eq!((next("base").epoch, next("base").serial), (2, 4));
        assert_eq!((next("new").epoch, next("new").serial), (1, 1));
        // A node that invents a position moves the serial by one step at most.
        for (epoch, serial) in [(u64::MAX, 1), (2, u64::MAX), (2, 8 + (1 << 20)), (18, u64::MAX)] {
            let states = BTreeMap::from([at("a", epoch, serial)]);
            let next = next_in_channel("base", &states, Some(&published));
            assert_eq!((next.epoch, next.serial), (2, 8), "{epoch}.{serial}");
        }
        assert_eq!(next_in_channel("base", &BTreeMap::from([at("a", 3, 1)]), Some(&published)).epoch, 3);
    }
}
