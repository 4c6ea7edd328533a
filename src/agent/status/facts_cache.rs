//! The cache of facts and evaluated filters (`where`) of commands. Facts are gathered on demand.
//!
//! Gathering and evaluating take time, and run on a background thread. The agent's own thread only looks into the cache.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::model::{EvaluationBudget, lock};
use crate::template::Scope;

/// Gathers the facts of this host, anew each time.
type HostFactsLoader = Arc<dyn Fn() -> Value + Send + Sync>;

/// Longest age of facts and answers that decide whether a command selects this node. Runs gather their own facts.
const FRESH: Duration = Duration::from_secs(60);
/// Most cached answers: more expressions than a fleet uses in a minute.
const MAX_ANSWERS: usize = 256;
/// Most memory for the values of one expression, in bytes: enough for all facts several times.
const MAX_VALUE_MEMORY: usize = 8 << 20;
/// Longest time for one expression. A normal one takes less than a millisecond.
const EVALUATION_TIME: Duration = Duration::from_secs(1);

/// A cache of facts: a burst of commands gathers them once.
pub(in crate::agent) struct FactsCache {
    gather: HostFactsLoader,
    last: Mutex<Option<(Instant, Arc<Value>)>>,
    answers: Mutex<HashMap<String, (Instant, FilterResult)>>,
}

/// The value of a filter, or the reason why it cannot be evaluated.
pub(in crate::agent) type FilterResult = Result<bool, String>;

impl FactsCache {
    pub(in crate::agent) fn new(gather: HostFactsLoader) -> Self {
        Self { gather, last: Mutex::new(None), answers: Mutex::default() }
    }

    fn facts(&self) -> Arc<Value> {
        let last = || lock(&self.last);
        if let Some((_, facts)) = last().as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Arc::clone(facts);
        }
        // Not under the lock: other readers must not wait for the gathering.
        let facts = Arc::new((self.gather)());
        *last() = Some((Instant::now(), Arc::clone(&facts)));
        facts
    }

    /// Gathers the facts anew. May block.
    pub(in crate::agent) fn gather(&self) -> Value {
        (self.gather)()
    }

    /// Evaluates an expression on a thread that may block.
    ///
    /// # Errors
    /// When the expression cannot be evaluated.
    pub(in crate::agent) async fn evaluate_in_background(self: &Arc<Self>, expression: &str) -> FilterResult {
        let (facts, text) = (Arc::clone(self), expression.to_owned());
        let broken = || Err("the evaluation panicked: the program has an error".to_owned());
        let answer = tokio::task::spawn_blocking(move || facts.evaluate(&text)).await;
        answer.unwrap_or_else(|_| {
            self.cache_answer(expression, broken());
            broken()
        })
    }

    /// Forgets facts and answers. The next evaluation gathers anew.
    pub(in crate::agent) fn forget(&self) {
        lock(&self.answers).clear();
        *lock(&self.last) = None;
    }

    /// Returns the cached answer, if there is one. Never blocks.
    pub(in crate::agent) fn cached_answer(&self, expression: &str) -> Option<FilterResult> {
        let answers = lock(&self.answers);
        answers.get(expression).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, answer)| answer.clone())
    }

    /// Caches an answer.
    pub(in crate::agent) fn cache_answer(&self, expression: &str, answer: FilterResult) {
        let mut answers = lock(&self.answers);
        if answers.len() >= MAX_ANSWERS {
            answers.clear();
        }
        answers.insert(expression.to_owned(), (Instant::now(), answer));
    }

    /// Evaluates an expression over the facts of this host. May block.
    ///
    /// # Errors
    /// When the expression cannot be evaluated, with the reason.
    pub(in crate::agent) fn evaluate(&self, expression: &str) -> FilterResult {
        let facts = self.facts();
        let until = Instant::now() + EVALUATION_TIME;
        let budget = EvaluationBudget::with_limit(MAX_VALUE_MEMORY).with_cancel(Arc::new(move || Instant::now() >= until));
        let scope = Scope::restricted(Arc::new(move || facts.as_ref().clone())).with_budget(budget);
        let answer = match scope.evaluate_condition(expression) {
            // Nodes differ in their facts: a comparison with a missing fact is false.
            Err(error) if error.is_missing_key() => Ok(false),
            answer => answer.map_err(|error| error.to_string()),
        };
        self.cache_answer(expression, answer.clone());
        answer
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
        let known = FactsCache::new(Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            serde_json::json!({"os": "debian", "cores": 4})
        }));
        assert_eq!(known.evaluate("Facts.os == 'debian'"), Ok(true));
        assert_eq!(known.evaluate("Facts.cores > 4"), Ok(false));
        assert!(known.evaluate("Facts.cores").is_err());
        assert!(known.evaluate("nonsense(").is_err());
        for missing in ["Facts.no.such == 'x'", "Facts.no.such != 'x'", "not (Facts.no.such == 'x')", "Facts.nope > 4"] {
            assert_eq!(known.evaluate(missing), Ok(false), "{missing}");
        }
        assert_eq!(gathered.load(Ordering::Relaxed), 1);
        assert_eq!(known.cached_answer("Facts.os == 'debian'"), Some(Ok(true)));
        assert_eq!(known.cached_answer("Facts.os"), None);
        known.forget();
        assert_eq!(known.cached_answer("Facts.os == 'debian'"), None);
    }

    #[test]
    fn an_expression_takes_no_more_than_its_share() {
        let known = FactsCache::new(Arc::new(|| serde_json::json!({"list": (0..2000).collect::<Vec<_>>()})));
        for expression in [
            "len(reduce(1..40, #acc + #acc, 'aaaaaaaaaa')) > 0",
            "len(map(Facts.list, Facts.list)) > 0",
            "len(toJSON(map(1..100000, Facts))) > 0",
            "len(repeat('a', 1000000)) + len(map(1..1000, repeat('a', 100000))) > 0",
            "len(map(1..900000, map(1..900000, #))) > 0",
            "len(map(Facts.list, string(Facts))) > 0",
            "all(1..500000, Facts.list == Facts.list)",
            "all(1..500000, repeat('a', 1000) matches repeat('(a|b)?', 90))",
        ] {
            let began = Instant::now();
            let why = known.evaluate(expression).unwrap_err();
            let expected = ["take more than 8 MiB", "too much work", "the run is over", "memory budget", "steps"];
            assert!(expected.iter().any(|part| why.contains(part)), "{expression}: {why}");
            // No measurement: without a limit each expression takes minutes, and gigabytes.
            assert!(began.elapsed() < Duration::from_secs(30), "{expression}: {:?}", began.elapsed());
        }
    }
}
