//! The environment of an expression.

use serde_json::Value as Json;

use super::names::{Root, ValuePath};

/// The environment of an expression: roots and functions.
pub(in crate::template) trait Env {
    /// The value of a root.
    fn root(&self, root: Root) -> &Json;

    /// Records the lookup of a path. An error forbids the lookup.
    fn record_lookup(&self, _: &ValuePath) -> Result<(), String> {
        Ok(())
    }

    /// Records that an expression reads all roots (`$env`).
    fn record_all_roots(&self) {}

    /// Calls a function of [`super::names::NameScope::functions`]. `depth` is the number of enclosing templates.
    fn call(&self, name: &str, args: &[Json], depth: usize) -> Result<Json, String>;
}
