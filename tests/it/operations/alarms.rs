//! Alarms about the host of an agent, raised early enough.

use std::path::{Path, PathBuf};
use std::process::Command as Process;

use tempfile::TempDir;

use crate::support::single_node::{Agent, SingleNodeFleet, on_every_server};
use crate::support::skip::{Reason, no_namespaces, skip};

/// A library to preload: shifts the clock of the program by the seconds in a file.
fn shifted_clock(dir: &TempDir) -> Option<PathBuf> {
    let (source, library) = (dir.path().join("clock.c"), dir.path().join("clock.so"));
    let code = r#"
        #define _GNU_SOURCE
        #include <stdlib.h>
        #include <time.h>
        #include <unistd.h>
        #include <sys/syscall.h>
        int clock_gettime(clockid_t id, struct timespec *now) {
            int result = syscall(SYS_clock_gettime, id, now);
            const char *shift = getenv("CLOCK_SHIFT");
            if (result == 0 && id == CLOCK_REALTIME && shift) now->tv_sec += atol(shift);
            return result;
        }
    "#;
    std::fs::write(&source, code).unwrap();
    let built = Process::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    built.is_ok_and(|status| status.success()).then_some(library)
}

#[test]
fn a_clock_far_from_the_servers_raises_an_alarm() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let Some(library) = shifted_clock(&fleet.dir) else {
            return skip(Reason::Missing, "no C compiler for a clock that is wrong: install the package gcc");
        };
        for (shift, wanted) in [("3030", "about 50 minutes ahead of"), ("-3570", "about 59 minutes behind")] {
            let agent = Agent::start(fleet.process().env("LD_PRELOAD", &library).env("CLOCK_SHIFT", shift));
            let said = format!("the clock of this host is {wanted} the server's");
            fleet.state(&said, |state| state.alarms.contains(&said)).await;
            assert_eq!(agent.stop(), Some(0));
        }
        let _agent = fleet.start_agent().await;
        fleet.state("no alarm", |state| state.alive && state.alarms.is_empty()).await;
    });
}

/// A small file system of its own.
struct Mounted(PathBuf);

impl Mounted {
    fn new(path: &Path) -> Option<Self> {
        std::fs::create_dir(path).unwrap();
        let mounted = Process::new("mount").args(["-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs"]).arg(path).status();
        mounted.is_ok_and(|status| status.success()).then(|| Self(path.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ended = Process::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_nearly_full_disk_raises_an_alarm() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let Some(mounted) = Mounted::new(&fleet.path("state")) else {
            return skip(no_namespaces(), "mount is impossible");
        };
        let _agent = fleet.start_agent().await;
        fleet.state("no alarm", |state| state.alarms.is_empty()).await;
        std::fs::write(mounted.0.join("filling"), vec![0; 4_050_000]).unwrap();
        let wanted = format!("less than 204 KiB are free on the file system of {}", mounted.0.display());
        fleet.state("an alarm", |state| state.alarms == [wanted.as_str()]).await;
        // There is still space for a command.
        let command = fleet.slow_command("last", 0);
        fleet.send(&command).await;
        fleet.only_result(command.id).await;
        std::fs::remove_file(mounted.0.join("filling")).unwrap();
        fleet.state("no alarm", |state| state.alarms.is_empty()).await;
    });
}

#[test]
fn two_hosts_with_one_node_id_raise_an_alarm_on_both() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let first = fleet.start_agent().await;
        // The same configuration on another host: with a state directory of its own.
        fleet.edit_config("state_dir = \"state\"", "state_dir = \"state2\"");
        let second = Agent::start(&mut fleet.process());
        let name = ensign::host::kernel::names().unwrap().hostname;
        let wanted = format!("another agent uses the node id web1: on host \"{name}\"");
        let mut boots = std::collections::BTreeSet::new();
        while boots.len() < 2 {
            let state =
                fleet.state("a duplicate node id", |state| state.alarms.contains(&wanted) && !boots.contains(&state.boot)).await;
            boots.insert(state.boot);
        }
        // The alarm ends when one of them stops.
        assert_eq!(second.stop(), Some(0));
        fleet.state("no duplicate node id", |state| state.alive && state.alarms.is_empty()).await;
        assert_eq!(first.stop(), Some(0));
    });
}
