//! HTTP for untrusted URLs: allowed hosts (`hosts.rs`), redirects, credentials, and interrupted transfers (RFC 9110, sections
//! 13 and 14).
//!
//! `manifest::fetch` and the `archive` resource use the bytes.

mod error;
mod hosts;
mod probe;
#[cfg(test)]
#[path = "../../tests/it/support/web.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests of the whole program include it too, and use other parts")]
pub(crate) mod testing;

use std::future::Future;
use std::sync::{Arc, Once};
use std::time::Duration;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url, redirect};

use crate::model::Secret;

pub use error::{HttpError, redact_url};
pub use hosts::{HostPolicy, check_addresses, check_host, is_loopback};
pub use probe::{Probe, ProbeResponse};

/// The most redirects of a transfer.
const MAX_REDIRECTS: usize = 5;
/// The longest wait for a connection, and for the next bytes of a transfer.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);
/// The interval of checks for a cancelled run during a transfer.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the host of a URL.
pub fn host_of(url: &str) -> Option<String> {
    Url::parse(url).ok()?.host_str().map(str::to_owned)
}

/// True for a URL of this machine's own loopback, without a user.
pub fn is_loopback_url(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    url.username().is_empty() && url.password().is_none() && url.host_str().is_some_and(is_loopback)
}

/// The options of a health check on loopback that reads only a status. Its request has no additions.
const STATUS_ONLY_OPTIONS: [&str; 9] =
    ["url", "method", "status", "timeout", "allow-insecure", "no-follow-redirects", "title", "meta", "skip"];
/// Methods that change nothing (RFC 9110, section 9.2.1).
const SAFE_METHODS: [&str; 2] = ["GET", "HEAD"];

/// True for a health check that reads only a status from this machine itself. Every local process could do the same: the
/// check reveals no content and changes nothing. `said` has the names of all options of the check. Rules decide by this from
/// the signed bytes, and the check itself decides before its request.
pub fn reads_status_only<'a>(url: &str, method: Option<&str>, said: impl IntoIterator<Item = &'a str>) -> bool {
    let is_safe = method.is_none_or(|method| SAFE_METHODS.iter().any(|safe| method.eq_ignore_ascii_case(safe)));
    is_safe && said.into_iter().all(|name| STATUS_ONLY_OPTIONS.contains(&name)) && is_loopback_url(url)
}

/// The end of an interrupted transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumePoint {
    /// The number of bytes that were received.
    pub from: u64,
    /// The validator of the whole content.
    pub validator: String,
}

/// A request. Only the host of its URL sees user, password and headers; the hosts of redirects do not.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    url: Url,
    headers: HeaderMap,
    part: Option<ResumePoint>,
}

impl HttpRequest {
    /// Requests the whole content of a URL.
    pub fn new(url: Url) -> Self {
        Self { url, headers: HeaderMap::new(), part: None }
    }

    /// Adds a header. An `Authorization` replaces user and password.
    ///
    /// # Errors
    /// When HTTP does not allow the header.
    pub fn header(mut self, name: &str, value: &Secret) -> Result<Self, HttpError> {
        let wrong = || HttpError::Header(name.to_owned());
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        self.headers.insert(known, value);
        Ok(self)
    }

    /// Adds user and password for basic authentication.
    #[must_use]
    pub fn user(mut self, name: &str, password: &Secret) -> Self {
        // The URL holds both, so no other host gets them.
        let _no_host = self.url.set_username(name).and_then(|()| self.url.set_password(Some(password.reveal())));
        self
    }

    /// Requests the rest of an interrupted transfer.
    #[must_use]
    pub fn resume_from(mut self, part: ResumePoint) -> Self {
        self.part = Some(part);
        self
    }
}

/// The mark by which two transfers of the same bytes are recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validator {
    /// The value for `If-Range`.
    pub text: String,
    /// False for a modification time, which does not separate two changes within a second.
    pub strong: bool,
}

/// The response of a server, read piece by piece.
#[derive(Debug)]
pub struct HttpResponse {
    response: Response,
    url: String,
    start: u64,
    length: Option<u64>,
}

impl HttpResponse {
    /// Returns the final URL, for messages.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the offset of the first byte: 0, or the end of the interrupted transfer.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the total number of bytes; none when the server does not tell.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Returns the mark by which a later transfer of the same bytes is recognised.
    pub fn validator(&self) -> Option<Validator> {
        let text = |name| self.response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let strong = text(header::ETAG).filter(|tag| tag.starts_with('"')).map(|text| Validator { text, strong: true });
        strong.or_else(|| text(header::LAST_MODIFIED).map(|text| Validator { text, strong: false }))
    }

    /// Returns the next bytes; none at the end.
    ///
    /// # Errors
    /// When the connection breaks, also before all announced bytes arrived.
    pub async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, HttpError> {
        self.response.chunk().await.map_err(|error| transport_error(&self.url, error))
    }
}

