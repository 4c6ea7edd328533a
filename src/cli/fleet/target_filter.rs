//! Which nodes are asked something, and which of them a `where` selects.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::diag::{Diagnostic, Place, did_you_mean};
use crate::fleet::{CommandDraft, NodeResult, NodeStates, Outcome};
use crate::model::{HumanDuration, NodeId};
use crate::template::Scope;
use crate::wire::command::Facts;
use crate::wire::{Action, Options, Selector, Target};

use super::super::error::{Exit, Failure};
use super::super::ui::{Ui, text};
use super::follow;
use super::render_job::nodes;
use super::session::Session;
use super::target::TargetArgs;

/// How long nodes may take a question: nobody wants an old one answered.
const LIFE: HumanDuration = HumanDuration::seconds(60);
/// What is asked where only the `where` matters: small, and on every host.
const SMALL: &str = "host.info.os";
/// As many names that are wrong are said.
const NAMED: usize = 5;
/// How long a command waits to hear whom it is for. It is only told.
const MOMENT: Duration = Duration::from_secs(2);

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

/// A question to nodes.
pub(super) fn question(action: Action, to: Target) -> CommandDraft {
    CommandDraft { action, to, options: Options::default(), channel: None, reason: None, life: LIFE }
}

/// Says how many states are of nodes that nobody knows.
pub(super) fn warn_strangers(states: &NodeStates, ui: &mut Ui) {
    if states.strangers > 0 {
        let diagnostic = Diagnostic::new(format!("{} that nobody knows are left out", nodes(states.strangers)));
        ui.warn(diagnostic.hint(
            "at most 256 new nodes are taken at once; `ensign fleet node trust NODE KEY` takes one, and \
             `ensign fleet node trust --all-new` all of them, when they are yours",
        ));
    }
}

/// Says which of those that are named nobody has ever heard of: a name that is wrong, most often.
pub(super) fn warn_unknown(to: &Target, states: &NodeStates, ui: &mut Ui) {
    warn_strangers(states, ui);
    let heard = |node: &NodeId| states.contains_key(node) || states.doubtful.iter().any(|doubtful| doubtful.node == *node);
    let near = |wrong: &str, known: &mut dyn Iterator<Item = &str>| {
        did_you_mean(wrong, known).map_or_else(String::new, |near| format!("; did you mean {near}?"))
    };
    match to.selector() {
        Some(Selector::Nodes(named)) => {
            for node in named.iter().filter(|node| !heard(node)).take(NAMED) {
                let hint = near(node.as_str(), &mut states.keys().map(NodeId::as_str));
                ui.warn(text!("no node {} was ever heard of{}", node, hint));
            }
        }
        Some(Selector::Groups(named)) => {
            let groups: BTreeSet<&str> = states.values().flat_map(|state| &state.groups).map(String::as_str).collect();
            for group in named.iter().filter(|group| !groups.contains(group.as_str())).take(NAMED) {
                let hint = near(group, &mut groups.iter().copied());
                ui.warn(text!("no node is in the group {}{}", group, hint));
            }
        }
        Some(Selector::All) | None => {}
    }
}

/// Whether a `where` can be evaluated at all, before it is signed.
///
/// # Errors
/// Where it is wrong, and what was meant.
pub(super) fn check_where(expression: &str) -> Result<(), Failure> {
    let scope = Scope::restricted(std::sync::Arc::new(|| serde_json::Value::Null));
    scope.check_condition(expression).map_err(|error| {
        let text = expression.lines().nth(error.line.saturating_sub(1)).unwrap_or_default().to_owned();
        let place = Place { file: "--where".to_owned(), line: error.line, column: error.column, text };
        let hint =
            "facts are below `Facts`, as in Facts.host.info.platformFamily == 'debian'; `ensign facts` shows those of this host";
        Failure::new(Exit::Usage, Diagnostic::new(error.detail).at(Some(place)).hint(hint))
    })
}

/// Whom a `where` selects.
#[derive(Debug, Serialize)]
pub(super) struct Selection<'a> {
    /// The expression.
    #[serde(rename = "where")]
    pub(super) expression: &'a str,
    /// Where it holds.
    pub(super) selected: Vec<NodeId>,
    /// Where it does not.
    pub(super) not_selected: Vec<NodeId>,
    /// Nodes that did not say.
    pub(super) unknown: Vec<NodeResult>,
    /// False when the waiting was ended by hand.
    pub(super) complete: bool,
}

