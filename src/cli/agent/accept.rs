//! `ensign agent accept`: a signed command from a file, for the agent of this host.
//!
//! The agent handles it as a command from the bus. This way gives no further rights.

use std::path::PathBuf;

use clap::Args;

use crate::agent::endpoints::socket_client;
use crate::agent::endpoints::socket_client::LocalAnswer;
use crate::host::fs;
use crate::wire::{AckStatus, CommandOutcome, CommandResult, MAX_ENVELOPE};

use super::super::error::{Exit, Failure};
use super::super::ui::{Ui, text};
use super::{Output, Where, unreached};

/// Hand a signed command to the agent of this host, as from a USB stick.
#[derive(Debug, Args)]
pub struct Accept {
    /// Signed command, as `ensign sign` writes it.
    file: PathBuf,
    #[command(flatten)]
    place: Where,
    /// Return once the agent has the command, without waiting for its end.
    #[arg(long)]
    no_wait: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// Runs `ensign agent accept`.
///
/// # Errors
/// When the file can't be read, or no agent answers.
pub(super) fn run(args: &Accept, ui: &mut Ui) -> Result<Exit, Failure> {
    // Reads slightly more than the agent accepts: the agent itself reports a file that is too large.
    let envelope =
        fs::read_named(&args.file, MAX_ENVELOPE as u64 + 1024).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let state_dir = args.place.state_dir(ui)?;
    let (taken, mut answers) = socket_client::accept(&state_dir, &envelope).map_err(|error| unreached(&error))?;
    let ack = match taken {
        LocalAnswer::Ended(done) => return Ok(ended(&done, args.output, ui)),
        LocalAnswer::Acknowledged(ack) => ack,
    };
    match args.output {
        Output::Text if ack.status == AckStatus::NotSelected => {
            ui.line(text!("{} is not for this node: its `where` does not hold here", ack.id));
        }
        Output::Text => ui.line(text!("{} accepted by {}, {} before it", ack.id, ack.node, ack.queued)),
        Output::Json => ui.json(&ack),
        Output::Jsonl => ui.jsonl(&ack),
    }
    if args.no_wait || ack.status == AckStatus::NotSelected {
        return Ok(Exit::Success);
    }
    ui.flush();
    let done = answers
        .end()
        .map_err(|error| unreached(&error).hint("the agent continues after its next start: see `ensign session list`"))?;
    Ok(ended(&done, args.output, ui))
}

fn ended(done: &CommandResult, output: Output, ui: &mut Ui) -> Exit {
    match output {
        Output::Text => {
            let state = serde_json::to_value(done.outcome).ok().and_then(|value| value.as_str().map(str::to_owned));
            let code = done.code.as_ref().map(|code| format!(" {code}")).unwrap_or_default();
            let why = done.message.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let id = done.id.map(|id| format!("{id} ")).unwrap_or_default();
            ui.line(text!("{}{}{}{}", id, state.unwrap_or_default(), code, why));
            if let Some(answer) = &done.answer {
                ui.document(answer);
            }
            for (resource, error) in &done.failures {
                ui.line(text!("  {}: {}", resource, error));
            }
        }
        Output::Json => ui.json(done),
        Output::Jsonl => ui.jsonl(done),
    }
    match done.outcome {
        CommandOutcome::Stable | CommandOutcome::Changed | CommandOutcome::WouldChange | CommandOutcome::NotSelected => {
            Exit::Success
        }
        CommandOutcome::Failed => Exit::Failed,
        CommandOutcome::Refused => Exit::Refused,
        CommandOutcome::Busy | CommandOutcome::Expired | CommandOutcome::Interrupted | CommandOutcome::Halted => Exit::Partial,
    }
}
