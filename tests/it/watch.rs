//! `ensign apply --watch`: the real program keeps a manifest in force, while a test changes the host.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::local::Desk;
use crate::support::single_node::PATIENCE;

mod drift;
mod ending;
mod equivalence;
mod failures;
mod flapping;
pub mod node;
mod reload;

/// Options of most tests: one JSON document a line.
const JSONL: &[&str] = &["--output", "jsonl"];

/// The program while it keeps `site.yaml` of a desk in force. It ends with its value.
pub struct Watching {
    child: Child,
    out: Arc<Mutex<Vec<String>>>,
    err: Arc<Mutex<Vec<String>>>,
}

impl Watching {
    /// Starts the program, and waits for the end of its first pass.
    #[track_caller]
    pub fn start(desk: &Desk, more: &[&str]) -> Self {
        let watching = Self::spawn(desk.command(&[&["apply", "--watch", "site.yaml"], JSONL, more].concat()));
        let resources = watching.said_number("watching site.yaml: ");
        watching.until("the first pass", || watching.events(0).len() >= resources);
        watching
    }

    /// Starts a command.
    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        let err = lines(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    /// Waits for a message that begins with this text, and returns the number behind.
    #[track_caller]
    fn said_number(&self, text: &str) -> usize {
        let number = || self.err().lines().find_map(|line| line.strip_prefix(text)?.split(' ').next()?.parse().ok());
        self.until(text, || number().is_some());
        number().unwrap()
    }

    /// Waits for a condition.
    #[track_caller]
    pub fn until(&self, what: &str, so: impl Fn() -> bool) {
        let began = Instant::now();
        while !so() {
            assert!(began.elapsed() < PATIENCE, "{what} does not come\nout: {:#?}\nerr: {}", self.words(0), self.err());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a text in the messages.
    #[track_caller]
    fn says(&self, text: &str) {
        self.until(text, || self.err().contains(text));
    }

    /// Waits until a file has this content.
    #[track_caller]
    pub fn repairs(&self, desk: &Desk, name: &str, content: &str) {
        let path = desk.path(name);
        self.until(&format!("{content:?} in {name}"), || std::fs::read_to_string(&path).is_ok_and(|text| text == content));
    }

    fn err(&self) -> String {
        self.err.lock().unwrap().join("\n")
    }

    /// The documents of the output, from a position.
    fn documents(&self, from: usize) -> Vec<Value> {
        let lines = self.out.lock().unwrap();
        // Other lines are text for people.
        let documents = lines.iter().skip(from).filter(|line| line.starts_with('{'));
        documents.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    /// The position of the next document.
    fn now(&self) -> usize {
        self.out.lock().unwrap().len()
    }

    /// The events, from a position.
    fn events(&self, from: usize) -> Vec<Value> {
        self.documents(from).into_iter().filter(|document| document.get("event_id").is_some()).collect()
    }

    /// The notices, from a position.
    fn notices(&self, from: usize) -> Vec<String> {
        self.documents(from).iter().filter_map(|document| Some(document.get("notice")?.as_str()?.to_owned())).collect()
    }

    /// The last part of the name and the outcome of each event, from a position.
    fn words(&self, from: usize) -> Vec<String> {
        let word = |event: &Value| {
            let is = |name: &str| event[name] == Value::Bool(true);
            let name = event["name"].as_str().unwrap_or_default();
            let outcome = match () {
                () if is("failed") => "failed",
                () if event["unmet_requirements"].as_array().is_some_and(|unmet| !unmet.is_empty()) => "unmet",
                () if is("skipped") => "skipped",
                () if is("noop") && is("changed") => "would change",
                () if is("refreshed") => "refreshed",
                () if is("changed") => "changed",
                () => "stable",
            };
            format!("{} {outcome}", name.rsplit('/').next().unwrap_or_default())
        };
        self.events(from).iter().map(word).collect()
    }

    /// Waits for this outcome of a resource after a position.
    #[track_caller]
    fn sees(&self, from: usize, word: &str) {
        self.until(word, || self.words(from).iter().any(|seen| seen == word));
    }

    /// The processor time of the program so far.
    fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
        // Fields 14 and 15 of the whole line, in hundredths of a second.
        Duration::from_millis(10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Waits for the end of the program; returns its exit code.
    #[track_caller]
    fn ends(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(!self.err().contains("panicked"), "{}", self.err());
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "the program does not end: {}", self.err());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the program like a service manager; returns its exit code.
    #[track_caller]
    pub fn stop(mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.ends()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Collects the lines of a stream.
fn lines(stream: impl Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            collected.lock().unwrap().push(line.unwrap());
        }
    });
    lines
}

/// Writes `site.yaml` with these resources: one a line, in flow style.
fn site(desk: &Desk, resources: &[&str]) {
    let items: String = resources.iter().map(|resource| format!("    - {resource}\n")).collect();
    desk.write("site.yaml", &format!("ccm:\n  resources:\n{items}"));
}

/// A file of the desk with this content, which counts its checks in `checks`.
fn file(name: &str, content: &str, more: &str) -> String {
    format!(
        "file: {{name: \"@D@/{name}\", ensure: present, content: \"{content}\\n\", mode: \"0644\", @ME@, \
         health_checks: [{{command: \"/bin/sh -c 'echo {name} >> @D@/checks'\"}}]{more}}}"
    )
}

/// A command that runs when a resource changes.
fn reload(name: &str, command: &str, subscribe: &str) -> String {
    format!(
        "exec: {{name: {name}, command: \"{command}\", provider: shell, refreshonly: true, cwd: \"@D@\", subscribe: {subscribe}}}"
    )
}

/// Returns how often a file of the desk has this line.
fn count(desk: &Desk, name: &str, line: &str) -> usize {
    std::fs::read_to_string(desk.path(name)).unwrap_or_default().lines().filter(|found| *found == line).count()
}
