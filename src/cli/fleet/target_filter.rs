//! The flags that choose the nodes of a question.

use clap::Args;

use crate::wire::Target;

use super::super::error::Failure;
use super::target::TargetArgs;

/// Which nodes.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct TargetFilterArgs {
    /// A node. May be repeated, or several with commas.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    node: Vec<String>,
    /// The nodes of a group. May be repeated, or several with commas.
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    group: Vec<String>,
    /// Every node.
    #[arg(long)]
    all: bool,
    /// And of those, the ones where this expression over facts holds.
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(super) only_where: Option<String>,
}

impl TargetFilterArgs {
    /// The nodes.
    ///
    /// # Errors
    /// As [`TargetArgs::audience`].
    pub(super) fn audience(&self) -> Result<Target, Failure> {
        let Self { node, group, all, only_where } = self.clone();
        TargetArgs { node, group, all, only_where, ..TargetArgs::default() }.audience()
    }

    /// The nodes; every one when none are named.
    ///
    /// # Errors
    /// As [`TargetArgs::audience`].
    pub(super) fn audience_or_all(&self) -> Result<Target, Failure> {
        let none = self.node.is_empty() && self.group.is_empty();
        Self { all: self.all || none, ..self.clone() }.audience()
    }
}
