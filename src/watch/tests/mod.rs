//! The hub with the real kernel, in temporary directories.
//!
//! The kernel queues an event before the system call of the change returns. So no test waits: a wait until now reports
//! everything.

mod mounts;
mod random;
mod simulated;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::host::inotify::ChangeKind;
use crate::host::systemd::is_booted;
use crate::model::WatchTarget;
use crate::watch::{Cause, Hub, HubOptions, PollReason, ResourceKey};

/// A hub and a directory for its test.
struct Bench {
    dir: tempfile::TempDir,
    hub: Hub,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), hub: Hub::open(HubOptions::default()).unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap().join(name)
    }

    fn write(&self, name: &str) {
        fs::write(self.at(name), name).unwrap();
    }

    fn mkdir(&self, name: &str) {
        fs::create_dir_all(self.at(name)).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.at(from), self.at(to)).unwrap();
    }

    fn link(&self, target: &str, name: &str) {
        symlink(target, self.at(name)).unwrap();
    }

    fn watch(&mut self, key: u32, name: &str) {
        let armed = self.hub.set(ResourceKey(key), &[WatchTarget::Path(self.at(name))]);
        assert_eq!(armed.polled, []);
    }

    fn watch_tree(&mut self, key: u32, name: &str) {
        let armed = self.hub.set(ResourceKey(key), &[WatchTarget::Tree(self.at(name))]);
        assert_eq!(armed.polled, []);
    }

    /// The reports so far.
    fn reports(&mut self) -> BTreeMap<u32, Cause> {
        let dirty = self.hub.wait(Some(Instant::now())).unwrap();
        dirty.into_iter().map(|dirty| (dirty.key.0, dirty.cause)).collect()
    }

    fn dirty(&mut self) -> Vec<u32> {
        self.reports().into_keys().collect()
    }

    /// Asserts that these resources, and no others, are reported.
    #[track_caller]
    fn expect(&mut self, keys: &[u32], when: &str) {
        assert_eq!(self.dirty(), keys, "{when}");
    }
}

#[test]
fn changes_of_a_file_have_their_kind() {
    let mut bench = Bench::new();
    bench.watch(1, "f");
    bench.write("other");
    bench.expect(&[], "another file");
    let path = bench.at("f");
    type Change = fn(&Path);
    let changes: [(Change, ChangeKind); 5] = [
        (|path| fs::write(path, "").unwrap(), ChangeKind::Created),
        (|path| fs::write(path, "x").unwrap(), ChangeKind::Content),
        (|path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap(), ChangeKind::Attributes),
        (|path| fs::rename(path.with_file_name("other"), path).unwrap(), ChangeKind::Moved),
        (|path| fs::remove_file(path).unwrap(), ChangeKind::Removed),
    ];
    for (change, kind) in changes {
        change(&path);
        let expected = Cause::Path { path: path.as_path().into(), kind };
        assert_eq!(bench.reports(), BTreeMap::from([(1, expected)]));
        bench.expect(&[], "each change once");
    }
}

#[test]
fn a_directory_is_an_object_without_its_entries() {
    let mut bench = Bench::new();
    bench.mkdir("d");
    bench.watch(1, "d");
    bench.write("d/f");
    bench.expect(&[], "an entry");
    fs::set_permissions(bench.at("d"), fs::Permissions::from_mode(0o700)).unwrap();
    bench.expect(&[1], "its mode");
    fs::remove_dir_all(bench.at("d")).unwrap();
    bench.expect(&[1], "its end");
}

#[test]
fn missing_parents_are_followed_as_they_appear() {
    let mut bench = Bench::new();
    bench.watch(1, "a/b/c/f");
    bench.mkdir("a");
    bench.expect(&[1], "the first parent");
    // No event tells of what is below a directory that was made in one step.
    bench.mkdir("a/b/c");
    bench.write("a/b/c/f");
    bench.expect(&[1], "the rest");
    bench.write("a/b/c/f");
    bench.expect(&[1], "the file");
    bench.write("a/b/c/g");
    bench.expect(&[], "a neighbour");
}

