//! The progress of a rollout, wave by wave: from results, rollout failures, and overrides of operators.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::fleet::job::tracker::{Grade, NodeOutcome, NodeResult};
use crate::model::NodeId;
use crate::transport::{Bus, TransportError};
use crate::trust::proves_success;
use crate::wire::command::{Command, RolloutPlan};
use crate::wire::receipt::HEADER;
use crate::wire::rollout_plan::{RolloutPosition, Wave, Witness};
use crate::wire::{Action, Envelope, Subjects, json};

/// A rollout at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RolloutView {
    /// The command.
    pub id: Uuid,
    /// `running`, `halted`, `over_budget` (no further node begins) or `done` (no node waits or runs).
    pub state: &'static str,
    /// Number of nodes that may fail.
    pub max_failed: u64,
    /// True when nodes run their health checks again before the next wave begins.
    pub health: bool,
    /// The failed nodes, as the nodes of later waves see them.
    pub failed: Vec<NodeId>,
    /// The highest wave with a go-ahead, for rollouts that need go-aheads: as the stream has it, not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub go: Option<u64>,
    /// The last override of an operator.
    pub word: Option<OverrideView>,
    /// The waves, in their order.
    pub waves: Vec<WaveView>,
}

/// The progress of one wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaveView {
    /// Its number, from 1.
    pub number: usize,
    /// Number of its witnesses that proved their success. The next wave waits for them.
    pub proved: usize,
    /// Number of its witnesses; zero in the last wave.
    pub witnesses: usize,
    /// Number of its nodes.
    pub nodes: usize,
    /// Number of nodes that accepted the command and have not ended.
    pub waiting: usize,
    /// Number of nodes that succeeded and have not failed since.
    pub ok: usize,
    /// Number of nodes that failed.
    pub failed: usize,
    /// Number of nodes that did not begin, as the job was halted or over its error budget.
    pub halted: usize,
    /// Number of all other nodes: offline, refused, or without an answer.
    pub other: usize,
}

/// An override of an operator, as the stream has it: for display only. The nodes verify its signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OverrideView {
    /// `halt` or `resume`.
    pub what: &'static str,
    /// Time of the signature.
    pub at: Timestamp,
    /// The key ids in its envelope.
    pub by: Vec<String>,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Reads rollout failures, proofs of success and overrides, and combines them with the results of the job.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn read_rollout(
    bus: &Bus,
    subjects: &Subjects,
    command: &Command,
    digest: &str,
    waves: &RolloutPlan,
    results: &[NodeResult],
) -> Result<RolloutView, TransportError> {
    let stream = subjects.stream("ROLLOUTS");
    let failures = bus.last_per_subject(&stream, subjects.rollout_failures(command.id).as_str()).await?;
    let failed = failures.iter().filter_map(|message| message.subject.rsplit('.').next()?.parse().ok()).collect();
    let word = read_last_override(bus, subjects, command.id).await?;
    let proved = read_proven_witnesses(bus, subjects, command, digest, waves).await?;
    let go = if waves.go { Some(read_last_go_ahead(bus, subjects, command.id).await?) } else { None };
    Ok(RolloutView { go, ..build_view(command, waves, results, failed, &proved, word) })
}

/// Reads the witnesses that proved their success, as the nodes of the next wave see them.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn read_proven_witnesses(
    bus: &Bus,
    subjects: &Subjects,
    command: &Command,
    digest: &str,
    waves: &RolloutPlan,
) -> Result<BTreeSet<NodeId>, TransportError> {
    let stream = subjects.stream("ROLLOUTS");
    let marks = bus.last_per_subject(&stream, subjects.rollout_successes(command.id).as_str()).await?;
    let witnesses = waves.steps.iter().flat_map(|step| &step.witnesses);
    let proves = |witness: &&Witness| {
        let subject = subjects.rollout_ok(command.id, &witness.node);
        marks
            .iter()
            .filter(|mark| mark.subject == subject.as_str())
            .any(|mark| proves_success(witness, command.id, digest, subject.as_str(), mark.header(HEADER), &mark.payload))
    };
    Ok(witnesses.filter(proves).map(|witness| witness.node.clone()).collect())
}

/// Reads the highest wave with a go-ahead, not verified; 1 without a go-ahead.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn read_last_go_ahead(bus: &Bus, subjects: &Subjects, job: Uuid) -> Result<u64, TransportError> {
    let gos = bus.last_per_subject(&subjects.stream("ROLLOUTS"), subjects.rollout_go_ahead(job).as_str()).await?;
    let wave = gos.first().and_then(|message| parse_unverified(&message.payload)).map(|(command, _)| match command.action {
        Action::Go(ahead) => ahead.wave,
        _ => 1,
    });
    Ok(wave.unwrap_or(1))
}

/// Reads the last override of a job, as the stream has it: not verified.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn read_last_override(bus: &Bus, subjects: &Subjects, job: Uuid) -> Result<Option<OverrideView>, TransportError> {
    let controls = bus.last_per_subject(&subjects.stream("ROLLOUTS"), subjects.rollout_control(job).as_str()).await?;
    Ok(controls.first().and_then(|message| parse_override(&message.payload)))
}

