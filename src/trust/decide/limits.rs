//! Local limits: work that a node rejects from every signer. The limits come from the node's own configuration, never from the
//! bus.

use std::path::Path;

use url::Url;

use crate::http::is_loopback;
use crate::model::effects::{EffectKind, NESTED_GRANT, PathScope, RUN_GRANT};
use crate::model::{Effect, Effects, MountLimit, MountRequest};
use crate::wire::command::{Action, Command};

use super::{mounts, pattern};

/// The work that a node accepts. `None` means no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLimits {
    /// The allowed resource types.
    pub types: Option<Vec<String>>,
    /// Absolute directories with files that may be managed.
    pub paths: Option<Vec<String>>,
    /// Absolute directories with files that may be read, beside those of `paths`. `None` allows `paths` only.
    pub read_paths: Option<Vec<String>>,
    /// True when programs may run: by `exec`, and as guards, health checks and the like of other types.
    pub exec: bool,
    /// The file systems that may be mounted. `None` allows none where `types`, `paths`, `read_paths` or `exec` set a limit.
    pub mount: Option<Vec<MountLimit>>,
    /// Hosts for downloads, as `repo.example.org` or `*.example.org`.
    pub fetch_hosts: Option<Vec<String>>,
    /// True when manifests may be applied.
    pub apply: bool,
    /// True when assignments may have drift repaired when it happens.
    pub watch: bool,
    /// Channels whose assignments the node accepts.
    pub channels: Option<Vec<String>>,
}

impl Default for NodeLimits {
    /// Allows everything except programs.
    fn default() -> Self {
        Self {
            types: None,
            paths: None,
            read_paths: None,
            exec: false,
            mount: None,
            fetch_hosts: None,
            apply: true,
            watch: true,
            channels: None,
        }
    }
}

impl NodeLimits {
    /// Checks a command against the limits, as far as its signed bytes show. `effects` are those of an `ensure`.
    ///
    /// The content of a manifest, values of templates, and targets of links and redirects are known only at run time. The engine
    /// checks them again, with [`Self::check_effects`].
    ///
    /// # Errors
    /// The limit that the command exceeds, as a message.
    pub fn check(&self, command: &Command, effects: &Effects) -> Result<(), String> {
        match &command.action {
            // Properties that can't be read can't run either. Templates are resolved before the engine checks again.
            Action::Ensure(ensure) => {
                let told = effects.iter().filter(|effect| effect.kind().is_some()).cloned().collect();
                self.check_effects(&ensure.kind, &told)
            }
            Action::Apply(_) | Action::Assign(_) if !self.apply => {
                Err("this node applies no manifests from the network".to_owned())
            }
            Action::Apply(apply) => self.check_url(&apply.url),
            Action::Assign(assign) if assign.is_watched() && !self.watch => {
                Err("this node does not watch for drift: `watch` of its limits is false".to_owned())
            }
            Action::Assign(assign) => {
                self.check_channel(command)?;
                self.check_url(&assign.manifest.url)
            }
            Action::Remove(_) => Err("a removal is a record for operators: no node accepts it".to_owned()),
            Action::Withdraw(_)
            | Action::Healthcheck(_)
            | Action::Facts(_)
            | Action::Status(_)
            | Action::Halt(_)
            | Action::Resume(_)
            | Action::Go(_)
            | Action::Cancel(_)
            | Action::Run(_) => Ok(()),
        }
    }

