//! Detects unit files that systemd has not loaded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::host::{Unit, fs};

/// True when systemd must reload its unit files to know the present files of this unit.
///
/// systemd reports changes of loaded files. systemd does not report a new file with precedence over the loaded file. Old versions
/// do not search again for units that were missing before.
pub(super) fn needs_daemon_reload(unit: &Unit, unit_path: &[String]) -> bool {
    if unit.outdated {
        return true;
    }
    if unit.load != "not-found" && has_new_drop_in(unit, unit_path) {
        return true;
    }
    let Some(first) = unit_file_names(&unit.id).iter().find_map(|name| first_of(name, unit_path)) else { return false };
    match unit.fragment.as_str() {
        "" => unit.load == "not-found",
        read => first != Path::new(read) && !is_same(&first, Path::new(read)),
    }
}

/// Returns the possible names of the unit file, by precedence: an instance of a template has two.
pub(super) fn unit_file_names(id: &str) -> Vec<String> {
    let template = id.split_once('@').zip(id.rsplit_once('.')).map(|((stem, _), (_, kind))| format!("{stem}@.{kind}"));
    [Some(id.to_owned()), template].into_iter().flatten().collect()
}

fn first_of(name: &str, unit_path: &[String]) -> Option<PathBuf> {
    unit_path.iter().map(|directory| Path::new(directory).join(name)).find(|path| fs::exists(path) || fs::is_symlink(path))
}

/// True for a new drop-in that systemd has not loaded, or that has precedence over a loaded one. systemd knows the directories at
/// its last load, and finds new files in these only.
fn has_new_drop_in(unit: &Unit, unit_path: &[String]) -> bool {
    let read = |name: &str| unit.drop_ins.split('/').any(|part| part.trim_end() == name || part.starts_with(&format!("{name} ")));
    drop_in_directories(unit).iter().any(|directory| {
        let at = |place: &String| Path::new(place).join(directory);
        let there = unit_path.iter().filter_map(|place| fs::list(&at(place)).ok()).flatten();
        let names = there.filter_map(|path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        names.filter(|name| name.ends_with(".conf")).collect::<BTreeSet<_>>().iter().any(|name| {
            let Some(first) = first_of(&format!("{directory}/{name}"), unit_path) else { return false };
            // A link to /dev/null masks a drop-in.
            let masks = fs::resolve_links(&first) == Path::new("/dev/null");
            let earlier = || unit_path.iter().map(at).map(|place| place.join(name)).find(|path| is_read(unit, path));
            if read(name) { earlier().is_some_and(|read| read != first && !is_same(&first, &read)) } else { !masks }
        })
    })
}

/// True when this file is among the loaded drop-ins.
fn is_read(unit: &Unit, path: &Path) -> bool {
    let path = path.display().to_string();
    unit.drop_ins.match_indices(&path).any(|(at, _)| matches!(unit.drop_ins.as_bytes().get(at + path.len()), None | Some(b' ')))
}

/// Returns the names of the drop-in directories of a unit. The names derive from the unit's names, its template, its prefixes up
/// to a dash, and its kind.
fn drop_in_directories(unit: &Unit) -> BTreeSet<String> {
    let all = unit.names.split_whitespace().chain([unit.id.as_str()]).flat_map(unit_file_names);
    all.flat_map(|name| {
        let (stem, kind) = name.rsplit_once('.').map_or((name.clone(), String::new()), |(s, k)| (s.to_owned(), k.to_owned()));
        let dashes: Vec<usize> = stem.match_indices('-').map(|(at, _)| at + 1).filter(|at| *at < stem.len()).collect();
        let begins = dashes.into_iter().filter_map(|end| stem.get(..end).map(|head| format!("{head}.{kind}.d")));
        begins.chain([format!("{name}.d"), format!("{kind}.d")]).collect::<Vec<_>>()
    })
    .collect()
}

/// Compares paths with links followed: `/lib` and `/usr/lib` are the same on many machines.
fn is_same(one: &Path, other: &Path) -> bool {
    fs::exists(one) && fs::resolve_links(one) == fs::resolve_links(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_with_precedence_needs_a_reload() {
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
        let outdated = |id: &str, load: &str, fragment: &str| needs_daemon_reload(&unit(id, load, fragment), &path);
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
        assert!(needs_daemon_reload(&Unit { outdated: true, ..Unit::default() }, &[]));
    }

    #[test]
    fn a_drop_in_that_was_not_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path).display().to_string();
        let path = [at("etc"), at("usr")];
        let unit = |id: &str, names: &str, read: &[&str]| Unit {
            id: id.into(),
            load: "loaded".into(),
            names: names.into(),
            drop_ins: read.iter().map(|path| at(path)).collect::<Vec<_>>().join(" "),
            ..Unit::default()
        };
        let outdated = |id: &str, names: &str, read: &[&str]| needs_daemon_reload(&unit(id, names, read), &path);
        let make = |file: &str| {
            std::fs::create_dir_all(Path::new(&at(file)).parent().unwrap()).unwrap();
            std::fs::write(at(file), "").unwrap();
        };
        assert!(!outdated("a-b.service", "", &[]));
        make("usr/a-b.service.d/note.txt");
        assert!(!outdated("a-b.service", "", &[]), "no drop-in");
        for (file, id, names) in [
            ("usr/a-b.service.d/own.conf", "a-b.service", ""),
            ("usr/c-.service.d/begin.conf", "c-d.service", ""),
            ("usr/other.service.d/alias.conf", "e.service", "e.service other.service"),
            ("usr/t@.service.d/template.conf", "t@x.service", ""),
            ("usr/socket.d/kind.conf", "f.socket", ""),
        ] {
            make(file);
            assert!(outdated(id, names, &[]), "{file}");
            assert!(!outdated(id, names, &[file]), "{file}");
        }
        make("etc/a-b.service.d/own.conf");
        assert!(outdated("a-b.service", "", &["usr/a-b.service.d/own.conf"]), "it goes before the other");
        assert!(!outdated("a-b.service", "", &["etc/a-b.service.d/own.conf"]));
        std::os::unix::fs::symlink("/dev/null", at("etc/a-b.service.d/none.conf")).unwrap();
        assert!(!outdated("a-b.service", "", &["etc/a-b.service.d/own.conf"]), "it takes nothing away");
        assert!(!outdated("g.service", "g.service", &[]), "nothing of it");
    }
}
