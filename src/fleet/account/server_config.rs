//! The configuration of a NATS server in operator mode, with the account of one fleet.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use url::{Host, Url};

/// The port of NATS.
const DEFAULT_PORT: u16 = 4222;

/// The address of a server, from its URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// The URL for clients, with scheme and port.
    pub url: String,
    /// The address to listen on: loopback for a loopback URL, all addresses for any other.
    pub listen: String,
    /// True for `tls://`.
    pub tls: bool,
}

/// A text that is not the URL of one NATS server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ServerAddressError(&'static str);

impl ServerAddress {
    /// Parses a URL, as `nats://host:4222`, `tls://host`, or `host`.
    ///
    /// # Errors
    /// When the text is not such a URL. The message does not repeat the text, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, ServerAddressError> {
        let full = if text.contains("://") { text.to_owned() } else { format!("nats://{text}") };
        let url = Url::parse(&full).map_err(|_| ServerAddressError("it is not the URL of one server"))?;
        let tls = match url.scheme() {
            "nats" => false,
            "tls" => true,
            _ => return Err(ServerAddressError("the URL of a server begins with nats:// or tls://")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(ServerAddressError("the URL holds no user and no password: the command makes credentials"));
        }
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(ServerAddressError("the URL of a server has only a host and a port"));
        }
        let host = url.host_str().filter(|host| is_host(host)).ok_or(ServerAddressError("the URL has no valid host"))?;
        let port = url.port().unwrap_or(DEFAULT_PORT);
        let loopback = match url.host() {
            Some(Host::Domain(name)) => name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        let interface = match host {
            "localhost" => "127.0.0.1",
            _ if loopback => host,
            _ => "0.0.0.0",
        };
        Ok(Self { url: format!("{}://{host}:{port}", url.scheme()), listen: format!("{interface}:{port}"), tls })
    }
}

/// True for a name or an address that needs no quoting in any configuration.
fn is_host(host: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    !host.is_empty() && host.chars().all(allowed)
}

/// The certificate of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// The certificate file on the host of the server.
    pub cert: PathBuf,
    /// The private key file on the host of the server.
    pub key: PathBuf,
}

/// The parts of a server configuration.
#[derive(Debug)]
pub(super) struct ServerConfig<'a> {
    pub(super) fleet: &'a str,
    pub(super) server: &'a ServerAddress,
    pub(super) tls: Option<&'a ServerTls>,
    /// The directory on the host of the server for streams and accounts.
    pub(super) data: &'a Path,
    pub(super) operator_jwt: &'a str,
    /// The public keys and JWTs of the system account and of the fleet's account.
    pub(super) accounts: [(&'a str, &'a str); 2],
}

impl ServerConfig<'_> {
    /// Returns the text of the configuration. No part of it is secret.
    pub(super) fn text(&self) -> String {
        let tls = match self.tls {
            Some(tls) => format!("tls {{ cert_file: {}, key_file: {} }}", quoted(&tls.cert), quoted(&tls.key)),
            None => "# Without TLS, anyone on the network can read the messages of the fleet, but can't change them.\n\
                 # tls { cert_file: \"/etc/nats/server.pem\", key_file: \"/etc/nats/server.key\" }"
                .to_owned(),
        };
        let [(system, system_jwt), (account, account_jwt)] = self.accounts;
        format!(
            "# A NATS server (2.10 or later) for the fleet \"{fleet}\", in operator mode.\n\
             # This file holds no secret. New nodes and revoked nodes need no change here.\n\n\
             server_name: ensign-{fleet}\n\
             listen: \"{listen}\"\n\n\
             {tls}\n\n\
             jetstream {{ store_dir: {streams} }}\n\n\
             operator: \"{operator}\"\n\
             system_account: {system}\n\
             resolver {{ type: full, dir: {resolver}, allow_delete: false, interval: \"2m\" }}\n\
             resolver_preload {{\n  {system}: \"{system_jwt}\"\n  {account}: \"{account_jwt}\"\n}}\n",
            fleet = self.fleet,
            listen = self.server.listen,
            streams = quoted(&self.data.join("jetstream")),
            resolver = quoted(&self.data.join("accounts")),
            operator = self.operator_jwt,
        )
    }
}

/// Quotes a path for the configuration.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_from_the_url() {
        for (text, url, listen) in [
            ("nats://127.0.0.1:4300", "nats://127.0.0.1:4300", "127.0.0.1:4300"),
            ("localhost", "nats://localhost:4222", "127.0.0.1:4222"),
            ("nats://[::1]:5", "nats://[::1]:5", "[::1]:5"),
            ("tls://nats.example.org", "tls://nats.example.org:4222", "0.0.0.0:4222"),
            ("192.0.2.1:4222", "nats://192.0.2.1:4222", "0.0.0.0:4222"),
        ] {
            let address = ServerAddress::parse(text).unwrap();
            assert_eq!((address.url.as_str(), address.listen.as_str(), address.tls), (url, listen, text.starts_with("tls")));
        }
        let wrong = [
            "",
            "http://host",
            "nats://u:p@host",
            "nats://t@host",
            "nats://host/x",
            "nats://host:99999",
            "a b",
            "nats://",
            "h1,h2",
            "nats://h?x",
            "nats://ho\"st",
        ];
        for text in wrong {
            assert!(ServerAddress::parse(text).is_err(), "{text}");
        }
    }
}
