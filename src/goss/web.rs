//! The probe of URLs.

use serde_json::Value;

use super::matcher::Found;
use super::network::{policy, wait};
use super::{Attributes, Look, value};
use crate::diag::chain;
use crate::http::{self, HttpError, Policy, Probe};
use crate::model::Secret;
use crate::template;

/// The longest wait for a response without the option `timeout`, in milliseconds.
const TIMEOUT: u64 = 5_000;

/// The status, the headers and the body of a URL.
pub(super) fn http(look: &Look<'_>) -> Result<Attributes, String> {
    let probe = probe(look)?;
    let policy = Policy { loopback: is_bare(look), ..policy(look.host) };
    let asked = async { probe.ask(&policy).await };
    let answer = wait(look.host, look.timeout(TIMEOUT), async { asked.await.map_err(|error| said(&error, look)) })?;
    let headers = answer.headers.iter().map(|(name, value)| format!("{}: {value}\n", canonical(name))).collect();
    let text = |text: String| Ok(Found::Text { text, shown: true });
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    Ok(Attributes::from([("status", value(answer.status)), ("headers", text(headers)), ("body", text(body))]))
}

fn is_bare(look: &Look<'_>) -> bool {
    let said = look.options.keys().map(String::as_str).chain(look.attributes.iter().copied());
    http::is_bare(&look.name("url"), look.text("method").as_deref(), said)
}

fn said(error: &HttpError, look: &Look<'_>) -> String {
    let is_own = matches!(error, HttpError::Denied { .. }) && http::is_own(&look.name("url"));
    let hint = if is_own { "; otherwise a rule may only check its status, by GET or HEAD without further options" } else { "" };
    format!("{}{hint}", chain(error))
}

fn probe(look: &Look<'_>) -> Result<Probe, String> {
    let method = look.text("method").unwrap_or_else(|| "GET".to_owned());
    let mut probe = Probe::new(&look.name("url"), &method)?;
    for header in look.options.get("request-headers").and_then(Value::as_array).into_iter().flatten() {
        let text = template::to_text(header);
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        probe = probe.header(name.trim(), value.trim()).map_err(|error| chain(&error))?;
    }
    if let Some(user) = look.text("username") {
        probe = probe.user(user, look.text("password").map(Secret::new));
    }
    if let Some(body) = look.text("request-body") {
        probe = probe.body(body);
    }
    (probe.insecure, probe.follow) = (look.flag("allow-insecure"), !look.flag("no-follow-redirects"));
    Ok(probe)
}

/// The usual spelling of the name of a header: `Content-Type`.
fn canonical(name: &str) -> String {
    let part = |part: &str| {
        let mut characters = part.chars();
        characters.next().map(|first| first.to_ascii_uppercase().to_string() + characters.as_str()).unwrap_or_default()
    };
    name.split('-').map(part).collect::<Vec<_>>().join("-")
}
