//! Redaction of everything that leaves a run: the secrets that the run has read are removed.

use std::collections::HashSet;

use serde_json::Value;

use crate::diag::Diagnostic;
use crate::model::secret::REDACTED;
use crate::model::{Secrets, TransactionEvent};

/// Replacement for a diff.
const NO_DIFF: &str = "the content holds a secret, so no difference is shown\n";

/// Redacts the secrets in an event.
pub(super) fn event(secrets: &Secrets, event: &mut TransactionEvent) {
    if secrets.redacts_nothing() {
        return;
    }
    let TransactionEvent { name, alias, requested_ensure, final_ensure, unmet_requirements, pending_refreshes, .. } = &mut *event;
    let references = unmet_requirements.iter_mut().chain(pending_refreshes);
    for text in [name, alias, requested_ensure, final_ensure].into_iter().chain(references) {
        secrets.redact_in(text);
    }
    let outputs = event.errors.iter_mut().chain(&mut event.changes).chain(&mut event.diff);
    outputs.chain([&mut event.noop_message]).for_each(|text| secrets.redact_output_in(text));
    for result in &mut event.health_check {
        secrets.redact_in(&mut result.name);
        secrets.redact_output_in(&mut result.output);
    }
    secrets.redact_value(&mut event.properties);
    event.status.iter_mut().for_each(|status| secrets.redact_value(status));
    // Fixed texts of the program and the name are not redacted.
    let own = |key: &String| ["timestamp", "protocol", "type", "name", "ensure"].contains(&key.as_str());
    let status = event.status.iter_mut().filter_map(Value::as_object_mut).flatten();
    status.filter(|(key, _)| !own(key)).for_each(|(_, value)| secrets.redact_output_value(value));
}

/// Maps a digest to a keyed one; see [`super::settings::RunSettings::pseudonymize`].
type DigestKeying<'a> = Option<&'a (dyn Fn(&str) -> String + Send + Sync)>;

/// Protects the digests of content in an event against guesses of the content. With a key, a keyed digest replaces the digest of
/// a content property, with all its copies in the event. When the properties hold a secret, all digests are replaced. Without a
/// key those digests are removed.
pub(super) fn digests(holds: bool, conceal: DigestKeying<'_>, event: &mut TransactionEvent) {
    if !holds && conceal.is_none() {
        return;
    }
    let mut content = HashSet::new();
    each_text(&mut event.properties, &mut |text| content.extend(content_digest(text).map(str::to_owned)));
    let is = |digest: &str| holds || content.contains(digest);
    each_text(&mut event.properties, &mut |text| replace_digests(text, &is, conceal));
    event.status.iter_mut().for_each(|status| each_text(status, &mut |text| replace_digests(text, &is, conceal)));
    let TransactionEvent { errors, changes, noop_message, .. } = event;
    errors.iter_mut().chain(changes).chain([noop_message]).for_each(|text| replace_digests(text, &is, conceal));
}

/// Returns the digest in the text that replaces content: `sha256:... (n bytes)`, see `resource::file::digest`.
fn content_digest(text: &str) -> Option<&str> {
    let (before, digest, after) = next_digest(text)?;
    (before == LABEL && after.starts_with(" (")).then_some(digest)
}

fn each_text(value: &mut Value, work: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => work(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, work)),
        Value::Object(map) => map.values_mut().for_each(|item| each_text(item, work)),
        _ => {}
    }
}

/// Replaces every digest for which `is` is true.
fn replace_digests(text: &mut String, is: &dyn Fn(&str) -> bool, conceal: DigestKeying<'_>) {
    let mut rest = text.as_str();
    let mut made = String::new();
    while let Some((before, digest, after)) = next_digest(rest) {
        match (is(digest), conceal) {
            (false, _) => made.extend([before, digest]),
            (true, None) => made.extend([before.strip_suffix(LABEL).unwrap_or(before), REDACTED]),
            (true, Some(conceal)) => match before.strip_suffix(LABEL) {
                Some(before) => made.extend([before, "hmac-sha256:", &conceal(digest)]),
                None => made.extend([before, &conceal(digest)]),
            },
        }
        rest = after;
    }
    if !made.is_empty() {
        made.push_str(rest);
        *text = made;
    }
}

const LABEL: &str = "sha256:";

/// Returns the next run of exactly 64 digits of lower-case hex, with the text before and after it.
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

/// Redacts the secrets in diagnostics.
pub(super) fn diagnostics(secrets: &Secrets, mut diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    if secrets.redacts_nothing() {
        return diagnostics;
    }
    for Diagnostic { message, place, hint } in &mut diagnostics {
        secrets.redact_output_in(message);
        hint.iter_mut().for_each(|hint| secrets.redact_output_in(hint));
        // The place in a rendered template has text too.
        place.iter_mut().for_each(|place| secrets.redact_output_in(&mut place.text));
    }
    diagnostics
}

/// Returns a diff, unless one of the texts holds a secret. A part of a secret could still identify it, and the earlier text
/// may hold an older secret.
pub(super) fn diff(secrets: &Secrets, before: &str, after: &str, diff: impl FnOnce() -> String) -> String {
    if secrets.contains_secret(before) || secrets.contains_secret(after) { NO_DIFF.to_owned() } else { diff() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_keyed_where_they_stand_for_content() {
        let (digest, other) = ("ab".repeat(32), "cd".repeat(32));
        let conceal = |digest: &str| digest.replace("ab", "cd");
        let keyed_text = |text: &str, is: bool, with_key: bool| {
            let mut text = text.to_owned();
            replace_digests(&mut text, &|_| is, with_key.then_some(&conceal));
            text
        };
        let content = format!("sha256:{digest} (6 bytes)");
        assert_eq!(content_digest(&content), Some(digest.as_str()));
        assert_eq!(content_digest(&digest), None);
        assert_eq!(keyed_text(&content, true, true), format!("hmac-sha256:{other} (6 bytes)"));
        assert_eq!(keyed_text(&content, true, false), "*** (6 bytes)");
        assert_eq!(keyed_text(&content, false, true), content);
        assert_eq!(keyed_text(&format!("is {digest}, was {digest}"), true, true), format!("is {other}, was {other}"));
        assert_eq!(keyed_text(&format!("{digest}0 abcdef"), true, true), format!("{digest}0 abcdef"));
        assert_eq!(keyed_text("ä sha256: nothing", true, true), "ä sha256: nothing");
    }
}
