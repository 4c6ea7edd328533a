//! Data from outside: what the owner of this host lays over the data of every manifest. A file, a URL, or a key of a bucket,
//! as `data` in the configuration names it.
//!
//! Read anew for every run. What could be read is kept as it came, for when it can't be: a server that is away must not
//! stop what stands.

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

/// Lays the data from outside under what the command itself brings.
///
/// # Errors
/// When it is wrong; or can't be had, and never could before.
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
            // Only what can be resolved is kept.
            inputs.resolve(&document, host).map_err(without_line)?;
            keep(node, &document, unsigned);
            node.status.clear(AlarmKind::Data);
            (document, unsigned)
        }
        Err(why) => kept(node, &from).ok_or(without_line(why.clone())).inspect(|_| {
            node.status.raise(AlarmKind::Data, format!("the data can't be had, and what it was before is used: {why}"));
        })?,
    };
    let (resolved, rules) = inputs.resolve(&document, host).map_err(without_line)?;
    if unsigned && let BusData::Signed { unsigned } = &mut inputs.bus {
        unsigned.clone_from(&resolved.data);
    }
    (inputs.data, inputs.rules) = (Some(resolved.data), rules);
    Ok(())
}

/// The data is the owner's: an error that goes to who sent a command does not show it.
fn without_line(mut diagnostic: Diagnostic) -> Diagnostic {
    if let Some(place) = &mut diagnostic.place {
        place.text.clear();
    }
    diagnostic
}

/// Behind the name of kept data that a key has signed.
const SIGNED: &str = " (signed)";
/// The beginning of the name of data from the bus.
const BUS: &str = "kv://";

fn place(node: &RunContext) -> PathBuf {
    node.settings.now().state_dir.join("data.yaml")
}

/// The document under the name of where it is from, so that data of another source is never taken for it.
fn keep(node: &RunContext, document: &Document, unsigned: bool) {
    let mark = if unsigned || !document.file().starts_with(BUS) { "" } else { SIGNED };
    let text = format!("# {}{mark}\n{}", document.file(), document.text());
    // Most runs read what is kept already.
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
            tracing::debug!(error = %chain(&error), "no data is kept");
            return None;
        }
    };
    let (name, rest) = text.strip_prefix("# ")?.split_once('\n')?;
    let (name, unsigned) = name.strip_suffix(SIGNED).map_or((name, name.starts_with(BUS)), |name| (name, false));
    let shown = crate::http::shown(from);
    let document = (name == from || name == shown).then(|| Document::parse(rest, name).ok()).flatten()?;
    Some((document, unsigned))
}
