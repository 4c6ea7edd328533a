//! The order of the two queues of the executor: commands, and runs of the reconciler.

/// A queue of the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServedQueue {
    /// Commands.
    Commands,
    /// Runs of the reconciler.
    Reconciler,
}

impl ServedQueue {
    /// Returns the queue that goes first after an item of this queue. Turns alternate: while both queues have items, a run of the
    /// reconciler waits for one command at most.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Commands => Self::Reconciler,
            Self::Reconciler => Self::Commands,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_queue_waits_for_two_items_of_the_other() {
        for (last, first) in [(ServedQueue::Commands, ServedQueue::Reconciler), (ServedQueue::Reconciler, ServedQueue::Commands)]
        {
            assert_eq!(last.next(), first);
        }
    }
}
