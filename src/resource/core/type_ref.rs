//! A reference to a resource type: an entry of the table, or an external type.

use std::ops::Deref;
use std::sync::Arc;

use super::dyn_type::ResourceType;

/// A resource type that outlives the plan which uses it.
#[derive(Clone)]
pub enum TypeRef {
    /// A type of the table.
    BuiltIn(&'static dyn ResourceType),
    /// A type that is not part of this program.
    External(Arc<dyn ResourceType>),
}

impl Deref for TypeRef {
    type Target = dyn ResourceType;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::BuiltIn(kind) => *kind,
            Self::External(kind) => kind.as_ref(),
        }
    }
}
