//! The rollout gate: decides whether this node may begin a command in waves.
//!
//! The gate opens when the previous wave succeeded, no operator halts the job, and the error budget is not exhausted. The gate
//! reads the stream of rollouts by direct gets, without a consumer. The operator's process is not needed.
//!
//! Time alone begins no wave. A wave begins after successes of the previous one, which the witnesses signed with the keys that
//! the command names. An unreadable stream keeps the gate closed. A witness that stays silent for longer than its wave may take
//! has failed. A monotonic clock measures that time while the stream can be read and the job is not halted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::agent::durable::cancelled_jobs::RecordCancelError;
use crate::agent::durable::publisher::Publisher;
use crate::agent::identity::AgentInstance;
use crate::agent::status::board::{AlarmKind, StatusBoard};
use crate::agent::status::messages;
use crate::agent::trust::command_verifier::CommandVerifier;
use crate::diag::error_chain;
use crate::model::NodeId;
use crate::transport::{Bus, TransportError};
use crate::trust::{Verified, proves_success};
use crate::wire::CommandOutcome;
use crate::wire::command::{Action, Command, RolloutPlan};
use crate::wire::receipt::HEADER;
use crate::wire::rollout_plan::{RolloutPosition, Wave};

use super::overrides::Overrides;

/// Most failed nodes that a message names.
const MAX_NAMED: usize = 3;
/// Longest time between two looks that counts as watching. After a longer gap the node did not watch meanwhile.
const MAX_GAP: Duration = Duration::from_secs(60);

/// The answer of the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum RolloutTurn {
    /// This node may begin.
    Begin,
    /// This node waits, for this reason. Ask again after [`poll_interval`].
    Wait(String),
    /// The job is halted, by these signers and for this reason. [`Overrides::watch`] reports a change.
    Halted(String),
    /// The stream of rollouts cannot be read, for this reason. Ask again after a pause.
    Unknown(String),
    /// This node never begins: too many nodes failed, or too few succeeded.
    Ended(String),
}

/// Returns the time between two looks of a waiting node, before jitter: a part of the hold between two waves.
pub(in crate::agent) fn poll_interval(plan: &RolloutPlan) -> Duration {
    (plan.hold.as_std() / 4).clamp(Duration::from_millis(500), Duration::from_secs(15))
}

/// Reads the rollout of a command and decides.
#[derive(Clone)]
pub(in crate::agent) struct Gate {
    pub(super) identity: Arc<AgentInstance>,
    pub(super) verifier: CommandVerifier,
    pub(super) publisher: Publisher,
    pub(super) status: Arc<StatusBoard>,
    pub(super) overrides: Arc<Overrides>,
}

impl Gate {
    /// Records a verified override, on disk before it has an effect. Returns false when a newer one is known.
    pub(in crate::agent) fn record_override(&self, verified: &Verified<Command>) -> bool {
        let is_newer = self.overrides.record(verified);
        if is_newer {
            self.status.report_storage_error(self.overrides.persist());
        }
        is_newer
    }

    /// Records the cancel of a command in waves. Returns false for another override.
    fn record_cancel(&self, about: &Command, verified: &Verified<Command>) -> bool {
        let is_cancel = matches!(verified.action, Action::Cancel(_));
        // An assignment ends by a withdrawal only.
        if is_cancel && !about.action.is_desired_state() {
            match self.verifier.durable.record_cancel(about.id, verified, self.identity.now()) {
                // A command that this node received always has a place.
                Ok(_) | Err(RecordCancelError::Full(_)) => {}
                Err(RecordCancelError::Store(error)) => self.status.raise(AlarmKind::Disk, error_chain(&error)),
            }
        }
        is_cancel
    }

    /// Verifies an override or a go-ahead of a job. A rejected one is reported once, and has no effect.
    fn verify_control(&self, about: &Command, subject: &str, bytes: &[u8]) -> Option<Verified<Command>> {
        let rejection = match self.verifier.verify(|verifier| verifier.open_override(bytes, about)) {
            Ok(verified) => return Some(verified),
            Err(rejection) => rejection,
        };
        if self.overrides.is_new_rejection(&rejection.digest) {
            let why = (rejection.code, rejection.message);
            let result = messages::not_run(&self.identity, rejection.id, &rejection.digest, CommandOutcome::Refused, why);
            tracing::warn!(subject, code = result.code.as_deref(), why = result.message.as_deref(), "refused");
            self.publisher.post_rejection(&result, subject, rejection.keyids);
        }
        None
    }
}

