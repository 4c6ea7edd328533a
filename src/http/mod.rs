//! HTTP for URLs that others write: which hosts and addresses are asked (`hosts.rs`), how many redirects are
//! followed, who gets to see credentials, and where an interrupted transfer goes on (RFC 9110, sections 13 and 14).
//!
//! What is done with the bytes is the business of `manifest::fetch` and of the `archive` resource.

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

pub use hosts::{is_loopback, may_ask, vet};
pub use probe::{Answered, Probe};

/// Redirects that are followed.
const REDIRECTS: usize = 5;
/// For a connection, and for each silence while bytes come.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often whoever waits is asked whether it still does.
const POLL: Duration = Duration::from_millis(50);

/// Which hosts may be asked; each redirect is held to it too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Their names, as `repo.example.org` or `*.example.org`; `None` is every host.
    pub hosts: Option<Vec<String>>,
    /// Whether addresses that lead to this machine itself may be asked without being named.
    pub internal: bool,
    /// Whether this machine's own loopback may be asked under a name or address that [says so](is_loopback), whatever
    /// `hosts` has: for what fetches nothing.
    pub loopback: bool,
}

/// Bytes that were not had. URLs in it have no credentials.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// This host may not go there.
    #[error("may not fetch {url}: {why}")]
    Denied {
        /// From where.
        url: String,
        /// Why not.
        why: String,
    },
    /// The server said something else than that here it is.
    #[error("could not fetch {url}: the server answered {status}")]
    Status {
        /// From where.
        url: String,
        /// What it said.
        status: String,
    },
    /// The server can't go on where an earlier transfer ended.
    #[error("could not fetch {url}: the server does not have the part that was asked for")]
    Part {
        /// From where.
        url: String,
    },
    /// The way there is broken.
    #[error("could not fetch {url}")]
    Transport {
        /// From where.
        url: String,
        /// Why.
        #[source]
        cause: reqwest::Error,
    },
    /// A header that can't be sent.
    #[error("the header \"{0}\" can't be sent: a name is letters, digits and dashes, a value has no line breaks")]
    Header(String),
    /// Nobody waits any more.
    #[error("the run was ended before it was complete")]
    Over,
    /// This machine gives no means to wait for a network.
    #[error("could not start to fetch")]
    Runtime(#[source] std::io::Error),
}

/// The URL as it may be shown: without user, password and query, where credentials stand.
pub fn shown(url: &str) -> String {
    let plain = url.split(['?', '#']).next().unwrap_or_default();
    match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => plain.to_owned(),
    }
}

/// The host that a URL names.
pub fn host_of(url: &str) -> Option<String> {
    Url::parse(url).ok()?.host_str().map(str::to_owned)
}

/// True for a URL that names this machine's own loopback, and no user.
pub fn is_own(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    url.username().is_empty() && url.password().is_none() && url.host_str().is_some_and(is_loopback)
}

/// What may be said of a URL of this machine itself where no more than its status is asked, by a request with nothing added.
const BARE: [&str; 9] = ["url", "method", "status", "timeout", "allow-insecure", "no-follow-redirects", "title", "meta", "skip"];
/// Methods that change nothing (RFC 9110, section 9.2.1).
const SAFE_METHODS: [&str; 2] = ["GET", "HEAD"];

/// True when a health check asks this machine itself for no more than anybody could: the status of a URL. Nothing that a local
/// service says gets out by that, and nothing is changed there. `said` has the names of all that the check says of the URL.
/// Rules judge by it from the signed bytes, and the check itself before it asks.
pub fn is_bare<'a>(url: &str, method: Option<&str>, said: impl IntoIterator<Item = &'a str>) -> bool {
    let is_safe = method.is_none_or(|method| SAFE_METHODS.iter().any(|safe| method.eq_ignore_ascii_case(safe)));
    is_safe && said.into_iter().all(|name| BARE.contains(&name)) && is_own(url)
}

/// Where an earlier transfer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// How many bytes there are already.
    pub from: u64,
    /// The validator of what they are a part of.
    pub validator: String,
}

/// What is asked for. User and password of its URL, and its headers, are seen by its own host only, not by one that it
/// redirects to.
#[derive(Debug, Clone)]
pub struct Ask {
    url: Url,
    headers: HeaderMap,
    part: Option<Part>,
}

impl Ask {
    /// All of what a URL names.
    pub fn new(url: Url) -> Self {
        Self { url, headers: HeaderMap::new(), part: None }
    }

    /// The same with a header. An `Authorization` goes before user and password.
    ///
    /// # Errors
    /// When it can't be sent.
    pub fn header(mut self, name: &str, value: &Secret) -> Result<Self, HttpError> {
        let wrong = || HttpError::Header(name.to_owned());
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        self.headers.insert(known, value);
        Ok(self)
    }

    /// The same for a user, by basic authentication.
    #[must_use]
    pub fn user(mut self, name: &str, password: &Secret) -> Self {
        // They travel in the URL, and so no further than it.
        let _no_host = self.url.set_username(name).and_then(|()| self.url.set_password(Some(password.reveal())));
        self
    }

    /// What is left after a part of it.
    #[must_use]
    pub fn after(mut self, part: Part) -> Self {
        self.part = Some(part);
        self
    }
}

/// What tells whether two transfers are of the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validator {
    /// As `If-Range` takes it.
    pub text: String,
    /// False for a time of change: it does not tell two changes within a second.
    pub strong: bool,
}

