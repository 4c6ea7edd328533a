//! `agent.toml`: as written ([`file::AgentFile`]) and as checked ([`Settings`]).
//!
//! Every error names its file, line and column. Nothing is read here but the text that is given:
//! the command line reads the file, and whoever needs a secret reads the file it is in.

pub mod context;
pub mod document;
pub mod file;
pub mod log;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::diag::Diagnostic;
use crate::model::{HumanDuration, MountLimit, NodeId, Secret};

use document::Document;
pub use file::{AgentFile, BusData, Confine, Level, Publish, parse_size};
pub use log::Log;

/// What the surroundings say where the file says nothing.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The host name.
    pub hostname: String,
    /// Where the agent keeps its state.
    pub state_dir: PathBuf,
    /// The directory of the file: relative paths in it begin here.
    pub directory: PathBuf,
}

/// The checked settings of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The file that they were read from.
    pub file: PathBuf,
    /// The fleet: one subject token.
    pub fleet: String,
    /// The node.
    pub node: NodeId,
    /// The host name that the node has for people.
    pub hostname: String,
    /// The groups of the node, sorted, each once.
    pub groups: Vec<String>,
    /// The channels that are followed, in the order in which they are applied; `None` is all, by name.
    pub channels: Option<Vec<String>>,
    /// Where data comes from that is laid over that of every manifest.
    pub data: Option<String>,
    /// Where everything is kept that must survive.
    pub state_dir: PathBuf,
    /// Directories of facts.
    pub facts_dirs: Vec<PathBuf>,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Which events are published.
    pub events: Publish,
    /// Time between two counts of stable runs; zero publishes the summary of each.
    pub stable_interval: Duration,
    /// Most bytes that wait on disk for the server.
    pub outbox_max: u64,
    /// How long events wait on disk for the server.
    pub outbox_age: Duration,
    /// Most messages a second after a reconnect.
    pub outbox_rate: u32,
    /// Most commands that wait for the running one.
    pub queue: usize,
    /// Largest bundle, in bytes.
    pub max_bundle: u64,
    /// How much is logged.
    pub log: Log,
    /// Service registrations.
    pub registration: file::Registration,
    /// The page for monitoring.
    pub http: Http,
    /// The connection.
    pub nats: Nats,
    /// Whom the node obeys.
    pub trust: Trust,
    /// What nobody can widen from outside.
    pub limits: Limits,
}

/// The page for monitoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http {
    /// Where it listens, if at all.
    pub listen: Option<SocketAddr>,
}

/// How to reach the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nats {
    /// Its addresses, at least one.
    pub servers: Vec<String>,
    /// Time between two pings.
    pub ping_interval: Duration,
    /// How to log in.
    pub login: Option<Login>,
    /// TLS.
    pub tls: Option<Tls>,
    /// TLS begins at once, before the server has said who it is.
    pub tls_first: bool,
    /// First tokens of reply subjects, where they are not the usual ones.
    pub inbox_prefix: Option<String>,
    /// The context of the NATS CLI that says all of this, by name or file; whoever read the file put it in.
    pub context: Option<String>,
}

/// A secret, or the file that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretFrom {
    /// It stands in the configuration.
    Here(Secret),
    /// It is the content of this file, without the line end.
    File(PathBuf),
}

/// A way to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    /// A file with JWT and seed.
    Creds(PathBuf),
    /// A file with an nkey seed.
    Nkey(PathBuf),
    /// A user.
    User {
        /// The name.
        user: String,
        /// The password.
        password: SecretFrom,
    },
    /// A user's JWT and the seed that it was made for.
    Jwt {
        /// The JWT.
        jwt: Secret,
        /// The seed.
        seed: Secret,
    },
    /// A token.
    Token(SecretFrom),
}

/// TLS to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Certificates of the authorities to believe, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Refuse a server without TLS.
    pub required: bool,
}

/// Where trust begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// Public root keys, as written.
    pub root: Vec<String>,
    /// How many of them must have signed the first bundle.
    pub threshold: u32,
    /// The file of the first bundle.
    pub bundle: Option<PathBuf>,
}

/// Limits of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Resource types that may be managed; `None` is all.
    pub types: Option<Vec<String>>,
    /// Path prefixes below which files may be managed; `None` is all.
    pub paths: Option<Vec<String>>,
    /// Path prefixes below which templates may read, beside their own bundle; `None` is those of `paths`.
    pub read_paths: Option<Vec<String>>,
    /// Whether commands may be run.
    pub exec: bool,
    /// File systems that may be mounted; `None` is none where something else of the host is limited.
    pub mount: Option<Vec<MountLimit>>,
    /// Whether manifests may be applied.
    pub apply: bool,
    /// Hosts that bundles and archives may come from; `None` is every host that is not internal to this machine.
    pub fetch_hosts: Option<Vec<String>>,
    /// Whether the kernel holds runs to these limits.
    pub confine: Confine,
    /// Whether confined runs may connect to sockets of this host.
    pub unix_sockets: bool,
    /// The use of unsigned values of the bus.
    pub bus_data: BusData,
    /// Largest archive of a resource, fetched and unpacked, in bytes.
    pub archive_size: u64,
    /// Most entries of an archive.
    pub archive_entries: u64,
    /// Most bytes unpacked for one byte packed.
    pub archive_ratio: u64,
}

