//! The [`Resource`] trait that every type implements, with its states, changes, errors and providers.

use std::borrow::Cow;
use std::fmt::Display;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::host::{AccountError, CommandError, FsError, Host, SystemdError};
use crate::model::{Effects, Identity, Need, OnRemoval, RedactedProperty, WatchTarget};
use crate::template::Scope;

use super::watch_targets;

/// Properties that are wrong on every host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// The property at fault, if there is one.
    pub property: Option<&'static str>,
    /// The error.
    pub message: String,
}

impl Invalid {
    /// Creates the error of a property.
    pub fn new(property: &'static str, message: impl Into<String>) -> Self {
        Self { property: Some(property), message: message.into() }
    }
}

/// An error of observing or applying.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// A file or directory.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A command.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A user or group is unknown.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// systemd can't be reached, or refused.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// A call to the program of an external type.
    #[error(transparent)]
    External(Box<dyn std::error::Error + Send + Sync>),
    /// The state of the host, or the result of a step, is not acceptable.
    #[error("{0}")]
    State(String),
}

/// The observed state of a resource. Its serialised fields go into the `status` of events.
pub trait State: Serialize + Clone + Send + Sync {
    /// The `ensure` value that describes the state.
    fn ensure(&self) -> &str;

    /// Returns the output of a program, for the user.
    fn output(&self) -> &str {
        ""
    }
}

/// A step towards the desired state.
///
/// `Display` describes the finished step, as a past participle: "created the file". A dry run writes "Would have created the
/// file".
pub trait Change: Display + Clone + PartialEq + Send + Sync {
    /// Returns the differences for the user: "mode 0600 → 0644". By default the step itself.
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

/// A provider of a type: its implementation for one kind of host.
pub struct ProviderEntry<P: ?Sized> {
    /// The name, as in the `provider` property.
    pub name: &'static str,
    /// True for a provider that is used only on request.
    pub only_on_request: bool,
    /// Returns true where the provider works on this host.
    pub works_on: fn(&Host) -> bool,
    /// Opens the provider; once a run, for all resources of the run.
    pub open: fn(&Host) -> Box<P>,
}

impl<P: ?Sized> ProviderEntry<P> {
    /// Creates a provider that works where `works_on` returns true.
    pub const fn new(name: &'static str, works_on: fn(&Host) -> bool, open: fn(&Host) -> Box<P>) -> Self {
        Self { name, only_on_request: false, works_on, open }
    }

    /// Creates a provider that works on every host.
    pub const fn everywhere(name: &'static str, open: fn(&Host) -> Box<P>) -> Self {
        Self::new(name, |_| true, open)
    }

    /// Creates a provider that is used only on request.
    pub const fn on_request(name: &'static str, works_on: fn(&Host) -> bool, open: fn(&Host) -> Box<P>) -> Self {
        Self { name, only_on_request: true, works_on, open }
    }
}

impl ProviderEntry<()> {
    /// Creates the provider of a type with one way of working.
    pub const fn only(name: &'static str) -> Self {
        Self::everywhere(name, |_| Box::new(()))
    }
}

/// A manifest within a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Nested {
    /// The file, relative to the manifest that contains the resource.
    pub file: String,
    /// Data merged over the data of the nested manifest; when left out, all data of the outer manifest.
    pub data: Option<Value>,
    /// A dry run, also in a real outer run.
    pub noop: bool,
    /// Only health checks, also in a full outer run.
    pub health_check_only: bool,
    /// True when the nested manifest may nest others.
    pub allow_apply: bool,
}

/// Properties that `ensign ensure` adds when the command line leaves them out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShellDefaults {
    /// True when `owner` and `group` default to the user and group of the shell.
    pub own_account: bool,
    /// The default `mode`.
    pub mode: Option<&'static str>,
    /// Environment variables that hold a property, because a command line is visible to other users: property and variable.
    pub environment: &'static [(&'static str, &'static str)],
}

/// An output: a value of a resource that templates of later resources can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceOutput {
    /// The name, as in `resources['exec#build'].stdout`.
    pub name: Cow<'static, str>,
    /// The type of the value.
    pub kind: OutputKind,
    /// A sentence for the documentation.
    pub about: Cow<'static, str>,
}

/// The type of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// A text.
    Text,
    /// A whole number.
    Number,
    /// True or false.
    Flag,
    /// A list of texts.
    List,
}

impl ResourceOutput {
    const fn new(name: &'static str, kind: OutputKind, about: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), kind, about: Cow::Borrowed(about) }
    }

    /// Creates a text.
    pub const fn text(name: &'static str, about: &'static str) -> Self {
        Self::new(name, OutputKind::Text, about)
    }

    /// Creates a whole number.
    pub const fn number(name: &'static str, about: &'static str) -> Self {
        Self::new(name, OutputKind::Number, about)
    }

