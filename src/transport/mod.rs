//! The message bus. Connects and reconnects, publishes with or without a stored acknowledgement, subscribes, reads streams,
//! stores bundles.
//!
//! `nats` is the only user of the NATS client, and `nkey.rs` creates user keys of NATS. Neighbours: `wire` has the messages
//! and subjects, `agent` and `fleet` use the bus, `config` fills [`BusSettings`]. This module trusts no message: `trust`
//! verifies signatures.

mod credentials;
pub mod nats;
pub mod nkey;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::Secret;

pub use crate::config::Tls;
pub use nats::{Bus, Inbox, StorageQuota, StreamLimits, StreamReader};

/// The oldest supported server version. Older servers answer JetStream requests in another form.
pub const OLDEST_SERVER: (u64, u64) = (2, 10);

/// Settings of a connection.
#[derive(Debug, Clone)]
pub struct BusSettings {
    /// Server URLs, as `nats://host:4222` or `tls://host:4222`. The client tries them in random order.
    pub servers: Vec<String>,
    /// The name of the connection in the reports of the server.
    pub name: String,
    /// The credentials.
    pub credentials: Option<Credentials>,
    /// Transport security.
    pub tls: Option<Tls>,
    /// True when TLS begins before the server sends its greeting. The server must be configured for it.
    pub tls_first: bool,
    /// First tokens of our reply subjects, `_INBOX` when none. An account can restrict a user to its own reply subjects.
    pub inbox_prefix: Option<String>,
    /// The JetStream domain of the streams; the domain of the server when none.
    pub jetstream_domain: Option<String>,
    /// True for a daemon: `connect` returns at once and retries. False for a command: `connect` fails.
    pub retry_initial: bool,
    /// Time between two pings to a silent server. The connection counts as lost after two pings without an answer. So a
    /// connection that is open only at this end is noticed within three intervals.
    pub ping: Duration,
    /// The number of messages of one subscription that may wait. The client drops further messages and reports it.
    pub backlog: usize,
}

impl Default for BusSettings {
    /// A local server without credentials. The backlog suits a node, with few commands that are answered at once. Clients
    /// that collect from many nodes set [`BusSettings::GATHER_BACKLOG`].
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            name: "ensign".to_owned(),
            credentials: None,
            tls: None,
            tls_first: false,
            inbox_prefix: None,
            jetstream_domain: None,
            retry_initial: false,
            ping: Self::PING,
            backlog: 256,
        }
    }
}

impl BusSettings {
    /// The backlog of a client that collects from a whole fleet: two messages each of 32 768 nodes at once.
    pub const GATHER_BACKLOG: usize = 1 << 16;

    /// The default of [`BusSettings::ping`]: the client notices a lost server within a minute.
    pub const PING: Duration = Duration::from_secs(20);
}

/// Credentials for the server, without effect on the commands that a node accepts.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// A `.creds` file (JWT and seed).
    CredsFile(PathBuf),
    /// The seed of a user nkey, `SU...`.
    NkeySeed(Secret),
    /// User and password.
    UserPassword {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// The JWT of a user and its seed.
    Jwt {
        /// The JWT.
        jwt: Secret,
        /// The seed, `SU...`.
        seed: Secret,
    },
    /// A token.
    Token(Secret),
}

/// Returns the first tokens of JetStream requests: of a domain, or of the domain of the server (NATS ADR-21).
pub fn api_prefix(domain: Option<&str>) -> String {
    domain.map_or_else(|| "$JS.API".to_owned(), |domain| format!("$JS.{domain}.API"))
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The subject of the message.
    pub subject: String,
    /// The subject for the reply.
    pub reply: Option<String>,
    /// The headers, in no particular order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub payload: Vec<u8>,
    /// The time at which the server stored the message; none outside of streams.
    pub time: Option<Timestamp>,
    /// The sequence number in the stream; none outside of streams.
    pub seq: Option<u64>,
    /// True for the server's own reply that the subject of a request has no subscriber.
    pub no_responders: bool,
}

impl Message {
    /// Returns the first header of this name, in upper or lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Header with the id that makes a stored publish idempotent within the stream's window.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Header with the required sequence number of the last message of the subject; 0 for none. The server rejects a message
/// otherwise.
pub const EXPECTED_LAST: &str = "Nats-Expected-Last-Subject-Sequence";
/// Header with the lifetime of a message (NATS ADR-43).
pub const MESSAGE_TTL: &str = "Nats-TTL";

/// The wanted configuration of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamSpec {
    /// The name.
    pub name: String,
    /// The subjects that the stream stores.
    pub subjects: Vec<String>,
    /// The age at which messages are removed; none keeps them for ever.
    pub max_age: Option<Duration>,
    /// The largest size in bytes; no limit when none. The oldest messages go first.
    pub max_bytes: Option<u64>,
    /// Most messages of one subject; no limit when none.
    pub max_per_subject: Option<u64>,
    /// The largest message in bytes; no limit when none.
    pub max_message_size: Option<i32>,
    /// True where clients may read without a consumer.
    pub allow_direct: bool,
    /// The time for which the server remembers a message id.
    pub dedupe_window: Duration,
    /// The number of servers of a cluster with a copy.
    pub replicas: usize,
    /// True where a message may replace all others of its subject, and clients can't delete single messages.
    pub latest_only: bool,
    /// The lifetime of the markers of expired messages; none where messages have no own lifetime (servers before 2.11).
    pub marker_ttl: Option<Duration>,
    /// True where clients can't delete single messages. Servers never take this option back.
    pub deny_delete: bool,
    /// Republishing of stored messages to online subscribers: the subjects of the stream, and the new subjects. Both have one
    /// `>` at the end. At most once, and without a consumer (NATS ADR-28).
    pub republish: Option<(String, String)>,
}