fn parse_override(envelope: &[u8]) -> Option<OverrideView> {
    let (command, by) = parse_unverified(envelope)?;
    let what = match command.action {
        Action::Halt(_) => "halt",
        Action::Resume(_) => "resume",
        Action::Cancel(_) => "cancel",
        _ => return None,
    };
    Some(OverrideView { what, at: command.issued, by, reason: command.reason })
}

fn build_view(
    command: &Command,
    waves: &RolloutPlan,
    results: &[NodeResult],
    failed: Vec<NodeId>,
    proved: &BTreeSet<NodeId>,
    word: Option<OverrideView>,
) -> RolloutView {
    let wave = |(number, step): (usize, &Wave)| {
        let (proved, witnesses) = (step.witnesses.iter().filter(|witness| proved.contains(&witness.node)), step.witnesses.len());
        WaveView { number, proved: proved.count(), witnesses, nodes: 0, waiting: 0, ok: 0, failed: 0, halted: 0, other: 0 }
    };
    let mut views: Vec<WaveView> = (1..).zip(&waves.steps).map(wave).collect();
    for result in results {
        let number = waves.wave_number(RolloutPosition::for_node(command.id, &result.node));
        let Some(wave) = views.get_mut(number.saturating_sub(1)) else { continue };
        wave.nodes += 1;
        *match &result.outcome {
            _ if failed.contains(&result.node) => &mut wave.failed,
            NodeOutcome::Waiting(_) | NodeOutcome::Accepted | NodeOutcome::Unfinished => &mut wave.waiting,
            NodeOutcome::Halted => &mut wave.halted,
            outcome if outcome.grade() == Grade::Success => &mut wave.ok,
            NodeOutcome::Failed | NodeOutcome::Interrupted => &mut wave.failed,
            _ => &mut wave.other,
        } += 1;
    }
    let waiting = views.iter().any(|wave| wave.waiting > 0);
    let state = match &word {
        Some(word) if word.what == "cancel" => "cancelled",
        _ if failed.len() as u64 > waves.max_failed => "over_budget",
        Some(word) if word.what == "halt" && waiting => "halted",
        _ if waiting => "running",
        _ => "done",
    };
    RolloutView {
        id: command.id,
        state,
        max_failed: waves.max_failed,
        health: waves.health,
        failed,
        go: None,
        word,
        waves: views,
    }
}

/// Reads a command and the key ids that its envelope names, without verification: for display only.
fn parse_unverified(envelope: &[u8]) -> Option<(Command, Vec<String>)> {
    let envelope = Envelope::parse(envelope).ok()?;
    let command = json::read(&envelope.payload).ok()?;
    Some((command, envelope.signatures.into_iter().map(|signature| signature.keyid).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_node_is_counted_in_its_wave() {
        let id = Uuid::from_u128(1);
        let nodes: Vec<NodeId> = ["a", "b", "c", "d"].iter().map(|name| name.parse().unwrap()).collect();
        let mut places: Vec<(RolloutPosition, NodeId)> =
            nodes.iter().map(|node| (RolloutPosition::for_node(id, node), node.clone())).collect();
        places.sort();
        let command: Command = serde_json::from_value(json!({
            "id": id, "fleet": "f", "to": {"all": true},
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z", "action": {"status": {}},
            "options": {"waves": {"max_failed": 0, "hold": "1m", "steps": [
                {"upto": String::from(places[1].0), "min_ok": 1, "witnesses": [{"node": places[0].1, "key": "k"}]},
                {"upto": "ffffffffffffffff"}]}},
        }))
        .unwrap();
        let result = |index: usize, outcome| NodeResult::new(places[index].1.clone(), outcome, None);
        let due = "2026-11-20T10:01:00Z".parse().unwrap();
        let results = [
            result(0, NodeOutcome::Changed),
            result(1, NodeOutcome::Changed),
            result(2, NodeOutcome::Waiting(2)),
            result(3, NodeOutcome::Offline(None)),
        ];
        let waves = command.options.waves.as_ref().unwrap();
        let shown = |failed: Vec<NodeId>, word| {
            let view = build_view(&command, waves, &results, failed, &BTreeSet::from([places[0].1.clone()]), word);
            assert_eq!((view.waves[0].proved, view.waves[0].witnesses, view.waves[1].witnesses), (1, 1, 0));
            let wave = |w: &WaveView| format!("{} {} {} {} {} {}", w.nodes, w.waiting, w.ok, w.failed, w.halted, w.other);
            (view.state, view.waves.iter().map(wave).collect::<Vec<_>>())
        };
        assert_eq!(shown(vec![], None), ("running", vec!["2 0 2 0 0 0".into(), "2 1 0 0 0 1".into()]));
        // The run succeeded, and the health check failed since.
        let failed = vec![places[1].1.clone()];
        assert_eq!(shown(failed, None), ("over_budget", vec!["2 0 1 1 0 0".into(), "2 1 0 0 0 1".into()]));
        let halt = OverrideView { what: "halt", at: due, by: vec!["ops".into()], reason: None };
        assert_eq!(shown(vec![], Some(halt)).0, "halted");
    }
}
