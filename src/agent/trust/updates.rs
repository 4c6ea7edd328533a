//! Trust updates: the next trust bundle replaces the one in force.
//!
//! A stream keeps every version under a subject of its own, and the server forwards new messages. A forwarded message may get
//! lost, so the stream is also read, after every connect and from time to time. An absent node later accepts versions N+1, N+2
//! and so on, each signed by the roots of the previous one. No node has a consumer (NATS ADR-31).
//!
//! Order: verified → on disk → in force → published. A rejected bundle is published once as a rejection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::reconcile::desired_state::DesiredState;
use crate::agent::rollout::RolloutState;
use crate::agent::status::board::StatusBoard;
use crate::agent::trust::TrustHandle;
use crate::diag::error_chain;
use crate::host::{Checkpoint, checkpoint};
use crate::transport::{Bus, Inbox, Message, TransportError};
use crate::trust::{BundleAuthority, TrustedBundle, open_bundle};
use crate::wire::report::LifecycleEvent;
use crate::wire::{self, CommandOutcome, Envelope};

use crate::agent::intake::rate_limit::RateLimiter;
use crate::agent::jitter;
use crate::agent::status::board::AlarmKind;
use crate::agent::status::messages;
use crate::agent::trust::anchor;

/// Shortest pause before the stream is read again; [`SPREAD`] comes on top.
const POLL: Duration = Duration::from_secs(300);
/// Longest extra pause, which spreads the requests of a fleet.
const SPREAD: Duration = Duration::from_secs(600);
/// Pause after a failed read, at most doubled: a fleet must not overload a failing server.
const RETRY_PAUSE: Duration = Duration::from_secs(30);
/// Most messages of the stream that are read in one go: more than a fleet has versions.
const MAX_VERSIONS_READ: usize = 256;
/// Most digests that are remembered of accepted and of rejected bundles.
const MAX_REMEMBERED: usize = 64;

/// The handles of the trust updates.
#[derive(Clone)]
pub(in crate::agent) struct UpdateHandles {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) rollouts: RolloutState,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
}

impl UpdateHandles {
    /// Activates a bundle that is on disk. The executor verifies waiting commands again under it.
    fn activate(&self, next: TrustedBundle) {
        let version = next.version();
        self.trust.replace(next);
        checkpoint(Checkpoint::TrustActivated);
        self.rollouts.overrides.wake();
        // A message that the earlier bundle rejected may be valid under this one.
        self.desired_state.request_sync();
        tracing::info!(version, "another trust bundle is in force");
        let message = Some(format!("now uses version {version} of the trust bundle"));
        self.publisher.post_lifecycle(&LifecycleEvent { message, ..messages::lifecycle(&self.identity, "trust") });
        self.status.change(|snapshot| snapshot.trust = version);
    }
}

/// Accepts bundles until the task is aborted. Abort is safe at any time: each write happens between two waits.
pub(in crate::agent) async fn run(handles: UpdateHandles, bus: Bus) {
    // Without the permission to subscribe updates only take longer: the stream is read anyway.
    let mut live = bus.subscribe(handles.identity.subjects.live_trust_versions().as_str()).await.ok();
    let mut link = bus.watch();
    let accepted = DigestMemory::with(handles.trust.current().digest().to_owned());
    let allowance = RateLimiter::new(20, Duration::from_secs(1));
    let looks = RateLimiter::new(100, Duration::from_millis(50));
    let mut task = Task {
        handles,
        bus,
        accepted,
        refused: DigestMemory::default(),
        forwarded_limit: looks,
        rejection_limit: allowance,
        later_versions: LaterVersions::default(),
    };
    let (mut connects, mut due) = (0, Instant::now());
    loop {
        let now = *link.borrow_and_update();
        if now.connected && now.connects != connects {
            (connects, due) = (now.connects, Instant::now());
            // The stream may have been created anew meanwhile.
            task.later_versions = LaterVersions::default();
        }
        // Cancel-safe: `Inbox::next` loses nothing, a watch keeps its last value, and a dropped sleep is made anew from
        // `due`.
        tokio::select! {
            Some(message) = receive(&mut live) => task.handle_forwarded(&message).await,
            () = tokio::time::sleep_until(due.into()), if now.connected => due = Instant::now() + task.read_stream().await,
            changed = link.changed() => if changed.is_err() { return },
        }
    }
}

