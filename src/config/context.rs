//! A context of the NATS CLI (NATS ADR-21): how to reach a server, in a JSON file of its own, as `nats context add` writes
//! it. What it means there it means here; what can't be done here is said, and nothing of it is left out in silence.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::diag::Diagnostic;
use crate::model::Secret;

use super::file::PingInterval;
use super::{Login, Nats, SecretFrom, Tls, server_address};

/// What the NATS CLI connects to when a context names no server.
const DEFAULT_SERVER: &str = "nats://127.0.0.1:4222";
/// Keys that say nothing about the connection.
const NOTES: &[&str] = &["name", "description", "color_scheme"];
/// Keys that can't be followed, and what to do instead.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("nsc", "write the credentials with `nsc generate creds` and name their file in `creds`"),
    ("socks_proxy", "Ensign connects to the server itself"),
    ("jetstream_domain", "use a context of the account that has the streams"),
    ("jetstream_api_prefix", "use a context of the account that has the streams"),
    ("jetstream_event_prefix", "use a context of the account that has the streams"),
    ("windows_cert_store", "use `cert` and `key`"),
    ("windows_cert_match_by", "use `cert` and `key`"),
    ("windows_cert_match", "use `cert` and `key`"),
    ("windows_ca_certs_match", "use `ca`"),
];

/// Reads a context from the text of its file, called `name`. `~` in it is `home`.
///
/// # Errors
/// The first thing that is wrong, or can't be done.
pub fn read(text: &str, name: &str, home: Option<&Path>) -> Result<Nats, Diagnostic> {
    let written: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
        // Its message may show a part of the text: the place is enough.
        Diagnostic::new(format!("{name}:{}:{}: this is no NATS context", error.line(), error.column()))
    })?;
    let given =
        |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && value != "" && value != &Value::Array(vec![]);
    Context { written: written.into_iter().filter(|(_, value)| given(value)).collect(), name, home }.nats()
}

/// What a context says, without what it leaves empty.
struct Context<'a> {
    written: Map<String, Value>,
    name: &'a str,
    home: Option<&'a Path>,
}

