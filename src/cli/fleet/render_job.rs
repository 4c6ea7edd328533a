//! Follows a command and prints what becomes of it on every node.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::fleet::job::dispatch;
use crate::fleet::job::dispatch::{Dispatched, SealedCommand};
use crate::fleet::job::outcome_groups;
use crate::fleet::job::outcome_groups::OutcomeGroup;
use crate::fleet::job::tracker::Grade;
use crate::fleet::targeting::states;
use crate::fleet::{CommandDraft, JobTracker, NodeResult, Outcome};
use crate::model::NodeId;
use crate::transport::{Inbox, StreamReader};

use super::super::error::{Exit, Failure};
use super::super::ui::{Text, Tone, Ui, text};
use super::follow::{self, EACH, MARGIN};
use super::go_ahead::{all_waves, go_on};
use super::session::{Session, undelivered};
use super::target::TargetArgs;
use super::target_filter;
use crate::cli::local::inputs::OutputFormat;

/// What became of a command, as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    id: Uuid,
    digest: &'a str,
    nodes: &'a [NodeResult],
    clusters: Vec<OutcomeGroup>,
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
pub(in crate::cli) async fn send(
    order: CommandDraft,
    target: &TargetArgs,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    send_after(0, order, target, session, ui).await
}

/// As [`send`], for what a stream keeps: only behind the message that has this place there.
pub(in crate::cli) async fn send_after(
    after: u64,
    order: CommandDraft,
    target: &TargetArgs,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    session.warn_of_clock(ui);
    if session.output == OutputFormat::Text && !target.detach {
        target_filter::say_selected(&order.to, session, ui).await?;
    }
    let mut command = order.command(&session.operator.fleet, session.host.new_id(), session.now());
    target.waves.put_into(&mut command, session, ui).await?;
    let signed = SealedCommand { after, ..follow::seal(command, session)? };
    if target.detach {
        dispatch::dispatch(&session.bus, &session.subjects, &signed).await.map_err(|error| undelivered(&error, session))?;
        detached(&signed, session, ui);
        return Ok(Followed { exit: Exit::Success, results: Vec::new() });
    }
    let followed = deliver(&signed, target.timeout().get(), session, ui).await?;
    if is_nobody(&followed.results) {
        target_filter::say_nobody(&signed.command.to, session, ui).await;
    }
    Ok(followed)
}

/// Sends what is signed, and follows it.
pub(in crate::cli) async fn deliver(
    signed: &SealedCommand,
    timeout: Duration,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let states = session.states().await?;
    target_filter::warn_unknown(&signed.command.to, &states, ui);
    let expected = states::expected(&signed.command.to, &states, session.server_now());
    let gather = follow::gatherer(&signed.command, &signed.digest, expected, session);
    let dispatched =
        dispatch::dispatch(&session.bus, &session.subjects, signed).await.map_err(|error| undelivered(&error, session))?;
    let deadline = Instant::now() + timeout + MARGIN + all_waves(&signed.command);
    let Dispatched { mut feed, mut inbox, asked } = dispatched;
    let followed = follow(gather, &signed.digest, &mut feed, Some((&mut inbox, &asked)), deadline, session, ui);
    go_on(&signed.command, &signed.digest, session, followed).await
}

pub(super) fn detached(signed: &SealedCommand, session: &Session, ui: &mut Ui) {
    match session.output {
        OutputFormat::Text => ui.line(text!("{}", signed.command.id)),
        _ => ui.jsonl(&serde_json::json!({"id": signed.command.id, "digest": signed.digest})),
    }
}

/// Takes reports until every node has ended, the deadline is over, or somebody interrupts.
pub(super) async fn follow(
    mut all: JobTracker,
    digest: &str,
    feed: &mut StreamReader,
    answers: Option<(&mut Inbox, &[Option<NodeId>])>,
    deadline: Instant,
    session: &Session,
    ui: &mut Ui,
) -> Result<Followed, Failure> {
    let (id, began) = (all.id(), all.began());
    let each = all.progress().1 <= EACH;
    ui.say(text!("job {}: {}", id, nodes(all.progress().1)));
    let mut printed = HashSet::new();
    let output = session.output;
    let mut on_ended = |result: NodeResult, ui: &mut Ui| {
        match output {
            OutputFormat::Jsonl => ui.jsonl(&result),
            OutputFormat::Text if each => ui.line(node_line(&result, session.now(), ui)),
            _ => {}
        }
        ui.flush();
        printed.insert(result.node);
    };
    let finished = follow::collect(&mut all, feed, answers, deadline, session, ui, &mut on_ended).await?;
    let results = all.finish();
    let now = session.now();
    if output == OutputFormat::Json {
        ui.json(&Document { id, digest, nodes: &results, clusters: outcome_groups::cluster(&results), complete: finished });
    } else {
        let left: Vec<&NodeResult> = results.iter().filter(|result| !printed.contains(&result.node)).collect();
        print(&results, &left, each, now, output, ui);
    }
    ui.say(summary(&results, began.elapsed()));
    if !finished {
        if results.iter().any(|result| result.wave.is_some()) {
            ui.say(text!("stopped waiting; the rollout goes on by itself: `ensign fleet rollout watch {}`", id));
            ui.say(text!("`ensign fleet halt {} --reason WHY` halts it", id));
            return Ok(Followed { exit: Exit::Partial, results });
        }
        ui.say(text!("stopped waiting; the work goes on: `ensign fleet job watch {}`", id));
        return Ok(Followed { exit: Exit::Partial, results });
    }
    Ok(Followed { exit: exit(&results), results })
}

