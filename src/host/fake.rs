//! A host for unit tests: with scripted commands and a fixed clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use jiff::Timestamp;

use super::{Cancel, Clock, CommandError, Host, Output, ProcessCommand, Runner};

/// Answers commands from a list and records the commands.
#[derive(Default)]
pub struct FakeRunner {
    answers: Mutex<VecDeque<Output>>,
    ran: Mutex<Vec<ProcessCommand>>,
}

impl FakeRunner {
    /// Creates a runner whose commands end with these exit codes, in this order.
    pub fn exiting(codes: &[i32]) -> Arc<Self> {
        Self::answering(codes.iter().map(|code| Output { code: *code, ..Output::default() }))
    }

    /// Creates a runner whose commands have these outputs, in this order.
    pub fn answering(outputs: impl IntoIterator<Item = Output>) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(outputs.into_iter().collect()), ran: Mutex::default() })
    }

    /// The commands so far, as words.
    pub fn ran(&self) -> Vec<Vec<String>> {
        let ran = self.ran.lock().unwrap();
        ran.iter().map(|command| [vec![command.program.clone()], command.args.clone()].concat()).collect()
    }
}

impl Runner for FakeRunner {
    fn run(&self, command: &ProcessCommand, _: &Cancel, _: Option<Instant>) -> Result<Output, CommandError> {
        self.ran.lock().unwrap().push(command.clone());
        let next = self.answers.lock().unwrap().pop_front();
        next.ok_or_else(|| CommandError::NotFound { program: command.program.clone(), searched: "the script of the test".into() })
    }
}

/// A clock with a fixed time.
pub struct FakeClock(pub Timestamp);

impl Clock for FakeClock {
    fn now(&self) -> Timestamp {
        self.0
    }
}

/// Creates a host with this runner.
pub fn host(runner: Arc<dyn Runner>) -> Host {
    Host::new(runner, Arc::new(FakeClock("2026-11-20T10:00:00Z".parse().unwrap())))
}
