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
    &TypeEntry::<file::FileType>::NEW,
    &TypeEntry::<package::PackageType>::NEW,
    &TypeEntry::<service::ServiceType>::NEW,
    &TypeEntry::<exec::ExecType>::NEW,
    &TypeEntry::<archive::ArchiveType>::NEW,
    &TypeEntry::<scaffold::ScaffoldType>::NEW,
    &TypeEntry::<apply::ApplyType>::NEW,
    &TypeEntry::<symlink::SymlinkType>::NEW,
    &TypeEntry::<line::LineType>::NEW,
    &TypeEntry::<user::UserType>::NEW,
    &TypeEntry::<group::GroupType>::NEW,
    &TypeEntry::<cron::CronType>::NEW,
    &TypeEntry::<mount::MountType>::NEW,
    &TypeEntry::<sysctl::SysctlType>::NEW,
];
