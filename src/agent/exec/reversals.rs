//! The records for `on_removal` of a channel, in the state directory. Confined threads may not write there, so the unconfined
//! thread of the run does.

use std::sync::{Arc, Mutex};

use crate::agent::exec::context::RunContext;
use crate::agent::exec::job::Job;
use crate::diag::error_chain;
use crate::engine::ReversalStore;
use crate::host::confine::Worker;
use crate::model::{ResourceRef, ReversalRecord, lock};
use crate::store::{Reversals, StoreError};
use crate::wire::command::Action;

/// The records of one channel, for one run.
pub(in crate::agent) struct AgentReversals {
    records: Arc<Mutex<Reversals>>,
    worker: Worker,
    /// The key whose command runs. With several, the first by name counts.
    origin: String,
}

impl AgentReversals {
    /// Reads the records of the channel of an assignment. None for other commands: no later run can tell what they left out.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub(in crate::agent) fn read(
        context: &Arc<RunContext>,
        job: &Job,
        worker: &Worker,
        origin: String,
    ) -> Result<Option<Arc<dyn ReversalStore>>, String> {
        let is_assigned = matches!(job.command.action, Action::Assign(_));
        let Some(channel) = job.command.channel.as_ref().filter(|_| is_assigned) else { return Ok(None) };
        let (state_dir, source) = (context.settings.now().state_dir.clone(), channel.name.clone());
        let read = worker.run(move || Reversals::read(&state_dir, &source));
        let why = |error: StoreError| format!("cannot read the records of on_removal: {}", error_chain(&error));
        let reversals = read.map_err(|gone| gone.to_string())?.map_err(why)?;
        for (path, why) in reversals.damaged() {
            tracing::warn!("the record {} is damaged, so that its resource is not changed: {why}", path.display());
        }
        Ok(Some(Arc::new(Self { records: Arc::new(Mutex::new(reversals)), worker: worker.clone(), origin })))
    }

    /// Changes the records on the unconfined thread.
    fn change(&self, change: impl FnOnce(&mut Reversals) -> Result<(), StoreError> + Send + 'static) -> Result<(), String> {
        let records = Arc::clone(&self.records);
        let changed = self.worker.run(move || change(&mut lock(&records)).map_err(|error| error_chain(&error)));
        changed.unwrap_or_else(|gone| Err(gone.to_string()))
    }
}

impl ReversalStore for AgentReversals {
    fn resources(&self) -> Vec<ResourceRef> {
        lock(&self.records).all().map(|record| record.resource.clone()).collect()
    }

    fn get(&self, resource: &ResourceRef) -> Result<Option<ReversalRecord>, String> {
        lock(&self.records).get(resource).map(Option::<&ReversalRecord>::cloned)
    }

    fn write(&self, record: ReversalRecord) -> Result<(), String> {
        let origin = self.origin.clone();
        self.change(move |records| records.write(&record, &origin))
    }

    fn remove(&self, resource: &ResourceRef) -> Result<(), String> {
        let resource = resource.clone();
        self.change(move |records| records.remove(&resource))
    }
}
