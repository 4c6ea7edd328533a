//! The limits of this host, in the form that each part of the agent needs: the verifier, the engine, fetching.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::{self, Login, SecretFrom};
use crate::engine::Authorizer;
use crate::host::{Host, fs};
use crate::manifest::fetch::FetchLimits;
use crate::model::access::{ReadAccess, TemplateRead};
use crate::model::effects::PathScope;
use crate::model::{Effect, Effects, MountRequest, ResourceLimits};
use crate::trust::{NodeLimits, Rights};

/// Returns the limits for the verifier.
pub(in crate::agent) fn node_limits(settings: &config::AgentSettings) -> NodeLimits {
    let config::Limits { types, paths, read_paths, exec, mount, apply, watch, fetch_hosts, .. } = settings.limits.clone();
    NodeLimits { types, paths, read_paths, exec, mount, fetch_hosts, apply, watch, channels: settings.channels.clone() }
}

/// Returns the limits for fetching.
pub(in crate::agent) fn fetch_limits(settings: &config::AgentSettings, timeout: Duration) -> FetchLimits {
    FetchLimits { max: settings.max_bundle, hosts: settings.limits.fetch_hosts.clone(), timeout }
}

/// Returns the limits for resources that fetch and unpack.
pub(in crate::agent) fn resource_limits(limits: &config::Limits) -> ResourceLimits {
    ResourceLimits {
        fetch_hosts: limits.fetch_hosts.clone(),
        internal: false,
        // A run that may write to a path may read there too.
        read_paths: limits.read_paths.clone().or_else(|| limits.paths.clone()),
        write_paths: limits.paths.clone(),
        archive_size: limits.archive_size,
        archive_entries: limits.archive_entries,
        archive_ratio: limits.archive_ratio,
    }
}

/// Returns the files of the agent itself: its state, its configuration, its keys, the nodes that it trusts. The programs of
/// external types are among them. No run may touch them.
pub(in crate::agent) fn own_files(settings: &config::AgentSettings) -> Vec<PathBuf> {
    let login = settings.nats.login().and_then(|login| match login {
        Login::Creds(path) | Login::Nkey(path) => Some(path),
        Login::User { password: SecretFrom::File(path), .. } | Login::Token(SecretFrom::File(path)) => Some(path),
        Login::User { .. } | Login::Token(_) | Login::Jwt { .. } => None,
    });
    let identity = settings.nats.tls.clone().into_iter().flat_map(|tls| [tls.cert, tls.key]).flatten();
    let own = [settings.state_dir.clone(), settings.file.clone()];
    let trusted =
        [&settings.trust.bundle, &settings.registration.known_nodes, &settings.types.dir].into_iter().flatten().cloned();
    own.into_iter().chain(trusted).chain(login).chain(identity).collect()
}

/// Authorizes the effects of each resource of a run, when its templates are resolved. The limits of the host and the rights of
/// the command decide. No run may touch the agent's own files.
pub(in crate::agent) struct RunAuthorizer {
    limits: NodeLimits,
    rights: Rights,
    /// The limits and rights over paths with their links resolved, as the links lead when the run begins.
    resolved: (NodeLimits, Rights),
    own_files: Vec<PathBuf>,
    /// The directory of the signed bundle, with links resolved. A run may read its files.
    bundle: Option<PathBuf>,
}

impl RunAuthorizer {
    /// Returns the authorizer of a run with these rights, of the bundle in this directory.
    pub(in crate::agent) fn new(limits: NodeLimits, rights: Rights, own: &[PathBuf], bundle: Option<&Path>) -> Self {
        let resolved = (limits.resolve_links(resolved_path), rights.resolve_links(resolved_path));
        let own_files = own.iter().flat_map(|path| [path.clone(), fs::resolve_links(path)]).collect();
        Self { limits, rights, resolved, own_files, bundle: bundle.map(fs::resolve_links) }
    }

    fn is_in_bundle(&self, path: &Path) -> bool {
        self.bundle.as_deref().is_some_and(|bundle| fs::resolve_links(path).starts_with(bundle))
    }

