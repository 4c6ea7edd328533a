//! Scenarios: the effect of a manifest on a real host, one YAML file each in `tests/cases/<type>/`. A new file needs no
//! registration. A type without scenarios fails the test.
//!
//! `@ROOT@` in a scenario is a temporary directory with the manifest. `@HTTP@` is the URL of a server that serves its directory
//! `serve`. With `private_mounts` everything runs in a mount namespace with an own `/etc`: mounts and changes to fstab stay
//! there.

mod effects;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde::Deserialize;
use serde_json::Value;

use crate::support::skip::{is_root, no_namespaces, skip};
use crate::support::web::{Asked, Reply, Web};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// The purpose of the scenario, in one sentence.
    about: String,
    /// `root` where other users can't run it.
    #[serde(default)]
    needs: Option<String>,
    /// True when mounts are private to the scenario.
    #[serde(default)]
    private_mounts: bool,
    /// Shell commands that prepare the directory.
    #[serde(default)]
    before: String,
    manifest: String,
    runs: Vec<Run>,
    /// The final state of paths; relative paths are in the directory.
    #[serde(default)]
    after: BTreeMap<String, After>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    /// Shell commands before this run.
    #[serde(default)]
    between: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    exit: i32,
    /// The outcome of every resource by reference. The list must be complete, unless nothing ran.
    #[serde(default)]
    outcomes: BTreeMap<String, String>,
    /// The whole noop message by reference.
    #[serde(default)]
    noop: BTreeMap<String, String>,
    /// The steps of a resource, all of them.
    #[serde(default)]
    changes: BTreeMap<String, Vec<String>>,
    /// The number of attempts of a resource with several.
    #[serde(default)]
    attempts: BTreeMap<String, u64>,
    /// Parts of the errors of a resource.
    #[serde(default)]
    errors: BTreeMap<String, String>,
    /// Fields of the status of a resource; other fields do not matter.
    #[serde(default)]
    status: BTreeMap<String, BTreeMap<String, Value>>,
    /// Parts of standard error.
    #[serde(default)]
    stderr: Vec<String>,
    /// Texts that neither standard output nor standard error may contain.
    #[serde(default)]
    never: Vec<String>,
    /// True when a run must touch nothing in the directory: not a byte, mode, owner or time.
    #[serde(default)]
    untouched: bool,
    /// All paths that were requested from the server.
    asked: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct After {
    /// `file`, `directory`, `link` or `absent`.
    #[serde(rename = "type")]
    kind: String,
    /// Permission bits in octal.
    mode: Option<String>,
    content: Option<String>,
    /// Numbers, as `1:2`.
    owner: Option<String>,
    /// The target of a link.
    target: Option<String>,
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// The scenario files by type, in order.
pub fn files() -> BTreeMap<String, Vec<PathBuf>> {
    let entries = |path: &Path| {
        let mut found: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    };
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries(&cases()).into_iter().filter(|path| path.is_dir()).map(|path| (name(&path), entries(&path))).collect()
}

/// The place of a scenario.
struct Place {
    root: PathBuf,
    home: PathBuf,
    /// Holds the mount namespace of a scenario.
    holder: Option<Child>,
    /// The file for a trace of the program; none without a trace.
    trace: Option<PathBuf>,
}

impl Place {
    fn new(root: PathBuf, home: PathBuf) -> Self {
        Self { root, home, holder: None, trace: None }
    }

    /// Makes mounts private from here on.
    fn separate(&mut self) -> Result<(), String> {
        let script = "mkdir \"$0\"; cd /etc; cp -a passwd group nsswitch.conf ld.so.cache \"$0\"; mount --bind \"$0\" /etc; \
                      echo ready; exec cat";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "/bin/sh", "-euc", script]).arg(self.home.join("etc"));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let child = self.holder.insert(child.map_err(|error| error.to_string())?);
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).map_err(|error| error.to_string())?;
        if said == "ready\n" { Ok(()) } else { Err("mount namespaces can't be made here".to_owned()) }
    }

    /// A command that runs in a directory, and in the namespace.
    fn command(&self, program: &str, directory: &Path) -> Command {
        let Some(holder) = &self.holder else {
            let mut command = Command::new(program);
            command.current_dir(directory);
            return command;
        };
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &holder.id().to_string()]);
        // The namespace begins at the root directory.
        command.args(["/bin/sh", "-euc", "cd \"$0\"; exec \"$@\""]).arg(directory).arg(program);
        command
    }

    fn shell(&self, script: &str) -> Result<(), String> {
        if script.is_empty() {
            return Ok(());
        }
        let output = self.command("/bin/sh", &self.root).args(["-euc", script]).output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("the shell script failed: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// The program, with an environment without the tester's variables.
    fn ensign(&self, args: &[String]) -> Output {
        let mut command = match &self.trace {
            None => self.command(env!("CARGO_BIN_EXE_ensign"), &self.home),
            Some(trace) => {
                let mut command = self.command("strace", &self.home);
                command.args(effects::STRACE).arg("-o").arg(trace).arg(env!("CARGO_BIN_EXE_ensign"));
                command
            }
        };
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &self.home).env("TMPDIR", &self.home);
        command.env("ENSIGN_HISTORY", "off").env("ENSIGN_RUNTIME", "off");
        command.arg("apply").arg(self.root.join("manifest.yaml")).args(["--output", "json"]).args(args);
        command.output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            // The holder waits for the end of its input.
            drop(holder.stdin.take());
            holder.wait().unwrap();
        }
    }
}

