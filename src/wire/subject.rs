//! Every subject of a fleet. No other module builds subjects, except `registration.rs` for those of the Go system.

use std::fmt;

use uuid::Uuid;

use crate::model::NodeId;

use super::command::{Command, Selector};

/// The first two tokens of every subject: program and protocol version.
pub const PREFIX: &str = "ensign.v1";

/// A subject to publish on, or a filter to subscribe with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject(String);

impl Subject {
    pub(super) fn from_text(text: String) -> Self {
        Self(text)
    }

    /// Returns the subject as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kinds of events a node publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A `TransactionEvent`.
    Transaction,
    /// An `ApplyState`.
    Run,
    /// An `ApplyState` of health checks alone with a warning or worse.
    Health,
    /// A count of runs that found everything as wanted.
    Stable,
    /// A report of an agent about itself.
    Lifecycle,
    /// A command was refused.
    Refused,
    /// The envelope of a command that was accepted from a file: no stream of the fleet has this command.
    Command,
}

impl EventKind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Transaction, Self::Run, Self::Health, Self::Stable, Self::Lifecycle, Self::Refused, Self::Command];

    /// Parses the last token of a subject.
    pub fn from_token(token: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == token)
    }

    /// Returns the last token of the subject.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transaction => "transaction",
            Self::Run => "run",
            Self::Health => "health",
            Self::Stable => "stable",
            Self::Lifecycle => "lifecycle",
            Self::Refused => "refused",
            Self::Command => "command",
        }
    }
}

/// The stages of a job that a node reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportStage {
    /// An acknowledgement.
    Ack,
    /// A result.
    Done,
}

impl ReportStage {
    /// Returns the last token of the subject.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Done => "done",
        }
    }
}

/// The parts of the subject of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// `...cmd.<action>.node.<id>`
    Node(String),
    /// `...cmd.<action>.group.<name>`
    Group(String),
    /// `...cmd.<action>.all`
    All,
    /// `...desired.<channel>`, or the form that the server republishes.
    Desired(String),
}

/// The subjects of one fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subjects {
    fleet: String,
}

impl Subjects {
    /// Creates the subjects of a fleet. The name must be a single token (`config` and `trust` check this).
    pub fn new(fleet: impl Into<String>) -> Self {
        Self { fleet: fleet.into() }
    }

    /// Returns the name of the fleet.
    pub fn fleet(&self) -> &str {
        &self.fleet
    }

    fn subject(&self, rest: fmt::Arguments<'_>) -> Subject {
        Subject(format!("{PREFIX}.{}.{rest}", self.fleet))
    }

    /// Returns the subjects on which a command is published: each named node, each group, or all nodes. Patterns and
    /// combinations go to all nodes. An assignment has only the subject of its channel.
    pub fn command(&self, command: &Command) -> Vec<Subject> {
        let action = command.action.name();
        match command.to.selector() {
            _ if command.action.is_desired_state() => command.channel.iter().map(|channel| self.desired(&channel.name)).collect(),
            Some(Selector::Nodes(nodes)) => {
                nodes.iter().map(|node| self.subject(format_args!("cmd.{action}.node.{node}"))).collect()
            }
            Some(Selector::Groups(groups)) => {
                groups.iter().map(|group| self.subject(format_args!("cmd.{action}.group.{group}"))).collect()
            }
            // Every node hears the command, and a node outside of the target ignores it.
            Some(Selector::All | Selector::Mixed) => vec![self.subject(format_args!("cmd.{action}.all"))],
            None => vec![],
        }
    }

    /// Returns the subject of the assignment of a channel: one message, the latest.
    pub fn desired(&self, channel: &str) -> Subject {
        self.subject(format_args!("desired.{channel}"))
    }

    /// Returns the assignments of every channel.
    pub fn all_desired(&self) -> Subject {
        self.subject(format_args!("desired.*"))
    }

    /// Returns the subject on which the server passes on stored assignments to online nodes.
    pub fn live_desired(&self) -> Subject {
        self.subject(format_args!("live.desired.*"))
    }

    /// Returns the subjects before and after republishing, as in `republish` of a stream (NATS ADR-28).
    pub fn desired_republish(&self) -> (String, String) {
        let below = |place: &str| self.subject(format_args!("{place}.>")).to_string();
        (below("desired"), below("live.desired"))
    }

    /// Returns all that every node may read of commands in waves: failures, and overrides of the operators.
    pub fn rollouts(&self) -> Subject {
        self.subject(format_args!("rollout.>"))
    }

