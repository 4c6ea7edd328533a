//! The resource types, one module each.

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
