//! The number of resources in each state.

use super::super::resource_state::ResourceState;

/// The number of resources in each state. Each resource counts in one place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Resources without an armed watch.
    pub awaiting_watch: u32,
    /// Resources whose last check succeeded.
    pub clean: u32,
    /// Noop resources that need a change.
    pub would_change: u32,
    /// Resources whose check is due.
    pub dirty: u32,
    /// Resources whose check runs.
    pub running: u32,
    /// Resources that wait for the next try after a failure.
    pub failed: u32,
    /// Resources whose tries after failures are used up.
    pub parked: u32,
    /// Resources that wait for the success of a required resource.
    pub blocked: u32,
    /// Resources whose repairs another process undoes.
    pub flapping: u32,
}

impl StateCounts {
    /// Returns the count for resources of this state.
    ///
    /// A flapping resource whose check is due remains flapping.
    pub(super) fn slot(&mut self, state: &ResourceState, is_flapping: bool) -> &mut u32 {
        match state {
            ResourceState::AwaitingWatch => &mut self.awaiting_watch,
            ResourceState::Running { .. } => &mut self.running,
            ResourceState::AwaitingRetry { .. } => &mut self.failed,
            ResourceState::Parked => &mut self.parked,
            ResourceState::Blocked => &mut self.blocked,
            ResourceState::Flapping { .. } => &mut self.flapping,
            ResourceState::Dirty { .. } if is_flapping => &mut self.flapping,
            ResourceState::Dirty { .. } => &mut self.dirty,
            ResourceState::WouldChange => &mut self.would_change,
            ResourceState::Clean => &mut self.clean,
        }
    }

    /// Returns the number of resources that are neither settled nor about to be checked.
    pub(super) fn unsettled(&self) -> u32 {
        self.awaiting_watch + self.failed + self.parked + self.blocked + self.flapping
    }
}
