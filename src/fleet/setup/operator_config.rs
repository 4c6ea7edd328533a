//! The configuration of an operator: fleet, keys and server, from `operator.toml` and the command line.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::document::TomlDocument;
use crate::config::{NatsSettings, check_domain};
use crate::diag::{Diagnostic, error_chain};
use crate::host::fs;
use crate::model::check_name;
use crate::transport::BusSettings;

/// The file `operator.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorFile {
    /// The fleet.
    pub fleet: Option<String>,
    /// Files of private keys to sign with, relative to this file. Or `ssh-agent:NAME` for a key of the ssh-agent: its
    /// comment, its fingerprint or its public key file.
    #[serde(default)]
    pub keys: Vec<PathBuf>,
    /// The file with the public keys of nodes, relative to this file; `known_nodes` by default.
    pub known_nodes: Option<PathBuf>,
    /// The signed trust bundle of the fleet, to verify the signers of commands; relative to this file.
    pub trust: Option<PathBuf>,
    /// The connection, as in `agent.toml`.
    pub nats: Option<NatsSettings>,
}

/// Settings from the command line and the environment, which override `operator.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CliOverrides {
    /// The fleet.
    pub fleet: Option<String>,
    /// The URL of a server.
    pub server: Option<String>,
    /// The connection of a context of the NATS CLI.
    pub context: Option<NatsSettings>,
    /// The JetStream domain of the streams.
    pub jetstream_domain: Option<String>,
    /// Files of private keys.
    pub keys: Vec<PathBuf>,
    /// The file with the public keys of nodes.
    pub known_nodes: Option<PathBuf>,
}

/// The settings of an operator.
#[derive(Debug, Clone)]
pub struct Operator {
    /// The fleet.
    pub fleet: String,
    /// Private keys to sign with: files, or `ssh-agent:NAME`. Empty for an operator that only reads.
    pub keys: Vec<PathBuf>,
    /// The file with the public keys of nodes, if configured. The file may be missing.
    pub known_nodes: Option<PathBuf>,
    /// The signed trust bundle of the fleet, if configured.
    pub trust: Option<PathBuf>,
    /// The connection to the server.
    pub bus: BusSettings,
}

impl Operator {
    /// Combines the settings. `given` overrides `written`: the text and the path of `operator.toml`, if any.
    ///
    /// # Errors
    /// All wrong or missing settings.
    pub fn new(given: CliOverrides, written: Option<(&str, &Path)>) -> Result<Self, Vec<Diagnostic>> {
        let (file, directory) = read_file(written)?;
        let one = |diagnostic| vec![diagnostic];
        let bus = bus_settings(&given, file.nats, &directory);
        let fleet = given.fleet.or(file.fleet).ok_or_else(|| {
            one(Diagnostic::new("no fleet configured").hint("use --fleet NAME, or set `fleet` in operator.toml"))
        })?;
        check_name("fleet", &fleet).map_err(|error| one(Diagnostic::new(error.to_string())))?;
        let keys = if given.keys.is_empty() {
            file.keys.iter().map(|key| resolve_key_path(&directory, key)).collect()
        } else {
            given.keys
        };
        let bus = bus.map_err(one)?;
        let known_nodes = match given.known_nodes {
            Some(path) => Some(path),
            None => known_nodes_path(written)?,
        };
        Ok(Self { fleet, keys, known_nodes, trust: file.trust.map(|path| directory.join(path)), bus })
    }
}

/// Prefix of a key that an ssh-agent holds.
pub const SSH_AGENT: &str = "ssh-agent:";

/// Resolves a key of `operator.toml`: a file, or `ssh-agent:` with a public key file or a name.
fn resolve_key_path(directory: &Path, key: &Path) -> PathBuf {
    match key.to_str().and_then(|key| key.strip_prefix(SSH_AGENT)) {
        None => directory.join(key),
        Some(name) if !name.is_empty() && fs::is_file(&directory.join(name)) => {
            let mut named = std::ffi::OsString::from(SSH_AGENT);
            named.push(directory.join(name));
            PathBuf::from(named)
        }
        Some(_) => key.to_owned(),
    }
}

/// Returns the connection to the server without a fleet. `given` overrides `written`, as for [`Operator::new`].
///
/// # Errors
/// All wrong settings.
pub fn connection_settings(given: &CliOverrides, written: Option<(&str, &Path)>) -> Result<BusSettings, Vec<Diagnostic>> {
    let (file, directory) = read_file(written)?;
    bus_settings(given, file.nats, &directory).map_err(|wrong| vec![wrong])
}

/// Returns the context of the NATS CLI that `written` names.
///
/// # Errors
/// When `written` can't be read, or `nats` has `context` and other settings.
pub fn configured_context(written: Option<(&str, &Path)>) -> Result<Option<String>, Vec<Diagnostic>> {
    let Some(nats) = read_file(written)?.0.nats else { return Ok(None) };
    if nats.keys_beside_context().next().is_some() {
        let hint = "keep one of the two";
        return Err(vec![Diagnostic::new("`context` in [nats] excludes all other settings of [nats]").hint(hint)]);
    }
    Ok(nats.context)
}

