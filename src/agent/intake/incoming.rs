//! The input and the answers of the intake.

use tokio::sync::oneshot;

use crate::transport::Message;
use crate::wire::{Ack, CommandResult};

/// A command that came by file, through the socket of the agent.
pub(in crate::agent) struct LocalCommand {
    /// The envelope.
    pub(in crate::agent) envelope: Vec<u8>,
    /// The receiver of the answer.
    pub(in crate::agent) answer: oneshot::Sender<Answer>,
}

/// The answer to a command.
pub(in crate::agent) enum Answer {
    /// An acknowledgement, for the sender and for the stream.
    Ack(Box<Ack>),
    /// The result of an earlier attempt, which the stream has already.
    Ended(Box<CommandResult>),
    /// A rejection, or a busy node. With the ids of the keys that signed.
    Rejected(Box<CommandResult>, Vec<String>),
    /// None: no sender waits.
    Nothing,
}

/// The input of the intake.
pub(in crate::agent) enum Incoming {
    /// A message of the bus.
    Message(Message),
    /// A command by file.
    Local(LocalCommand),
}
