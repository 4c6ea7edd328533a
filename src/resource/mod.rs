//! Resource types: THE extension point. A type is one file (or folder) in [`types`], and one line in [`TYPES`].
//!
//! A type is three functions over its properties: `observe` (never writes), `diff` (pure) and `apply` (one step). `engine`
//! derives noop, verification, refresh, plan and events for all types. `core/type_entry.rs` and `cli` derive parser, schema,
//! documentation and flags from the properties. `core/common.rs` has the properties of every resource,
//! and `core/policy.rs` their policy.

pub mod core;
pub mod external;
#[cfg(test)]
mod properties_test;
mod type_set;
pub mod types;

pub use crate::resource::core::common::{Common, Control, HealthCheck};
pub use crate::resource::core::dyn_type::{
    BatchResult, BindError, BoundResource, ChangeStep, DecodeError, ObservedResource, ParsedResource, Providers, ResourceType,
    RunPlace,
};
pub use crate::resource::core::open_properties::OpenProperties;
pub use crate::resource::core::policy::{InvalidPolicy, Policy, Semaphore};
pub use crate::resource::core::resource::{
    Change, Invalid, Nested, OutputKind, Pending, Preview, ProviderEntry, Resource, ResourceError, ResourceOutput, ShellDefaults,
    State,
};
pub use crate::resource::core::type_entry::TypeEntry;
pub use crate::resource::core::type_ref::TypeRef;
pub use crate::resource::type_set::Types;
pub use crate::resource::types::TYPES;

/// Returns the type of the table of a name. [`Types`] has external ones too.
pub fn find(name: &str) -> Option<&'static dyn ResourceType> {
    TYPES.iter().copied().find(|kind| kind.name() == name)
}
