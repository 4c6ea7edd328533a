//! `ensign fleet job`: commands that were sent, from wherever they were sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use uuid::Uuid;

use crate::fleet::{Gather, select};
use crate::model::Span;
use crate::transport::From;
use crate::wire::{Command, Envelope, json};

use super::super::error::{Exit, Failure};
use super::super::ui::Ui;
use super::report::{Followed, follow};
use super::session::{Context, Session, failure};

/// What nodes get to say their last word after a command's time is over.
const MARGIN: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Follows a command until every node has come to its end.
    Watch(Watch),
}

#[derive(Debug, Args)]
struct Watch {
    /// The id of the job.
    id: Uuid,
    /// How long to wait; when not given, until no node can say anything new.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<Span>,
}

pub(super) async fn run(args: JobArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let JobCommand::Watch(Watch { id, timeout }) = args.command;
    let session = context.open().await?;
    let (command, envelope) = recorded(id, &session).await?;
    Ok(watch(&command, &envelope.digest(), timeout, &session, ui).await?.exit)
}

/// Follows a command that was sent before, until no node can say anything new, or for so long.
pub(super) async fn watch(
    command: &Command,
    digest: &str,
    timeout: Option<Span>,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let gather = awaited(command, digest, session).await?;
    let reports = session.subjects.job_reports(command.id);
    let stream = session.subjects.stream("JOBS");
    let mut feed = session.bus.follow(&stream, reports.as_str(), From::Beginning).await.map_err(|error| failure(&error))?;
    let wait = timeout.map_or_else(|| remaining(command, session), Span::get);
    follow(gather, digest, &mut feed, None, Instant::now() + wait, session, ui).await
}

/// Everybody whom a command is for, before anything of them is read.
pub(super) async fn awaited(command: &Command, digest: &str, session: &Session) -> Result<Gather, Failure> {
    let states = session.states().await?;
    let expected = select::expected(&command.to, &states, session.now());
    Ok(Gather::new(session.subjects.clone(), Arc::clone(&session.roster), command.id, digest, expected))
}

/// How long nodes may still work on it.
fn remaining(command: &Command, session: &Session) -> Duration {
    let last = command.options.waves.as_ref().map(|waves| waves.last_begins(command.issued));
    let expires = last.map_or(command.expires, |last| last.max(command.expires));
    let until_expired = Duration::try_from(expires.duration_since(session.now())).unwrap_or_default();
    let since_expired = Duration::try_from(session.now().duration_since(expires)).unwrap_or_default();
    until_expired + command.options.timeout.get().saturating_sub(since_expired) + MARGIN
}

/// The command as it was sent. It is only shown, and tells whom to wait for: nothing is done because of it.
pub(super) async fn recorded(id: Uuid, session: &Session) -> Result<(Command, Envelope), Failure> {
    let stream = session.subjects.stream("JOBS");
    let messages = session
        .bus
        .last_per_subject(&stream, session.subjects.job_command(id).as_str())
        .await
        .map_err(|error| failure(&error))?;
    let message = messages.first().ok_or_else(|| Failure::usage(format!("there is no job {id}, or it is too long ago")))?;
    let unreadable = |error: &dyn std::error::Error| Failure::from_error(Exit::Failed, error);
    let envelope = Envelope::parse(&message.payload).map_err(|error| unreadable(&error))?;
    let command = json::read(&envelope.payload).map_err(|error| unreadable(&error))?;
    Ok((command, envelope))
}
