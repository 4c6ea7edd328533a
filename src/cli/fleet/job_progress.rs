//! The progress of a job: one line that is replaced on a terminal, and single lines without one.
//!
//! Also shows the warnings about unverified messages. The results of nodes are printed in `render_job.rs`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::fleet::job::event::{JobEvent, JobProgress, MissingNode};
use crate::model::NodeId;

use super::super::format::ago;
use super::super::ui::{Ui, text};

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
    began: Instant,
    /// The latest outcome of each node that has one, and the number of nodes of each outcome.
    outcomes: HashMap<NodeId, &'static str>,
    counts: BTreeMap<&'static str, usize>,
    /// The names of the missing nodes at the last check, with their number.
    missing: (usize, String),
    /// Messages that failed verification.
    unverified: usize,
    /// The last update of the progress; none before the first.
    updated: Option<Instant>,
    /// The last line about missing nodes, and the pause before the next.
    reported: Instant,
    pause: Duration,
    /// True for a job of more than [`MAX_NODE_LINES`] nodes.
    is_large: bool,
}

impl Default for ProgressDisplay {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            outcomes: HashMap::new(),
            counts: BTreeMap::new(),
            missing: (0, String::new()),
            unverified: 0,
            updated: None,
            reported: now,
            pause: FIRST_PAUSE,
            is_large: false,
        }
    }
}

impl ProgressDisplay {
    /// True for a job whose nodes are printed in groups.
    pub(super) fn is_large(&self) -> bool {
        self.is_large
    }

    /// Shows an event, except for the results of nodes.
    pub(super) fn show(&mut self, event: &JobEvent, ui: &mut Ui) {
        match event {
            JobEvent::Started { nodes, .. } => self.is_large = *nodes > MAX_NODE_LINES,
            JobEvent::Acknowledged(_) => {}
            JobEvent::NodeDone(result) => self.count(&result.node, result.outcome.as_str()),
            JobEvent::Finished { .. } => ui.end_progress(),
            JobEvent::Unverified { node, reason } => self.warn_unverified(node, reason, ui),
            JobEvent::AllAnswered(after) if self.is_large => {
                ui.message(text!("all online nodes answered in {:.2}s", after.as_secs_f64()));
            }
            JobEvent::AllAnswered(_) => {}
            JobEvent::Progress(progress) => self.update(*progress, ui),
            JobEvent::Waiting { progress, missing, at } => {
                let names = missing_nodes(missing, *at);
                if !ui.is_watched() && self.reported.elapsed() >= self.pause {
                    (self.reported, self.pause) = (Instant::now(), self.pause.saturating_mul(2));
                    ui.message(text!("{} / {} nodes; waiting for {}", progress.done, progress.total, names));
                }
                self.missing = (missing.len(), names);
                self.update(*progress, ui);
            }
        }
    }

    /// Counts the outcome of a node, which may replace an earlier one.
    fn count(&mut self, node: &NodeId, outcome: &'static str) {
        if let Some(before) = self.outcomes.insert(node.clone(), outcome)
            && let Some(count) = self.counts.get_mut(before)
        {
            *count -= 1;
        }
        *self.counts.entry(outcome).or_default() += 1;
    }

    fn update(&mut self, progress: JobProgress, ui: &mut Ui) {
        if self.updated.is_none_or(|updated| updated.elapsed() >= REFRESH_INTERVAL) {
            self.updated = Some(Instant::now());
            ui.progress(self.line(progress, self.began.elapsed()));
        }
    }

    /// `12s  402 of 412 nodes: 400 changed, 2 failed; waiting for 7: web1 (no answer, heard 45s ago) +6`
    fn line(&self, progress: JobProgress, elapsed: Duration) -> String {
        let counts = self.counts.iter().filter(|(_, count)| **count > 0);
        let counts: Vec<String> = counts.map(|(word, count)| format!("{count} {word}")).collect();
        let counts = if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) };
        let waiting = match &self.missing {
            _ if progress.missing == 0 => String::new(),
            // Names of an earlier check are wrong as soon as another number of nodes is missing.
            (number, names) if *number == progress.missing => format!("; waiting for {number}: {names}"),
            _ => format!("; waiting for {}", progress.missing),
        };
        let (minutes, seconds) = (elapsed.as_secs() / 60, elapsed.as_secs() % 60);
        let elapsed = if minutes > 0 { format!("{minutes}m{seconds:02}s") } else { format!("{seconds}s") };
        format!("{elapsed}  {} of {} nodes{counts}{waiting}", progress.done, progress.total)
    }

    fn warn_unverified(&mut self, node: &NodeId, reason: &str, ui: &mut Ui) {
        self.unverified += 1;
        if self.unverified <= MAX_UNVERIFIED {
            ui.warn(text!("{}: {}", node, reason));
        }
        if self.unverified == MAX_UNVERIFIED {
            ui.warn("further messages of this kind are not shown");
        }
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_line_counts_each_node_once_and_names_the_nodes_of_the_last_check() {
        let mut display = ProgressDisplay::default();
        let progress = |done, missing| JobProgress { done, total: 4, missing };
        let line = |display: &ProgressDisplay, done, missing, seconds| {
            display.line(progress(done, missing), Duration::from_secs(seconds))
        };
        assert_eq!(line(&display, 0, 4, 0), "0s  0 of 4 nodes; waiting for 4");
        let node = |name: &str| name.parse::<NodeId>().unwrap();
        display.count(&node("a"), "stable");
        display.count(&node("b"), "offline");
        // An offline node may answer after all.
        display.count(&node("b"), "failed");
        display.missing = (2, "c (no answer), d (no answer)".into());
        assert_eq!(
            line(&display, 2, 2, 65),
            "1m05s  2 of 4 nodes: 1 failed, 1 stable; waiting for 2: c (no answer), d (no answer)"
        );
        assert_eq!(line(&display, 3, 1, 66), "1m06s  3 of 4 nodes: 1 failed, 1 stable; waiting for 1");
        assert_eq!(line(&display, 4, 0, 7200), "120m00s  4 of 4 nodes: 1 failed, 1 stable");
    }
}
