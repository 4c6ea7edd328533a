//! The question before a command that changes many nodes. Only a terminal asks: no script waits for an answer.

use std::io::IsTerminal;

use clap::Args;

use crate::diag::Diagnostic;
use crate::fleet::job::records;
use crate::fleet::targeting::states::Liveness;
use crate::fleet::{CommandDraft, ExpectedNode, NodeStates};
use crate::wire::{Selector, Target};

use super::super::error::{CliError, Exit};
use super::super::format::{nodes, spaced};
use super::super::interrupt::Interrupt;
use super::super::ui::{self, Text, Ui, text};
use super::session::FleetSession;
use crate::cli::local::inputs::OutputFormat;

/// Nodes that a command may change without a question, unless it is for all nodes.
const MAX_UNASKED: usize = 20;

/// The flag that skips questions.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct ConfirmArgs {
    /// Ask no question. Without it, a terminal asks before a change of all nodes, or of more than 20.
    #[arg(long, global = true)]
    pub(super) yes: bool,
}

/// Asks before the command of a draft is signed, where it changes all nodes, or more than 20. Returns the states of the nodes,
/// read again after the answer; none without a question.
///
/// # Errors
/// When the answer is no, or the states can't be read.
pub(super) async fn confirm_draft(
    draft: &CommandDraft,
    args: &ConfirmArgs,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<Option<NodeStates>, CliError> {
    if draft.options.noop {
        return Ok(None);
    }
    let channel = draft.channel.as_ref().map_or_else(String::new, |channel| format!("in channel {}", channel.name));
    let what = spaced(&[draft.action.name(), &records::describe_object(&draft.action), &channel]);
    confirm(what.trim_end(), &draft.to, args, states, session, ui).await
}

/// Asks before a command, described by `what`, goes to `to`; as [`confirm_draft`].
///
/// # Errors
/// As [`confirm_draft`].
pub(super) async fn confirm(
    what: &str,
    to: &Target,
    args: &ConfirmArgs,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<Option<NodeStates>, CliError> {
    if args.yes || !can_ask(ui) {
        return Ok(None);
    }
    // A detached command has read no states.
    let is_unread = states.is_empty() && states.unavailable.is_none();
    let counted = if is_unread { Some(session.states_if_available(to).await?) } else { None };
    let states = counted.as_ref().unwrap_or(states);
    let expected = states.unavailable.is_none().then(|| states.expected(to));
    let Some(reached) = describe_reach(to, expected.as_deref(), &session.operator.fleet) else { return Ok(None) };
    if !prompt(text!("This reaches {}: {}. Go on? [y/N]", reached, what), &session.interrupt, ui).await {
        return Err(CliError::new(Exit::Partial, Diagnostic::new("not confirmed: nothing was signed or sent")));
    }
    // The answer may have taken minutes.
    session.states_if_available(to).await.map(Some)
}

/// Asks a user at a terminal whether to sign and send what was shown. Returns true when the user was asked, and agreed.
///
/// # Errors
/// When the user does not agree: the message begins with `refusal`.
pub(super) async fn confirm_signature(yes: bool, refusal: &str, session: &FleetSession, ui: &mut Ui) -> Result<bool, CliError> {
    if yes || session.output != OutputFormat::Text || !can_ask(ui) {
        return Ok(false);
    }
    if prompt("sign and send it? [y/N]", &session.interrupt, ui).await {
        return Ok(true);
    }
    Err(CliError::new(Exit::Partial, Diagnostic::new(format!("{refusal}: nothing was signed or sent"))))
}

/// True when a user can answer: standard input and standard error are terminals.
pub(super) fn can_ask(ui: &Ui) -> bool {
    std::io::stdin().is_terminal() && ui.is_watched()
}

/// Asks a question; any answer but `y` or `yes` is no. The end of the input and Ctrl-C are no, too.
pub(super) async fn prompt(question: impl Into<Text>, interrupt: &Interrupt, ui: &mut Ui) -> bool {
    // Before the question: its reader may press Ctrl-C at once.
    let interrupted = interrupt.listen();
    ui.message(question);
    let (send, answer) = tokio::sync::oneshot::channel();
    // The read of a terminal can't be cancelled: at Ctrl-C the thread ends with the program.
    std::thread::spawn(move || send.send(ui::read_answer().unwrap_or(false)));
    tokio::select! {
        // Cancel-safe, both: the question is over after either.
        answer = answer => answer.unwrap_or(false),
        () = interrupted => false,
    }
}

/// `412 nodes (3 offline) of fleet prod`; none for few nodes. `expected` are the nodes of the target, where they are known.
fn describe_reach(to: &Target, expected: Option<&[ExpectedNode]>, fleet: &str) -> Option<String> {
    let Some(expected) = expected else {
        let is_few = matches!(to.selector(), Some(Selector::Nodes(nodes)) if nodes.len() <= MAX_UNASKED);
        let uncounted = || format!("{} of fleet {fleet} (not counted: JetStream does not answer)", records::describe_target(to));
        return (!is_few).then(uncounted);
    };
    if !matches!(to.selector(), Some(Selector::All)) && expected.len() <= MAX_UNASKED {
        return None;
    }
    let offline = expected.iter().filter(|node| matches!(node.liveness, Liveness::Offline(_))).count();
    let offline = if offline > 0 { format!(" ({offline} offline)") } else { String::new() };
    let (at_most, filter) = to.filter.as_ref().map_or(("", String::new()), |filter| ("at most ", format!(" where {filter}")));
    Some(format!("{at_most}{}{offline} of fleet {fleet}{filter}", nodes(expected.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_and_many_nodes_are_counted_and_few_are_not() {
        let node =
            |n: usize, liveness| ExpectedNode { node: format!("web{n}").parse().unwrap(), liveness, verification_error: None };
        let mut all: Vec<_> = (0..21).map(|n| node(n, Liveness::Alive)).collect();
        let reach = |to: &Target, expected: &[ExpectedNode]| describe_reach(to, Some(expected), "prod");
        let group = Target::groups(vec!["web".into()]);
        assert_eq!(reach(&group, &all).unwrap(), "21 nodes of fleet prod");
        assert_eq!(reach(&group, &all[..20]), None);
        assert_eq!(reach(&Target::nodes(vec!["web1".parse().unwrap()]), &all[..1]), None);
        // A fleet without nodes yet: an assignment also reaches those that join later.
        assert_eq!(reach(&Target::all(), &[]).unwrap(), "0 nodes of fleet prod");
        all.push(node(30, Liveness::Offline("2026-01-02T09:00:00Z".parse().unwrap())));
        assert_eq!(reach(&Target::all(), &all).unwrap(), "22 nodes (1 offline) of fleet prod");
        let some = Target { filter: Some("Facts.x".into()), ..Target::all() };
        assert_eq!(reach(&some, &all).unwrap(), "at most 22 nodes (1 offline) of fleet prod where Facts.x");
        assert!(describe_reach(&group, None, "prod").unwrap().starts_with("the nodes of web of fleet prod (not counted"));
        assert_eq!(describe_reach(&Target::nodes(vec!["web1".parse().unwrap()]), None, "prod"), None);
    }
}
