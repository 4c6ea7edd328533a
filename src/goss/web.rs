//! Web servers: what they answer.

use std::sync::Once;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Method, Response, Url, redirect};
use serde_json::Value;

use super::matcher::Found;
use super::network::wait;
use super::{Allow, Attributes, Look, value};
use crate::diag::chain;
use crate::template;

/// How long is waited for an answer when nothing is said, in milliseconds.
const TIMEOUT: u64 = 5_000;
/// Redirects that are followed, as in Go's client.
const REDIRECTS: usize = 10;
/// How much of an answer is looked at.
const MAX_BODY: usize = 8 << 20;

/// What a server said.
struct Answer {
    status: u16,
    headers: String,
    body: String,
}

/// What a URL answers.
pub(super) fn http(look: &Look<'_>) -> Result<Attributes, String> {
    let text = look.name("url");
    let url = Url::parse(&text).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
    let url = url.ok_or("it is no URL, as https://localhost/health")?;
    let answer = wait(look.host, look.timeout(TIMEOUT), ask(look, url))?;
    let text = |text: String| Ok(Found::Text { text, shown: true });
    Ok(Attributes::from([("status", value(answer.status)), ("headers", text(answer.headers)), ("body", text(answer.body))]))
}

async fn ask(look: &Look<'_>, mut url: Url) -> Result<Answer, String> {
    let client = client(look.flag("allow-insecure")).map_err(|error| chain(&error))?;
    let mut method = method(look)?;
    let headers = headers(look)?;
    let mut body = look.text("request-body");
    let origin = url.origin();
    for _ in 0..=REDIRECTS {
        allowed(look.allow, &url)?;
        let mut request = client.request(method.clone(), url.clone());
        // Credentials are for whom they were written, not for those whom he names.
        if url.origin() == origin {
            request = request.headers(headers.clone());
            if let Some(user) = look.text("username") {
                request = request.basic_auth(user, look.text("password"));
            }
        }
        if let Some(body) = &body {
            request = request.body(body.clone());
        }
        let response = request.send().await.map_err(|error| chain(&error.without_url()))?;
        let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok()).and_then(|next| url.join(next).ok());
        match next {
            Some(next) if response.status().is_redirection() && !look.flag("no-follow-redirects") => {
                // As browsers and Go do (RFC 9110, 15.4): only 307 and 308 ask for the same again.
                if !matches!(response.status().as_u16(), 307 | 308) && method != Method::HEAD {
                    (method, body) = (Method::GET, None);
                }
                url = next;
            }
            _ => return answer(response, look.wants("body")).await,
        }
    }
    Err(format!("more than {REDIRECTS} redirects"))
}

fn allowed(allow: Allow<'_>, url: &Url) -> Result<(), String> {
    match (url.scheme(), url.host_str()) {
        ("http" | "https", Some(host)) => (allow.host)(host.trim_matches(['[', ']'])),
        _ => Err("it redirects to what is no web server".to_owned()),
    }
}

fn method(look: &Look<'_>) -> Result<Method, String> {
    let name = look.text("method").map_or_else(|| "GET".to_owned(), |name| name.to_uppercase());
    Method::from_bytes(name.as_bytes()).map_err(|_| format!("\"{name}\" is no method, as GET or POST"))
}

fn headers(look: &Look<'_>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for header in look.options.get("request-headers").and_then(Value::as_array).into_iter().flatten() {
        let text = template::to_text(header);
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        let wrong = || format!("the header \"{}\" can't be sent", name.trim());
        let known = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong())?;
        headers.append(known, HeaderValue::from_str(value.trim()).map_err(|_| wrong())?);
    }
    Ok(headers)
}

async fn answer(mut response: Response, wants_body: bool) -> Result<Answer, String> {
    let status = response.status().as_u16();
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        format!("{}: {}\n", canonical(name.as_str()), String::from_utf8_lossy(value.as_bytes()))
    };
    let headers = response.headers().iter().map(line).collect();
    let mut body = Vec::new();
    while wants_body && body.len() < MAX_BODY {
        match response.chunk().await.map_err(|error| chain(&error.without_url()))? {
            Some(chunk) => body.extend_from_slice(&chunk),
            None => break,
        }
    }
    Ok(Answer { status, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

/// Names of headers as people write them: `Content-Type`.
fn canonical(name: &str) -> String {
    let part = |part: &str| {
        let mut characters = part.chars();
        characters.next().map(|first| first.to_ascii_uppercase().to_string() + characters.as_str()).unwrap_or_default()
    };
    name.split('-').map(part).collect::<Vec<_>>().join("-")
}

fn client(insecure: bool) -> Result<Client, reqwest::Error> {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // An error means that there is a provider already, which is as good.
        let _already = rustls::crypto::ring::default_provider().install_default();
    });
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .tls_danger_accept_invalid_certs(insecure)
        .user_agent(concat!("ensign/", env!("CARGO_PKG_VERSION")))
        .build()
}
