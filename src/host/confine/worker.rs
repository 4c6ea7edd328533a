//! A worker: an unconfined thread that does work for a confined one.
//!
//! Threads inherit Landlock from the thread that starts them. So the unconfined thread must exist before the confinement.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, ThreadId};

/// Work for the unconfined thread.
pub type Work = Box<dyn FnOnce() + Send>;

/// The unconfined thread has ended, or the work panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the work outside of the confinement failed")]
pub struct WorkerGone;

/// The end of the queue on the confined side.
#[derive(Debug, Clone)]
pub struct Worker {
    queue: SyncSender<Work>,
    outside: ThreadId,
}

impl Worker {
    /// Creates a worker, and the queue of work for the calling thread.
    ///
    /// The queue holds work without an answer, as events. A full queue blocks its senders, so that a run can't outpace its
    /// record.
    pub fn new() -> (Self, Receiver<Work>) {
        let (queue, receiver) = sync_channel(64);
        (Self { queue, outside: thread::current().id() }, receiver)
    }

    /// Does work on the unconfined thread, and waits for its result. On the unconfined thread itself, the work runs at once.
    ///
    /// # Errors
    /// When there is no result.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, WorkerGone> {
        if self.is_outside() {
            return Ok(work());
        }
        let (answer, answered) = sync_channel(1);
        // The caller waits below, so the answer has a receiver.
        self.queue.send(Box::new(move || drop(answer.send(work())))).map_err(|_| WorkerGone)?;
        answered.recv().map_err(|_| WorkerGone)
    }

    /// Queues work without waiting for its end. Work is done in the order of the calls.
    ///
    /// # Errors
    /// When the unconfined thread has ended.
    pub fn post(&self, work: impl FnOnce() + Send + 'static) -> Result<(), WorkerGone> {
        if self.is_outside() {
            work();
            return Ok(());
        }
        self.queue.send(Box::new(work)).map_err(|_| WorkerGone)
    }

    fn is_outside(&self) -> bool {
        thread::current().id() == self.outside
    }
}
