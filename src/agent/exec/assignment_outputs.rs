//! The outputs of resources between the runs of an assignment. A repair of one resource may use the outputs of others.

use std::collections::BTreeMap;
use std::sync::Mutex;

use uuid::Uuid;

use crate::engine::OutputStore;
use crate::model::lock;

/// Most assignments with outputs: as many as an agent watches. Each may have 16 MiB.
const MAX_ASSIGNMENTS: usize = 16;

/// The outputs of the last runs, by the id of the assignment.
#[derive(Default)]
pub(in crate::agent) struct AssignmentOutputs(Mutex<BTreeMap<Uuid, OutputStore>>);

impl AssignmentOutputs {
    /// Returns the outputs for a run of an assignment. A run of all resources begins without any.
    pub(in crate::agent) fn of_run(&self, assignment: Uuid, is_whole: bool) -> OutputStore {
        let mut stores = lock(&self.0);
        if is_whole {
            stores.insert(assignment, OutputStore::default());
        }
        while stores.len() > MAX_ASSIGNMENTS {
            // Ids begin with their time: the first one is the oldest.
            stores.pop_first();
        }
        stores.get(&assignment).cloned().unwrap_or_default()
    }
}