/// The progress of one command in waves, as far as this node read it.
#[derive(Debug, Default)]
pub(in crate::agent) struct RolloutProgress {
    /// The failed nodes, in the order of the stream.
    failed: Vec<NodeId>,
    /// The sequence up to which failures were read.
    read: u64,
    /// The witnesses of the previous wave that proved a success.
    succeeded: BTreeSet<NodeId>,
    /// The highest wave with a signed go-ahead.
    released_wave: u64,
    /// The time for which this node watched the previous waves.
    watched: Duration,
    /// The last look that read the stream.
    last_read: Option<Instant>,
}

impl RolloutProgress {
    /// Decides whether this node may begin now.
    pub(in crate::agent) async fn may_begin(&mut self, command: &Verified<Command>, gate: &Gate, bus: &Bus) -> RolloutTurn {
        let Some(plan) = &command.options.waves else { return RolloutTurn::Begin };
        let turn = match self.read_stream(command, plan, gate, bus).await {
            Ok(Some(why)) => return RolloutTurn::Ended(why),
            Ok(None) => self.decide(command, plan, gate, bus).await,
            Err(error) => Err(error),
        };
        turn.unwrap_or_else(|error| {
            self.last_read = None;
            RolloutTurn::Unknown(error_chain(&error))
        })
    }

    /// Decides for a node whose turn had come, and which waited for other work since.
    pub(in crate::agent) async fn may_still_begin(&mut self, command: &Verified<Command>, gate: &Gate, bus: &Bus) -> bool {
        let Some(plan) = &command.options.waves else { return true };
        self.read_stream(command, plan, gate, bus).await.is_ok_and(|over| over.is_none())
            && gate.overrides.halted(command.id).is_none()
    }

    async fn decide(
        &mut self,
        command: &Verified<Command>,
        plan: &RolloutPlan,
        gate: &Gate,
        bus: &Bus,
    ) -> Result<RolloutTurn, TransportError> {
        if let Some(halted) = gate.overrides.halted(command.id) {
            self.last_read = None;
            return Ok(RolloutTurn::Halted(halted));
        }
        let wave = plan.wave_number(RolloutPosition::for_node(command.id, &gate.identity.node));
        let Some(previous) = plan.previous_wave(wave) else { return Ok(RolloutTurn::Begin) };
        self.watched += self.last_read.replace(Instant::now()).map_or(Duration::ZERO, |last| last.elapsed().min(MAX_GAP));
        let is_late = self.watched >= plan.max_wait(wave, command.options.timeout);
        self.read_successes(command, previous, is_late, gate, bus).await?;
        let turn = self.evaluate_wave(plan, wave, previous, is_late);
        if turn == RolloutTurn::Begin && plan.go && !self.has_go_ahead(command, wave, gate, bus).await? {
            return Ok(RolloutTurn::Wait(format!("wave {wave} waits for the go-ahead of an operator")));
        }
        Ok(turn)
    }

    /// Reads which witnesses of the previous wave succeeded, up to the first without a success. Once they are late, reads all of
    /// them.
    async fn read_successes(
        &mut self,
        command: &Verified<Command>,
        previous: &Wave,
        is_late: bool,
        gate: &Gate,
        bus: &Bus,
    ) -> Result<(), TransportError> {
        let subjects = &gate.identity.subjects;
        let stream = subjects.stream("ROLLOUTS");
        for witness in &previous.witnesses {
            if self.succeeded.contains(&witness.node) || self.failed.contains(&witness.node) {
                continue;
            }
            let subject = subjects.rollout_ok(command.id, &witness.node);
            let found = bus.last(&stream, subject.as_str()).await?;
            let proof = found.as_ref().map(|message| (message.header(HEADER), message.payload.as_slice()));
            if proof.is_some_and(|(receipt, payload)| {
                proves_success(witness, command.id, command.digest(), subject.as_str(), receipt, payload)
            }) {
                self.succeeded.insert(witness.node.clone());
            } else if !is_late {
                break;
            }
        }
        Ok(())
    }

