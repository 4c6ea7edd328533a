//! Prepares a job: command, nodes that must answer, waves, check, signature.

use crate::fleet::connection::FleetConnection;
use crate::fleet::rollout::request::{self, InvalidPlan, RolloutRequest};
use crate::fleet::targeting::states::ExpectedNode;
use crate::trust::Signer;
use crate::wire::Command;
use crate::wire::command::MalformedCommand;

use super::draft::CommandDraft;
use super::seal::{SealError, SealedCommand, sign};

/// A command before it is signed, with the nodes that must answer.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedJob {
    /// The command.
    pub command: Command,
    /// The nodes that must answer.
    pub expected: Vec<ExpectedNode>,
}

impl PreparedJob {
    /// Builds the command of a draft: its id, and its times by the clock of this machine.
    pub fn new(fleet: &FleetConnection, draft: CommandDraft, expected: Vec<ExpectedNode>) -> Self {
        let command = draft.command(&fleet.operator.fleet, fleet.host.new_id(), fleet.now());
        Self { command, expected }
    }

    /// Adds the waves of a rollout, sized by the nodes that must answer. Returns the number of nodes in each wave.
    ///
    /// # Errors
    /// When no node of a wave can prove its success.
    pub fn add_waves(&mut self, fleet: &FleetConnection, rollout: &RolloutRequest) -> Result<Vec<usize>, InvalidPlan> {
        let waves = rollout.waves(self.command.id, &self.expected, |node| fleet.node_keys.key(node))?;
        let sizes = request::wave_sizes(&waves, self.command.id, &self.expected);
        self.command.options.waves = Some(waves);
        Ok(sizes)
    }

    /// Checks the form of the command, which nodes check too.
    ///
    /// # Errors
    /// The first property that nodes would reject.
    pub fn check(&self) -> Result<(), MalformedCommand> {
        self.command.check()
    }

    /// Checks the command and signs it with each key.
    ///
    /// # Errors
    /// When nodes would reject its form, or as [`sign`].
    pub fn sign(self, keys: &[(&str, &dyn Signer)]) -> Result<(SealedCommand, Vec<ExpectedNode>), SealError> {
        self.check()?;
        Ok((sign(self.command, keys)?, self.expected))
    }
}
