//! Reads by templates, and the decision about them.
//!
//! A template reads files, environment variables, secrets, key-value buckets and registrations. [`ReadAccess`] decides about
//! each read in advance. The local tool allows everything; an agent decides by the rule that allowed the command.

use std::fmt;
use std::path::Path;

/// A read by a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateRead<'a> {
    /// The file at this path, absolute and without links. Files below the directory of the manifest need no decision, because
    /// they were signed with the manifest.
    File(&'a Path),
    /// An environment variable.
    Environ(&'a str),
    /// A credential of this name, which systemd gave to the process. A secret in a file is a [`TemplateRead::File`], a secret
    /// in the environment a [`TemplateRead::Environ`].
    Credential(&'a str),
    /// The value under a key of a bucket.
    Value {
        /// The bucket.
        bucket: &'a str,
        /// The key.
        key: &'a str,
    },
    /// Registrations of services.
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
    /// Allows or refuses a read.
    ///
    /// # Errors
    /// The reason, for people. The reason names the read, never the value.
    fn may_read(&self, read: &TemplateRead<'_>) -> Result<(), String>;

    /// True where readers of errors may not see the values. Values from reads are then kept out of errors, rejections and
    /// events.
    fn hides_values(&self) -> bool {
        true
    }
}

/// The access of a user of this machine, who can read everything anyway.
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
