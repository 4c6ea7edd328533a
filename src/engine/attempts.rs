//! Attempts: a resource that failed to converge is applied again, as its policy allows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::host::Host;
use crate::host::confine::Worker;
use crate::resource::{BoundResource, ChangeStep, Policy};

use super::apply_changes::{Applied, ApplySettings, AttemptResult, PANICKED, PendingChanges, RunThread};

/// The attempts of one resource.
#[derive(Default)]
pub(super) struct Attempts {
    count: u32,
    /// Changes that failed attempts have begun.
    begun: Vec<PendingChanges>,
    /// The changes of the last attempt, if its verification found them undone.
    undone: Vec<String>,
}

impl Attempts {
    /// Returns the number of attempts, if there were several.
    pub(super) fn several(&self) -> Option<u32> {
        (self.count > 1).then_some(self.count)
    }

    /// Returns the changes that were made, and then undone before the verification of the last attempt.
    pub(super) fn undone(self) -> Vec<String> {
        self.undone
    }

    /// Makes attempts until one succeeds, or the policy allows no more, or the run is over. `first` is the result of the first
    /// attempt, when a batch made it. A panic is not retried.
    ///
    /// # Errors
    /// The failure of the last attempt.
    pub(super) fn run(
        &mut self,
        policy: &Policy,
        host: &Host,
        mut first: Option<AttemptResult>,
        attempt: impl Fn(&Host) -> Result<AttemptResult, String>,
    ) -> Result<Applied, String> {
        let limited = policy.total_limit().map(|time| host.clone().with_timeout(time));
        let host = limited.as_ref().unwrap_or(host);
        loop {
            let result = match first.take() {
                Some(result) => result,
                None => within_timeout(policy, host, &attempt)?,
            };
            self.count += 1;
            let failed = match result {
                Ok(applied) => return Ok(self.with_begun_changes(applied)),
                Err(failed) => failed,
            };
            self.undone = match &failed.begun {
                Some(begun) if failed.is_undone => begun.steps.iter().flat_map(|step| step.details.clone()).collect(),
                _ => Vec::new(),
            };
            self.begun.extend(failed.begun);
            if self.count > policy.retry || host.is_over() {
                return Err(failed.why);
            }
            let pause = policy.pause(self.count);
            host.notify(&format!("attempt {} of {} failed; the next one begins in {pause:?}", self.count, policy.retry + 1));
            host.sleep(pause);
            if host.is_over() {
                return Err(failed.why);
            }
        }
    }

    /// Adds the changes of failed attempts: a resource that is converged now may have been changed by them.
    fn with_begun_changes(&mut self, mut applied: Applied) -> Applied {
        for earlier in self.begun.drain(..).rev() {
            let missing: Vec<ChangeStep> = earlier.steps.into_iter().filter(|step| !applied.steps.contains(step)).collect();
            applied.steps.splice(0..0, missing);
            applied.refreshed |= earlier.refreshed;
            applied.diff = earlier.diff.or(applied.diff);
        }
        applied
    }
}

/// The part of the run of a resource that touches the host, with its retries. Any thread of the run can take it.
pub(super) struct ApplyTask {
    pub(super) settings: ApplySettings,
    pub(super) policy: Policy,
    pub(super) bound: Arc<dyn BoundResource>,
    pub(super) host: Host,
    /// True for a refresh.
    pub(super) refresh: bool,
    /// The thread outside of the confinement, for a resource that needs it.
    pub(super) outside: Option<Worker>,
}

/// The result of a task.
pub(super) struct TaskResult {
    pub(super) applied: Result<Applied, String>,
    /// The number of attempts, if there were several.
    pub(super) attempts: Option<u32>,
    /// Of a failed resource: the changes that were undone before their verification.
    pub(super) undone: Vec<String>,
}

impl ApplyTask {
    /// Runs the task. A panic is a failure.
    pub(super) fn run(self) -> TaskResult {
        let Self { settings, policy, bound, host, refresh, outside } = self;
        let place = outside.as_ref().map_or(RunThread::Here, RunThread::Outside);
        let mut attempts = Attempts::default();
        let attempt = |host: &Host| settings.apply_changes(place, &bound, host, refresh);
        let ended = catch_unwind(AssertUnwindSafe(|| attempts.run(&policy, &host, None, attempt)));
        let applied = ended.unwrap_or_else(|_| Err(PANICKED.to_owned()));
        TaskResult { applied, attempts: attempts.several(), undone: attempts.undone() }
    }
}