/// Sends a request and follows redirects by hand, because the policy must allow each hop.
///
/// # Errors
/// See [`HttpError`].
pub async fn get(ask: &HttpRequest, policy: &HostPolicy) -> Result<HttpResponse, HttpError> {
    let (mut url, mut headers) = (ask.url.clone(), ask.headers.clone());
    let client = client(policy).map_err(|error| transport_error(&redact_url(url.as_str()), error))?;
    for _ in 0..=MAX_REDIRECTS {
        let from = redact_url(url.as_str());
        hosts::check_url(&url, policy)?;
        // Archives are stored as they are, so no server may compress them on the way.
        let mut request = client.get(url.clone()).header(header::ACCEPT_ENCODING, "identity").headers(headers.clone());
        if let Some(part) = &ask.part {
            request = request.header(header::RANGE, format!("bytes={}-", part.from)).header(header::IF_RANGE, &part.validator);
        }
        let response = request.send().await.map_err(|error| transport_error(&from, error))?;
        match response.status() {
            StatusCode::OK => {
                let length = response.content_length();
                return Ok(HttpResponse { response, url: from, start: 0, length });
            }
            StatusCode::PARTIAL_CONTENT if ask.part.is_some() => return partial_response(response, ask, from),
            StatusCode::RANGE_NOT_SATISFIABLE if ask.part.is_some() => return Err(HttpError::RangeUnavailable { url: from }),
            status if status.is_redirection() => {
                let next = next_hop(&url, &response)?;
                if !may_share_credentials(&url, &next) {
                    headers.clear();
                }
                url = next;
            }
            status => return Err(HttpError::Status { url: from, status: status.to_string() }),
        }
    }
    Err(HttpError::Denied { url: redact_url(url.as_str()), why: format!("more than {MAX_REDIRECTS} redirects") })
}

/// Waits for `work` on this thread, and cancels `work` once `over` returns true.
///
/// # Errors
/// Those of the work; `HttpError::Over` after a cancellation.
pub fn block_on<T, E: From<HttpError>>(work: impl Future<Output = Result<T, E>>, over: &dyn Fn() -> bool) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(HttpError::Runtime)?;
    let result = runtime.block_on(async {
        tokio::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return result,
                () = tokio::time::sleep(CANCEL_POLL_INTERVAL) => if over() { return Err(HttpError::Cancelled.into()) },
            }
        }
    });
    // The end does not wait for a name that is still being resolved.
    runtime.shutdown_background();
    result
}

fn transport_error(url: &str, error: reqwest::Error) -> HttpError {
    HttpError::Transport { url: url.to_owned(), cause: error.without_url() }
}

/// Checks that a partial response begins at the requested offset.
fn partial_response(response: Response, ask: &HttpRequest, url: String) -> Result<HttpResponse, HttpError> {
    let asked = ask.part.as_ref().map_or(0, |part| part.from);
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok()).and_then(content_range);
    match range {
        Some((start, total)) if start == asked => {
            let length = total.or_else(|| response.content_length().map(|rest| start.saturating_add(rest)));
            Ok(HttpResponse { response, url, start, length })
        }
        _ => Err(HttpError::RangeUnavailable { url }),
    }
}

/// Parses first byte and total length of `bytes 5-9/10`; the length may be `*`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

fn next_hop(url: &Url, response: &Response) -> Result<Url, HttpError> {
    let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| url.join(location).ok());
    let denied = |why: &str| HttpError::Denied { url: redact_url(url.as_str()), why: why.to_owned() };
    let mut next = next.ok_or_else(|| denied("the redirect has no valid target"))?;
    let safe = next.scheme() == url.scheme() || (url.scheme() == "http" && next.scheme() == "https");
    if !safe {
        return Err(denied("it redirects to another kind of URL"));
    }
    if may_share_credentials(url, &next) && next.username().is_empty() && next.password().is_none() {
        let _no_host = next.set_username(url.username()).and_then(|()| next.set_password(url.password()));
    }
    Ok(next)
}

/// True when both URLs may see the same credentials: the same origin, or its own `https`.
fn may_share_credentials(one: &Url, other: &Url) -> bool {
    let upgraded = (one.scheme(), other.scheme()) == ("http", "https") && (one.port(), other.port()) == (None, None);
    one.host() == other.host() && (upgraded || one.origin() == other.origin())
}

fn client(policy: &HostPolicy) -> Result<Client, reqwest::Error> {
    builder(policy).build()
}

fn builder(policy: &HostPolicy) -> reqwest::ClientBuilder {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // An error means that a provider is installed already, which is as good.
        let _already = rustls::crypto::ring::default_provider().install_default();
    });
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .dns_resolver(Arc::new(hosts::PolicyResolver::new(policy)))
        .connect_timeout(STALL_TIMEOUT)
        .read_timeout(STALL_TIMEOUT)
        .user_agent(concat!("ensign/", env!("CARGO_PKG_VERSION")))
}

#[cfg(test)]
mod tests;
