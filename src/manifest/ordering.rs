//! The key `ordering` of a manifest.

use serde_json::Value;

use crate::diag::{Diagnostic, did_you_mean};
use crate::yaml::{KeyOrIndex, YamlDocument};

/// The order in which the resources of a manifest run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// The written order, one resource after the other.
    #[default]
    List,
    /// In the order of the graph: every resource that waits for no other may run.
    Graph,
}

impl Ordering {
    /// The values of the key.
    pub const NAMES: [&'static str; 2] = ["list", "graph"];

    /// Reads the value of the key.
    ///
    /// # Errors
    /// When the value is another one.
    pub(super) fn read(value: Option<&Value>, document: &YamlDocument) -> Result<Self, Diagnostic> {
        let text = match value {
            None | Some(Value::Null) => return Ok(Self::List),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        match text.as_str() {
            "list" => Ok(Self::List),
            "graph" => Ok(Self::Graph),
            other => {
                let place = document.key_place(&["ccm", "ordering"].map(KeyOrIndex::from));
                let hint = did_you_mean(other, Self::NAMES).map_or_else(
                    || "\"list\" runs resources as written, \"graph\" as they depend on each other".to_owned(),
                    |near| format!("did you mean \"{near}\"?"),
                );
                Err(Diagnostic::new(format!("ordering must be \"list\" or \"graph\", not \"{other}\"")).at(place).hint(hint))
            }
        }
    }
}