/// What a server gives, byte by byte.
#[derive(Debug)]
pub struct Answer {
    response: Response,
    url: String,
    start: u64,
    length: Option<u64>,
}

impl Answer {
    /// From where it came in the end, as it may be shown.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The place of its first byte: 0, or where the part that was there already ends.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// How many bytes there are in all, where the server says so.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// What tells whether a later transfer is of the same bytes.
    pub fn validator(&self) -> Option<Validator> {
        let text = |name| self.response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let strong = text(header::ETAG).filter(|tag| tag.starts_with('"')).map(|text| Validator { text, strong: true });
        strong.or_else(|| text(header::LAST_MODIFIED).map(|text| Validator { text, strong: false }))
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// When the connection breaks, also before as many bytes came as were announced.
    pub async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, HttpError> {
        self.response.chunk().await.map_err(|error| transport(&self.url, error))
    }
}

/// Asks, and follows redirects by hand: each hop must be allowed by itself.
///
/// # Errors
/// See [`HttpError`].
pub async fn get(ask: &Ask, policy: &Policy) -> Result<Answer, HttpError> {
    let (mut url, mut headers) = (ask.url.clone(), ask.headers.clone());
    let client = client(policy).map_err(|error| transport(&shown(url.as_str()), error))?;
    for _ in 0..=REDIRECTS {
        let from = shown(url.as_str());
        hosts::allowed(&url, policy)?;
        // Archives are kept as they are: nothing may be packed on the way.
        let mut request = client.get(url.clone()).header(header::ACCEPT_ENCODING, "identity").headers(headers.clone());
        if let Some(part) = &ask.part {
            request = request.header(header::RANGE, format!("bytes={}-", part.from)).header(header::IF_RANGE, &part.validator);
        }
        let response = request.send().await.map_err(|error| transport(&from, error))?;
        match response.status() {
            StatusCode::OK => {
                let length = response.content_length();
                return Ok(Answer { response, url: from, start: 0, length });
            }
            StatusCode::PARTIAL_CONTENT if ask.part.is_some() => return partial(response, ask, from),
            StatusCode::RANGE_NOT_SATISFIABLE if ask.part.is_some() => return Err(HttpError::Part { url: from }),
            status if status.is_redirection() => {
                let next = next_hop(&url, &response)?;
                if !same_place(&url, &next) {
                    headers.clear();
                }
                url = next;
            }
            status => return Err(HttpError::Status { url: from, status: status.to_string() }),
        }
    }
    Err(HttpError::Denied { url: shown(url.as_str()), why: format!("more than {REDIRECTS} redirects") })
}

/// Waits for `work` on this thread, and gives it up when `over` says that nobody needs it any more.
///
/// # Errors
/// Those of the work; [`HttpError::Over`] when it was given up.
pub fn block_on<T, E: From<HttpError>>(work: impl Future<Output = Result<T, E>>, over: &dyn Fn() -> bool) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(HttpError::Runtime)?;
    let result = runtime.block_on(async {
        tokio::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return result,
                () = tokio::time::sleep(POLL) => if over() { return Err(HttpError::Over.into()) },
            }
        }
    });
    // A name that is still being resolved is not waited for.
    runtime.shutdown_background();
    result
}

fn transport(url: &str, error: reqwest::Error) -> HttpError {
    HttpError::Transport { url: url.to_owned(), cause: error.without_url() }
}

/// The rest of something: it must begin where it was asked to.
fn partial(response: Response, ask: &Ask, url: String) -> Result<Answer, HttpError> {
    let asked = ask.part.as_ref().map_or(0, |part| part.from);
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok()).and_then(content_range);
    match range {
        Some((start, total)) if start == asked => {
            let length = total.or_else(|| response.content_length().map(|rest| start.saturating_add(rest)));
            Ok(Answer { response, url, start, length })
        }
        _ => Err(HttpError::Part { url }),
    }
}

/// First byte and total length of `bytes 5-9/10`; the length may be `*`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

fn next_hop(url: &Url, response: &Response) -> Result<Url, HttpError> {
    let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| url.join(location).ok());
    let denied = |why: &str| HttpError::Denied { url: shown(url.as_str()), why: why.to_owned() };
    let mut next = next.ok_or_else(|| denied("it redirects to nowhere"))?;
    let safe = next.scheme() == url.scheme() || (url.scheme() == "http" && next.scheme() == "https");
    if !safe {
        return Err(denied("it redirects to another kind of URL"));
    }
    if same_place(url, &next) && next.username().is_empty() && next.password().is_none() {
        let _no_host = next.set_username(url.username()).and_then(|()| next.set_password(url.password()));
    }
    Ok(next)
}

/// True where who may see credentials at the one may see them at the other: the same origin, or its own `https`.
fn same_place(one: &Url, other: &Url) -> bool {
    let upgraded = (one.scheme(), other.scheme()) == ("http", "https") && (one.port(), other.port()) == (None, None);
    one.host() == other.host() && (upgraded || one.origin() == other.origin())
}

fn client(policy: &Policy) -> Result<Client, reqwest::Error> {
    builder(policy).build()
}

fn builder(policy: &Policy) -> reqwest::ClientBuilder {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // An error means that there is a provider already, which is as good.
        let _already = rustls::crypto::ring::default_provider().install_default();
    });
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .dns_resolver(Arc::new(hosts::Vetted::new(policy)))
        .connect_timeout(PATIENCE)
        .read_timeout(PATIENCE)
        .user_agent(concat!("ensign/", env!("CARGO_PKG_VERSION")))
}

#[cfg(test)]
mod tests;
