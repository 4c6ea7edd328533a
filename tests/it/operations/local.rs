//! The agent's answers on its own host: over its socket, and over HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use ensign::wire::command::Command;
use ensign::wire::{AgentStatus, CommandOutcome, CommandResult};
use serde_json::Value;

use crate::support::fleet::{Ran, ensign};
use crate::support::port::Port;
use crate::support::single_node::{PATIENCE, SingleNodeFleet, on_every_server};

fn run_agent_command(fleet: &SingleNodeFleet, args: &[&str]) -> Ran {
    let config = fleet.path("agent.toml");
    ensign(&[&["agent"], args, &["--config", config.to_str().unwrap()]].concat())
}

fn status(fleet: &SingleNodeFleet) -> AgentStatus {
    serde_json::from_value(run_agent_command(fleet, &["status", "--output", "json"]).json()).unwrap()
}

#[test]
fn the_status_is_printed_with_and_without_a_server() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "paths = [\"/srv\", \"/tmp\"]").await;
        let none = run_agent_command(&fleet, &["status"]);
        assert_eq!(none.code, 4, "{}", none.stderr);
        assert!(none.stderr.contains("no agent runs with its state in") && none.stderr.contains("systemctl start"));
        let agent = fleet.start_agent().await;
        let command = fleet.slow_command("done", 0);
        fleet.send(&command).await;
        fleet.only_result(command.id).await;
        fleet.answers(&command, b"{}".to_vec(), 1).await;
        // The server has the result before the agent has recorded that.
        let settled =
            |now: &AgentStatus| (now.running, now.last_run.is_some(), now.counts.published.get("done")) == (None, true, Some(&1));
        fleet.until("the end of the command", || settled(&status(&fleet))).await;
        let said = run_agent_command(&fleet, &["status"]);
        assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
        for line in [
            "node      web1 of fleet test",
            "groups    web",
            "limits    all types; paths /srv /tmp; commands; manifests; fetches from anywhere but this host",
            "running   nothing; 0 of at most 2 wait",
            "commands  1 accepted, 1 refused (bad_envelope 1) since the start",
            &format!("nats      connected to {}, version ", fleet.server.url()),
            "last run  changed at ",
            "trust     version 1, until ",
        ] {
            assert!(said.stdout.lines().any(|found| found.starts_with(line)), "{line} is not in\n{}", said.stdout);
        }
        let now = status(&fleet);
        assert_eq!(format!("ensign {}\n", now.version), ensign(&["version"]).stdout);
        assert_eq!((now.counts.ended.get("changed"), now.counts.published.get("done")), (Some(&1), Some(&1)));
        let mode = std::fs::metadata(fleet.path("state/agent.sock")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Also with a broken configuration, and without a server.
        fleet.edit_config("node = ", "noode = ");
        assert_eq!(run_agent_command(&fleet, &["status"]).code, 0);
        fleet.edit_config("noode = ", "node = ");
        fleet.edit_config("fleet = \"test\"", "fleet = \"other\"");
        agent.hangup();
        fleet.until("a key that needs a restart", || status(&fleet).pending == ["fleet"]).await;
        fleet.server.kill();
        fleet.until("no connection", || !status(&fleet).connection.connected).await;
        let said = run_agent_command(&fleet, &["status"]);
        assert_eq!(said.code, 1, "{}", said.stdout);
        assert!(said.stdout.contains("not connected") && said.stdout.contains("restart   needed: fleet"), "{}", said.stdout);
        assert_eq!(agent.stop(), Some(0));
        assert_eq!(run_agent_command(&fleet, &["status"]).code, 4);
    });
}

#[test]
fn a_command_from_a_file_runs_like_one_from_the_bus() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        let write = |fleet: &SingleNodeFleet, command: &Command| {
            let path = fleet.path("carried.json");
            std::fs::write(&path, fleet.sign(command)).unwrap();
            path.display().to_string()
        };
        let early = write(&fleet, &fleet.slow_command("early", 1));
        assert_eq!(run_agent_command(&fleet, &["accept", &early]).code, 4, "no agent runs");
        let _agent = fleet.start_agent().await;
        assert_eq!(
            run_agent_command(&fleet, &["accept", &early]).code,
            3,
            "it was signed before the node began to remember commands"
        );
        let first = fleet.slow_command("first", 1);
        let carried = write(&fleet, &first);
        fleet.server.kill();
        let done = run_agent_command(&fleet, &["accept", &carried, "--output", "jsonl"]);
        assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
        let lines: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["status"], &lines[1]["outcome"]), (&"accepted".into(), &"changed".into()));
        assert_eq!(fleet.lines("first"), ["begun", "ended"]);
        // Again: the same answer, and no second run.
        let again = run_agent_command(&fleet, &["accept", &carried]);
        assert_eq!((again.code, fleet.lines("first").len()), (0, 2), "{}", again.stdout);
        assert!(again.stdout.contains("changed"), "{}", again.stdout);
        // A forged command is refused as over NATS.
        let mut forged = fleet.sign(&fleet.slow_command("forged", 0));
        let at = forged.len() / 2;
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        std::fs::write(fleet.path("forged.json"), forged).unwrap();
        let refused = run_agent_command(&fleet, &["accept", fleet.path("forged.json").to_str().unwrap()]);
        assert_eq!(refused.code, 3, "{}{}", refused.stdout, refused.stderr);
        assert!(refused.stdout.starts_with("refused "), "{}", refused.stdout);
        std::fs::write(fleet.path("large.json"), vec![b' '; 70_000]).unwrap();
        let large = run_agent_command(&fleet, &["accept", fleet.path("large.json").to_str().unwrap()]);
        assert!(large.code == 2 || large.stdout.contains("too_large"), "{}{}", large.stdout, large.stderr);
        // A failure has exit code 1. The stream gets all messages once there is a server.
        let failing = fleet.file_command("nowhere/x/y", "x");
        let failed = run_agent_command(&fleet, &["accept", &write(&fleet, &failing)]);
        assert_eq!(failed.code, 1, "{}{}", failed.stdout, failed.stderr);
        fleet.server.start_again();
        let (stream, start) = (fleet.subjects.stream("JOBS"), Instant::now());
        while fleet.bus.last_per_subject(&stream, fleet.subjects.all_jobs().as_str()).await.is_err() {
            assert!(start.elapsed() < PATIENCE, "the server did not come back");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let result: CommandResult = fleet.only_result(first.id).await;
        assert_eq!(result.outcome, CommandOutcome::Changed);
    });
}

