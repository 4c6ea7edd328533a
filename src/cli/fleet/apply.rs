//! `ensign fleet apply`: a manifest or bundle on many nodes, pinned by its digest.

use clap::Args;

use super::super::error::{CliError, Exit};
use super::super::ui::Ui;
use super::approve::approve;
use super::manifest_args::ManifestArgs;
use super::send::send;
use super::session::OperatorArgs;
use super::target::TargetArgs;

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    manifest: ManifestArgs,
    /// Plan to approve: its id, @last or its file. Nodes apply it where their plan is still the same.
    #[arg(long, value_name = "ID|FILE", conflicts_with_all = ["source", "sha256", "size", "channel"])]
    approve: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) async fn run(args: ApplyArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    if let Some(plan) = &args.approve {
        return approve(plan, &args.target, context, ui).await;
    }
    let (draft, states, session) = args.manifest.draft(&args.target, context, ui).await?;
    Ok(send(draft, &args.target, &states, &session, ui).await?.exit)
}
