//! Drift of resources, and its repair.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use super::{Watching, count, file, reload, site};
use crate::local::Desk;
use crate::support::skip::is_root;

/// A change of the managed file `conf` by somebody else.
type Drift = (&'static str, fn(&Path));

const DRIFTS: &[Drift] = &[
    ("overwritten", |path| fs::write(path, "drift").unwrap()),
    ("emptied", |path| drop(fs::File::create(path).unwrap())),
    ("deleted", |path| fs::remove_file(path).unwrap()),
    ("another mode", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap()),
    ("a new file was renamed over it", |path| {
        fs::write(path.with_extension("new"), "drift").unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    }),
    ("renamed away", |path| fs::rename(path, path.with_extension("old")).unwrap()),
];

#[test]
fn every_drift_of_a_file_is_repaired_and_no_other_resource_is_checked() {
    let desk = Desk::new();
    let (conf, other) = (file("conf", "wanted", ""), file("other", "wanted", ""));
    site(&desk, &[&conf, &other, &reload("reload", "echo reloaded >> log", "[\"file#@D@/conf\"]")]);
    let watching = Watching::start(&desk, &[]);
    for (number, (name, drift)) in DRIFTS.iter().enumerate() {
        let before = watching.now();
        drift(&desk.path("conf"));
        watching.sees(before, "reload refreshed");
        watching.repairs(&desk, "conf", "wanted\n");
        assert_eq!(watching.words(before), ["conf changed", "reload refreshed"], "{name}");
        assert_eq!(count(&desk, "log", "reloaded"), number + 2, "{name}");
    }
    assert_eq!(fs::metadata(desk.path("conf")).unwrap().mode() & 0o777, 0o644);
    // The program's own write costs at most one more check.
    assert!(count(&desk, "checks", "other") <= 2, "only the first pass checks what did not change");
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn another_owner_is_repaired() {
    if !is_root("another owner") {
        return;
    }
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    chown(desk.path("conf"), Some(1), Some(1)).unwrap();
    watching.until("the owner", || fs::metadata(desk.path("conf")).is_ok_and(|found| (found.uid(), found.gid()) == (0, 0)));
}

#[test]
fn a_link_in_the_place_of_a_file_is_replaced() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", "")]);
    fs::write(desk.path("elsewhere"), "elsewhere").unwrap();
    let watching = Watching::start(&desk, &[]);
    symlink("elsewhere", desk.path("new")).unwrap();
    fs::rename(desk.path("new"), desk.path("conf")).unwrap();
    watching.until("a file", || fs::symlink_metadata(desk.path("conf")).is_ok_and(|found| found.is_file()));
    watching.repairs(&desk, "conf", "wanted\n");
    assert_eq!(fs::read_to_string(desk.path("elsewhere")).unwrap(), "elsewhere");
}

#[test]
fn a_directory_in_the_place_of_a_file_is_a_failure_until_it_goes() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", ""), &file("other", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    let before = watching.now();
    fs::create_dir_all(desk.path("new/sub")).unwrap();
    fs::rename(desk.path("conf"), desk.path("old")).and_then(|()| fs::rename(desk.path("new"), desk.path("conf"))).unwrap();
    watching.sees(before, "conf failed");
    fs::remove_dir_all(desk.path("conf")).unwrap();
    watching.repairs(&desk, "conf", "wanted\n");
}

#[test]
fn a_removed_tree_of_1000_files_is_repaired() {
    const FILES: usize = 1000;
    let desk = Desk::new();
    let tree = "file: {name: \"@D@/tree\", ensure: directory, mode: \"0755\", @ME@}".to_owned();
    let one = |number| {
        format!("file: {{name: \"@D@/tree/{number}\", ensure: present, content: \"{number}\\n\", mode: \"0644\", @ME@}}")
    };
    let resources: Vec<String> = std::iter::once(tree).chain((0..FILES).map(one)).collect();
    site(&desk, &resources.iter().map(String::as_str).collect::<Vec<_>>());
    let watching = Watching::start(&desk, &[]);
    let before = watching.now();
    // The repair may come so soon that the directory is no longer empty.
    let _result = fs::remove_dir_all(desk.path("tree"));
    let is_whole = || (0..FILES).all(|one| fs::read_to_string(desk.path("tree").join(one.to_string())).is_ok());
    watching.until("the whole tree", is_whole);
    watching.until("the events", || watching.words(before).iter().filter(|word| word.ends_with(" changed")).count() >= FILES);
}

