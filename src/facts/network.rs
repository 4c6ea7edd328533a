//! Network facts: `network` with interfaces, addresses, and default addresses.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};

use super::source::{FactError, text_or_empty};
use crate::host::{Host, kernel, kernel::Interface};

/// `RTF_UP` of the kernel.
const ROUTE_UP: u32 = 0x1;
/// `RTF_REJECT` of the kernel: a route that leads nowhere.
const ROUTE_REJECT: u32 = 0x200;

/// Gathers network facts.
pub(super) fn gather(_: &Host) -> Result<Value, FactError> {
    let interfaces = kernel::interfaces()?;
    // A kernel without IPv6 has no IPv6 routing table.
    let v4 = default_v4(&interfaces, &text_or_empty("/proc/net/route"));
    let v6 = default_v6(&interfaces, &text_or_empty("/proc/net/ipv6_route"));
    let number = |interface: &str, name: &str| text_or_empty(&format!("/sys/class/net/{interface}/{name}")).parse().unwrap_or(0);
    Ok(network(&interfaces, number, v4, v6))
}

/// Returns the whole family. `number` reads a number of an interface by its name.
fn network(interfaces: &[Interface], number: impl Fn(&str, &str) -> u64, v4: Option<IpAddr>, v6: Option<IpAddr>) -> Value {
    let mut addresses = Vec::new();
    for interface in interfaces {
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
    json!({
        "interfaces": interfaces.iter().map(|interface| describe(interface, &number)).collect::<Vec<_>>(),
        "addresses": addresses,
        "default_ipv4": shown(v4),
        "default_ipv6": shown(v6),
    })
}

fn describe(interface: &Interface, number: impl Fn(&str, &str) -> u64) -> Value {
    let addresses = interface.addresses.iter().map(|(address, prefix)| json!({"addr": format!("{address}/{prefix}")}));
    json!({
        "index": number(&interface.name, "ifindex"),
        "mtu": number(&interface.name, "mtu"),
        "name": interface.name,
        "hardwareAddr": interface.hardware,
        "flags": interface.flags,
        "addrs": addresses.collect::<Vec<_>>(),
    })
}

/// True for an address that is not loopback, link-local, multicast or unspecified.
fn is_public(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

fn is_usable_route(flags: &str) -> bool {
    u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & ROUTE_UP != 0 && flags & ROUTE_REJECT == 0)
}

/// Returns the source address of packets to other networks. The interface is that of the default route with the lowest metric
/// in `/proc/net/route`. The address is in the network of the gateway, if there is one.
fn default_v4(interfaces: &[Interface], routes: &str) -> Option<IpAddr> {
    let routes = routes.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[name, "00000000", gateway, flags, _, _, metric, "00000000", ..] = fields.as_slice() else { return None };
        // The kernel prints the bytes of the network in the byte order of the machine.
        let gateway = u32::from_be_bytes(u32::from_str_radix(gateway, 16).ok()?.to_ne_bytes());
        is_usable_route(flags).then_some((metric.parse::<u32>().ok()?, name, gateway))
    });
    let (_, name, gateway) = routes.min_by_key(|(metric, ..)| *metric)?;
    let interface = interfaces.iter().find(|interface| interface.name == name)?;
    let own =
        interface.addresses.iter().filter(|(address, _)| is_public(*address)).filter_map(|(address, prefix)| match address {
            IpAddr::V4(v4) => Some((*v4, *prefix)),
            IpAddr::V6(_) => None,
        });
    let near = |(address, prefix): &(Ipv4Addr, u32)| {
        let mask = u32::MAX.checked_shl(32 - prefix.min(&32)).unwrap_or(0);
        address.to_bits() & mask == gateway & mask
    };
    let own: Vec<_> = own.collect();
    own.iter().find(|entry| near(entry)).or(own.first()).map(|(address, _)| IpAddr::V4(*address))
}

