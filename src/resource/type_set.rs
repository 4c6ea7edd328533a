//! The resource types that a program knows: those of the table, and external ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::core::type_ref::TypeRef;
use super::external::{ExternalType, InvalidType, read_directory};
use super::{ResourceType, TYPES};
use crate::diag::did_you_mean;
use crate::host::Host;

/// The known resource types. Clones share them; the default has the types of the table only.
#[derive(Clone, Default)]
pub struct Types(Option<Arc<BTreeMap<String, ExternalType>>>);

impl Types {
    /// Reads the external types of a directory. Returns also the reasons for the programs that are no types.
    pub fn read(directory: &Path, host: &Host) -> (Self, Vec<InvalidType>) {
        let found = read_directory(directory, |name| super::find(name).is_some(), host);
        (Self(Some(Arc::new(found.types)).filter(|types| !types.is_empty())), found.invalid)
    }

    /// Returns the type of a name.
    pub fn find(&self, name: &str) -> Option<TypeRef> {
        let external = || self.external(name).map(|kind| TypeRef::External(Arc::new(kind.clone())));
        super::find(name).map(TypeRef::BuiltIn).or_else(external)
    }

    /// Returns all types, those of the table first.
    pub fn iter(&self) -> impl Iterator<Item = &dyn ResourceType> {
        let external = self.0.iter().flat_map(|types| types.values()).map(|kind| kind as &dyn ResourceType);
        TYPES.iter().map(|kind| *kind as &dyn ResourceType).chain(external)
    }

    /// Returns the names of all types.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(ResourceType::name)
    }

    /// Returns the hint for an unknown name.
    pub fn hint(&self, name: &str) -> String {
        did_you_mean(name, self.names()).map_or_else(
            || {
                let known = self.names().collect::<Vec<_>>().join(", ");
                format!("known types are {known}; --types DIR adds those of a directory, and `dir` in [types] those of a node")
            },
            |near| format!("did you mean \"{near}\"?"),
        )
    }

    /// Returns the names of the external types.
    pub fn external_names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|types| types.keys()).map(String::as_str)
    }

    fn external(&self, name: &str) -> Option<&ExternalType> {
        self.0.as_ref()?.get(name)
    }
}
