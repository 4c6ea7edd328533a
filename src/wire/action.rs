//! Actions: the part of a [`super::Command`] that names the work.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::model::{HumanDuration, InvalidId, check_name};

/// The shortest time between two runs of a channel.
const MIN_INTERVAL: HumanDuration = HumanDuration::seconds(30);
/// The longest time between two runs of a channel.
const MAX_INTERVAL: HumanDuration = HumanDuration::seconds(7 * 86_400);

/// The action of a command: an object with exactly one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Bring one resource to its desired state.
    Ensure(Ensure),
    /// Apply a manifest or bundle, once.
    Apply(Apply),
    /// Reconcile a manifest or bundle from now on: the desired state of a channel.
    Assign(Assign),
    /// End the assignment of a channel.
    Withdraw(NoParameters),
    /// Run the health checks of the assignments.
    Healthcheck(Healthcheck),
    /// Report the facts of the host.
    Facts(FactsQuery),
    /// Report the state of the node.
    Status(NoParameters),
    /// Begin no further wave of a job.
    Halt(JobRef),
    /// Go on with a job that was halted.
    Resume(JobRef),
    /// Let a wave of a job begin, for waves that ask for it.
    Go(GoAhead),
    /// End a job: nodes that have not begun never begin, and a run in progress is stopped.
    Cancel(JobRef),
    /// Run the assignment of a channel now, once.
    Run(RunChannel),
    /// Take a node out of the fleet: a record for operators, which no node accepts.
    Remove(NoParameters),
}

/// A malformed action.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MalformedAction {
    /// The resource has no usable name.
    #[error("the resource must have a name: a text that is not empty and has no control characters")]
    Name,
    /// The resource type is not a word.
    #[error("\"{0}\" is not a resource type")]
    Kind(String),
    /// The digest of a manifest is not SHA-256 in lower-case hex.
    #[error("\"sha256\" must be 64 digits of lower-case hex")]
    Digest,
    /// An interval out of range.
    #[error("\"{key}\" must be between {least} and {most}, not {given}")]
    Interval {
        /// The key of the value.
        key: &'static str,
        /// The shortest.
        least: HumanDuration,
        /// The longest.
        most: HumanDuration,
        /// The value in the command.
        given: HumanDuration,
    },
    /// The name of a channel is invalid.
    #[error(transparent)]
    Channel(#[from] InvalidId),
}

impl Action {
    /// Returns the name of the action in subjects and policy.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ensure(_) => "ensure",
            Self::Apply(_) => "apply",
            Self::Assign(_) => "assign",
            Self::Withdraw(_) => "withdraw",
            Self::Healthcheck(_) => "healthcheck",
            Self::Facts(_) => "facts",
            Self::Status(_) => "status",
            Self::Halt(_) => "halt",
            Self::Resume(_) => "resume",
            Self::Go(_) => "go",
            Self::Cancel(_) => "cancel",
            Self::Run(_) => "run",
            Self::Remove(_) => "remove",
        }
    }

    /// True for assignments and withdrawals, which the stream of desired state keeps, ordered by epoch and serial.
    pub fn is_desired_state(&self) -> bool {
        matches!(self, Self::Assign(_) | Self::Withdraw(_))
    }

    /// True for actions that run resources once, and so may change the host.
    pub fn runs(&self) -> bool {
        matches!(self, Self::Ensure(_) | Self::Apply(_))
    }

    /// Checks the form of the action, as far as possible without a node.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self) -> Result<(), MalformedAction> {
        match self {
            Self::Ensure(ensure) => ensure.check(),
            Self::Apply(apply) => apply.check(),
            Self::Assign(assign) => assign.check(),
            Self::Healthcheck(Healthcheck { channel: Some(name) }) | Self::Run(RunChannel { channel: name }) => {
                Ok(check_name("channel", name)?)
            }
            _ => Ok(()),
        }
    }
}

/// A single resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ensure {
    /// The resource type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its properties, `name` among them.
    pub properties: Map<String, Value>,
}

impl Ensure {
    /// Returns the name of the resource; none when the properties have none.
    pub fn name(&self) -> Option<&str> {
        self.properties.get("name").and_then(Value::as_str)
    }

    fn check(&self) -> Result<(), MalformedAction> {
        if self.kind.is_empty() || !self.kind.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
            return Err(MalformedAction::Kind(self.kind.clone()));
        }
        match self.name() {
            Some(name) if !name.is_empty() && !name.contains(char::is_control) => Ok(()),
            _ => Err(MalformedAction::Name),
        }
    }
}

/// A manifest or bundle, pinned by its digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The source: `https://`, `http://`, `obj://bucket/key`, `file://` on the node. A hint: the digest decides.
    pub url: String,
    /// SHA-256 of its bytes, lower-case hex.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
    /// Data merged over the manifest's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, Value>,
}

impl Apply {
    fn check(&self) -> Result<(), MalformedAction> {
        let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if self.sha256.len() == 64 && self.sha256.bytes().all(is_hex) { Ok(()) } else { Err(MalformedAction::Digest) }
    }
}

/// A manifest or bundle that nodes reconcile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assign {
    /// The manifest.
    pub manifest: Apply,
    /// Time between two runs; each node has its own offset in this time.
    #[serde(default = "interval")]
    pub interval: HumanDuration,
    /// Time between two runs of the health checks alone; a critical check brings the next run forward. Without this key,
    /// health checks run only in full runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_interval: Option<HumanDuration>,
    /// Time over which the first runs of the nodes are spread.
    #[serde(default = "no_time", skip_serializing_if = "is_no_time")]
    pub splay: HumanDuration,
    /// False: runs are dry. The node reports drift and does not repair it.
    #[serde(default = "default_true")]
    pub enforce: bool,
    /// True: between the runs, the node watches the host and repairs drift when it happens. Without effect when runs are dry.
    #[serde(default, skip_serializing_if = "is_false")]
    pub watch: bool,
}

fn interval() -> HumanDuration {
    HumanDuration::seconds(300)
}

fn no_time() -> HumanDuration {
    HumanDuration::seconds(0)
}

fn is_no_time(span: &HumanDuration) -> bool {
    span.as_std().is_zero()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form of serde")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn default_true() -> bool {
    true
}

impl Assign {
    /// Returns true when drift is repaired between the runs.
    pub fn is_watched(&self) -> bool {
        self.watch && self.enforce
    }

    fn check(&self) -> Result<(), MalformedAction> {
        self.manifest.check()?;
        let spans = [
            ("interval", Some(self.interval), MIN_INTERVAL),
            ("health_interval", self.health_interval, MIN_INTERVAL),
            ("splay", Some(self.splay), no_time()),
        ];
        for (key, given, least) in spans {
            if let Some(given) = given.filter(|given| *given < least || *given > MAX_INTERVAL) {
                return Err(MalformedAction::Interval { key, least, most: MAX_INTERVAL, given });
            }
        }
        Ok(())
    }
}

/// The health checks to run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Healthcheck {
    /// Those of this channel; of every channel when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
}

/// The channel to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunChannel {
    /// Its name.
    pub channel: String,
}

/// The facts to report.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FactsQuery {
    /// The path of a value among them, as `os.name`; all facts when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
}

/// A go-ahead: this wave of a job, and those before it, may begin once the wave before succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GoAhead {
    /// The job.
    pub job: Uuid,
    /// The wave, from 2.
    pub wave: u64,
}

/// A command that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRef {
    /// Its id.
    pub job: Uuid,
}

/// An action without parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}
