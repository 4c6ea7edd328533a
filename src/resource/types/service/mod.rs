//! `service`: units of systemd: their activity, now and after the next boot.
//!
//! `manager.rs` is the interface to systemd, and `services.rs` its cache for a run. `daemon_reload.rs` detects changed unit
//! files, `name.rs` checks names, and `journal.rs` reads the journal of a failed unit.

mod activity;
mod daemon_reload;
#[cfg(test)]
mod fixture;
mod journal;
mod manager;
mod name;
mod services;
#[cfg(test)]
pub(in crate::resource) mod simulated;
#[cfg(test)]
mod tests;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::host::{Host, systemd};
use crate::model::{Effect, Effects, HumanDuration, Identity, Need, OnRemoval, WatchTarget};

use crate::resource::core::text;
use crate::resource::{Change, Invalid, ProviderEntry, Resource, ResourceError, ResourceOutput, State};

use activity::Activity;
use manager::{Systemctl, UnitAction, best};
pub use services::Services;

/// Services.
pub struct ServiceType;

/// The desired state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServiceEnsure {
    /// Running.
    #[default]
    Running,
    /// Stopped.
    Stopped,
}

impl<'de> Deserialize<'de> for ServiceEnsure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match text::or_empty(deserializer)?.as_str() {
            "" | "running" => Ok(Self::Running),
            "stopped" => Ok(Self::Stopped),
            other => Err(serde::de::Error::custom(format_args!(
                "invalid ensure value: invalid ensure property \"{other}\" expects \"running\" or \"stopped\""
            ))),
        }
    }
}

/// The reaction of a running service to a change of a subscribed resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Refresh {
    /// Stop and start.
    #[default]
    Restart,
    /// Reload of the configuration; an error where the unit can't reload.
    Reload,
    /// Reload if the unit can, else restart.
    ReloadOrRestart,
}

impl Refresh {
    fn verb(self) -> UnitAction {
        match self {
            Self::Restart => UnitAction::Restart,
            Self::Reload => UnitAction::Reload,
            Self::ReloadOrRestart => UnitAction::ReloadOrRestart,
        }
    }

    fn past_participle(self) -> &'static str {
        match self {
            Self::Restart => "restarted",
            Self::Reload => "reloaded",
            Self::ReloadOrRestart => "reloaded or restarted",
        }
    }
}

/// Properties of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Properties {
    /// The unit, as `nginx`, `getty@tty1` or `backup.timer`; without a suffix a `.service`.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Desired state of the service.
    #[serde(default)]
    pub ensure: ServiceEnsure,
    /// Start at boot; not managed when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Reaction of a running service to a change of a resource in `subscribe`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub refresh: Refresh,
    /// Maximum duration of a start, stop or reload; 2 minutes when left out, no limit when zero. systemd has limits of its own.
    #[serde(default = "two_minutes")]
    pub timeout: HumanDuration,
}

fn two_minutes() -> HumanDuration {
    HumanDuration::seconds(120)
}

fn is_default(refresh: &Refresh) -> bool {
    *refresh == Refresh::default()
}

impl Properties {
    fn unit(&self) -> String {
        name::unit(&self.name)
    }

    /// Returns the time to wait: a hundred years where there is no limit.
    fn limit(&self) -> HumanDuration {
        if self.timeout.limit().is_some() { self.timeout } else { HumanDuration::seconds(100 * 365 * 86_400) }
    }

    /// True for a state that ends by itself. Only then the next step is clear.
    fn is_transient(&self, activity: Activity) -> bool {
        match activity {
            Activity::Starting => self.ensure == ServiceEnsure::Running,
            Activity::Stopping => true,
            Activity::Running | Activity::Stopped | Activity::Waiting => false,
        }
    }

    /// Returns the step that enables or disables the start at boot, if needed.
    fn enabling(&self, state: &ServiceState) -> Option<ServiceChange> {
        match self.enable {
            Some(true) if !state.metadata.enabled => Some(ServiceChange::Enable),
            Some(false) if state.metadata.enabled => Some(ServiceChange::Disable),
            _ => None,
        }
    }
}

/// The observed state of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceState {
    #[serde(skip)]
    activity: Activity,
    metadata: Metadata,
}

/// The details in the `status` of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Metadata {
    name: String,
    provider: &'static str,
    enabled: bool,
    running: bool,
    /// The real name of the unit, if the requested name is an alias.
    unit: String,
    active_state: String,
    sub_state: String,
    unit_file_state: String,
}

impl State for ServiceState {
    fn ensure(&self) -> &str {
        if self.metadata.running { "running" } else { "stopped" }
    }
}

