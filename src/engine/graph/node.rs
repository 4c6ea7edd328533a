//! The input of the graph: the resources of a manifest, as far as their order depends on them.

use crate::model::{Identity, Need};
use crate::resource::Semaphore;

/// A resource of a manifest, as far as the order depends on it. Resources have indexes: their places in the manifest, from 0.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// The resources that this one requires or subscribes to.
    pub references: Vec<Reference>,
    /// The objects that the resource makes or edits.
    pub provides: Vec<Identity>,
    /// The objects that the resource removes.
    pub removes: Vec<Identity>,
    /// The objects that other resources provide before this one.
    pub needs: Vec<Need>,
    /// The batches that the resource can join; none for a resource that runs alone.
    pub batch: Option<BatchKey>,
    /// The semaphores that the resource holds while it runs.
    pub semaphores: Vec<Semaphore>,
    /// Parts of the host that only one resource may change at a time, as a file that several resources edit.
    pub exclusive: Vec<String>,
}

/// A reference of a resource to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The index of the other resource.
    pub target: usize,
    /// The property that has the reference.
    pub kind: ReferenceKind,
}

/// The properties that have references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReferenceKind {
    /// `require`.
    Require,
    /// `subscribe`.
    Subscribe,
}

impl ReferenceKind {
    /// Returns the name of the property.
    pub fn property(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::Subscribe => "subscribe",
        }
    }
}

/// Resources with the same key can be applied together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchKey {
    /// The resource type.
    pub kind: String,
    /// The requested provider; empty for the best one.
    pub provider: String,
}
