//! A run in the order of the graph: resources that wait for no other run at the same time.
//!
//! This thread prepares each resource and takes its end. Workers take the part that touches the host. Batches and nested
//! manifests run on this thread.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::host::Host;
use crate::model::{TransactionEvent, lock};

use super::attempts::{ApplyTask, TaskResult};
use super::converge::StartedResource;
use super::graph::{Graph, Schedule, ScheduleSettings};
use super::plan::{Plan, PlannedResource};
use super::run::{Counts, Run};
use super::settings::RunSettings;

/// Memory of templates at which no further resource starts until all running ones have ended, in bytes.
const FULL: usize = 32 << 20;

/// The task of a resource, or its result, by the index of the resource.
type Indexed<T> = (usize, T);

/// Threads that run the tasks of resources. Threads inherit the confinement of the thread that starts them.
struct Workers {
    tasks: Sender<Indexed<ApplyTask>>,
    results: Receiver<Indexed<TaskResult>>,
}

impl Workers {
    /// Starts this many threads. The threads end when the workers are dropped.
    fn start(count: NonZeroUsize) -> Self {
        // Unbounded, because the schedule never starts more than `count` tasks.
        let (tasks, waiting) = channel::<Indexed<ApplyTask>>();
        let (ended, results) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..count.get() {
            let (waiting, ended) = (Arc::clone(&waiting), ended.clone());
            let work = move || {
                loop {
                    let next = lock(&waiting).recv();
                    let Ok((index, task)) = next else { return };
                    if ended.send((index, task.run())).is_err() {
                        return;
                    }
                }
            };
            // A host without threads has fewer workers; without any, the tasks run on the thread of the run.
            if let Err(error) = thread::Builder::new().name("resource".to_owned()).spawn(work) {
                tracing::warn!(%error, "cannot start a thread, so that fewer resources run at the same time");
                break;
            }
        }
        Self { tasks, results }
    }
}

/// The inputs of a run, the same for all its resources.
#[derive(Clone, Copy)]
struct GraphInputs<'a> {
    plan: &'a Plan,
    settings: &'a RunSettings,
    host: &'a Host,
}

/// The state of a run in the order of the graph.
struct GraphRun<'p> {
    schedule: Schedule<'p>,
    workers: Workers,
    started: HashMap<usize, StartedResource>,
    /// The events of ended resources, until their turn in the order of events.
    ended: BTreeMap<usize, Vec<TransactionEvent>>,
    counts: Counts,
}

impl Run<'_> {
    /// Runs the resources of a plan in the order of its graph.
    pub(super) fn run_graph(&mut self, plan: &Plan, graph: &Graph, settings: &RunSettings, host: &Host) -> Counts {
        let selection = settings.selection.as_deref().filter(|_| self.depth == 0);
        let parallelism = settings.parallelism.min(NonZeroUsize::new(plan.resources.len()).unwrap_or(NonZeroUsize::MIN));
        let schedule = Schedule::new(
            graph,
            &ScheduleSettings {
                parallelism,
                has_batches: !settings.noop && !settings.health_check_only && !plan.fail_on_error,
                selection: selection.map(|selection| selection.resources.iter().copied().collect()),
            },
        );
        let inputs = GraphInputs { plan, settings, host };
        let mut run = GraphRun {
            schedule,
            workers: Workers::start(parallelism),
            started: HashMap::new(),
            ended: BTreeMap::new(),
            counts: Counts::default(),
        };
        let budget = plan.scope.budget();
        let memory = budget.used_memory();
        while !run.schedule.is_done() && self.error.is_none() {
            if host.is_over() {
                self.interrupted = true;
                run.schedule.stop();
            }
            let is_full = !run.started.is_empty() && budget.used_memory() > memory.saturating_add(FULL);
            let next = if is_full { None } else { run.schedule.next() };
            match next {
                Some(start) => self.start_resources(&mut run, &start.resources, inputs),
                // Every resource that the schedule started and that has not ended has a task.
                None if !run.started.is_empty() => match run.workers.results.recv() {
                    Ok((index, result)) => self.end_resource(&mut run, index, result, inputs),
                    Err(_) => break,
                },
                None => {}
            }
            if run.started.is_empty() {
                // Values that templates made are freed when their resources are done.
                budget.release_since(memory, 0);
            }
            for index in run.schedule.recordable() {
                run.ended.remove(&index).into_iter().flatten().for_each(|event| self.record(event));
            }
        }
        run.counts
    }

    fn start_resources(&mut self, run: &mut GraphRun<'_>, indexes: &[usize], inputs: GraphInputs<'_>) {
        let GraphInputs { plan, settings, host } = inputs;
        let resources: Vec<&PlannedResource> = indexes.iter().filter_map(|index| plan.resources.get(*index)).collect();
        run.counts.reached += resources.len();
        let Some(first) = resources.first() else { return };
        host.notify_started(first.kind.name(), first.decoded.name(), resources.len() - 1);
        tracing::debug!(resource = %first.reference(), "started");
        if let ([index], [planned]) = (indexes, resources.as_slice())
            && planned.decoded.nested().is_none()
        {
            match self.resource_run(plan, planned, settings, host).begin() {
                Ok((started, task)) => {
                    run.started.insert(*index, started);
                    if let Err(gone) = run.workers.tasks.send((*index, task)) {
                        let (index, task) = gone.0;
                        self.end_resource(run, index, task.run(), inputs);
                    }
                }
                Err(event) => self.add_ended(run, *index, planned, vec![*event], inputs),
            }
            return;
        }
        let outer = self.held.replace(Vec::new());
        let events = self.converge_resources(plan, &resources, settings, host);
        let mut nested = std::mem::replace(&mut self.held, outer).unwrap_or_default();
        for ((index, planned), event) in indexes.iter().zip(resources).zip(events) {
            nested.push(event);
            self.add_ended(run, *index, planned, std::mem::take(&mut nested), inputs);
        }
    }

    fn end_resource(&mut self, run: &mut GraphRun<'_>, index: usize, result: TaskResult, inputs: GraphInputs<'_>) {
        let GraphInputs { plan, settings, host } = inputs;
        let (Some(started), Some(planned)) = (run.started.remove(&index), plan.resources.get(index)) else { return };
        let event = self.resource_run(plan, planned, settings, host).end(started, result);
        self.add_ended(run, index, planned, vec![event], inputs);
    }

    /// Adds the events of an ended resource, its own event last.
    fn add_ended(
        &mut self,
        run: &mut GraphRun<'_>,
        index: usize,
        planned: &PlannedResource,
        events: Vec<TransactionEvent>,
        inputs: GraphInputs<'_>,
    ) {
        let GraphInputs { plan, settings, host } = inputs;
        host.notify_ended();
        let Some(event) = events.last() else { return };
        run.counts.add(event, planned, host);
        self.session.add_ahead(event);
        let changed_outputs = self.outputs.take_changed();
        let receives = |planned: &PlannedResource| planned.senders().any(|sender| changed_outputs.contains(sender));
        if settings.selection.is_some() && !changed_outputs.is_empty() {
            let receivers = plan.resources.iter().enumerate().filter(|(_, planned)| receives(planned));
            receivers.for_each(|(receiver, _)| run.schedule.select(receiver));
        }
        run.schedule.ended(index, event.changed && !event.noop);
        if event.failed && plan.fail_on_error && !settings.health_check_only {
            run.schedule.stop();
        }
        run.ended.insert(index, events);
    }
}