/// True for a state of `systemctl is-enabled` with a start at boot, or with a start that other units decide.
fn is_enabled(word: &str) -> bool {
    matches!(word, "enabled" | "enabled-runtime" | "alias" | "static" | "indirect" | "generated" | "transient")
}

/// A step towards the desired state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceChange {
    /// Start the unit.
    Start,
    /// Stop the unit.
    Stop,
    /// A refresh because of a subscription.
    Refresh(Refresh),
    /// Enable the start at boot.
    Enable,
    /// Disable the start at boot.
    Disable,
}

impl fmt::Display for ServiceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("started"),
            Self::Stop => f.write_str("stopped"),
            Self::Refresh(refresh) => write!(f, "{} via subscribe", refresh.past_participle()),
            Self::Enable => f.write_str("enabled"),
            Self::Disable => f.write_str("disabled"),
        }
    }
}

impl Change for ServiceChange {
    fn details(&self) -> Vec<String> {
        vec![match self {
            Self::Start => "service is stopped, expected running".to_owned(),
            Self::Stop => "service is running, expected stopped".to_owned(),
            Self::Refresh(_) => self.to_string(),
            Self::Enable => "service is disabled, expected enabled".to_owned(),
            Self::Disable => "service is enabled, expected disabled".to_owned(),
        }]
    }
}

