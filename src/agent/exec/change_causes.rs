//! The reasons for changes, drift or intention, and the failing resources with the time of their first failure.
//!
//! A change is corrective when an earlier run of the channel converged the resource with the same properties. Every other
//! change is intentional: by a command, by a new assignment, by other facts or data.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use jiff::Timestamp;

use crate::diag::error_chain;
use crate::model::event::ChangeCause;
use crate::model::{ResourceOutcome, TransactionEvent};
use crate::store::Convergence;
use crate::wire::command::Action;
use crate::wire::digest;
use crate::wire::report::FailingResource;

use crate::agent::status::board::MAX_FAILING;

use super::context::RunContext;
use super::job::{Job, JobKind};
use super::result::truncate_error;

/// Characters of a digest of properties: enough to tell two versions of one resource apart.
const DIGEST_LENGTH: usize = 16;

/// Finds the reasons of the changes of one run.
#[derive(Debug, Default)]
pub(in crate::agent) struct ChangeCauses {
    /// The state directory and the channel; none for a command.
    channel: Option<(PathBuf, String)>,
    previous: Convergence,
    current: Convergence,
    /// The first resources that failed in this run.
    failing: Vec<FailingResource>,
    /// The resources that ran.
    ran: BTreeSet<String>,
    corrective: u64,
    /// True for a noop run of a command or an observation of health checks: neither records anything about resources.
    is_passive: bool,
}

impl ChangeCauses {
    pub(in crate::agent) fn for_job(context: &RunContext, job: &Job) -> Self {
        let idle = job.kind == JobKind::HealthCheck || job.noop;
        let assigned = matches!(job.command.action, Action::Assign(_)) && !idle;
        let Some(channel) = job.command.channel.as_ref().filter(|_| assigned) else {
            let since = |failing: &FailingResource| (failing.resource.clone(), failing.since);
            let failing = context.status.read(|snapshot| snapshot.failing.get("").map(|all| all.iter().map(since).collect()));
            let previous = Convergence { failing: failing.unwrap_or_default(), ..Convergence::default() };
            return Self { previous, is_passive: idle, ..Self::default() };
        };
        let state_dir = context.settings.now().state_dir.clone();
        let previous = Convergence::read(&state_dir, &channel.name);
        Self { channel: Some((state_dir, channel.name.clone())), previous, ..Self::default() }
    }

    /// Records an event, and adds the reason of its change.
    pub(in crate::agent) fn record(&mut self, event: &mut TransactionEvent, at: Timestamp) {
        let label = event.label();
        let mut wanted = String::new();
        if self.channel.is_some() {
            wanted = digest(event.properties.to_string().as_bytes());
            wanted.truncate(DIGEST_LENGTH);
        }
        let known = self.previous.wanted.get(&label);
        let outcome = event.outcome();
        // Where the policy lets a run only observe the resource, nothing was changed.
        let is_observed = event.noop && !self.is_passive;
        if (outcome == ResourceOutcome::Changed || (event.changed && event.failed)) && !is_observed {
            let is_drift = known == Some(&wanted);
            event.change_cause = Some(if is_drift { ChangeCause::Corrective } else { ChangeCause::Intentional });
            self.corrective += u64::from(is_drift);
        }
        if self.is_passive {
            return;
        }
        self.ran.insert(label.clone());
        if outcome == ResourceOutcome::Failed {
            let since = self.previous.failing.get(&label).copied().unwrap_or(at);
            self.current.failing.insert(label.clone(), since);
            if self.failing.len() < MAX_FAILING {
                let channel = self.channel.as_ref().map(|(_, channel)| channel.clone());
                let error = truncate_error(event.errors.join("; "));
                self.failing.push(FailingResource { resource: label.clone(), channel, error, since });
            }
        }
        if self.channel.is_some() {
            let is_as_wanted = matches!(outcome, ResourceOutcome::Stable | ResourceOutcome::Changed | ResourceOutcome::Refreshed)
                && !(event.noop && event.changed);
            if let Some(wanted) = Some(wanted).filter(|_| is_as_wanted).or_else(|| known.cloned()) {
                self.current.wanted.insert(label, wanted);
            }
        }
    }

