//! What the kernel and the hash alone cost: the same files looked at, or written, by a program that does nothing else.
//!
//! usage: ensign-bench-floor nothing | read LIST | write DIR COUNT BYTES | peak PROGRAM ... | turns ROUNDS COMMANDS

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a measuring stick, not a part of the program"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use sha2::{Digest, Sha256};

/// Opens, looks at, reads and hashes every file of a list.
fn read(list: &str) {
    let (mut buffer, mut sum) = (vec![0; 64 << 10], 0_u64);
    for path in fs::read_to_string(list).unwrap().lines() {
        let mut file = File::open(path).unwrap();
        let meta = file.metadata().unwrap();
        let read = file.read(&mut buffer).unwrap();
        let digest = Sha256::digest(&buffer[..read]);
        sum += u64::from(digest[0]) + u64::from(meta.uid()) + u64::from(meta.mode());
    }
    println!("{sum}");
}

/// Puts files in place, each in one step: a temporary file beside it, owner, mode, rename; no sync.
fn write(dir: &str, count: usize, bytes: usize) {
    let content = vec![b'x'; bytes];
    for number in 0..count {
        let (temporary, path) = (format!("{dir}/.f{number:05}.tmp"), format!("{dir}/f{number:05}"));
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary).unwrap();
        file.write_all(&content).unwrap();
        fchown(&file, Some(nix::unistd::geteuid().as_raw()), Some(nix::unistd::getegid().as_raw())).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o644)).unwrap();
        drop(file);
        fs::rename(&temporary, &path).unwrap();
    }
}

/// The most memory that another program has resident, in KiB. Asked from here because a process inherits the peak of
/// the one that it was started by.
fn peak(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).status().unwrap();
    assert!(status.success());
    println!("{}", getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss());
}

/// Runs the commands of a file, a line each and its words apart by spaces, in turns, and prints the wall time of each
/// run in ms, a line for each turn. For where the suite itself can't run, as in a node.
fn turns(rounds: usize, commands: &str) {
    let commands = fs::read_to_string(commands).unwrap();
    for _ in 0..rounds {
        let times: Vec<String> = commands.lines().map(|line| format!("{:.3}", once(line))).collect();
        println!("{}", times.join(" "));
    }
}

fn once(line: &str) -> f64 {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let started = Instant::now();
    let status = command.args(words).stdout(Stdio::null()).status().unwrap();
    let wall = started.elapsed().as_secs_f64() * 1e3;
    assert!(status.success(), "{line}: {status}");
    wall
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["read", list] => read(list),
        ["write", dir, count, bytes] => write(dir, count.parse().unwrap(), bytes.parse().unwrap()),
        ["turns", rounds, commands] => turns(rounds.parse().unwrap(), commands),
        ["peak", program, arguments @ ..] => peak(program, arguments),
        // `nothing`, and what test runners call every target with.
        _ => {}
    }
}
