//! Bounded places that commands wait in, shared out between the keys that signed them, and a queue that serves the keys in
//! turn: the holder of one key can't keep the commands of another one out, nor delay them by more than the current run.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::agent::exec::job::Job;

/// How many lanes are remembered as served: more than there are operators at work at one time.
const REMEMBERED: usize = 256;

/// How many places there are.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) struct QueueLimits {
    /// For all keys together.
    pub(in crate::agent) all: usize,
    /// For one key.
    pub(in crate::agent) each: usize,
}

/// A place that is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum QueueFull {
    /// All of them are taken, so many.
    All(usize),
    /// Those for this key are taken, so many.
    Share(usize),
}

impl QueueLimits {
    /// Finds a place for what `signers` signed, beside what waits already: `waiting` has the signers of each.
    ///
    /// A key gets at most half of the places that the others leave. What several keys signed takes the place of the one
    /// that has room.
    ///
    /// # Errors
    /// When there is none.
    pub(in crate::agent) fn find<'a>(
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
        if all >= self.all {
            return Err(QueueFull::All(all));
        }
        let share = |own: usize| (self.all - (all - own)).div_ceil(2).min(self.each);
        match own.iter().find(|own| **own < share(**own)) {
            Some(_) => Ok(()),
            None => Err(QueueFull::Share(own.into_iter().min().unwrap_or_default())),
        }
    }
}

impl QueueFull {
    /// The message for the sender; `what` names what waits, as `commands`.
    pub(in crate::agent) fn sentence(self, what: &str) -> String {
        match self {
            Self::All(waiting) => format!("{waiting} {what} wait already"),
            Self::Share(waiting) => format!("{waiting} {what} of the same key wait already"),
        }
    }
}

/// The jobs of one set of signers, in the order in which they came.
struct SignerLane {
    name: String,
    jobs: VecDeque<Box<Job>>,
}

#[derive(Default)]
struct SignerLanes {
    lanes: Vec<SignerLane>,
    /// When each lane was served last, as a number that grows: also of those that are empty now.
    served: HashMap<String, u64>,
    turn: u64,
    closed: bool,
}

/// The end of a queue that jobs are put into.
#[derive(Default)]
pub(in crate::agent) struct FairQueue {
    lanes: Mutex<SignerLanes>,
    added: Notify,
}

/// The end of a queue that jobs are taken from; the queue is closed when this is dropped.
pub(in crate::agent) struct JobReceiver(Arc<FairQueue>);

impl FairQueue {
    /// A queue with both its ends. It holds what it is given: who puts something in asks [`Self::find_place`] before.
    pub(in crate::agent) fn open() -> (Arc<Self>, JobReceiver) {
        let queue = Arc::new(Self::default());
        (Arc::clone(&queue), JobReceiver(queue))
    }

    fn held(&self) -> MutexGuard<'_, SignerLanes> {
        // Whole jobs are put in and taken out: a panic elsewhere leaves none half written.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a place for one more job of these signers.
    ///
    /// # Errors
    /// When there is none.
    pub(in crate::agent) fn find_place(&self, places: QueueLimits, signers: &[String]) -> Result<(), QueueFull> {
        let lanes = self.held();
        places.find(lanes.lanes.iter().flat_map(|lane| &lane.jobs).map(|job| job.command.signers()), signers)
    }

    /// Puts a job into the lane of its signers.
    pub(in crate::agent) fn push(&self, job: Box<Job>) {
        self.held().push(job);
        self.added.notify_one();
    }

    /// How many jobs wait.
    pub(in crate::agent) fn len(&self) -> usize {
        self.held().lanes.iter().map(|lane| lane.jobs.len()).sum()
    }

    /// True when the queue is closed.
    pub(in crate::agent) fn is_closed(&self) -> bool {
        self.held().closed
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

    /// The next job of the lane that has waited longest for its turn.
    fn pop(&mut self) -> Option<Box<Job>> {
        let served = |lane: &SignerLane| self.served.get(&lane.name).copied().unwrap_or_default();
        // The first of several: they are in the order in which they came.
        let index = self.lanes.iter().enumerate().min_by_key(|(_, lane)| served(lane)).map(|(index, _)| index)?;
        let lane = self.lanes.get_mut(index)?;
        let job = lane.jobs.pop_front();
        self.turn += 1;
        if self.served.len() >= REMEMBERED {
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
    /// The next job. Cancel-safe: it takes nothing that it does not give.
    pub(in crate::agent) async fn next(&mut self) -> Box<Job> {
        loop {
            if let Some(job) = self.0.held().pop() {
                return job;
            }
            self.0.added.notified().await;
        }
    }
}

impl Drop for JobReceiver {
    fn drop(&mut self) {
        self.0.held().closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    /// What waits after everybody has asked for as many places as there are, in this order.
    fn filled(places: QueueLimits, asking: &[&[&str]]) -> Vec<Vec<String>> {
        let mut waiting: Vec<Vec<String>> = Vec::new();
        for signers in asking.iter().map(|list| names(list)) {
            while places.find(waiting.iter().map(Vec::as_slice), &signers).is_ok() {
                waiting.push(signers.clone());
            }
        }
        waiting
    }

    #[test]
    fn no_key_takes_all_places() {
        let places = QueueLimits { all: 64, each: 64 };
        let count = |waiting: &[Vec<String>], name: &str| waiting.iter().filter(|held| held[0] == name).count();
        let waiting = filled(places, &[&["a"], &["b"], &["c"], &["a"]]);
        assert_eq!(["a", "b", "c"].map(|name| count(&waiting, name)), [32, 16, 8]);
        // What two keys signed counts for both, and gets in as long as one of them has room.
        let waiting = filled(places, &[&["a"], &["a", "b"], &["c"]]);
        assert_eq!(waiting.len(), 32 + 16 + 8);
        assert_eq!(places.find(waiting.iter().map(Vec::as_slice), &names(&["a"])), Err(QueueFull::Share(48)));
        let few = QueueLimits { all: 16, each: 2 };
        assert_eq!(filled(few, &[&["a"], &["b"], &["a", "c"]]).len(), 6);
        assert_eq!(filled(QueueLimits { all: 1, each: 1 }, &[&["a"]]).len(), 1);
        assert_eq!(
            QueueLimits { all: 1, each: 1 }.find([names(&["a"])].iter().map(Vec::as_slice), &names(&["b"])),
            Err(QueueFull::All(1))
        );
        assert_eq!(QueueFull::Share(2).sentence("commands"), "2 commands of the same key wait already");
    }
}
