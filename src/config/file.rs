//! `agent.toml` as it is written. The comments of the fields are what `agent.toml.example` and the
//! schema explain; `config.rs` checks and resolves.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};

use crate::model::{HumanDuration, MountLimit, ResourceLimits, Secret};

use super::log::Log;

/// The configuration of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentFile {
    /// The fleet of the node. Commands for other fleets are refused.
    pub fleet: String,
    /// The id of the node; made from the host name when left out.
    #[serde(default)]
    pub node: Option<String>,
    /// The groups of the node.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The channels whose standing desired state the node keeps to, in the order in which they are applied; every one
    /// that is for it, by name, when left out.
    #[serde(default)]
    pub channels: Option<Vec<String>>,
    /// Where data comes from that is laid over that of every manifest: a file, a URL, `kv://bucket/key`.
    #[serde(default)]
    pub data: Option<String>,
    /// Where the agent keeps its state.
    #[serde(default)]
    pub state_dir: Option<PathBuf>,
    /// Directories with facts of the administrator: `facts.json`, `facts.yaml`, `facts.d/`; later ones win.
    #[serde(default = "facts_dirs")]
    pub facts_dirs: Vec<PathBuf>,
    /// Time between two heartbeats.
    #[serde(default)]
    pub heartbeat: Heartbeat,
    /// Which events are published.
    #[serde(default)]
    pub events: Publish,
    /// Time between two counts of runs that found everything as wanted; zero publishes the summary of each instead.
    #[serde(default = "stable_interval")]
    pub stable_interval: HumanDuration,
    /// Most bytes that wait on disk for the server, as a number or as `64MiB`.
    #[serde(default = "outbox_max", deserialize_with = "size")]
    #[schemars(with = "String")]
    pub outbox_max: u64,
    /// Events that could not be sent for so long are dropped. Results and summaries of runs have no age.
    #[serde(default = "outbox_age")]
    pub outbox_age: HumanDuration,
    /// Most messages a second that are sent of what gathered while there was no connection.
    #[serde(default = "outbox_rate")]
    pub outbox_rate: u64,
    /// Most commands of one signing key that wait for the running one; more are answered with `busy`.
    #[serde(default = "queue")]
    pub queue: u64,
    /// Largest bundle to fetch.
    #[serde(default = "max_bundle", deserialize_with = "size")]
    #[schemars(with = "String")]
    pub max_bundle: u64,
    /// How much is logged: a level, and levels of modules apart, as `info,ensign::agent=debug`.
    #[serde(default)]
    pub log: Log,
    /// Service registrations.
    #[serde(default)]
    pub registration: Registration,
    /// The page for monitoring.
    #[serde(default)]
    pub http: Http,
    /// The connection.
    pub nats: Nats,
    /// Whom the node obeys.
    pub trust: Trust,
    /// What nobody can widen from outside.
    #[serde(default)]
    pub limits: Limits,
}

/// Time between two heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Heartbeat(pub HumanDuration);

impl Default for Heartbeat {
    fn default() -> Self {
        Self(HumanDuration::seconds(30))
    }
}

/// Which events are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Publish {
    /// What matters: changed, failed, refreshed, skipped, unmet.
    #[default]
    Changes,
    /// Every one, also of resources that are as wanted.
    All,
}

/// What becomes of the service registrations of resources (`register_when_stable`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Registration {
    /// Whether and how they are published.
    pub publish: PublishRegistrations,
    /// The stream that keeps them, for publishing and for `registrations()`.
    pub stream: String,
    /// A file with the public keys of nodes, as `known_nodes` of operators has them. With it `registrations()` gives only
    /// what those nodes signed.
    pub known_nodes: Option<PathBuf>,
}

impl Default for Registration {
    fn default() -> Self {
        Self { publish: PublishRegistrations::Off, stream: "REGISTRATION".to_owned(), known_nodes: None }
    }
}

impl Registration {
    /// True when they are published in some way.
    pub fn is_published(&self) -> bool {
        self.publish != PublishRegistrations::Off
    }
}

/// The page for monitoring: `/metrics` and `/healthz`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// The address and port to listen on, or `off`.
    pub listen: String,
}

impl Default for Http {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9769".to_owned() }
    }
}

/// Whether and how service registrations are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PublishRegistrations {
    /// Not at all.
    #[default]
    Off,
    /// Into the stream, acknowledged; one that is not taken fails its resource.
    Jetstream,
    /// To whoever listens at that moment.
    Nats,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Errors.
    Error,
    /// And warnings.
    Warn,
    /// And what was done.
    #[default]
    Info,
    /// And how.
    Debug,
    /// And everything.
    Trace,
}

impl Level {
    /// Every level, from the fewest lines to the most.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        })
    }
}

/// Time between two pings to a silent server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PingInterval(pub HumanDuration);

impl Default for PingInterval {
    fn default() -> Self {
        Self(HumanDuration::seconds(20))
    }
}

