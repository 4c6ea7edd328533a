//! How much the server lets an account store, and what a stream that is there may take of it. A stream with a bound has all of
//! it set aside when it is made.

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};

use super::super::TransportError;
use super::Bus;

/// What an account has on a server, in bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What is stored.
    pub stored: u64,
    /// What is set aside for streams with a bound, stored or not.
    pub reserved: u64,
    /// The most that the account may have; none when only the server has a limit (`max_file_store`), which it does not tell.
    pub limit: Option<u64>,
}

/// What a stream keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// For how long; for ever when none.
    pub max_age: Option<Duration>,
    /// How many bytes; no bound when none.
    pub max_bytes: Option<u64>,
    /// On how many servers.
    pub replicas: usize,
}

impl Bus {
    /// What the account of this connection has.
    ///
    /// # Errors
    /// When JetStream does not say.
    pub async fn room(&self) -> Result<Room, TransportError> {
        let account = self.jetstream.query_account().await;
        let account = account.map_err(|error| TransportError::failed("could not ask what the account may store", error))?;
        // An account with tiers has its limits there, one for each number of replicas.
        let tier = account.tiers.get("R1").or_else(|| account.tiers.values().next());
        let limits = tier.map_or(account.limits, |tier| tier.limits);
        Ok(Room {
            stored: account.storage,
            reserved: account.reserved_storage,
            limit: limits.max_storage.and_then(|bytes| u64::try_from(bytes).ok()),
        })
    }

    /// What a stream keeps; none when there is no such stream.
    ///
    /// # Errors
    /// When JetStream is not available.
    pub async fn kept(&self, stream: &str) -> Result<Option<Kept>, TransportError> {
        match self.stream(stream).await {
            Ok(stream) => {
                let config = &stream.cached_info().config;
                Ok(Some(Kept {
                    max_age: Some(config.max_age).filter(|age| !age.is_zero()),
                    max_bytes: u64::try_from(config.max_bytes).ok(),
                    replicas: config.num_replicas,
                }))
            }
            Err(TransportError::NoStream(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A stream that was not made or changed; whether for want of room is in what it was refused with, or behind that.
pub(super) fn refused(doing: String, error: impl Error + Send + Sync + 'static) -> TransportError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(one) = cause {
        if one.downcast_ref::<CreateStreamError>().is_some_and(|error| is_want_of_room(&error.kind())) {
            return TransportError::NoRoom { doing, source: error.into() };
        }
        cause = one.source();
    }
    TransportError::failed(doing, error)
}

fn is_want_of_room(kind: &CreateStreamErrorKind) -> bool {
    let CreateStreamErrorKind::JetStream(error) = kind else { return false };
    [
        ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
        ErrorCode::INSUFFICIENT_RESOURCES,
        ErrorCode::STREAM_MAX_STREAM_BYTES_EXCEEDED,
    ]
    .contains(&error.error_code())
}
