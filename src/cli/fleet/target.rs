//! The flags of every command to a fleet: the target, and the options.

use clap::Args;

use crate::diag::{Diagnostic, SourceLocation};
use crate::fleet::job::offline_limit;
use crate::fleet::rollout::request::Count;
use crate::fleet::{CommandDraft, NodeStates};
use crate::model::HumanDuration;
use crate::template::Scope;
use crate::wire::command::{Channel, MAX_LIFETIME};
use crate::wire::{Action, CommandOptions, Target};

use crate::cli::args::types::TypesArgs;

use super::super::error::{CliError, Exit};
use super::super::format::first_names;
use super::confirm::ConfirmArgs;
use super::node_selection::NodeSelectionArgs;
use super::session::FleetSession;
use super::waves::WavesArgs;

/// Offline nodes that are named.
const MAX_NAMED: usize = 5;

/// The target and the options of a command.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct TargetArgs {
    #[command(flatten)]
    pub(in crate::cli) nodes: NodeSelectionArgs,
    /// Expression over facts, which narrows the target.
    #[arg(long = "where", global = true, value_name = "EXPRESSION")]
    pub(in crate::cli) only_where: Option<String>,
    /// Show what would change; change nothing.
    #[arg(long, global = true)]
    pub(in crate::cli) noop: bool,
    /// Longest run on a node, and longest wait for the nodes.
    #[arg(long, global = true, value_name = "DURATION", default_value = "5m")]
    pub(in crate::cli) timeout: Option<HumanDuration>,
    /// Reason, for the audit trail.
    #[arg(long, global = true, value_name = "TEXT")]
    pub(in crate::cli) reason: Option<String>,
    /// Print the id of the job without waiting; `ensign fleet job watch ID` waits.
    #[arg(long, global = true)]
    pub(in crate::cli) detach: bool,
    /// Send nothing when more of the targeted nodes are offline, as 3 or 5%.
    #[arg(long, global = true, value_name = "COUNT")]
    pub(in crate::cli) max_offline: Option<Count>,
    /// Skip the check of a manifest or resource for errors that every node would report.
    #[arg(long, global = true)]
    pub(in crate::cli) no_check: bool,
    #[command(flatten)]
    pub(in crate::cli) types: TypesArgs,
    #[command(flatten)]
    pub(in crate::cli) waves: WavesArgs,
    #[command(flatten)]
    pub(in crate::cli) confirm: ConfirmArgs,
}

impl TargetArgs {
    /// Returns the types for the check of a manifest or resource; none without a check.
    pub(in crate::cli) fn check(&self) -> Option<&TypesArgs> {
        (!self.no_check).then_some(&self.types)
    }

    /// Returns the target.
    ///
    /// # Errors
    /// As [`NodeSelectionArgs::target`], or when the filter is invalid.
    pub(in crate::cli) fn target(&self) -> Result<Target, CliError> {
        let mut audience = self.nodes.target()?;
        self.only_where.as_deref().map_or(Ok(()), check_where)?;
        audience.filter.clone_from(&self.only_where);
        Ok(audience)
    }

    /// Checks that the flags make a valid command, before any other work.
    ///
    /// # Errors
    /// The error in the flags.
    pub(in crate::cli) fn validate(&self) -> Result<(), CliError> {
        self.waves.plan()?;
        self.target().map(drop)
    }

    /// Reads the states of the nodes. A detached command needs none without waves and without `--max-offline`.
    ///
    /// # Errors
    /// As [`FleetSession::states_if_available`].
    pub(super) async fn states(&self, to: &Target, session: &FleetSession) -> Result<NodeStates, CliError> {
        if self.detach && self.waves.counts().is_none() && self.max_offline.is_none() {
            session.expect(to);
            return Ok(NodeStates::default());
        }
        session.states_if_available(to).await
    }

    /// Checks `--max-offline`, before a command is signed.
    ///
    /// # Errors
    /// When too many nodes of `to` are offline, or their states are unavailable.
    pub(super) fn check_offline(&self, to: &Target, states: &NodeStates) -> Result<(), CliError> {
        let Some(limit) = self.max_offline else { return Ok(()) };
        if let Some(reason) = &states.unavailable {
            let wrong = Diagnostic::new(format!("cannot count the offline nodes: JetStream does not answer: {reason}"));
            return Err(CliError::new(Exit::Partial, wrong.hint("--max-offline needs it; nothing was signed or sent")));
        }
        offline_limit::check_offline(&states.expected(to), limit).map_err(|error| {
            let hint = format!("offline: {}; nothing was signed or sent", first_names(&error.offline, MAX_NAMED));
            CliError::from_error(Exit::Partial, &error).hint(hint)
        })
    }

    /// Returns the longest run on a node.
    pub(in crate::cli) fn timeout(&self) -> HumanDuration {
        self.timeout.unwrap_or(CommandOptions::default().timeout)
    }

    /// Drafts a command for `action`.
    ///
    /// # Errors
    /// As [`TargetArgs::target`].
    pub(in crate::cli) fn draft(&self, action: Action, channel: Option<Channel>) -> Result<CommandDraft, CliError> {
        // Errors are reported before any node is asked; the nodes of each wave are known later.
        self.waves.plan()?;
        Ok(self.draft_to(self.target()?, action, channel))
    }

    /// Drafts a command for `action` and a known target.
    pub(in crate::cli) fn draft_to(&self, to: Target, action: Action, channel: Option<Channel>) -> CommandDraft {
        CommandDraft {
            action,
            to,
            options: CommandOptions { noop: self.noop, timeout: self.timeout(), ..CommandOptions::default() },
            channel,
            reason: self.reason.clone(),
            lifetime: self.timeout().min(MAX_LIFETIME),
        }
    }
}

/// Checks the syntax of a `where` before it is signed.
///
/// # Errors
/// The place of the error, with a suggestion.
fn check_where(expression: &str) -> Result<(), CliError> {
    let scope = Scope::restricted(std::sync::Arc::new(|| serde_json::Value::Null));
    scope.check_condition(expression).map_err(|error| {
        let text = expression.lines().nth(error.line.saturating_sub(1)).unwrap_or_default().to_owned();
        let place = SourceLocation { file: "--where".to_owned(), line: error.line, column: error.column, text };
        let hint =
            "facts are below `Facts`, as in Facts.host.info.platformFamily == 'debian'; `ensign facts` shows those of this host";
        CliError::new(Exit::Usage, Diagnostic::new(error.detail).at(Some(place)).hint(hint))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_expression_is_shown_with_its_place() {
        check_where("Facts.host.info.os == 'linux' && lookup('facts.a') != ''").unwrap();
        for (expression, place, expected) in [
            ("facts.os == 'x'", "--where:1:1", "did you mean"),
            ("Facts.os = 'x'", "--where:1:", ""),
            ("Facts.os == 'x' &&\n  Fact.b", "--where:2:3", "Facts"),
            ("Data.x == 1", "--where:1:1", ""),
            ("readFile('/etc/shadow') == ''", "--where:1:1", "readFile"),
            ("", "--where:1:1", ""),
        ] {
            let failure = check_where(expression).unwrap_err();
            let text = failure.message_text();
            assert!(text.starts_with(place) && text.contains(expected), "{expression}: {text}");
        }
    }
}
