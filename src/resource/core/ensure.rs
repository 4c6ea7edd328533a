//! `present` or `absent`: what `ensure` says for types that know no more than that.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether something shall be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// It is there, as described.
    #[default]
    Present,
    /// It is not there.
    Absent,
}

impl Presence {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Absent => "absent",
        }
    }

    /// What describes something of which it is known whether it is there.
    pub fn of(there: bool) -> Self {
        if there { Self::Present } else { Self::Absent }
    }
}
