//! The inputs of templates, beside the manifest itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;

use crate::data::{self, Annotations, ResolvedData};
use crate::diag::{Diagnostic, error_chain};
use crate::host::Host;
use crate::manifest::MAX_MANIFEST;
use crate::model::{DiscoveryClient, EvaluationBudget, ReadAccess, Secrets, UnrestrictedAccess};
use crate::resource::Types;
use crate::template::Scope;
use crate::yaml::{KeyOrIndex, YamlDocument};

use super::secret_source;
use super::template_files::GuardedFiles;

/// Gathers the facts of the host.
pub type FactsLoader = Arc<dyn Fn() -> Value + Send + Sync>;

/// The inputs of a run.
#[derive(Clone)]
pub struct RunInputs {
    facts: FactsLoader,
    /// `Environ` in templates.
    pub environ: BTreeMap<String, String>,
    /// Data merged over the manifest's own.
    pub data: Option<Value>,
    /// The access to the bus for `kvGet` and `registrations`; without it both fail.
    pub exchange: Option<Arc<dyn DiscoveryClient>>,
    /// The rules in the annotations of that data.
    pub rules: Annotations,
    /// Decides about the files that templates read.
    pub access: Arc<dyn ReadAccess>,
    /// The rights of values of the bus.
    pub bus: BusData,
    /// The known resource types.
    pub types: Types,
    /// True when the data contains values that templates have read.
    pub(super) has_read_values: bool,
    secrets: Arc<Secrets>,
    budget: EvaluationBudget,
    template_files: Arc<Mutex<BTreeSet<PathBuf>>>,
}

/// Values of the bus in a run.
#[derive(Debug, Clone, PartialEq)]
pub enum BusData {
    /// Values of the bus have the rights of all other values.
    Any,
    /// Unsigned values shape only properties that a type declares as content.
    Signed {
        /// The part of [`RunInputs::data`] that came from the bus and was not signed.
        unsigned: Value,
    },
}

impl RunInputs {
    /// Returns inputs with facts that are gathered once, when a template first needs them.
    pub fn new(
        gather: impl Fn() -> Value + Send + Sync + 'static,
        environ: BTreeMap<String, String>,
        data: Option<Value>,
    ) -> Self {
        let known = OnceLock::new();
        let facts: FactsLoader = Arc::new(move || known.get_or_init(&gather).clone());
        Self {
            facts,
            environ,
            data,
            exchange: None,
            rules: Annotations::default(),
            access: Arc::new(UnrestrictedAccess),
            bus: BusData::Any,
            types: Types::default(),
            has_read_values: false,
            secrets: Arc::default(),
            budget: EvaluationBudget::default(),
            template_files: Arc::default(),
        }
    }

    /// Returns the secrets that templates have read so far.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Returns the files that templates have read so far, or tried to read.
    pub(super) fn template_files(&self) -> Vec<PathBuf> {
        self.template_files.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(super) fn shared_secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.secrets)
    }

    /// Returns the scope in which data is resolved: facts and secrets only.
    pub fn restricted(&self, host: &Host) -> Scope {
        self.with_functions(Scope::restricted(Arc::clone(&self.facts)), host)
    }

    /// Returns the scope with the functions and secrets of the run.
    fn with_functions(&self, scope: Scope, host: &Host) -> Scope {
        let vault = secret_source::open(self.environ.clone(), host, Arc::clone(&self.access));
        let over = host.clone();
        let budget = self.budget.clone().with_cancel(Arc::new(move || over.is_over()));
        scope.with_secrets(vault, Arc::clone(&self.secrets)).with_access(Arc::clone(&self.access)).with_budget(budget)
    }

    /// Resolves external data like the data of a manifest, with the rules of its annotations.
    ///
    /// # Errors
    /// When the data cannot be resolved, with its place.
    pub fn resolve(&self, document: &YamlDocument, host: &Host) -> Result<(ResolvedData, Annotations), Diagnostic> {
        let rules = Annotations::read(document)?;
        let resolved = data::resolve(document.value(), &self.restricted(host)).map_err(|error| {
            let path: Vec<KeyOrIndex> = error.path().iter().map(|key| KeyOrIndex::Key(key.clone())).collect();
            let place = document.key_place(&path);
            let source = if place.is_none() { format!("{}: ", document.file()) } else { String::new() };
            Diagnostic::new(format!("{source}{}", error_chain(&error))).at(place)
        })?;
        Ok((resolved, rules))
    }

    /// Returns the scope of resources with this data.
    pub fn scope(&self, data: Value, host: &Host) -> Scope {
        let files = GuardedFiles { host: host.clone(), access: Arc::clone(&self.access) };
        let reads = Arc::clone(&self.template_files);
        let scope = Scope::new(Arc::clone(&self.facts), data, self.environ.clone()).with_reader(Arc::new(move |name| {
            let path = files.host.resolve(Path::new(name));
            reads.lock().unwrap_or_else(PoisonError::into_inner).insert(path);
            files.read(name, MAX_MANIFEST)
        }));
        let scope = match &self.exchange {
            Some(exchange) => scope.with_discovery(Arc::clone(exchange)),
            None => scope,
        };
        let scope = match &self.bus {
            BusData::Any => scope,
            BusData::Signed { unsigned } => scope.with_unsigned_data(unsigned.clone()),
        };
        let scope = if self.has_read_values { scope.with_read_data() } else { scope };
        self.with_functions(scope, host)
    }
}
