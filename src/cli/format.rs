//! Short forms of counts, names and times for people.

use jiff::Timestamp;

use crate::diag::count_noun;
use crate::model::NodeId;
use crate::wire::report::WatchStatus;

/// Nodes that are named before the rest is counted.
const MAX_NAMES: usize = 3;

/// `1 node`, `3 nodes`
pub(super) fn nodes(number: usize) -> String {
    count_noun(number as u64, "node")
}

/// `web1 web2 web3 +9809`
pub(super) fn names(nodes: &[NodeId]) -> String {
    first_names(nodes, MAX_NAMES)
}

/// Returns the first names and the count of the others.
pub(super) fn first_names(nodes: &[NodeId], most: usize) -> String {
    let mut names: Vec<&str> = nodes.iter().map(NodeId::as_str).take(most).collect();
    let more = format!("+{}", nodes.len().saturating_sub(names.len()));
    if nodes.len() > names.len() {
        names.push(&more);
    }
    names.join(" ")
}

/// Joins the parts that are not empty, each followed by a space.
pub(super) fn spaced(parts: &[&str]) -> String {
    parts.iter().filter(|part| !part.is_empty()).map(|part| format!("{part} ")).collect()
}

/// `12 resources, converged for 3h`, with the resources that are not as wanted.
pub(super) fn describe_watch(watch: &WatchStatus, now: Timestamp) -> String {
    let counts = [(watch.polled, "at intervals only"), (watch.failed, "failed"), (watch.flapping, "flapping")];
    let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}"));
    let convergence = if watch.converged { "converged" } else { "not converged" };
    format!(
        "{}{}, {convergence} for {}",
        count_noun(watch.resources, "resource"),
        counts.collect::<String>(),
        ago(watch.since, now)
    )
}

/// Formats the time since `then` in its largest unit: `3m`, `2h`, `4d`.
pub(super) fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
