//! Jobs whose nodes or operators die, are offline, busy, or slow: every node has a terminal state, and nothing runs twice.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::fleet::{Fleet, Ran};
use crate::support::nats::binaries;

const NODES: [(&str, &str); 3] = [("web1", "web"), ("web2", "web"), ("db1", "db")];
/// Commands may run, and at most two wait.
const LIMITS: &str = "queue = 2\n";

fn fleet(binary: &std::path::Path, nodes: &[(&str, &str)]) -> Fleet {
    let mut fleet = Fleet::new(binary, &NODES);
    nodes.iter().for_each(|(node, group)| fleet.start_with(node, group, LIMITS, "exec = true"));
    fleet
}

/// Appends a line to a file of the node at its beginning and its end.
fn exec(between: &str) -> Vec<String> {
    let script = format!("echo begun >> {{{{ Facts.site }}}}/log; {between}; echo ended >> {{{{ Facts.site }}}}/log");
    ["ensure", "exec", "count", "--provider", "shell", "--command", &script].map(str::to_owned).to_vec()
}

fn run(fleet: &Fleet, seconds: u32, more: &[&str]) -> Ran {
    send(fleet, &exec(&format!("sleep {seconds}")), more)
}

fn send(fleet: &Fleet, words: &[String], more: &[&str]) -> Ran {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    fleet.run(&[&words, more].concat())
}

/// A script that ends once the gate of the node is [open].
const GATED: &str = "while [ ! -e {{ Facts.site }}/open ]; do sleep 0.05; done";

fn open(fleet: &Fleet, node: &str) {
    std::fs::write(fleet.path(node).join("site/open"), "").unwrap();
}

fn lines(fleet: &Fleet, node: &str) -> usize {
    std::fs::read_to_string(fleet.path(node).join("site/log")).unwrap_or_default().lines().count()
}

fn outcomes(ran: &Ran) -> Vec<String> {
    let document = ran.json();
    let word = |node: &Value| format!("{} {}", node["node"].as_str().unwrap(), node["outcome"].as_str().unwrap());
    document["nodes"].as_array().unwrap().iter().map(word).collect()
}

#[test]
fn a_killed_operator_loses_no_result() {
    for binary in binaries() {
        let fleet = fleet(&binary, &NODES);
        let config = fleet.path("operator.toml");
        let mut operator = Command::new(env!("CARGO_BIN_EXE_ensign"))
            .args(["fleet", "--operator", config.to_str().unwrap()])
            .args(exec(GATED))
            .args(["--all", "--reason", "CHG-7"])
            .env("XDG_STATE_HOME", fleet.path("home"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(operator.stderr.take().unwrap()).lines();
        let line = said.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("job "))).unwrap().unwrap();
        let id = line.trim_start_matches("job ").split(':').next().unwrap().to_owned();
        fleet.wait_for("every run", || NODES.iter().all(|(node, _)| lines(&fleet, node) == 1));
        operator.kill().unwrap();
        operator.wait().unwrap();
        // While they run: neither ended nor lost.
        let early = fleet.run(&["job", "show", &id, "--output", "json"]);
        assert_eq!(
            (early.code, outcomes(&early)),
            (4, vec!["db1 unfinished".into(), "web1 unfinished".into(), "web2 unfinished".into()])
        );
        NODES.iter().for_each(|(node, _)| open(&fleet, node));
        // From elsewhere, with the id alone.
        let watched = fleet.run(&["job", "watch", &id, "--output", "json"]);
        let changed = vec!["db1 changed".to_owned(), "web1 changed".into(), "web2 changed".into()];
        assert_eq!((watched.code, outcomes(&watched)), (0, changed.clone()), "{}", watched.stderr);
        let shown = fleet.run(&["job", "show", &id, "--output", "json"]);
        assert_eq!((shown.code, outcomes(&shown)), (0, changed));
        let list = fleet.run(&["job", "list", "--output", "json"]).json();
        assert_eq!(
            (&list[0]["id"], &list[0]["reason"], &list[0]["counts"]["changed"]),
            (&Value::from(id.clone()), &"CHG-7".into(), &3.into())
        );
        let text = fleet.run(&["job", "list"]).stdout;
        assert!(
            text.contains(&id) && text.contains("3 changed") && text.contains("exec#count") && text.contains("CHG-7"),
            "{text}"
        );
        let one = fleet.run(&["job", "show", &id, "--node", "web1"]);
        assert!(one.code == 0 && one.stdout.contains("web1") && !one.stdout.contains("web2"), "{}", one.stdout);
        assert_eq!(fleet.run(&["job", "show", &id, "--node", "typo"]).code, 2);
        assert!(NODES.iter().all(|(node, _)| lines(&fleet, node) == 2));
    }
}

