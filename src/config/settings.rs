//! `agent.toml`: `Settings` is what serde reads, what the checks see, and what the agent uses.
//!
//! The comments of the fields are the descriptions in the schema. Text is the only input. The command line reads the file,
//! and the user of a secret reads its file.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};

use crate::diag::Diagnostic;
use crate::model::{HumanDuration, NodeId, check_name};

use super::connection::NatsSettings;
use super::document::{Checks, HINT, TomlDocument};
use super::limits::Limits;
use super::log::LogSettings;
use super::size::byte_size;

/// Values of the host for keys that the file leaves out.
#[derive(Debug, Clone)]
pub struct HostDefaults {
    /// The host name.
    pub hostname: String,
    /// The state directory of the agent.
    pub state_dir: PathBuf,
    /// The directory of the file, against which relative paths are resolved.
    pub directory: PathBuf,
}

/// The configuration of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSettings {
    /// The file of this configuration.
    #[serde(skip)]
    pub file: PathBuf,
    /// The host name of the node, as people know it.
    #[serde(skip)]
    pub hostname: String,
    /// The fleet of the node. Commands for other fleets are refused.
    pub fleet: String,
    /// The id of the node; made from the host name when left out.
    #[serde(deserialize_with = "node_id")]
    #[schemars(with = "Option<String>")]
    pub node: NodeId,
    /// The groups of the node.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The channels whose desired state the node applies, in this order. When left out: every channel that targets the
    /// node, by name.
    #[serde(default)]
    pub channels: Option<Vec<String>>,
    /// The source of data that overrides the data of every manifest: a file, a URL, `kv://bucket/key`.
    #[serde(default)]
    pub data: Option<String>,
    /// The directory of everything that must survive a restart.
    #[schemars(with = "Option<PathBuf>")]
    pub state_dir: PathBuf,
    /// Directories with facts of the administrator: `facts.json`, `facts.yaml`, `facts.d/`; later ones win.
    #[serde(default = "facts_dirs")]
    pub facts_dirs: Vec<PathBuf>,
    /// Time between two heartbeats.
    #[serde(default = "heartbeat")]
    pub heartbeat: HumanDuration,
    /// The events that are published.
    #[serde(default)]
    pub events: PublishEvents,
    /// Time between two counts of runs without a change; zero publishes the summary of each run instead.
    #[serde(default = "stable_interval")]
    pub stable_interval: HumanDuration,
    /// Most bytes of unsent messages that are kept on disk, as a number or as `64MiB`.
    #[serde(default = "outbox_max", deserialize_with = "byte_size")]
    #[schemars(with = "String")]
    pub outbox_max: u64,
    /// Events that could not be sent for this long are dropped. Results and summaries of runs have no age.
    #[serde(default = "outbox_age")]
    pub outbox_age: HumanDuration,
    /// Most messages a second that are sent of those kept on disk.
    #[serde(default = "outbox_rate")]
    pub outbox_rate: u32,
    /// Most commands of one signing key that wait for the running command; more are answered with `busy`.
    #[serde(default = "queue")]
    pub queue: usize,
    /// Longest wait of a due run of a channel for the running command; a longer wait raises an alarm.
    #[serde(default = "max_repair_wait")]
    pub max_repair_wait: HumanDuration,
    /// Largest bundle to fetch.
    #[serde(default = "max_bundle", deserialize_with = "byte_size")]
    #[schemars(with = "String")]
    pub max_bundle: u64,
    /// Log level, and levels of single modules, as `info,ensign::agent=debug`.
    #[serde(default)]
    pub log: LogSettings,
    /// Service registrations.
    #[serde(default)]
    pub registration: RegistrationSettings,
    /// The page for monitoring.
    #[serde(default)]
    pub http: HttpSettings,
    /// Resource types that are not part of this program.
    #[serde(default)]
    pub types: TypesSettings,
    /// The connection.
    pub nats: NatsSettings,
    /// Root keys and the first trust bundle.
    pub trust: TrustSettings,
    /// Restrictions that no command can widen.
    #[serde(default)]
    pub limits: Limits,
}

