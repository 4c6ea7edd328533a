//! The view of the agent for other processes of this host.
//!
//! The command line reads it over the socket; the monitoring page of the same process reads it directly.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::state::DurableState;
use crate::agent::exec::context::RunContext;
use crate::agent::identity::AgentInstance;
use crate::agent::status::NodeStateSource;
use crate::agent::status::board::StatusBoard;
use crate::agent::status::counters::SharedCounters;
use crate::agent::trust::TrustHandle;
use crate::config::AgentSettings;
use crate::model::lock;
use crate::transport::Bus;
use crate::wire::AgentStatus;
use crate::wire::agent_status::{ConnectionStatus, LimitsStatus, STATUS, TrustStatus};

use super::messages;
use crate::agent::status::board::{AgentSnapshot, AlarmKind};

/// A task that runs beside the agent until the agent ends.
pub type SidecarTask = fn(StatusView) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// The handles of the view.
#[derive(Clone)]
pub(in crate::agent) struct ViewHandles {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) counters: Arc<SharedCounters>,
    pub(in crate::agent) node_state: NodeStateSource,
    pub(in crate::agent) run: Arc<RunContext>,
}

/// A view of a running agent. Clones share it.
#[derive(Clone)]
pub struct StatusView {
    handles: ViewHandles,
    bus: Bus,
}

impl StatusView {
    pub(in crate::agent) fn new(handles: ViewHandles, bus: Bus) -> Self {
        Self { handles, bus }
    }

    /// Returns the current status of the agent.
    pub fn status(&self) -> AgentStatus {
        status(&self.handles, &self.bus)
    }

    /// Returns a receiver that changes with the snapshot of the agent.
    pub(in crate::agent) fn watch(&self) -> watch::Receiver<AgentSnapshot> {
        self.handles.status.watch()
    }

    /// Returns the state directory.
    pub(in crate::agent) fn state_dir(&self) -> PathBuf {
        self.handles.settings.now().state_dir.clone()
    }

    /// Returns a receiver that changes with the settings.
    pub fn settings(&self) -> watch::Receiver<Arc<AgentSettings>> {
        self.handles.settings.watch()
    }

    /// Raises the alarm about the monitoring page. Clears it without a text.
    pub fn set_page_alarm(&self, what: Option<String>) {
        self.handles.status.set(AlarmKind::Http, what);
    }
}

/// Returns the current status of the agent.
pub(in crate::agent) fn status(node: &ViewHandles, bus: &Bus) -> AgentStatus {
    let (settings, snapshot) = (node.settings.now(), node.status.read(Clone::clone));
    let waiting = node.durable.outbox_state();
    let (outbox, dropped) = (waiting.outbox, waiting.dropped);
    let limits = settings.limits.clone();
    AgentStatus {
        protocol: STATUS.to_owned(),
        node: settings.node.clone(),
        fleet: settings.fleet.clone(),
        hostname: settings.hostname.clone(),
        groups: settings.groups.clone(),
        version: messages::VERSION.to_owned(),
        boot: node.identity.boot,
        started: node.identity.started,
        at: node.identity.now(),
        connection: connection(&settings, bus),
        trust: TrustStatus { version: node.trust.current().version(), expires: node.trust.current().expires() },
        limits: LimitsStatus {
            types: limits.types,
            paths: limits.paths,
            exec: limits.exec,
            apply: limits.apply,
            fetch_hosts: limits.fetch_hosts,
        },
        confinement: node.node_state.confinement(),
        channels: snapshot.channels,
        watches: snapshot.assignments.into_iter().filter_map(|one| Some((one.channel, one.watch?))).collect(),
        running: snapshot.running,
        pending_refreshes: lock(&node.run.refreshes).all().count() as u64,
        queued: snapshot.queued,
        queue: settings.queue as u64,
        last_run: snapshot.last_run,
        outbox,
        dropped,
        counts: node.counters.now(),
        alarms: snapshot.alarms.into_iter().map(|(topic, what)| (topic.name(), what)).collect(),
        pending: snapshot.pending,
    }
}

fn connection(settings: &AgentSettings, bus: &Bus) -> ConnectionStatus {
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
