//! Follows a command and prints what becomes of it on every node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::fleet::cluster::{self, Cluster};
use crate::fleet::dispatch::{self, Dispatched, Signed};
use crate::fleet::gather::{self, Grade, Update};
use crate::fleet::{Gather, NodeResult, Order, Outcome, select};
use crate::model::NodeId;
use crate::transport::{Feed, Inbox};
use crate::wire::Command;

use super::super::error::{Exit, Failure};
use super::super::local::OutputFormat;
use super::super::ui::{Tone, Ui};
use super::session::{Session, borrowed, failure, signers};
use super::target::TargetArgs;

/// With more nodes than this, groups of nodes are printed instead of each one.
const EACH: usize = 20;
/// How often the progress is shown anew.
const REFRESH: Duration = Duration::from_millis(50);
/// What the way there and back may take beside the work.
const MARGIN: Duration = Duration::from_secs(5);

/// What became of a command, as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    id: Uuid,
    digest: &'a str,
    nodes: &'a [NodeResult],
    clusters: Vec<Cluster>,
    /// False when the waiting was ended by hand.
    complete: bool,
}

/// How following a command ended.
#[derive(Debug)]
pub(in crate::cli) struct Followed {
    /// The exit of the command that followed.
    pub(in crate::cli) exit: Exit,
    /// What became of every node.
    pub(in crate::cli) results: Vec<NodeResult>,
}

/// Signs an order, sends it, and follows it unless it is to be detached.
pub(in crate::cli) async fn send(order: Order, target: &TargetArgs, session: &Session, ui: &mut Ui) -> Result<Followed, Failure> {
    let signers = signers(&session.operator)?;
    let mut command = order.command(&session.operator.fleet, session.host.new_id(), session.now());
    target.waves.put_into(&mut command, session, ui).await?;
    command.check().map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let signed = dispatch::sign(command, &borrowed(&signers)).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    if target.detach {
        dispatch::dispatch(&session.bus, &session.subjects, &signed).await.map_err(|error| failure(&error))?;
        detached(&signed, session, ui);
        return Ok(Followed { exit: Exit::Done, results: Vec::new() });
    }
    deliver(&signed, target.timeout().get(), session, ui).await
}

/// Sends what is signed, and follows it.
pub(in crate::cli) async fn deliver(
    signed: &Signed,
    timeout: Duration,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let states = session.states().await?;
    let expected = select::expected(&signed.command.to, &states, session.now());
    let gather =
        Gather::new(session.subjects.clone(), Arc::clone(&session.roster), signed.command.id, signed.digest.as_str(), expected);
    let dispatched = dispatch::dispatch(&session.bus, &session.subjects, signed).await.map_err(|error| failure(&error))?;
    let deadline = Instant::now() + timeout + MARGIN + until_last_turn(&signed.command, session.now());
    let Dispatched { mut feed, mut inbox, asked } = dispatched;
    follow(gather, &signed.digest, &mut feed, Some((&mut inbox, &asked)), deadline, session, ui).await
}

/// How long it is until the last node may begin; nothing for a command without waves.
fn until_last_turn(command: &Command, now: Timestamp) -> Duration {
    let last = command.options.waves.as_ref().map_or(now, |waves| waves.last_begins(command.issued));
    Duration::try_from(last.duration_since(now)).unwrap_or_default()
}

fn detached(signed: &Signed, session: &Session, ui: &mut Ui) {
    match session.output {
        OutputFormat::Text => ui.line(signed.command.id),
        _ => ui.jsonl(&serde_json::json!({"id": signed.command.id, "digest": signed.digest})),
    }
}

/// Takes reports until every node has ended, the deadline is over, or somebody interrupts.
pub(super) async fn follow(
    mut all: Gather,
    digest: &str,
    feed: &mut Feed,
    answers: Option<(&mut Inbox, &[Option<NodeId>])>,
    deadline: Instant,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let (id, began) = (all.id(), all.began());
    let each = all.progress().1 <= EACH;
    ui.say(format_args!("job {id}: {}", nodes(all.progress().1)));
    let mut printed = HashSet::new();
    let (mut heard, mut shown) = (false, began);
    let output = session.output;
    let now = session.now();
    let mut on_update = |gather: &Gather, update: Update| {
        if let Update::Doubted(node, why) = &update {
            ui.end_progress();
            ui.warn(format_args!("{node}: {why}"));
        }
        if let Update::Ended(result) = update {
            match output {
                OutputFormat::Jsonl => ui.jsonl(&result),
                OutputFormat::Text if each => ui.line(node_line(&result, now, ui)),
                _ => {}
            }
            ui.flush();
            printed.insert(result.node);
        }
        if !heard && !each && gather.is_heard() {
            heard = true;
            ui.end_progress();
            ui.say(format_args!("every node that is there has answered, in {:.2}s", began.elapsed().as_secs_f64()));
        }
        // A terminal takes longer to show a line than ten nodes to send theirs.
        if shown.elapsed() >= REFRESH {
            shown = Instant::now();
            let (ended, known) = gather.progress();
            ui.progress(format_args!("{ended} / {known} nodes"));
        }
    };
    let finished = tokio::select! {
        // The end of waiting, in every case: what is dropped is not used again.
        result = gather::gather(&mut all, feed, answers, deadline, &mut on_update) => {
            result.map_err(|error| failure(&error).hint(format!("`ensign fleet job watch {id}` goes on")))?;
            true
        }
        // Safe to cancel: a signal that did not come.
        _ = tokio::signal::ctrl_c() => false,
    };
    ui.end_progress();
    let results = all.finish();
    match output {
        OutputFormat::Json => {
            ui.json(&Document { id, digest, nodes: &results, clusters: cluster::cluster(&results), complete: finished });
        }
        OutputFormat::Jsonl => {
            for result in results.iter().filter(|result| !printed.contains(&result.node)) {
                ui.jsonl(result);
            }
        }
        OutputFormat::Text if each => {
            for result in results.iter().filter(|result| !printed.contains(&result.node)) {
                ui.line(node_line(result, now, ui));
            }
        }
        OutputFormat::Text => {
            for cluster in cluster::cluster(&results) {
                ui.line(cluster_line(&cluster, ui));
            }
        }
    }
    ui.say(summary(&results, began.elapsed()));
    if !finished {
        if results.iter().any(|result| result.due.is_some()) {
            ui.say(format_args!("stopped waiting; the rollout goes on by itself: `ensign fleet rollout watch {id}`"));
            ui.say(format_args!("`ensign fleet halt {id} --reason WHY` halts it"));
            return Ok(Followed { exit: Exit::Incomplete, results });
        }
        ui.say(format_args!("stopped waiting; the work goes on: `ensign fleet job watch {id}`"));
        return Ok(Followed { exit: Exit::Incomplete, results });
    }
    Ok(Followed { exit: exit(&results), results })
}