#[test]
fn a_file_in_place_of_a_parent_is_waited_out() {
    let mut bench = Bench::new();
    bench.mkdir("a/b");
    bench.write("a/b/f");
    bench.watch(1, "a/b/f");
    bench.rename("a", "away");
    bench.write("a");
    bench.expect(&[1], "a file replaced the directory");
    fs::remove_file(bench.at("a")).unwrap();
    bench.expect(&[1], "the file is gone");
    bench.write("away/b/f");
    bench.expect(&[], "the moved file");
    bench.mkdir("a/b");
    bench.expect(&[1], "new directories");
    bench.write("a/b/f");
    bench.expect(&[1], "the file in them");
}

#[test]
fn a_renamed_parent_is_noticed_both_ways() {
    let mut bench = Bench::new();
    bench.mkdir("a/b");
    bench.write("a/b/f");
    bench.watch(1, "a/b/f");
    let watches = bench.hub.stats().watches;
    bench.rename("a", "z");
    bench.expect(&[1], "away");
    assert_eq!(bench.hub.stats().watches, watches - 2);
    bench.write("z/b/f");
    bench.expect(&[], "the old object");
    bench.rename("z", "a");
    bench.expect(&[1], "back");
    assert_eq!(bench.hub.stats().watches, watches);
    bench.write("a/b/f");
    bench.expect(&[1], "the file");
}

#[test]
fn a_removed_and_recreated_directory_is_watched_again() {
    let mut bench = Bench::new();
    bench.mkdir("a");
    bench.write("a/f");
    bench.watch(1, "a/f");
    for _ in 0..3 {
        fs::remove_dir_all(bench.at("a")).unwrap();
        bench.mkdir("a");
        bench.expect(&[1], "another directory");
        bench.write("a/f");
        bench.expect(&[1], "the file in it");
    }
}

#[test]
fn a_link_and_its_destination_both_count() {
    let mut bench = Bench::new();
    bench.mkdir("real/deep");
    bench.mkdir("other");
    bench.write("real/deep/f");
    bench.link("real/deep", "middle");
    bench.link("middle/f", "end");
    bench.watch(1, "middle/f");
    bench.watch(2, "end");
    bench.write("real/deep/f");
    bench.expect(&[1, 2], "the file behind the links");
    bench.rename("real", "away");
    bench.expect(&[1, 2], "a parent of the destination");
    bench.write("away/deep/f");
    bench.expect(&[], "the old file");
    bench.mkdir("real/deep");
    bench.expect(&[1, 2], "a new destination");
    bench.write("real/deep/f");
    bench.expect(&[1, 2], "the new file");
    bench.link("other", "new");
    bench.rename("new", "middle");
    bench.expect(&[1, 2], "another link");
    bench.write("real/deep/f");
    bench.expect(&[], "the old destination");
    bench.write("other/f");
    bench.expect(&[1, 2], "the new destination");
}

#[test]
fn circles_of_links_end() {
    let mut bench = Bench::new();
    bench.link("b", "a");
    bench.link("a", "b");
    bench.link("self/x", "self");
    bench.watch(1, "a");
    bench.watch(2, "self/y");
    bench.write("c");
    bench.rename("c", "b");
    bench.expect(&[1], "the circle is cut");
    bench.write("b");
    bench.expect(&[1], "the destination");
    fs::remove_file(bench.at("self")).unwrap();
    bench.mkdir("self");
    bench.expect(&[2], "a directory");
    bench.write("self/y");
    bench.expect(&[2], "its file");
}

#[test]
fn trees_include_later_subdirectories() {
    let mut bench = Bench::new();
    bench.mkdir("t/a");
    bench.mkdir("outside/x/y");
    bench.watch_tree(1, "t");
    bench.watch(2, "t/a/f");
    bench.mkdir("t/b/c/d");
    bench.expect(&[1], "new directories");
    bench.write("t/b/c/d/f");
    bench.expect(&[1], "a file in the last of them");
    bench.rename("outside/x", "t/x");
    bench.expect(&[1], "a directory moved in");
    bench.write("t/x/y/f");
    bench.expect(&[1], "a file in it");
    bench.rename("t/x", "t/b/x");
    bench.expect(&[1], "moved within");
    bench.write("t/b/x/y/f");
    bench.expect(&[1], "a file in the moved one");
    bench.write("t/a/f");
    bench.expect(&[1, 2], "a file of another resource");
    bench.rename("t/b", "outside/b");
    bench.expect(&[1], "moved out");
    bench.write("outside/b/x/y/f");
    bench.expect(&[], "a file outside");
    fs::remove_dir_all(bench.at("t")).unwrap();
    bench.expect(&[1, 2], "the end of the tree");
    bench.mkdir("t/n");
    bench.expect(&[1, 2], "a new tree");
    bench.write("t/n/f");
    bench.expect(&[1], "a file of the new tree");
}

