//! Orphans: processes of commands whose runner was killed. The [journal](super::journal) of the runner identifies them, and this
//! module ends them.
//!
//! The processes of a command are its process group and all processes that hold its output. All descendants of both are included,
//! also those in groups and sessions of their own. A daemon that left its session, its parent and the output is no orphan: it
//! left on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::journal::{BootNamespace, JournalEntry, JournalFile};

/// The longest wait for the end of killed processes. A process that waits for a disk takes longer, and is reported.
const PATIENCE: Duration = Duration::from_secs(5);
/// Rounds of the search for more processes. A round misses only processes that start meanwhile, and found processes are stopped.
const ROUNDS: usize = 50;
/// The largest journal that is read, in bytes: a command takes some hundred bytes, and few run at once.
const MAX_JOURNAL: u64 = 1 << 20;

/// A process of an orphaned command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// The number of the process.
    pub pid: i32,
    /// The name of its program.
    pub name: String,
}

impl fmt::Display for Orphan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.pid)
    }
}

/// The orphans of a killed runner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Orphans {
    /// The processes that were ended.
    pub ended: Vec<Orphan>,
    /// The processes that are still alive.
    pub alive: Vec<Orphan>,
}

impl Orphans {
    /// True when there were no orphans.
    pub fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.alive.is_empty()
    }

    /// Returns a report for the user; none when there were no orphans.
    pub fn report(&self) -> Option<String> {
        let list = |orphans: &[Orphan]| orphans.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let ended = (!self.ended.is_empty()).then(|| format!("ended processes that an earlier run left: {}", list(&self.ended)));
        let alive =
            (!self.alive.is_empty()).then(|| format!("could not end processes that an earlier run left: {}", list(&self.alive)));
        let both: Vec<String> = ended.into_iter().chain(alive).collect();
        (!both.is_empty()).then(|| both.join("; "))
    }
}

/// Ends the orphans of the runner of this journal. The caller knows that the runner is dead.
///
/// # Errors
/// When the journal or the processes can't be read.
pub fn end(journal: &Path) -> io::Result<Orphans> {
    match File::open(journal) {
        Ok(file) => end_of(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Orphans::default()),
        Err(error) => Err(error),
    }
}

/// Ends the orphans of all dead runners with journals in this directory. Journals that can't be read are skipped.
pub fn sweep(directory: &Path) -> Orphans {
    let mut all = Orphans::default();
    for path in std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        // The lock of the sweep itself is no journal.
        if path.extension().is_some_and(|extension| extension == "lock") {
            continue;
        }
        // The lock of a journal ends with its runner. The lock here keeps other sweeps away.
        let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => continue,
        }
        if let Ok(orphans) = end_of(&file) {
            all.ended.extend(orphans.ended);
            if orphans.alive.is_empty() {
                let _removed = std::fs::remove_file(&path);
            }
            all.alive.extend(orphans.alive);
        }
    }
    all
}

fn end_of(file: &File) -> io::Result<Orphans> {
    let mut text = Vec::new();
    file.take(MAX_JOURNAL).read_to_end(&mut text)?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if line.is_empty() {
        return Ok(Orphans::default());
    }
    let record: JournalFile = serde_json::from_slice(line)?;
    // The processes of another boot have ended, and those of another namespace have other numbers here.
    if record.commands.is_empty() || record.realm != BootNamespace::current()? {
        return Ok(Orphans::default());
    }
    end_all(&record)
}

/// A process with a handle that never refers to another process.
struct ProcessHandle {
    orphan: Orphan,
    handle: OwnedFd,
}

/// Stops the found processes and searches again, until no more are found, so that none starts unseen. Then kills all of them.
fn end_all(record: &JournalFile) -> io::Result<Orphans> {
    let mut found: BTreeMap<i32, u64> = BTreeMap::new();
    let mut held: Vec<ProcessHandle> = Vec::new();
    for _ in 0..ROUNDS {
        let table = process_table()?;
        let fresh: Vec<&Process> = members(record, &table, &found).into_iter().collect();
        if fresh.is_empty() {
            break;
        }
        for process in fresh {
            found.insert(process.pid, process.started);
            let Some(handle) = open_handle(process) else { continue };
            let _stopped = pidfd_send_signal(&handle, Signal::STOP);
            held.push(ProcessHandle { orphan: Orphan { pid: process.pid, name: process.name.clone() }, handle });
        }
    }
    for one in &held {
        // A process that may not be killed is reported below.
        let _killed = pidfd_send_signal(&one.handle, Signal::KILL);
    }
    let until = Instant::now() + PATIENCE;
    let mut orphans = Orphans::default();
    for ProcessHandle { orphan, handle } in held {
        let gone = is_gone(&handle, until.saturating_duration_since(Instant::now()));
        if gone { orphans.ended.push(orphan) } else { orphans.alive.push(orphan) }
    }
    Ok(orphans)
}

