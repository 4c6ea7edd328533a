//! The daily work of an operator: jobs by prefix and `@last`, filters, questions before large changes, and live progress.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::fleet::{Fleet, Ran};
use crate::support::nats::on_each;
#[cfg(feature = "simulator")]
use crate::support::sim::SimulatedFleet;
use crate::support::terminal::Terminal;

const NODES: [(&str, &str); 2] = [("web1", "web"), ("db1", "db")];

fn fleet(binary: &Path) -> Fleet {
    let mut fleet = Fleet::new(binary, &NODES);
    NODES.iter().for_each(|(node, group)| fleet.start_with(node, group, "", "exec = true"));
    fleet
}

/// `ensure exec` that makes a file on each node.
fn touch(name: &str) -> Vec<String> {
    let script = format!("touch {{{{ Facts.site }}}}/{name}");
    ["ensure", "exec", name, "--provider", "shell", "--command", &script].map(str::to_owned).to_vec()
}

fn send(fleet: &Fleet, name: &str, more: &[&str]) -> Ran {
    let words = touch(name);
    fleet.run(&[&words.iter().map(String::as_str).collect::<Vec<_>>(), more].concat())
}

/// Sends a command without a wait, and returns its id.
fn detached(fleet: &Fleet, name: &str, more: &[&str]) -> String {
    let sent = send(fleet, name, &[&["--detach"], more].concat());
    assert_eq!(sent.code, 0, "{}", sent.stderr);
    sent.stdout.trim().to_owned()
}

fn shown(fleet: &Fleet, job: &str) -> Value {
    let shown = fleet.run(&["job", "show", job, "--output", "json"]);
    assert!(shown.stdout.starts_with('{'), "{job}: {}", shown.stderr);
    shown.json()["id"].clone()
}

fn refused(ran: &Ran, texts: &[&str]) {
    assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
    texts.iter().for_each(|text| assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr));
}

#[test]
fn jobs_are_named_by_the_first_characters_of_their_id_and_as_the_last() {
    on_each(|binary| {
        let fleet = fleet(binary);
        refused(&fleet.run(&["job", "show", "@last"]), &["has sent no job to the fleet test", "job list"]);
        let first = detached(&fleet, "a", &["--all", "--waves", "1,100%", "--hold", "1m"]);
        let second = detached(&fleet, "b", &["--node", "web1"]);
        // Two commands have the same first 12 digits in the same millisecond only.
        assert_eq!((shown(&fleet, &first[..13]), shown(&fleet, &second[..14])), (first.clone().into(), second.clone().into()));
        assert_eq!(shown(&fleet, &second.to_uppercase().replace('-', "")[..20]), Value::from(second.clone()));
        // The first four digits are those of some weeks.
        let both = fleet.run(&["job", "watch", &first[..4]]);
        refused(&both, &["2 jobs begin with", &first, &second, "ago, by ops", "exec#", "use more characters"]);
        refused(&fleet.run(&["why", "fffff", "web1"]), &["no job begins with fffff", "job list"]);
        refused(&fleet.run(&["job", "resend", "xyz1"]), &["no job is named like this", "@last"]);
        assert_eq!(shown(&fleet, "@last"), Value::from(second.clone()));
        // Queries, and commands about a job, are not the last job.
        assert_eq!(fleet.run(&["facts", "host.info.os", "--all"]).code, 0);
        let halted = fleet.run(&["halt", &first[..13], "--reason", "stop"]);
        assert!(
            halted.stderr.contains(&format!("halt {first}")) && halted.stderr.contains(": ensure exec#a for all nodes"),
            "{}",
            halted.stderr
        );
        assert_eq!(shown(&fleet, "@last"), Value::from(second.clone()));
        refused(&fleet.run(&["resume", "@last"]), &[&second, "has no waves"]);
        assert_eq!(fleet.run(&["rollout", "status", &first[..13]]).code, 0);
        let why = fleet.run(&["why", "@last", "web1", "--output", "json"]).json();
        assert_eq!(why["node"], "web1", "{why}");
        // A plan is a job, too.
        let planned = send(&fleet, "c", &["--node", "web1", "--noop"]);
        assert_eq!(planned.code, 0, "{}", planned.stderr);
        let approved = fleet.run(&["plan", "--approve", "@last"]);
        assert!(approved.code == 0 && fleet.path("web1/site/c").exists(), "{}", approved.stderr);
        assert!(approved.stderr.contains("approves  0"), "{}", approved.stderr);
        // At the same time: the record is whole, and one of the jobs.
        let ids: Vec<String> = std::thread::scope(|scope| {
            let sent: Vec<_> = (0..4).map(|_| scope.spawn(|| detached(&fleet, "d", &["--node", "db1"]))).collect();
            sent.into_iter().map(|sent| sent.join().unwrap()).collect()
        });
        assert!(ids.contains(&shown(&fleet, "@last").as_str().unwrap().to_owned()));
        std::fs::write(fleet.path("home/ensign/last_job/test"), "nonsense").unwrap();
        refused(&fleet.run(&["job", "show", "@last"]), &["last_job/test has no id of a job", "use the id of the job"]);
    });
}

