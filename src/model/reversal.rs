//! Reversal: a resource that leaves its manifest is kept, removed, or brought back to its earlier state.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::id::ResourceRef;

/// The action for a resource that is no longer in its manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnRemoval {
    /// Leave the host as the manifest made it.
    #[default]
    Keep,
    /// Remove the object.
    Absent,
    /// Bring back the state from before the first run.
    Revert,
}

impl OnRemoval {
    /// Returns the value as in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Absent => "absent",
            Self::Revert => "revert",
        }
    }
}

/// The record that a removed resource is reversed with. Written before the first change, as one file for each resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReversalRecord {
    /// The resource.
    pub resource: ResourceRef,
    /// The action, as in the manifest of the capture.
    pub on_removal: OnRemoval,
    /// The time of the capture.
    pub captured: Timestamp,
    /// The position in the manifest, from 0; the last resource is reversed first.
    pub position: usize,
    /// The requested provider; empty for the best one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// The properties that reverse the resource. None for an object that stays, as a package that was installed before.
    pub properties: Option<Map<String, Value>>,
    /// The digest of the state after the latest change. None from before a change until its end.
    pub left: Option<String>,
}
