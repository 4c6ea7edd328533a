//! Refreshes of subscribers: a refresh stays pending until the subscriber succeeded, whatever ends the run before.

use ensign::wire::CommandOutcome;
use ensign::wire::command::Action;

use crate::local::{Desk, Ran, finish};
use crate::support::single_node::{SingleNodeFleet, apply, on_every_server};

/// A manifest with a file, a command that can end the run, and a command that subscribes to the file.
struct Case {
    name: &'static str,
    /// The resource between.
    between: &'static str,
    /// The command of the subscriber.
    command: &'static str,
    /// Further properties of the subscriber.
    more: &'static str,
}

const CASES: &[Case] = &[
    Case { name: "the subscriber fails", between: "", command: "test -e @D@/gate && echo reloaded >> @D@/log", more: "" },
    Case {
        name: "a requirement of the subscriber fails",
        between: "    - exec: {name: gate, command: \"test -e @D@/gate\", provider: shell}\n",
        command: "echo reloaded >> @D@/log",
        more: ", require: [exec#gate]",
    },
    Case {
        name: "a condition excludes the subscriber",
        between: "",
        command: "echo reloaded >> @D@/log",
        more: ", control: {if: \"Environ.GATE == 'open'\"}",
    },
    Case {
        name: "the health check of the subscriber fails",
        between: "",
        command: "test -e @D@/gate && echo reloaded >> @D@/log; true",
        more: ", health_checks: [{command: \"/bin/sh -c 'test -e @D@/gate'\"}]",
    },
    Case {
        name: "the run is killed",
        between: "    - exec: {name: gate, command: \"test -e @D@/gate || kill -9 $PPID\", provider: shell}\n",
        command: "echo reloaded >> @D@/log",
        more: "",
    },
];

impl Case {
    /// Writes the manifest with this content of the file.
    fn write(&self, desk: &Desk, content: &str, extra: &str) {
        let Self { between, command, more, .. } = self;
        desk.write(
            "site.yaml",
            &format!(
                "ccm:\n  resources:\n{extra}    - file: {{name: \"@D@/conf\", ensure: present, content: \"{content}\\n\", mode: \"0644\", @ME@}}\n\
                {between}    - exec: {{name: reload, command: \"{command}\", provider: shell, refreshonly: true, subscribe: [\"file#@D@/conf\"]{more}}}\n"
            ),
        );
    }

    fn apply(&self, desk: &Desk, is_open: bool, args: &[&str]) -> Ran {
        let gate = desk.path("gate");
        if is_open {
            std::fs::write(&gate, "").unwrap();
        } else {
            let _missing = std::fs::remove_file(&gate);
        }
        let mut command = desk.command(&[&["apply", "site.yaml"], args].concat());
        finish(command.env("GATE", if is_open { "open" } else { "shut" }).spawn().unwrap())
    }
}

/// Returns how often the subscriber was refreshed.
fn reloads(desk: &Desk) -> usize {
    std::fs::read_to_string(desk.path("log")).map_or(0, |text| text.lines().count())
}

#[test]
fn a_subscriber_that_is_only_observed_keeps_its_pending_refresh_and_gets_none() {
    let case = Case { name: "", between: "", command: "test -e @D@/gate && echo reloaded >> @D@/log", more: "" };
    let observed = Case { more: ", policy: {noop: true}", ..case };
    let desk = Desk::new();
    let apply = |case: &Case, content: &str, is_open: bool, code: i32, expected: usize| {
        case.write(&desk, content, "");
        let ran = case.apply(&desk, is_open, &[]);
        assert_eq!((ran.code, reloads(&desk)), (Some(code), expected), "{content}: {ran:?}");
    };
    apply(&case, "one", true, 0, 1);
    apply(&case, "two", false, 1, 1);
    apply(&observed, "two", true, 0, 1);
    apply(&case, "two", true, 0, 2);
    apply(&observed, "three", true, 0, 2);
    apply(&case, "three", true, 0, 2);
}

