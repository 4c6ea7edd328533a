//! Limits on the hosts and addresses of HTTP requests.
//!
//! Names are resolved here, and the connection goes to a checked address. A name that resolves to another address a moment
//! later gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::error::{HttpError, redact_url};

/// Allowed hosts of requests. Each redirect must be allowed too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPolicy {
    /// Host names, as `repo.example.org` or `*.example.org`; `None` is every host.
    pub hosts: Option<Vec<String>>,
    /// True where internal addresses of this machine are allowed without a name in `hosts`.
    pub internal: bool,
    /// True where a [loopback](is_loopback) host is allowed, whatever `hosts` has. For requests that fetch no content.
    pub loopback: bool,
}

/// Checks the host of a URL. An address in place of a name is checked here, because no resolver sees it.
pub(super) fn check_url(url: &Url, policy: &HostPolicy) -> Result<(), HttpError> {
    check_host(url.host_str().unwrap_or_default(), policy).map_err(|why| HttpError::Denied { url: redact_url(url.as_str()), why })
}

/// Checks that requests to a host are allowed, by its name or address. `vet` checks the addresses of the name.
///
/// # Errors
/// The reason, for people.
pub fn check_host(host: &str, policy: &HostPolicy) -> Result<(), String> {
    if policy.loopback && is_loopback(host) {
        return Ok(());
    }
    if let Some(hosts) = &policy.hosts {
        return match is_listed(host, hosts) {
            true => Ok(()),
            false => Err(format!("\"{host}\" is not among the `fetch_hosts` of this host")),
        };
    }
    match host.trim_matches(['[', ']']).trim_end_matches('.').parse() {
        Ok(address) if !policy.internal && is_internal(address) => Err(internal_address_error(address)),
        _ => Ok(()),
    }
}

/// Returns the addresses of a host that the policy allows.
///
/// # Errors
/// When there is none: the reason, for people.
pub fn check_addresses(host: &str, found: Vec<SocketAddr>, policy: &HostPolicy) -> Result<Vec<SocketAddr>, String> {
    // The author of a pattern never saw the names that match it, so their addresses are not trusted.
    let listed = policy.internal || policy.hosts.as_ref().is_some_and(|hosts| is_listed_by_name(host, hosts));
    let first = found.first().map(SocketAddr::ip);
    let own = policy.loopback && is_loopback(host);
    let may = |address: IpAddr| listed || if own { address.is_loopback() } else { !is_internal(address) };
    let vetted: Vec<SocketAddr> = found.into_iter().filter(|address| may(address.ip())).collect();
    match (vetted.is_empty(), first) {
        (true, Some(address)) => Err(internal_address_error(address)),
        (true, None) => Err(format!("\"{host}\" has no address")),
        (false, _) => Ok(vetted),
    }
}

/// True for the loopback of this machine by name or address: `localhost`, `127.0.0.1`, `[::1]`. Names are not resolved.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn internal_address_error(address: IpAddr) -> String {
    format!("{address} is internal to this machine; name the host in `fetch_hosts` to allow it")
}

/// Returns a host name in lower case, without brackets and the dot at the end.
fn normalize_host(name: &str) -> String {
    name.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

fn is_listed_by_name(host: &str, hosts: &[String]) -> bool {
    hosts.iter().any(|listed| normalize_host(listed) == normalize_host(host))
}

/// True for a host of the list; `*.example.org` matches every name below `example.org`.
fn is_listed(host: &str, hosts: &[String]) -> bool {
    let host = normalize_host(host);
    hosts.iter().map(|listed| normalize_host(listed)).any(|listed| match listed.strip_prefix("*.") {
        Some(domain) => host.strip_suffix(domain).is_some_and(|below| below.len() > 1 && below.ends_with('.')),
        None => listed == host,
    })
}

/// Resolves names to the addresses that the policy allows.
pub(super) struct PolicyResolver(HostPolicy);

impl PolicyResolver {
    /// Creates a resolver with this policy.
    pub(super) fn new(policy: &HostPolicy) -> Self {
        Self(policy.clone())
    }
}

impl Resolve for PolicyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (host, policy) = (name.as_str().to_owned(), self.0.clone());
        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            Ok(Box::new(check_addresses(&host, found, &policy)?.into_iter()) as Addrs)
        })
    }
}

/// Metadata services of clouds at addresses that are not special otherwise: Azure's platform services, Alibaba, Oracle.
const METADATA_V4: [[u8; 4]; 3] = [[168, 63, 129, 16], [100, 100, 100, 200], [192, 0, 0, 192]];
/// Networks of metadata services in IPv6, which are unique-local: AWS, Google, Oracle.
const METADATA_V6: [[u16; 2]; 3] = [[0xfd00, 0x0ec2], [0xfd20, 0x00ce], [0xfd00, 0x00c1]];

/// True for addresses of this machine itself, its link, or the metadata service of its cloud. Includes every form in which
/// IPv6 carries an IPv4 address.
fn is_internal(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_internal_v4(v4),
        IpAddr::V6(v6) => is_internal_v6(v6) || embedded_v4(v6).into_iter().any(is_internal_v4),
    }
}

fn is_internal_v4(v4: Ipv4Addr) -> bool {
    let octets = v4.octets();
    // 0.0.0.0/8 is this host; 240.0.0.0/4 is reserved, and has the broadcast address.
    matches!(octets, [0 | 240.., ..])
        || v4.is_loopback()
        || v4.is_link_local()
        || v4.is_multicast()
        || METADATA_V4.contains(&octets)
}

