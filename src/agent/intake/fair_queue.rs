//! A bounded and fair queue of commands. The keys that signed commands share its places, and each key is served in turn. The
//! owner of one key cannot keep commands of another key out, nor delay them beyond the current run.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::agent::exec::job::Job;
use crate::model::lock;

/// Most lanes whose last service is remembered: more than operators work at one time.
const MAX_REMEMBERED: usize = 256;

/// The numbers of places.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) struct QueueLimits {
    /// The places for all keys together.
    pub(in crate::agent) total: usize,
    /// The places for one key.
    pub(in crate::agent) per_key: usize,
}

/// A missing place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum QueueFull {
    /// All places are taken, so many.
    All(usize),
    /// The places of this key are taken, so many.
    Share(usize),
}

impl QueueLimits {
    /// Finds a place for a command of `signers`. `waiting` has the signers of each waiting command.
    ///
    /// A key gets at most half of the places that the other keys leave. A command of several keys needs room for one of
    /// them.
    ///
    /// # Errors
    /// When there is no place.
    pub(in crate::agent) fn find_place<'a>(
        self,
        waiting: impl Iterator<Item = &'a [String]>,
        signers: &[String],
    ) -> Result<(), QueueFull> {
        let mut all = 0;
        let mut own = vec![0; signers.len()];
        for held in waiting {
            all += 1;
            for (count, signer) in own.iter_mut().zip(signers) {
                *count += usize::from(held.contains(signer));
            }
        }
        if all >= self.total {
            return Err(QueueFull::All(all));
        }
        let share = |own: usize| (self.total - (all - own)).div_ceil(2).min(self.per_key);
        match own.iter().find(|own| **own < share(**own)) {
            Some(_) => Ok(()),
            None => Err(QueueFull::Share(own.into_iter().min().unwrap_or_default())),
        }
    }
}

impl QueueFull {
    /// Returns the message for the sender. `what` names the waiting items, as `commands`.
    pub(in crate::agent) fn sentence(self, what: &str) -> String {
        match self {
            Self::All(waiting) => format!("{waiting} {what} wait already"),
            Self::Share(waiting) => format!("{waiting} {what} of the same key wait already"),
        }
    }
}

/// The jobs of one set of signers, in order of arrival.
struct SignerLane {
    name: String,
    jobs: VecDeque<Box<Job>>,
}

#[derive(Default)]
struct SignerLanes {
    lanes: Vec<SignerLane>,
    /// The last service of each lane, as a growing number; empty lanes stay listed.
    served: HashMap<String, u64>,
    turn: u64,
    closed: bool,
}

/// The sending end of a queue.
#[derive(Default)]
pub(in crate::agent) struct FairQueue {
    lanes: Mutex<SignerLanes>,
    added: Notify,
}

/// The receiving end of a queue. Dropping it closes the queue.
pub(in crate::agent) struct JobReceiver(Arc<FairQueue>);

impl FairQueue {
    /// Returns both ends of a queue. The queue itself has no limit: a sender asks [`Self::find_place`] before.
    pub(in crate::agent) fn open() -> (Arc<Self>, JobReceiver) {
        let queue = Arc::new(Self::default());
        (Arc::clone(&queue), JobReceiver(queue))
    }

    /// Finds a place for one more job of these signers.
    ///
    /// # Errors
    /// When there is no place.
    pub(in crate::agent) fn find_place(&self, places: QueueLimits, signers: &[String]) -> Result<(), QueueFull> {
        let lanes = lock(&self.lanes);
        places.find_place(lanes.lanes.iter().flat_map(|lane| &lane.jobs).map(|job| job.command.signers()), signers)
    }

    /// Puts a job into the lane of its signers.
    pub(in crate::agent) fn push(&self, job: Box<Job>) {
        lock(&self.lanes).push(job);
        self.added.notify_one();
    }

