//! How the next trust bundle takes the place of the one in force.
//!
//! A stream keeps every version under a subject of its own, and the server sends on what it stores. That may get lost,
//! so the stream is asked as well: after every connect, and now and then. A node that was away takes N+1, N+2, ... one
//! after the other, each by the roots of the one before; none is left out. No node has a consumer (NATS ADR-31).
//!
//! Order: verified → on disk → in force → said. What is not accepted is published as a refusal, once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::Identity;
use crate::agent::reconcile::desired_state::DesiredState;
use crate::agent::rollout::RolloutState;
use crate::agent::status::board::StatusBoard;
use crate::agent::trust::TrustHandle;
use crate::diag::chain;
use crate::host::{Checkpoint, checkpoint};
use crate::transport::{Bus, Inbox, Message, TransportError};
use crate::trust::{Pin, TrustedBundle, open_bundle};
use crate::wire::report::LifecycleEvent;
use crate::wire::{self, CommandOutcome, Envelope};

use crate::agent::durable::state_loss;
use crate::agent::intake::rate_limit::RateLimiter;
use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;
use crate::agent::status::messages;
use crate::agent::trust::anchor;

/// The stream is asked again after this, and up to [`SPREAD`] more.
const POLL: Duration = Duration::from_secs(300);
/// What keeps a fleet from asking all at once.
const SPREAD: Duration = Duration::from_secs(600);
/// The pause after the stream could not be asked, and as much again at most: a fleet must not storm a sick server.
const AGAIN: Duration = Duration::from_secs(30);
/// So many messages of the stream are looked at in one go: more than a fleet has versions.
const MOST_SEEN: usize = 256;
/// So many digests are remembered of what was accepted, and of what was refused.
const REMEMBERED: usize = 64;

/// The handles of the trust updates.
#[derive(Clone)]
pub(in crate::agent) struct UpdateHandles {
    pub(in crate::agent) identity: Arc<Identity>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) rollouts: RolloutState,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
}

impl UpdateHandles {
    /// Puts a bundle in force that is on disk. The executor verifies waiting commands again under it.
    fn activate(&self, next: TrustedBundle) {
        let version = next.version();
        self.trust.replace(next);
        checkpoint(Checkpoint::TrustObeyed);
        self.rollouts.overrides.wake();
        // A message that the earlier bundle rejected may count under this one.
        self.desired_state.request_sync();
        tracing::info!(version, "another trust bundle is in force");
        let message = Some(format!("now obeys version {version}"));
        self.publisher.post_lifecycle(&LifecycleEvent { message, ..messages::lifecycle(&self.identity, "trust") });
        self.status.change(|snapshot| snapshot.trust = version);
    }
}

/// Takes bundles for as long as it runs. Whatever it writes it writes between two waits: it may be aborted at any time.
pub(in crate::agent) async fn run(handles: UpdateHandles, bus: Bus) {
    // Not being allowed to listen costs time only: the stream is asked anyway.
    let mut live = bus.subscribe(handles.identity.subjects.live_trust_versions().as_str()).await.ok();
    let mut link = bus.watch();
    let accepted = Memory::of(handles.trust.current().digest().to_owned());
    let allowance = RateLimiter::new(20, Duration::from_secs(1));
    let looks = RateLimiter::new(100, Duration::from_millis(50));
    let mut task = Task { handles, bus, accepted, refused: Memory::default(), looks, allowance, beyond: Beyond::default() };
    let (mut connects, mut due) = (0, Instant::now());
    loop {
        let now = *link.borrow_and_update();
        if now.connected && now.connects != connects {
            (connects, due) = (now.connects, Instant::now());
            // The stream may have been made anew meanwhile.
            task.beyond = Beyond::default();
        }
        // Cancel-safe: `Inbox::next` loses nothing, a watch keeps its last value, and a sleep that is dropped is made
        // anew from `due`.
        tokio::select! {
            Some(message) = heard(&mut live) => task.hear(&message).await,
            () = tokio::time::sleep_until(due.into()), if now.connected => due = Instant::now() + task.ask().await,
            changed = link.changed() => if changed.is_err() { return },
        }
    }
}

async fn heard(live: &mut Option<Inbox>) -> Option<Message> {
    match live {
        Some(inbox) => inbox.next().await,
        None => std::future::pending().await,
    }
}

struct Task {
    handles: UpdateHandles,
    bus: Bus,
    /// What was accepted since the start: it may come once more, late, and is no attack then.
    accepted: Memory,
    /// What was refused, and said to be.
    refused: Memory,
    /// The bundles that are looked at as the server sends them on: whoever may publish can send any number. What is left
    /// alone is found in the stream.
    looks: RateLimiter,
    /// Whoever may publish can make refusals: they must not fill the disk.
    allowance: RateLimiter,
    /// What the stream has beyond the next version.
    beyond: Beyond,
}

/// Which versions were seen in the stream of this connection, by their subjects.
#[derive(Default)]
struct Beyond {
    /// The place in the stream up to which they were seen.
    after: u64,
    /// The highest of them.
    highest: u64,
    /// The server does not let this node look.
    denied: bool,
}

impl Task {
    /// A bundle that the server sent on.
    async fn hear(&mut self, message: &Message) {
        if !self.looks.take() {
            return;
        }
        let version = self.handles.identity.subjects.trust_version(&message.subject).unwrap_or(0);
        let ahead = version > self.next();
        // Some were missed: they come first, and this one is among them.
        if ahead {
            self.beyond.highest = self.beyond.highest.max(version);
            self.ask().await;
        }
        let is_refused = self.offer(message).is_some();
        let is_troubled = self.handles.status.read(|standing| standing.alarms.contains_key(&AlarmKind::Succession));
        // What is refused in the place of the next one keeps this node where it is, and what is taken may end that: the
        // stream says.
        if !ahead && if is_refused { version == self.next() } else { is_troubled } {
            self.ask().await;
        }
    }

