//! The operator's tool under changes: nodes that join or fall silent meanwhile, artifacts without a digest, servers without
//! space.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::fleet::{Fleet, ensign, owner};
use crate::support::nats::{NatsServer, Options, binaries};
use crate::support::port::Port;
use crate::support::web::{Cut, Reply, Web};

const NODES: [(&str, &str); 2] = [("web1", "web"), ("web2", "web")];

/// Node, outcome, and whether the node itself reported the outcome.
fn node_outcomes(document: &Value) -> Vec<String> {
    let row = |node: &Value| {
        format!(
            "{} {} {}",
            node["node"].as_str().unwrap(),
            node["outcome"].as_str().unwrap(),
            node["verified"].as_bool().unwrap()
        )
    };
    document["nodes"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn a_node_that_joins_later_is_known_by_its_state() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &NODES);
        fleet.start_with("web1", "web", "", "exec = true");
        let site = fleet.path("standing");
        std::fs::create_dir(&site).unwrap();
        // No node ends before the test permits it.
        let script = format!("until [ -e {} ]; do sleep 0.05; done", fleet.path("go").display());
        let exec = json!({"exec": [{"wait": {"provider": "shell", "command": script, "timeout": "5m"}}]});
        std::fs::write(site.join("manifest.yaml"), json!({"ccm": {"resources": [exec]}}).to_string()).unwrap();
        let mut operator = Command::new(env!("CARGO_BIN_EXE_ensign"))
            .args(["fleet", "--operator", fleet.path("operator.toml").to_str().unwrap(), "assign", "base"])
            .args([site.to_str().unwrap(), "--all", "--output", "json"])
            .env("XDG_STATE_HOME", fleet.path("home"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(operator.stderr.take().unwrap()).lines();
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("job "))).unwrap().unwrap();
        assert!(line.ends_with(": 1 node"), "{line}");
        let id = line.trim_start_matches("job ").split(':').next().unwrap().to_owned();
        let rest = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
        // The tool has read the states: a later node is new to it.
        fleet.start_with("web2", "web", "", "exec = true");
        fleet.wait_for("web2 has the command", || {
            let job = fleet.run(&["job", "show", &id, "--output", "json"]).json();
            node_outcomes(&job).contains(&"web2 unfinished true".to_owned())
        });
        std::fs::write(fleet.path("go"), "").unwrap();
        let output = operator.wait_with_output().unwrap();
        let (document, stderr) = (serde_json::from_slice::<Value>(&output.stdout).unwrap(), rest.join().unwrap());
        assert_eq!(node_outcomes(&document), ["web1 changed true", "web2 changed true"], "{stderr}");
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(!stderr.contains("not pinned"), "{stderr}");
    }
}

#[test]
fn a_command_does_not_wait_for_a_node_that_just_fell_silent() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &NODES);
        NODES.iter().for_each(|(node, group)| fleet.start_with(node, group, "", "exec = true"));
        // The connection stays open: the server does not report "no responders".
        kill(Pid::from_raw(fleet.pid("web1").try_into().unwrap()), Signal::SIGSTOP).unwrap();
        let began = Instant::now();
        let exec = ["ensure", "exec", "nothing", "--provider", "shell", "--command", "true", "--all"];
        let ran = fleet.run(&[&exec as &[&str], &["--timeout", "10m", "--output", "json"]].concat());
        assert_eq!(node_outcomes(&ran.json()), ["web1 offline false", "web2 changed true"], "{}", ran.stderr);
        assert_eq!(ran.code, 4);
        assert!(ran.json()["nodes"][0]["since"].is_string(), "{}", ran.stdout);
        assert!(began.elapsed() < Duration::from_secs(300), "{:?}", began.elapsed());
    }
}

fn manifest(fleet: &Fleet, content: &str) -> String {
    let [uid, gid] = owner();
    let path = fleet.path("web1/site/y").display().to_string();
    let file = json!({"file": [{path: {"ensure": "present", "content": content, "owner": uid, "group": gid, "mode": "0640"}}]});
    json!({"ccm": {"resources": [file]}}).to_string()
}

