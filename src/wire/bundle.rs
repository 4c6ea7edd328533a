//! The trust bundle: the keys of operators, and their rights on nodes.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A trust bundle, exactly as signed. Unknown and duplicate keys are refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrustBundle {
    /// The fleet.
    pub fleet: String,
    /// The version, from 1; each bundle has the next number.
    pub version: u64,
    /// The time from which nodes accept no new work under the bundle.
    #[schemars(with = "String")]
    pub expires: Timestamp,
    /// The keys that may change the bundle.
    pub root: Roots,
    /// The operators' keys.
    #[serde(default)]
    pub keys: Vec<OperatorKey>,
    /// Ids of keys that are no longer valid, whatever else says so.
    #[serde(default)]
    pub revoked: Vec<String>,
    /// Rights of keys. Work that no rule allows is refused.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// The root keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Roots {
    /// The number of distinct keys that must sign.
    pub threshold: u32,
    /// Public keys, as `ssh-ed25519 AAAA... [comment]` or `ed25519:<base64>`.
    pub keys: Vec<String>,
}

/// A key with its name and window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorKey {
    /// The name of the key in rules, as `ops-alice`.
    pub id: String,
    /// The public key, in either form.
    pub key: String,
    /// Not valid before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub not_before: Option<Timestamp>,
    /// Not valid after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub not_after: Option<Timestamp>,
}

/// Rights of some keys. A list that is left out allows everything of its kind; `*` and `?` are wildcards.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Ids of operator keys, as `ops-*`.
    pub keys: Vec<String>,
    /// `ensure`, `apply`, `assign`, `withdraw`, `healthcheck`, `facts`, `status`, `halt`, `resume`. Also `data`
    /// for values of key-value buckets, and `admit` for the enrolment of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<Vec<String>>,
    /// Resource types, for `ensure`. A rule with types or names allows no other action, because the content of a manifest is
    /// unknown at verification. A resource with commands (health checks, post commands) needs `exec` too. Types alone allow no
    /// registration: `names` must have it, as `CLUSTER/SERVICE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<Vec<String>>,
    /// Resource names, for `ensure`. Paths are compared after `.` and `..` are resolved; `*` does not cross a `/`, `**` does.
    /// Other objects are compared as names: the command of an `exec`, an archive's directory, the source of a file. In a rule
    /// whose actions name `data`, also `bucket/key`. No list allows a name with a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// Objects that templates may read on the node, beside the files of a signed bundle. Allowed are files (`/etc/app/**`),
    /// `env:NAME`, `credential:NAME`, `kv:BUCKET/KEY` and `registrations`. The `source` of a resource must match this list or
    /// `names`. So must the URL of a health check, except where the check asks the node itself for a status alone. When the list
    /// is left out, a rule with types, names or `noop_only` reads nothing. Any other rule reads everything that the node allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Vec<String>>,
    /// Nodes that may be named. A pattern of a command must be covered by a pattern without `?`. A rule that lists nodes and no
    /// groups allows no groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
    /// Groups that may be named. A rule that lists groups and no nodes allows no nodes. A rule with either allows no `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// Channels. A rule with channels allows only commands in these channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<String>>,
    /// At most this many nodes, which then must be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u64>,
    /// Dry runs only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noop_only: bool,
    /// The number of distinct keys of this rule that must have signed.
    #[serde(default = "default_quorum", skip_serializing_if = "is_one")]
    pub quorum: u32,
}

fn default_quorum() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_one(quorum: &u32) -> bool {
    *quorum == 1
}
