//! Noop runs and their approval. The planned changes of a noop run go into its result, and so into the ledger. A command
//! that approves them runs only if a noop run right before finds the same changes.
//!
//! In: the events of a noop run, from `event_sink.rs`. Out: the plan of the result, or the reason why it no longer applies.

use crate::model::TransactionEvent;
use crate::wire::plan::{PlanBuilder, action_digest};
use crate::wire::report::PlannedChanges;

use crate::agent::exec::context::RunContext;
use crate::agent::exec::job::Job;

/// Collects the changes that a noop run would make.
pub(in crate::agent) struct PlanRecorder(PlanBuilder);

impl PlanRecorder {
    pub(in crate::agent) fn for_job(job: &Job) -> Self {
        Self(PlanBuilder::new(job.manifest().map_or("", |manifest| manifest.sha256.as_str())))
    }

    pub(in crate::agent) fn record(&mut self, event: &TransactionEvent) {
        if event.changed || event.refreshed {
            // Without secrets and content, as everything in an event. The digest of the content is included.
            self.0.change(&event.label(), &describe(event), &event.properties.to_string(), event.diff.as_deref());
        }
    }

    pub(in crate::agent) fn into_plan(self, job: &Job) -> PlannedChanges {
        self.0.build(&job.command.action)
    }
}

/// Returns a planned change as text: `installed version 1.24`, `updated: content, mode 0600 → 0644`.
fn describe(event: &TransactionEvent) -> String {
    let done = event.noop_message.strip_prefix("Would have ").unwrap_or(&event.noop_message);
    // The Go system says "created" also for new content of an existing file.
    let updated = done.strip_prefix("created ").filter(|_| event.final_ensure == event.requested_ensure);
    let updated = updated.map(|what| format!("updated {what}"));
    let done = updated.as_deref().unwrap_or(done);
    let details = event.changes.join(", ");
    let change = match (done, details.as_str()) {
        ("", details) => details.to_owned(),
        (done, "") => done.to_owned(),
        (done, details) if done.contains(details) => done.to_owned(),
        (done, details) => format!("{done}: {details}"),
    };
    match event.pending_refreshes.as_slice() {
        [] => change,
        after => format!("{change} (pending refresh after {})", after.join(", ")),
    }
}

/// Returns the plan that a command approves, if it approves one.
///
/// # Errors
/// When this node has no such plan, or has a plan of something else.
pub(in crate::agent) fn approved_plan(context: &RunContext, job: &Job) -> Result<Option<PlannedChanges>, String> {
    let Some(id) = job.command.options.approves else { return Ok(None) };
    let Some(done) = context.durable.result(id) else {
        return Err(format!("this node has no dry run {id}: the node was not asked, did not answer, or has forgotten it"));
    };
    match done.plan {
        None => Err(format!("this node has no plan of {id}: the command was no dry run, or could not be planned")),
        Some(plan) if plan.action != action_digest(&job.command.action) => {
            Err(format!("the dry run {id} was of another manifest or resource than this command"))
        }
        Some(plan) => Ok(Some(plan)),
    }
}
