//! The probes of listening ports, reachable addresses, names and interfaces.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, UdpSocket, lookup_host};

use super::probe::{Attributes, ProbeContext, found_value, read_system_file};
use crate::host::{Host, kernel};
use crate::http::{self, HostPolicy};

/// The longest wait for an answer without the option `timeout`, in milliseconds.
const DEFAULT_TIMEOUT_MS: u64 = 500;
/// The interval at which a waiting probe checks whether the run is over.
const POLL: Duration = Duration::from_millis(50);
/// The state of a listening TCP socket in the tables of the kernel (`include/net/tcp_states.h`).
const TCP_LISTEN: &str = "0A";
/// The state of an open UDP socket in the tables of the kernel.
const UDP_OPEN: &str = "07";

/// Waits on this thread for `work`, at most for `time`, and only while the run goes on.
pub(super) fn wait_for<T>(host: &Host, time: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime for network checks: {error}"))?;
    let result = runtime.block_on(async {
        let over = async {
            while !host.is_over() {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::select! {
            result = work => result,
            () = tokio::time::sleep(time) => Err(format!("no answer within {} ms", time.as_millis())),
            () = over => Err("the time of the check is over".to_owned()),
        }
    });
    // The resolver may still run. Do not wait for its thread.
    runtime.shutdown_background();
    result
}

/// The hosts that a probe may connect to: those of the limits, and loopback, where an open port reveals little.
pub(super) fn policy(host: &Host) -> HostPolicy {
    HostPolicy { hosts: host.limits().fetch_hosts.clone(), internal: host.limits().internal, loopback: true }
}

/// A listening port: `tcp:22`, `udp6:53`. A number alone is a TCP port.
pub(super) fn port(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let name = look.name("port");
    let (protocol, number) = name.split_once(':').unwrap_or(("tcp", &name));
    let wrong = || format!("\"{name}\" is no port, as tcp:22, tcp6:22 or udp:53");
    let number: u16 = number.parse().map_err(|_| wrong())?;
    let state = match protocol {
        "tcp" | "tcp6" => TCP_LISTEN,
        "udp" | "udp6" => UDP_OPEN,
        _ => return Err(wrong()),
    };
    let table = read_system_file(&format!("/proc/net/{protocol}"))?;
    let ips: Vec<String> = listening(&table, state, number).iter().map(ToString::to_string).collect();
    Ok(Attributes::from([("listening", found_value(!ips.is_empty())), ("ip", found_value(ips))]))
}

/// The local addresses of the sockets of one state and port in a table of the kernel.
fn listening(table: &str, state: &str, port: u16) -> Vec<IpAddr> {
    let socket = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, found) = (fields.next()?, fields.next()?, fields.next()?);
        let (address, number) = local.split_once(':')?;
        (found == state && u16::from_str_radix(number, 16).ok()? == port).then(|| address_of(address))?
    };
    let mut found: Vec<IpAddr> = table.lines().skip(1).filter_map(socket).collect();
    found.sort();
    found.dedup();
    found
}

/// Decodes an address of the kernel: words of four bytes, in the byte order of the host.
fn address_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (index, chunk) in bytes.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(index * 8)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// An address that takes connections: `tcp://host:port`.
pub(super) fn addr(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let address = look.name("address");
    let (protocol, place) = address.split_once("://").unwrap_or(("tcp", &address));
    let wrong = || format!("\"{address}\" is no address, as tcp://host:80");
    let (host, port) = place.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let host = host.trim_matches(['[', ']']);
    let local = match look.text("local-address") {
        Some(text) => Some(text.parse::<IpAddr>().map_err(|_| format!("local-address \"{text}\" is no IP address"))?),
        None => None,
    };
    let is_tcp = match protocol {
        "tcp" | "tcp4" | "tcp6" => true,
        "udp" | "udp4" | "udp6" => false,
        _ => return Err(wrong()),
    };
    let policy = policy(look.host);
    http::check_host(host, &policy)?;
    let found = wait_for(look.host, look.timeout(DEFAULT_TIMEOUT_MS), resolve(host, port));
    let found = match found {
        Ok(found) if !found.is_empty() => http::check_addresses(host, found, &policy)?,
        _ => Vec::new(),
    };
    let reached = wait_for(look.host, look.timeout(DEFAULT_TIMEOUT_MS), connect(found, local, is_tcp));
    Ok(Attributes::from([("reachable", found_value(reached.is_ok()))]))
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    Ok(lookup_host((host, port)).await.map_err(|error| error.to_string())?.collect())
}

