//! The probe of URLs.

use serde_json::Value;

use super::network::{policy, wait_for};
use super::probe::{Attributes, ProbeContext, ProbedValue, found_value};
use crate::diag::error_chain;
use crate::http::{self, HostPolicy, HttpError, Probe};
use crate::model::Secret;
use crate::template;

/// The longest wait for a response without the option `timeout`, in milliseconds.
const DEFAULT_TIMEOUT_MS: u64 = 5_000;

/// The status, the headers and the body of a URL.
pub(super) fn http(look: &ProbeContext<'_>) -> Result<Attributes, String> {
    let probe = probe(look)?;
    let policy = HostPolicy { loopback: is_bare(look), ..policy(look.host) };
    let asked = async { probe.send(&policy).await };
    let answer = wait_for(look.host, look.timeout(DEFAULT_TIMEOUT_MS), async {
        asked.await.map_err(|error| error_message(&error, look))
    })?;
    let headers = answer.headers.iter().map(|(name, value)| format!("{}: {value}\n", canonical_header(name))).collect();
    let text = |text: String| Ok(ProbedValue::Text { text, shown: true });
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    Ok(Attributes::from([("status", found_value(answer.status)), ("headers", text(headers)), ("body", text(body))]))
}

fn is_bare(look: &ProbeContext<'_>) -> bool {
    let said = look.options.keys().map(String::as_str).chain(look.attributes.iter().copied());
    http::reads_status_only(&look.name("url"), look.text("method").as_deref(), said)
}

fn error_message(error: &HttpError, look: &ProbeContext<'_>) -> String {
    let is_own = matches!(error, HttpError::Denied { .. }) && http::is_loopback_url(&look.name("url"));
    let hint = if is_own { "; otherwise a rule may only check its status, by GET or HEAD without further options" } else { "" };
    format!("{}{hint}", error_chain(error))
}

fn probe(look: &ProbeContext<'_>) -> Result<Probe, String> {
    let method = look.text("method").unwrap_or_else(|| "GET".to_owned());
    let mut probe = Probe::new(&look.name("url"), &method)?;
    for header in look.options.get("request-headers").and_then(Value::as_array).into_iter().flatten() {
        let text = template::to_text(header);
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        probe = probe.header(name.trim(), value.trim()).map_err(|error| error_chain(&error))?;
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
fn canonical_header(name: &str) -> String {
    let part = |part: &str| {
        let mut characters = part.chars();
        characters.next().map(|first| first.to_ascii_uppercase().to_string() + characters.as_str()).unwrap_or_default()
    };
    name.split('-').map(part).collect::<Vec<_>>().join("-")
}
