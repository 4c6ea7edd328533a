//! The definition of an external type: its name, its program and its description.

use super::description::Description;
use super::program::Program;
use super::property::{PropertyDescription, PropertyType};
use crate::resource::ResourceOutput;

/// The definition of an external type.
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) program: Program,
    pub(super) description: Description,
    pub(super) outputs: Vec<ResourceOutput>,
    /// The properties that are not text.
    pub(super) typed: Vec<String>,
}

impl Definition {
    pub(super) fn new(name: String, program: Program, description: Description) -> Self {
        let outputs = description.outputs();
        let is_typed = |property: &PropertyDescription| {
            matches!(property.kind, PropertyType::Integer | PropertyType::Boolean | PropertyType::Map)
        };
        let typed = description.properties.iter().filter(|(_, property)| is_typed(property));
        let typed = typed.map(|(key, _)| key.clone()).collect();
        Self { name, program, description, outputs, typed }
    }
}
