//! `ensign fleet events`: the events of the nodes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::diag::{count_noun, error_chain};
use crate::fleet::NodeKeys;
use crate::fleet::targeting::key_discovery;
use crate::fleet::targeting::node_identity::IdentityError;
use crate::model::event::ChangeCause;
use crate::model::{ApplyState, HumanDuration, NodeId, ResourceOutcome, RunOutcome, TransactionEvent};
use crate::transport::{Message, StartAt};
use crate::wire::report::{LifecycleEvent, RejectionEvent, StableRuns};
use crate::wire::subject::EventKind;
use crate::wire::{Command, Envelope, json as strict};

use super::super::error::{CliError, Exit};
use super::super::ui::{Text, Tone, Ui, text};
use super::interrupt::interrupted;
use super::session::{FleetSession, OperatorArgs, connection_failure};
use crate::cli::local::inputs::OutputFormat;

/// Longest wait for the next event that must be there.
const MAX_EVENT_WAIT: Duration = Duration::from_secs(5);
/// Most lookups of the state of a new node, and the pause between two.
const MAX_LOOKUPS: usize = 8;
const LOOKUP_PAUSE: Duration = Duration::from_millis(250);
/// Pause before a node without a verified state is looked up again.
const RETRY_LOOKUP_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Follow new events.
    #[arg(long)]
    follow: bool,
    /// Age of the oldest event.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    since: HumanDuration,
    /// Node whose events are shown.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

pub(super) async fn run(args: EventsArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let node = args.node.as_deref().map(str::parse::<NodeId>).transpose().map_err(|error| CliError::usage(error.to_string()))?;
    let session = context.open().await?;
    let back = SignedDuration::try_from(args.since.as_std()).unwrap_or(SignedDuration::MAX);
    let since = session.now().checked_sub(back).map_or(StartAt::Beginning, StartAt::Since);
    // The states have the keys of nodes that are met for the first time.
    session.states().await?;
    let filter = session.subjects.events(node.as_ref());
    let mut feed = session
        .bus
        .follow(&session.subjects.stream("EVENTS"), filter.as_str(), since)
        .await
        .map_err(|error| connection_failure(&error))?;
    let mut left = feed.backlog();
    let mut all = Vec::new();
    let mut greeted = LookedUpNodes::default();
    let mut any = false;
    while (args.follow || left > 0) && !ui.is_gone() {
        let next = tokio::select! {
            // Cancel-safe: the stream reader loses no message.
            next = feed.next() => next,
            // Cancel-safe: a moment in time. Old events were removed during the read: no more of them follow.
            () = tokio::time::sleep(MAX_EVENT_WAIT), if !args.follow => None,
            // Cancel-safe: a signal is not lost before it comes.
            () = interrupted() => None,
        };
        let Some(message) = next else { break };
        let message = message.map_err(|error| connection_failure(&error))?;
        left = left.saturating_sub(1);
        any = true;
        greeted.look_up(&message, &session).await;
        match session.output {
            OutputFormat::Json if !args.follow => all.extend(event_document(&message, &session.node_keys)),
            OutputFormat::Text => {
                let mut line = event_line(&message, ui);
                if let Some(why) = verification_error(&message, &session.node_keys) {
                    line = text!("{}  {}", line, ui.paint(Tone::Error, text!("! {}", why)));
                }
                ui.line(line);
                ui.flush();
            }
            // A list without an end has a document per line.
            OutputFormat::Json | OutputFormat::Jsonl => {
                event_document(&message, &session.node_keys).iter().for_each(|event| ui.jsonl(event));
                ui.flush();
            }
        }
    }
    if !any && !args.follow {
        ui.message(text!("no events of {} in the last {}", args.node.as_deref().unwrap_or("any node"), args.since));
    }
    if session.output == OutputFormat::Json && !args.follow {
        ui.json(&Value::Array(all));
    }
    Ok(Exit::Success)
}

/// Most nodes that are looked up while events are read.
const MAX_LOOKED_UP_NODES: usize = 256;

/// Nodes that were looked up because their keys were unknown, with the time of the lookup.
#[derive(Default)]
struct LookedUpNodes(HashMap<NodeId, Instant>);

