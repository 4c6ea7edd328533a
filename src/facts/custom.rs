//! Custom facts: files in directories of facts, which administrators write.
//!
//! Links are skipped: facts come from the configured directories, not from the target of a link.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::diag::error_chain;
use crate::host::fs::{self, FileKind};
use crate::yaml::{self, YamlDocument};

/// Returns the maps in the files of `directory`, in the order of merging.
pub(super) fn read(directory: &Path, warnings: &mut Vec<String>) -> Vec<Value> {
    if directory.is_relative() {
        warnings.push(format!("skipped the facts in {}: the path is not absolute", directory.display()));
        return Vec::new();
    }
    if !is_directory(directory, warnings) {
        return Vec::new();
    }
    let mut files = vec![directory.join("facts.json"), directory.join("facts.yaml")];
    let more = directory.join("facts.d");
    if is_directory(&more, warnings) {
        files.extend(fact_files(&more, warnings));
    }
    files.iter().filter_map(|file| map_in(file, warnings)).collect()
}

/// True for a directory itself; false without a warning when nothing is there.
fn is_directory(path: &Path, warnings: &mut Vec<String>) -> bool {
    match kind(path, warnings) {
        Some(FileKind::Directory) => true,
        Some(_) => {
            warnings.push(format!("skipped the facts in {}: it is not a directory", path.display()));
            false
        }
        None => false,
    }
}

/// Returns the kind of file at `path`. A link, or a path that can't be read, gives none and a warning.
fn kind(path: &Path, warnings: &mut Vec<String>) -> Option<FileKind> {
    if fs::is_symlink(path) {
        warnings.push(format!("skipped the facts in {}: it is a symbolic link", path.display()));
        return None;
    }
    match fs::stat(path, false) {
        Ok(look) => look.map(|look| look.kind),
        Err(error) => {
            warnings.push(format!("skipped the facts in {}: {}", path.display(), error_chain(&error)));
            None
        }
    }
}

/// Returns the entries of `facts.d` with the name of a fact file, by name.
fn fact_files(directory: &Path, warnings: &mut Vec<String>) -> Vec<PathBuf> {
    match fs::list(directory) {
        Ok(paths) => paths.into_iter().filter(|path| is_named(path, "json") || is_named(path, "yaml")).collect(),
        Err(error) => {
            warnings.push(format!("skipped the facts in {}: {}", directory.display(), error_chain(&error)));
            Vec::new()
        }
    }
}

