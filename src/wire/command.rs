//! The command: the request of an operator to nodes, exactly as signed. `action.rs` has the work, `target.rs` the
//! nodes, `rollout_plan.rs` the waves.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::{HumanDuration, InvalidId, check_name};

use super::action::MalformedAction;
use super::report::ChannelPosition;
use super::rollout_plan::{InvalidRolloutPlan, MAX_ASSIGNMENT_ROLLOUT, MAX_COMMAND_ROLLOUT, OnFailure};
use super::target::MalformedTarget;

pub use super::action::{Action, Apply, Assign, Ensure, FactsQuery, GoAhead, Healthcheck, JobRef, NoParameters, RunChannel};
pub use super::rollout_plan::RolloutPlan;
pub use super::target::{Exclusion, Selector, Target};

/// The longest lifetime of a one-shot command: `expires` − `issued`.
pub const MAX_LIFETIME: HumanDuration = HumanDuration::seconds(15 * 60);
/// The longest lifetime of an assignment. A node does not begin an assignment that was not signed again for this long.
pub const MAX_ASSIGNMENT_LIFETIME: HumanDuration = HumanDuration::seconds(90 * 86_400);
/// The longest run. No upgrade takes a day, and a hanging run frees the node the next day.
pub const MAX_TIMEOUT: HumanDuration = HumanDuration::seconds(86_400);

