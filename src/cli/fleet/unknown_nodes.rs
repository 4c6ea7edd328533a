//! Warnings and errors about nodes and groups that the fleet does not have.

use std::collections::BTreeSet;

use crate::diag::{Diagnostic, did_you_mean};
use crate::fleet::NodeStates;
use crate::model::NodeId;
use crate::wire::{Exclusion, Target};

use super::super::error::CliError;
use super::super::format;
use super::super::ui::{Ui, text};

/// Wrong names that are shown.
const MAX_SHOWN: usize = 5;
/// Known names that an error lists.
const MAX_KNOWN: usize = 20;

/// Warns of states of nodes whose keys are not pinned.
pub(super) fn warn_unpinned(states: &NodeStates, ui: &mut Ui) {
    if states.more_unknown > 0 {
        let diagnostic = Diagnostic::new(format!("ignored {} with unknown keys", format::nodes(states.more_unknown)));
        ui.warn(diagnostic.hint(
            "at most 256 new nodes are pinned at a time; `ensign fleet node trust NODE KEY` pins one, and \
             `ensign fleet node trust --all-new` all of them, when they are yours",
        ));
    }
}

/// Checks that a node is in each of these groups, for a list of what exists.
///
/// # Errors
/// When a group has no node; the hint names the groups of the fleet.
pub(super) fn check_groups(named: &[String], states: &NodeStates) -> Result<(), CliError> {
    let groups: BTreeSet<&str> = states.values().flat_map(|state| &state.groups).map(String::as_str).collect();
    let Some(unknown) = named.iter().find(|group| !groups.contains(group.as_str())) else { return Ok(()) };
    Err(CliError::usage(format!("no node is in the group {unknown}")).hint(known_names("groups", &groups)))
}

/// `known groups: db, web`
pub(super) fn known_names(what: &str, known: &BTreeSet<&str>) -> String {
    let names = known.iter().take(MAX_KNOWN).copied().collect::<Vec<_>>().join(", ");
    match known.len() {
        0 => format!("there are no {what}"),
        1..=MAX_KNOWN => format!("known {what}: {names}"),
        number => format!("known {what}: {names} and {} more", number - MAX_KNOWN),
    }
}

/// Warns of named nodes without a state, and of named groups without a node: most often a name is misspelled.
pub(super) fn warn(to: &Target, states: &NodeStates, ui: &mut Ui) {
    warn_unpinned(states, ui);
    let is_known = |node: &NodeId| states.contains_key(node) || states.unverified.iter().any(|doubtful| doubtful.node == *node);
    let near = |wrong: &str, known: &mut dyn Iterator<Item = &str>| {
        did_you_mean(wrong, known).map_or_else(String::new, |near| format!("; did you mean {near}?"))
    };
    let none = Exclusion::default();
    let not = to.exclusion.as_ref().unwrap_or(&none);
    let named = to.nodes.iter().chain(&not.nodes).flatten();
    for node in named.filter(|node| !is_known(node)).take(MAX_SHOWN) {
        let hint = near(node.as_str(), &mut states.keys().map(NodeId::as_str));
        ui.warn(text!("unknown node {}{}", node, hint));
    }
    let globs = to.globs.iter().chain(&not.globs).flatten();
    for glob in globs.filter(|glob| !states.keys().any(|node| glob.matches(node))).take(MAX_SHOWN) {
        ui.warn(text!("no node matches {}", glob));
    }
    let groups: BTreeSet<&str> = states.values().flat_map(|state| &state.groups).map(String::as_str).collect();
    let named = to.groups.iter().chain(&not.groups).flatten();
    for group in named.filter(|group| !groups.contains(group.as_str())).take(MAX_SHOWN) {
        let hint = near(group, &mut groups.iter().copied());
        ui.warn(text!("no node is in the group {}{}", group, hint));
    }
}
