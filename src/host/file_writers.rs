//! `fanotify(7)`: the processes that change files. Only the kernel's reports to a privileged process have the process id.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::fs::CWD;

/// Bytes that one system call reads: some hundred events.
const BUFFER_BYTES: usize = 16 << 10;
/// Bytes of the fixed part of an event, and of a record before its file handle.
const EVENT_BYTES: usize = 24;
const RECORD_BYTES: usize = 20;
/// The type of a record with a directory and a name.
const DIRECTORY_AND_NAME: u8 = 2;

/// A process that changed a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWriter {
    /// The name of the program; none when the process has ended.
    pub program: Option<String>,
    /// The id of the process.
    pub pid: i32,
}

impl fmt::Display for FileWriter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.program {
            Some(program) => write!(out, "program {program} (pid {})", self.pid),
            None => write!(out, "a process that has ended (pid {})", self.pid),
        }
    }
}

/// A log of the processes that change some files, other than this process.
#[derive(Debug)]
pub struct FileWriterLog {
    group: Fanotify,
    names: BTreeSet<OsString>,
    last: Option<FileWriter>,
}

impl FileWriterLog {
    /// Opens a log of these files. Changes of all files of their names in their directories count.
    ///
    /// # Errors
    /// When the kernel or the file system gives no such reports.
    pub fn open<'a>(files: impl Iterator<Item = &'a Path>) -> io::Result<Self> {
        // The crate has no name for the flag with which events have the directory and the name.
        let named = InitFlags::from_bits_retain(nix::libc::FAN_REPORT_DFID_NAME);
        let flags = InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK | InitFlags::FAN_CLASS_NOTIF | named;
        let group = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC)?;
        let entries = MaskFlags::FAN_CREATE | MaskFlags::FAN_DELETE | MaskFlags::FAN_MOVED_FROM | MaskFlags::FAN_MOVED_TO;
        let mask = entries | MaskFlags::FAN_MODIFY | MaskFlags::FAN_ATTRIB | MaskFlags::FAN_EVENT_ON_CHILD;
        let mut names = BTreeSet::new();
        for (directory, name) in files.filter_map(|file| Some((file.parent()?, file.file_name()?))) {
            group.mark(MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_ONLYDIR, mask, CWD, Some(directory))?;
            names.insert(name.to_owned());
        }
        Ok(Self { group, names, last: None })
    }

    /// Takes the changes since the last call. The name of a program is found while its process runs.
    pub fn read(&mut self) {
        let mut buffer = [0; BUFFER_BYTES];
        // An empty queue ends in an error too.
        while let Ok(count @ 1..) = rustix::io::read(self.group.as_fd(), &mut buffer) {
            for (pid, name) in changes(buffer.get(..count).unwrap_or_default()) {
                // The kernel hides the process from an unprivileged reader, and one of another namespace.
                let is_own = u32::try_from(pid).is_ok_and(|pid| pid == std::process::id());
                if pid <= 0 || is_own || !self.names.contains(name) || self.last.as_ref().is_some_and(|last| last.pid == pid) {
                    continue;
                }
                self.last = Some(FileWriter { program: program(pid), pid });
            }
        }
    }

    /// Returns the process of the last change; none when no change had a process.
    pub fn last(&self) -> Option<&FileWriter> {
        self.last.as_ref()
    }
}

fn program(pid: i32) -> Option<String> {
    let name = std::fs::read(PathBuf::from(format!("/proc/{pid}/comm"))).ok()?;
    let name = OsString::from_vec(name).to_string_lossy().trim_end().replace(char::is_control, "?");
    (!name.is_empty()).then_some(name)
}

/// Returns the process and the name of the file of each event.
fn changes(mut bytes: &[u8]) -> impl Iterator<Item = (i32, &OsStr)> {
    std::iter::from_fn(move || {
        let length = usize::try_from(number(bytes, 0)?).ok().filter(|length| *length >= EVENT_BYTES)?;
        let (event, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some(event)
    })
    .filter_map(|event| Some((number(event, 20)?.cast_signed(), name(event.get(EVENT_BYTES..)?)?)))
}

/// Returns the name in the first record with a name.
fn name(mut records: &[u8]) -> Option<&OsStr> {
    loop {
        let [kind, _, low, high, ..] = *records else { return None };
        let (record, rest) = records.split_at_checked(usize::from(u16::from_ne_bytes([low, high])))?;
        if kind == DIRECTORY_AND_NAME {
            let handle_bytes = usize::try_from(number(record, 12)?).ok()?;
            let name = record.get(RECORD_BYTES.checked_add(handle_bytes)?..)?;
            return name.split(|byte| *byte == 0).next().map(OsStr::from_bytes);
        }
        if record.is_empty() {
            return None;
        }
        records = rest;
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event of a process with records of these types and names.
    fn event(pid: i32, records: &[(u8, &str)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, name) in records {
            let name = [name.as_bytes(), b"\0\0"].concat();
            let length = u16::try_from(RECORD_BYTES + 8 + name.len()).unwrap();
            body.extend([&[*kind, 0][..], &length.to_ne_bytes(), &[1; 8], &8_u32.to_ne_bytes(), &[2; 12], &name].concat());
        }
        let length = u32::try_from(EVENT_BYTES + body.len()).unwrap();
        [&length.to_ne_bytes()[..], &[3, 0, 24, 0], &[0; 8], &(-1_i32).to_ne_bytes(), &pid.to_ne_bytes(), &body].concat()
    }

    #[test]
    fn events_have_a_process_and_a_name() {
        let all =
            [event(7, &[(2, "motd")]), event(8, &[(1, "other"), (2, "issue")]), event(9, &[]), event(0, &[(2, "x")])].concat();
        let wanted = [(7, "motd"), (8, "issue"), (0, "x")].map(|(pid, name)| (pid, OsStr::new(name)));
        assert_eq!(changes(&all).collect::<Vec<_>>(), wanted);
        // A part of an event is no event.
        let whole = event(7, &[(2, "motd")]);
        for length in 0..whole.len() {
            assert_eq!(changes(&whole[..length]).count(), 0, "{length}");
        }
        let mut wrong = whole.clone();
        for at in 0..whole.len() {
            wrong[at] = 0;
            let _any = changes(&wrong).count();
            wrong[at] = whole[at];
        }
    }

    #[test]
    fn a_process_is_shown_with_its_program() {
        let writer = |program: Option<&str>| FileWriter { program: program.map(str::to_owned), pid: 7 }.to_string();
        assert_eq!(writer(Some("puppet")), "program puppet (pid 7)");
        assert_eq!(writer(None), "a process that has ended (pid 7)");
    }
}
