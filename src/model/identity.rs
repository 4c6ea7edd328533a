//! Identities: objects of the host that a resource provides, removes or needs. The automatic order of resources follows from
//! them.

use std::fmt;
use std::path::PathBuf;

/// An object of the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// A file, a directory or a link, by its absolute path.
    Path(PathBuf),
    /// A directory that the resource fills, beside others. [`Need::Exactly`] names it as a path.
    Directory(PathBuf),
    /// A mounted file system, by the absolute path of its mount point.
    MountPoint(PathBuf),
    /// A user, by name.
    User(String),
    /// A group, by name.
    Group(String),
    /// A package, by name.
    Package(String),
    /// A unit of systemd, with its suffix.
    Unit(String),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "path {}", path.display()),
            Self::Directory(path) => write!(f, "directory {}", path.display()),
            Self::MountPoint(path) => write!(f, "mount point {}", path.display()),
            Self::User(name) => write!(f, "user {name}"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::Package(name) => write!(f, "package {name}"),
            Self::Unit(name) => write!(f, "unit {name}"),
        }
    }
}

/// A need of a resource: objects that other resources of the manifest provide before it.
///
/// A resource that removes objects has the needs of its removal: everything below a removed directory goes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// This object.
    Exactly(Identity),
    /// The nearest path or mount point above this path.
    Above(PathBuf),
    /// All paths below this path.
    Below(PathBuf),
}

impl Need {
    /// Returns the need for the nearest directory or mount point above `path`.
    pub fn above(path: impl Into<PathBuf>) -> Self {
        Self::Above(path.into())
    }

    /// Returns the need for this path itself.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self::Exactly(Identity::Path(path.into()))
    }

    /// Returns the need for everything below `path`.
    pub fn below(path: impl Into<PathBuf>) -> Self {
        Self::Below(path.into())
    }

    /// Returns the need for a user.
    pub fn user(name: impl Into<String>) -> Self {
        Self::Exactly(Identity::User(name.into()))
    }

    /// Returns the need for a group.
    pub fn group(name: impl Into<String>) -> Self {
        Self::Exactly(Identity::Group(name.into()))
    }

    /// Returns the need for a package.
    pub fn package(name: impl Into<String>) -> Self {
        Self::Exactly(Identity::Package(name.into()))
    }
}
