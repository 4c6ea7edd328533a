//! No secret, and no content, is in anything that a node publishes, keeps about its runs, or logs.

use std::path::Path;

use ensign::transport::StartAt;
use ensign::wire::CommandOutcome;
use ensign::wire::command::Action;
use serde_json::Value;

use crate::support::single_node::{SingleNodeFleet, apply, ensure_action, on_every_server};

const CANARY: &str = "CANARY";

/// Everything below a directory that holds one of these texts.
fn holds(root: &Path, texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                let content = String::from_utf8_lossy(&bytes);
                found.extend(
                    texts.iter().filter(|text| content.contains(**text)).map(|text| format!("{}: {text}", path.display())),
                );
            }
        }
    }
    found
}

#[test]
fn secrets_and_content_stay_on_the_node() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let vault = fleet.path("vault");
        std::fs::write(&vault, "CANARY-vault\n").unwrap();
        std::fs::write(fleet.path("open"), "for all users\n").unwrap();
        let here = fleet.dir.path().display();
        let manifest = format!(
            r#"ccm:
  resources:
    - file:
        - {here}/content: {{ensure: present, content: "CANARY-content", owner: root, group: root, mode: "0600"}}
        - {here}/secret: {{ensure: present, content: "{{{{ secret('{here}/vault') }}}}", owner: root, group: root, mode: "0600"}}
        - {here}/copy: {{ensure: present, source: "{here}/open", owner: root, group: root, mode: "0644"}}
        - {here}/nowhere/x: {{ensure: present, content: "CANARY-late", owner: root, group: root, mode: "0600", alias: nowhere}}
    - line:
        - {here}/content: {{line: "password=CANARY-line"}}
    - exec:
        - environment: {{command: "true", environment: ["TOKEN=CANARY-environment"]}}
        - says: {{command: "echo {{{{ secret('{here}/vault') }}}}", logoutput: true}}
        - fails: {{command: "sh -c 'echo {{{{ secret('{here}/vault') }}}} >&2; exit 3'"}}
        - checked: {{command: "true", health_checks: [{{command: "echo {{{{ secret('{here}/vault') }}}}"}}]}}
    - archive:
        - {here}/a.tar.gz: {{ensure: present, url: "http://127.0.0.1:1/a.tar.gz", owner: root, group: root, username: u, password: "CANARY-password", headers: {{X-Token: "CANARY-header"}}}}
"#
        );
        let dry = format!(
            "ccm:\n  resources:\n    - user:\n        - ensign-nobody: {{password_hash: \"$6$CANARYsalt${}\"}}\n    - cron:\n        \
             - ensign-never: {{command: \"true\", schedule: \"@daily\", environment: [\"TOKEN=CANARY-cron\"]}}\n",
            "x".repeat(86)
        );
        let mut ran = Vec::new();
        for (name, text, noop) in
            [("manifest.yaml", &manifest, false), ("manifest.yaml", &manifest, true), ("dry.yaml", &dry, true)]
        {
            std::fs::write(fleet.path(name), text).unwrap();
            let mut command = fleet.command(Action::Apply(apply(&fleet.path(name))));
            command.options.noop = noop;
            fleet.send(&command).await;
            ran.push(fleet.only_result(command.id).await);
        }
        // The run is done, and the expected failures happened.
        assert_eq!(std::fs::read_to_string(fleet.path("secret")).unwrap(), "CANARY-vault");
        assert!(std::fs::read_to_string(fleet.path("content")).unwrap().contains("CANARY-line"));
        assert_eq!(ran[0].outcome, CommandOutcome::Failed, "{:?}", ran[0]);
        assert!(ran[0].failures.len() >= 3, "{:?}", ran[0].failures);
        fleet.wait_until_published();
        assert_eq!(agent.stop(), Some(0));

        let plain = |text: &str| ensign::host::fs::sha256(text.as_bytes());
        let guessable = [plain("CANARY-vault"), plain("CANARY-content"), plain("password=CANARY-line"), CANARY.to_owned()];
        let guessable: Vec<&str> = guessable.iter().map(String::as_str).collect();
        let (mut contents, mut types) = (Vec::new(), std::collections::BTreeSet::new());
        let (mut count, mut copies) = (0, Vec::new());
        for (stream, filter) in [("JOBS", "job"), ("EVENTS", "event"), ("STATE", "state")] {
            let filter = format!("ensign.v1.test.{filter}.>");
            let mut feed = fleet.bus.follow(&fleet.subjects.stream(stream), &filter, StartAt::Beginning).await.unwrap();
            for _ in 0..feed.backlog() {
                let message = feed.next().await.unwrap().unwrap();
                let text = String::from_utf8_lossy(&message.payload).into_owned();
                for guess in &guessable {
                    assert!(!text.contains(guess), "{guess} in {}: {text}", message.subject);
                    assert!(!message.headers.iter().any(|(_, value)| value.contains(guess)), "{guess} in a header");
                }
                count += 1;
                let event: Value = serde_json::from_str(&text).unwrap();
                if event["properties"]["source"].is_string() {
                    copies.push(event["status"]["metadata"]["checksum"].clone());
                }
                contents.extend(event["properties"]["content"].as_str().map(str::to_owned));
                types.extend(event["type"].as_str().map(str::to_owned));
            }
        }
        assert!(count > 20, "{count}");
        assert_eq!(types.iter().map(String::as_str).collect::<Vec<_>>(), ["archive", "cron", "exec", "file", "line", "user"]);
        // Content that others can read anyway has a plain digest.
        assert!(copies.contains(&Value::String(plain("for all users\n"))), "{copies:?}");
        // The digest of secret content is the same for the same content, and differs for every other.
        contents.sort();
        contents.dedup();
        assert!(contents.len() == 3 && contents.iter().all(|content| content.starts_with("hmac-sha256:")), "{contents:?}");
        let kept = holds(&fleet.path("state"), &guessable);
        assert!(kept.is_empty(), "{kept:?}");
        let log = fleet.log();
        assert!(guessable.iter().all(|guess| !log.contains(guess)), "{log}");
    });
}

