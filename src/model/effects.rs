//! Effects: everything that a resource reads from, changes on, or brings to its host.
//!
//! Every resource type derives effects from its properties, without access to the host. Rules of keys (`trust::policy`) and
//! limits of the node (`trust::limits`) decide over effects alone. So every act of a type is visible to them. Paths and names
//! are as the author wrote them; the run resolves links before its own check.

use std::fmt;

use serde::{Serialize, Serializer};

use super::Secret;
use super::mount_request::MountRequest;

/// The effects of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Effects(Vec<Effect>);

/// A single effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Checks a path for existence, owner and mode; never content.
    Look(PathScope),
    /// Reads content, or reveals something that depends on content. A relative path belongs to the directory of the manifest.
    Read(PathScope),
    /// Writes, creates, replaces or removes. Includes missing parent directories, and a temporary file in the same directory.
    Write {
        /// The written path.
        place: PathScope,
        /// True where the path follows from the type and the name alone: then rules that list names compare the name.
        implied: bool,
    },
    /// Makes another path reachable: the target of a link, the source of a bind mount, a layer of an overlay.
    Expose(PathScope),
    /// Runs a program of the author's choice, now or later. The program runs by itself or through another program (cron, the
    /// kernel, a mount helper).
    Run {
        /// The command line, program or script.
        command: String,
        /// True where a dry run runs it too: guards, health checks.
        dry: bool,
    },
    /// Sets an environment variable that decides which program a command runs, or how.
    Variable {
        /// Its name; `PATH` and `PWD` stand for search path and working directory.
        name: String,
        /// Its value.
        value: Secret,
    },
    /// Mounts, unmounts or lists a file system.
    Mount(MountRequest),
    /// Fetches from, or sends to, a URL.
    Fetch(RedactedUrl),
    /// Sends a request of the author's choice to a URL, and reveals something that depends on the response.
    Request(RedactedUrl),
    /// Connects to a host, or looks up its name.
    Connect(String),
    /// Creates, changes, removes or acts as a user or group.
    Account {
        /// A user or a group.
        kind: AccountKind,
        /// Its name or number.
        name: String,
    },
    /// Starts, stops, enables or disables a unit.
    Unit(String),
    /// Installs, upgrades or removes a package.
    Package(String),
    /// Sets a key of the kernel.
    Kernel(String),
    /// Changes the system in a way that no other effect describes. With the name of the resource.
    System(String),
    /// Adds or removes an entry of cron.
    Schedule(String),
    /// Runs another manifest, whose resources have effects of their own.
    Nested(String),
    /// Publishes a registration in the name of the node: `CLUSTER/SERVICE`.
    Publish(String),
    /// Has an effect that the properties do not reveal yet: a template, or unreadable properties.
    Unknown {
        /// The kind of effect; any kind when none.
        aspect: Option<EffectKind>,
        /// The text or property at fault.
        what: String,
    },
}

/// A path, alone or with everything below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathScope {
    /// The path as it was written.
    pub path: String,
    /// True where everything below counts too.
    pub below: bool,
}

impl PathScope {
    /// Returns a single path.
    pub fn single(path: impl Into<String>) -> Self {
        Self { path: path.into(), below: false }
    }

    /// True when this scope includes the other one, as written.
    fn covers(&self, other: &Self) -> bool {
        let below = || std::path::Path::new(&other.path).starts_with(&self.path) && !other.path.contains("..");
        if self.below { below() } else { !other.below && self.path == other.path }
    }

    /// Returns a path with everything below it.
    pub fn below(path: impl Into<String>) -> Self {
        Self { path: path.into(), below: true }
    }
}

/// A URL, shown without user, password and query.
#[derive(Clone, PartialEq, Eq)]
pub struct RedactedUrl(String);

