//! `scaffold`: directories of templates, rendered into a target directory.
//!
//! `observe` renders all templates in memory; the state has the differences, and a step writes them. So a failing template leaves
//! the target unchanged. `source` reads the templates, `target` compares, writes and removes, `post` runs commands on files that
//! change. The languages are in `template`.

mod post;
mod properties;
mod rendered;
mod source;
mod target;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::host::Host;
use crate::model::effects::PathScope;
use crate::model::{Effect, Effects, Identity, Need, lock};
use crate::template::Scope;

use crate::resource::core::common::TemplateScope;
use crate::resource::core::path_order;
use crate::resource::{Change, Invalid, Preview, ProviderEntry, Resource, ResourceError, State};

use rendered::Differences;

pub use properties::{Properties, ScaffoldEngine, ScaffoldEnsure};
pub use rendered::Rendered;

/// Maximum number of listed files of a change.
const NAMED: usize = 20;

/// Directories of templates.
pub struct ScaffoldType;

/// The observed state of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScaffoldState {
    #[serde(skip)]
    rendered: Option<Arc<Rendered>>,
    #[serde(skip)]
    differences: Differences,
    metadata: Metadata,
}

/// The details in the `status` of events; paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
struct Metadata {
    name: String,
    provider: &'static str,
    target_exists: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    purged: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stable: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<ScaffoldEngine>,
}

impl ScaffoldState {
    fn new(p: &Properties, target_exists: bool, rendered: Option<Arc<Rendered>>, differences: Differences) -> Self {
        let absolute = |paths: &[String]| paths.iter().map(|path| p.target().join(path).display().to_string()).collect();
        let mut changed: Vec<String> = [absolute(&differences.added), absolute(&differences.updated)].concat();
        changed.sort();
        let metadata = Metadata {
            name: p.name.clone(),
            provider: PROVIDER,
            target_exists,
            changed,
            purged: absolute(&differences.extra),
            stable: absolute(&differences.stable),
            engine: rendered.as_ref().map(|rendered| rendered.engine).or(p.engine),
        };
        Self { rendered, differences, metadata }
    }
}

impl State for ScaffoldState {
    fn ensure(&self) -> &str {
        if self.metadata.target_exists { "present" } else { "absent" }
    }
}

/// A step towards the desired target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScaffoldChange {
    /// Write the different files, and remove purged files.
    Write {
        /// Number of files.
        files: usize,
        /// The files, each with its difference.
        details: Vec<String>,
    },
    /// Remove the files of the templates, and directories that become empty.
    Remove {
        /// Number of files.
        files: usize,
        /// The files.
        details: Vec<String>,
    },
    /// Make the target without any file, which is an error.
    EmptyTarget,
}

impl fmt::Display for ScaffoldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { files, .. } => write!(f, "changed {files} scaffold files"),
            Self::Remove { files, .. } => write!(f, "removed {files} scaffold files"),
            Self::EmptyTarget => f.write_str("created the target directory"),
        }
    }
}

impl Change for ScaffoldChange {
    fn details(&self) -> Vec<String> {
        match self {
            Self::Write { details, .. } | Self::Remove { details, .. } => details.clone(),
            Self::EmptyTarget => vec![self.to_string()],
        }
    }
}

/// The interface of scaffold providers.
pub trait Renderer: Send + Sync {
    /// Renders the templates.
    ///
    /// # Errors
    /// When a template can't be read or rendered.
    fn render(&self, p: &Properties, host: &Host) -> Result<Arc<Rendered>, ResourceError>;
    /// Caches the applied result, so that observing the target right afterwards needs no second rendering.
    fn cache(&self, p: &Properties, rendered: Arc<Rendered>);
}

const PROVIDER: &str = "choria";

/// The provider of every host. The name is that of the Go system's provider.
#[derive(Default)]
struct Choria {
    applied: Mutex<HashMap<String, Arc<Rendered>>>,
}

/// Returns a key that only equal resources share.
fn key(p: &Properties) -> String {
    serde_json::to_string(p).unwrap_or_else(|_| p.name.clone())
}

impl Renderer for Choria {
    fn render(&self, p: &Properties, host: &Host) -> Result<Arc<Rendered>, ResourceError> {
        let applied = lock(&self.applied).remove(&key(p));
        match applied {
            Some(rendered) => Ok(rendered),
            None => source::render(p, host).map(Arc::new),
        }
    }

    fn cache(&self, p: &Properties, rendered: Arc<Rendered>) {
        lock(&self.applied).insert(key(p), rendered);
    }
}

