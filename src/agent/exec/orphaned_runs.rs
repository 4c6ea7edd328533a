//! Commands that an agent before this one left running: ended before this one says that they were interrupted.

use std::sync::Arc;

use crate::config::Settings;
use crate::diag::chain;
use crate::host::fs::FsError;
use crate::host::{Journal, Orphans, orphans};

/// The journal, below the state directory.
const FILE: &str = "commands";

/// The journal of this agent, and what was found in that of the agent before.
pub(in crate::agent) struct OrphanedRuns {
    /// What this agent runs.
    pub(in crate::agent) journal: Arc<Journal>,
    /// What is to be told of the earlier agent.
    pub(in crate::agent) report: Option<String>,
}

impl OrphanedRuns {
    /// Ends what is left, and begins a journal. The state directory is this process's alone by now, so that an earlier
    /// agent is dead.
    pub(in crate::agent) fn end(settings: &Settings) -> Result<Self, FsError> {
        let path = settings.state_dir.join(FILE);
        let report = match orphans::end(&path) {
            Ok(orphans) => tell(&orphans),
            Err(error) => {
                let error = FsError::io("read", &path, error);
                let what = format!("could not find out what an earlier run left running: {}", chain(&error));
                tracing::error!("{what}");
                Some(what)
            }
        };
        let journal = Journal::open(&path).map_err(|error| FsError::io("write", &path, error))?;
        Ok(Self { journal: Arc::new(journal), report })
    }
}

fn tell(orphans: &Orphans) -> Option<String> {
    let report = orphans.report()?;
    if orphans.alive.is_empty() {
        tracing::warn!("{report}");
    } else {
        tracing::error!("{report}");
    }
    Some(report)
}
