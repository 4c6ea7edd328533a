//! The flags that select the nodes of a command, and leave nodes out.

use clap::Args;

use crate::model::{InvalidId, NodeGlob, NodeId, check_name};
use crate::wire::command::MalformedCommand;
use crate::wire::{Exclusion, Target};

use super::super::error::CliError;

/// The selected and the excluded nodes.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct NodeSelectionArgs {
    /// Node to target, or a pattern as 'web*'. May be repeated, or several with commas.
    #[arg(long, global = true, value_name = "NODE", value_delimiter = ',')]
    pub(in crate::cli) node: Vec<String>,
    /// Group to target. May be repeated, or several with commas.
    #[arg(long, global = true, value_name = "GROUP", value_delimiter = ',')]
    pub(in crate::cli) group: Vec<String>,
    /// Target every node.
    #[arg(long, global = true)]
    pub(in crate::cli) all: bool,
    /// Node to leave out, or a pattern. May be repeated, or several with commas.
    #[arg(long, global = true, value_name = "NODE", value_delimiter = ',')]
    pub(in crate::cli) not_node: Vec<String>,
    /// Group to leave out. May be repeated, or several with commas.
    #[arg(long, global = true, value_name = "GROUP", value_delimiter = ',')]
    pub(in crate::cli) not_group: Vec<String>,
}

impl NodeSelectionArgs {
    /// True when any of the flags is given.
    pub(super) fn is_given(&self) -> bool {
        self.selects() || !self.not_node.is_empty() || !self.not_group.is_empty()
    }

    /// True when the flags select nodes, and do not only leave nodes out.
    pub(super) fn selects(&self) -> bool {
        self.all || !self.node.is_empty() || !self.group.is_empty()
    }

    /// Returns the target: the selected nodes without the excluded nodes.
    ///
    /// # Errors
    /// When no nodes are selected, or `--all` and others. When a name is invalid, or both selected and excluded.
    pub(super) fn target(&self) -> Result<Target, CliError> {
        if !self.selects() {
            return Err(CliError::usage("no nodes are chosen").hint("use --node, --group or --all"));
        }
        if self.all && !(self.node.is_empty() && self.group.is_empty()) {
            let hint = "leave out --all, or --node and --group; --not-node and --not-group narrow --all";
            return Err(CliError::usage("--all already includes the nodes of --node and --group").hint(hint));
        }
        let (nodes, globs) = parse_nodes(&self.node)?;
        let (not_nodes, not_globs) = parse_nodes(&self.not_node)?;
        let exclusion = Exclusion { nodes: not_nodes, globs: not_globs, groups: parse_groups(&self.not_group)? };
        let exclusion = Some(exclusion).filter(|exclusion| *exclusion != Exclusion::default());
        let all = self.all.then_some(true);
        let target = Target { nodes, globs, groups: parse_groups(&self.group)?, all, exclusion, filter: None };
        target.check().map_err(|error| CliError::usage(MalformedCommand::from(error).to_string()))?;
        Ok(target)
    }
}

type NodeLists = (Option<Vec<NodeId>>, Option<Vec<NodeGlob>>);

/// Splits names of nodes from patterns. Both are sorted, each entry once; an empty list is none.
fn parse_nodes(texts: &[String]) -> Result<NodeLists, CliError> {
    let (globs, nodes): (Vec<&String>, Vec<&String>) = texts.iter().partition(|text| text.contains('*'));
    Ok((parse_all(nodes.into_iter().map(|text| text.parse()))?, parse_all(globs.into_iter().map(|text| text.parse()))?))
}

fn parse_groups(texts: &[String]) -> Result<Option<Vec<String>>, CliError> {
    parse_all(texts.iter().map(|group| check_name("group", group).map(|()| group.clone())))
}

fn parse_all<T: Ord>(entries: impl Iterator<Item = Result<T, InvalidId>>) -> Result<Option<Vec<T>>, CliError> {
    let mut entries: Vec<T> = entries.collect::<Result<_, _>>().map_err(|error| CliError::usage(error.to_string()))?;
    entries.sort();
    entries.dedup();
    Ok(Some(entries).filter(|entries| !entries.is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::error::Exit;
    use super::*;

    /// Parses flags as a user writes them.
    fn target(flags: &str) -> Result<Value, CliError> {
        let mut args = NodeSelectionArgs::default();
        for flag in flags.split_whitespace() {
            let (name, values) = flag.split_once('=').unwrap_or((flag, ""));
            let list = match name {
                "all" => {
                    args.all = true;
                    continue;
                }
                "node" => &mut args.node,
                "group" => &mut args.group,
                "not-node" => &mut args.not_node,
                _ => &mut args.not_group,
            };
            list.extend(values.split(',').map(str::to_owned));
        }
        args.target().map(|target| serde_json::to_value(target).unwrap())
    }

    #[test]
    fn flags_become_a_signed_target() {
        for (flags, wanted) in [
            ("node=b,a,b", json!({"nodes": ["a", "b"]})),
            ("group=web", json!({"groups": ["web"]})),
            ("all", json!({"all": true})),
            (
                "node=web*,db1 group=db not-node=web3 not-group=canary",
                json!({"nodes": ["db1"], "globs": ["web*"], "groups": ["db"], "not": {"nodes": ["web3"], "groups": ["canary"]}}),
            ),
            ("all not-node=old*,web1", json!({"all": true, "not": {"nodes": ["web1"], "globs": ["old*"]}})),
        ] {
            assert_eq!(target(flags).unwrap(), wanted, "{flags}");
        }
    }

    #[test]
    fn wrong_flags_are_named() {
        for (flags, wanted) in [
            ("", "no nodes are chosen"),
            ("not-node=a", "no nodes are chosen"),
            ("node=a all", "--all already includes"),
            ("group=a all", "--all already includes"),
            ("node=a.b", "not a node id"),
            ("node=web?", "not a node id"),
            ("node=web**", "not a pattern of node ids"),
            ("node=Web*", "not a pattern of node ids"),
            ("group=*", "not the name of a group"),
            ("all not-group=w*", "not the name of a group"),
            ("node=a,b not-node=b", "\"b\" is both selected and excluded"),
            ("node= all", "--all already includes"),
        ] {
            let error = target(flags).unwrap_err();
            assert_eq!(error.exit, Exit::Usage, "{flags}");
            assert!(error.message_text().contains(wanted), "{flags}: {}", error.message_text());
        }
    }
}