#[test]
fn lists_are_narrowed_by_filters() {
    on_each(|binary| {
        let mut fleet = fleet(binary);
        let good = send(&fleet, "good", &["--all"]);
        assert_eq!(good.code, 0, "{}", good.stderr);
        let bad = ["ensure", "exec", "bad", "--command", "false", "--node", "web1", "--output", "json"];
        let bad = fleet.run(&bad);
        assert_eq!(bad.code, 1, "{}", bad.stderr);
        let id = bad.json()["id"].as_str().unwrap().to_owned();
        fleet.wait_until_published("web1");
        fleet.stop("db1");
        fleet.wait_until_offline("db1");
        let rows = |args: &[&str]| {
            let ran = fleet.run(&[args, &["--output", "json"]].concat());
            assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
            ran.json().as_array().unwrap().clone()
        };
        let nodes = |flags: &[&str]| {
            let names = rows(&[&["nodes"], flags].concat()).into_iter().map(|row| row["node"].as_str().unwrap().to_owned());
            names.collect::<Vec<_>>().join(" ")
        };
        fleet.wait_for("the failed run is in the state", || nodes(&["--failed"]) == "web1");
        assert_eq!((nodes(&["--offline"]).as_str(), nodes(&["--failed", "--offline"]).as_str()), ("db1", ""));
        assert_eq!((nodes(&["--group", "db", "--offline"]).as_str(), nodes(&["--outdated"]).as_str()), ("db1", ""));
        // db1 is stopped, and gets no assignment.
        std::fs::write(fleet.path("site.yaml"), "ccm:\n  resources:\n    - exec: {name: ok, command: \"true\"}\n").unwrap();
        let assigned = fleet.run(&["assign", "base", fleet.path("site.yaml").to_str().unwrap(), "--all"]);
        assert!(assigned.code == 0 || assigned.code == 4, "{}", assigned.stderr);
        fleet.wait_for("web1 has the assignment", || nodes(&["--outdated"]) == "db1");
        refused(&fleet.run(&["nodes", "--group", "wbe"]), &["no node is in the group wbe", "known groups: db, web"]);
        refused(&fleet.run(&["nodes", "--failed", "--where", "true"]), &["cannot be used with"]);

        let events = |flags: &[&str]| rows(&[&["events"], flags].concat());
        let all = events(&[]);
        let failed = events(&["--failed"]);
        assert!(!failed.is_empty() && failed.len() < all.len(), "{failed:?}");
        assert!(failed.iter().all(|event| event["node"] == "web1"), "{failed:?}");
        let of_job = events(&["--job", &id[..13]]);
        assert!(!of_job.is_empty() && of_job.iter().all(|event| event["run_id"] == *id), "{of_job:?}");
        let runs = events(&["--type", "run", "--job", &id]);
        assert!(runs.len() == 1 && runs[0]["outcome"] == "failed", "{runs:?}");
        assert_eq!(events(&["--type", "run,transaction", "--job", &id]).len(), of_job.len());
        let group = events(&["--group", "db", "--type", "lifecycle"]);
        assert!(!group.is_empty() && group.iter().all(|event| event["node"] == "db1"), "{group:?}");
        refused(&fleet.run(&["events", "--type", "runs"]), &["possible values", "transaction, run, health"]);
        refused(&fleet.run(&["events", "--group", "wbe"]), &["known groups: db, web"]);
        let none = fleet.run(&["events", "--type", "health"]);
        assert!(none.code == 0 && none.stderr.contains("no such events of any node in the last 1h"), "{}", none.stderr);

        let jobs = |flags: &[&str]| rows(&[&["job", "list"], flags].concat());
        assert!(jobs(&["--failed"]).iter().map(|job| &job["id"]).eq([&Value::from(id.clone())]));
        let all = jobs(&[]);
        let signer = all[0]["keyids"][0].as_str().unwrap();
        assert_eq!((all.len(), jobs(&["--signer", signer]).len()), (3, 3), "{all:?}");
        assert_eq!((jobs(&["--signer", signer, "--limit", "1"]).len(), jobs(&["--failed", "--limit", "1"]).len()), (1, 1));
        let known = format!("known signers: {signer}");
        refused(&fleet.run(&["job", "list", "--signer", "mallory"]), &["the signer mallory", &known]);
    });
}

fn on_a_terminal(fleet: &Fleet, args: &[&str]) -> Option<Terminal> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ensign"));
    command.args(["fleet", "--operator"]).arg(fleet.path("operator.toml")).args(args).env("XDG_STATE_HOME", fleet.path("home"));
    Terminal::start(&command, 200)
}

