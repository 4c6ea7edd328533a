//! What leaves a run is shown without the secrets that it came to know.

use crate::diag::Diagnostic;
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
