//! Nested manifests: planned when their resource is reached, run in the same session, and counted into one event.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, json};

use crate::diag::{self, error_chain};
use crate::host::Host;
use crate::manifest::{MAX_MANIFEST, ManifestText};
use crate::model::TransactionEvent;
use crate::model::merge::deep_merge;
use crate::resource::{ChangeStep, Nested};
use crate::template::ValueUses;

use super::BusData;
use super::apply_changes::Applied;
use super::converge::{Abort, guarded};
use super::plan::{MAX_DEPTH, Plan, PlannedResource, plan_nested};
use super::run::Run;
use super::settings::RunSettings;
use super::template_files::GuardedFiles;

impl Run<'_> {
    /// Runs the manifest of a resource and returns the event of that resource, after the events of the manifest.
    pub(super) fn nested(
        &mut self,
        plan: &Plan,
        planned: &PlannedResource,
        nested: &Nested,
        settings: &RunSettings,
        host: &Host,
    ) -> TransactionEvent {
        let started = Instant::now();
        // A nested manifest never widens a noop run or a run of health checks only.
        let settings = RunSettings {
            noop: settings.noop || ((nested.noop || planned.common.policy.noop) && !settings.health_check_only),
            health_check_only: settings.health_check_only || (nested.health_check_only && !settings.noop),
            ..settings.clone()
        };
        let mut decoded = Arc::clone(&planned.decoded);
        let resource_run = self.resource_run(plan, planned, &settings, host);
        let mut event = resource_run.new_event();
        let prepared = guarded(|| resource_run.prepare(&mut event, &mut decoded).map(drop));
        let used = planned.provenance.used.union(resource_run.late.borrow().used);
        let late = resource_run.late.take();
        let resolved = decoded.nested();
        let nested = resolved.as_ref().unwrap_or(nested);
        let ended = prepared.and_then(|()| self.apply(plan, nested, used, &settings, host).map_err(Abort::Failed));
        let resource_run = self.resource_run(plan, planned, &settings, host);
        resource_run.late.replace(late);
        let ended = ended.map(|reached| resource_run.fill_event(&mut event, reached));
        resource_run.finish(event, decoded.as_ref(), ended, started)
    }

    fn apply(
        &mut self,
        plan: &Plan,
        nested: &Nested,
        used: ValueUses,
        settings: &RunSettings,
        host: &Host,
    ) -> Result<Applied, String> {
        if self.depth + 1 >= MAX_DEPTH {
            return Err(format!("maximum apply depth of {MAX_DEPTH} exceeded"));
        }
        let (child, host) = plan_child(plan, nested, used, host)?;
        // A noop run within a real one.
        let host = if settings.noop && !host.is_dry_run() { host.for_dry_run() } else { host };
        if !nested.allow_apply && child.resources.iter().any(|planned| planned.decoded.nested().is_some()) {
            return Err("apply resources are denied in this manifest by allow_apply".to_owned());
        }
        self.manifest.read_nested();
        self.depth += 1;
        let counts = self.run_plan(&child, settings, &host);
        self.depth -= 1;
        if counts.failed > 0 {
            return Err(format!("child manifest had {} failed resources", counts.failed));
        }
        let resources = child.resources.len() as u64;
        let all = diag::count_noun(resources, "resource");
        let steps = (counts.changed > 0).then(|| ChangeStep {
            description: format!("changed {} of {all}", counts.changed),
            details: vec![format!("{} of {all}", counts.changed)],
        });
        let mut status = Map::new();
        for (name, count) in [("resource_count", resources), ("changed_count", counts.changed), ("failed_count", counts.failed)] {
            status.insert(name.to_owned(), json!(count));
        }
        Ok(Applied::of_nested_manifest(steps.into_iter().collect(), status))
    }
}

/// Plans a nested manifest with its data. Returns the plan and the host as the manifest sees it.
fn plan_child(plan: &Plan, nested: &Nested, used: ValueUses, host: &Host) -> Result<(Plan, Host), String> {
    let files = GuardedFiles { host: host.clone(), access: Arc::clone(&plan.inputs.access) };
    let path = files.allowed_path(&nested.file)?;
    let text = files.read(&nested.file, MAX_MANIFEST)?.text;
    let source = ManifestText::from_bytes(&path, text.into_bytes()).map_err(|error| error_chain(&error))?;
    let host = match &source.directory {
        Some(directory) => host.clone().with_directory(directory),
        None => host.clone(),
    };
    let data = match &nested.data {
        Some(data) => data.clone(),
        None => plan.data.clone(),
    };
    // External data has priority at every depth.
    let data = match &plan.inputs.data {
        Some(outside) if nested.data.is_some() => deep_merge(data, outside.clone()),
        _ => data,
    };
    let mut inputs = plan.inputs.clone();
    if let BusData::Signed { unsigned } = &mut inputs.bus {
        // The data of the nested manifest contains values of the bus.
        if let Some(own) = nested.data.clone().filter(|_| used.bus) {
            *unsigned = if unsigned.is_null() { own } else { deep_merge(own, unsigned.take()) };
        }
    }
    inputs.has_read_values |= used.read && nested.data.is_some();
    inputs.data = Some(data);
    match plan_nested(&source, &inputs, &host) {
        Ok(child) => Ok((child, host)),
        Err(errors) => Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    }
}