#[test]
fn a_refresh_stays_pending_until_the_subscriber_succeeds() {
    for case in CASES {
        let (desk, name) = (Desk::new(), case.name);
        case.write(&desk, "one", "");
        let first = case.apply(&desk, true, &[]);
        assert_eq!((first.code, reloads(&desk)), (Some(0), 1), "{name}: {first:?}");
        // A dry run before the change adds nothing.
        case.write(&desk, "two", "");
        case.apply(&desk, true, &["--noop"]);
        case.write(&desk, "one", "");
        let unchanged = case.apply(&desk, true, &[]);
        assert_eq!(reloads(&desk), 1, "{name}: {unchanged:?}");
        // The change, while the subscriber can't succeed; twice.
        case.write(&desk, "two", "");
        for _ in 0..2 {
            case.apply(&desk, false, &[]);
            assert_eq!(reloads(&desk), 1, "{name}");
        }
        // A dry run and a plan show the pending refresh, also while it is not due, and keep it.
        let pending = desk.fill("(pending refresh after file#@D@/conf)");
        for is_open in [true, false] {
            let dry = case.apply(&desk, is_open, &["--noop"]);
            assert!(dry.out.contains("exec#reload") && dry.out.contains(&pending) && reloads(&desk) == 1, "{name}: {dry:?}");
        }
        let plan = desk.run(&["plan", "site.yaml"]);
        assert!(plan.out.contains("exec#reload") && plan.out.contains(&pending), "{name}: {plan:?}");
        let document = desk.run(&["plan", "site.yaml", "--output", "json"]).json();
        let events = document["events"].as_array().unwrap();
        let reload = events.iter().find(|event| event["name"] == "reload").unwrap();
        assert_eq!(reload["pending_refreshes"], serde_json::json!([desk.fill("file#@D@/conf")]), "{name}");
        assert!(events.iter().all(|event| event["name"] == "reload" || event.get("pending_refreshes").is_none()), "{name}");
        // A new manifest that keeps both resources.
        case.write(&desk, "two", "    - exec: {name: new, command: \"true\"}\n");
        let repaired = case.apply(&desk, true, &[]);
        assert_eq!((repaired.code, reloads(&desk)), (Some(0), 2), "{name}: {repaired:?}");
        let stable = case.apply(&desk, true, &[]);
        assert_eq!((stable.code, reloads(&desk)), (Some(0), 2), "{name}: {stable:?}");
        assert!(!format!("{}{}", repaired.out, stable.out).contains("pending refresh"), "{name}: {repaired:?} {stable:?}");
    }
}

/// A resource is not changed when its subscribers could be forgotten.
#[test]
fn a_change_waits_for_a_record_of_its_refreshes() {
    let desk = Desk::new();
    CASES[0].write(&desk, "one", "");
    std::fs::write(desk.path("runs"), "not a directory").unwrap();
    let failed = CASES[0].apply(&desk, true, &[]);
    assert!(failed.code != Some(0) && !desk.path("conf").exists(), "{failed:?}");
    assert!(format!("{}{}", failed.out, failed.err).contains("pending refreshes"), "{failed:?}");
    std::fs::remove_file(desk.path("runs")).unwrap();
    let repaired = CASES[0].apply(&desk, true, &[]);
    assert_eq!((repaired.code, reloads(&desk)), (Some(0), 1), "{repaired:?}");
    // A damaged file names itself and the remedy.
    std::fs::write(desk.path("runs/pending-refreshes.jsonl"), "{}\n{}\n").unwrap();
    let damaged = CASES[0].apply(&desk, true, &[]);
    assert!(damaged.code != Some(0) && damaged.err.contains("pending-refreshes.jsonl, line 1"), "{damaged:?}");
    assert!(damaged.err.contains("hint: remove the file"), "{damaged:?}");
}

/// On a node, a pending refresh also survives the death of the agent, and a new manifest.
#[test]
fn a_refresh_stays_pending_on_a_node() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let desk = Desk::new();
        let apply_on_node = async |content: &str, extra: &str| {
            CASES[0].write(&desk, content, extra);
            let command = fleet.command(Action::Apply(apply(&desk.path("site.yaml"))));
            fleet.send(&command).await;
            fleet.only_result(command.id).await.outcome
        };
        let agent = fleet.start_agent().await;
        assert_eq!(apply_on_node("one", "").await, CommandOutcome::Failed);
        assert_eq!(apply_on_node("one", "").await, CommandOutcome::Failed);
        assert!(!desk.path("log").exists());
        agent.kill();
        std::fs::write(desk.path("gate"), "").unwrap();
        let _agent = fleet.start_agent().await;
        assert_eq!(apply_on_node("one", "    - exec: {name: new, command: \"true\"}\n").await, CommandOutcome::Changed);
        assert_eq!(reloads(&desk), 1);
        assert_eq!(apply_on_node("one", "").await, CommandOutcome::Stable);
        assert_eq!(reloads(&desk), 1);
    });
}
