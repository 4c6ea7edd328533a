//! The upgrade of the agent: another program at the path of this one takes over, between two runs.
//!
//! A run may replace the program, as a package does. The run ends first, and its result is on disk. Then the agent stops, and the
//! service manager starts the new program. A program that does not accept the configuration never starts, and the old one goes on.
//! The run that brought that program fails. So a rollout stops at its first wave.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::agent::status::board::{AlarmKind, StatusBoard};
use crate::diag::error_chain;
use crate::host::program::{FileVersion, ProgramFile};
use crate::host::{Cancel, ProcessCommand, Runner, SystemRunner};

/// Pause between two examinations of the program while nothing runs, for an upgrade by hand.
const IDLE_PAUSE: Duration = Duration::from_secs(30);
/// Longest time that a new program may take to check the configuration.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Most characters of the reason of a new program.
const REASON_LENGTH: usize = 500;

/// The program of an agent that a service manager starts again.
#[derive(Debug, Clone)]
pub struct RestartableProgram {
    /// The running program.
    pub file: ProgramFile,
    /// The arguments with which any version checks the configuration of this agent.
    pub check: Vec<String>,
}

/// The result of an examination of the program.
#[derive(Debug)]
enum Examined {
    /// The running program is at the path.
    Same,
    /// Another program is there, as at the last examination.
    Again(FileVersion),
    /// Another program accepts the configuration.
    Accepts(FileVersion),
    /// Another program does not accept the configuration, for this reason.
    Rejects(FileVersion, String),
}

impl RestartableProgram {
    /// Examines the program at the path. Blocks.
    fn examine(&self, skipped: Option<FileVersion>) -> Examined {
        match self.file.replacement() {
            None => Examined::Same,
            Some(version) if Some(version) == skipped => Examined::Again(version),
            Some(version) => match self.check_configuration() {
                Ok(()) => Examined::Accepts(version),
                Err(why) => Examined::Rejects(version, why),
            },
        }
    }

    fn check_configuration(&self) -> Result<(), String> {
        let command = ProcessCommand {
            timeout: Some(CHECK_TIMEOUT),
            ends_group: true,
            ..ProcessCommand::new(self.file.path().to_string_lossy(), self.check.iter().cloned())
        };
        let output = SystemRunner::new(None).run(&command, &Cancel::default(), Some(Instant::now() + CHECK_TIMEOUT));
        match output {
            Ok(output) if output.code == 0 => Ok(()),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(REASON_LENGTH).collect::<String>();
                Err(format!("`ensign agent check` of the new program ends with exit code {}: {said}", output.code))
            }
            Err(error) => Err(error_chain(&error)),
        }
    }
}

/// The upgrade of an agent. Without a service manager nothing would start the new program, so the old one goes on.
pub(in crate::agent) struct AgentUpgrade {
    program: Option<RestartableProgram>,
    status: Arc<StatusBoard>,
    examined: Option<FileVersion>,
    is_due: watch::Sender<bool>,
}

impl AgentUpgrade {
    pub(in crate::agent) fn new(program: Option<RestartableProgram>, status: Arc<StatusBoard>) -> Self {
        Self { program, status, examined: None, is_due: watch::Sender::new(false) }
    }

    /// Returns the news: true once the new program must start.
    pub(in crate::agent) fn watch(&self) -> watch::Receiver<bool> {
        self.is_due.subscribe()
    }

    /// Returns true once the new program must start: the agent begins nothing any more.
    pub(in crate::agent) fn is_due(&self) -> bool {
        *self.is_due.borrow()
    }

    /// Waits until it is time to examine the program of an idle agent.
    pub(in crate::agent) async fn idle_pause(&self) {
        match self.program {
            Some(_) => tokio::time::sleep(IDLE_PAUSE).await,
            None => pending().await,
        }
    }

    /// Examines the program after a run.
    ///
    /// # Errors
    /// When the run has brought a program that does not accept the configuration.
    pub(in crate::agent) async fn examine_after_run(&mut self) -> Result<(), String> {
        self.examine(self.examined).await
    }

    /// Examines the program of an idle agent. An earlier reason against the program may be gone.
    pub(in crate::agent) async fn examine_idle(&mut self) {
        // The alarm has the reason.
        let _alarm = self.examine(None).await;
    }

    async fn examine(&mut self, skipped: Option<FileVersion>) -> Result<(), String> {
        let Some(program) = self.program.clone() else { return Ok(()) };
        let path = program.file.path().display().to_string();
        let examined = tokio::task::spawn_blocking(move || program.examine(skipped)).await;
        let Ok(examined) = examined else { return Ok(()) };
        self.examined = match &examined {
            Examined::Same => None,
            Examined::Again(version) | Examined::Accepts(version) | Examined::Rejects(version, _) => Some(*version),
        };
        match examined {
            Examined::Again(_) => Ok(()),
            Examined::Same => {
                self.status.clear(AlarmKind::Upgrade);
                Ok(())
            }
            Examined::Accepts(_) => {
                tracing::info!(program = path, "another program takes over: restarting");
                self.status.clear(AlarmKind::Upgrade);
                self.is_due.send_replace(true);
                Ok(())
            }
            Examined::Rejects(_, why) => {
                let why = format!("cannot upgrade to the program at {path}: {why}");
                self.status.raise(AlarmKind::Upgrade, format!("{why}; the old program goes on"));
                Err(why)
            }
        }
    }
}
