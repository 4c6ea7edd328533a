//! The budget of a run: memory for the values of its templates, and work of one evaluation.
//!
//! Memory counts live values: those that the run keeps, and those of the present evaluation. Evaluators charge a value before
//! they create it. The end of an evaluation releases everything except its result. Work counts bytes that are read or copied.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The memory of a run, in bytes. Room for every honest manifest, and for several runs on a small machine.
pub const RUN_VALUES: usize = 64 << 20;
/// The work of one evaluation, in bytes: about a second of reading and copying in a debug build.
const EVALUATION_WORK: u64 = 192 << 20;
/// The work between two checks of the deadline, in bytes.
const CHECK_EVERY: u64 = 64 << 10;
/// The weight of a value without content, in bytes: its memory inside a list.
pub const VALUE_WEIGHT: usize = 48;

/// The reason for which an evaluation was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The values take too much memory.
    #[error("the values of this run take more than {} MiB", .0 >> 20)]
    Values(usize),
    /// The evaluation does too much work.
    #[error("the template does too much work")]
    Work,
    /// The deadline has passed, or the run was cancelled.
    #[error("the run is over")]
    Cancelled,
}

/// Returns true when a run is over.
pub type CancelCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// The budget of a run. Clones share the consumption.
#[derive(Clone)]
pub struct EvaluationBudget {
    limit: usize,
    used: Arc<AtomicUsize>,
    work: Arc<AtomicU64>,
    is_cancelled: CancelCheck,
}

impl Default for EvaluationBudget {
    fn default() -> Self {
        Self::with_limit(RUN_VALUES)
    }
}

impl fmt::Debug for EvaluationBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit).field("used", &self.used).finish_non_exhaustive()
    }
}

impl EvaluationBudget {
    /// Creates a budget of this many bytes, without a deadline.
    pub fn with_limit(limit: usize) -> Self {
        Self { limit, used: Arc::default(), work: Arc::default(), is_cancelled: Arc::new(|| false) }
    }

    /// Returns the same budget with an end, which `over` reports.
    #[must_use]
    pub fn with_cancel(self, over: CancelCheck) -> Self {
        Self { is_cancelled: over, ..self }
    }

    /// Charges memory for a value before its creation.
    ///
    /// # Errors
    /// When less memory is left, or the run is over.
    pub fn charge(&self, bytes: usize) -> Result<(), BudgetError> {
        if bytes > self.limit {
            return Err(BudgetError::Values(self.limit));
        }
        self.charge_work(bytes)?;
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used <= self.limit {
            return Ok(());
        }
        // The value was not created, so it does not count: the evaluation may go on without it.
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        Err(BudgetError::Values(self.limit))
    }

    /// Counts bytes that are read.
    ///
    /// # Errors
    /// When this evaluation has read too much, or the run is over.
    pub fn charge_work(&self, bytes: usize) -> Result<(), BudgetError> {
        let bytes = (bytes as u64).min(EVALUATION_WORK) + 1;
        let before = self.work.fetch_add(bytes, Ordering::Relaxed);
        let after = before.saturating_add(bytes);
        if after > EVALUATION_WORK {
            return Err(BudgetError::Work);
        }
        if before / CHECK_EVERY != after / CHECK_EVERY && (self.is_cancelled)() { Err(BudgetError::Cancelled) } else { Ok(()) }
    }

    /// Begins an evaluation with a new allowance of work.
    ///
    /// # Errors
    /// When the run is over.
    pub fn begin_evaluation(&self) -> Result<(), BudgetError> {
        self.work.store(0, Ordering::Relaxed);
        if (self.is_cancelled)() { Err(BudgetError::Cancelled) } else { Ok(()) }
    }

    /// Returns the used memory, for `EvaluationBudget::settle`.
    pub fn used_memory(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Releases the memory charged since a mark, except for `kept` bytes.
    pub fn release_since(&self, mark: usize, kept: usize) {
        self.used.store(mark.saturating_add(kept).min(self.used.load(Ordering::Relaxed).max(mark)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_live_values() {
        let budget = EvaluationBudget::with_limit(1 << 20);
        assert_eq!(budget.charge(1 << 19), Ok(()));
        let mark = budget.used_memory();
        assert_eq!(budget.charge(1 << 19), Ok(()));
        assert_eq!(budget.charge(1), Err(BudgetError::Values(1 << 20)));
        budget.release_since(mark, 10);
        assert_eq!(budget.used_memory(), mark + 10);
        assert_eq!(budget.charge(1 << 18), Ok(()));
        assert_eq!(budget.clone().charge(1 << 20).unwrap_err().to_string(), "the values of this run take more than 1 MiB");
    }

    #[test]
    fn an_evaluation_ends_with_its_run_and_with_its_work() {
        let over = EvaluationBudget::default().with_cancel(Arc::new(|| true));
        assert_eq!(over.begin_evaluation(), Err(BudgetError::Cancelled));
        assert_eq!(over.charge_work(1 << 20), Err(BudgetError::Cancelled));
        let budget = EvaluationBudget::default();
        let steps = (0..).take_while(|_| budget.charge_work(1 << 20).is_ok()).count();
        assert!((150..=192).contains(&steps), "{steps}");
        assert_eq!(budget.charge_work(1), Err(BudgetError::Work));
        assert_eq!(budget.begin_evaluation(), Ok(()));
        assert_eq!(budget.charge_work(1), Ok(()));
    }
}
