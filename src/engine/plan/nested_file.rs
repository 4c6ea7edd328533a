//! The file of a nested manifest. Only the run can know a file that an earlier resource may create.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::context::PlanContext;
use super::known_resource::KnownResource;
use crate::engine::template_files::GuardedFiles;
use crate::host::fs;
use crate::model::Effect;

/// The hint for a file that cannot be read now, but will exist in time.
pub(super) const MAKER: &str = "a command that makes it names it in \"creates\", or is named in the require of the apply";

/// The file of a nested manifest, before the run.
pub(super) enum ChildFile {
    /// The file is there.
    At(PathBuf),
    /// Existence or content is unknown until the resource runs.
    Unknown,
    /// The file is missing where the plan needs it.
    Missing,
}

/// Finds the file of a nested manifest; `list` has the resources beside it.
pub(super) fn find(known: &KnownResource<'_>, file: &str, list: &[KnownResource<'_>], context: &PlanContext) -> ChildFile {
    if known.conditional {
        return ChildFile::Unknown;
    }
    if context.has_no_node && context.host.directory().is_none() && Path::new(file).is_relative() {
        return ChildFile::Missing;
    }
    let files = GuardedFiles { host: context.host.clone(), access: Arc::clone(&context.access) };
    // A denied file is rejected when its resource is reached.
    let Ok(path) = files.allowed_path(file) else { return ChildFile::Unknown };
    let elsewhere = context.has_no_node || context.access.hides_values();
    if elsewhere && !context.host.is_in_manifest_directory(&fs::resolve_links(&path)) {
        return ChildFile::Unknown;
    }
    let runs = |other: &KnownResource<'_>| other.effects().iter().any(|effect| matches!(effect, Effect::Run { dry: false, .. }));
    let needs_command =
        known.references.iter().any(|(_, reference)| list.iter().any(|other| other.is_named(reference) && runs(other)));
    if needs_command || context.may_be_made(&path) { ChildFile::Unknown } else { ChildFile::At(path) }
}

/// Returns the path of the manifest, and if it may apply others.
pub(super) fn child_path(known: &KnownResource<'_>) -> Option<(String, bool)> {
    match known.decoded {
        Some(decoded) => decoded.nested().map(|nested| (nested.file, nested.allow_apply)),
        // Other properties may wait for a node, the name may not.
        None => known.name.filter(|name| !name.is_empty()).map(|name| (name.to_owned(), true)),
    }
}