async fn receive(live: &mut Option<Inbox>) -> Option<Message> {
    match live {
        Some(inbox) => inbox.next().await,
        None => std::future::pending().await,
    }
}

struct Task {
    handles: UpdateHandles,
    bus: Bus,
    /// The bundles accepted since the start. A late second delivery is no attack.
    accepted: DigestMemory,
    /// The rejected bundles, whose rejection is published.
    refused: DigestMemory,
    /// The limit for forwarded bundles: a user that may publish can send any number. The stream has the ignored ones.
    forwarded_limit: RateLimiter,
    /// The limit for published rejections. A user that may publish can cause any number, and they must not fill the disk.
    rejection_limit: RateLimiter,
    /// The versions of the stream beyond the next one.
    later_versions: LaterVersions,
}

/// The versions that the stream of this connection has, as their subjects name them.
#[derive(Default)]
struct LaterVersions {
    /// The sequence of the stream up to which the subjects were read.
    after: u64,
    /// The highest version.
    highest: u64,
    /// True when the server denies reading the subjects.
    denied: bool,
}

impl Task {
    /// Handles a bundle that the server forwarded.
    async fn handle_forwarded(&mut self, message: &Message) {
        if !self.forwarded_limit.take() {
            return;
        }
        let version = self.handles.identity.subjects.trust_version(&message.subject).unwrap_or(0);
        let ahead = version > self.next();
        // Some versions were missed: they come first, and this one is among them.
        if ahead {
            self.later_versions.highest = self.later_versions.highest.max(version);
            self.read_stream().await;
        }
        let is_refused = self.accept_next(message).is_some();
        let is_troubled = self.handles.status.read(|snapshot| snapshot.alarms.contains_key(&AlarmKind::Succession));
        // A rejected message in the place of the next version keeps this node back, and an accepted one may end that:
        // the stream decides.
        if !ahead && if is_refused { version == self.next() } else { is_troubled } {
            self.read_stream().await;
        }
    }

    fn next(&self) -> u64 {
        self.handles.trust.current().version().saturating_add(1)
    }

    /// Accepts every next bundle of the stream. Returns the pause before the next read.
    async fn read_stream(&mut self) -> Duration {
        match self.fetch_successors().await {
            Ok(stuck) => {
                // The stream was read to its end: the version in force counts as the latest.
                self.handles
                    .status
                    .report_storage_error(self.handles.durable.record_trust(self.handles.trust.current().version()));
                self.handles.status.set(
                    AlarmKind::State,
                    self.handles.durable.loss_alarm(&self.handles.trust.current(), self.handles.identity.now()),
                );
                self.handles.status.set(AlarmKind::Succession, stuck);
                POLL + jitter::random_delay(SPREAD)
            }
            Err(TransportError::Disconnected) => RETRY_PAUSE,
            Err(error) => {
                let remedy = if matches!(error, TransportError::NoStream(_)) { "; `ensign fleet init` creates it" } else { "" };
                let what = format!("cannot read newer trust bundles: {}{remedy}", error_chain(&error));
                self.handles.status.raise(AlarmKind::Succession, what);
                RETRY_PAUSE + jitter::random_delay(RETRY_PAUSE)
            }
        }
    }

    /// Accepts every next bundle of the stream. Returns the reason when the next bundle is rejected.
    async fn fetch_successors(&mut self) -> Result<Option<String>, TransportError> {
        let stream = self.handles.identity.subjects.stream("TRUST");
        loop {
            let version = self.next();
            let subject = self.handles.identity.subjects.trust(version);
            let Some(message) = self.bus.last(&stream, subject.as_str()).await? else { return Ok(self.gap_alarm().await) };
            if let Some(why) = self.accept_next(&message) {
                return Ok(Some(format!("rejected version {version} of the trust bundle: {why}")));
            }
            // An earlier bundle under the subject of the next one: then there is no next bundle to wait for.
            if self.next() == version {
                return Ok(None);
            }
        }
    }

