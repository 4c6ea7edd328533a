//! The `healthcheck` command: observes the health checks of the active assignments.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use crate::agent::identity::AgentInstance;
use crate::agent::reconcile::desired_state::{Assignment, DesiredState};
use crate::agent::status::board::StatusBoard;
use crate::manifest::ManifestText;
use crate::wire::CommandOutcome;
use crate::wire::command::Healthcheck;
use crate::wire::report::HealthReport;

use super::fetch::ManifestFetcher;
use super::job::Job;
use super::result::RunResult;

/// Finds the active assignments and their manifests.
pub(in crate::agent) struct HealthChecks {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
    pub(in crate::agent) fetcher: ManifestFetcher,
}

impl HealthChecks {
    /// Returns the active assignments, in the order in which they are applied; of one channel when `wanted` names it.
    pub(super) fn assignments(&self, wanted: &Healthcheck) -> Vec<Arc<Assignment>> {
        let names: Vec<String> =
            self.status.read(|snapshot| snapshot.assignments.iter().map(|state| state.channel.clone()).collect());
        let is_wanted = |name: &&String| wanted.channel.as_ref().is_none_or(|wanted| wanted == *name);
        let settings = self.fetcher.settings.now();
        let in_force = |name: &String| {
            let channel = self.desired_state.channel(name);
            channel.filter(|channel| channel.targets_node(&settings) && channel.state.is_selected())?.good.clone()
        };
        names.iter().filter(is_wanted).filter_map(in_force).collect()
    }

    /// Returns the manifest of an assignment.
    pub(super) async fn manifest(&self, assignment: &Assignment, until: Instant) -> Result<ManifestText, Box<RunResult>> {
        match assignment.assign() {
            Some(assign) => self.fetcher.assigned_manifest(&assign.manifest, until).await,
            None => Err(Box::new(RunResult::failed("nothing is assigned"))),
        }
    }

    /// Returns the health check of an assignment as a job.
    pub(super) fn job(&self, assignment: &Assignment) -> Job {
        Job::reconcile(&assignment.command, self.identity.host.new_id()).health_check()
    }
}

/// Returns the answer to the command: a list of [`HealthReport`].
pub(super) fn answer(checked: Vec<(Arc<Assignment>, RunResult)>, wanted: &Healthcheck) -> RunResult {
    if checked.is_empty() {
        return match &wanted.channel {
            None => RunResult::answered(Value::Array(Vec::new())).replace_reason("nothing is assigned to this node"),
            Some(channel) => RunResult::failed(format!("nothing is assigned to this node in the channel {channel}")),
        };
    }
    let (mut reports, mut wrong) = (Vec::new(), Vec::new());
    let mut outcome = CommandOutcome::Stable;
    for (assignment, result) in checked {
        let channel = assignment.command.channel.as_ref().map_or_else(String::new, |channel| channel.name.clone());
        if result.is_interrupted() {
            return result;
        }
        if result.is_failed() {
            outcome = CommandOutcome::Failed;
            wrong.extend(Some(result.reason()).filter(|why| !why.is_empty()).map(|why| format!("{channel}: {why}")));
        }
        reports.extend(result.checked.into_iter().map(|report| HealthReport { channel: channel.clone(), ..report }));
    }
    wrong.extend(reports.iter().filter(|report| report.result.status.severity() > 0).map(|report| {
        format!("{} {} is {}: {}", report.resource, report.result.name, report.result.status.as_str(), report.result.output)
    }));
    let answer = serde_json::to_value(&reports).unwrap_or_default();
    let result = RunResult::answered(answer).replace_outcome(outcome);
    if wrong.is_empty() { result } else { result.replace_reason(wrong.join("; ")) }
}
