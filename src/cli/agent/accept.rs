//! `ensign agent accept`: a signed command from a file, for the agent of this host.
//!
//! The agent handles it as a command from the bus. This way gives no further rights.

use std::path::PathBuf;

use clap::Args;

use crate::agent::endpoints::socket_client;
use crate::agent::endpoints::socket_client::LocalAnswer;
use crate::host::fs;
use crate::wire::{AckStatus, CommandOutcome, CommandResult, MAX_ENVELOPE};

use super::location::{AgentLocationArgs, unreachable_agent};
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs::OutputFormat;
use crate::cli::ui::{Ui, text};

/// Hand a signed command to the agent of this host, as from a USB stick.
#[derive(Debug, Args)]
pub struct AcceptArgs {
    /// Signed command, as `ensign sign` writes it.
    file: PathBuf,
    #[command(flatten)]
    location: AgentLocationArgs,
    /// Return once the agent has the command, without waiting for its end.
    #[arg(long)]
    no_wait: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// Runs `ensign agent accept`.
///
/// # Errors
/// When the file can't be read, or no agent answers.
pub(super) fn run(args: &AcceptArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    // Reads slightly more than the agent accepts: the agent itself reports a file that is too large.
    let envelope =
        fs::read_named(&args.file, MAX_ENVELOPE as u64 + 1024).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let state_dir = args.location.state_dir(ui)?;
    let (taken, mut answers) = socket_client::accept(&state_dir, &envelope).map_err(|error| unreachable_agent(&error))?;
    let ack = match taken {
        LocalAnswer::Ended(done) => return Ok(print_result(&done, args.output, ui)),
        LocalAnswer::Acknowledged(ack) => ack,
    };
    match args.output {
        OutputFormat::Text if ack.status == AckStatus::NotSelected => {
            ui.line(text!("{} is not for this node: its `where` does not hold here", ack.id));
        }
        OutputFormat::Text => ui.line(text!("{} accepted by {}, {} before it", ack.id, ack.node, ack.queued)),
        OutputFormat::Json => ui.json(&ack),
        OutputFormat::Jsonl => ui.jsonl(&ack),
    }
    if args.no_wait || ack.status == AckStatus::NotSelected {
        return Ok(Exit::Success);
    }
    ui.flush();
    let done = answers
        .wait_for_result()
        .map_err(|error| unreachable_agent(&error).hint("the agent continues after its next start: see `ensign session list`"))?;
    Ok(print_result(&done, args.output, ui))
}

fn print_result(done: &CommandResult, output: OutputFormat, ui: &mut Ui) -> Exit {
    match output {
        OutputFormat::Text => {
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
        OutputFormat::Json => ui.json(done),
        OutputFormat::Jsonl => ui.jsonl(done),
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
