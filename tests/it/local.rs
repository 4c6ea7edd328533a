//! The program on one host, by hand or from a script: output, exit codes and errors. `scenarios.rs` has the effects of
//! resources.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::single_node::PATIENCE;
use crate::support::skip::{Reason, is_root, skip};

const ENSIGN: &str = env!("CARGO_BIN_EXE_ensign");
const REQUEST: &str = "io.choria.ccm.v1.resource.ensure.request";

/// A working directory, with its own home and its own directory for temporary files.
pub struct Desk(tempfile::TempDir);

/// The end of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Desk {
    pub fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        ["home", "tmp"].iter().for_each(|name| std::fs::create_dir(desk.path(name)).unwrap());
        desk
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file. `@D@` becomes this directory, `@ME@` the properties owner and group of the test's user.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), self.fill(text)).unwrap();
    }

    pub fn fill(&self, text: &str) -> String {
        let me = format!("owner: {}, group: {}", nix::unistd::geteuid(), nix::unistd::getegid());
        text.replace("@D@", self.0.path().to_str().unwrap()).replace("@ME@", &me)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(ENSIGN);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("tmp"))
            .env("ENSIGN_HISTORY", self.path("runs"))
            .env("ENSIGN_RUNTIME", self.path("commands"));
        command.current_dir(self.0.path()).args(args.iter().map(|arg| self.fill(arg)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        finish(self.command(args).spawn().unwrap())
    }

    pub fn pipe(&self, args: &[&str], stdin: &[u8]) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        // The program may end before it has read everything.
        let _refused = child.stdin.take().unwrap().write_all(stdin);
        finish(child)
    }
}

