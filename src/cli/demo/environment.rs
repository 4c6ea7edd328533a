//! The environment of the demonstration: keys, a server and three agents, all in one directory. All of these end together with
//! the environment.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::SignedDuration;

use crate::cli::error::{CliError, Exit};
use crate::cli::fleet::session::{FleetSession, connection_failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::key::NamedKey;
use crate::cli::local::inputs::OutputFormat;
use crate::cli::trust::{first_bundle, seal_bundle};
use crate::diag::Diagnostic;
use crate::fleet::setup::init;
use crate::fleet::setup::permissions::{Role, ServerUser, authorization};
use crate::fleet::targeting::pinned_keys::PinnedKeys;
use crate::fleet::targeting::states;
use crate::fleet::{FleetConnection, Liveness, NodeKeys, Operator};
use crate::host::child::Child;
use crate::host::fs::{self, WriteSpec};
use crate::host::{Cancel, Host, ProcessCommand, Runner, SystemRunner, account};
use crate::model::NodeId;
use crate::transport::nkey::UserKey;
use crate::transport::{Bus, BusSettings, Credentials, OLDEST_SERVER};
use crate::trust::{PublicKey, SigningKey};
use crate::wire::report::WatchStatus;
use crate::wire::{NodeState, Subjects};

/// Name of the fleet.
pub(super) const FLEET: &str = "demo";
/// The nodes, each with its group.
pub(super) const NODES: [(&str, &str); 3] = [("web1", "web"), ("web2", "web"), ("db1", "db")];
/// Id of the operator's key.
pub(super) const OPERATOR: &str = "ops-alice";
/// Longest start of the server and the agents.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the end of each process.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The running processes. The drop ends all of them.
pub(super) struct DemoFleet {
    /// Directory of all files.
    pub(super) dir: PathBuf,
    /// Connection of the operator.
    pub(super) session: FleetSession,
    /// The operator's key.
    pub(super) operator: NamedKey,
    // The agents end before the server.
    agents: Vec<Child>,
    server: Child,
}

impl DemoFleet {
    /// Starts the server, creates the streams, starts the agents, and waits until all of them are online.
    pub(super) async fn open(dir: &Path, binary: &Path, host: &Host) -> Result<Self, CliError> {
        let subjects = Subjects::new(FLEET);
        let operator_nkey = nkey()?;
        let mut users = vec![ServerUser { role: Role::Operator, nkey: operator_nkey.public.clone() }];
        let mut nodes = Vec::new();
        for (name, group) in NODES {
            let node: NodeId = name.parse().map_err(|error| demo_error(&error))?;
            let key = nkey()?;
            users.push(ServerUser { role: Role::Node(node.clone(), vec![group.to_owned()]), nkey: key.public.clone() });
            nodes.push((node, group, key));
        }
        let url = format!("nats://127.0.0.1:{}", free_port()?);
        let server = start_server(dir, binary, &url, &authorization(&users, &subjects, None))?;
        let bus = connect(&url, &operator_nkey).await?;
        init::create_streams(&bus, &subjects, init::Retention::default(), &mut |_, _| ())
            .await
            .map_err(|error| connection_failure(&error))?;

        let (root, operator) = (signer("root")?, signer(OPERATOR)?);
        let trust = trust_files(dir, &root, &operator, host)?;
        let mut agents = Vec::new();
        for (node, group, key) in &nodes {
            agents.push(start_agent(dir, node, group, key, &url, &trust)?);
        }
        let settings = BusSettings { servers: vec![url], ..BusSettings::default() };
        let profile = Operator { fleet: FLEET.to_owned(), keys: vec![], known_nodes: None, trust: None, bus: settings };
        let node_keys = NodeKeys::new(FLEET, PinnedKeys::default(), None);
        let fleet = FleetConnection::new(profile, bus, node_keys, host.clone()).await;
        let session = FleetSession { fleet, output: OutputFormat::Text, interrupt: Interrupt::default() };
        let mut stage = Self { dir: dir.to_owned(), session, operator, agents, server };
        stage.wait_until_online().await?;
        Ok(stage)
    }

    /// Returns the directory of a node that the manifest describes.
    pub(super) fn site(&self, node: &str) -> PathBuf {
        self.dir.join(node).join("site")
    }

    /// Waits until every node is online.
    async fn wait_until_online(&mut self) -> Result<(), CliError> {
        let now = self.session.now();
        self.wait_for("get ready", |state| states::liveness(state, now) == Liveness::Alive).await
    }

    /// Waits until every node watches all resources of its assignment.
    pub(super) async fn wait_until_watched(&mut self) -> Result<(), CliError> {
        let is_clean = |watch: WatchStatus| watch.resources > 0 && watch.clean == watch.resources;
        self.wait_for("watch their files", |state| state.assignments.iter().any(|one| one.watch.is_some_and(is_clean))).await
    }

    async fn wait_for(&mut self, what: &str, holds: impl Fn(&NodeState) -> bool) -> Result<(), CliError> {
        let until = Instant::now() + START_TIMEOUT;
        loop {
            let states = self.session.states().await?;
            if states.values().filter(|state| holds(state)).count() == NODES.len() {
                return Ok(());
            }
            let ended = self.agents.iter_mut().any(|agent| !agent.is_running());
            if ended || Instant::now() > until {
                return Err(demo_failure(&format!("the agents did not {what}: their logs are in {}", self.dir.display())));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends everything, in order. Returns false when a process had to be killed.
    pub(super) async fn close(self) -> bool {
        let Self { session, agents, server, .. } = self;
        agents.iter().for_each(Child::terminate);
        let agents = agents.into_iter().map(|agent| agent.stop(END_TIMEOUT)).filter(|ended| *ended).count();
        session.bus.drain(Instant::now() + END_TIMEOUT).await;
        // The exit code of the server after a signal depends on its version, so only its end counts.
        let _ended = server.stop(END_TIMEOUT);
        agents == NODES.len()
    }
}

fn demo_error(error: &dyn std::error::Error) -> CliError {
    CliError::from_error(Exit::Failed, error)
}

fn demo_failure(message: &str) -> CliError {
    CliError::new(Exit::Failed, Diagnostic::new(message))
}

fn nkey() -> Result<UserKey, CliError> {
    UserKey::generate().map_err(|error| demo_error(&error))
}

fn signer(id: &str) -> Result<NamedKey, CliError> {
    Ok(NamedKey { id: id.to_owned(), key: Box::new(SigningKey::generate().map_err(|error| demo_error(&error))?) })
}

fn free_port() -> Result<u16, CliError> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    port.map(|address| address.port()).map_err(|error| demo_error(&error))
}

/// Writes a file that only this user can read.
pub(super) fn write(path: &Path, content: &str) -> Result<(), CliError> {
    let spec = WriteSpec { uid: None, gid: None, mode: 0o600 };
    if let Some(parent) = path.parent() {
        fs::create_directory(parent, 0o700).map_err(|error| demo_error(&error))?;
    }
    fs::write_atomic(path, &mut content.as_bytes(), spec).map_err(|error| demo_error(&error))
}

fn start_server(dir: &Path, binary: &Path, url: &str, authorization: &str) -> Result<Child, CliError> {
    let config = dir.join("nats.conf");
    let address = url.trim_start_matches("nats://");
    let store = dir.join("nats");
    let text =
        format!("server_name: demo\nlisten: \"{address}\"\njetstream {{ store_dir: \"{}\" }}\n{authorization}", store.display());
    write(&config, &text)?;
    let args = ["-c", &config.display().to_string()];
    Child::start(binary, &args, &[], &dir.join("nats.log"))
        .map_err(|error| demo_failure(&format!("could not start {}: {error}", binary.display())))
}

async fn connect(url: &str, key: &UserKey) -> Result<Bus, CliError> {
    let settings = BusSettings {
        servers: vec![url.to_owned()],
        name: "ensign demo".to_owned(),
        credentials: Some(Credentials::NkeySeed(key.seed.clone())),
        backlog: BusSettings::GATHER_BACKLOG,
        ..BusSettings::default()
    };
    let until = Instant::now() + START_TIMEOUT;
    loop {
        match Bus::connect(&settings).await {
            Ok(bus) => return Ok(bus),
            Err(error) if Instant::now() > until => return Err(connection_failure(&error)),
            // The server may still be starting.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The trust files of an agent: the root key, and the path of the first bundle.
struct TrustFiles {
    root: PublicKey,
    bundle: PathBuf,
}

fn trust_files(dir: &Path, root: &NamedKey, operator: &NamedKey, host: &Host) -> Result<TrustFiles, CliError> {
    let expires = host.now().saturating_add(SignedDuration::from_hours(24 * 365)).map_err(|error| demo_error(&error))?;
    let public = root.key.public();
    let operators = [(operator.id.clone(), operator.key.public())];
    let bundle = first_bundle(FLEET, &[public], 1, &operators, expires);
    let signed = seal_bundle(&bundle, std::slice::from_ref(root))?;
    let path = dir.join("trust.dsse.json");
    write(&path, &String::from_utf8_lossy(&signed))?;
    Ok(TrustFiles { root: public, bundle: path })
}

fn start_agent(dir: &Path, node: &NodeId, group: &str, key: &UserKey, url: &str, trust: &TrustFiles) -> Result<Child, CliError> {
    let home = dir.join(node.as_str());
    write(&home.join("node.nk"), key.seed.reveal())?;
    let facts = serde_json::json!({
        "site": home.join("site"),
        "uid": account::effective_uid().to_string(),
        "gid": account::effective_gid().to_string(),
    });
    write(&home.join("facts/facts.json"), &facts.to_string())?;
    let quoted = |path: &Path| serde_json::Value::from(path.display().to_string()).to_string();
    let config = format!(
        "fleet = \"{FLEET}\"\nnode = \"{node}\"\ngroups = [\"{group}\"]\nstate_dir = \"state\"\nfacts_dirs = [\"facts\"]\n\
         heartbeat = \"1s\"\n\n[http]\nlisten = \"off\"\n\n[nats]\nservers = [\"{url}\"]\nnkey = \"node.nk\"\n\n\
         [trust]\nroot = [\"{}\"]\nbundle = {}\n\n[limits]\ntypes = [\"file\"]\npaths = [{}]\n",
        trust.root,
        quoted(&trust.bundle),
        quoted(&home),
    );
    let path = home.join("agent.toml");
    write(&path, &config)?;
    let program = std::env::current_exe().map_err(|error| demo_error(&error))?;
    let args = ["agent", "run", "--config", &path.display().to_string()];
    Child::start(&program, &args, &[("PATH", "/usr/bin:/bin")], &home.join("agent.log")).map_err(|error| demo_error(&error))
}

/// Finds the server to start: the named one, else the first on `PATH`; new enough either way.
pub(super) fn find_server(named: Option<&Path>) -> Result<PathBuf, CliError> {
    let (major, minor) = OLDEST_SERVER;
    let missing = |message: String| {
        CliError::usage(message).hint(format!(
            "install nats-server {major}.{minor} or later, or name one: --nats-server FILE or NATS_SERVER=FILE; deploy/demo.sh gets one"
        ))
    };
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join("nats-server")).find(|file| fs::is_file(file))
    };
    let binary = named.map(Path::to_owned).or_else(on_path).ok_or_else(|| missing("cannot find nats-server".to_owned()))?;
    let version = version(&binary).ok_or_else(|| missing(format!("cannot read the version of {}", binary.display())))?;
    if version < OLDEST_SERVER {
        return Err(missing(format!("{} is version {}.{}: too old", binary.display(), version.0, version.1)));
    }
    Ok(binary)
}

/// `nats-server: v2.10.27`
fn version(binary: &Path) -> Option<(u64, u64)> {
    let command =
        ProcessCommand { timeout: Some(START_TIMEOUT), ..ProcessCommand::new(binary.display().to_string(), ["--version"]) };
    let output = SystemRunner::new(None).run(&command, &Cancel::default(), None).ok()?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
}

fn parse_version(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.trim().rsplit(['v', ' ']).next()?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_servers_are_read() {
        for (text, wanted) in [
            ("nats-server: v2.10.27\n", Some((2, 10))),
            ("nats-server: v2.9.10", Some((2, 9))),
            ("nats-server: v2.15.1-beta.1", Some((2, 15))),
            ("something else", None),
            ("", None),
        ] {
            assert_eq!(parse_version(text), wanted, "{text}");
        }
        assert!(find_server(Some(Path::new("/no/such/server"))).is_err());
    }
}
