//! Attempts: a resource that failed to converge is applied again, as its policy allows.

use crate::host::Host;
use crate::resource::{ChangeStep, Policy};

use super::apply_changes::{Applied, AttemptResult, PendingChanges};

/// The attempts of one resource.
#[derive(Default)]
pub(super) struct Attempts {
    count: u32,
    /// Changes that failed attempts have begun.
    begun: Vec<PendingChanges>,
}

impl Attempts {
    /// Returns the number of attempts, if there were several.
    pub(super) fn several(&self) -> Option<u32> {
        (self.count > 1).then_some(self.count)
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

/// Makes one attempt within the timeout of the policy.
fn within_timeout(
    policy: &Policy,
    host: &Host,
    attempt: impl Fn(&Host) -> Result<AttemptResult, String>,
) -> Result<AttemptResult, String> {
    let Some(timeout) = policy.attempt_limit() else { return attempt(host) };
    let limited = host.clone().with_timeout(timeout.as_std());
    let mut result = attempt(&limited)?;
    if let Err(failed) = &mut result
        && limited.is_over()
        && !host.is_over()
    {
        failed.why = format!("timed out after {timeout}: {}", failed.why);
    }
    Ok(result)
}
