//! The reasons for which an archive is refused.

use std::io::{self, ErrorKind};

use crate::diag::error_chain;

use super::format::Format;

/// Any error of a sink.
pub type SinkCause = Box<dyn std::error::Error + Send + Sync>;

/// The reason for which an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The bytes are no archive of this format, or a truncated one.
    #[error("it is not a whole {format} archive")]
    Broken {
        /// The format.
        format: &'static str,
        /// The cause.
        #[source]
        cause: SinkCause,
    },
    /// A refused entry.
    #[error("its entry \"{}\" is refused: {why}", name.escape_debug())]
    Entry {
        /// The entry's name.
        name: String,
        /// The reason.
        why: String,
    },
    /// A limit was exceeded.
    #[error("it is too large: {what} is more than {limit}")]
    TooLarge {
        /// The limit that was exceeded.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The sink failed.
    #[error("its entry \"{}\" could not be unpacked", name.escape_debug())]
    Sink {
        /// The entry's name.
        name: String,
        /// The cause.
        #[source]
        cause: SinkCause,
    },
}

/// Converts an error of a decoder into an error of the archive.
pub(super) fn broken(format: Format, error: &io::Error, limit: u64) -> UnpackError {
    if error.kind() == ErrorKind::FileTooLarge {
        return UnpackError::TooLarge { what: "its size unpacked, in bytes,", limit };
    }
    UnpackError::Broken { format: format.as_str(), cause: error_chain(error).into() }
}
