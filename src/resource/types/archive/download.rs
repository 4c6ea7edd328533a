//! Download of an archive into a partial file beside its place, hashed meanwhile, then renamed into place. An interrupted
//! download is resumed if the server confirms that the content is the same.

use std::time::Duration;

use sha2::{Digest, Sha256};
use url::Url;

use crate::diag::error_chain;
use crate::host::fs::{self, FsError};
use crate::host::resumable_file::ResumableFile;
use crate::host::{Host, Meter};
use crate::http::{self, HostPolicy, HttpError, HttpRequest, HttpResponse, ResumePoint, redact_url};

use super::properties::{MODE, Properties, mark};
use crate::resource::ResourceError;

/// Maximum number of connections without progress.
const TRIES: usize = 3;
/// Pause before a new connection.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum DownloadError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    File(#[from] FsError),
    #[error("checksum mismatch, expected \"{expected}\" got \"{got}\"")]
    Checksum { expected: String, got: String },
    #[error("{url} has more than the {max} bytes that this host takes")]
    TooLarge { url: String, max: u64 },
    #[error("invalid url: \"{0}\"")]
    Url(String),
}

pub(super) fn download(p: &Properties, host: &Host) -> Result<String, ResourceError> {
    // Check the owner before the download.
    let spec = p.write_spec(host, MODE)?;
    download_verified(p, host)
        .and_then(|(partial, digest)| {
            // A run that ends between here and the end of the extraction must be repeated.
            if p.extracts() {
                mark(p, &host.managed_paths(p.follow).existing_place(p.path())?)?;
            }
            partial.persist(spec)?;
            Ok(digest)
        })
        .map_err(|error| ResourceError::State(format!("download failed: {}", error_chain(&error))))
}

/// Downloads the whole archive into its own partial file, and returns its digest.
fn download_verified(p: &Properties, host: &Host) -> Result<(ResumableFile, String), DownloadError> {
    let mut partial = ResumableFile::open(host.managed_paths(p.follow).existing_place(p.path())?)?;
    let what = format!("downloading {}", p.path().file_name().unwrap_or_default().to_string_lossy());
    let mut job = DownloadJob { p, host, partial: &mut partial, meter: Meter::new(host, what, None) };
    let result = http::block_on(job.download_all(), &|| host.is_over());
    drop(job);
    match result {
        Ok(digest) => Ok((partial, digest)),
        Err(error) => {
            let broke = matches!(error, DownloadError::Http(HttpError::Transport { .. } | HttpError::Cancelled));
            if !(broke && partial.note().is_some() && partial.length().is_ok_and(|length| length > 0)) {
                partial.discard()?;
            }
            Err(error)
        }
    }
}

struct DownloadJob<'a> {
    p: &'a Properties,
    host: &'a Host,
    partial: &'a mut ResumableFile,
    meter: Meter<'a>,
}

impl DownloadJob<'_> {
    /// Sends requests until the archive is complete, or the server sends no more.
    async fn download_all(&mut self) -> Result<String, DownloadError> {
        let mut tries = 0;
        loop {
            let before = self.partial.length()?;
            let part = self.part(before);
            let resumed = part.is_some();
            match self.attempt(part).await {
                Ok(digest) if self.p.is_wanted(&digest) => return Ok(digest),
                // The partial file was no part of the archive, or the server does not send the announced bytes.
                Ok(_) | Err(DownloadError::Http(HttpError::RangeUnavailable { .. })) if resumed => self.partial.begin(None)?,
                Ok(got) => return Err(DownloadError::Checksum { expected: self.p.checksum.clone(), got }),
                Err(DownloadError::Http(HttpError::Transport { .. }))
                    if tries < TRIES && self.partial.note().is_some() && self.partial.length()? > before =>
                {
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends one request, and returns the digest of the complete archive.
    async fn attempt(&mut self, part: Option<ResumePoint>) -> Result<String, DownloadError> {
        let bounds = self.host.limits();
        let policy = HostPolicy { hosts: bounds.fetch_hosts.clone(), internal: bounds.internal, loopback: false };
        let ask = self.request()?;
        let ask = match part {
            Some(part) => ask.resume_from(part),
            None => ask,
        };
        let mut answer = http::get(&ask, &policy).await?;
        let mut hasher = if answer.start() == 0 {
            let note = self.note(&answer);
            self.partial.begin(note.as_deref())?;
            Sha256::new()
        } else {
            self.partial.digest()?
        };
        let mut size = answer.start();
        self.check_size(size.max(answer.length().unwrap_or(0)))?;
        self.meter.set_total(answer.length());
        self.meter.set_done(size);
        while let Some(chunk) = answer.chunk().await? {
            let chunk = chunk.as_ref();
            size += chunk.len() as u64;
            self.check_size(size)?;
            self.partial.append(chunk)?;
            hasher.update(chunk);
            self.meter.add(chunk.len() as u64);
        }
        Ok(fs::hex(&hasher.finalize()))
    }

    fn request(&self) -> Result<HttpRequest, DownloadError> {
        let url = Url::parse(&self.p.url).map_err(|_| DownloadError::Url(redact_url(&self.p.url)))?;
        let mut ask = HttpRequest::new(url);
        if !self.p.username.is_empty() && !self.p.password.reveal().is_empty() {
            ask = ask.user(&self.p.username, &self.p.password);
        }
        for (name, value) in &self.p.headers {
            ask = ask.header(name, value)?;
        }
        Ok(ask)
    }

    fn check_size(&self, size: u64) -> Result<(), DownloadError> {
        let max = self.host.limits().archive_size;
        if size > max { Err(DownloadError::TooLarge { url: redact_url(&self.p.url), max }) } else { Ok(()) }
    }

    /// Returns the identity of the partial content: the URL, and the validator of the server.
    fn note(&self, answer: &HttpResponse) -> Option<String> {
        // A modification time does not distinguish two changes within a second. A checksum detects the difference.
        let validator = answer.validator().filter(|validator| validator.strong || !self.p.checksum.is_empty())?;
        Some(format!("{} {}", fs::sha256(self.p.url.as_bytes()), validator.text))
    }

    /// Returns the partial content, if it is of the same URL.
    fn part(&self, from: u64) -> Option<ResumePoint> {
        let note = self.partial.note()?;
        let (url, validator) = note.split_once(' ')?;
        let same = url == fs::sha256(self.p.url.as_bytes()) && from > 0;
        same.then(|| ResumePoint { from, validator: validator.to_owned() })
    }
}
