//! Warnings about nodes and groups that the fleet does not have.

use std::collections::BTreeSet;

use crate::diag::{Diagnostic, did_you_mean};
use crate::fleet::NodeStates;
use crate::model::NodeId;
use crate::wire::{Exclusion, Target};

use super::super::format;
use super::super::ui::{Ui, text};

/// Wrong names that are shown.
const MAX_SHOWN: usize = 5;

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
