//! A job: a verified command on its way through the queues, or a run that follows from one.

use std::sync::Arc;

use uuid::Uuid;

use crate::engine::{Plan, RunSelection};
use crate::model::ResourceRef;

use crate::trust::{Rights, Verified};
use crate::wire::command::{Action, Apply, Command};

/// The kinds of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) enum JobKind {
    /// A command that runs once. With the reply subject of its sender, if any.
    Command {
        /// The reply subject.
        reply: Option<String>,
    },
    /// A check of the health of a command's resources. Changes nothing.
    HealthCheck,
    /// A run of an assignment.
    Reconcile,
}

/// The resources to run in a repair of drift.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct RepairSelection {
    /// The resources, by their number in the plan.
    pub(in crate::agent) selection: Arc<RunSelection>,
    /// Their names. In another plan, the same numbers would select other resources.
    pub(in crate::agent) names: Vec<(usize, ResourceRef)>,
}

impl RepairSelection {
    /// Returns true when the numbers select the same resources in this plan.
    pub(in crate::agent) fn matches_plan(&self, plan: &Plan) -> bool {
        let has = |(number, name): &(usize, ResourceRef)| {
            plan.resources.get(*number).is_some_and(|planned| planned.references().any(|reference| reference == *name))
        };
        self.names.iter().all(has)
    }
}

/// A job.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Job {
    /// The command as verified. The executor verifies it again before it runs.
    pub(in crate::agent) command: Arc<Verified<Command>>,
    /// The id of the run: the id of the command, and another one for every further run of an assignment.
    pub(in crate::agent) run: Uuid,
    /// The rights that the allowing rule gives the run.
    pub(in crate::agent) rights: Rights,
    /// The kind.
    pub(in crate::agent) kind: JobKind,
    /// The resources to run in a repair of drift; none for a run of all resources.
    pub(in crate::agent) selection: Option<RepairSelection>,
    /// True when the sender asks for a dry run.
    pub(in crate::agent) noop: bool,
}

impl Job {
    /// Returns the job of a command that runs once.
    pub(in crate::agent) fn command(command: Arc<Verified<Command>>, reply: Option<String>) -> Self {
        let (rights, noop) = (command.rights().clone(), command.options.noop);
        Self { run: command.id, command, rights, kind: JobKind::Command { reply }, selection: None, noop }
    }

    /// Returns a run of an assignment.
    pub(in crate::agent) fn reconcile(command: &Arc<Verified<Command>>, run: Uuid) -> Self {
        Self { run, kind: JobKind::Reconcile, ..Self::command(Arc::clone(command), None) }
    }

    /// Returns a run of an assignment that the command of this job asks for, with the rights of the assignment.
    pub(in crate::agent) fn run_now(&self, assignment: &Arc<Verified<Command>>) -> Self {
        let rights = assignment.rights().brought_forward_by(&self.rights);
        Self { noop: self.noop, rights, ..Self::reconcile(assignment, self.run) }
    }

    /// Returns a run of these resources of an assignment.
    pub(in crate::agent) fn repair(command: &Arc<Verified<Command>>, run: Uuid, selection: RepairSelection) -> Self {
        Self { selection: Some(selection), ..Self::reconcile(command, run) }
    }

    /// Returns the health check of this job.
    pub(in crate::agent) fn health_check(&self) -> Self {
        Self { kind: JobKind::HealthCheck, ..self.clone() }
    }

    /// Returns the job without a reply subject.
    pub(in crate::agent) fn without_reply(self) -> Self {
        match self.kind {
            JobKind::Command { .. } => Self { kind: JobKind::Command { reply: None }, ..self },
            _ => self,
        }
    }

    /// Returns the subject on which the sender waits.
    pub(in crate::agent) fn reply(&self) -> Option<&str> {
        match &self.kind {
            JobKind::Command { reply } => reply.as_deref(),
            _ => None,
        }
    }

    /// Returns the SHA-256 of the signed bytes.
    pub(in crate::agent) fn digest(&self) -> &str {
        self.command.digest()
    }

    /// Returns the id of the command.
    pub(in crate::agent) fn id(&self) -> Uuid {
        self.command.id
    }

    /// Returns the manifest of the command, if it names one.
    pub(in crate::agent) fn manifest(&self) -> Option<&Apply> {
        match &self.command.action {
            Action::Apply(apply) => Some(apply),
            Action::Assign(assign) => Some(&assign.manifest),
            _ => None,
        }
    }

    /// Returns true for a run of all resources of an assignment whose drift is repaired between the runs.
    pub(in crate::agent) fn is_watched(&self) -> bool {
        self.kind == JobKind::Reconcile
            && !self.noop
            && matches!(&self.command.action, Action::Assign(assign) if assign.is_watched())
    }

    /// Returns true for a run that changes nothing.
    pub(in crate::agent) fn is_dry(&self) -> bool {
        self.noop
            || self.kind == JobKind::HealthCheck
            || matches!(&self.command.action, Action::Assign(assign) if !assign.enforce)
    }
}
