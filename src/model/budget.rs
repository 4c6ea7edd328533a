//! The budget of a run: memory that the values of its templates may take, and work that one evaluation may do.
//!
//! The measure of memory is what is alive: the values that the run keeps, and everything that the present evaluation has
//! made. Evaluators charge a value before they make it. When an evaluation ends, what it made is given back but for its
//! result. The measure of work is bytes looked at or copied.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The memory of a run. Room for every honest manifest, and for several runs on a small machine.
pub const RUN_VALUES: usize = 64 << 20;
/// The work of one evaluation, in bytes: about a second of looking and copying in a debug build.
const EVALUATION_WORK: u64 = 192 << 20;
/// Between two looks at the deadline so much work is done.
const CHECK_EVERY: u64 = 64 << 10;
/// A value without content weighs this much: what it takes inside of a list.
pub const VALUE_WEIGHT: usize = 48;

/// The reason for which an evaluation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Its values take too much memory.
    #[error("the values of this run take more than {} MiB", .0 >> 20)]
    Values(usize),
    /// The evaluation reads too much.
    #[error("the template does too much work")]
    Work,
    /// The deadline has passed, or the run was cancelled.
    #[error("the run is over")]
    Over,
}

/// Tells that a run is over.
pub type Over = Arc<dyn Fn() -> bool + Send + Sync>;

/// The budget of a run. Clones share what is used.
#[derive(Clone)]
pub struct EvaluationBudget {
    limit: usize,
    used: Arc<AtomicUsize>,
    work: Arc<AtomicU64>,
    over: Over,
}

impl Default for EvaluationBudget {
    fn default() -> Self {
        Self::of(RUN_VALUES)
    }
}

impl fmt::Debug for EvaluationBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit).field("used", &self.used).finish_non_exhaustive()
    }
}

impl EvaluationBudget {
    /// A budget of so many bytes, without a deadline.
    pub fn of(limit: usize) -> Self {
        Self { limit, used: Arc::default(), work: Arc::default(), over: Arc::new(|| false) }
    }

    /// The same budget, which ends when `over` says so.
    #[must_use]
    pub fn until(self, over: Over) -> Self {
        Self { over, ..self }
    }

    /// Takes memory for a value that is about to be made.
    ///
    /// # Errors
    /// When there is not so much left, or the run is over.
    pub fn charge(&self, bytes: usize) -> Result<(), BudgetError> {
        if bytes > self.limit {
            return Err(BudgetError::Values(self.limit));
        }
        self.work(bytes)?;
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used <= self.limit {
            return Ok(());
        }
        // What was not made does not count: the evaluation may go on without it.
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        Err(BudgetError::Values(self.limit))
    }

    /// Counts bytes that are looked at.
    ///
    /// # Errors
    /// When this evaluation has looked at too much, or the run is over.
    pub fn work(&self, bytes: usize) -> Result<(), BudgetError> {
        let bytes = (bytes as u64).min(EVALUATION_WORK) + 1;
        let before = self.work.fetch_add(bytes, Ordering::Relaxed);
        let after = before.saturating_add(bytes);
        if after > EVALUATION_WORK {
            return Err(BudgetError::Work);
        }
        if before / CHECK_EVERY != after / CHECK_EVERY && (self.over)() { Err(BudgetError::Over) } else { Ok(()) }
    }

    /// Begins an evaluation, which may do so much work again.
    ///
    /// # Errors
    /// When the run is over.
    pub fn begin(&self) -> Result<(), BudgetError> {
        self.work.store(0, Ordering::Relaxed);
        if (self.over)() { Err(BudgetError::Over) } else { Ok(()) }
    }

    /// Memory that is taken now; to be handed to [`EvaluationBudget::settle`].
    pub fn mark(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Gives back what was taken since a mark, but for this much that is kept.
    pub fn settle(&self, mark: usize, kept: usize) {
        self.used.store(mark.saturating_add(kept).min(self.used.load(Ordering::Relaxed).max(mark)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_is_alive() {
        let budget = EvaluationBudget::of(1 << 20);
        assert_eq!(budget.charge(1 << 19), Ok(()));
        let mark = budget.mark();
        assert_eq!(budget.charge(1 << 19), Ok(()));
        assert_eq!(budget.charge(1), Err(BudgetError::Values(1 << 20)));
        budget.settle(mark, 10);
        assert_eq!(budget.mark(), mark + 10);
        assert_eq!(budget.charge(1 << 18), Ok(()));
        assert_eq!(budget.clone().charge(1 << 20).unwrap_err().to_string(), "the values of this run take more than 1 MiB");
    }

    #[test]
    fn an_evaluation_ends_with_its_run_and_with_its_work() {
        let over = EvaluationBudget::default().until(Arc::new(|| true));
        assert_eq!(over.begin(), Err(BudgetError::Over));
        assert_eq!(over.work(1 << 20), Err(BudgetError::Over));
        let budget = EvaluationBudget::default();
        let steps = (0..).take_while(|_| budget.work(1 << 20).is_ok()).count();
        assert!((150..=192).contains(&steps), "{steps}");
        assert_eq!(budget.work(1), Err(BudgetError::Work));
        assert_eq!(budget.begin(), Ok(()));
        assert_eq!(budget.work(1), Ok(()));
    }
}