impl RedactedUrl {
    /// Wraps the URL as written.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// Returns the whole URL, for decisions; never for messages.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RedactedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for RedactedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.0.split(['?', '#']).next().unwrap_or_default();
        let Some((scheme, rest)) = plain.split_once("://") else { return f.write_str("(not a URL)") };
        let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        write!(f, "{scheme}://{}{path}", authority.rsplit('@').next().unwrap_or_default())
    }
}

impl Serialize for RedactedUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Users and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountKind {
    /// A user.
    User,
    /// A group.
    Group,
}

/// The kinds of effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    /// See [`Effect::Look`].
    Look,
    /// See [`Effect::Read`].
    Read,
    /// See [`Effect::Write`].
    Write,
    /// See [`Effect::Expose`].
    Expose,
    /// See [`Effect::Run`].
    Run,
    /// See [`Effect::Variable`].
    Variable,
    /// See [`Effect::Mount`].
    Mount,
    /// See [`Effect::Fetch`].
    Fetch,
    /// See [`Effect::Request`].
    Request,
    /// See [`Effect::Connect`].
    Connect,
    /// See [`Effect::Account`].
    Account,
    /// See [`Effect::Unit`].
    Unit,
    /// See [`Effect::Package`].
    Package,
    /// See [`Effect::Kernel`].
    Kernel,
    /// See [`Effect::System`].
    System,
    /// See [`Effect::Schedule`].
    Schedule,
    /// See [`Effect::Nested`].
    Nested,
    /// See [`Effect::Publish`].
    Publish,
}

/// The type that an owner allows for every effect that runs a program, in `types` of limits and rules.
pub const RUN_GRANT: &str = "exec";
/// The type that an owner allows for every manifest within a manifest, in `types` of limits and rules.
pub const NESTED_GRANT: &str = "apply";

impl EffectKind {
    /// All kinds, in the order of the documentation.
    pub const ALL: &'static [Self] = &[
        Self::Look,
        Self::Read,
        Self::Write,
        Self::Expose,
        Self::Run,
        Self::Variable,
        Self::Mount,
        Self::Fetch,
        Self::Request,
        Self::Connect,
        Self::Account,
        Self::Unit,
        Self::Package,
        Self::Kernel,
        Self::System,
        Self::Schedule,
        Self::Nested,
        Self::Publish,
    ];

    /// The verb for messages: "reads", "runs".
    pub fn verb(self) -> &'static str {
        match self {
            Self::Look => "looks for",
            Self::Read => "reads",
            Self::Write => "writes",
            Self::Expose => "exposes",
            Self::Run => "runs",
            Self::Variable => "sets",
            Self::Mount => "mounts",
            Self::Fetch => "fetches",
            Self::Request => "sends a request to",
            Self::Connect => "connects to",
            Self::Account => "changes the account",
            Self::Unit => "controls the unit",
            Self::Package => "manages the package",
            Self::Kernel => "sets the kernel key",
            Self::System => "changes the system for",
            Self::Schedule => "schedules",
            Self::Nested => "applies the manifest",
            Self::Publish => "registers",
        }
    }
}

impl Effect {
    /// Reads one path.
    pub fn read(path: impl Into<String>) -> Self {
        Self::Read(PathScope::single(path))
    }

    /// Writes one path of the author's choice.
    pub fn write(path: impl Into<String>) -> Self {
        Self::Write { place: PathScope::single(path), implied: false }
    }

    /// Writes everything below a path of the author's choice, and the path itself.
    pub fn write_below(path: impl Into<String>) -> Self {
        Self::Write { place: PathScope::below(path), implied: false }
    }

    /// Writes one path that follows from type and name.
    pub fn implied(path: impl Into<String>) -> Self {
        Self::Write { place: PathScope::single(path), implied: true }
    }

    /// Runs a command, but not in a dry run.
    pub fn run(command: impl Into<String>) -> Self {
        Self::Run { command: command.into(), dry: false }
    }

    /// Runs a command, also in a dry run.
    pub fn run_always(command: impl Into<String>) -> Self {
        Self::Run { command: command.into(), dry: true }
    }

