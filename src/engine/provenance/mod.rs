//! Provenance of properties: the values that their templates have used, and the consequences.
//!
//! An unsigned value of the bus may shape only properties that a type declares as content. A secret may shape no identity.
//! Values that a discreet run has read stay out of its errors and events.

use serde_json::Value;

use crate::diag::Diagnostic;
use crate::model::TransactionEvent;
use crate::model::secret::REDACTED;
use crate::resource::{ParsedResource, ResourceType};
use crate::template::{Scope, ValueUses};

/// Replacement for an error that could repeat a value that was read.
pub(super) const WITHHELD: &str =
    "the resource failed; the reason is hidden, as it could show values that templates read on this node or from the bus";
/// Shortest line of content, in bytes, that is recognised in an error.
const MIN_LINE: usize = 4;
/// Properties that name a resource, and that every reader of events sees.
const IDENTITY: &[&str] = &["name", "alias", "ensure"];

/// A property made of a value that may not shape it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProvenanceError {
    /// Any user of the server could set the value.
    #[error("{0} is made of a value from the bus that has no signature; unsigned values may shape only content")]
    Bus(String),
    /// Every reader of events would see the value.
    #[error("{0} is made of a secret, and every reader of events sees it")]
    Secret(String),
}

impl ProvenanceError {
    /// Returns the hint for the error.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::Bus(_) => {
                "sign the value with \"ensign kv put\", or set bus_data = \"any\" in [limits] of the node if its server decides \
                 what the node does"
            }
            Self::Secret(_) => "use the secret in content or in an environment",
        }
    }

    /// Returns the text of the error in a run.
    pub(super) fn message(&self) -> String {
        format!("{self}; {}", self.hint())
    }
}

/// The properties of a resource that are made of read values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Provenance {
    /// The properties that the type declares as content.
    content: Vec<String>,
    /// All other properties.
    other: Vec<String>,
    /// The origins of the resource's own data, if it has data.
    pub(super) used: ValueUses,
}

impl Provenance {
    /// Records the values that the templates of a property have used.
    ///
    /// # Errors
    /// When the property may not be made of such a value.
    pub(super) fn record(
        &mut self,
        kind: &dyn ResourceType,
        key: &str,
        value: &Value,
        used: ValueUses,
        scope: &Scope,
    ) -> Result<(), ProvenanceError> {
        let secrets = scope.secrets();
        let is_content = kind.is_content(key);
        if used.bus && !is_content {
            return Err(ProvenanceError::Bus(key.to_owned()));
        }
        // A person at the host sees the value redacted.
        if scope.hides_values()
            && IDENTITY.contains(&key)
            && (used.secret || (!secrets.is_empty() && secrets.value_contains_secret(value)))
        {
            return Err(ProvenanceError::Secret(key.to_owned()));
        }
        if used.read {
            let keys = if is_content { &mut self.content } else { &mut self.other };
            keys.push(key.to_owned());
        }
        self.used = self.used.union(used);
        Ok(())
    }

    /// Returns the provenance of a resource that a template with read values rendered completely.
    pub(super) fn of_rendered_resource() -> Self {
        Self { other: vec![String::new()], ..Self::default() }
    }

    /// Adds the provenance of runtime templates.
    pub(super) fn extend(&mut self, late: Self) {
        self.content.extend(late.content);
        self.other.extend(late.other);
        self.used = self.used.union(late.used);
    }

    /// Returns true when a property other than content is made of read values.
    pub(super) fn must_withhold(&self) -> bool {
        !self.other.is_empty()
    }

    /// Returns a diagnostic, without its reason when the reason could repeat a read value.
    pub(super) fn withhold(&self, diagnostic: Diagnostic) -> Diagnostic {
        if self.must_withhold() || !self.content.is_empty() { withheld(diagnostic) } else { diagnostic }
    }

    /// Removes read values from an event. `decoded` has the current properties.
    pub(super) fn redact_event(&self, event: &mut TransactionEvent, decoded: &dyn ParsedResource) {
        for key in &self.other {
            if let Some(value) = event.properties.get_mut(key).filter(|_| !IDENTITY.contains(&key.as_str())) {
                *value = Value::String(REDACTED.to_owned());
            }
        }
        let checks = self.other.iter().any(|key| key == "health_checks");
        for result in event.health_check.iter_mut().filter(|_| checks) {
            REDACTED.clone_into(&mut result.name);
            REDACTED.clone_into(&mut result.output);
        }
        let shows = |text: &str| {
            let line_in = |value: &Value| {
                let lines = value.as_str().into_iter().flat_map(str::lines).map(str::trim);
                lines.filter(|line| line.len() >= MIN_LINE).any(|line| text.contains(line))
            };
            self.must_withhold()
                || decoded.matches(&|properties| self.content.iter().filter_map(|key| properties.get(key)).any(line_in))
        };
        for error in event.errors.iter_mut().filter(|error| shows(error)) {
            WITHHELD.clone_into(error);
        }
        if self.must_withhold() {
            event.changes.iter_mut().for_each(|change| REDACTED.clone_into(change));
            event.diff = event.diff.take().map(|_| REDACTED.to_owned());
            event.status = None;
            if !event.noop_message.is_empty() {
                REDACTED.clone_into(&mut event.noop_message);
            }
        }
    }
}

/// Returns a diagnostic with the same place and without the reason.
pub(super) fn withheld(diagnostic: Diagnostic) -> Diagnostic {
    let place = diagnostic.place.map(|mut place| {
        place.text.clear();
        place
    });
    Diagnostic::new(WITHHELD).at(place)
}

#[cfg(test)]
mod tests;