/// The events that are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PublishEvents {
    /// Changed, failed, refreshed, skipped, unmet.
    #[default]
    Changes,
    /// All events, also of resources without a change.
    All,
}

/// Publication of the service registrations of resources (`register_when_stable`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegistrationSettings {
    /// The way to publish registrations.
    pub publish: PublishRegistrations,
    /// The stream that keeps them, for publishing and for `registrations()`.
    pub stream: String,
    /// A file with the public keys of nodes, in the format of an operator's `known_nodes`. With it `registrations()` gives
    /// only entries that those nodes signed.
    pub known_nodes: Option<PathBuf>,
}

impl Default for RegistrationSettings {
    fn default() -> Self {
        Self { publish: PublishRegistrations::Off, stream: "REGISTRATION".to_owned(), known_nodes: None }
    }
}

impl RegistrationSettings {
    /// True when registrations are published in some way.
    pub fn is_published(&self) -> bool {
        self.publish != PublishRegistrations::Off
    }
}

/// The way to publish service registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PublishRegistrations {
    /// Not at all.
    #[default]
    Off,
    /// Into the stream, acknowledged. A registration that the stream does not accept fails its resource.
    Jetstream,
    /// To the subscribers of that moment.
    Nats,
}

/// The page for monitoring: `/metrics` and `/healthz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSettings {
    /// The address and port to listen on, or `off`.
    #[serde(deserialize_with = "listen")]
    #[schemars(with = "String")]
    pub listen: Option<SocketAddr>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self { listen: Some((Ipv4Addr::LOCALHOST, 9769).into()) }
    }
}

/// Resource types that are not part of this program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TypesSettings {
    /// A directory of programs: each executable file is a resource type. None without it.
    pub dir: Option<PathBuf>,
}

/// Root keys and the first trust bundle.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrustSettings {
    /// Public root keys, as `ssh-ed25519 AAAA...` or `ed25519:...`.
    pub root: Vec<String>,
    /// Number of root keys that must have signed the first trust bundle.
    #[serde(default = "threshold")]
    pub threshold: u32,
    /// The file of the first trust bundle.
    #[serde(default)]
    pub bundle: Option<PathBuf>,
}

/// The longest queue of commands that can be configured.
pub const MAX_QUEUE: usize = 1024;

const DAY_SECONDS: u64 = 86_400;

impl AgentSettings {
    /// Reads and checks `text`, the content of the file `name`.
    ///
    /// # Errors
    /// All mistakes, each with its place where the place is known.
    pub fn read(text: &str, name: &str, around: &HostDefaults) -> Result<Self, Vec<Diagnostic>> {
        let document = TomlDocument::new(text, name);
        let node = match NodeId::from_hostname(&around.hostname) {
            Ok(node) => node.to_string(),
            Err(_) if document.has("node") => String::new(),
            Err(error) => {
                let wrong = Diagnostic::new(format!("the host name is not usable as a node id: {error}"));
                return Err(vec![wrong.hint("set `node` in the configuration")]);
            }
        };
        // An empty state directory is replaced below: the path of the host may not be UTF-8.
        let mut settings: Self = document.read_with(&[("node", &node), ("state_dir", "")])?;
        let mut checks = Checks::new(&document);
        settings.check(&mut checks);
        checks.finish()?;
        settings.resolve(around);
        settings.file = PathBuf::from(name);
        Ok(settings)
    }

    /// True when the id of the node is not the host name itself but made from it.
    pub fn node_is_mapped(&self) -> bool {
        self.node.as_str() != self.hostname && NodeId::from_hostname(&self.hostname).as_ref() == Ok(&self.node)
    }

