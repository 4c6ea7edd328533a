//! Subjects of service registrations, as in the Go system, so that both systems read each other's.

use crate::model::registration::{Registration, RegistrationFilter};

use super::subject::Subject;

/// The first tokens of all subjects of registrations.
const PREFIX: &str = "choria.ccm.registration.v1";

/// The default stream of registrations.
pub const STREAM: &str = "REGISTRATION";

/// Returns the subject of all registrations.
pub fn all() -> Subject {
    Subject::from_text(format!("{PREFIX}.>"))
}

/// Returns the subject of a registration, which depends on cluster, service, protocol, address and port.
pub fn subject(entry: &Registration) -> Subject {
    let Registration { cluster, protocol, service, address, .. } = entry;
    let port = entry.port.map(|port| port.to_string()).unwrap_or_default();
    let instance = fnv1a(&[cluster, service, protocol, address, &port]);
    Subject::from_text(format!("{PREFIX}.{cluster}.{protocol}.{service}.{}.{instance:016x}", token(address)))
}

/// Returns the subjects that match a filter.
pub fn matching(filter: &RegistrationFilter) -> Subject {
    let part = |name: &Option<String>| name.clone().unwrap_or_else(|| "*".to_owned());
    let address = filter.address.as_deref().map_or_else(|| "*".to_owned(), token);
    let RegistrationFilter { cluster, protocol, service, .. } = filter;
    Subject::from_text(format!("{PREFIX}.{}.{}.{}.{address}.*", part(cluster), part(protocol), part(service)))
}

/// Parses cluster, protocol, service and address from a subject; none for another form.
pub fn parse_subject(subject: &str) -> Option<[String; 4]> {
    let mut tokens = subject.strip_prefix(PREFIX)?.strip_prefix('.')?.split('.').map(str::to_owned);
    let [cluster, protocol, service, address, _instance] = std::array::from_fn(|_| tokens.next());
    Some([cluster?, protocol?, service?, address?.replace('_', ".")])
}

/// Converts an address into a token: dots separate tokens, and an IPv6 address has none.
fn token(address: &str) -> String {
    address.replace('.', "_")
}

/// Returns the FNV-1a hash with 64 bits (RFC 9923) of texts, without separators.
fn fnv1a(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(cluster: &str, service: &str, protocol: &str, address: &str) -> Registration {
        let value = json!({
            "cluster": cluster, "service": service, "protocol": protocol, "address": address, "port": 8080, "priority": 1
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn subjects_are_those_of_the_go_system() {
        for (entry, expected) in [
            (entry("prod", "web", "tcp", "10.0.0.1"), "choria.ccm.registration.v1.prod.tcp.web.10_0_0_1.37fd7630379a59f9"),
            (
                entry("production", "web", "http", "10.0.0.5"),
                "choria.ccm.registration.v1.production.http.web.10_0_0_5.d097567f5aa3133c",
            ),
        ] {
            assert_eq!(subject(&entry).as_str(), expected);
            let [cluster, protocol, service, address] = parse_subject(expected).unwrap();
            assert_eq!([cluster, protocol, service, address], [entry.cluster, entry.protocol, entry.service, entry.address]);
        }
        assert!(subject(&entry("a", "b", "c", "::1")).as_str().contains(".::1."));
        assert_eq!(parse_subject("choria.ccm.registration.v1.short"), None);
    }

    #[test]
    fn filters_become_wildcards() {
        let filter = |a, b, c, d| matching(&RegistrationFilter::parse(a, b, c, d).unwrap()).to_string();
        assert_eq!(filter("prod", "tcp", "web", "10.0.0.1"), "choria.ccm.registration.v1.prod.tcp.web.10_0_0_1.*");
        assert_eq!(filter("", "*", "", ""), "choria.ccm.registration.v1.*.*.*.*.*");
        assert_eq!(filter("prod", "", "web", ""), "choria.ccm.registration.v1.prod.*.web.*.*");
    }
}