impl LookedUpNodes {
    /// Looks up the node of a message at its first message: the node joined after the states were read.
    async fn look_up(&mut self, message: &Message, session: &FleetSession) {
        let Some(node) = subject_node(message) else { return };
        let is_unknown = matches!(session.node_keys.verify(&node, message), Err(IdentityError::Unknown));
        // A crowd of invented nodes is not looked up: each lookup would wait.
        if !is_unknown
            || self.0.len() >= MAX_LOOKED_UP_NODES
            || self.0.get(&node).is_some_and(|looked| looked.elapsed() < RETRY_LOOKUP_AFTER)
        {
            return;
        }
        // The first event of a node may arrive before its state.
        for _ in 0..MAX_LOOKUPS {
            if key_discovery::pin_key_from_state(&session.bus, &session.subjects, &session.node_keys, &node, session.now()).await
            {
                break;
            }
            tokio::time::sleep(LOOKUP_PAUSE).await;
        }
        if let Err(error) = session.node_keys.save() {
            tracing::warn!("{}", error_chain(&error));
        }
        self.0.insert(node, Instant::now());
    }
}

/// Returns the node on whose subject an event is.
fn subject_node(message: &Message) -> Option<NodeId> {
    message.subject.rsplit('.').nth(1)?.parse().ok()
}

/// Returns the reason to doubt that an event is from the node that it names.
fn verification_error(message: &Message, node_keys: &NodeKeys) -> Option<String> {
    let Some(node) = subject_node(message) else {
        return Some("not on the subject of a node".to_owned());
    };
    node_keys.verify(&node, message).err().map(|doubt| doubt.to_string())
}

/// Returns the event, with the field `verified`.
fn event_document(message: &Message, node_keys: &NodeKeys) -> Option<Value> {
    let mut event = strict::parse(&message.payload).ok()?;
    let fields = event.as_object_mut()?;
    if let Some(node) = subject_node(message).filter(|_| !fields.contains_key("node")) {
        fields.insert("node".to_owned(), json!(node));
    }
    fields.insert("verified".to_owned(), Value::Bool(verification_error(message, node_keys).is_none()));
    Some(event)
}

/// `2026-11-20T10:00:00Z web1 changed file#/etc/motd  content`
fn event_line(message: &Message, ui: &Ui) -> Text {
    let mut tokens = message.subject.rsplit('.');
    let (kind, node) = (tokens.next().unwrap_or_default(), tokens.next().unwrap_or_default());
    let (tone, word, what) = describe(kind, &message.payload);
    let time = message.time.map_or_else(String::new, |time| format!("{time:.0}"));
    text!("{} {:<16} {:<10} {}", time, node, ui.paint(tone, word), what)
}

/// Returns the tone, the word and the text of an event.
fn describe(token: &str, payload: &[u8]) -> (Tone, &'static str, String) {
    let description = match EventKind::from_token(token) {
        Some(EventKind::Transaction) => strict::read(payload).ok().map(|event| describe_transaction(&event)),
        Some(EventKind::Run) => strict::read(payload).ok().map(|state| run_result(&state)),
        // Only failing health checks are published.
        Some(EventKind::Health) => strict::read(payload).ok().map(|state| (Tone::Error, "health", run_result(&state).2)),
        Some(EventKind::Stable) => strict::read(payload).ok().map(|stable| (Tone::Success, "stable", stable_runs(&stable))),
        Some(EventKind::Lifecycle) => strict::read(payload).ok().map(describe_lifecycle),
        Some(EventKind::Command) => Some((Tone::Changed, "command", local_command(payload))),
        Some(EventKind::Refused) => strict::read::<RejectionEvent>(payload)
            .ok()
            .map(|refused| (Tone::Error, "refused", format!("{}: {}", refused.code, refused.message))),
        None => None,
    };
    description.unwrap_or_else(|| (Tone::Error, "unreadable", token.to_owned()))
}

fn describe_lifecycle(event: LifecycleEvent) -> (Tone, &'static str, String) {
    let word =
        ["started", "trust", "dropped", "flapping", "settled"].into_iter().find(|word| event.what == *word).unwrap_or("stopped");
    let text = match (event.dropped, event.message) {
        (Some(dropped), _) => {
            format!("the node dropped {} and {}", count_noun(dropped.events, "event"), count_noun(dropped.results, "result"))
        }
        (None, Some(message)) => message,
        (None, None) => format!("agent {}", event.version),
    };
    let tone = if word == "flapping" { Tone::Error } else { Tone::Dim };
    (tone, word, text)
}