    /// Sets an environment variable.
    pub fn variable(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self::Variable { name: name.into(), value: Secret::new(value) }
    }

    /// Sets an environment variable that is written as `NAME=value`.
    pub fn variable_pair(pair: &str) -> Self {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Self::variable(name, value)
    }

    /// Changes a user.
    pub fn user(name: impl Into<String>) -> Self {
        Self::Account { kind: AccountKind::User, name: name.into() }
    }

    /// Changes a group.
    pub fn group(name: impl Into<String>) -> Self {
        Self::Account { kind: AccountKind::Group, name: name.into() }
    }

    /// Returns an effect that is not known yet.
    pub fn unknown(aspect: Option<EffectKind>, what: impl Into<String>) -> Self {
        Self::Unknown { aspect, what: what.into() }
    }

    /// Returns the kind; none where the kind is unknown too.
    pub fn kind(&self) -> Option<EffectKind> {
        Some(match self {
            Self::Look(_) => EffectKind::Look,
            Self::Read(_) => EffectKind::Read,
            Self::Write { .. } => EffectKind::Write,
            Self::Expose(_) => EffectKind::Expose,
            Self::Run { .. } => EffectKind::Run,
            Self::Variable { .. } => EffectKind::Variable,
            Self::Mount(_) => EffectKind::Mount,
            Self::Fetch(_) => EffectKind::Fetch,
            Self::Request(_) => EffectKind::Request,
            Self::Connect(_) => EffectKind::Connect,
            Self::Account { .. } => EffectKind::Account,
            Self::Unit(_) => EffectKind::Unit,
            Self::Package(_) => EffectKind::Package,
            Self::Kernel(_) => EffectKind::Kernel,
            Self::System(_) => EffectKind::System,
            Self::Schedule(_) => EffectKind::Schedule,
            Self::Nested(_) => EffectKind::Nested,
            Self::Publish(_) => EffectKind::Publish,
            Self::Unknown { aspect, .. } => return *aspect,
        })
    }

    /// Returns the texts of the author in this effect.
    fn texts(&self) -> Vec<&str> {
        match self {
            Self::Look(place) | Self::Read(place) | Self::Expose(place) | Self::Write { place, .. } => vec![&place.path],
            Self::Variable { name, value } => vec![name, value.reveal()],
            Self::Mount(MountRequest { device, fstype, options, point, .. }) => vec![device, fstype, options, point],
            Self::Fetch(url) | Self::Request(url) => vec![url.reveal()],
            Self::Run { command: text, .. }
            | Self::Account { name: text, .. }
            | Self::Connect(text)
            | Self::Unit(text)
            | Self::Package(text)
            | Self::Kernel(text)
            | Self::System(text)
            | Self::Schedule(text)
            | Self::Nested(text)
            | Self::Publish(text) => vec![text],
            Self::Unknown { .. } => vec![],
        }
    }
}

/// Writes the effect for messages: a verb and its object. Leaves out values of variables and credentials in URLs.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.kind().map_or("has an effect that is not known", EffectKind::verb);
        match self {
            Self::Variable { name, .. } => write!(f, "{verb} \"{name}=...\""),
            Self::Fetch(url) | Self::Request(url) => write!(f, "{verb} \"{url}\""),
            Self::Mount(MountRequest { device, point, .. }) => write!(f, "{verb} \"{device}\" at \"{point}\""),
            Self::Unknown { aspect: None, what } => write!(f, "{verb}: {what}"),
            Self::Unknown { what, .. } => write!(f, "{verb} \"{what}\", which is unknown"),
            Self::Look(place) | Self::Read(place) | Self::Expose(place) | Self::Write { place, .. } if place.below => {
                write!(f, "{verb} everything below \"{}\"", place.path)
            }
            other => write!(f, "{verb} \"{}\"", other.texts().first().copied().unwrap_or_default()),
        }
    }
}

impl Effects {
    /// Returns a single unknown effect.
    pub fn unknown(what: impl Into<String>) -> Self {
        Self(vec![Effect::unknown(None, what)])
    }