/// A command. Unknown and duplicate keys are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// UUIDv7: nonce, job id, deduplication key and idempotency key in one.
    pub id: Uuid,
    /// The fleet; other fleets refuse.
    pub fleet: String,
    /// The nodes of the command.
    pub to: Target,
    /// The time of the signature.
    #[schemars(with = "String")]
    pub issued: Timestamp,
    /// Nodes do not accept the command before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub not_before: Option<Timestamp>,
    /// Nodes do not accept the command after this time. At most 15 minutes after `issued`, or 90 days for an assignment or
    /// withdrawal.
    #[schemars(with = "String")]
    pub expires: Timestamp,
    /// The position of an `apply`, `assign` or `withdraw` in a channel. A node refuses positions before the latest accepted
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Channel>,
    /// The work.
    pub action: Action,
    /// Options of the work.
    #[serde(default)]
    pub options: CommandOptions,
    /// The reason, for people. The audit trail keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A malformed command, independent of node and trust.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MalformedCommand {
    /// A mistake in `to`.
    #[error(transparent)]
    Target(#[from] MalformedTarget),
    /// A name that is not a single subject token.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// The command expires before it was issued.
    #[error("\"expires\" must be after \"issued\"")]
    ExpiresBeforeIssue,
    /// The lifetime is too long.
    #[error("\"expires\" is more than {0} after \"issued\"")]
    LifetimeTooLong(HumanDuration),
    /// The command becomes valid only after it expired.
    #[error("\"not_before\" must be before \"expires\"")]
    NeverValid,
    /// A channel on an action that has none.
    #[error("only an apply, assign or withdraw can be in a channel")]
    Channel,
    /// An assignment or withdrawal without a channel.
    #[error("an {0} must be in a channel")]
    NoChannel(&'static str),
    /// A mistake in the action.
    #[error(transparent)]
    Action(#[from] MalformedAction),
    /// A mistake in the rollout plan.
    #[error(transparent)]
    Waves(#[from] InvalidRolloutPlan),
    /// The timeout is too long.
    #[error("\"timeout\" is more than {MAX_TIMEOUT}")]
    Timeout,
    /// An option without a meaning for the action.
    #[error("\"{option}\" has no meaning for {action}")]
    Option {
        /// The option.
        option: &'static str,
        /// The action.
        action: &'static str,
    },
}

impl Command {
    /// Checks the form of the command, as far as possible without a clock, a node or keys.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), MalformedCommand> {
        check_name("fleet", &self.fleet)?;
        self.to.check()?;
        self.check_times()?;
        self.check_channel()?;
        self.check_options()?;
        self.action.check().map_err(MalformedCommand::Action)
    }

    fn check_channel(&self) -> Result<(), MalformedCommand> {
        match (&self.channel, &self.action) {
            (None, action) if action.is_desired_state() => Err(MalformedCommand::NoChannel(action.name())),
            (None, _) => Ok(()),
            (Some(channel), action) if action.is_desired_state() || matches!(action, Action::Apply(_)) => {
                Ok(check_name("channel", &channel.name)?)
            }
            (Some(_), _) => Err(MalformedCommand::Channel),
        }
    }

    fn check_options(&self) -> Result<(), MalformedCommand> {
        let action = self.action.name();
        let (one_shot, runs) = (self.action.runs(), self.action.runs() || matches!(self.action, Action::Assign(_)));
        let waves = self.options.waves.as_ref();
        for (option, given, allowed) in [
            ("waves", self.options.waves.is_some(), runs),
            ("approves", self.options.approves.is_some(), one_shot),
            ("on_failure: revert", waves.is_some_and(|waves| waves.on_failure == OnFailure::Revert), !one_shot),
            // An assignment declares dry runs itself, with `enforce`; no other action has a dry run.
            ("noop", self.options.noop, one_shot || matches!(self.action, Action::Run(_))),
        ] {
            if given && !allowed {
                return Err(MalformedCommand::Option { option, action });
            }
        }
        if self.options.timeout > MAX_TIMEOUT {
            return Err(MalformedCommand::Timeout);
        }
        let longest = if self.action.is_desired_state() { MAX_ASSIGNMENT_ROLLOUT } else { MAX_COMMAND_ROLLOUT };
        let Some(waves) = waves else { return Ok(()) };
        waves.check(self.id, self.options.timeout, longest).map_err(MalformedCommand::Waves)
    }

    /// Returns the name of the channel that the command is about.
    pub fn channel_name(&self) -> Option<&str> {
        match (&self.channel, &self.action) {
            (Some(channel), _) => Some(&channel.name),
            (None, Action::Run(run)) => Some(&run.channel),
            (None, _) => None,
        }
    }

    /// Returns true when nodes go back to their assignment before, if their wave fails.
    pub fn reverts_on_failure(&self) -> bool {
        self.options.waves.as_ref().is_some_and(|waves| waves.on_failure == OnFailure::Revert)
    }

    /// Returns the longest lifetime of a command of this kind.
    pub fn max_lifetime(&self) -> HumanDuration {
        if self.action.is_desired_state() { MAX_ASSIGNMENT_LIFETIME } else { MAX_LIFETIME }
    }

    /// Returns the latest start on a node that accepted the command: with waves, nodes begin later than they accept.
    pub fn latest_start(&self) -> Timestamp {
        let closes = |waves: &RolloutPlan| waves.latest_start(self.issued, self.options.timeout).max(self.expires);
        self.options.waves.as_ref().map_or(self.expires, closes)
    }

    fn check_times(&self) -> Result<(), MalformedCommand> {
        if self.expires <= self.issued {
            return Err(MalformedCommand::ExpiresBeforeIssue);
        }
        let longest = self.max_lifetime();
        if self.expires.duration_since(self.issued).unsigned_abs() > longest.as_std() {
            return Err(MalformedCommand::LifetimeTooLong(longest));
        }
        if self.not_before.is_some_and(|time| time >= self.expires) {
            return Err(MalformedCommand::NeverValid);
        }
        Ok(())
    }

    /// Returns the channel and its position after this command; none for a dry run, which moves no channel.
    pub fn channel_state(&self) -> Option<(&str, ChannelPosition)> {
        let channel = self.channel.as_ref().filter(|_| !self.options.noop)?;
        let digest = match &self.action {
            Action::Apply(apply) => apply.sha256.clone(),
            Action::Assign(assign) => assign.manifest.sha256.clone(),
            Action::Withdraw(_) => String::new(),
            _ => return None,
        };
        Some((&channel.name, ChannelPosition { epoch: channel.epoch, serial: channel.serial, digest }))
    }
}

/// A named series of applies or assignments, ordered by epoch, then serial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// Its name: `[a-z0-9_-]{1,63}`.
    pub name: String,
    /// Raised to start serials anew.
    pub epoch: u64,
    /// Raised by every command of the channel.
    pub serial: u64,
}

/// Options of the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CommandOptions {
    /// A dry run: report the changes that a run would make, and change nothing.
    pub noop: bool,
    /// The longest duration of the run.
    pub timeout: HumanDuration,
    /// The order of the nodes, and the number of nodes that may fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waves: Option<RolloutPlan>,
    /// The id of a dry run of the same action. A node with other changes than in that dry run refuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approves: Option<Uuid>,
}

