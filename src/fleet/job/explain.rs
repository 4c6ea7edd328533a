//! Explains the outcome of a command on a node, or the lack of an answer, from the node's signed messages.

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::model::NodeId;
use crate::transport::{Bus, Message, StartAt, TransportError};
use crate::trust::TrustedBundle;
use crate::wire::report::RejectionEvent;
use crate::wire::subject::{EventKind, ReportStage};
use crate::wire::{Ack, AckStatus, Command, CommandResult, Envelope, Subjects, json};

use crate::fleet::audit::export::next_message;
use crate::fleet::audit::job_log;
use crate::fleet::audit::job_log::JobLogRow;
use crate::fleet::rollout::view::{self, OverrideView};
use crate::fleet::targeting::node_identity::NodeKeys;
use crate::fleet::targeting::states::{NodeLiveness, NodeStates};

/// The messages and states about one command on one node.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The node.
    pub node: NodeId,
    /// The command from its record.
    #[serde(flatten)]
    pub command: JobLogRow,
    /// True when the command is for this node; `None` when the operator's side cannot decide.
    pub meant: Option<bool>,
    /// The acknowledgement of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack: Option<Ack>,
    /// The result of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<CommandResult>,
    /// Rejections of this command that the node published, or of other bytes with its id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<RejectionEvent>,
    /// Messages in the name of the node that failed verification, each with the error.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<String>,
    /// The last override of a command in waves, as the stream has it: not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub word: Option<OverrideView>,
    /// The state of the node.
    pub situation: NodeSituation,
}

/// The situation of a node by its latest state.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodeSituation {
    /// The liveness.
    pub presence: NodeLiveness,
    /// Time of its last heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard: Option<Timestamp>,
    /// The version of its trust bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<u64>,
    /// Its groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The command that the node runs now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<Uuid>,
    /// Number of queued commands.
    pub queued: u64,
    /// Number of messages in its outbox.
    pub outbox: u64,
    /// Its position in the channel of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Its active alarms.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<String>,
}

/// Collects the messages and states about a command on a node.
///
/// # Errors
/// When a stream can't be read.
pub async fn explain(
    bus: &Bus,
    subjects: &Subjects,
    node_keys: &NodeKeys,
    states: &NodeStates,
    trust: Option<&TrustedBundle>,
    (command, envelope): (&Command, &Envelope),
    node: &NodeId,
) -> Result<Explanation, TransportError> {
    let row = job_log::job_log_row(command, envelope, trust);
    let situation = situation(states, node, command);
    let meant = is_targeted(command, &situation, node);
    let digest = row.digest.clone();
    let in_waves = command.options.waves.is_some();
    let word = if in_waves { view::read_last_override(bus, subjects, command.id).await? } else { None };
    let (refusals, doubts) = (vec![], vec![]);
    let mut why =
        Explanation { node: node.clone(), command: row, meant, ack: None, done: None, refusals, doubts, word, situation };
    for stage in [ReportStage::Ack, ReportStage::Done] {
        let subject = subjects.job(command.id, node, stage);
        for message in bus.last_per_subject(&subjects.stream("JOBS"), subject.as_str()).await? {
            why.take(node_keys, &digest, stage, &message);
        }
    }
    let refused = subjects.event(node, EventKind::Refused);
    let mut feed = bus.follow(&subjects.stream("EVENTS"), refused.as_str(), StartAt::Since(command.issued)).await?;
    for _ in 0..feed.backlog() {
        let Some(message) = next_message(&mut feed).await? else { break };
        why.take_rejection(node_keys, command.id, &digest, &message);
    }
    Ok(why)
}

impl Explanation {
    fn take(&mut self, node_keys: &NodeKeys, digest: &str, stage: ReportStage, message: &Message) {
        let signed = node_keys.verify(&self.node, message).and_then(|attested| Ok(attested.check_command(digest)?));
        if let Err(doubt) = signed {
            let what = if stage == ReportStage::Ack { "an acknowledgement" } else { "a result" };
            self.doubts.push(format!("{what}: {doubt}"));
            return;
        }
        match stage {
            ReportStage::Ack => self.ack = json::read(&message.payload).ok(),
            ReportStage::Done => self.done = json::read(&message.payload).ok(),
        }
    }

