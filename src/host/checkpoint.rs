//! Checkpoints: places in the program where a crash matters. The tests kill the program at each and check the next start. Other
//! builds contain no checkpoint.
//!
//! With the feature `checkpoints`, `ENSIGN_CHECKPOINT=name[:count]` selects a place. The process kills itself, as the kernel
//! would, when it reaches the place for the `count`th time. A new step that must survive a crash adds a line to the table below.
//! `tests/it/crash.rs` takes its list from there.

macro_rules! table {
    ($($(#[$about:meta])* $place:ident = $name:literal,)*) => {
        /// A place where a crash matters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Checkpoint {
            $($(#[$about])* $place,)*
        }

        impl Checkpoint {
            /// All checkpoints.
            pub const ALL: &'static [Self] = &[$(Self::$place,)*];

            /// The name in `ENSIGN_CHECKPOINT`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$place => $name,)*
                }
            }
        }
    };
}

table! {
    /// The trust bundle is stored for the next start.
    TrustStored = "trust.stored",
    /// The next trust bundle is active, and not reported.
    TrustActivated = "trust.activated",
    /// The command is verified, and nothing is on disk.
    IntakeVerified = "intake.verified",
    /// The command is in the ledger.
    IntakeRecorded = "intake.recorded",
    /// The command is queued.
    IntakeQueued = "intake.queued",
    /// The file of the channel is written, and the assignment is not active.
    AssignmentStored = "assignment.stored",
    /// The command is acknowledged.
    IntakeAnswered = "intake.answered",
    /// The ledger records the start of the run.
    RunStarted = "run.started",
    /// The run of an assignment is about to begin.
    AssignmentStarted = "assignment.started",
    /// The artifact of the assignment is fetched.
    RunFetched = "run.fetched",
    /// The artifact is cached, for times when it can't be fetched.
    BlobStored = "blob.stored",
    /// The data of the host is cached, for times when it can't be read.
    HostDataStored = "host_data.stored",
    /// The artifact is unpacked.
    RunUnpacked = "run.unpacked",
    /// The run is planned, and nothing is changed.
    RunPlanned = "run.planned",
    /// The run is complete, and not reported.
    RunEnded = "run.ended",
    /// The assignment is the last good one, and the one before is still on disk.
    AssignmentPromoted = "assignment.promoted",
    /// The return to the assignment before is on disk, and neither applied nor reported.
    AssignmentReverted = "assignment.reverted",
    /// The event about the return is in the outbox, and the file of the channel does not say so.
    RevertReported = "revert.reported",
    /// The health gate is scheduled, and the end of the run is not reported.
    HealthGateScheduled = "health_gate.scheduled",
    /// The health gate has run its checks once, and has more to do.
    HealthGateCompleted = "health_gate.completed",
    /// The override of an operator is on disk.
    OverrideStored = "override.stored",
    /// The cancel of a job is on disk, and has no effect yet.
    CancelStored = "cancel.stored",
    /// The result of the override is in the outbox.
    ResultPosted = "result.posted",
    /// The result of the override is in the ledger.
    ResultRecorded = "result.recorded",
    /// The compacted ledger is written, not in place.
    LedgerRewritten = "ledger.rewritten",
    /// A message is in the outbox.
    OutboxWritten = "outbox.written",
    /// The server has messages, and the outbox still has them.
    OutboxSent = "outbox.sent",
    /// The delivered position is on disk.
    OutboxPosition = "outbox.position",
    /// The unsent messages are in a new log, and the old log is still valid.
    OutboxCopied = "outbox.copied",
    /// The new log is valid, and the old log still exists.
    OutboxRenewed = "outbox.renewed",
    /// A file of the program's own state is written, not in place.
    StateWritten = "state.written",
    /// The content of a managed file is written, beside its place.
    FileWritten = "file.written",
    /// The file has its owner and mode.
    FileOwned = "file.owned",
    /// The file is in its place.
    FilePlaced = "file.placed",
    /// A link is made, beside its place.
    LinkMade = "link.made",
    /// Part of a download is written.
    PartWritten = "part.written",
    /// The complete download is in its place.
    PartPlaced = "part.placed",
    /// A file of an archive is written, beside its place.
    EntryWritten = "entry.written",
}

/// Does nothing: this build has no checkpoints.
#[cfg(not(feature = "checkpoints"))]
#[inline(always)]
pub fn checkpoint(_: Checkpoint) {}

/// Kills the process, as the kernel would, when the environment selects this place.
#[cfg(feature = "checkpoints")]
pub fn checkpoint(here: Checkpoint) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static WANTED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("ENSIGN_CHECKPOINT").ok()?;
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), count.parse().ok()?))
    });
    let Some((_, count)) = wanted.as_ref().filter(|(name, _)| name == here.name()) else { return };
    if PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *count {
        // No destructor runs, no other thread gets any further.
        let _dead = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    }
}
