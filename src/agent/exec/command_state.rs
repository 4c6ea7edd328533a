//! The state machine of a command, from the queue of the executor to its one end.
//!
//! Before it: the intake verified the command and recorded it in the ledger. A command in waves waited in the rollout queue.
//! After it: the result is in the outbox and in the ledger, and a health gate may follow.

use crate::wire::CommandResult;

/// The event that a command waits for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CommandState {
    /// Waits in the queue.
    Queued,
    /// Waits for the second verification: trust, limits and time may have changed while it was queued.
    Rechecking,
    /// Waits until the ledger has the start of the run. After a crash a started command counts as interrupted.
    RecordingStart,
    /// Waits for the end of its run.
    Running,
    /// Waits until its result is in the outbox and in the ledger.
    Persisting,
    /// Ended. A command ends exactly once.
    Ended,
}

/// An event in the life of a command.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CommandEvent {
    /// The command is the next in the queue.
    TurnCame,
    /// The second verification allows the command.
    Rechecked,
    /// The ledger has the start.
    StartRecorded,
    /// The command ended: by its run, or because it must not run.
    Ended(Box<CommandResult>),
    /// The result is persisted.
    Persisted,
}

/// The action that a step asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CommandAction {
    /// Verify the command again.
    Recheck,
    /// Record the start in the ledger.
    RecordStart,
    /// Run the command.
    Run,
    /// Persist the result and publish it.
    Persist(Box<CommandResult>),
    /// Nothing.
    Nothing,
}

impl CommandState {
    /// Returns the next state and the action that it waits for. An event that the state does not wait for changes nothing.
    pub(super) fn step(self, event: CommandEvent) -> (Self, CommandAction) {
        match (self, event) {
            (Self::Queued, CommandEvent::TurnCame) => (Self::Rechecking, CommandAction::Recheck),
            (Self::Rechecking, CommandEvent::Rechecked) => (Self::RecordingStart, CommandAction::RecordStart),
            (Self::RecordingStart, CommandEvent::StartRecorded) => (Self::Running, CommandAction::Run),
            (Self::Queued | Self::Rechecking | Self::RecordingStart | Self::Running, CommandEvent::Ended(result)) => {
                (Self::Persisting, CommandAction::Persist(result))
            }
            (Self::Persisting, CommandEvent::Persisted) => (Self::Ended, CommandAction::Nothing),
            (state, _) => (state, CommandAction::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> Box<CommandResult> {
        let result = serde_json::json!({
            "protocol": "p", "digest": "d", "node": "web1", "at": "2026-11-20T10:00:00Z", "outcome": "stable",
        });
        Box::new(serde_json::from_value(result).unwrap())
    }

    /// Every pair of a state and an event: the next state, or none where the event changes nothing.
    #[test]
    fn every_transition() {
        use CommandState::{Ended, Persisting, Queued, Rechecking, RecordingStart, Running};
        let events = || {
            [
                CommandEvent::TurnCame,
                CommandEvent::Rechecked,
                CommandEvent::StartRecorded,
                CommandEvent::Ended(result()),
                CommandEvent::Persisted,
            ]
        };
        let end = || Some((Persisting, CommandAction::Persist(result())));
        let table = [
            (Queued, [Some((Rechecking, CommandAction::Recheck)), None, None, end(), None]),
            (Rechecking, [None, Some((RecordingStart, CommandAction::RecordStart)), None, end(), None]),
            (RecordingStart, [None, None, Some((Running, CommandAction::Run)), end(), None]),
            (Running, [None, None, None, end(), None]),
            (Persisting, [None, None, None, None, Some((Ended, CommandAction::Nothing))]),
            (Ended, [None, None, None, None, None]),
        ];
        for (state, row) in table {
            for (event, wanted) in events().into_iter().zip(row) {
                let wanted = wanted.unwrap_or((state.clone(), CommandAction::Nothing));
                assert_eq!(state.clone().step(event.clone()), wanted, "{state:?} {event:?}");
            }
        }
    }
}
