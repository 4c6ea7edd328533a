//! Writes below a directory, for names from elsewhere: every path is walked from the directory itself, part by part. No link of
//! the path is followed, whatever its owner. An existing object is replaced in one step or not at all. `write` makes
//! objects, `dir_walk` examines and removes.

mod dir_walk;
mod directory;
mod mounts;
mod write;

pub(super) use dir_walk::remove_all as remove_below;
pub use dir_walk::{TreeEntry, TreeEntryKind};
pub(super) use mounts::first_mount;
pub use write::{NewFile, Tree};
