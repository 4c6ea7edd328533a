//! Checks of nested manifests before the run. A manifest that is missing, unreadable or applies itself is an error of the
//! manifest that names it.
//!
//! A file that an earlier resource may create, or a condition may skip, is checked by the run only.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::precheck::check_manifest;
use super::relations::KnownResource;
use crate::diag::{Diagnostic, error_chain};
use crate::engine::nested::MAX_DEPTH;
use crate::engine::template_files::GuardedFiles;
use crate::host::{Host, fs};
use crate::manifest::{MAX_MANIFEST, ManifestText};
use crate::model::effects::{EffectKind, PathScope};
use crate::model::{Effect, ReadAccess, ResourceRef, UnrestrictedAccess};
use crate::yaml::YamlDocument;

/// The context of a nested manifest: the manifests around it, and the known resources before it.
#[derive(Clone)]
pub(super) struct PlanContext {
    host: Host,
    access: Arc<dyn ReadAccess>,
    /// True without a node: files outside of the command are on another host.
    has_no_node: bool,
    /// True when the plan is for a single resource.
    is_single: bool,
    /// True when unknown resources may have run before.
    open: bool,
    names: HashMap<String, HashSet<String>>,
    earlier_effects: Vec<Effect>,
    /// The manifests around, the outermost first: directory and digest.
    chain: Vec<(PathBuf, String)>,
}

impl PlanContext {
    /// Returns the context of a run without earlier resources.
    pub(super) fn new(host: &Host, access: &Arc<dyn ReadAccess>) -> Self {
        let access = Arc::clone(access);
        let (names, earlier_effects, chain) = Default::default();
        Self { host: host.clone(), access, has_no_node: false, is_single: false, open: false, names, earlier_effects, chain }
    }

    /// Returns the context without a node, of a run without earlier resources.
    pub(super) fn without_node(host: &Host) -> Self {
        let access: Arc<dyn ReadAccess> = Arc::new(UnrestrictedAccess);
        Self { has_no_node: true, ..Self::new(host, &access) }
    }

    /// Marks a plan for a single resource.
    #[must_use]
    pub(super) fn for_single_resource(self) -> Self {
        Self { is_single: true, ..self }
    }

    /// Marks a plan after other resources, which a session knows.
    #[must_use]
    pub(super) fn in_session(self) -> Self {
        Self { open: true, ..self }
    }

    /// Enters this manifest.
    pub(super) fn enter(&mut self, source: &ManifestText) {
        self.chain.push(manifest_key(source));
    }

    pub(super) fn has(&self, reference: &ResourceRef) -> bool {
        self.names.get(&reference.kind).is_some_and(|names| names.contains(&reference.name))
    }

    pub(super) fn names(&self, kind: &str) -> impl Iterator<Item = &str> {
        self.names.get(kind).into_iter().flatten().map(String::as_str)
    }