fn describe_transaction(event: &TransactionEvent) -> (Tone, &'static str, String) {
    let (tone, word) = match event.outcome() {
        ResourceOutcome::Stable => (Tone::Success, "stable"),
        ResourceOutcome::Changed => (Tone::Changed, "changed"),
        ResourceOutcome::Refreshed => (Tone::Changed, "refreshed"),
        ResourceOutcome::Failed => (Tone::Error, "failed"),
        ResourceOutcome::Skipped => (Tone::Dim, "skipped"),
        ResourceOutcome::Unmet => (Tone::Error, "unmet"),
    };
    let steps = if event.failed { event.errors.join("; ") } else { event.changes.join(", ") };
    let noop = if event.noop { " (noop)" } else { "" };
    let drift = if event.change_cause == Some(ChangeCause::Corrective) { " (drift)" } else { "" };
    (tone, word, format!("{}{noop}{drift}  {steps}", event.label()).trim_end().to_owned())
}

/// Returns the action and the id of a command that a node accepted from a file.
fn local_command(payload: &[u8]) -> String {
    let envelope = Envelope::parse(payload).ok();
    let command = envelope.and_then(|envelope| strict::read::<Command>(&envelope.payload).ok());
    command.map_or_else(|| "unreadable".to_owned(), |command| format!("from a file: {} {}", command.action.name(), command.id))
}

/// `12 runs of base, 3 runs of web`
fn stable_runs(stable: &StableRuns) -> String {
    let of_channel = |(channel, runs): (&String, &u64)| format!("{} of {channel}", count_noun(*runs, "run"));
    stable.runs.iter().map(of_channel).collect::<Vec<_>>().join(", ")
}

fn run_result(state: &ApplyState) -> (Tone, &'static str, String) {
    let tone = match state.outcome {
        RunOutcome::Stable => Tone::Success,
        RunOutcome::Changed => Tone::Changed,
        RunOutcome::Failed | RunOutcome::Interrupted => Tone::Error,
    };
    let summary = &state.summary;
    let drift = if state.corrective > 0 { format!(" ({} drift)", state.corrective) } else { String::new() };
    let counts = format!(
        "run: {} of {} changed{drift}, {} failed",
        summary.changed_resources, summary.total_resources, summary.failed_resources
    );
    (tone, "run", state.error.as_ref().map_or(counts, |error| format!("run: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_said_in_words() {
        let life = br#"{"protocol":"p","event_id":"00000000-0000-0000-0000-000000000000","node":"web1","timestamp":"2026-01-01T00:00:00Z","what":"started","version":"0.1.0","boot":"00000000-0000-0000-0000-000000000000"}"#;
        assert_eq!(describe("lifecycle", life).2, "agent 0.1.0");
        let fight = String::from_utf8_lossy(life)
            .replace("started", "flapping")
            .replace("\"version\"", "\"message\":\"channel base: x\",\"version\"");
        assert_eq!(describe("lifecycle", fight.as_bytes()), (Tone::Error, "flapping", "channel base: x".to_owned()));
        assert_eq!(describe("transaction", b"{").1, "unreadable");
        let message = Message {
            subject: "ensign.v1.f.event.web1.lifecycle".into(),
            payload: life.to_vec(),
            time: Some("2026-01-01T00:00:01.5Z".parse().unwrap()),
            ..Message::default()
        };
        assert_eq!(event_line(&message, &Ui::new()).as_str(), "2026-01-01T00:00:01Z web1             started    agent 0.1.0");
    }

    #[test]
    fn a_health_alarm_is_a_run_with_its_outcome() {
        let state = ApplyState {
            protocol: "io.ensign.v1.apply.state".to_owned(),
            event_id: uuid::Uuid::nil(),
            node: "web1".parse().unwrap(),
            run_id: uuid::Uuid::nil(),
            timestamp: "2026-01-01T00:00:00Z".parse().unwrap(),
            outcome: RunOutcome::Failed,
            noop: false,
            manifest: None,
            error: Some("1 critical health check".to_owned()),
            summary: crate::model::Summary::default(),
            corrective: 0,
            stable_runs: 0,
        };
        let payload = serde_json::to_vec(&state).unwrap();
        let shown = describe(EventKind::Health.as_str(), &payload);
        assert_eq!((shown.1, shown.2.as_str()), ("health", "run: 1 critical health check"));
    }
}
