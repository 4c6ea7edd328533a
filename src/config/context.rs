//! Contexts of the NATS CLI (NATS ADR-21): a connection in a JSON file of its own, as `nats context add` writes it.
//!
//! Every key has the meaning that the NATS CLI gives it. A key that Ensign does not support is an error, never ignored.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::diag::Diagnostic;
use crate::model::Secret;

use super::connection::{NatsSettings, PING_INTERVAL, Tls, check_domain, check_server};

/// The server of a context without `url`, as in the NATS CLI.
const DEFAULT_SERVER: &str = "nats://127.0.0.1:4222";
/// Keys without a meaning for the connection.
const NOTES: &[&str] = &["name", "description", "color_scheme"];
/// Keys that Ensign does not support, each with a replacement.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("nsc", "write the credentials with `nsc generate creds` and name their file in `creds`"),
    ("socks_proxy", "Ensign connects to the server itself"),
    ("jetstream_api_prefix", "use `jetstream_domain`, or a context of the account that has the streams"),
    ("jetstream_event_prefix", "use a context of the account that has the streams"),
    ("windows_cert_store", "use `cert` and `key`"),
    ("windows_cert_match_by", "use `cert` and `key`"),
    ("windows_cert_match", "use `cert` and `key`"),
    ("windows_ca_certs_match", "use `ca`"),
];

/// Reads a context from the text of its file, called `name`. `~` in it is `home`.
///
/// # Errors
/// The first mistake, or the first key without support.
pub fn read(text: &str, name: &str, home: Option<&Path>) -> Result<NatsSettings, Diagnostic> {
    let written: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
        // Its message may show a part of the text: the place is enough.
        Diagnostic::new(format!("{name}:{}:{}: not a NATS context", error.line(), error.column()))
    })?;
    let given =
        |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && value != "" && value != &Value::Array(vec![]);
    Context { written: written.into_iter().filter(|(_, value)| given(value)).collect(), name, home }.nats()
}

/// The keys of a context that are not empty.
struct Context<'a> {
    written: Map<String, Value>,
    name: &'a str,
    home: Option<&'a Path>,
}

