//! A host of its own for a test: a container with a real systemd, made by `tests/tools/node.sh`.
//!
//! A node has the program at [`ENSIGN`], and only loopback for a network. The node ends with its value, even if the test fails
//! or its process is killed. The script waits for the end of the pipe that this process holds.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::skip::{no_namespaces, skip};

/// The path of the program within a node.
pub const ENSIGN: &str = "/usr/local/bin/ensign";

/// A running node.
pub struct Node {
    script: Child,
    /// The end of this pipe takes the node down.
    alive: Option<ChildStdin>,
    /// The process id of the node's init, as seen from here.
    init: String,
}

/// The result of a command in a node.
#[derive(Debug)]
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// Returns the standard output of a command that must end with 0.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/node.sh")
}

/// True where nodes can run; otherwise skips the test.
fn can_run() -> bool {
    let why = Command::new(script()).arg("why").output().unwrap();
    if !why.status.success() {
        skip(no_namespaces(), String::from_utf8_lossy(&why.stderr).trim());
    }
    why.status.success()
}

/// Returns the read-only root directory of nodes; none where nodes can't run.
pub fn root() -> Option<String> {
    let output = can_run().then(|| Command::new(script()).arg("root").output().unwrap())?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

impl Node {
    /// Starts a node; skips the test where this machine can't.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same, with further options of systemd-nspawn, as `--bind-ro=FROM:TO`.
    pub fn start_with(options: &[String]) -> Option<Self> {
        if !can_run() {
            return None;
        }
        let mut script = Command::new(script())
            .arg("run")
            .arg(format!("--bind-ro={}:{ENSIGN}", env!("CARGO_BIN_EXE_ensign")))
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In its own process group, so that the script survives signals to this process and can clean up.
            .process_group(0)
            .spawn()
            .unwrap();
        let alive = script.stdin.take();
        let mut init = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut init).unwrap();
        let node = Self { script, alive, init: init.trim().to_owned() };
        assert!(!node.init.is_empty(), "the node does not start: see above");
        Some(node)
    }

    /// Runs a command in the node, as root, in `/`.
    pub fn exec(&self, command: &[&str]) -> Output {
        self.exec_with(command, "")
    }

    /// The same, with this standard input.
    pub fn exec_with(&self, command: &[&str], input: &str) -> Output {
        let mut child = Command::new(script())
            .args(["exec", &self.init])
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The command may ignore its input.
        let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Output { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Runs a shell script that must succeed; returns its output.
    pub fn sh(&self, script: &str) -> String {
        self.exec(&["/bin/sh", "-ec", script]).ok()
    }

    /// Writes a file, with its directory.
    pub fn write(&self, path: &str, text: &str) {
        self.exec_with(&["/bin/sh", "-ec", r#"mkdir -p "$(dirname "$0")"; cat >"$0""#, path], text).ok();
    }

    /// Runs the program.
    pub fn ensign(&self, args: &[&str]) -> Output {
        self.exec(&[&[ENSIGN], args].concat())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ended = self.script.wait();
    }
}
