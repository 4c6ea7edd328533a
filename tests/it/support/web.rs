//! A real HTTP/1.1 server on loopback, with the standard library alone: unit tests of the program include this file too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Path and query.
    pub path: String,
    /// Headers, their names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Asked {
    /// Returns a header; empty when it was not sent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The event in the middle of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The connection ends.
    Close,
    /// Nothing more arrives, until the client goes away.
    Hang,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status, as `200 OK`.
    pub status: String,
    /// Headers beside the length.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The number of bytes after which the body is cut, and the way.
    pub cut: Option<(usize, Cut)>,
}

impl Reply {
    /// An answer without a body.
    pub fn status(status: &str) -> Self {
        Self { status: status.to_owned(), headers: Vec::new(), body: Vec::new(), cut: None }
    }

    /// A redirect.
    pub fn redirect(to: &str) -> Self {
        Self::status("302 Found").with("Location", to)
    }

    /// An answer with these bytes for every request.
    pub fn ok(body: &[u8]) -> Self {
        Self { body: body.to_vec(), ..Self::status("200 OK") }
    }

    /// A file with a strong validator, or the requested part of the same file.
    pub fn file(asked: &Asked, body: &[u8], tag: &str) -> Self {
        let tag = format!("\"{tag}\"");
        let from = asked.header("range").strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')?.parse().ok());
        let reply = match from {
            Some(from) if asked.header("if-range") == tag => match body.get(from..).filter(|rest| !rest.is_empty()) {
                Some(rest) => Self { body: rest.to_vec(), ..Self::status("206 Partial Content") }
                    .with("Content-Range", &format!("bytes {from}-{}/{}", body.len() - 1, body.len())),
                None => Self::status("416 Range Not Satisfiable"),
            },
            _ => Self::ok(body),
        };
        reply.with("ETag", &tag)
    }

    /// The same answer with a header.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same answer with another status.
    pub fn status_of(mut self, status: &str) -> Self {
        status.clone_into(&mut self.status);
        self
    }

    /// The same answer, but only the first bytes arrive.
    pub fn cut(mut self, after: usize, cut: Cut) -> Self {
        self.cut = Some((after, cut));
        self
    }

    fn send(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n", self.status, self.body.len());
        for (name, value) in &self.headers {
            let _never = write!(head, "{name}: {value}\r\n");
        }
        stream.write_all(head.as_bytes())?;
        stream.write_all(b"\r\n")?;
        match self.cut {
            None => stream.write_all(&self.body),
            Some((after, cut)) => {
                stream.write_all(self.body.get(..after).unwrap_or(&self.body))?;
                stream.flush()?;
                if cut == Cut::Hang {
                    stream.read_to_end(&mut Vec::new())?;
                }
                Ok(())
            }
        }
    }
}

/// A server that runs as long as the process lives.
pub struct Web {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Web {
    /// A server with these answers.
    pub fn new(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (answer, log) = (Arc::new(answer), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                thread::spawn(move || {
                    // The client may go away at any time.
                    let _gone = serve(stream, answer.as_ref(), &log);
                });
            }
        });
        Self { port, asked }
    }

    /// The URL of a path, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&Asked) -> Reply, log: &Mutex<Vec<Asked>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        match line?.split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let asked = Asked { path, headers };
    log.lock().unwrap().push(asked.clone());
    answer(&asked).send(&mut stream)
}