impl Context<'_> {
    fn nats(mut self) -> Result<NatsSettings, Diagnostic> {
        NOTES.iter().for_each(|key| drop(self.written.remove(*key)));
        if let Some((key, hint)) = UNSUPPORTED.iter().find(|(key, _)| self.written.contains_key(*key)) {
            return Err(self.context_error(&format!("`{key}` is not supported")).hint(*hint));
        }
        let servers = self.servers()?;
        let (user, password) = (self.text("user")?, self.secret("password")?);
        let (jwt, seed) = (self.secret("user_jwt")?, self.secret("user_seed")?);
        let (creds, nkey, token) = (self.path("creds")?, self.path("nkey")?, self.secret("token")?);
        let (cert, key, ca) = (self.path("cert")?, self.path("key")?, self.path("ca")?);
        let pairs = [
            ("user", user.is_some(), "password", password.is_some()),
            ("user_jwt", jwt.is_some(), "user_seed", seed.is_some()),
            ("cert", cert.is_some(), "key", key.is_some()),
        ];
        if let Some((one, _, other, _)) = pairs.iter().find(|(_, one, _, other)| one != other) {
            return Err(self.context_error(&format!("`{one}` and `{other}` need each other")));
        }
        let ways = [user.is_some(), creds.is_some(), nkey.is_some(), jwt.is_some(), token.is_some()];
        if ways.into_iter().filter(|is_given| *is_given).count() > 1 {
            let hint = "keep one of user, creds, nkey, user_jwt, token";
            return Err(self.context_error("more than one way to log in is given").hint(hint));
        }
        let tls_first = self.written.remove("tls_first") == Some(Value::Bool(true));
        let inbox_prefix = self.text("inbox_prefix")?;
        let jetstream_domain = self.text("jetstream_domain")?;
        if let Some(message) = jetstream_domain.as_deref().and_then(|domain| check_domain(domain).err()) {
            return Err(self.context_error(&format!("`jetstream_domain`: {message}")));
        }
        if let Some(key) = self.written.keys().next() {
            return Err(self.context_error(&format!("unknown key `{key}`")));
        }
        Ok(NatsSettings {
            servers,
            context: None,
            jetstream_domain,
            ping_interval: PING_INTERVAL,
            creds,
            nkey,
            user,
            password,
            password_file: None,
            token,
            token_file: None,
            tls: (cert.is_some() || ca.is_some()).then_some(Tls { ca, cert, key, required: false }),
            user_jwt: jwt.zip(seed),
            tls_first,
            inbox_prefix,
        })
    }

    fn context_error(&self, what: &str) -> Diagnostic {
        Diagnostic::new(format!("the NATS context {}: {what}", self.name))
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, Diagnostic> {
        match self.written.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.context_error(&format!("`{key}` must be a string"))),
        }
    }

    /// Returns a path in the form of the NATS CLI: `~/` is the home directory, and `file://` may precede it.
    fn path(&mut self, key: &str) -> Result<Option<PathBuf>, Diagnostic> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let path = text.strip_prefix("file://").unwrap_or(&text);
        if path.contains("://") || path.starts_with("data:") {
            return Err(self.context_error(&format!("`{key}` must be a file")).hint("write it to a file, and name that"));
        }
        match (path.strip_prefix("~/"), self.home) {
            (Some(rest), Some(home)) => Ok(Some(home.join(rest))),
            (Some(_), None) => Err(self.context_error(&format!("`{key}` begins with ~, and there is no home directory"))),
            (None, _) => Ok(Some(PathBuf::from(path))),
        }
    }

    /// Returns a secret that is in the context itself. The CLI can also fetch secrets from elsewhere.
    fn secret(&mut self, key: &str) -> Result<Option<Secret>, Diagnostic> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        if ["op://", "env://", "file://", "nsc://", "data:"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err(self.context_error(&format!("`{key}` refers to a secret elsewhere, which is not supported")));
        }
        Ok(Some(Secret::new(text)))
    }

    fn servers(&mut self) -> Result<Vec<String>, Diagnostic> {
        let url = self.text("url")?.unwrap_or_else(|| DEFAULT_SERVER.to_owned());
        let servers: Vec<String> = url.split(',').map(|server| server.trim().to_owned()).collect();
        match servers.iter().find_map(|server| check_server(server).err()) {
            Some((why, hint)) => {
                let wrong = self.context_error(&format!("`url`: {why}"));
                Err(if hint.is_empty() { wrong } else { wrong.hint("use `user` and `password`, or `creds`") })
            }
            None => Ok(servers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Login, SecretFrom};

    fn parsed(text: &str) -> Result<NatsSettings, Diagnostic> {
        read(text, "prod", Some(Path::new("/home/me")))
    }

    #[test]
    fn a_context_gives_the_connection() {
        let nats = parsed(
            r#"{"description": "x", "url": "nats://a:4222, tls://b", "token": "", "user": "u", "password": "hunter2", "creds": "",
                "cert": "~/c.pem", "key": "/k.pem", "ca": "file:///ca.pem", "nsc": "", "inbox_prefix": "_INBOX_ops",
                "tls_first": true, "color_scheme": "red", "windows_ca_certs_match": null, "jetstream_domain": ""}"#,
        )
        .unwrap();
        assert_eq!(nats.servers, ["nats://a:4222", "tls://b"]);
        let Some(Login::User { user, password: SecretFrom::Inline(password) }) = nats.login() else { panic!() };
        assert_eq!((user.as_str(), password.reveal()), ("u", "hunter2"));
        let (cert, key) = (Some("/home/me/c.pem".into()), Some("/k.pem".into()));
        assert_eq!(nats.tls, Some(Tls { ca: Some("/ca.pem".into()), cert, key, required: false }));
        assert_eq!((nats.inbox_prefix.as_deref(), nats.tls_first), (Some("_INBOX_ops"), true));
        assert_eq!(nats.jetstream_domain, None);
        let hub = parsed(r#"{"jetstream_domain": "hub"}"#).unwrap();
        assert_eq!(hub.jetstream_domain.as_deref(), Some("hub"));
        let least = parsed("{}").unwrap();
        assert_eq!((least.login(), least.servers, least.tls), (None, vec![DEFAULT_SERVER.to_owned()], None));
        for (text, wanted) in [
            (r#"{"creds": "~/n.creds"}"#, Login::Creds("/home/me/n.creds".into())),
            (r#"{"nkey": "/n.nk"}"#, Login::Nkey("/n.nk".into())),
            (r#"{"token": "t"}"#, Login::Token(SecretFrom::Inline(Secret::new("t")))),
            (r#"{"user_jwt": "j", "user_seed": "s"}"#, Login::Jwt { jwt: Secret::new("j"), seed: Secret::new("s") }),
        ] {
            assert_eq!(parsed(text).unwrap().login(), Some(wanted));
        }
    }

    #[test]
    fn unsupported_keys_are_errors() {
        for (text, said) in [
            (r#"{"nsc": "nsc://o/a/u"}"#, "`nsc` is not supported"),
            (r#"{"socks_proxy": "socks5://h"}"#, "`socks_proxy` is not supported"),
            (r#"{"jetstream_api_prefix": "x"}"#, "`jetstream_api_prefix` is not supported"),
            (r#"{"jetstream_domain": "a.b"}"#, "`jetstream_domain`: \"a.b\" is not the name of a JetStream domain"),
            (r#"{"creds": "op://vault/item"}"#, "`creds` must be a file"),
            (r#"{"user": "u", "password": "env://PW"}"#, "`password` refers to a secret elsewhere"),
            (r#"{"user": "u"}"#, "`user` and `password` need each other"),
            (r#"{"creds": "/a", "token": "t"}"#, "more than one way to log in"),
            (r#"{"cert": "/a"}"#, "`cert` and `key` need each other"),
            (r#"{"url": "nats://u:hunter2@h"}"#, "an address holds no user and no password"),
            (r#"{"url": "ws://h"}"#, "a server begins with nats:// or tls://, not ws://"),
            (r#"{"url": 4222}"#, "`url` must be a string"),
            (r#"{"quantum": "yes"}"#, "unknown key `quantum`"),
            (r#"{"token": "hunter2" oops"#, "prod:1:21: not a NATS context"),
        ] {
            let wrong = parsed(text).unwrap_err();
            assert!(wrong.message.contains(said) && wrong.message.contains("prod"), "{text}: {wrong}");
            assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
        }
    }
}
