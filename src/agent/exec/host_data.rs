//! Host data: data of the owner of this host, which overlays the data of every manifest. `data` in the configuration names
//! a file, a URL, or a key of a bucket.
//!
//! Each run reads the source anew. A copy of the last valid document is kept for when the source is unreachable: the
//! assignments must stay applicable without the server.

use std::path::PathBuf;

use crate::data::source::{self, Given, Source};
use crate::diag::{Diagnostic, chain};
use crate::engine::{BusData, RunInputs};
use crate::host::fs::FsError;
use crate::host::{Checkpoint, Host, checkpoint, fs};
use crate::store::state_dir;
use crate::yaml::{Document, MAX_BYTES};

use crate::agent::exec::context::RunContext;
use crate::agent::status::board::AlarmKind;

/// Overlays the data of the inputs with the host data.
///
/// # Errors
/// When the host data is invalid, or when it cannot be read and there is no copy.
pub(in crate::agent) fn overlay(node: &RunContext, inputs: &mut RunInputs, host: &Host) -> Result<(), Diagnostic> {
    let Some(from) = node.settings.now().data.clone() else {
        node.status.clear(AlarmKind::Data);
        return Ok(());
    };
    let source: Source = from.parse().map_err(Diagnostic::new)?;
    if let Source::File(path) = &source
        && let Err(error @ FsError::Loose { .. }) = fs::check_trusted(path)
    {
        return Err(Diagnostic::new(chain(&error)));
    }
    let (document, unsigned) = match source::read(&source, host, inputs.exchange.as_deref()) {
        Ok(Given { document, unsigned }) => {
            // Only data that can be resolved is kept.
            inputs.resolve(&document, host).map_err(without_line)?;
            keep(node, &document, unsigned);
            node.status.clear(AlarmKind::Data);
            (document, unsigned)
        }
        Err(why) => kept(node, &from).ok_or(without_line(why.clone())).inspect(|_| {
            node.status.raise(AlarmKind::Data, format!("cannot read the host data: {why}; using the last copy"));
        })?,
    };
    let (resolved, rules) = inputs.resolve(&document, host).map_err(without_line)?;
    if unsigned && let BusData::Signed { unsigned } = &mut inputs.bus {
        unsigned.clone_from(&resolved.data);
    }
    (inputs.data, inputs.rules) = (Some(resolved.data), rules);
    Ok(())
}

/// Removes the line of text from an error: the sender of a command must not see the data of the owner.
fn without_line(mut diagnostic: Diagnostic) -> Diagnostic {
    if let Some(place) = &mut diagnostic.place {
        place.text.clear();
    }
    diagnostic
}

/// The suffix of the name of kept data that a key has signed.
const SIGNED: &str = " (signed)";
/// The prefix of the name of data from the bus.
const BUS: &str = "kv://";

fn place(node: &RunContext) -> PathBuf {
    node.settings.now().state_dir.join("data.yaml")
}

/// Keeps a document with the name of its source, so that the copy never counts for another source.
fn keep(node: &RunContext, document: &Document, unsigned: bool) {
    let mark = if unsigned || !document.file().starts_with(BUS) { "" } else { SIGNED };
    let text = format!("# {}{mark}\n{}", document.file(), document.text());
    // Most runs read the data that is kept already.
    if fs::read_text(&place(node), MAX_BYTES as u64).is_ok_and(|kept| kept == text) {
        return;
    }
    node.status.report_storage_error(state_dir::write_atomic(&place(node), text.as_bytes()));
    checkpoint(Checkpoint::DataKept);
}

fn kept(node: &RunContext, from: &str) -> Option<(Document, bool)> {
    let text = match fs::read_text(&place(node), MAX_BYTES as u64) {
        Ok(text) => text,
        Err(error) => {
            tracing::debug!(error = %chain(&error), "no copy of the host data");
            return None;
        }
    };
    let (name, rest) = text.strip_prefix("# ")?.split_once('\n')?;
    let (name, unsigned) = name.strip_suffix(SIGNED).map_or((name, name.starts_with(BUS)), |name| (name, false));
    let shown = crate::http::shown(from);
    let document = (name == from || name == shown).then(|| Document::parse(rest, name).ok()).flatten()?;
    Some((document, unsigned))
}