/// Every message that the node published, as text with its subject.
async fn published(fleet: &SingleNodeFleet) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (stream, filter) in [("JOBS", "job"), ("EVENTS", "event"), ("STATE", "state")] {
        let filter = format!("ensign.v1.test.{filter}.>");
        let mut feed = fleet.bus.follow(&fleet.subjects.stream(stream), &filter, StartAt::Beginning).await.unwrap();
        for _ in 0..feed.backlog() {
            let message = feed.next().await.unwrap().unwrap();
            all.push((message.subject.clone(), String::from_utf8_lossy(&message.payload).into_owned()));
        }
    }
    all
}

/// Resources whose programs print their arguments, on both outputs, and fail. Every redacted property has a canary.
fn printing_manifest(here: &str) -> String {
    let padding = "p".repeat(385);
    format!(
        r#"ccm:
  resources:
    - exec:
        - fails: {{command: "echo out $TOKEN; echo err $TOKEN >&2; exit 3", provider: shell, environment: ["TOKEN=CANARY-fails"]}}
        - says: {{command: "echo $TOKEN; env", provider: shell, logoutput: true, environment: ["TOKEN=CANARY-says", "PIN=4711"]}}
        - cut: {{command: "echo \"$TOKEN\"{padding} >&2; exit 1", provider: shell, environment: ["TOKEN=CANARY-cut-in-two-by-the-length-of-an-error"]}}
        - late: {{command: "echo $TOKEN >&2; exit {{{{ Data.code }}}}", provider: shell, environment: ["TOKEN={{{{ Data.late }}}}"]}}
        - keeps: {{command: "echo $TOKEN > {here}/kept", provider: shell, environment: ["TOKEN=CANARY-kept"], health_checks: [{{command: "sh -c 'cat {here}/kept; exit 2'"}}]}}
        - guarded: {{command: "cat {here}/kept >&2; exit 1", provider: shell}}
        - download: {{command: "cat {here}/given >&2; exit 1", provider: shell}}
    - archive:
        - {here}/a.tar.gz: {{ensure: present, url: "http://u:CANARY-url@127.0.0.1:1/a.tar.gz?key=CANARY-query", owner: root, group: root, username: u, password: "CANARY-password", headers: {{X-Token: "CANARY-header"}}}}
    - cron:
        - "not a name": {{command: "true", schedule: "@daily", environment: ["TOKEN=CANARY-cron"]}}
data: {{code: 4, late: "CANARY-late"}}
"#
    )
}

/// Output of programs with values from the archive's properties.
const GIVEN: &str = "CANARY-password CANARY-header key=CANARY-query CANARY-url\n";

