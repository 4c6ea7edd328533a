//! What of its owner's limits the kernel of a node holds, in its state and its status.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The confinement of the runs of a node. The names are explained in `docs/operations/limits.md`; there may be more of them later.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ConfinementState {
    /// The version of Landlock in the kernel; 0 where there is none.
    pub landlock: i32,
    /// What the kernel holds, as `files`, `programs`, `network`.
    #[serde(default)]
    pub held: Vec<String>,
    /// What only the checks of the agent hold, or nothing.
    #[serde(default)]
    pub unrestricted: Vec<String>,
}