/// Sends a request unchanged, and returns the whole answer.
fn request(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    request(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: */*\r\n\r\n"))
}

#[test]
fn metrics_and_health_are_served_on_loopback() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        let port = Port::new();
        let address = port.address();
        let busy = TcpListener::bind(address).unwrap();
        fleet.edit_config("listen = \"off\"", &format!("listen = \"{address}\""));
        let agent = fleet.start_agent().await;
        // A port in use raises an alarm and has no other effect.
        let state = fleet.state("an alarm", |state| !state.alarms.is_empty()).await;
        assert!(state.alarms[0].starts_with(&format!("could not listen on {address} for monitoring")), "{:?}", state.alarms);
        drop(busy);
        fleet.state("no alarm", |state| state.alarms.is_empty()).await;
        let command = fleet.slow_command("done", 0);
        fleet.send(&command).await;
        fleet.only_result(command.id).await;
        let build = format!("ensign_build_info{{version=\"{}\",node=\"web1\",fleet=\"test\"}} 1", status(&fleet).version);
        let wanted = [
            build.as_str(),
            "ensign_healthy 1",
            "ensign_nats_connected 1",
            "ensign_commands_total{result=\"accepted\"} 1",
            "ensign_commands_ended_total{state=\"changed\"} 1",
            "ensign_published_total{kind=\"done\"} 1",
            "ensign_last_run_info{outcome=\"changed\",noop=\"false\"} 1",
            "ensign_last_run_resources{state=\"changed\"} 1",
            "ensign_outbox_messages 0",
            "ensign_trust_version 1",
        ];
        let missing = || {
            let answer = get(address, "/metrics");
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
            wanted.iter().find(|line| !body.lines().any(|found| found == **line)).map(|line| format!("{line} is not in\n{body}"))
        };
        fleet.until_none("the figures of a command that was done", missing).await;
        assert!(get(address, "/healthz").ends_with("\r\n\r\nok\n"));
        for (text, status) in [
            (format!("GET /metrics HTTP/1.1\r\nHost: evil.example:{}\r\n\r\n", address.port()), "403"),
            (format!("POST /metrics HTTP/1.1\r\nHost: {address}\r\nContent-Length: 3\r\n\r\nabc"), "405"),
            (format!("GET /secret HTTP/1.1\r\nHost: {address}\r\n\r\n"), "404"),
            (format!("GET /{} HTTP/1.1\r\nHost: {address}\r\n\r\n", "a".repeat(10_000)), "431"),
            ("\u{16}\u{3}\u{1}\r\n\r\n".to_owned(), "400"),
        ] {
            let answer = request(address, &text);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        // Silent and incomplete requests delay no other client.
        let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
        let halves = (0..200).map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            // A closed connection is not writable.
            let _gone = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ");
            stream
        });
        let halves: Vec<TcpStream> = halves.collect();
        for path in ["/healthz", "/metrics"] {
            let began = Instant::now();
            assert!(get(address, path).contains("200 OK"));
            eprintln!("{path} beside 400 idle connections: {:?}", began.elapsed());
            // Without a free place, it would wait for idle connections: sixteen close every two seconds.
            assert!(began.elapsed() < Duration::from_secs(2), "{path}: {:?}", began.elapsed());
        }
        drop((silent, halves));
        fleet.server.kill();
        fleet.until("no connection", || !status(&fleet).connection.connected).await;
        let sick = get(address, "/healthz");
        assert!(sick.starts_with("HTTP/1.1 503 ") && sick.contains("not connected to a NATS server"), "{sick}");
        // Off, by a reload.
        fleet.edit_config(&format!("listen = \"{address}\""), "listen = \"off\"");
        agent.hangup();
        fleet.until("the port to be closed", || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err()).await;
        assert_eq!(agent.stop(), Some(0));
    });
}