async fn connect(found: Vec<SocketAddr>, local: Option<IpAddr>, is_tcp: bool) -> Result<(), String> {
    let mut last = "there is no address".to_owned();
    for remote in found {
        let from = local.filter(|local| local.is_ipv4() == remote.is_ipv4());
        if local.is_some() && from.is_none() {
            continue;
        }
        let tried = if is_tcp { connect_tcp(remote, from).await } else { connect_udp(remote, from).await };
        match tried {
            Ok(()) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

async fn connect_tcp(remote: SocketAddr, from: Option<IpAddr>) -> std::io::Result<()> {
    let socket = if remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(from) = from {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    socket.connect(remote).await.map(drop)
}

/// Connects a UDP socket. UDP has no handshake, so success only means that a route exists.
async fn connect_udp(remote: SocketAddr, from: Option<IpAddr>) -> std::io::Result<()> {
    let any = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    UdpSocket::bind(SocketAddr::new(from.unwrap_or(any), 0)).await?.connect(remote).await
}

/// A name, resolved by this host.
pub(super) fn dns(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let name = look.name("resolve");
    if let Some((kind, _)) = name.split_once(':').filter(|(kind, _)| kind.bytes().all(|byte| byte.is_ascii_uppercase())) {
        return Err(format!("records of type {kind} are not supported, only addresses; use a command (dig)"));
    }
    // The probe only asks the resolver, so internal addresses are harmless.
    http::check_host(&name, &HostPolicy { internal: true, ..policy(look.host) })?;
    let resolved = wait_for(look.host, look.timeout(DEFAULT_TIMEOUT_MS), resolve(&name, 0)).unwrap_or_default();
    let addresses: BTreeSet<String> = resolved.iter().map(|address| address.ip().to_string()).collect();
    let addresses: Vec<String> = addresses.into_iter().collect();
    Ok(Attributes::from([("resolvable", found_value(!addresses.is_empty())), ("addrs", found_value(addresses))]))
}

/// A network interface.
pub(super) fn interface(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let name = look.name("name");
    let interfaces = kernel::interfaces().map_err(|error| error.to_string())?;
    let interface = interfaces.iter().find(|interface| interface.name == name);
    let mut found = Attributes::from([("exists", found_value(interface.is_some()))]);
    let Some(interface) = interface else { return Ok(found) };
    let addresses = interface.addresses.iter().map(|(address, prefix)| format!("{address}/{prefix}"));
    found.insert("addrs", found_value(addresses.collect::<Vec<_>>()));
    if look.is_wanted("mtu") {
        let mtu = read_system_file(&format!("/sys/class/net/{name}/mtu"));
        found.insert("mtu", mtu.and_then(|mtu| found_value(mtu.trim().parse::<u64>().map_err(|error| error.to_string())?)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_are_found_in_the_tables_of_the_kernel() {
        let head = "  sl  local_address rem_address   st\n";
        let v4 = format!(
            "{head}   0: 0100007F:0016 00000000:0000 0A 0\n   1: 00000000:0016 00000000:0000 0A 0\n   2: 0100007F:0016 0100007F:9999 01 0\n   3: 0100007F:0050 00000000:0000 0A\nbroken\n"
        );
        let shown = |table: &str, state, port| listening(table, state, port).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&v4, TCP_LISTEN, 22), ["0.0.0.0", "127.0.0.1"]);
        assert_eq!(shown(&v4, TCP_LISTEN, 23), Vec::<String>::new());
        let v6 = format!("{head}   0: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 0\n");
        assert_eq!(shown(&v6, UDP_OPEN, 53), ["::1"]);
        assert_eq!(address_of("01"), None);
    }
}