/// Returns the path of the file with the public keys of nodes: from `written`, or `known_nodes` in its directory.
///
/// # Errors
/// All wrong settings.
pub fn known_nodes_path(written: Option<(&str, &Path)>) -> Result<Option<PathBuf>, Vec<Diagnostic>> {
    let (file, directory) = read_file(written)?;
    let beside = || written.is_some().then(|| directory.join("known_nodes"));
    Ok(file.known_nodes.map(|path| directory.join(path)).or_else(beside))
}

fn read_file(written: Option<(&str, &Path)>) -> Result<(OperatorFile, PathBuf), Vec<Diagnostic>> {
    let Some((text, path)) = written else { return Ok((OperatorFile::default(), PathBuf::new())) };
    let name = path.display().to_string();
    Ok((TomlDocument::new(text, &name).read::<OperatorFile>()?, path.parent().unwrap_or(Path::new("")).to_owned()))
}

fn bus_settings(given: &CliOverrides, nats: Option<NatsSettings>, directory: &Path) -> Result<BusSettings, Diagnostic> {
    let mut bus =
        BusSettings { name: "ensign operator".to_owned(), backlog: BusSettings::GATHER_BACKLOG, ..BusSettings::default() };
    let nats = match (&given.context, nats) {
        (Some(context), _) => Some(context.clone()),
        (None, Some(mut nats)) => {
            if nats.user.is_some() && nats.password.is_none() && nats.password_file.is_none() {
                return Err(Diagnostic::new("`user` needs `password` or `password_file`"));
            }
            nats.resolve(directory);
            Some(nats)
        }
        (None, None) => None,
    };
    if let Some(nats) = nats {
        let settings = BusSettings::from_config(&nats, bus.name).map_err(|error| Diagnostic::new(error_chain(&error)))?;
        bus = BusSettings { backlog: bus.backlog, ..settings };
    }
    if let Some(domain) = &given.jetstream_domain {
        bus.jetstream_domain = Some(domain.clone());
    }
    if let Some(domain) = &bus.jetstream_domain {
        check_domain(domain).map_err(Diagnostic::new)?;
    }
    if let Some(server) = &given.server {
        bus.servers = server.split(',').map(|url| url.trim().to_owned()).collect();
    }
    Ok(bus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Credentials;

    #[test]
    fn arguments_override_the_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("seed"), "SUSEED\n").unwrap();
        std::fs::set_permissions(dir.path().join("seed"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let path = dir.path().join("operator.toml");
        let text = "fleet = \"prod\"\nkeys = [\"a.key\", \"/b.key\"]\n[nats]\nservers = [\"tls://n:4222\"]\nnkey = \"seed\"\n";
        let operator = Operator::new(CliOverrides::default(), Some((text, &path))).unwrap();
        assert_eq!((operator.fleet.as_str(), operator.bus.servers), ("prod", vec!["tls://n:4222".to_owned()]));
        assert_eq!(operator.keys, [dir.path().join("a.key"), PathBuf::from("/b.key")]);
        assert!(matches!(operator.bus.credentials, Some(Credentials::NkeySeed(seed)) if seed.reveal() == "SUSEED"));
        assert_eq!(operator.known_nodes, Some(dir.path().join("known_nodes")));
        let agent = "fleet = \"f\"\nkeys = [\"ssh-agent:seed\", \"ssh-agent:alice@host\", \"ssh-agent:\"]\n";
        let operator = Operator::new(CliOverrides::default(), Some((agent, &path))).unwrap();
        let wanted =
            [format!("ssh-agent:{}", dir.path().join("seed").display()), "ssh-agent:alice@host".into(), "ssh-agent:".into()];
        assert_eq!(operator.keys, wanted.map(PathBuf::from));
        let given = CliOverrides {
            fleet: Some("test".into()),
            server: Some("nats://a, nats://b".into()),
            keys: vec!["c".into()],
            known_nodes: Some("k".into()),
            jetstream_domain: Some("hub".into()),
            context: None,
        };
        let operator = Operator::new(given, Some((text, &path))).unwrap();
        assert_eq!((operator.fleet.as_str(), operator.bus.servers.len()), ("test", 2));
        assert_eq!(operator.bus.jetstream_domain.as_deref(), Some("hub"));
        assert_eq!((operator.keys, operator.known_nodes), (vec![PathBuf::from("c")], Some(PathBuf::from("k"))));
    }

    #[test]
    fn errors_name_their_place() {
        let path = Path::new("operator.toml");
        let fleet = |text: &str| Operator::new(CliOverrides::default(), Some((text, path))).unwrap_err()[0].to_string();
        assert!(fleet("flet = \"x\"\n").contains("operator.toml:1:1"), "{}", fleet("flet = \"x\"\n"));
        assert!(fleet("").contains("--fleet"));
        assert!(fleet("fleet = \"a\"\n[nats]\nservers = []\njetstream_domain = \"a.b\"\n").contains("JetStream domain"));
        assert!(fleet("fleet = \"a.b\"").contains("not the name of a fleet"));
        assert!(fleet("fleet = \"a\"\n[nats]\nservers = []\nuser = \"u\"\n").contains("needs `password`"));
    }
}
