//! The inputs of `tests/fuzz`, replayed: no panic, and an end within seconds.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest time of one input; libFuzzer has the same limit.
const LIMIT: Duration = Duration::from_secs(20);

fn files(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(directory);
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Runs a target on inputs, each with its name.
fn replay(inputs: impl IntoIterator<Item = (PathBuf, Vec<u8>)>, target: impl Fn(&[u8])) {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (name, input) in inputs {
        let began = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| target(&input))).is_err() {
            wrong.push(format!("{}: panics", name.display()));
        }
        if began.elapsed() > LIMIT {
            wrong.push(format!("{}: takes {:?}", name.display(), began.elapsed()));
        }
        count += 1;
    }
    assert!(count >= 50, "the corpus has only {count} inputs");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn corpus(target: &str) -> impl Iterator<Item = (PathBuf, Vec<u8>)> {
    files(&format!("fuzz/corpus/{target}")).into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap()))
}

/// Runs a target that takes text. Bytes that are no text are skipped.
fn text(target: fn(&str)) -> impl Fn(&[u8]) {
    move |bytes| _ = std::str::from_utf8(bytes).map(target)
}

#[test]
fn corpus_manifests_are_planned_or_refused() {
    replay(corpus("manifest"), text(targets::manifest));
}

#[test]
fn corpus_templates_end_in_time() {
    replay(corpus("template"), text(targets::template));
}

#[test]
fn corpus_archives_stay_within_their_directory() {
    replay(corpus("archive"), targets::archive);
}

#[test]
fn corpus_messages_survive_a_round_trip() {
    let vectors = files("vectors/attacks").into_iter().chain(files("vectors/v1")).map(|path| {
        let vector: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        (path, vector["message"].as_str().map_or_else(|| vector.to_string(), str::to_owned).into_bytes())
    });
    replay(vectors, targets::message);
}
