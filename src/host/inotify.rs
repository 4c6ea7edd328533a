//! `inotify(7)`: the kernel's reports about changes in directories.
//!
//! The kernel reports a change before the system call that made it returns. So a reader that finds no event has missed none.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Bytes that one system call reads: some hundred events.
const BUFFER_BYTES: usize = 16 << 10;

/// A watch on one object of a file system. Two paths to the same object have the same watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(i32);

impl WatchId {
    /// Creates the identity of a simulated watch.
    #[cfg(test)]
    pub fn new(number: i32) -> Self {
        Self(number)
    }
}

/// The changes that a watch reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchMask {
    /// Entries of a directory come, go and move.
    Structure,
    /// In addition, the content and the attributes of the object and of the entries change.
    Content,
}

/// The object that a new watch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchObject {
    /// The directory at the path itself.
    Directory,
    /// The directory at the path, or behind the symbolic link there.
    LinkedDirectory,
    /// The object at the path, of any kind.
    Any,
}

/// A kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The content was written.
    Content,
    /// Mode, owner, times, extended attributes or the number of links changed.
    Attributes,
    /// The object came into being.
    Created,
    /// The object was removed, or its file system was unmounted.
    Removed,
    /// The object was renamed, away from the path or to the path.
    Moved,
}

/// An event of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InotifyEvent<'a> {
    /// An entry of a watched directory changed.
    Entry {
        /// The watch of the directory.
        watch: WatchId,
        /// The name in the directory.
        name: &'a OsStr,
        /// The change.
        kind: ChangeKind,
        /// The entry is a directory.
        is_directory: bool,
    },
    /// The watched object itself changed.
    Own {
        /// The watch of the object.
        watch: WatchId,
        /// The change.
        kind: ChangeKind,
    },
    /// The kernel removed the watch, as the object is gone.
    Released {
        /// The watch.
        watch: WatchId,
    },
    /// The queue was full, and events are lost.
    Overflow,
}

/// A watch that could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddWatchError {
    /// No object of the wanted kind is at the path.
    #[error("no such object")]
    Missing,
    /// The user has no watches left, or the kernel has no memory for them.
    #[error("the limit fs.inotify.max_user_watches is reached")]
    Limit,
    /// The kernel refuses the watch, as without read permission.
    #[error("the kernel refused the watch")]
    Refused(#[source] io::Error),
}

/// An inotify instance with its queue of events.
#[derive(Debug)]
pub struct Inotify(OwnedFd);

impl Inotify {
    /// Creates an instance.
    ///
    /// # Errors
    /// When the limit of instances or of open files is reached.
    pub fn open() -> io::Result<Self> {
        Ok(Self(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?))
    }

