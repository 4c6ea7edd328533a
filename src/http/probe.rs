//! A single request of a health check: any response counts. The rules for hosts, redirects and credentials are those of
//! transfers.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Method, Url};

use super::{HostPolicy, HttpError, builder, hosts, may_share_credentials, redact_url, transport_error};
use crate::model::Secret;

/// The most redirects, as in Go's client.
const MAX_PROBE_REDIRECTS: usize = 10;
/// The part of a body that is read, in bytes.
const MAX_BODY: usize = 8 << 20;

/// A request. Only the host of its URL sees user, password and headers; the hosts of redirects do not.
#[derive(Debug)]
pub struct Probe {
    url: Url,
    method: Method,
    headers: HeaderMap,
    user: Option<(String, Option<Secret>)>,
    body: Option<String>,
    /// True where any certificate is accepted.
    pub insecure: bool,
    /// True where redirects are followed.
    pub follow: bool,
}

/// The response of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeResponse {
    /// The status, as 200.
    pub status: u16,
    /// Names and values of the headers; the names are in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, at most 8 MiB of it.
    pub body: Vec<u8>,
}

impl Probe {
    /// Creates a request to a URL with a method, as `GET`.
    ///
    /// # Errors
    /// When the URL or the method is invalid.
    pub fn new(url: &str, method: &str) -> Result<Self, String> {
        let parsed = Url::parse(url).ok().filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
        let url = parsed.ok_or("not a URL: expected a form as https://localhost/health")?;
        let method = Method::from_bytes(method.to_uppercase().as_bytes())
            .map_err(|_| format!("\"{method}\" is not an HTTP method, as GET or POST"))?;
        Ok(Self { url, method, headers: HeaderMap::new(), user: None, body: None, insecure: false, follow: true })
    }

    /// Adds a header.
    ///
    /// # Errors
    /// When HTTP does not allow the header.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, HttpError> {
        let wrong = || HttpError::Header(name.to_owned());
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        self.headers.append(known, HeaderValue::from_str(value).map_err(|_| wrong())?);
        Ok(self)
    }

    /// Adds user and password for basic authentication.
    #[must_use]
    pub fn user(mut self, name: String, password: Option<Secret>) -> Self {
        self.user = Some((name, password));
        self
    }

    /// Adds a body.
    #[must_use]
    pub fn body(mut self, body: String) -> Self {
        self.body = Some(body);
        self
    }

    /// Sends the request.
    ///
    /// # Errors
    /// When there is no response, or the policy does not allow a host on the way.
    pub async fn send(mut self, policy: &HostPolicy) -> Result<ProbeResponse, HttpError> {
        let failed = |url: &Url, error| transport_error(&redact_url(url.as_str()), error);
        let client = builder(policy).tls_danger_accept_invalid_certs(self.insecure).build();
        let client = client.map_err(|error| failed(&self.url, error))?;
        let first = self.url.clone();
        for _ in 0..=MAX_PROBE_REDIRECTS {
            hosts::check_url(&self.url, policy)?;
            let mut request = client.request(self.method.clone(), self.url.clone());
            if may_share_credentials(&first, &self.url) {
                request = request.headers(self.headers.clone());
                if let Some((name, password)) = &self.user {
                    request = request.basic_auth(name, password.as_ref().map(Secret::reveal));
                }
            }
            if let Some(body) = &self.body {
                request = request.body(body.clone());
            }
            let mut response = request.send().await.map_err(|error| failed(&self.url, error))?;
            let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            let next = next.and_then(|next| self.url.join(next).ok()).filter(|next| ["http", "https"].contains(&next.scheme()));
            let status = response.status();
            if let Some(next) = next.filter(|_| self.follow && status.is_redirection()) {
                // As browsers and Go do (RFC 9110, section 15.4): only 307 and 308 repeat the request unchanged.
                if !matches!(status.as_u16(), 307 | 308) && self.method != Method::HEAD {
                    (self.method, self.body) = (Method::GET, None);
                }
                self.url = next;
                continue;
            }
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers = response.headers().iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
            let mut body = Vec::new();
            while body.len() < MAX_BODY
                && let Some(chunk) = response.chunk().await.map_err(|error| failed(&self.url, error))?
            {
                body.extend_from_slice(&chunk);
            }
            return Ok(ProbeResponse { status: status.as_u16(), headers, body });
        }
        Err(HttpError::Denied { url: redact_url(self.url.as_str()), why: format!("more than {MAX_PROBE_REDIRECTS} redirects") })
    }
}
