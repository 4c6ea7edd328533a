//! The context of a plan: the manifests around a nested manifest, and the known resources before it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::known_resource::KnownResource;
use crate::host::{Host, fs};
use crate::manifest::ManifestText;
use crate::model::effects::{EffectKind, PathScope};
use crate::model::{Effect, ReadAccess, ResourceRef, UnrestrictedAccess};
use crate::resource::Types;

/// Maximum depth of nested manifests: a manifest that applies itself must end.
pub(in crate::engine) const MAX_DEPTH: usize = 10;

/// The context of a nested manifest: the manifests around it, and the known resources before it.
#[derive(Clone)]
pub(super) struct PlanContext {
    pub(super) host: Host,
    pub(super) access: Arc<dyn ReadAccess>,
    pub(super) types: Types,
    /// True without a node: files outside of the command are on another host.
    pub(super) has_no_node: bool,
    /// True when the plan is for a single resource.
    is_single: bool,
    /// True when unknown resources may have run before.
    open: bool,
    names: HashMap<String, HashSet<String>>,
    earlier_effects: Vec<Effect>,
    /// The manifests around, the outermost first: directory and digest.
    pub(super) chain: Vec<(PathBuf, String)>,
}

impl PlanContext {
    /// Returns the context of a run without earlier resources.
    pub(super) fn new(host: &Host, access: &Arc<dyn ReadAccess>, types: &Types) -> Self {
        let (access, types) = (Arc::clone(access), types.clone());
        let (names, earlier_effects, chain) = Default::default();
        let host = host.clone();
        Self { host, access, types, has_no_node: false, is_single: false, open: false, names, earlier_effects, chain }
    }

    /// Returns the context without a node, of a run without earlier resources.
    pub(super) fn without_node(host: &Host, types: &Types) -> Self {
        let access: Arc<dyn ReadAccess> = Arc::new(UnrestrictedAccess);
        Self { has_no_node: true, ..Self::new(host, &access, types) }
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
    pub(super) fn may_be_made(&self, path: &Path) -> bool {
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

pub(super) fn manifest_key(source: &ManifestText) -> (PathBuf, String) {
    let directory = source.directory.as_deref().map(fs::resolve_links).unwrap_or_default();
    (directory, fs::sha256(source.text.as_bytes()))
}
