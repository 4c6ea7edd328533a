//! The client of the socket: sends requests to the agent of this host.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::wire::{Ack, AgentStatus, CommandResult, report};

use super::socket;
use crate::agent::status::messages;

/// Longest time for the answer to a request, or for the acknowledgement of a command.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer, in bytes.
const MAX_ANSWER_SIZE: u64 = 4 << 20;

/// A request without an answer of the agent.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// No process listens on the socket.
    #[error("no agent runs with its state in {}", .0.display())]
    NotRunning(PathBuf, #[source] io::Error),
    /// The socket belongs to another user.
    #[error("the agent with its state in {} belongs to another user", .0.display())]
    Denied(PathBuf, #[source] io::Error),
    /// The agent ended, or did not answer in time.
    #[error("the agent did not answer")]
    NoAnswer(#[source] io::Error),
    /// The agent rejected the request, or the answer is invalid.
    #[error("the agent rejected the request: {0}")]
    Rejected(String),
}

/// Returns the status of the agent with this state directory.
///
/// # Errors
/// When no agent runs, or the agent does not answer.
pub fn status(state_dir: &Path) -> Result<AgentStatus, SocketError> {
    let mut answers = send_request(state_dir, &socket::SocketRequest::Status)?;
    read(&answers.line()?)
}

/// The answer of the agent to a command.
#[derive(Debug)]
pub enum LocalAnswer {
    /// The agent accepted the command. The result comes later.
    Acknowledged(Ack),
    /// The command ended: rejected, or done before.
    Ended(Box<CommandResult>),
}

/// The answers to one request.
#[derive(Debug)]
pub struct Answers(BufReader<UnixStream>);

impl Answers {
    fn line(&mut self) -> Result<String, SocketError> {
        let mut line = String::new();
        self.0.by_ref().take(MAX_ANSWER_SIZE).read_line(&mut line).map_err(SocketError::NoAnswer)?;
        if line.ends_with('\n') {
            return Ok(line);
        }
        Err(SocketError::NoAnswer(io::Error::new(io::ErrorKind::UnexpectedEof, "the agent closed the connection")))
    }

    /// Waits for the end of a command that was acknowledged, however long it takes.
    ///
    /// # Errors
    /// When the agent ends first.
    pub fn wait_for_result(&mut self) -> Result<CommandResult, SocketError> {
        self.0.get_ref().set_read_timeout(None).map_err(SocketError::NoAnswer)?;
        read(&self.line()?)
    }
}

/// Hands a signed command to the agent with this state directory.
///
/// # Errors
/// When no agent runs, or the agent does not answer.
pub fn accept(state_dir: &Path, envelope: &[u8]) -> Result<(LocalAnswer, Answers), SocketError> {
    let mut answers = send_request(state_dir, &socket::SocketRequest::Accept { envelope: STANDARD.encode(envelope) })?;
    let line = answers.line()?;
    let taken = match read::<Protocol>(&line)?.protocol.as_str() {
        report::ACK => LocalAnswer::Acknowledged(read(&line)?),
        _ => LocalAnswer::Ended(Box::new(read(&line)?)),
    };
    Ok((taken, answers))
}

#[derive(Deserialize)]
struct Protocol {
    protocol: String,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    error: String,
}

fn read<T: serde::de::DeserializeOwned>(line: &str) -> Result<T, SocketError> {
    serde_json::from_str(line).map_err(|error| {
        let said = serde_json::from_str::<ErrorAnswer>(line).map(|wrong| wrong.error);
        SocketError::Rejected(said.unwrap_or_else(|_| error.to_string()))
    })
}

fn send_request(state_dir: &Path, question: &socket::SocketRequest) -> Result<Answers, SocketError> {
    let stream = UnixStream::connect(socket::path(state_dir)).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => SocketError::Denied(state_dir.to_owned(), error),
        _ => SocketError::NotRunning(state_dir.to_owned(), error),
    })?;
    let sent = stream
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)))
        .and_then(|()| (&stream).write_all(&messages::json(question)))
        .and_then(|()| (&stream).write_all(b"\n"));
    sent.map_err(SocketError::NoAnswer)?;
    Ok(Answers(BufReader::new(stream)))
}
