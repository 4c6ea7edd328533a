//! Resources that leave their manifest: kept, removed, or as they were before.

mod node;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ensign::wire::CommandOutcome;
use serde_json::Value;

use crate::local::{Desk, Ran};
use crate::support::single_node::{SingleNodeFleet, apply, assign_action, on_every_server};
use crate::watch::Watching;

/// The resource that stays in every manifest.
const REST: &str = "    - file: {name: \"@D@/rest\", ensure: present, content: \"rest\\n\", mode: \"0644\", @ME@}\n";

fn file(name: &str, content: &str, on_removal: &str) -> String {
    format!(
        "    - file: {{name: \"@D@/{name}\", ensure: present, content: \"{content}\\n\", mode: \"0600\", @ME@, on_removal: {on_removal}}}\n"
    )
}

fn apply_all(desk: &Desk, resources: &[&str], args: &[&str]) -> Ran {
    desk.write("site.yaml", &format!("ccm:\n  resources:\n{REST}{}", resources.concat()));
    desk.run(&[&["apply", "site.yaml"], args].concat())
}

fn read(desk: &Desk, name: &str) -> String {
    std::fs::read_to_string(desk.path(name)).unwrap()
}

fn records(desk: &Desk) -> usize {
    std::fs::read_dir(desk.path("runs/reversals"))
        .map_or(0, |files| files.filter(|file| is_record(&file.as_ref().unwrap().path())).count())
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == "json")
}