    fn next(&self) -> u64 {
        self.handles.trust.current().version().saturating_add(1)
    }

    /// Takes every next bundle that the stream has; gives the pause before it is asked again.
    async fn ask(&mut self) -> Duration {
        match self.fetch_successors().await {
            Ok(stuck) => {
                // Whatever was in force before is here again, as far as the server says.
                self.handles.status.report_storage_error(self.handles.durable.note_trust(self.handles.trust.current().version()));
                self.handles.status.set(
                    AlarmKind::State,
                    state_loss::alarm(&self.handles.trust.current(), &self.handles.durable, self.handles.identity.now()),
                );
                self.handles.status.set(AlarmKind::Succession, stuck);
                POLL + jitter::random_delay(SPREAD)
            }
            Err(TransportError::Disconnected) => AGAIN,
            Err(error) => {
                let remedy = if matches!(error, TransportError::NoStream(_)) { "; `ensign fleet init` makes it" } else { "" };
                let what = format!("newer trust bundles can't be looked for: {}{remedy}", chain(&error));
                self.handles.status.raise(AlarmKind::Succession, what);
                AGAIN + jitter::random_delay(AGAIN)
            }
        }
    }

    /// As [`Self::ask`]; gives why the bundle that would be next is not taken, when there is one.
    async fn fetch_successors(&mut self) -> Result<Option<String>, TransportError> {
        let stream = self.handles.identity.subjects.stream("TRUST");
        loop {
            let version = self.next();
            let subject = self.handles.identity.subjects.trust(version);
            let Some(message) = self.bus.last(&stream, subject.as_str()).await? else { return Ok(self.gap().await) };
            if let Some(why) = self.offer(&message) {
                return Ok(Some(format!("version {version} of the trust bundle is not taken: {why}")));
            }
            // It may be one that was taken before, under the subject of the next: then there is nothing to wait for.
            if self.next() == version {
                return Ok(None);
            }
        }
    }

    /// Why this node can't follow, when the stream has later versions and the next one is missing.
    async fn gap(&mut self) -> Option<String> {
        let (stream, filter) = (self.handles.identity.subjects.stream("TRUST"), self.handles.identity.subjects.trust_versions());
        for _ in 0..MOST_SEEN {
            if self.beyond.denied {
                break;
            }
            match self.bus.stored_after(&stream, filter.as_str(), self.beyond.after).await {
                Ok(Some(message)) => {
                    let version = self.handles.identity.subjects.trust_version(&message.subject).unwrap_or(0);
                    self.beyond.after = message.seq.unwrap_or(u64::MAX);
                    self.beyond.highest = self.beyond.highest.max(version);
                }
                Ok(None) => break,
                Err(error) => {
                    // Permissions of an earlier version do not have it: then only what is sent on tells of later versions.
                    tracing::debug!(error = %chain(&error), "later trust bundles could not be looked for");
                    self.beyond.denied = true;
                }
            }
        }
        let (own, next, highest) = (self.handles.trust.current().version(), self.next(), self.beyond.highest);
        (highest > next).then(|| {
            format!(
                "this node obeys version {own} of the trust bundle and can't follow: the stream has version {highest}, and \
                 version {next} is missing; `ensign trust publish` puts it there from its file"
            )
        })
    }

    /// Takes a bundle when it is the next one; gives why it does not otherwise, but for one that it took before.
    fn offer(&mut self, message: &Message) -> Option<String> {
        let current = self.handles.trust.current();
        match open_bundle(&message.payload, Pin::Current(&current)) {
            Ok(next) => self.take(next),
            Err(error) => {
                let envelope = Envelope::parse(&message.payload).ok();
                let digest = envelope.as_ref().map_or_else(|| wire::digest(&message.payload), Envelope::digest);
                if self.accepted.has(&digest) {
                    return None;
                }
                let why = chain(&error);
                if !self.refused.has(&digest) && self.allowance.take() {
                    tracing::warn!(code = %error.code(), why, subject = message.subject, "refused a trust bundle");
                    let keyids = envelope.into_iter().flat_map(|envelope| envelope.signatures).map(|by| by.keyid).collect();
                    let reason = (error.code(), why.clone());
                    let done = messages::not_run(&self.handles.identity, None, &digest, CommandOutcome::Refused, reason);
                    self.handles.publisher.post_rejection(&done, &message.subject, keyids);
                    self.refused.note(digest);
                }
                Some(format!("{} ({why})", error.code()))
            }
        }
    }

    fn take(&mut self, next: TrustedBundle) -> Option<String> {
        let kept = self.handles.durable.verify_path().and_then(|()| anchor::persist(&self.handles.settings.now(), &next));
        if let Err(error) = kept {
            let why = chain(&error);
            self.handles.status.raise(AlarmKind::Disk, why.clone());
            return Some(why);
        }
        // The bundle is kept: that the ledger knows of it too only matters when that is lost.
        self.handles.status.report_storage_error(self.handles.durable.note_trust(next.version()));
        self.accepted.note(next.digest().to_owned());
        self.handles.activate(next);
        None
    }
}

/// The last few digests.
#[derive(Default)]
struct Memory(VecDeque<String>);

impl Memory {
    fn of(digest: String) -> Self {
        Self(VecDeque::from([digest]))
    }

    fn has(&self, digest: &str) -> bool {
        self.0.iter().any(|known| known == digest)
    }

    fn note(&mut self, digest: String) {
        if self.0.len() >= REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(digest);
    }
}