impl Resource for ServiceType {
    const TYPE: &'static str = "service";
    const CHANGES_SYSTEM: bool = true;
    const ABOUT: &'static str = "Units of systemd: whether they run, and whether they start at boot.";
    const REFRESHES: bool = true;
    const NO_EFFECTS: &'static [(&'static str, &'static str)] = &[
        ("ensure", "the same unit is started or stopped"),
        ("enable", "the same unit"),
        ("refresh", "the same unit"),
        ("timeout", "limit of a wait"),
    ];
    const OUTPUTS: &'static [ResourceOutput] = &[
        ResourceOutput::flag("active", "True while the service runs."),
        ResourceOutput::flag("enabled", "True when the service starts at boot."),
    ];
    const REVERSALS: &'static [OnRemoval] = &[OnRemoval::Revert];
    const PROVIDERS: &'static [ProviderEntry<Services>] = &[
        ProviderEntry::new("systemd", |_| systemd::is_booted(), |host| Box::new(Services::new(best(host), host))),
        ProviderEntry::on_request(
            "systemctl",
            |_| systemd::is_booted(),
            |host| Box::new(Services::new(Box::new(Systemctl), host)),
        ),
    ];

    type Properties = Properties;
    type State = ServiceState;
    type Change = ServiceChange;
    type Provider = Services;

    fn validate(p: &Properties) -> Result<(), Invalid> {
        name::check(&p.name)
    }

    fn name(p: &Properties) -> &str {
        &p.name
    }

    fn ensure(p: &Properties) -> &str {
        match p.ensure {
            ServiceEnsure::Running => "running",
            ServiceEnsure::Stopped => "stopped",
        }
    }

    fn effects(p: &Properties) -> Effects {
        std::iter::once(Effect::Unit(p.name.clone())).collect()
    }

    fn watches(p: &Properties, _: &Host) -> Vec<WatchTarget> {
        vec![WatchTarget::Unit(p.unit())]
    }

    fn provides(p: &Properties) -> Vec<Identity> {
        vec![Identity::Unit(p.unit())]
    }

    fn needs(p: &Properties) -> Vec<Need> {
        let (stem, files) = (name::stem(&p.name), name::unit_files(&p.name));
        let configuration = [format!("/etc/{stem}.conf"), format!("/etc/default/{stem}"), format!("/etc/sysconfig/{stem}")];
        let mut needs: Vec<Need> = name::UNIT_DIRECTORIES
            .iter()
            .flat_map(|directory| files.iter().map(move |file| format!("{directory}/{file}")))
            .flat_map(|file| [Need::below(format!("{file}.d")), Need::path(file)])
            .collect();
        needs.extend(configuration.into_iter().map(Need::path));
        needs.extend([Need::below(format!("/etc/{stem}")), Need::package(stem)]);
        needs
    }

    fn query(name: &str) -> Option<Properties> {
        // The present state, without waiting, and all properties.
        let (enable, timeout) = (Some(true), HumanDuration::shortest());
        Some(Properties { name: name.to_owned(), ensure: ServiceEnsure::Running, enable, refresh: Refresh::Restart, timeout })
    }

    fn refresh_cache(p: &Properties, services: &Services, host: &Host) -> Result<(), ResourceError> {
        services.refresh_cache(&p.unit(), host)
    }

    fn observe(p: &Properties, services: &Services, host: &Host) -> Result<ServiceState, ResourceError> {
        let unit = services.unit(&p.unit(), p.limit(), |activity| p.is_transient(activity), host)?;
        let activity = Activity::from_unit(&unit);
        let known = name::unit(&p.name);
        if unit.load == "not-found"
            && activity == Activity::Stopped
            && !host.expects_unit(&daemon_reload::unit_file_names(&known))
        {
            return Err(ResourceError::State(format!("service {} not found: there is no unit {known}", p.name)));
        }
        // systemd does not know links that another program has changed. A fresh query is slow, and matters only here.
        let word = match p.enable {
            Some(_) => services.manager.enabled(&unit.id, host)?.unwrap_or_default(),
            None => unit.file_state,
        };
        let metadata = Metadata {
            name: p.name.clone(),
            provider: services.manager.name(),
            enabled: is_enabled(&word),
            running: activity == Activity::Running,
            unit: unit.id,
            active_state: unit.active,
            sub_state: unit.sub,
            unit_file_state: word,
        };
        Ok(ServiceState { activity, metadata })
    }

    fn outputs(_: &Properties, state: &ServiceState) -> Vec<(&'static str, Value)> {
        vec![("active", json!(state.metadata.running)), ("enabled", json!(state.metadata.enabled))]
    }

    fn restoring(p: &Properties, state: &ServiceState, _: &Host) -> Result<Option<Properties>, ResourceError> {
        let ensure = if state.metadata.running { ServiceEnsure::Running } else { ServiceEnsure::Stopped };
        let enable = p.enable.map(|_| state.metadata.enabled);
        Ok(Some(Properties { ensure, enable, ..p.clone() }))
    }

    fn comparable(p: &Properties, state: &ServiceState, _: &Host, _: bool) -> Result<Value, ResourceError> {
        Ok(json!({"ensure": state.ensure(), "enabled": p.enable.map(|_| state.metadata.enabled)}))
    }

    fn diff(p: &Properties, state: &ServiceState) -> Result<Vec<ServiceChange>, ResourceError> {
        if p.is_transient(state.activity) {
            let (word, limit) = (&state.metadata.active_state, p.timeout);
            return Err(ResourceError::State(format!(
                "service is still {word} after {limit}; increase `timeout` to wait longer"
            )));
        }
        let change = match (p.ensure, state.activity) {
            (ServiceEnsure::Running, Activity::Running) | (ServiceEnsure::Stopped, Activity::Stopped) => None,
            (ServiceEnsure::Running, _) => Some(ServiceChange::Start),
            (ServiceEnsure::Stopped, _) => Some(ServiceChange::Stop),
        };
        Ok(change.into_iter().chain(p.enabling(state)).collect())
    }

    fn apply(
        change: &ServiceChange,
        p: &Properties,
        state: &mut ServiceState,
        services: &Services,
        host: &Host,
    ) -> Result<(), ResourceError> {
        // The real name: an alias can't be enabled.
        let unit = state.metadata.unit.clone();
        let moved = match change {
            ServiceChange::Start => {
                let verb = if state.activity == Activity::Waiting { UnitAction::StartNow } else { UnitAction::Start };
                services.run_until_active(verb, &unit, p.limit(), host)
            }
            ServiceChange::Refresh(refresh) => services.run_until_active(refresh.verb(), &unit, p.limit(), host),
            ServiceChange::Stop => services.stop(&unit, p.limit(), host),
            ServiceChange::Enable => return services.enable(&unit, true, host),
            ServiceChange::Disable => return disable(state, services, host),
        };
        if moved.is_err() {
            // A failed start does not prevent enabling the unit for the next boot.
            if let Some(enabling) = p.enabling(state) {
                Self::apply(&enabling, p, state, services, host)?;
            }
        }
        moved
    }

    fn on_refresh(p: &Properties, state: &ServiceState) -> Vec<ServiceChange> {
        if p.ensure == ServiceEnsure::Stopped || state.activity != Activity::Running {
            return Vec::new();
        }
        [ServiceChange::Refresh(p.refresh)].into_iter().chain(p.enabling(state)).collect()
    }
}

fn disable(state: &ServiceState, services: &Services, host: &Host) -> Result<(), ResourceError> {
    match state.metadata.unit_file_state.as_str() {
        word @ ("static" | "transient" | "indirect") => Err(ResourceError::State(format!(
            "failed to reach desired state: service is enabled, expected disabled: the unit is {word}: it has nothing that \
             could be disabled; leave `enable` out"
        ))),
        _ => services.enable(&state.metadata.unit, false, host),
    }
}
