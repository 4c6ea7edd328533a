//! Batches: adjacent resources of a type that can act on several at once. The engine observes them one by one and applies them
//! together.
//!
//! Each resource gets its own event, in the order of the manifest. All other steps are those of a single resource.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::host::Host;
use crate::model::{ResourceRef, TransactionEvent};
use crate::resource::{BatchResult, BoundResource, ParsedResource, Providers};

use super::apply_changes::{self, FailedAttempt, Observation, PANICKED, PendingChanges, RunThread};
use super::converge::{Abort, ResourceRun, guarded};
use super::plan::PlannedResource;
use super::settings::RunSettings;

/// Returns the number of resources, from the first on, that can be applied together. 0 without a resource.
pub(super) fn batch_length<'a>(
    mut resources: impl Iterator<Item = &'a PlannedResource>,
    settings: &RunSettings,
    fail_on_error: bool,
) -> usize {
    let Some(first) = resources.next() else { return 0 };
    // A noop run changes nothing. A run that ends at the first failure must not apply later resources before.
    let Some(key) = first.batch_key().filter(|_| !settings.noop && !settings.health_check_only && !fail_on_error) else {
        return 1;
    };
    let mut together = vec![first];
    for next in resources {
        if next.batch_key().as_ref() != Some(&key)
            || together.iter().any(|earlier| next.requires.iter().any(|needed| is(earlier, needed)))
        {
            break;
        }
        together.push(next);
    }
    together.len()
}

/// Prefetches the resources of a manifest, for the types that can act on several at once.
pub(super) fn prefetch<'a>(
    resources: impl Iterator<Item = &'a PlannedResource>,
    providers: &Arc<Providers>,
    settings: &RunSettings,
    host: &Host,
) {
    let mut by_kind: BTreeMap<&str, Vec<&PlannedResource>> = BTreeMap::new();
    for planned in resources.filter(|planned| planned.kind.batches()) {
        by_kind.entry(planned.kind.name()).or_default().push(planned);
    }
    for all in by_kind.values() {
        let Some(first) = all.first() else { continue };
        let outside = settings.unconfined_thread.as_deref();
        let place = match outside.filter(|outside| outside.is_needed(first.decoded.as_ref())) {
            Some(outside) => RunThread::Outside(outside.worker()),
            None => RunThread::Here,
        };
        let (kind, providers, host) = (first.kind.clone(), Arc::clone(providers), host.clone());
        let owned: Vec<_> = all.iter().map(|one| (Arc::clone(&one.decoded), one.common.provider.clone())).collect();
        // A resource that could not be prefetched is observed when its turn comes.
        let _prefetched = place.run(move || {
            let decoded: Vec<_> = owned.iter().map(|(one, provider)| (one.as_ref(), provider.as_str())).collect();
            kind.prefetch(&decoded, &providers, &host);
        });
    }
}

fn is(planned: &PlannedResource, reference: &ResourceRef) -> bool {
    planned.kind.name() == reference.kind && (planned.decoded.name() == reference.name || planned.common.alias == reference.name)
}

/// A resource with pending changes.
struct BatchEntry {
    at: usize,
    event: TransactionEvent,
    decoded: Arc<dyn ParsedResource>,
    bound: Arc<dyn BoundResource>,
    pending: PendingChanges,
    started: Instant,
}

/// Applies resources together and returns an event for each. The resources that failed are retried singly.
pub(super) fn apply_batch(resource_runs: &[ResourceRun<'_>]) -> Vec<TransactionEvent> {
    let mut ended: Vec<Option<TransactionEvent>> = resource_runs.iter().map(|_| None).collect();
    let mut waiting = Vec::new();
    for (at, resource_run) in resource_runs.iter().enumerate() {
        match observe(resource_run, at) {
            Ok(one) => waiting.push(one),
            Err(event) => set_event(&mut ended, at, *event),
        }
    }
    let decoded: Vec<_> = waiting.iter().map(|one| Arc::clone(&one.decoded)).collect();
    let results = resource_runs.first().filter(|_| !decoded.is_empty()).map_or_else(Vec::new, |first| {
        let (planned, place) = (first.planned, first.run_thread(first.planned.decoded.as_ref()));
        let count = decoded.len();
        let wanted = &planned.common.provider;
        guarded(|| {
            apply_changes::apply_all(place, planned.kind.clone(), decoded, wanted, first.providers, first.host)
                .map_err(Abort::Failed)
        })
        .unwrap_or_else(|_| (0..count).map(|_| Err(PANICKED.to_owned())).collect())
    });
    for (one, result) in waiting.into_iter().zip(results) {
        let Some(resource_run) = resource_runs.get(one.at) else { continue };
        set_event(&mut ended, one.at, finish(resource_run, one, result));
    }
    ended.into_iter().flatten().collect()
}

fn set_event(ended: &mut [Option<TransactionEvent>], at: usize, event: TransactionEvent) {
    if let Some(place) = ended.get_mut(at) {
        *place = Some(event);
    }
}

/// Observes a resource and returns its pending changes. A resource that is converged or failed gives its event instead.
fn observe(resource_run: &ResourceRun<'_>, at: usize) -> Result<BatchEntry, Box<TransactionEvent>> {
    let started = Instant::now();
    let mut event = resource_run.new_event();
    let mut decoded = Arc::clone(&resource_run.planned.decoded);
    let looked = guarded(|| {
        let bound = resource_run.prepare(&mut event, &mut decoded)?;
        let place = resource_run.run_thread(decoded.as_ref());
        match resource_run.apply_settings().observe(place, &bound, resource_run.host).map_err(Abort::Failed)? {
            Ok(Observation::Converged(reached)) => {
                resource_run.fill_event(&mut event, reached);
                Ok(None)
            }
            Err(why) => {
                let reached = resource_run.apply(&mut event, decoded.as_ref(), &bound, false, Some(Err(why.into())))?;
                resource_run.fill_event(&mut event, reached);
                Ok(None)
            }
            Ok(Observation::Pending(due)) => {
                if let Some(refreshes) = resource_run.pending_record() {
                    refreshes.record().map_err(Abort::Failed)?;
                }
                Ok(Some((bound, due)))
            }
        }
    });
    match looked {
        Ok(Some((bound, due))) => Ok(BatchEntry { at, event, decoded, bound, pending: due, started }),
        Ok(None) => Err(Box::new(resource_run.finish(event, decoded.as_ref(), Ok(()), started))),
        Err(stop) => Err(Box::new(resource_run.finish(event, decoded.as_ref(), Err(stop), started))),
    }
}

fn finish(resource_run: &ResourceRun<'_>, one: BatchEntry, result: BatchResult) -> TransactionEvent {
    let BatchEntry { mut event, decoded, bound, pending: mut due, started, .. } = one;
    let ended = guarded(|| {
        let first = match result {
            Ok(steps) => {
                due.steps = steps;
                let place = resource_run.run_thread(decoded.as_ref());
                resource_run.apply_settings().verify(place, &bound, resource_run.host, due).map_err(Abort::Failed)?
            }
            Err(why) => Err(FailedAttempt { why, begun: Some(due), is_undone: false }),
        };
        let reached = resource_run.apply(&mut event, decoded.as_ref(), &bound, false, Some(first))?;
        resource_run.fill_event(&mut event, reached);
        Ok(())
    });
    resource_run.finish(event, decoded.as_ref(), ended, started)
}
