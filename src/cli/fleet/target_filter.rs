//! The flags that choose the nodes of a query.

use clap::Args;

use crate::wire::Target;

use super::super::error::CliError;
use super::target::TargetArgs;

/// The target of a query.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TargetFilterArgs {
    /// Node to target. May be repeated, or several with commas.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    node: Vec<String>,
    /// Group to target. May be repeated, or several with commas.
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    pub(super) group: Vec<String>,
    /// Target every node.
    #[arg(long)]
    all: bool,
    /// Expression over facts, which narrows the target.
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(super) only_where: Option<String>,
}

impl TargetFilterArgs {
    /// Returns the target.
    ///
    /// # Errors
    /// As [`TargetArgs::target`].
    pub(super) fn target(&self) -> Result<Target, CliError> {
        let Self { node, group, all, only_where } = self.clone();
        TargetArgs { node, group, all, only_where, ..TargetArgs::default() }.target()
    }

    /// Returns the target; all nodes when none are named.
    ///
    /// # Errors
    /// As [`TargetArgs::target`].
    pub(super) fn target_or_all(&self) -> Result<Target, CliError> {
        let none = self.node.is_empty() && self.group.is_empty();
        Self { all: self.all || none, ..self.clone() }.target()
    }
}
