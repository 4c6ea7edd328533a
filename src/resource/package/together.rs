//! Many changes in one transaction; where it fails, one by one, so that the culprit is named and the rest succeeds.

use crate::host::Host;
use crate::resource::{Pending, Resource, ResourceError};

use super::{Failure, Job, Manager, Package, Verb};

/// Changes one package.
pub(super) fn alone(job: Job<'_>, manager: &(dyn Manager + 'static), host: &Host) -> Result<(), ResourceError> {
    check(&job)?;
    let Err(failure) = manager.transact(&[job], host) else { return Ok(()) };
    // apt fails as well for packages that an earlier transaction left unfinished.
    if manager.knows_failures() && !host.is_over() && left(job.properties, manager, host)?.changes.is_empty() {
        return Ok(());
    }
    Err(failed(&job, &failure))
}

/// Changes many: those that stand next to each other and can be done together, together.
pub(super) fn all(
    batch: &[Pending<'_, Package>],
    manager: &(dyn Manager + 'static),
    host: &Host,
) -> Vec<Result<(), ResourceError>> {
    let mut results = Vec::with_capacity(batch.len());
    let mut rest = batch;
    while let Some(verb) = rest.first().map(verb) {
        let count = rest.iter().take_while(|one| manager.together(verb, self::verb(one))).count().max(1);
        let (now, later) = rest.split_at(count.min(rest.len()));
        results.extend(some(now, manager, host));
        rest = later;
    }
    results
}

fn verb(pending: &Pending<'_, Package>) -> Verb {
    pending.changes.first().map_or(Verb::Install, Verb::of)
}

fn some(batch: &[Pending<'_, Package>], manager: &(dyn Manager + 'static), host: &Host) -> Vec<Result<(), ResourceError>> {
    let jobs: Vec<Result<Option<Job<'_>>, ResourceError>> = batch
        .iter()
        .map(|one| {
            let job = one.changes.first().map(|change| Job { properties: one.properties, state: &one.state, change });
            job.as_ref().map_or(Ok(()), check).map(|()| job)
        })
        .collect();
    let possible: Vec<Job<'_>> = jobs.iter().filter_map(|job| job.as_ref().ok().copied().flatten()).collect();
    let outcome = match possible.as_slice() {
        [] | [_] => None,
        several => Some(manager.transact(several, host)),
    };
    jobs.into_iter()
        .map(|job| match (job?, &outcome) {
            (None, _) | (_, Some(Ok(()))) => Ok(()),
            (Some(job), Some(Err(failure))) if failure.hopeless || host.is_over() => Err(failed(&job, failure)),
            (Some(job), Some(Err(_))) => again(&job, manager, host),
            (Some(job), None) => alone(job, manager, host),
        })
        .collect()
}

/// After a transaction that failed: what it did to this package counts.
fn again(job: &Job<'_>, manager: &(dyn Manager + 'static), host: &Host) -> Result<(), ResourceError> {
    let pending = left(job.properties, manager, host)?;
    match pending.changes.first() {
        Some(change) => alone(Job { properties: job.properties, state: &pending.state, change }, manager, host),
        None => Ok(()),
    }
}

/// What is still to be done.
fn left<'a>(
    properties: &'a super::Properties,
    manager: &(dyn Manager + 'static),
    host: &Host,
) -> Result<Pending<'a, Package>, ResourceError> {
    let state = Package::observe(properties, manager, host)?;
    let changes = Package::diff(properties, &state)?;
    Ok(Pending { properties, state, changes })
}

/// Whether the index has what is to be installed.
fn check(job: &Job<'_>) -> Result<(), ResourceError> {
    match Verb::of(job.change) {
        Verb::Remove => Ok(()),
        Verb::Install | Verb::Downgrade => job.version().map(drop),
    }
}

fn failed(job: &Job<'_>, failure: &Failure) -> ResourceError {
    let verb = Verb::of(job.change).name();
    ResourceError::State(format!("failed to {verb} package \"{}\": {}", job.properties.name, failure.message))
}
