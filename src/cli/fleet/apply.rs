//! `ensign fleet apply`: a manifest or bundle on many nodes, pinned by its digest. `source.rs` is what is applied.

use clap::Args;

use crate::diag::chain;
use crate::fleet::CommandDraft;
use crate::fleet::desired_state::view;
use crate::fleet::job::dispatch::next_in_channel;
use crate::wire::Action;
use crate::wire::command::{Channel, is_token};

use super::super::error::{Exit, Failure};
use super::super::ui::{Ui, text};
use super::plan;
use super::render_job::send;
use super::session::{Context, Session, failure};
use super::source::{Source, SourceArgs};
use super::target::TargetArgs;

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    what: ApplyWhat,
    /// Does what a plan said, where nodes would still do the same: the id of the plan, or its file.
    #[arg(long, value_name = "ID|FILE", conflicts_with_all = ["source", "sha256", "size", "channel"])]
    approve: Option<String>,
    /// With --approve: does not ask before it signs.
    #[arg(long, requires = "approve")]
    yes: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// What is to be applied, and in which series.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ApplyWhat {
    #[command(flatten)]
    source: SourceArgs,
    /// A series of applies: nodes refuse an older one of it after a newer one.
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
}

impl ApplyWhat {
    /// The order, and the way to the fleet: what is applied is put where nodes find it.
    ///
    /// # Errors
    /// When something is wrong or missing, or the fleet can't be reached.
    pub(super) async fn order(
        &self,
        target: &TargetArgs,
        context: &Context,
        ui: &mut Ui,
    ) -> Result<(CommandDraft, Session), Failure> {
        target.check()?;
        if let Some(channel) = &self.channel {
            check_channel(channel)?;
        }
        let source = Source::new(&self.source, !target.no_check)?;
        let session = context.open().await?;
        session.has_keys()?;
        let apply = source.pin(&session, ui).await?;
        let channel = match &self.channel {
            Some(name) => Some(next_place(name, &session, ui).await?.0),
            None => None,
        };
        Ok((target.order(Action::Apply(apply), channel)?, session))
    }
}

pub(super) async fn run(args: ApplyArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    if let Some(approve) = &args.approve {
        return plan::approve(approve, args.yes, &args.target, context, ui).await;
    }
    let (order, session) = args.what.order(&args.target, context, ui).await?;
    Ok(send(order, &args.target, &session, ui).await?.exit)
}

/// Whether a channel can have this name.
///
/// # Errors
/// When it can't.
pub(super) fn check_channel(name: &str) -> Result<(), Failure> {
    if is_token(name) {
        return Ok(());
    }
    Err(Failure::usage(format!("\"{name}\" is not the name of a channel: 1 to 63 of a-z, 0-9, _ and -")))
}

/// The next place in a channel: after the latest whose signature was checked, and those that nodes have. Beside it the
/// sequence number of the message that it follows.
///
/// # Errors
/// When the states or the channels can't be read.
pub(super) async fn next_place(name: &str, session: &Session, ui: &mut Ui) -> Result<(Channel, u64), Failure> {
    let latest = view::latest(&session.bus, &session.subjects, name).await.map_err(|error| failure(&error))?;
    let states = session.states().await?;
    let published = match latest.desired.map(|desired| session.checker().map(|checker| checker.check(&desired.envelope))) {
        None => None,
        Some(checked) => match checked? {
            Ok(checked) => checked.command().channel.clone().filter(|channel| channel.name == name),
            Err(error) => {
                ui.warn(text!("what is published for the channel {} does not count: {}", name, chain(&error)));
                None
            }
        },
    };
    Ok((next_in_channel(name, &states, published.as_ref()), latest.sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_channels_are_tokens() {
        assert!(check_channel("base").is_ok());
        assert!(check_channel("a.b").is_err());
    }
}
