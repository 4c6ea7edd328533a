//! Messages of the outbox, and the end of the chain of their receipts.

use serde::{Deserialize, Serialize};

/// The order in which messages are dropped for lack of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// An event: dropped first, and dropped when too old.
    Event,
    /// A result for a waiting client, or a summary: dropped last.
    Result,
}

/// A message to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxMessage {
    /// The subject.
    pub subject: String,
    /// The id by which the server drops a duplicate.
    pub msg_id: String,
    /// Its bytes.
    pub payload: Vec<u8>,
    /// The class of the message.
    pub priority: Priority,
    /// SHA-256 of the command that the message answers: part of the receipt, and not stored beside it.
    pub command: Option<String>,
}

/// The end of the chain of receipts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainHead {
    /// The number of links.
    pub seq: u64,
    /// SHA-256 of the last statement; none when there is none yet.
    pub digest: Option<String>,
}
