//! Processes of this host, as the kernel lists them.

use std::path::Path;

use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;

/// The parent of a process, unless the process has ended.
fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| !["Z", "X"].contains(&state))
}

/// True for a process that runs.
pub fn is_alive(pid: i32) -> bool {
    parent(pid).is_some()
}

fn all() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the processes that a process started, and their descendants.
pub fn descendants(of: u32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = all().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![i32::try_from(of).unwrap()];
    let mut next = 0;
    while let Some(above) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// Kills these processes.
pub fn kill(pids: &[i32]) {
    for pid in pids {
        let _gone = send(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

/// Returns the processes with a text in their command line.
pub fn with_text(text: &Path) -> Vec<i32> {
    let text = text.to_str().unwrap();
    let holds = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_alive(*pid) && String::from_utf8_lossy(&line).contains(text)
    };
    all().into_iter().filter(holds).collect()
}
