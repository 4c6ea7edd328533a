//! Prints the events of a job, and the results of its nodes.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::fleet::job::event::{JobEvent, MissingNode};
use crate::fleet::job::outcome_groups::{self, OutcomeGroup};
use crate::fleet::job::tracker::Grade;
use crate::fleet::{JobOutcome, NodeOutcome, NodeResult, SealedCommand};
use crate::model::NodeId;

use super::super::error::Exit;
use super::super::format::{ago, names, nodes};
use super::super::ui::{Text, Tone, Ui, text};
use super::session::FleetSession;
use crate::cli::local::inputs::OutputFormat;

/// Most nodes of a job that get a line each. The nodes of a larger job are printed in groups.
const MAX_NODE_LINES: usize = 20;
/// Time between two updates of the progress. A terminal takes longer to show a line than ten nodes to send theirs.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);
/// Pause before the first line about missing nodes, doubled after each. A terminal always shows them.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Messages without a valid receipt that are shown: any client that may publish can send more.
const MAX_UNVERIFIED: usize = 50;
/// Missing nodes that are named.
const MAX_NAMED: usize = 3;

/// The progress of a job on the terminal, and warnings about unverified messages.
#[derive(Debug)]
pub(super) struct ProgressDisplay {
    /// Messages that failed verification.
    unverified: usize,
    /// The last update of the progress.
    updated: Instant,
    /// The last line about missing nodes, and the pause before the next.
    reported: Instant,
    pause: Duration,
    /// True for a job of more than [`MAX_NODE_LINES`] nodes.
    is_large: bool,
}

impl Default for ProgressDisplay {
    fn default() -> Self {
        let now = Instant::now();
        Self { unverified: 0, updated: now, reported: now, pause: FIRST_PAUSE, is_large: false }
    }
}

impl ProgressDisplay {
    /// Shows an event, except for the results of nodes.
    pub(super) fn show(&mut self, event: &JobEvent, ui: &mut Ui) {
        match event {
            JobEvent::Started { nodes, .. } => self.is_large = *nodes > MAX_NODE_LINES,
            JobEvent::Acknowledged(_) => {}
            JobEvent::NodeDone(_) | JobEvent::Finished { .. } => ui.end_progress(),
            JobEvent::Unverified { node, reason } => self.warn_unverified(node, reason, ui),
            JobEvent::AllAnswered(after) if self.is_large => {
                ui.end_progress();
                ui.message(text!("all online nodes answered in {:.2}s", after.as_secs_f64()));
            }
            JobEvent::AllAnswered(_) => {}
            JobEvent::Progress(progress) => {
                if self.updated.elapsed() >= REFRESH_INTERVAL {
                    self.updated = Instant::now();
                    ui.progress(text!("{} / {} nodes", progress.done, progress.total));
                }
            }
            JobEvent::Waiting { progress, missing, at } => {
                let missing = missing_nodes(missing, *at);
                let text = format!("{} / {} nodes; waiting for {missing}", progress.done, progress.total);
                if ui.is_watched() {
                    ui.progress(text);
                } else if self.reported.elapsed() >= self.pause {
                    (self.reported, self.pause) = (Instant::now(), self.pause.saturating_mul(2));
                    ui.message(text);
                }
            }
        }
    }

    fn warn_unverified(&mut self, node: &NodeId, reason: &str, ui: &mut Ui) {
        self.unverified += 1;
        if self.unverified <= MAX_UNVERIFIED {
            ui.end_progress();
            ui.warn(text!("{}: {}", node, reason));
        }
        if self.unverified == MAX_UNVERIFIED {
            ui.warn("further messages of this kind are not shown");
        }
    }
}

/// Prints a job: each node when it is done, or groups of nodes at the end.
pub(super) struct JobRenderer<'a> {
    session: &'a FleetSession,
    progress: ProgressDisplay,
    /// Nodes with a line already.
    printed: HashSet<NodeId>,
}

impl<'a> JobRenderer<'a> {
    /// Renders in the output format of the session.
    pub(super) fn new(session: &'a FleetSession) -> Self {
        Self { session, progress: ProgressDisplay::default(), printed: HashSet::new() }
    }

    /// Prints an event.
    pub(super) fn event(&mut self, event: JobEvent, ui: &mut Ui) {
        self.progress.show(&event, ui);
        match event {
            JobEvent::Started { id, nodes: number } => ui.message(text!("job {}: {}", id, nodes(number))),
            JobEvent::NodeDone(result) => {
                match self.session.output {
                    OutputFormat::Jsonl => ui.jsonl(&result),
                    OutputFormat::Text if !self.progress.is_large => ui.line(node_line(&result, self.session.now(), ui)),
                    _ => {}
                }
                ui.flush();
                self.printed.insert(result.node);
            }
            _ => {}
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
            OutputFormat::Text if self.progress.is_large => {
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

/// `web1 (no answer, heard 45s ago), db1 (has it, heard 3s ago) +7`
fn missing_nodes(missing: &[MissingNode], now: Timestamp) -> String {
    let named: Vec<String> = missing
        .iter()
        .take(MAX_NAMED)
        .map(|MissingNode { node, last_seen, acknowledged }| match (last_seen, acknowledged) {
            (Some(seen), true) => format!("{node} (has it, heard {} ago)", ago(*seen, now)),
            (Some(seen), false) => format!("{node} (no answer, heard {} ago)", ago(*seen, now)),
            (None, true) => format!("{node} (has it)"),
            (None, false) => format!("{node} (no answer)"),
        })
        .collect();
    let more = missing.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" +{more}") } else { String::new() };
    format!("{}{more}", named.join(", "))
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

    #[test]
    fn missing_nodes_are_named() {
        let now: Timestamp = "2026-01-02T00:01:00Z".parse().unwrap();
        let missing = |node: &str, last_seen: Option<&str>, acknowledged| MissingNode {
            node: node.parse().unwrap(),
            last_seen: last_seen.map(|seen| seen.parse().unwrap()),
            acknowledged,
        };
        let mut all = vec![
            missing("a", Some("2026-01-02T00:00:15Z"), false),
            missing("b", Some("2026-01-02T00:00:57Z"), true),
            missing("c", None, false),
        ];
        assert_eq!(missing_nodes(&all, now), "a (no answer, heard 45s ago), b (has it, heard 3s ago), c (no answer)");
        all.extend([missing("d", None, true), missing("e", None, true)]);
        assert!(missing_nodes(&all, now).ends_with("c (no answer) +2"));
    }
}
