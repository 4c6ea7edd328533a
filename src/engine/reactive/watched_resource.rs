//! Watched resources: what an [`super::Enforcer`] knows of the resources of a plan.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io;

use serde::Serialize;

use crate::engine::allowed_targets;
use crate::engine::plan::{Plan, PlannedResource};
use crate::engine::settings::Authorizer;
use crate::host::Host;
use crate::model::{Effect, HumanDuration, ResourceRef, WatchTarget};
use crate::resource::Policy;

use super::policy::{CheckLimit, RepairPolicy};

/// A resource of a manifest in force.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchedResource {
    /// The name, then the alias if there is one.
    pub references: Vec<ResourceRef>,
    /// A digest of the declaration. Equal resources of two manifests have the same digest, within one process.
    pub fingerprint: u64,
    /// True when the resource reads facts, data or variables while it runs. The fingerprint does not tell of other facts.
    pub reads_inputs: bool,
    /// The sources of changes from outside.
    pub targets: Vec<WatchTarget>,
    /// The policy of checks and retries.
    pub policy: RepairPolicy,
    /// The resources that this one subscribes to: their numbers in the manifest.
    pub subscribes: Vec<usize>,
    /// The resources that this one requires: their numbers in the manifest.
    pub requires: Vec<usize>,
}

/// Returns the resources of a plan. Those that the authorizer denies have no watch.
pub fn watched_resources(plan: &Plan, authorizer: Option<&dyn Authorizer>, host: &Host) -> Vec<WatchedResource> {
    let mut numbers = HashMap::new();
    if plan.resources.iter().any(|planned| !planned.subscribes.is_empty() || !planned.requires.is_empty()) {
        for (number, planned) in plan.resources.iter().enumerate() {
            numbers.extend(planned.references().map(|reference| (reference, number)));
        }
    }
    let resolve = |references: &[ResourceRef]| references.iter().filter_map(|one| numbers.get(one).copied()).collect();
    let data = digest(&plan.data);
    let watched = plan.resources.iter().map(|planned| WatchedResource {
        references: planned.references().collect(),
        fingerprint: fingerprint(planned, data),
        reads_inputs: reads_inputs(planned),
        // A resource with an interval has no watch beside it.
        targets: match planned.common.policy.poll {
            Some(_) => Vec::new(),
            None => allowed_targets::of_planned(planned, authorizer, host),
        },
        policy: repair_policy(&planned.common.policy),
        subscribes: resolve(&planned.subscribes),
        requires: resolve(&planned.requires),
    });
    watched.collect()
}

/// Returns the policy of checks. Without `retry` in the manifest, failed resources are tried again without end.
fn repair_policy(policy: &Policy) -> RepairPolicy {
    RepairPolicy {
        retry: Some(policy.retry).filter(|retry| *retry > 0),
        delay: policy.delay.as_std(),
        retry_reset: policy.retry_reset,
        poll: policy.poll.map(HumanDuration::as_std),
        limit: policy.limit.map(|per_second| CheckLimit { per_second, burst: policy.burst.unwrap_or(1) }),
    }
}

/// Returns the digest of a declaration. `data` is the digest of the data, which some resources read when they run.
fn fingerprint(planned: &PlannedResource, data: u64) -> u64 {
    let writer = RefCell::new(HashWriter::default());
    planned.decoded.matches(&|properties| {
        writer.borrow_mut().add(properties);
        true
    });
    let mut writer = writer.into_inner();
    writer.add(&(planned.kind.name(), &*planned.common, &planned.deferred));
    if reads_inputs(planned) {
        writer.0.write_u64(data);
    }
    writer.0.finish()
}

/// Returns true when values from outside the manifest decide what the resource does when it runs.
fn reads_inputs(planned: &PlannedResource) -> bool {
    let reads = |effect: &Effect| matches!(effect, Effect::Read(_) | Effect::Nested(_));
    planned.deferred.is_some()
        || planned.common.control.is_some()
        || !planned.common.health_checks.is_empty()
        || planned.decoded.effects().iter().any(reads)
}

/// Returns a digest of a value, equal for equal values of one process.
pub(super) fn digest(value: &impl Serialize) -> u64 {
    let mut writer = HashWriter::default();
    writer.add(value);
    writer.0.finish()
}

/// A digest of serialised values. The values are not kept in memory.
#[derive(Default)]
struct HashWriter(DefaultHasher);

impl HashWriter {
    fn add(&mut self, value: &impl Serialize) {
        // Writing to a digest does not fail, and neither does the serialisation of properties that were read.
        if serde_json::to_writer(&mut *self, value).is_err() {
            self.0.write_u8(0);
        }
    }
}

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::engine::{RunInputs, plan_one};
    use crate::model::Effects;

    struct Denies;

    impl Authorizer for Denies {
        fn permit(&self, _: &str, _: &Effects, _: &Host) -> Result<(), String> {
            Err("denied".to_owned())
        }

        fn may_show(&self, _: &Effects, _: &Host) -> bool {
            false
        }
    }

    #[test]
    fn a_denied_resource_has_no_watch() {
        let (host, inputs) = (Host::system(None), RunInputs::new(|| json!({}), BTreeMap::new(), None));
        let file =
            json!({"name": "/usr", "ensure": "directory", "recurse": true, "owner": "root", "group": "root", "mode": "0755"});
        let plan = plan_one("file", &file, &inputs, &host).map_err(|errors| format!("{errors:?}")).unwrap();
        let targets = |authorizer: Option<&dyn Authorizer>| watched_resources(&plan, authorizer, &host)[0].targets.clone();
        assert_eq!(targets(None), [WatchTarget::Tree("/usr".into())]);
        assert_eq!(targets(Some(&Denies)), []);
    }
}