impl Resource for ScaffoldType {
    const TYPE: &'static str = "scaffold";
    const CHANGES_SYSTEM: bool = false;
    const ABOUT: &'static str = "Directories of templates, rendered into a target directory.";
    const TEMPLATED_KEYS: &'static [&'static str] = &["data"];
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "absent removes in the same place"),
        ("engine", "how templates are read"),
        ("left_delimiter", "how templates are read"),
        ("right_delimiter", "how templates are read"),
        ("skip_empty", "which files are written below the target"),
        ("purge", "removes below the target, which is written anyway"),
        ("data", "what templates see"),
        ("follow", "links on the way are followed before rules and limits are asked again"),
    ];
    const CONTENT: &'static [&'static str] = &["data"];
    const PROVIDERS: &'static [ProviderEntry<dyn Renderer>] =
        &[ProviderEntry::everywhere(PROVIDER, |_| Box::new(Choria::default()))];

    type Properties = Properties;
    type State = ScaffoldState;
    type Change = ScaffoldChange;
    type Provider = dyn Renderer;

    fn validate(p: &Properties) -> Result<(), Invalid> {
        check_target(&p.name)?;
        if p.source.is_empty() {
            return Err(Invalid::new("source", "source cannot be empty"));
        }
        post::check(&p.post)
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        p.ensure.as_str()
    }

    fn effects(p: &Properties) -> Effects {
        let mut effects = Effects::default();
        effects.push(Effect::write_below(&p.name));
        effects.push(Effect::Read(PathScope::below(&p.source)));
        // Observing renders the templates, and runs commands on copies.
        effects.extend(p.post.iter().flat_map(BTreeMap::values).map(Effect::run_always));
        effects
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        let directory = || Identity::Directory(p.name.clone().into());
        (p.ensure == ScaffoldEnsure::Present).then(directory).into_iter().collect()
    }

    fn needs(p: &Properties) -> Vec<Need> {
        let mut needs = path_order::path_needs(&p.name, "", "");
        needs.push(Need::path(&p.name));
        needs.extend(path_order::existing_path_needs(&p.source));
        needs.extend(p.post.iter().flat_map(BTreeMap::values).flat_map(|command| path_order::command_needs(command)));
        needs
    }

    fn attach_scope(p: &mut Properties, scope: &Scope) {
        p.surroundings = TemplateScope::new(scope);
    }

    fn observe(p: &Properties, provider: &dyn Renderer, host: &Host) -> Result<ScaffoldState, ResourceError> {
        let target_exists = target::exists(p, host)?;
        source::check_disjoint(p, host)?;
        if p.ensure == ScaffoldEnsure::Absent {
            if !target_exists {
                source::check_directory(p, host)?;
                return Ok(ScaffoldState::new(p, false, None, Differences::default()));
            }
            let rendered = provider.render(p, host)?;
            let differences = target::remaining(p, &rendered, host)?;
            return Ok(ScaffoldState::new(p, true, Some(rendered), differences));
        }
        let rendered = provider.render(p, host)?;
        let (rendered, differences) = target::compare(p, rendered, target_exists, host)?;
        Ok(ScaffoldState::new(p, target_exists, Some(rendered), differences))
    }

    fn diff(p: &Properties, state: &ScaffoldState) -> Result<Vec<ScaffoldChange>, ResourceError> {
        let Differences { added, updated, stable, extra } = &state.differences;
        let purged: &[String] = if p.purge { extra } else { &[] };
        let changed = added.len() + updated.len();
        if p.ensure == ScaffoldEnsure::Absent {
            // As the Go system counts: extra files too with purge, although they stay.
            let files = changed + stable.len() + purged.len();
            let details = list_files([("removed", updated.as_slice()), ("removed", stable.as_slice())]);
            return Ok(if changed + stable.len() == 0 { vec![] } else { vec![ScaffoldChange::Remove { files, details }] });
        }
        if changed + stable.len() == 0 {
            return if state.metadata.target_exists { Err(no_files_error()) } else { Ok(vec![ScaffoldChange::EmptyTarget]) };
        }
        let files = changed + purged.len();
        let details = list_files([("created", added.as_slice()), ("updated", updated.as_slice()), ("removed", purged)]);
        Ok(if files == 0 { vec![] } else { vec![ScaffoldChange::Write { files, details }] })
    }

    fn apply(
        change: &ScaffoldChange,
        p: &Properties,
        state: &mut ScaffoldState,
        provider: &dyn Renderer,
        host: &Host,
    ) -> Result<(), ResourceError> {
        match (change, &state.rendered) {
            (ScaffoldChange::Write { .. }, Some(rendered)) => {
                target::write(p, rendered, &state.differences, host)?;
                provider.cache(p, Arc::clone(rendered));
                Ok(())
            }
            (ScaffoldChange::Remove { .. }, Some(_)) => target::remove(p, &state.differences, host),
            (ScaffoldChange::EmptyTarget, _) => {
                target::create(p, host)?;
                Err(no_files_error())
            }
            (_, None) => Ok(()),
        }
    }

    fn preview(p: &Properties, state: &ScaffoldState, host: &Host) -> Option<Preview> {
        target::preview(p, state.rendered.as_ref()?, &state.differences, host)
    }
}

fn no_files_error() -> ResourceError {
    let message = "failed to reach desired state: present: scaffold produced no changed, stable, or purged files: \
                   no template of the source makes a file";
    ResourceError::State(message.to_owned())
}

/// Lists files with their actions; the first few of many.
fn list_files<const N: usize>(lists: [(&str, &[String]); N]) -> Vec<String> {
    let all: usize = lists.iter().map(|(_, paths)| paths.len()).sum();
    let each = lists.iter().flat_map(|(done, paths)| paths.iter().map(move |path| format!("{done} {path}")));
    let mut details: Vec<String> = each.take(NAMED).collect();
    if all > NAMED {
        details.push(format!("and {} more", all - NAMED));
    }
    details
}

fn check_target(name: &str) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::new("name", "name is required"));
    }
    let Some(below) = name.strip_prefix('/') else {
        return Err(Invalid::new("name", format!("name must be an absolute path: \"{name}\"")));
    };
    if below.is_empty() {
        return Err(Invalid::new("name", "name must not be the filesystem root"));
    }
    if below.split('/').any(|part| matches!(part, "" | "." | "..")) {
        let message = format!("name must be a canonical path, without \".\", \"..\" or extra slashes: \"{name}\"");
        return Err(Invalid::new("name", message));
    }
    if name.contains('\0') {
        return Err(Invalid::new("name", "name must not contain a NUL character"));
    }
    Ok(())
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