    fn check_channel(&self, command: &Command) -> Result<(), String> {
        let name = command.channel.as_ref().map(|channel| channel.name.as_str()).unwrap_or_default();
        match &self.channels {
            Some(channels) if !channels.iter().any(|known| known == name) => {
                Err(format!("this node does not follow the channel {name}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a resource of this type with these effects against the limits.
    ///
    /// # Errors
    /// The limit that the resource exceeds, as a message.
    pub fn check_effects(&self, kind: &str, effects: &Effects) -> Result<(), String> {
        self.check_type(kind)?;
        // A listed mount is allowed with its options, but its mount point and programs are checked.
        let listed = |effect: &Effect| matches!(effect, Effect::Mount(mounting) if self.is_listed_mount(mounting));
        let listed = effects.iter().any(listed);
        effects.iter().try_for_each(|effect| self.check_effect(effect, effects, listed))
    }

    fn check_effect(&self, effect: &Effect, all: &Effects, listed: bool) -> Result<(), String> {
        let path = |place: &PathScope| Err(format!("this node does not manage the path \"{}\"", place.path));
        match effect {
            Effect::Write { place, implied: true } if listed && place.path == MountRequest::TABLE => Ok(()),
            Effect::Expose(_) | Effect::Read(_) | Effect::Unknown { aspect: Some(EffectKind::Mount), .. } if listed => Ok(()),
            Effect::Write { place, .. } | Effect::Expose(place) if !self.path_allowed(Path::new(&place.path)) => path(place),
            Effect::Read(place) if !self.read_allowed(Path::new(&place.path)) && !all.writes(place) => {
                Err(format!("this node does not allow reading \"{}\"", place.path))
            }
            Effect::Run { .. } | Effect::Variable { .. } => self.check_type(RUN_GRANT),
            Effect::Nested(_) => self.check_type(NESTED_GRANT),
            Effect::Mount(mounting) => self.check_mount(mounting),
            Effect::Fetch(url) | Effect::Request(url) => self.check_url(url.reveal()),
            Effect::Connect(host) if !is_loopback(host) && !self.host_allowed(host) => {
                Err(format!("this node does not fetch from \"{host}\""))
            }
            Effect::Unknown { aspect, what } => self.check_unknown(*aspect, what),
            Effect::Write { .. }
            | Effect::Expose(_)
            | Effect::Read(_)
            | Effect::Connect(_)
            | Effect::Look(_)
            | Effect::Account { .. }
            | Effect::Unit(_)
            | Effect::Package(_)
            | Effect::Kernel(_)
            | Effect::System(_)
            | Effect::Schedule(_)
            | Effect::Publish(_) => Ok(()),
        }
    }

    /// Checks an unknown effect, which may be any effect of its kind.
    fn check_unknown(&self, aspect: Option<EffectKind>, what: &str) -> Result<(), String> {
        let Some(aspect) = aspect else {
            return if self.restricts_host() { Err(format!("this node does not allow unknown effects: {what}")) } else { Ok(()) };
        };
        match aspect {
            EffectKind::Write | EffectKind::Expose if self.paths.is_some() => {
                Err(format!("this node does not manage the path \"{what}\""))
            }
            EffectKind::Read if self.paths.is_some() || self.read_paths.is_some() => {
                Err(format!("this node does not allow reading \"{what}\""))
            }
            EffectKind::Run | EffectKind::Variable => self.check_type(RUN_GRANT),
            EffectKind::Nested => self.check_type(NESTED_GRANT),
            EffectKind::Mount if self.restricts_host() || self.mount.is_some() => {
                Err(format!("this node does not mount \"{what}\""))
            }
            EffectKind::Fetch | EffectKind::Request | EffectKind::Connect if self.fetch_hosts.is_some() => {
                Err(format!("this node does not fetch from \"{what}\""))
            }
            _ => Ok(()),
        }
    }

    /// True when the limits restrict the host itself.
    fn restricts_host(&self) -> bool {
        !self.exec || self.types.is_some() || self.paths.is_some() || self.read_paths.is_some()
    }

    fn is_listed_mount(&self, mounting: &MountRequest) -> bool {
        self.mount.as_deref().is_some_and(|entries| mounts::allowed(entries, mounting))
    }

    fn check_mount(&self, mounting: &MountRequest) -> Result<(), String> {
        let MountRequest { device, fstype, point, .. } = mounting;
        if (self.mount.is_some() || self.restricts_host()) && !self.is_listed_mount(mounting) {
            let options = &mounting.options;
            return Err(format!(
                "this node does not mount \"{device}\" as {fstype} with \"{options}\": no `mount` of its limits allows it"
            ));
        }
        if self.path_allowed(Path::new(point)) { Ok(()) } else { Err(format!("this node does not manage the path \"{point}\"")) }
    }

    fn check_url(&self, text: &str) -> Result<(), String> {
        if self.fetch_hosts.is_none() {
            return Ok(());
        }
        let no = || format!("this node does not fetch from \"{}\"", without_user(text));
        let url = Url::parse(text).map_err(|_| no())?;
        match (url.scheme(), url.host_str()) {
            // The node itself, and the server that sent the command.
            ("file" | "obj", _) => Ok(()),
            (_, Some(host)) if self.host_allowed(host) => Ok(()),
            _ => Err(no()),
        }
    }

    fn check_type(&self, kind: &str) -> Result<(), String> {
        match kind {
            kind if self.type_allowed(kind) => Ok(()),
            RUN_GRANT if !self.exec => Err("this node runs no commands from the network".to_owned()),
            kind => Err(format!("this node does not manage the type {kind}")),
        }
    }

    /// True when resources of this type may be managed. Commands of other types need `exec`.
    pub fn type_allowed(&self, kind: &str) -> bool {
        let listed = self.types.as_ref().is_none_or(|types| types.iter().any(|t| t == kind));
        listed && (self.exec || kind != RUN_GRANT) && (self.apply || kind != NESTED_GRANT)
    }

    /// True when this path may be managed. Paths are compared part by part after `.` and `..` are resolved.
    pub fn path_allowed(&self, path: &Path) -> bool {
        self.paths.as_deref().is_none_or(|allowed| is_below(path, allowed))
    }

    /// True when this path may be read: below `read_paths`, or below `paths`, as write access includes read access.
    pub fn read_allowed(&self, path: &Path) -> bool {
        match (self.read_paths.as_deref(), self.paths.as_deref()) {
            (None, None) => true,
            (reads, writes) => [reads, writes].into_iter().flatten().any(|allowed| is_below(path, allowed)),
        }
    }

    /// True when downloads from this host are allowed.
    pub fn host_allowed(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let Some(allowed) = &self.fetch_hosts else { return true };
        allowed.iter().any(|pattern| pattern::matches(&pattern.to_ascii_lowercase(), &host))
    }

    /// Returns the same limits over paths with their links resolved by `real`.
    #[must_use]
    pub fn resolve_links(&self, real: impl Fn(&str) -> String) -> Self {
        let all = |list: &Option<Vec<String>>| list.as_ref().map(|list| list.iter().map(|path| real(path)).collect());
        Self { paths: all(&self.paths), read_paths: all(&self.read_paths), ..self.clone() }
    }
}

/// True when a path is one of these directories or below one, part by part.
fn is_below(path: &Path, directories: &[String]) -> bool {
    let Some(path) = path.to_str().filter(|path| path.starts_with('/')) else { return false };
    let path = pattern::normalize_path(path);
    let mut absolute = directories.iter().filter(|prefix| prefix.starts_with('/'));
    absolute.any(|prefix| Path::new(&path).starts_with(pattern::normalize_path(prefix)))
}

/// A URL without user and password, for messages.
fn without_user(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return "(not a URL)".to_owned() };
    if url.username().is_empty() && url.password().is_none() {
        return text.to_owned();
    }
    match (url.set_username(""), url.set_password(None)) {
        (Ok(()), Ok(())) => url.into(),
        _ => "(not a URL)".to_owned(),
    }
}
