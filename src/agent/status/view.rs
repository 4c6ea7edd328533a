//! The agent as others on this host see it: for the command line over the socket, and for what the
//! edge of the program runs beside the agent, as its page for monitoring.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use crate::config::Settings;
use crate::transport::Bus;
use crate::wire::AgentStatus;
use crate::wire::agent_status::{ConnectionStatus, LimitsStatus, STATUS, TrustStatus};

use super::messages;
use crate::agent::Node;
use crate::agent::status::board::AlarmKind;

/// Something that runs beside the agent for as long as it does.
pub type SidecarTask = fn(StatusView) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A look at a running agent. Clones look at the same one.
#[derive(Clone)]
pub struct StatusView {
    node: Arc<Node>,
    bus: Bus,
}

impl StatusView {
    pub(in crate::agent) fn new(node: Arc<Node>, bus: Bus) -> Self {
        Self { node, bus }
    }

    /// How the agent stands now.
    pub fn status(&self) -> AgentStatus {
        status(&self.node, &self.bus)
    }

    /// The settings as they change.
    pub fn settings(&self) -> watch::Receiver<Arc<Settings>> {
        self.node.settings.watch()
    }

    /// Notes what is wrong with the page for monitoring, or that nothing is.
    pub fn page_trouble(&self, what: Option<String>) {
        self.node.board.set(AlarmKind::Http, what);
    }
}

/// How the agent stands now.
pub(in crate::agent) fn status(node: &Node, bus: &Bus) -> AgentStatus {
    let (settings, standing) = (node.settings(), node.board.read(Clone::clone));
    let waiting = node.disk.outbox_state();
    let (outbox, dropped) = (waiting.outbox, waiting.dropped);
    let limits = settings.limits.clone();
    AgentStatus {
        protocol: STATUS.to_owned(),
        node: settings.node.clone(),
        fleet: settings.fleet.clone(),
        hostname: settings.hostname.clone(),
        groups: settings.groups.clone(),
        version: messages::VERSION.to_owned(),
        boot: node.boot,
        started: node.started,
        at: node.now(),
        connection: connection(&settings, bus),
        trust: TrustStatus { version: node.trust().version(), expires: node.trust().expires() },
        limits: LimitsStatus {
            types: limits.types,
            paths: limits.paths,
            exec: limits.exec,
            apply: limits.apply,
            fetch_hosts: limits.fetch_hosts,
        },
        confinement: node.confinement(),
        channels: standing.channels,
        running: standing.running,
        queued: standing.queued,
        queue: settings.queue as u64,
        last_run: standing.last_run,
        outbox,
        dropped,
        counts: node.count.now(),
        alarms: standing.alarms.into_iter().map(|(topic, what)| (topic.name(), what)).collect(),
        pending: standing.pending,
    }
}

fn connection(settings: &Settings, bus: &Bus) -> ConnectionStatus {
    let (link, counters) = (*bus.watch().borrow(), bus.counters());
    ConnectionStatus {
        connected: bus.is_connected(),
        servers: settings.nats.servers.clone(),
        server_version: bus.server_version(),
        connects: link.connects,
        disconnects: counters.disconnects,
        slow_consumers: counters.slow_consumers,
        auth_errors: counters.auth_errors,
        denied: counters.denied,
    }
}
