//! Whose word counts: what a host makes of what others say on the bus, and how it signs what it says itself.

use crate::transport::Message;
use crate::trust::decide::data;

/// Decides what of the data on the bus is signed by somebody this host knows.
pub trait Door: Send + Sync {
    /// Opens a value that was read from a bucket; also gives whether it is signed.
    ///
    /// # Errors
    /// When it is meant as signed and does not count, in words.
    fn value(&self, bucket: &str, key: &str, bytes: Vec<u8>) -> Result<(Vec<u8>, bool), String>;

    /// Those of these registrations that count; also gives whether all of them are signed.
    ///
    /// # Errors
    /// When it is not known whose word counts, in words.
    fn registrations(&self, messages: Vec<Message>) -> Result<(Vec<Message>, bool), String>;

    /// The receipt of a message that this host publishes, when it has a key to sign with.
    fn receipt(&self, subject: &str, payload: &[u8]) -> Option<String>;
}

/// The door of a host that knows nobody: everything is what the server says, and nothing is signed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unverified;

impl Door for Unverified {
    fn value(&self, bucket: &str, key: &str, bytes: Vec<u8>) -> Result<(Vec<u8>, bool), String> {
        let value = data::open_unverified(bytes).map_err(|why| format!("kv://{bucket}/{key}: {why}"))?;
        Ok((value, false))
    }

    fn registrations(&self, messages: Vec<Message>) -> Result<(Vec<Message>, bool), String> {
        Ok((messages, false))
    }

    fn receipt(&self, _: &str, _: &[u8]) -> Option<String> {
        None
    }
}
