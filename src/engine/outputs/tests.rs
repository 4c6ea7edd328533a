use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::super::{Diff, OutputStore, RunInputs, RunSettings, plan_manifest, precheck, run};
use crate::host::Output;
use crate::host::fake::{FakeRunner, host};
use crate::manifest::ManifestText;
use crate::model::{ReadAccess, TemplateRead, TransactionEvent};
use crate::resource::Types;
use crate::store::MemorySession;

/// A rule that allows all reads, and shows none of the values.
struct AllReads;

impl ReadAccess for AllReads {
    fn may_read(&self, _: &TemplateRead<'_>) -> Result<(), String> {
        Ok(())
    }
}

fn inputs() -> RunInputs {
    RunInputs::new(|| json!({}), BTreeMap::from([("TOKEN".to_owned(), "geheim7geheim".to_owned())]), None)
}

fn source(resources: &str) -> ManifestText {
    let text = format!("ccm:\n  resources:\n{resources}");
    ManifestText { text, name: "site.yaml".into(), directory: None, digest: None }
}

fn settings(noop: bool) -> RunSettings {
    RunSettings {
        noop,
        health_check_only: false,
        selection: None,
        parallelism: crate::engine::default_parallelism(),
        outputs: OutputStore::default(),
        diff: Diff::None,
        omit_details: false,
        run_id: Uuid::nil(),
        node: None,
        authorizer: None,
        refreshes: None,
        reversals: None,
        registrar: None,
        pseudonymize: None,
        unconfined_thread: None,
    }
}

/// The events of a run in which every command ends with 0 and the next of these outputs, and the commands.
fn events(
    resources: &str,
    inputs: &RunInputs,
    settings: &RunSettings,
    said: &[&str],
) -> (Vec<TransactionEvent>, Vec<Vec<String>>) {
    let outputs = said.iter().map(|text| match text.strip_prefix("exit ") {
        Some(code) => Output { code: code.parse().unwrap(), ..Output::default() },
        None => Output { stdout: text.as_bytes().to_vec(), ..Output::default() },
    });
    let runner = FakeRunner::answering(outputs);
    let host = host(Arc::clone(&runner) as _);
    let plan = match plan_manifest(&source(resources), inputs, &host) {
        Ok(plan) => plan,
        Err(errors) => panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
    };
    let mut events = Vec::new();
    run(&plan, settings, &host, &mut MemorySession::default(), &mut |event| events.push(event));
    (events, runner.ran())
}

fn exec(name: &str, more: &str) -> String {
    format!("    - exec: {{name: {name}, {more}}}\n")
}

/// A sender whose command is /bin/send.
fn sender(more: &str) -> String {
    exec("send", &format!("command: /bin/send{more}"))
}

/// A receiver that passes a template to /bin/receive.
fn receiver(template: &str) -> String {
    exec("receive", &format!("command: \"/bin/receive {{{{ {template} }}}}\""))
}

#[test]
fn an_output_reaches_later_templates_with_its_type() {
    let said = ["one two\n", ""];
    for (resources, wanted) in [
        (sender("") + &receiver("resources['exec#send'].stdout"), vec!["/bin/receive", "one", "two"]),
        (sender(", alias: s") + &receiver("resources['exec#s'].stdout"), vec!["/bin/receive", "one", "two"]),
        (sender("") + &receiver("upper(resources['exec#send'].stdout)"), vec!["/bin/receive", "ONE", "TWO"]),
        (sender("") + &receiver("resources['exec#send'].exitcode + 1"), vec!["/bin/receive", "1"]),
        (sender("") + &receiver("'x' + resources['exec#send'].stderr"), vec!["/bin/receive", "x"]),
        (
            sender("") + &exec("receive", "command: /bin/receive, control: {if: \"resources['exec#send'].exitcode == 0\"}"),
            vec!["/bin/receive"],
        ),
        // A number that the type can read only in the run.
        (
            sender("") + &exec("receive", "command: /bin/receive, timeout: \"{{ resources['exec#send'].exitcode + 5 }}s\""),
            vec!["/bin/receive"],
        ),
    ] {
        let (events, ran) = events(&resources, &inputs(), &settings(false), &said);
        assert!(events.iter().all(|event| !event.failed && event.changed), "{resources}: {events:#?}");
        assert_eq!(ran, [vec!["/bin/send".to_owned()], wanted.iter().map(|word| (*word).to_owned()).collect()], "{resources}");
    }
}

#[test]
fn an_output_without_a_value_fails_the_receiver_and_is_never_empty() {
    let skipped = sender(", control: {if: 'false'}");
    let stable = sender(", creates: /");
    for (resources, said, wanted) in [
        (sender("") + &receiver("resources['exec#send'].stdout"), vec!["exit 1"], "exec#send has no outputs: it failed"),
        (skipped.clone() + &receiver("resources['exec#send'].stdout"), vec![], "exec#send has no stdout: its control skipped it"),
        (stable.clone() + &receiver("resources['exec#send'].stdout"), vec![], "exec#send has no stdout: the command did not run"),
        (
            exec("first", "command: /bin/first")
                + &sender(", require: ['exec#first']")
                + &receiver("resources['exec#send'].stdout"),
            vec!["exit 1"],
            "did not run, as one of its requirements failed",
        ),
        (
            sender("") + &receiver("template('{{ resources[`exec#send`].stdout }}')"),
            vec!["x"],
            "outputs of resources are known only when a resource runs",
        ),
    ] {
        let (events, _) = events(&resources, &inputs(), &settings(false), &said);
        let last = events.last().unwrap();
        let error = last.errors.join("\n");
        assert!(last.failed && error.contains(wanted) && error.contains("site.yaml:"), "{resources}: {error}");
    }
    for first in [skipped, stable] {
        let resources = first + &receiver("resources['exec#send']?.stdout ?? 'none'");
        let (_, ran) = events(&resources, &inputs(), &settings(false), &[""]);
        assert_eq!(ran, [["/bin/receive", "none"]], "{resources}");
    }
}

