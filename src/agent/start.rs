//! Start and stop of the tasks of an agent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::transport::{Bus, ConnectionState};

use super::config::connection;
use super::config::reload::ReloadHandles;
use super::context::Handles;
use super::durable::outbox_sender::{self, SenderHandles};
use super::endpoints::micro_service::{self, ServiceHandles};
use super::endpoints::{socket, systemd};
use super::error::AgentError;
use super::exec::executor::{self, Executor};
use super::exec::fetch::ManifestFetcher;
use super::exec::healthcheck::HealthChecks;
use super::exec::queries::{self, Queries};
use super::exec::recovery::Recovery;
use super::exec::upgrade::AgentUpgrade;
use super::intake::commands::{self, IntakeHandles, Queues};
use super::intake::desired_state_sync::{self, SyncHandles};
use super::intake::fair_queue::FairQueue;
use super::intake::incoming::LocalCommand;
use super::options::AgentOptions;
use super::reconcile::reconciler::{self, Reconciler};
use super::rollout::scheduler::RolloutScheduler;
use super::status::clock_skew;
use super::status::heartbeat::{self, HeartbeatHandles};
use super::status::status_view::{SidecarTask, StatusView, ViewHandles};
use super::trust::updates::{self, UpdateHandles};

/// Longest time for the last results, the last state and the end of the connection, after the run has ended.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The counts of the ledger and the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Accepted commands, as far as the ledger remembers them.
    pub accepted: usize,
    /// The ended ones of the accepted commands.
    pub ended: usize,
    /// Messages that wait for the server.
    pub waiting: u64,
    /// Dropped messages since the state directory was made.
    pub dropped: u64,
}

/// A running agent. An agent has no process-wide state: one process may run many agents.
pub struct Agent {
    handles: Handles,
    bus: Bus,
    stopper: watch::Sender<bool>,
    sender: outbox_sender::Handle,
    executor: executor::Handle,
    queries: queries::Handle,
    intake: commands::Handle,
    reconciler: JoinHandle<()>,
    sync: JoinHandle<()>,
    updates: JoinHandle<()>,
    heartbeat: JoinHandle<()>,
    upgrade_due: watch::Receiver<bool>,
}

/// The tasks of the endpoints on this host.
pub(super) struct Endpoints {
    network: Vec<JoinHandle<()>>,
    local: Vec<JoinHandle<()>>,
}

impl Endpoints {
    /// Ends the tasks that use the network.
    pub(super) fn close_network(&self) {
        self.network.iter().for_each(JoinHandle::abort);
    }

    /// Ends all tasks.
    pub(super) fn close(self) {
        self.network.iter().chain(&self.local).for_each(JoinHandle::abort);
    }
}

