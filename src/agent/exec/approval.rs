//! Dry runs and their approval: what one would change goes into its result, and so into the ledger; a command that approves
//! one is run only where a dry run right before it comes to the same.
//!
//! In: the events of a dry run, from `work.rs`. Out: the plan of the result, or why it does not hold any more.

use crate::model::TransactionEvent;
use crate::wire::plan::{PlanBuilder, action_digest};
use crate::wire::report::PlannedChanges;

use crate::agent::exec::context::RunContext;
use crate::agent::exec::job::Job;

/// Collects what a dry run would change.
pub(in crate::agent) struct PlanRecorder(PlanBuilder);

impl PlanRecorder {
    pub(in crate::agent) fn of(job: &Job) -> Self {
        Self(PlanBuilder::new(job.manifest().map_or("", |manifest| manifest.sha256.as_str())))
    }

    pub(in crate::agent) fn record(&mut self, event: &TransactionEvent) {
        if event.changed || event.refreshed {
            // Without secrets and content, as everything in an event; the content is there by its digest.
            self.0.change(&event.label(), &words(event), &event.properties.to_string(), event.diff.as_deref());
        }
    }

    pub(in crate::agent) fn planned(self, job: &Job) -> PlannedChanges {
        self.0.build(&job.command.action)
    }
}

/// What would be done, in words: `installed version 1.24`, `updated: content, mode 0600 → 0644`.
fn words(event: &TransactionEvent) -> String {
    let done = event.noop_message.strip_prefix("Would have ").unwrap_or(&event.noop_message);
    // The Go system calls a new content of a file that is there "created" too.
    let updated = done.strip_prefix("created ").filter(|_| event.final_ensure == event.requested_ensure);
    let updated = updated.map(|what| format!("updated {what}"));
    let done = updated.as_deref().unwrap_or(done);
    let details = event.changes.join(", ");
    match (done, details.as_str()) {
        ("", details) => details.to_owned(),
        (done, "") => done.to_owned(),
        (done, details) if done.contains(details) => done.to_owned(),
        (done, details) => format!("{done}: {details}"),
    }
}

/// The plan that a command approves, when it approves one.
///
/// # Errors
/// When this node made no such plan, or made it of something else; in words.
pub(in crate::agent) fn approved_plan(node: &RunContext, job: &Job) -> Result<Option<PlannedChanges>, String> {
    let Some(id) = job.command.options.approves else { return Ok(None) };
    let Some(done) = node.durable.result(id) else {
        return Err(format!("this node knows no dry run {id}: it was not asked, has not answered, or it is too long ago"));
    };
    match done.plan {
        None => Err(format!("this node has no plan of {id}: it was not a dry run, or could not be planned")),
        Some(plan) if plan.action != action_digest(&job.command.action) => {
            Err(format!("the dry run {id} was of something else than this command asks for"))
        }
        Some(plan) => Ok(Some(plan)),
    }
}
