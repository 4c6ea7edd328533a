//! Discovery by the tools of NATS: `nats micro ls`, `info` and `stats` see every agent (NATS ADR-32).
//!
//! Every agent answers for itself, without a queue group. A server that denies the subscription affects nothing else.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::Publisher;
use crate::agent::identity::AgentInstance;
use crate::agent::status::counters::SharedCounters;
use crate::transport::{Bus, Inbox, Message};
use crate::wire::nats_micro::{
    self, Endpoint, EndpointStats, InfoAnswer, PingAnswer, ServiceCounters, ServiceIdentity, ServiceVerb, StatsAnswer,
};

use crate::agent::intake::commands::is_inbox;
use crate::agent::jitter;
use crate::agent::status::messages;

/// The time over which a fleet spreads its answers to one request.
const SPREAD: Duration = Duration::from_millis(100);

/// The handles of the micro service.
#[derive(Clone)]
pub(in crate::agent) struct ServiceHandles {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) counters: Arc<SharedCounters>,
}

/// Answers requests until the agent ends.
pub(in crate::agent) async fn run(node: ServiceHandles, bus: Bus) {
    let subjects = nats_micro::subjects(&nats_micro::id(&node.settings.now().fleet, &node.settings.now().node));
    let mut inboxes = Vec::new();
    for subject in subjects {
        match bus.subscribe(&subject).await {
            Ok(inbox) => inboxes.push(tokio::spawn(answer(node.clone(), bus.clone(), inbox))),
            Err(error) => {
                tracing::debug!(error = %crate::diag::error_chain(&error), "cannot subscribe to the requests of the NATS tools");
            }
        }
    }
    for inbox in inboxes {
        // The task ends with the connection.
        let _ended = inbox.await.is_ok();
    }
}

async fn answer(node: ServiceHandles, bus: Bus, mut inbox: Inbox) {
    while let Some(Message { subject, reply, .. }) = inbox.next().await {
        let (Some((verb, to_one)), Some(reply)) = (nats_micro::parse_subject(&subject), reply.filter(|reply| is_inbox(reply)))
        else {
            continue;
        };
        if !to_one {
            tokio::time::sleep(jitter::random_delay(SPREAD)).await;
        }
        let payload = match verb {
            ServiceVerb::Ping => messages::json(&PingAnswer::new(identity(&node))),
            ServiceVerb::Info => messages::json(&InfoAnswer::new(identity(&node), endpoints(&node))),
            ServiceVerb::Stats => {
                messages::json(&StatsAnswer::new(identity(&node), node.identity.started, vec![endpoint_stats(&node)]))
            }
        };
        node.publisher.publish_best_effort(&bus, &reply, payload, None).await;
    }
}

fn identity(node: &ServiceHandles) -> ServiceIdentity {
    let settings = node.settings.now();
    let metadata = [
        ("node", settings.node.to_string()),
        ("fleet", settings.fleet.clone()),
        ("hostname", settings.hostname.clone()),
        ("groups", settings.groups.join(",")),
        ("boot", node.identity.boot.to_string()),
    ];
    ServiceIdentity {
        name: nats_micro::SERVICE_NAME.to_owned(),
        id: nats_micro::id(&settings.fleet, &settings.node),
        version: messages::VERSION.to_owned(),
        metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}

fn endpoints(node: &ServiceHandles) -> Vec<Endpoint> {
    let settings = node.settings.now();
    let subjects = node.identity.subjects.command_subscriptions(&settings.node, &settings.groups);
    subjects.iter().map(|subject| Endpoint::new("command", subject.as_str())).collect()
}

/// Returns the counters. All endpoints count together, under the node's own subject.
fn endpoint_stats(node: &ServiceHandles) -> EndpointStats {
    let counts = node.counters.now();
    let refused: u64 = counts.refused.values().sum();
    let subject = node.identity.subjects.command_subscriptions(&node.settings.now().node, &[]);
    let endpoint = Endpoint::new("command", subject.first().map_or("", |subject| subject.as_str()));
    let requests = counts.accepted + counts.repeated + counts.not_selected + refused;
    let data = serde_json::json!({"accepted": counts.accepted, "refused": counts.refused, "ended": counts.ended});
    let took = Duration::from_secs_f64(counts.intake_seconds);
    EndpointStats::new(&endpoint, ServiceCounters { requests, errors: refused, last_error: counts.last_refusal, took }, data)
}
