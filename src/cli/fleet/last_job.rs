//! The job that this user sent last, for `@last`: a file of each fleet in the state directory.

use std::path::PathBuf;

use uuid::Uuid;

use crate::diag::{Diagnostic, error_chain};
use crate::host::fs;
use crate::store::{StoreError, state_dir};
use crate::wire::{Action, Command};

use super::super::error::{CliError, Exit};
use super::super::ui::{Ui, text};
use super::super::user_state;

/// Largest file: an id and a line end.
const MAX_FILE_SIZE: u64 = 64;

fn file(fleet: &str) -> Option<PathBuf> {
    user_state::path("last_job").map(|directory| directory.join(fleet))
}

/// Records a command as the last one, before it is sent: `@last` then never names an older job. Queries, and commands about
/// another job, do not count. Of two commands at the same time, the file has one or the other.
pub(super) fn record(command: &Command, ui: &mut Ui) {
    if !is_job_of_user(&command.action) {
        return;
    }
    let Some(file) = file(&command.fleet) else { return };
    let directory = file.parent().map_or(Ok(()), state_dir::create);
    let written = directory.and_then(|()| state_dir::write_atomic(&file, format!("{}\n", command.id).as_bytes()));
    if let Err(error) = written {
        warn(&error, ui);
    }
}

fn warn(error: &StoreError, ui: &mut Ui) {
    ui.warn(text!("cannot record the job as @last, which keeps its earlier value: {}", error_chain(error)));
}

/// True for work on nodes: not for queries, and not for commands about another job.
fn is_job_of_user(action: &Action) -> bool {
    match action {
        Action::Ensure(_) | Action::Apply(_) | Action::Assign(_) | Action::Withdraw(_) | Action::Run(_) => true,
        Action::Facts(_) | Action::Status(_) | Action::Healthcheck(_) => false,
        Action::Halt(_) | Action::Resume(_) | Action::Go(_) | Action::Cancel(_) | Action::Remove(_) => false,
    }
}

/// Returns the id of the last job.
///
/// # Errors
/// When no job is recorded, or the record can't be read.
pub(super) fn read(fleet: &str) -> Result<Uuid, CliError> {
    let hint = "use the id of the job; `ensign fleet job list` shows the ids";
    let Some(file) = file(fleet) else {
        return Err(CliError::usage("@last needs a state directory: neither XDG_STATE_HOME nor HOME is set").hint(hint));
    };
    if !fs::exists(&file) {
        return Err(CliError::usage(format!("@last: this user has sent no job to the fleet {fleet} from this host")).hint(hint));
    }
    let text =
        fs::read_trusted_text(&file, MAX_FILE_SIZE).map_err(|error| CliError::from_error(Exit::Usage, &error).hint(hint))?;
    text.trim().parse().map_err(|_| {
        let diagnostic = Diagnostic::new(format!("@last: the file {} has no id of a job", file.display()));
        CliError::new(Exit::Usage, diagnostic.hint(hint))
    })
}