fn is_internal_v6(v6: Ipv6Addr) -> bool {
    let metadata = METADATA_V6.iter().any(|network| v6.segments().starts_with(network));
    // fec0::/10 was site-local, before unique-local addresses replaced it.
    let site_local = v6.segments().first().is_some_and(|first| first & 0xffc0 == 0xfec0);
    v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local() || site_local || metadata
}

/// Returns the IPv4 addresses within an IPv6 address. The forms are mapped (`::ffff:0:0/96`), translated (`::ffff:0:0:0/96`),
/// compatible (`::/96`) and 6to4 (`2002::/16`). Also NAT64 (`64:ff9b::/96`, anywhere in `64:ff9b:1::/48`), Teredo
/// (`2001::/32`, server and client) and ISATAP.
fn embedded_v4(v6: Ipv6Addr) -> Vec<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    let [a, b, c, d, e, f, high, low] = v6.segments();
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff | 0] | [0, 0, 0, 0, 0xffff, 0] | [0x64, 0xff9b, 0, 0, 0, 0] => vec![v4(high, low)],
        // Only the operator of the network knows the length of its prefix, and so the place of the address.
        [0x64, 0xff9b, 1, ..] => vec![v4(high, low), v4(d, e), v4(c, d), v4(e, f)],
        [0x2002, ..] => vec![v4(b, c)],
        [0x2001, 0, ..] => vec![v4(c, d), v4(!high, !low)],
        [.., 0 | 0x200, 0x5efe] => vec![v4(high, low)],
        _ => Vec::new(),
    }
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
    fn loopback_needs_a_loopback_name_and_address() {
        let policy = HostPolicy { hosts: Some(vec!["good.example".to_owned()]), internal: false, loopback: true };
        for host in ["localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "[::1]", "::1"] {
            assert!(check_host(host, &policy).is_ok(), "{host}");
            assert!(check_host(host, &HostPolicy { loopback: false, ..policy.clone() }).is_err(), "{host}");
        }
        for host in ["localhost.example", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1", "evil.example", "2130706433"] {
            assert!(check_host(host, &policy).is_err(), "{host}");
        }
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 80);
        assert_eq!(check_addresses("localhost", vec![at("127.0.0.1"), at("10.0.0.1")], &policy), Ok(vec![at("127.0.0.1")]));
        // A name that resolves to loopback proves nothing.
        let any = HostPolicy { hosts: None, ..policy };
        assert!(check_addresses("rebound.example", vec![at("127.0.0.1")], &any).is_err());
        assert!(check_addresses("localhost", vec![at("169.254.169.254")], &any).is_err());
    }

    #[test]
    fn every_spelling_of_an_internal_address_is_refused() {
        let policy = HostPolicy { hosts: None, internal: false, loopback: false };
        for host in [
            "169.254.169.254",
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
            "169.254.43518",
            "0xA9.254.0xa9fe",
            "169.254.169.254.",
            "168.63.129.16",
            "0xa83f8110",
            "127.1",
            "0",
            "0x0",
            "017700000001",
            "%31%36%39.254.169.254",
            "１６９.254.169.254",
            "169。254。169。254",
            "[::ffff:169.254.169.254]",
            "[0:0:0:0:0:ffff:a9fe:a9fe]",
            "[64:ff9b::169.254.169.254]",
            "[::]",
        ] {
            let url = Url::parse(&format!("http://{host}/latest")).unwrap();
            assert!(check_url(&url, &policy).is_err(), "{host} is {:?}", url.host_str());
        }
        for host in ["1.1.1.1", "example.org", "[2606:4700::1]", "10.1.2.3"] {
            assert!(check_url(&Url::parse(&format!("http://{host}/")).unwrap(), &policy).is_ok(), "{host}");
        }
        // Without a URL, as a health check has the host. A name goes to the resolver, and `vet` checks its addresses.
        for host in ["169.254.169.254.", "::ffff:169.254.169.254", "[fe80::1]"] {
            assert!(check_host(host, &policy).is_err(), "{host}");
        }
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 80);
        let found = vec![at("168.63.129.16"), at("1.1.1.1"), at("::ffff:a9fe:a9fe")];
        let wild = HostPolicy { hosts: Some(vec!["*.example".to_owned(), "mirror.test".to_owned()]), ..policy.clone() };
        assert!(check_addresses("rebound.example", vec![at("169.254.169.254")], &wild).is_err());
        assert!(check_addresses("mirror.test", vec![at("127.0.0.1")], &wild).is_ok());
        assert_eq!(check_addresses("metadata.google.internal", found, &policy), Ok(vec![at("1.1.1.1")]));
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
            ("239.255.255.250", true),
            ("255.255.255.255", true),
            ("240.0.0.1", true),
            ("0.0.0.0", true),
            ("0.1.2.3", true),
            ("169.254.169.254", true),
            ("169.254.170.2", true),
            ("168.63.129.16", true),
            ("168.63.129.17", false),
            ("192.0.0.192", true),
            ("::ffff:168.63.129.16", true),
            ("::ffff:0:169.254.169.254", true),
            ("::169.254.169.254", true),
            ("64:ff9b::a9fe:a9fe", true),
            ("64:ff9b::101:101", false),
            ("64:ff9b:1::a9fe:a9fe", true),
            ("2002:a9fe:a9fe::1", true),
            ("2002:101:101::1", false),
            ("2001:0:a9fe:a9fe::", true),
            ("2001:0:101:101:0:0:5601:5601", true),
            ("2001:db8::5efe:a9fe:a9fe", true),
            ("fd20:ce::254", true),
            ("fd00:c1::a9fe:a9fe", true),
            ("fd12::1", false),
            ("fec0::1", true),
            ("ff02::1", true),
            ("::1", true),
        ] {
            assert_eq!(is_internal(address.parse().unwrap()), expected, "{address}");
        }
    }
}
