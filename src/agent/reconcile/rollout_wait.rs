//! What stands in waves: until its turn on this node, what was in force before stays so; and when its turn never comes.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::model::HealthStatus;
use crate::trust::RejectionCode;
use crate::wire::{CommandOutcome, CommandResult};

use crate::agent::reconcile::desired_state::{Assignment, Channel, DueWork};
use crate::agent::reconcile::reconciler::Task;
use crate::agent::rollout::gate;
use crate::agent::rollout::gate::RolloutProgress;
use crate::agent::rollout::health_gate;
use crate::agent::status::messages;

/// How long to wait before it is asked again whether it may begin: `halt` and `resume` are heard within this time.
const LOOK: Duration = Duration::from_secs(30);
/// What never begins is only looked at in case that something changes.
const NEVER: Duration = Duration::from_secs(3600);

impl Task {
    /// Nothing when the latest of a channel may be run. Else what was in force before is kept to meanwhile, and this is
    /// when to look again.
    pub(in crate::agent) async fn before_its_turn(&mut self, name: &str, channel: &Channel) -> Option<Instant> {
        let (pause, trouble) = match self.may_begin(name, channel).await {
            gate::RolloutTurn::Begin => {
                self.kept.remove(name);
                self.rollouts.remove(name);
                return None;
            }
            gate::RolloutTurn::Wait(_) => (channel.latest.command.options.waves.as_ref().map_or(LOOK, gate::poll_interval), None),
            gate::RolloutTurn::Halted(word) => (LOOK, Some(format!("what is assigned is {word}"))),
            gate::RolloutTurn::Unknown(why) => {
                (LOOK, Some(format!("it can't be asked whether what is assigned may begin: {why}")))
            }
            gate::RolloutTurn::Over(why) => {
                let (latest, why) = (&channel.latest, (RejectionCode::Halted, why));
                let trouble = format!("what is assigned was not begun: {}", why.1);
                let done =
                    messages::not_done(&self.node, Some(latest.command.id), latest.command.digest(), CommandOutcome::Halted, why);
                self.publish_result(name, channel, done).await;
                (NEVER, Some(trouble))
            }
        };
        self.keep_to_good(name, channel, trouble).await;
        let again = Instant::now() + pause;
        Some(self.kept.get(name).map_or(again, |at| again.min(*at)))
    }

    /// What has begun once goes on. What was not begun by the time at which it was to be signed again never is: until
    /// then the ledger knows how it ended.
    async fn may_begin(&mut self, name: &str, channel: &Channel) -> gate::RolloutTurn {
        let command = &channel.latest.command;
        if command.options.waves.is_none() {
            return gate::RolloutTurn::Begin;
        }
        let never = |why: String| gate::RolloutTurn::Over(why);
        match self.node.disk.result(command.id) {
            Some(CommandResult { outcome: CommandOutcome::Halted, message, .. }) => never(message.unwrap_or_default()),
            Some(_) => gate::RolloutTurn::Begin,
            None if channel.good.as_ref().is_some_and(|good| good.command.id == command.id) => gate::RolloutTurn::Begin,
            None if self.node.now() > command.expires => never(format!("it could begin until {}", command.expires)),
            None => {
                let (of, rollout) = self.rollouts.entry(name.to_owned()).or_default();
                if *of != command.id {
                    (*of, *rollout) = (command.id, RolloutProgress::default());
                }
                rollout.may_begin(command, &self.node, &self.bus).await
            }
        }
    }

    /// Runs the last good one when it is due.
    async fn keep_to_good(&mut self, name: &str, channel: &Channel, trouble: Option<String>) {
        self.node.standing.change(name, &channel.latest, |channel| channel.went.trouble.clone_from(&trouble));
        let Some((good, assign)) = channel.good.as_ref().and_then(|good| Some((good, good.assign()?))) else { return };
        if self.kept.get(name).is_some_and(|due| Instant::now() < *due) {
            return;
        }
        let ended = self.perform(good, false, DueWork::Run).await;
        if !ended.is_interrupted() {
            self.note(name, &channel.latest, &ended, trouble);
        }
        let next = channel.slot(assign.interval.get(), &self.node.settings(), self.node.now());
        self.kept.insert(name.to_owned(), next);
    }

    /// When the hold of what was assigned is over, if the waves want a look then and it was not taken yet.
    pub(in crate::agent) fn gate(&self, latest: &Assignment) -> Option<Instant> {
        if !self.node.looks.is_pending(latest.command.id) {
            return None;
        }
        Some(Instant::now() + until(self.looks_at(latest)?, self.node.now()))
    }

    fn looks_at(&self, latest: &Assignment) -> Option<Timestamp> {
        let waves = latest.command.options.waves.as_ref()?;
        Some(waves.success_counts_at(self.node.disk.result(latest.command.id)?.at))
    }

    /// Takes the look at the end of the hold, when it is time for it: with `health`, which is none where nothing looks at it.
    pub(in crate::agent) fn looked(&self, channel: &Channel, health: Option<HealthStatus>) {
        let latest = &channel.latest;
        let is_time = self.looks_at(latest).is_none_or(|at| at <= self.node.now());
        if !is_time || !self.node.looks.is_pending(latest.command.id) {
            return;
        }
        if health != Some(HealthStatus::Critical) {
            let outcome = self.node.disk.result(latest.command.id).map_or(CommandOutcome::Stable, |done| done.outcome);
            gate::publish_success(&self.node, &latest.command, outcome);
        }
        health_gate::complete(&self.node, latest.command.id);
    }

    /// The same where the waves are not gated: no health check runs for it. True when there is nothing else to look at.
    pub(in crate::agent) fn looked_alone(&self, channel: &Channel) -> bool {
        let latest = &channel.latest;
        let alone = self.node.looks.is_pending(latest.command.id) && !health_gate::is_gated(&self.node, &latest.command);
        if alone {
            self.looked(channel, None);
        }
        alone && latest.assign().is_none_or(|assign| assign.health_interval.is_none())
    }

    /// A critical look at what has begun counts as a failure for as long as other nodes may begin.
    pub(in crate::agent) fn mark_health(&self, channel: &Channel, health: Option<HealthStatus>) {
        let (latest, node) = (&channel.latest, &self.node);
        let waves = latest.command.options.waves.as_ref().filter(|waves| waves.health);
        let is_on = waves.is_some() && node.now() < latest.command.latest_start();
        let is_latest = channel.good.as_ref().is_some_and(|good| good.command.id == latest.command.id);
        if is_on && is_latest && health == Some(HealthStatus::Critical) {
            let done = messages::done(node, Some(latest.command.id), latest.command.digest(), CommandOutcome::Failed);
            gate::publish_failure(node, &latest.command, &done);
        }
    }
}

fn until(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}