/// The same without the resource that no node has.
fn plannable(manifest: &str) -> String {
    let lines = manifest.lines().filter(|line| !line.contains("cron") && !line.contains("not a name"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn secrets_that_a_program_prints_stay_on_the_node() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let here = fleet.dir.path().display().to_string();
        let whole = printing_manifest(&here);
        let manifest = plannable(&whole);
        std::fs::write(fleet.path("given"), GIVEN).unwrap();
        let unplanned = whole.replace("not a name", "x").replace("schedule: \"@daily\"", "schedule: nonsense");
        let mut messages = Vec::new();
        for (name, text) in [("manifest.yaml", &manifest), ("unplanned.yaml", &unplanned)] {
            std::fs::write(fleet.path(name), text).unwrap();
            let command = fleet.command(Action::Apply(apply(&fleet.path(name))));
            fleet.send(&command).await;
            let done = fleet.only_result(command.id).await;
            assert_eq!(done.outcome, CommandOutcome::Failed, "{done:?}");
            messages.push(done);
        }
        for key in ["TOKEN=CANARY-one", "1TOKEN=CANARY-two"] {
            let properties =
                serde_json::json!({"name": "one", "command": "env >&2; exit 1", "provider": "shell", "environment": [key]});
            let command = fleet.command(ensure_action("exec", &properties));
            let answers = fleet.answers(&command, fleet.sign(&command), 2).await;
            assert!(answers.iter().all(|answer| !answer.to_string().contains(CANARY)), "{answers:?}");
            messages.push(fleet.only_result(command.id).await);
        }
        // A failed resource reports its reason, with `***`.
        let failures = &messages[0].failures;
        assert!(failures["exec#fails"].contains("err ***"), "{failures:?}");
        assert!(failures["exec#late"].contains("***") && failures["exec#guarded"].contains("***"), "{failures:?}");
        assert!(failures["exec#keeps"].contains("***"), "{failures:?}");
        assert!(!failures["exec#cut"].contains("length-of"), "{failures:?}");
        assert!(messages[1].message.as_ref().unwrap().contains("schedule"), "{:?}", messages[1]);
        assert!(messages[2].event.as_ref().unwrap().errors[0].contains("TOKEN=***"), "{:?}", messages[2]);
        fleet.wait_until_published();
        assert_eq!(agent.stop(), Some(0));
        let all = published(&fleet).await;
        assert!(all.len() > 10, "{}", all.len());
        for (subject, text) in &all {
            assert!(!text.contains(CANARY) && !text.contains("length-of") && !text.contains("PIN=4711"), "{subject}: {text}");
        }
        let says = all.iter().find(|(_, text)| text.contains("\"name\":\"says\"") && text.contains("\"output\"")).unwrap();
        assert!(says.1.contains("TOKEN=***") && says.1.contains("PIN=***"), "{says:?}");
        let kept = holds(&fleet.path("state"), &[CANARY, "length-of", "PIN=4711"]);
        assert!(kept.is_empty(), "{kept:?}");
        assert!(!fleet.log().contains(CANARY), "{}", fleet.log());
    });
}

#[test]
fn secrets_that_a_program_prints_are_redacted_in_a_local_run() {
    let desk = crate::local::Desk::new();
    let here = desk.path("").display().to_string();
    desk.write("given", GIVEN);
    let manifest = plannable(&printing_manifest(here.trim_end_matches('/')));
    desk.write("m.yaml", &manifest);
    for args in [
        &["apply", "m.yaml"][..],
        &["apply", "--output", "json", "m.yaml"],
        &["apply", "--output", "jsonl", "m.yaml"],
        &["apply", "--diff", "m.yaml"],
    ] {
        let ran = desk.run(args);
        let said = format!("{}{}", ran.out, ran.err);
        assert_eq!(ran.code, Some(1), "{args:?}: {said}");
        assert!(!said.contains(CANARY) && said.contains("err ***"), "{args:?}: {said}");
    }
    let kept = holds(&desk.path("runs"), &[CANARY]);
    assert!(kept.is_empty(), "{kept:?}");
    // `--render` shows data unredacted; the author puts secrets behind `secret()`.
    let rendered = desk.run(&["apply", "--render", "m.yaml"]).ends(0).out.clone();
    let said: Vec<&str> = rendered.lines().filter(|line| line.contains(CANARY)).collect();
    assert!(said.len() == 1 && said[0].trim() == "late: CANARY-late", "{rendered}");
}
