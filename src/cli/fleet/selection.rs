//! Nodes that a `where` selects, by a query.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::diag::Diagnostic;
use crate::fleet::{NodeOutcome, NodeResult, NodeStates};
use crate::model::NodeId;
use crate::wire::command::FactsQuery;
use crate::wire::{Action, Target};

use super::super::error::{CliError, Exit};
use super::super::format::nodes;
use super::super::ui::{Ui, text};
use super::query::{query_draft, run_query};
use super::session::FleetSession;

/// Fact of a query that needs only the `where`: it is small, and every host has it.
const SMALL_FACT: &str = "host.info.os";
/// Missing facts that are shown.
const MAX_SHOWN: usize = 5;
/// Longest wait for a selection that is only shown.
const PREVIEW_TIME: Duration = Duration::from_secs(2);

/// The nodes that a `where` selects.
#[derive(Debug, Serialize)]
pub(super) struct Selection<'a> {
    /// The expression.
    #[serde(rename = "where")]
    pub(super) expression: &'a str,
    /// Nodes on which it is true.
    pub(super) selected: Vec<NodeId>,
    /// Nodes on which it is false.
    pub(super) not_selected: Vec<NodeId>,
    /// Nodes that did not answer.
    pub(super) unknown: Vec<NodeResult>,
    /// False when the user stopped the waiting.
    pub(super) complete: bool,
}

impl Selection<'_> {
    /// `selects 188 of 10000 nodes, 12 did not answer`
    pub(super) fn counts(&self) -> String {
        let (selected, not, unknown) = (self.selected.len(), self.not_selected.len(), self.unknown.len());
        let silent = if unknown > 0 { format!(", {unknown} did not answer") } else { String::new() };
        format!("selects {selected} of {}{silent}", nodes(selected + not + unknown))
    }
}

/// Asks every node of `to` to evaluate its `where`.
///
/// # Errors
/// When the question can't be sent.
pub(super) async fn select<'a>(
    to: &Target,
    expression: &'a str,
    wait: Duration,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<Selection<'a>, CliError> {
    let action = Action::Facts(FactsQuery { query: Some(SMALL_FACT.to_owned()) });
    let (_, outcome) = run_query(query_draft(action, to.clone()), wait, states, session, ui).await?;
    let complete = outcome.complete;
    let mut selection = Selection { expression, selected: Vec::new(), not_selected: Vec::new(), unknown: Vec::new(), complete };
    for result in outcome.results {
        match result.outcome {
            NodeOutcome::Stable => selection.selected.push(result.node),
            NodeOutcome::NotSelected => selection.not_selected.push(result.node),
            _ => selection.unknown.push(result),
        }
    }
    Ok(selection)
}

/// Shows a user at a terminal the nodes that the `where` of a command selects, before it is sent.
///
/// # Errors
/// When the user stops it.
pub(super) async fn show_selected(to: &Target, states: &NodeStates, session: &FleetSession, ui: &mut Ui) -> Result<(), CliError> {
    let Some(expression) = to.filter.as_deref().filter(|_| ui.is_watched()) else { return Ok(()) };
    // A courtesy: an operator who may not ask for facts may still send the command, and nodes decide for themselves.
    if let Ok(selection) = select(to, expression, PREVIEW_TIME, states, session, ui).await {
        ui.message(text!("{}: {}", expression, selection.counts()));
        if !selection.complete {
            return Err(CliError::new(Exit::Partial, Diagnostic::new("stopped before anything was sent")));
        }
    }
    Ok(())
}

/// Warns that a `where` selects no node, and of the facts in it that no node has.
pub(super) async fn warn_none_selected(to: &Target, states: &NodeStates, session: &FleetSession, ui: &mut Ui) {
    let Some(expression) = &to.filter else { return };
    ui.warn(text!("no node is selected: {}", expression));
    for path in facts_in(expression).iter().take(MAX_SHOWN) {
        let action = Action::Facts(FactsQuery { query: Some(path.clone()) });
        let all = Target { filter: None, ..to.clone() };
        // A courtesy: an operator who may not ask for facts has sent the command all the same.
        let Ok((_, asked)) = run_query(query_draft(action, all), PREVIEW_TIME, states, session, ui).await else { return };
        let has_fact = |result: &NodeResult| result.done.as_ref().is_some_and(|done| done.answer.is_some());
        let answered = asked.results.iter().any(|result| result.outcome == NodeOutcome::Stable);
        if answered && !asked.results.iter().any(has_fact) {
            ui.warn(text!("no node has a fact at {}; `ensign fleet facts --node NAME` shows all facts", path));
        }
    }
}

/// Returns the paths of the facts in an expression, as `host.info.os`.
fn facts_in(expression: &str) -> BTreeSet<String> {
    let parts = expression.split("Facts.").skip(1);
    let path = |rest: &str| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default().trim_end_matches('.').to_owned()
    };
    parts.map(path).filter(|path| !path.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_an_expression_are_found() {
        let found = facts_in("Facts.host.info.os == 'linux' && (Facts.rack in [1, 2] || Facts.rack == 3) && Facts['x'] != ''");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["host.info.os", "rack"]);
    }
}
