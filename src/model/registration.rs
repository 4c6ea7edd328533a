//! Service registrations: the addresses of services, as hosts publish them.
//!
//! The fields, the checks and the JSON are those of the Go system, so that both read each other's. Neighbours:
//! `wire::registration` has the subjects, `registry` the bus, `template` gives manifests lists of registrations.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use super::HumanDuration;

/// A value from the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusValue<T> {
    /// The value.
    pub value: T,
    /// True when a trusted key signed all of the value. Otherwise the server alone vouches for the value.
    pub signed: bool,
}

/// Access of a run to values and registrations of the bus. `registry` implements the access over NATS.
///
/// Errors name the request and the reason, for people.
pub trait DiscoveryClient: Send + Sync {
    /// Returns the text under a key of a bucket.
    ///
    /// # Errors
    /// When the bus, the bucket or the key is missing, or the value is not text.
    fn value(&self, bucket: &str, key: &str) -> Result<BusValue<String>, String>;

    /// Returns the registrations that match a filter, sorted by address and port.
    ///
    /// # Errors
    /// When the registrations can't be read.
    fn registrations(&self, filter: &RegistrationFilter) -> Result<BusValue<Vec<Registration>>, String>;

    /// Publishes a registration.
    ///
    /// # Errors
    /// When the bus does not accept the registration.
    fn register(&self, registration: &Registration) -> Result<(), String>;
}

/// The address of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RawRegistration")]
#[schemars(!try_from, deny_unknown_fields)]
pub struct Registration {
    /// The cluster that it belongs to: a letter, then letters, digits, `_` and `-`.
    #[schemars(regex(pattern = r"^[a-zA-Z][a-zA-Z\d_-]*$"))]
    pub cluster: String,
    /// The service, in the same form.
    #[schemars(regex(pattern = r"^[a-zA-Z][a-zA-Z\d_-]*$"))]
    pub service: String,
    /// The protocol of the service, in the same form.
    #[schemars(regex(pattern = r"^[a-zA-Z][a-zA-Z\d_-]*$"))]
    pub protocol: String,
    /// Its IPv4 or IPv6 address.
    pub address: String,
    /// Its port.
    #[serde(default)]
    #[schemars(with = "Option<PortForm>")]
    pub port: Option<u16>,
    /// Its priority, from 1 to 255.
    #[schemars(range(min = 1, max = 255))]
    pub priority: u8,
    /// Anything else about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The lifetime without a new publication: a duration or `never`. By default the stream decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ttl: Option<Ttl>,
}

/// A port: a number, or the text of a template that gives one.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes a form in the schema")]
enum PortForm {
    /// A number.
    Number(u16),
    /// A text.
    Text(String),
}

/// The lifetime of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// Until it is removed.
    Never,
    /// This long after it was published.
    For(HumanDuration),
}

impl Ttl {
    /// Returns the value of the header `Nats-TTL` (NATS ADR-43): `never`, or whole seconds, at least one.
    pub fn header(self) -> String {
        match self {
            Self::Never => "never".to_owned(),
            Self::For(span) => format!("{}s", span.as_std().as_millis().div_ceil(1000).max(1)),
        }
    }
}

impl Serialize for Ttl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Never => serializer.serialize_str("never"),
            Self::For(span) => span.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The Go system takes a number as nanoseconds.
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "never" => Ok(Self::Never),
            Value::String(text) => text.parse().map(Self::For).map_err(|_| de::Error::custom(invalid_ttl(&text))),
            Value::Number(nanos) => {
                let text = format!("{nanos}ns");
                text.parse().map(Self::For).map_err(|_| de::Error::custom(invalid_ttl(&text)))
            }
            other => Err(de::Error::custom(invalid_ttl(&other.to_string()))),
        }
    }
}

fn invalid_ttl(text: &str) -> String {
    format!("invalid TTL duration \"{text}\": expected a duration, as 30s or 10m, or \"never\"")
}

/// A registration as written: any field may be missing, and numbers may be texts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRegistration {
    #[serde(default)]
    cluster: String,
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    service: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: Value,
    #[serde(default)]
    priority: Value,
    #[serde(default)]
    annotations: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    ttl: Option<Ttl>,
}

impl TryFrom<RawRegistration> for Registration {
    type Error = String;

    fn try_from(written: RawRegistration) -> Result<Self, String> {
        let RawRegistration { cluster, protocol, service, address, port, priority, annotations, ttl } = written;
        for (what, name) in [("cluster", &cluster), ("protocol", &protocol), ("service", &service)] {
            check_name(what, name)?;
        }
        if address.is_empty() {
            return Err("registration is invalid: address is required".to_owned());
        }
        if address.parse::<IpAddr>().is_err() {
            return Err(format!("registration is invalid: address \"{address}\" is neither an IPv4 nor an IPv6 address"));
        }
        let port = match port {
            Value::Null => None,
            value => Some(number::<u16>(&value).filter(|port| *port > 0).ok_or_else(|| {
                format!("registration is invalid: port '{}' must be between 1 and 65535", display_value(&value))
            })?),
        };
        let priority = number::<u8>(&priority).filter(|priority| *priority > 0).ok_or_else(|| {
            format!("registration is invalid: priority '{}' must be between 1 and 255", display_value(&priority))
        })?;
        let annotations = annotations.unwrap_or_default().into_iter().map(|(key, value)| (key, display_value(&value))).collect();
        Ok(Self { cluster, service, protocol, address, port, priority, annotations, ttl })
    }
}