#[test]
fn a_tree_follows_a_link_at_its_root_and_none_below() {
    let mut bench = Bench::new();
    bench.mkdir("real/sub");
    bench.mkdir("other/sub");
    bench.link("real", "t");
    bench.link("../other", "real/l");
    bench.watch_tree(1, "t");
    bench.write("real/sub/f");
    bench.expect(&[1], "behind the root");
    bench.mkdir("real/new");
    bench.expect(&[1], "a new directory");
    bench.write("real/new/f");
    bench.expect(&[1], "a file in it");
    bench.write("other/sub/f");
    bench.expect(&[], "behind a link below");
    bench.watch(2, "t/l/sub/f");
    bench.write("other/sub/f");
    bench.expect(&[2], "a resource of its own");
}

#[test]
fn two_paths_to_one_directory_share_a_watch() {
    let mut bench = Bench::new();
    bench.mkdir("d");
    bench.link("d", "l");
    bench.watch(1, "d/f");
    let watches = bench.hub.stats().watches;
    bench.watch(2, "l/f");
    assert_eq!(bench.hub.stats().watches, watches);
    bench.write("d/f");
    bench.expect(&[1, 2], "one file");
    bench.hub.remove(ResourceKey(1));
    bench.write("d/f");
    bench.expect(&[2], "the other path");
}

#[test]
fn hard_links_are_watched_themselves() {
    let mut bench = Bench::new();
    bench.mkdir("a");
    bench.mkdir("b");
    bench.write("a/f");
    fs::hard_link(bench.at("a/f"), bench.at("b/g")).unwrap();
    bench.watch(1, "a/f");
    bench.write("b/g");
    bench.expect(&[1], "written under its other name");
    fs::remove_file(bench.at("b/g")).unwrap();
    bench.expect(&[1], "the number of links");
}

#[test]
fn targets_are_replaced_and_removed() {
    let mut bench = Bench::new();
    bench.mkdir("t/a/b/c");
    let none = bench.hub.stats();
    bench.watch(1, "f");
    let one = bench.hub.stats();
    bench.watch(1, "f");
    assert_eq!(bench.hub.stats(), one);
    let both = [WatchTarget::Path(bench.at("./x/../f")), WatchTarget::Tree(bench.at("t"))];
    bench.hub.set(ResourceKey(1), &both);
    assert_eq!(bench.hub.stats().watches, one.watches + 4);
    bench.write("f");
    bench.expect(&[1], "the first target");
    bench.write("t/a/b/c/f");
    bench.expect(&[1], "the second target");
    bench.watch_tree(2, "t/a");
    bench.watch(1, "g");
    assert_eq!(bench.hub.stats().watches, one.watches + 4, "the other tree needs them");
    bench.write("t/a/b/c/f");
    bench.expect(&[2], "the other tree");
    bench.write("f");
    bench.expect(&[], "no target any more");
    bench.write("g");
    bench.hub.remove(ResourceKey(1));
    bench.hub.remove(ResourceKey(2));
    bench.hub.remove(ResourceKey(3));
    bench.expect(&[], "no resources");
    assert_eq!(bench.hub.stats(), none);
}

#[test]
fn storms_are_bounded_and_end_in_one_report() {
    let mut bench = Bench::new();
    for at in 0..100 {
        bench.mkdir(&format!("t/{at}"));
        (0..20).for_each(|file| bench.write(&format!("t/{at}/{file}")));
    }
    bench.watch_tree(1, "t");
    bench.watch(2, "t/50/5");
    let watches = bench.hub.stats().watches;
    fs::remove_dir_all(bench.at("t")).unwrap();
    bench.expect(&[1, 2], "removed");
    assert_eq!(bench.hub.stats().watches, watches - 101);
    (0..100).for_each(|at| bench.mkdir(&format!("t/{at}")));
    bench.expect(&[1, 2], "made again");
    assert_eq!(bench.hub.stats().watches, watches);
}