#[test]
fn a_terminal_asks_before_a_change_of_all_nodes() {
    on_each(|binary| {
        let fleet = fleet(binary);
        let begin = |name: &str, more: &[&str]| {
            let words = touch(name);
            on_a_terminal(&fleet, &[&words.iter().map(String::as_str).collect::<Vec<_>>(), more].concat())
        };
        let files = |name: &str| NODES.iter().filter(|(node, _)| fleet.path(node).join("site").join(name).exists()).count();
        // The query of the preview handles Ctrl-C itself; the question must do so, too.
        for (more, answer) in
            [(&["--all"] as &[&str], "n\r"), (&["--all"], "\r"), (&["--all"], "\x04"), (&["--all", "--where", "true"], "\x03")]
        {
            let Some(mut terminal) = begin("no", more) else { return };
            terminal.wait_for("2 nodes of fleet test");
            terminal.wait_for("Go on? [y/N]");
            terminal.write(answer);
            let (code, screen) = terminal.end();
            assert!(code == 4 && screen.contains("not confirmed: nothing was signed or sent"), "{answer:?} {code}: {screen}");
            assert!(screen.contains(": ensure exec#") && screen.contains("This reaches"), "{screen}");
        }
        assert_eq!(
            fleet
                .run(&["job", "list", "--output", "json"])
                .json()
                .as_array()
                .unwrap()
                .iter()
                .filter(|job| job["action"] == "ensure")
                .count(),
            0
        );
        let mut terminal = begin("yes", &["--all"]).unwrap();
        terminal.wait_for("Go on? [y/N]");
        terminal.write("y\r");
        let (code, screen) = terminal.end();
        assert_eq!((code, files("yes")), (0, 2), "{screen}");
        // Nothing to ask: few nodes, a dry run, `--yes`.
        for (name, more, made) in
            [("one", &["--node", "web1,db1"] as &[&str], 2), ("dry", &["--all", "--noop"], 0), ("sure", &["--all", "--yes"], 2)]
        {
            let (code, screen) = begin(name, more).unwrap().end();
            assert_eq!((code, files(name), screen.contains("[y/N]")), (0, made, false), "{name}: {screen}");
        }
        // A detached command asks as well, with counts.
        let mut terminal = begin("detached", &["--all", "--detach"]).unwrap();
        terminal.wait_for("This reaches 2 nodes of fleet test");
        terminal.write("n\r");
        assert_eq!((terminal.end().0, files("detached")), (4, 0));
        // A script gets no question.
        let script = send(&fleet, "script", &["--all"]);
        assert!(script.code == 0 && files("script") == 2 && !script.stderr.contains("[y/N]"), "{}", script.stderr);
    });
}

#[cfg(feature = "simulator")]
#[test]
fn a_terminal_shows_the_progress_on_one_line_and_the_first_failures_at_once() {
    const COLUMNS: usize = 60;
    on_each(|binary| {
        let fleet = SimulatedFleet::new(binary);
        let sim = fleet.start(40, &["--fail-rate", "50%", "--work", "1s..3s"]);
        let what = ["ensure", "file", "/srv/motd", "--content", "x", "--owner", "root", "--file-group", "root", "--mode=0644"];
        let Some(terminal) = Terminal::start(&fleet.process(&[&what[..], &["--all", "--yes"]].concat()), COLUMNS) else { return };
        let (code, screen) = terminal.end();
        assert_eq!(code, 1, "{screen}");
        // The texts between two control sequences; each update begins at the first column.
        let updates: Vec<&str> = screen.split("\r\x1b[?7l").skip(1).filter_map(|rest| rest.split("\x1b[K").next()).collect();
        assert!(updates.iter().all(|update| update.chars().count() < COLUMNS), "{updates:#?}");
        assert!(updates.iter().any(|update| update.contains(" of 40 nodes: ") && update.contains("failed")), "{updates:#?}");
        assert!(updates.iter().any(|update| update.contains("; waiting for ")), "{updates:#?}");
        assert!(updates.iter().any(|update| !update.starts_with("0s  ")), "the time passes: {updates:#?}");
        // Five failures with node and cause above the line, while others still work; all of them in the groups at the end.
        let (early, end) = screen.rsplit_once("further failures are counted").unwrap();
        assert_eq!(early.matches("✗ failed").count(), 5, "{screen}");
        assert!(end.contains(" of 40 nodes: ") && end.contains('×') && end.contains("40 nodes: "), "{screen}");
        // Without a terminal nothing is rewritten.
        let plain = fleet.run(&[&what[..], &["--all"]].concat());
        assert!(
            !plain.stderr.contains('\x1b') && !plain.stderr.contains('\r') && !plain.stderr.contains("waiting for"),
            "{}",
            plain.stderr
        );
        sim.stop();
    });
}