    /// Creates a value that is true or false.
    pub const fn flag(name: &'static str, about: &'static str) -> Self {
        Self::new(name, OutputKind::Flag, about)
    }

    /// Creates a list of texts.
    pub const fn list(name: &'static str, about: &'static str) -> Self {
        Self::new(name, OutputKind::List, about)
    }
}

impl OutputKind {
    /// Returns the name of the type, as in the tables of properties.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "integer",
            Self::Flag => "boolean",
            Self::List => "list of text",
        }
    }
}

/// A resource with its pending steps.
pub struct Pending<'a, R: Resource> {
    /// The desired properties.
    pub properties: &'a R::Properties,
    /// The observed state.
    pub state: R::State,
    /// The steps, in order.
    pub changes: Vec<R::Change>,
}

impl<R: Resource> Pending<'_, R> {
    /// Applies the steps of this resource alone.
    ///
    /// # Errors
    /// The first step that fails.
    pub fn apply(&mut self, provider: &R::Provider, host: &Host) -> Result<(), ResourceError> {
        self.changes.iter().try_for_each(|change| R::apply(change, self.properties, &mut self.state, provider, host))
    }
}

/// A kind of object that can be converged.
pub trait Resource: Send + Sync + 'static {
    /// The name of the type, as `file`.
    const TYPE: &'static str;
    /// A sentence for the documentation.
    const ABOUT: &'static str;
    /// Properties with templates that are resolved when the resource runs, not when the manifest is read. The templates may use
    /// the results of earlier resources.
    const RUNTIME_TEMPLATES: &'static [&'static str] = &[];
    /// Properties that are only content: unsigned values may shape them. A path, a command, an account, a URL or a condition is
    /// never content.
    const CONTENT: &'static [&'static str] = &[];
    /// Free-form properties whose keys are templates too.
    const TEMPLATED_KEYS: &'static [&'static str] = &[];
    /// False when the host can't show afterwards whether the step worked, so that `apply` itself must check.
    const CONVERGES: bool = true;
    /// True when [`Resource::apply_all`] is better than single steps.
    const BATCHES: bool = false;
    /// True when the type reacts to `subscribe`.
    const REFRESHES: bool = false;
    /// True when subscriptions have names without `#`, as in CCM.
    const CCM_SUBSCRIBE_SYNTAX: bool = false;
    /// True when a dry run describes each step in a sentence of its own.
    const NOOP_PER_STEP: bool = false;
    /// Properties that describe the path in the resource's name, for names that are paths. Two resources of one path that differ
    /// in any of them undo each other in every run.
    const CLAIMED_PATHS: &'static [&'static str] = &[];
    /// True when the type changes the system itself: accounts, packages, units, mounts, kernel settings.
    ///
    /// The directories of `paths` can't limit such a type. False when the type only changes files at paths from the author.
    const CHANGES_SYSTEM: bool;
    /// True when resources of the type are manifests. See [`Resource::nested`].
    const NESTS: bool = false;
    /// The values of `on_removal` that the type supports, beside `keep`. See [`Resource::restoring`] and [`Resource::removing`].
    const REVERSALS: &'static [OnRemoval] = &[];
    /// Properties that [`Resource::effects`] does not depend on, each with the reason. All others influence the effects.
    const NO_EFFECTS: &'static [(&'static str, &'static str)];
    /// The values for templates of later resources. See [`Resource::outputs`].
    const OUTPUTS: &'static [ResourceOutput] = &[];
    /// The providers, best first.
    const PROVIDERS: &'static [ProviderEntry<Self::Provider>];

    /// The properties in manifests; unknown keys are refused. Has `name`, and `ensure` where the type needs it.
    type Properties: DeserializeOwned + Serialize + JsonSchema + Clone + std::fmt::Debug + PartialEq + Send + Sync;
    /// The observed state.
    type State: State;
    /// A step.
    type Change: Change;
    /// The interface of the providers.
    type Provider: ?Sized + Send + Sync + 'static;

    /// Checks the properties without access to the host. Runtime templates may still be unresolved.
    ///
    /// # Errors
    /// The first property that is wrong.
    fn validate(properties: &Self::Properties) -> Result<(), Invalid>;
    /// The command lines that are split into words before they run, with their properties. `provider` is the requested provider.
    fn command_lines<'p>(_properties: &'p Self::Properties, _provider: &str) -> Vec<(&'static str, &'p str)> {
        Vec::new()
    }

    /// The name of the resource.
    fn name(properties: &Self::Properties) -> &str;

    /// The requested `ensure`.
    fn ensure(properties: &Self::Properties) -> &str;

    /// All effects that a resource with these properties can have, derived from the properties alone. Invalid properties have
    /// effects too: rules and limits are checked before [`Resource::validate`].
    fn effects(properties: &Self::Properties) -> Effects;

    /// Returns what can change a resource with these properties from outside. By default derived from the effects.
    fn watches(properties: &Self::Properties, host: &Host) -> Vec<WatchTarget> {
        watch_targets::from_effects(&Self::effects(properties), host)
    }

    /// The objects of the host that a resource with these properties makes or edits. An absent resource provides none.
    fn provides(_: &Self::Properties) -> Vec<Identity> {
        Vec::new()
    }

    /// The objects of the host that an absent resource removes.
    fn removes(_: &Self::Properties) -> Vec<Identity> {
        Vec::new()
    }

    /// The objects that come before the resource, where other resources of the manifest manage them. Only the order of a manifest
    /// with `ordering: graph` depends on them.
    fn needs(_: &Self::Properties) -> Vec<Need> {
        Vec::new()
    }

    /// Returns the properties that `ensign ensure` adds for a user at a shell.
    fn shell_defaults(_ensure: Option<&str>) -> ShellDefaults {
        ShellDefaults::default()
    }

    /// Sets the scope of templates, for types that render files.
    fn attach_scope(_: &mut Self::Properties, _: &Scope) {}

    /// Returns properties with which [`Resource::observe`] shows the whole state of a name. None for types that need more than a
    /// name.
    fn query(_name: &str) -> Option<Self::Properties> {
        None
    }

    /// Passes all resources of the type to the provider before the first observation. A single query to the host can then serve
    /// all of them. Makes no query yet.
    fn prefetch(_: &[&Self::Properties], _: &Self::Provider) {}

    /// Updates the caches that [`Resource::observe`] reads, if the properties require this. Not called in dry runs.
    ///
    /// # Errors
    /// When the update fails.
    fn refresh_cache(_: &Self::Properties, _: &Self::Provider, _: &Host) -> Result<(), ResourceError> {
        Ok(())
    }

    /// Observes the host, and never writes.
    ///
    /// # Errors
    /// When the host can't be observed.
    fn observe(properties: &Self::Properties, provider: &Self::Provider, host: &Host) -> Result<Self::State, ResourceError>;

    /// Returns the steps from the observed to the desired state; none for a converged resource. Pure.
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

    /// Applies the steps of several resources and returns the result of each; by default one by one. May remove the steps of a
    /// resource that an earlier one has already converged.
    fn apply_all(batch: &mut [Pending<'_, Self>], provider: &Self::Provider, host: &Host) -> Vec<Result<(), ResourceError>>
    where
        Self: Sized,
    {
        batch.iter_mut().map(|one| one.apply(provider, host)).collect()
    }

    /// Returns properties that bring back the observed state, for `on_removal: revert`. None for an object that stays.
    ///
    /// # Errors
    /// When no properties describe the state.
    fn restoring(_: &Self::Properties, _: &Self::State, _: &Host) -> Result<Option<Self::Properties>, ResourceError> {
        Ok(None)
    }

    /// Returns properties that remove the object, for `on_removal: absent`. None for an object that stays.
    fn removing(_: &Self::Properties, _: &Self::State) -> Option<Self::Properties> {
        None
    }

    /// Returns the observed state for a comparison: whether other programs changed the object since a run. `properties` are those
    /// of the manifest, or those that reverse the resource. `removes` is true when the object is removed in the end.
    ///
    /// # Errors
    /// When the state can't be read.
    fn comparable(
        _properties: &Self::Properties,
        state: &Self::State,
        _host: &Host,
        _removes: bool,
    ) -> Result<Value, ResourceError> {
        Ok(Value::from(state.ensure()))
    }

    /// Returns the steps for a refresh, after a change of a subscribed resource.
    fn on_refresh(_: &Self::Properties, _: &Self::State) -> Vec<Self::Change> {
        Vec::new()
    }

    /// Returns the manifest that the engine runs instead of this resource, for types that nest.
    fn nested(_: &Self::Properties) -> Option<Nested> {
        None
    }

    /// The text before and after, for types that manage a text.
    fn preview(_: &Self::Properties, _: &Self::State, _: &Host) -> Option<Preview> {
        None
    }

    /// Returns the values of [`Resource::OUTPUTS`] in a state. A null is no value.
    fn outputs(_: &Self::Properties, _: &Self::State) -> Vec<(&'static str, Value)> {
        Vec::new()
    }

    /// The properties as in events: without secrets and large values.
    fn redacted(properties: &Self::Properties) -> Value {
        serde_json::to_value(properties).unwrap_or_default()
    }

    /// Reports every value that [`Resource::redacted`] replaces by `***`, so that outputs of programs are redacted too.
    fn report_secrets(_: &Self::Properties, _: &mut dyn FnMut(RedactedProperty<'_>)) {}
}