#[test]
fn an_offline_node_gets_a_resent_command_and_no_node_runs_it_twice() {
    for binary in binaries() {
        let mut fleet = fleet(&binary, &NODES);
        fleet.kill("db1");
        fleet.wait_until_offline("db1");
        for target in [&["--all"] as &[&str], &["--group", "web,db"], &["--node", "web1,web2,db1"]] {
            let sent = run(&fleet, 0, &[target, &["--output", "json"]].concat());
            assert_eq!((sent.code, outcomes(&sent)[0].as_str()), (4, "db1 offline"), "{}", sent.stdout);
        }
        let list = fleet.run(&["job", "list", "--output", "json"]).json();
        let ids: Vec<String> = list.as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!((ids.len(), lines(&fleet, "web1"), lines(&fleet, "db1")), (3, 6, 0));
        fleet.start_with("db1", "db", LIMITS, "exec = true");
        for id in &ids {
            let again = fleet.run(&["job", "resend", id]);
            assert!(again.code == 0 && again.stdout.contains("changed"), "{}{}", again.stdout, again.stderr);
        }
        assert_eq!((lines(&fleet, "web1"), lines(&fleet, "web2"), lines(&fleet, "db1")), (6, 6, 6));
        let nobody = fleet.run(&["job", "resend", &ids[0]]);
        assert!(nobody.code == 0 && nobody.stderr.contains("all 3 nodes have answered"), "{}", nobody.stderr);
        let short = run(&fleet, 0, &["--node", "web1", "--timeout", "1s", "--detach"]);
        std::thread::sleep(Duration::from_millis(1500));
        let over = fleet.run(&["job", "resend", short.stdout.trim()]);
        assert!(over.code == 2 && over.stderr.contains("it expired at"), "{}", over.stderr);
    }
}