/// Returns a whole number, also one written as a text or with `.0`.
fn number<N: TryFrom<i64>>(value: &Value) -> Option<N> {
    let whole = match value {
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.as_i64().or_else(|| number.to_string().strip_suffix(".0")?.parse().ok()),
        _ => None,
    };
    N::try_from(whole?).ok()
}

fn display_value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("registration is invalid: {what} is required"));
    }
    let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(rest) {
        return Ok(());
    }
    Err(format!("registration is invalid: {what} \"{name}\" is not a valid name: a letter, then letters, digits, _ and -"))
}

impl Registration {
    /// Parses a registration from the JSON of a message. Ignores fields of later versions.
    ///
    /// # Errors
    /// When the bytes are not JSON, or not a registration.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let mut value: Value = serde_json::from_slice(bytes)?;
        if let Value::Object(map) = &mut value {
            const KNOWN: &[&str] = &["cluster", "service", "protocol", "address", "port", "priority", "annotations", "ttl"];
            map.retain(|key, _| KNOWN.contains(&key.as_str()));
        }
        serde_json::from_value(value)
    }
}

/// Criteria for registrations; an absent criterion matches all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegistrationFilter {
    /// The cluster.
    pub cluster: Option<String>,
    /// The protocol.
    pub protocol: Option<String>,
    /// The service.
    pub service: Option<String>,
    /// The address.
    pub address: Option<String>,
}

impl RegistrationFilter {
    /// Creates a filter from four texts, where an empty text and `*` match all.
    ///
    /// # Errors
    /// When a text can't be part of a registration, because it would match something else.
    pub fn parse(cluster: &str, protocol: &str, service: &str, address: &str) -> Result<Self, String> {
        let given = |text: &str| Some(text).filter(|text| !matches!(*text, "" | "*")).map(str::to_owned);
        let filter =
            Self { cluster: given(cluster), protocol: given(protocol), service: given(service), address: given(address) };
        for (what, name) in [("cluster", &filter.cluster), ("protocol", &filter.protocol), ("service", &filter.service)] {
            name.as_deref().map_or(Ok(()), |name| check_name(what, name))?;
        }
        match &filter.address {
            Some(address) if address.parse::<IpAddr>().is_err() => {
                Err(format!("registration is invalid: address \"{address}\" is neither an IPv4 nor an IPv6 address"))
            }
            _ => Ok(filter),
        }
    }
}

/// Returns a document for Prometheus' file-based service discovery. Each cluster, service and protocol has one target group,
/// in the order of the input.
///
/// A service or protocol called `prometheus` is dropped when its annotation `prometheus.io/scrape` is not `true`, if the
/// annotation is there. Any other service is dropped unless the annotation is `true`. A service without a port is dropped.
pub fn prometheus_file_sd(registrations: &[Registration]) -> String {
    let mut groups: Vec<(&Registration, Vec<String>)> = Vec::new();
    for entry in registrations.iter().filter(|entry| is_scraped(entry)) {
        let Some(port) = entry.port else { continue };
        let target =
            if entry.address.contains(':') { format!("[{}]:{port}", entry.address) } else { format!("{}:{port}", entry.address) };
        let same = |(first, _): &&mut (&Registration, Vec<String>)| {
            (&first.cluster, &first.service, &first.protocol) == (&entry.cluster, &entry.service, &entry.protocol)
        };
        match groups.iter_mut().find(same) {
            Some((_, targets)) => targets.push(target),
            None => groups.push((entry, vec![target])),
        }
    }
    let documents: Vec<Value> =
        groups.into_iter().map(|(first, targets)| serde_json::json!({"targets": targets, "labels": labels(first)})).collect();
    // A list of maps with text keys always has a JSON form.
    serde_json::to_string_pretty(&documents).unwrap_or_default()
}

fn is_scraped(entry: &Registration) -> bool {
    let wish = entry.annotations.get("prometheus.io/scrape").map(String::as_str);
    if entry.service == "prometheus" || entry.protocol == "prometheus" {
        wish.is_none_or(|wish| wish == "true")
    } else {
        wish == Some("true")
    }
}

