//! The page for monitoring: `/metrics` for Prometheus and `/healthz`, over HTTP, on loopback unless told otherwise.
//!
//! `metrics.rs` writes the figures, `request.rs` reads what is asked. What is shown is an
//! [`crate::wire::AgentStatus`] that the caller gives; nothing can be changed from here. One request a
//! connection, bounded in size, time and number. Connections that do nothing keep nobody waiting: the oldest one of the
//! peer that has most gives way to a new one.

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

use crate::config::Settings;
use crate::wire::AgentStatus;

use request::{Asked, Page};

/// The longest request. There is nothing to send but a path and a few headers.
const LONGEST: usize = 8 * 1024;
/// How long a request may take to come. It is one packet, as long as nobody is slow on purpose.
const REQUEST: Duration = Duration::from_secs(2);
/// How long an answer may take to go.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the other side may take to close once it has its answer.
const CLOSE: Duration = Duration::from_secs(1);
/// Connections at a time. Scrapers are few; more are files that the agent needs for its work.
const AT_ONCE: usize = 64;
/// The pause before a busy port is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// What is shown, and where alarms are told.
#[derive(Clone)]
pub struct Source {
    /// How the agent stands now.
    pub status: Arc<dyn Fn() -> AgentStatus + Send + Sync>,
    /// Notes what is wrong with the page, or that nothing is.
    pub trouble: Arc<dyn Fn(Option<String>) + Send + Sync>,
}

/// Serves on the address of the settings for ever, also when it changes. A port that can't be had is a trouble, and
/// tried again.
pub async fn serve(mut settings: watch::Receiver<Arc<Settings>>, source: Source) {
    loop {
        let listen = settings.borrow_and_update().http.listen;
        let Some(address) = listen else {
            (source.trouble)(None);
            if settings.changed().await.is_err() {
                return;
            }
            continue;
        };
        let changed = async {
            // What else changes is none of this: the sender lives as long as the agent.
            settings.wait_for(|settings| settings.http.listen != listen).await.is_ok()
        };
        // Cancel-safe: what is being answered has a task of its own, a connection that waits is closed with the socket.
        tokio::select! {
            () = serve_on(address, &source) => {}
            more = changed => if !more { return },
        }
    }
}

async fn serve_on(address: SocketAddr, source: &Source) {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => {
            (source.trouble)(Some(format!(
                "no monitoring: could not listen on {address}: {error} ([http] listen in agent.toml)"
            )));
            tokio::time::sleep(AGAIN).await;
            return;
        }
    };
    (source.trouble)(None);
    tracing::info!("monitoring on http://{address}/metrics and /healthz");
    let mut open = Open::default();
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Too many open files: it passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let source = source.clone();
        let attended = tokio::spawn(async move {
            if let Err(error) = attend(stream, address, &source).await {
                tracing::debug!(%error, "a request was not answered");
            }
        });
        open.add(peer.ip(), attended.abort_handle());
    }
}

/// Connections that are open, the oldest first, and their peers.
#[derive(Default)]
struct Open(VecDeque<(IpAddr, AbortHandle)>);

impl Open {
    /// Adds a connection. Where there are too many, the oldest one of the peer that has most is closed.
    fn add(&mut self, peer: IpAddr, connection: AbortHandle) {
        self.0.retain(|(_, open)| !open.is_finished());
        if self.0.len() >= AT_ONCE {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            self.0.iter().for_each(|(peer, _)| *counts.entry(*peer).or_default() += 1);
            let greedy = counts.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer);
            let oldest = self.0.iter().position(|(peer, _)| Some(*peer) == greedy);
            // Safe to cancel: it reads a request or writes an answer, and nothing else knows of it.
            if let Some((_, oldest)) = oldest.and_then(|at| self.0.remove(at)) {
                oldest.abort();
            }
        }
        self.0.push_back((peer, connection));
    }
}

async fn attend(mut stream: TcpStream, address: SocketAddr, source: &Source) -> std::io::Result<()> {
    let head = timeout(REQUEST, read(&mut stream)).await??;
    let answer = answer(&request::read(&head, address.ip().is_loopback()), source);
    timeout(ANSWER, async {
        stream.write_all(&answer).await?;
        stream.shutdown().await
    })
    .await??;
    // Until the other side has closed as well: what it sent beyond its request would make the system reset the
    // connection, and take the answer with it.
    timeout(CLOSE, tokio::io::copy(&mut (&mut stream).take(LONGEST as u64), &mut tokio::io::sink())).await??;
    Ok(())
}

/// Reads until the end of the head, or as much as one may have.
async fn read(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(1024);
    while head.len() < LONGEST && !request::is_whole(&head) {
        if (&mut *stream).take((LONGEST - head.len()) as u64).read_buf(&mut head).await? == 0 {
            break;
        }
    }
    Ok(head)
}

fn answer(asked: &Asked, source: &Source) -> Vec<u8> {
    match asked {
        Asked::Page(Page::Metrics) => {
            reply("200 OK", "text/plain; version=0.0.4; charset=utf-8", &metrics::text(&(source.status)()))
        }
        Asked::Page(Page::Health) => {
            let wrong = (source.status)().active_alarms();
            if wrong.is_empty() { reply("200 OK", TEXT, "ok\n") } else { reply("503 Service Unavailable", TEXT, &lines(&wrong)) }
        }
        Asked::Page(Page::Index) => reply("200 OK", TEXT, "An agent of Ensign: /metrics for Prometheus, /healthz.\n"),
        Asked::Wrong(status, why) => reply(status, TEXT, &format!("{why}\n")),
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
