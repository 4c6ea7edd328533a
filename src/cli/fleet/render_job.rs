//! Prints the events of a job, and the results of its nodes.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::fleet::job::event::JobEvent;
use crate::fleet::job::outcome_groups::{self, OutcomeGroup};
use crate::fleet::job::tracker::Grade;
use crate::fleet::{JobOutcome, NodeOutcome, NodeResult, SealedCommand};
use crate::model::NodeId;

use super::super::error::Exit;
use super::super::format::{ago, names, nodes};
use super::super::ui::{Text, Tone, Ui, text};
use super::job_progress::ProgressDisplay;
use super::session::FleetSession;
use crate::cli::local::inputs::OutputFormat;

/// Failures of a large job that a terminal shows at once. The groups at the end have all failures.
const MAX_EARLY_FAILURES: usize = 5;

/// Prints a job: each node when it is done, or groups of nodes at the end.
pub(super) struct JobRenderer<'a> {
    session: &'a FleetSession,
    progress: ProgressDisplay,
    /// Nodes with a line already.
    printed: HashSet<NodeId>,
    /// Failures that were shown before the end.
    early_failures: usize,
}

impl<'a> JobRenderer<'a> {
    /// Renders in the output format of the session.
    pub(super) fn new(session: &'a FleetSession) -> Self {
        Self { session, progress: ProgressDisplay::default(), printed: HashSet::new(), early_failures: 0 }
    }

    /// Prints an event.
    pub(super) fn event(&mut self, event: JobEvent, ui: &mut Ui) {
        self.progress.show(&event, ui);
        match event {
            JobEvent::Started { id, nodes: number } => ui.message(text!("job {}: {}", id, nodes(number))),
            JobEvent::NodeDone(result) => {
                match self.session.output {
                    OutputFormat::Jsonl => ui.jsonl(&result),
                    OutputFormat::Text if !self.progress.is_large() => ui.line(node_line(&result, self.session.now(), ui)),
                    _ => self.show_early_failure(&result, ui),
                }
                ui.flush();
                self.printed.insert(result.node);
            }
            _ => {}
        }
    }

    /// Shows the first failures of a job at once, above the progress of a terminal.
    fn show_early_failure(&mut self, result: &NodeResult, ui: &mut Ui) {
        if !ui.is_watched() || result.outcome.grade() < Grade::Refused || self.early_failures > MAX_EARLY_FAILURES {
            return;
        }
        self.early_failures += 1;
        if self.early_failures > MAX_EARLY_FAILURES {
            ui.message("  further failures are counted; the end lists them");
        } else {
            ui.message(node_line(result, self.session.now(), ui));
        }
    }

    /// Prints the results that have no line yet, and the summary.
    pub(super) fn finish(self, id: Uuid, digest: &str, outcome: &JobOutcome, ui: &mut Ui) -> Exit {
        let JobOutcome { results, complete, all_known, took } = outcome;
        let unprinted = results.iter().filter(|result| !self.printed.contains(&result.node));
        let now = self.session.now();
        match self.session.output {
            OutputFormat::Json => {
                let clusters = outcome_groups::group_results(results);
                ui.json(&JobDocument { id, digest, nodes: results, clusters, complete: *complete && *all_known });
            }
            OutputFormat::Jsonl => unprinted.for_each(|result| ui.jsonl(result)),
            OutputFormat::Text if self.progress.is_large() => {
                outcome_groups::group_results(results).iter().for_each(|group| group_lines(group, ui));
            }
            OutputFormat::Text => unprinted.for_each(|result| ui.line(node_line(result, now, ui))),
        }
        ui.message(summary(results, *took));
        if *complete && !*all_known {
            ui.message("only nodes that answered are counted: the targeted nodes are unknown without JetStream");
            return Some(exit_of_results(results)).filter(|exit| *exit != Exit::Success).unwrap_or(Exit::Partial);
        }
        if *complete {
            return exit_of_results(results);
        }
        if results.iter().any(|result| result.wave.is_some()) {
            ui.message(text!("stopped waiting; the rollout goes on by itself: `ensign fleet rollout watch {}`", id));
            ui.message(text!("`ensign fleet halt {} --reason WHY` halts it", id));
        } else {
            ui.message(text!("stopped waiting; the work goes on: `ensign fleet job watch {}`", id));
        }
        Exit::Partial
    }
}

/// The results of a job as JSON.
#[derive(Debug, Serialize)]
struct JobDocument<'a> {
    id: Uuid,
    digest: &'a str,
    nodes: &'a [NodeResult],
    clusters: Vec<OutcomeGroup>,
    /// False when the user stopped the waiting, or the targeted nodes are unknown.
    complete: bool,
}

/// Prints the id of a job that is not followed.
pub(super) fn detached(signed: &SealedCommand, session: &FleetSession, ui: &mut Ui) {
    match session.output {
        OutputFormat::Text => ui.line(text!("{}", signed.command.id)),
        _ => ui.jsonl(&serde_json::json!({"id": signed.command.id, "digest": signed.digest})),
    }
}

