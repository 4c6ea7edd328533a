//! Registrations and values of buckets, over real servers: from the command line, by `apply`, by an agent, in templates.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ensign::transport::{Bus, BusSettings, StreamSpec};
use ensign::wire::CommandOutcome;
use serde_json::{Value, json};

use crate::support::fleet::{Ran, ensign};
use crate::support::nats::{NatsServer, Options, binaries};
use crate::support::single_node::{PATIENCE, SingleNodeFleet, ensure_action, on_every_server};

fn server(binary: &Path) -> NatsServer {
    NatsServer::start_binary(binary, &Options { jetstream: true, ..Options::default() })
}

/// True when the server has an expiry for single messages (from 2.11). The server prints `nats-server: v2.10.27`.
fn has_message_expiry(binary: &Path) -> bool {
    let said = Command::new(binary).arg("--version").output().unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    let mut numbers = said.trim().rsplit('v').next().unwrap().split('.').map(|part| part.parse::<u64>().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (2, 11)
}

/// Runs a command that must succeed.
fn ok(url: &str, words: &[&str]) -> Ran {
    let ran = at(url, words);
    assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.stdout, ran.stderr);
    ran
}

fn at(url: &str, words: &[&str]) -> Ran {
    ensign(&[words, &["--nats", url]].concat())
}

fn query(url: &str, words: &[&str]) -> Vec<Value> {
    serde_json::from_str(&ok(url, &[&["registration", "query", "--output", "json"], words].concat()).stdout).unwrap()
}

const WEB: &[&str] = &["--cluster", "prod", "--service", "web", "--protocol", "http", "--address", "10.0.0.1", "--port", "80"];

fn web(verb: &'static str, more: &[&'static str]) -> Vec<&'static str> {
    [&["registration", verb], WEB, more].concat()
}

/// A bucket with one value, made as other clients make it.
fn bucket(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bus = Bus::connect(&BusSettings { servers: vec![url.to_owned()], ..BusSettings::default() }).await.unwrap();
        let spec = StreamSpec {
            name: "KV_conf".into(),
            subjects: vec!["$KV.conf.>".into()],
            max_per_subject: Some(1),
            allow_direct: true,
            dedupe_window: Duration::from_secs(60),
            replicas: 1,
            ..StreamSpec::default()
        };
        bus.ensure_stream(&spec).await.unwrap();
        bus.publish_stored("$KV.conf.motd", &[], b"from the bucket".to_vec()).await.unwrap();
        bus.publish_stored("$KV.conf.site", &[], b"data: {port: 81}".to_vec()).await.unwrap();
        bus.publish_stored("$KV.conf.gone", &[("KV-Operation", "DEL")], vec![]).await.unwrap();
    });
}

#[test]
fn a_service_is_registered_seen_and_removed() {
    for binary in binaries() {
        let server = server(&binary);
        let url = server.url();
        let early = at(&url, &["registration", "query"]);
        assert!(early.code == 4 && early.stderr.contains("ensign registration init"), "{}", early.stderr);
        assert!(ok(&url, &["registration", "init"]).stdout.starts_with("created"));
        assert!(ok(&url, &["registration", "init"]).stdout.starts_with("unchanged"));
        assert!(query(&url, &[]).is_empty());
        let mut watch = Command::new(env!("CARGO_BIN_EXE_ensign"))
            .args(["registration", "watch", "prod", "--output", "jsonl", "--nats", &url])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        ok(&url, &web("create", &["--ttl", "1h", "-A", "env=test"]));
        // Again with the same address: one registration, with the new values.
        ok(&url, &web("create", &["--ttl", "1h", "-A", "env=test"]));
        let all = query(&url, &[]);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(
            (&all[0]["address"], &all[0]["port"], &all[0]["annotations"]["env"]),
            (&json!("10.0.0.1"), &json!(80), &json!("test"))
        );
        assert_eq!(query(&url, &["prod", "*", "web"]).len(), 1);
        assert!(query(&url, &["stage"]).is_empty());
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
        let first = next();
        assert_eq!((&first["action"], &first["entry"]["service"]), (&json!("register"), &json!("web")), "{first}");
        if has_message_expiry(&binary) {
            // Without a new message, the server expires the registration and reports this.
            ok(&url, &web("create", &["--ttl", "2s"]));
            let start = Instant::now();
            while !query(&url, &[]).is_empty() {
                assert!(start.elapsed() < PATIENCE, "its life does not end");
                std::thread::sleep(Duration::from_millis(100));
            }
            let mut gone = next();
            while gone["action"] == "register" {
                gone = next();
            }
            assert_eq!((&gone["action"], &gone["entry"]["address"]), (&json!("remove"), &json!("10.0.0.1")));
            ok(&url, &web("create", &[]));
        }
        let asked = at(&url, &web("rm", &[]));
        assert!(asked.code == 2 && asked.stderr.contains("--force"), "{}", asked.stderr);
        ok(&url, &web("rm", &["--force"]));
        assert!(query(&url, &[]).is_empty());
        assert!(ok(&url, &web("rm", &["--force"])).stderr.contains("no such registration"));
        watch.kill().unwrap();
        watch.wait().unwrap();
    }
}

