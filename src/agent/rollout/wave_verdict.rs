//! The verdict about the wave of this node: the assignment that the node ran stays, or the node goes back.
//!
//! Only reports count that a witness signed with the key in the command. Silence and unsigned reports send no node back: the
//! server could withhold or invent them.

use std::collections::BTreeSet;

use crate::model::NodeId;
use crate::transport::{Bus, TransportError};
use crate::trust::{Verified, proves_return, proves_success};
use crate::wire::command::Command;
use crate::wire::receipt::HEADER;
use crate::wire::rollout_plan::{RolloutPosition, Wave};

use super::gate::Gate;

/// Most failures that one question reads. The rest follows with the next question.
const MAX_READ: usize = 64;
/// Most failed nodes that a message names.
const MAX_NAMED: usize = 3;

/// The time of a node in its rollout, after its own run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum HoldPhase {
    /// The hold of this node goes on.
    Holding,
    /// The hold is over, and the witnesses of the wave may still report.
    AwaitingWitnesses,
    /// Every witness has had its time.
    Over,
}

/// The verdict about an assignment that this node ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum WaveVerdict {
    /// Ask again later.
    Undecided,
    /// The assignment stays.
    Stays,
    /// The wave failed, for this reason: the node goes back.
    Failed(String),
}

/// The verified reports of the witnesses of a wave, as far as this node read them.
#[derive(Debug, Default)]
pub(in crate::agent) struct WaveReports {
    succeeded: BTreeSet<NodeId>,
    failed: BTreeSet<NodeId>,
    /// The sequence up to which failures were read.
    read: u64,
}

impl WaveReports {
    /// Reads the news of the wave of this node, and decides.
    ///
    /// # Errors
    /// When the stream cannot be read.
    pub(in crate::agent) async fn verdict(
        &mut self,
        command: &Verified<Command>,
        phase: HoldPhase,
        gate: &Gate,
        bus: &Bus,
    ) -> Result<WaveVerdict, TransportError> {
        let Some(plan) = &command.options.waves else { return Ok(WaveVerdict::Stays) };
        let number = plan.wave_number(RolloutPosition::for_node(command.id, &gate.identity.node));
        let Some(wave) = plan.wave(number) else { return Ok(WaveVerdict::Stays) };
        if !wave.witnesses.is_empty() {
            self.read_failures(command, wave, gate, bus).await?;
            self.read_successes(command, wave, gate, bus).await?;
        }
        Ok(self.decide(wave, number, phase))
    }

    /// Decides by the reports so far. A failure after a success counts as a failure.
    fn decide(&self, wave: &Wave, number: usize, phase: HoldPhase) -> WaveVerdict {
        let all = wave.witnesses.len() as u64;
        if all.saturating_sub(self.failed.len() as u64) < wave.min_ok {
            let names: Vec<&str> = self.failed.iter().take(MAX_NAMED).map(NodeId::as_str).collect();
            let (failed, wanted) = (self.failed.len(), wave.min_ok);
            let names = names.join(", ");
            return WaveVerdict::Failed(format!(
                "{failed} of {all} witnesses of wave {number} failed ({names}), and {wanted} must succeed"
            ));
        }
        let succeeded = self.succeeded.difference(&self.failed).count() as u64;
        match phase {
            HoldPhase::Holding => WaveVerdict::Undecided,
            HoldPhase::AwaitingWitnesses if succeeded < wave.min_ok => WaveVerdict::Undecided,
            HoldPhase::AwaitingWitnesses | HoldPhase::Over => WaveVerdict::Stays,
        }
    }

    async fn read_failures(
        &mut self,
        command: &Verified<Command>,
        wave: &Wave,
        gate: &Gate,
        bus: &Bus,
    ) -> Result<(), TransportError> {
        let subjects = &gate.identity.subjects;
        let (stream, failures) = (subjects.stream("ROLLOUTS"), subjects.rollout_failures(command.id));
        for _ in 0..MAX_READ {
            let Some(message) = bus.stored_after(&stream, failures.as_str(), self.read).await? else { break };
            self.read = message.seq.unwrap_or_default().max(self.read.saturating_add(1));
            let failed = wave.witnesses.iter().find(|witness| {
                let subject = subjects.rollout_failed(command.id, &witness.node);
                message.subject == subject.as_str()
                    && proves_return(
                        witness,
                        command.id,
                        command.digest(),
                        subject.as_str(),
                        message.header(HEADER),
                        &message.payload,
                    )
            });
            self.failed.extend(failed.map(|witness| witness.node.clone()));
        }
        Ok(())
    }

    /// Reads successes, up to the first witness without a report.
    async fn read_successes(
        &mut self,
        command: &Verified<Command>,
        wave: &Wave,
        gate: &Gate,
        bus: &Bus,
    ) -> Result<(), TransportError> {
        let subjects = &gate.identity.subjects;
        let stream = subjects.stream("ROLLOUTS");
        for witness in &wave.witnesses {
            if self.succeeded.contains(&witness.node) || self.failed.contains(&witness.node) {
                continue;
            }
            let subject = subjects.rollout_ok(command.id, &witness.node);
            let Some(message) = bus.last(&stream, subject.as_str()).await? else { break };
            let (id, receipt) = (command.id, message.header(HEADER));
            if !proves_success(witness, id, command.digest(), subject.as_str(), receipt, &message.payload) {
                break;
            }
            self.succeeded.insert(witness.node.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rollout_plan::Witness;

    fn names(text: &str) -> BTreeSet<NodeId> {
        text.split_whitespace().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn only_proved_failures_send_a_node_back() {
        use HoldPhase::{AwaitingWitnesses, Holding, Over};
        let failed = |text: &str| WaveVerdict::Failed(text.to_owned());
        for (ok, bad, min_ok, phase, wanted) in [
            // Silence, also to the end.
            ("", "", 3, Holding, WaveVerdict::Undecided),
            ("", "", 3, AwaitingWitnesses, WaveVerdict::Undecided),
            ("", "", 3, Over, WaveVerdict::Stays),
            // Enough can still succeed.
            ("", "a", 2, Holding, WaveVerdict::Undecided),
            ("b", "a", 2, AwaitingWitnesses, WaveVerdict::Undecided),
            ("b c", "a", 2, AwaitingWitnesses, WaveVerdict::Stays),
            ("a b c", "", 3, Holding, WaveVerdict::Undecided),
            // Too few can succeed: at once, and after a success too.
            ("", "a", 3, Holding, failed("1 of 3 witnesses of wave 2 failed (a), and 3 must succeed")),
            ("a b c", "a b", 2, Over, failed("2 of 3 witnesses of wave 2 failed (a, b), and 2 must succeed")),
        ] {
            let witness = |node: NodeId| Witness { node, key: String::new() };
            let wave = Wave { upto: RolloutPosition::LAST, witnesses: names("a b c").into_iter().map(witness).collect(), min_ok };
            let reports = WaveReports { succeeded: names(ok), failed: names(bad), read: 0 };
            assert_eq!(reports.decide(&wave, 2, phase), wanted, "{ok} / {bad} / {phase:?}");
        }
        let last = Wave { upto: RolloutPosition::LAST, witnesses: vec![], min_ok: 0 };
        assert_eq!(WaveReports::default().decide(&last, 2, AwaitingWitnesses), WaveVerdict::Stays, "no witnesses to wait for");
        assert_eq!(WaveReports::default().decide(&last, 2, Holding), WaveVerdict::Undecided);
    }
}
