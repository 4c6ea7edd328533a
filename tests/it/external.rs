//! External resource types: the worked example, programs that misbehave, and the limits and rules of nodes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ensign::model::{HumanDuration, TransactionEvent};
use ensign::wire::command::{Action, Assign, CommandOptions};
use ensign::wire::{CommandOutcome, CommandResult};
use serde_json::{Value, json};

use super::local::{Desk, Ran};
use super::support::fleet::Fleet;
use super::support::nats::binaries;
use super::support::single_node::{Agent, PATIENCE, SingleNodeFleet, apply, assign_action, ensure_action};

const EXAMPLE: &str = include_str!("../../docs/examples/types/hosts_entry");

/// A type with a property `path`, which writes it when it runs. `observe` is a script.
const DESCRIPTION: &str = r#"{"protocol": "io.ensign.resource.v1", "about": "A file.",
  "properties": {"path": {"type": "text", "about": "A path.", "required": true}, "port": {"type": "integer", "about": "A port."},
    "token": {"type": "text", "about": "A token.", "secret": true}},
  "outputs": {"size": {"type": "integer", "about": "The size."}},
  "refreshes": true, "effects": [{"write": "{path}"}]}"#;

/// Returns a program that describes itself, and runs these scripts.
fn program(description: &str, observe: &str, apply: &str) -> String {
    format!(
        "#!/bin/sh\nrequest=$(cat)\ncase $1 in\ndescribe) cat <<'END'\n{description}\nEND\n;;\nobserve) {observe} ;;\napply) {apply} ;;\nesac\n"
    )
}

/// Writes an executable file.
fn install(path: &Path, program: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, program).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A desk with this type in the directory `types`.
fn desk(name: &str, program: &str) -> Desk {
    let desk = Desk::new();
    install(&desk.path("types").join(name), program);
    desk
}

/// Runs `ensign ensure` with the types of the desk, and returns the event.
fn ensure(desk: &Desk, args: &[&str]) -> (Ran, TransactionEvent) {
    let ran = desk.run(&[&["ensure", "--types", "types", "--output", "jsonl"], args].concat());
    let event = serde_json::from_str(ran.out.lines().next().unwrap_or_else(|| panic!("{args:?}: no event: {ran:?}"))).unwrap();
    (ran, event)
}

#[test]
fn the_example_manages_entries() {
    let desk = desk("hosts_entry", EXAMPLE);
    desk.write("hosts", "127.0.0.1\tlocalhost # own\n");
    desk.write(
        "m.yaml",
        "ccm:\n  resources:\n    - hosts_entry:\n        - db1:\n            address: 10.0.0.5\n            aliases: [db]\n            path: @D@/hosts\n    \
         - exec:\n        - seen:\n            command: echo {{ resources['hosts_entry#db1'].line }}\n            subscribe: [hosts_entry#db1]\n            refreshonly: true\n            logoutput: true\n",
    );
    let refused = desk.run(&["check", "m.yaml"]);
    assert!(refused.code == Some(2) && refused.err.contains("--types"), "{refused:?}");
    let hosts = || std::fs::read_to_string(desk.path("hosts")).unwrap();
    let run = |args: &[&str]| desk.run(&[args, &["--types", "types", "m.yaml"]].concat());
    run(&["check"]).ends(0);
    let noop = run(&["apply", "--noop"]);
    assert!(noop.out.contains("hosts_entry#db1") && hosts() == "127.0.0.1\tlocalhost # own\n", "{noop:?}");
    let applied = run(&["apply"]);
    assert_eq!(hosts(), "127.0.0.1\tlocalhost # own\n10.0.0.5\tdb1\tdb\n", "{applied:?}");
    assert!(applied.out.contains("10.0.0.5 db1 db"), "{applied:?}");
    assert!(run(&["apply"]).out.contains("2 stable"));
    std::fs::write(desk.path("hosts"), hosts().replace("10.0.0.5", "10.9.9.9")).unwrap();
    let drift = run(&["apply", "--noop", "--output", "jsonl"]);
    assert!(drift.out.contains("address 10.9.9.9 → 10.0.0.5"), "{drift:?}");

    let (_, event) = ensure(&desk, &["hosts_entry", "db1", "absent", "--path", "@D@/hosts"]);
    assert!(event.changed && !event.failed && hosts() == "127.0.0.1\tlocalhost # own\n", "{event:?}");
    let (_, event) =
        ensure(&desk, &["hosts_entry", "web", "--address", "10.0.0.6", "--aliases", "w", "--path", "@D@/hosts", "--noop"]);
    assert!(event.noop && event.changed && event.changes == ["ensure absent → present"], "{event:?}");
}

