//! Service discovery by the tools of NATS (NATS ADR-32, "Service API"): ping, info and stats.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::model::NodeId;

/// The name of the service that every agent is.
pub const SERVICE_NAME: &str = "ensign";

/// Returns the id of an agent. The id is unique among the fleets of a server, and survives restarts, so that permissions can
/// name the agent.
pub fn id(fleet: &str, node: &NodeId) -> String {
    format!("{fleet}-{node}")
}

/// Returns the subjects of an agent: requests to all services, to all agents, to itself.
pub fn subjects(id: &str) -> [String; 3] {
    ["$SRV.*".to_owned(), format!("$SRV.*.{SERVICE_NAME}"), format!("$SRV.*.{SERVICE_NAME}.{id}")]
}

/// The verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceVerb {
    /// The identity of the service.
    Ping,
    /// The endpoints.
    Info,
    /// The counters.
    Stats,
}

/// Returns the verb of a subject, and true for a request to one service alone. `None` for an unknown verb.
pub fn parse_subject(subject: &str) -> Option<(ServiceVerb, bool)> {
    let mut words = subject.strip_prefix("$SRV.")?.split('.');
    let verb = match words.next()? {
        "PING" => ServiceVerb::Ping,
        "INFO" => ServiceVerb::Info,
        "STATS" => ServiceVerb::Stats,
        _ => return None,
    };
    Some((verb, words.count() == 2))
}

/// The fields of every response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceIdentity {
    /// The kind of the service.
    pub name: String,
    /// The id of the instance.
    pub id: String,
    /// Its version, as SemVer.
    pub version: String,
    /// Further properties.
    pub metadata: BTreeMap<String, String>,
}

/// The answer to `PING`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PingAnswer {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    identity: ServiceIdentity,
}

impl PingAnswer {
    /// Creates the response to a ping.
    pub fn new(identity: ServiceIdentity) -> Self {
        Self { kind: "io.nats.micro.v1.ping_response", identity }
    }
}

/// An endpoint of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    name: String,
    subject: String,
    queue_group: String,
    metadata: BTreeMap<String, String>,
}

impl Endpoint {
    /// Creates an endpoint of this name on this subject, without a queue group: every service gets each request.
    pub fn new(name: &str, subject: &str) -> Self {
        Self { name: name.to_owned(), subject: subject.to_owned(), queue_group: String::new(), metadata: BTreeMap::new() }
    }
}

/// The answer to `INFO`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InfoAnswer {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    identity: ServiceIdentity,
    description: &'static str,
    endpoints: Vec<Endpoint>,
}

impl InfoAnswer {
    /// Creates the response to an info request.
    pub fn new(identity: ServiceIdentity, endpoints: Vec<Endpoint>) -> Self {
        let description = "An agent of Ensign: signed configuration of its host";
        Self { kind: "io.nats.micro.v1.info_response", identity, description, endpoints }
    }
}

/// Counters of an endpoint. Times are nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndpointStats {
    name: String,
    subject: String,
    queue_group: String,
    num_requests: u64,
    num_errors: u64,
    last_error: String,
    processing_time: u64,
    average_processing_time: u64,
    data: Value,
}

/// Counts of requests to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceCounters {
    /// All requests.
    pub requests: u64,
    /// The number of failed requests.
    pub errors: u64,
    /// The last error.
    pub last_error: Option<String>,
    /// The time that all requests took together.
    pub took: Duration,
}

impl EndpointStats {
    /// Creates the counters of an endpoint, with additional data of the service.
    pub fn new(endpoint: &Endpoint, counted: ServiceCounters, data: Value) -> Self {
        let nanos = u64::try_from(counted.took.as_nanos()).unwrap_or(u64::MAX);
        Self {
            name: endpoint.name.clone(),
            subject: endpoint.subject.clone(),
            queue_group: endpoint.queue_group.clone(),
            num_requests: counted.requests,
            num_errors: counted.errors,
            last_error: counted.last_error.unwrap_or_default(),
            processing_time: nanos,
            average_processing_time: nanos.checked_div(counted.requests).unwrap_or_default(),
            data,
        }
    }
}

/// The answer to `STATS`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatsAnswer {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    identity: ServiceIdentity,
    started: Timestamp,
    endpoints: Vec<EndpointStats>,
}

impl StatsAnswer {
    /// Creates the response to a stats request.
    pub fn new(identity: ServiceIdentity, started: Timestamp, endpoints: Vec<EndpointStats>) -> Self {
        Self { kind: "io.nats.micro.v1.stats_response", identity, started, endpoints }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        for (subject, wanted) in [
            ("$SRV.PING", Some((ServiceVerb::Ping, false))),
            ("$SRV.INFO.ensign", Some((ServiceVerb::Info, false))),
            ("$SRV.STATS.ensign.prod-web1", Some((ServiceVerb::Stats, true))),
            ("$SRV.SCHEMA.ensign", None),
            ("ensign.v1.prod.cmd.apply.all", None),
        ] {
            assert_eq!(parse_subject(subject), wanted, "{subject}");
        }
    }

    #[test]
    fn answers_have_the_form_of_the_standard() {
        let identity = || ServiceIdentity {
            name: SERVICE_NAME.into(),
            id: id("prod", &"web1".parse().unwrap()),
            version: "0.1.0".into(),
            metadata: BTreeMap::from([("node".to_owned(), "web1".to_owned())]),
        };
        let ping = serde_json::to_value(PingAnswer::new(identity())).unwrap();
        let wanted = r#"{"id":"prod-web1","metadata":{"node":"web1"},"name":"ensign","type":"io.nats.micro.v1.ping_response","version":"0.1.0"}"#;
        assert_eq!(ping, serde_json::from_str::<Value>(wanted).unwrap());
        let endpoint = Endpoint::new("command", "a.b");
        let info = serde_json::to_value(InfoAnswer::new(identity(), vec![endpoint.clone()])).unwrap();
        assert_eq!(
            info["endpoints"][0],
            serde_json::json!({"name": "command", "subject": "a.b", "queue_group": "", "metadata": {}})
        );
        let figures = ServiceCounters { requests: 3, errors: 1, last_error: None, took: Duration::from_micros(10) };
        let counted = EndpointStats::new(&endpoint, figures, Value::Null);
        let stats = serde_json::to_value(StatsAnswer::new(identity(), Timestamp::UNIX_EPOCH, vec![counted])).unwrap();
        assert_eq!(
            (&stats["started"], &stats["type"]),
            (&"1970-01-01T00:00:00Z".into(), &"io.nats.micro.v1.stats_response".into())
        );
        let times = (&stats["endpoints"][0]["processing_time"], &stats["endpoints"][0]["average_processing_time"]);
        assert_eq!(times, (&10_000.into(), &3333.into()));
        let none = EndpointStats::new(&endpoint, ServiceCounters::default(), Value::Null);
        assert_eq!(none.average_processing_time, 0);
    }
}
