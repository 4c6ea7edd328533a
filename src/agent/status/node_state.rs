//! The state of the node, as its heartbeat carries it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::state::DurableState;
use crate::agent::exec::confinement;
use crate::agent::identity::AgentInstance;
use crate::agent::trust::TrustHandle;
use crate::host::confine::KernelFeatures;
use crate::transport::Bus;
use crate::wire::report::{self, AssignmentStatus, FailingResource};
use crate::wire::{ConfinementState, NodeState, receipt};

use super::board::{MAX_FAILING, StatusBoard};
use super::messages;

/// Makes the state of the node from the parts of the agent.
#[derive(Clone)]
pub(in crate::agent) struct NodeStateSource {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) kernel: Option<KernelFeatures>,
}

/// Returns the first failing resources: of the last command, then of the channels in their order.
fn failing(all: &BTreeMap<String, Vec<FailingResource>>, assignments: &[AssignmentStatus]) -> Vec<FailingResource> {
    let channels = assignments.iter().filter_map(|assignment| all.get(&assignment.channel));
    all.get("").into_iter().chain(channels).flatten().take(MAX_FAILING).cloned().collect()
}

impl NodeStateSource {
    /// Returns the limits that the kernel enforces on runs; `None` where nothing runs.
    pub(in crate::agent) fn confinement(&self) -> Option<ConfinementState> {
        Some(confinement::ConfinementReport::new(&self.settings.now(), self.kernel?).state())
    }

    /// Returns the state now. `alive` is false in the last state of an agent.
    pub(in crate::agent) fn state(&self, alive: bool) -> NodeState {
        let outbox = self.durable.outbox_state();
        let snapshot = self.status.read(Clone::clone);
        let failing = failing(&snapshot.failing, &snapshot.assignments);
        let settings = self.settings.now();
        NodeState {
            protocol: report::STATE.to_owned(),
            node: self.identity.node.clone(),
            at: self.identity.now(),
            interval: settings.heartbeat.as_std().as_secs().max(1),
            alive,
            hostname: settings.hostname.clone(),
            boot: self.identity.boot,
            started: self.identity.started,
            version: messages::VERSION.to_owned(),
            platform: self.identity.platform.clone(),
            groups: settings.groups.clone(),
            trust: self.trust.current().version(),
            channels: snapshot.channels,
            assignments: snapshot.assignments,
            running: snapshot.running,
            unwritten: snapshot.unwritten,
            queued: snapshot.queued,
            last_run: snapshot.last_run,
            failing,
            outbox: outbox.outbox,
            dropped: outbox.dropped,
            dropped_results: outbox.dropped_results,
            key: Some(self.durable.receipt_signer().public().to_short()),
            chain: outbox.chain,
            open: outbox.open,
            confinement: self.confinement(),
            alarms: snapshot.alarms.into_values().collect(),
        }
    }

    /// Publishes the last state of this agent. Returns when the server has stored it, at the latest after `timeout`.
    pub(in crate::agent) async fn publish_final(&self, bus: &Bus, timeout: Duration) {
        let (subject, payload) = (self.identity.subjects.state(&self.identity.node), messages::json(&self.state(false)));
        let receipt = self.durable.receipt_signer().receipt(subject.as_str(), &payload, None, self.identity.now(), None).encode();
        let headers = [(receipt::HEADER, receipt.as_str())];
        match tokio::time::timeout(timeout, bus.publish_stored(subject.as_str(), &headers, payload)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(error = %crate::diag::error_chain(&error), "the last state is not stored"),
            Err(_) => tracing::debug!("the last state is not stored: no answer from the server"),
        }
    }
}
