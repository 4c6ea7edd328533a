//! The heartbeat: publishes the node state on its own subject, at an interval and on change.
//!
//! The task also receives the states on that subject. A state with another boot id means that two hosts have one node id, as
//! clones of a machine do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use tokio::sync::watch;
use uuid::Uuid;

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::status::NodeStateSource;
use crate::agent::status::board::StatusBoard;
use crate::agent::trust::TrustHandle;
use crate::model::NodeId;
use crate::transport::{Bus, Inbox, Message, TransportError};
use crate::trust::TrustedBundle;

use super::{disk_space, messages};
use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;

/// The time for which changes are collected into one state.
const COLLECT_TIME: Duration = Duration::from_millis(100);
/// Delay of changes of running and waiting commands alone. A command that ends within this time is reported with its end,
/// in one message instead of two.
const WORK_DELAY: Duration = Duration::from_secs(2);
/// The time over which a fleet spreads its states after a change for all nodes: answers to commands go first.
const SPREAD: Duration = Duration::from_millis(400);

/// Time of the alarm before a trust bundle expires: enough for people to meet and sign the next bundle.
const EXPIRY_NOTICE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Earliest plausible time of a clock: the program is younger.
const EARLIEST_TIME: &str = "2026-01-01T00:00:00Z";

/// The handles of the heartbeat.
#[derive(Clone)]
pub(in crate::agent) struct HeartbeatHandles {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) node_state: NodeStateSource,
}

/// Publishes the state until `stop`. The caller publishes the last state.
pub(in crate::agent) async fn run(handles: HeartbeatHandles, bus: Bus, mut stop: watch::Receiver<bool>) {
    // Without the permission to subscribe only the detection of a duplicate node id is missing.
    let own = handles.identity.subjects.state(&handles.identity.node);
    let own = bus.subscribe(own.as_str()).await.ok();
    let mut task = Task { duplicate_seen: None, disk_checked: None, own, handles, bus };
    let mut snapshot = task.handles.status.watch();
    let mut link = task.bus.watch();
    let mut settings = task.handles.settings.watch();
    // Spread from the start: nodes that start together do not send their heartbeats together.
    let mut due = Instant::now() + jitter::random_delay(task.handles.settings.now().heartbeat.as_std());
    loop {
        task.check_conditions();
        publish_state(&task.handles, &task.bus).await;
        let said = snapshot.borrow_and_update().clone();
        let mut busy: Option<Instant> = None;
        loop {
            // Cancel-safe: watches keep their last value, a dropped sleep is made anew from `due`, and `Inbox::next` loses
            // nothing.
            tokio::select! {
                _ = stop.changed() => return,
                () = tokio::time::sleep_until(busy.map_or(due, |busy| busy.min(due)).into()) => {
                    let now = Instant::now();
                    if due <= now {
                        due = now + task.handles.settings.now().heartbeat.as_std();
                    }
                    break;
                }
                changed = snapshot.changed() => if changed.is_ok() {
                    if !snapshot.borrow_and_update().differs_in_work_alone(&said) {
                        tokio::time::sleep(COLLECT_TIME + jitter::random_delay(SPREAD)).await;
                        break;
                    }
                    busy.get_or_insert_with(|| Instant::now() + WORK_DELAY + jitter::random_delay(SPREAD));
                },
                changed = settings.changed() => if changed.is_ok() {
                    // The state has the groups and the interval, and the next heartbeat may be due sooner.
                    due = due.min(Instant::now() + task.handles.settings.now().heartbeat.as_std());
                    break;
                },
                changed = link.changed() => if changed.is_ok() && link.borrow().connected { break },
                Some(message) = receive(&mut task.own) => task.check_origin(&message),
            }
        }
    }
}

async fn receive(own: &mut Option<Inbox>) -> Option<Message> {
    match own {
        Some(inbox) => inbox.next().await,
        None => std::future::pending().await,
    }
}

struct Task {
    handles: HeartbeatHandles,
    bus: Bus,
    own: Option<Inbox>,
    /// The time of the last state of another agent with this node id.
    duplicate_seen: Option<Instant>,
    /// The time of the last check of the disk space: a change of the node state needs no new check.
    disk_checked: Option<Instant>,
}

/// The origin of a [`NodeState`](crate::wire::NodeState), to tell agents apart. Most states are this agent's own.
#[derive(Deserialize)]
struct HeartbeatOrigin {
    node: NodeId,
    boot: Uuid,
    alive: bool,
    hostname: String,
}

