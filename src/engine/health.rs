//! Health checks: commands in the convention of Nagios plugins.

use crate::diag::chain;
use crate::host::{Command, Host};
use crate::model::{HealthResult, HealthStatus, Span};
use crate::resource::{HealthCheck, text};

/// Runs a check until it is OK or its tries are used up.
///
/// A check that can't be run at all is not tried again: its status is UNKNOWN, its output says why.
pub fn check(check: &HealthCheck, host: &Host) -> HealthResult {
    let result = |status, tries, output| HealthResult { status, tries, output, name: check.label().to_owned() };
    let words = match text::words(check.command.trim()) {
        Ok(words) => words,
        Err(error) => return result(HealthStatus::Unknown, 0, format!("invalid command \"{}\": {error}", check.command)),
    };
    let mut words = words.into_iter();
    let mut command = Command::new(words.next().unwrap_or_default(), words);
    command.timeout = check.timeout.map(Span::get);
    let mut tries = 0;
    loop {
        tries += 1;
        let (status, output) = match host.run(&command) {
            Ok(output) => (HealthStatus::from_exit(output.code), String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            Err(error) => return result(HealthStatus::Unknown, tries, chain(&error)),
        };
        if status == HealthStatus::Ok || tries >= check.tries.max(1) || host.is_over() {
            return result(status, tries, output);
        }
        host.sleep(check.try_sleep.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::{FakeRunner, host};

    fn run(tries: u32, codes: &[i32]) -> (HealthStatus, u32) {
        let check_me =
            serde_json::from_value(serde_json::json!({"command": "/x/check a", "tries": tries, "try_sleep": "1ms"})).unwrap();
        let result = check(&check_me, &host(FakeRunner::exiting(codes)));
        (result.status, result.tries)
    }

    #[test]
    fn exit_codes_and_tries() {
        for (tries, codes, expected) in [
            (1, vec![0], (HealthStatus::Ok, 1)),
            (1, vec![1], (HealthStatus::Warning, 1)),
            (1, vec![2], (HealthStatus::Critical, 1)),
            (1, vec![3], (HealthStatus::Unknown, 1)),
            (1, vec![127], (HealthStatus::Unknown, 1)),
            (3, vec![0], (HealthStatus::Ok, 1)),
            (3, vec![2, 0], (HealthStatus::Ok, 2)),
            (3, vec![2, 2, 1], (HealthStatus::Warning, 3)),
            (3, vec![], (HealthStatus::Unknown, 1)),
        ] {
            assert_eq!(run(tries, &codes), expected, "{tries} {codes:?}");
        }
    }
}
