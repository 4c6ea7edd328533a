//! Fetching: the bytes of the URL of a manifest or bundle, verified against their digest during the download.
//!
//! The URL is untrusted and only a hint; the digest decides. `https://` and `http://` reach only hosts that the limits allow
//! (`crate::http`). `obj://bucket/key` reads the object store of the message bus through `ObjectGet`. `file://` reads on
//! this host.

use std::future::Future;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use url::Url;

use crate::host::fs::{self, FsError};
use crate::http::{self, HostPolicy, HttpError, HttpRequest, redact_url};

/// Any error of an object store.
pub type FetchCause = Box<dyn std::error::Error + Send + Sync>;

/// Read access to the object store.
pub trait ObjectReader: Sync {
    /// Returns the object `key` of `bucket`, when it has at most `max` bytes.
    fn object(&self, bucket: &str, key: &str, max: u64) -> impl Future<Output = Result<Vec<u8>, FetchCause>> + Send;
}

/// No object store: `obj://` is refused.
#[derive(Debug, Clone, Copy)]
pub struct NoObjectReader;

impl ObjectReader for NoObjectReader {
    async fn object(&self, _: &str, _: &str, _: u64) -> Result<Vec<u8>, FetchCause> {
        Err("there is no connection to a message bus".into())
    }
}

/// The required digest and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPin {
    /// SHA-256, in lower-case hex.
    pub sha256: String,
    /// The size in bytes.
    pub size: u64,
}

/// The limits of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchLimits {
    /// The most bytes.
    pub max: u64,
    /// The hosts; `None` is every host whose address is not internal to this machine.
    pub hosts: Option<Vec<String>>,
    /// Maximum duration of the whole download.
    pub timeout: Duration,
}

/// A failed download. URLs in it have no credentials.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The text is not a URL, or has an unknown scheme.
    #[error("\"{0}\" is not a URL that can be fetched: expected https://, http://, obj://bucket/key or file:///path")]
    Url(String),
    /// The bytes are not the pinned ones.
    #[error("the content of {url} is not what was signed: {why}")]
    BadArtifact {
        /// The URL.
        url: String,
        /// The difference.
        why: String,
    },
    /// The content is larger than this host accepts.
    #[error("{url} has {size} bytes, more than the {max} that this host allows")]
    TooLarge {
        /// The URL.
        url: String,
        /// The pinned size.
        size: u64,
        /// The limit.
        max: u64,
    },
    /// The content is larger than any host accepts; its size is unknown.
    #[error("{url} gives more than {max} bytes")]
    TooLargeStream {
        /// The URL.
        url: String,
        /// The limit.
        max: u64,
    },
    /// An error of HTTP.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// An error of the object store.
    #[error("could not fetch {url}")]
    Transport {
        /// The URL.
        url: String,
        /// The cause.
        #[source]
        cause: FetchCause,
    },
    /// The download took too long.
    #[error("could not fetch {url} within {after:?}")]
    TimedOut {
        /// The URL.
        url: String,
        /// The time limit.
        after: Duration,
    },
    /// The bytes could not be stored.
    #[error("could not store the content of {url}")]
    Sink {
        /// The URL.
        url: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file of this host could not be read.
    #[error(transparent)]
    File(#[from] FsError),
}

/// Writes the bytes of `url` into `sink` and verifies them against `pin`.
///
/// After an error the sink may hold a part or other bytes: the caller must discard its content.
///
/// # Errors
/// See [`FetchError`].
pub async fn fetch(
    url: &str,
    pin: &ContentPin,
    limits: &FetchLimits,
    objects: &impl ObjectReader,
    sink: &mut (dyn Write + Send),
) -> Result<(), FetchError> {
    if pin.size > limits.max {
        return Err(FetchError::TooLarge { url: redact_url(url), size: pin.size, max: limits.max });
    }
    let mut checked = PinnedWriter::new(url, Some(pin), pin.size, sink);
    // Addresses of this machine itself must be listed.
    let policy = HostPolicy { hosts: limits.hosts.clone(), internal: false, loopback: false };
    read(url, &policy, limits.timeout, objects, &mut checked).await?;
    checked.finish().map(drop)
}

/// Writes the content of `url` into `sink` and returns its digest and size. The caller is about to sign both, and so chose
/// the URL.
///
/// # Errors
/// See [`FetchError`]; never [`FetchError::BadArtifact`].
pub async fn measure(
    url: &str,
    max: u64,
    timeout: Duration,
    objects: &impl ObjectReader,
    sink: &mut (dyn Write + Send),
) -> Result<ContentPin, FetchError> {
    let mut checked = PinnedWriter::new(url, None, max, sink);
    read(url, &HostPolicy { hosts: None, internal: true, loopback: false }, timeout, objects, &mut checked).await?;
    checked.finish()
}

/// Writes the bytes of an open file into `sink` and returns their digest and size. At most `max` bytes are allowed; errors
/// name the file `path`.
///
/// # Errors
/// See [`FetchError`].
pub fn copy(from: impl Read, path: &Path, max: u64, sink: &mut (dyn Write + Send)) -> Result<ContentPin, FetchError> {
    let mut checked = PinnedWriter::new(&path.display().to_string(), None, max, sink);
    read_into(from, path, &mut checked)?;
    checked.finish()
}

/// Reads the content of `url` into `checked`.
async fn read(
    url: &str,
    policy: &HostPolicy,
    timeout: Duration,
    objects: &impl ObjectReader,
    checked: &mut PinnedWriter<'_>,
) -> Result<(), FetchError> {
    let parsed = Url::parse(url).map_err(|_| FetchError::Url(redact_url(url)))?;
    let work = async {
        match parsed.scheme() {
            "https" | "http" => get(parsed, policy, checked).await,
            "obj" => {
                let (bucket, key) = bucket_and_key(&parsed).ok_or_else(|| FetchError::Url(redact_url(url)))?;
                let got = objects.object(bucket, key, checked.max).await;
                checked.add(&got.map_err(|cause| FetchError::Transport { url: redact_url(url), cause })?)
            }
            "file" => read_file(&parsed, checked),
            _ => Err(FetchError::Url(redact_url(url))),
        }
    };
    let timed_out = |_| FetchError::TimedOut { url: redact_url(url), after: timeout };
    tokio::time::timeout(timeout, work).await.map_err(timed_out)?
}

async fn get(url: Url, policy: &HostPolicy, checked: &mut PinnedWriter<'_>) -> Result<(), FetchError> {
    let mut answer = http::get(&HttpRequest::new(url), policy).await?;
    if let Some(size) = answer.length() {
        checked.check_announced_size(size)?;
    }
    while let Some(chunk) = answer.chunk().await? {
        checked.add(chunk.as_ref())?;
    }
    Ok(())
}

fn bucket_and_key(url: &Url) -> Option<(&str, &str)> {
    let bucket = url.host_str().filter(|bucket| !bucket.is_empty())?;
    let key = url.path().strip_prefix('/').filter(|key| !key.is_empty())?;
    Some((bucket, key))
}

fn read_file(url: &Url, checked: &mut PinnedWriter<'_>) -> Result<(), FetchError> {
    let path = url.to_file_path().map_err(|()| FetchError::Url(checked.url.clone()))?;
    let is_file = fs::stat(&path, false)?.is_none_or(|look| look.kind == fs::FileKind::File);
    if !is_file {
        return Err(FetchError::Url(checked.url.clone()));
    }
    read_into(fs::open(&path)?, &path, checked)
}

fn read_into(mut file: impl Read, path: &Path, checked: &mut PinnedWriter<'_>) -> Result<(), FetchError> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let count = file.read(&mut buffer).map_err(|error| FsError::io("read", path, error))?;
        match buffer.get(..count) {
            Some(chunk) if count > 0 => checked.add(chunk)?,
            _ => return Ok(()),
        }
    }
}

