//! The facts for the `where` of commands: gathered when one asks, and kept for a while.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::template::Scope;

use super::Facts;

/// How old facts may be that decide whether a command is for this node. Runs gather their own.
const FRESH: Duration = Duration::from_secs(60);

/// Facts, gathered not too often: a burst of commands must not become a burst of that.
pub(super) struct Known {
    gather: Facts,
    last: Mutex<Option<(Instant, Arc<Value>)>>,
}

impl Known {
    pub(super) fn new(gather: Facts) -> Self {
        Self { gather, last: Mutex::new(None) }
    }

    fn facts(&self) -> Arc<Value> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, facts)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Arc::clone(facts);
        }
        let facts = Arc::new((self.gather)());
        *last = Some((Instant::now(), Arc::clone(&facts)));
        facts
    }

    /// The next question gathers anew.
    pub(super) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether an expression over facts holds here.
    ///
    /// # Errors
    /// When it can't be evaluated, in words.
    pub(super) fn holds(&self, expression: &str) -> Result<bool, String> {
        let facts = self.facts();
        let scope = Scope::restricted(Arc::new(move || facts.as_ref().clone()));
        scope.condition(expression).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn expressions_see_facts_that_are_gathered_once() {
        let gathered = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&gathered);
        let known = Known::new(Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            serde_json::json!({"os": "debian", "cores": 4})
        }));
        assert_eq!(known.holds("Facts.os == 'debian'"), Ok(true));
        assert_eq!(known.holds("Facts.cores > 4"), Ok(false));
        assert!(known.holds("Facts.cores").is_err());
        assert!(known.holds("nonsense(").is_err());
        assert_eq!(gathered.load(Ordering::Relaxed), 1);
    }
}
