//! Files: examined with as few calls as the kernel needs, written so that no process sees a partial file.
//!
//! `stat` has the properties of paths, `digest` the digests of contents, `read` reads whole files. `attributes` sets owner and
//! mode, `ownership` decides who can change a directory. `new_directory` makes a directory with its files in one step. `write` writes, makes directories and removes. `temp_file` makes files
//! and symbolic links under another name first.

mod attributes;
mod digest;
mod guarded;
mod new_directory;
mod ownership;
mod read;
mod stat;
mod temp_file;
mod write;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

pub use std::fs::File;

pub(super) use attributes::set_open;
pub use attributes::{WriteSpec, set_attributes};
pub(super) use digest::digest_open_file;
pub use digest::{hex, sha256, sha256_of};
pub use guarded::{check_private, check_trusted, read_private_text, read_trusted, read_trusted_text};
pub use new_directory::NewDirectory;
pub(super) use ownership::{TrustedOwner, check_shared, is_shared};
pub use read::{
    list, open, open_named, read, read_named, read_named_text, read_open, read_regular, read_regular_text, read_text,
};
pub(super) use read::{list_open, names_in};
pub(super) use stat::file_type;
pub use stat::{
    FileInfo, FileKind, Stamp, exists, is_directory, is_file, is_public, is_reachable, is_same, is_symlink, resolve_links, stamp,
    stat,
};
pub(super) use temp_file::{FileTarget, write_link_at};
pub use temp_file::{LinkInfo, TempFile, descriptor_path};
pub use write::{
    append_durably, append_lines, create_directory, create_new, private_directory, remove, remove_all, write_atomic,
};

/// An operation on a path that failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The operating system refused an operation.
    #[error("could not {doing} {}", path.display())]
    Io {
        /// The failed action, as a verb in the infinitive.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The directory of a file is missing, or is no directory.
    #[error("\"{}\" is not a directory", .0.display())]
    NoParent(PathBuf),
    /// A file is larger than the limit.
    #[error("{} is larger than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// A text file is not UTF-8.
    #[error("{} is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    /// A directory, device, socket or pipe instead of a regular file.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// A link that users other than root could have made.
    #[error(
        "{} is a symbolic link in a directory that others than root can change (owner {owner}, mode {mode:04o}), and is not \
         followed{hint}", link.display()
    )]
    ForeignLink {
        /// The link.
        link: PathBuf,
        /// The owner of the directory that holds it.
        owner: u32,
        /// The permission bits of that directory.
        mode: u32,
        /// The advice for the user, or an empty text.
        hint: &'static str,
    },
    /// A file with several names, in a directory where others could have made one of the names.
    #[error(
        "{} has {names} names (hard links) and belongs to user {uid}, in a directory that others can change: it may be a file \
         of another user, and stays unchanged", path.display()
    )]
    Shared {
        /// The file.
        path: PathBuf,
        /// The owner of the file.
        uid: u32,
        /// The number of names.
        names: u64,
    },
    /// A path that leads out of the allowed directories of a run.
    #[error("{} leads out of the directories that this node allows", .0.display())]
    NotAllowed(PathBuf),
    /// The object was replaced since the last check.
    #[error("{} was changed by another process meanwhile", .0.display())]
    Changed(PathBuf),
    /// A trusted file that others can read or change.
    #[error("{} {what}: run `{remedy}`", path.display())]
    UnsafePermissions {
        /// The file, or a directory of its path.
        path: PathBuf,
        /// The mistake, as the predicate of a sentence.
        what: &'static str,
        /// The command that repairs the permissions.
        remedy: String,
    },
    /// A path that leads out of the directory that it is written into.
    #[error("{} is not within the directory that it belongs to", .0.display())]
    Outside(PathBuf),
    /// A link or file where the path needs a directory.
    #[error("{} is in the way: it is not a directory, and links are not followed here", .0.display())]
    InTheWay(PathBuf),
    /// More entries than the limit.
    #[error("{} has more than {limit} {what}", path.display())]
    TooMany {
        /// The directory.
        path: PathBuf,
        /// The kind of entries, in the plural.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A file system is mounted in a directory to remove.
    #[error("cannot remove {}: a file system is mounted at {}, and its content is not removed; unmount it first", path.display(), mounted.display())]
    Mounted {
        /// The path to remove.
        path: PathBuf,
        /// The mount point.
        mounted: PathBuf,
    },
    /// Another process is making the same file.
    #[error("{} is being made by another process", .0.display())]
    Busy(PathBuf),
}

impl FsError {
    /// Creates the error of a failed action on a path.
    pub fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source }
    }

    /// True when the path does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == ErrorKind::NotFound)
    }
}

#[cfg(test)]
mod tests;
