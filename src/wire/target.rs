//! The target of a command: nodes, patterns and groups, or all, without the excluded nodes.

use std::collections::HashSet;
use std::fmt::Display;
use std::hash::Hash;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{InvalidId, NodeGlob, NodeId, check_name};

/// The nodes of a command: the union of `nodes`, `globs` and `groups`, or `all: true` alone. `not` narrows the union, and then
/// `where`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// These nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeId>>,
    /// The nodes whose ids match one of these patterns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub globs: Option<Vec<NodeGlob>>,
    /// The nodes of these groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// Every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// The nodes that are left out.
    #[serde(default, rename = "not", skip_serializing_if = "Option::is_none")]
    pub exclusion: Option<Exclusion>,
    /// An expression over facts that selects among those nodes.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

/// Nodes that a target leaves out: the union of `nodes`, `globs` and `groups`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exclusion {
    /// These nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeId>>,
    /// The nodes whose ids match one of these patterns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub globs: Option<Vec<NodeGlob>>,
    /// The nodes of these groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
}

/// A malformed target.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MalformedTarget {
    /// `to` selects nothing, has an empty list, or has `all` beside a list.
    #[error("\"to\" must have nodes, globs or groups, none of them empty, or all: true alone")]
    Selection,
    /// `not` is empty, or has an empty list.
    #[error("\"not\" in \"to\" must have nodes, globs or groups, none of them empty")]
    Exclusion,
    /// A group that is not a single subject token.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// A list has the same entry twice.
    #[error("\"{0}\" is named twice in \"to\"")]
    Duplicate(String),
    /// The same entry is selected and excluded.
    #[error("\"{0}\" is both selected and excluded in \"to\"")]
    Contradiction(String),
}

/// The kind of selection of a [`Target`], without its exclusion. The kind decides the subjects of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selector<'a> {
    /// These nodes alone.
    Nodes(&'a [NodeId]),
    /// The nodes of these groups alone.
    Groups(&'a [String]),
    /// Every node.
    All,
    /// Patterns, or several kinds together.
    Mixed,
}

/// The lists of a selection or exclusion.
#[derive(Clone, Copy)]
struct Members<'a> {
    nodes: &'a [NodeId],
    globs: &'a [NodeGlob],
    groups: &'a [String],
}

impl<'a> Members<'a> {
    fn new(nodes: Option<&'a Vec<NodeId>>, globs: Option<&'a Vec<NodeGlob>>, groups: Option<&'a Vec<String>>) -> Self {
        Self {
            nodes: nodes.map_or(&[], Vec::as_slice),
            globs: globs.map_or(&[], Vec::as_slice),
            groups: groups.map_or(&[], Vec::as_slice),
        }
    }

    fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.globs.is_empty() && self.groups.is_empty()
    }

    fn matches_name(&self, node: &NodeId) -> bool {
        self.nodes.contains(node) || self.globs.iter().any(|glob| glob.matches(node))
    }

    fn matches_group(&self, groups: &[String]) -> bool {
        self.groups.iter().any(|group| groups.contains(group))
    }

    fn check(&self) -> Result<(), MalformedTarget> {
        self.groups.iter().try_for_each(|group| check_name("group", group))?;
        let repeated = repeated(self.nodes).or_else(|| repeated(self.globs)).or_else(|| repeated(self.groups));
        repeated.map_or(Ok(()), |name| Err(MalformedTarget::Duplicate(name)))
    }

    /// Returns an entry of both.
    fn common(&self, other: &Self) -> Option<String> {
        let common = common(self.nodes, other.nodes).or_else(|| common(self.globs, other.globs));
        common.or_else(|| self::common(self.groups, other.groups))
    }

    /// `db1, web*, group db`, with at most `limit` names of each list.
    fn describe(&self, limit: usize) -> String {
        let groups = if self.groups.len() == 1 { "group " } else { "groups " };
        let parts = [("", join(self.nodes, limit)), ("", join(self.globs, limit)), (groups, join(self.groups, limit))];
        let parts: Vec<String> =
            parts.into_iter().filter(|(_, names)| !names.is_empty()).map(|(kind, names)| format!("{kind}{names}")).collect();
        parts.join(", ")
    }
}

fn repeated<T: Eq + Hash + Display>(list: &[T]) -> Option<String> {
    let mut seen = HashSet::new();
    list.iter().find(|item| !seen.insert(*item)).map(ToString::to_string)
}

fn common<T: Eq + Hash + Display>(list: &[T], other: &[T]) -> Option<String> {
    let other: HashSet<&T> = other.iter().collect();
    list.iter().find(|item| other.contains(item)).map(ToString::to_string)
}

fn join<T: Display>(list: &[T], limit: usize) -> String {
    let shown = list.iter().take(limit).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = list.len().saturating_sub(limit);
    if more > 0 { format!("{shown} +{more}") } else { shown }
}

impl Target {
    /// These nodes.
    pub fn nodes(nodes: Vec<NodeId>) -> Self {
        Self { nodes: Some(nodes), ..Self::default() }
    }

