//! Records of jobs, by their ids.

use uuid::Uuid;

use crate::fleet::job::records::{self, JobError, JobRecord};
use crate::fleet::{CheckedCommand, Checker, NodeResult, NodeStates};
use crate::wire::{Command, Envelope};

use super::super::error::{CliError, Exit};
use super::session::{FleetSession, check_failure, connection_failure};

/// Adds a hint to an error of reading a record.
pub(super) fn record_failure(error: &JobError) -> CliError {
    match error {
        JobError::Bus(error) => connection_failure(error),
        JobError::Unknown(_) => CliError::from_error(Exit::Usage, error).hint("`ensign fleet job list` shows the latest"),
        _ => CliError::from_error(Exit::Failed, error),
    }
}

/// Reads the record of a job.
pub(super) async fn record(id: Uuid, session: &FleetSession) -> Result<JobRecord, CliError> {
    records::read_record(&session.bus, &session.subjects, id).await.map_err(|error| record_failure(&error))
}

/// Reads the command of a job and checks its signature.
pub(super) async fn checked_command(id: Uuid, checker: &Checker, session: &FleetSession) -> Result<CheckedCommand, CliError> {
    let record = record(id, session).await?;
    checker.check(&record.envelope).map_err(|error| check_failure(&error))
}

/// Reads the command of a job with its envelope, unchecked.
pub(super) async fn recorded(id: Uuid, session: &FleetSession) -> Result<(Command, Envelope), CliError> {
    let record = record(id, session).await?;
    let envelope = Envelope::parse(&record.envelope).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    Ok((record.command, envelope))
}

/// Reads the results that the server has now.
pub(super) async fn results(
    record: &JobRecord,
    states: &NodeStates,
    session: &FleetSession,
) -> Result<Vec<NodeResult>, CliError> {
    let expected = states.expected(&record.command.to);
    let results = records::read_results(&session.bus, &session.subjects, &session.node_keys, record, expected).await;
    results.map_err(|error| record_failure(&error))
}
