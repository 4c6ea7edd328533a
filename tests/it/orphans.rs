//! Commands of a killed agent or local run: the next start ends them before it reports them.

use std::path::Path;
use std::time::{Duration, Instant};

use ensign::wire::CommandOutcome;
use serde_json::json;

use crate::local::{Desk, start};
use crate::support::node::Node;
use crate::support::processes::{is_alive, kill, with_text};
use crate::support::single_node::{PATIENCE, SingleNodeFleet, ensure_action, on_every_server};

/// A script whose processes name this directory. They are a loop, its grandchild, a process in its own session, and one without
/// a parent. A daemon leaves all of them and the output.
fn script(place: &Path) -> String {
    let place = place.display();
    let endless = |name: &str| format!("while [ ! -e {place}/{name}.go ]; do sleep 0.05; done");
    format!(
        "sh -c '{grandchild}; :' & setsid sh -c '{session}; :' & (setsid sh -c '{lost}; :' &) ; \
         (setsid sh -c 'echo $$ > {place}/daemon; {daemon}; :' > /dev/null 2>&1 < /dev/null &) ; \
         while [ ! -s {place}/daemon ]; do sleep 0.01; done; : > {place}/begun; {own}",
        grandchild = endless("grandchild"),
        session = endless("session"),
        lost = endless("lost"),
        daemon = endless("daemon"),
        own = endless("own"),
    )
}

/// The daemon of a script, which no restart ends.
fn daemon(place: &Path) -> i32 {
    std::fs::read_to_string(place.join("daemon")).unwrap().trim().parse().unwrap()
}

#[test]
fn a_restarted_agent_ends_leftover_processes_before_it_reports_them() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let place = fleet.path("site");
        std::fs::create_dir(&place).unwrap();
        let agent = fleet.start_agent().await;
        let properties = json!({"name": "left", "command": script(&place), "provider": "shell"});
        let command = fleet.command(ensure_action("exec", &properties));
        fleet.send(&command).await;
        fleet.until("the run", || place.join("begun").exists()).await;
        agent.kill();
        let left = with_text(&place);
        assert!(left.len() >= 5, "{left:?}");

        let _agent = fleet.start_agent().await;
        let done = fleet.only_result(command.id).await;
        let now = with_text(&place);
        assert_eq!(done.outcome, CommandOutcome::Interrupted, "{done:?}");
        let message = done.message.unwrap();
        assert!(message.contains("ended processes that an earlier run left: ") && message.contains("sh ("), "{message}");
        let daemon = daemon(&place);
        assert_eq!(now, [daemon], "only the daemon continues");
        kill(&[daemon]);

        // The next start ignores commands that ended by themselves, and their background processes.
        let background =
            format!("sh -c 'echo $$ > {0}/daemon; while [ ! -e {0}/go ]; do sleep 0.05; done; :' &", place.display());
        std::fs::remove_file(place.join("daemon")).unwrap();
        let command =
            fleet.command(ensure_action("exec", &json!({"name": "service", "command": background, "provider": "shell"})));
        fleet.send(&command).await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        fleet.until("the service", || std::fs::read_to_string(place.join("daemon")).is_ok_and(|pid| pid.ends_with('\n'))).await;
        _agent.kill();
        let _agent = fleet.start_agent().await;
        let service = self::daemon(&place);
        assert!(is_alive(service));
        kill(&[service]);
    });
}

#[test]
fn the_next_local_run_ends_the_processes_of_a_killed_run() {
    let desk = Desk::new();
    let place = desk.path("site");
    std::fs::create_dir(&place).unwrap();
    let script = script(&place);
    let mut child = start(&mut desk.command(&["ensure", "exec", &script, "--provider", "shell"]), &place.join("begun"));
    // Other runs ignore the processes of an active run.
    desk.run(&["ensure", "exec", "true", "--wait", "0"]).ends(4).says(&["another run is under way"]);
    assert!(child.try_wait().unwrap().is_none() && with_text(&place).len() >= 5);
    child.kill().unwrap();
    child.wait().unwrap();
    // A dry run changes nothing.
    let dry = desk.run(&["ensure", "exec", "true", "--noop"]).ends(0).err.clone();
    assert!(!dry.contains("earlier run"), "{dry}");
    desk.run(&["ensure", "exec", "true"]).ends(0).says(&["warning: ended processes that an earlier run left: "]);
    let until = Instant::now() + PATIENCE;
    let daemon = daemon(&place);
    while with_text(&place) != [daemon] {
        assert!(Instant::now() < until, "{:?}", with_text(&place));
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(&[daemon]);
    let quiet = desk.run(&["ensure", "exec", "true"]).ends(0).err.clone();
    assert!(!quiet.contains("earlier run"), "{quiet}");
    let left: Vec<_> = std::fs::read_dir(desk.path("commands")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["run.lock"]);
}

#[test]
fn the_unit_ends_a_daemon_that_left_the_agent() {
    let Some(node) = Node::start() else { return };
    let unit = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/systemd/ensign-agent.service")).unwrap();
    let mode = unit.lines().find(|line| line.starts_with("KillMode=")).unwrap();
    // As the agent: a killed process, and a daemon that left it on purpose.
    let script = "(setsid sh -c 'echo $$ > /tmp/daemon; exec sleep 600' > /dev/null 2>&1 < /dev/null &)\nexec sleep 600\n";
    node.write("/root/left.sh", script);
    node.sh(&format!(
        "systemd-run --quiet --unit=left -p {mode} sh /root/left.sh; while [ ! -s /tmp/daemon ]; do sleep 0.05; done"
    ));
    node.sh("kill -0 $(cat /tmp/daemon); kill -9 $(systemctl show -P MainPID left)");
    let until = Instant::now() + PATIENCE;
    while node.sh("[ -d /proc/$(cat /tmp/daemon) ] && echo there || echo gone") != "gone\n" {
        assert!(Instant::now() < until, "{}", node.sh("systemctl status left"));
        std::thread::sleep(Duration::from_millis(20));
    }
}
