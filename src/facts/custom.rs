//! Facts that files add: `facts.json`, `facts.yaml` and `facts.d/` in a directory.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::diag;
use crate::host::fs;
use crate::yaml::{self, Document};

/// The facts in the files of a directory, in the order in which they are laid over each other.
///
/// Links are not followed: who may write to the directory shall not point facts at other files.
/// A file that can't be used is skipped, with a warning.
pub(super) fn read(directory: &Path, warnings: &mut Vec<String>) -> Vec<Value> {
    if directory.is_relative() {
        warnings.push(format!("facts in {}: the directory must be absolute", directory.display()));
        return Vec::new();
    }
    let mut files = vec![directory.join("facts.json"), directory.join("facts.yaml")];
    files.extend(dropped_in(&directory.join("facts.d"), warnings));
    files.iter().filter_map(|file| read_file(file, warnings)).collect()
}

/// The files of `facts.d`, by name.
fn dropped_in(directory: &Path, warnings: &mut Vec<String>) -> Vec<PathBuf> {
    if fs::is_symlink(directory) {
        warnings.push(format!("facts in {}: links are not followed", directory.display()));
        return Vec::new();
    }
    let listed = match fs::list(directory) {
        Ok(listed) => listed,
        Err(error) => {
            if !error.is_not_found() {
                warnings.push(format!("facts: {}", diag::chain(&error)));
            }
            return Vec::new();
        }
    };
    let is_facts = |path: &PathBuf| {
        let extension = path.extension().map(std::ffi::OsStr::to_ascii_lowercase);
        extension.is_some_and(|extension| extension == "json" || extension == "yaml") && !path.is_dir()
    };
    listed.into_iter().filter(is_facts).collect()
}

fn read_file(path: &Path, warnings: &mut Vec<String>) -> Option<Value> {
    if fs::is_symlink(path) {
        warnings.push(format!("facts in {}: links are not followed", path.display()));
        return None;
    }
    let text = match fs::read_text(path, yaml::MAX_BYTES as u64) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return None,
        Err(error) => {
            warnings.push(format!("facts: {}", diag::chain(&error)));
            return None;
        }
    };
    match Document::parse(&text, &path.display().to_string()).map(Document::into_value) {
        Ok(Value::Object(map)) => Some(Value::Object(map)),
        Ok(Value::Null) => None,
        Ok(_) => {
            warnings.push(format!("facts in {}: must be a map", path.display()));
            None
        }
        Err(error) => {
            warnings.push(format!("facts: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::gather;
    use super::*;
    use crate::host::Host;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn files_are_laid_over_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let (system, user) = (dir.path().join("system"), dir.path().join("user"));
        write(&system.join("facts.json"), r#"{"a": "json", "b": "json", "l": [1], "host": {"info": {"os": "mine"}}}"#);
        write(&system.join("facts.yaml"), "b: yaml\nl: [2]\nm: {x: 1}\n");
        write(&system.join("facts.d/10.YAML"), "c: ten\nm: {y: 2}\n");
        write(&system.join("facts.d/20.json"), r#"{"c": "twenty"}"#);
        write(&system.join("facts.d/30.yml"), "c: ignored\n");
        write(&system.join("facts.d/40.yaml"), "c: [broken\n");
        write(&system.join("facts.d/50.yaml"), "- no map\n");
        write(&system.join("facts.d/60.yaml/x.yaml"), "c: below\n");
        std::os::unix::fs::symlink(system.join("facts.yaml"), system.join("facts.d/70.yaml")).unwrap();
        write(&user.join("facts.yaml"), "a: user\n");
        std::os::unix::fs::symlink(system.join("facts.d"), user.join("facts.d")).unwrap();

        let gathered = gather(&Host::system(None), &[system, user, dir.path().join("none"), PathBuf::from("relative")]);
        let facts = &gathered.value;
        assert_eq!(facts["a"], "user");
        assert_eq!(facts["b"], "yaml");
        assert_eq!(facts["c"], "twenty");
        assert_eq!(facts["l"], json!([1, 2]));
        assert_eq!(facts["m"], json!({"x": 1, "y": 2}));
        assert_eq!(facts["host"]["info"]["os"], "mine");
        assert!(facts["host"]["info"]["hostname"].is_string());
        let warned = |part: &str| gathered.warnings.iter().any(|warning| warning.contains(part));
        for part in ["40.yaml", "50.yaml: must be a map", "70.yaml: links", "user/facts.d: links", "must be absolute"] {
            assert!(warned(part), "{part}: {:?}", gathered.warnings);
        }
        assert_eq!(gathered.warnings.len(), 5);
    }
}
