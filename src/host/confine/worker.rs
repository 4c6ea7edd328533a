//! A thread that is not confined, and does work for one that is.
//!
//! Landlock goes from a thread to those that it starts: only a thread from before can do what must not be confined.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, ThreadId};

/// Work for the other thread.
pub type Work = Box<dyn FnOnce() + Send>;

/// The other thread has ended, or the work panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the work outside of the confinement broke")]
pub struct Gone;

/// The confined end.
#[derive(Debug, Clone)]
pub struct Worker {
    queue: SyncSender<Work>,
    outside: ThreadId,
}

impl Worker {
    /// A worker, and the work that is asked of it, which the calling thread is to do.
    ///
    /// The queue holds what needs no answer, as events: what fills it waits, so that a run can't outpace its record.
    pub fn new() -> (Self, Receiver<Work>) {
        let (queue, receiver) = sync_channel(64);
        (Self { queue, outside: thread::current().id() }, receiver)
    }

    /// Does work outside, and waits for what comes of it. Work that is outside already does it at once.
    ///
    /// # Errors
    /// When nothing comes of it.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Gone> {
        if self.is_outside() {
            return Ok(work());
        }
        let (answer, answered) = sync_channel(1);
        // Who asked waits below: the answer is heard.
        self.queue.send(Box::new(move || drop(answer.send(work())))).map_err(|_| Gone)?;
        answered.recv().map_err(|_| Gone)
    }

    /// Hands over work without waiting for its end. Work is done in the order of the calls.
    ///
    /// # Errors
    /// When the other thread has ended.
    pub fn post(&self, work: impl FnOnce() + Send + 'static) -> Result<(), Gone> {
        if self.is_outside() {
            work();
            return Ok(());
        }
        self.queue.send(Box::new(work)).map_err(|_| Gone)
    }

    fn is_outside(&self) -> bool {
        thread::current().id() == self.outside
    }
}