impl Selection<'_> {
    /// `selects 188 of 10000 nodes, 12 did not say`
    pub(super) fn counts(&self) -> String {
        let (selected, not, unknown) = (self.selected.len(), self.not_selected.len(), self.unknown.len());
        let silent = if unknown > 0 { format!(", {unknown} did not say") } else { String::new() };
        format!("selects {selected} of {}{silent}", nodes(selected + not + unknown))
    }
}

/// Asks every node of `to` whether the `where` selects it.
///
/// # Errors
/// When nobody can be asked.
pub(super) async fn select<'a>(
    to: &Target,
    expression: &'a str,
    wait: Duration,
    session: &Session,
    ui: &mut Ui,
) -> Result<Selection<'a>, Failure> {
    let action = Action::Facts(Facts { query: Some(SMALL.to_owned()) });
    let collected = follow::ask(question(action, to.clone()), wait, session, ui).await?;
    let complete = collected.complete;
    let mut selection = Selection { expression, selected: Vec::new(), not_selected: Vec::new(), unknown: Vec::new(), complete };
    for result in collected.results {
        match result.outcome {
            Outcome::Stable => selection.selected.push(result.node),
            Outcome::NotSelected => selection.not_selected.push(result.node),
            _ => selection.unknown.push(result),
        }
    }
    Ok(selection)
}

/// Where a person watches, says whom the `where` of a command selects before it is sent.
///
/// # Errors
/// When that person wants no more of it.
pub(super) async fn say_selected(to: &Target, session: &Session, ui: &mut Ui) -> Result<(), Failure> {
    let Some(expression) = to.only_where.as_deref().filter(|_| ui.is_watched()) else { return Ok(()) };
    // A courtesy: who may not ask for facts may still send the command, and nodes decide for themselves.
    if let Ok(selection) = select(to, expression, MOMENT, session, ui).await {
        ui.say(text!("{}: {}", expression, selection.counts()));
        if !selection.complete {
            return Err(Failure::new(Exit::Partial, Diagnostic::new("stopped before anything was sent")));
        }
    }
    Ok(())
}

/// Says that a `where` selects nobody, and which of the facts that it names no node has.
pub(super) async fn say_nobody(to: &Target, session: &Session, ui: &mut Ui) {
    let Some(expression) = &to.only_where else { return };
    ui.warn(text!("no node is selected: {}", expression));
    for path in facts_of(expression).iter().take(NAMED) {
        let action = Action::Facts(Facts { query: Some(path.clone()) });
        let audience = Target { only_where: None, ..to.clone() };
        // A courtesy: who may not ask for facts has sent the command all the same.
        let Ok(asked) = follow::ask(question(action, audience), MOMENT, session, ui).await else { return };
        let has = |result: &NodeResult| result.done.as_ref().is_some_and(|done| done.answer.is_some());
        let answered = asked.results.iter().any(|result| result.outcome == Outcome::Stable);
        if answered && !asked.results.iter().any(has) {
            ui.warn(text!("no node has a fact at {}; `ensign fleet facts --node NAME` shows all there are", path));
        }
    }
}

/// The paths of the facts that an expression names, as `host.info.os`.
fn facts_of(expression: &str) -> BTreeSet<String> {
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
        let found = facts_of("Facts.host.info.os == 'linux' && (Facts.rack in [1, 2] || Facts.rack == 3) && Facts['x'] != ''");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["host.info.os", "rack"]);
    }

    #[test]
    fn a_wrong_expression_is_shown_with_its_place() {
        check_where("Facts.host.info.os == 'linux' && lookup('facts.a') != ''").unwrap();
        for (expression, place, said) in [
            ("facts.os == 'x'", "--where:1:1", "did you mean"),
            ("Facts.os = 'x'", "--where:1:", ""),
            ("Facts.os == 'x' &&\n  Fact.b", "--where:2:3", "Facts"),
            ("Data.x == 1", "--where:1:1", ""),
            ("readFile('/etc/shadow') == ''", "--where:1:1", "readFile"),
            ("", "--where:1:1", ""),
        ] {
            let failure = check_where(expression).unwrap_err();
            let text = failure.why();
            assert!(text.starts_with(place) && text.contains(said), "{expression}: {text}");
        }
    }
}