    /// Adds a watch. An existing watch of the same object reports these changes from now on as well.
    ///
    /// # Errors
    /// When nothing is at the path, or the kernel grants no watch.
    pub fn add(&self, path: &Path, object: WatchObject, mask: WatchMask) -> Result<WatchId, AddWatchError> {
        let structure =
            WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        let changes = match mask {
            WatchMask::Structure => structure,
            WatchMask::Content => structure | WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB,
        };
        let target = match object {
            WatchObject::Directory => WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW,
            WatchObject::LinkedDirectory => WatchFlags::ONLYDIR,
            WatchObject::Any => WatchFlags::DONT_FOLLOW,
        };
        inotify::add_watch(&self.0, path, changes | target | WatchFlags::MASK_ADD).map(WatchId).map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG => AddWatchError::Missing,
            Errno::NOSPC | Errno::NOMEM => AddWatchError::Limit,
            other => AddWatchError::Refused(other.into()),
        })
    }

    /// Removes a watch. The kernel may have removed the watch already.
    pub fn remove(&self, watch: WatchId) {
        // The kernel frees the watch of a removed object by itself.
        let _gone = inotify::remove_watch(&self.0, watch.0);
    }

    /// Passes at most `limit` waiting events to `handle`, and returns their number. Does not block.
    ///
    /// # Errors
    /// When the queue can't be read.
    pub fn read(&self, limit: usize, mut handle: impl FnMut(InotifyEvent<'_>)) -> io::Result<usize> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut count = 0;
        // Events in the buffer are no longer in the queue, so all of them are passed.
        while count < limit || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => {
                    count += 1;
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    if let Some(event) = decode(event.wd(), event.events(), name) {
                        handle(event);
                    }
                }
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Decodes an event; none for a kind that no watch asks for.
fn decode(watch: i32, flags: ReadFlags, name: Option<&OsStr>) -> Option<InotifyEvent<'_>> {
    let watch = WatchId(watch);
    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
        return Some(InotifyEvent::Overflow);
    }
    if flags.contains(ReadFlags::IGNORED) {
        return Some(InotifyEvent::Released { watch });
    }
    let kinds = [
        (ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE, ChangeKind::Content),
        (ReadFlags::ATTRIB, ChangeKind::Attributes),
        (ReadFlags::CREATE, ChangeKind::Created),
        (ReadFlags::DELETE | ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT, ChangeKind::Removed),
        (ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO | ReadFlags::MOVE_SELF, ChangeKind::Moved),
    ];
    let (_, kind) = kinds.into_iter().find(|(mask, _)| flags.intersects(*mask))?;
    Some(match name {
        Some(name) => InotifyEvent::Entry { watch, name, kind, is_directory: flags.contains(ReadFlags::ISDIR) },
        None => InotifyEvent::Own { watch, kind },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_decoded() {
        let (watch, name) = (WatchId(7), OsStr::new("f"));
        let entry = |kind, is_directory| Some(InotifyEvent::Entry { watch, name, kind, is_directory });
        for (flags, expected) in [
            (ReadFlags::MODIFY, entry(ChangeKind::Content, false)),
            (ReadFlags::CLOSE_WRITE, entry(ChangeKind::Content, false)),
            (ReadFlags::ATTRIB | ReadFlags::ISDIR, entry(ChangeKind::Attributes, true)),
            (ReadFlags::CREATE | ReadFlags::ISDIR, entry(ChangeKind::Created, true)),
            (ReadFlags::DELETE, entry(ChangeKind::Removed, false)),
            (ReadFlags::MOVED_FROM, entry(ChangeKind::Moved, false)),
            (ReadFlags::MOVED_TO, entry(ChangeKind::Moved, false)),
            (ReadFlags::OPEN, None),
        ] {
            assert_eq!(decode(7, flags, Some(name)), expected, "{flags:?}");
        }
        for (flags, expected) in [
            (ReadFlags::DELETE_SELF, InotifyEvent::Own { watch, kind: ChangeKind::Removed }),
            (ReadFlags::UNMOUNT, InotifyEvent::Own { watch, kind: ChangeKind::Removed }),
            (ReadFlags::MOVE_SELF, InotifyEvent::Own { watch, kind: ChangeKind::Moved }),
            (ReadFlags::IGNORED, InotifyEvent::Released { watch }),
            (ReadFlags::QUEUE_OVERFLOW, InotifyEvent::Overflow),
        ] {
            assert_eq!(decode(7, flags, None), Some(expected), "{flags:?}");
        }
    }

    #[test]
    fn a_change_is_reported_before_its_system_call_returns() {
        let dir = tempfile::tempdir().unwrap();
        let inotify = Inotify::open().unwrap();
        let watch = inotify.add(dir.path(), WatchObject::Directory, WatchMask::Structure).unwrap();
        let again = inotify.add(dir.path(), WatchObject::LinkedDirectory, WatchMask::Content).unwrap();
        assert_eq!(watch, again, "the same object");
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let mut kinds = Vec::new();
        let mut record = |event: InotifyEvent<'_>| match event {
            InotifyEvent::Entry { name, kind, .. } if name == "f" => kinds.push(kind),
            other => panic!("{other:?}"),
        };
        assert_eq!(inotify.read(100, &mut record).unwrap(), 3);
        assert_eq!(kinds, [ChangeKind::Created, ChangeKind::Content, ChangeKind::Content]);
        inotify.remove(watch);
        inotify.remove(watch);
        let mut events = 0;
        inotify.read(100, |event| events += usize::from(event == InotifyEvent::Released { watch })).unwrap();
        assert_eq!(events, 1);
    }

    #[test]
    fn a_watch_needs_an_object_of_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("f"), "").unwrap();
        std::os::unix::fs::symlink(".", at("l")).unwrap();
        let inotify = Inotify::open().unwrap();
        for (name, object, is_added) in [
            ("none", WatchObject::Any, false),
            ("f", WatchObject::Directory, false),
            ("f", WatchObject::Any, true),
            ("l", WatchObject::Directory, false),
            ("l", WatchObject::LinkedDirectory, true),
        ] {
            let added = inotify.add(&at(name), object, WatchMask::Content);
            assert_eq!(added.is_ok(), is_added, "{name} {object:?} {added:?}");
            assert!(is_added || matches!(added, Err(AddWatchError::Missing)));
        }
    }
}
