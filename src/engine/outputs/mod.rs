//! Outputs: values of a resource that ran, for the templates of later resources in the same run.
//!
//! Templates in properties and in the control of a resource are resolved when the resource runs. In a dry run, a resource that
//! would change has no outputs yet: the resources that use them stay unresolved.

use serde_json::{Map, Value};

use crate::model::{Secrets, TransactionEvent};
use crate::template::{Scope, TemplateError};

use super::converge::{Abort, ResourceRun};
use super::run_outputs::LastOutputs;

impl ResourceRun<'_> {
    /// Returns the scope of the templates that are resolved when the resource runs.
    pub(super) fn late_scope(&self) -> Scope {
        let scope = &self.plan.scope;
        if self.planned.received.is_empty() { scope.clone() } else { scope.with_outputs(self.outputs.table(self.planned)) }
    }

    /// Returns the end of a resource whose template could not be resolved.
    pub(super) fn unresolved(&self, property: &str, label: &str, error: &TemplateError) -> Abort {
        if self.settings.noop
            && let Some(sender) = self.outputs.predicted(self.planned, property)
        {
            return Abort::Unresolved { property: property.to_owned(), sender };
        }
        Abort::Failed(format!("{label}{}", self.plan.template_error(self.planned, property, error)))
    }

    /// Returns true when the outputs of the resource are kept.
    pub(super) fn has_receivers(&self) -> bool {
        !self.outputs.used_names(self.planned).is_empty()
    }

    /// Records the outputs of the resource after its event.
    pub(super) fn record_outputs(&self, event: &TransactionEvent) {
        let names = self.outputs.used_names(self.planned);
        if names.is_empty() {
            return;
        }
        let uses = self.planned.provenance.used.union(self.late.borrow().used);
        let values = self.produced.take();
        if let Some(values) = &values {
            hide_secrets(values, self.plan.secrets());
        }
        let outputs = LastOutputs::from_event(event, values, uses);
        names.into_iter().for_each(|name| self.outputs.record(name, &outputs));
    }
}

/// Makes every output that contains a redacted text a secret: an output of a program may repeat its variables.
fn hide_secrets(values: &Map<String, Value>, secrets: &Secrets) {
    if secrets.redacts_nothing() {
        return;
    }
    let texts = values.values().filter(|value| value.as_str().is_some_and(|text| secrets.redact_output(text) != text));
    texts.for_each(|value| secrets.add_derived(value));
}

#[cfg(test)]
mod tests;
