//! Programs that run beside this one: started, watched, and ended when their handle is dropped.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Interval between two checks of a child that is ending.
const POLL: Duration = Duration::from_millis(10);

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    inner: std::process::Child,
    program: PathBuf,
}

impl Child {
    /// Starts a program with only these variables in its environment. Standard output and standard error go to the file `log`.
    /// The interrupt of the terminal does not reach the program: the owner of the handle ends the program.
    ///
    /// # Errors
    /// When the log can't be written or the program can't be started.
    pub fn start(program: &Path, args: &[&str], environment: &[(&str, &str)], log: &Path) -> io::Result<Self> {
        let log = File::create(log)?;
        let inner = std::process::Command::new(program)
            .args(args)
            .env_clear()
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        Ok(Self { inner, program: program.to_owned() })
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// True until the program has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.inner.try_wait(), Ok(None))
    }

    /// Sends SIGTERM to the program, without waiting.
    pub fn terminate(&self) {
        if let Ok(pid) = i32::try_from(self.inner.id()) {
            // The program may have ended already. It is not reaped yet, so no other process has its number.
            let _gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }

    /// Terminates the program, and kills it after `patience`. True when the program ended by itself with success.
    pub fn stop(mut self, patience: Duration) -> bool {
        self.terminate();
        let until = Instant::now() + patience;
        while Instant::now() < until {
            match self.inner.try_wait() {
                Ok(Some(status)) => return status.success(),
                Ok(None) => std::thread::sleep(POLL),
                Err(_) => return false,
            }
        }
        false
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // For a program that has ended, the kill fails and the wait reaps it.
        let _ended = self.inner.kill().and_then(|()| self.inner.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, log: &Path) -> Child {
        Child::start(Path::new("/bin/sh"), &["-c", script], &[("A", "1")], log).unwrap()
    }

    #[test]
    fn a_child_ends_with_its_value() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let child = sh("echo $A$HOME; sleep 30", &log);
        let pid = Pid::from_raw(i32::try_from(child.inner.id()).unwrap());
        while std::fs::read_to_string(&log).unwrap() != "1\n" {
            std::thread::sleep(POLL);
        }
        drop(child);
        assert!(kill(pid, None).is_err());
    }

    #[test]
    fn stopping_is_asking_first() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let ready = |child: &mut Child| {
            while !std::fs::read_to_string(&log).unwrap().contains("ready") {
                assert!(child.is_running());
                std::thread::sleep(POLL);
            }
        };
        let mut polite = sh("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", &log);
        ready(&mut polite);
        assert!(polite.stop(Duration::from_secs(5)));
        let mut stubborn = sh("trap '' TERM; echo ready; while :; do sleep 0.01; done", &log);
        ready(&mut stubborn);
        assert!(!stubborn.stop(Duration::from_millis(50)));
        assert!(Child::start(Path::new("/no/such/program"), &[], &[], &log).is_err());
    }
}