#[test]
fn the_content_behind_a_url_is_shown_and_signed() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &NODES);
        fleet.start_with("web1", "web", "", "fetch_hosts = [\"127.0.0.1\"]");
        let (good, other) = (manifest(&fleet, "good"), manifest(&fleet, "evil"));
        let count = Arc::new(AtomicUsize::new(0));
        let web = Web::new({
            let (good, other, count) = (good.clone(), other, Arc::clone(&count));
            move |asked| match asked.path.as_str() {
                "/m.yaml" => Reply::ok(good.as_bytes()),
                // Another content from the second request on.
                "/changing.yaml" if count.fetch_add(1, Ordering::SeqCst) == 0 => Reply::ok(good.as_bytes()),
                "/changing.yaml" => Reply::ok(other.as_bytes()),
                "/login" => Reply::ok(b"<html>who are you?</html>"),
                "/huge" => Reply::ok(b"x").with("X-Padding", "1").cut(0, Cut::Close),
                _ => Reply::status("404 Not Found"),
            }
        });
        let apply = |path: &str| fleet.run(&["apply", &web.url(path), "--node", "web1", "--output", "json"]);
        let seen = apply("/m.yaml");
        assert_eq!(node_outcomes(&seen.json()), ["web1 changed true"], "{}", seen.stderr);
        let digest = ensign::wire::digest(good.as_bytes());
        assert!(seen.stderr.contains(&format!("/m.yaml: sha256 {digest}, {} bytes", good.len())), "{}", seen.stderr);
        let assigned = fleet.run(&["assign", "base", &web.url("/m.yaml"), "--node", "web1", "--output", "json"]);
        assert_eq!(node_outcomes(&assigned.json()), ["web1 stable true"], "{}", assigned.stderr);
        let planned = fleet.run(&["plan", "apply", &web.url("/m.yaml"), "--node", "web1"]);
        assert!(planned.code == 0 && planned.stdout.contains("no change"), "{}{}", planned.stdout, planned.stderr);

        // Swapped between the operator and the node.
        let swapped = apply("/changing.yaml");
        assert_eq!((swapped.code, &swapped.json()["nodes"][0]["code"]), (3, &json!("bad_artifact")), "{}", swapped.stderr);

        // The tool does not send an unreadable or unacceptable artifact.
        let jobs = || fleet.run(&["job", "list", "--output", "json"]).json().as_array().unwrap().len();
        let before = jobs();
        for (path, code, why) in [("/nothing", 2, "404"), ("/login", 2, "/login"), ("/huge", 4, "could not fetch")] {
            let ran = apply(path);
            assert!(ran.code == code && ran.stderr.contains(why), "{path}: {} {}", ran.code, ran.stderr);
        }
        let nobody = Port::new();
        let closed = format!("http://127.0.0.1:{}/m", nobody.number());
        for (url, code, why) in [
            (closed.as_str(), 4, "could not fetch"),
            ("obj://nowhere/x", 2, "could not fetch obj://nowhere/x"),
            ("file:///etc/hostname", 2, "a file of each node"),
            ("ftp://h/x", 2, "not a URL that can be fetched"),
        ] {
            let ran = fleet.run(&["apply", url, "--node", "web1"]);
            assert!(ran.code == code && ran.stderr.contains(why), "{url}: {} {}", ran.code, ran.stderr);
        }
        assert_eq!(jobs(), before);
    }
}

#[test]
fn a_server_without_space_for_the_streams_reports_its_limits() {
    for binary in binaries() {
        let options = Options::default();
        let mut server = NatsServer::start_binary(&binary, &options);
        server.kill();
        server.reconfigure("jetstream { store_dir: \"STORE\", max_file_store: 300MB }");
        server.start_again();
        let url = server.url();
        let init = |more: &[&str]| {
            ensign(&[&["fleet", "--fleet", "test", "--nats", &url, "--known-nodes", "/nonexistent/k", "init"], more].concat())
        };
        let full = init(&[]);
        assert_eq!(full.code, 4, "{}", full.stderr);
        for part in
            ["ENSIGN_test_JOBS", "no room", "2128 MiB aside: 1 GiB for results", "no limit of its own", "--jobs-size 64MiB"]
        {
            assert!(full.stderr.contains(part), "{part}: {}", full.stderr);
        }
        let fits = init(&["--jobs-size", "64MiB", "--events-size", "64MiB"]);
        assert!(fits.code == 0 && fits.stdout.contains("created    ENSIGN_test_JOBS"), "{}{}", fits.stdout, fits.stderr);
        // Options that are not repeated stay.
        let again = init(&[]);
        assert!(again.code == 0 && again.stdout.lines().all(|line| line.starts_with("unchanged")), "{}", again.stdout);
        let events = init(&["--events-size", "32MiB", "--output", "json"]);
        let names: Vec<Value> = events
            .json()
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["result"] == "updated")
            .map(|row| row["name"].clone())
            .collect();
        assert_eq!(names, ["ENSIGN_test_EVENTS"]);

        // An account with a limit of its own: the tool reports the streams that it could make.
        server.kill();
        server.wipe();
        server.reconfigure(
            "jetstream { store_dir: \"STORE\" }\naccounts { A { jetstream: { max_file: 100MB }, users: [{user: a, password: a}] } }\nno_auth_user: a",
        );
        server.start_again();
        let full = init(&["--jobs-size", "64MiB", "--events-size", "64MiB"]);
        assert!(full.code == 4 && full.stdout.contains("created    ENSIGN_test_JOBS"), "{}{}", full.stdout, full.stderr);
        assert!(full.stderr.contains("the account may have 100 MiB, of which 64 MiB are set aside"), "{}", full.stderr);
        for wrong in ["1GB", "0", "5KiB"] {
            assert_eq!(init(&["--jobs-size", wrong]).code, 2);
        }
    }
}