impl Settings {
    /// Reads and checks `text`, which is the content of the file called `name`.
    ///
    /// # Errors
    /// Everything that is wrong, each with its place where it has one.
    pub fn read(text: &str, name: &str, around: &Surroundings) -> Result<Self, Vec<Diagnostic>> {
        let document = Document::new(text, name);
        let file: AgentFile = document.read()?;
        Check { document: &document, around, wrong: Vec::new() }.settings(file)
    }

    /// True when the id of the node is not the host name itself but made from it.
    pub fn node_is_mapped(&self) -> bool {
        self.node.as_str() != self.hostname && NodeId::from_hostname(&self.hostname).as_ref() == Ok(&self.node)
    }
}

/// The state directory of an agent with this configuration, also where the rest of it is wrong.
pub fn state_dir(text: &str, around: &Surroundings) -> PathBuf {
    let table = text.parse::<toml::Table>().ok();
    let written = table.as_ref().and_then(|table| table.get("state_dir")).and_then(toml::Value::as_str);
    written.map_or_else(|| around.state_dir.clone(), |dir| around.directory.join(dir))
}

/// Collects what is wrong while it turns one form into the other.
struct Check<'a> {
    document: &'a Document<'a>,
    around: &'a Surroundings,
    wrong: Vec<Diagnostic>,
}

/// True for what may stand as one token in a subject: the form of fleets, groups and nodes.
fn is_token(text: &str) -> bool {
    text.parse::<NodeId>().is_ok()
}

/// The longest queue of commands that can be configured.
pub const MAX_QUEUE: usize = 1024;

const TOKEN: &str = "1 to 63 of a-z, 0-9, _ and -";

/// Why this is not the address of a server, with a hint where there is one.
fn server_address(server: &str) -> Result<(), (String, &'static str)> {
    let (scheme, rest) = server.split_once("://").unwrap_or(("nats", server));
    if !matches!(scheme, "nats" | "tls") {
        return Err((format!("a server begins with nats:// or tls://, not {scheme}://"), ""));
    }
    if rest.contains('@') {
        // The address is shown in logs and states; the text is not repeated here for the same reason.
        return Err(("an address holds no user and no password".to_owned(), "use `user` and `password_file`, or `creds`"));
    }
    if rest.is_empty() || rest.contains(char::is_whitespace) || rest.contains('/') {
        return Err((format!("\"{server}\" is not the address of a server, as nats://host:4222"), ""));
    }
    Ok(())
}

