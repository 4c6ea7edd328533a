//! `ensign fleet node revoke`: the NATS user of a node that was admitted to a fleet in operator mode.

use std::path::{Path, PathBuf};

use crate::fleet::account::{
    AccountDirectory, AdmissionsError, FleetAccountError, PushError, SYSTEM_CREDS, fetch_account, push_account, read_admissions,
};
use crate::host::Host;
use crate::host::fs;
use crate::model::NodeId;
use crate::transport::{Bus, BusSettings, Credentials};

use super::super::error::{CliError, Exit};
use super::super::ui::{Ui, text};
use super::session::{OperatorArgs, connection_failure};

/// The file of admissions in the directory of a fleet.
pub(super) const ADMITTED: &str = "admitted";

/// Revokes all users of a node, on the server and in the directory of the fleet.
///
/// # Errors
/// When the node was not admitted, a file can't be used, or the server does not take the account.
pub(super) async fn revoke(node: &NodeId, bus: &BusSettings, context: &OperatorArgs, ui: &mut Ui) -> Result<(), CliError> {
    let directory = fleet_directory(context)?;
    let mut account = AccountDirectory::open(&directory).map_err(|error| account_failure(&error))?;
    let admitted = read_admissions(&directory.join(ADMITTED)).map_err(|error| admissions_failure(&error))?;
    let users: Vec<&str> = admitted.iter().filter(|one| one.node == *node).map(|one| one.user.as_str()).collect();
    if users.is_empty() {
        let message = format!("{} has no admission of {node}", directory.join(ADMITTED).display());
        let hint =
            "a node with a user in the configuration of the server is removed there; `ensign fleet node forget` forgets its key";
        return Err(CliError::usage(message).hint(hint));
    }
    let bus = connect_system(&account, bus).await?;
    // Another operator may have revoked users on the server since.
    if let Some(current) = fetch_account(&bus, account.public_key()).await.map_err(|error| push_failure(&error))? {
        account.merge_revocations(&current).map_err(|error| account_failure(&error))?;
    }
    account.revoke_users(users.iter().copied(), Host::system(None).now()).map_err(|error| account_failure(&error))?;
    push_account(&bus, account.jwt()).await.map_err(|error| push_failure(&error))?;
    ui.message(text!("{}: the server refuses its user from now on", node));
    Ok(())
}

/// True when a node was admitted from this directory of the fleet, if there is one.
pub(super) fn is_admitted(node: &NodeId, context: &OperatorArgs) -> bool {
    let admitted = fleet_directory(context).ok().and_then(|directory| read_admissions(&directory.join(ADMITTED)).ok());
    admitted.is_some_and(|admitted| admitted.iter().any(|one| one.node == *node))
}

/// Returns the directory of the fleet, in which `operator.toml` is.
pub(super) fn fleet_directory(context: &OperatorArgs) -> Result<PathBuf, CliError> {
    let config = context.connection.read_operator_config()?;
    let directory = config.as_ref().and_then(|(_, path)| path.parent()).map(Path::to_owned);
    directory
        .ok_or_else(|| CliError::usage("no operator.toml found").hint("--operator DIR/operator.toml of `ensign fleet create`"))
}

/// Connects as the user that may change the account.
async fn connect_system(account: &AccountDirectory, bus: &BusSettings) -> Result<Bus, CliError> {
    let creds = account.path(SYSTEM_CREDS);
    fs::check_private(&creds).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let settings = BusSettings { credentials: Some(Credentials::CredsFile(creds)), inbox_prefix: None, ..bus.clone() };
    Bus::connect(&settings).await.map_err(|error| connection_failure(&error))
}

/// Returns the failure for the account of a fleet, with a hint.
pub(super) fn account_failure(error: &FleetAccountError) -> CliError {
    let failure = CliError::from_error(Exit::Usage, error);
    match error {
        FleetAccountError::File(error) if error.is_not_found() => {
            failure.hint("this needs the directory that `ensign fleet create` made: --operator DIR/operator.toml")
        }
        _ => failure,
    }
}

fn admissions_failure(error: &AdmissionsError) -> CliError {
    let failure = CliError::from_error(Exit::Usage, error);
    match error {
        AdmissionsError::Line { .. } => failure.hint("repair the line, or remove it when a crash cut it off"),
        _ => failure,
    }
}

fn push_failure(error: &PushError) -> CliError {
    let failure = CliError::from_error(Exit::Partial, error);
    match error {
        PushError::Bus(error) => connection_failure(error),
        PushError::NoResolver => failure.hint("start the server with the nats-server.conf of `ensign fleet create`"),
        _ => failure.hint("run the command again: the server may still accept the user"),
    }
}
