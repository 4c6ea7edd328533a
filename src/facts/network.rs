//! `network`: interfaces, addresses, and which of them lead out.

use std::net::{IpAddr, Ipv6Addr};

use serde_json::{Value, json};

use super::{FactError, text_or_empty};
use crate::host::{Host, kernel, kernel::Interface};

/// Gathers them.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let interfaces = kernel::interfaces()?;
    let v4 = default_v4(&interfaces, &text_or_empty("/proc/net/route"));
    let v6 = default_v6(&interfaces, &text_or_empty("/proc/net/ipv6_route"));
    let mut addresses = Vec::new();
    for interface in &interfaces {
        for (address, _) in interface.addresses.iter().filter(|(address, _)| is_public(*address)) {
            addresses.push(json!({
                "interface": interface.name,
                "address": address,
                "ipv4": address.is_ipv4(),
                "default": Some(*address) == v4 || Some(*address) == v6,
            }));
        }
    }
    let shown = |address: Option<IpAddr>| address.map_or_else(String::new, |address| address.to_string());
    Ok(json!({
        "interfaces": interfaces.iter().map(describe).collect::<Vec<_>>(),
        "addresses": addresses,
        "default_ipv4": shown(v4),
        "default_ipv6": shown(v6),
    }))
}

fn describe(interface: &Interface) -> Value {
    let number = |name: &str| text_or_empty(&format!("/sys/class/net/{}/{name}", interface.name)).parse::<u64>().unwrap_or(0);
    let addresses = interface.addresses.iter().map(|(address, prefix)| json!({"addr": format!("{address}/{prefix}")}));
    json!({
        "index": number("ifindex"),
        "mtu": number("mtu"),
        "name": interface.name,
        "hardwareAddr": interface.hardware,
        "flags": interface.flags,
        "addrs": addresses.collect::<Vec<_>>(),
    })
}

/// Neither loopback nor link-local nor multicast nor nothing.
fn is_public(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

/// The address that packets to the world carry: of the interface of the default route, in the
/// network of its gateway if there is such a one.
fn default_v4(interfaces: &[Interface], routes: &str) -> Option<IpAddr> {
    let routes = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[name, destination, gateway, flags, _, _, metric, mask, ..] = fields.as_slice() else { return None };
        let is_up = u32::from_str_radix(flags, 16).ok()? & 1 == 1;
        let is_default = destination == "00000000" && mask == "00000000" && is_up;
        // The kernel prints the bytes of the network as a number of the machine.
        let gateway = u32::from_str_radix(gateway, 16).ok()?.to_ne_bytes();
        is_default.then_some((metric.parse::<u64>().ok()?, name, u32::from_be_bytes(gateway)))
    });
    let (_, name, gateway) = routes.min_by_key(|(metric, ..)| *metric)?;
    let interface = interfaces.iter().find(|interface| interface.name == name)?;
    let own = interface.addresses.iter().filter_map(|(address, prefix)| match address {
        IpAddr::V4(v4) => Some((*v4, *prefix)),
        IpAddr::V6(_) => None,
    });
    let near = |(address, prefix): &(std::net::Ipv4Addr, u32)| {
        let mask = u32::MAX.checked_shl(32 - prefix.min(&32)).unwrap_or(0);
        address.to_bits() & mask == gateway & mask
    };
    let own: Vec<_> = own.collect();
    own.iter().find(|entry| near(entry)).or(own.first()).map(|(address, _)| IpAddr::V4(*address))
}

fn default_v6(interfaces: &[Interface], routes: &str) -> Option<IpAddr> {
    let routes = routes.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[destination, length, _, _, gateway, metric, _, _, flags, name] = fields.as_slice() else { return None };
        let hex = |text: &str| u128::from_str_radix(text, 16).ok();
        let is_up = hex(flags)? & 1 == 1;
        let is_default = hex(destination)? == 0 && hex(length)? == 0 && hex(gateway)? != 0 && is_up && name != "lo";
        is_default.then_some((hex(metric)?, name))
    });
    let (_, name) = routes.min_by_key(|(metric, _)| *metric)?;
    let interface = interfaces.iter().find(|interface| interface.name == name)?;
    let global =
        |address: &&IpAddr| matches!(address, IpAddr::V6(v6) if is_public(IpAddr::V6(*v6)) && *v6 != Ipv6Addr::LOCALHOST);
    interface.addresses.iter().map(|(address, _)| address).find(global).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, addresses: &[(&str, u32)]) -> Interface {
        let addresses = addresses.iter().map(|(address, prefix)| (address.parse().unwrap(), *prefix)).collect();
        Interface { name: name.to_owned(), flags: vec!["up"], hardware: String::new(), addresses }
    }

    #[test]
    fn the_address_that_leads_out_is_found() {
        let interfaces = [
            interface("lo", &[("127.0.0.1", 8), ("::1", 128)]),
            interface("eth0", &[("10.9.9.9", 24), ("192.0.2.2", 24), ("fe80::1", 64), ("2001:db8::2", 64)]),
            interface("eth1", &[("10.0.0.1", 8)]),
        ];
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let slow = "eth1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";
        let fast = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        let found = |routes: &str| default_v4(&interfaces, routes).map(|address| address.to_string());
        assert_eq!(found(&format!("{head}{slow}{fast}")).as_deref(), Some("192.0.2.2"));
        assert_eq!(found(&format!("{head}{slow}")).as_deref(), Some("10.0.0.1"));
        assert_eq!(found(head), None);
        let zero = "0".repeat(32);
        let route =
            format!("{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000002 00000000 00000003     eth0\n");
        let reject = format!("{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n");
        let found = |routes: &str| default_v6(&interfaces, routes).map(|address| address.to_string());
        assert_eq!(found(&format!("{reject}{route}")).as_deref(), Some("2001:db8::2"));
        assert_eq!(found(&reject), None);
    }
}
