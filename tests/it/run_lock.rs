//! The lock of runs that change something on one host: the wait, its end, and runs without the lock.

use std::process::Child;
use std::time::{Duration, Instant};

use crate::local::{Desk, finish};
use crate::support::single_node::{PATIENCE, SingleNodeFleet, on_every_server};

/// A desk with a manifest that reports its start, and waits for permission to continue.
fn desk() -> Desk {
    let desk = Desk::new();
    desk.write(
        "slow.yaml",
        "ccm:\n  resources:\n    - exec: {name: slow, provider: shell, cwd: \"@D@\", \
         command: \"touch begun; while [ ! -e open ]; do sleep 0.05; done\"}\n",
    );
    desk.write("quick.yaml", "ccm:\n  resources:\n    - exec: {name: quick, command: \"true\"}\n");
    desk
}

fn start_slow_run(desk: &Desk) -> Child {
    let slow = desk.command(&["apply", "slow.yaml"]).spawn().unwrap();
    wait_until(|| desk.path("begun").exists());
    slow
}

#[track_caller]
fn wait_until(so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn one_run_at_a_time_changes_a_host() {
    let desk = desk();
    let slow = start_slow_run(&desk);
    let who = format!("another run is under way: ensign apply slow.yaml (process {}, since 20", slow.id());
    desk.run(&["apply", "quick.yaml", "--wait", "0"]).ends(4).says(&[&who, "nothing was run", "hint: wait longer than 0"]);
    desk.run(&["apply", "quick.yaml", "--wait", "200ms"])
        .ends(4)
        .says(&["waiting for another run: ensign apply slow.yaml", &who]);
    desk.run(&["ensure", "exec", "true", "--wait", "0"]).ends(4).says(&[&who]);
    let request = r#"{"protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "exec", "properties": {"name": "true"}}"#;
    let ran = desk.pipe(&["ensure", "api", "pipe", "--wait", "0"], request.as_bytes());
    assert!(ran.ends(0).json()["error"].as_str().is_some_and(|error| error.contains(&who)), "{ran:?}");
    // A run without changes does not wait.
    desk.run(&["plan", "quick.yaml"]).ends(0);
    desk.run(&["apply", "quick.yaml", "--noop", "--wait", "0"]).ends(0);
    desk.run(&["apply", "quick.yaml", "--health-check-only", "--wait", "0"]).ends(0);
    desk.run(&["check", "quick.yaml"]).ends(0);
    desk.run(&["ensure", "exec", "true", "--noop", "--wait", "0"]).ends(0);

    let waiting = desk.command(&["apply", "quick.yaml"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(desk.path("open"), "").unwrap();
    finish(waiting).ends(0).says(&["waiting for another run: ensign apply slow.yaml"]);
    finish(slow).ends(0);
    desk.run(&["apply", "quick.yaml", "--wait", "0"]).ends(0);
}

#[test]
fn a_killed_run_releases_the_lock_of_the_host() {
    let desk = desk();
    let mut slow = start_slow_run(&desk);
    slow.kill().unwrap();
    slow.wait().unwrap();
    desk.run(&["apply", "quick.yaml", "--wait", "0"]).ends(0);
    desk.run(&["apply", "quick.yaml", "--wait", "0"]).ends(0);
}

#[test]
fn a_run_within_a_run_does_not_wait_for_its_lock() {
    let desk = Desk::new();
    desk.write(
        "outer.yaml",
        "ccm:\n  resources:\n    - exec:\n        name: inner\n        \
         command: \"@ENSIGN@ ensure exec true --wait 0\"\n        \
         environment: [\"ENSIGN_RUNTIME=@D@/commands\", \"ENSIGN_HISTORY=off\", \"HOME=@D@/home\"]\n"
            .replace("@ENSIGN@", env!("CARGO_BIN_EXE_ensign"))
            .as_str(),
    );
    desk.run(&["apply", "outer.yaml"]).ends(0);
}

#[test]
fn an_agent_and_a_local_run_wait_for_each_other() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let desk = desk();
        let mut process = fleet.process();
        process.env("ENSIGN_RUNTIME", desk.path("commands"));
        let agent = fleet.start_agent_process(&mut process).await;
        let long = fleet.gated_command("long");
        fleet.send(&long).await;
        fleet.until("the run of the agent", || !fleet.lines("long").is_empty()).await;
        let who = format!("another run is under way: ensign agent, command {} (process {}", long.id, agent.0.id());
        desk.run(&["apply", "quick.yaml", "--wait", "0"]).ends(4).says(&[&who]);
        fleet.open_gate("long");
        fleet.until("the end of the run", || fleet.lines("long").len() == 2).await;
        // And in the other direction.
        desk.run(&["apply", "quick.yaml", "--wait", "30s"]).ends(0);
        let slow = start_slow_run(&desk);
        let next = fleet.gated_command("next");
        fleet.send(&next).await;
        fleet.until("the output of the run", || fleet.log().contains("waiting for another run: ensign apply slow.yaml")).await;
        assert!(fleet.lines("next").is_empty());
        std::fs::write(desk.path("open"), "").unwrap();
        finish(slow).ends(0);
        fleet.until("its turn", || !fleet.lines("next").is_empty()).await;
        fleet.open_gate("next");
        assert_eq!(agent.stop(), Some(0));
    });
}
