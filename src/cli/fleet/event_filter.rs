//! The flags that narrow the events of the nodes.

use std::collections::BTreeSet;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use uuid::Uuid;

use crate::fleet::NodeStates;
use crate::model::NodeId;
use crate::transport::Message;
use crate::wire::subject::{EventKind, Subject};
use crate::wire::{Command, Envelope, Subjects, json};

use super::super::error::CliError;
use super::super::ui::Tone;
use super::event_text::{describe, subject_node};
use super::job_name::JobName;
use super::session::FleetSession;
use super::unknown_nodes::check_groups;

/// Age of the oldest event without another start.
const USUAL_AGE: SignedDuration = SignedDuration::from_hours(1);
/// Largest difference between the clock of an operator, which is in the id of a job, and the server's.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// The flags that narrow events. Each further one narrows the list more.
#[derive(Debug, Clone, Args)]
pub(super) struct EventFilterArgs {
    /// Only events of this kind. May be repeated, or several with commas.
    #[arg(long = "type", value_name = "KIND", value_delimiter = ',', value_parser = kinds())]
    kinds: Vec<EventKind>,
    /// Only events about a failure, a refusal, a failing health check or a flapping resource.
    #[arg(long)]
    failed: bool,
    /// Only events of this job: its id, its first characters, or @last.
    #[arg(long, value_name = "ID", hide_possible_values = true)]
    job: Option<JobName>,
    /// Only events of the nodes that are in this group now. May be repeated, or several with commas.
    #[arg(long, value_name = "GROUP", value_delimiter = ',', conflicts_with = "node")]
    group: Vec<String>,
}

fn kinds() -> impl TypedValueParser<Value = EventKind> {
    let names = PossibleValuesParser::new(EventKind::ALL.map(EventKind::as_str));
    names.try_map(|name| EventKind::from_token(&name).ok_or("unknown kind of event"))
}

impl EventFilterArgs {
    /// Finds the job and the nodes that the flags name.
    ///
    /// # Errors
    /// When the job is unknown, or a group has no node.
    pub(super) async fn resolve(&self, states: &NodeStates, session: &FleetSession) -> Result<EventFilter, CliError> {
        check_groups(&self.group, states)?;
        let is_member = |groups: &[String]| self.group.iter().any(|group| groups.contains(group));
        let members = || states.values().filter(|state| is_member(&state.groups)).map(|state| state.node.clone()).collect();
        let job = match &self.job {
            Some(job) => Some(job.resolve(session).await?),
            None => None,
        };
        Ok(EventFilter { kinds: self.kinds.clone(), failed: self.failed, job, nodes: (!self.group.is_empty()).then(members) })
    }
}

/// The events to show.
#[derive(Debug, Default)]
pub(super) struct EventFilter {
    /// The kinds; all when empty.
    kinds: Vec<EventKind>,
    failed: bool,
    job: Option<Uuid>,
    /// The nodes; all when `None`.
    nodes: Option<BTreeSet<NodeId>>,
}

/// The field of an event that names its job.
#[derive(Deserialize)]
struct JobField {
    /// The job of a run.
    run_id: Option<Uuid>,
    /// The refused command.
    id: Option<Uuid>,
}

impl EventFilter {
    /// True for a filter that leaves out events.
    pub(super) fn is_narrow(&self) -> bool {
        !self.kinds.is_empty() || self.failed || self.job.is_some() || self.nodes.is_some()
    }

    /// Returns the time of the oldest event where the user names none: that of the job, or an hour ago.
    pub(super) fn since(&self, now: Timestamp) -> Option<Timestamp> {
        let Some(job) = self.job else { return now.checked_sub(USUAL_AGE).ok() };
        let sent = i64::try_from(job.get_timestamp()?.to_unix().0).ok()?;
        Timestamp::from_second(sent).ok()?.checked_sub(MAX_CLOCK_SKEW).ok()
    }

