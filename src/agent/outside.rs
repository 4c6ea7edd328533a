//! Data from outside: what the owner of this host lays over the data of every manifest. A file, a URL, or a key of a bucket,
//! as `data` in the configuration names it.
//!
//! Read anew for every run. What could be read is kept as it came, for when it can't be: a server that is away must not
//! stop what stands.

use std::path::PathBuf;

use crate::data::source::{self, Source};
use crate::diag::{Diagnostic, chain};
use crate::engine::Inputs;
use crate::host::{Checkpoint, Host, checkpoint, fs};
use crate::store::dir;
use crate::yaml::{Document, MAX_BYTES};

use super::Node;
use super::board::Topic;

/// Lays the data from outside under what the command itself brings.
///
/// # Errors
/// When it is wrong; or can't be had, and never could before.
pub(super) fn lay(node: &Node, inputs: &mut Inputs, host: &Host) -> Result<(), Diagnostic> {
    let Some(from) = node.settings().data.clone() else {
        node.board.fine(Topic::Data);
        return Ok(());
    };
    let source: Source = from.parse().map_err(Diagnostic::new)?;
    let document = match source::read(&source, host, inputs.exchange.as_deref()) {
        Ok(document) => {
            let (resolved, rules) = inputs.resolve(&document, host)?;
            keep(node, &document);
            node.board.fine(Topic::Data);
            (inputs.data, inputs.rules) = (Some(resolved.data), rules);
            return Ok(());
        }
        Err(why) => kept(node, &from).ok_or(why.clone()).inspect(|_| {
            node.board.trouble(Topic::Data, format!("the data can't be had, and what it was before is used: {why}"));
        })?,
    };
    let (resolved, rules) = inputs.resolve(&document, host)?;
    (inputs.data, inputs.rules) = (Some(resolved.data), rules);
    Ok(())
}

fn place(node: &Node) -> PathBuf {
    node.settings().state_dir.join("data.yaml")
}

/// The document under the name of where it is from, so that data of another source is never taken for it.
fn keep(node: &Node, document: &Document) {
    let text = format!("# {}\n{}", document.file(), document.text());
    // Most runs read what is kept already.
    if fs::read_text(&place(node), MAX_BYTES as u64).is_ok_and(|kept| kept == text) {
        return;
    }
    node.noted(dir::write_atomic(&place(node), text.as_bytes()));
    checkpoint(Checkpoint::DataKept);
}

fn kept(node: &Node, from: &str) -> Option<Document> {
    let text = match fs::read_text(&place(node), MAX_BYTES as u64) {
        Ok(text) => text,
        Err(error) => {
            tracing::debug!(error = %chain(&error), "no data is kept");
            return None;
        }
    };
    let (name, rest) = text.strip_prefix("# ")?.split_once('\n')?;
    let shown = crate::http::shown(from);
    (name == from || name == shown).then(|| Document::parse(rest, name).ok()).flatten()
}