impl Task {
    fn check_origin(&mut self, message: &Message) {
        let Ok(state) = serde_json::from_slice::<HeartbeatOrigin>(&message.payload) else { return };
        if state.boot != self.handles.identity.boot && state.alive {
            self.duplicate_seen = Some(Instant::now());
            let what = format!("another agent uses the node id {}: on host \"{}\"", state.node, state.hostname);
            self.handles.status.raise(AlarmKind::Identity, what);
        }
    }

    /// Checks the conditions that no event reports.
    fn check_conditions(&mut self) {
        let node = &self.handles;
        if self.duplicate_seen.is_some_and(|heard| heard.elapsed() > 3 * node.settings.now().heartbeat.as_std()) {
            self.duplicate_seen = None;
            node.status.clear(AlarmKind::Identity);
        }
        // Also without a command: a node that cannot accept commands reports that before the first one.
        node.status.report_storage_error(node.durable.verify_path());
        if node.status.read(|snapshot| snapshot.alarms.contains_key(&AlarmKind::Disk)) {
            match node.durable.probe() {
                Ok(()) => node.status.clear(AlarmKind::Disk),
                Err(error) => node.status.raise(AlarmKind::Disk, crate::diag::error_chain(&error)),
            }
        }
        if self.disk_checked.is_none_or(|looked| looked.elapsed() >= node.settings.now().heartbeat.as_std() / 2) {
            self.disk_checked = Some(Instant::now());
            let low = node.status.read(|snapshot| snapshot.alarms.contains_key(&AlarmKind::Space));
            node.status.set(AlarmKind::Space, disk_space::alarm(&node.settings.now().state_dir, low));
        }
        let now = node.identity.now();
        let wrong = EARLIEST_TIME.parse::<Timestamp>().is_ok_and(|earliest| now < earliest);
        node.status.set(AlarmKind::Clock, wrong.then(|| format!("the clock of this host is wrong: it shows {now}")));
        node.status.set(AlarmKind::State, node.durable.loss_alarm(&node.trust.current(), now));
        node.status.set(AlarmKind::Trust, expiry_alarm(&node.trust.current(), node.durable.monotonic_now(now)));
        node.status.set(AlarmKind::Permissions, denied_subscriptions(node, &self.bus.denied_subscriptions()));
        let counters = self.bus.counters();
        let lost = counters.slow_consumers;
        let lost = (lost > 0).then(|| format!("lost messages {lost} times: they arrived faster than they were read"));
        // The program may be upgraded under this agent, which then finds the new file at its next heartbeat.
        let old = self.bus.check_version().err().filter(|error| matches!(error, TransportError::TooOld(_)));
        node.status.set(AlarmKind::Connection, old.map(|error| error.to_string()).or(lost));
    }
}

/// Returns the text of the alarm about denied subscriptions of commands.
fn denied_subscriptions(node: &HeartbeatHandles, refused: &BTreeSet<String>) -> Option<String> {
    let settings = node.settings.now();
    let heard = |groups: &[String]| -> BTreeSet<String> {
        node.identity.subjects.work_subscriptions(&settings.node, groups).iter().map(ToString::to_string).collect()
    };
    let always = heard(&[]);
    let of_group =
        |group: &&String| heard(std::slice::from_ref(*group)).difference(&always).any(|subject| refused.contains(subject));
    let groups: Vec<String> = settings.groups.iter().filter(of_group).map(|group| format!("group {group}")).collect();
    let others = always.intersection(refused).map(|subject| format!("subject {subject}"));
    let missing: Vec<String> = groups.into_iter().chain(others).collect();
    if missing.is_empty() {
        return None;
    }
    Some(format!(
        "the server denies this node the commands for {}; hint: add the permissions that \
         `ensign fleet init --print-permissions` prints, and restart the agent",
        missing.join(", ")
    ))
}

/// Returns the text of the alarm about the expiry of the trust bundle in force.
fn expiry_alarm(trust: &TrustedBundle, now: Timestamp) -> Option<String> {
    if trust.is_before_first() {
        return Some(
            "no trust bundle yet: no command is accepted until version 1 arrives from the stream, signed by the root \
             keys of the configuration"
                .to_owned(),
        );
    }
    if trust.is_expired(now) {
        return Some(format!(
            "the trust bundle expired at {}: no command is accepted until the next version arrives",
            trust.expires()
        ));
    }
    let soon = now.checked_add(EXPIRY_NOTICE).is_ok_and(|then| trust.is_expired(then));
    soon.then(|| format!("the trust bundle expires at {}", trust.expires()))
}

/// Publishes the node state. A state without a connection is dropped: the next one has newer facts.
async fn publish_state(node: &HeartbeatHandles, bus: &Bus) {
    let subject = node.identity.subjects.state(&node.settings.now().node);
    node.publisher.publish_best_effort(bus, subject.as_str(), messages::json(&node.node_state.state(true)), None).await;
}
