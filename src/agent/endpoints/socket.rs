//! The socket of the agent in its state directory, for `ensign agent status` and `ensign agent accept`, also without a
//! server. Only the agent's own user and root have access.
//!
//! A connection carries one request as one line of JSON, and its answers as lines of JSON. A command by this way is
//! verified, recorded and queued as one from the bus.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use uuid::Uuid;

use crate::agent::durable::state::DurableState;
use crate::host::account;
use crate::host::fs::{self, WriteSpec};
use crate::wire::{AckStatus, CommandResult, MAX_ENVELOPE};

use crate::agent::intake::incoming::{Answer, LocalCommand};
use crate::agent::status::messages;
use crate::agent::status::status_view::StatusView;

/// Longest request, in bytes. An envelope above its limit still fits, in base64: it must get an answer, not be cut off.
const MAX_REQUEST: u64 = 2 * MAX_ENVELOPE as u64;
/// Longest time for a request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two checks for the end of a command.
const END_POLL: Duration = Duration::from_secs(1);
/// Most connections at a time, with those that wait for the end of a command. Further ones wait in the backlog.
const MAX_CONNECTIONS: usize = 16;

/// A request on the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub(in crate::agent) enum SocketRequest {
    /// Asks for the status of the agent. The answer is an `AgentStatus`.
    Status,
    /// Hands over a signed command. The answers are an `Ack`, and a `Done` when the command has ended.
    Accept {
        /// The envelope, in base64.
        envelope: String,
    },
}

/// Returns the path of the socket of the agent with this state directory.
pub(in crate::agent) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("agent.sock")
}

/// Serves requests until the agent ends. The caller owns the state directory: a left socket is removed.
pub(in crate::agent) async fn serve(view: StatusView, durable: Arc<DurableState>, carried: mpsc::Sender<LocalCommand>) {
    let path = path(&view.state_dir());
    let listener = match listen(&path) {
        Ok(listener) => listener,
        Err(why) => {
            tracing::error!("cannot serve `ensign agent status`: {why}");
            return;
        }
    };
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files: the shortage passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (view, durable, carried) = (view.clone(), Arc::clone(&durable), carried.clone());
        tokio::spawn(async move {
            if let Err(error) = serve_connection(&view, &durable, &carried, stream).await {
                tracing::debug!(%error, "cannot answer a request on the socket");
            }
            drop(place);
        });
    }
}

fn listen(path: &Path) -> Result<UnixListener, String> {
    fs::remove(path).map_err(|error| crate::diag::error_chain(&error))?;
    let listener = UnixListener::bind(path).map_err(|error| format!("cannot listen on {}: {error}", path.display()))?;
    fs::set_attributes(path, WriteSpec { uid: None, gid: None, mode: 0o600 })
        .map_err(|error| crate::diag::error_chain(&error))?;
    Ok(listener)
}

async fn serve_connection(
    view: &StatusView,
    durable: &DurableState,
    carried: &mpsc::Sender<LocalCommand>,
    mut stream: UnixStream,
) -> std::io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != account::effective_uid() {
        tracing::warn!(uid = peer, "another user connected to the socket of the agent");
        return Ok(());
    }
    let (reading, mut writing) = stream.split();
    let mut line = Vec::new();
    let mut reader = BufReader::new(reading).take(MAX_REQUEST);
    tokio::time::timeout(REQUEST_TIMEOUT, reader.read_until(b'\n', &mut line)).await??;
    let ask = match serde_json::from_slice(&line) {
        Ok(ask) => ask,
        Err(error) => return write_line(&mut writing, &serde_json::json!({"error": format!("not a request: {error}")})).await,
    };
    match ask {
        SocketRequest::Status => write_line(&mut writing, &view.status()).await,
        SocketRequest::Accept { envelope } => {
            let Ok(envelope) = STANDARD.decode(envelope) else {
                return write_line(&mut writing, &serde_json::json!({"error": "the envelope is not base64"})).await;
            };
            accept(view, durable, carried, envelope, &mut writing).await
        }
    }
}

async fn accept(
    view: &StatusView,
    durable: &DurableState,
    carried: &mpsc::Sender<LocalCommand>,
    envelope: Vec<u8>,
    writing: &mut (impl AsyncWriteExt + Unpin),
) -> std::io::Result<()> {
    let (answer, answered) = oneshot::channel();
    let sent = carried.send(LocalCommand { envelope, answer }).await.is_ok();
    let Some(answer) = (if sent { answered.await.ok() } else { None }) else {
        return write_line(writing, &serde_json::json!({"error": "the agent is stopping"})).await;
    };
    match answer {
        Answer::Nothing => write_line(writing, &serde_json::json!({"error": "the command does not target this node"})).await,
        Answer::Ended(done) | Answer::Rejected(done, _) => write_line(writing, &*done).await,
        Answer::Ack(ack) => {
            write_line(writing, &*ack).await?;
            if ack.status == AckStatus::Accepted {
                write_line(writing, &wait_for_result(view, durable, ack.id).await).await?;
            }
            Ok(())
        }
    }
}

/// Returns the result of an accepted command, once there is one.
async fn wait_for_result(view: &StatusView, durable: &DurableState, id: Uuid) -> CommandResult {
    let mut snapshot = view.watch();
    loop {
        snapshot.mark_unchanged();
        if let Some(done) = durable.result(id) {
            return done;
        }
        // The board changes after every command. An assignment may end without such a change.
        let _changed = tokio::time::timeout(END_POLL, snapshot.changed()).await.is_ok();
    }
}

async fn write_line(writing: &mut (impl AsyncWriteExt + Unpin), message: &impl Serialize) -> std::io::Result<()> {
    let mut line = messages::json(message);
    line.push(b'\n');
    writing.write_all(&line).await?;
    writing.flush().await
}