/// Everything below a directory that a run could touch.
pub fn snapshot(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let meta = path.symlink_metadata().unwrap();
        let mut about = format!("{:o} {}:{} {}.{}", meta.mode(), meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec());
        if meta.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if meta.is_symlink() {
            write!(about, " {}", path.read_link().unwrap().display()).unwrap();
        } else if meta.is_file() {
            write!(about, " {:?}", std::fs::read(&path).unwrap()).unwrap();
        }
        found.insert(path, about);
    }
    found
}

fn outcome(event: &Value) -> String {
    let event: ensign::model::TransactionEvent = serde_json::from_value(event.clone()).unwrap();
    serde_json::to_value(event.outcome()).unwrap().as_str().unwrap().to_owned()
}

fn label(event: &Value) -> String {
    let name = event["alias"].as_str().or(event["name"].as_str()).unwrap();
    format!("{}#{name}", event["type"].as_str().unwrap())
}

impl Run {
    fn check(&self, place: &Place, web: &Web) -> Vec<String> {
        let mut wrong = Vec::new();
        let earlier = web.asked().len();
        if let Err(why) = place.shell(&self.between) {
            return vec![why];
        }
        let before = self.untouched.then(|| snapshot(&place.root));
        let output = place.ensign(&self.args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.code() != Some(self.exit) {
            wrong.push(format!("exit {:?}, not {}: {err}", output.status.code(), self.exit));
        }
        if before.is_some_and(|before| before != snapshot(&place.root)) {
            wrong.push("something was touched".to_owned());
        }
        let asked: Vec<String> = web.asked().split_off(earlier).into_iter().map(|asked| asked.path).collect();
        if self.asked.as_ref().is_some_and(|wanted| *wanted != asked) {
            wrong.push(format!("the server was asked for {asked:?}, not {:?}", self.asked));
        }
        for text in self.stderr.iter().filter(|text| !err.contains(*text)) {
            wrong.push(format!("standard error lacks {text:?}: {err}"));
        }
        for text in self.never.iter().filter(|text| out.contains(*text) || err.contains(*text)) {
            wrong.push(format!("{text:?} is in the output: {out}{err}"));
        }
        match serde_json::from_str::<Value>(&out) {
            Ok(document) => wrong.extend(self.check_events(document["events"].as_array().unwrap_or(&Vec::new()))),
            Err(error) => wrong.push(format!("standard output is no JSON: {error}: {out}")),
        }
        wrong
    }

    fn check_events(&self, events: &[Value]) -> Vec<String> {
        let mut wrong = Vec::new();
        let found: BTreeMap<String, &Value> = events.iter().map(|event| (label(event), event)).collect();
        let outcomes: BTreeMap<String, String> = found.iter().map(|(label, event)| (label.clone(), outcome(event))).collect();
        if outcomes != self.outcomes {
            let errors: Vec<_> = events.iter().map(|event| &event["error"]).collect();
            wrong.push(format!("outcomes {outcomes:?}, not {:?}; errors {errors:?}", self.outcomes));
        }
        let event = |reference: &str| found.get(reference).copied().unwrap_or(&Value::Null);
        for (reference, text) in &self.noop {
            if event(reference)["noop_message"] != text.as_str() {
                wrong.push(format!("{reference}: noop message {}, not {text:?}", event(reference)["noop_message"]));
            }
        }
        for (reference, steps) in &self.changes {
            if event(reference)["changes"] != serde_json::json!(steps) {
                wrong.push(format!("{reference}: changes {}, not {steps:?}", event(reference)["changes"]));
            }
        }
        let counted = |(label, event): (&String, &&Value)| Some((label.clone(), event["attempts"].as_u64()?));
        let attempts: BTreeMap<String, u64> = found.iter().filter_map(counted).collect();
        if attempts != self.attempts {
            wrong.push(format!("attempts {attempts:?}, not {:?}", self.attempts));
        }
        for (reference, text) in &self.errors {
            if !event(reference)["error"].as_array().into_iter().flatten().any(|error| error.as_str().unwrap().contains(text)) {
                wrong.push(format!("{reference}: errors {} lack {text:?}", event(reference)["error"]));
            }
        }
        for (reference, fields) in &self.status {
            for (name, value) in fields {
                if event(reference)["status"][name] != *value {
                    wrong.push(format!("{reference}: status has {name} {}, not {value}", event(reference)["status"][name]));
                }
            }
        }
        wrong
    }
}

impl After {
    fn check(&self, path: &Path) -> Vec<String> {
        let meta = path.symlink_metadata();
        let kind = match &meta {
            Err(_) => "absent",
            Ok(meta) if meta.is_symlink() => "link",
            Ok(meta) if meta.is_dir() => "directory",
            Ok(_) => "file",
        };
        let mut wrong = Vec::new();
        let mut compare = |what: &str, found: Option<String>, wanted: Option<&String>| {
            if wanted.is_some() && found.as_ref() != wanted {
                wrong.push(format!("{}: {what} {found:?}, not {wanted:?}", path.display()));
            }
        };
        compare("type", Some(kind.to_owned()), Some(&self.kind));
        let meta = meta.ok();
        compare("mode", meta.as_ref().map(|meta| format!("{:04o}", meta.permissions().mode() & 0o7777)), self.mode.as_ref());
        compare("owner", meta.as_ref().map(|meta| format!("{}:{}", meta.uid(), meta.gid())), self.owner.as_ref());
        compare("content", std::fs::read_to_string(path).ok(), self.content.as_ref());
        compare("target", path.read_link().ok().map(|target| target.display().to_string()), self.target.as_ref());
        wrong
    }
}

/// Serves the files of a directory. `/to/` redirects to the rest of the path on another host, and `/auth/` requires joe's
/// password.
fn serve(directory: PathBuf) -> Web {
    Web::new(move |asked: &Asked| {
        let path = asked.path.split('?').next().unwrap().trim_start_matches('/');
        if let Some(elsewhere) = path.strip_prefix("to/") {
            return Reply::redirect(&format!(
                "http://localhost:{}/{elsewhere}",
                asked.header("host").rsplit(':').next().unwrap()
            ));
        }
        let path = match path.strip_prefix("auth/") {
            Some(_) if asked.header("authorization") != "Basic am9lOmh1bnRlcjI=" => return Reply::status("401 Unauthorized"),
            Some(path) => path,
            None => path,
        };
        match std::fs::read(directory.join(path)) {
            Ok(content) => Reply::file(asked, &content, "v1"),
            Err(_) => Reply::status("404 Not Found"),
        }
    })
}

fn check(file: &Path) -> Vec<String> {
    play(file, |run, place, web| run.check(place, web))
}

/// Prepares a scenario, lets `each` check every run of it, and compares the final state.
fn play(file: &Path, each: impl Fn(&Run, &mut Place, &Web) -> Vec<String>) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let (root, home) = (directory.path().join("root"), directory.path().join("home"));
    [&root, &home].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let web = serve(root.join("serve"));
    let text = std::fs::read_to_string(file).unwrap().replace("@ROOT@", root.to_str().unwrap()).replace("@HTTP@", &web.url(""));
    let scenario: Scenario = match serde_yaml::from_str(&text) {
        Ok(scenario) => scenario,
        Err(error) => return vec![format!("the scenario can't be read: {error}")],
    };
    assert!(!scenario.about.is_empty() && !scenario.runs.is_empty(), "{}", file.display());
    if scenario.needs.as_deref() == Some("root") && !is_root(&format!("{} needs root", file.display())) {
        return vec![];
    }
    let mut place = Place::new(root.clone(), home);
    if scenario.private_mounts
        && let Err(why) = place.separate()
    {
        skip(no_namespaces(), &format!("{}: {why}", file.display()));
        return vec![];
    }
    if let Err(why) = place.shell(&scenario.before) {
        return vec![why];
    }
    std::fs::write(root.join("manifest.yaml"), &scenario.manifest).unwrap();
    let runs = scenario.runs.iter().zip(1..);
    let mut wrong: Vec<String> = Vec::new();
    for (run, number) in runs {
        wrong.extend(each(run, &mut place, &web).into_iter().map(|why| format!("run {number}: {why}")));
    }
    wrong.extend(scenario.after.iter().flat_map(|(path, after)| after.check(&root.join(path))));
    wrong
}