    fn take_rejection(&mut self, node_keys: &NodeKeys, id: Uuid, digest: &str, message: &Message) {
        let Ok(refused) = json::read::<RejectionEvent>(&message.payload) else { return };
        if refused.digest != digest && refused.id != Some(id) {
            return;
        }
        match node_keys.verify(&self.node, message) {
            Ok(_) => self.refusals.push(refused),
            Err(doubt) => self.doubts.push(format!("a rejection: {doubt}")),
        }
    }

    /// Returns the outcome in one word, and the reason in a sentence.
    pub fn verdict(&self) -> (&'static str, String) {
        if let Some(done) = &self.done {
            let said = done.message.clone().unwrap_or_default();
            let why = match (&done.code, done.rule) {
                (Some(code), _) => format!("{code}: {said}"),
                (None, Some(rule)) if said.is_empty() => format!("{} {rule}", format_rule_source(&done.signers)),
                (None, Some(rule)) => format!("{said} ({} {rule})", format_rule_source(&done.signers)),
                (None, None) => said,
            };
            return (done.outcome.as_str(), why);
        }
        if let Some(refused) = self.refusals.last() {
            return ("refused", format!("{}: {}", refused.code, refused.message));
        }
        match &self.ack {
            Some(Ack { status: AckStatus::NotSelected, .. }) => {
                ("not_selected", "the filter (`--where`) of the command is false on this node".to_owned())
            }
            Some(ack) => ("accepted", self.explain_accepted(ack)),
            None => ("no_answer", self.explain_no_answer()),
        }
    }

    fn explain_accepted(&self, ack: &Ack) -> String {
        let id = self.command.id;
        let since = format!("the node accepted the command at {:.0}", ack.at);
        match self.situation.running {
            Some(running) if running == id => format!("{since}, and runs it now"),
            _ if ack.wave.is_some() => {
                let wave = ack.wave.unwrap_or_default();
                let halt = self.word.as_ref().filter(|word| word.what == "halt").map_or_else(String::new, |word| {
                    let reason = word.reason.as_deref().unwrap_or("no reason given");
                    format!("; the job is halted by {} since {:.0}: {reason}", word.by.join(", "), word.at)
                });
                format!("{since}, and waits in wave {wave}{halt}")
            }
            Some(running) => format!("{since}, and runs {running}{} before it", format_creation_time(running)),
            None => format!("{since}, and sent no result: {}", self.describe_liveness()),
        }
    }

    fn explain_no_answer(&self) -> String {
        if self.meant == Some(false) {
            return "the command is not for this node".to_owned();
        }
        let mut why = vec![self.describe_liveness()];
        why.extend(self.situation.running.map(|running| {
            format!("it runs {running}{}, and {} wait in its queue", format_creation_time(running), self.situation.queued)
        }));
        if !self.doubts.is_empty() {
            why.push("messages in its name failed verification".to_owned());
        }
        why.join("; ")
    }

    fn describe_liveness(&self) -> String {
        let heard = self.situation.heard.map_or_else(String::new, |at| format!(", last heartbeat at {at:.0}"));
        match self.situation.presence {
            NodeLiveness::Alive => format!("the node is online{heard}"),
            NodeLiveness::Silent => format!("the node is silent{heard}"),
            NodeLiveness::Stopped => format!("its agent was stopped{heard}"),
            NodeLiveness::Unverified => "the state in its name failed verification".to_owned(),
            NodeLiveness::Unknown => "the fleet has no state of this node".to_owned(),
        }
    }
}

fn format_rule_source(signers: &[String]) -> String {
    if signers.is_empty() { "allowed by rule".to_owned() } else { format!("signed by {}, allowed by rule", signers.join(", ")) }
}

/// Formats the time at which the command with this id was created.
fn format_creation_time(id: Uuid) -> String {
    let time = id.get_timestamp().and_then(|time| i64::try_from(time.to_unix().0).ok());
    let time = time.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(String::new, |time| format!(" (sent at {time})"))
}

fn situation(states: &NodeStates, node: &NodeId, command: &Command) -> NodeSituation {
    let Some(state) = states.get(node) else {
        let is_unverified = states.unverified.iter().any(|doubtful| doubtful.node == *node);
        let presence = if is_unverified { NodeLiveness::Unverified } else { NodeLiveness::Unknown };
        return NodeSituation { presence, ..NodeSituation::default() };
    };
    let channel = command.channel.as_ref().map(|wanted| match state.channels.get(&wanted.name) {
        Some(at) => format!("{}: epoch {}, serial {}", wanted.name, at.epoch, at.serial),
        None => format!("{}: never seen", wanted.name),
    });
    NodeSituation {
        presence: NodeLiveness::new(state, states.read_at),
        heard: Some(state.at),
        trust: Some(state.trust),
        groups: state.groups.clone(),
        running: state.running,
        queued: state.queued,
        outbox: state.outbox,
        channel,
        alarms: state.alarms.clone(),
    }
}