    /// Evaluates the previous wave. The wave failed as soon as too few witnesses can succeed. The wave ended when every witness
    /// answered or is late.
    fn evaluate_wave(&self, waves: &RolloutPlan, wave: usize, before: &Wave, late: bool) -> RolloutTurn {
        let names = || before.witnesses.iter().map(|witness| &witness.node);
        let silent: Vec<&str> =
            names().filter(|name| !self.succeeded.contains(*name) && !self.failed.contains(name)).map(NodeId::as_str).collect();
        // A failure after a success counts as a failure.
        let is_ok = |name: &&NodeId| self.succeeded.contains(*name) && !self.failed.contains(name);
        let (ok, number) = (names().filter(is_ok).count() as u64, wave.saturating_sub(1));
        if !late && !silent.is_empty() {
            let wanted = before.witnesses.len();
            return RolloutTurn::Wait(format!("wave {wave} waits for wave {number}: {ok} of {wanted} succeeded"));
        }
        if ok < before.min_ok {
            let said = if silent.is_empty() { String::new() } else { format!(", and {} stayed silent", join_names(&silent)) };
            return RolloutTurn::Ended(format!(
                "{ok} of the {} nodes of wave {number} that must succeed did{said}",
                before.min_ok
            ));
        }
        if (self.failed.len() + silent.len()) as u64 > waves.max_failed.max(before.witnesses.len() as u64 - before.min_ok) {
            return RolloutTurn::Ended(format!(
                "the error budget of {} is exhausted: {} stayed silent",
                waves.max_failed,
                join_names(&silent)
            ));
        }
        RolloutTurn::Begin
    }

    /// Returns true when an operator signed a go-ahead for this wave.
    async fn has_go_ahead(&mut self, command: &Command, wave: usize, gate: &Gate, bus: &Bus) -> Result<bool, TransportError> {
        let wave = wave as u64;
        if self.released_wave >= wave {
            return Ok(true);
        }
        let subjects = &gate.identity.subjects;
        let subject = subjects.rollout_go_ahead(command.id);
        if let Some(message) = bus.last(&subjects.stream("ROLLOUTS"), subject.as_str()).await?
            && let Some(verified) = gate.verify_control(command, subject.as_str(), &message.payload)
            && let Action::Go(ahead) = &verified.get().action
        {
            self.released_wave = self.released_wave.max(ahead.wave);
        }
        Ok(self.released_wave >= wave)
    }

    /// Reads the new part of the stream: records overrides, and returns the reason when too many nodes failed.
    ///
    /// # Errors
    /// When the stream cannot be read.
    async fn read_stream(
        &mut self,
        command: &Command,
        plan: &RolloutPlan,
        gate: &Gate,
        bus: &Bus,
    ) -> Result<Option<String>, TransportError> {
        let subjects = &gate.identity.subjects;
        let stream = subjects.stream("ROLLOUTS");
        let control = subjects.rollout_control(command.id);
        if let Some(message) = bus.last(&stream, control.as_str()).await?
            && let Some(verified) = gate.verify_control(command, control.as_str(), &message.payload)
            && !gate.record_cancel(command, &verified)
        {
            gate.record_override(&verified);
        }
        let failures = subjects.rollout_failures(command.id);
        while self.failed.len() as u64 <= plan.max_failed {
            let Some(message) = bus.stored_after(&stream, failures.as_str(), self.read).await? else { break };
            self.read = message.seq.unwrap_or_default().max(self.read.saturating_add(1));
            // The server pins the name in the subject to the publishing node.
            let name = message.subject.rsplit('.').next().and_then(|name| name.parse().ok());
            self.failed.extend(name.filter(|name| self.counts(command, name)));
        }
        Ok(self.budget_exhausted(plan))
    }

    /// Returns true when a failure of this node counts. A failure of a node outside of the target does not count. Only
    /// the nodes themselves know the members of a group.
    fn counts(&self, command: &Command, name: &NodeId) -> bool {
        command.to.includes_by_name(name) != Some(false) && !self.failed.contains(name)
    }

    fn budget_exhausted(&self, plan: &RolloutPlan) -> Option<String> {
        let max = plan.max_failed;
        let names: Vec<&str> = self.failed.iter().map(NodeId::as_str).collect();
        (self.failed.len() as u64 > max)
            .then(|| format!("the error budget of {max} is exhausted: {} failed first", join_names(&names)))
    }
}