    /// Marks the resources before this point as unknown.
    pub(super) fn leave_open(&mut self) {
        self.open = true;
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn is_single_resource(&self) -> bool {
        self.is_single
    }

    /// Returns true within a nested manifest.
    pub(super) fn is_child(&self) -> bool {
        self.chain.len() > 1
    }

    /// Adds a resource to the earlier resources.
    pub(super) fn add(&mut self, known: &KnownResource<'_>) {
        self.open |= known.name.is_none() || known.alias.is_none();
        let names = self.names.entry(known.kind.name().to_owned()).or_default();
        names.extend(known.names().map(str::to_owned));
        let host = self.host.clone();
        let absolute = |effect: Effect| match effect {
            Effect::Write { place, implied } => {
                let path = host.resolve(Path::new(&place.path)).display().to_string();
                Effect::Write { place: PathScope { path, ..place }, implied }
            }
            other => other,
        };
        self.earlier_effects.extend(known.effects().into_iter().map(absolute));
    }

    /// Returns true when an earlier resource may have made or changed this file.
    fn may_be_made(&self, path: &Path) -> bool {
        let above = |maker: &Path| path.starts_with(maker) || path.starts_with(fs::resolve_links(maker));
        // A command may make a file that it names, or a file in a directory that it names or runs in.
        let names = |text: &str| {
            let words = text.split(|c: char| c.is_whitespace() || "\"'`;|&()<>=$,".contains(c)).filter(|word| !word.is_empty());
            words.map(Path::new).any(|word| {
                let within = self.host.resolve(word);
                (word.file_name().is_some() && word.file_name() == path.file_name())
                    || (within != Path::new("/") && above(&within))
            })
        };
        self.earlier_effects.iter().any(|maker| match maker {
            Effect::Write { place, .. } => above(Path::new(&place.path)),
            Effect::Mount(mounting) => above(Path::new(&mounting.point)),
            Effect::Run { command, dry: false } => names(command),
            Effect::Variable { name, value } if name == "PWD" => names(value.reveal()),
            Effect::Look(place) => names(&place.path),
            Effect::Package(_) => self.host.directory().is_none_or(|own| !path.starts_with(own)),
            Effect::Unknown { aspect, .. } => {
                matches!(aspect, None | Some(EffectKind::Write | EffectKind::Run | EffectKind::Mount | EffectKind::Variable))
            }
            _ => false,
        })
    }
}

fn manifest_key(source: &ManifestText) -> (PathBuf, String) {
    let directory = source.directory.as_deref().map(fs::resolve_links).unwrap_or_default();
    (directory, fs::sha256(source.text.as_bytes()))
}

/// Checks a nested manifest, and those within it. `list` has the resources beside it.
pub(super) fn check(
    known: &KnownResource<'_>,
    list: &[KnownResource<'_>],
    document: &YamlDocument,
    around: &mut PlanContext,
    wrong: &mut Vec<Diagnostic>,
) {
    let mut say = |message: String, hint: &str| wrong.push(known.diagnose(document, "name", &message, hint));
    let Some((file, allows)) = child_path(known) else {
        around.open = true;
        return;
    };
    let path = match find(known, &file, list, around) {
        ChildFile::At(path) => path,
        ChildFile::Unknown => {
            around.open = true;
            return;
        }
        ChildFile::Missing => {
            let message = format!("{file} is missing: the command has the manifest without the files beside it");
            return say(message, "give the directory that has both: all its files are sent");
        }
    };
    let files = GuardedFiles { host: around.host.clone(), access: Arc::clone(&around.access) };
    let read = files.read(&file, MAX_MANIFEST).map(|found| ManifestText::from_bytes(&path, found.text.into_bytes()));
    let source = match read {
        Ok(Ok(source)) => source,
        Ok(Err(error)) => return say(error_chain(&error), MAKER),
        Err(why) => return say(why, MAKER),
    };
    let own = manifest_key(&source);
    if around.chain.contains(&own) {
        return say(format!("{file} is applied within itself, without end"), "add a control to the apply resource");
    }
    if around.chain.len() >= MAX_DEPTH {
        return say(format!("{file}: maximum apply depth of {MAX_DEPTH} exceeded"), "apply it at a lower depth");
    }
    let outer = around.host.clone();
    if let Some(directory) = &source.directory {
        around.host = outer.clone().with_directory(directory);
    }
    around.chain.push(own);
    let applies = check_manifest(&source, around, wrong);
    around.chain.pop();
    around.host = outer;
    if applies && !allows {
        let message = format!("{file}: apply resources are denied in this manifest by allow_apply");
        wrong.push(known.diagnose(document, "allow_apply", &message, "remove allow_apply, or the apply resources in that file"));
    }
}

/// The hint for a file that cannot be read now, but will exist in time.
const MAKER: &str = "a command that makes it names it in \"creates\", or is named in the require of the apply";

enum ChildFile {
    At(PathBuf),
    /// Existence or content is unknown until the resource runs.
    Unknown,
    /// The file is missing where the plan needs it.
    Missing,
}

fn find(known: &KnownResource<'_>, file: &str, list: &[KnownResource<'_>], around: &PlanContext) -> ChildFile {
    if known.conditional {
        return ChildFile::Unknown;
    }
    if around.has_no_node && around.host.directory().is_none() && Path::new(file).is_relative() {
        return ChildFile::Missing;
    }
    let files = GuardedFiles { host: around.host.clone(), access: Arc::clone(&around.access) };
    // A denied file is rejected when its resource is reached.
    let Ok(path) = files.allowed_path(file) else { return ChildFile::Unknown };
    let elsewhere = around.has_no_node || around.access.hides_values();
    if elsewhere && !around.host.is_in_manifest_directory(&fs::resolve_links(&path)) {
        return ChildFile::Unknown;
    }
    let runs = |other: &KnownResource<'_>| other.effects().iter().any(|effect| matches!(effect, Effect::Run { dry: false, .. }));
    let needs_command =
        known.references.iter().any(|(_, reference)| list.iter().any(|other| other.is_named(reference) && runs(other)));
    if needs_command || around.may_be_made(&path) { ChildFile::Unknown } else { ChildFile::At(path) }
}

/// Returns the path of the manifest, and if it may apply others.
fn child_path(known: &KnownResource<'_>) -> Option<(String, bool)> {
    match known.decoded {
        Some(decoded) => decoded.nested().map(|nested| (nested.file, nested.allow_apply)),
        // Other properties may wait for a node, the name may not.
        None => known.name.filter(|name| !name.is_empty()).map(|name| (name.to_owned(), true)),
    }
}
