//! Random manifests: a set from a fixed seed. Each is checked, planned and applied twice.
//!
//! `apply` runs every manifest that `check` accepts to its end, and refuses every other one before any change. A second run
//! changes nothing, or fails for the same reason. A failing case has a number; `ENSIGN_RANDOM=NUMBER` makes it again.

mod equivalence;
mod generator;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::scenarios::snapshot;
use crate::support::web::{Asked, Reply, Web};
use generator::{Case, Maker, SplitMix64};

const SEED: u64 = 20_261_122;
const CASES: u64 = 500;

/// A gzipped tar archive with the file `app/run`.
fn archive() -> Vec<u8> {
    let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    let mut header = tar::Header::new_ustar();
    header.set_size(4);
    header.set_mode(0o755);
    builder.append_data(&mut header, "app/run", &b"run\n"[..]).unwrap();
    builder.into_inner().unwrap().finish().unwrap()
}

fn serve() -> Web {
    let archive = archive();
    Web::new(move |asked: &Asked| match asked.path.as_str() {
        "/app.tar.gz" => Reply::file(asked, &archive, "v1"),
        "/broken.tar.gz" => Reply::file(asked, b"this is no archive", "v1"),
        _ => Reply::status("404 Not Found"),
    })
}

/// Makes the files that a manifest may find.
fn make_files(root: &Path) {
    let given = root.join("given");
    std::fs::create_dir_all(given.join("full/of")).unwrap();
    for (name, text) in
        [("given/text", "first\nsecond\nthird\n"), ("given/old", "old"), ("given/full/x", "x"), ("source", "copied\n")]
    {
        std::fs::write(root.join(name), text).unwrap();
    }
    std::os::unix::fs::symlink("text", given.join("link")).unwrap();
    std::os::unix::fs::symlink("nothing", given.join("dangling")).unwrap();
    std::fs::write(root.join("invalid.yaml"), "ccm:\n  resources:\n    - file: {name: relative, ensure: absent}\n").unwrap();
}

/// The resources of a run by reference: outcome, and reason of a failure.
type Found = BTreeMap<String, (String, String)>;

/// A run with its events in order.
#[derive(Debug)]
struct Ran {
    code: i32,
    events: Vec<(String, (String, String))>,
    err: String,
}

struct Play<'a> {
    directory: &'a Path,
    root: &'a Path,
}

impl Play<'_> {
    fn ensign(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ensign"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.directory).env("TMPDIR", self.directory);
        command.env("ENSIGN_HISTORY", "off").env("ENSIGN_RUNTIME", "off").current_dir(self.directory);
        command.arg(args[0]).arg(self.root.join("manifest.yaml")).args(&args[1..]).output().unwrap()
    }

    fn events(&self, args: &[&str]) -> Ran {
        let output = self.ensign(&[args, &["--output", "json"]].concat());
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let events = document["events"].as_array().into_iter().flatten().map(|event| {
            let name = event["alias"].as_str().filter(|alias| !alias.is_empty()).or(event["name"].as_str()).unwrap();
            let read: ensign::model::TransactionEvent = serde_json::from_value(event.clone()).unwrap();
            let outcome = serde_json::to_value(read.outcome()).unwrap().as_str().unwrap().to_owned();
            (format!("{}#{name}", event["type"].as_str().unwrap()), (outcome, event["error"].to_string()))
        });
        Ran { code: output.status.code().unwrap_or(-1), events: events.collect(), err }
    }

    fn run(&self, args: &[&str]) -> (i32, Found, String) {
        let Ran { code, events, err } = self.events(args);
        (code, events.into_iter().collect(), err)
    }
}

fn with<'a>(found: &'a Found, outcomes: &[&str]) -> BTreeSet<&'a str> {
    found.iter().filter(|(_, (outcome, _))| outcomes.contains(&outcome.as_str())).map(|(name, _)| name.as_str()).collect()
}