#[test]
fn a_removed_resource_is_as_before_its_first_run() {
    let desk = Desk::new();
    std::fs::write(desk.path("old"), "secret before {{ x }}\n").unwrap();
    std::fs::set_permissions(desk.path("old"), std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("before", desk.path("link")).unwrap();
    std::fs::write(desk.path("lines"), "a = 0\nport = 1\nz = 0\n").unwrap();
    let link = "    - symlink: {name: \"@D@/link\", target: after, on_removal: revert}\n";
    let line = "    - line: {name: \"@D@/lines\", line: \"port = 2\", match: \"^port =\", on_removal: revert}\n";
    let directory = "    - file: {name: \"@D@/dir\", ensure: directory, mode: \"0755\", @ME@, on_removal: revert}\n";
    let (inner, all) =
        (file("dir/new", "new", "revert"), [&file("old", "one", "revert"), link, line, directory].map(str::to_owned));
    let all: Vec<&str> = all.iter().map(String::as_str).chain([inner.as_str()]).collect();
    apply_all(&desk, &all, &["--noop"]).ends(0);
    assert_eq!(records(&desk), 0, "a dry run records nothing");
    apply_all(&desk, &all, &[]).ends(0);
    assert_eq!(records(&desk), 5);
    // Drift and a new content leave the record of the first run as it is.
    std::fs::remove_file(desk.path("old")).unwrap();
    apply_all(&desk, &all, &[]).ends(0);
    let second: Vec<String> = all.iter().map(|one| one.replace("one\\n", "two\\n")).collect();
    apply_all(&desk, &second.iter().map(String::as_str).collect::<Vec<_>>(), &[]).ends(0);
    assert_eq!((read(&desk, "old"), records(&desk)), ("two\n".to_owned(), 5));
    // The plan shows the reversal, and does nothing.
    desk.write("site.yaml", &format!("ccm:\n  resources:\n{REST}"));
    let plan = desk.run(&["plan", "site.yaml"]);
    plan.ends(0).prints(&["reverted: ", "@D@/old", "@D@/dir/new"].map(|text| desk.fill(text)).each_ref().map(String::as_str));
    assert_eq!((read(&desk, "old"), records(&desk)), ("two\n".to_owned(), 5));
    let dry = desk.run(&["apply", "site.yaml", "--noop", "--output", "json"]).json();
    let message = |event: &Value| event["noop_message"].as_str().unwrap_or_default().to_owned();
    let reverted: Vec<&Value> = dry["events"].as_array().unwrap().iter().filter(|event| event["reverted"] == true).collect();
    assert!(reverted.len() == 5 && reverted.iter().all(|event| message(event).starts_with("Would have reverted: ")), "{dry:#}");
    let run = desk.run(&["apply", "site.yaml", "--output", "json"]);
    run.ends(0);
    assert!(!run.out.contains("secret before"), "captured content is in no event: {run:?}");
    let names: Vec<String> = run.json()["events"].as_array().unwrap().iter().map(|event| event["name"].to_string()).collect();
    let expected = ["rest", "dir/new", "dir", "lines", "link", "old"].map(|name| format!("\"{}/{name}\"", desk.fill("@D@")));
    assert_eq!(names, expected, "in the reverse order of the manifest, after the rest");
    assert_eq!(read(&desk, "old"), "secret before {{ x }}\n");
    assert_eq!(std::fs::metadata(desk.path("old")).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(std::fs::read_link(desk.path("link")).unwrap(), Path::new("before"));
    assert_eq!(
        (read(&desk, "lines").as_str(), desk.path("dir").exists(), records(&desk)),
        ("a = 0\nport = 1\nz = 0\n", false, 0)
    );
    // The resource comes back, with another state before.
    std::fs::write(desk.path("old"), "between\n").unwrap();
    apply_all(&desk, &all, &[]).ends(0);
    apply_all(&desk, &[], &[]).ends(0);
    assert_eq!((read(&desk, "old").as_str(), records(&desk)), ("between\n", 0));
}

#[test]
fn absent_removes_and_keep_keeps() {
    let desk = Desk::new();
    std::fs::write(desk.path("a"), "before\n").unwrap();
    apply_all(&desk, &[&file("a", "one", "absent"), &file("b", "one", "keep"), &file("c", "one", "revert")], &[]).ends(0);
    assert_eq!(records(&desk), 2);
    // A resource that changes to `keep` has no record any more.
    apply_all(&desk, &[&file("a", "one", "absent"), &file("c", "one", "keep")], &[]).ends(0);
    assert_eq!(records(&desk), 1);
    apply_all(&desk, &[], &[]).ends(0);
    assert_eq!(["a", "b", "c"].map(|name| desk.path(name).exists()), [false, true, true]);
    // Another manifest has other records.
    apply_all(&desk, &[&file("a", "one", "absent")], &[]).ends(0);
    desk.write("other.yaml", &format!("ccm:\n  resources:\n{REST}"));
    desk.run(&["apply", "other.yaml"]).ends(0);
    assert!(desk.path("a").exists());
    let refused = apply_all(&desk, &["    - exec: {name: \"true\", on_removal: revert}\n"], &[]);
    refused.says(&["exec resources do not support on_removal: revert", "hint: supported: keep"]);
}

/// Another program changed the resource: the program owns the resource now.
#[test]
fn a_resource_that_another_program_changed_is_kept_once() {
    let desk = Desk::new();
    std::fs::write(desk.path("a"), "before\n").unwrap();
    apply_all(&desk, &[&file("a", "one", "revert"), &file("b", "one", "absent")], &[]).ends(0);
    std::fs::write(desk.path("a"), "foreign\n").unwrap();
    std::fs::write(desk.path("b"), "foreign\n").unwrap();
    let kept = apply_all(&desk, &[], &[]);
    kept.ends(0).prints(&["kept: the present state is not the one that the last run left"]);
    assert_eq!((read(&desk, "a").as_str(), read(&desk, "b").as_str(), records(&desk)), ("foreign\n", "foreign\n", 0));
    assert!(!apply_all(&desk, &[], &[]).ends(0).out.contains("kept"));
}

#[test]
fn a_killed_run_leaves_a_record_of_the_state_before() {
    for (name, killed_before) in [("before the change", true), ("after the change", false)] {
        let desk = Desk::new();
        std::fs::write(desk.path("a"), "before\n").unwrap();
        // The command that checks the new content runs between the record and the change.
        let kill = "validate: \"/bin/sh -c 'test -e @D@/go || kill -9 $PPID; test -s %s'\"";
        let resource = file("a", "one", "revert").replace("on_removal", &format!("{kill}, on_removal"));
        if !killed_before {
            std::fs::write(desk.path("go"), "").unwrap();
        }
        let end = "    - exec: {name: end, command: \"test -e @D@/never || kill -9 $PPID\", provider: shell}\n";
        let ran = apply_all(&desk, &[&resource, if killed_before { "" } else { end }], &[]);
        assert_eq!((ran.code, records(&desk)), (None, 1), "{name}: {ran:?}");
        apply_all(&desk, &[], &[]).ends(0);
        assert_eq!((read(&desk, "a").as_str(), records(&desk)), ("before\n", 0), "{name}");
    }
}

#[test]
fn a_change_waits_for_a_record() {
    let desk = Desk::new();
    let failed =
        |ran: &Ran, why: &str| assert!(ran.code == Some(1) && format!("{}{}", ran.out, ran.err).contains(why), "{ran:?}");
    // Content that no property describes.
    std::fs::write(desk.path("a"), b"\xff\xfe").unwrap();
    failed(&apply_all(&desk, &[&file("a", "one", "revert")], &[]), "cannot record the present state for `on_removal: revert`");
    std::fs::write(desk.path("a"), "x".repeat((1 << 20) + 1)).unwrap();
    failed(&apply_all(&desk, &[&file("a", "one", "revert")], &[]), "more than the 1048576 that are kept");
    assert_eq!(std::fs::metadata(desk.path("a")).unwrap().len(), (1 << 20) + 1);
    // A directory that can't be written.
    std::fs::write(desk.path("a"), "before\n").unwrap();
    std::fs::write(desk.path("runs/reversals"), "").unwrap();
    assert!(apply_all(&desk, &[&file("a", "one", "revert")], &[]).code != Some(0));
    assert_eq!(read(&desk, "a"), "before\n");
    std::fs::remove_file(desk.path("runs/reversals")).unwrap();
    apply_all(&desk, &[&file("a", "one", "revert")], &[]).ends(0);
    // A damaged record names itself, stops only its own resource, and is never applied.
    let record =
        std::fs::read_dir(desk.path("runs/reversals")).unwrap().map(|file| file.unwrap().path()).find(|path| is_record(path));
    std::fs::write(record.unwrap(), "{").unwrap();
    let ran = apply_all(&desk, &[&file("a", "two", "revert"), &file("b", "two", "revert")], &[]);
    failed(&ran, "is damaged");
    assert_eq!((read(&desk, "a").as_str(), read(&desk, "b").as_str()), ("one\n", "two\n"));
    let gone = apply_all(&desk, &[], &[]);
    gone.ends(0).says(&["is damaged", "hint: remove the file"]);
    assert_eq!((read(&desk, "a").as_str(), desk.path("b").exists()), ("one\n", false));
}

/// A failed reversal is tried again, and resources of a nested manifest count.
#[test]
fn a_failed_reversal_is_repeated_and_nested_manifests_count() {
    let desk = Desk::new();
    std::fs::write(desk.path("a"), "port = 1\n").unwrap();
    std::fs::write(desk.path("gate"), "").unwrap();
    let nested = "    - apply: {name: \"@D@/nested.yaml\"}\n";
    let validate = "validate: \"/bin/sh -c 'test -e @D@/gate && test -s %s'\"";
    let line = format!("line: \"port = 2\", match: \"^port =\", {validate}, on_removal: revert");
    desk.write("nested.yaml", &format!("ccm:\n  resources:\n    - line: {{name: \"@D@/a\", {line}}}\n"));
    for _ in 0..2 {
        apply_all(&desk, &[nested], &[]).ends(0);
        assert_eq!(read(&desk, "a"), "port = 2\n");
    }
    // While the nested manifest is not read, its resources are unknown.
    let skipped = nested.replace('}', ", control: {if: \"false\"}}");
    apply_all(&desk, &[&skipped], &[]).ends(0);
    apply_all(&desk, &[], &["--health-check-only"]).ends(0);
    assert_eq!((read(&desk, "a").as_str(), records(&desk)), ("port = 2\n", 1));
    std::fs::remove_file(desk.path("gate")).unwrap();
    let failed = apply_all(&desk, &[], &[]);
    assert!(failed.code == Some(1) && records(&desk) == 1, "{failed:?}");
    std::fs::write(desk.path("gate"), "").unwrap();
    apply_all(&desk, &[], &[]).ends(0);
    assert_eq!((read(&desk, "a").as_str(), records(&desk)), ("port = 1\n", 0));
}

/// A new version of a manifest in force reverses too.
#[test]
fn a_manifest_in_force_reverses_what_its_next_version_lacks() {
    let desk = Desk::new();
    std::fs::write(desk.path("a"), "before\n").unwrap();
    let write = |resources: &[&str]| desk.write("site.yaml", &format!("ccm:\n  resources:\n{REST}{}", resources.concat()));
    write(&[&file("a", "one", "revert"), &file("b", "one", "absent"), &file("c", "one", "keep")]);
    let watching = Watching::start(&desk, &[]);
    assert_eq!((read(&desk, "a").as_str(), records(&desk)), ("one\n", 2));
    std::fs::write(desk.path("a"), "drift\n").unwrap();
    watching.repairs(&desk, "a", "one\n");
    write(&[]);
    watching.repairs(&desk, "a", "before\n");
    watching.until("b is removed", || !desk.path("b").exists() && records(&desk) == 0);
    assert_eq!(read(&desk, "c"), "one\n");
    // The reversal is no longer watched, and what stays is.
    std::fs::write(desk.path("a"), "free\n").unwrap();
    std::fs::write(desk.path("rest"), "drift\n").unwrap();
    watching.repairs(&desk, "rest", "rest\n");
    assert_eq!((read(&desk, "a").as_str(), watching.stop()), ("free\n", Some(0)));
}

/// On a node, the next assignment of the channel reverses.
#[test]
fn an_assignment_reverses_the_resources_that_the_one_before_had() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let desk = Desk::new();
        std::fs::write(desk.path("a"), "before\n").unwrap();
        let _agent = fleet.start_agent().await;
        let assign = async |serial: u64, resources: &str| {
            desk.write("site.yaml", &format!("ccm:\n  resources:\n{REST}{resources}"));
            let command = fleet.assignment(serial, assign_action(apply(&desk.path("site.yaml"))));
            fleet.store_assignment(&command).await;
            fleet.only_result(command.id).await.outcome
        };
        assert_eq!(assign(1, &file("a", "one", "revert")).await, CommandOutcome::Changed);
        assert_eq!(read(&desk, "a"), "one\n");
        assert_eq!(assign(2, "").await, CommandOutcome::Changed);
        assert_eq!(read(&desk, "a"), "before\n");
    });
}