/// Opens a handle of a process, unless its number belongs to another process by now.
fn open_handle(process: &Process) -> Option<OwnedFd> {
    let handle = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
    (Process::read(process.pid)?.started == process.started).then_some(handle)
}

fn is_gone(handle: &OwnedFd, patience: Duration) -> bool {
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
    nix::poll::poll(&mut fds, patience).is_ok_and(|ready| ready > 0)
}

/// The processes of these commands that are not in `found`.
fn members<'a>(record: &JournalFile, table: &'a BTreeMap<i32, Process>, found: &BTreeMap<i32, u64>) -> Vec<&'a Process> {
    let spared = ancestors(table);
    let earliest = record.commands.iter().map(|note| note.since).min().unwrap_or(u64::MAX);
    let candidates: Vec<&Process> =
        table.values().filter(|process| process.started >= earliest && !spared.contains(&process.pid)).collect();
    let is_member = |process: &Process| record.commands.iter().any(|note| is_member(process, note, record.session, table));
    let mut ours: BTreeSet<i32> = candidates.iter().filter(|process| is_member(process)).map(|process| process.pid).collect();
    // Processes that were found before count as parents and leaders, also after their end.
    ours.extend(found.keys());
    loop {
        let before = ours.len();
        for process in &candidates {
            if [process.parent, process.group, process.session].iter().any(|number| ours.contains(number)) {
                ours.insert(process.pid);
            }
        }
        if ours.len() == before {
            break;
        }
    }
    candidates.into_iter().filter(|process| ours.contains(&process.pid) && !found.contains_key(&process.pid)).collect()
}

/// True for a process of an entry: the command itself, a member of its group, or an output holder.
fn is_member(process: &Process, note: &JournalEntry, session: i32, table: &BTreeMap<i32, Process>) -> bool {
    if process.started < note.since {
        return false;
    }
    let is_leader = |process: &Process| note.until.is_some_and(|until| process.started <= until);
    // The number of a group is not reused while the group has members. When the number belongs to another process than the
    // recorded one, the group has ended.
    let in_group =
        note.pid.is_some_and(|pid| process.group == pid && process.session == session && table.get(&pid).is_none_or(is_leader));
    in_group || holds(process.pid, &note.pipes)
}

/// True when a process holds one of these pipes.
fn holds(pid: i32, pipes: &[u64]) -> bool {
    let wanted: Vec<String> = pipes.iter().map(|inode| format!("pipe:[{inode}]")).collect();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.any(|target| wanted.iter().any(|pipe| target == Path::new(pipe)))
}

/// This process and its ancestors: a process within an orphaned command does not end itself.
fn ancestors(table: &BTreeMap<i32, Process>) -> BTreeSet<i32> {
    let mut above = BTreeSet::from([1]);
    let mut next = i32::try_from(std::process::id()).ok();
    while let Some(pid) = next.filter(|pid| above.insert(*pid)) {
        next = table.get(&pid).map(|process| process.parent);
    }
    above
}

/// A process, as in `/proc/PID/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: i32,
    name: String,
    parent: i32,
    group: i32,
    session: i32,
    started: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/stat")).ok()?))
    }

    /// Parses a line of `/proc/PID/stat`. None for a zombie.
    fn parse(pid: i32, line: &str) -> Option<Self> {
        let (head, tail) = line.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        if matches!(fields.first().copied(), None | Some("Z" | "X")) {
            return None;
        }
        // proc_pid_stat(5) counts from 1, and two fields come before these.
        let started = fields.get(19)?.parse().ok()?;
        Some(Self { pid, name, parent: number(1)?, group: number(2)?, session: number(3)?, started })
    }
}

fn process_table() -> io::Result<BTreeMap<i32, Process>> {
    let numbers = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // A process that ends meanwhile is skipped.
    Ok(numbers.filter_map(|pid| Some((pid, Process::read(pid)?))).collect())
}

#[cfg(test)]
mod tests;