/// Compares the run with the expectation. An error is the difference.
fn check_case(case: &Case, play: &Play<'_>) -> Result<(), String> {
    let before = snapshot(play.root);
    let check = play.ensign(&["check"]);
    let refused = check.status.code() == Some(2);
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    if refused != case.wrong.is_some() {
        return Err(format!("check ended with {:?}; expected mistake: {:?}; {said}", check.status.code(), case.wrong));
    }
    // Half of the cases are enough for that, and every run takes time.
    let (plan, planned, _) = if case.planned { play.run(&["plan"]) } else { (2, Found::new(), String::new()) };
    if before != snapshot(play.root) {
        return Err("check or plan touched a file".to_owned());
    }
    let (first, found, why) = play.run(&["apply"]);
    if let Some(wrong) = case.wrong {
        if !said.contains(wrong) || !said.contains(".yaml:") {
            return Err(format!("the message lacks {wrong:?} or its place: {said}"));
        }
        if (first, plan) != (2, 2) || before != snapshot(play.root) {
            return Err(format!("check refuses, plan ends with {plan}, apply with {first}, or a file was touched: {why}"));
        }
        return Ok(());
    }
    if !matches!(first, 0 | 1) || (first == 1) == with(&found, &["failed", "unmet"]).is_empty() {
        return Err(format!("apply ended with {first}: {found:?} {why}"));
    }
    let changing = &["changed", "refreshed"];
    let foretold = with(&planned, changing) == with(&found, changing) && with(&planned, &["failed"]) == with(&found, &["failed"]);
    if case.planned && !case.surprising && !foretold {
        return Err(format!("the plan was {planned:?}, the result {found:?}"));
    }
    let (second, again, _) = play.run(&["apply"]);
    let failures = |found: &Found| -> Found {
        found
            .iter()
            .filter(|(_, (outcome, _))| outcome == "failed" || outcome == "unmet")
            .map(|(n, f)| (n.clone(), f.clone()))
            .collect()
    };
    if second != first || failures(&found) != failures(&again) {
        return Err(format!("the second run ended with {second}, the first with {first}: {found:?}, then {again:?}"));
    }
    let moving: Vec<_> = with(&again, changing).into_iter().filter(|name| !case.restless.iter().any(|one| one == name)).collect();
    if !moving.is_empty() {
        return Err(format!("{moving:?} changed again: {found:?}, then {again:?}"));
    }
    Ok(())
}

#[test]
fn random_manifests_converge_or_are_refused() {
    let web = serve();
    let only: Option<u64> = std::env::var("ENSIGN_RANDOM").ok().and_then(|number| number.parse().ok());
    let (next, wrong) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let counts = Mutex::new((0, 0));
    let workers = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 4);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= CASES {
                        break;
                    }
                    if only.is_some_and(|only| only != number) {
                        continue;
                    }
                    let directory = tempfile::tempdir().unwrap();
                    let root = directory.path().join("root");
                    make_files(&root);
                    let mut dice = SplitMix64::new(SEED.wrapping_add(number));
                    let case = Maker::new(&mut dice, root.to_str().unwrap(), web.url("").trim_end_matches('/')).case();
                    let text = serde_json::to_string_pretty(&case.manifest).unwrap();
                    std::fs::write(root.join("manifest.yaml"), &text).unwrap();
                    let mut counts = counts.lock().unwrap();
                    (counts.0, counts.1) = (counts.0 + 1, counts.1 + usize::from(case.wrong.is_some()));
                    drop(counts);
                    if let Err(why) = check_case(&case, &Play { directory: directory.path(), root: &root }) {
                        wrong.lock().unwrap().push(format!("case {number}: {why}\n{text}"));
                    }
                }
            });
        }
    });
    let (all, refused) = counts.into_inner().unwrap();
    println!("{all} manifests, {refused} of them wrong");
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n\n"));
}