/// The end of a report: what is `left` to be said of single nodes, or all in groups.
fn print(results: &[NodeResult], left: &[&NodeResult], each: bool, now: Timestamp, output: OutputFormat, ui: &mut Ui) {
    match output {
        OutputFormat::Jsonl => left.iter().for_each(|result| ui.jsonl(result)),
        _ if each => left.iter().for_each(|result| ui.line(node_line(result, now, ui))),
        _ => outcome_groups::cluster(results).iter().for_each(|cluster| cluster_lines(cluster, ui)),
    }
}

/// The exit code of the worst of the results. A command that selected nobody did not do what it was sent for.
pub(super) fn exit(results: &[NodeResult]) -> Exit {
    if is_nobody(results) {
        return Exit::Partial;
    }
    match outcome_groups::grade(results) {
        Grade::Good => Exit::Success,
        Grade::Incomplete => Exit::Partial,
        Grade::Refused => Exit::Refused,
        Grade::Failed => Exit::Failed,
    }
}

/// True when a `where` selected none of the nodes that answered.
fn is_nobody(results: &[NodeResult]) -> bool {
    !results.is_empty() && results.iter().all(|result| result.outcome == Outcome::NotSelected)
}

/// `1 node`, `3 nodes`
pub(super) fn nodes(count: usize) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

/// The mark and the tone of an outcome: words say the same, for those who see no colour.
pub(super) fn look(outcome: &str) -> (&'static str, Tone) {
    match outcome {
        "stable" => ("✓", Tone::Success),
        "changed" | "would_change" => ("~", Tone::Changed),
        "not_selected" => ("-", Tone::Dim),
        "failed" => ("✗", Tone::Error),
        "refused" => ("!", Tone::Error),
        _ => ("?", Tone::Changed),
    }
}

pub(super) fn node_line(result: &NodeResult, now: Timestamp, ui: &Ui) -> Text {
    let (mark, tone) = look(result.outcome.word());
    let cause = match result.outcome {
        Outcome::Offline(Some(since)) => format!("last heard {} ago", ago(since, now)),
        Outcome::Waiting(wave) => format!("in wave {wave}"),
        _ => outcome_groups::cluster(std::slice::from_ref(result)).pop().map_or_else(String::new, |cluster| cluster.cause),
    };
    let word = ui.paint(tone, result.outcome.word());
    text!("  {} {:<12} {:<23}  {}", ui.paint(tone, mark), word, result.node.as_str(), cause).trim_end()
}

pub(super) fn cluster_lines(cluster: &OutcomeGroup, ui: &mut Ui) {
    let (mark, tone) = look(cluster.outcome.word());
    let word = ui.paint(tone, text!("{} {:<12}", mark, cluster.outcome.word()));
    ui.line(text!("  {} {:>6}× {}  {}", word, cluster.nodes.len(), cluster.cause, few(&cluster.nodes)));
    if let Some(example) = &cluster.example {
        ui.line(ui.paint(Tone::Dim, text!("{:25}as: {}", "", example)));
    }
}

/// `web1 web2 web3 +9809`
pub(super) fn few(nodes: &[NodeId]) -> String {
    let mut names: Vec<&str> = nodes.iter().map(NodeId::as_str).take(3).collect();
    let more = format!("+{}", nodes.len().saturating_sub(names.len()));
    if nodes.len() > names.len() {
        names.push(&more);
    }
    names.join(" ")
}

fn summary(results: &[NodeResult], took: Duration) -> String {
    if results.is_empty() { counted(results) } else { format!("{} in {took:.1?}", counted(results)) }
}

/// `3 nodes: 1 offline, 2 stable`
pub(super) fn counted(results: &[NodeResult]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for result in results {
        let word = result.outcome.word();
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    if counts.is_empty() {
        return "no node is known that this is for".to_owned();
    }
    let counts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    format!("{}: {}", nodes(results.len()), counts.join(", "))
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
            (vec![good.clone(), Outcome::Stable], Exit::Success),
            (vec![good.clone(), Outcome::NoAnswer], Exit::Partial),
            (vec![Outcome::Offline(None), refused.clone()], Exit::Refused),
            (vec![refused, failed, good], Exit::Failed),
            (vec![], Exit::Partial),
            (vec![Outcome::NotSelected, Outcome::NotSelected], Exit::Partial),
            (vec![Outcome::NotSelected, Outcome::Stable], Exit::Success),
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
        assert!(node_line(&gone, now, &ui).as_str().ends_with("last heard 3h ago"), "{:?}", node_line(&gone, now, &ui));
        let text = summary(&[gone, result("a", Outcome::Stable), result("b", Outcome::Stable)], Duration::from_millis(1500));
        assert_eq!(text, "3 nodes: 1 offline, 2 stable in 1.5s");
    }
}
