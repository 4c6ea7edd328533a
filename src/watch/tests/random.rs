//! Random operations on a small tree: each changed object of a resource is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::Bench;
use crate::host::watch_probe::{PathKind, examine_path};
use crate::model::WatchTarget;
use crate::watch::ResourceKey;

/// Names of a directory, few enough that operations meet.
const NAMES: &[&str] = &["a", "b", "c"];

#[derive(Debug, Clone)]
enum Operation {
    Write(String, u8),
    Mkdir(String),
    Mode(String, u8),
    Rename(String, String),
    Replace(String),
    Remove(String),
    Link(String, String),
    /// Reads the reports, and compares.
    Report,
    /// Replaces the target of a resource.
    Watch(u32, String, bool),
    /// Removes a resource.
    Unwatch(u32),
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(NAMES), 1..4).prop_map(|names| names.join("/"))
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, content)| Operation::Write(path, content)),
        4 => path().prop_map(Operation::Mkdir),
        2 => (path(), any::<u8>()).prop_map(|(path, mode)| Operation::Mode(path, mode)),
        4 => (path(), path()).prop_map(|(from, to)| Operation::Rename(from, to)),
        2 => path().prop_map(Operation::Replace),
        3 => path().prop_map(Operation::Remove),
        3 => (path(), path()).prop_map(|(target, link)| Operation::Link(target, link)),
        6 => Just(Operation::Report),
        2 => (0..6_u32, path(), any::<bool>()).prop_map(|(key, path, tree)| Operation::Watch(key, path, tree)),
        1 => (0..6_u32).prop_map(Operation::Unwatch),
    ]
}

/// The object at a path as a resource sees it: the link, the object behind it, and for a tree all entries.
fn state(path: &Path, is_tree: bool) -> String {
    let mut text = String::new();
    describe(path, &mut text);
    if let Ok(real) = fs::canonicalize(path) {
        describe(&real, &mut text);
        if is_tree {
            describe_below(&real, &mut text);
        }
    }
    text
}

fn describe(path: &Path, text: &mut String) {
    let kind = examine_path(path).kind;
    let mode = fs::symlink_metadata(path).map(|meta| meta.mode()).unwrap_or_default();
    let content = match kind {
        PathKind::File => format!("{:?}", fs::read(path).unwrap()),
        PathKind::Link => format!("{:?}", fs::read_link(path).unwrap()),
        PathKind::Directory | PathKind::Missing => String::new(),
    };
    writeln!(text, "{kind:?} {mode:o} {content}").unwrap();
}

fn describe_below(directory: &Path, text: &mut String) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        write!(text, "{} ", path.file_name().unwrap().display()).unwrap();
        describe(&path, text);
        if examine_path(&path).kind == PathKind::Directory {
            describe_below(&path, text);
        }
    }
}

/// The resources of the test: path, tree, and the state at the last check.
type Resources = BTreeMap<u32, (PathBuf, bool, String)>;

fn perform(bench: &mut Bench, operation: &Operation) {
    // Failures are part of the game, as of a write to a directory.
    let at = |bench: &Bench, path: &str| bench.at("root").join(path);
    let result = match operation {
        Operation::Write(path, content) => fs::write(at(bench, path), [*content % 4]),
        Operation::Mkdir(path) => fs::create_dir_all(at(bench, path)),
        Operation::Mode(path, mode) => {
            fs::set_permissions(at(bench, path), fs::Permissions::from_mode(0o700 | u32::from(mode % 8)))
        }
        Operation::Rename(from, to) => fs::rename(at(bench, from), at(bench, to)),
        Operation::Replace(path) => fs::write(bench.at("new"), "new").and_then(|()| fs::rename(bench.at("new"), at(bench, path))),
        Operation::Remove(path) => fs::remove_file(at(bench, path)).or_else(|_| fs::remove_dir_all(at(bench, path))),
        // Some links are relative, and some of those lead nowhere.
        Operation::Link(target, path) => {
            let target = if target.len() > 3 { Path::new("../root").join(target) } else { at(bench, target) };
            symlink(target, at(bench, path))
        }
        Operation::Report | Operation::Watch(..) | Operation::Unwatch(_) => Ok(()),
    };
    drop(result);
}

fn check(bench: &mut Bench, resources: &mut Resources, history: &[Operation]) {
    let reported: BTreeSet<u32> = bench.dirty().into_iter().collect();
    for (key, (path, is_tree, before)) in resources.iter_mut() {
        let now = state(path, *is_tree);
        assert!(*before == now || reported.contains(key), "{key} {path:?} {is_tree}: {before} -> {now}\n{history:#?}");
        *before = now;
    }
    assert!(bench.dirty().is_empty(), "one report");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_change_is_reported(operations in prop::collection::vec(operation(), 1..60)) {
        let mut bench = Bench::new();
        bench.mkdir("root");
        let mut resources = Resources::new();
        let empty = bench.hub.stats().watches;
        for (at, operation) in operations.iter().enumerate() {
            let history = &operations[..=at];
            perform(&mut bench, operation);
            match operation {
                Operation::Report => check(&mut bench, &mut resources, history),
                Operation::Watch(key, path, is_tree) => {
                    let path = bench.at("root").join(path);
                    let target = if *is_tree { WatchTarget::Tree(path.clone()) } else { WatchTarget::Path(path.clone()) };
                    bench.hub.set(ResourceKey(*key), &[target]);
                    let state = state(&path, *is_tree);
                    resources.insert(*key, (path, *is_tree, state));
                }
                Operation::Unwatch(key) => {
                    bench.hub.remove(ResourceKey(*key));
                    resources.remove(key);
                }
                _ => {}
            }
        }
        check(&mut bench, &mut resources, &operations);
        fs::remove_dir_all(bench.at("root")).unwrap();
        resources.keys().for_each(|key| bench.hub.remove(ResourceKey(*key)));
        bench.dirty();
        prop_assert_eq!(bench.hub.stats().watches, empty);
    }
}