/// An object of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// The key.
    pub key: String,
    /// The size in bytes.
    pub size: u64,
    /// The time at which the server stored it.
    pub stored: Option<Timestamp>,
}

/// The outcome of creating or updating a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ensured {
    /// The object did not exist.
    Created,
    /// The object was as wanted.
    Unchanged,
    /// The object differed: each difference, for people.
    Updated(Vec<String>),
}

/// The start of a [`StreamReader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// The oldest message.
    Beginning,
    /// The next message.
    New,
    /// The first message stored at or after this time.
    Since(Timestamp),
    /// The last message of each subject.
    Latest,
}

/// The state of the connection, for tasks that act after a reconnect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionState {
    /// True while connected.
    pub connected: bool,
    /// The number of connects; grows with every reconnect, and with [`Bus::announce_reconnect`].
    pub connects: u64,
    /// True after [`Bus::drain`] has ended.
    pub closed: bool,
}

/// Errors of the connection since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionCounters {
    /// Connections that were lost.
    pub disconnects: u64,
    /// Times that a subscription was too slow and lost messages.
    pub slow_consumers: u64,
    /// Times that the server did not accept the credentials.
    pub auth_errors: u64,
    /// Times that the server denied a publish or a subscription.
    pub denied: u64,
}

/// The cause of a [`TransportError`], from the client.
pub type TransportCause = Box<dyn Error + Send + Sync>;

/// An error of the bus.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// An invalid server URL.
    #[error("\"{0}\" is not the URL of a NATS server")]
    Url(String, #[source] TransportCause),
    /// A credentials file that is not usable.
    #[error("could not read the NATS credentials {}", .0.display())]
    Credentials(PathBuf, #[source] TransportCause),
    /// No server accepted the connection.
    #[error("could not connect to NATS at {servers}")]
    Connect {
        /// The servers that were tried.
        servers: String,
        /// The cause.
        #[source]
        source: TransportCause,
    },
    /// A server that is too old.
    #[error("the NATS server is version {0}; {major}.{minor} is the oldest that is supported", major = OLDEST_SERVER.0, minor = OLDEST_SERVER.1)]
    TooOld(String),
    /// No connection at the moment.
    #[error("not connected to a NATS server")]
    Disconnected,
    /// The server did not answer in time.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// The user has no permission to publish on this subject.
    #[error("the server does not allow this user to publish on {0}")]
    Denied(String),
    /// The server, or our account on it, has no JetStream.
    #[error("JetStream is not available on the NATS server (behind a leaf node: set `jetstream_domain`)")]
    NoJetStream,
    /// No stream has this name, or takes this subject.
    #[error("there is no stream for {0}")]
    NoStream(String),
    /// The last message of a subject is not the one of [`EXPECTED_LAST`]; nothing was stored.
    #[error("another message was stored on {0} meanwhile")]
    Conflict(String),
    /// An object or message does not exist.
    #[error("{0} does not exist")]
    NotFound(String),
    /// The content is larger than allowed.
    #[error("{what} has {size} bytes; at most {max} are allowed")]
    TooLarge {
        /// The object or message.
        what: String,
        /// Its size.
        size: u64,
        /// The limit.
        max: u64,
    },
    /// The server, or the quota of the account, has no room for a stream.
    #[error("{doing}: the server has no room for it")]
    NoRoom {
        /// The failed action and its object.
        doing: String,
        /// The answer of the server.
        #[source]
        source: TransportCause,
    },
    /// Any other error.
    #[error("{doing}")]
    Failed {
        /// The failed action and its object: `could not publish on X`.
        doing: String,
        /// The cause.
        #[source]
        source: TransportCause,
    },
}

impl TransportError {
    /// True when the streams do not answer, although the server does: without JetStream, or without a majority of its servers.
    pub fn is_jetstream_failure(&self) -> bool {
        matches!(self, Self::NoJetStream | Self::TimedOut(_) | Self::Failed { .. })
    }

    fn failed(doing: impl Into<String>, source: impl Into<TransportCause>) -> Self {
        Self::Failed { doing: doing.into(), source: source.into() }
    }
}

/// True for a supported server version, false for one that can't be parsed.
fn is_supported(version: &str) -> bool {
    is_at_least(version, OLDEST_SERVER)
}

fn is_at_least(version: &str, oldest: (u64, u64)) -> bool {
    let mut numbers = version.split(['.', '-']).map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= oldest,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_before_2_10_are_too_old() {
        for (version, supported) in [
            ("2.9.10", false),
            ("2.10.0", true),
            ("2.10.27-RC.1", true),
            ("2.15.1", true),
            ("3.0.0", true),
            ("", false),
            ("dev", false),
        ] {
            assert_eq!(is_supported(version), supported, "{version}");
        }
        assert!(TransportError::TooOld("2.9.10".into()).to_string().contains("2.10 is the oldest"));
    }

    #[test]
    fn header_names_have_no_case() {
        let message = Message { headers: vec![("Nats-Msg-Id".into(), "1".into())], ..Message::default() };
        assert_eq!(message.header("nats-msg-id"), Some("1"));
        assert_eq!(message.header("other"), None);
    }
}
