//! `ensign fleet run`: the assignment of a channel, now.

use clap::Args;

use crate::wire::Action;
use crate::wire::command::RunChannel;

use super::super::error::{CliError, Exit};
use super::super::ui::Ui;
use super::channel_position::check_channel;
use super::send::send;
use super::session::OperatorArgs;
use super::target::TargetArgs;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Channel to run.
    channel: String,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) async fn run(args: RunArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    check_channel(&args.channel)?;
    let draft = args.target.draft(Action::Run(RunChannel { channel: args.channel }), None)?;
    let session = context.open().await?;
    let states = args.target.states(&draft.to, &session).await?;
    Ok(send(draft, &args.target, &states, &session, ui).await?.exit)
}
