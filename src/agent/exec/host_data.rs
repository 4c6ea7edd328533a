//! Host data: data of the owner of this host, which overlays the data of every manifest. `data` in the configuration names
//! a file, a URL, or a key of a bucket.
//!
//! Each run reads the source anew. A copy of the last valid document is kept for when the source is unreachable. The assignments
//! must stay applicable without the server.

use std::path::PathBuf;

use crate::data::source::{self, DataSource, SourcedDocument};
use crate::diag::{Diagnostic, error_chain};
use crate::engine::{BusData, RunInputs};
use crate::host::fs::FsError;
use crate::host::{Checkpoint, Host, checkpoint, fs};
use crate::store::state_dir;
use crate::yaml::{MAX_BYTES, YamlDocument};

use crate::agent::exec::context::RunContext;
use crate::agent::status::board::AlarmKind;

/// Overlays the data of the inputs with the host data.
///
/// # Errors
/// When the host data is invalid, or when it cannot be read and there is no copy.
pub(in crate::agent) fn overlay(context: &RunContext, inputs: &mut RunInputs, host: &Host) -> Result<(), Diagnostic> {
    let Some(from) = context.settings.now().data.clone() else {
        context.status.clear(AlarmKind::Data);
        return Ok(());
    };
    let source: DataSource = from.parse().map_err(Diagnostic::new)?;
    if let DataSource::File(path) = &source
        && let Err(error @ FsError::UnsafePermissions { .. }) = fs::check_trusted(path)
    {
        return Err(Diagnostic::new(error_chain(&error)));
    }
    let (document, unsigned) = match source::read(&source, host, inputs.exchange.as_deref()) {
        Ok(SourcedDocument { document, unsigned }) => {
            // Only data that can be resolved is kept.
            inputs.resolve(&document, host).map_err(without_source_line)?;
            write_copy(context, &document, unsigned);
            context.status.clear(AlarmKind::Data);
            (document, unsigned)
        }
        Err(why) => read_copy(context, &from).ok_or(without_source_line(why.clone())).inspect(|_| {
            context.status.raise(AlarmKind::Data, format!("cannot read the host data: {why}; using the last copy"));
        })?,
    };
    let (resolved, rules) = inputs.resolve(&document, host).map_err(without_source_line)?;
    if unsigned && let BusData::Signed { unsigned } = &mut inputs.bus {
        unsigned.clone_from(&resolved.data);
    }
    (inputs.data, inputs.rules) = (Some(resolved.data), rules);
    Ok(())
}

/// Removes the line of text from an error. The sender of a command must not see the data of the owner.
fn without_source_line(mut diagnostic: Diagnostic) -> Diagnostic {
    if let Some(place) = &mut diagnostic.place {
        place.text.clear();
    }
    diagnostic
}

/// The suffix of the name of kept data that a key has signed.
const SIGNED_SUFFIX: &str = " (signed)";
/// The prefix of the name of data from the bus.
const BUS_PREFIX: &str = "kv://";

fn copy_path(context: &RunContext) -> PathBuf {
    context.settings.now().state_dir.join("data.yaml")
}

/// Keeps a document with the name of its source, so that the copy never counts for another source.
fn write_copy(context: &RunContext, document: &YamlDocument, unsigned: bool) {
    let mark = if unsigned || !document.file().starts_with(BUS_PREFIX) { "" } else { SIGNED_SUFFIX };
    let text = format!("# {}{mark}\n{}", document.file(), document.text());
    // Most runs read the data that is kept already.
    if fs::read_text(&copy_path(context), MAX_BYTES as u64).is_ok_and(|kept| kept == text) {
        return;
    }
    context.status.report_storage_error(state_dir::write_atomic(&copy_path(context), text.as_bytes()));
    checkpoint(Checkpoint::HostDataStored);
}

fn read_copy(context: &RunContext, from: &str) -> Option<(YamlDocument, bool)> {
    let text = match fs::read_text(&copy_path(context), MAX_BYTES as u64) {
        Ok(text) => text,
        Err(error) => {
            tracing::debug!(error = %error_chain(&error), "no copy of the host data");
            return None;
        }
    };
    let (name, rest) = text.strip_prefix("# ")?.split_once('\n')?;
    let (name, unsigned) = name.strip_suffix(SIGNED_SUFFIX).map_or((name, name.starts_with(BUS_PREFIX)), |name| (name, false));
    let shown = crate::http::redact_url(from);
    let document = (name == from || name == shown).then(|| YamlDocument::parse(rest, name).ok()).flatten()?;
    Some((document, unsigned))
}
