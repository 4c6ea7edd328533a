//! Managed paths, opened so that root alone decides about their targets.
//!
//! A path without links costs a single `openat2` that follows none. For a path with a link, `walk` goes part by part and follows
//! links that root alone could have made. The result is a [`DirEntryHandle`]: an open directory and a name in it. `place`
//! examines, writes, renames and removes the entry by descriptor.
//!
//! The rules, where "root" is also the user of this process:
//!
//! - A directory is closed when root owns it and only root may write to it. Also, every directory above is closed or keeps its
//!   entries. The group counts as others. A sticky directory of root keeps the entries that root owns. A link is followed only in a
//!   closed directory, or where the resource has `follow: true`. Links of the kernel, as below `/proc`, are never followed.
//! - In a directory that others can change, a regular file with several names may belong to another user. The agent neither reads
//!   such a file nor changes it in place. The exception: the owner of the directory, who alone can change the directory, owns the
//!   file too.
//! - Where a run is limited to some directories, the opened file must be in one of them.

mod place;
mod resolver;
mod walk;

pub use place::{DirEntryHandle, PathInfo};
pub use resolver::PathResolver;
pub(super) use resolver::owner_of;

#[cfg(test)]
mod tests;