/// Returns the exit code of the worst of the results. A command that selected no node did not do its work.
pub(super) fn exit_of_results(results: &[NodeResult]) -> Exit {
    if is_none_selected(results) {
        return Exit::Partial;
    }
    match outcome_groups::worst_grade(results) {
        Grade::Success => Exit::Success,
        Grade::Incomplete => Exit::Partial,
        Grade::Refused => Exit::Refused,
        Grade::Failed => Exit::Failed,
    }
}

/// True when a `where` selected none of the nodes that answered.
pub(super) fn is_none_selected(results: &[NodeResult]) -> bool {
    !results.is_empty() && results.iter().all(|result| result.outcome == NodeOutcome::NotSelected)
}

/// Returns the mark and the tone of an outcome. The word beside them tells the same without colour.
pub(super) fn outcome_mark(outcome: &str) -> (&'static str, Tone) {
    match outcome {
        "stable" => ("✓", Tone::Success),
        "changed" | "would_change" => ("~", Tone::Changed),
        "not_selected" => ("-", Tone::Dim),
        "failed" => ("✗", Tone::Error),
        "refused" => ("!", Tone::Error),
        _ => ("?", Tone::Changed),
    }
}

/// Returns the line of a node: mark, outcome, name and cause.
pub(super) fn node_line(result: &NodeResult, now: Timestamp, ui: &Ui) -> Text {
    let (symbol, tone) = outcome_mark(result.outcome.as_str());
    let cause = match result.outcome {
        NodeOutcome::Offline(Some(since)) => format!("last heard {} ago", ago(since, now)),
        NodeOutcome::Waiting(wave) => format!("in wave {wave}"),
        _ => outcome_groups::group_results(std::slice::from_ref(result)).pop().map_or_else(String::new, |cluster| cluster.cause),
    };
    let word = ui.paint(tone, result.outcome.as_str());
    text!("  {} {:<12} {:<23}  {}", ui.paint(tone, symbol), word, result.node.as_str(), cause).trim_end()
}

/// Prints the lines of a group of nodes with the same outcome and cause.
pub(super) fn group_lines(group: &OutcomeGroup, ui: &mut Ui) {
    let (symbol, tone) = outcome_mark(group.outcome.as_str());
    let word = ui.paint(tone, text!("{} {:<12}", symbol, group.outcome.as_str()));
    ui.line(text!("  {} {:>6}× {}  {}", word, group.nodes.len(), group.cause, names(&group.nodes)));
    if let Some(example) = &group.example {
        ui.line(ui.paint(Tone::Dim, text!("{:25}as: {}", "", example)));
    }
}

/// Returns the count of each outcome.
pub(super) fn counts(results: &[NodeResult]) -> BTreeMap<&'static str, usize> {
    results.iter().fold(BTreeMap::new(), |mut counts, result| {
        *counts.entry(result.outcome.as_str()).or_default() += 1;
        counts
    })
}

fn summary(results: &[NodeResult], took: Duration) -> String {
    if results.is_empty() { count_outcomes_text(results) } else { format!("{} in {took:.1?}", count_outcomes_text(results)) }
}

/// `3 nodes: 1 offline, 2 stable`
pub(super) fn count_outcomes_text(results: &[NodeResult]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for result in results {
        let word = result.outcome.as_str();
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    if counts.is_empty() {
        return "no known node is targeted".to_owned();
    }
    let counts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    format!("{}: {}", nodes(results.len()), counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(node: &str, outcome: NodeOutcome) -> NodeResult {
        NodeResult::new(node.parse().unwrap(), outcome, None)
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst() {
        let (good, refused, failed) = (NodeOutcome::Changed, NodeOutcome::Refused("x".into()), NodeOutcome::Failed);
        for (outcomes, wanted) in [
            (vec![good.clone(), NodeOutcome::Stable], Exit::Success),
            (vec![good.clone(), NodeOutcome::NoAnswer], Exit::Partial),
            (vec![NodeOutcome::Offline(None), refused.clone()], Exit::Refused),
            (vec![refused, failed, good], Exit::Failed),
            (vec![], Exit::Partial),
            (vec![NodeOutcome::NotSelected, NodeOutcome::NotSelected], Exit::Partial),
            (vec![NodeOutcome::NotSelected, NodeOutcome::Stable], Exit::Success),
        ] {
            let results: Vec<_> = outcomes.into_iter().map(|outcome| result("a", outcome)).collect();
            assert_eq!(exit_of_results(&results), wanted);
        }
    }

    #[test]
    fn lines_say_everything_in_words() {
        let ui = Ui::new();
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let gone = result("db1", NodeOutcome::Offline(Some("2026-01-01T21:00:00Z".parse().unwrap())));
        assert!(node_line(&gone, now, &ui).as_str().ends_with("last heard 3h ago"), "{:?}", node_line(&gone, now, &ui));
        let text =
            summary(&[gone, result("a", NodeOutcome::Stable), result("b", NodeOutcome::Stable)], Duration::from_millis(1500));
        assert_eq!(text, "3 nodes: 1 offline, 2 stable in 1.5s");
    }
}