/// Makes one attempt within the timeout of the policy.
fn within_timeout(
    policy: &Policy,
    host: &Host,
    attempt: impl Fn(&Host) -> Result<AttemptResult, String>,
) -> Result<AttemptResult, String> {
    let Some(timeout) = policy.attempt_limit() else { return attempt(host) };
    let limited = host.clone().with_attempt_timeout(timeout.as_std());
    let mut result = attempt(&limited)?;
    if let Err(failed) = &mut result
        && limited.is_over()
        && !host.is_over()
    {
        failed.why = format!("timed out after {timeout}: {}", failed.why);
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use serde_json::{Map, Value, json};

    use super::*;
    use crate::engine::apply_changes::FailedAttempt;
    use crate::host::fake::{FakeRunner, host};

    fn policy(written: Value) -> Policy {
        serde_json::from_value(written).unwrap()
    }

    fn step(name: &str) -> ChangeStep {
        ChangeStep { description: name.to_owned(), details: vec![name.to_owned()] }
    }

    fn applied(steps: &[&str]) -> Applied {
        Applied::of_nested_manifest(steps.iter().copied().map(step).collect(), Map::new())
    }

    /// Returns the result of attempts that fail this often before a success, and their number.
    fn run(policy: &Policy, failures: u32, host: &Host) -> (Result<Vec<String>, String>, u32) {
        let (count, mut attempts) = (Cell::new(0), Attempts::default());
        let result = attempts.run(policy, host, None, |_| {
            count.set(count.get() + 1);
            Ok(if count.get() > failures { Ok(applied(&[])) } else { Err(format!("failure {}", count.get()).into()) })
        });
        assert_eq!(attempts.several(), Some(count.get()).filter(|count| *count > 1));
        (result.map(|applied| applied.steps.into_iter().map(|step| step.description).collect()), count.get())
    }

    #[test]
    fn a_failed_attempt_is_repeated_as_often_as_the_policy_says() {
        let host = host(FakeRunner::exiting(&[]));
        for (retry, failures, expected) in [
            (0, 0, (Ok(vec![]), 1)),
            (0, 1, (Err("failure 1".to_owned()), 1)),
            (2, 1, (Ok(vec![]), 2)),
            (2, 2, (Ok(vec![]), 3)),
            (2, 9, (Err("failure 3".to_owned()), 3)),
        ] {
            let policy = policy(json!({"retry": retry, "delay": "1ms"}));
            assert_eq!(run(&policy, failures, &host), expected, "{retry} retries, {failures} failures");
        }
    }

    #[test]
    fn a_panic_is_not_repeated() {
        let count = Cell::new(0);
        let result = Attempts::default().run(&policy(json!({"retry": 5})), &host(FakeRunner::exiting(&[])), None, |_| {
            count.set(count.get() + 1);
            Err("panicked".to_owned())
        });
        assert_eq!((result.err(), count.get()), (Some("panicked".to_owned()), 1));
    }

    #[test]
    fn the_end_of_the_run_ends_the_pause() {
        let host = host(FakeRunner::exiting(&[])).with_timeout(Duration::from_millis(20));
        let started = Instant::now();
        assert_eq!(run(&policy(json!({"retry": 5, "delay": "10m"})), 9, &host), (Err("failure 1".to_owned()), 1));
        assert!(started.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn changes_of_failed_attempts_are_reported_after_a_success() {
        let begun = |names: &[&str], refreshed, diff: Option<&str>| {
            let steps = names.iter().copied().map(step).collect();
            Some(PendingChanges { steps, refreshed, diff: diff.map(str::to_owned) })
        };
        let failed = |begun| Err(FailedAttempt { why: "no space".to_owned(), begun, is_undone: false });
        let second = Cell::new(true);
        let result = Attempts::default().run(
            &policy(json!({"retry": 2, "delay": "0"})),
            &host(FakeRunner::exiting(&[])),
            Some(failed(begun(&["content", "mode"], true, Some("-a")))),
            |_| Ok(if second.replace(false) { failed(begun(&["mode", "owner"], false, None)) } else { Ok(applied(&["owner"])) }),
        );
        let found = result.ok().unwrap();
        assert_eq!(found.steps, [step("content"), step("mode"), step("owner")]);
        assert_eq!((found.refreshed, found.diff), (true, Some("-a".to_owned())));
    }

    #[test]
    fn an_attempt_beyond_its_timeout_says_so() {
        let (short, long) = (policy(json!({"timeout": "5ms"})), policy(json!({"timeout": "1h"})));
        let host = host(FakeRunner::exiting(&[]));
        let result = Attempts::default().run(&short, &host, None, |limited| {
            limited.sleep(Duration::from_secs(300));
            Ok(Err("it was killed".to_owned().into()))
        });
        assert_eq!(result.err().unwrap(), "timed out after 5ms: it was killed");
        let result = Attempts::default().run(&long, &host, None, |_| Ok(Err("no space".to_owned().into())));
        assert_eq!(result.err().unwrap(), "no space");
    }
}
