//! The canonical order: that of a run of one resource or batch at a time.

use std::collections::BTreeSet;

use super::cycle::Successors;
use super::node::BatchKey;

/// Returns the order in which one worker goes through the resources. All ready resources of a batch run together.
pub(super) fn canonical(next: &Successors, batches: &[Option<BatchKey>]) -> Vec<usize> {
    let mut waits = vec![0_usize; next.len()];
    for after in next.iter().flatten() {
        if let Some(count) = waits.get_mut(*after) {
            *count += 1;
        }
    }
    let mut ready: BTreeSet<usize> = waits.iter().enumerate().filter(|(_, count)| **count == 0).map(|(at, _)| at).collect();
    let mut order = Vec::with_capacity(next.len());
    let batch = |at: usize| batches.get(at).and_then(Option::as_ref);
    while let Some(first) = ready.pop_first() {
        let start = order.len();
        order.push(first);
        if let Some(key) = batch(first) {
            order.extend(ready.iter().filter(|at| batch(**at) == Some(key)));
        }
        for at in order.get(start..).unwrap_or_default() {
            ready.remove(at);
            for after in next.get(*at).into_iter().flatten() {
                if let Some(count) = waits.get_mut(*after) {
                    *count -= 1;
                    if *count == 0 {
                        ready.insert(*after);
                    }
                }
            }
        }
    }
    order
}

/// Returns the place of each resource in an order.
pub(super) fn places(order: &[usize]) -> Vec<usize> {
    let mut places = vec![0; order.len()];
    for (place, at) in order.iter().enumerate() {
        if let Some(slot) = places.get_mut(*at) {
            *slot = place;
        }
    }
    places
}
