//! Prints plans, and keeps them in files of this user.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use uuid::Uuid;

use crate::diag::count_noun;
use crate::fleet::plan::{FleetPlan, PlanError, PlanGroup};
use crate::host::fs;
use crate::store::state_dir;

use super::super::error::{CliError, Exit};
use super::super::format;
use super::super::ui::{Tone, Ui, text};
use super::super::user_state;
use super::render_job::outcome_mark;

/// Groups that are printed; the file has all of them.
const MAX_GROUPS: usize = 20;
/// Days for which the file of a plan is kept. No node accepts the approval of an older plan.
const KEPT_DAYS: i64 = 7;

/// Adds a hint to an error of a plan.
pub(super) fn plan_failure(error: &PlanError) -> CliError {
    let failure = CliError::from_error(Exit::Usage, error);
    match error {
        PlanError::TooOld { .. } => failure.hint("make a new plan: ensign fleet plan ..."),
        _ => failure,
    }
}

/// Prints the groups of a plan, each with its changes.
pub(super) fn print_groups(groups: &[PlanGroup], ui: &mut Ui) {
    for group in groups.iter().take(MAX_GROUPS) {
        let (symbol, tone) = outcome_mark(&group.outcome);
        let what = match (group.outcome.as_str(), group.count) {
            ("stable", _) => "no change".to_owned(),
            ("would_change", number) => count_noun(number, "change"),
            (word, _) if group.cause.is_empty() => word.to_owned(),
            (word, _) => format!("{word}: {}", group.cause),
        };
        let names = ui.paint(Tone::Dim, format::names(&group.nodes));
        ui.line(text!("  {} {:>12}  {}  {}", ui.paint(tone, symbol), format::nodes(group.nodes.len()), what, names));
        let width = group.changes.iter().map(|change| change.resource.chars().count()).max().unwrap_or(0).min(48);
        for change in &group.changes {
            ui.line(text!("      + {:<width$}  {}", change.resource, change.what));
            for line in change.diff.iter().flat_map(|diff| diff.lines()) {
                let tone = match line.chars().next() {
                    Some('+') => Tone::Success,
                    Some('-') => Tone::Error,
                    _ => Tone::Dim,
                };
                ui.line(text!("          {}", ui.paint(tone, line)));
            }
        }
        if group.diffs_differ {
            ui.line(ui.paint(
                Tone::Dim,
                "      the content differs from node to node: `ensign fleet job show ID --node NODE` shows one",
            ));
        }
        let more = group.count.saturating_sub(group.changes.len() as u64);
        if more > 0 {
            ui.line(text!("      and {} more", more));
        }
    }
    let more = groups.len().saturating_sub(MAX_GROUPS);
    if more > 0 {
        ui.line(text!("  and {} more, in the file of the plan", count_noun(more as u64, "group")));
    }
}

/// Returns the file of a plan.
pub(super) fn plan_file(id: Uuid) -> Option<PathBuf> {
    user_state::path("plans").map(|directory| directory.join(format!("{id}.json")))
}

/// Writes a plan to `out`, else to the directory of plans. A failure there is only a warning, as the nodes and the server
/// have the plan too.
///
/// # Errors
/// When `out` can't be written.
pub(super) fn save(plan: &FleetPlan, out: Option<&Path>, ui: &mut Ui) -> Result<Option<PathBuf>, CliError> {
    if let Some(out) = out {
        plan.write(out).map_err(|error| CliError::from_error(Exit::Partial, &error))?;
        return Ok(Some(out.to_owned()));
    }
    let Some(path) = plan_file(plan.id) else { return Ok(None) };
    let written = path.parent().map_or(Ok(()), state_dir::create).map_err(PlanError::from).and_then(|()| plan.write(&path));
    match written {
        Ok(()) => {
            remove_expired(plan.issued);
            Ok(Some(path))
        }
        Err(error) => {
            ui.warn(text!("cannot write the file of the plan: {}", crate::diag::error_chain(&error)));
            Ok(None)
        }
    }
}

/// Removes the files of expired plans. A file that stays does no harm.
fn remove_expired(now: Timestamp) {
    let files = user_state::path("plans").and_then(|directory| fs::list(&directory).ok()).unwrap_or_default();
    for file in files {
        let made = file.file_stem().and_then(|stem| stem.to_str()?.parse::<Uuid>().ok()?.get_timestamp());
        let made = made.and_then(|made| i64::try_from(made.to_unix().0).ok());
        if made.is_some_and(|made| now.as_second() - made > KEPT_DAYS * 86_400) {
            let _stays = fs::remove(&file);
        }
    }
}
