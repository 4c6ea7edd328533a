//! Which hosts and addresses may be asked.
//!
//! Names are resolved here, and the connection goes to an address that was looked at: a name that
//! resolves to something else a moment later gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::{HttpError, Policy, shown};

/// Checks the host of a URL; an address in the place of a name is checked here, as nothing resolves it.
pub(super) fn allowed(url: &Url, policy: &Policy) -> Result<(), HttpError> {
    may_ask(url.host_str().unwrap_or_default(), policy).map_err(|why| HttpError::Denied { url: shown(url.as_str()), why })
}

/// Whether a host may be asked for anything, by its name or address. To what a name leads is told by [`vet`].
///
/// # Errors
/// Why not, in words.
pub fn may_ask(host: &str, policy: &Policy) -> Result<(), String> {
    if policy.loopback && is_loopback(host) {
        return Ok(());
    }
    if let Some(hosts) = &policy.hosts {
        return match is_listed(host, hosts) {
            true => Ok(()),
            false => Err(format!("\"{host}\" is not among the `fetch_hosts` of this host")),
        };
    }
    match host.trim_matches(['[', ']']).parse() {
        Ok(address) if !policy.internal && is_internal(address) => Err(internal(address)),
        _ => Ok(()),
    }
}

/// Those of the addresses of a host that may be connected to.
///
/// # Errors
/// When there is none, in words.
pub fn vet(host: &str, found: Vec<SocketAddr>, policy: &Policy) -> Result<Vec<SocketAddr>, String> {
    let listed = policy.internal || policy.hosts.as_ref().is_some_and(|hosts| is_listed(host, hosts));
    let first = found.first().map(SocketAddr::ip);
    let own = policy.loopback && is_loopback(host);
    let may = |address: IpAddr| listed || if own { address.is_loopback() } else { !is_internal(address) };
    let vetted: Vec<SocketAddr> = found.into_iter().filter(|address| may(address.ip())).collect();
    match (vetted.is_empty(), first) {
        (true, Some(address)) => Err(internal(address)),
        (true, None) => Err(format!("\"{host}\" has no address")),
        (false, _) => Ok(vetted),
    }
}

/// True for what is written as this machine's own loopback: `localhost`, `127.0.0.1`, `[::1]`. What a name leads to is not
/// asked for here.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn internal(address: IpAddr) -> String {
    format!("{address} is internal to this machine; name the host in `fetch_hosts` to allow it")
}

/// Host names are the same in upper and lower case; `*.example.org` stands for every name below it.
fn is_listed(host: &str, hosts: &[String]) -> bool {
    let plain = |name: &str| name.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    let host = plain(host);
    hosts.iter().map(|listed| plain(listed)).any(|listed| match listed.strip_prefix("*.") {
        Some(domain) => host.strip_suffix(domain).is_some_and(|below| below.len() > 1 && below.ends_with('.')),
        None => listed == host,
    })
}

/// Resolves names to addresses that may be connected to.
pub(super) struct Vetted(Policy);

impl Vetted {
    /// By this policy.
    pub(super) fn new(policy: &Policy) -> Self {
        Self(policy.clone())
    }
}

impl Resolve for Vetted {
    fn resolve(&self, name: Name) -> Resolving {
        let (host, policy) = (name.as_str().to_owned(), self.0.clone());
        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            Ok(Box::new(vet(&host, found, &policy)?.into_iter()) as Addrs)
        })
    }
}

/// True for addresses that lead to this machine itself, its link, or the metadata service of its cloud.
fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_internal_v4(v4),
        IpAddr::V6(v6) => embedded_v4(v6).map_or_else(|| is_internal_v6(v6), is_internal_v4),
    }
}

fn is_internal_v4(v4: Ipv4Addr) -> bool {
    // 100.100.100.200 and 192.0.0.192 are metadata services outside of 169.254.0.0/16.
    let metadata = matches!(v4.octets(), [100, 100, 100, 200] | [192, 0, 0, 192]);
    v4.octets().starts_with(&[0]) || v4.is_loopback() || v4.is_link_local() || v4.is_broadcast() || v4.is_multicast() || metadata
}

fn is_internal_v6(v6: Ipv6Addr) -> bool {
    // fd00:ec2::254 is a metadata service that is not link-local.
    let metadata = v6.segments().starts_with(&[0xfd00, 0x0ec2]);
    v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local() || metadata
}

/// The IPv4 address within one that is mapped (`::ffff:0:0/96`), compatible (`::/96`), or NAT64 (`64:ff9b::/96`).
fn embedded_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, high, low] = v6.segments();
    let mapped = matches!([a, b, c, d, e, f], [0, 0, 0, 0, 0, 0xffff | 0] | [0x64, 0xff9b, 0, 0, 0, 0]);
    let [w, x] = high.to_be_bytes();
    let [y, z] = low.to_be_bytes();
    mapped.then(|| Ipv4Addr::new(w, x, y, z))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_listed_by_name_or_domain() {
        let hosts = ["Good.example".to_owned(), "*.cdn.example".to_owned(), "::1".to_owned()];
        for (host, wanted) in [
            ("good.example", true),
            ("GOOD.example.", true),
            ("a.cdn.example", true),
            ("a.b.cdn.example", true),
            ("[::1]", true),
            ("cdn.example", false),
            (".cdn.example", false),
            ("evilcdn.example", false),
            ("good.example.evil", false),
        ] {
            assert_eq!(is_listed(host, &hosts), wanted, "{host}");
        }
    }

    #[test]
    fn loopback_is_what_says_so_and_is_so() {
        let policy = Policy { hosts: Some(vec!["good.example".to_owned()]), internal: false, loopback: true };
        for host in ["localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "[::1]", "::1"] {
            assert!(may_ask(host, &policy).is_ok(), "{host}");
            assert!(may_ask(host, &Policy { loopback: false, ..policy.clone() }).is_err(), "{host}");
        }
        for host in ["localhost.example", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1", "evil.example", "2130706433"] {
            assert!(may_ask(host, &policy).is_err(), "{host}");
        }
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 80);
        assert_eq!(vet("localhost", vec![at("127.0.0.1"), at("10.0.0.1")], &policy), Ok(vec![at("127.0.0.1")]));
        // A name that leads to it says nothing of it.
        let any = Policy { hosts: None, ..policy };
        assert!(vet("rebound.example", vec![at("127.0.0.1")], &any).is_err());
        assert!(vet("localhost", vec![at("169.254.169.254")], &any).is_err());
    }

    #[test]
    fn internal_addresses_are_known() {
        for (address, expected) in [
            ("10.0.0.1", false),
            ("192.168.1.1", false),
            ("1.1.1.1", false),
            ("2606:4700::1", false),
            ("127.8.9.1", true),
            ("100.100.100.200", true),
            ("fe80::1", true),
            ("fd00:ec2::254", true),
            ("64:ff9b::7f00:1", true),
            ("::", true),
            ("224.0.0.1", true),
        ] {
            assert_eq!(is_internal(address.parse().unwrap()), expected, "{address}");
        }
    }
}
