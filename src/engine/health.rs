//! Health checks: commands in the convention of Nagios plugins, and rules in the language of Goss.

use serde_json::{Map, Value};

use crate::diag::error_chain;
use crate::goss::{self, GossOutcome, GossRules};
use crate::host::confine::Worker;
use crate::host::{Host, ProcessCommand};
use crate::model::{Effect, Effects, HealthResult, HealthStatus, HumanDuration};
use crate::resource::HealthCheck;
use crate::resource::core::text;
use crate::template::{Scope, TemplateError};

use super::apply_changes::PANICKED;
use super::provenance::{ProvenanceError, WITHHELD};
use super::settings::Authorizer;

/// The context of health checks.
pub struct CheckContext<'a> {
    /// Resolves the templates in rules.
    pub scope: &'a Scope,
    /// The type of the resource that the checks belong to.
    pub kind: &'a str,
    /// Decides about the effects of checks; none without limits.
    pub permit: Option<&'a dyn Authorizer>,
    /// The host.
    pub host: &'a Host,
    /// The thread outside of the confinement, for rules that query the system. Those start no program and read no file of
    /// their author.
    pub outside: Option<&'a Worker>,
}

impl CheckContext<'_> {
    fn permit(&self, effects: &Effects) -> Result<(), String> {
        self.permit.map_or(Ok(()), |permit| permit.permit(self.kind, effects, self.host))
    }
}

/// Runs a check until it is OK or its tries are used up.
///
/// A check that cannot be run is not tried again: its status is UNKNOWN, its output has the reason.
pub fn check(check: &HealthCheck, context: &CheckContext<'_>) -> HealthResult {
    let result = |status, tries, output| HealthResult { status, tries, output, name: check.label().to_owned() };
    let attempt: Box<dyn Fn() -> Result<(HealthStatus, String), String> + '_> = match &check.goss_rules {
        Some(rules) => Box::new(move || try_rules(rules, check.timeout.filter(|time| time.limit().is_some()), context)),
        None => match context.permit(&Effects::from_iter([Effect::run_always(&check.command)])).and_then(|()| command(check)) {
            Ok(command) => Box::new(move || try_command(&command, context.host)),
            Err(why) => return result(HealthStatus::Unknown, 0, why),
        },
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let (status, output) = match attempt() {
            Ok(said) => said,
            Err(why) => return result(HealthStatus::Unknown, tries, why),
        };
        if status == HealthStatus::Ok || tries >= check.tries.max(1) || context.host.is_over() {
            return result(status, tries, output);
        }
        context.host.sleep(check.try_sleep.as_std());
    }
}

fn command(check: &HealthCheck) -> Result<ProcessCommand, String> {
    let words = text::words(check.command.trim()).map_err(|error| format!("invalid command \"{}\": {error}", check.command))?;
    let mut words = words.into_iter();
    let mut command = ProcessCommand::new(words.next().unwrap_or_default(), words);
    command.timeout = check.timeout.and_then(HumanDuration::limit);
    Ok(command)
}

