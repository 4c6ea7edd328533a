//! Checks of nested manifests before the run. A manifest that is missing, unreadable or applies itself is an error of the
//! manifest that names it.
//!
//! A file that an earlier resource may create, or a condition may skip, is checked by the run only.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::precheck::examine;
use super::relations::KnownResource;
use crate::diag::{Diagnostic, chain};
use crate::engine::files::Files;
use crate::engine::nested::MAX_DEPTH;
use crate::host::{Host, fs};
use crate::manifest::{MAX_MANIFEST, Source};
use crate::model::effects::{EffectKind, PathScope};
use crate::model::{Effect, ReadAccess, ResourceRef, UnrestrictedAccess};
use crate::yaml::Document;

/// The context of a nested manifest: the manifests around it, and the resources before it, as far as they are known.
#[derive(Clone)]
pub(super) struct PlanContext {
    host: Host,
    access: Arc<dyn ReadAccess>,
    /// True without a node: files outside of the command are on another host.
    away: bool,
    /// True when the plan is for a single resource.
    alone: bool,
    /// True when unknown resources may have run before.
    open: bool,
    names: HashMap<String, HashSet<String>>,
    makers: Vec<Effect>,
    /// The manifests around, the outermost first: directory and digest.
    chain: Vec<(PathBuf, String)>,
}

impl PlanContext {
    /// Returns the context of a run without earlier resources.
    pub(super) fn nothing(host: &Host, access: &Arc<dyn ReadAccess>) -> Self {
        let access = Arc::clone(access);
        let (names, makers, chain) = Default::default();
        Self { host: host.clone(), access, away: false, alone: false, open: false, names, makers, chain }
    }

    /// Returns the context without a node, of a run without earlier resources.
    pub(super) fn away(host: &Host) -> Self {
        let access: Arc<dyn ReadAccess> = Arc::new(UnrestrictedAccess);
        Self { away: true, ..Self::nothing(host, &access) }
    }

    /// Marks a plan for a single resource.
    #[must_use]
    pub(super) fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Marks a plan after other resources, which a session knows.
    #[must_use]
    pub(super) fn after_others(self) -> Self {
        Self { open: true, ..self }
    }

    /// Enters this manifest.
    pub(super) fn enter(&mut self, source: &Source) {
        self.chain.push(key(source));
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

    pub(super) fn is_alone(&self) -> bool {
        self.alone
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
        self.makers.extend(known.effects().into_iter().map(absolute));
    }

    /// Returns true when an earlier resource may have made or changed this file.
    fn may_be_made(&self, path: &Path) -> bool {
        let above = |maker: &Path| path.starts_with(maker) || path.starts_with(fs::real(maker));
        // A command may make a file that it names, or a file in a directory that it names or runs in.
        let names = |text: &str| {
            let words = text.split(|c: char| c.is_whitespace() || "\"'`;|&()<>=$,".contains(c)).filter(|word| !word.is_empty());
            words.map(Path::new).any(|word| {
                let within = self.host.resolve(word);
                (word.file_name().is_some() && word.file_name() == path.file_name())
                    || (within != Path::new("/") && above(&within))
            })
        };
        self.makers.iter().any(|maker| match maker {
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

fn key(source: &Source) -> (PathBuf, String) {
    let directory = source.directory.as_deref().map(fs::real).unwrap_or_default();
    (directory, fs::sha256(source.text.as_bytes()))
}

/// Checks a nested manifest, and those within it. `list` has the resources beside it.
pub(super) fn check(
    known: &KnownResource<'_>,
    list: &[KnownResource<'_>],
    document: &Document,
    around: &mut PlanContext,
    wrong: &mut Vec<Diagnostic>,
) {
    let mut say = |message: String, hint: &str| wrong.push(known.diagnose(document, "name", &message, hint));
    let Some((file, allows)) = file_of(known) else {
        around.open = true;
        return;
    };
    let path = match find(known, &file, list, around) {
        Found::At(path) => path,
        Found::Unknown => {
            around.open = true;
            return;
        }
        Found::Alone => {
            let message = format!("{file} is missing: the command has the manifest without the files beside it");
            return say(message, "give the directory that has both: all its files are sent");
        }
    };
    let files = Files { host: around.host.clone(), access: Arc::clone(&around.access) };
    let read = files.read(&file, MAX_MANIFEST).map(|found| Source::of(&path, found.text.into_bytes()));
    let source = match read {
        Ok(Ok(source)) => source,
        Ok(Err(error)) => return say(chain(&error), MAKER),
        Err(why) => return say(why, MAKER),
    };
    let own = key(&source);
    if around.chain.contains(&own) {
        return say(format!("{file} is applied within itself, without end"), "add a control to the apply resource");
    }
    if around.chain.len() >= MAX_DEPTH {
        return say(format!("{file}: maximum apply depth of {MAX_DEPTH} exceeded"), "apply it at a lower depth");
    }
    let outer = around.host.clone();
    if let Some(directory) = &source.directory {
        around.host = outer.clone().in_directory(directory);
    }
    around.chain.push(own);
    let applies = examine(&source, around, wrong);
    around.chain.pop();
    around.host = outer;
    if applies && !allows {
        let message = format!("{file}: apply resources are denied in this manifest by allow_apply");
        wrong.push(known.diagnose(document, "allow_apply", &message, "remove allow_apply, or the apply resources in that file"));
    }
}

/// The hint for a file that cannot be read now, but will exist in time.
const MAKER: &str = "a command that makes it names it in \"creates\", or is named in the require of the apply";

enum Found {
    At(PathBuf),
    /// Existence or content is unknown until the resource runs.
    Unknown,
    /// The file is missing where the plan needs it.
    Alone,
}

fn find(known: &KnownResource<'_>, file: &str, list: &[KnownResource<'_>], around: &PlanContext) -> Found {
    if known.conditional {
        return Found::Unknown;
    }
    if around.away && around.host.directory().is_none() && Path::new(file).is_relative() {
        return Found::Alone;
    }
    let files = Files { host: around.host.clone(), access: Arc::clone(&around.access) };
    // A denied file is rejected when its resource is reached.
    let Ok(path) = files.allowed(file) else { return Found::Unknown };
    let elsewhere = around.away || around.access.hides_values();
    if elsewhere && !around.host.is_own(&fs::real(&path)) {
        return Found::Unknown;
    }
    let runs = |other: &KnownResource<'_>| other.effects().iter().any(|effect| matches!(effect, Effect::Run { dry: false, .. }));
    let needs_command =
        known.wanted.iter().any(|(_, reference)| list.iter().any(|other| other.is_named(reference) && runs(other)));
    if needs_command || around.may_be_made(&path) { Found::Unknown } else { Found::At(path) }
}

/// Returns the path of the manifest, and if it may apply others.
fn file_of(known: &KnownResource<'_>) -> Option<(String, bool)> {
    match known.decoded {
        Some(decoded) => decoded.nested().map(|nested| (nested.file, nested.allow_apply)),
        // Other properties may wait for a node, the name may not.
        None => known.name.filter(|name| !name.is_empty()).map(|name| (name.to_owned(), true)),
    }
}
