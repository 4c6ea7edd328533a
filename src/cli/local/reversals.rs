//! The records for `on_removal` of local runs, kept beside the history of runs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::cli::error::{CliError, Exit};
use crate::cli::ui::Ui;
use crate::diag::{Diagnostic, error_chain};
use crate::engine::ReversalStore;
use crate::host::fs;
use crate::model::{ResourceRef, ReversalRecord, lock};
use crate::store::{Reversals, StoreError};

use super::inputs;
use super::manifest_source::ManifestSource;

struct LocalReversals(Mutex<Reversals>);

/// Reads the records of a manifest on this host (for root), or of this user; none without a history.
///
/// # Errors
/// When they can't be read.
pub fn reversal_store(origin: &ManifestSource, ui: &mut Ui) -> Result<Option<Arc<dyn ReversalStore>>, CliError> {
    let Some(history) = inputs::history() else { return Ok(None) };
    let source = match origin.file() {
        Some(path) => fs::resolve_links(&std::path::absolute(&path).unwrap_or(path)),
        None => PathBuf::from(origin.label().to_string()),
    };
    let unread = |error: StoreError| {
        let diagnostic = Diagnostic::new(format!("cannot read the records of on_removal: {}", error_chain(&error)));
        CliError::new(Exit::Failed, diagnostic).hint("remove the directory; resources that leave their manifest are kept then")
    };
    let reversals = Reversals::read(history.directory(), &source.to_string_lossy()).map_err(unread)?;
    for (path, why) in reversals.damaged() {
        let diagnostic = Diagnostic::new(format!("the record {} is damaged: {why}", path.display()));
        ui.warn(diagnostic.hint("remove the file; its resource is kept when it leaves the manifest"));
    }
    Ok(Some(Arc::new(LocalReversals(Mutex::new(reversals)))))
}

impl ReversalStore for LocalReversals {
    fn resources(&self) -> Vec<ResourceRef> {
        lock(&self.0).all().map(|record| record.resource.clone()).collect()
    }

    fn get(&self, resource: &ResourceRef) -> Result<Option<ReversalRecord>, String> {
        lock(&self.0).get(resource).map(Option::<&ReversalRecord>::cloned)
    }

    fn write(&self, record: ReversalRecord) -> Result<(), String> {
        lock(&self.0).write(&record, "").map_err(|error| error_chain(&error))
    }

    fn remove(&self, resource: &ResourceRef) -> Result<(), String> {
        lock(&self.0).remove(resource).map_err(|error| error_chain(&error))
    }
}
