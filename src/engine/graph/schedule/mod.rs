//! The schedule: the state of one run in the order of the graph. Pure: the caller runs the resources and reports their ends.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use super::build::Graph;

/// The settings of a schedule.
#[derive(Debug, Clone)]
pub struct ScheduleSettings {
    /// The number of starts that may run at the same time.
    pub parallelism: NonZeroUsize,
    /// True when resources of one batch key start together.
    pub has_batches: bool,
    /// The resources that run, by index; all without it. A change of one also selects its subscribers.
    pub selection: Option<Vec<usize>>,
}

/// The resources that start now: a single one, or a batch that is applied together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The indexes of the resources, in the order of their events.
    pub resources: Vec<usize>,
}

/// The state of a resource in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskState {
    /// Waits until this number of resources before it have ended.
    WaitsForOthers(usize),
    /// Waits for a free worker and for its semaphores.
    WaitsForStart,
    /// Runs, as part of the start with this number.
    Running(usize),
    /// Ended.
    Ended,
    /// Does not run: not selected, or the run was stopped.
    Skipped,
}

/// A start that has not ended.
#[derive(Debug, Clone)]
struct RunningStart {
    left: usize,
    semaphores: Vec<usize>,
}

/// The state of one run.
#[derive(Debug, Clone)]
pub struct Schedule<'g> {
    graph: &'g Graph,
    parallelism: NonZeroUsize,
    has_batches: bool,
    /// The resources that run; all of them when none.
    selected: Option<Vec<bool>>,
    states: Vec<TaskState>,
    /// The places of the resources that wait for their start.
    ready: BTreeSet<usize>,
    running: BTreeMap<usize, RunningStart>,
    starts: usize,
    /// The free holders of each semaphore.
    free: Vec<usize>,
    /// The number of resources that have neither ended nor been skipped.
    left: usize,
    /// The number of places whose events were taken.
    taken: usize,
}

impl<'g> Schedule<'g> {
    /// Creates the schedule of a run.
    pub fn new(graph: &'g Graph, settings: &ScheduleSettings) -> Self {
        let waits = |at: usize| match graph.incoming(at).len() {
            0 => TaskState::WaitsForStart,
            before => TaskState::WaitsForOthers(before),
        };
        let states: Vec<_> = (0..graph.len()).map(waits).collect();
        let selected = settings.selection.as_ref().map(|selection| {
            let mut selected = vec![false; graph.len()];
            selection.iter().for_each(|at| set(&mut selected, *at, true));
            selected
        });
        let first = states.iter().zip(&graph.places).filter(|(state, _)| **state == TaskState::WaitsForStart);
        let ready: BTreeSet<usize> = first.map(|(_, place)| *place).collect();
        let mut schedule = Self {
            graph,
            parallelism: settings.parallelism,
            has_batches: settings.has_batches,
            selected,
            states,
            ready,
            running: BTreeMap::new(),
            starts: 0,
            free: graph.semaphores.counts.clone(),
            left: graph.len(),
            taken: 0,
        };
        schedule.skip_unselected();
        schedule
    }

    /// Returns the resources to start next. None while all workers are busy, all other resources wait, or the run is done.
    #[allow(clippy::should_implement_trait, reason = "an iterator would promise an end with the first None")]
    pub fn next(&mut self) -> Option<Start> {
        if self.running.len() >= self.parallelism.get() {
            return None;
        }
        let first = self.waiting().find(|at| self.is_free(*at, &[]))?;
        let resources = self.ready_batch(first);
        let number = self.starts;
        self.starts += 1;
        let mut semaphores: Vec<usize> = resources.iter().flat_map(|at| self.graph.semaphores.of_node(*at)).copied().collect();
        semaphores.sort_unstable();
        semaphores.dedup();
        semaphores.iter().filter_map(|id| Some(id).copied()).for_each(|id| {
            if let Some(free) = self.free.get_mut(id) {
                *free -= 1;
            }
        });
        for at in &resources {
            self.leave_ready(*at, TaskState::Running(number));
        }
        self.running.insert(number, RunningStart { left: resources.len(), semaphores });
        Some(Start { resources })
    }

    /// Selects a resource that waits for one that runs now. Without a selection, nothing changes.
    pub fn select(&mut self, index: usize) {
        if let Some(selected) = &mut self.selected {
            set(selected, index, true);
        }
    }

