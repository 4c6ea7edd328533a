//! Credentials of a connection: from settings, with secrets read once from their files, and from URLs.

use std::path::Path;

use crate::config::{self, Login, SecretFrom};
use crate::host::fs::{self, FsError};
use crate::model::Secret;

use super::{BusSettings, Credentials, Tls};

/// Longest file with a password, token or seed, in bytes.
const MAX_SECRET: u64 = 64 * 1024;

/// Returns the credentials in the URL of a server: `nats://user:password@host`, `nats://token@host`.
///
/// The client library ignores these.
pub(super) fn from_url(url: &str) -> Option<Credentials> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let (login, _) = authority.rsplit_once('@')?;
    Some(match login.split_once(':') {
        Some((user, password)) => {
            Credentials::UserPassword { user: percent_decode(user), password: Secret::new(percent_decode(password)) }
        }
        None => Credentials::Token(Secret::new(percent_decode(login))),
    })
}

/// Decodes percent-encoding (RFC 3986, section 2.1). Invalid sequences stay unchanged.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, after)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        match after.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(b'%');
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

impl BusSettings {
    /// Returns the connection of these settings for a client `name`.
    ///
    /// # Errors
    /// When a file with a secret can't be read, or others can read it.
    pub fn from_config(nats: &config::NatsSettings, name: impl Into<String>) -> Result<Self, FsError> {
        Ok(Self {
            servers: nats.servers.clone(),
            name: name.into(),
            credentials: nats.login().map(credentials).transpose()?,
            tls: nats.tls.clone().map(Tls::check_key_permissions).transpose()?,
            tls_first: nats.tls_first,
            jetstream_domain: nats.jetstream_domain.clone(),
            ping: nats.ping_interval.as_std(),
            inbox_prefix: nats.inbox_prefix.clone(),
            ..Self::default()
        })
    }
}

impl Tls {
    /// Checks that only the owner can read the private key.
    ///
    /// # Errors
    /// When others can read the key, or the file can't be examined.
    pub fn check_key_permissions(self) -> Result<Self, FsError> {
        // The library reads the file.
        self.key.as_deref().map_or(Ok(()), fs::check_private)?;
        Ok(self)
    }
}

fn credentials(login: Login) -> Result<Credentials, FsError> {
    Ok(match login {
        Login::Creds(path) => {
            // The library reads the file.
            fs::check_private(&path)?;
            Credentials::CredsFile(path)
        }
        Login::Nkey(path) => Credentials::NkeySeed(secret_file(&path)?),
        Login::User { user, password } => Credentials::UserPassword { user, password: secret(password)? },
        Login::Jwt { jwt, seed } => Credentials::Jwt { jwt, seed },
        Login::Token(token) => Credentials::Token(secret(token)?),
    })
}

fn secret(from: SecretFrom) -> Result<Secret, FsError> {
    match from {
        SecretFrom::Inline(secret) => Ok(secret),
        SecretFrom::File(path) => secret_file(&path),
    }
}

fn secret_file(path: &Path) -> Result<Secret, FsError> {
    let text = Secret::new(fs::read_private_text(path, MAX_SECRET)?);
    Ok(Secret::new(text.reveal().trim_end_matches(['\r', '\n'])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_from_their_files_without_the_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        std::fs::write(&path, " hunter2 \r\n").unwrap();
        assert!(matches!(secret_file(&path), Err(FsError::UnsafePermissions { .. })));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let login = Login::User { user: "u".into(), password: SecretFrom::File(path.clone()) };
        let Credentials::UserPassword { password, .. } = credentials(login).unwrap() else { panic!() };
        assert_eq!(password.reveal(), " hunter2 ");
        assert!(credentials(Login::Token(SecretFrom::File(path.join("x")))).is_err());
    }

    #[test]
    fn urls_may_have_credentials() {
        let shown = |url| match from_url(url) {
            Some(Credentials::UserPassword { user, password }) => format!("{user} {}", password.reveal()),
            Some(Credentials::Token(token)) => token.reveal().to_owned(),
            _ => "nobody".to_owned(),
        };
        for (url, wanted) in [
            ("nats://u:p@host:4222", "u p"),
            ("u:p%40%2f@host", "u p@/"),
            ("tls://s3cret@host", "s3cret"),
            ("nats://host:4222", "nobody"),
            ("nats://host/a@b", "nobody"),
            ("nats://u:100%@h", "u 100%"),
        ] {
            assert_eq!(shown(url), wanted, "{url}");
        }
    }
}
