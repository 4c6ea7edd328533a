//! Adjacent resources of a type that can act on several at once: looked at one by one, changed together.
//!
//! Each still gets its own event, in the order of the manifest, with the same treatment around it as any other.

use std::sync::Arc;
use std::time::Instant;

use crate::model::{ResourceRef, TransactionEvent};
use crate::resource::{Bound, Decoded};

use super::plan::Planned;
use super::run::Settings;
use super::treat::{Due, Stop, Treatment, guarded};

/// How many of these resources, from the first on, can be treated together; 1 when it is on its own.
pub(super) fn length(resources: &[Planned], settings: &Settings, fail_on_error: bool) -> usize {
    let Some((first, rest)) = resources.split_first() else { return 0 };
    // A dry run changes nothing, and a run that ends at the first failure must not have done what comes after it.
    if !suits(first) || settings.noop || settings.health_check_only || fail_on_error {
        return 1;
    }
    let mut together = vec![first];
    for next in rest {
        let same = next.kind.name() == first.kind.name() && next.common.provider == first.common.provider && suits(next);
        if !same || together.iter().any(|earlier| next.requires.iter().any(|needed| is(earlier, needed))) {
            break;
        }
        together.push(next);
    }
    together.len()
}

/// Late templates and subscriptions may depend on what comes right before.
fn suits(planned: &Planned) -> bool {
    planned.kind.batches() && planned.deferred.is_none() && planned.subscribes.is_empty()
}

fn is(planned: &Planned, reference: &ResourceRef) -> bool {
    planned.kind.name() == reference.kind && (planned.decoded.name() == reference.name || planned.common.alias == reference.name)
}

/// A resource that needs something done.
struct Waiting {
    at: usize,
    event: TransactionEvent,
    decoded: Arc<dyn Decoded>,
    bound: Box<dyn Bound>,
    due: Due,
    started: Instant,
}

/// Treats resources together, for each its event.
pub(super) fn events(treatments: &[Treatment<'_>]) -> Vec<TransactionEvent> {
    let mut ended: Vec<Option<TransactionEvent>> = treatments.iter().map(|_| None).collect();
    let mut waiting = Vec::new();
    for (at, treatment) in treatments.iter().enumerate() {
        match look(treatment, at) {
            Ok(one) => waiting.push(one),
            Err(event) => put(&mut ended, at, *event),
        }
    }
    let decoded: Vec<_> = waiting.iter().map(|one| Arc::clone(&one.decoded)).collect();
    let results = treatments.first().filter(|_| !decoded.is_empty()).map_or_else(Vec::new, |first| {
        let wanted = &first.planned.common.provider;
        guarded(|| Ok(first.planned.kind.apply_all(&decoded, wanted, first.providers, first.host))).unwrap_or_else(|_| {
            decoded.iter().map(|_| Err("the resource type panicked; this is a bug in Ensign".to_owned())).collect()
        })
    });
    for (one, result) in waiting.into_iter().zip(results) {
        let Some(treatment) = treatments.get(one.at) else { continue };
        put(&mut ended, one.at, finish(treatment, one, result));
    }
    ended.into_iter().flatten().collect()
}

fn put(ended: &mut [Option<TransactionEvent>], at: usize, event: TransactionEvent) {
    if let Some(place) = ended.get_mut(at) {
        *place = Some(event);
    }
}

/// What a resource needs; or its event, when it needs nothing or can't be had.
fn look(treatment: &Treatment<'_>, at: usize) -> Result<Waiting, Box<TransactionEvent>> {
    let started = Instant::now();
    let mut event = treatment.blank();
    let mut decoded = Arc::clone(&treatment.planned.decoded);
    let looked = guarded(|| {
        let bound = treatment.prepare(&mut event, &mut decoded)?;
        let failed = |error| Stop::Failed(crate::diag::chain(&error));
        bound.freshen(treatment.host).map_err(failed)?;
        let checked = bound.check(treatment.host, false).map_err(failed)?;
        let due = treatment.due(checked.as_ref());
        if due.steps.is_empty() {
            let reached = treatment.left_alone(checked.as_ref(), due);
            treatment.settle(&mut event, reached);
            return Ok(None);
        }
        drop(checked);
        Ok(Some((bound, due)))
    });
    match looked {
        Ok(Some((bound, due))) => Ok(Waiting { at, event, decoded, bound, due, started }),
        Ok(None) => Err(Box::new(treatment.end(event, decoded.as_ref(), Ok(()), started))),
        Err(stop) => Err(Box::new(treatment.end(event, decoded.as_ref(), Err(stop), started))),
    }
}

fn finish(treatment: &Treatment<'_>, one: Waiting, result: Result<(), String>) -> TransactionEvent {
    let Waiting { mut event, decoded, bound, due, started, .. } = one;
    let ended = guarded(|| {
        result.map_err(Stop::Failed)?;
        let reached = treatment.verify(bound.as_ref(), due).map_err(Stop::Failed)?;
        treatment.settle(&mut event, reached);
        Ok(())
    });
    treatment.end(event, decoded.as_ref(), ended, started)
}