    fn check(&self, checks: &mut Checks<'_>) {
        let token = |checks: &mut Checks<'_>, key: &str, noun: &'static str, text: &str| {
            if let Err(error) = check_name(noun, text) {
                checks.report(&[key], error.to_string());
            }
        };
        token(checks, "fleet", "fleet", &self.fleet);
        self.groups.iter().for_each(|group| token(checks, "groups", "group", group));
        let mut seen = Vec::new();
        for channel in self.channels.iter().flatten() {
            token(checks, "channels", "channel", channel);
            if seen.contains(&channel) {
                checks.report(&["channels"], format!("the channel \"{channel}\" is listed twice"));
            }
            seen.push(channel);
        }
        let days = |days| HumanDuration::seconds(days * DAY_SECONDS);
        checks.range(&["heartbeat"], self.heartbeat, HumanDuration::seconds(1), HumanDuration::seconds(3600));
        checks.range(&["queue"], self.queue, 1, MAX_QUEUE);
        checks.range(&["max_repair_wait"], self.max_repair_wait, HumanDuration::seconds(1), days(1));
        checks.range(&["stable_interval"], self.stable_interval, days(0), days(7));
        checks.range(&["outbox_max"], self.outbox_max, 1 << 20, 1 << 40);
        checks.range(&["outbox_age"], self.outbox_age, HumanDuration::seconds(60), days(365));
        checks.range(&["outbox_rate"], self.outbox_rate, 1, 100_000);
        checks.range(&["max_bundle"], self.max_bundle, 1 << 10, 1 << 32);
        self.nats.check(checks);
        match u32::try_from(self.trust.root.len()).unwrap_or(u32::MAX) {
            0 => checks.report_with(
                &["trust", "root"],
                "no root key is given: nothing could be verified",
                "write the line that `ensign key show` prints for the root key",
            ),
            keys => checks.range(&["trust", "threshold"], self.trust.threshold, 1, keys),
        }
        self.limits.check(checks);
    }

    /// Resolves relative paths and sorts the groups.
    fn resolve(&mut self, around: &HostDefaults) {
        let directory = &around.directory;
        self.hostname.clone_from(&around.hostname);
        self.state_dir =
            if self.state_dir.as_os_str().is_empty() { around.state_dir.clone() } else { directory.join(&self.state_dir) };
        let files = [&mut self.registration.known_nodes, &mut self.trust.bundle, &mut self.types.dir].into_iter().flatten();
        for path in files.chain(&mut self.facts_dirs) {
            *path = directory.join(&path);
        }
        self.nats.resolve(directory);
        self.groups.sort();
        self.groups.dedup();
    }
}

/// Returns the state directory of an agent, also when the rest of its configuration is wrong.
pub fn state_dir(text: &str, around: &HostDefaults) -> PathBuf {
    let table = text.parse::<toml::Table>().ok();
    let written = table.as_ref().and_then(|table| table.get("state_dir")).and_then(toml::Value::as_str);
    written.map_or_else(|| around.state_dir.clone(), |dir| around.directory.join(dir))
}

fn node_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeId, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| match NodeId::from_hostname(&text) {
        Ok(mapped) => de::Error::custom(format!("{error}{HINT}write it as \"{mapped}\"")),
        Err(_) => de::Error::custom(error),
    })
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "off" {
        return Ok(None);
    }
    let hint = "write listen = \"127.0.0.1:9769\", or \"off\"";
    text.parse().map(Some).map_err(|_| de::Error::custom(format!("\"{text}\" is not an address with a port{HINT}{hint}")))
}

fn facts_dirs() -> Vec<PathBuf> {
    ["/etc/choria/ccm", "/etc/ensign"].map(PathBuf::from).to_vec()
}

fn heartbeat() -> HumanDuration {
    HumanDuration::seconds(30)
}

fn stable_interval() -> HumanDuration {
    HumanDuration::seconds(3600)
}

fn outbox_max() -> u64 {
    64 << 20
}

fn outbox_age() -> HumanDuration {
    HumanDuration::seconds(7 * DAY_SECONDS)
}

fn outbox_rate() -> u32 {
    50
}

fn queue() -> usize {
    16
}

fn max_repair_wait() -> HumanDuration {
    HumanDuration::seconds(600)
}

fn max_bundle() -> u64 {
    64 << 20
}

fn threshold() -> u32 {
    1
}
