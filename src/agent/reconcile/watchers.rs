//! The watchers of this node: one for each channel whose drift is repaired between the runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use uuid::Uuid;

use crate::agent::durable::publisher::Publisher;
use crate::agent::exec::job::RepairSelection;
use crate::agent::exec::result::WatchUpdate;
use crate::agent::identity::AgentInstance;
use crate::agent::status::counters::SharedCounters;
use crate::diag::error_chain;
use crate::host::file_writers::FileWriter;
use crate::model::ResourceRef;
use crate::wire::report::WatchStatus;

use super::watcher::{WatchNews, WatchReport, WatchedRunEnd, Watcher, WatcherContext};

/// Most channels that are watched. Each has a thread and an inotify instance, of which a user may have 128.
const MAX_WATCHERS: usize = 16;
/// Reports that may wait for the reconciler.
const MAX_REPORTS: usize = 64;

/// The watchers, by channel.
pub(super) struct Watchers {
    identity: Arc<AgentInstance>,
    counters: Arc<SharedCounters>,
    publisher: Publisher,
    reports: mpsc::Sender<WatchReport>,
    channels: BTreeMap<String, ChannelWatcher>,
    /// The reasons for which channels are not watched.
    failures: BTreeMap<String, String>,
    started: u64,
}

struct ChannelWatcher {
    number: u64,
    /// The id of the assignment.
    assignment: Uuid,
    watcher: Watcher,
    status: Option<WatchStatus>,
    flapping: Vec<String>,
}

impl Watchers {
    /// Returns no watcher, and the receiver of the reports of all later ones.
    pub(super) fn new(
        identity: &Arc<AgentInstance>,
        counters: &Arc<SharedCounters>,
        publisher: &Publisher,
    ) -> (Self, mpsc::Receiver<WatchReport>) {
        let (reports, received) = mpsc::channel(MAX_REPORTS);
        let watchers = Self {
            identity: Arc::clone(identity),
            counters: Arc::clone(counters),
            publisher: publisher.clone(),
            reports,
            channels: BTreeMap::new(),
            failures: BTreeMap::new(),
            started: 0,
        };
        (watchers, received)
    }

    /// Tells the watcher of a channel about the end of a run of an assignment. The first run of all resources starts a watcher.
    pub(super) fn run_ended(&mut self, channel: &str, assignment: Uuid, update: WatchUpdate, is_repair: bool) {
        if update.resources.is_some() && !self.channels.contains_key(channel) {
            match self.start(channel, assignment) {
                Ok(watcher) => {
                    self.failures.remove(channel);
                    self.channels.insert(channel.to_owned(), watcher);
                }
                Err(why) => {
                    self.failures.insert(channel.to_owned(), why);
                }
            }
        }
        let Some(watched) = self.channels.get_mut(channel) else { return };
        if update.resources.is_some() {
            watched.assignment = assignment;
        }
        if !watched.watcher.run_ended(WatchedRunEnd { update, is_repair }) {
            self.channels.remove(channel);
            self.failures.insert(channel.to_owned(), "the thread that watches for drift has ended".to_owned());
        }
    }

    fn start(&mut self, channel: &str, assignment: Uuid) -> Result<ChannelWatcher, String> {
        if self.channels.len() >= MAX_WATCHERS {
            return Err(format!("at most {MAX_WATCHERS} channels are watched for drift: the interval repairs this one"));
        }
        self.started += 1;
        let context = WatcherContext {
            channel: channel.to_owned(),
            number: self.started,
            reports: self.reports.clone(),
            identity: Arc::clone(&self.identity),
            counters: Arc::clone(&self.counters),
            publisher: self.publisher.clone(),
        };
        let watcher = Watcher::start(context).map_err(|error| error_chain(&error))?;
        Ok(ChannelWatcher { number: self.started, assignment, watcher, status: None, flapping: Vec::new() })
    }

    /// Ends the watchers of all other assignments than these, by channel.
    pub(super) fn retain(&mut self, watched: &BTreeMap<String, Uuid>) {
        self.channels.retain(|channel, watcher| watched.get(channel) == Some(&watcher.assignment));
        self.failures.retain(|channel, _| watched.contains_key(channel));
    }

    /// Takes a report. Returns the channel and its resources that may have drifted.
    pub(super) fn receive(&mut self, report: WatchReport) -> Option<(String, RepairSelection)> {
        let WatchReport { channel, watcher, news } = report;
        let watched = self.channels.get_mut(&channel).filter(|watched| watched.number == watcher)?;
        match news {
            WatchNews::Drifted(selection) => return Some((channel, selection)),
            WatchNews::Status { status, flapping } => {
                watched.status = Some(status);
                let named = |(resource, writer): (&ResourceRef, &Option<FileWriter>)| match writer {
                    Some(writer) => format!("{resource} (last {writer})"),
                    None => resource.to_string(),
                };
                watched.flapping = flapping.iter().map(named).collect();
            }
            WatchNews::Failed(why) => {
                self.channels.remove(&channel);
                self.failures.insert(channel, why);
            }
        }
        None
    }

    /// Ends the watcher of a channel.
    pub(super) fn remove(&mut self, channel: &str) {
        self.channels.remove(channel);
    }

    /// Returns true when the watcher of a channel watches this assignment.
    pub(super) fn watches(&self, channel: &str, assignment: Uuid) -> bool {
        self.channels.get(channel).is_some_and(|watched| watched.assignment == assignment)
    }

    /// Returns the status of a channel.
    pub(super) fn status(&self, channel: &str) -> Option<WatchStatus> {
        self.channels.get(channel)?.status
    }

    /// Returns the text of the alarm: channels without a watcher, and resources that something else changes again and again.
    pub(super) fn alarm(&self) -> Option<String> {
        let failures = self.failures.iter().map(|(channel, why)| format!("channel {channel}: {why}; its interval goes on"));
        let flapping = self.channels.iter().filter(|(_, watched)| !watched.flapping.is_empty()).map(|(channel, watched)| {
            format!("channel {channel}: something else changes {} again and again", watched.flapping.join(", "))
        });
        let all: Vec<String> = failures.chain(flapping).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}
