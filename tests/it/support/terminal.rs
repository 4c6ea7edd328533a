//! A program on a terminal, which `script` of util-linux makes. The test reads the screen and types.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::support::skip::{Reason, skip};

/// Longest wait for a text on the screen.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Terminal {
    child: Child,
    keyboard: Option<ChildStdin>,
    output: Receiver<Vec<u8>>,
    screen: Vec<u8>,
}

impl Terminal {
    /// Starts a program on a terminal of this width, with the variables of the command. Skips the test without `script`.
    pub fn start(program: &Command, columns: usize) -> Option<Self> {
        let words = std::iter::once(program.get_program()).chain(program.get_args());
        let quoted: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', "'\\''"))).collect();
        let line = format!("stty cols {columns}; exec {}", quoted.join(" "));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", "1").env("SHELL", "/bin/sh");
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            skip(Reason::Missing, "cannot start script: install the package bsdutils");
            return None;
        };
        let (send, output) = channel();
        let mut stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stdout.read(&mut buffer) {
                let _gone = send.send(buffer[..read].to_vec());
            }
        });
        Some(Self { keyboard: child.stdin.take(), child, output, screen: Vec::new() })
    }

    /// Waits until the terminal has shown a text.
    pub fn wait_for(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.shown().contains(text) {
            match self.output.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(more) => self.screen.extend(more),
                Err(error) => panic!("{error}: no {text:?} in {:?}", self.shown()),
            }
        }
    }

    /// Types these characters; `\x03` is Ctrl-C, `\x04` the end of the input.
    pub fn write(&mut self, characters: &str) {
        self.keyboard.as_mut().unwrap().write_all(characters.as_bytes()).unwrap();
    }

    /// Waits for the end. Returns the exit code, and all that the terminal has shown.
    pub fn end(mut self) -> (i32, String) {
        loop {
            match self.output.recv_timeout(PATIENCE) {
                Ok(more) => self.screen.extend(more),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {:?}", self.shown()),
            }
        }
        (self.child.wait().unwrap().code().unwrap(), self.shown())
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.screen).into_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
