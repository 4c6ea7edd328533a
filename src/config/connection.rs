//! `[nats]`: servers, credentials and TLS of the connection.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::model::{HumanDuration, Secret};

use super::document::Checks;

/// Time between two pings to a silent server. The client gives up a connection after three pings without an answer.
pub(super) const PING_INTERVAL: HumanDuration = HumanDuration::seconds(20);

/// The connection. At most one way to log in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatsSettings {
    /// Addresses of the servers, as `nats://host:4222` or `tls://host:4222`.
    #[serde(default)]
    pub servers: Vec<String>,
    /// A context of the NATS CLI that replaces all other keys here: its name, or its file.
    #[serde(default)]
    pub context: Option<String>,
    /// The JetStream domain of the streams, when the agent or operator connects to a leaf node of another domain.
    #[serde(default)]
    pub jetstream_domain: Option<String>,
    /// Time between two pings to a silent server.
    #[serde(default = "ping_interval")]
    pub ping_interval: HumanDuration,
    /// A credentials file: JWT and seed.
    #[serde(default)]
    pub creds: Option<PathBuf>,
    /// A file with an nkey seed.
    #[serde(default)]
    pub nkey: Option<PathBuf>,
    /// A user name.
    #[serde(default)]
    pub user: Option<String>,
    /// The password of the user.
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
    /// The JWT and the seed of a user. Only a context has them.
    #[serde(skip)]
    pub user_jwt: Option<(Secret, Secret)>,
    /// True when TLS begins before the server sends its greeting. Only a context has this option.
    #[serde(skip)]
    pub tls_first: bool,
    /// First tokens of reply subjects, instead of the default.
    #[serde(default)]
    pub inbox_prefix: Option<String>,
}

/// TLS to the server. Certificates are PEM files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificates of the trusted authorities, instead of those of the system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The certificate of the client.
    #[serde(default)]
    pub cert: Option<PathBuf>,
    /// The private key of the certificate.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Refuse a server without TLS.
    #[serde(default)]
    pub required: bool,
}

/// A secret, or the file that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretFrom {
    /// The secret is in the configuration.
    Inline(Secret),
    /// The content of this file, without the line end.
    File(PathBuf),
}

/// A way to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    /// A file with JWT and seed.
    Creds(PathBuf),
    /// A file with an nkey seed.
    Nkey(PathBuf),
    /// User and password.
    User {
        /// The name.
        user: String,
        /// The password.
        password: SecretFrom,
    },
    /// The JWT of a user and its seed.
    Jwt {
        /// The JWT.
        jwt: Secret,
        /// The seed.
        seed: Secret,
    },
    /// A token.
    Token(SecretFrom),
}

fn ping_interval() -> HumanDuration {
    PING_INTERVAL
}

/// Checks the address of a server. An error is the message and a hint, which may be empty.
pub(super) fn check_server(server: &str) -> Result<(), (String, &'static str)> {
    let (scheme, rest) = server.split_once("://").unwrap_or(("nats", server));
    if !matches!(scheme, "nats" | "tls") {
        return Err((format!("a server begins with nats:// or tls://, not {scheme}://"), ""));
    }
    if rest.contains('@') {
        // Logs and states show addresses. The message does not repeat the text, for the same reason.
        return Err(("an address holds no user and no password".to_owned(), "use `user` and `password_file`, or `creds`"));
    }
    if rest.is_empty() || rest.contains(char::is_whitespace) || rest.contains('/') {
        return Err((format!("\"{server}\" is not the address of a server, as nats://host:4222"), ""));
    }
    Ok(())
}

/// Checks the name of a JetStream domain: one token of a subject. An error is the message.
pub fn check_domain(domain: &str) -> Result<(), String> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if domain.is_empty() || !domain.chars().all(is_token) {
        return Err(format!("\"{domain}\" is not the name of a JetStream domain: letters, digits, - and _"));
    }
    Ok(())
}

