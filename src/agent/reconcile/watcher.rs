//! The watcher of a channel: a thread that waits for drift of the assignment in force. The thread asks for the runs that repair
//! the drift.
//!
//! The thread changes nothing on the host. Each repair is a run of the executor, with the rights and limits of the assignment.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::agent::durable::publisher::Publisher;
use crate::agent::exec::job::RepairSelection;
use crate::agent::exec::result::WatchUpdate;
use crate::agent::identity::AgentInstance;
use crate::agent::status::counters::SharedCounters;
use crate::agent::status::messages;
use crate::diag::error_chain;
use crate::engine::RunSelection;
use crate::engine::reactive::{Enforcer, NamedNotice, Notice};
use crate::host::file_writers::FileWriter;
use crate::host::waker::Waker;
use crate::model::ResourceRef;
use crate::watch::WatchError;
use crate::wire::report::{LifecycleEvent, WatchStatus};

/// The time without drift and failures after which an assignment is converged.
const CONVERGED_AFTER: Duration = Duration::from_secs(5);
/// Ended runs that may wait for the thread. The next one begins after the thread took the one before.
const MAX_UPDATES: usize = 16;

/// A watcher died of this.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatcherError {
    /// The host gives no watches, or lost them.
    #[error("cannot watch for drift")]
    Watch(#[from] WatchError),
    /// The thread cannot be started.
    #[error("cannot start a thread that watches for drift")]
    Thread(#[source] io::Error),
}

/// News from a watcher.
pub(super) struct WatchReport {
    /// The channel.
    pub(super) channel: String,
    /// The number of the watcher.
    pub(super) watcher: u64,
    /// The news.
    pub(super) news: WatchNews,
}

/// The news of a watcher.
pub(super) enum WatchNews {
    /// These resources may have drifted. The watcher waits for the end of a run that checks them.
    Drifted(RepairSelection),
    /// The state at rest has changed.
    Status {
        /// The state.
        status: WatchStatus,
        /// The resources that something else changes again and again, with the process where the kernel named one.
        flapping: BTreeMap<ResourceRef, Option<FileWriter>>,
    },
    /// The watcher ended.
    Failed(String),
}

/// The end of a run of the watched assignment.
pub(super) struct WatchedRunEnd {
    /// The news of the run.
    pub(super) update: WatchUpdate,
    /// True for the run that a [`WatchNews::Drifted`] asked for.
    pub(super) is_repair: bool,
}

/// The name of a watcher, and its ways out.
pub(super) struct WatcherContext {
    pub(super) channel: String,
    pub(super) number: u64,
    pub(super) reports: mpsc::Sender<WatchReport>,
    pub(super) identity: Arc<AgentInstance>,
    pub(super) counters: Arc<SharedCounters>,
    pub(super) publisher: Publisher,
}

/// A running watcher, which ends when it is dropped.
pub(super) struct Watcher {
    /// None while the watcher is dropped.
    runs: Option<SyncSender<WatchedRunEnd>>,
    waker: Waker,
}

impl Watcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the host gives no watches or no thread.
    pub(super) fn start(context: WatcherContext) -> Result<Self, WatcherError> {
        let enforcer = Enforcer::open(Some(CONVERGED_AFTER))?;
        let (runs, ended) = sync_channel(MAX_UPDATES);
        let waker = enforcer.waker();
        let now = context.identity.now();
        let mut thread = WatchThread {
            context,
            enforcer,
            ended,
            state: WatcherState::AwaitingDrift,
            names: Vec::new(),
            polled: 0,
            flapping: BTreeMap::new(),
            convergence: (false, now),
            reported: None,
        };
        let spawned = thread::Builder::new().name("watcher".to_owned()).spawn(move || thread.run());
        spawned.map_err(WatcherError::Thread)?;
        Ok(Self { runs: Some(runs), waker })
    }

    /// Tells the watcher about the end of a run. Returns false when the watcher has ended.
    pub(super) fn run_ended(&self, end: WatchedRunEnd) -> bool {
        let sent = self.runs.as_ref().is_some_and(|runs| runs.try_send(end).is_ok());
        self.waker.wake();
        sent
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The thread sees that the sender is gone, and ends.
        self.runs = None;
        self.waker.wake();
    }
}

/// The event that a watcher waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatcherState {
    /// Waits for a change of the host, or the end of a run that others asked for.
    AwaitingDrift,
    /// Waits for the end of the run of its selection. The kernel keeps the changes until then.
    AwaitingRunEnd,
}

struct WatchThread {
    context: WatcherContext,
    enforcer: Enforcer,
    ended: Receiver<WatchedRunEnd>,
    state: WatcherState,
    /// The resources, by their number in the plan.
    names: Vec<ResourceRef>,
    polled: usize,
    flapping: BTreeMap<ResourceRef, Option<FileWriter>>,
    /// True when the assignment is converged, with the time of the last change.
    convergence: (bool, jiff::Timestamp),
    reported: Option<(WatchStatus, BTreeMap<ResourceRef, Option<FileWriter>>)>,
}

impl WatchThread {
    fn run(&mut self) {
        if let Err(error) = self.watch() {
            self.report(WatchNews::Failed(error_chain(&error)));
        }
    }