    /// The nodes of these groups.
    pub fn groups(groups: Vec<String>) -> Self {
        Self { groups: Some(groups), ..Self::default() }
    }

    /// Every node.
    pub fn all() -> Self {
        Self { all: Some(true), ..Self::default() }
    }

    /// Returns the kind of the selection; `None` when the selection is malformed.
    pub fn selector(&self) -> Option<Selector<'_>> {
        let is_given = |empty: Option<bool>| empty.map_or(Some(false), |empty| (!empty).then_some(true));
        let nodes = is_given(self.nodes.as_ref().map(Vec::is_empty))?;
        let globs = is_given(self.globs.as_ref().map(Vec::is_empty))?;
        let groups = is_given(self.groups.as_ref().map(Vec::is_empty))?;
        match (self.selected(), nodes, globs, groups, self.all) {
            (_, false, false, false, Some(true)) => Some(Selector::All),
            (_, false, false, false, None) | (_, _, _, _, Some(_)) => None,
            (selected, true, false, false, None) => Some(Selector::Nodes(selected.nodes)),
            (selected, false, false, true, None) => Some(Selector::Groups(selected.groups)),
            _ => Some(Selector::Mixed),
        }
    }

    /// True when a node is targeted, as far as known without its facts.
    pub fn includes(&self, node: &NodeId, groups: &[String]) -> bool {
        let (selected, excluded) = (self.selected(), self.excluded());
        let is_selected = self.all == Some(true) || selected.matches_name(node) || selected.matches_group(groups);
        is_selected && !excluded.matches_name(node) && !excluded.matches_group(groups)
    }

    /// The same as [`Self::includes`] for a node whose groups are unknown; `None` when the groups decide.
    pub fn includes_by_name(&self, node: &NodeId) -> Option<bool> {
        let (selected, excluded) = (self.selected(), self.excluded());
        if excluded.matches_name(node) {
            return Some(false);
        }
        let is_selected = self.all == Some(true) || selected.matches_name(node);
        match (is_selected, selected.groups, excluded.groups) {
            (true, _, []) => Some(true),
            (false, [], _) => Some(false),
            _ => None,
        }
    }

    /// Describes nodes, patterns and groups with at most `limit` names of each: `db1, web*, group db`.
    pub fn describe_selection(&self, limit: usize) -> String {
        self.selected().describe(limit)
    }

    /// Describes the exclusion with at most `limit` names of each list: ` except web3, group canary`. Empty without one.
    pub fn describe_exclusion(&self, limit: usize) -> String {
        let excluded = self.excluded();
        if excluded.is_empty() { String::new() } else { format!(" except {}", excluded.describe(limit)) }
    }

    fn selected(&self) -> Members<'_> {
        Members::new(self.nodes.as_ref(), self.globs.as_ref(), self.groups.as_ref())
    }

    fn excluded(&self) -> Members<'_> {
        let not = self.exclusion.as_ref();
        Members::new(
            not.and_then(|not| not.nodes.as_ref()),
            not.and_then(|not| not.globs.as_ref()),
            not.and_then(|not| not.groups.as_ref()),
        )
    }

    /// Checks the form.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), MalformedTarget> {
        self.selector().ok_or(MalformedTarget::Selection)?;
        let (selected, excluded) = (self.selected(), self.excluded());
        if let Some(not) = &self.exclusion {
            let has_empty_list = not.nodes.as_ref().is_some_and(Vec::is_empty)
                || not.globs.as_ref().is_some_and(Vec::is_empty)
                || not.groups.as_ref().is_some_and(Vec::is_empty);
            if has_empty_list || excluded.is_empty() {
                return Err(MalformedTarget::Exclusion);
            }
        }
        selected.check()?;
        excluded.check()?;
        selected.common(&excluded).map_or(Ok(()), |name| Err(MalformedTarget::Contradiction(name)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn target(value: &Value) -> Target {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn the_kind_of_a_selection_decides_its_subjects() {
        for (value, wanted) in [
            (json!({"nodes": ["a"]}), "Nodes([NodeId(\"a\")])"),
            (json!({"nodes": ["a"], "not": {"groups": ["x"]}}), "Nodes([NodeId(\"a\")])"),
            (json!({"groups": ["g"]}), "Groups([\"g\"])"),
            (json!({"all": true, "not": {"globs": ["w*"]}}), "All"),
            (json!({"globs": ["w*"]}), "Mixed"),
            (json!({"nodes": ["a"], "groups": ["g"]}), "Mixed"),
            (json!({"nodes": ["a"], "globs": ["w*"], "groups": ["g"]}), "Mixed"),
        ] {
            let target = target(&value);
            assert_eq!((target.check(), format!("{:?}", target.selector().unwrap())), (Ok(()), wanted.to_owned()), "{value}");
            assert_eq!(serde_json::to_value(&target).unwrap(), value, "no other bytes are signed");
        }
    }

    #[test]
    fn malformed_targets_are_refused() {
        for (value, wanted) in [
            (json!({}), "must have nodes, globs or groups"),
            (json!({"not": {"nodes": ["a"]}}), "must have nodes, globs or groups"),
            (json!({"nodes": []}), "must have nodes, globs or groups"),
            (json!({"nodes": [], "groups": ["g"]}), "must have nodes, globs or groups"),
            (json!({"globs": []}), "must have nodes, globs or groups"),
            (json!({"all": false}), "all: true alone"),
            (json!({"all": false, "nodes": ["a"]}), "all: true alone"),
            (json!({"all": true, "nodes": ["a"]}), "all: true alone"),
            (json!({"all": true, "globs": ["a*"]}), "all: true alone"),
            (json!({"all": true, "not": {}}), "\"not\" in \"to\" must have"),
            (json!({"all": true, "not": {"nodes": []}}), "\"not\" in \"to\" must have"),
            (json!({"all": true, "not": {"nodes": ["a"], "groups": []}}), "\"not\" in \"to\" must have"),
            (json!({"nodes": ["a", "a"]}), "\"a\" is named twice"),
            (json!({"globs": ["a*", "b*", "a*"]}), "\"a*\" is named twice"),
            (json!({"all": true, "not": {"groups": ["g", "g"]}}), "\"g\" is named twice"),
            (json!({"nodes": ["a", "b"], "not": {"nodes": ["b"]}}), "\"b\" is both"),
            (json!({"globs": ["a*"], "not": {"globs": ["a*"]}}), "\"a*\" is both"),
            (json!({"groups": ["g"], "not": {"groups": ["g"]}}), "\"g\" is both"),
            (json!({"groups": ["web.>"]}), "is not the name of a group"),
            (json!({"groups": ["w*"]}), "is not the name of a group"),
            (json!({"all": true, "not": {"groups": ["w*"]}}), "is not the name of a group"),
        ] {
            assert!(target(&value).check().is_err_and(|error| error.to_string().contains(wanted)), "{value}");
        }
        for value in [
            json!({"nodes": ["web*"]}),
            json!({"globs": ["web1"]}),
            json!({"globs": ["web?"]}),
            json!({"globs": ["**"]}),
            json!({"globs": ["wéb*"]}),
            json!({"all": true, "not": {"all": true}}),
            json!({"all": true, "not": {"where": "true"}}),
        ] {
            assert!(serde_json::from_value::<Target>(value.clone()).is_err(), "{value}");
        }
    }

    #[test]
    fn an_exclusion_narrows_and_never_widens() {
        let groups = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (value, node, of, wanted, by_name) in [
            (json!({"nodes": ["a"]}), "a", &["g"][..], true, Some(true)),
            (json!({"nodes": ["a"]}), "b", &["g"], false, Some(false)),
            (json!({"globs": ["w*"]}), "web1", &[], true, Some(true)),
            (json!({"globs": ["w*"]}), "db1", &["w"], false, Some(false)),
            (json!({"nodes": ["db1"], "globs": ["w*"], "groups": ["g"]}), "db1", &[], true, Some(true)),
            (json!({"nodes": ["db1"], "globs": ["w*"], "groups": ["g"]}), "x", &["g"], true, None),
            (json!({"nodes": ["db1"], "globs": ["w*"], "groups": ["g"]}), "x", &["h"], false, None),
            (json!({"all": true, "not": {"nodes": ["a"]}}), "a", &[], false, Some(false)),
            (json!({"all": true, "not": {"nodes": ["a"]}}), "b", &[], true, Some(true)),
            (json!({"all": true, "not": {"groups": ["canary"]}}), "a", &["canary"], false, None),
            (json!({"all": true, "not": {"groups": ["canary"]}}), "a", &["web"], true, None),
            (json!({"globs": ["w*"], "not": {"globs": ["*3"]}}), "web3", &[], false, Some(false)),
            (json!({"globs": ["w*"], "not": {"globs": ["*3"]}}), "web4", &[], true, Some(true)),
            (json!({"globs": ["w*"], "not": {"globs": ["*3"]}}), "db4", &[], false, Some(false)),
            (json!({"groups": ["g"], "not": {"nodes": ["b"]}}), "c", &[], false, None),
            (json!({"globs": ["w*"], "not": {"globs": ["*"]}}), "web1", &[], false, Some(false)),
        ] {
            let (target, node) = (target(&value), node.parse().unwrap());
            assert_eq!(target.includes(&node, &groups(of)), wanted, "{value} {node} {of:?}");
            assert_eq!(target.includes_by_name(&node), by_name, "{value} {node}");
        }
    }

    #[test]
    fn a_combination_is_described() {
        let value =
            json!({"nodes": ["a", "b", "c"], "globs": ["w*"], "groups": ["g", "h"], "not": {"nodes": ["w3"], "groups": ["x"]}});
        let target = target(&value);
        assert_eq!(target.describe_selection(2), "a, b +1, w*, groups g, h");
        assert_eq!(target.describe_exclusion(2), " except w3, group x");
        assert_eq!(Target::all().describe_exclusion(2), "");
    }
}
