//! Golden cases (`tests/golden`): manifests, and the record of what CCM, whose language they are in, really did with them.
//!
//! All cases pass, except those that `docs/compatibility.md` lists with a reason; a case of that list still deviates.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::node;
use crate::support::skip::is_root;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns `group/name` of all cases: those that run on a host of their own, or the others.
fn cases(on_nodes: bool) -> BTreeSet<String> {
    let entries = |directory: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
    };
    let base = root().join("tests/golden/cases");
    let is_node = |case: &Path| std::fs::read_to_string(case.join("case.yaml")).unwrap().lines().any(|line| line == "node: true");
    let all = entries(&base).into_iter().flat_map(|group| entries(&group));
    let chosen = all.filter(|case| is_node(case) == on_nodes);
    chosen.map(|case| case.strip_prefix(&base).unwrap().to_str().unwrap().to_owned()).collect()
}

/// Returns the cases that `docs/compatibility.md` lists as deviating: rows that begin with "| `group/name` |".
fn listed() -> BTreeSet<String> {
    let document = std::fs::read_to_string(root().join("docs/compatibility.md")).unwrap();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(case, _)| case.to_owned()).filter(|case| case.contains('/')).collect()
}

/// Runs the cases and compares the deviations with the list of `docs/compatibility.md`.
fn check(on_nodes: bool, options: &[&str]) {
    let cases = cases(on_nodes);
    let mut command = Command::new(root().join("tests/golden/check.py"));
    let output = command.arg(env!("CARGO_BIN_EXE_ensign")).args(options).output().expect("python3 runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let deviating: BTreeSet<&str> = text.lines().filter_map(|line| line.split_once(": ")).map(|(case, _)| case).collect();
    let counts = format!("{} passed, {} failed", cases.len() - deviating.len(), deviating.len());
    assert_eq!(text.lines().last(), Some(counts.as_str()), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let listed = listed();
    let unlisted: Vec<_> =
        text.lines().filter(|line| line.split_once(": ").is_some_and(|(case, _)| !listed.contains(case))).collect();
    assert!(unlisted.is_empty(), "deviations that docs/compatibility.md does not list:\n{}", unlisted.join("\n"));
    let mended: Vec<_> = listed.intersection(&cases).filter(|case| !deviating.contains(case.as_str())).collect();
    assert!(mended.is_empty(), "docs/compatibility.md lists cases that pass: {mended:?}");
}

#[test]
fn golden_cases() {
    if is_root("the golden cases set owners") {
        check(false, &[]);
    }
}

#[test]
fn golden_cases_on_nodes() {
    if let Some(root) = node::root() {
        check(true, &["--nodes", &root, "--jobs", "2"]);
    }
}

#[test]
fn every_listed_deviation_is_a_case() {
    let cases = cases(false).into_iter().chain(cases(true)).collect();
    let unknown: Vec<_> = listed().difference(&cases).cloned().collect();
    assert!(unknown.is_empty(), "docs/compatibility.md lists unknown cases: {unknown:?}");
}