impl Context<'_> {
    fn nats(mut self) -> Result<Nats, Diagnostic> {
        NOTES.iter().for_each(|key| drop(self.written.remove(*key)));
        if let Some((key, hint)) = UNSUPPORTED.iter().find(|(key, _)| self.written.contains_key(*key)) {
            return Err(self.wrong(&format!("`{key}` is not supported")).hint(*hint));
        }
        let servers = self.servers()?;
        let login = self.login()?;
        let (cert, key, ca) = (self.path("cert")?, self.path("key")?, self.path("ca")?);
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(self.wrong("`cert` and `key` need each other")),
        };
        let tls_first = self.written.remove("tls_first") == Some(Value::Bool(true));
        let tls = (identity.is_some() || ca.is_some()).then_some(Tls { ca, identity, required: false });
        let inbox_prefix = self.text("inbox_prefix")?;
        match self.written.keys().next() {
            Some(key) => Err(self.wrong(&format!("the key `{key}` is not known here"))),
            None => Ok(Nats {
                servers,
                ping_interval: PingInterval::default().0.get(),
                login,
                tls,
                tls_first,
                inbox_prefix,
                context: None,
            }),
        }
    }

    fn wrong(&self, what: &str) -> Diagnostic {
        Diagnostic::new(format!("the NATS context {}: {what}", self.name))
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, Diagnostic> {
        match self.written.remove(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(&format!("`{key}` must be a text"))),
        }
    }

    /// A path as the NATS CLI takes it: `~/` is the home directory, `file://` may stand before it.
    fn path(&mut self, key: &str) -> Result<Option<PathBuf>, Diagnostic> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let path = text.strip_prefix("file://").unwrap_or(&text);
        if path.contains("://") || path.starts_with("data:") {
            return Err(self.wrong(&format!("`{key}` must be a file")).hint("write it to a file, and name that"));
        }
        match (path.strip_prefix("~/"), self.home) {
            (Some(rest), Some(home)) => Ok(Some(home.join(rest))),
            (Some(_), None) => Err(self.wrong(&format!("`{key}` begins with ~, and there is no home directory"))),
            (None, _) => Ok(Some(PathBuf::from(path))),
        }
    }

    /// A secret that stands in the context itself. The CLI can also fetch it from elsewhere.
    fn secret(&mut self, key: &str) -> Result<Option<Secret>, Diagnostic> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        if ["op://", "env://", "file://", "nsc://", "data:"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err(self.wrong(&format!("`{key}` refers to a secret elsewhere, which is not supported")));
        }
        Ok(Some(Secret::new(text)))
    }

    fn servers(&mut self) -> Result<Vec<String>, Diagnostic> {
        let url = self.text("url")?.unwrap_or_else(|| DEFAULT_SERVER.to_owned());
        let servers: Vec<String> = url.split(',').map(|server| server.trim().to_owned()).collect();
        match servers.iter().find_map(|server| server_address(server).err()) {
            Some((why, hint)) => {
                let wrong = self.wrong(&format!("`url`: {why}"));
                Err(if hint.is_empty() { wrong } else { wrong.hint("use `user` and `password`, or `creds`") })
            }
            None => Ok(servers),
        }
    }

    fn login(&mut self) -> Result<Option<Login>, Diagnostic> {
        let user = match (self.text("user")?, self.secret("password")?) {
            (Some(user), Some(password)) => Some(Login::User { user, password: SecretFrom::Here(password) }),
            (None, None) => None,
            _ => return Err(self.wrong("`user` and `password` need each other")),
        };
        let jwt = match (self.secret("user_jwt")?, self.secret("user_seed")?) {
            (Some(jwt), Some(seed)) => Some(Login::Jwt { jwt, seed }),
            (None, None) => None,
            _ => return Err(self.wrong("`user_jwt` and `user_seed` need each other")),
        };
        let creds = self.path("creds")?.map(Login::Creds);
        let nkey = self.path("nkey")?.map(Login::Nkey);
        let token = self.secret("token")?.map(|token| Login::Token(SecretFrom::Here(token)));
        let mut ways: Vec<Login> = [user, creds, nkey, jwt, token].into_iter().flatten().collect();
        if ways.len() > 1 {
            let hint = "keep one of user, creds, nkey, user_jwt, token";
            return Err(self.wrong("more than one way to log in is given").hint(hint));
        }
        Ok(ways.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Nats, Diagnostic> {
        read(text, "prod", Some(Path::new("/home/me")))
    }

    #[test]
    fn what_a_context_says_is_used() {
        let nats = parsed(
            r#"{"description": "x", "url": "nats://a:4222, tls://b", "token": "", "user": "u", "password": "hunter2", "creds": "",
                "cert": "~/c.pem", "key": "/k.pem", "ca": "file:///ca.pem", "nsc": "", "inbox_prefix": "_INBOX_ops",
                "tls_first": true, "color_scheme": "red", "windows_ca_certs_match": null, "jetstream_domain": ""}"#,
        )
        .unwrap();
        assert_eq!(nats.servers, ["nats://a:4222", "tls://b"]);
        let Some(Login::User { user, password: SecretFrom::Here(password) }) = &nats.login else { panic!() };
        assert_eq!((user.as_str(), password.reveal()), ("u", "hunter2"));
        let identity = Some(("/home/me/c.pem".into(), "/k.pem".into()));
        assert_eq!(nats.tls, Some(Tls { ca: Some("/ca.pem".into()), identity, required: false }));
        assert_eq!((nats.inbox_prefix.as_deref(), nats.tls_first), (Some("_INBOX_ops"), true));
        let least = parsed("{}").unwrap();
        assert_eq!((least.servers, least.login, least.tls), (vec![DEFAULT_SERVER.to_owned()], None, None));
        for (text, wanted) in [
            (r#"{"creds": "~/n.creds"}"#, Login::Creds("/home/me/n.creds".into())),
            (r#"{"nkey": "/n.nk"}"#, Login::Nkey("/n.nk".into())),
            (r#"{"token": "t"}"#, Login::Token(SecretFrom::Here(Secret::new("t")))),
            (r#"{"user_jwt": "j", "user_seed": "s"}"#, Login::Jwt { jwt: Secret::new("j"), seed: Secret::new("s") }),
        ] {
            assert_eq!(parsed(text).unwrap().login, Some(wanted));
        }
    }

    #[test]
    fn what_can_not_be_done_is_said() {
        for (text, said) in [
            (r#"{"nsc": "nsc://o/a/u"}"#, "`nsc` is not supported"),
            (r#"{"socks_proxy": "socks5://h"}"#, "`socks_proxy` is not supported"),
            (r#"{"jetstream_domain": "hub"}"#, "`jetstream_domain` is not supported"),
            (r#"{"creds": "op://vault/item"}"#, "`creds` must be a file"),
            (r#"{"user": "u", "password": "env://PW"}"#, "`password` refers to a secret elsewhere"),
            (r#"{"user": "u"}"#, "`user` and `password` need each other"),
            (r#"{"creds": "/a", "token": "t"}"#, "more than one way to log in"),
            (r#"{"cert": "/a"}"#, "`cert` and `key` need each other"),
            (r#"{"url": "nats://u:hunter2@h"}"#, "an address holds no user and no password"),
            (r#"{"url": "ws://h"}"#, "a server begins with nats:// or tls://, not ws://"),
            (r#"{"url": 4222}"#, "`url` must be a text"),
            (r#"{"quantum": "yes"}"#, "the key `quantum` is not known here"),
            (r#"{"token": "hunter2" oops"#, "prod:1:21: this is no NATS context"),
        ] {
            let wrong = parsed(text).unwrap_err();
            assert!(wrong.message.contains(said) && wrong.message.contains("prod"), "{text}: {wrong}");
            assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
        }
    }
}
