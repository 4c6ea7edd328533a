//! The go-ahead for each wave of a rollout that asks for it, given by the command that follows the rollout or by hand.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crate::fleet::job::dispatch;
use crate::fleet::rollout::request;
use crate::wire::Command;
use crate::wire::command::RolloutPlan;

use super::super::error::{Exit, Failure};
use super::session::{Session, borrowed, failure, signers};

/// How often it is looked at whether the next wave may begin.
const LOOK: Duration = Duration::from_secs(1);

/// Runs `followed`, and meanwhile gives the go-ahead for each wave, where waves need one: once every witness of the wave
/// before proved its success, or enough of them and the others had their time.
pub(super) async fn go_on<T>(command: &Command, digest: &str, session: &Session, followed: impl Future<Output = T>) -> T {
    let Some(waves) = command.options.waves.as_ref().filter(|waves| waves.go) else { return followed.await };
    // Cancel-safe: a go-ahead that was not stored is signed again, by this command or by hand.
    tokio::select! {
        ended = followed => ended,
        never = give_all(command, digest, waves, session) => match never {},
    }
}

async fn give_all(command: &Command, digest: &str, waves: &RolloutPlan, session: &Session) -> Infallible {
    let (mut wave, mut since) = (2, Instant::now());
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(before) = usize::try_from(wave).ok().and_then(|wave| waves.previous_wave(wave)) else { continue };
        let Ok(proved) = request::proved(&session.bus, &session.subjects, command, digest, waves).await else { continue };
        let count = before.witnesses.iter().filter(|witness| proved.contains(&witness.node)).count();
        let late = since.elapsed() >= waves.max_wait(2, command.options.timeout);
        let may = count == before.witnesses.len() || (late && count as u64 >= before.min_ok);
        if may && give(command, wave, session).await.is_ok() {
            (wave, since) = (wave + 1, Instant::now());
        }
    }
}

/// Signs the go-ahead for a wave of a job, and stores it.
///
/// # Errors
/// When there is no key, or it can't be stored.
pub(super) async fn give(job: &Command, wave: u64, session: &Session) -> Result<(), Failure> {
    let signers = signers(&session.operator)?;
    let order = request::go_ahead(job, wave);
    let command = order.command(&session.operator.fleet, session.host.new_id(), session.now());
    let signed = dispatch::sign(command, &borrowed(&signers)).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    request::store_go_ahead(&session.bus, &session.subjects, job.id, &signed).await.map_err(|error| failure(&error))
}

/// How long the waves before the last may take; nothing for a command without waves.
pub(super) fn all_waves(command: &Command) -> Duration {
    let patience = |waves: &RolloutPlan| waves.max_wait(waves.steps.len(), command.options.timeout);
    command.options.waves.as_ref().map_or(Duration::ZERO, patience)
}
