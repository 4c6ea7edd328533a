//! The format of messages in the log: a line that describes the payload, the payload, and a line end.

use std::io::{BufRead, Read};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::wire::digest;
use crate::wire::receipt::{MAX_RECEIPT, Receipt};

use super::super::StoreError;
use super::message::{ChainHead, OutboxMessage, Priority};

/// The longest first line of a message: subject, id, receipt and numbers.
pub(super) const MAX_HEADER: u64 = 4096 + MAX_RECEIPT as u64;

/// The line before a payload in the log.
#[derive(Serialize, Deserialize)]
struct Header {
    subject: String,
    msg_id: String,
    class: Priority,
    size: usize,
    sum: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
}

/// A message in the log.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) message: OutboxMessage,
    /// The time of the push.
    pub(super) at: Option<Timestamp>,
    /// The text of the receipt.
    pub(super) receipt: Option<String>,
}

/// Returns the position of a receipt in the chain.
pub(super) fn chain_position(receipt: &str) -> Option<ChainHead> {
    let receipt = Receipt::parse(receipt).ok()?;
    Some(ChainHead { seq: receipt.read().ok()?.seq?, digest: Some(receipt.digest()) })
}

pub(super) fn encode(message: &OutboxMessage, at: Timestamp, receipt: Option<String>) -> Result<Vec<u8>, StoreError> {
    let header = Header {
        subject: message.subject.clone(),
        msg_id: message.msg_id.clone(),
        class: message.priority,
        size: message.payload.len(),
        sum: checksum(&message.payload),
        at: Some(at),
        receipt,
    };
    let mut bytes = serde_json::to_vec(&header)?;
    if bytes.len() as u64 >= MAX_HEADER {
        return Err(StoreError::TooLarge { size: bytes.len() as u64, limit: MAX_HEADER });
    }
    bytes.push(b'\n');
    bytes.extend_from_slice(&message.payload);
    bytes.push(b'\n');
    Ok(bytes)
}

/// Returns a checksum against torn writes, not against attackers.
fn checksum(payload: &[u8]) -> String {
    digest(payload).chars().take(16).collect()
}

/// Reads the next message and its length in the log; `None` at the end, or at a torn message.
pub(super) fn read(reader: &mut impl BufRead) -> std::io::Result<Option<(Frame, usize)>> {
    let mut line = Vec::new();
    reader.by_ref().take(MAX_HEADER).read_until(b'\n', &mut line)?;
    let Ok(header) = serde_json::from_slice::<Header>(&line) else { return Ok(None) };
    if line.last() != Some(&b'\n') {
        return Ok(None);
    }
    let mut payload = Vec::new();
    reader.by_ref().take((header.size as u64).saturating_add(1)).read_to_end(&mut payload)?;
    let ended = payload.pop() == Some(b'\n');
    if !ended || payload.len() != header.size || checksum(&payload) != header.sum {
        return Ok(None);
    }
    let len = line.len() + payload.len() + 1;
    let message =
        OutboxMessage { subject: header.subject, msg_id: header.msg_id, payload, priority: header.class, command: None };
    Ok(Some((Frame { message, at: header.at, receipt: header.receipt }, len)))
}
