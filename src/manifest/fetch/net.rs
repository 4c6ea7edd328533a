//! HTTP, for URLs that strangers write: which hosts, which addresses, how many redirects.
//!
//! Names are resolved here, and the connection goes to an address that was looked at: a name that
//! resolves to something else a moment later gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Response, StatusCode, Url, header, redirect};

use super::{Checked, FetchError, FetchLimits, shown};

/// Redirects that are followed.
const REDIRECTS: usize = 3;
/// For a connection, and for each silence while bytes come.
const PATIENCE: Duration = Duration::from_secs(15);

/// Reads what `url` gives into `checked`.
pub(super) async fn get(url: Url, limits: &FetchLimits, checked: &mut Checked<'_>) -> Result<(), FetchError> {
    let mut response = follow(url, limits).await?;
    let from = shown(response.url().as_str());
    if let Some(size) = response.content_length() {
        checked.announced(size)?;
    }
    while let Some(chunk) = response.chunk().await.map_err(|error| transport(&from, error))? {
        checked.add(&chunk)?;
    }
    Ok(())
}

fn transport(url: &str, error: reqwest::Error) -> FetchError {
    FetchError::Transport { url: url.to_owned(), cause: error.without_url().into() }
}

/// Asks, and follows redirects by hand: each hop must be allowed by itself.
async fn follow(mut url: Url, limits: &FetchLimits) -> Result<Response, FetchError> {
    let client = client(limits).map_err(|error| transport(&shown(url.as_str()), error))?;
    for _ in 0..=REDIRECTS {
        let from = shown(url.as_str());
        allowed(&url, limits)?;
        let response = client.get(url.clone()).send().await.map_err(|error| transport(&from, error))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        if !response.status().is_redirection() {
            return Err(FetchError::Status { url: from, status: response.status().to_string() });
        }
        url = next_hop(&url, &response)?;
    }
    Err(FetchError::Denied { url: shown(url.as_str()), why: format!("more than {REDIRECTS} redirects") })
}

fn next_hop(url: &Url, response: &Response) -> Result<Url, FetchError> {
    let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| url.join(location).ok());
    let denied = |why: &str| FetchError::Denied { url: shown(url.as_str()), why: why.to_owned() };
    let next = next.ok_or_else(|| denied("it redirects to nowhere"))?;
    let safe = next.scheme() == url.scheme() || (url.scheme() == "http" && next.scheme() == "https");
    if safe { Ok(next) } else { Err(denied("it redirects to another kind of URL")) }
}

fn client(limits: &FetchLimits) -> Result<Client, reqwest::Error> {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // An error means that there is a provider already, which is as good.
        let _already = rustls::crypto::ring::default_provider().install_default();
    });
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .dns_resolver(Arc::new(Vetted { hosts: limits.hosts.clone() }))
        .connect_timeout(PATIENCE)
        .read_timeout(PATIENCE)
        .user_agent(concat!("ensign/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Checks the host of a URL; an address in the place of a name is checked here, as nothing resolves it.
fn allowed(url: &Url, limits: &FetchLimits) -> Result<(), FetchError> {
    let denied = |why: String| Err(FetchError::Denied { url: shown(url.as_str()), why });
    let host = url.host_str().unwrap_or_default();
    if let Some(hosts) = &limits.hosts {
        if is_listed(host, hosts) {
            return Ok(());
        }
        return denied(format!("\"{host}\" is not among the `fetch_hosts` of this host"));
    }
    match host.trim_matches(['[', ']']).parse() {
        Ok(address) if is_internal(address) => denied(internal(address)),
        _ => Ok(()),
    }
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
struct Vetted {
    hosts: Option<Vec<String>>,
}

impl Resolve for Vetted {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let listed = self.hosts.as_ref().is_some_and(|hosts| is_listed(&host, hosts));
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            let first = found.first().map(SocketAddr::ip);
            let vetted: Vec<SocketAddr> = found.into_iter().filter(|address| listed || !is_internal(address.ip())).collect();
            match (vetted.is_empty(), first) {
                (true, Some(address)) => Err(internal(address).into()),
                (true, None) => Err(format!("\"{host}\" has no address").into()),
                (false, _) => Ok(Box::new(vetted.into_iter()) as Addrs),
            }
        })
    }
}

/// True for addresses that lead to this machine itself, its link, or the metadata service of its cloud.
pub(super) fn is_internal(address: IpAddr) -> bool {
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
}
