//! Verification of commands under the trust bundle, the settings and the replay protection of this node.

use std::cell::RefCell;
use std::sync::Arc;

use crate::agent::config::limits;
use crate::agent::config::settings_handle::SettingsHandle;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::status::facts_cache::FactsCache;
use crate::engine::effects::of_signed;
use crate::trust::{NodeLimits, Verifier};

use super::TrustHandle;

/// The answer to a filter (`where`) that was not evaluated yet.
const NOT_EVALUATED: &str = "the filter was not evaluated yet";

/// Lends the [`Verifier`] of this node, with the current trust bundle and settings.
#[derive(Clone)]
pub(in crate::agent) struct CommandVerifier {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) facts: Arc<FactsCache>,
}

impl CommandVerifier {
    /// Returns the limits of this host as they are now.
    pub(in crate::agent) fn limits(&self) -> NodeLimits {
        limits::node_limits(&self.settings.now())
    }

    /// Lends the verifier.
    pub(in crate::agent) fn verify<T>(&self, work: impl FnOnce(&Verifier<'_>) -> T) -> T {
        // This thread evaluates nothing: see `verify_or_filter`.
        let condition = |expression: &str| self.facts.cached_answer(expression).unwrap_or_else(|| Err(NOT_EVALUATED.to_owned()));
        self.verify_with(&condition, work)
    }

    /// Lends the verifier. Returns also the filter that must be evaluated first, if there is one. The result of `work` does
    /// not count then.
    pub(in crate::agent) fn verify_or_filter<T>(&self, work: impl FnOnce(&Verifier<'_>) -> T) -> (T, Option<String>) {
        let unknown = RefCell::new(None);
        let condition = |expression: &str| {
            self.facts.cached_answer(expression).unwrap_or_else(|| {
                unknown.replace(Some(expression.to_owned()));
                Err(NOT_EVALUATED.to_owned())
            })
        };
        let result = self.verify_with(&condition, work);
        (result, unknown.into_inner())
    }

    fn verify_with<T>(&self, condition: &dyn Fn(&str) -> Result<bool, String>, work: impl FnOnce(&Verifier<'_>) -> T) -> T {
        let (trust, settings, limits) = (self.trust.current(), self.settings.now(), self.limits());
        let types = self.settings.types();
        work(&Verifier {
            trust: &trust,
            node: &settings.node,
            groups: &settings.groups,
            limits: &limits,
            subjects: &self.identity.subjects,
            now: self.durable.monotonic_now(self.identity.now()),
            replay_store: &*self.durable,
            evaluate_filter: condition,
            effects: &|kind, properties| of_signed(&types, kind, properties),
        })
    }
}
