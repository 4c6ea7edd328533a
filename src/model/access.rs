//! Reads that templates ask for, and who decides about them.
//!
//! A template reads files, variables of the environment, secrets, key-value buckets and registrations. Each such read is
//! put to one [`ReadAccess`] before it is made. The local tool allows everything; an agent decides by the rule that allowed
//! the command.

use std::fmt;
use std::path::Path;

/// A read that a template asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateRead<'a> {
    /// The file at this path, absolute and without links. Files below the directory of the manifest are not asked about:
    /// they were signed with it.
    File(&'a Path),
    /// A variable of the environment.
    Environ(&'a str),
    /// The credential of this name, which systemd gave the process. A secret in a file is a [`TemplateRead::File`], one in the
    /// environment a [`TemplateRead::Environ`].
    Credential(&'a str),
    /// The value under a key of a bucket.
    Value {
        /// The bucket.
        bucket: &'a str,
        /// The key.
        key: &'a str,
    },
    /// The registrations of services.
    Registrations,
}

impl fmt::Display for TemplateRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file {}", path.display()),
            Self::Environ(name) => write!(f, "the environment variable {name}"),
            Self::Credential(name) => write!(f, "the credential {name}"),
            Self::Value { bucket, key } => write!(f, "kv://{bucket}/{key}"),
            Self::Registrations => f.write_str("registrations"),
        }
    }
}

/// Decides about the reads of templates.
pub trait ReadAccess: Send + Sync {
    /// Allows a read, or not.
    ///
    /// # Errors
    /// With the reason, for people. The reason names the read, never what it would give.
    fn may_read(&self, read: &TemplateRead<'_>) -> Result<(), String>;

    /// True where those who see errors may not see what was read: values that came from reads are kept out of errors,
    /// refusals and events.
    fn hides_values(&self) -> bool {
        true
    }
}

/// The access of a person at the machine, who may read these things anyway.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnrestrictedAccess;

impl ReadAccess for UnrestrictedAccess {
    fn may_read(&self, _: &TemplateRead<'_>) -> Result<(), String> {
        Ok(())
    }

    fn hides_values(&self) -> bool {
        false
    }
}
