//! No secret, and no content, is in anything that a node publishes, keeps about its runs, or logs.

use std::path::Path;

use ensign::transport::From;
use ensign::wire::DoneOutcome;
use ensign::wire::command::Action;
use serde_json::Value;

use crate::support::solo::{Fleet, apply, on_every_server};

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
        let fleet = Fleet::new(binary, "").await;
        let agent = fleet.agent().await;
        let vault = fleet.path("vault");
        std::fs::write(&vault, "CANARY-vault\n").unwrap();
        let here = fleet.dir.path().display();
        let manifest = format!(
            r#"ccm:
  resources:
    - file:
        - {here}/content: {{ensure: present, content: "CANARY-content", owner: root, group: root, mode: "0600"}}
        - {here}/secret: {{ensure: present, content: "{{{{ secret('{here}/vault') }}}}", owner: root, group: root, mode: "0600"}}
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
        // It was done, and what was to fail did.
        assert_eq!(std::fs::read_to_string(fleet.path("secret")).unwrap(), "CANARY-vault");
        assert!(std::fs::read_to_string(fleet.path("content")).unwrap().contains("CANARY-line"));
        assert_eq!(ran[0].outcome, DoneOutcome::Failed, "{:?}", ran[0]);
        assert!(ran[0].failures.len() >= 3, "{:?}", ran[0].failures);
        fleet.settled();
        assert_eq!(agent.stop(), Some(0));

        let plain = |text: &str| ensign::host::fs::sha256(text.as_bytes());
        let guessable = [plain("CANARY-vault"), plain("CANARY-content"), plain("password=CANARY-line"), CANARY.to_owned()];
        let guessable: Vec<&str> = guessable.iter().map(String::as_str).collect();
        let (mut contents, mut types) = (Vec::new(), std::collections::BTreeSet::new());
        let mut count = 0;
        for (stream, filter) in [("JOBS", "job"), ("EVENTS", "event"), ("STATE", "state")] {
            let filter = format!("ensign.v1.test.{filter}.>");
            let mut feed = fleet.bus.follow(&fleet.subjects.stream(stream), &filter, From::Beginning).await.unwrap();
            for _ in 0..feed.backlog() {
                let message = feed.next().await.unwrap().unwrap();
                let text = String::from_utf8_lossy(&message.payload).into_owned();
                for guess in &guessable {
                    assert!(!text.contains(guess), "{guess} in {}: {text}", message.subject);
                    assert!(!message.headers.iter().any(|(_, value)| value.contains(guess)), "{guess} in a header");
                }
                count += 1;
                let event: Value = serde_json::from_str(&text).unwrap();
                contents.extend(event["properties"]["content"].as_str().map(str::to_owned));
                types.extend(event["type"].as_str().map(str::to_owned));
            }
        }
        assert!(count > 20, "{count}");
        assert_eq!(types.iter().map(String::as_str).collect::<Vec<_>>(), ["archive", "cron", "exec", "file", "line", "user"]);
        // What stands for a content is the same for the same one, and for no other.
        contents.sort();
        contents.dedup();
        assert!(contents.len() == 3 && contents.iter().all(|content| content.starts_with("hmac-sha256:")), "{contents:?}");
        let kept = holds(&fleet.path("state"), &guessable);
        assert!(kept.is_empty(), "{kept:?}");
        let log = fleet.log();
        assert!(guessable.iter().all(|guess| !log.contains(guess)), "{log}");
    });
}
