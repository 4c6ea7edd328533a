//! The cost of the kernel and the hash alone: a minimal program reads, or writes, the same files.
//!
//! usage: ensign-bench-floor nothing | read LIST | write DIR COUNT BYTES | peak PROGRAM ... | turns ROUNDS COMMANDS |
//!        repair DIR BYTES

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a measuring stick, not a part of the program"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use sha2::{Digest, Sha256};

/// Opens, stats, reads and hashes every file of a list.
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

/// Writes each file in one step: a temporary file beside the target, owner, mode, rename; no sync.
fn write(dir: &str, count: usize, bytes: usize) {
    let content = vec![b'x'; bytes];
    for number in 0..count {
        replace(dir, &format!("f{number:05}"), &content);
    }
}

fn replace(dir: &str, name: &str, content: &[u8]) {
    let temporary = format!("{dir}/.{name}.tmp");
    let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary).unwrap();
    file.write_all(content).unwrap();
    fchown(&file, Some(nix::unistd::geteuid().as_raw()), Some(nix::unistd::getegid().as_raw())).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o644)).unwrap();
    drop(file);
    fs::rename(&temporary, format!("{dir}/{name}")).unwrap();
}

/// Watches a directory of files with the same content, and writes each again that another process changed. Prints a line once
/// the watch is there.
fn repair(dir: &str, bytes: usize) {
    let content = vec![b'x'; bytes];
    let instance = inotify::init(CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&instance, dir, WatchFlags::MODIFY | WatchFlags::DELETE | WatchFlags::ATTRIB).unwrap();
    println!("ready");
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&instance, &mut buffer);
    loop {
        let event = events.next().unwrap();
        let Some(name) = event.file_name().map(|name| name.to_str().unwrap()).filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let path = format!("{dir}/{name}");
        let is_wanted = fs::read(&path).is_ok_and(|found| found == content)
            && fs::metadata(&path).is_ok_and(|meta| meta.permissions().mode() & 0o7777 == 0o644);
        if !is_wanted {
            replace(dir, name, &content);
        }
    }
}

/// Returns the largest resident memory of another program, in KiB. This process starts the program, because a process inherits
/// the peak of its parent.
fn peak(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).status().unwrap();
    assert!(status.success());
    println!("{}", getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss());
}

/// Runs the commands of a file in turns: one command per line, with blanks between the words. Prints one line per turn, with
/// the wall time of each run in ms. For places where the suite itself can't run, as in a node.
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
        ["repair", dir, bytes] => repair(dir, bytes.parse().unwrap()),
        ["turns", rounds, commands] => turns(rounds.parse().unwrap(), commands),
        ["peak", program, arguments @ ..] => peak(program, arguments),
        // `nothing`, and the arguments with which test runners call every target.
        _ => {}
    }
}
