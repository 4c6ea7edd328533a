use std::path::PathBuf;
use std::sync::Arc;

use super::super::{Cancel, CommandError, Journal, ProcessCommand, Runner, SystemRunner};
use super::*;

fn process(pid: i32, parent: i32, group: i32, session: i32, started: u64) -> Process {
    Process { pid, name: "x".into(), parent, group, session, started }
}

#[test]
fn a_line_of_the_kernel_is_read_whatever_the_name() {
    let line = "42 (a) b (c)) S 7 40 39 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 2 3";
    let read = Process::parse(42, line).unwrap();
    assert_eq!((read.parent, read.group, read.session, read.started, read.name.as_str()), (7, 40, 39, 12345, "a) b (c)"));
    assert_eq!(Process::parse(42, &line.replace(" S ", " Z ")), None);
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(Process::read(own).unwrap().session, nix::unistd::getsid(None).unwrap().as_raw());
}

/// Numbers that no process has, so that none of them holds a pipe.
const BASE: i32 = 1 << 28;

#[test]
fn only_orphans_of_the_command_are_found() {
    let note = JournalEntry { pipes: vec![], since: 100, pid: Some(BASE), until: Some(101) };
    let record = JournalFile { realm: BootNamespace::current().unwrap(), session: 5, commands: vec![note] };
    let find = |processes: &[Process]| -> Vec<i32> {
        let table = processes.iter().map(|process| (process.pid, process.clone())).collect();
        members(&record, &table, &BTreeMap::new()).iter().map(|process| process.pid - BASE).collect()
    };
    let command = process(BASE, 1, BASE, 5, 100);
    for (others, wanted, what) in [
        (vec![], vec![0], "the command itself"),
        (vec![process(BASE + 1, BASE, BASE, 5, 102)], vec![0, 1], "its child"),
        (vec![process(BASE + 1, 1, BASE, 5, 102)], vec![0, 1], "one of its group whose parent is gone"),
        (vec![process(BASE + 1, BASE, BASE + 1, BASE + 1, 102)], vec![0, 1], "a child in a session of its own"),
        (
            vec![process(BASE + 1, BASE, BASE + 1, BASE + 1, 102), process(BASE + 2, 1, BASE + 1, BASE + 1, 103)],
            vec![0, 1, 2],
            "one of the session of its child, whose parent is gone",
        ),
        (vec![process(BASE + 1, 1, BASE + 1, BASE + 1, 102)], vec![0], "a daemon that left"),
        (vec![process(BASE + 1, 1, BASE + 1, 5, 102)], vec![0], "another group of the same session"),
        (vec![process(BASE + 1, BASE, BASE, 5, 99)], vec![0], "one that is older"),
    ] {
        assert_eq!(find(&[vec![command.clone()], others].concat()), wanted, "{what}");
    }
    // The command itself has ended.
    assert_eq!(find(&[process(BASE + 1, 1, BASE, 5, 102)]), [1]);
    assert_eq!(find(&[process(BASE + 1, 1, BASE, BASE, 102)]), [0_i32; 0], "the group of a later daemon");
    // Another process has its number by now, so the group with this number is another group.
    assert_eq!(find(&[process(BASE, 1, BASE, 5, 500), process(BASE + 1, BASE, BASE, 5, 501)]), [0_i32; 0]);
}

/// Runs a script as an agent does. Returns the journal as soon as the file `until` exists.
fn left_running(directory: &Path, script: &str, until: &Path) -> (std::thread::JoinHandle<Result<(), CommandError>>, PathBuf) {
    let journal = Arc::new(Journal::open(&directory.join("commands")).unwrap());
    let command = ProcessCommand::new("/bin/sh", ["-c", script]);
    let runner = SystemRunner::new(None).with_journal(journal);
    let run = std::thread::spawn(move || runner.run(&command, &Cancel::default(), None).map(drop));
    let start = Instant::now();
    while !until.exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let seen = directory.join("seen");
    std::fs::copy(directory.join("commands"), &seen).unwrap();
    (run, seen)
}

#[test]
fn all_that_a_command_started_is_ended_and_a_daemon_is_not() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    // A grandchild; a process in a session of its own; a process that left its session and parent, and holds the output; a
    // daemon, which holds no output.
    let script = format!(
        "sh -c 'sleep 600 & wait' & setsid sh -c 'sleep 600; :' & (setsid sh -c 'sleep 600; :' &) ; \
         (setsid sh -c 'echo $$ > {daemon}; exec sleep 600' > /dev/null 2>&1 < /dev/null &) ; \
         while [ ! -s {daemon} ]; do sleep 0.01; done; : > {ready}; while :; do sleep 0.05; done",
        daemon = at("daemon"),
        ready = at("ready"),
    );
    let (run, seen) = left_running(place.path(), &script, &place.path().join("ready"));
    let orphans = end(&seen).unwrap();
    assert!(matches!(run.join().unwrap(), Err(CommandError::Signal { signal: 9, .. })));
    assert_eq!(orphans.alive, []);
    let sleeping = orphans.ended.iter().filter(|orphan| orphan.name == "sleep").count();
    assert!(sleeping >= 3, "{orphans:?}");
    assert!(orphans.report().unwrap().starts_with("ended processes that an earlier run left: "));
    let daemon: i32 = std::fs::read_to_string(at("daemon")).unwrap().trim().parse().unwrap();
    assert!(Process::read(daemon).is_some(), "the daemon lives");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon), nix::sys::signal::Signal::SIGKILL).unwrap();
    // No process is left, and the journal now lists no commands.
    assert!(end(&seen).unwrap().is_empty());
    assert!(end(&place.path().join("commands")).unwrap().is_empty());
}

#[test]
fn journals_of_the_living_and_of_other_boots_end_nothing() {
    let place = tempfile::tempdir().unwrap();
    let ready = place.path().join("ready");
    let script = format!(": > {}; while [ ! -e {}.go ]; do sleep 0.01; done", ready.display(), ready.display());
    let (run, seen) = left_running(place.path(), &script, &ready);
    let text = std::fs::read_to_string(&seen).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(&seen, text.replace(boot.trim(), "another")).unwrap();
    assert!(end(&seen).unwrap().is_empty());
    assert!(end(&place.path().join("nothing")).unwrap().is_empty());
    std::fs::write(&seen, "{").unwrap();
    end(&seen).unwrap_err();
    // This process holds the lock of the journal.
    let directory = place.path().join("journals");
    let journal = Arc::new(Journal::in_directory(&directory));
    let (out, _to) = std::io::pipe().unwrap();
    let running = journal.begin(&[&out]).unwrap();
    assert!(sweep(&directory).is_empty());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    drop((running, journal));
    // Where no file can be made, commands run without a journal.
    std::fs::write(place.path().join("file"), "").unwrap();
    drop(Arc::new(Journal::in_directory(place.path().join("file/none"))).begin(&[&out]).unwrap());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    std::fs::write(format!("{}.go", ready.display()), "").unwrap();
    run.join().unwrap().unwrap();
}