    /// Stores the records for the next run and for the node state. Returns the number of corrective changes. A run of a part,
    /// or one that did not finish, changes nothing about the other resources.
    pub(in crate::agent) fn finish(mut self, context: &RunContext, whole: bool) -> u64 {
        if self.is_passive {
            return self.corrective;
        }
        if !whole {
            carry_over(&mut self.current.wanted, &self.previous.wanted, &self.ran);
            carry_over(&mut self.current.failing, &self.previous.failing, &self.ran);
        }
        if let Some((state_dir, channel)) = &self.channel
            && self.current != self.previous
            && let Err(error) = self.current.write(state_dir, channel)
        {
            tracing::warn!(
                channel,
                "cannot write the convergence records, so that drift counts as intention after the next start: {}",
                error_chain(&error)
            );
        }
        let origin = self.channel.map(|(_, channel)| channel).unwrap_or_default();
        context.status.change(|snapshot| {
            let before = snapshot.failing.remove(&origin).filter(|_| !whole).unwrap_or_default();
            self.failing.extend(before.into_iter().filter(|failing| !self.ran.contains(&failing.resource)));
            self.failing.truncate(MAX_FAILING);
            snapshot.failing.insert(origin, self.failing);
        });
        self.corrective
    }
}

fn carry_over<T: Clone>(to: &mut BTreeMap<String, T>, from: &BTreeMap<String, T>, ran: &BTreeSet<String>) {
    for (label, value) in from.iter().filter(|(label, _)| !ran.contains(*label)) {
        to.entry(label.clone()).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(name: &str, mode: &str, changed: bool, failed: bool) -> TransactionEvent {
        serde_json::from_value(json!({
            "protocol": "p", "event_id": uuid::Uuid::nil(), "timestamp": "2026-01-01T00:00:00Z", "type": "file", "provider": "posix",
            "name": name, "requested_ensure": "present", "final_ensure": "present", "duration": 1,
            "properties": {"name": name, "mode": mode}, "status": null, "error": if failed { vec!["no space"] } else { vec![] },
            "changed": changed, "refreshed": false, "failed": failed, "skipped": false, "noop": false, "unmet_requirements": [],
        }))
        .unwrap()
    }

    fn channel(before: Convergence) -> ChangeCauses {
        ChangeCauses { channel: Some((PathBuf::from("/none"), "base".to_owned())), previous: before, ..ChangeCauses::default() }
    }

    #[test]
    fn drift_is_a_change_of_what_was_as_wanted() {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let cause = |causes: &mut ChangeCauses, name: &str, mode: &str, changed, failed| {
            let mut event = event(name, mode, changed, failed);
            causes.record(&mut event, at);
            event.change_cause
        };
        let (intentional, corrective) = (Some(ChangeCause::Intentional), Some(ChangeCause::Corrective));
        let mut first = channel(Convergence::default());
        assert_eq!(cause(&mut first, "/new", "0644", true, false), intentional);
        assert_eq!(cause(&mut first, "/same", "0644", false, false), None);
        assert_eq!(cause(&mut first, "/bad", "0644", false, true), None);
        let mut second = channel(first.current);
        assert_eq!(cause(&mut second, "/new", "0644", true, false), corrective);
        assert_eq!(cause(&mut second, "/same", "0600", true, false), intentional, "other properties");
        assert_eq!(cause(&mut second, "/bad", "0644", true, false), intentional, "it never converged");
        assert_eq!(second.corrective, 1);
        // A failed repair does not turn drift into intention.
        let mut third = channel(second.current);
        assert_eq!(cause(&mut third, "/new", "0644", false, true), None);
        let mut fourth = channel(third.current);
        assert_eq!(cause(&mut fourth, "/new", "0644", true, false), corrective);
        // Commands ask for what they change.
        assert_eq!(cause(&mut ChangeCauses::default(), "/new", "0644", true, false), intentional);
    }

    #[test]
    fn a_failure_keeps_its_beginning_and_the_first_ones_are_named() {
        let times: Vec<Timestamp> = (0..2).map(|hour| format!("2026-01-01T0{hour}:00:00Z").parse().unwrap()).collect();
        let mut first = channel(Convergence::default());
        first.record(&mut event("/bad", "0644", false, true), times[0]);
        let mut second = channel(first.current);
        (0..7).for_each(|number| second.record(&mut event(&format!("/{number}"), "0644", false, true), times[1]));
        second.record(&mut event("/bad", "0644", false, true), times[1]);
        assert_eq!((second.failing.len(), second.current.failing.len()), (MAX_FAILING, 8));
        assert_eq!(second.current.failing["file#/bad"], times[0]);
        assert_eq!((second.failing[0].resource.as_str(), second.failing[0].error.as_str()), ("file#/0", "no space"));
    }
}
