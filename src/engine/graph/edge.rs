//! The edges of the graph, each with its reasons.

use std::fmt;
use std::path::PathBuf;

use crate::model::Identity;

use super::node::ReferenceKind;

/// The order of two resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The index of the resource that runs first.
    pub before: usize,
    /// The index of the resource that waits.
    pub after: usize,
    /// The reasons for the order, the explicit ones first.
    pub reasons: Vec<Reason>,
}

impl Edge {
    /// Returns true when the later resource is refreshed after a change of the earlier one.
    pub fn is_subscription(&self) -> bool {
        self.reasons.contains(&Reason::Explicit(ReferenceKind::Subscribe))
    }
}

/// A reason for the order of two resources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A property of the later resource names the earlier one.
    Explicit(ReferenceKind),
    /// The order follows from the properties of both.
    Automatic(EdgeCause),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Explicit(kind) => f.write_str(kind.property()),
            Self::Automatic(cause) => write!(f, "automatic: {cause}"),
        }
    }
}

/// The cause of an automatic order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum EdgeCause {
    /// The earlier resource provides an object that the later one needs.
    Provides(Identity),
    /// The earlier resource provides the nearest path or mount point above.
    Parent(Identity),
    /// The earlier resource provides or removes a path below this one.
    Below(PathBuf),
    /// The later resource removes an object that the earlier one uses.
    Removes(Identity),
    /// Both change the same object, in their written order as far as possible.
    Same(Identity),
}

impl fmt::Display for EdgeCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provides(object) => object.fmt(f),
            Self::Parent(Identity::Path(path)) => write!(f, "parent directory {}", path.display()),
            Self::Parent(object) => object.fmt(f),
            Self::Below(path) => write!(f, "path below {}", path.display()),
            Self::Removes(object) => write!(f, "use of {object} before its removal"),
            Self::Same(object) => write!(f, "same {object}"),
        }
    }
}