impl Check<'_> {
    fn settings(mut self, file: AgentFile) -> Result<Settings, Vec<Diagnostic>> {
        if !is_token(&file.fleet) {
            self.wrong(&["fleet"], format!("\"{}\" is not the name of a fleet: {TOKEN}", file.fleet));
        }
        let node = self.node(file.node.as_deref());
        let groups = self.groups(file.groups);
        self.channels(file.channels.as_deref());
        let heartbeat =
            self.between(&["heartbeat"], file.heartbeat.0, HumanDuration::seconds(1), HumanDuration::seconds(3600)).get();
        let queue = usize::try_from(self.between(&["queue"], file.queue, 1, MAX_QUEUE as u64)).unwrap_or(1);
        let stable_interval = self
            .between(&["stable_interval"], file.stable_interval, HumanDuration::seconds(0), HumanDuration::seconds(7 * 86_400))
            .get();
        let outbox_max = self.between(&["outbox_max"], file.outbox_max, 1 << 20, 1 << 40);
        let outbox_age = self
            .between(&["outbox_age"], file.outbox_age, HumanDuration::seconds(60), HumanDuration::seconds(365 * 86_400))
            .get();
        let outbox_rate = u32::try_from(self.between(&["outbox_rate"], file.outbox_rate, 1, 100_000)).unwrap_or(u32::MAX);
        let max_bundle = self.between(&["max_bundle"], file.max_bundle, 1 << 10, 1 << 32);
        let http = self.http(&file.http);
        let nats = self.nats(file.nats);
        let trust = self.trust(file.trust);
        let limits = self.limits(file.limits);
        match node {
            Some(node) if self.wrong.is_empty() => Ok(Settings {
                file: PathBuf::from(self.document.name()),
                fleet: file.fleet,
                node,
                hostname: self.around.hostname.clone(),
                groups,
                channels: file.channels,
                data: file.data,
                state_dir: file.state_dir.map_or_else(|| self.around.state_dir.clone(), |dir| self.path(&dir)),
                facts_dirs: file.facts_dirs.iter().map(|dir| self.path(dir)).collect(),
                heartbeat,
                events: file.events,
                stable_interval,
                outbox_max,
                outbox_age,
                outbox_rate,
                queue,
                max_bundle,
                log: file.log,
                registration: file::Registration {
                    known_nodes: file.registration.known_nodes.as_deref().map(|path| self.path(path)),
                    ..file.registration
                },
                http,
                nats,
                trust,
                limits,
            }),
            _ => Err(self.wrong),
        }
    }

    fn wrong(&mut self, key: &[&str], message: impl Into<String>) {
        self.wrong.push(Diagnostic::new(message).at(self.document.place(key)));
    }

    fn wrong_with(&mut self, key: &[&str], message: impl Into<String>, hint: &str) {
        self.wrong.push(Diagnostic::new(message).at(self.document.place(key)).hint(hint));
    }

    fn between<T: PartialOrd + Copy + std::fmt::Display>(&mut self, key: &[&str], value: T, least: T, most: T) -> T {
        if value < least || value > most {
            let name = key.join(".");
            self.wrong(key, format!("`{name}` must be between {least} and {most}, not {value}"));
        }
        value
    }

    fn path(&self, path: &Path) -> PathBuf {
        self.around.directory.join(path)
    }

    fn node(&mut self, given: Option<&str>) -> Option<NodeId> {
        let Some(given) = given else {
            return NodeId::from_hostname(&self.around.hostname)
                .map_err(|error| {
                    let hint = "set `node` in the configuration";
                    self.wrong.push(Diagnostic::new(format!("the host name gives no node id: {error}")).hint(hint));
                })
                .ok();
        };
        match given.parse() {
            Ok(node) => Some(node),
            Err(error) => {
                let mapped = NodeId::from_hostname(given).map(|id| format!("write it as \"{id}\"")).unwrap_or_default();
                self.wrong_with(&["node"], error.to_string(), &mapped);
                None
            }
        }
    }

    fn groups(&mut self, mut groups: Vec<String>) -> Vec<String> {
        for group in groups.iter().filter(|group| !is_token(group)) {
            self.wrong(&["groups"], format!("\"{group}\" is not the name of a group: {TOKEN}"));
        }
        groups.sort();
        groups.dedup();
        groups
    }

    fn channels(&mut self, channels: Option<&[String]>) {
        for (place, channel) in channels.into_iter().flatten().enumerate() {
            if !is_token(channel) {
                self.wrong(&["channels"], format!("\"{channel}\" is not the name of a channel: {TOKEN}"));
            }
            if channels.is_some_and(|all| all.iter().take(place).any(|before| before == channel)) {
                self.wrong(&["channels"], format!("the channel \"{channel}\" is there twice"));
            }
        }
    }

    fn http(&mut self, http: &file::Http) -> Http {
        if http.listen == "off" {
            return Http { listen: None };
        }
        let listen = http.listen.parse().ok();
        if listen.is_none() {
            let message = format!("\"{}\" is not an address with a port", http.listen);
            self.wrong_with(&["http", "listen"], message, "write listen = \"127.0.0.1:9769\", or \"off\"");
        }
        Http { listen }
    }

    fn nats(&mut self, nats: file::Nats) -> Nats {
        if let Some(context) = nats.context {
            return self.context(context, &file::Nats { context: None, ..nats });
        }
        if nats.servers.is_empty() {
            self.wrong_with(&["nats", "servers"], "no server is given", "write servers = [\"nats://host:4222\"]");
        }
        for server in &nats.servers {
            self.server(server);
        }
        let ping_interval = self.pings(&nats);
        let file::Nats {
            servers,
            ping_interval: _,
            creds,
            nkey,
            user,
            password,
            password_file,
            token,
            token_file,
            tls,
            context: _,
        } = nats;
        let password = self.secret("password", password, password_file);
        let token = self.secret("token", token, token_file);
        let user = match (user, password) {
            (Some(user), Some(password)) => Some(Login::User { user, password }),
            (None, None) => None,
            _ => {
                self.wrong(&["nats"], "`user` and `password` (or `password_file`) need each other");
                None
            }
        };
        let creds = creds.map(|path| Login::Creds(self.path(&path)));
        let nkey = nkey.map(|path| Login::Nkey(self.path(&path)));
        let mut ways: Vec<Login> = [creds, nkey, user, token.map(Login::Token)].into_iter().flatten().collect();
        if ways.len() > 1 {
            self.wrong_with(&["nats"], "more than one way to log in is given", "keep one of creds, nkey, user, token");
        }
        let tls = tls.map(|tls| self.tls(tls));
        Nats { servers, ping_interval, login: ways.pop(), tls, tls_first: false, inbox_prefix: None, context: None }
    }

    /// All that a context says, and nothing beside it: which of two would win nobody remembers.
    fn context(&mut self, context: String, beside: &file::Nats) -> Nats {
        let given = [
            ("servers", !beside.servers.is_empty()),
            ("creds", beside.creds.is_some()),
            ("nkey", beside.nkey.is_some()),
            ("user", beside.user.is_some()),
            ("password", beside.password.is_some()),
            ("password_file", beside.password_file.is_some()),
            ("token", beside.token.is_some()),
            ("token_file", beside.token_file.is_some()),
            ("tls", beside.tls.is_some()),
        ];
        for (key, _) in given.iter().filter(|(_, given)| *given) {
            self.wrong_with(&["nats", key], format!("`{key}` and `context` exclude each other"), "keep one of the two");
        }
        let ping_interval = self.pings(beside);
        Nats {
            servers: vec![],
            ping_interval,
            login: None,
            tls: None,
            tls_first: false,
            inbox_prefix: None,
            context: Some(context),
        }
    }

    fn pings(&mut self, nats: &file::Nats) -> Duration {
        self.between(&["nats", "ping_interval"], nats.ping_interval.0, HumanDuration::seconds(1), HumanDuration::seconds(600))
            .get()
    }

    fn server(&mut self, server: &str) {
        if let Err((why, hint)) = server_address(server) {
            let diagnostic = Diagnostic::new(why).at(self.document.place(&["nats", "servers"]));
            self.wrong.push(if hint.is_empty() { diagnostic } else { diagnostic.hint(hint) });
        }
    }

    fn tls(&mut self, tls: file::Tls) -> Tls {
        let identity = match (tls.cert, tls.key) {
            (Some(cert), Some(key)) => Some((self.path(&cert), self.path(&key))),
            (None, None) => None,
            _ => {
                self.wrong(&["nats", "tls"], "`cert` and `key` need each other");
                None
            }
        };
        Tls { ca: tls.ca.map(|ca| self.path(&ca)), identity, required: tls.required }
    }

    fn secret(&mut self, name: &str, here: Option<Secret>, file: Option<PathBuf>) -> Option<SecretFrom> {
        match (here, file) {
            (Some(_), Some(_)) => {
                self.wrong(&["nats", name], format!("`{name}` and `{name}_file` exclude each other"));
                None
            }
            (Some(secret), None) => Some(SecretFrom::Here(secret)),
            (None, Some(file)) => Some(SecretFrom::File(self.path(&file))),
            (None, None) => None,
        }
    }

    fn trust(&mut self, trust: file::Trust) -> Trust {
        let keys = u32::try_from(trust.root.len()).unwrap_or(u32::MAX);
        if keys == 0 {
            self.wrong_with(
                &["trust", "root"],
                "no root key is given: nothing could be verified",
                "write the line that `ensign key show` prints for the root key",
            );
        } else {
            self.between(&["trust", "threshold"], trust.threshold, 1, keys);
        }
        Trust { root: trust.root, threshold: trust.threshold, bundle: trust.bundle.map(|path| self.path(&path)) }
    }

    fn limits(&mut self, limits: file::Limits) -> Limits {
        for (key, paths) in [("paths", &limits.paths), ("read_paths", &limits.read_paths)] {
            for path in paths.iter().flatten() {
                if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                    self.wrong(&["limits", key], format!("\"{path}\" is not an absolute path without `..`"));
                }
            }
        }
        for host in limits.fetch_hosts.iter().flatten() {
            if host.is_empty() || host.contains(['/', '@', ' ']) {
                self.wrong(&["limits", "fetch_hosts"], format!("\"{host}\" is not a host name or address"));
            }
        }
        for entry in limits.mount.iter().flatten() {
            if entry.fstype.is_empty() || entry.fstype.contains('/') {
                self.wrong(&["limits", "mount"], format!("\"{}\" is not a type of file system", entry.fstype));
            }
        }
        let file::Limits { types, paths, read_paths, exec, mount, apply, fetch_hosts, confine, unix_sockets, bus_data, .. } =
            limits;
        let file::Limits { archive_size, archive_entries, archive_ratio, .. } = limits;
        Limits {
            types,
            paths,
            read_paths,
            exec,
            mount,
            apply,
            fetch_hosts,
            confine,
            unix_sockets,
            bus_data,
            archive_size,
            archive_entries,
            archive_ratio,
        }
    }
}

#[cfg(test)]
mod tests;
