//! The options of an agent: the parts that only the edge of the program knows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::config::AgentSettings;

use super::exec::backend::RunBackend;
use super::exec::upgrade::RestartableProgram;

/// Gathers the facts of this host with those of the administrator in these directories, anew each time.
pub type FactsGatherer = Arc<dyn Fn(&[PathBuf]) -> Value + Send + Sync>;

/// The parts of an agent that only the edge of the program knows.
#[derive(Clone)]
pub struct AgentOptions {
    /// The settings.
    pub settings: AgentSettings,
    /// Gathers the facts of the host.
    pub facts: FactsGatherer,
    /// `Environ` in templates.
    pub environ: BTreeMap<String, String>,
    /// The directories in which bare command names are looked up.
    pub search_path: Option<String>,
    /// The operating system, as states name it.
    pub platform: Option<String>,
    /// The engine, or a simulation.
    pub backend: RunBackend,
    /// The program that a service manager starts again; none without a service manager.
    pub program: Option<RestartableProgram>,
}