#[test]
fn a_dry_run_leaves_unresolved_what_only_a_real_run_knows() {
    let resources = sender("") + &receiver("resources['exec#send']?.stdout ?? ''") + &exec("last", "command: /bin/last");
    let (events, ran) = events(&resources, &inputs(), &settings(true), &[]);
    let [_, received, last] = events.as_slice() else { panic!("{events:?}") };
    assert!(ran.is_empty() && !received.failed && received.changed && received.noop);
    assert_eq!(received.noop_message, "Would have used an output of exec#send in command, known after that has run");
    assert_eq!(received.changes, ["command (known after exec#send)"]);
    assert_eq!(last.noop_message, "Would have executed");
}

#[test]
fn wrong_uses_are_refused_before_the_run() {
    for (resources, wanted) in [
        (
            receiver("resources['exec#send'].stdout"),
            "site.yaml:3:66: invalid manifest resource 1: command: exec#receive names exec#send, and there is no such resource",
        ),
        (sender("") + &receiver("resources['exec#sned'].stdout"), "hint: did you mean \"exec#send\"?"),
        (sender("") + &receiver("resources['exec#send'].stdot"), "uses the output \"stdot\", which exec resources do not have\n"),
        (sender("") + &receiver("resources['exec#send'].stdot"), "hint: did you mean \"stdout\"?"),
        (sender("") + &receiver("resources['exec#send'].version"), "hint: outputs of exec are stdout, stderr, exitcode"),
        (receiver("resources['exec#send'].stdout") + &sender(""), "command: exec#receive names exec#send, which comes later"),
        (receiver("resources['exec#receive'].stdout"), "names itself"),
        (receiver("resources['cron#x'].schedule"), "no such resource"),
        (sender("") + &receiver("resources[Facts.name].stdout"), "resources needs the resource and its output as literal texts"),
        (sender("") + &receiver("resources['exec#send']"), "resources needs the resource and its output as literal texts"),
        (sender("") + &receiver("resources.send.stdout"), "resources needs the resource and its output as literal texts"),
        (
            sender("") + &exec("\"{{ resources['exec#send'].stdout }}\"", "command: 'true'"),
            "name: resources[...] has no values here",
        ),
        (
            sender("") + &exec("x", "command: 'true', health_checks: [{command: \"{{ resources['exec#send'].stdout }}\"}]"),
            "health_checks: resources[...] has no values here",
        ),
        (sender("") + &exec("x", "timeout: \"{{ resources['exec#send'].stdout }}\", colour: red"), "unknown property \"colour\""),
    ] {
        let host = host(FakeRunner::exiting(&[]));
        let text = |errors: Vec<crate::diag::Diagnostic>| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let planned = plan_manifest(&source(&resources), &inputs(), &host).map(drop).map_err(text).unwrap_err();
        let ahead = precheck(&source(&resources), &Types::default(), &host).map_err(text).unwrap_err();
        for said in [planned, ahead] {
            assert!(said.contains(wanted), "{resources}: {said}");
        }
    }
}

#[test]
fn a_plan_tells_the_senders_of_a_resource() {
    let resources = sender("") + &receiver("resources['exec#send'].stdout + resources['exec#send'].stderr");
    let plan = plan_manifest(&source(&resources), &inputs(), &host(FakeRunner::exiting(&[])));
    let plan = plan.unwrap_or_else(|errors| panic!("{errors:?}"));
    let senders: Vec<Vec<String>> =
        plan.resources.iter().map(|planned| planned.senders().map(ToString::to_string).collect()).collect();
    assert_eq!(senders, [vec![], vec!["exec#send".to_owned(), "exec#send".to_owned()]]);
}

#[test]
fn an_output_carries_what_its_resource_carried() {
    let mut restricted = inputs();
    restricted.access = Arc::new(AllReads);
    // The output of a command is a read value: neither an error nor an event repeats it.
    let resources = sender("") + &receiver("resources['exec#send'].stdout");
    let (seen, ran) = events(&resources, &restricted, &settings(false), &["read-value", "exit 1"]);
    let shown = serde_json::to_string(&seen).unwrap();
    assert!(ran[1].contains(&"read-value".to_owned()) && !shown.contains("read-value"), "{shown}");
    // A secret in an output is redacted everywhere.
    let resources = sender(", environment: [\"A={{ secret('env:TOKEN') }}\"]") + &receiver("resources['exec#send'].stdout");
    let (seen, ran) = events(&resources, &inputs(), &settings(false), &["geheim7geheim", ""]);
    let shown = serde_json::to_string(&seen).unwrap();
    assert!(ran[1].contains(&"geheim7geheim".to_owned()) && !shown.contains("geheim7geheim"), "{shown}");
    // So is a value that the command made of the secret.
    let (seen, ran) = events(&resources, &inputs(), &settings(false), &["Z2VoZWlt", ""]);
    let shown = serde_json::to_string(&seen).unwrap();
    assert!(ran[1].contains(&"Z2VoZWlt".to_owned()) && !shown.contains("Z2VoZWlt"), "{shown}");
}