    /// Removes a waiting job, unless the job has waves: the rollout queue counts those.
    pub(in crate::agent) fn remove(&self, id: Uuid) -> Option<Box<Job>> {
        let mut lanes = lock(&self.lanes);
        let (index, place) = lanes.lanes.iter().enumerate().find_map(|(index, lane)| {
            let place = lane.jobs.iter().position(|job| job.id() == id && job.command.options.waves.is_none());
            Some((index, place?))
        })?;
        let lane = lanes.lanes.get_mut(index)?;
        let job = lane.jobs.remove(place);
        if lane.jobs.is_empty() {
            lanes.lanes.remove(index);
        }
        job
    }

    /// Returns the number of waiting jobs.
    pub(in crate::agent) fn len(&self) -> usize {
        lock(&self.lanes).lanes.iter().map(|lane| lane.jobs.len()).sum()
    }

    /// Returns true when the queue is closed.
    pub(in crate::agent) fn is_closed(&self) -> bool {
        lock(&self.lanes).closed
    }
}

impl SignerLanes {
    fn push(&mut self, job: Box<Job>) {
        let name = job.command.signers().join("+");
        match self.lanes.iter_mut().find(|lane| lane.name == name) {
            Some(lane) => lane.jobs.push_back(job),
            None => self.lanes.push(SignerLane { name, jobs: VecDeque::from([job]) }),
        }
    }

    /// Removes the next job: of the lane that was served longest ago.
    fn pop(&mut self) -> Option<Box<Job>> {
        let served = |lane: &SignerLane| self.served.get(&lane.name).copied().unwrap_or_default();
        // The first one of equals: lanes are in order of arrival.
        let index = self.lanes.iter().enumerate().min_by_key(|(_, lane)| served(lane)).map(|(index, _)| index)?;
        let lane = self.lanes.get_mut(index)?;
        let job = lane.jobs.pop_front();
        self.turn += 1;
        if self.served.len() >= MAX_REMEMBERED {
            self.served.clear();
        }
        self.served.insert(lane.name.clone(), self.turn);
        if lane.jobs.is_empty() {
            self.lanes.remove(index);
        }
        job
    }
}

impl JobReceiver {
    /// Returns the next job. Cancel-safe: a dropped call removes no job.
    pub(in crate::agent) async fn next(&mut self) -> Box<Job> {
        loop {
            if let Some(job) = lock(&self.0.lanes).pop() {
                return job;
            }
            self.0.added.notified().await;
        }
    }
}

impl Drop for JobReceiver {
    fn drop(&mut self) {
        lock(&self.0.lanes).closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Returns the waiting jobs after these signers asked for more places than there are, in this order.
    fn filled(places: QueueLimits, asking: &[&[&str]]) -> Vec<Vec<String>> {
        let mut waiting: Vec<Vec<String>> = Vec::new();
        for signers in asking.iter().map(|list| names(list)) {
            while places.find_place(waiting.iter().map(Vec::as_slice), &signers).is_ok() {
                waiting.push(signers.clone());
            }
        }
        waiting
    }

    #[test]
    fn no_key_takes_all_places() {
        let places = QueueLimits { total: 64, per_key: 64 };
        let count = |waiting: &[Vec<String>], name: &str| waiting.iter().filter(|held| held[0] == name).count();
        let waiting = filled(places, &[&["a"], &["b"], &["c"], &["a"]]);
        assert_eq!(["a", "b", "c"].map(|name| count(&waiting, name)), [32, 16, 8]);
        // A command of two keys counts for both, and gets a place as long as one of them has room.
        let waiting = filled(places, &[&["a"], &["a", "b"], &["c"]]);
        assert_eq!(waiting.len(), 32 + 16 + 8);
        assert_eq!(places.find_place(waiting.iter().map(Vec::as_slice), &names(&["a"])), Err(QueueFull::Share(48)));
        let few = QueueLimits { total: 16, per_key: 2 };
        assert_eq!(filled(few, &[&["a"], &["b"], &["a", "c"]]).len(), 6);
        assert_eq!(filled(QueueLimits { total: 1, per_key: 1 }, &[&["a"]]).len(), 1);
        assert_eq!(
            QueueLimits { total: 1, per_key: 1 }.find_place([names(&["a"])].iter().map(Vec::as_slice), &names(&["b"])),
            Err(QueueFull::All(1))
        );
        assert_eq!(QueueFull::Share(2).sentence("commands"), "2 commands of the same key wait already");
    }
}
