//! Random manifests without hidden dependencies: every order and any parallelism leave the same host, with the same outcomes.
//!
//! The seed is another one in each run. A failure names it; `ENSIGN_RANDOM=SEED` makes the case again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::generator::{Maker, SplitMix64};
use super::{Found, Play, Ran, make_files, serve};
use crate::scenarios::snapshot;

/// The time for new cases.
const TIME: Duration = Duration::from_secs(12);
const MOST_RESOURCES: usize = 24;
const PARALLELISMS: &[&str] = &["1", "2", "3", "8"];

/// Everything below a directory, without times.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let without_time = |about: String| {
        let mut words: Vec<&str> = about.splitn(4, ' ').collect();
        words.remove(2);
        words.join(" ")
    };
    snapshot(root).into_iter().map(|(path, about)| (path, without_time(about))).collect()
}

/// Applies the resources in a new directory of this name. Returns the run, and the directory afterwards.
fn apply(directory: &Path, resources: &[Value], ordering: &str, args: &[&str]) -> (Ran, BTreeMap<PathBuf, String>) {
    let root = directory.join("root");
    if root.exists() {
        std::fs::remove_dir_all(&root).unwrap();
    }
    make_files(&root);
    let manifest = json!({"data": {"yes": true, "word": "{{ 1 + 1 }}"}, "ccm": {"ordering": ordering, "resources": resources}});
    std::fs::write(root.join("manifest.yaml"), manifest.to_string()).unwrap();
    let ran = Play { directory, root: &root }.events(&[&["apply"], args].concat());
    std::fs::remove_file(root.join("manifest.yaml")).unwrap();
    (ran, tree(&root))
}

/// Compares all orders of one manifest. An error is the difference.
fn check_orders(directory: &Path, resources: &[Value]) -> Result<(), String> {
    let (list, wanted) = apply(directory, resources, "list", &[]);
    if !matches!(list.code, 0 | 1) {
        return Err(format!("list order: {list:?}"));
    }
    let outcomes = |ran: &Ran| ran.events.iter().cloned().collect::<Found>();
    let mut order: Option<Vec<String>> = None;
    for parallelism in PARALLELISMS {
        let (graph, found) = apply(directory, resources, "graph", &["--parallelism", parallelism]);
        let mut wrong = String::new();
        if graph.code != list.code || outcomes(&graph) != outcomes(&list) {
            write!(wrong, "outcomes differ from list order: {graph:?}, not {list:?}; ").unwrap();
        }
        if found != wanted {
            let differs = |path: &&PathBuf| found.get(*path) != wanted.get(*path);
            let paths: Vec<_> = found.keys().chain(wanted.keys()).filter(differs).collect();
            write!(wrong, "files differ from list order: {paths:?}; ").unwrap();
        }
        let names: Vec<String> = graph.events.into_iter().map(|(name, _)| name).collect();
        let first = order.get_or_insert_with(|| names.clone());
        if *first != names {
            write!(wrong, "the order of events differs: {names:?}, not {first:?}").unwrap();
        }
        if !wrong.is_empty() {
            return Err(format!("parallelism {parallelism}: {wrong}"));
        }
    }
    Ok(())
}

#[test]
fn every_order_and_any_parallelism_leave_the_same_host() {
    let given: Option<u64> = std::env::var("ENSIGN_RANDOM").ok().and_then(|seed| seed.parse().ok());
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seeds = Mutex::new(SplitMix64::new(clock));
    let web = serve();
    let (began, wrong, counts) = (Instant::now(), Mutex::new(Vec::new()), Mutex::new((0_usize, 0_usize)));
    let check = || {
        let seed = given.unwrap_or_else(|| seeds.lock().unwrap().below(usize::MAX) as u64);
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        let mut dice = SplitMix64::new(seed);
        let maker = Maker::new(&mut dice, root.to_str().unwrap(), web.url("").trim_end_matches('/'));
        let resources = maker.valid_resources(MOST_RESOURCES);
        let mut counts = counts.lock().unwrap();
        (counts.0, counts.1) = (counts.0 + 1, counts.1 + resources.len());
        drop(counts);
        if let Err(why) = check_orders(directory.path(), &resources) {
            let text = serde_json::to_string_pretty(&resources).unwrap();
            wrong.lock().unwrap().push(format!("ENSIGN_RANDOM={seed}: {why}\n{text}"));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..if given.is_some() { 1 } else { 2 } {
            scope.spawn(|| {
                loop {
                    check();
                    if given.is_some() || began.elapsed() > TIME || !wrong.lock().unwrap().is_empty() {
                        break;
                    }
                }
            });
        }
    });
    let (manifests, resources) = counts.into_inner().unwrap();
    println!("{manifests} manifests with {resources} blocks of resources");
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
