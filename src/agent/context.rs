//! The handles that the tasks of an agent share, and how they are opened at the start.
//!
//! A task takes the handles that it needs, and no others. [`Handles`] is only the wiring: `mod.rs` opens it once and
//! takes it apart.

use std::sync::{Arc, Mutex};

use crate::engine::effects::of_signed;
use crate::host::Host;
use crate::host::fs;
use crate::store::{PendingRefreshes, ValueStore};
use crate::trust::Verifier;
use crate::wire::Subjects;

use super::config::{external_types::read_types, limits, settings_handle::SettingsHandle};
use super::durable::{publisher::Publisher, state::DurableState, state_loss};
use super::error::AgentError;
use super::exec::{
    assignment_outputs::AssignmentOutputs, backend::RunBackend, confinement, context::RunContext, orphaned_runs::OrphanedRuns,
};
use super::identity::AgentInstance;
use super::options::AgentOptions;
use super::reconcile::desired_state::DesiredState;
use super::rollout::RolloutState;
use super::status::{
    NodeStateSource,
    board::{AgentSnapshot, AlarmKind, StatusBoard},
    counters::SharedCounters,
    facts_cache::FactsCache,
};
use super::trust::{TrustHandle, anchor, command_verifier::CommandVerifier};

/// All handles of an agent, as opened at its start.
pub(in crate::agent) struct Handles {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) settings: SettingsHandle,
    pub(in crate::agent) trust: TrustHandle,
    pub(in crate::agent) verifier: CommandVerifier,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
    pub(in crate::agent) status: Arc<StatusBoard>,
    pub(in crate::agent) node_state: NodeStateSource,
    pub(in crate::agent) counters: Arc<SharedCounters>,
    pub(in crate::agent) facts: Arc<FactsCache>,
    pub(in crate::agent) desired_state: Arc<DesiredState>,
    pub(in crate::agent) rollouts: RolloutState,
    pub(in crate::agent) run: Arc<RunContext>,
}

impl Handles {
    /// Opens the state of an agent.
    ///
    /// # Errors
    /// When a part of the state cannot be opened, is not trusted, or belongs to another process.
    pub(in crate::agent) fn open(options: AgentOptions) -> Result<Self, AgentError> {
        let AgentOptions { settings, facts, environ, search_path, platform, backend: work, program: _ } = options;
        let host = Host::system(search_path.as_deref());
        let kernel = matches!(work, RunBackend::Engine).then(confinement::detect_kernel);
        kernel.map_or(Ok(()), |kernel| confinement::check_kernel(&settings, kernel)).map_err(AgentError::Confinement)?;
        fs::create_directory(&settings.state_dir, 0o700)?;
        fs::check_trusted(&settings.state_dir)?;
        let store = |source| AgentError::Store { path: settings.state_dir.clone(), source };
        // The ledger first, and the key of the node last: the one without the other shows that it was lost.
        let ledger = state_loss::open_ledger(&settings.state_dir, host.now()).map_err(store)?;
        let bundle = anchor::load(&settings)?;
        anchor::persist(&settings, &bundle).map_err(store)?;
        let boot = host.new_id();
        let durable = DurableState::open(&settings, ledger, boot, host.now())?;
        durable.record_initial_trust(bundle.version()).map_err(store)?;
        // Before anything else changes the host, and before a command is reported as interrupted.
        let orphans = OrphanedRuns::end_all(&settings)?;
        // The files of a command that was killed: the directory belongs to this agent alone now.
        fs::remove_all(&settings.state_dir.join("work"))?;
        let subjects = Subjects::new(settings.fleet.clone());
        let is_engine = matches!(work, RunBackend::Engine);
        let (types, invalid_types) = if is_engine { read_types(&settings) } else { Default::default() };
        let verifier = Verifier {
            trust: &bundle,
            node: &settings.node,
            groups: &settings.groups,
            limits: &limits::node_limits(&settings),
            subjects: &subjects,
            now: durable.monotonic_now(host.now()),
            replay_store: &durable,
            evaluate_filter: &|_| Err("facts are gathered when it runs".to_owned()),
            effects: &|kind, properties| of_signed(&types, kind, properties),
        };
        let desired_state =
            DesiredState::open(&settings, &durable, |envelope| verifier.reverify_assignment(envelope)).map_err(store)?;
        let rollout_stores = RolloutState::open_stores(&settings).map_err(store)?;
        let refreshes = Mutex::new(PendingRefreshes::read(&settings.state_dir).map_err(store)?);
        let values = Arc::new(Mutex::new(ValueStore::open(&settings.state_dir).map_err(store)?));
        // After the desired state was opened, which may have changed the ledger.
        let snapshot = AgentSnapshot { trust: bundle.version(), channels: durable.channels(), ..AgentSnapshot::default() };
        let status = Arc::new(StatusBoard::new(snapshot));

        let identity =
            Arc::new(AgentInstance { node: settings.node.clone(), subjects, boot, started: host.now(), platform, host });
        status.set(AlarmKind::Types, invalid_types);
        let settings = SettingsHandle::new(settings);
        settings.set_types(types);
        let (durable, desired_state, trust) = (Arc::new(durable), Arc::new(desired_state), TrustHandle::new(bundle));
        let directories = settings.clone();
        let facts = Arc::new(FactsCache::new(Arc::new(move || facts(&directories.facts_dirs()))));
        let verifier = CommandVerifier {
            identity: Arc::clone(&identity),
            settings: settings.clone(),
            trust: trust.clone(),
            durable: Arc::clone(&durable),
            facts: Arc::clone(&facts),
        };
        let publisher = Publisher::new(&identity, &durable, &status);
        let node_state = NodeStateSource {
            identity: Arc::clone(&identity),
            settings: settings.clone(),
            durable: Arc::clone(&durable),
            status: Arc::clone(&status),
            trust: trust.clone(),
            kernel,
        };
        let rollouts = RolloutState::new(rollout_stores, &identity, &verifier, &durable, (&publisher, &status), is_engine);
        let counters = Arc::<SharedCounters>::default();
        let run = Arc::new(RunContext {
            identity: Arc::clone(&identity),
            settings: settings.clone(),
            trust: trust.clone(),
            durable: Arc::clone(&durable),
            publisher: publisher.clone(),
            status: Arc::clone(&status),
            counters: Arc::clone(&counters),
            facts: Arc::clone(&facts),
            environ,
            search_path,
            backend: work,
            orphans,
            refreshes,
            outputs: AssignmentOutputs::default(),
            values,
        });
        Ok(Self {
            identity,
            settings,
            trust,
            verifier,
            durable,
            publisher,
            status,
            node_state,
            counters,
            facts,
            desired_state,
            rollouts,
            run,
        })
    }
}
