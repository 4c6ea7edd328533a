//! The [`Resource`] trait that every type implements, with its states, changes, errors and providers.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::host::{AccountError, CommandError, FsError, Host, SystemdError};
use crate::model::{Effects, Hidden};
use crate::template::Scope;

/// Properties that are wrong in themselves, whatever the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// The property at fault, where it is one.
    pub property: Option<&'static str>,
    /// The error.
    pub message: String,
}

impl Invalid {
    /// A property with what is wrong with it.
    pub fn new(property: &'static str, message: impl Into<String>) -> Self {
        Self { property: Some(property), message: message.into() }
    }
}

/// Observing or applying failed.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// On a file or directory.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// In a command.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A user or group is unknown.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// systemd can't be asked, or said no.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// The state of the host, or what a step led to, is not what it may be.
    #[error("{0}")]
    State(String),
}

/// The observed state of a resource. Its serialised fields go into the `status` of events.
pub trait State: Serialize + Clone + Send + Sync {
    /// The `ensure` value that describes it.
    fn ensure(&self) -> &str;

    /// Returns the output of a program for people.
    fn said(&self) -> &str {
        ""
    }
}

/// A step towards the desired state.
///
/// `Display` says what was done, as a past participle: "created the file"; a dry run says
/// "Would have created the file".
pub trait Change: Display + Clone + PartialEq + Send + Sync {
    /// Returns the differences for people: "mode 0600 → 0644". By default the step itself.
    fn details(&self) -> Vec<String> {
        vec![self.to_string()]
    }
}

/// Text before and after, for a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The present text.
    pub before: String,
    /// The desired text.
    pub after: String,
    /// True when all users of the host may read both the present and the desired file.
    pub is_public: bool,
}

/// A way to do a type's work on one kind of host.
pub struct ProviderEntry<P: ?Sized> {
    /// Its name, as in the `provider` property.
    pub name: &'static str,
    /// True where it is taken only when asked for by name.
    pub explicit: bool,
    /// Returns true where the provider works on this host.
    pub suits: fn(&Host) -> bool,
    /// Opens it; once a run, all resources of the run share it.
    pub open: fn(&Host) -> Box<P>,
}

/// A manifest within a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Nested {
    /// Its file, relative to the manifest that holds it.
    pub file: String,
    /// Data over its own; when none is given, all data of the manifest that holds it.
    pub data: Option<Value>,
    /// A dry run, whatever the outer run is.
    pub noop: bool,
    /// Only health checks, whatever the outer run does.
    pub health_check_only: bool,
    /// True where the nested manifest may nest others.
    pub allow_apply: bool,
}

/// Properties that `ensign ensure` fills in where the command line leaves them out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShellDefaults {
    /// True where `owner` and `group` are the user and group of the shell.
    pub own_account: bool,
    /// The `mode`.
    pub mode: Option<&'static str>,
    /// Environment variables that hold a property, as a command line is visible to other users: property and variable.
    pub environment: &'static [(&'static str, &'static str)],
}

/// A resource with the steps that it needs.
pub struct Pending<'a, R: Resource> {
    /// The desired properties.
    pub properties: &'a R::Properties,
    /// The observed state.
    pub state: R::State,
    /// The steps, in order.
    pub changes: Vec<R::Change>,
}

impl<R: Resource> Pending<'_, R> {
    /// Takes the steps of this resource alone.
    ///
    /// # Errors
    /// With the first step that fails.
    pub fn apply(&mut self, provider: &R::Provider, host: &Host) -> Result<(), ResourceError> {
        self.changes.iter().try_for_each(|change| R::apply(change, self.properties, &mut self.state, provider, host))
    }
}

