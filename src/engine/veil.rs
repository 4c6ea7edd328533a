//! What leaves a run is shown without the secrets that it came to know.

use serde_json::Value;

use crate::diag::Diagnostic;
use crate::model::secret::REDACTED;
use crate::model::{Secrets, TransactionEvent};

/// What stands in the place of a diff.
const NO_DIFF: &str = "the content holds a secret, so no difference is shown\n";

/// An event without secrets.
pub(super) fn event(secrets: &Secrets, event: &mut TransactionEvent) {
    if secrets.is_empty() {
        return;
    }
    let TransactionEvent { name, alias, requested_ensure, final_ensure, noop_message, .. } = &mut *event;
    for text in [name, alias, requested_ensure, final_ensure, noop_message] {
        secrets.veil_in(text);
    }
    for text in event.errors.iter_mut().chain(&mut event.changes).chain(&mut event.unmet_requirements).chain(&mut event.diff) {
        secrets.veil_in(text);
    }
    for result in &mut event.health_check {
        secrets.veil_in(&mut result.name);
        secrets.veil_in(&mut result.output);
    }
    secrets.veil_value(&mut event.properties);
    event.status.iter_mut().for_each(|status| secrets.veil_value(status));
}

/// An event whose digests of content can't be tried out. What a property says of its content is keyed wherever there is
/// a key; when the content `holds` a secret, so is every digest of the event, and without a key it is taken out.
pub(super) fn digests(holds: bool, conceal: Option<&(dyn Fn(&str) -> String + Send + Sync)>, event: &mut TransactionEvent) {
    if !holds && conceal.is_none() {
        return;
    }
    let texts = |value: &mut Value, all: bool| each_text(value, &mut |text| keyed(text, all, conceal));
    texts(&mut event.properties, holds);
    if holds {
        event.status.iter_mut().for_each(|status| texts(status, true));
        let TransactionEvent { errors, changes, noop_message, .. } = &mut *event;
        errors.iter_mut().chain(changes).chain([noop_message]).for_each(|text| keyed(text, true, conceal));
    }
}

fn each_text(value: &mut Value, work: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => work(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, work)),
        Value::Object(map) => map.values_mut().for_each(|item| each_text(item, work)),
        _ => {}
    }
}

/// Exchanges what looks like a SHA-256: everywhere, or only where it stands for content (see `resource::file::digest`).
fn keyed(text: &mut String, all: bool, conceal: Option<&(dyn Fn(&str) -> String + Send + Sync)>) {
    let mut rest = text.as_str();
    let mut made = String::new();
    while let Some((before, digest, after)) = next_digest(rest) {
        let label = before.strip_suffix(LABEL).filter(|_| all || after.starts_with(" ("));
        match (label, conceal) {
            (Some(before), Some(conceal)) => made.extend([before, "hmac-sha256:", &conceal(digest)]),
            (Some(before), None) => made.extend([before, REDACTED]),
            (None, Some(conceal)) if all => made.extend([before, &conceal(digest)]),
            (None, None) if all => made.extend([before, REDACTED]),
            (None, _) => made.extend([before, digest]),
        }
        rest = after;
    }
    if !made.is_empty() {
        made.push_str(rest);
        *text = made;
    }
}

const LABEL: &str = "sha256:";

/// The next run of exactly 64 digits of lower-case hex, with what is before and after it.
fn next_digest(text: &str) -> Option<(&str, &str, &str)> {
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let mut from = 0;
    while let Some(start) = text.get(from..)?.find(is_hex).map(|at| from + at) {
        let run = text.get(start..)?;
        let len = run.find(|c| !is_hex(c)).unwrap_or(run.len());
        if len == 64 {
            return Some((text.get(..start)?, run.get(..len)?, run.get(len..)?));
        }
        from = start + len;
    }
    None
}

/// Diagnostics without secrets.
pub(super) fn diagnostics(secrets: &Secrets, mut diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    if secrets.is_empty() {
        return diagnostics;
    }
    for Diagnostic { message, place, hint } in &mut diagnostics {
        secrets.veil_in(message);
        hint.iter_mut().for_each(|hint| secrets.veil_in(hint));
        // What a template rendered to has places too.
        place.iter_mut().for_each(|place| secrets.veil_in(&mut place.text));
    }
    diagnostics
}

/// A diff, unless one of the texts holds a secret: a part of it could still tell, and the text before may hold an older one.
pub(super) fn diff(secrets: &Secrets, before: &str, after: &str, diff: impl FnOnce() -> String) -> String {
    if secrets.hides(before) || secrets.hides(after) { NO_DIFF.to_owned() } else { diff() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_keyed_where_they_stand_for_content() {
        let digest = "ab".repeat(32);
        let conceal = |digest: &str| digest.replace("ab", "cd");
        let keyed_text = |text: &str, all: bool, with_key: bool| {
            let mut text = text.to_owned();
            keyed(&mut text, all, with_key.then_some(&conceal));
            text
        };
        let other = "cd".repeat(32);
        let content = format!("sha256:{digest} (6 bytes)");
        assert_eq!(keyed_text(&content, false, true), format!("hmac-sha256:{other} (6 bytes)"));
        assert_eq!(keyed_text(&content, true, false), "*** (6 bytes)");
        // What is no content is left alone, unless it may be of a secret.
        assert_eq!(keyed_text(&digest, false, true), digest);
        assert_eq!(keyed_text(&format!("is {digest}, was {digest}"), true, true), format!("is {other}, was {other}"));
        assert_eq!(keyed_text(&format!("{digest}0 abcdef"), true, true), format!("{digest}0 abcdef"));
        assert_eq!(keyed_text("ä sha256: nothing", true, true), "ä sha256: nothing");
    }
}