    /// Returns the alarm for a gap: the stream has later versions, but not the next one.
    async fn gap_alarm(&mut self) -> Option<String> {
        let (stream, filter) = (self.handles.identity.subjects.stream("TRUST"), self.handles.identity.subjects.trust_versions());
        for _ in 0..MAX_VERSIONS_READ {
            if self.later_versions.denied {
                break;
            }
            match self.bus.stored_after(&stream, filter.as_str(), self.later_versions.after).await {
                Ok(Some(message)) => {
                    let version = self.handles.identity.subjects.trust_version(&message.subject).unwrap_or(0);
                    self.later_versions.after = message.seq.unwrap_or(u64::MAX);
                    self.later_versions.highest = self.later_versions.highest.max(version);
                }
                Ok(None) => break,
                Err(error) => {
                    // Permissions of earlier fleets lack this read. Only forwarded bundles then show later versions.
                    tracing::debug!(error = %error_chain(&error), "cannot read the versions of later trust bundles");
                    self.later_versions.denied = true;
                }
            }
        }
        let (own, next, highest) = (self.handles.trust.current().version(), self.next(), self.later_versions.highest);
        (highest > next).then(|| {
            format!(
                "this node uses version {own} of the trust bundle and cannot update: the stream has version {highest}, and \
                 version {next} is missing; `ensign trust publish` publishes it from its file"
            )
        })
    }

    /// Accepts the next bundle. Returns the reason when a bundle is rejected, unless it was accepted before.
    fn accept_next(&mut self, message: &Message) -> Option<String> {
        let current = self.handles.trust.current();
        match open_bundle(&message.payload, BundleAuthority::Current(&current)) {
            Ok(next) => self.persist_and_activate(next),
            Err(error) => {
                let envelope = Envelope::parse(&message.payload).ok();
                let digest = envelope.as_ref().map_or_else(|| wire::digest(&message.payload), Envelope::digest);
                if self.accepted.has(&digest) {
                    return None;
                }
                let why = error_chain(&error);
                if !self.refused.has(&digest) && self.rejection_limit.take() {
                    tracing::warn!(code = %error.code(), why, subject = message.subject, "rejected a trust bundle");
                    let keyids = envelope.into_iter().flat_map(|envelope| envelope.signatures).map(|by| by.keyid).collect();
                    let reason = (error.code(), why.clone());
                    let done = messages::not_run(&self.handles.identity, None, &digest, CommandOutcome::Refused, reason);
                    self.handles.publisher.post_rejection(&done, &message.subject, keyids);
                    self.refused.remember(digest);
                }
                Some(format!("{} ({why})", error.code()))
            }
        }
    }

    fn persist_and_activate(&mut self, next: TrustedBundle) -> Option<String> {
        let kept = self.handles.durable.verify_path().and_then(|()| anchor::persist(&self.handles.settings.now(), &next));
        if let Err(error) = kept {
            let why = error_chain(&error);
            self.handles.status.raise(AlarmKind::Disk, why.clone());
            return Some(why);
        }
        // The bundle is kept: the ledger needs its version only for the case that the bundle is lost.
        self.handles.status.report_storage_error(self.handles.durable.record_trust(next.version()));
        self.accepted.remember(next.digest().to_owned());
        self.handles.activate(next);
        None
    }
}

/// The digests of the last few bundles.
#[derive(Default)]
struct DigestMemory(VecDeque<String>);

impl DigestMemory {
    fn with(digest: String) -> Self {
        Self(VecDeque::from([digest]))
    }

    fn has(&self, digest: &str) -> bool {
        self.0.iter().any(|known| known == digest)
    }

    fn remember(&mut self, digest: String) {
        if self.0.len() >= MAX_REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(digest);
    }
}
