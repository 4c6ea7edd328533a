//! The limits of a node that its kernel enforces, in the state and the status of the node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The confinement of the runs of a node. The names are explained in `docs/operations/limits.md`; there may be more of them later.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ConfinementState {
    /// The version of Landlock in the kernel; 0 where there is none.
    pub landlock: i32,
    /// The limits that the kernel enforces, as `files`, `programs`, `network`.
    #[serde(default)]
    pub held: Vec<String>,
    /// The limits that only the checks of the agent enforce, or that are not enforced.
    #[serde(default)]
    pub unrestricted: Vec<String>,
}