/// The connection. One way to log in at most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nats {
    /// Addresses of the servers, as `nats://host:4222` or `tls://host:4222`.
    #[serde(default)]
    pub servers: Vec<String>,
    /// A context of the NATS CLI that says all of this instead: its name, or its file.
    #[serde(default)]
    pub context: Option<String>,
    /// Time between two pings to a silent server.
    #[serde(default)]
    pub ping_interval: PingInterval,
    /// A credentials file: JWT and seed.
    #[serde(default)]
    pub creds: Option<PathBuf>,
    /// A file with an nkey seed.
    #[serde(default)]
    pub nkey: Option<PathBuf>,
    /// A user name.
    #[serde(default)]
    pub user: Option<String>,
    /// Its password.
    #[serde(default)]
    pub password: Option<Secret>,
    /// The file that holds the password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// A token.
    #[serde(default)]
    pub token: Option<Secret>,
    /// The file that holds the token.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// TLS to the server.
    #[serde(default)]
    pub tls: Option<Tls>,
}

/// TLS to the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificates of the authorities to believe, instead of the system's.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The certificate of the node.
    #[serde(default)]
    pub cert: Option<PathBuf>,
    /// Its key.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Refuse a server without TLS.
    #[serde(default)]
    pub required: bool,
}

/// Where trust begins.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trust {
    /// Public root keys, as `ssh-ed25519 AAAA...` or `ed25519:...`.
    pub root: Vec<String>,
    /// How many of them must have signed the first trust bundle.
    #[serde(default = "threshold")]
    pub threshold: u32,
    /// The file of the first trust bundle.
    #[serde(default)]
    pub bundle: Option<PathBuf>,
}

/// Whether the kernel holds runs to the limits as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confine {
    /// As far as the kernel can.
    #[default]
    Auto,
    /// The agent does not start, and nothing runs, where the kernel can't hold all that it could.
    Required,
    /// Not at all: only the agent's own checks hold.
    Off,
}

/// The use of unsigned values of the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BusData {
    /// They shape content of files, and nothing else.
    #[default]
    Signed,
    /// They are values like any other: who has the server decides what this node does with them.
    Any,
}

/// What nobody can widen from outside.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Resource types that may be managed; all when left out.
    pub types: Option<Vec<String>>,
    /// Path prefixes below which files may be managed; all when left out.
    pub paths: Option<Vec<String>>,
    /// Path prefixes below which templates may read files (`readFile()`, `secret("file:...")`), beside those of the bundle
    /// itself; those of `paths` when left out.
    pub read_paths: Option<Vec<String>>,
    /// Whether commands may be run: by `exec`, and as health checks, post commands or `validate` of other types.
    pub exec: bool,
    /// File systems that may be mounted. When left out: none where `types`, `paths`, `read_paths` or `exec` limit
    /// something, otherwise all.
    pub mount: Option<Vec<MountLimit>>,
    /// Whether manifests may be applied.
    pub apply: bool,
    /// Hosts that bundles and archives may come from. When left out: every host but addresses of this machine itself
    /// (loopback, link-local, cloud metadata), which must be named.
    pub fetch_hosts: Option<Vec<String>>,
    /// What becomes of these limits in the kernel.
    pub confine: Confine,
    /// Whether runs that are held to `paths` may connect to sockets of this host, as those of a database, the container
    /// engine or systemd, which may do outside of `paths` what they are told.
    pub unix_sockets: bool,
    /// The use of unsigned values of the bus (`kvGet()`, `registrations()`, `data = "kv://..."`): `signed`: they
    /// shape only what a type declares as content, never a command, path, URL, condition or account. `any`: they are values
    /// like any other.
    pub bus_data: BusData,
    /// Largest archive of an `archive` resource, as it is fetched and as it is unpacked.
    #[serde(deserialize_with = "size")]
    #[schemars(with = "String")]
    pub archive_size: u64,
    /// Most files, directories and links in an archive.
    pub archive_entries: u64,
    /// Most bytes that an archive may unpack to for one of its own; small ones may have 64 MiB anyway.
    pub archive_ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            types: None,
            paths: None,
            read_paths: None,
            exec: false,
            mount: None,
            apply: true,
            fetch_hosts: None,
            confine: Confine::Auto,
            unix_sockets: false,
            bus_data: BusData::default(),
            archive_size: ResourceLimits::ARCHIVE_SIZE,
            archive_entries: ResourceLimits::ARCHIVE_ENTRIES,
            archive_ratio: ResourceLimits::ARCHIVE_RATIO,
        }
    }
}

fn facts_dirs() -> Vec<PathBuf> {
    ["/etc/choria/ccm", "/etc/ensign"].map(PathBuf::from).to_vec()
}

fn stable_interval() -> HumanDuration {
    HumanDuration::seconds(3600)
}

fn outbox_max() -> u64 {
    64 << 20
}

fn outbox_age() -> HumanDuration {
    HumanDuration::seconds(7 * 86_400)
}

fn outbox_rate() -> u64 {
    50
}

fn queue() -> u64 {
    16
}

fn max_bundle() -> u64 {
    64 << 20
}

fn threshold() -> u32 {
    1
}

/// A number of bytes: an integer, or a text as `64MiB`.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number of bytes, or a text as \"64MiB\"")]
    enum Written {
        Bytes(u64),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Bytes(bytes) => Ok(bytes),
        Written::Text(text) => parse_size(&text)
            .ok_or_else(|| de::Error::custom(format!("invalid size \"{text}\": expected a number with KiB, MiB or GiB"))),
    }
}

/// A number of bytes as it is written: `1000`, `64MiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
        .into_iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|digits| (digits, shift)))
        .unwrap_or((text, 0));
    let number: u64 = digits.trim().parse().ok()?;
    number.checked_mul(1 << shift)
}
