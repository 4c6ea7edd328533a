//! A run: the resources of a plan, strictly in order, each ending in an event.

use std::sync::Arc;

use uuid::Uuid;

use crate::diag::chain;
use crate::host::Host;
use crate::model::{NodeId, RunOutcome, Summary, TransactionEvent};
use crate::resource::Providers;
use crate::store::Session;

use super::plan::Plan;
use super::treat::Treatment;

/// What a host lets be done, whoever asks. Consulted for every resource before it is looked at.
pub trait Permit: Send + Sync {
    /// Whether a resource of this type and name may be managed.
    ///
    /// # Errors
    /// With the reason, for people.
    fn permit(&self, kind: &str, name: &str) -> Result<(), String>;
}

/// How to run.
#[derive(Clone)]
pub struct Settings {
    /// A dry run: observe and say what would change.
    pub noop: bool,
    /// Run only health checks.
    pub health_check_only: bool,
    /// Put a diff of the content into events of changes.
    pub diff: bool,
    /// Leave `properties` and `status` out of events: for a run whose events nobody keeps.
    pub bare: bool,
    /// The run, as events name it.
    pub run_id: Uuid,
    /// The node, as events name it.
    pub node: Option<NodeId>,
    /// What the host lets be done; everything when none.
    pub permit: Option<Arc<dyn Permit>>,
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The counts over its session.
    pub summary: Summary,
    /// How it ended.
    pub outcome: RunOutcome,
    /// Why it ended early, when the session could not be written.
    pub error: Option<String>,
}

/// Runs a plan. Every resource that is reached leaves an event in `session`, and then in `sink`.
pub fn run(
    plan: &Plan,
    settings: &Settings,
    host: &Host,
    session: &mut dyn Session,
    sink: &mut dyn FnMut(&TransactionEvent),
) -> Report {
    let providers = Providers::default();
    let mut tally = crate::model::summary::Tally::default();
    tally.start(host.now());
    let (mut interrupted, mut error) = (false, None);
    for (planned, seq) in plan.resources.iter().zip(1..) {
        if host.is_over() {
            interrupted = true;
            break;
        }
        let event = Treatment { plan, planned, settings, host, providers: &providers, session, seq }.event();
        tally.add(&event);
        if let Err(cause) = session.record(&event) {
            sink(&event);
            error = Some(chain(&cause));
            break;
        }
        sink(&event);
        if plan.fail_on_error && event.failed && !settings.health_check_only {
            break;
        }
    }
    let summary = tally.summary();
    let outcome = if interrupted || host.is_over() { RunOutcome::Interrupted } else { RunOutcome::of(&summary) };
    Report { summary, outcome, error }
}