    /// Rejects effects on the agent's own files. An effect that changes or covers files is also rejected on the
    /// directories above them.
    fn check_own_files(&self, effect: &Effect) -> Result<(), String> {
        let (place, above) = match effect {
            Effect::Read(place) => (place.clone(), place.below),
            Effect::Expose(place) => (place.clone(), place.below),
            Effect::Write { place, .. } => (place.clone(), true),
            Effect::Mount(mounting) => (PathScope::below(&mounting.point), true),
            _ => return Ok(()),
        };
        let path = Path::new(&place.path);
        let touches = |own: &PathBuf| path.starts_with(own) || (above && own.starts_with(path));
        match self.own_files.iter().find(|own| touches(own)) {
            Some(_) => Err(format!("\"{}\" belongs to the agent itself or is above its files", place.path)),
            None => Ok(()),
        }
    }
}

impl Authorizer for RunAuthorizer {
    fn permit(&self, kind: &str, effects: &Effects, host: &Host) -> Result<(), String> {
        let asked: Effects = effects.iter().filter_map(|effect| self.absolute(effect, host)).collect();
        self.limits.check_effects(kind, &asked)?;
        self.rights.check_effects(kind, &asked)?;
        asked.iter().try_for_each(|effect| self.check_own_files(effect))?;
        let real: Effects = asked.iter().filter_map(resolve_links).collect();
        let leads = |why: String| format!("with links followed: {why}");
        self.resolved.0.check_effects(kind, &real).map_err(leads)?;
        self.resolved.1.check_effects(kind, &real).map_err(leads)?;
        real.iter().try_for_each(|effect| self.check_own_files(effect)).map_err(leads)
    }

    fn may_show(&self, effects: &Effects, host: &Host) -> bool {
        effects.iter().all(|effect| match effect {
            Effect::Read(place) | Effect::Write { place, .. } => self.may_show_file(Path::new(&place.path), host),
            _ => true,
        })
    }
}

impl RunAuthorizer {
    /// Returns true when a template of the run may read this file: by its name and its links' target.
    fn may_show_file(&self, path: &Path, host: &Host) -> bool {
        let path = host.resolve(path);
        [fs::resolve_links(&path), path].iter().all(|path| self.may_read(&TemplateRead::File(path)).is_ok())
    }

    /// Returns an effect with absolute paths: a relative path that is read starts at the directory of the manifest.
    /// Returns none for files of the bundle, which a run may always read.
    fn absolute(&self, effect: &Effect, host: &Host) -> Option<Effect> {
        let Effect::Read(place) = effect else { return Some(effect.clone()) };
        let path = host.resolve(Path::new(&place.path));
        (!self.is_in_bundle(&path))
            .then(|| Effect::Read(PathScope { path: path.to_string_lossy().into_owned(), below: place.below }))
    }
}

impl ReadAccess for RunAuthorizer {
    fn may_read(&self, read: &TemplateRead<'_>) -> Result<(), String> {
        if let TemplateRead::File(path) = read {
            self.check_own_files(&Effect::read(path.to_string_lossy()))?;
        }
        self.rights.may_read(read)
    }
}

/// Returns an effect on a path with its links resolved; none for an effect on no path.
///
/// Most types replace or reject a link at the end of a written path. The link is resolved all the same: when it leads
/// to a directory, the run may write below that.
fn resolve_links(effect: &Effect) -> Option<Effect> {
    let read = |place: &PathScope| PathScope { path: resolved_path(&place.path), below: place.below };
    Some(match effect {
        Effect::Read(place) => Effect::Read(read(place)),
        Effect::Expose(place) => Effect::Expose(read(place)),
        Effect::Write { place, implied } => {
            let path = Path::new(&place.path);
            let beside = path.parent().zip(path.file_name()).filter(|_| !place.below);
            let path = beside.map_or_else(|| fs::resolve_links(path), |(parent, name)| fs::resolve_links(parent).join(name));
            let place = PathScope { path: path.to_string_lossy().into_owned(), below: place.below };
            Effect::Write { place, implied: *implied }
        }
        Effect::Mount(mounting) => {
            let device = if mounting.device.starts_with('/') { resolved_path(&mounting.device) } else { mounting.device.clone() };
            Effect::Mount(MountRequest { device, point: resolved_path(&mounting.point), ..mounting.clone() })
        }
        _ => return None,
    })
}

fn resolved_path(path: &str) -> String {
    fs::resolve_links(Path::new(path)).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
