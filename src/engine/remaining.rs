//! The resources of a manifest that a run has not handled yet.

use std::collections::{BTreeSet, HashMap};

use crate::model::ResourceRef;

use super::plan::{Plan, PlannedResource};
use super::settings::RunSelection;

/// The resources that are left, in the order of the manifest.
pub(super) struct Remaining<'a> {
    all: &'a [PlannedResource],
    /// The number of the first resource that is left.
    next: usize,
    selection: Option<Selected<'a>>,
}

/// The selected resources, with those that a change adds.
struct Selected<'a> {
    numbers: BTreeSet<usize>,
    /// The numbers of the subscribers, by the reference that they use.
    subscribers: HashMap<&'a ResourceRef, Vec<usize>>,
    /// The numbers of the resources that use an output, by the reference that they use.
    receivers: HashMap<&'a ResourceRef, Vec<usize>>,
}

impl<'a> Remaining<'a> {
    pub(super) fn new(plan: &'a Plan, selection: Option<&RunSelection>) -> Self {
        let (all, features) = (plan.resources.as_slice(), plan.features());
        let selection = selection.map(|selection| {
            let (mut subscribers, mut receivers): (HashMap<_, Vec<usize>>, HashMap<_, Vec<usize>>) = Default::default();
            let related = if features.subscribes || features.receives { all } else { &[] };
            for (number, planned) in related.iter().enumerate() {
                planned.subscribes.iter().for_each(|reference| subscribers.entry(reference).or_default().push(number));
                planned.senders().for_each(|reference| receivers.entry(reference).or_default().push(number));
            }
            Selected { numbers: selection.resources.clone(), subscribers, receivers }
        });
        Self { all, next: 0, selection }
    }

    /// Returns the resources that are left.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'a PlannedResource> + '_ {
        self.numbers().filter_map(|number| self.all.get(number))
    }

    fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        let selected = self.selection.as_ref().map(|selected| selected.numbers.range(self.next..).copied());
        let every = if selected.is_none() { self.next..self.all.len() } else { 0..0 };
        selected.into_iter().flatten().chain(every)
    }

    /// Takes the next resources, at most `count`.
    pub(super) fn advance(&mut self, count: usize) -> Vec<&'a PlannedResource> {
        let numbers: Vec<usize> = self.numbers().take(count).collect();
        self.next = numbers.last().map_or(self.all.len(), |last| last + 1);
        numbers.into_iter().filter_map(|number| self.all.get(number)).collect()
    }

    /// Adds the resources that use these changed outputs to the selection.
    pub(super) fn select_receivers(&mut self, changed: &BTreeSet<ResourceRef>) {
        let Some(selected) = &mut self.selection else { return };
        for name in changed {
            selected.numbers.extend(selected.receivers.get(name).into_iter().flatten());
        }
    }

    /// Adds the subscribers of a changed resource to the selection.
    pub(super) fn select_subscribers(&mut self, changed: &PlannedResource) {
        let Some(selected) = &mut self.selection else { return };
        for name in changed.references() {
            selected.numbers.extend(selected.subscribers.get(&name).into_iter().flatten());
        }
    }
}