/// Parses `/proc/net/ipv6_route`, which has other columns, metrics in hex and no header. The gateway is link-local and
/// identifies no network.
fn default_v6(interfaces: &[Interface], routes: &str) -> Option<IpAddr> {
    let routes = routes.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[destination, "00", _, _, _, metric, _, _, flags, name] = fields.as_slice() else { return None };
        let everywhere = destination.bytes().all(|digit| digit == b'0');
        (everywhere && is_usable_route(flags)).then_some((u32::from_str_radix(metric, 16).ok()?, name))
    });
    let (_, name) = routes.min_by_key(|(metric, _)| *metric)?;
    let interface = interfaces.iter().find(|interface| interface.name == name)?;
    interface.addresses.iter().map(|(address, _)| *address).find(|address| address.is_ipv6() && is_public(*address))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";

    const IPV6_ROUTE: &str = "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000002 00000000 00000003     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";

    fn interface(name: &str, addresses: &[(&str, u32)]) -> Interface {
        let addresses = addresses.iter().map(|(address, prefix)| (address.parse().unwrap(), *prefix)).collect();
        Interface { name: name.to_owned(), flags: vec!["up", "running"], hardware: String::new(), addresses }
    }

    fn machine() -> Vec<Interface> {
        let eth0 = [("169.254.3.4", 16), ("10.9.9.9", 24), ("192.0.2.2", 24), ("fe80::1", 64), ("2001:db8::2", 64)];
        vec![
            interface("lo", &[("127.0.0.1", 8), ("::1", 128)]),
            Interface { hardware: "02:fc:00:00:00:0a".into(), ..interface("eth0", &eth0) },
            interface("wlan0", &[("192.168.1.7", 24)]),
        ]
    }

    #[test]
    fn the_ipv4_address_that_leads_out_is_found() {
        let line = |name: &str, gateway: &str, flags: &str, mask: &str| {
            format!("{name}\t00000000\t{gateway}\t{flags}\t0\t0\t0\t{mask}\t0\t0\t0\n")
        };
        let cases = [
            ("the lowest metric, the network of the gateway", ROUTE.to_owned(), Some("192.0.2.2")),
            ("another metric", ROUTE.replace("\t100\t", "\t700\t"), Some("192.168.1.7")),
            ("a gateway in no network", line("eth0", "0100000A", "0003", "00000000"), Some("10.9.9.9")),
            ("no gateway", line("wlan0", "00000000", "0001", "00000000"), Some("192.168.1.7")),
            ("a half of everything", line("eth0", "010200C0", "0003", "00000080"), None),
            ("down", line("eth0", "010200C0", "0002", "00000000"), None),
            ("rejects", line("*", "00000000", "0201", "00000000"), None),
            ("rejects before one that leads out", line("eth0", "00000000", "0201", "00000000") + ROUTE, Some("192.0.2.2")),
            ("an interface without an address", line("tun0", "00000000", "0001", "00000000"), None),
            ("none", String::new(), None),
        ];
        for (case, routes, expected) in cases {
            let found = default_v4(&machine(), &routes).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{case}");
        }
    }

    #[test]
    fn the_ipv6_address_that_leads_out_is_found() {
        let zero = "0".repeat(32);
        let direct = format!("{zero} 00 {zero} 00 {zero} 00000400 00000002 00000000 00000001     eth0\n");
        let reject = format!("{zero} 00 {zero} 00 {zero} 00000001 00000001 00000000 00000201     eth0\n");
        let cases = [
            (IPV6_ROUTE, Some("2001:db8::2")),
            (&direct, Some("2001:db8::2")),
            (&reject, None),
            (IPV6_ROUTE.lines().next_back().unwrap(), None),
            (IPV6_ROUTE.lines().next().unwrap(), None),
            ("", None),
        ];
        for (routes, expected) in cases {
            let found = default_v6(&machine(), routes).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{routes}");
        }
    }

    #[test]
    fn addresses_that_lead_out_are_the_default() {
        let machine = machine();
        let number = |interface: &str, name: &str| match (interface, name) {
            ("lo", "mtu") => 65536,
            (_, "mtu") => 1500,
            ("lo", _) => 1,
            ("eth0", _) => 2,
            _ => 3,
        };
        let (v4, v6) = (default_v4(&machine, ROUTE), default_v6(&machine, IPV6_ROUTE));
        let flags = ["up", "running"];
        let expected = json!({
            "interfaces": [
                {"index": 1, "mtu": 65536, "name": "lo", "hardwareAddr": "", "flags": flags,
                 "addrs": [{"addr": "127.0.0.1/8"}, {"addr": "::1/128"}]},
                {"index": 2, "mtu": 1500, "name": "eth0", "hardwareAddr": "02:fc:00:00:00:0a", "flags": flags,
                 "addrs": [{"addr": "169.254.3.4/16"}, {"addr": "10.9.9.9/24"}, {"addr": "192.0.2.2/24"},
                           {"addr": "fe80::1/64"}, {"addr": "2001:db8::2/64"}]},
                {"index": 3, "mtu": 1500, "name": "wlan0", "hardwareAddr": "", "flags": flags,
                 "addrs": [{"addr": "192.168.1.7/24"}]},
            ],
            "addresses": [
                {"interface": "eth0", "address": "10.9.9.9", "ipv4": true, "default": false},
                {"interface": "eth0", "address": "192.0.2.2", "ipv4": true, "default": true},
                {"interface": "eth0", "address": "2001:db8::2", "ipv4": false, "default": true},
                {"interface": "wlan0", "address": "192.168.1.7", "ipv4": true, "default": false},
            ],
            "default_ipv4": "192.0.2.2",
            "default_ipv6": "2001:db8::2",
        });
        assert_eq!(network(&machine, number, v4, v6), expected);
        let alone = network(&machine, number, None, None);
        assert_eq!((&alone["default_ipv4"], &alone["default_ipv6"]), (&json!(""), &json!("")));
        assert!(alone["addresses"].as_array().unwrap().iter().all(|address| address["default"] == false));
    }
}