    /// Returns the failure of a node in a command with waves.
    pub fn rollout_failed(&self, id: Uuid, node: &NodeId) -> Subject {
        self.subject(format_args!("rollout.{id}.failed.{node}"))
    }

    /// Returns the failures of all nodes in a command with waves.
    pub fn rollout_failures(&self, id: Uuid) -> Subject {
        self.subject(format_args!("rollout.{id}.failed.*"))
    }

    /// Returns the failures of all nodes in all commands with waves.
    pub fn all_rollout_failures(&self) -> Subject {
        self.subject(format_args!("rollout.*.failed.*"))
    }

    /// Returns the failures of one node in all commands.
    pub fn rollout_failures_of(&self, node: &NodeId) -> Subject {
        self.subject(format_args!("rollout.*.failed.{node}"))
    }

    /// Returns the success of a node in a command with waves.
    pub fn rollout_ok(&self, id: Uuid, node: &NodeId) -> Subject {
        self.subject(format_args!("rollout.{id}.ok.{node}"))
    }

    /// Returns the successes of all nodes in a command with waves.
    pub fn rollout_successes(&self, id: Uuid) -> Subject {
        self.subject(format_args!("rollout.{id}.ok.*"))
    }

    /// Returns the successes of all nodes in all commands with waves.
    pub fn all_rollout_successes(&self) -> Subject {
        self.subject(format_args!("rollout.*.ok.*"))
    }

    /// Returns the successes of one node in all commands.
    pub fn rollout_successes_of(&self, node: &NodeId) -> Subject {
        self.subject(format_args!("rollout.*.ok.{node}"))
    }

    /// Returns the latest signed go-ahead of a job.
    pub fn rollout_go_ahead(&self, id: Uuid) -> Subject {
        self.subject(format_args!("rollout.{id}.go"))
    }

    /// Returns the go-aheads of all jobs.
    pub fn rollout_go_aheads(&self) -> Subject {
        self.subject(format_args!("rollout.*.go"))
    }

    /// Returns the latest signed `halt` or `resume` of a job.
    pub fn rollout_control(&self, id: Uuid) -> Subject {
        self.subject(format_args!("rollout.{id}.control"))
    }

    /// Returns the halts and resumes of all jobs.
    pub fn rollout_controls(&self) -> Subject {
        self.subject(format_args!("rollout.*.control"))
    }

    /// Returns the filters that a node subscribes to for commands.
    pub fn command_subscriptions(&self, node: &NodeId, groups: &[String]) -> Vec<Subject> {
        let groups = groups.iter().map(|group| self.subject(format_args!("cmd.*.group.{group}")));
        [self.subject(format_args!("cmd.*.node.{node}")), self.subject(format_args!("cmd.*.all"))]
            .into_iter()
            .chain(groups)
            .collect()
    }

    /// Returns the subscriptions of a node for work: commands, and assignments that the server passes on.
    pub fn work_subscriptions(&self, node: &NodeId, groups: &[String]) -> Vec<Subject> {
        let mut subjects = self.command_subscriptions(node, groups);
        subjects.push(self.live_desired());
        subjects
    }