#[test]
fn a_parent_that_goes_and_comes_is_followed() {
    let desk = Desk::new();
    fs::create_dir_all(desk.path("a/b")).unwrap();
    site(&desk, &[&file("a/b/conf", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    let before = watching.now();
    fs::rename(desk.path("a"), desk.path("away")).unwrap();
    watching.sees(before, "conf failed");
    // What happens at the other place is nothing to the manifest.
    fs::write(desk.path("away/b/conf"), "elsewhere").unwrap();
    fs::rename(desk.path("away"), desk.path("a")).unwrap();
    watching.repairs(&desk, "a/b/conf", "wanted\n");
    // Another directory, later.
    fs::rename(desk.path("a"), desk.path("away")).unwrap();
    fs::create_dir_all(desk.path("a/b")).unwrap();
    watching.repairs(&desk, "a/b/conf", "wanted\n");
    fs::write(desk.path("a/b/conf"), "drift").unwrap();
    watching.repairs(&desk, "a/b/conf", "wanted\n");
}

#[test]
fn a_parent_that_comes_later_unblocks_a_file() {
    let desk = Desk::new();
    site(&desk, &[&file("a/b/conf", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    watching.sees(0, "conf failed");
    fs::create_dir_all(desk.path("a/b")).unwrap();
    watching.repairs(&desk, "a/b/conf", "wanted\n");
    let before = watching.now();
    fs::write(desk.path("a/b/conf"), "drift").unwrap();
    watching.sees(before, "conf changed");
}

#[test]
fn a_removed_line_is_added_again() {
    let desk = Desk::new();
    fs::write(desk.path("hosts"), "first\n").unwrap();
    site(&desk, &["line: {name: entry, path: \"@D@/hosts\", line: \"wanted\", ensure: present}"]);
    let watching = Watching::start(&desk, &[]);
    watching.repairs(&desk, "hosts", "first\nwanted\n");
    fs::write(desk.path("hosts"), "second\n").unwrap();
    watching.repairs(&desk, "hosts", "second\nwanted\n");
    fs::remove_file(desk.path("hosts")).unwrap();
    fs::write(desk.path("hosts"), "third\n").unwrap();
    watching.repairs(&desk, "hosts", "third\nwanted\n");
}

#[test]
fn a_link_that_points_elsewhere_is_repaired() {
    let desk = Desk::new();
    site(&desk, &["symlink: {name: \"@D@/link\", target: \"@D@/one\"}"]);
    let watching = Watching::start(&desk, &[]);
    let points = || fs::read_link(desk.path("link")).is_ok_and(|target| target == desk.path("one"));
    assert!(points());
    for drift in [
        |path: &Path| fs::remove_file(path).unwrap(),
        |path: &Path| {
            symlink("two", path.with_extension("new")).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        },
    ] {
        let before = watching.now();
        drift(&desk.path("link"));
        watching.sees(before, "link changed");
        assert!(points());
    }
}

#[test]
fn a_change_during_a_check_causes_one_more_check() {
    let desk = Desk::new();
    let check = "/bin/sh -c 'touch @D@/busy; until [ -e @D@/open ]; do sleep 0.02; done'";
    site(
        &desk,
        &[&format!(
            "file: {{name: \"@D@/conf\", ensure: present, content: \"wanted\\n\", mode: \"0644\", @ME@, \
             health_checks: [{{command: \"{check}\"}}]}}"
        )],
    );
    let watching = Watching::spawn(desk.command(&["apply", "--watch", "site.yaml", "--output", "jsonl"]));
    watching.until("the health check", || desk.path("busy").exists());
    fs::write(desk.path("conf"), "drift").unwrap();
    fs::write(desk.path("open"), "").unwrap();
    watching.repairs(&desk, "conf", "wanted\n");
    watching.until("two changes", || watching.words(0) == ["conf changed", "conf changed"]);
}

#[test]
fn a_command_is_polled_as_its_policy_says() {
    let desk = Desk::new();
    let exec = "exec: {name: build, command: \"touch state\", provider: shell, cwd: \"@D@\", unless: \"test -e @D@/state\"";
    site(&desk, &[&format!("{exec}, policy: {{poll: 100ms}}}}")]);
    let watching = Watching::start(&desk, &[]);
    for _ in 0..2 {
        fs::remove_file(desk.path("state")).unwrap();
        watching.until("the command", || desk.path("state").exists());
    }
}

#[test]
fn the_source_of_a_file_is_watched() {
    let desk = Desk::new();
    fs::write(desk.path("source"), "one\n").unwrap();
    site(&desk, &["file: {name: \"@D@/copy\", ensure: present, source: \"@D@/source\", mode: \"0644\", @ME@}"]);
    let watching = Watching::start(&desk, &[]);
    watching.repairs(&desk, "copy", "one\n");
    fs::write(desk.path("source"), "two\n").unwrap();
    watching.repairs(&desk, "copy", "two\n");
}

#[test]
fn a_removed_result_of_a_command_is_created_again() {
    let desk = Desk::new();
    site(&desk, &["exec: {name: build, command: \"echo built > built\", provider: shell, cwd: \"@D@\", creates: \"@D@/built\"}"]);
    let watching = Watching::start(&desk, &[]);
    for _ in 0..2 {
        fs::remove_file(desk.path("built")).unwrap();
        watching.repairs(&desk, "built", "built\n");
    }
}

#[test]
fn a_recursive_directory_is_watched_below_and_purged() {
    let desk = Desk::new();
    fs::create_dir_all(desk.path("source/sub")).unwrap();
    fs::write(desk.path("source/sub/one"), "one\n").unwrap();
    site(
        &desk,
        &[
            "file: {name: \"@D@/copy\", ensure: directory, source: \"@D@/source\", recurse: true, purge: true, mode: \"0755\", @ME@}",
        ],
    );
    let watching = Watching::start(&desk, &[]);
    watching.repairs(&desk, "copy/sub/one", "one\n");
    fs::write(desk.path("copy/sub/stray"), "stray").unwrap();
    watching.until("the purge", || !desk.path("copy/sub/stray").exists());
    // A directory that comes later, with a file in it.
    fs::create_dir(desk.path("source/later")).unwrap();
    fs::write(desk.path("source/later/two"), "two\n").unwrap();
    watching.repairs(&desk, "copy/later/two", "two\n");
    fs::write(desk.path("copy/later/two"), "drift").unwrap();
    watching.repairs(&desk, "copy/later/two", "two\n");
    fs::create_dir_all(desk.path("copy/x/y")).unwrap();
    watching.until("the purge of directories", || !desk.path("copy/x").exists());
}