#[test]
fn wrong_names_and_flags_are_reported_before_anything_is_sent() {
    let mut fleet = Fleet::new(&binaries()[0], &NODES);
    fleet.start("web1", "web");
    let site = fleet.path("site");
    std::fs::create_dir(&site).unwrap();
    let site = site.to_str().unwrap();
    let empty = fleet.run(&["apply", site, "--all"]);
    assert!(empty.code == 2 && empty.stderr.contains(&format!("{site}: the bundle has no manifest.yaml")), "{}", empty.stderr);
    std::fs::write(fleet.path("site/manifest.yaml"), manifest(&fleet, "x")).unwrap();
    for (flags, why) in [
        (&["--waves", "1,50%"] as &[&str], "the last wave must be 100%"),
        (&["--waves", "5,1,100%"], "1 after 5 adds no node"),
        (&["--hold", "2s"], "need --waves"),
        (&["--key", "nowhere.key"], "nowhere.key"),
    ] {
        let ran = fleet.run(&[&["apply", site, "--all"], flags].concat());
        assert!(ran.code == 2 && ran.stderr.contains(why) && !ran.stderr.contains("obj://"), "{flags:?}: {}", ran.stderr);
    }
    for (flags, why) in [(["--interval", "1s"], "interval"), (["--life", "200d"], "--life is at most 90d")] {
        let ran = fleet.run(&[&["assign", "base", site, "--all"] as &[&str], &flags].concat());
        assert!(ran.code == 2 && ran.stderr.contains(why) && !ran.stderr.contains("obj://"), "{flags:?}: {}", ran.stderr);
    }
    for (args, code, why) in [
        (&["facts", "host.info.os", "--node", "web3"] as &[&str], 4, "unknown node web3; did you mean web1?"),
        (&["facts", "host.info.os", "--group", "wbe"], 4, "no node is in the group wbe; did you mean web?"),
        (&["nodes", "--node", "web3"], 0, "unknown node web3"),
        (&["node", "web3"], 2, "did you mean web1?"),
        (&["job", "show", "nope"], 2, "`ensign fleet job list` shows them"),
        (&["events", "--node", "web3"], 0, "no events of web3 in the last 1h"),
        (&["--fleet", "other", "apply", site, "--all"], 4, "`ensign fleet init` creates the streams"),
    ] {
        let ran = fleet.run(args);
        assert!(ran.code == code && ran.stderr.contains(why), "{args:?}: {} {}", ran.code, ran.stderr);
    }
    let status = fleet.run(&["status", "--output", "jsonl"]).stdout;
    assert_eq!(status.lines().count(), 1, "{status}");
    let nodes = fleet.run(&["nodes"]).stdout;
    assert!(nodes.lines().all(|line| line.trim_end() == line), "{nodes:?}");
    let file = fleet.path("audit.jsonl").display().to_string();
    assert_eq!(fleet.run(&["audit", "export", &file]).code, 0);
    let again = fleet.run(&["audit", "export", &file]);
    assert!(again.code == 2 && again.stderr.contains("exists already"), "{}", again.stderr);
}

#[test]
fn a_url_may_hold_credentials() {
    let config = "accounts { A { jetstream: enabled, users: [{user: ann, password: \"p@ss\"}] } }\n".to_owned();
    let server = NatsServer::start(&Options { jetstream: true, config });
    let init = |login: &str| {
        let url = server.url().replace("nats://", &format!("nats://{login}"));
        ensign(&["fleet", "--fleet", "test", "--nats", &url, "--known-nodes", "/nonexistent/k", "init"])
    };
    let right = init("ann:p%40ss@");
    assert_eq!(right.code, 0, "{}", right.stderr);
    for wrong in ["", "ann:pass@", "bob:p%40ss@"] {
        let ran = init(wrong);
        assert!(ran.code == 4 && ran.stderr.contains("authorization"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("p%40ss"), "{}", ran.stderr);
    }
}
