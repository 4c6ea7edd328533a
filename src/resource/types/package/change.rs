//! The steps towards the desired package, and their actions in a transaction.

use std::fmt;

use crate::resource::Change;

/// A step towards the desired package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageChange {
    /// Install a missing package.
    Install {
        /// The version or keyword of `ensure`.
        ensure: String,
        /// The new version, if known.
        version: Option<String>,
        /// False when the index has no such package or version, at least not yet.
        offered: bool,
    },
    /// Replace the installed version by another.
    Replace {
        /// The version or keyword of `ensure`.
        ensure: String,
        /// The old version.
        from: String,
        /// The new version.
        to: String,
        /// True for an older version.
        down: bool,
        /// False when the index has no such version, at least not yet.
        offered: bool,
    },
    /// Finish an interrupted installation.
    Finish {
        /// The state in the terms of the package manager.
        from: String,
    },
    /// Remove the package.
    Remove {
        /// The old version, or the state in the terms of the package manager.
        from: String,
    },
}

impl fmt::Display for PackageChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Install { ensure, offered, .. } => {
                match ensure.as_str() {
                    "present" => f.write_str("installed")?,
                    "latest" => f.write_str("installed latest")?,
                    version => write!(f, "installed version {version}")?,
                }
                unoffered(f, *offered)
            }
            Self::Replace { ensure, down, offered, .. } => {
                write!(f, "{} to {ensure}", if *down { "downgraded" } else { "upgraded" })?;
                unoffered(f, *offered)
            }
            Self::Finish { .. } => f.write_str("finished the installation"),
            Self::Remove { .. } => f.write_str("uninstalled"),
        }
    }
}

fn unoffered(f: &mut fmt::Formatter<'_>, offered: bool) -> fmt::Result {
    if offered { Ok(()) } else { f.write_str(", which no package index has now") }
}

impl Change for PackageChange {
    fn details(&self) -> Vec<String> {
        let (from, to, offered) = match self {
            Self::Install { ensure, version, offered } => ("absent", version.as_deref().unwrap_or(ensure), *offered),
            Self::Replace { from, to, offered, .. } => (from.as_str(), to.as_str(), *offered),
            Self::Finish { from } => (from.as_str(), "installed", true),
            Self::Remove { from } => (from.as_str(), "absent", true),
        };
        let missing = if offered { "" } else { ", which no package index has now" };
        vec![format!("{from} → {to}{missing}")]
    }
}

/// The action of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageAction {
    /// Install, upgrade, finish.
    Install,
    /// Install an older version.
    Downgrade,
    /// Remove.
    Remove,
}

impl PackageAction {
    pub(super) fn from_change(change: &PackageChange) -> Self {
        match change {
            PackageChange::Remove { .. } => Self::Remove,
            PackageChange::Replace { down: true, .. } => Self::Downgrade,
            _ => Self::Install,
        }
    }

    /// The action as an infinitive, for errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Downgrade => "downgrade",
            Self::Remove => "uninstall",
        }
    }
}
