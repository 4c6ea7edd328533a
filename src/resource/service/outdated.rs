//! Whether what systemd has in memory of a unit is what its files say.

use std::path::{Path, PathBuf};

use crate::host::Unit;

/// True when systemd has to read its unit files again to know this unit as it is on disk.
///
/// systemd tells when the files that it has read have changed. It does not tell that a file has come which goes before
/// the one that it has read, and old ones do not look for units that they did not find before.
pub(super) fn is_outdated(unit: &Unit, unit_path: &[String]) -> bool {
    if unit.outdated {
        return true;
    }
    let Some(first) = names(&unit.id).iter().find_map(|name| first_of(name, unit_path)) else { return false };
    match unit.fragment.as_str() {
        "" => unit.load == "not-found",
        read => first != Path::new(read) && !is_same(&first, Path::new(read)),
    }
}

/// The files that a unit can come from, the first with precedence: an instance of a template has two.
fn names(id: &str) -> Vec<String> {
    let template = id.split_once('@').zip(id.rsplit_once('.')).map(|((stem, _), (_, kind))| format!("{stem}@.{kind}"));
    [Some(id.to_owned()), template].into_iter().flatten().collect()
}

fn first_of(name: &str, unit_path: &[String]) -> Option<PathBuf> {
    unit_path.iter().map(|directory| Path::new(directory).join(name)).find(|path| path.symlink_metadata().is_ok())
}

/// Links followed: `/lib` and `/usr/lib` are the same on many machines.
fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_goes_before_the_one_that_was_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path).display().to_string();
        for sub in ["etc", "usr"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        std::os::unix::fs::symlink(at("usr"), at("lib")).unwrap();
        let path = [at("etc"), at("usr")];
        let make = |file: &str| std::fs::write(at(file), "").unwrap();
        let unit = |id: &str, load: &str, fragment: &str| Unit {
            id: id.into(),
            load: load.into(),
            fragment: if fragment.is_empty() { String::new() } else { at(fragment) },
            ..Unit::default()
        };
        let outdated = |id: &str, load: &str, fragment: &str| is_outdated(&unit(id, load, fragment), &path);
        assert!(!outdated("a.service", "not-found", ""));
        make("usr/a.service");
        assert!(outdated("a.service", "not-found", ""));
        assert!(!outdated("a.service", "loaded", "usr/a.service"));
        assert!(!outdated("a.service", "loaded", "lib/a.service"), "the same directory by another name");
        make("etc/a.service");
        assert!(outdated("a.service", "loaded", "usr/a.service"));
        assert!(!outdated("a.service", "loaded", "etc/a.service"));
        assert!(!outdated("a.service", "masked", ""));
        make("usr/t@.service");
        assert!(!outdated("t@x.service", "loaded", "usr/t@.service"));
        make("usr/t@x.service");
        assert!(outdated("t@x.service", "loaded", "usr/t@.service"));
        assert!(!outdated("run-u1.service", "loaded", "etc/transient"), "no file in the path");
        assert!(is_outdated(&Unit { outdated: true, ..Unit::default() }, &[]));
    }
}
