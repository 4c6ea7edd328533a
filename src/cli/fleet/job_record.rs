//! Records of jobs, by the id that the command line names.

use uuid::Uuid;

use crate::fleet::job::records::{self, JobError, JobRecord};
use crate::fleet::{CheckedCommand, Checker, NodeResult, NodeStates};
use crate::wire::{Command, Envelope};

use super::super::error::{Exit, Failure};
use super::session::{Session, failure, unchecked};

/// Parses the id of a job on the command line.
pub(super) fn job_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "not the id of a job; `ensign fleet job list` shows them".to_owned())
}

/// Adds a hint to an error of reading a record.
pub(super) fn unavailable(error: &JobError) -> Failure {
    match error {
        JobError::Bus(error) => failure(error),
        JobError::Unknown(_) => Failure::from_error(Exit::Usage, error).hint("`ensign fleet job list` shows the latest"),
        _ => Failure::from_error(Exit::Failed, error),
    }
}

/// Reads the record of a job.
pub(super) async fn record(id: Uuid, session: &Session) -> Result<JobRecord, Failure> {
    records::record(&session.bus, &session.subjects, id).await.map_err(|error| unavailable(&error))
}

/// Reads the command of a job and checks its signature.
pub(super) async fn checked(id: Uuid, checker: &Checker, session: &Session) -> Result<CheckedCommand, Failure> {
    let record = record(id, session).await?;
    checker.check(&record.envelope).map_err(|error| unchecked(&error))
}

/// Reads the command of a job with its envelope, unchecked.
pub(super) async fn recorded(id: Uuid, session: &Session) -> Result<(Command, Envelope), Failure> {
    let record = record(id, session).await?;
    let envelope = Envelope::parse(&record.envelope).map_err(|error| Failure::from_error(Exit::Failed, &error))?;
    Ok((record.command, envelope))
}

/// Reads the results that the server has now.
pub(super) async fn results(record: &JobRecord, states: &NodeStates, session: &Session) -> Result<Vec<NodeResult>, Failure> {
    let expected = states.expected(&record.command.to);
    let results = records::results(&session.bus, &session.subjects, &session.node_keys, record, expected).await;
    results.map_err(|error| unavailable(&error))
}