fn try_command(command: &ProcessCommand, host: &Host) -> Result<(HealthStatus, String), String> {
    let output = host.run(command).map_err(|error| error_chain(&error))?;
    Ok((HealthStatus::from_exit(output.code), String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

/// Runs rules. Each try resolves their templates anew: a file or service that they check may exist meanwhile.
fn try_rules(
    rules: &Map<String, Value>,
    timeout: Option<HumanDuration>,
    context: &CheckContext<'_>,
) -> Result<(HealthStatus, String), String> {
    let before = context.scope.mark();
    let resolved = resolve_rules(rules, context.scope);
    let used = context.scope.since(before);
    if used.bus {
        return Err(ProvenanceError::Bus("goss_rules".to_owned()).message());
    }
    // The rules may check something that their templates have read.
    let told = |text: String| if used.read { WITHHELD.to_owned() } else { text };
    let resolved = resolved.map_err(|error| told(format!("goss_rules: {error}")))?;
    let rules = GossRules::read(&resolved).map_err(|wrong| told(format!("goss_rules: {wrong}")))?;
    context.permit(&goss::effects(&resolved)).map_err(told)?;
    let host = match timeout {
        Some(timeout) => context.host.clone().with_timeout(timeout.as_std()),
        None => context.host.clone(),
    };
    let outcome = run_rules(rules, &host, context)?;
    if host.is_over() {
        let limit = timeout.filter(|_| !context.host.is_over());
        return Err(
            limit.map_or_else(|| "the run was stopped".to_owned(), |timeout| format!("the check took longer than {timeout}"))
        );
    }
    let status = if outcome.failures.is_empty() { HealthStatus::Ok } else { HealthStatus::Critical };
    Ok((status, told(outcome.summary())))
}

/// Checks rules. Commands and reads of content stay on the run's thread. Queries of the system run outside of the confinement,
/// if there is one.
fn run_rules(rules: GossRules, host: &Host, context: &CheckContext<'_>) -> Result<GossOutcome, String> {
    let Some(outside) = context.outside else { return Ok(rules.run(host)) };
    let (guarded, others) = rules.split_guarded();
    let own = guarded.run(host);
    let host = host.clone();
    let asked = outside.run(move || others.run(&host)).map_err(|_| PANICKED.to_owned())?;
    Ok(own.merge(asked))
}

/// Returns the rules with their templates resolved, also those in names.
fn resolve_rules(rules: &Map<String, Value>, scope: &Scope) -> Result<Map<String, Value>, TemplateError> {
    let thing = |(key, value): (&String, &Value)| Ok((scope.resolve_text(key)?.into_owned(), scope.resolve_tree(value)?));
    let section = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::Object(things) => Value::Object(things.iter().map(thing).collect::<Result<_, TemplateError>>()?),
            other => scope.resolve_tree(other)?,
        };
        Ok((name.clone(), value))
    };
    rules.iter().map(section).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::host::confine::{AccessibleFiles, Confinement};
    use crate::host::fake::{FakeRunner, host};
    use crate::host::fs::sha256;
    use crate::model::ResourceLimits;

    fn run(check_me: Value, host: &Host, permit: Option<&dyn Authorizer>) -> HealthResult {
        let facts = || json!({"root": "/proc", "port": "x"});
        let scope = Scope::new(Arc::new(facts), json!({"pid": "self"}), BTreeMap::new());
        check(
            &serde_json::from_value(check_me).unwrap(),
            &CheckContext { scope: &scope, kind: "file", permit, host, outside: None },
        )
    }

    #[test]
    fn content_is_read_under_the_confinement() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "text\n").unwrap();
        let rule = |wanted: Value| json!({"goss_rules": {"file": {file.to_str().unwrap(): wanted}}});
        let checks = [
            rule(json!({"exists": true, "contents": ["text"]})),
            rule(json!({"exists": true, "sha256": sha256(b"text\n")})),
            rule(json!({"exists": true})),
        ];
        let (worker, queue) = Worker::new();
        let confined = move || {
            let files = Some(AccessibleFiles { write: Vec::new(), read: Vec::new() });
            Confinement { files, ..Confinement::default() }.apply().unwrap();
            let scope = Scope::new(Arc::new(|| json!({})), json!({}), BTreeMap::new());
            let host = Host::system(None);
            let context = CheckContext { scope: &scope, kind: "file", permit: None, host: &host, outside: Some(&worker) };
            checks.map(|rules| check(&serde_json::from_value(rules).unwrap(), &context)).to_vec()
        };
        // The queue ends with the worker, which the thread owns.
        let checking = std::thread::spawn(confined);
        queue.into_iter().for_each(|work| work());
        let results = checking.join().unwrap();
        let statuses: Vec<HealthStatus> = results.iter().map(|result| result.status).collect();
        assert_eq!(statuses, [HealthStatus::Critical, HealthStatus::Critical, HealthStatus::Ok], "{results:?}");
    }

    fn nagios(tries: u32, codes: &[i32]) -> (HealthStatus, u32) {
        let check_me = json!({"command": "/x/check a", "tries": tries, "try_sleep": "1ms"});
        let result = run(check_me, &host(FakeRunner::exiting(codes)), None);
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
            assert_eq!(nagios(tries, &codes), expected, "{tries} {codes:?}");
        }
    }

    #[test]
    fn rules_are_met_or_not() {
        let goss = |rules: Value| json!({"goss_rules": rules, "tries": 2, "try_sleep": "1ms"});
        for (rules, status, tries, output) in [
            (
                json!({"file": {"{{ Facts.root }}/{{ Data.pid }}": {"exists": true}}}),
                HealthStatus::Ok,
                1,
                "Count: 1, Failed: 0, Skipped: 0",
            ),
            (
                json!({"file": {"/nope": {"exists": true, "mode": "0644"}}}),
                HealthStatus::Critical,
                2,
                "Count: 2, Failed: 1, Skipped: 1; file /nope: exists: expected true, found false",
            ),
            (json!({"file": {"{{ Data.no }}": {"exists": true}}}), HealthStatus::Unknown, 1, "missing key 'Data.no'"),
            (
                json!({"matching": {"x": {"content": "{{ 1 + 1 }}", "matches": {"gt": "{{ 2 - 1 }}"}}}}),
                HealthStatus::Ok,
                1,
                "Count: 1",
            ),
            (
                json!({"addr": {"x": {"reachable": true, "timeout": "{{ Facts.port }}"}}}),
                HealthStatus::Unknown,
                1,
                "milliseconds",
            ),
        ] {
            let result = run(goss(rules), &host(FakeRunner::exiting(&[])), None);
            assert_eq!((result.status, result.tries, result.name.as_str()), (status, tries, "goss"), "{result:?}");
            assert!(result.output.contains(output), "{result:?}");
        }
    }

    #[test]
    fn the_limits_of_the_host_hold_for_resolved_rules() {
        struct Nothing;
        impl Authorizer for Nothing {
            fn permit(&self, kind: &str, effects: &Effects, _: &Host) -> Result<(), String> {
                let runs = effects.iter().find(|effect| matches!(effect, Effect::Run { .. }));
                runs.map_or(Ok(()), |run| Err(format!("a {kind} that {run}")))
            }

            fn may_show(&self, _: &Effects, _: &Host) -> bool {
                false
            }
        }
        let runner = FakeRunner::exiting(&[0, 0]);
        for check in
            [json!({"command": "id self"}), json!({"goss_rules": {"command": {"id {{ Data.pid }}": {"exit-status": 0}}}})]
        {
            let result = run(check, &host(runner.clone()), Some(&Nothing));
            assert_eq!((result.status, result.output.as_str()), (HealthStatus::Unknown, "a file that runs \"id self\""));
        }
        assert_eq!(runner.ran(), Vec::<Vec<String>>::new());
        let rules = json!({
            "http": {"http://{{ Data.pid }}.example:1/": {"status": 200}},
            "addr": {"tcp://169.254.1.1:1": {"reachable": true}},
            "dns": {"a.example": {"resolvable": true}},
        });
        let bounds =
            ResourceLimits { fetch_hosts: Some(vec!["b.example".to_owned()]), internal: false, ..ResourceLimits::default() };
        let result = run(json!({"goss_rules": rules}), &host(runner.clone()).with_limits(bounds), Some(&Nothing));
        assert_eq!(result.status, HealthStatus::Critical);
        for denied in ["\"self.example\" is not among", "\"169.254.1.1\" is not among", "\"a.example\" is not among"] {
            assert!(result.output.contains(denied), "{}", result.output);
        }
    }

    #[test]
    fn of_the_host_itself_a_status_may_be_asked_and_no_more() {
        let web = crate::http::testing::Web::new(|asked| match asked.path.as_str() {
            "/away" => crate::http::testing::Reply::redirect("http://169.254.169.254/"),
            _ => crate::http::testing::Reply::ok(b"a secret"),
        });
        for fetch_hosts in [None, Some(vec!["artifacts.example".to_owned()])] {
            let host = host(FakeRunner::exiting(&[])).with_limits(ResourceLimits {
                fetch_hosts,
                internal: false,
                ..ResourceLimits::default()
            });
            let ask = |path: &str, mut thing: Value| {
                thing["timeout"] = 60_000.into();
                let result = run(json!({"goss_rules": {"http": {web.url(path): thing}}}), &host, None);
                (result.status, result.output)
            };
            let (status, output) = ask("/health", json!({"status": 200}));
            assert_eq!(status, HealthStatus::Ok, "{output}");
            let asked = web.asked().len();
            for thing in [
                json!({"status": 200, "body": ["a secret"]}),
                json!({"status": 200, "method": "POST"}),
                json!({"status": 200, "username": "admin", "password": "guess"}),
                json!({"status": 200, "request-headers": ["Authorization: Bearer x"]}),
            ] {
                let (status, output) = ask("/health", thing.clone());
                assert!(status == HealthStatus::Critical && output.contains("may only check its status"), "{thing}: {output}");
            }
            assert_eq!(web.asked().len(), asked, "nothing of that was even asked");
            let (status, output) = ask("/away", json!({"status": 200}));
            assert!(status == HealthStatus::Critical && output.contains("169.254.169.254"), "{output}");
            let port = json!({"addr": {format!("tcp://127.0.0.1:{}", web.port()): {"reachable": true, "timeout": 60_000}}});
            assert_eq!(run(json!({"goss_rules": port}), &host, None).status, HealthStatus::Ok);
        }
    }

    #[test]
    fn all_rules_together_have_their_time() {
        let rules = json!({"command": {"sleep 5": {"exit-status": 0}, "sleep 6": {"exit-status": 0}}});
        let started = std::time::Instant::now();
        let result = run(json!({"goss_rules": rules, "timeout": "100ms", "tries": 3}), &Host::system(None), None);
        assert_eq!(
            (result.status, result.tries, result.output.as_str()),
            (HealthStatus::Unknown, 1, "the check took longer than 100ms")
        );
        assert!(started.elapsed().as_secs() < 5);
    }
}
