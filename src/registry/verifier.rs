//! Verification of data from the bus, and receipts for messages of this host.

use crate::transport::Message;
use crate::trust::decide::data;

/// Decides which data of the bus carries the signature of a known key.
pub trait BusVerifier: Send + Sync {
    /// Opens a value of a bucket. The second part of the result is true for a signed value.
    ///
    /// # Errors
    /// When a signature is present and not valid: the reason, for people.
    fn value(&self, bucket: &str, key: &str, bytes: Vec<u8>) -> Result<(Vec<u8>, bool), String>;

    /// Returns the valid registrations. The second part of the result is true when all of them are signed.
    ///
    /// # Errors
    /// When the keys of nodes are not known: the reason, for people.
    fn registrations(&self, messages: Vec<Message>) -> Result<(Vec<Message>, bool), String>;

    /// Returns the receipt of a message of this host, when the host has a key.
    fn receipt(&self, subject: &str, payload: &[u8]) -> Option<String>;
}

/// Verification for a host without keys: accepts everything that the server delivers, as unsigned.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unverified;

impl BusVerifier for Unverified {
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
