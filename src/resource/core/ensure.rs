//! `present` or `absent`: what `ensure` says for types that know no more than that.

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

    /// Returns the value that describes an object's existence.
    pub fn of(there: bool) -> Self {
        if there { Self::Present } else { Self::Absent }
    }
}
