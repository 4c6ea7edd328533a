//! The beginning of a local run: the manifest is read and planned. Also the lines of its events.

use std::sync::Arc;

use tempfile::TempDir;

use crate::engine::{self, Plan};
use crate::host::{Cancel, Host};
use crate::model::{DiscoveryClient, ResourceOutcome, TransactionEvent};

use super::manifest_source::{self, LocalManifest, ManifestSource};
use crate::cli::error::{CliError, Exit};
use crate::cli::local::inputs;
use crate::cli::local::inputs::InputArgs;
use crate::cli::render;
use crate::cli::ui::{Tone, Ui, Whole, text};

/// A manifest that was read, with the inputs of its run.
pub(super) struct PreparedApply {
    pub(super) plan: Plan,
    pub(super) host: Host,
    pub(super) exchange: Option<Arc<dyn DiscoveryClient>>,
    /// The name of the manifest.
    pub(super) name: String,
    /// The flag that ends the run, where signals set it already.
    pub(super) cancel: Option<Cancel>,
    /// The directory of unpacked files.
    pub(super) kept: Option<TempDir>,
}

/// Reads and plans a manifest.
///
/// # Errors
/// When the manifest can't be read or planned.
pub(super) fn prepare(origin: &ManifestSource, given: &InputArgs, ui: &mut Ui) -> Result<PreparedApply, CliError> {
    let LocalManifest { source, cancel, kept } = origin.load(&given.connection, ui)?;
    let mut host = inputs::host();
    if let Some(cancel) = &cancel {
        host = host.with_deadline(cancel.clone(), None);
    }
    if let Some(directory) = &source.directory {
        host = host.with_directory(directory);
    }
    let planned = given.inputs(&host).and_then(|inputs| {
        let wrong = |diagnostics| CliError { exit: Exit::Usage, diagnostics };
        Ok((engine::plan_manifest(&source, &inputs, &host).map_err(wrong)?, inputs.exchange))
    });
    if cancel.as_ref().is_some_and(Cancel::is_cancelled) {
        return Err(manifest_source::cancelled());
    }
    let (plan, exchange) = planned?;
    Ok(PreparedApply { plan, host, exchange, name: source.name, cancel, kept })
}

/// Prints the line of an event, the output of its program, and its diff.
pub(super) fn print_event(ui: &mut Ui, event: &TransactionEvent, width: usize) {
    let line = render::event_line(ui, event, width);
    ui.line(line);
    render::program_output(event).for_each(|line| ui.line(text!("      {}", Whole(line))));
    if let Some(diff) = &event.diff {
        for line in diff.lines() {
            let tone = match line.as_bytes().first() {
                Some(b'+') => Tone::Success,
                Some(b'-') => Tone::Error,
                _ => Tone::Dim,
            };
            ui.line(text!("      {}", ui.paint(tone, Whole(line))));
        }
    }
    // Failures and changes are shown at once; long stretches of stable resources are not worth a write each.
    if event.outcome() != ResourceOutcome::Stable {
        ui.flush();
    }
}
