//! Changes of the mount table, as the kernel reports them on `/proc/self/mountinfo`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use super::mountinfo::decode;

/// The largest table that is read, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// A mount: its number, the number of the mount below, and its mount point. Numbers are used again after an unmount.
type MountEntry = (String, String, PathBuf);

/// A follower of the mount table. Its descriptor has an exceptional condition after a change. A `poll(2)` that reports the
/// condition clears the condition.
#[derive(Debug)]
pub struct MountEvents {
    file: File,
    table: BTreeSet<MountEntry>,
}

impl MountEvents {
    /// Opens the mount table. Every later change is reported.
    ///
    /// # Errors
    /// When the kernel does not report mounts.
    pub fn open() -> io::Result<Self> {
        let mut events = Self { file: File::open("/proc/self/mountinfo")?, table: BTreeSet::new() };
        events.table = events.read()?;
        Ok(events)
    }

    /// Reads the table again, and returns the mount points that changed. Changed options change no mount point.
    ///
    /// # Errors
    /// When the table can't be read.
    pub fn reload(&mut self) -> io::Result<BTreeSet<PathBuf>> {
        let table = self.read()?;
        let points = self.table.symmetric_difference(&table).map(|(_, _, point)| point.clone()).collect();
        self.table = table;
        Ok(points)
    }

    fn read(&mut self) -> io::Result<BTreeSet<MountEntry>> {
        self.file.rewind()?;
        let mut text = Vec::new();
        Read::by_ref(&mut self.file).take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(parse_entries(&String::from_utf8_lossy(&text)))
    }
}

impl AsFd for MountEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn parse_entries(mountinfo: &str) -> BTreeSet<MountEntry> {
    let entry = |line: &str| {
        let mut fields = line.split(' ');
        let (id, parent, point) = (fields.next()?, fields.next()?, fields.nth(2)?);
        Some((id.to_owned(), parent.to_owned(), PathBuf::from(decode(point))))
    };
    mountinfo.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read() {
        let table = "22 1 0:20 / / rw - overlay overlay rw\n40 22 0:30 /x /my\\040disk ro - tmpfs none rw\nx\n";
        let entry = |id: &str, below: &str, point: &str| (id.to_owned(), below.to_owned(), PathBuf::from(point));
        assert_eq!(parse_entries(table), BTreeSet::from([entry("22", "1", "/"), entry("40", "22", "/my disk")]));
    }
}
