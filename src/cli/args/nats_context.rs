//! Contexts of the NATS CLI: their files, and the selected one.

use std::path::{Path, PathBuf};

use crate::config::{NatsSettings, context};
use crate::diag::Diagnostic;
use crate::host::fs;

use crate::cli::error::{CliError, Exit};

/// Largest context file in bytes.
const MAX_CONTEXT_SIZE: u64 = 1 << 20;

/// Loads a context by its name or file; the selected one when the name is empty.
///
/// # Errors
/// When there is no such context, or it can't be used.
pub(in crate::cli) fn load(name: &str) -> Result<NatsSettings, CliError> {
    let name = if name.is_empty() { selected()? } else { name.to_owned() };
    let path = if name.ends_with(".json") && name.contains('/') { PathBuf::from(&name) } else { file(&name)? };
    let text = fs::read_named_text(&path, MAX_CONTEXT_SIZE).map_err(|error| {
        let failure = CliError::from_error(Exit::Usage, &error);
        if error.is_not_found() { failure.hint(list_contexts(&path)) } else { failure }
    })?;
    let nats = context::read(&text, &path.display().to_string(), home().as_deref());
    let nats = nats.map_err(|wrong| CliError::new(Exit::Usage, wrong))?;
    Ok(NatsSettings { context: Some(name), ..nats })
}

fn path_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn home() -> Option<PathBuf> {
    // A system service has no HOME unless its unit sets one.
    path_variable("HOME").or_else(|| (crate::host::account::effective_uid() == 0).then(|| PathBuf::from("/root")))
}

/// Returns the directory of the NATS CLI.
fn directory() -> Result<PathBuf, CliError> {
    let config = path_variable("XDG_CONFIG_HOME").or_else(|| home().map(|home| home.join(".config")));
    let missing =
        || CliError::usage("cannot find NATS contexts: there is no home directory").hint("name the file of the context");
    Ok(config.ok_or_else(missing)?.join("nats"))
}

fn file(name: &str) -> Result<PathBuf, CliError> {
    if name.contains('/') || name.contains("..") {
        return Err(CliError::usage(format!("\"{name}\" is not the name of a NATS context")));
    }
    Ok(directory()?.join("context").join(format!("{name}.json")))
}

fn selected() -> Result<String, CliError> {
    let path = directory()?.join("context.txt");
    let name = fs::read_named_text(&path, 4096).map(|text| text.trim().to_owned()).unwrap_or_default();
    if name.is_empty() {
        let diagnostic = Diagnostic::new("no NATS context is selected").hint("select one: nats context select NAME");
        return Err(CliError::new(Exit::Usage, diagnostic));
    }
    Ok(name)
}

/// Lists the contexts, for a hint.
fn list_contexts(path: &Path) -> String {
    let files = path.parent().and_then(|directory| fs::list(directory).ok()).unwrap_or_default();
    let mut names: Vec<String> = files
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    if names.is_empty() {
        "there is no NATS context; `nats context add` creates one".to_owned()
    } else {
        format!("known contexts: {}", names.join(", "))
    }
}
