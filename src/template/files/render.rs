//! The rendering of a directory of template files.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::FileError;
use super::session::{Engine, RenderSession, RenderedFile, TemplateFiles, TreeOptions};
use super::{go, jinja};
use crate::template::Scope;

/// Renders all files except parts. Returns the rendered files by path.
///
/// # Errors
/// Returns the error of the first file that can't be rendered.
pub fn render_tree(
    scope: &Scope,
    files: TemplateFiles,
    options: TreeOptions,
) -> Result<BTreeMap<String, RenderedFile>, FileError> {
    let session = Arc::new(RenderSession::new(scope, files, options));
    match session.engine {
        Engine::Go => go::render(&session)?,
        Engine::Jinja | Engine::Jet => jinja::render(&session)?,
    }
    Ok(session.take_rendered_files())
}
