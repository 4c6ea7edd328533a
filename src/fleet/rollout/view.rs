//! How a rollout stands: wave by wave, from what the nodes reported, what they failed, and what the operators said.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::fleet::job::tracker::{Grade, NodeResult, Outcome};
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
    /// `running`, `halted`, `over_budget` (no further node begins) or `done` (no node has still to begin or to end).
    pub state: &'static str,
    /// How many nodes may fail.
    pub max_failed: u64,
    /// Whether nodes look at their health once more before the next wave begins.
    pub health: bool,
    /// Who failed, as the nodes of later waves see it.
    pub failed: Vec<NodeId>,
    /// The highest wave with a go-ahead, for waves that need one: as it stands in the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub go: Option<u64>,
    /// What was said last by an operator.
    pub word: Option<OverrideView>,
    /// The waves, in their order.
    pub waves: Vec<WaveView>,
}

/// One wave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaveView {
    /// Its number, from 1.
    pub number: usize,
    /// How many of its witnesses proved their success; the next wave waits for them.
    pub proved: usize,
    /// How many witnesses it has; none in the last.
    pub witnesses: usize,
    /// How many nodes are in it.
    pub nodes: usize,
    /// How many have the command and have not ended.
    pub waiting: usize,
    /// How many ended well and have not failed since.
    pub ok: usize,
    /// How many failed.
    pub failed: usize,
    /// How many were not begun, as the job was halted or over its budget.
    pub halted: usize,
    /// All others: not there, refused, silent.
    pub other: usize,
}

/// What an operator said: as it stands in the stream. The nodes verify it, who looks at it here does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OverrideView {
    /// `halt` or `resume`.
    pub what: &'static str,
    /// When it was signed.
    pub at: Timestamp,
    /// The ids of keys that it names.
    pub by: Vec<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Reads what nodes failed and what the operators said, and puts it together with the results of the job.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn read(
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
    let word = last_override(bus, subjects, command.id).await?;
    let proved = proved(bus, subjects, command, digest, waves).await?;
    let go = if waves.go { Some(last_go_ahead(bus, subjects, command.id).await?) } else { None };
    Ok(RolloutView { go, ..view(command, waves, results, failed, &proved, word) })
}

/// The witnesses that proved their success, as the nodes of the next wave see it.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn proved(
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

/// The highest wave with a go-ahead; 1 without any.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn last_go_ahead(bus: &Bus, subjects: &Subjects, job: Uuid) -> Result<u64, TransportError> {
    let gos = bus.last_per_subject(&subjects.stream("ROLLOUTS"), subjects.rollout_go_ahead(job).as_str()).await?;
    let wave = gos.first().and_then(|message| unverified(&message.payload)).map(|(command, _)| match command.action {
        Action::Go(ahead) => ahead.wave,
        _ => 1,
    });
    Ok(wave.unwrap_or(1))
}

/// What an operator said last of a job, as it stands in the stream.
///
/// # Errors
/// When the stream of rollouts can't be read.
pub async fn last_override(bus: &Bus, subjects: &Subjects, job: Uuid) -> Result<Option<OverrideView>, TransportError> {
    let controls = bus.last_per_subject(&subjects.stream("ROLLOUTS"), subjects.rollout_control(job).as_str()).await?;
    Ok(controls.first().and_then(|message| word(&message.payload)))
}

fn word(envelope: &[u8]) -> Option<OverrideView> {
    let (command, by) = unverified(envelope)?;
    let what = match command.action {
        Action::Halt(_) => "halt",
        Action::Resume(_) => "resume",
        _ => return None,
    };
    Some(OverrideView { what, at: command.issued, by, reason: command.reason })
}

fn view(
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
        let number = waves.wave_number(RolloutPosition::of(command.id, &result.node));
        let Some(wave) = views.get_mut(number.saturating_sub(1)) else { continue };
        wave.nodes += 1;
        *match &result.outcome {
            _ if failed.contains(&result.node) => &mut wave.failed,
            Outcome::Waiting(_) | Outcome::Accepted | Outcome::Unfinished => &mut wave.waiting,
            Outcome::Halted => &mut wave.halted,
            outcome if outcome.grade() == Grade::Good => &mut wave.ok,
            Outcome::Failed | Outcome::Interrupted => &mut wave.failed,
            _ => &mut wave.other,
        } += 1;
    }
    let waiting = views.iter().any(|wave| wave.waiting > 0);
    let state = match &word {
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
fn unverified(envelope: &[u8]) -> Option<(Command, Vec<String>)> {
    let envelope = Envelope::parse(envelope).ok()?;
    let command = json::read(&envelope.payload).ok()?;
    Some((command, envelope.signatures.into_iter().map(|signature| signature.keyid).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_node_stands_in_its_wave() {
        let id = Uuid::from_u128(1);
        let nodes: Vec<NodeId> = ["a", "b", "c", "d"].iter().map(|name| name.parse().unwrap()).collect();
        let mut places: Vec<(RolloutPosition, NodeId)> =
            nodes.iter().map(|node| (RolloutPosition::of(id, node), node.clone())).collect();
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
            result(0, Outcome::Changed),
            result(1, Outcome::Changed),
            result(2, Outcome::Waiting(2)),
            result(3, Outcome::Offline(None)),
        ];
        let waves = command.options.waves.as_ref().unwrap();
        let shown = |failed: Vec<NodeId>, word| {
            let view = view(&command, waves, &results, failed, &BTreeSet::from([places[0].1.clone()]), word);
            assert_eq!((view.waves[0].proved, view.waves[0].witnesses, view.waves[1].witnesses), (1, 1, 0));
            let wave = |w: &WaveView| format!("{} {} {} {} {} {}", w.nodes, w.waiting, w.ok, w.failed, w.halted, w.other);
            (view.state, view.waves.iter().map(wave).collect::<Vec<_>>())
        };
        assert_eq!(shown(vec![], None), ("running", vec!["2 0 2 0 0 0".into(), "2 1 0 0 0 1".into()]));
        // It went well, and its health is critical since.
        let failed = vec![places[1].1.clone()];
        assert_eq!(shown(failed, None), ("over_budget", vec!["2 0 1 1 0 0".into(), "2 1 0 0 0 1".into()]));
        let halt = OverrideView { what: "halt", at: due, by: vec!["ops".into()], reason: None };
        assert_eq!(shown(vec![], Some(halt)).0, "halted");
    }
}