    /// Describes the time since then.
    pub(super) fn usual_age(&self) -> &'static str {
        if self.job.is_some() { "the time since the job was sent" } else { "the last 1h" }
    }

    /// Returns the subject of the events. For a single node or kind, the server sends no other events.
    pub(super) fn subject(&self, node: Option<&NodeId>, subjects: &Subjects) -> Subject {
        match self.kinds.as_slice() {
            [kind] => subjects.events_of_kind(node, *kind),
            _ => subjects.events(node),
        }
    }

    /// True for an event to show.
    pub(super) fn includes(&self, message: &Message) -> bool {
        let token = message.subject.rsplit('.').next().unwrap_or_default();
        let kind = EventKind::from_token(token);
        let is_wanted_node = |nodes: &BTreeSet<NodeId>| subject_node(message).is_some_and(|node| nodes.contains(&node));
        (self.kinds.is_empty() || kind.is_some_and(|kind| self.kinds.contains(&kind)))
            && self.nodes.as_ref().is_none_or(is_wanted_node)
            && self.job.is_none_or(|job| job_of_event(kind, &message.payload) == Some(job))
            && (!self.failed || describe(token, &message.payload).0 == Tone::Error)
    }
}

/// Returns the job that an event is about.
fn job_of_event(kind: Option<EventKind>, payload: &[u8]) -> Option<Uuid> {
    if kind == Some(EventKind::Command) {
        let envelope = Envelope::parse(payload).ok()?;
        return json::read::<Command>(&envelope.payload).ok().map(|command| command.id);
    }
    let field: JobField = serde_json::from_slice(payload).ok()?;
    field.run_id.or(field.id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const JOB: &str = "0198c1f2-7a3b-7c4d-8e5f-102030405060";

    fn message(node: &str, kind: &str, payload: &serde_json::Value) -> Message {
        let subject = format!("ensign.v1.f.event.{node}.{kind}");
        Message { subject, payload: payload.to_string().into_bytes(), ..Message::default() }
    }

    #[test]
    fn each_flag_narrows_the_events() {
        let refused = json!({"protocol": "p", "event_id": JOB, "node": "web1", "timestamp": "2026-01-01T00:00:00Z",
            "code": "expired", "message": "m", "subject": "s", "digest": "", "id": JOB});
        let refused = message("web1", "refused", &refused);
        let stable = message("db1", "stable", &json!({"protocol": "p", "timestamp": "2026-01-01T00:00:00Z", "runs": {"a": 1}}));
        let both = |filter: EventFilter| (filter.includes(&refused), filter.includes(&stable));
        assert_eq!(both(EventFilter::default()), (true, true));
        assert_eq!(both(EventFilter { failed: true, ..EventFilter::default() }), (true, false));
        assert_eq!(both(EventFilter { kinds: vec![EventKind::Stable], ..EventFilter::default() }), (false, true));
        assert_eq!(both(EventFilter { job: JOB.parse().ok(), ..EventFilter::default() }), (true, false));
        assert_eq!(both(EventFilter { job: Some(Uuid::nil()), ..EventFilter::default() }), (false, false));
        let nodes = Some(BTreeSet::from(["db1".parse().unwrap()]));
        assert_eq!(both(EventFilter { nodes, failed: true, ..EventFilter::default() }), (false, false));
    }

    #[test]
    fn events_of_a_job_begin_with_the_job() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(EventFilter::default().since(now).unwrap().to_string(), "2026-01-01T23:00:00Z");
        let since = EventFilter { job: JOB.parse().ok(), ..EventFilter::default() }.since(now).unwrap();
        assert_eq!(since.to_string(), "2025-08-19T10:44:10Z");
        let subjects = Subjects::new("f");
        let one = EventFilter { kinds: vec![EventKind::Run], ..EventFilter::default() };
        assert_eq!(one.subject(None, &subjects).as_str(), "ensign.v1.f.event.*.run");
        assert_eq!(EventFilter::default().subject(None, &subjects).as_str(), "ensign.v1.f.event.>");
    }
}
