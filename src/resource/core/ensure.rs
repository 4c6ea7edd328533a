//! `present` or `absent`: the `ensure` of types with no other values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The desired existence of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// Present, as described.
    #[default]
    Present,
    /// Absent.
    Absent,
}

impl Presence {
    /// Returns the value as in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Absent => "absent",
        }
    }

    /// Returns the value for an object that exists or not.
    pub fn from_exists(there: bool) -> Self {
        if there { Self::Present } else { Self::Absent }
    }
}
