//! Overrides of a job by an operator: halt, resume, cancel, and the go-ahead for a wave.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::fleet::connection::FleetConnection;
use crate::fleet::job::checked::{CheckedCommand, Checker};
use crate::fleet::job::draft::CommandDraft;
use crate::fleet::job::seal::SealedCommand;
use crate::model::HumanDuration;
use crate::transport::{Bus, MESSAGE_ID, TransportError};
use crate::wire::command::{Command, GoAhead, JobRef, RolloutPlan};
use crate::wire::{Action, CommandOptions, Subject, Subjects, Target};

use super::view;

/// Time for which nodes may accept a live `halt` or `resume`. A node that connects later reads it in the stream.
const OVERRIDE_LIFETIME: HumanDuration = HumanDuration::seconds(300);
/// Time between two checks of the witnesses of a wave.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Drafts a halt, resume or cancel of a job, for the signed target of the job. The filter of the job is left out, as facts may
/// have changed since.
pub fn override_draft(action: fn(JobRef) -> Action, job: &CheckedCommand, reason: Option<String>) -> CommandDraft {
    let job = job.command();
    let action = action(JobRef { job: job.id });
    let to = Target { filter: None, ..job.to.clone() };
    CommandDraft { action, to, options: CommandOptions::default(), channel: None, reason, lifetime: OVERRIDE_LIFETIME }
}

/// Drafts the go-ahead for a wave of a job, for the target of the job without its filter.
pub fn go_ahead_draft(job: &Command, wave: u64) -> CommandDraft {
    let to = Target { filter: None, ..job.to.clone() };
    let action = Action::Go(GoAhead { job: job.id, wave });
    CommandDraft { action, to, options: CommandOptions::default(), channel: None, reason: None, lifetime: OVERRIDE_LIFETIME }
}

/// Stores a go-ahead in the stream of rollouts, where every node reads it.
///
/// # Errors
/// When the stream does not store it.
pub async fn store_go_ahead(bus: &Bus, subjects: &Subjects, job: Uuid, signed: &SealedCommand) -> Result<(), TransportError> {
    store(bus, &subjects.rollout_go_ahead(job), signed).await
}

/// Reads the last override of a job. An override without a valid signature does not count.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn read_checked_override(
    bus: &Bus,
    subjects: &Subjects,
    checker: &Checker,
    job: Uuid,
) -> Result<Option<CheckedCommand>, TransportError> {
    let control = subjects.rollout_control(job);
    let messages = bus.last_per_subject(&subjects.stream("ROLLOUTS"), control.as_str()).await?;
    Ok(messages.first().and_then(|message| checker.check(&message.payload).ok()))
}

/// Returns true for the cancel of this job. A cancel is final: no later override takes its place.
pub fn is_cancel(last: &CheckedCommand, job: Uuid) -> bool {
    matches!(last.command().action, Action::Cancel(JobRef { job: cancelled }) if cancelled == job)
}

/// Returns the signing time with which a new override replaces the last override. This is now, or just after the last override.
/// The clock of its operator may have been ahead.
pub fn next_override_time(last: Option<&CheckedCommand>, now: Timestamp) -> Timestamp {
    let after = |time: Timestamp| time.saturating_add(SignedDuration::from_millis(1)).unwrap_or(time);
    last.map_or(now, |last| now.max(after(last.command().issued)))
}

/// Stores an override in the stream of rollouts, where every node reads it before its wave.
///
/// # Errors
/// When the stream does not store it.
pub async fn store_override(bus: &Bus, subjects: &Subjects, job: Uuid, signed: &SealedCommand) -> Result<(), TransportError> {
    store(bus, &subjects.rollout_control(job), signed).await
}

async fn store(bus: &Bus, subject: &Subject, signed: &SealedCommand) -> Result<(), TransportError> {
    let id = signed.command.id.to_string();
    bus.publish_stored(subject.as_str(), &[(MESSAGE_ID, id.as_str())], signed.envelope.clone()).await?;
    Ok(())
}

/// Runs `work`, and meanwhile signs and stores the go-ahead for each wave of a rollout that needs go-aheads.
///
/// A wave gets its go-ahead once all witnesses of the wave before have proved their success. When the time of that wave is
/// over, `min_ok` witnesses are enough.
pub async fn with_go_aheads<T>(
    fleet: &FleetConnection,
    command: &Command,
    digest: &str,
    sign: &dyn Fn(CommandDraft) -> Option<SealedCommand>,
    work: impl Future<Output = T>,
) -> T {
    let Some(waves) = command.options.waves.as_ref().filter(|waves| waves.go) else { return work.await };
    // Cancel-safe: a go-ahead that was not stored is signed again, by this command or by the operator.
    tokio::select! {
        ended = work => ended,
        never = sign_go_aheads(fleet, command, digest, waves, sign) => match never {},
    }
}

async fn sign_go_aheads(
    fleet: &FleetConnection,
    command: &Command,
    digest: &str,
    waves: &RolloutPlan,
    sign: &dyn Fn(CommandDraft) -> Option<SealedCommand>,
) -> Infallible {
    let (bus, subjects) = (&fleet.bus, &fleet.subjects);
    let (mut wave, mut since) = (2, Instant::now());
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some(before) = usize::try_from(wave).ok().and_then(|wave| waves.previous_wave(wave)) else { continue };
        let Ok(proved) = view::read_proven_witnesses(bus, subjects, command, digest, waves).await else { continue };
        let count = before.witnesses.iter().filter(|witness| proved.contains(&witness.node)).count();
        let is_late = since.elapsed() >= waves.max_wait(2, command.options.timeout);
        if count < before.witnesses.len() && !(is_late && count as u64 >= before.min_ok) {
            continue;
        }
        let Some(signed) = sign(go_ahead_draft(command, wave)) else { continue };
        if store_go_ahead(bus, subjects, command.id, &signed).await.is_ok() {
            (wave, since) = (wave + 1, Instant::now());
        }
    }
}
