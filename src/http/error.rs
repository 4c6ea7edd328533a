//! Errors of requests, and URLs without credentials for messages.

/// A failed request. URLs in it have no credentials.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The policy of this host does not allow the URL.
    #[error("may not fetch {url}: {why}")]
    Denied {
        /// The URL.
        url: String,
        /// The reason.
        why: String,
    },
    /// The server answered with an error status.
    #[error("could not fetch {url}: the server answered {status}")]
    Status {
        /// The URL.
        url: String,
        /// The status.
        status: String,
    },
    /// The server can't continue an interrupted transfer.
    #[error("could not fetch {url}: the server does not have the part that was asked for")]
    RangeUnavailable {
        /// The URL.
        url: String,
    },
    /// The transfer failed.
    #[error("could not fetch {url}")]
    Transport {
        /// The URL.
        url: String,
        /// The cause.
        #[source]
        cause: reqwest::Error,
    },
    /// A header that HTTP does not allow.
    #[error("the header \"{0}\" can't be sent: a name is letters, digits and dashes, a value has no line breaks")]
    Header(String),
    /// The caller has cancelled the transfer.
    #[error("the run was ended before it was complete")]
    Cancelled,
    /// This machine lacks the means for asynchronous waiting.
    #[error("could not start a runtime for the transfer")]
    Runtime(#[source] std::io::Error),
}

/// Returns the URL for messages: without user, password and query, which may hold credentials.
pub fn redact_url(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => plain.to_owned(),
    }
}
