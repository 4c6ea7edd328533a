//! Storage quota of an account, and the share of a stream. The server reserves the whole size limit of a stream when the
//! stream is created.

use std::error::Error;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};

use super::super::TransportError;
use super::Bus;

/// The quota of an account on a server, in bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageQuota {
    /// The stored bytes.
    pub stored: u64,
    /// The bytes reserved for streams with a bound, stored or not.
    pub reserved: u64,
    /// The limit of the account. None when only the server has a limit (`max_file_store`), which the server does not report.
    pub limit: Option<u64>,
}

/// The limits of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// The longest age of a message; none keeps messages for ever.
    pub max_age: Option<Duration>,
    /// The largest size in bytes; no limit when none.
    pub max_bytes: Option<u64>,
    /// The number of servers with a copy.
    pub replicas: usize,
}

impl Bus {
    /// Returns the quota of the account of this connection.
    ///
    /// # Errors
    /// When JetStream does not report it.
    pub async fn storage_quota(&self) -> Result<StorageQuota, TransportError> {
        let account = self.jetstream.query_account().await;
        let account =
            account.map_err(|error| TransportError::failed("could not read the storage quota of the account", error))?;
        // An account with tiers has its limits there, one tier for each number of replicas.
        let tier = account.tiers.get("R1").or_else(|| account.tiers.values().next());
        let limits = tier.map_or(account.limits, |tier| tier.limits);
        Ok(StorageQuota {
            stored: account.storage,
            reserved: account.reserved_storage,
            limit: limits.max_storage.and_then(|bytes| u64::try_from(bytes).ok()),
        })
    }

    /// Returns the limits of a stream; none when there is no such stream.
    ///
    /// # Errors
    /// When JetStream is not available.
    pub async fn stream_limits(&self, stream: &str) -> Result<Option<StreamLimits>, TransportError> {
        match self.stream(stream).await {
            Ok(stream) => {
                let config = &stream.cached_info().config;
                Ok(Some(StreamLimits {
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

/// Returns the error of a refused stream. Lack of room is in the refusal itself, or in its cause.
pub(super) fn stream_refusal_error(doing: String, error: impl Error + Send + Sync + 'static) -> TransportError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(one) = cause {
        if one.downcast_ref::<CreateStreamError>().is_some_and(|error| is_out_of_storage(&error.kind())) {
            return TransportError::NoRoom { doing, source: error.into() };
        }
        cause = one.source();
    }
    TransportError::failed(doing, error)
}

fn is_out_of_storage(kind: &CreateStreamErrorKind) -> bool {
    let CreateStreamErrorKind::JetStream(error) = kind else { return false };
    [
        ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
        ErrorCode::INSUFFICIENT_RESOURCES,
        ErrorCode::STREAM_MAX_STREAM_BYTES_EXCEEDED,
    ]
    .contains(&error.error_code())
}
