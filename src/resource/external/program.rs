//! The program of a type: one process for each call. A request is a JSON object on standard input, the response another one on
//! standard output.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::diag::clean;
use crate::host::command::OUTPUT_CAP;
use crate::host::fs::{self, FsError, Stamp};
use crate::host::{CommandError, Host, ProcessCommand};
use crate::model::Secret;
use crate::resource::ResourceError;

/// The longest time of a call, unless the policy of the resource has a timeout.
const MAX_CALL: Duration = Duration::from_secs(60);
/// The longest time of a description.
const MAX_DESCRIBE: Duration = Duration::from_secs(10);
/// Maximum length of the standard error in an error, in characters from the end.
const TAIL: usize = 400;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program could not be examined.
    #[error("cannot examine the program")]
    Examine(#[from] FsError),
    /// The program is another one than at its description.
    #[error("{} has changed since it was described; hint: reload the agent", .0.display())]
    Changed(PathBuf),
    /// The program did not run to its end.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The program failed by itself.
    #[error("{verb} of {} failed with exit code {code}{said}", program.display())]
    Failed {
        /// The call.
        verb: &'static str,
        /// The program.
        program: PathBuf,
        /// The exit code.
        code: i32,
        /// The end of its standard error, after a colon.
        said: String,
    },
    /// The program printed something else than a JSON object.
    #[error("{verb} of {} printed no response: {why}", program.display())]
    Response {
        /// The call.
        verb: &'static str,
        /// The program.
        program: PathBuf,
        /// The reason.
        why: String,
    },
    /// The program reported an error.
    #[error("{0}")]
    Reported(String),
}

impl From<ProgramError> for ResourceError {
    fn from(error: ProgramError) -> Self {
        Self::External(Box::new(error))
    }
}

/// A program on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// The file as it was when the program described itself.
    stamp: Stamp,
}

impl Program {
    /// Returns the program at a path.
    ///
    /// # Errors
    /// When the file can't be examined.
    pub(super) fn at(path: PathBuf) -> Result<Self, FsError> {
        Ok(Self { stamp: fs::stamp(&path)?, path })
    }

    /// Returns the description of the type.
    ///
    /// # Errors
    /// When the program fails or prints no object.
    pub(super) fn describe(&self, host: &Host) -> Result<Value, ProgramError> {
        self.run("describe", &Map::new(), Some(MAX_DESCRIBE), host).map(Value::Object)
    }

    /// Makes a call about a resource.
    ///
    /// # Errors
    /// When the program fails, reports an error or prints no object.
    pub(super) fn call(
        &self,
        verb: &'static str,
        request: &Map<String, Value>,
        host: &Host,
    ) -> Result<Map<String, Value>, ProgramError> {
        let limit = (!host.has_attempt_timeout()).then_some(MAX_CALL);
        let mut response = self.run(verb, request, limit, host)?;
        match response.shift_remove("error") {
            None | Some(Value::Null) => Ok(response),
            Some(error) => {
                let text = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
                Err(ProgramError::Reported(format!("{verb}: {}", clean::cell_with_limit(&text, TAIL))))
            }
        }
    }

    fn run(
        &self,
        verb: &'static str,
        request: &Map<String, Value>,
        timeout: Option<Duration>,
        host: &Host,
    ) -> Result<Map<String, Value>, ProgramError> {
        if fs::stamp(&self.path)? != self.stamp {
            return Err(ProgramError::Changed(self.path.clone()));
        }
        let input = serde_json::to_string(request).unwrap_or_default();
        let command = ProcessCommand {
            timeout,
            input: Some(Secret::new(input)),
            ends_group: true,
            ..ProcessCommand::new(self.path.display().to_string(), [verb])
        };
        let output = host.run(&command)?;
        let program = || self.path.clone();
        if output.code != 0 {
            let said = host.output_excerpt(&output, TAIL);
            let said = clean::cell_with_limit(&said, 2 * TAIL);
            let said = if said.is_empty() { String::new() } else { format!(": {said}") };
            return Err(ProgramError::Failed { verb, program: program(), code: output.code, said });
        }
        let no_response = |why: String| ProgramError::Response { verb, program: program(), why };
        if output.stdout.len() >= OUTPUT_CAP {
            return Err(no_response(format!("the output is longer than {OUTPUT_CAP} bytes")));
        }
        match serde_json::from_slice(&output.stdout) {
            Ok(Value::Object(response)) => Ok(response),
            Ok(_) => Err(no_response("the output is no JSON object".to_owned())),
            Err(error) => Err(no_response(format!("the output is no JSON: {error}"))),
        }
    }
}