fn exit(results: &[NodeResult]) -> Exit {
    match cluster::grade(results) {
        Grade::Good => Exit::Done,
        Grade::Incomplete => Exit::Incomplete,
        Grade::Refused => Exit::Refused,
        Grade::Failed => Exit::Failed,
    }
}

/// `1 node`, `3 nodes`
pub(super) fn nodes(count: usize) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

/// The mark and the tone of an outcome: words say the same, for those who see no colour.
fn look(outcome: &Outcome) -> (&'static str, Tone) {
    match outcome {
        Outcome::Stable => ("✓", Tone::Good),
        Outcome::Changed => ("~", Tone::Notable),
        Outcome::NotSelected => ("-", Tone::Dim),
        Outcome::Failed => ("✗", Tone::Bad),
        Outcome::Refused(_) => ("!", Tone::Bad),
        _ => ("?", Tone::Notable),
    }
}

fn node_line(result: &NodeResult, now: Timestamp, ui: &Ui) -> String {
    let (mark, tone) = look(&result.outcome);
    let cause = match result.outcome {
        Outcome::Offline(Some(since)) => format!("last heard {} ago", ago(since, now)),
        Outcome::Waiting(due) if due > now => format!("its turn is in {}", ago(now, due)),
        Outcome::Waiting(due) => format!("its turn was {} ago", ago(due, now)),
        _ => cluster::cluster(std::slice::from_ref(result)).pop().map_or_else(String::new, |cluster| cluster.cause),
    };
    let line =
        format!("  {} {:<12} {}", ui.paint(tone, mark), ui.paint(tone, &format!("{:<12}", result.outcome.word())), result.node);
    if cause.is_empty() { line } else { format!("{line:<40}  {cause}") }
}

fn cluster_line(cluster: &Cluster, ui: &Ui) -> String {
    let (mark, tone) = look(&cluster.outcome);
    let mut names: Vec<&str> = cluster.nodes.iter().map(NodeId::as_str).take(3).collect();
    let more = format!("+{}", cluster.nodes.len().saturating_sub(names.len()));
    if cluster.nodes.len() > names.len() {
        names.push(&more);
    }
    let word = ui.paint(tone, &format!("{mark} {:<12}", cluster.outcome.word()));
    format!("  {word} {:>6}× {}  {}", cluster.nodes.len(), cluster.cause, names.join(" "))
}

fn summary(results: &[NodeResult], took: Duration) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for result in results {
        let word = result.outcome.word();
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    if counts.is_empty() {
        return "nobody answered: no node of this kind is known".to_owned();
    }
    let counts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    format!("{}: {} in {:.1?}", nodes(results.len()), counts.join(", "), took)
}

/// How long ago, in its largest unit: `3m`, `2h`, `4d`.
pub(in crate::cli) fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(node: &str, outcome: Outcome) -> NodeResult {
        NodeResult::new(node.parse().unwrap(), outcome, None)
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst() {
        let (good, refused, failed) = (Outcome::Changed, Outcome::Refused("x".into()), Outcome::Failed);
        for (outcomes, wanted) in [
            (vec![good.clone(), Outcome::Stable], Exit::Done),
            (vec![good.clone(), Outcome::NoAnswer], Exit::Incomplete),
            (vec![Outcome::Offline(None), refused.clone()], Exit::Refused),
            (vec![refused, failed, good], Exit::Failed),
            (vec![], Exit::Incomplete),
        ] {
            let results: Vec<_> = outcomes.into_iter().map(|outcome| result("a", outcome)).collect();
            assert_eq!(exit(&results), wanted);
        }
    }

    #[test]
    fn lines_say_everything_in_words() {
        let ui = Ui::new();
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let gone = result("db1", Outcome::Offline(Some("2026-01-01T21:00:00Z".parse().unwrap())));
        assert!(node_line(&gone, now, &ui).ends_with("last heard 3h ago"), "{}", node_line(&gone, now, &ui));
        let text = summary(&[gone, result("a", Outcome::Stable), result("b", Outcome::Stable)], Duration::from_millis(1500));
        assert_eq!(text, "3 nodes: 1 offline, 2 stable in 1.5s");
    }
}