/// Receives bytes and compares them with the pin, if any.
struct PinnedWriter<'a> {
    url: String,
    pin: Option<&'a ContentPin>,
    max: u64,
    sink: &'a mut (dyn Write + Send),
    hasher: Sha256,
    size: u64,
}

impl<'a> PinnedWriter<'a> {
    fn new(url: &str, pin: Option<&'a ContentPin>, max: u64, sink: &'a mut (dyn Write + Send)) -> Self {
        Self { url: redact_url(url), pin, max, sink, hasher: Sha256::new(), size: 0 }
    }

    fn artifact_error(&self, why: String) -> FetchError {
        FetchError::BadArtifact { url: self.url.clone(), why }
    }

    /// Checks the announced size before any read.
    fn check_announced_size(&self, size: u64) -> Result<(), FetchError> {
        match self.pin {
            Some(pin) if size != pin.size => Err(self.artifact_error(format!("{size} bytes instead of {}", pin.size))),
            None if size > self.max => Err(FetchError::TooLarge { url: self.url.clone(), size, max: self.max }),
            _ => Ok(()),
        }
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), FetchError> {
        self.size += chunk.len() as u64;
        if self.size > self.max {
            return Err(match self.pin {
                Some(_) => self.artifact_error(format!("more than {} bytes", self.max)),
                None => FetchError::TooLargeStream { url: self.url.clone(), max: self.max },
            });
        }
        self.hasher.update(chunk);
        self.sink.write_all(chunk).map_err(|source| FetchError::Sink { url: self.url.clone(), source })
    }

    fn finish(self) -> Result<ContentPin, FetchError> {
        self.check_announced_size(self.size)?;
        self.sink.flush().map_err(|source| FetchError::Sink { url: self.url.clone(), source })?;
        let sha256 = fs::hex(&self.hasher.clone().finalize());
        match self.pin {
            Some(pin) if sha256 != pin.sha256 => Err(self.artifact_error(format!("SHA-256 {sha256} instead of {}", pin.sha256))),
            _ => Ok(ContentPin { sha256, size: self.size }),
        }
    }
}

#[cfg(test)]
mod tests;
