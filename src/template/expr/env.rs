//! The environment of an expression.

use serde_json::Value as Json;

use super::names::{Path, Root};

/// The environment of an expression: roots and functions.
pub(in crate::template) trait Env {
    /// All values below a root.
    fn root(&self, root: Root) -> &Json;

    /// Notes that a path is looked up; an error forbids that.
    fn looks_up(&self, _: &Path) -> Result<(), String> {
        Ok(())
    }

    /// Notes that all roots are looked at.
    fn looks_at_all(&self) {}

    /// Calls a function of [`super::names::Names::functions`], with the number of templates around.
    fn call(&self, name: &str, args: &[Json], depth: usize) -> Result<Json, String>;
}
