//! The golden cases: manifests, and what the Go system whose language they are in really did with them.
//! The cases lie beside the repository; without them the test says skipped. Cases of groups that are
//! complete must pass, except those that `docs/compatibility.md` lists with a reason; and what is
//! listed there must still deviate.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::support::node;

/// The groups that are expected to pass.
const GROUPS: &[&str] = &[
    "apply/",
    "archive/",
    "control/",
    "defaults/",
    "exec/",
    "fail-on-error/",
    "file/",
    "health/",
    "hiera/",
    "jet-file/",
    "manifest/",
    "noop/",
    "order/",
    "pipe/",
    "scaffold/",
    "templates/",
];

/// Those whose cases run in containers with a systemd and a package manager.
const NODE_GROUPS: &[&str] = &["package/", "service/"];

/// Cases that `docs/compatibility.md` lists as deviating: rows that begin with "| `group/name` |".
fn listed(document: &str) -> BTreeSet<String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(case, _)| case.to_owned()).filter(|case| case.contains('/')).collect()
}

/// Runs the cases of these groups; those that `docs/compatibility.md` lists must deviate, the others must not.
fn hold(groups: &[&str], options: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = root.join("../shared");
    let (checker, cases) = (shared.join("tools/conformance_check.py"), shared.join("conformance"));
    if !checker.exists() || !cases.exists() {
        eprintln!("skipped: no golden cases in {}", cases.display());
        return;
    }
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("skipped: the golden cases need root, because they set owners");
        return;
    }
    let mut command = Command::new("python3");
    command.arg(checker).arg(env!("CARGO_BIN_EXE_ensign")).arg(cases).args(options);
    groups.iter().for_each(|group| {
        command.args(["--only", group]);
    });
    let output = command.output().expect("python3 runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let counts = text.lines().last().unwrap_or_default();
    assert!(counts.contains(" passed, "), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let deviating: BTreeSet<String> =
        text.lines().filter_map(|line| line.split_once(": ")).map(|(case, _)| case.to_owned()).collect();
    let document = std::fs::read_to_string(root.join("docs/compatibility.md")).expect("docs/compatibility.md");
    let mut known = listed(&document);
    known.retain(|case| groups.iter().any(|group| case.starts_with(group)));
    println!("golden cases: {counts}, {} of them listed", known.len());
    let unlisted: Vec<_> =
        text.lines().filter(|line| line.split_once(": ").is_some_and(|(case, _)| !known.contains(case))).collect();
    assert!(unlisted.is_empty(), "deviations that docs/compatibility.md does not list:\n{}", unlisted.join("\n"));
    let mended: Vec<_> = known.difference(&deviating).collect();
    assert!(mended.is_empty(), "docs/compatibility.md lists cases that pass: {mended:?}");
}

#[test]
fn golden_cases() {
    hold(GROUPS, &[]);
}

#[test]
fn golden_cases_on_hosts_of_their_own() {
    if let Some(root) = node::root() {
        hold(NODE_GROUPS, &["--nodes", &root, "--jobs", "2"]);
    }
}

#[test]
fn listed_cases_are_of_groups_that_run() {
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md")).unwrap();
    for case in listed(&document) {
        assert!(GROUPS.iter().chain(NODE_GROUPS).any(|group| case.starts_with(group)), "{case}");
    }
}