fn is_targeted(command: &Command, situation: &NodeSituation, node: &NodeId) -> Option<bool> {
    // Only the node itself reports its groups.
    let by_groups = || situation.heard.map(|_| command.to.includes(node, &situation.groups));
    command.to.includes_by_name(node).or_else(by_groups)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::fleet::targeting::node_identity::{IdentityError, UnverifiedState};
    use crate::fleet::targeting::states::tests::state;

    const NOW: Timestamp = Timestamp::constant(1_795_000_000, 0);

    fn command(to: &serde_json::Value) -> Command {
        serde_json::from_value(json!({
            "id": Uuid::nil(), "fleet": "f", "to": to, "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z",
            "action": {"ensure": {"type": "file", "properties": {"name": "/a"}}},
        }))
        .unwrap()
    }

    fn why(states: &NodeStates, to: &serde_json::Value) -> Explanation {
        let (command, node) = (command(to), "web1".parse::<NodeId>().unwrap());
        let envelope = Envelope { payload_type: "t".into(), payload: b"p".to_vec(), signatures: vec![] };
        let situation = situation(states, &node, &command);
        Explanation {
            meant: is_targeted(&command, &situation, &node),
            command: job_log::job_log_row(&command, &envelope, None),
            node,
            ack: None,
            done: None,
            refusals: vec![],
            doubts: vec![],
            word: None,
            situation,
        }
    }

    fn states(change: impl FnOnce(&mut crate::wire::NodeState)) -> NodeStates {
        let mut one = state("web1", &["web"], &NOW.to_string(), true);
        change(&mut one);
        NodeStates { read_at: NOW, verified: BTreeMap::from([(one.node.clone(), one)]), ..NodeStates::default() }
    }

    fn said(why: &Explanation) -> String {
        let (verdict, because) = why.verdict();
        format!("{verdict}: {because}")
    }

    #[test]
    fn a_missing_answer_is_explained() {
        let (all, here) = (json!({"all": true}), states(|_| {}));
        assert!(
            said(&why(&here, &all)).starts_with("no_answer: the node is online, last heartbeat at"),
            "{}",
            said(&why(&here, &all))
        );
        assert_eq!(said(&why(&here, &json!({"groups": ["db"]}))), "no_answer: the command is not for this node");
        assert_eq!(said(&why(&NodeStates::default(), &all)), "no_answer: the fleet has no state of this node");
        assert!(said(&why(&states(|state| state.alive = false), &all)).contains("its agent was stopped"));
        assert!(said(&why(&states(|state| state.at = Timestamp::UNIX_EPOCH), &all)).contains("the node is silent"));
        let busy = states(|state| (state.running, state.queued) = (Some(Uuid::from_u128(7)), 2));
        assert!(said(&why(&busy, &all)).ends_with("it runs 00000000-0000-0000-0000-000000000007, and 2 wait in its queue"));
        let doubtful =
            UnverifiedState { node: "web1".parse().unwrap(), state: None, error: IdentityError::Unknown, is_known: true };
        let forged = NodeStates { unverified: vec![doubtful], ..NodeStates::default() };
        assert_eq!(said(&why(&forged, &all)), "no_answer: the state in its name failed verification");
    }

    #[test]
    fn messages_of_the_node_give_the_reason() {
        let mut one = why(&states(|_| {}), &json!({"all": true}));
        let ack = json!({"protocol": "p", "id": Uuid::nil(), "digest": "d", "node": "web1", "at": NOW, "status": "accepted"});
        one.ack = serde_json::from_value(ack).unwrap();
        assert!(said(&one).starts_with("accepted: the node accepted the command at"), "{}", said(&one));
        let done = |more: serde_json::Value| {
            let mut done = json!({"protocol": "p", "digest": "d", "node": "web1", "at": NOW, "outcome": "changed"});
            done.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(done).unwrap()
        };
        one.done = Some(done(json!({"rule": 2, "signers": ["ops-a", "ops-b"]})));
        assert_eq!(said(&one), "changed: signed by ops-a, ops-b, allowed by rule 2");
        one.done = Some(done(json!({"outcome": "refused", "code": "not_allowed", "message": "no rule allows it"})));
        assert_eq!(said(&one), "refused: not_allowed: no rule allows it");
    }
}
