//! Many changes in one transaction. After a failure, single transactions find the culprit and apply the rest.

use std::collections::{HashMap, HashSet};

use crate::host::Host;
use crate::resource::ResourceError;

use super::change::{PackageAction, PackageChange};
use super::difference;
use super::manager::{PackageJob, PackageManager, TransactionFailure};
use super::properties::{Properties, RequestedVersion};
use super::state::PackageState;

/// A package with its steps. A transaction takes the first; a package that another brought has none left.
pub(super) struct PendingPackage<'a> {
    pub(super) properties: &'a Properties,
    pub(super) state: &'a PackageState,
    pub(super) changes: &'a mut Vec<PackageChange>,
}

/// Changes one package.
pub(super) fn apply_single(
    job: PackageJob<'_>,
    manager: &(dyn PackageManager + 'static),
    host: &Host,
) -> Result<(), ResourceError> {
    check(&job)?;
    let Err(failure) = manager.transact(&[job], host) else { return Ok(()) };
    // apt also reports failures of packages that an earlier transaction left unfinished.
    if manager.records_failures() && !host.is_over() && remaining(job.properties, manager, host)?.1.is_empty() {
        return Ok(());
    }
    Err(failed(&job, &failure))
}

/// Changes many packages: adjacent compatible changes share a transaction.
pub(super) fn apply_batch(
    batch: &mut [PendingPackage<'_>],
    manager: &(dyn PackageManager + 'static),
    host: &Host,
) -> Vec<Result<(), ResourceError>> {
    let mut results = Vec::with_capacity(batch.len());
    let mut rest = batch;
    while let Some(verb) = rest.first().map(verb) {
        let count = rest.iter().take_while(|one| manager.can_combine(verb, self::verb(one))).count();
        let Some((now, later)) = rest.split_at_mut_checked(count.max(1)) else { break };
        results.extend(apply_group(now, manager, host));
        rest = later;
    }
    results
}

fn verb(pending: &PendingPackage<'_>) -> PackageAction {
    pending.changes.first().map_or(PackageAction::Install, PackageAction::from_change)
}

fn apply_group(
    batch: &mut [PendingPackage<'_>],
    manager: &(dyn PackageManager + 'static),
    host: &Host,
) -> Vec<Result<(), ResourceError>> {
    let jobs: Vec<Result<Option<PackageJob<'_>>, ResourceError>> =
        batch.iter().map(|one| job(one).map_or(Ok(None), |job| check(&job).map(|()| Some(job)))).collect();
    let possible: Vec<PackageJob<'_>> = jobs.iter().filter_map(|job| job.as_ref().ok().copied().flatten()).collect();
    let outcome = match possible.as_slice() {
        [] | [_] => None,
        several => Some(manager.transact(several, host)),
    };
    let brought = if matches!(outcome, Some(Ok(()))) { implicitly_installed(&possible, manager, host) } else { HashSet::new() };
    let results = jobs
        .into_iter()
        .map(|job| match (job?, &outcome) {
            (None, _) | (_, Some(Ok(()))) => Ok(()),
            (Some(job), Some(Err(failure))) if failure.is_permanent || host.is_over() => Err(failed(&job, failure)),
            (Some(job), Some(Err(_))) => retry_single(&job, manager, host),
            (Some(job), None) => apply_single(job, manager, host),
        })
        .collect();
    for one in batch.iter_mut().filter(|one| brought.contains(&one.properties.name)) {
        one.changes.clear();
    }
    results
}

fn job<'a>(pending: &'a PendingPackage<'_>) -> Option<PackageJob<'a>> {
    pending.changes.first().map(|change| PackageJob { properties: pending.properties, state: pending.state, change })
}

/// Returns the packages of a transaction that an earlier package needs. Alone, the earlier package would have installed them.
fn implicitly_installed(jobs: &[PackageJob<'_>], manager: &(dyn PackageManager + 'static), host: &Host) -> HashSet<String> {
    let names: Vec<&str> = jobs.iter().map(|job| job.properties.name.as_str()).collect();
    let comes = |job: &PackageJob<'_>| {
        matches!(job.change, PackageChange::Install { .. }) && !matches!(job.properties.wanted(), RequestedVersion::Version(_))
    };
    if !jobs.iter().skip(1).any(comes) {
        return HashSet::new();
    }
    // Without an answer all packages count as changed, which is true.
    let needs = manager.needs(&names, host).unwrap_or_default();
    let mut seen = HashSet::new();
    let mut brought = HashSet::new();
    for job in jobs {
        let name = job.properties.name.as_str();
        if comes(job) && seen.contains(name) {
            brought.insert(name.to_owned());
        }
        collect_requirements(name, &needs, &mut seen);
    }
    brought
}

/// Adds all direct and indirect requirements of a package.
fn collect_requirements<'a>(name: &str, needs: &'a HashMap<String, Vec<String>>, seen: &mut HashSet<&'a str>) {
    let mut todo: Vec<&str> = vec![name];
    while let Some(next) = todo.pop() {
        for needed in needs.get(next).into_iter().flatten() {
            if seen.insert(needed) {
                todo.push(needed);
            }
        }
    }
}

/// Retries a package after a failed transaction, which may have changed the package.
fn retry_single(job: &PackageJob<'_>, manager: &(dyn PackageManager + 'static), host: &Host) -> Result<(), ResourceError> {
    let (state, changes) = remaining(job.properties, manager, host)?;
    let retry = |change| apply_single(PackageJob { properties: job.properties, state: &state, change }, manager, host);
    changes.first().map_or(Ok(()), retry)
}

/// Observes a package again. Returns its state and the remaining steps.
fn remaining(
    properties: &Properties,
    manager: &(dyn PackageManager + 'static),
    host: &Host,
) -> Result<(PackageState, Vec<PackageChange>), ResourceError> {
    let state = difference::observe(properties, manager, host)?;
    let changes = difference::diff(properties, &state)?;
    Ok((state, changes))
}

/// Checks that the index has the packages to install.
fn check(job: &PackageJob<'_>) -> Result<(), ResourceError> {
    match PackageAction::from_change(job.change) {
        PackageAction::Remove => Ok(()),
        PackageAction::Install | PackageAction::Downgrade => job.version().map(drop),
    }
}

fn failed(job: &PackageJob<'_>, failure: &TransactionFailure) -> ResourceError {
    let verb = PackageAction::from_change(job.change).name();
    ResourceError::State(format!("failed to {verb} package \"{}\": {}", job.properties.name, failure.message))
}