impl NatsSettings {
    /// Returns the way to log in.
    pub fn login(&self) -> Option<Login> {
        let secret = |inline: &Option<Secret>, file: &Option<PathBuf>| {
            inline.clone().map(SecretFrom::Inline).or_else(|| file.clone().map(SecretFrom::File))
        };
        let user = self.user.clone().zip(secret(&self.password, &self.password_file));
        None.or_else(|| self.creds.clone().map(Login::Creds))
            .or_else(|| self.nkey.clone().map(Login::Nkey))
            .or_else(|| self.user_jwt.clone().map(|(jwt, seed)| Login::Jwt { jwt, seed }))
            .or_else(|| user.map(|(user, password)| Login::User { user, password }))
            .or_else(|| secret(&self.token, &self.token_file).map(Login::Token))
    }

    /// Returns the keys that are set although a context excludes them.
    pub fn keys_beside_context(&self) -> impl Iterator<Item = &'static str> {
        let keys = [
            ("servers", !self.servers.is_empty()),
            ("creds", self.creds.is_some()),
            ("nkey", self.nkey.is_some()),
            ("user", self.user.is_some()),
            ("password", self.password.is_some()),
            ("password_file", self.password_file.is_some()),
            ("token", self.token.is_some()),
            ("token_file", self.token_file.is_some()),
            ("tls", self.tls.is_some()),
            ("jetstream_domain", self.jetstream_domain.is_some()),
            ("inbox_prefix", self.inbox_prefix.is_some()),
        ];
        let is_beside = self.context.is_some();
        keys.into_iter().filter(move |(_, is_set)| is_beside && *is_set).map(|(key, _)| key)
    }

    /// Reports values out of range and keys that exclude or need each other.
    pub(super) fn check(&self, checks: &mut Checks<'_>) {
        let (least, most) = (HumanDuration::seconds(1), HumanDuration::seconds(600));
        checks.range(&["nats", "ping_interval"], self.ping_interval, least, most);
        if self.context.is_some() {
            // A context excludes every other key: no reader remembers which of two values wins.
            for key in self.keys_beside_context() {
                checks.report_with(&["nats", key], format!("`{key}` and `context` exclude each other"), "keep one of the two");
            }
            return;
        }
        if self.servers.is_empty() {
            checks.report_with(&["nats", "servers"], "no server is given", "write servers = [\"nats://host:4222\"]");
        }
        for (message, hint) in self.servers.iter().filter_map(|server| check_server(server).err()) {
            checks.report_with(&["nats", "servers"], message, hint);
        }
        if let Some(message) = self.jetstream_domain.as_deref().and_then(|domain| check_domain(domain).err()) {
            checks.report(&["nats", "jetstream_domain"], message);
        }
        let is_token = |token: &str| !token.is_empty() && !token.contains(|c: char| c.is_whitespace() || "*>".contains(c));
        if self.inbox_prefix.as_deref().is_some_and(|prefix| !prefix.split('.').all(is_token)) {
            checks.report(
                &["nats", "inbox_prefix"],
                "it is not the beginning of a subject: tokens with dots between, no wildcards",
            );
        }
        let (password, token) = (&self.password, &self.token);
        for (name, inline, file) in [("password", password, &self.password_file), ("token", token, &self.token_file)] {
            if inline.is_some() && file.is_some() {
                checks.report(&["nats", name], format!("`{name}` and `{name}_file` exclude each other"));
            }
        }
        let has_password = password.is_some() || self.password_file.is_some();
        if self.user.is_some() != has_password {
            checks.report(&["nats"], "`user` and `password` (or `password_file`) need each other");
        }
        let has_token = token.is_some() || self.token_file.is_some();
        let ways = [self.creds.is_some(), self.nkey.is_some(), self.user.is_some() && has_password, has_token];
        if ways.into_iter().filter(|is_given| *is_given).count() > 1 {
            checks.report_with(&["nats"], "more than one way to log in is given", "keep one of creds, nkey, user, token");
        }
        if self.tls.as_ref().is_some_and(|tls| tls.cert.is_some() != tls.key.is_some()) {
            checks.report(&["nats", "tls"], "`cert` and `key` need each other");
        }
    }

    /// Resolves relative paths against `directory`.
    pub fn resolve(&mut self, directory: &Path) {
        let tls = self.tls.iter_mut().flat_map(|tls| [&mut tls.ca, &mut tls.cert, &mut tls.key]);
        let files = [&mut self.creds, &mut self.nkey, &mut self.password_file, &mut self.token_file];
        for path in files.into_iter().chain(tls).flatten() {
            *path = directory.join(&path);
        }
    }
}
