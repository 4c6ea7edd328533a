//! The subscriptions of the intake: the subjects of this node, its groups and all nodes.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::agent::identity::AgentInstance;
use crate::config::AgentSettings;
use crate::transport::{Bus, Inbox, Message, TransportError};

/// The subscriptions to the subjects of this node, its groups and all nodes.
pub(super) struct Subscriptions {
    inbound: mpsc::Sender<Message>,
    open: BTreeMap<String, JoinHandle<()>>,
}

impl Subscriptions {
    pub(super) fn new(inbound: mpsc::Sender<Message>) -> Self {
        Self { inbound, open: BTreeMap::new() }
    }

    /// Subscribes to the subjects of the node and its groups, and ends the other subscriptions. A subscription that stays
    /// loses no command.
    ///
    /// # Errors
    /// When a subscription fails.
    pub(super) async fn follow(
        &mut self,
        identity: &AgentInstance,
        settings: &AgentSettings,
        bus: &Bus,
    ) -> Result<(), TransportError> {
        let wanted: BTreeSet<String> =
            identity.subjects.work_subscriptions(&settings.node, &settings.groups).iter().map(ToString::to_string).collect();
        for subject in wanted.iter().filter(|subject| !self.open.contains_key(*subject)).collect::<Vec<_>>() {
            let inbox = bus.subscribe(subject).await?;
            self.open.insert(subject.clone(), tokio::spawn(forward(inbox, self.inbound.clone())));
        }
        self.open.retain(|subject, subscription| {
            let keep = wanted.contains(subject);
            if !keep {
                subscription.abort();
            }
            keep
        });
        Ok(())
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for subscription in self.open.values() {
            subscription.abort();
        }
    }
}

async fn forward(mut inbox: Inbox, inbound: mpsc::Sender<Message>) {
    while let Some(message) = inbox.next().await {
        if inbound.send(message).await.is_err() {
            return;
        }
    }
}
