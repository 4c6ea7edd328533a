//! The message bus as Ensign needs it: connect and stay connected, publish with or without a stored
//! acknowledgement, subscribe, read streams, keep bundles.
//!
//! `nats.rs` (and what is below it) is the only user of the NATS client, `nkey.rs` makes the keys that
//! NATS itself asks for. Neighbours: `wire` says what
//! goes over it and on which subject, `agent` and `fleet` use it, `config` fills [`BusSettings`].
//! Nothing here trusts a message: signatures are `trust`'s business.

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

/// The oldest server that is supported. Older ones answer JetStream requests in another form.
pub const OLDEST_SERVER: (u64, u64) = (2, 10);

/// Settings of a connection.
#[derive(Debug, Clone)]
pub struct BusSettings {
    /// Server URLs, as `nats://host:4222` or `tls://host:4222`; they are tried in random order.
    pub servers: Vec<String>,
    /// The name of the connection in the reports of the server.
    pub name: String,
    /// The credentials.
    pub credentials: Option<Credentials>,
    /// Transport security.
    pub tls: Option<Tls>,
    /// True when TLS begins before the server sends its greeting. The server must be configured for it.
    pub tls_first: bool,
    /// First tokens of our reply subjects, `_INBOX` when none. An account can give a user rights to its own only.
    pub inbox_prefix: Option<String>,
    /// True for a daemon: `connect` returns at once and goes on trying. False for a command: it fails.
    pub retry_initial: bool,
    /// Time between two pings to a silent server. After two pings without an answer the connection counts as lost: a connection
    /// that is open at this end only is noticed within three intervals.
    pub ping: Duration,
    /// The number of messages of one subscription that may wait. The client drops further messages and reports it.
    pub backlog: usize,
}

impl Default for BusSettings {
    /// A local server without credentials. The backlog is a node's: few commands, answered at once;
    /// what gathers from many nodes sets [`BusSettings::GATHER_BACKLOG`].
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            name: "ensign".to_owned(),
            credentials: None,
            tls: None,
            tls_first: false,
            inbox_prefix: None,
            retry_initial: false,
            ping: Self::PING,
            backlog: 256,
        }
    }
}

impl BusSettings {
    /// The backlog of a client that collects answers of a whole fleet: two messages of each of 32 768 nodes at once.
    pub const GATHER_BACKLOG: usize = 1 << 16;

    /// The default of [`BusSettings::ping`]: a lost server is noticed within a minute.
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
    /// A user's JWT and the seed that it was made for.
    Jwt {
        /// The JWT.
        jwt: Secret,
        /// The seed, `SU...`.
        seed: Secret,
    },
    /// A token.
    Token(Secret),
}

/// A message as it came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The subject it was published on.
    pub subject: String,
    /// The subject for the reply.
    pub reply: Option<String>,
    /// Its headers, in no particular order.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub payload: Vec<u8>,
    /// The time at which the server stored it; none for a message that is not from a stream.
    pub time: Option<Timestamp>,
    /// Its place in the stream; none for a message that is not from one.
    pub seq: Option<u64>,
    /// True for the server's own answer that the subject of a request has no subscriber.
    pub no_responders: bool,
}

impl Message {
    /// The first header of this name; names are compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Header that makes a stored publish idempotent within the stream's window.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Header that lets a message in only when the last one of its subject has this place in the stream; 0 for none.
pub const EXPECTED_LAST: &str = "Nats-Expected-Last-Subject-Sequence";
/// Header that says how long the server keeps a message (NATS ADR-43).
pub const MESSAGE_TTL: &str = "Nats-TTL";

/// A stream as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamSpec {
    /// Its name.
    pub name: String,
    /// The subjects it stores.
    pub subjects: Vec<String>,
    /// The age at which messages are removed; none keeps them for ever.
    pub max_age: Option<Duration>,
    /// The largest size in bytes; none is no bound. The oldest messages go first.
    pub max_bytes: Option<u64>,
    /// Most messages of one subject; none is no bound.
    pub max_per_subject: Option<u64>,
    /// May be read without a consumer.
    pub allow_direct: bool,
    /// The time for which a message id is remembered.
    pub dedupe_window: Duration,
    /// On how many servers of a cluster.
    pub replicas: usize,
    /// A message may replace all others of its subject, and none can be deleted one by one.
    pub latest_only: bool,
    /// Messages may have a life of their own (servers from 2.11 on); for how long a marker says that one has ended.
    pub markers: Option<Duration>,
    /// No message can be deleted one by one. A stream that has this keeps it: servers do not take it back.
    pub deny_delete: bool,
    /// Republishing of stored messages to online subscribers: from these subjects of the stream, to those (both with one `>` at
    /// the end). At most once, and without a consumer (NATS ADR-28).
    pub republish: Option<(String, String)>,
}