    /// Parses action and route of a command's subject; no action where the subject has none. `None` for any other subject.
    pub fn route<'a>(&self, subject: &'a str) -> Option<(Option<&'a str>, Route)> {
        let rest = subject.strip_prefix(PREFIX)?.strip_prefix('.')?.strip_prefix(self.fleet.as_str())?.strip_prefix('.')?;
        match rest.split('.').collect::<Vec<_>>().as_slice() {
            ["cmd", action, "node", id] => Some((Some(action), Route::Node((*id).to_owned()))),
            ["cmd", action, "group", name] => Some((Some(action), Route::Group((*name).to_owned()))),
            ["cmd", action, "all"] => Some((Some(action), Route::All)),
            ["desired", channel] | ["live", "desired", channel] => Some((None, Route::Desired((*channel).to_owned()))),
            _ => None,
        }
    }

    /// Returns the report of a node on a job.
    pub fn job(&self, id: Uuid, node: &NodeId, stage: ReportStage) -> Subject {
        self.subject(format_args!("job.{id}.{node}.{}", stage.as_str()))
    }

    /// Returns all reports on one job.
    pub fn job_reports(&self, id: Uuid) -> Subject {
        self.subject(format_args!("job.{id}.>"))
    }

    /// Returns the record of a job: the signed command as sent, for clients that follow the job later.
    pub fn job_command(&self, id: Uuid) -> Subject {
        self.subject(format_args!("job.{id}.command"))
    }

    /// Returns the reports of one node on all jobs.
    pub fn job_reports_of(&self, node: &NodeId) -> Subject {
        self.subject(format_args!("job.*.{node}.*"))
    }

    /// Returns the records of all jobs.
    pub fn job_commands(&self) -> Subject {
        self.subject(format_args!("job.*.command"))
    }

    /// Returns all commands.
    pub fn all_commands(&self) -> Subject {
        self.subject(format_args!("cmd.>"))
    }

    /// Parses job, node and stage of a report's subject; `None` for any other subject.
    pub fn report(&self, subject: &str) -> Option<(Uuid, NodeId, ReportStage)> {
        let rest = subject.strip_prefix(PREFIX)?.strip_prefix('.')?.strip_prefix(self.fleet.as_str())?.strip_prefix(".job.")?;
        let [id, node, stage] = rest.split('.').collect::<Vec<_>>().try_into().ok()?;
        let stage = [ReportStage::Ack, ReportStage::Done].into_iter().find(|known| known.as_str() == stage)?;
        Some((id.parse().ok()?, node.parse().ok()?, stage))
    }

    /// Returns all reports on all jobs.
    pub fn all_jobs(&self) -> Subject {
        self.subject(format_args!("job.>"))
    }

    /// Returns the events of one kind of a node.
    pub fn event(&self, node: &NodeId, kind: EventKind) -> Subject {
        self.subject(format_args!("event.{node}.{}", kind.as_str()))
    }

    /// Returns the events of one kind: of all nodes, or of one.
    pub fn events_of_kind(&self, node: Option<&NodeId>, kind: EventKind) -> Subject {
        self.subject(format_args!("event.{}.{}", node.map_or("*", NodeId::as_str), kind.as_str()))
    }

    /// Returns all events, or those of one node.
    pub fn events(&self, node: Option<&NodeId>) -> Subject {
        match node {
            Some(node) => self.subject(format_args!("event.{node}.>")),
            None => self.subject(format_args!("event.>")),
        }
    }

    /// Returns the state of a node.
    pub fn state(&self, node: &NodeId) -> Subject {
        self.subject(format_args!("state.{node}"))
    }

    /// Returns the states of all nodes.
    pub fn states(&self) -> Subject {
        self.subject(format_args!("state.*"))
    }

    /// Returns the removal of a node: one message, signed by an operator. No node may publish it.
    pub fn removal(&self, node: &NodeId) -> Subject {
        self.subject(format_args!("state.{node}.removed"))
    }

    /// Returns the removals of all nodes.
    pub fn removals(&self) -> Subject {
        self.subject(format_args!("state.*.removed"))
    }

    /// Returns the admission of a node: the latest, signed by an operator. No node may publish it.
    pub fn admitted(&self, node: &NodeId) -> Subject {
        self.subject(format_args!("admitted.{node}"))
    }

    /// Returns the admissions of all nodes.
    pub fn all_admitted(&self) -> Subject {
        self.subject(format_args!("admitted.*"))
    }

    /// Returns the states and the removals of all nodes.
    pub fn states_and_removals(&self) -> Subject {
        self.subject(format_args!("state.>"))
    }

    /// Returns a version of the trust bundle.
    pub fn trust(&self, version: u64) -> Subject {
        self.subject(format_args!("trust.{version}"))
    }

    /// Returns all versions of the trust bundle.
    pub fn trust_versions(&self) -> Subject {
        self.subject(format_args!("trust.>"))
    }

    /// Returns the subject on which the server passes on the versions that it stores.
    pub fn live_trust_versions(&self) -> Subject {
        self.subject(format_args!("live.trust.>"))
    }

    /// Parses the version from a subject of a trust bundle, stored or republished; `None` for any other subject.
    pub fn trust_version(&self, subject: &str) -> Option<u64> {
        let rest = subject.strip_prefix(PREFIX)?.strip_prefix('.')?.strip_prefix(self.fleet.as_str())?.strip_prefix('.')?;
        rest.strip_prefix("live.").unwrap_or(rest).strip_prefix("trust.")?.parse().ok()
    }

    /// Returns the request of a new node to join, by the public key of its NATS user.
    pub fn join_request(&self, user: &str) -> Subject {
        self.subject(format_args!("join.request.{user}"))
    }

    /// Returns the requests of all new nodes.
    pub fn join_requests(&self) -> Subject {
        self.subject(format_args!("join.request.*"))
    }

    /// Returns the answer to a new node, by the public key of its NATS user.
    pub fn join_answer(&self, user: &str) -> Subject {
        self.subject(format_args!("join.answer.{user}"))
    }

    /// Returns the answers to all new nodes.
    pub fn join_answers(&self) -> Subject {
        self.subject(format_args!("join.answer.*"))
    }

    /// Returns the requests and answers of all new nodes.
    pub fn joins(&self) -> Subject {
        self.subject(format_args!("join.*.*"))
    }

    /// Returns the rejections of all nodes.
    pub fn refusals(&self) -> Subject {
        self.subject(format_args!("event.*.{}", EventKind::Refused.as_str()))
    }

    /// Returns the stream, in the form of [`Self::stream`], for messages of nodes on this subject that must be kept.
    pub fn stream_for(subject: &str) -> &'static str {
        let rest = subject.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('.'));
        match rest.and_then(|rest| rest.split('.').nth(1)) {
            Some("job") => "JOBS",
            Some("rollout") => "ROLLOUTS",
            _ => "EVENTS",
        }
    }

    /// Returns the name of a stream of this fleet: `JOBS`, `EVENTS`, `STATE`, `TRUST`, `DESIRED`, `ROLLOUTS`
    /// or `JOIN`.
    pub fn stream(&self, name: &str) -> String {
        format!("ENSIGN_{}_{name}", self.fleet)
    }

    /// Returns the name of the object store bucket for bundles.
    pub fn bucket(&self) -> String {
        format!("ensign-{}-bundles", self.fleet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_back() {
        let subjects = Subjects::new("prod");
        for (subject, wanted) in [
            ("ensign.v1.prod.cmd.ensure.node.web1", Some((Some("ensure"), Route::Node("web1".into())))),
            ("ensign.v1.prod.cmd.apply.group.web", Some((Some("apply"), Route::Group("web".into())))),
            ("ensign.v1.prod.cmd.apply.all", Some((Some("apply"), Route::All))),
            ("ensign.v1.prod.desired.base", Some((None, Route::Desired("base".into())))),
            ("ensign.v1.prod.live.desired.base", Some((None, Route::Desired("base".into())))),
            ("ensign.v1.prod.live.desired", None),
            ("ensign.v1.prod2.cmd.apply.all", None),
            ("ensign.v1.pro.cmd.apply.all", None),
            ("ensign.v1.prod.cmd.apply.all.x", None),
            ("ensign.v1.prod.cmd.apply", None),
            ("ensign.v2.prod.cmd.apply.all", None),
            ("", None),
        ] {
            assert_eq!(subjects.route(subject), wanted, "{subject}");
        }
    }

    #[test]
    fn reports_are_read_back() {
        let subjects = Subjects::new("prod");
        let (id, node) = (Uuid::from_u128(7), "web1".parse().unwrap());
        for stage in [ReportStage::Ack, ReportStage::Done] {
            assert_eq!(subjects.report(subjects.job(id, &node, stage).as_str()), Some((id, "web1".parse().unwrap(), stage)));
        }
        for other in [subjects.job_command(id).as_str(), "ensign.v1.prod.job.x.web1.ack", "ensign.v1.prod.job", "other"] {
            assert_eq!(subjects.report(other), None, "{other}");
        }
    }

    #[test]
    fn versions_are_read_back() {
        let subjects = Subjects::new("prod");
        assert_eq!(subjects.trust_version(subjects.trust(8).as_str()), Some(8));
        assert_eq!(subjects.trust_version("ensign.v1.prod.live.trust.9"), Some(9));
        for other in ["ensign.v1.prod.trust.x", "ensign.v1.prod.trust", "ensign.v1.prod2.trust.8", "ensign.v1.prod.desired.8", ""]
        {
            assert_eq!(subjects.trust_version(other), None, "{other}");
        }
    }

    #[test]
    fn every_subject_of_a_command_is_one_its_nodes_listen_to() {
        let subjects = Subjects::new("prod");
        let filters = subjects.command_subscriptions(&"web1".parse().unwrap(), &["web".into()]);
        let filters: Vec<_> = filters.iter().map(Subject::as_str).collect();
        assert_eq!(filters, ["ensign.v1.prod.cmd.*.node.web1", "ensign.v1.prod.cmd.*.all", "ensign.v1.prod.cmd.*.group.web"]);
    }
}
