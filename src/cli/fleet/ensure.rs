//! `ensign fleet ensure`: one resource on many nodes.

use clap::Args;

use crate::wire::Action;
use crate::wire::command::Ensure;

use super::super::error::{Exit, Failure};
use super::super::properties::Described;
use super::super::ui::Ui;
use super::report::send;
use super::session::Context;
use super::target::TargetArgs;

#[derive(Debug, Args)]
pub(super) struct EnsureArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(subcommand)]
    what: Described,
}

pub(super) async fn run(args: EnsureArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let EnsureArgs { target, what } = args;
    let action = Action::Ensure(Ensure { kind: what.kind.to_owned(), properties: what.properties });
    // Before anything is asked of anybody.
    let order = target.order(action, None)?;
    let session = context.open().await?;
    Ok(send(order, &target, &session, ui).await?.exit)
}
