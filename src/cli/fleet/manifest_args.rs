//! The flags that name a manifest or bundle and its channel, shared by `apply` and `plan`.

use clap::Args;

use crate::fleet::{CommandDraft, NodeStates};
use crate::wire::Action;

use super::super::error::CliError;
use super::super::ui::Ui;
use super::channel_position::{check_channel, next_position};
use super::session::{FleetSession, OperatorArgs};
use super::source::{ApplySource, SourceArgs};
use super::target::TargetArgs;

/// A manifest or bundle to apply, and its channel.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ManifestArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Channel of the apply: nodes refuse an older apply of a channel after a newer one.
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
}

impl ManifestArgs {
    /// Connects to the fleet, uploads the source, and drafts the command. Also returns the states of the nodes.
    ///
    /// # Errors
    /// When an argument is wrong or missing, or the fleet can't be reached.
    pub(super) async fn draft(
        &self,
        target: &TargetArgs,
        context: &OperatorArgs,
        ui: &mut Ui,
    ) -> Result<(CommandDraft, NodeStates, FleetSession), CliError> {
        target.validate()?;
        if let Some(channel) = &self.channel {
            check_channel(channel)?;
        }
        let source = ApplySource::new(&self.source, target.check())?;
        let session = context.open().await?;
        session.check_keys()?;
        let apply = source.pin(&session, ui).await?;
        let to = target.target()?;
        let states = if self.channel.is_some() { session.states_of(&to).await? } else { target.states(&to, &session).await? };
        let channel = match &self.channel {
            Some(name) => Some(next_position(name, &states, &session, ui).await?.0),
            None => None,
        };
        Ok((target.draft_to(to, Action::Apply(apply), channel), states, session))
    }
}
