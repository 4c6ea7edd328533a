//! The command: what an operator asks of nodes, exactly as signed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::model::{NodeId, Span};

/// The longest life of a one-shot command: `expires` − `issued`.
pub const MAX_LIFE: Span = Span::seconds(15 * 60);

/// A command. Unknown and duplicate keys are refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// UUIDv7: nonce, job id, deduplication key and idempotency key in one.
    pub id: Uuid,
    /// The fleet; other fleets refuse.
    pub fleet: String,
    /// Which nodes.
    pub to: Audience,
    /// When it was signed.
    #[schemars(with = "String")]
    pub issued: Timestamp,
    /// Not to be accepted before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub not_before: Option<Timestamp>,
    /// Not to be accepted after this time; at most 15 minutes after `issued`.
    #[schemars(with = "String")]
    pub expires: Timestamp,
    /// The place of an `apply` in a series: a node that accepted a later one refuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Channel>,
    /// What to do.
    pub action: Action,
    /// How to do it.
    #[serde(default)]
    pub options: Options,
    /// Why, for people: lands in the audit trail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A named series of applies, ordered by epoch, then serial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// Its name: `[a-z0-9_-]{1,63}`.
    pub name: String,
    /// Raised to start serials anew.
    pub epoch: u64,
    /// Raised by every apply of the channel.
    pub serial: u64,
}

/// Which nodes a command is for. Exactly one of `nodes`, `groups` and `all: true`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Audience {
    /// These nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeId>>,
    /// The nodes of these groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// Every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<bool>,
    /// And of those, the ones where this expression over facts holds.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub only_where: Option<String>,
}

/// The selector of an [`Audience`], after the check that there is exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// These nodes.
    Nodes(&'a [NodeId]),
    /// The nodes of these groups.
    Groups(&'a [String]),
    /// Every node.
    All,
}

impl Audience {
    /// These nodes.
    pub fn nodes(nodes: Vec<NodeId>) -> Self {
        Self { nodes: Some(nodes), groups: None, all: None, only_where: None }
    }

    /// The nodes of these groups.
    pub fn groups(groups: Vec<String>) -> Self {
        Self { nodes: None, groups: Some(groups), all: None, only_where: None }
    }

    /// Every node.
    pub fn all() -> Self {
        Self { nodes: None, groups: None, all: Some(true), only_where: None }
    }

    /// The one selector; `None` when there is none, an empty one, or more than one.
    pub fn target(&self) -> Option<Target<'_>> {
        match (&self.nodes, &self.groups, self.all) {
            (Some(nodes), None, None) if !nodes.is_empty() => Some(Target::Nodes(nodes)),
            (None, Some(groups), None) if !groups.is_empty() => Some(Target::Groups(groups)),
            (None, None, Some(true)) => Some(Target::All),
            _ => None,
        }
    }
}

/// What to do: an object with exactly one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Bring one resource to its desired state.
    Ensure(Ensure),
    /// Apply a manifest or bundle.
    Apply(Apply),
}

impl Action {
    /// The name of the action, as it stands in subjects and policy.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ensure(_) => "ensure",
            Self::Apply(_) => "apply",
        }
    }
}

/// One resource.
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
    /// The name of the resource, or nothing when the properties have none.
    pub fn name(&self) -> Option<&str> {
        self.properties.get("name").and_then(Value::as_str)
    }
}

/// A manifest or bundle, pinned by its digest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// Where to fetch it: `https://`, `http://`, `obj://bucket/key`, `file://` on the node. A hint: the digest decides.
    pub url: String,
    /// SHA-256 of its bytes, lower-case hex.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
    /// Data merged over the manifest's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, Value>,
}

/// How to do it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// A dry run: say what would change, change nothing.
    pub noop: bool,
    /// How long the run may take.
    pub timeout: Span,
}

impl Default for Options {
    fn default() -> Self {
        Self { noop: false, timeout: Span::seconds(300) }
    }
}