    /// Returns the effects, in the order of the properties.
    pub fn iter(&self) -> std::slice::Iter<'_, Effect> {
        self.0.iter()
    }

    /// Returns true for effects on the system itself, which no directory bounds.
    pub fn affect_system(&self) -> bool {
        let has = |kinds: &[EffectKind]| self.0.iter().any(|effect| effect.kind().is_some_and(|kind| kinds.contains(&kind)));
        // An entry of cron is a file, even where its command runs as another user.
        has(&[EffectKind::Mount, EffectKind::Unit, EffectKind::Package, EffectKind::Kernel, EffectKind::System])
            || (has(&[EffectKind::Account]) && !has(&[EffectKind::Schedule]))
    }

    /// Adds an effect.
    pub fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    /// True when the author's own choice of paths includes a write to this scope.
    pub fn writes(&self, place: &PathScope) -> bool {
        self.0.iter().any(|effect| matches!(effect, Effect::Write { place: written, implied: false } if written.covers(place)))
    }

    /// Returns the same effects, where each with an unresolved text (`is_template`) is unknown.
    #[must_use]
    pub fn unresolved(self, is_template: impl Fn(&str) -> bool) -> Self {
        let unknown = |effect: Effect| match effect.texts().into_iter().find(|text| is_template(text)) {
            // The value of a variable is a secret.
            Some(_) if effect.kind() == Some(EffectKind::Variable) => Effect::unknown(effect.kind(), "a variable"),
            Some(text) => Effect::unknown(effect.kind(), text),
            None => effect,
        };
        Self(self.0.into_iter().map(unknown).collect())
    }

    /// Returns the effects without unresolved texts.
    #[must_use]
    pub fn resolved(self, is_template: impl Fn(&str) -> bool) -> Self {
        let is_resolved = |effect: &Effect| !effect.texts().into_iter().any(&is_template);
        Self(self.0.into_iter().filter(is_resolved).collect())
    }
}

impl FromIterator<Effect> for Effects {
    fn from_iter<I: IntoIterator<Item = Effect>>(effects: I) -> Self {
        Self(effects.into_iter().collect())
    }
}

impl Extend<Effect> for Effects {
    fn extend<I: IntoIterator<Item = Effect>>(&mut self, effects: I) {
        self.0.extend(effects);
    }
}

impl IntoIterator for Effects {
    type Item = Effect;
    type IntoIter = std::vec::IntoIter<Effect>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Effects {
    type Item = &'a Effect;
    type IntoIter = std::slice::Iter<'a, Effect>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unresolved_templates_are_unknown_effects() {
        let is_template = |text: &str| text.contains("{{");
        let effects: Effects =
            [Effect::write("/a"), Effect::write("/{{ x }}"), Effect::variable("A", "{{ secret('x') }}")].into_iter().collect();
        let unknown: Vec<String> = effects.clone().unresolved(is_template).iter().map(ToString::to_string).collect();
        assert_eq!(unknown, ["writes \"/a\"", "writes \"/{{ x }}\", which is unknown", "sets \"a variable\", which is unknown"]);
        assert_eq!(effects.resolved(is_template), [Effect::write("/a")].into_iter().collect());
    }

    #[test]
    fn messages_show_no_secrets() {
        let fetch = Effect::Fetch(RedactedUrl::new("https://u:hunter2@h/a?token=hunter2"));
        for effect in [Effect::variable("TOKEN", "hunter2"), fetch] {
            assert!(!format!("{effect} {effect:?}").contains("hunter2"), "{effect}");
        }
        assert_eq!(Effect::Read(PathScope::below("/a")).to_string(), "reads everything below \"/a\"");
    }

    #[test]
    fn every_kind_is_listed_once() {
        assert!(EffectKind::ALL.is_sorted());
        assert_eq!(EffectKind::ALL.last(), Some(&EffectKind::Publish));
    }
}