fn labels(entry: &Registration) -> BTreeMap<&str, &str> {
    let is_label = |key: &str| {
        !key.starts_with("__")
            && key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let annotations = entry.annotations.iter().filter(|(key, value)| is_label(key) && !value.is_empty());
    let own = [("cluster", &entry.cluster), ("protocol", &entry.protocol), ("service", &entry.service)];
    let own = own.map(|(key, value)| (key, value.as_str()));
    annotations.map(|(key, value)| (key.as_str(), value.as_str())).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(over: &Value) -> Result<Registration, String> {
        let mut value = json!({
            "cluster": "prod", "protocol": "tcp", "service": "web", "address": "10.0.0.1", "port": 8080, "priority": 1
        });
        for (key, item) in over.as_object().unwrap() {
            value[key] = item.clone();
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn malformed_registrations_are_refused_with_the_reason() {
        for name in ["web", "my-service", "my_service", "web01", "MyService"] {
            assert!(entry(&json!({"service": name})).is_ok(), "{name}");
        }
        for (over, why) in [
            (json!({"cluster": ""}), "cluster is required"),
            (json!({"service": "1service"}), "service \"1service\" is not a valid name"),
            (json!({"service": "a.b"}), "not a valid name"),
            (json!({"protocol": "a b"}), "not a valid name"),
            (json!({"service": "*"}), "not a valid name"),
            (json!({"address": ""}), "address is required"),
            (json!({"address": "host.example"}), "neither an IPv4 nor an IPv6 address"),
            (json!({"address": "10.0.0.1:80"}), "neither an IPv4 nor an IPv6 address"),
            (json!({"port": 0}), "port '0' must be between 1 and 65535"),
            (json!({"port": 65536}), "must be between"),
            (json!({"port": "http"}), "port 'http' must be between"),
            (json!({"priority": 0}), "priority '0' must be between 1 and 255"),
            (json!({"priority": null}), "priority 'null' must be"),
            (json!({"ttl": "banana"}), "invalid TTL duration \"banana\""),
            (json!({"prot": 1}), "unknown field `prot`"),
        ] {
            let error = entry(&over).unwrap_err();
            assert!(error.contains(why), "{over}: {error}");
        }
    }

    #[test]
    fn numbers_may_be_texts_and_ttls_have_three_forms() {
        assert_eq!(entry(&json!({"port": "443"})).unwrap().port, Some(443));
        assert_eq!(entry(&json!({"port": 443.0})).unwrap().port, Some(443));
        assert_eq!(entry(&json!({"port": null, "address": "::1"})).unwrap().port, None);
        let header = |ttl: Value| entry(&json!({"ttl": ttl})).unwrap().ttl.map(Ttl::header);
        assert_eq!(header(json!("never")).as_deref(), Some("never"));
        assert_eq!(header(json!("1h30m")).as_deref(), Some("5400s"));
        assert_eq!(header(json!(30_000_000_000_u64)).as_deref(), Some("30s"));
        assert_eq!(header(json!("10ms")).as_deref(), Some("1s"));
        assert_eq!(header(Value::Null), None);
    }

    #[test]
    fn registrations_round_trip_and_ignore_unknown_fields() {
        let made = entry(&json!({"ttl": "10m", "annotations": {"a": "b", "n": 3}})).unwrap();
        assert_eq!(Registration::from_json(&serde_json::to_vec(&made).unwrap()).unwrap(), made);
        let mut later = serde_json::to_value(&made).unwrap();
        later["weight"] = json!(3);
        assert_eq!(Registration::from_json(later.to_string().as_bytes()).unwrap(), made);
    }

    #[test]
    fn filters_refuse_impossible_values() {
        assert_eq!(RegistrationFilter::parse("", "*", "", "*").unwrap(), RegistrationFilter::default());
        assert!(RegistrationFilter::parse("a.>", "", "", "").is_err());
        assert!(RegistrationFilter::parse("", "", "", "10.0.0.*").is_err());
    }

    #[test]
    fn prometheus_gets_groups_of_scraped_services() {
        let all = [
            entry(&json!({"annotations": {"prometheus.io/scrape": "true", "env": "prod", "__x": "no", "e-f": "no"}})),
            entry(&json!({"address": "fe80::1", "annotations": {"prometheus.io/scrape": "true", "env": "second"}})),
            entry(&json!({"service": "quiet"})),
            entry(&json!({"service": "prometheus", "port": 9090})),
            entry(&json!({"service": "prometheus", "port": 1, "annotations": {"prometheus.io/scrape": "no"}})),
            entry(&json!({"protocol": "prometheus", "port": null})),
        ]
        .map(Result::unwrap);
        let shown: Value = serde_json::from_str(&prometheus_file_sd(&all)).unwrap();
        assert_eq!(
            shown,
            json!([
                {"targets": ["10.0.0.1:8080", "[fe80::1]:8080"],
                 "labels": {"cluster": "prod", "protocol": "tcp", "service": "web", "env": "prod"}},
                {"targets": ["10.0.0.1:9090"], "labels": {"cluster": "prod", "protocol": "tcp", "service": "prometheus"}},
            ])
        );
        assert_eq!(prometheus_file_sd(&[]), "[]");
    }
}
