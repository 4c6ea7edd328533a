//! Runs commands: with a clean environment, in a process group of their own, killed at a deadline.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, PipeReader, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::model::{Secret, Secrets};

use super::cancel::{CANCEL_POLL, Cancel};
use super::journal::Journal;

/// `PATH` of every command, and the default search path of bare names.
const DEFAULT_PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/sbin";

/// The kept part of each output stream, in bytes: the last mebibyte.
pub(crate) const OUTPUT_CAP: usize = 1 << 20;

/// The longest input that a pipe takes at once, in bytes, however slowly the command reads.
const PIPE_CAP: usize = 4096;

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessCommand {
    /// The program: a path, or a bare name that is searched for.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The working directory; `/` when none.
    pub cwd: Option<PathBuf>,
    /// Variables beside the fixed `PATH`, `LANG=C` and `LC_ALL=C`; later ones win.
    pub env: Vec<(String, String)>,
    /// Directories in which a bare program name is searched for, instead of the usual ones.
    pub search: Vec<PathBuf>,
    /// The time after which the command is killed.
    pub timeout: Option<Duration>,
    /// Standard input; empty for `None`.
    pub input: Option<Secret>,
    /// True when all processes of the command end with it.
    pub ends_group: bool,
}

impl ProcessCommand {
    /// Creates a command from its program and arguments.
    pub fn new<S: Into<String>>(program: impl Into<String>, args: impl IntoIterator<Item = S>) -> Self {
        Self { program: program.into(), args: args.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// The exit code.
    pub code: i32,
    /// The end of its standard output, at most a mebibyte.
    pub stdout: Vec<u8>,
    /// The end of its standard error, at most a mebibyte.
    pub stderr: Vec<u8>,
}

impl Output {
    /// The last characters, at most `limit`, of standard error, or of standard output where standard error is empty.
    /// Secrets are redacted before the cut: the rest of a secret that is cut in two would not be recognised.
    pub(super) fn excerpt(&self, limit: usize, secrets: Option<&Secrets>) -> String {
        let said = [&self.stderr, &self.stdout].into_iter().map(|bytes| String::from_utf8_lossy(bytes));
        let said = said.into_iter().find(|text| !text.trim().is_empty()).unwrap_or_default();
        let said = secrets.map_or(Cow::Borrowed(said.as_ref()), |secrets| secrets.redact_output(&said));
        let said = said.trim();
        let skip = said.chars().count().saturating_sub(limit);
        said.chars().skip(skip).collect()
    }
}

/// A command that did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command has no program.
    #[error("no command specified")]
    Empty,
    /// The program is in no directory of the search path.
    #[error("command \"{program}\" was not found in {searched}")]
    NotFound {
        /// The name that was searched for.
        program: String,
        /// The directories, with colons.
        searched: String,
    },
    /// The command could not be started.
    #[error("could not start \"{program}\"{}", cwd.as_ref().map(|d| format!(" in {}", d.display())).unwrap_or_default())]
    Start {
        /// The program.
        program: String,
        /// The working directory, when the command has one.
        cwd: Option<PathBuf>,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Waiting for the program failed.
    #[error("could not wait for \"{program}\"")]
    Wait {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A signal ended the program.
    #[error("\"{program}\" was ended by signal {signal}")]
    Signal {
        /// The program.
        program: String,
        /// The number of the signal.
        signal: i32,
    },
    /// The command took too long, and its process group was killed.
    #[error("\"{program}\" was killed: it took longer than {limit:?}, its limit")]
    TimedOut {
        /// The program.
        program: String,
        /// The timeout of the command, or the rest of the run's time, to the millisecond.
        limit: Duration,
    },
    /// The run was cancelled, and the process group killed.
    #[error("\"{program}\" was killed: the run was cancelled")]
    Cancelled {
        /// The program.
        program: String,
    },
}

/// Runs commands.
pub trait Runner: Send + Sync {
    /// Runs `command` until it ends, `cancel` is set or `deadline` has passed.
    ///
    /// # Errors
    /// See [`CommandError`]. An exit code that is not 0 is no error.
    fn run(&self, command: &ProcessCommand, cancel: &Cancel, deadline: Option<Instant>) -> Result<Output, CommandError>;
}

/// Runs commands on this machine.
#[derive(Debug, Clone)]
pub struct SystemRunner {
    search: Vec<PathBuf>,
    journal: Option<Arc<Journal>>,
}

impl SystemRunner {
    /// Creates a runner that searches bare names in `search_path`, which is written as `PATH` is.
    pub fn new(search_path: Option<&str>) -> Self {
        let path = search_path.filter(|path| !path.is_empty()).unwrap_or(DEFAULT_PATH);
        Self { search: std::env::split_paths(path).filter(|dir| dir.is_absolute()).collect(), journal: None }
    }

    /// Returns the same runner, which records every running command in this journal.
    #[must_use]
    pub fn with_journal(self, journal: Arc<Journal>) -> Self {
        Self { journal: Some(journal), ..self }
    }

    fn locate(&self, command: &ProcessCommand) -> Result<PathBuf, CommandError> {
        if command.program.is_empty() {
            return Err(CommandError::Empty);
        }
        if command.program.contains('/') {
            return Ok(PathBuf::from(&command.program));
        }
        let search = if command.search.is_empty() { &self.search } else { &command.search };
        search.iter().map(|dir| dir.join(&command.program)).find(|path| is_executable(path)).ok_or_else(|| {
            let joined = std::env::join_paths(search).unwrap_or_else(|_| OsString::from(DEFAULT_PATH));
            CommandError::NotFound { program: command.program.clone(), searched: joined.to_string_lossy().into_owned() }
        })
    }
}

/// True for a regular file that this process may execute.
pub fn is_executable(path: &Path) -> bool {
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// Returns a pipe or a file in memory that holds all of the input. So no thread waits for its reader.
fn input_source(input: &Secret) -> std::io::Result<Stdio> {
    let bytes = input.reveal().as_bytes();
    if bytes.len() <= PIPE_CAP {
        let (reader, mut writer) = std::io::pipe()?;
        writer.write_all(bytes)?;
        return Ok(Stdio::from(reader));
    }
    let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(Stdio::from(file))
}

impl Runner for SystemRunner {
    fn run(&self, command: &ProcessCommand, cancel: &Cancel, deadline: Option<Instant>) -> Result<Output, CommandError> {
        let program = self.locate(command)?;
        let started = Instant::now();
        let start = |source| CommandError::Start { program: command.program.clone(), cwd: command.cwd.clone(), source };
        let input = command.input.as_ref().map(input_source).transpose().map_err(start)?;
        let ((out, to_out), (err, to_err)) = (std::io::pipe().map_err(start)?, std::io::pipe().map_err(start)?);
        // Before the start: when this process is killed in between, the journal still knows the command by its pipes.
        let running = self.journal.as_ref().map(|journal| journal.begin(&[&out, &err])).transpose().map_err(start)?;
        let mut process = std::process::Command::new(&program);
        process
            .args(&command.args)
            .env_clear()
            .envs([("PATH", DEFAULT_PATH), ("LANG", "C"), ("LC_ALL", "C")])
            .envs(command.env.iter().map(|(key, value)| (key, value)))
            .current_dir(command.cwd.as_deref().unwrap_or(Path::new("/")))
            .stdin(input.unwrap_or_else(Stdio::null))
            .stdout(Stdio::from(to_out))
            .stderr(Stdio::from(to_err))
            .process_group(0);
        let child = process.spawn().map_err(start)?;
        // The child has its own copies of the pipe ends by now.
        drop(process);
        if let Some(running) = &running {
            running.started(child.id());
        }
        let own = command.timeout.map(|timeout| started + timeout);
        let until = [own, deadline].into_iter().flatten().min();
        Wait { child, name: &command.program, started, until, ends_group: command.ends_group, cancel }.finish(out, err)
    }
}

/// A child in progress. Dropping reaps the child.
struct Wait<'a> {
    child: Child,
    name: &'a str,
    started: Instant,
    until: Option<Instant>,
    ends_group: bool,
    cancel: &'a Cancel,
}

impl Wait<'_> {
    fn finish(mut self, out: PipeReader, err: PipeReader) -> Result<Output, CommandError> {
        let (mut out, mut err) = (Tail::new(Some(out)), Tail::new(Some(err)));
        let waited = self.poll_until_exit(&mut out, &mut err);
        // The child is not reaped yet, so no other group has its number.
        if waited.is_err() || self.ends_group {
            self.kill_group();
        }
        let program = || self.name.to_owned();
        let status = self.child.wait().map_err(|source| CommandError::Wait { program: self.name.to_owned(), source })?;
        waited?;
        // Everything that the child itself wrote is in the pipes now. A grandchild may hold the pipes open for ever.
        out.drain();
        err.drain();
        match (status.code(), status.signal()) {
            (Some(code), _) => Ok(Output { code, stdout: out.into_bytes(), stderr: err.into_bytes() }),
            (None, signal) => Err(CommandError::Signal { program: program(), signal: signal.unwrap_or_default() }),
        }
    }

    /// Reads both streams until the child itself has ended, without busy waiting.
    fn poll_until_exit(&self, out: &mut Tail<impl Read + AsFd>, err: &mut Tail<impl Read + AsFd>) -> Result<(), CommandError> {
        let wait_error = |source: std::io::Error| CommandError::Wait { program: self.name.to_owned(), source };
        let pid = rustix::process::Pid::from_child(&self.child);
        let exited =
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(|errno| wait_error(errno.into()))?;
        loop {
            let now = Instant::now();
            if self.cancel.is_cancelled() {
                return Err(CommandError::Cancelled { program: self.name.to_owned() });
            }
            let left = self.until.map(|until| until.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                let limit = self.until.unwrap_or(now).saturating_duration_since(self.started);
                let limit = Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
                return Err(CommandError::TimedOut { program: self.name.to_owned(), limit });
            }
            let slice = left.map_or(CANCEL_POLL, |left| left.min(CANCEL_POLL)).max(Duration::from_millis(1));
            let mut fds = vec![PollFd::new(exited.as_fd(), PollFlags::POLLIN)];
            fds.extend(out.fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            fds.extend(err.fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            match nix::poll::poll(&mut fds, PollTimeout::try_from(slice).unwrap_or(PollTimeout::ZERO)) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(wait_error(errno.into())),
            }
            let ended = fds.first().and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
            out.drain();
            err.drain();
            if ended {
                return Ok(());
            }
        }
    }

    fn kill_group(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // The group may have ended already: then there is nothing to kill.
            let _gone = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The last `OUTPUT_CAP` bytes of a stream that never blocks.
struct Tail<R> {
    stream: Option<R>,
    kept: VecDeque<u8>,
}

impl<R: Read + AsFd> Tail<R> {
    fn new(stream: Option<R>) -> Self {
        if let Some(stream) = &stream {
            // The pipe is our own. If this fails, reads still work, but may block.
            let _kept_blocking = rustix::io::ioctl_fionbio(stream, true);
        }
        Self { stream, kept: VecDeque::new() }
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Reads the available bytes; drops the stream at its end.
    fn drain(&mut self) {
        let mut buffer = [0; 16 * 1024];
        while let Some(stream) = &mut self.stream {
            match stream.read(&mut buffer) {
                Ok(0) => self.stream = None,
                Ok(count) => {
                    self.kept.extend(buffer.iter().take(count));
                    let excess = self.kept.len().saturating_sub(OUTPUT_CAP);
                    self.kept.drain(..excess);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.stream = None,
            }
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        self.kept.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> ProcessCommand {
        ProcessCommand::new("/bin/sh", ["-c", script])
    }

    fn run(command: &ProcessCommand) -> Result<Output, CommandError> {
        SystemRunner::new(None).run(command, &Cancel::default(), None)
    }

    #[test]
    fn environment_is_clean_and_cwd_is_the_root() {
        let mut command = sh("pwd; echo $A-$HOME-$LANG; echo err >&2; exit 3");
        command.env = vec![("A".into(), "x y".into())];
        let output = run(&command).unwrap();
        assert_eq!(output, Output { code: 3, stdout: b"/\nx y--C\n".to_vec(), stderr: b"err\n".to_vec() });
    }

    #[test]
    fn input_is_read_to_its_end_and_not_shown() {
        let mut command = sh("cat");
        command.input = Some(Secret::new("a\nb"));
        assert_eq!(run(&command).unwrap().stdout, b"a\nb");
        assert!(!format!("{command:?}").contains("a\\nb"));
        for length in [PIPE_CAP, PIPE_CAP + 1, OUTPUT_CAP - 1] {
            command.input = Some(Secret::new("x".repeat(length)));
            assert_eq!(run(&command).unwrap().stdout.len(), length);
        }
        assert_eq!(run(&sh("cat")).unwrap().stdout, b"");
    }

    #[test]
    fn a_timeout_kills_the_whole_group() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let mut command = sh(&format!("sleep 61 & echo $$ $! > {}; sleep 61", pids.display()));
        command.timeout = Some(Duration::from_secs(2));
        let started = Instant::now();
        let error = run(&command).unwrap_err();
        assert_eq!(error.to_string(), "\"/bin/sh\" was killed: it took longer than 2s, its limit");
        assert!(started.elapsed() < Duration::from_secs(50));
        // Ended, or a zombie, which has no command line.
        let lives = |pid: &str| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
        for pid in std::fs::read_to_string(&pids).unwrap().split_whitespace() {
            while lives(pid) {
                assert!(started.elapsed() < Duration::from_secs(50), "{pid} was not killed");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn a_background_child_does_not_hold_the_run() {
        let started = Instant::now();
        let output = run(&sh("sleep 30 & echo done")).unwrap();
        assert_eq!(output.stdout, b"done\n");
        assert!(started.elapsed() < Duration::from_secs(25));
    }

    #[test]
    fn much_output_keeps_its_end() {
        let output = run(&sh("yes 0123456789 | head -c 3000000; printf END")).unwrap();
        assert_eq!(output.stdout.len(), OUTPUT_CAP);
        assert!(output.stdout.ends_with(b"END"));
    }

    #[test]
    fn cancelling_kills() {
        let cancel = Cancel::default();
        let other = cancel.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            other.cancel();
        });
        let result = SystemRunner::new(None).run(&sh("sleep 5"), &cancel, None);
        thread.join().unwrap();
        assert!(matches!(result, Err(CommandError::Cancelled { .. })));
    }

    #[test]
    fn bare_names_are_searched_in_the_directories_of_the_command() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/bin/echo", dir.path().join("mytool")).unwrap();
        let mut command = ProcessCommand::new("mytool", ["hi"]);
        assert!(matches!(run(&command), Err(CommandError::NotFound { .. })));
        command.search = vec![dir.path().to_owned()];
        assert_eq!(run(&command).unwrap().stdout, b"hi\n");
        assert!(matches!(run(&ProcessCommand::new("/no/such/bin", ["x"])), Err(CommandError::Start { .. })));
        assert!(matches!(run(&ProcessCommand::default()), Err(CommandError::Empty)));
        assert!(matches!(run(&sh("kill -9 $$")), Err(CommandError::Signal { signal: 9, .. })));
    }
}