#[test]
fn wrong_arguments_are_reported_without_a_server() {
    for (words, why) in [
        (vec!["registration", "query", "a.b"], "\"a.b\" is not a valid name"),
        (vec!["registration", "query", "*", "*", "*", "host"], "neither an IPv4 nor an IPv6 address"),
        (web("create", &["--ttl", "banana"]), "invalid TTL duration \"banana\""),
        (web("create", &["--priority", "0"]), "must be between 1 and 255"),
        (web("create", &["-A", "novalue"]), "write --annotation name=value"),
    ] {
        let ran = at("nats://127.0.0.1:1", &words);
        assert!(ran.code == 2 && ran.stderr.contains(why), "{words:?}: {}", ran.stderr);
    }
}

const MANIFEST: &str = r#"
ccm:
  resources:
    - file:
        name: DIR/motd
        ensure: present
        content: "{{ kvGet('conf', 'motd') }}\n{{ registrations('*', '*', '*', '*').PrometheusFileSD() }}\n"
        owner: OWNER
        group: GROUP
        mode: "0644"
        register_when_stable:
          - cluster: "{{ Data.cluster }}"
            protocol: prometheus
            service: motd
            address: 10.0.0.7
            port: "{{ Data.port }}"
            priority: 1
            ttl: never
    - exec:
        name: "false"
        register_when_stable: [{cluster: prod, protocol: p, service: broken, address: 10.0.0.8, priority: 1}]
data:
  cluster: prod
  port: 9100
"#;

