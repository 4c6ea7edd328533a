//! Random manifests and random drift: a watch ends where a plain run ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Watching, site};
use crate::local::Desk;

/// The directories of managed files.
const PLACES: &[&str] = &["", "d/", "d/e/"];

/// A managed file: its directory, and its content if present.
type Managed = (usize, Option<u8>);
/// A change of a managed file by number: its kind.
type Drift = (usize, u8);

fn name(number: usize, (place, _): Managed) -> String {
    format!("root/{}f{number}", PLACES[place])
}

fn resources(files: &[Managed]) -> Vec<String> {
    let directories = ["root", "root/d", "root/d/e"]
        .map(|name| format!("file: {{name: \"@D@/{name}\", ensure: directory, mode: \"0755\", @ME@}}"));
    let file = |(number, managed): (usize, &Managed)| {
        let name = name(number, *managed);
        match managed.1 {
            Some(content) => {
                format!("file: {{name: \"@D@/{name}\", ensure: present, content: \"{content}\\n\", mode: \"0644\", @ME@}}")
            }
            None => format!("file: {{name: \"@D@/{name}\", ensure: absent}}"),
        }
    };
    directories.into_iter().chain(files.iter().enumerate().map(file)).collect()
}

fn drift(desk: &Desk, files: &[Managed], (number, kind): Drift) {
    let number = number % files.len();
    let path = desk.path(&name(number, files[number]));
    // The change may be impossible, when an earlier one removed the directory.
    let _result = match kind {
        0 => fs::write(&path, "drift"),
        1 => fs::remove_file(&path),
        2 => fs::remove_dir_all(desk.path("root/d")),
        3 => fs::rename(&path, desk.path("root/stray")),
        4 => fs::rename(desk.path("root/d"), desk.path("away")).and_then(|()| fs::rename(desk.path("away"), desk.path("root/d"))),
        _ => fs::remove_dir_all(desk.path("root")),
    };
}

/// The managed files, as the manifest wants them.
fn wanted(files: &[Managed]) -> BTreeMap<String, Option<String>> {
    files
        .iter()
        .enumerate()
        .map(|(number, managed)| (name(number, *managed), managed.1.map(|content| format!("{content}\n"))))
        .collect()
}

fn found(root: &Path, files: &[Managed]) -> BTreeMap<String, Option<String>> {
    let content = |(number, managed): (usize, &Managed)| {
        let name = name(number, *managed);
        let text = fs::read_to_string(root.join(&name)).ok();
        (name, text)
    };
    files.iter().enumerate().map(content).collect()
}

#[test]
fn after_random_drift_a_watch_ends_where_a_plain_run_ends() {
    let files = prop::collection::vec((0..PLACES.len(), prop::option::of(0..9_u8)), 1..12);
    let drifts = prop::collection::vec((0..12_usize, 0..6_u8), 1..12);
    let mut runner = TestRunner::new(Config { cases: 30, failure_persistence: None, max_shrink_iters: 20, ..Config::default() });
    let result = runner.run(&(files, drifts), |(files, drifts)| {
        let desk = Desk::new();
        let items = resources(&files);
        site(&desk, &items.iter().map(String::as_str).collect::<Vec<_>>());
        let watching = Watching::start(&desk, &[]);
        drifts.iter().for_each(|one| drift(&desk, &files, *one));
        let has_directories = || PLACES.iter().all(|place| desk.path("root").join(place).is_dir());
        watching.until("the wanted state", || has_directories() && found(&desk.path(""), &files) == wanted(&files));
        // A retry that is due later may still be open.
        let code = watching.stop();
        prop_assert!(matches!(code, Some(0 | 1)), "{code:?}");
        // Nothing is left to a plain run.
        let plain = desk.run(&["apply", "site.yaml", "--detailed-exitcodes"]);
        prop_assert_eq!(plain.code, Some(0), "{:?}", plain);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