impl Agent {
    /// Starts the tasks on the current runtime.
    ///
    /// # Errors
    /// When the agent cannot start. A missing server is no error: the agent waits for it.
    pub async fn start(options: AgentOptions) -> Result<Self, AgentError> {
        let settings = connection::bus_settings(&options.settings)?;
        let program = options.program.clone();
        let handles = Handles::open(options)?;
        let recovery = Recovery {
            identity: &handles.identity,
            verifier: &handles.verifier,
            durable: &handles.durable,
            publisher: &handles.publisher,
            desired_state: &handles.desired_state,
            rollouts: &handles.rollouts,
            orphans: handles.run.orphans.report.as_deref(),
        };
        let recovered = recovery.recover();
        let health_gates = recovery.pending_health_gates(&recovered);
        let bus = Bus::connect(&settings).await?;
        let (stopper, stop) = watch::channel(false);

        let Handles { identity, settings, trust, verifier, durable, publisher, status, .. } = &handles;
        let Handles { node_state, counters, facts, desired_state, rollouts, run, .. } = &handles;
        let sender = outbox_sender::Handle::spawn(
            &SenderHandles {
                identity: Arc::clone(identity),
                settings: settings.clone(),
                durable: Arc::clone(durable),
                publisher: publisher.clone(),
                status: Arc::clone(status),
                counters: Arc::clone(counters),
            },
            &bus,
        );
        let (queue, jobs) = FairQueue::open();
        for job in recovered.jobs {
            queue.push(Box::new(job));
        }
        let scheduler = RolloutScheduler {
            identity: Arc::clone(identity),
            verifier: verifier.clone(),
            rollouts: rollouts.clone(),
            bus: bus.clone(),
            queue: Arc::clone(&queue),
        };
        for (job, result) in &health_gates {
            scheduler.complete_after_hold(job, result);
        }
        let fetcher = ManifestFetcher { settings: settings.clone(), desired_state: Arc::clone(desired_state), bus: bus.clone() };
        let answers = Queries {
            identity: Arc::clone(identity),
            facts: Arc::clone(facts),
            node_state: node_state.clone(),
            durable: Arc::clone(durable),
            publisher: publisher.clone(),
        };
        let upgrade = AgentUpgrade::new(program, Arc::clone(status));
        let upgrade_due = upgrade.watch();
        let executor = executor::Handle::spawn(
            Executor {
                context: Arc::clone(run),
                verifier: verifier.clone(),
                publisher: publisher.clone(),
                rollouts: rollouts.clone(),
                scheduler: scheduler.clone(),
                fetcher: fetcher.clone(),
                health_checks: HealthChecks {
                    identity: Arc::clone(identity),
                    status: Arc::clone(status),
                    desired_state: Arc::clone(desired_state),
                    fetcher: fetcher.clone(),
                },
                queries: answers.clone(),
                bus: bus.clone(),
                queue: Arc::clone(&queue),
                upgrade,
            },
            jobs,
            recovered.ended,
            stop.clone(),
        );
        let queries = queries::Handle::spawn(answers, bus.clone(), stop.clone());
        let intake = commands::Handle::spawn(
            IntakeHandles {
                identity: Arc::clone(identity),
                settings: settings.clone(),
                verifier: verifier.clone(),
                durable: Arc::clone(durable),
                publisher: publisher.clone(),
                status: Arc::clone(status),
                counters: Arc::clone(counters),
                facts: Arc::clone(facts),
                desired_state: Arc::clone(desired_state),
                rollouts: rollouts.clone(),
                scheduler,
            },
            bus.clone(),
            Queues { work: queue, queries: Arc::clone(&queries.queue) },
            stop.clone(),
        )
        .await?;
        let reconciler = reconciler::spawn(
            Reconciler {
                identity: Arc::clone(identity),
                settings: settings.clone(),
                durable: Arc::clone(durable),
                publisher: publisher.clone(),
                status: Arc::clone(status),
                counters: Arc::clone(counters),
                facts: Arc::clone(facts),
                desired_state: Arc::clone(desired_state),
                rollouts: rollouts.clone(),
                fetcher,
                bus: bus.clone(),
            },
            executor.runs.clone(),
            stop.clone(),
        );
        let sync = SyncHandles {
            identity: Arc::clone(identity),
            settings: settings.clone(),
            trust: trust.clone(),
            status: Arc::clone(status),
            desired_state: Arc::clone(desired_state),
        };
        let sync = tokio::spawn(desired_state_sync::run(sync, bus.clone(), intake.inbound.clone(), stop.clone()));
        let updates = UpdateHandles {
            identity: Arc::clone(identity),
            settings: settings.clone(),
            trust: trust.clone(),
            durable: Arc::clone(durable),
            publisher: publisher.clone(),
            status: Arc::clone(status),
            rollouts: rollouts.clone(),
            desired_state: Arc::clone(desired_state),
        };
        let updates = tokio::spawn(updates::run(updates, bus.clone()));
        let beats = HeartbeatHandles {
            identity: Arc::clone(identity),
            settings: settings.clone(),
            durable: Arc::clone(durable),
            publisher: publisher.clone(),
            status: Arc::clone(status),
            trust: trust.clone(),
            node_state: node_state.clone(),
        };
        let heartbeat = tokio::spawn(heartbeat::run(beats, bus.clone(), stop));
        let bundle = trust.current();
        publisher.post_started(&bundle);
        tracing::info!(node = %identity.node, fleet = settings.now().fleet, trust = bundle.version(), "started");
        Ok(Self { handles, bus, stopper, sender, executor, queries, intake, reconciler, sync, updates, heartbeat, upgrade_due })
    }