#[test]
fn every_scenario_passes() {
    let mut wrong = String::new();
    let mut count = 0;
    for file in files().into_values().flatten() {
        count += 1;
        for why in check(&file) {
            writeln!(wrong, "{}: {why}", file.strip_prefix(cases()).unwrap().display()).unwrap();
        }
    }
    println!("{count} scenarios");
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_type_has_scenarios() {
    let tested: BTreeSet<String> = files().into_iter().filter(|(_, files)| !files.is_empty()).map(|(kind, _)| kind).collect();
    let known: BTreeSet<String> = ensign::resource::TYPES.iter().map(|kind| kind.name().to_owned()).collect();
    assert_eq!(tested, known);
}

/// A manifest that the program accepts must be valid for an editor too.
#[test]
fn manifests_of_scenarios_are_valid_to_the_schema() {
    let schema = ensign::cli::schemas::ALL.iter().find(|schema| schema.name == "manifest").unwrap();
    let validator = jsonschema::validator_for(&(schema.make)(&ensign::resource::Types::default())).unwrap();
    for file in files().into_values().flatten() {
        let text = std::fs::read_to_string(&file).unwrap().replace("@ROOT@", "/t").replace("@HTTP@", "http://h:1");
        let Ok(scenario) = serde_yaml::from_str::<Scenario>(&text) else { continue };
        // The schema may accept a manifest that the program refuses.
        if scenario.runs.iter().any(|run| run.exit == 2) {
            continue;
        }
        let manifest = ensign::yaml::YamlDocument::parse(&scenario.manifest, "manifest").unwrap();
        let errors: Vec<String> =
            validator.iter_errors(manifest.value()).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{}: {}", file.display(), errors.join("\n"));
    }
}
