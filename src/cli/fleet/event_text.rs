//! Events of nodes as text: the tone, the word and the description of each kind.

use crate::diag::count_noun;
use crate::model::event::ChangeCause;
use crate::model::{ApplyState, NodeId, ResourceOutcome, RunOutcome, TransactionEvent};
use crate::transport::Message;
use crate::wire::report::{LifecycleEvent, RejectionEvent, StableRuns};
use crate::wire::subject::EventKind;
use crate::wire::{Command, Envelope, json as strict};

use super::super::ui::{Text, Tone, Ui, text};

/// Returns the node on whose subject an event is.
pub(super) fn subject_node(message: &Message) -> Option<NodeId> {
    message.subject.rsplit('.').nth(1)?.parse().ok()
}

/// `2026-11-20T10:00:00Z web1 changed file#/etc/motd  content`
pub(super) fn event_line(message: &Message, ui: &Ui) -> Text {
    let mut tokens = message.subject.rsplit('.');
    let (kind, node) = (tokens.next().unwrap_or_default(), tokens.next().unwrap_or_default());
    let (tone, word, what) = describe(kind, &message.payload);
    let time = message.time.map_or_else(String::new, |time| format!("{time:.0}"));
    text!("{} {:<16} {:<10} {}", time, node, ui.paint(tone, word), what)
}

/// Returns the tone, the word and the text of an event.
pub(super) fn describe(token: &str, payload: &[u8]) -> (Tone, &'static str, String) {
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