#[test]
fn schema_documentation_and_requests_know_the_type() {
    let desk = desk("hosts_entry.py", EXAMPLE);
    desk.write("hosts", "");
    let page = desk.run(&["doc", "--types", "types", "hosts_entry"]);
    assert!(page.out.contains("| `address` | text | required | The IP address. |") && page.out.contains("`line`"), "{page:?}");
    assert!(desk.run(&["doc", "--types", "types"]).out.contains("hosts_entry"));
    let schema: Value = serde_json::from_str(&desk.run(&["schema", "--types", "types", "manifest"]).out).unwrap();
    let valid = jsonschema::validator_for(&schema).unwrap();
    let manifest = |more: Value| json!({"ccm": {"resources": [{"hosts_entry": {"name": "a", "address": "b", "aliases": more}}]}});
    assert!(valid.is_valid(&manifest(json!(["x"]))) && !valid.is_valid(&manifest(json!({"x": 1}))));
    let request = json!({"protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "hosts_entry",
        "properties": {"name": "db1", "address": "10.0.0.5", "path": desk.path("hosts")}});
    let mut command = desk.command(&["ensure", "--types", "types", "api", "pipe"]);
    command.stdin(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), request.to_string().as_bytes()).unwrap();
    let response: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(response["state"]["changed"], json!(true), "{response}");
    assert_eq!(std::fs::read_to_string(desk.path("hosts")).unwrap(), "10.0.0.5\tdb1\n");
    let state = desk.run(&["status", "--types", "types", "hosts_entry", "localhost", "--json"]);
    assert!(state.code == Some(0) && state.out.contains("\"address\": \"127.0.0.1\""), "{state:?}");
}

