//! The table of resource types, and their modules. A new type adds one line to both.

pub mod apply;
pub mod archive;
pub mod cron;
pub mod exec;
pub mod file;
pub mod group;
pub mod line;
pub mod mount;
pub mod package;
pub mod scaffold;
pub mod service;
pub mod symlink;
pub mod sysctl;
pub mod user;

use super::{ResourceType, TypeEntry};

/// Every resource type, in the order of the documentation and the help.
#[rustfmt::skip]
pub static TYPES: &[&dyn ResourceType] = &[
    &TypeEntry::<file::File>::NEW,
    &TypeEntry::<package::Package>::NEW,
    &TypeEntry::<service::Service>::NEW,
    &TypeEntry::<exec::Exec>::NEW,
    &TypeEntry::<archive::Archive>::NEW,
    &TypeEntry::<scaffold::Scaffold>::NEW,
    &TypeEntry::<apply::Apply>::NEW,
    &TypeEntry::<symlink::Symlink>::NEW,
    &TypeEntry::<line::Line>::NEW,
    &TypeEntry::<user::User>::NEW,
    &TypeEntry::<group::Group>::NEW,
    &TypeEntry::<cron::Cron>::NEW,
    &TypeEntry::<mount::Mount>::NEW,
    &TypeEntry::<sysctl::Sysctl>::NEW,
];