    /// Watches until the watcher is dropped.
    fn watch(&mut self) -> Result<(), WatchError> {
        while self.receive_ended_runs() {
            self.handle_notices();
            let is_sent = match self.enforcer.start(Instant::now()) {
                Some(selection) => {
                    self.state = WatcherState::AwaitingRunEnd;
                    let selection = self.named(selection);
                    self.report(WatchNews::Drifted(selection))
                }
                None => {
                    let is_sent = self.report_status();
                    self.enforcer.wait(None)?;
                    is_sent
                }
            };
            if !is_sent {
                break;
            }
        }
        Ok(())
    }

    /// Takes the ended runs, until no run of a selection is missing. Returns false when the watcher is dropped.
    fn receive_ended_runs(&mut self) -> bool {
        loop {
            let end = match self.state {
                WatcherState::AwaitingRunEnd => self.ended.recv().map_err(|_| TryRecvError::Disconnected),
                WatcherState::AwaitingDrift => self.ended.try_recv(),
            };
            match end {
                Ok(end) => self.run_ended(end),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn run_ended(&mut self, WatchedRunEnd { update, is_repair }: WatchedRunEnd) {
        let now = Instant::now();
        if let Some(resources) = update.resources {
            self.replace(resources, now);
            self.enforcer.end_whole_run(&update.checks, now);
        } else {
            for event in &update.checks {
                self.context.counters.checked(event);
                if let Some(repair) = self.enforcer.record(event, now).repair {
                    self.context.counters.repaired(repair.latency);
                }
            }
        }
        for (resource, targets) in &update.late {
            self.enforcer.watch_late(resource, targets);
        }
        if is_repair {
            self.enforcer.end_pass(now);
            self.state = WatcherState::AwaitingDrift;
        }
    }

    fn replace(&mut self, resources: Vec<crate::engine::reactive::WatchedResource>, now: Instant) {
        self.names = resources.iter().filter_map(|resource| resource.references.first().cloned()).collect();
        self.flapping.retain(|name, _| self.names.contains(name));
        let replaced = self.enforcer.replace(resources, now);
        self.polled = replaced.polled.len();
        tracing::info!(
            channel = self.context.channel,
            new = replaced.new,
            kept = replaced.kept,
            polled = self.polled,
            "watching for drift"
        );
    }

    fn named(&self, selection: RunSelection) -> RepairSelection {
        let names = selection.resources.iter().filter_map(|number| Some((*number, self.names.get(*number)?.clone())));
        RepairSelection { names: names.collect(), selection: Arc::new(selection) }
    }

    fn handle_notices(&mut self) {
        for NamedNotice { resource, notice, writer } in self.enforcer.notices() {
            let (channel, name) = (&self.context.channel, resource.as_ref().map(ToString::to_string).unwrap_or_default());
            match notice {
                Notice::Parked { failures, .. } => {
                    tracing::warn!(channel, "{name} failed {failures} times: it is tried again after a change of the host");
                    self.context.counters.tries_used_up();
                }
                Notice::FlappingBegan { repairs, span, .. } => {
                    let by = writer.as_ref().map(|writer| format!(", last {writer}")).unwrap_or_default();
                    let why = format!("{name} was repaired {repairs} times in {span:.1?}: something else changes it{by}");
                    tracing::warn!(channel, "{why}");
                    self.publish("flapping", &why);
                    self.flapping.extend(resource.map(|resource| (resource, writer)));
                }
                Notice::FlappingEnded { repairs, span, .. } => {
                    let why = format!("{name} stays as wanted, after {repairs} repairs in {span:.1?}");
                    tracing::info!(channel, "{why}");
                    self.publish("settled", &why);
                    resource.map(|resource| self.flapping.remove(&resource));
                }
                Notice::Converged { .. } => self.convergence = (true, self.context.identity.now()),
                Notice::Diverged => self.convergence = (false, self.context.identity.now()),
                Notice::WouldChange { .. } => {}
            }
        }
    }

    fn publish(&self, what: &str, why: &str) {
        let WatcherContext { channel, identity, publisher, .. } = &self.context;
        let message = Some(format!("channel {channel}: {why}"));
        publisher.post_lifecycle(&LifecycleEvent { message, ..messages::lifecycle(identity, what) });
    }

    /// Reports the state at rest, if it is another one. Returns false when the reconciler is gone.
    fn report_status(&mut self) -> bool {
        let counts = self.enforcer.counts();
        let (converged, since) = self.convergence;
        let status = WatchStatus {
            resources: self.names.len() as u64,
            polled: self.polled as u64,
            clean: u64::from(counts.clean + counts.would_change),
            failed: u64::from(counts.failed + counts.parked + counts.blocked),
            flapping: self.flapping.len() as u64,
            converged,
            since,
        };
        let now = (status, self.flapping.clone());
        if counts.dirty > 0 || self.reported.as_ref() == Some(&now) {
            return true;
        }
        self.reported = Some(now);
        self.report(WatchNews::Status { status, flapping: self.flapping.clone() })
    }

    fn report(&self, news: WatchNews) -> bool {
        let WatcherContext { channel, number, reports, .. } = &self.context;
        reports.blocking_send(WatchReport { channel: channel.clone(), watcher: *number, news }).is_ok()
    }
}