pub fn finish(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

impl Ran {
    #[track_caller]
    pub fn ends(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        self
    }

    #[track_caller]
    pub fn prints(&self, texts: &[&str]) -> &Self {
        texts.iter().for_each(|text| assert!(self.out.contains(text), "{text:?} is not in {self:#?}"));
        self
    }

    #[track_caller]
    pub fn says(&self, texts: &[&str]) -> &Self {
        texts.iter().for_each(|text| assert!(self.err.contains(text), "{text:?} is not in {self:#?}"));
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The words of each line, without the durations.
    fn lines(&self) -> Vec<String> {
        let is_time = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.ends_with('s');
        let words = |line: &str| line.split_whitespace().filter(|word| !is_time(word)).collect::<Vec<_>>().join(" ");
        self.out.lines().map(words).collect()
    }
}

const MIXED: &str = r#"
ccm:
  pre_message: before
  post_message: after
  resources:
  - file: {name: "@D@/kept", ensure: present, content: "old\n", @ME@, mode: "0644"}
  - file: {name: "@D@/made", ensure: present, content: "one\ntwo\n", @ME@, mode: "0644"}
  - exec: {name: reload, command: "true", refreshonly: true, subscribe: ["file#@D@/made"]}
  - exec: {name: skipped, command: "true", control: {if: "false"}}
"#;

const FAILING: &str = "
ccm:
  post_message: after
  resources:
  - exec: {name: broken, command: \"false\"}
  - exec: {name: next, command: \"true\", require: [exec#broken]}
  - exec: {name: last, command: \"true\"}
";

fn mixed() -> Desk {
    let desk = Desk::new();
    desk.write("kept", "old\n");
    std::fs::set_permissions(desk.path("kept"), std::fs::Permissions::from_mode(0o644)).unwrap();
    desk.write("m.yaml", MIXED);
    desk
}

#[test]
fn apply_prints_a_line_a_resource_and_a_summary() {
    let desk = mixed();
    let ran = desk.run(&["apply", "m.yaml"]);
    ran.ends(0);
    assert_eq!(ran.err, "");
    let expected = [
        "before",
        "",
        "✓ stable file#@D@/kept present",
        "~ changed file#@D@/made created the file",
        "↻ refresh exec#reload executed via subscribe",
        "- skipped exec#skipped excluded by control",
        "",
        "after",
        "",
        "4 resources: 1 stable, 2 changed, 1 of them refreshed, 1 skipped in",
    ];
    assert_eq!(ran.lines(), expected.map(|line| desk.fill(line)));
    let again = desk.run(&["apply", "m.yaml", "--no-report"]);
    again.ends(0).prints(&["stable   file#"]);
    assert!(!again.out.contains("resources:"), "{again:?}");
}

#[test]
fn a_failure_is_reported_and_its_dependants_do_not_run() {
    let desk = Desk::new();
    desk.write("m.yaml", FAILING);
    let ran = desk.run(&["apply", "m.yaml"]);
    ran.ends(1).prints(&[
        "✗ failed",
        "exit code 1",
        "- unmet",
        "needs exec#broken",
        "1 changed, 1 failed, 1 skipped, 1 requirements unmet",
    ]);
    assert!(!ran.out.contains("after"), "a run with errors has no post message: {ran:?}");
    desk.write("stop.yaml", &FAILING.replace("ccm:\n", "ccm:\n  fail_on_error: true\n"));
    let ran = desk.run(&["apply", "stop.yaml"]);
    ran.ends(1).says(&["stopped at the first failure (fail_on_error); 2 resources were not reached"]);
    assert!(!ran.out.contains("exec#last"), "{ran:?}");
}

#[test]
fn noop_and_plan_change_nothing() {
    let desk = mixed();
    let noop = desk.run(&["apply", "m.yaml", "--noop"]);
    noop.ends(0).prints(&["✓ stable", "~ would", "↻ would", "2 would change"]);
    assert!(!noop.out.contains("+one"), "{noop:?}");
    let diff = desk.run(&["apply", "m.yaml", "--noop", "--diff"]);
    diff.ends(0).prints(&["--- now", "+++ wanted", "+one\n", "+two\n"]);
    let plan = desk.run(&["plan", "m.yaml"]);
    plan.ends(0).prints(&["file#", "+one\n", "4 resources: 1 stable, 2 would change"]);
    assert!(["✓", "before", "after"].iter().all(|text| !plan.out.contains(text)), "not only changes: {plan:?}");
    assert!(!desk.path("made").exists());
    desk.run(&["apply", "m.yaml", "--noop", "--health-check-only"]).ends(2).says(&["hint: use --noop or --health-check-only"]);
    desk.run(&["apply", "m.yaml"]).ends(0);
    let plan = desk.run(&["plan", "m.yaml"]);
    assert_eq!(plan.lines(), ["- skipped exec#skipped excluded by control", "", "4 resources: 3 stable, 1 skipped in"]);
}

#[test]
fn json_output_has_every_event() {
    let desk = mixed();
    let ran = desk.run(&["apply", "m.yaml", "--noop", "--output", "json"]);
    let document = ran.ends(0).json();
    assert_eq!(document["events"].as_array().unwrap().len(), 4);
    assert_eq!((&document["summary"]["changed_resources"], &document["summary"]["skipped_resources"]), (&json!(2), &json!(1)));
    let ran = desk.run(&["apply", "m.yaml", "--output", "jsonl"]);
    let lines: Vec<Value> = ran.ends(0).out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0]["protocol"], "io.choria.ccm.v1.transaction.event");
    assert_eq!(lines[1]["seq"], 2);
    assert_eq!(lines[4]["total_resources"], 4);
    let run_ids: Vec<&Value> = lines[..4].iter().map(|event| &event["run_id"]).collect();
    assert!(run_ids.iter().all(|id| *id == run_ids[0] && id.is_string()));
    desk.write("bad.yaml", "ccm: {resources: []}\n");
    let ran = desk.run(&["apply", "bad.yaml", "--output", "json"]);
    assert!(ran.ends(2).json()["error"].as_str().unwrap().contains("manifest must contain resources"));
    ran.says(&["bad.yaml:1:7: manifest must contain resources"]);
}

#[test]
fn exit_codes_name_the_kind_of_failure() {
    let desk = mixed();
    desk.write("fail.yaml", FAILING);
    desk.write("bad.yaml", "ccm: {resources: [{file: {}}]}\n");
    for (args, code) in [
        (&["apply", "m.yaml", "--noop", "--detailed-exitcodes"][..], 10),
        (&["plan", "m.yaml", "--detailed-exitcodes"], 10),
        (&["plan", "m.yaml"], 0),
        (&["apply", "m.yaml", "--detailed-exitcodes"], 10),
        (&["apply", "m.yaml", "--detailed-exitcodes"], 0),
        (&["apply", "fail.yaml", "--detailed-exitcodes"], 1),
        (&["apply", "fail.yaml"], 1),
        (&["apply", "bad.yaml"], 2),
        (&["apply", "nowhere.yaml"], 2),
        (&["apply"], 2),
        (&["check", "m.yaml"], 0),
        (&["check", "bad.yaml"], 2),
        (&["nonsense"], 2),
        (&["--help"], 0),
        (&["--version"], 0),
        (&["schema", "nonsense"], 2),
        (&["doc", "file"], 0),
        (&["facts", "no.such.fact"], 1),
    ] {
        let ran = desk.run(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert_eq!(
            ran.err.is_empty(),
            code == 0 || code == 10 || args[1..] == ["fail.yaml"] || args.contains(&"fail.yaml"),
            "{args:?}: {ran:?}"
        );
    }
}

#[test]
fn render_prints_the_resolved_manifest_and_runs_nothing() {
    let desk = Desk::new();
    desk.write("m.yaml", "data: {n: 5, name: \"{{ Facts.site }}\"}\nccm:\n  resources:\n  - exec: {name: \"touch {{ Data.name }}{{ Data.n }}\", cwd: \"@D@\"}\n");
    let ran = desk.run(&["apply", "m.yaml", "--render", "--fact", "site=x"]);
    ran.ends(0).prints(&["name: touch x5", "n: 5"]);
    assert!(!desk.path("x5").exists());
}

/// A manifest, and texts of its error messages.
const WRONG: &[(&str, &[&str])] = &[
    (
        "ccm:\n  resources:\n  - fiel: {name: /x}\n",
        &["m.yaml:3:5: ", "unknown resource type fiel", "  3 |   - fiel:", "hint: did you mean \"file\"?"],
    ),
    (
        "ccm:\n  resources:\n  - file:\n      name: /x\n      ensure: absent\n      mdoe: 1\n",
        &["m.yaml:6:7: ", "unknown property \"mdoe\"", "did you mean \"mode\"?"],
    ),
    (
        "ccm:\n  resources:\n  - file: {name: /x, ensure: present, @ME@, mode: \"0999\"}\n",
        &["m.yaml:3:", "mode \"0999\" is not a valid octal number"],
    ),
    ("ccm:\n  resuorces: []\n", &["m.yaml:2:3: unknown key \"resuorces\"", "did you mean \"resources\"?"]),
    ("cmc: {}\n", &["unknown key \"cmc\"", "did you mean \"ccm\"?", "manifest must contain resources"]),
    (
        "ccm:\n  resources:\n  - exec: {name: a, timeout: soon}\n",
        &["m.yaml:3:21: ", "invalid duration \"soon\"", "as 500ms, 30s"],
    ),
    ("ccm:\n  resources:\n  - exec: {name: a, returns: [two]}\n", &["returns[0]", "expected a whole number"]),
    ("ccm:\n  resources:\n  - exec: {name: \"echo {{ Data.nope }}\"}\n", &["m.yaml:3:27: ", "missing key 'Data.nope'"]),
    ("ccm:\n  resources:\n  - exec:\n      name: a\n      command: |\n        one\n        two {{ 1 + }}\n", &["m.yaml:7:"]),
    (
        "data: {a: \"{{ nope }}\"}\nccm: {resources: [{exec: {name: a}}]}\n",
        &["m.yaml:1:8: ", "could not resolve data.a", "unknown name nope"],
    ),
    ("ccm:\n  resources:\n  - exec: {name: {{ x }}}\n", &["m.yaml:3:18: ", "a value that begins with {{ must be in quotes"]),
    ("ccm:\n\tresources: x\n", &["m.yaml:2:1: ", "never with tabs"]),
    ("ccm:\n  resources:\n  - exec: {name: a, name: b}\n", &["m.yaml:3:"]),
    (
        "ccm:\n  resources:\n  - exec: {name: a, timeout: 99999999999999999999999}\n",
        &["invalid duration \"99999999999999999999999\""],
    ),
    ("", &["m.yaml: a manifest is a map"]),
    ("- a\n", &["m.yaml: a manifest is a map"]),
    (
        "x-own: &own {ensure: present}\nx: 1\nccm:\n  resources:\n  - exec: {name: a}\n",
        &["m.yaml:2:1: unknown key \"x\" in the manifest"],
    ),
    ("ccm:\n  pre_message: \"abc\n  resources: []\n", &["m.yaml:2:16: ", "the \" here is most likely not closed"]),
    ("ccm: [\n", &["m.yaml:1:6: ", "the [ here is most likely not closed"]),
];

#[test]
fn suspicious_manifests_are_warned_about_and_pass_the_check() {
    let desk = Desk::new();
    desk.write(
        "m.yaml",
        "x-common: &common {cwd: /}\ndata: {port: 80}\noverrides: {db: {role: db}}\nccm:\n  resources:\n  - exec:\n    - a: {<<: *common, command: \"echo {{ upper('x) }}\", provider: shell, control: {if: \"Data.colour == 'x'\"}}\n    - b: {command: \"true\", control: {if: \"Data.role == 'db'\"}}\n",
    );
    let ran = desk.run(&["check", "m.yaml"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in [
        "m.yaml:7:39: command: the {{ here is not closed",
        "m.yaml:7:89: control if: the data has no key colour",
        "hint: known keys are role, port",
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(!ran.err.contains("has no key role"), "{}", ran.err);
}

#[test]
fn control_characters_of_a_manifest_are_not_shown() {
    let desk = Desk::new();
    for text in [
        "ccm:\n  resources:\n  - file:\n    - \"/tmp/\\e[31m\\x07\": 5 # \u{1b}[31m\n",
        "ccm:\n  resources:\n  - file:\n    - \"/tmp/\\e[31m\\x07\": {ensure: absent, colour: red} # \u{1b}[31m\n",
        "ccm:\n  resources:\n  - \"fi\\ele\": {name: x}\n",
        "ccm:\n  resources:\n  - exec: {name: a, control: {\"i\\ef\": x}}\n",
    ] {
        desk.write("m.yaml", text);
        let ran = desk.run(&["check", "m.yaml"]);
        assert_eq!(ran.code, Some(2), "{text}: {ran:?}");
        assert!(!ran.err.contains(|c: char| c.is_control() && c != '\n'), "{text}: {}", ran.err);
    }
}

#[test]
fn errors_in_manifests_have_a_place_and_a_hint() {
    let desk = Desk::new();
    for (text, expected) in WRONG {
        desk.write("m.yaml", text);
        let ran = desk.run(&["check", "m.yaml"]);
        assert_eq!(ran.code, Some(2), "{text}: {ran:?}");
        expected.iter().for_each(|part| assert!(ran.err.contains(part), "{text}\n{part:?} is not in\n{}", ran.err));
        assert_eq!(ran.out, "", "{text}");
    }
    let all: String = ["fiel: {name: /x}", "exec: {name: a, cmd: x}", "file: {name: rel, ensure: absent}"]
        .map(|one| format!("  - {one}\n"))
        .concat();
    desk.write("m.yaml", &format!("ccm:\n  resources:\n{all}"));
    let ran = desk.run(&["apply", "m.yaml"]);
    ran.ends(2).says(&["invalid manifest resource 1", "invalid manifest resource 2", "invalid manifest resource 3"]);
    assert_eq!(ran.err.matches("error:").count(), 3, "{ran:?}");
}

#[test]
fn hostile_manifests_are_refused_quickly() {
    let desk = Desk::new();
    std::fs::write(desk.path("bytes.yaml"), b"ccm:\n  pre_message: \xff\n").unwrap();
    std::fs::create_dir(desk.path("directory.yaml")).unwrap();
    desk.write("deep.yaml", &format!("ccm: {}{}\n", "[".repeat(20_000), "]".repeat(20_000)));
    let level = |n: usize| format!("a{n}: &a{n} [{}]\n", format!("*a{}, ", n - 1).repeat(10));
    let bomb = format!("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n{}", (1..10).map(level).collect::<String>());
    desk.write("bomb.yaml", &bomb);
    desk.write("large.yaml", &format!("# {}\n", "x".repeat(33 << 20)));
    for (name, expected) in [
        ("bytes.yaml", "bytes.yaml is not UTF-8 text"),
        ("directory.yaml", "a directory needs a manifest.yaml"),
        ("deep.yaml", "deep.yaml:1:"),
        ("bomb.yaml", "the aliases expand to more than a document may hold"),
        ("large.yaml", "is larger than"),
        ("nowhere.yaml", "hint: check the path"),
    ] {
        let started = Instant::now();
        let ran = desk.run(&["apply", name]);
        ran.ends(2).says(&[expected]);
        assert!(ran.err.len() < 1000, "{name}: {} bytes of error", ran.err.len());
        // No measurement: quadratic time for these inputs would be minutes.
        assert!(started.elapsed() < PATIENCE, "{name}: {:?}", started.elapsed());
    }
}

#[test]
fn ten_thousand_resources_are_planned() {
    let desk = Desk::new();
    let resource = |n: usize| format!("  - file: {{name: \"@D@/none/f{n}\", ensure: absent, owner: 0, group: 1.50}}\n");
    let all: String = (0..10_000).map(resource).collect();
    desk.write("m.yaml", &format!("ccm:\n  resources:\n{all}"));
    let started = Instant::now();
    desk.run(&["plan", "m.yaml"]).ends(0).prints(&["10000 resources: 10000 stable"]);
    println!("10 000 resources planned in {:?}", started.elapsed());
}

#[test]
fn ensure_applies_one_resource_from_flags() {
    let desk = Desk::new();
    let file = desk.path("f");
    let file = file.to_str().unwrap();
    desk.run(&["ensure", "file", file, "--noop", "--content", "x"]).ends(0).prints(&["~ would", "created the file"]);
    assert!(!desk.path("f").exists());
    desk.run(&["ensure", "file", file, "--content", "x"]).ends(0).prints(&["~ changed"]);
    assert_eq!(std::fs::read_to_string(file).unwrap(), "x");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o644);
    desk.run(&["ensure", "file", file, "present", "--content", "x", "--detailed-exitcodes"]).ends(0).prints(&["✓ stable"]);
    desk.run(&["ensure", "file", file, "--content", "y", "--diff"]).ends(0).prints(&["-x", "+y"]);
    desk.run(&["ensure", "file", "@D@/d", "directory"]).ends(0);
    assert_eq!(std::fs::metadata(desk.path("d")).unwrap().permissions().mode() & 0o7777, 0o755);
    desk.run(&["ensure", "file", file, "absent", "--detailed-exitcodes"]).ends(10);
    let me = format!("{}:{}", nix::unistd::geteuid(), nix::unistd::getegid());
    desk.run(&["ensure", "file", file, "--owner", &me]).ends(0).prints(&["~ changed"]);
    desk.run(&["ensure", "file", "f"]).ends(2).says(&["file path must be absolute"]);
    desk.run(&["ensure", "fiel", "f"]).ends(2).says(&["file"]);
    desk.run(&["ensure", "file", file, "--mdoe", "1"]).ends(2).says(&["--mode"]);
    desk.run(&["ensure", "exec", "touch ran", "--cwd", "@D@"]).ends(0).prints(&["executed"]);
    assert!(desk.path("ran").exists());
    desk.run(&["ensure", "exec", "false"]).ends(1).prints(&["✗ failed"]);
    desk.run(&["ensure", "exec", "touch never", "--cwd", "@D@", "--exec-unless", "true"]).ends(0).prints(&["✓ stable"]);
    desk.run(&["ensure", "exec", "touch never", "--cwd", "@D@", "--if", "Facts.no == 'x'", "--fact", "no=y"])
        .ends(0)
        .prints(&["- skipped"]);
    desk.run(&["ensure", "exec", "touch never", "--cwd", "@D@", "--provider", "shel"]).ends(1).prints(&["no provider \"shel\""]);
    assert!(!desk.path("never").exists());
    let document = desk.run(&["ensure", "exec", "true", "--output", "json"]).ends(0).json();
    assert_eq!(document["events"][0]["name"], "true");
}

#[test]
fn a_session_links_commands_of_a_script() {
    let desk = Desk::new();
    desk.run(&["ensure", "exec", "true", "--require", "file#/x"]).ends(2).says(&["hint: run eval \"$(ensign session new)\""]);
    let line = desk.run(&["session", "new"]).ends(0).out.clone();
    let directory = line.trim().strip_prefix("export CCM_SESSION_STORE=").unwrap();
    assert!(Path::new(directory).starts_with(desk.path("tmp")));
    let step = |args: &[&str]| finish(desk.command(args).env("CCM_SESSION_STORE", directory).spawn().unwrap());
    step(&["ensure", "file", "@D@/conf", "--content", "x"]).ends(0);
    step(&["ensure", "exec", "touch reloaded", "--cwd", "@D@", "--refreshonly", "--subscribe", "file#@D@/conf"])
        .ends(0)
        .prints(&["↻"]);
    assert!(desk.path("reloaded").exists());
    step(&["ensure", "exec", "false"]).ends(1);
    step(&["ensure", "exec", "touch never", "--cwd", "@D@", "--require", "exec#false"]).ends(1).prints(&["needs exec#false"]);
    assert!(!desk.path("never").exists());
    step(&["session", "report"]).ends(0).prints(&["4 resources: 2 changed, 1 of them refreshed, 1 failed, 1 skipped"]);
    let summary = step(&["session", "report", "--output", "json"]).ends(0).json();
    assert_eq!(summary["total_resources"], 4);
    std::fs::write(Path::new(directory).join("01a1f8a7-3fd8-73db-bc1c-40ce9c89c6dc.event"), "{").unwrap();
    step(&["session", "report", "--remove"]).ends(0).says(&["warning:"]);
    assert!(!Path::new(directory).exists());
    step(&["session", "report"]).ends(2).says(&["does not exist"]);
    desk.run(&["session", "report"]).ends(2).says(&["no session store specified"]);
    desk.run(&["session", "new", "--directory", "home"]).ends(2).says(&["already exists"]);
}

#[test]
fn runs_are_recorded_as_sessions() {
    let desk = mixed();
    desk.run(&["session", "list"]).ends(0).says(&["no runs are recorded"]);
    desk.run(&["apply", "--noop", "m.yaml"]);
    // A dry run leaves no record.
    desk.run(&["session", "list"]).ends(0).says(&["no runs are recorded"]);
    desk.run(&["apply", "m.yaml"]);
    let shown = desk.run(&["session", "show", "--output", "json"]).ends(0).json();
    assert_eq!((&shown["what"], &shown["running"]), (&json!("m.yaml"), &json!(false)), "{shown}");
    let (all, notable) = (shown["summary"]["total_resources"].as_u64().unwrap(), shown["events"].as_array().unwrap().len());
    assert!(notable > 0 && notable as u64 <= all, "{shown}");
    // Killed: the program reports an interrupted run.
    let script = ["ensure", "exec", "touch begun; sleep 60", "--provider", "shell", "--cwd", "@D@"];
    let mut child = start(&mut desk.command(&script), &desk.path("begun"));
    desk.run(&["session", "list", "--limit", "1"]).ends(0).prints(&["running"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let list = desk.run(&["session", "list"]).ends(0).out.clone();
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("killed") && lines[1].contains("m.yaml"), "{list}");
    desk.run(&["session", "show", "nope"]).ends(2).says(&["unknown run nope", "ensign session list"]);
    // The next run ends the leftover processes.
    desk.run(&["ensure", "exec", "true"]).ends(0).says(&["an earlier run left: "]);
}

#[test]
fn the_ensure_api_answers_requests_on_a_pipe() {
    let desk = Desk::new();
    let request = |properties: Value| json!({"protocol": REQUEST, "type": "exec", "properties": properties}).to_string();
    let ran = desk.pipe(&["ensure", "api", "pipe"], request(json!({"name": "true"})).as_bytes());
    let response = ran.ends(0).json();
    assert_eq!(response["protocol"], "io.choria.ccm.v1.resource.ensure.response");
    assert_eq!((&response["state"]["changed"], &response["state"]["name"]), (&json!(true), &json!("true")));
    let ran = desk.pipe(
        &["ensure", "api", "pipe", "--yaml", "--noop"],
        format!("protocol: {REQUEST}\ntype: exec\nproperties: [{{a: {{command: 'false'}}}}]\n").as_bytes(),
    );
    ran.ends(0).prints(&["protocol: io.choria.ccm.v1.resource.ensure.response", "noop_message: Would have executed"]);
    let ran = desk.pipe(&["ensure", "api", "pipe"], request(json!({"name": "false"})).as_bytes());
    assert_eq!(ran.ends(0).json()["state"]["failed"], true, "a failed resource is a response");
    let wrong = [
        (b"".to_vec(), "a request is a map with protocol, type and properties"),
        (b"garbage".to_vec(), "a request is a map"),
        (b"\xff\xfe\x00".to_vec(), "UTF-8"),
        (b"{\"protocol\":".to_vec(), "request:"),
        (b"{}".to_vec(), "invalid protocol"),
        (
            format!("{{\"protocol\":\"{REQUEST}\",\"type\":\"fiel\",\"properties\":{{\"name\":\"x\"}}}}").into_bytes(),
            "did you mean \"file\"?",
        ),
        (request(json!({"name": "x", "nmae": 1})).into_bytes(), "did you mean \"name\"?"),
        (request(json!([])).into_bytes(), "no resources found"),
        (request(json!([{"a": {}}, {"b": {}}])).into_bytes(), "multiple resources"),
        (request(json!({})).into_bytes(), "name is required"),
        ([b'['; 20_000].to_vec(), "request:1:"),
        (vec![b'x'; 33 << 20], "the request is larger than"),
    ];
    for (input, expected) in wrong {
        let ran = desk.pipe(&["ensure", "api", "pipe"], &input);
        let response = ran.ends(0).json();
        let error = response["error"].as_str().unwrap_or_default();
        assert!(error.contains(expected), "{expected}: {response}");
    }
}

#[test]
fn status_facts_and_data_are_printed() {
    let desk = Desk::new();
    desk.write("f", "hello");
    desk.run(&["status", "file", "@D@/f"]).ends(0).prints(&["ensure: present", "size: 5", "checksum: 2cf24dba"]);
    desk.run(&["status", "file", "@D@/none"]).ends(0).prints(&["ensure: absent"]);
    assert_eq!(desk.run(&["status", "file", "@D@/f", "--output", "json"]).ends(0).json()["metadata"]["size"], 5);
    desk.run(&["status", "exec", "x"]).ends(2).says(&["have no state"]);
    desk.run(&["status", "flie", "x"]).ends(2).says(&["did you mean \"file\"?"]);

    desk.run(&["facts"]).ends(0).prints(&["\"host\""]);
    assert_eq!(desk.run(&["facts", "host.info.os"]).ends(0).out, "linux\n");
    desk.write("facts.yaml", "site: one\nlevel: {deep: 1}\n");
    assert_eq!(desk.run(&["facts", "site", "--facts", "facts.yaml"]).ends(0).out, "one\n");
    assert_eq!(desk.run(&["facts", "site", "--facts", "facts.yaml", "--fact", "site=two"]).ends(0).out, "two\n");
    desk.run(&["facts", "--fact", "novalue"]).ends(2).says(&["hint: write --fact name=value"]);
    desk.run(&["facts", "--facts", "nowhere.yaml"]).ends(2).says(&["nowhere.yaml"]);
    std::fs::create_dir_all(desk.path("home/.config/ensign/facts.d")).unwrap();
    desk.write("home/.config/ensign/facts.yaml", "own: mine\n");
    assert_eq!(desk.run(&["facts", "own"]).ends(0).out, "mine\n");
    desk.write("home/.config/ensign/facts.yaml", "own: [\n");
    desk.run(&["facts", "host.info.os"]).ends(0).says(&["warning:", "facts.yaml"]);

    desk.write("m.yaml", "data: {a: manifest, b: manifest}\nccm:\n  resources:\n  - exec: {name: \"echo {{ Data.a }} {{ Data.b }} {{ Facts.site }}\"}\n");
    desk.write("data.yaml", "data: {a: file}\n");
    desk.run(&["apply", "m.yaml", "--noop", "--data", "data.yaml", "--fact", "site=x"])
        .ends(0)
        .prints(&["exec#echo file manifest x"]);
    desk.run(&["apply", "m.yaml", "--noop", "--data", "data.yaml"]).ends(2).says(&["m.yaml:4:", "Facts.site"]);
}

/// Starts the program with its own process group, and waits for `path`.
pub fn start(command: &mut Command, path: &Path) -> Child {
    let child = command.process_group(0).spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < until, "{} did not appear", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn an_interrupted_run_ends_its_commands_and_reports_skipped_resources() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let desk = Desk::new();
        desk.write(
            "m.yaml",
            "ccm:\n  resources:\n  - exec: {name: long, command: \"(sleep 3; touch survived) & echo $! > child; touch started; sleep 60\", provider: shell, cwd: \"@D@\"}\n  - exec: {name: next, command: touch next, cwd: \"@D@\"}\n  - exec: {name: last, command: touch last, cwd: \"@D@\"}\n",
        );
        let child = start(&mut desk.command(&["apply", "m.yaml"]), &desk.path("started"));
        let began = Instant::now();
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let ran = finish(child);
        ran.ends(4).says(&["the run was cancelled; 2 resources were not reached"]).prints(&["✗ failed", "the run was cancelled"]);
        assert!(began.elapsed() < Duration::from_secs(50), "{signal}: {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(3500));
        ["survived", "next", "last"].iter().for_each(|name| assert!(!desk.path(name).exists(), "{signal}: {name}"));
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let desk = Desk::new();
    let all: String = (0..3000).map(|n| format!("  - file: {{name: \"@D@/none/f{n}\", ensure: absent}}\n")).collect();
    desk.write("m.yaml", &format!("ccm:\n  resources:\n{all}"));
    for args in
        [&["apply", "m.yaml"][..], &["apply", "m.yaml", "--output", "jsonl"], &["schema", "manifest"], &["facts"], &["--help"]]
    {
        let mut child = desk.command(args).spawn().unwrap();
        let mut line = String::new();
        BufReader::with_capacity(1, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{args:?}");
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""), "{args:?}");
    }
}

/// Runs the program on a terminal, which `script` of util-linux makes. Returns the output on the terminal.
fn on_a_terminal(desk: &Desk, variables: &[(&str, &str)]) -> Option<String> {
    let mut command = desk.command(&[]);
    let program = command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect::<Vec<_>>();
    command = Command::new("script");
    command.env_clear().envs(program).envs(variables.iter().copied()).env("SHELL", "/bin/sh").current_dir(desk.0.path());
    command.args(["-qec", &format!("{ENSIGN} apply m.yaml --noop"), "/dev/null"]).stdin(Stdio::null());
    let output = command.output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn colour_is_only_for_terminals_and_can_be_disabled() {
    let desk = mixed();
    assert!(!desk.run(&["apply", "m.yaml", "--noop"]).out.contains('\x1b'));
    let Some(shown) = on_a_terminal(&desk, &[("TERM", "xterm")]) else {
        skip(Reason::Missing, "cannot start script: install the package bsdutils");
        return;
    };
    assert!(shown.contains("\x1b[33m"), "{shown:?}");
    for refused in [&[("TERM", "xterm"), ("NO_COLOR", "1")][..], &[("TERM", "dumb")]] {
        let shown = on_a_terminal(&desk, refused).unwrap();
        assert!(shown.contains("would") && !shown.contains("\x1b["), "{refused:?}: {shown:?}");
    }
}

#[test]
fn a_user_without_root_manages_own_files_only() {
    if !is_root("only root can become another user") {
        return;
    }
    let desk = Desk::new();
    // The program may be in a directory without access for another user.
    std::fs::copy(ENSIGN, desk.path("ensign")).unwrap();
    std::fs::set_permissions(desk.0.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(desk.path("ensign"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent").current_dir("/");
        command.args(args.iter().map(|arg| desk.fill(arg))).uid(65534).gid(65534);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap())
    };
    as_nobody(&["ensure", "file", "@D@/mine", "--content", "x"]).ends(0).prints(&["~ changed"]);
    as_nobody(&["ensure", "file", "@D@/mine", "--content", "x"]).ends(0).prints(&["✓ stable"]);
    as_nobody(&["ensure", "file", "@D@/other", "--owner", "root", "--group", "root"])
        .ends(1)
        .prints(&["Operation not permitted"]);
    assert!(!desk.path("other").exists(), "the failed run left files");
    as_nobody(&["ensure", "file", "/etc/hostname", "absent"]).ends(1).prints(&["Permission denied"]);
    as_nobody(&["facts", "host.info.os"]).ends(0).prints(&["linux"]);
    let left: Vec<_> = std::fs::read_dir(desk.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("ensign-tmp")), "{left:?}");
}
