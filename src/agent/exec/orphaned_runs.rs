//! Orphaned runs: processes that an earlier agent left running. This agent ends them before it reports their commands as
//! interrupted.

use std::sync::Arc;

use crate::config::AgentSettings;
use crate::diag::error_chain;
use crate::host::fs::FsError;
use crate::host::{Journal, Orphans, orphans};

/// The journal, below the state directory.
const FILE: &str = "commands";

/// The journal of this agent, and the report about the journal of the earlier agent.
pub(in crate::agent) struct OrphanedRuns {
    /// The commands that this agent runs.
    pub(in crate::agent) journal: Arc<Journal>,
    /// The report about the processes of the earlier agent.
    pub(in crate::agent) report: Option<String>,
}

impl OrphanedRuns {
    /// Ends the processes that are left, and begins a journal. The caller owns the state directory, so that the earlier
    /// agent is dead.
    pub(in crate::agent) fn end_all(settings: &AgentSettings) -> Result<Self, FsError> {
        let path = settings.state_dir.join(FILE);
        let report = match orphans::end(&path) {
            Ok(orphans) => log_report(&orphans),
            Err(error) => {
                let error = FsError::io("read", &path, error);
                let what = format!("cannot find the processes that an earlier run left: {}", error_chain(&error));
                tracing::error!("{what}");
                Some(what)
            }
        };
        let journal = Journal::open(&path).map_err(|error| FsError::io("write", &path, error))?;
        Ok(Self { journal: Arc::new(journal), report })
    }
}

fn log_report(orphans: &Orphans) -> Option<String> {
    let report = orphans.report()?;
    if orphans.alive.is_empty() {
        tracing::warn!("{report}");
    } else {
        tracing::error!("{report}");
    }
    Some(report)
}