#[test]
fn a_program_that_misbehaves_is_a_failed_event() {
    let present = r#"echo '{"ensure": "absent"}'"#;
    for (observe, apply, said) in [
        ("sleep 600", "true", "--policy=timeout=1s"),
        ("echo garbage", "true", "printed no response"),
        ("echo '[]'", "true", "the output is no JSON object"),
        (r#"echo '{"ensure": "present"} {"ensure": "present"}'"#, "true", "printed no response"),
        ("head -c 10000000 /dev/zero", "true", "the output is longer than 1048576 bytes"),
        ("kill -SEGV $$", "true", "was ended by signal 11"),
        ("echo '\u{1b}[31mno such thing' >&2; exit 3", "true", "exit code 3: \\x1b[31mno such thing"),
        (r#"echo '{"ensure": "present", "properties": {"port": NaN}}'"#, "true", "printed no response"),
        (r#"echo '{"ensure": "present", "properties": {"port": "http"}}'"#, "true", "properties.port: expected a whole number"),
        (r#"echo '{"ensure": "present", "outputs": {"size": "big"}}'"#, "true", "outputs.size: expected integer"),
        (r#"echo '{"ensure": "nearly"}'"#, "true", "\"nearly\" is no state"),
        (r#"echo '{"error": "the database is down"}'"#, "true", "observe: the database is down"),
        (r#"echo '{"error": "the token t0p-secret is wrong"}'"#, "true", "observe: the token *** is wrong"),
        ("echo 'the token t0p-secret is wrong' >&2; exit 1", "true", "the token *** is wrong"),
        (present, "echo '{}'", "failed to reach desired state"),
        (present, "exit 1", "apply of"),
        (present, "true", "apply of"),
    ] {
        let desk = desk("thing", &program(DESCRIPTION, observe, apply));
        let policy = said.strip_prefix("--policy=");
        let more = if policy.is_some() { vec!["--policy", "timeout=1s"] } else { vec![] };
        let said = policy.map_or(said, |_| "timed out after 1s");
        let (ran, event) = ensure(&desk, &[&["thing", "x", "--path", "@D@/file", "--token", "t0p-secret"], &more[..]].concat());
        assert!(event.failed && event.errors.iter().any(|error| error.contains(said)), "{observe}: {event:?}");
        assert!(!ran.out.contains("t0p-secret") && !ran.out.contains('\u{1b}'), "{observe}: {ran:?}");
        assert_eq!(ran.code, Some(1), "{observe}");
    }
}

#[test]
fn a_call_leaves_no_process() {
    let observe = r#"(sleep 600; echo late) & echo $! >> "${0%/*}/../pids"; echo '{"ensure": "present"}'"#;
    let desk = desk("thing", &program(DESCRIPTION, observe, "true"));
    let (_, event) = ensure(&desk, &["thing", "x", "--path", "@D@/file"]);
    assert!(!event.failed && !event.changed, "{event:?}");
    // A killed process ends a moment after the signal.
    let is_running = |pid: &str| {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z ")
    };
    let since = Instant::now();
    for pid in std::fs::read_to_string(desk.path("pids")).unwrap().split_whitespace() {
        while is_running(pid) {
            assert!(since.elapsed() < PATIENCE, "process {pid} is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_wrong_type_is_refused_with_the_reason() {
    let desk = desk("thing", &program(DESCRIPTION, "true", "true"));
    let doc = || desk.run(&["doc", "--types", "types"]);
    assert_eq!(doc().code, Some(0));
    for (name, program, said) in [
        ("file", EXAMPLE, "the built-in type file has the same name"),
        ("thing.py", EXAMPLE, "types/thing has the same name"),
        ("My-Type", EXAMPLE, "a name has at most 63 of"),
        ("other", "#!/bin/sh\nexit 1\n", "describe of"),
        ("other", "#!/bin/sh\necho '{\"protocol\": \"x\"}'\n", "\"x\" is unknown"),
        ("other", "#!/no/such/program\n", "could not start"),
    ] {
        let path = desk.path("types").join(name);
        install(&path, program);
        let ran = doc();
        assert!(ran.code == Some(2) && ran.err.contains(said), "{name}: {ran:?}");
        std::fs::remove_file(path).unwrap();
    }
    // Other files are no types.
    std::fs::write(desk.path("types/README.md"), "").unwrap();
    install(&desk.path("types/.hidden"), "");
    assert_eq!(doc().code, Some(0));
    for (path, mode) in [("types", 0o777), ("types/thing", 0o775)] {
        let mode_of = |mode| std::fs::set_permissions(desk.path(path), std::fs::Permissions::from_mode(mode)).unwrap();
        mode_of(mode);
        let ran = doc();
        assert!(ran.code == Some(2) && ran.err.contains("chmod go-w"), "{path}: {ran:?}");
        mode_of(0o755);
    }
}

/// A node with the types of the directory `types`, which may be installed later, and a directory `own`.
async fn node(limits: &str, types: &[(&str, &str)]) -> (SingleNodeFleet, Agent) {
    let fleet = SingleNodeFleet::new(binaries().last().unwrap(), "").await;
    std::fs::create_dir(fleet.path("own")).unwrap();
    std::fs::create_dir(fleet.path("types")).unwrap();
    types.iter().for_each(|(name, program)| install(&fleet.path("types").join(name), program));
    let limits = limits.replace("OWN", fleet.path("own").to_str().unwrap());
    fleet.write_config(&format!("{limits}\n[types]\ndir = \"types\"\n"));
    let agent = fleet.start_agent().await;
    (fleet, agent)
}

async fn ensured(fleet: &SingleNodeFleet, kind: &str, properties: &Value, noop: bool) -> CommandResult {
    let mut command = fleet.command(ensure_action(kind, properties));
    command.options = CommandOptions { noop, ..command.options };
    fleet.send(&command).await;
    fleet.only_result(command.id).await
}

/// A type that claims to write `path`, and writes to its name.
fn liar() -> String {
    let observe = r#"name=$(echo "$request" | sed 's/.*"name":"\([^"]*\)".*/\1/'); [ -e "$name" ] && echo '{"ensure": "present"}' || echo '{"ensure": "absent"}'"#;
    let apply = r#"name=$(echo "$request" | sed 's/.*"name":"\([^"]*\)".*/\1/'); echo x > "$name" && echo '{}'"#;
    program(DESCRIPTION, observe, apply)
}

#[tokio::test]
async fn the_kernel_confines_the_program_of_a_type() {
    let (fleet, _agent) = node("paths = [\"OWN\"]", &[("hosts_entry", EXAMPLE), ("liar", &liar())]).await;
    let own = fleet.path("own/hosts");
    let entry = |path: &Path| json!({"name": "db1", "address": "10.0.0.5", "path": path});
    let done = ensured(&fleet, "hosts_entry", &entry(&own), false).await;
    assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
    assert_eq!(std::fs::read_to_string(&own).unwrap(), "10.0.0.5\tdb1\n");
    let done = ensured(&fleet, "hosts_entry", &entry(&fleet.path("hosts")), false).await;
    assert_eq!(done.outcome, CommandOutcome::Refused, "{done:?}");
    // A wrong description ends at the kernel.
    let lie = |target: &Path| json!({"name": target, "path": own});
    let done = ensured(&fleet, "liar", &lie(&fleet.path("own/free")), false).await;
    assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
    let done = ensured(&fleet, "liar", &lie(&fleet.path("outside")), false).await;
    assert!(done.outcome == CommandOutcome::Failed && !fleet.path("outside").exists(), "{done:?}");
}

#[tokio::test]
async fn limits_decide_over_external_types() {
    let system = DESCRIPTION.replace("[{\"write\": \"{path}\"}]", "[\"system\"]");
    let unknown = DESCRIPTION.replace(", \"effects\": [{\"write\": \"{path}\"}]", "");
    let programs = [system, unknown].map(|description| liar().replace(DESCRIPTION, &description));
    let types = [("changer", programs[0].as_str()), ("silent", &programs[1]), ("hosts_entry", EXAMPLE)];
    let properties = |fleet: &SingleNodeFleet, name: &str| json!({"name": fleet.path(name), "path": fleet.path("own/x")});
    let (fleet, _agent) = node("paths = [\"OWN\"]", &types).await;
    for kind in ["changer", "silent"] {
        let done = ensured(&fleet, kind, &properties(&fleet, "outside"), false).await;
        assert_ne!(done.outcome, CommandOutcome::Changed, "{kind}: {done:?}");
        assert!(!fleet.path("outside").exists());
    }
    let (fleet, _agent) = node("paths = [\"OWN\"]\ntypes = [\"changer\"]", &types).await;
    let done = ensured(&fleet, "changer", &properties(&fleet, "outside"), false).await;
    assert!(done.outcome == CommandOutcome::Changed && fleet.path("outside").exists(), "{done:?}");
    let done = ensured(&fleet, "hosts_entry", &json!({"name": "a", "address": "b", "path": fleet.path("own/x")}), false).await;
    assert_eq!(done.outcome, CommandOutcome::Refused, "{done:?}");
}

/// A manifest with one entry, which is removed when the entry leaves the manifest.
fn manifest(fleet: &SingleNodeFleet, entries: &str) -> std::path::PathBuf {
    let path = fleet.path("manifest.yaml");
    let text = format!("ccm:\n  resources:\n    - exec: {{name: \"true\", refreshonly: true}}\n{entries}");
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn drift_is_repaired_when_it_happens_and_a_removed_entry_is_absent() {
    let (fleet, _agent) = node("", &[("hosts_entry", EXAMPLE)]).await;
    let hosts = fleet.path("hosts");
    let (before, with_entry) = ("127.0.0.1\tlocalhost\n", "127.0.0.1\tlocalhost\n10.0.0.5\tdb1\n");
    std::fs::write(&hosts, before).unwrap();
    let entry = format!("    - hosts_entry: {{name: db1, address: 10.0.0.5, path: {}, on_removal: absent}}\n", hosts.display());
    let assign = |entries: &str| {
        let Action::Assign(assign) = assign_action(apply(&manifest(&fleet, entries))) else { panic!("an assignment") };
        Action::Assign(Assign { interval: HumanDuration::seconds(3600), watch: true, ..assign })
    };
    let has = |wanted: &'static str| {
        let hosts = hosts.clone();
        move || std::fs::read_to_string(&hosts).is_ok_and(|content| content == wanted)
    };
    fleet.store_assignment(&fleet.assignment(1, assign(&entry))).await;
    fleet.until("the entry of the assignment", has(with_entry)).await;
    let is_watched = |state: &ensign::wire::NodeState| {
        let watch = state.assignments.first().and_then(|assignment| assignment.watch);
        watch.is_some_and(|watch| watch.resources > 0 && watch.clean == watch.resources)
    };
    fleet.state("a watched entry", is_watched).await;
    std::fs::write(&hosts, before).unwrap();
    fleet.until("the repaired entry", has(with_entry)).await;
    fleet.store_assignment(&fleet.assignment(2, assign(""))).await;
    fleet.until("no entry", has(before)).await;
}

#[tokio::test]
async fn a_rule_allows_a_type_by_name_and_a_dry_run_only_observes() {
    let (fleet, agent) = node("", &[("hosts_entry", EXAMPLE), ("other", &liar())]).await;
    drop(agent);
    let trust = fleet.trust_with(1, |bundle| {
        let rule = bundle.rules.remove(0);
        let reads = [fleet.path("hosts")];
        let allow = json!({"keys": rule.keys, "quorum": 1, "types": ["hosts_entry"], "reads": reads, "noop_only": true});
        bundle.rules = vec![serde_json::from_value(allow).unwrap()];
    });
    std::fs::write(fleet.path("trust.json"), trust).unwrap();
    std::fs::remove_dir_all(fleet.path("state")).unwrap();
    let _agent = fleet.start_agent().await;
    let entry = json!({"name": "db1", "address": "10.0.0.5", "path": fleet.path("hosts")});
    let done = ensured(&fleet, "hosts_entry", &entry, true).await;
    assert!(done.outcome == CommandOutcome::WouldChange && !fleet.path("hosts").exists(), "{done:?}");
    for (kind, properties, noop) in
        [("hosts_entry", entry.clone(), false), ("other", json!({"name": "x", "path": fleet.path("x")}), true)]
    {
        let done = ensured(&fleet, kind, &properties, noop).await;
        assert_eq!(done.outcome, CommandOutcome::Refused, "{kind}: {done:?}");
    }
}

#[tokio::test]
async fn a_reload_reads_the_types_again() {
    let (fleet, agent) = node("", &[("broken", "#!/bin/sh\nexit 4\n")]).await;
    let alarm = |state: &ensign::wire::NodeState| state.alarms.iter().any(|alarm| format!("{alarm:?}").contains("broken"));
    fleet.state("an alarm about the type", alarm).await;
    let entry = json!({"name": "db1", "address": "10.0.0.5", "path": fleet.path("hosts")});
    let done = ensured(&fleet, "hosts_entry", &entry, false).await;
    assert_ne!(done.outcome, CommandOutcome::Changed, "{done:?}");
    std::fs::remove_file(fleet.path("types/broken")).unwrap();
    install(&fleet.path("types/hosts_entry"), EXAMPLE);
    agent.hangup();
    fleet.state("no alarm about the type", |state| !alarm(state)).await;
    let done = ensured(&fleet, "hosts_entry", &entry, false).await;
    assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
    // The agent runs only the program that it asked for its description.
    install(
        &fleet.path("types/hosts_entry"),
        &EXAMPLE.replace("db1", "db2").replace("\"\"\"A resource", "\"\"\"Another resource"),
    );
    let done = ensured(&fleet, "hosts_entry", &entry, false).await;
    let errors = done.event.map(|event| event.errors.join("; ")).unwrap_or_default();
    assert!(errors.contains("has changed since it was described"), "{errors}");
}

#[test]
fn an_operator_sends_a_type_that_only_nodes_know() {
    let mut fleet = Fleet::new(&binaries()[0], &[("web1", "web")]);
    install(&fleet.path("web1/types/hosts_entry"), EXAMPLE);
    fleet.start_with("web1", "web", "", "[types]\ndir = \"types\"");
    let hosts = fleet.path("web1/site/hosts");
    let path = format!("path={}", hosts.display());
    let generic = ["ensure", "--all", "hosts_entry", "db1", "--property", "address=10.0.0.5", "--property"];
    let ran = fleet.run(&[&generic[..], &[&path, "--property", "aliases=[\"db\"]"]].concat());
    assert_eq!(
        (ran.code, std::fs::read_to_string(&hosts).unwrap().as_str()),
        (0, "10.0.0.5\tdb1\tdb\n"),
        "{} {}",
        ran.stdout,
        ran.stderr
    );
    let types = fleet.path("web1/types");
    let known = ["ensure", "--all", "--types", types.to_str().unwrap(), "hosts_entry", "db1", "--address", "10.0.0.7", "--path"];
    let ran = fleet.run(&[&known[..], &[hosts.to_str().unwrap()]].concat());
    assert_eq!(
        (ran.code, std::fs::read_to_string(&hosts).unwrap().as_str()),
        (0, "10.0.0.7\tdb1\n"),
        "{} {}",
        ran.stdout,
        ran.stderr
    );
    let near = fleet.run(&["ensure", "--all", "fiel", "/x"]);
    assert!(near.code == 2 && near.stderr.contains("'file'"), "{}", near.stderr);
}
