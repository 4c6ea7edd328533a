//! The flags that choose the nodes of a query.

use clap::Args;

use crate::wire::Target;

use super::super::error::CliError;
use super::node_selection::NodeSelectionArgs;
use super::target::TargetArgs;

/// The target of a query.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TargetFilterArgs {
    #[command(flatten)]
    pub(super) nodes: NodeSelectionArgs,
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
        let Self { nodes, only_where } = self.clone();
        TargetArgs { nodes, only_where, ..TargetArgs::default() }.target()
    }

    /// Returns the target; all nodes when none are selected.
    ///
    /// # Errors
    /// As [`TargetArgs::target`].
    pub(super) fn target_or_all(&self) -> Result<Target, CliError> {
        let all = self.nodes.all || !self.nodes.selects();
        Self { nodes: NodeSelectionArgs { all, ..self.nodes.clone() }, ..self.clone() }.target()
    }
}