/// The queue of an instance has a length that only the whole host can change.
#[test]
fn an_overflow_makes_all_dirty() {
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    if limit > 100_000 {
        return;
    }
    let mut bench = Bench::new();
    bench.mkdir("noise");
    bench.watch(1, "a/f");
    bench.watch(2, "noise/none");
    let (file, other) = (fs::File::create(bench.at("noise/x")).unwrap(), fs::File::create(bench.at("noise/y")).unwrap());
    bench.dirty();
    // Equal events in a row are one.
    for at in 0..=limit {
        [&file, &other][at % 2].set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    }
    bench.mkdir("a");
    let reports = bench.reports();
    assert_eq!(reports, BTreeMap::from([(1, Cause::Overflow), (2, Cause::Overflow)]));
    assert_eq!(bench.hub.stats().overflows, 1);
    bench.write("a/f");
    bench.expect(&[1], "armed again");
}

#[test]
fn a_waker_ends_a_wait() {
    let mut bench = Bench::new();
    bench.watch(1, "f");
    let waker = bench.hub.waker();
    let thread = std::thread::spawn(move || waker.wake());
    assert_eq!(bench.hub.wait(None).unwrap(), []);
    thread.join().unwrap();
}

#[test]
fn a_wait_ends_with_the_change() {
    let mut bench = Bench::new();
    bench.watch(1, "f");
    let path = bench.at("f");
    let thread = std::thread::spawn(move || fs::write(path, "").unwrap());
    let dirty = bench.hub.wait(None).unwrap();
    assert_eq!(dirty.iter().map(|dirty| dirty.key.0).collect::<Vec<_>>(), [1]);
    thread.join().unwrap();
}

#[test]
fn without_systemd_units_are_polled() {
    let mut bench = Bench {
        hub: Hub::open(HubOptions { fallback_poll: Duration::from_millis(20), ..HubOptions::default() }).unwrap(),
        ..Bench::new()
    };
    let unit = WatchTarget::Unit("ensign-test-none.service".to_owned());
    let armed = bench.hub.set(ResourceKey(1), std::slice::from_ref(&unit));
    if is_booted() {
        assert_eq!(armed.polled, []);
        return;
    }
    assert_eq!((armed.polled, bench.hub.stats().polled_keys), (vec![(unit, PollReason::NoSystemd)], 1));
    let dirty = bench.hub.wait(None).unwrap();
    assert_eq!(dirty.into_iter().map(|dirty| (dirty.key.0, dirty.cause)).collect::<Vec<_>>(), [(1, Cause::Poll)]);
}

#[test]
fn beyond_the_cap_of_watches_paths_are_polled() {
    let mut bench = Bench::new();
    bench.mkdir("a");
    bench.mkdir("b");
    bench.watch(1, "a/f");
    let options = HubOptions { fallback_poll: Duration::from_millis(20), max_watches: bench.hub.stats().watches };
    bench.hub = Hub::open(options).unwrap();
    bench.watch(1, "a/f");
    let target = WatchTarget::Path(bench.at("b/f"));
    let armed = bench.hub.set(ResourceKey(2), std::slice::from_ref(&target));
    assert_eq!(armed.polled, [(target, PollReason::WatchLimit)]);
    assert_eq!((bench.hub.stats().watches, bench.hub.stats().polled_keys), (options.max_watches, 1));
    bench.write("a/f");
    bench.expect(&[1], "the watched one is reported at once");
    let dirty = bench.hub.wait(None).unwrap();
    assert_eq!(dirty.into_iter().map(|dirty| (dirty.key.0, dirty.cause)).collect::<Vec<_>>(), [(2, Cause::Poll)]);
    // A watch becomes free.
    bench.hub.remove(ResourceKey(1));
    while bench.hub.stats().polled_keys > 0 {
        bench.hub.wait(None).unwrap();
    }
    bench.reports();
    bench.write("b/f");
    assert!(matches!(bench.reports().get(&2), Some(Cause::Path { .. })));
}

#[test]
fn intervals_are_reported_until_they_are_removed() {
    let mut bench = Bench::new();
    bench.hub.set(ResourceKey(1), &[WatchTarget::Poll(Duration::from_millis(20))]);
    for _ in 0..3 {
        let dirty = bench.hub.wait(None).unwrap();
        assert_eq!(dirty.into_iter().map(|dirty| (dirty.key.0, dirty.cause)).collect::<Vec<_>>(), [(1, Cause::Poll)]);
    }
    bench.hub.set(ResourceKey(1), &[]);
    assert_eq!(bench.hub.wait(Some(Instant::now() + Duration::from_millis(50))).unwrap(), []);
}