/// The manifest in a directory, for the user who runs the test.
fn manifest(directory: &Path) -> String {
    let (user, group) = (nix::unistd::getuid(), nix::unistd::getgid());
    let text = MANIFEST.replace("DIR", &directory.display().to_string());
    let text = text.replace("OWNER", &format!("\"{user}\"")).replace("GROUP", &format!("\"{group}\""));
    let path = directory.join("manifest.yaml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn apply_registers_converged_services_and_templates_query_the_bus() {
    for binary in binaries() {
        let server = server(&binary);
        let url = server.url();
        let directory = tempfile::tempdir().unwrap();
        let path = manifest(directory.path());
        // No server: the resource fails with the reason, the others run.
        let lost = at(&url, &["apply", &path]);
        assert!(lost.code == 1 && lost.stdout.contains("bucket \"conf\""), "{}{}", lost.stdout, lost.stderr);
        bucket(&url);
        ok(&url, &["registration", "init"]);
        let silent = at(&url, &["apply", &path]);
        assert!(silent.code == 1 && silent.stderr.contains("2 registrations not published"), "{}", silent.stderr);
        let content = std::fs::read_to_string(directory.path().join("motd")).unwrap();
        assert_eq!(content, "from the bucket\n[]\n");
        assert!(query(&url, &[]).is_empty());
        assert_eq!(at(&url, &["apply", "--register", "--noop", &path]).code, 0);
        assert!(query(&url, &[]).is_empty());
        // The second resource fails: its registration is not published.
        let published = at(&url, &["apply", "--register", &path]);
        assert!(published.code == 1, "{}{}", published.stdout, published.stderr);
        let all = query(&url, &[]);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!((&all[0]["service"], &all[0]["port"], &all[0]["ttl"]), (&json!("motd"), &json!(9100), &json!("never")));
        at(&url, &["apply", "--register", &path]);
        let content = std::fs::read_to_string(directory.path().join("motd")).unwrap();
        assert!(content.contains("\"10.0.0.7:9100\""), "{content}");
        // With `--health-check-only`, a run publishes the registration again.
        ok(
            &url,
            &[
                "registration",
                "rm",
                "--force",
                "--cluster",
                "prod",
                "--service",
                "motd",
                "--protocol",
                "prometheus",
                "--address",
                "10.0.0.7",
                "--port",
                "9100",
            ],
        );
        at(&url, &["apply", "--register", "--health-check-only", &path]);
        assert_eq!(query(&url, &["prod", "prometheus", "motd"]).len(), 1);
    }
}

#[test]
fn data_comes_from_a_bucket() {
    for binary in binaries() {
        let server = server(&binary);
        let url = server.url();
        bucket(&url);
        let parsed: Value = serde_json::from_str(&ok(&url, &["data", "parse", "kv://conf/site"]).stdout).unwrap();
        assert_eq!(parsed, json!({"port": 81}));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.yaml");
        let text = "data: {port: 80}\nccm:\n  resources:\n    - exec: {name: \"/bin/test {{ Data.port }} = 81\"}\n";
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        ok(&url, &["apply", &path, "--data", "kv://conf/site"]);
        assert_eq!(at(&url, &["apply", &path]).code, 1);
        let missing = at(&url, &["data", "parse", "kv://conf/none"]);
        assert!(missing.code == 2 && missing.stderr.contains("kv://conf/none does not exist"), "{}", missing.stderr);
    }
}

#[test]
fn a_missing_value_is_named() {
    for binary in binaries() {
        let server = server(&binary);
        let url = server.url();
        bucket(&url);
        for (key, why) in
            [("gone", "kv://conf/gone does not exist"), ("none", "kv://conf/none does not exist"), ("a b", "a key is made of")]
        {
            let content = format!("{{{{ kvGet('conf', '{key}') }}}}");
            let ran = at(&url, &["ensure", "file", "/nonesuch/x", "--content", &content]);
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert!(ran.code != 0 && said.contains(why), "{key}: {said}");
        }
    }
}

#[test]
fn an_agent_publishes_registrations_when_configured() {
    on_every_server(async |binary| {
        for (publish, expected) in [("off", 0), ("jetstream", 1)] {
            let fleet = SingleNodeFleet::new(binary, &format!("[registration]\npublish = \"{publish}\"\n")).await;
            let url = fleet.server.url();
            ok(&url, &["registration", "init"]);
            bucket_in(&url).await;
            let _agent = fleet.start_agent().await;
            let entry = json!([{"cluster": "prod", "protocol": "tcp", "service": "app", "address": "10.1.1.1", "port": 1, "priority": 2}]);
            let properties = json!({
                "name": fleet.path("app"), "ensure": "present", "content": "{{ kvGet('conf', 'motd') }}", "owner": "root", "group": "root", "mode": "0644",
                "register_when_stable": entry,
            });
            let command = fleet.command(ensure_action("file", &properties));
            fleet.send(&command).await;
            let done = fleet.only_result(command.id).await;
            assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
            assert_eq!(fleet.lines("app"), ["from the bucket"]);
            assert_eq!(query(&url, &[]).len(), expected);
        }
    });
}

/// [`bucket`], for a test inside a runtime.
async fn bucket_in(url: &str) {
    let url = url.to_owned();
    tokio::task::spawn_blocking(move || bucket(&url)).await.unwrap();
}