/// The outcome of creating or updating a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ensured {
    /// The object did not exist.
    Created,
    /// The object was as wanted.
    Unchanged,
    /// The object differed: each difference in words.
    Updated(Vec<String>),
}

/// The start of a [`StreamReader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// With the oldest message there is.
    Beginning,
    /// With the next one.
    New,
    /// With the first one stored at or after this time.
    Since(Timestamp),
    /// With the last one of each subject.
    Latest,
}

/// The state of the connection, for tasks that act when it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    /// True while there is one.
    pub connected: bool,
    /// The number of connects; grows with every reconnect.
    pub connects: u64,
    /// True after [`Bus::drain`] has come to its end.
    pub closed: bool,
}

/// Errors of the connection since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Connections that were lost.
    pub disconnects: u64,
    /// Times that a subscription was too slow and lost messages.
    pub slow_consumers: u64,
    /// Times that the server did not accept who we are.
    pub auth_errors: u64,
    /// Times that the server did not let us publish or subscribe.
    pub denied: u64,
}

/// The cause of a [`TransportError`], as the client gives it.
pub type Cause = Box<dyn Error + Send + Sync>;

/// An error of the bus.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// A server URL that is none.
    #[error("\"{0}\" is not the URL of a NATS server")]
    Url(String, #[source] Cause),
    /// A credentials file that can't be used.
    #[error("could not read the NATS credentials {}", .0.display())]
    Credentials(PathBuf, #[source] Cause),
    /// No server let us in.
    #[error("could not connect to NATS at {servers}")]
    Connect {
        /// The servers that were tried.
        servers: String,
        /// The cause.
        #[source]
        source: Cause,
    },
    /// A server that is too old.
    #[error("the NATS server is version {0}; {major}.{minor} is the oldest that is supported", major = OLDEST_SERVER.0, minor = OLDEST_SERVER.1)]
    TooOld(String),
    /// No connection at the moment.
    #[error("not connected to a NATS server")]
    Disconnected,
    /// No answer.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// The server, or our account on it, has no JetStream.
    #[error("JetStream is not available on the NATS server")]
    NoJetStream,
    /// No stream has this name, or takes this subject.
    #[error("there is no stream for {0}")]
    NoStream(String),
    /// The last message of a subject is not the one that [`EXPECTED_LAST`] named; nothing was stored.
    #[error("another message was stored on {0} meanwhile")]
    Conflict(String),
    /// An object or message that is not there.
    #[error("{0} does not exist")]
    NotFound(String),
    /// Larger than allowed.
    #[error("{what} has {size} bytes; at most {max} are allowed")]
    TooLarge {
        /// The missing object.
        what: String,
        /// Its size.
        size: u64,
        /// The limit.
        max: u64,
    },
    /// The server, or what it allows our account, has no room for a stream.
    #[error("{doing}: the server has no room for it")]
    NoRoom {
        /// The failed action and its object.
        doing: String,
        /// The answer of the server.
        #[source]
        source: Cause,
    },
    /// Anything else.
    #[error("{doing}")]
    Failed {
        /// The failed action and its object: `could not publish on X`.
        doing: String,
        /// The cause.
        #[source]
        source: Cause,
    },
}

impl TransportError {
    fn failed(doing: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::Failed { doing: doing.into(), source: source.into() }
    }
}

/// True when a server of this version is new enough. A version that can't be parsed is not.
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