    /// Returns the news of the program: true once another version is to start in place of this one.
    pub(super) fn upgrade_due(&self) -> watch::Receiver<bool> {
        self.upgrade_due.clone()
    }

    /// Opens the endpoints on this host: the socket, the micro service, the service manager, the sidecar task.
    pub(super) fn open_endpoints(&self, sidecar: SidecarTask) -> Endpoints {
        let Handles { identity, settings, durable, publisher, status, counters, .. } = &self.handles;
        let service = ServiceHandles {
            identity: Arc::clone(identity),
            settings: settings.clone(),
            publisher: publisher.clone(),
            counters: Arc::clone(counters),
        };
        let (view, local): (_, mpsc::Sender<LocalCommand>) = (self.view(), self.intake.local.clone());
        let network = vec![
            tokio::spawn(systemd::ready(settings.now(), self.bus.clone())),
            tokio::spawn(micro_service::run(service, self.bus.clone())),
            tokio::spawn(clock_skew::run(Arc::clone(identity), Arc::clone(status), self.bus.clone())),
        ];
        let local = vec![tokio::spawn(socket::serve(view.clone(), Arc::clone(durable), local)), tokio::spawn(sidecar(view))];
        Endpoints { network, local }
    }

    fn view(&self) -> StatusView {
        let Handles { identity, settings, trust, durable, status, counters, node_state, run, .. } = &self.handles;
        let handles = ViewHandles {
            identity: Arc::clone(identity),
            settings: settings.clone(),
            trust: trust.clone(),
            durable: Arc::clone(durable),
            status: Arc::clone(status),
            counters: Arc::clone(counters),
            node_state: node_state.clone(),
            run: Arc::clone(run),
        };
        StatusView::new(handles, self.bus.clone())
    }

    /// Returns the handles of a reload.
    pub(super) fn reload_handles(&self) -> ReloadHandles {
        let Handles { settings, durable, status, counters, facts, .. } = &self.handles;
        ReloadHandles {
            settings: settings.clone(),
            durable: Arc::clone(durable),
            status: Arc::clone(status),
            counters: Arc::clone(counters),
            facts: Arc::clone(facts),
        }
    }

    /// Returns the state of the connection as it changes.
    pub fn link(&self) -> watch::Receiver<ConnectionState> {
        self.bus.watch()
    }

    /// Returns the counts of the ledger and the outbox.
    pub fn queue_stats(&self) -> QueueStats {
        let (accepted, ended) = self.handles.durable.counts();
        let outbox = self.handles.durable.outbox_state();
        QueueStats { accepted, ended, waiting: outbox.outbox, dropped: outbox.dropped }
    }

    /// Cuts the connection for good: for simulators, whose nodes fall silent without dying.
    pub fn cut(&self) -> impl Future<Output = ()> + Send + use<> {
        let bus = self.bus.clone();
        async move { bus.drain(Instant::now() + STOP_TIMEOUT).await }
    }

    /// Lets the current run end, publishes the last state, and closes the connection. Unsent messages stay on disk.
    pub async fn stop(self) {
        let Handles { publisher, node_state, rollouts, .. } = &self.handles;
        self.stopper.send_replace(true);
        self.sync.abort();
        self.updates.abort();
        self.intake.join().await;
        rollouts.queue.close();
        self.executor.join().await;
        self.queries.join().await;
        if let Err(error) = self.reconciler.await {
            tracing::error!(%error, "the reconciler panicked");
        }
        publisher.post_counted_runs();
        publisher.post_stopped();
        self.sender.join(STOP_TIMEOUT).await;
        // Awaited: a heartbeat that is being published would follow the last state.
        self.heartbeat.abort();
        let _cancelled = self.heartbeat.await;
        node_state.publish_final(&self.bus, STOP_TIMEOUT).await;
        self.bus.drain(Instant::now() + STOP_TIMEOUT).await;
    }
}