fn is_named(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// Returns the map in a file. None when the file is missing, empty or, with a warning, not a map.
fn map_in(path: &Path, warnings: &mut Vec<String>) -> Option<Value> {
    let reason = match kind(path, warnings)? {
        FileKind::Directory => return None,
        FileKind::Other => "it is not a regular file".to_owned(),
        FileKind::File => match parse(path) {
            Ok(Value::Null) => return None,
            Ok(value) if value.is_object() => return Some(value),
            Ok(_) => "it does not hold a map".to_owned(),
            Err(reason) => reason,
        },
    };
    warnings.push(format!("skipped the facts in {}: {reason}", path.display()));
    None
}

fn parse(path: &Path) -> Result<Value, String> {
    let text = fs::read_regular_text(path, yaml::MAX_BYTES as u64).map_err(|error| error_chain(&error))?;
    fs::check_trusted(path).map_err(|error| error_chain(&error))?;
    // JSON has escapes that YAML lacks: pairs of surrogates.
    if is_named(path, "json") && !text.trim().is_empty() {
        return serde_json::from_str(&text).map_err(|error| error.to_string());
    }
    let document = YamlDocument::parse(&text, &path.to_string_lossy()).map_err(|wrong| match wrong.place {
        // The line itself stays out: it may hold secrets.
        Some(place) => format!("{} at line {} column {}", wrong.message, place.line, place.column),
        None => wrong.message,
    })?;
    Ok(document.into_value())
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, write};
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;
    use crate::model::merge::deep_merge;

    /// The merged facts of `directories`, and how many warnings there were.
    fn merged(directories: &[&Path]) -> (Value, Vec<String>) {
        let mut warnings = Vec::new();
        let facts = directories.iter().flat_map(|directory| read(directory, &mut warnings)).collect::<Vec<_>>();
        (facts.into_iter().fold(json!({}), deep_merge), warnings)
    }

    #[test]
    fn later_files_and_directories_win_and_lists_join() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(one.path().join("facts.yaml"), "from: yaml\nlist: [b]\nmap: {b: 2}\n").unwrap();
        write(one.path().join("facts.json"), r#"{"from": "json", "list": ["a"], "map": {"a": 1}, "smile": "\ud83d\ude00"}"#)
            .unwrap();
        create_dir(one.path().join("facts.d")).unwrap();
        write(one.path().join("facts.d/20.JSON"), "{\n\t\"order\": 20, \"list\": [\"d\"]}").unwrap();
        write(one.path().join("facts.d/10.yaml"), "order: 10\nlist: [c]\n").unwrap();
        write(one.path().join("facts.d/30.yml"), "order: 30\n").unwrap();
        write(one.path().join("facts.d/40.txt"), "order: 40\n").unwrap();
        create_dir(one.path().join("facts.d/50.yaml")).unwrap();
        write(two.path().join("facts.json"), r#"{"map": "replaced", "list": ["e"]}"#).unwrap();
        let (facts, warnings) = merged(&[one.path(), two.path()]);
        let expected = json!({"from": "yaml", "list": ["a", "b", "c", "d", "e"], "map": "replaced", "order": 20, "smile": "😀"});
        assert_eq!(facts, expected);
        assert_eq!(warnings, Vec::<String>::new());
    }

    #[test]
    fn skipped_files_are_warnings() {
        let real = tempfile::tempdir().unwrap();
        write(real.path().join("facts.yaml"), "a: 1\n").unwrap();
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        write(at("facts.json"), "{\"a\": ").unwrap();
        symlink(real.path().join("facts.yaml"), at("facts.yaml")).unwrap();
        create_dir(at("facts.d")).unwrap();
        write(at("facts.d/1.yaml"), "a: [secret\n").unwrap();
        write(at("facts.d/2.yaml"), "- a\n").unwrap();
        write(at("facts.d/3.json"), [0xff, 0xfe]).unwrap();
        nix::unistd::mkfifo(&at("facts.d/4.json"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        symlink(real.path().join("facts.yaml"), at("facts.d/5.yaml")).unwrap();
        write(at("facts.d/6.yaml"), "").unwrap();
        write(at("facts.d/7.json"), "\n").unwrap();
        write(at("facts.d/8.yaml"), "good: true\n").unwrap();
        let (facts, warnings) = merged(&[place.path()]);
        assert_eq!(facts, json!({"good": true}));
        let expected = [
            ("facts.json", "EOF"),
            ("facts.yaml", "symbolic link"),
            ("1.yaml", "line"),
            ("2.yaml", "a map"),
            ("3.json", "UTF-8"),
            ("4.json", "not a regular file"),
            ("5.yaml", "symbolic link"),
        ];
        assert_eq!(warnings.len(), expected.len(), "{warnings:#?}");
        for (name, reason) in expected {
            assert!(warnings.iter().any(|text| text.contains(name) && text.contains(reason)), "{name}: {warnings:#?}");
        }
        assert!(!warnings.iter().any(|text| text.contains("secret")));
    }

    #[test]
    fn directories_are_absolute_and_no_links() {
        let place = tempfile::tempdir().unwrap();
        let (real, link, file) = (place.path().join("real"), place.path().join("link"), place.path().join("file"));
        create_dir(&real).unwrap();
        write(real.join("facts.yaml"), "a: 1\n").unwrap();
        symlink(&real, &link).unwrap();
        write(&file, "").unwrap();
        let linked = place.path().join("linked");
        create_dir(&linked).unwrap();
        symlink(&real, linked.join("facts.d")).unwrap();
        let cases = [
            (real.as_path(), json!({"a": 1}), None),
            (&link, json!({}), Some("symbolic link")),
            (&file, json!({}), Some("not a directory")),
            (&linked, json!({}), Some("symbolic link")),
            (Path::new("relative"), json!({}), Some("not absolute")),
            (&place.path().join("none"), json!({}), None),
        ];
        for (directory, expected, warning) in cases {
            let (facts, warnings) = merged(&[directory]);
            assert_eq!(facts, expected, "{}", directory.display());
            assert_eq!(warnings.len(), usize::from(warning.is_some()), "{warnings:?}");
            assert!(warnings.iter().all(|text| text.contains(warning.unwrap())), "{warnings:?}");
        }
    }
}
