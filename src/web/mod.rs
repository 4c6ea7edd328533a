//! The page for monitoring: `/metrics` for Prometheus and `/healthz`, over HTTP, on loopback by default.
//!
//! `metrics.rs` writes the metrics, `request.rs` parses requests. The caller provides the [`crate::wire::AgentStatus`]; a
//! request changes nothing. A connection has a single request, bounded in size and time. Idle connections block no others: a
//! new connection replaces the oldest of the peer that has most.

mod metrics;
mod request;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::diag::clean;

use crate::config::AgentSettings;
use crate::wire::AgentStatus;

use request::{Page, PageRequest};

/// The longest request, in bytes. A path and a few headers are shorter.
const MAX_REQUEST_BYTES: usize = 8 * 1024;
/// The longest time for reading a request. A client that is not slow on purpose sends one packet.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time for sending a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait for the peer to close after the response.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The most open connections. Scrapers are few, and the agent needs its file descriptors.
const MAX_CONNECTIONS: usize = 64;
/// The pause before the next attempt on a busy port.
const LISTEN_RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The connection of the page to the agent.
#[derive(Clone)]
pub struct StatusSource {
    /// Returns the present status of the agent.
    pub status: Arc<dyn Fn() -> AgentStatus + Send + Sync>,
    /// Raises an alarm of the page, or clears it.
    pub set_alarm: Arc<dyn Fn(Option<String>) + Send + Sync>,
}

/// Serves on the address of the settings for ever, also after a change of the address. A failure to listen raises an alarm
/// and is retried.
pub async fn serve(mut settings: watch::Receiver<Arc<AgentSettings>>, source: StatusSource) {
    loop {
        let listen = settings.borrow_and_update().http.listen;
        let Some(address) = listen else {
            (source.set_alarm)(None);
            if settings.changed().await.is_err() {
                return;
            }
            continue;
        };
        let changed = async {
            // Changes of other settings are ignored: the sender lives as long as the agent.
            settings.wait_for(|settings| settings.http.listen != listen).await.is_ok()
        };
        // Cancel-safe: each request has a task of its own, and waiting connections close with the socket.
        tokio::select! {
            () = serve_on(address, &source) => {}
            more = changed => if !more { return },
        }
    }
}

async fn serve_on(address: SocketAddr, source: &StatusSource) {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            (source.set_alarm)(Some(format!(
                "could not listen on {address} for monitoring: {error} ([http] listen in agent.toml)"
            )));
            tokio::time::sleep(LISTEN_RETRY_PAUSE).await;
            return;
        }
    };
    (source.set_alarm)(None);
    tracing::info!("monitoring on http://{address}/metrics and /healthz");
    let mut open = OpenConnections::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Too many open files: a temporary state.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let source = source.clone();
        let attended = tokio::spawn(async move {
            if let Err(error) = handle_connection(stream, address, &source).await {
                tracing::debug!(%error, "could not answer a monitoring request");
            }
        });
        open.add(peer.ip(), attended.abort_handle());
    }
}

/// Open connections and their peers, the oldest first.
#[derive(Default)]
struct OpenConnections(VecDeque<(IpAddr, AbortHandle)>);

impl OpenConnections {
    /// Adds a connection. At the limit, closes the oldest connection of the peer that has most.
    fn add(&mut self, peer: IpAddr, connection: AbortHandle) {
        self.0.retain(|(_, open)| !open.is_finished());
        if self.0.len() >= MAX_CONNECTIONS {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            self.0.iter().for_each(|(peer, _)| *counts.entry(*peer).or_default() += 1);
            let greedy = counts.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer);
            let oldest = self.0.iter().position(|(peer, _)| Some(*peer) == greedy);
            // Safe to cancel: the task reads a request or writes a response, and shares no state.
            if let Some((_, oldest)) = oldest.and_then(|at| self.0.remove(at)) {
                oldest.abort();
            }
        }
        self.0.push_back((peer, connection));
    }
}

async fn handle_connection(mut stream: TcpStream, address: SocketAddr, source: &StatusSource) -> std::io::Result<()> {
    let head = timeout(READ_TIMEOUT, read(&mut stream)).await??;
    let answer = respond(&request::parse(&head, address.ip().is_loopback()), source);
    timeout(WRITE_TIMEOUT, async {
        stream.write_all(&answer).await?;
        stream.shutdown().await
    })
    .await??;
    // Waits until the peer has closed. Unread bytes of the peer would make the kernel reset the connection and discard the
    // response.
    timeout(CLOSE_TIMEOUT, tokio::io::copy(&mut (&mut stream).take(MAX_REQUEST_BYTES as u64), &mut tokio::io::sink())).await??;
    Ok(())
}

/// Reads up to the end of the head, or the size limit.
async fn read(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    while head.len() < MAX_REQUEST_BYTES && !request::is_complete(&head) {
        if (&mut *stream).take((MAX_REQUEST_BYTES - head.len()) as u64).read_buf(&mut head).await? == 0 {
            break;
        }
    }
    Ok(head)
}

fn respond(asked: &PageRequest, source: &StatusSource) -> Vec<u8> {
    match asked {
        PageRequest::Page(Page::Metrics) => {
            reply("200 OK", "text/plain; version=0.0.4; charset=utf-8", &metrics::text(&(source.status)()))
        }
        PageRequest::Page(Page::Health) => {
            let wrong = (source.status)().active_alarms();
            if wrong.is_empty() { reply("200 OK", TEXT, "ok\n") } else { reply("503 Service Unavailable", TEXT, &lines(&wrong)) }
        }
        PageRequest::Page(Page::Index) => reply("200 OK", TEXT, "Ensign agent: see /metrics for Prometheus, and /healthz.\n"),
        PageRequest::Rejected(status, why) => reply(status, TEXT, &format!("{why}\n")),
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{}\n", clean::cell(line))).collect()
}

fn reply(status: &str, kind: &str, body: &str) -> Vec<u8> {
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