/// A kind of thing that can be brought to a desired state.
pub trait Resource: Send + Sync + 'static {
    /// The name of the type, as `file`.
    const TYPE: &'static str;
    /// A sentence for the documentation.
    const ABOUT: &'static str;
    /// Properties whose templates are resolved when the resource runs, not when the manifest is read:
    /// they may use what earlier resources made.
    const RUNTIME_TEMPLATES: &'static [&'static str] = &[];
    /// Properties that are only content: unsigned values may shape them. A path, a command, an account, a URL or a condition
    /// never is content.
    const CONTENT: &'static [&'static str] = &[];
    /// Free-form properties whose keys are templates too.
    const TEMPLATED_KEYS: &'static [&'static str] = &[];
    /// False where the host can't tell afterwards whether it worked, so that `apply` itself must.
    const CONVERGES: bool = true;
    /// True where [`Resource::apply_all`] does better than one by one.
    const BATCHES: bool = false;
    /// True where it can act on `subscribe`.
    const REFRESHES: bool = false;
    /// True where what it subscribes to has no `#` in its name, as in CCM.
    const CCM_SUBSCRIBE_SYNTAX: bool = false;
    /// True where a dry run says each step in a sentence of its own.
    const NOOP_PER_STEP: bool = false;
    /// Properties that describe the path in the resource's name, where the name is a path. Two resources of one path that
    /// differ in any of them undo each other in every run.
    const CLAIMED_PATHS: &'static [&'static str] = &[];
    /// True where the type changes the system itself: accounts, packages, units, mounts, keys of the kernel.
    ///
    /// The directories of `paths` can't bound such a type. False where it only changes files at paths of the author's choice.
    const REACHES_SYSTEM: bool;
    /// True where a resource of the type is a manifest. See [`Resource::nested`].
    const NESTS: bool = false;
    /// Properties that [`Resource::effects`] does not depend on, each with the reason. All others decide about effects.
    const NO_EFFECTS: &'static [(&'static str, &'static str)];
    /// The ways to do it, best first.
    const PROVIDERS: &'static [ProviderEntry<Self::Provider>];

    /// The properties as the author writes them; unknown keys are refused. Has `name`, and `ensure` where the type needs it.
    type Properties: DeserializeOwned + Serialize + JsonSchema + Clone + std::fmt::Debug + PartialEq + Send + Sync;
    /// The observed state.
    type State: State;
    /// A step.
    type Change: Change;
    /// The interface of the providers.
    type Provider: ?Sized + Send + Sync + 'static;

    /// Checks the properties without looking at the host. Deferred templates may still be unresolved.
    ///
    /// # Errors
    /// With the first property that is wrong.
    fn validate(properties: &Self::Properties) -> Result<(), Invalid>;
    /// The command lines that are split into words before they run, by their properties; `provider` is the one that was
    /// asked for.
    fn command_lines<'p>(_properties: &'p Self::Properties, _provider: &str) -> Vec<(&'static str, &'p str)> {
        Vec::new()
    }

    /// The name of the resource.
    fn name(properties: &Self::Properties) -> &str;

    /// The `ensure` that is asked for.
    fn ensure(properties: &Self::Properties) -> &str;

    /// Everything that a resource with these properties may do, told from the properties alone. Properties that
    /// [`Resource::validate`] refuses have effects too: rules and limits are asked first.
    fn effects(properties: &Self::Properties) -> Effects;

    /// Returns the properties that `ensign ensure` fills in for a person at a shell.
    fn shell_defaults(_ensure: Option<&str>) -> ShellDefaults {
        ShellDefaults::default()
    }

    /// Gives the properties what templates may use, where the type renders files.
    fn attach_scope(_: &mut Self::Properties, _: &Scope) {}

    /// Returns properties with which [`Resource::observe`] shows the whole state of a resource of this name; none where a name
    /// alone has no state.
    fn query(_name: &str) -> Option<Self::Properties> {
        None
    }

    /// Gives the provider all resources of the type in a manifest before the first observation. A single query to the host can then
    /// serve all of them. Makes no query yet.
    fn prefetch(_: &[&Self::Properties], _: &Self::Provider) {}

    /// Brings up to date what [`Resource::observe`] looks into, where the properties ask for that. Not called in dry runs.
    ///
    /// # Errors
    /// When that fails.
    fn refresh_cache(_: &Self::Properties, _: &Self::Provider, _: &Host) -> Result<(), ResourceError> {
        Ok(())
    }

    /// Looks at the host and never writes.
    ///
    /// # Errors
    /// When the host does not let itself be looked at.
    fn observe(properties: &Self::Properties, provider: &Self::Provider, host: &Host) -> Result<Self::State, ResourceError>;

    /// The steps from the state to what is wanted; none when it is as wanted. Pure.
    ///
    /// # Errors
    /// When no step leads there.
    fn diff(properties: &Self::Properties, state: &Self::State) -> Result<Vec<Self::Change>, ResourceError>;

    /// Applies a step. `state` is the observed state, and `apply` may add to it.
    ///
    /// # Errors
    /// When the step fails.
    fn apply(
        change: &Self::Change,
        properties: &Self::Properties,
        state: &mut Self::State,
        provider: &Self::Provider,
        host: &Host,
    ) -> Result<(), ResourceError>;

    /// Takes the steps of several resources, for each its result; by default one by one. May take away the steps of a
    /// resource for which nothing was left to do, because those of an earlier one did it.
    fn apply_all(batch: &mut [Pending<'_, Self>], provider: &Self::Provider, host: &Host) -> Vec<Result<(), ResourceError>>
    where
        Self: Sized,
    {
        batch.iter_mut().map(|one| one.apply(provider, host)).collect()
    }

    /// The steps to take because a resource that this one subscribes to has changed.
    fn on_refresh(_: &Self::Properties, _: &Self::State) -> Vec<Self::Change> {
        Vec::new()
    }

    /// Returns the manifest that the engine runs instead of this resource, where the resource is one.
    fn nested(_: &Self::Properties) -> Option<Nested> {
        None
    }

    /// The text before and after, where the type manages one.
    fn preview(_: &Self::Properties, _: &Self::State, _: &Host) -> Option<Preview> {
        None
    }

    /// The properties as events show them: without secrets, and without what is large.
    fn redacted(properties: &Self::Properties) -> Value {
        serde_json::to_value(properties).unwrap_or_default()
    }

    /// Names every value that [`Resource::redacted`] replaces by `***`: a program that prints one must not make it known.
    fn hidden(_: &Self::Properties, _: &mut dyn FnMut(Hidden<'_>)) {}
}