fn join_names(names: &[&str]) -> String {
    names.get(..MAX_NAMED).unwrap_or(names).join(", ")
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::model::HumanDuration;
    use crate::wire::command::Target;
    use crate::wire::rollout_plan::{OnFailure, WAVE_MARGIN, Witness};

    fn name(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    #[test]
    fn a_budget_is_spent_by_more_nodes_than_it_allows() {
        let mut command: Command = serde_json::from_value(serde_json::json!({
            "id": Uuid::nil(), "fleet": "f", "to": {"all": true}, "issued": "2026-11-20T10:00:00Z",
            "expires": "2026-11-20T10:05:00Z", "action": {"status": {}},
        }))
        .unwrap();
        let waves = waves(&[], 0, 1);
        let mut rollout = RolloutProgress { failed: vec![name("a")], ..RolloutProgress::default() };
        assert_eq!(rollout.budget_exhausted(&waves), None);
        assert!(!rollout.counts(&command, &name("a")) && rollout.counts(&command, &name("b")), "each node counts once");
        rollout.failed.push(name("b"));
        assert_eq!(rollout.budget_exhausted(&waves).unwrap(), "the error budget of 1 is exhausted: a, b failed first");
        command.to = Target::nodes(vec![name("a")]);
        assert!(!RolloutProgress::default().counts(&command, &name("b")), "it was not asked");
    }

    fn waves(witnesses: &[&str], min_ok: u64, max_failed: u64) -> RolloutPlan {
        let witnesses = witnesses.iter().map(|node| Witness { node: name(node), key: String::new() }).collect();
        let steps = vec![
            Wave { upto: RolloutPosition::try_from("7fffffffffffffff".to_owned()).unwrap(), witnesses, min_ok },
            Wave { upto: RolloutPosition::LAST, witnesses: vec![], min_ok: 0 },
        ];
        RolloutPlan {
            steps,
            hold: HumanDuration::seconds(60),
            margin: WAVE_MARGIN,
            max_failed,
            health: false,
            go: false,
            on_failure: OnFailure::Stop,
        }
    }

    #[test]
    fn a_wave_begins_by_successes_of_the_one_before() {
        let waits = "wave 2 waits for wave 1: ";
        for (ok, failed, min_ok, max_failed, late, wanted) in [
            (&[][..], &[][..], 2, 0, false, "wave 2 waits for wave 1: 0 of 2 succeeded"),
            (&["a"], &[], 2, 0, false, "wave 2 waits for wave 1: 1 of 2 succeeded"),
            (&["a", "b"], &[], 2, 0, false, ""),
            // Silence is a failure, once the wave has had its time.
            (&[], &[], 2, 0, true, "0 of the 2 nodes of wave 1 that must succeed did, and a, b stayed silent"),
            (&["a"], &[], 2, 0, true, "1 of the 2 nodes of wave 1 that must succeed did, and b stayed silent"),
            (&["a"], &[], 1, 1, false, waits),
            (&["a"], &[], 1, 1, true, ""),
            (&["a"], &["c"], 1, 1, true, "the error budget of 1 is exhausted: b stayed silent"),
            // A failure within the budget is no success.
            (&["a"], &["b"], 1, 1, false, ""),
            (&[], &["a", "b"], 1, 2, false, "0 of the 1 nodes of wave 1 that must succeed did"),
            (&["a"], &["a"], 1, 1, true, "0 of the 1 nodes of wave 1 that must succeed did, and b stayed silent"),
            // Successes of others prove nothing.
            (&["c", "d"], &[], 2, 0, true, "0 of the 2 nodes of wave 1 that must succeed did, and a, b stayed silent"),
        ] {
            let names = |list: &[&str]| list.iter().map(|node| name(node)).collect::<Vec<_>>();
            let ok = names(ok).into_iter().collect();
            let rollout = RolloutProgress { succeeded: ok, failed: names(failed), ..RolloutProgress::default() };
            let waves = waves(&["a", "b"], min_ok, max_failed);
            let said = match rollout.evaluate_wave(&waves, 2, waves.previous_wave(2).unwrap(), late) {
                RolloutTurn::Begin => String::new(),
                RolloutTurn::Wait(why) | RolloutTurn::Ended(why) => why,
                other => panic!("{other:?}"),
            };
            assert!(if wanted.is_empty() { said.is_empty() } else { said.starts_with(wanted) }, "{said}, wanted {wanted}");
        }
    }

    #[test]
    fn looks_are_as_far_apart_as_the_hold_is_long() {
        let with = |hold| poll_interval(&RolloutPlan { hold: HumanDuration::seconds(hold), ..waves(&["a"], 1, 0) }).as_millis();
        assert_eq!((with(1), with(8), with(3600)), (500, 2000, 15_000));
    }
}
