//! What templates may use, beside the manifest itself.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::data::{self, Resolved, Rules};
use crate::diag::{Diagnostic, chain};
use crate::host::{Host, fs};
use crate::manifest::MAX_MANIFEST;
use crate::model::{Exchange, Secrets};
use crate::template::{Reader, Scope};
use crate::yaml::{Document, Step};

use super::vault;

/// Gives the facts of the host.
pub type Facts = Arc<dyn Fn() -> Value + Send + Sync>;

/// What a run is told from outside.
#[derive(Clone)]
pub struct Inputs {
    facts: Facts,
    /// `Environ` in templates.
    pub environ: BTreeMap<String, String>,
    /// Data merged over the manifest's own.
    pub data: Option<Value>,
    /// What `kvGet` and `registrations` ask; they fail when none.
    pub exchange: Option<Arc<dyn Exchange>>,
    /// What the annotations of that data demand.
    pub rules: Rules,
    secrets: Arc<Secrets>,
}

impl Inputs {
    /// Inputs with facts that are gathered when something first asks for them, and once.
    pub fn new(
        gather: impl Fn() -> Value + Send + Sync + 'static,
        environ: BTreeMap<String, String>,
        data: Option<Value>,
    ) -> Self {
        let known = OnceLock::new();
        let facts: Facts = Arc::new(move || known.get_or_init(&gather).clone());
        Self { facts, environ, data, exchange: None, rules: Rules::default(), secrets: Arc::default() }
    }

    /// The secrets that templates have taken so far.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// The scope in which data is resolved: facts and secrets only.
    pub fn restricted(&self, host: &Host) -> Scope {
        Scope::restricted(Arc::clone(&self.facts)).with_secrets(self.vault(host), Arc::clone(&self.secrets))
    }

    fn vault(&self, host: &Host) -> Reader {
        vault::open(self.environ.clone(), host)
    }

    /// Resolves data from outside as that of a manifest is, with what its annotations demand.
    ///
    /// # Errors
    /// When it can't be resolved, with its place.
    pub fn resolve(&self, document: &Document, host: &Host) -> Result<(Resolved, Rules), Diagnostic> {
        let rules = Rules::read(document)?;
        let resolved = data::resolve(document.value(), &self.restricted(host)).map_err(|error| {
            let path: Vec<Step> = error.path().iter().map(|key| Step::Key(key.clone())).collect();
            let place = document.key_place(&path);
            let source = if place.is_none() { format!("{}: ", document.file()) } else { String::new() };
            Diagnostic::new(format!("{source}{}", chain(&error))).at(place)
        })?;
        Ok((resolved, rules))
    }

    /// The scope of resources with this data.
    pub fn scope(&self, data: Value, host: &Host) -> Scope {
        let scope = Scope::new(Arc::clone(&self.facts), data, self.environ.clone())
            .with_reader(reader(host))
            .with_secrets(self.vault(host), Arc::clone(&self.secrets));
        match &self.exchange {
            Some(exchange) => scope.with_exchange(Arc::clone(exchange)),
            None => scope,
        }
    }
}

/// Reads files for templates, relative ones beside the manifest.
fn reader(host: &Host) -> Reader {
    let host = host.clone();
    Arc::new(move |name| {
        let path = host.readable(name.as_ref())?;
        fs::read_text(&path, MAX_MANIFEST).map_err(|error| chain(&error))
    })
}