    /// Records the end of a resource. `changed` is true when its subscribers must run too.
    pub fn ended(&mut self, index: usize, changed: bool) {
        let Some(TaskState::Running(number)) = self.states.get(index).copied() else { return };
        set(&mut self.states, index, TaskState::Ended);
        self.left -= 1;
        if let Some(start) = self.running.get_mut(&number) {
            start.left -= 1;
            if start.left == 0 {
                let semaphores = std::mem::take(&mut start.semaphores);
                self.running.remove(&number);
                for id in semaphores {
                    if let Some(free) = self.free.get_mut(id) {
                        *free += 1;
                    }
                }
            }
        }
        if let Some(selected) = self.selected.as_mut().filter(|_| changed) {
            let subscriptions = self.graph.outgoing(index).filter(|edge| edge.is_subscription());
            subscriptions.for_each(|edge| set(selected, edge.after, true));
        }
        self.release(index);
        self.skip_unselected();
    }

    /// Stops the run: no further resource starts. The running ones end as usual.
    pub fn stop(&mut self) {
        self.ready.clear();
        for state in &mut self.states {
            if matches!(state, TaskState::WaitsForOthers(_) | TaskState::WaitsForStart) {
                *state = TaskState::Skipped;
                self.left -= 1;
            }
        }
    }

    /// Returns true when no resource runs or waits.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Returns the ended resources whose turn in the order of events has come, each once.
    ///
    /// The order is that of a run with parallelism 1. A resource is held back until all before it in that order have ended.
    pub fn recordable(&mut self) -> Vec<usize> {
        let mut ended = Vec::new();
        while let Some(at) = self.graph.order().get(self.taken) {
            match self.states.get(*at) {
                Some(TaskState::Ended) => ended.push(*at),
                Some(TaskState::Skipped) => {}
                _ => break,
            }
            self.taken += 1;
        }
        ended
    }

    /// Returns the resources that wait for their start, in their order.
    fn waiting(&self) -> impl Iterator<Item = usize> {
        self.ready.iter().filter_map(|place| self.graph.order().get(*place).copied())
    }

    fn is_selected(&self, at: usize) -> bool {
        self.selected.as_ref().is_none_or(|selected| selected.get(at) == Some(&true))
    }

    /// Returns true when all semaphores of a resource are free or among `held`.
    fn is_free(&self, at: usize, held: &[usize]) -> bool {
        let is_free = |id: &usize| held.contains(id) || self.free.get(*id).is_some_and(|free| *free > 0);
        self.graph.semaphores.of_node(at).iter().all(is_free)
    }

    /// Returns a resource with all ready ones that can be applied together with it.
    fn ready_batch(&self, first: usize) -> Vec<usize> {
        let mut together = vec![first];
        let Some(key) = self.graph.batch(first).filter(|_| self.has_batches) else { return together };
        let mut held = self.graph.semaphores.of_node(first).to_vec();
        for next in self.waiting().filter(|at| *at != first && self.graph.batch(*at) == Some(key)) {
            if self.is_free(next, &held) {
                held.extend(self.graph.semaphores.of_node(next));
                together.push(next);
            }
        }
        together.sort_by_key(|at| self.graph.places.get(*at));
        together
    }

    fn leave_ready(&mut self, at: usize, state: TaskState) {
        if let Some(place) = self.graph.places.get(at) {
            self.ready.remove(place);
        }
        set(&mut self.states, at, state);
    }

    /// Counts an end for all resources that wait for this one.
    fn release(&mut self, index: usize) {
        for edge in self.graph.outgoing(index) {
            let Some(state) = self.states.get_mut(edge.after) else { continue };
            *state = match *state {
                TaskState::WaitsForOthers(1) => {
                    self.ready.extend(self.graph.places.get(edge.after));
                    TaskState::WaitsForStart
                }
                TaskState::WaitsForOthers(left) => TaskState::WaitsForOthers(left - 1),
                other => other,
            };
        }
    }

    /// Skips resources that are not selected and wait for no other. No later change can select them.
    fn skip_unselected(&mut self) {
        if self.selected.is_none() {
            return;
        }
        loop {
            let unselected: Vec<usize> = self.waiting().filter(|at| !self.is_selected(*at)).collect();
            if unselected.is_empty() {
                return;
            }
            for at in unselected {
                self.leave_ready(at, TaskState::Skipped);
                self.left -= 1;
                self.release(at);
            }
        }
    }
}

fn set<T>(list: &mut [T], at: usize, value: T) {
    if let Some(slot) = list.get_mut(at) {
        *slot = value;
    }
}

#[cfg(test)]
mod tests;