#[test]
fn every_outcome_of_a_node_has_a_name() {
    for binary in binaries() {
        let mut fleet = fleet(&binary, &NODES[..1]);
        let detached = |fleet: &Fleet, between: &str, more: &[&str]| {
            let sent = send(fleet, &exec(between), &[&["--node", "web1", "--detach"], more].concat());
            assert_eq!(sent.code, 0, "{}", sent.stderr);
            sent.stdout.trim().to_owned()
        };
        let end = |fleet: &Fleet, id: &str| outcomes(&fleet.run(&["job", "show", id, "--output", "json"])).join(" ");
        // One runs, two wait, one of them with a short time limit; the next is refused.
        let running = detached(&fleet, GATED, &[]);
        fleet.wait_for("the run", || lines(&fleet, "web1") == 1);
        let late = detached(&fleet, "true", &["--timeout", "6s"]);
        let sent = std::time::Instant::now();
        let waiting = detached(&fleet, "true", &[]);
        fleet.wait_for("both wait", || fleet.node_row("web1").is_some_and(|row| row["queued"] == 2));
        let unfinished = fleet.run(&["job", "watch", &running, "--timeout", "1s", "--output", "json"]);
        assert_eq!((unfinished.code, outcomes(&unfinished).join(" ")), (4, "web1 unfinished".to_owned()));
        let busy = run(&fleet, 0, &["--node", "web1", "--output", "json"]);
        assert_eq!((busy.code, outcomes(&busy).join(" ")), (4, "web1 busy".to_owned()));
        let busy_id = busy.json()["id"].as_str().unwrap().to_owned();
        std::thread::sleep(Duration::from_millis(6100).saturating_sub(sent.elapsed()));
        open(&fleet, "web1");
        let watched = fleet.run(&["job", "watch", &waiting, "--output", "json"]);
        assert_eq!((watched.code, outcomes(&watched).join(" ")), (0, "web1 changed".to_owned()), "{}", watched.stderr);
        fleet.wait_for("the ends of the others", || {
            (end(&fleet, &running), end(&fleet, &late)) == ("web1 changed".into(), "web1 expired".into())
        });
        // The busy node accepts the same command when it is sent again.
        let again = fleet.run(&["job", "resend", &busy_id]);
        assert!(again.code == 0, "{}{}", again.stdout, again.stderr);
        assert_eq!(end(&fleet, &busy_id), "web1 changed");

        let failed = fleet.run(&[
            "ensure",
            "exec",
            "no",
            "--command",
            "exit 7",
            "--provider",
            "shell",
            "--node",
            "web1",
            "--output",
            "json",
        ]);
        assert_eq!((failed.code, outcomes(&failed).join(" ")), (1, "web1 failed".to_owned()), "{}", failed.stdout);
        let refused = fleet.run(&["ensure", "file", "/etc/x", "absent", "--node", "web1", "--output", "json"]);
        assert_eq!((refused.code, outcomes(&refused).join(" ")), (3, "web1 refused".to_owned()));
        assert_eq!(refused.json()["nodes"][0]["code"], "local_limit");
        let left_out = run(&fleet, 0, &["--all", "--where", "Facts.role == 'db'", "--output", "json"]);
        assert_eq!((left_out.code, outcomes(&left_out).join(" ")), (4, "web1 not_selected".to_owned()));
        assert!(left_out.stderr.contains("no node is selected: Facts.role == 'db'"), "{}", left_out.stderr);
        for path in ["nosuch", "host.nosuch.deeper"] {
            let nowhere = fleet.run(&["nodes", "--all", "--where", &format!("Facts.{path} == 'x'")]);
            let said = format!("no node has a fact at {path}");
            assert!(nowhere.code == 4 && nowhere.stderr.contains(&said), "{}", nowhere.stderr);
        }

        // The node lives, and does not answer. A late check would find it offline.
        let silent = || {
            let pid = Pid::from_raw(i32::try_from(fleet.pid("web1")).unwrap());
            kill(pid, Signal::SIGSTOP).unwrap();
            let silent = run(&fleet, 0, &["--node", "web1", "--timeout", "1s", "--output", "json"]);
            kill(pid, Signal::SIGCONT).unwrap();
            assert_eq!(silent.code, 4, "{}", silent.stdout);
            outcomes(&silent).join(" ") == "web1 no_answer"
        };
        assert!((0..5).any(|_| {
            fleet.wait_for("web1 is online", || fleet.node_row("web1").is_some_and(|row| row["presence"] == "alive"));
            silent()
        }));

        let before = lines(&fleet, "web1");
        let killed = detached(&fleet, "sleep 30", &[]);
        fleet.wait_for("the run", || lines(&fleet, "web1") == before + 1);
        fleet.kill("web1");
        fleet.start_with("web1", "web", LIMITS, "exec = true");
        fleet.wait_for("its end", || end(&fleet, &killed) == "web1 interrupted");
        fleet.kill("web1");
        fleet.wait_until_offline("web1");
        let away = run(&fleet, 0, &["--node", "web1", "--output", "json"]);
        assert_eq!(outcomes(&away).join(" "), "web1 offline");
    }
}