impl Default for CommandOptions {
    fn default() -> Self {
        Self { noop: false, timeout: HumanDuration::seconds(300), waves: None, approves: None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::diag::error_chain;
    use crate::wire::json;

    fn ensure() -> Value {
        json!({
            "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060",
            "fleet": "prod-eu",
            "to": {"nodes": ["web1"]},
            "issued": "2026-11-20T10:00:00Z",
            "expires": "2026-11-20T10:05:00Z",
            "action": {"ensure": {"type": "service", "properties": {"name": "nginx", "ensure": "running"}}},
        })
    }

    fn apply() -> Value {
        with(
            ensure(),
            &[
                ("/action", json!({"apply": {"url": "https://h/m.tgz", "sha256": "0".repeat(64), "size": 1}})),
                ("/channel", json!({"name": "base", "epoch": 1, "serial": 42})),
            ],
        )
    }

    fn assign() -> Value {
        let manifest = json!({"url": "https://h/m.tgz", "sha256": "0".repeat(64), "size": 1});
        with(apply(), &[("/action", json!({"assign": {"manifest": manifest}})), ("/expires", json!("2027-02-18T10:00:00Z"))])
    }

    fn with(mut value: Value, changes: &[(&str, Value)]) -> Value {
        for (pointer, change) in changes {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            value.pointer_mut(parent).unwrap()[key] = change.clone();
        }
        value
    }

    fn read(value: &Value) -> Result<Command, String> {
        let command: Command = json::read(value.to_string().as_bytes()).map_err(|error| error_chain(&error))?;
        command.check().map_err(|error| error.to_string())?;
        Ok(command)
    }

    #[test]
    fn good_commands_are_read() {
        assert_eq!(read(&ensure()).unwrap().action.name(), "ensure");
        let command = read(&apply()).unwrap();
        assert_eq!(command.options.timeout, HumanDuration::seconds(300));
        let (name, state) = command.channel_state().unwrap();
        assert_eq!((name, state.epoch, state.serial, state.digest.len()), ("base", 1, 42, 64));
        for good in [json!({"groups": ["web"]}), json!({"all": true}), json!({"all": true, "where": "true", "nodes": null})] {
            read(&with(ensure(), &[("/to", good)])).unwrap();
        }
        read(&with(ensure(), &[("/expires", json!("2026-11-20T10:15:00Z"))])).unwrap();
        read(&with(ensure(), &[("/options", json!({"timeout": "24h"}))])).unwrap();
        let command = read(&assign()).unwrap();
        assert_eq!(command.channel_state().unwrap().1.serial, 42);
        let command = read(&with(assign(), &[("/action", json!({"withdraw": {}}))])).unwrap();
        assert_eq!(command.channel_state().unwrap().1.digest, "");
        for action in [json!({"facts": {"query": "os.name"}}), json!({"status": {}}), json!({"healthcheck": {}})] {
            read(&with(ensure(), &[("/action", action)])).unwrap();
        }
    }

    #[test]
    fn a_dry_run_moves_no_channel() {
        let command = read(&with(apply(), &[("/options", json!({"noop": true}))])).unwrap();
        assert_eq!(command.channel_state(), None);
    }

    #[test]
    fn unknown_keys_are_refused_at_every_level() {
        for (base, pointer) in [
            (ensure(), "/x"),
            (ensure(), "/to/x"),
            (ensure(), "/action/x"),
            (ensure(), "/action/ensure/x"),
            (with(ensure(), &[("/options", json!({}))]), "/options/x"),
            (apply(), "/channel/x"),
            (apply(), "/action/apply/x"),
        ] {
            let error = read(&with(base, &[(pointer, json!(1))])).unwrap_err();
            assert!(error.starts_with("unexpected JSON at "), "{pointer}: {error}");
        }
        // The properties of a resource are checked by its type.
        read(&with(ensure(), &[("/action/ensure/properties/x", json!(1))])).unwrap();
        let error = read(&with(ensure(), &[("/action", json!({"reboot": {}}))])).unwrap_err();
        assert!(error.contains("unknown variant `reboot`"), "{error}");
    }

    fn reverting(on_failure: &str) -> Value {
        json!({"steps": [{"upto": "ffffffffffffffff"}], "hold": "1m", "max_failed": 0, "on_failure": on_failure})
    }

    #[test]
    fn only_an_assignment_can_be_reverted() {
        assert!(read(&with(assign(), &[("/options", json!({"waves": reverting("revert")}))])).unwrap().reverts_on_failure());
        assert!(!read(&with(apply(), &[("/options", json!({"waves": reverting("stop")}))])).unwrap().reverts_on_failure());
    }

    #[test]
    fn a_wrong_form_is_refused() {
        for (base, pointer, value, wanted) in [
            (ensure(), "/to", json!({}), "\"to\" must have"),
            (ensure(), "/to", json!({"nodes": ["*"]}), "not a node id"),
            (ensure(), "/to", json!({"groups": ["web.>"]}), "\"web.>\" is not the name of a group"),
            (ensure(), "/fleet", json!("a.b"), "\"a.b\" is not the name of a fleet"),
            (ensure(), "/expires", json!("2026-11-20T10:00:00Z"), "must be after"),
            (ensure(), "/expires", json!("2026-11-20T10:15:00.000000001Z"), "more than 15m after"),
            (ensure(), "/not_before", json!("2026-11-20T10:05:00Z"), "\"not_before\" must be"),
            (ensure(), "/channel", json!({"name": "base", "epoch": 1, "serial": 1}), "only an apply, assign"),
            (ensure(), "/action/ensure/properties", json!({"ensure": "present"}), "must have a name"),
            (ensure(), "/action/ensure/properties/name", json!(7), "must have a name"),
            (ensure(), "/action/ensure/properties/name", json!("a\nb"), "must have a name"),
            (ensure(), "/action/ensure/properties/name", json!("a\0"), "must have a name"),
            (ensure(), "/action/ensure/type", json!("File"), "\"File\" is not a resource type"),
            (apply(), "/action/apply/sha256", json!("A".repeat(64)), "lower-case hex"),
            (apply(), "/action/apply/sha256", json!("0".repeat(63)), "lower-case hex"),
            (assign(), "/channel", Value::Null, "an assign must be in a channel"),
            (assign(), "/expires", json!("2027-02-18T10:00:01Z"), "more than"),
            (assign(), "/options", json!({"noop": true}), "\"noop\" has no meaning for assign"),
            (assign(), "/options", json!({"approves": "0198c1f2-7a3b-7c4d-8e5f-102030405060"}), "\"approves\" has no meaning"),
            (apply(), "/options", json!({"waves": reverting("revert")}), "\"on_failure: revert\" has no meaning for apply"),
            (assign(), "/options", json!({"waves": reverting("undo")}), "unknown variant `undo`"),
            (assign(), "/action/assign/manifest/sha256", json!(""), "lower-case hex"),
            (assign(), "/action/assign/interval", json!("29s"), "\"interval\" must be"),
            (ensure(), "/action", json!({"halt": {"job": "x"}}), "at action.halt.job"),
            (ensure(), "/options", json!({"timeout": "24h0m1s"}), "more than 1d"),
            (ensure(), "/action", json!({"run": {"channel": "a.b"}}), "\"a.b\" is not the name of a channel"),
            (ensure(), "/action", json!({"run": {}}), "missing field `channel`"),
            (apply(), "/channel/name", json!(""), "\"\" is not the name of a channel"),
            (apply(), "/channel/serial", json!(-1), "at channel.serial"),
        ] {
            let error = read(&with(base, &[(pointer, value.clone())])).unwrap_err();
            assert!(error.contains(wanted), "{pointer} = {value}: {error}");
        }
    }
}
