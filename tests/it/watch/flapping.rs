//! Fights and storms: the work of the program stays bounded.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Watching, count, file, site};
use crate::local::Desk;
use crate::support::skip::{no_namespaces, skip};

/// A process that undoes every repair, until the value is dropped.
fn fight<T>(desk: &Desk, during: impl FnOnce() -> T) -> T {
    let (path, is_over) = (desk.path("conf"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if fs::read_to_string(&path).is_ok_and(|text| text == "wanted\n") {
                    fs::write(&path, "drift").unwrap();
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        is_over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn a_fight_with_another_process_is_reported_and_slows_down() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", ""), &file("other", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    let repairs = || watching.words(0).iter().filter(|word| *word == "conf changed").count();
    fight(&desk, || {
        watching.until("the notice", || !watching.notices(0).is_empty());
        let notice = watching.notices(0).remove(0);
        assert!(notice.contains("conf is flapping: repaired 5 times within "), "{notice}");
        assert!(notice.contains("changed again each time"), "{notice}");
        // The pauses are 1, 2, 4, ... seconds: two repairs take three seconds at least.
        let (began, so_far) = (Instant::now(), repairs());
        watching.until("two repairs", || repairs() >= so_far + 2);
        assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(repairs() <= 9, "{}", repairs());
    });
    // The last word has the manifest.
    watching.repairs(&desk, "conf", "wanted\n");
    assert_eq!(watching.notices(0).len(), 1, "reported once");
    // Other resources are repaired at once, all the time.
    fs::write(desk.path("other"), "drift").unwrap();
    watching.repairs(&desk, "other", "wanted\n");
    assert_eq!(watching.stop(), Some(0));
}

/// The writer undoes many repairs before their verification, so that they fail.
#[test]
fn a_program_that_is_faster_than_a_verification_is_named() {
    let desk = Desk::new();
    let policy = ", policy: {delay: 50ms}";
    site(&desk, &[&format!("file: {{name: \"@D@/conf\", ensure: present, content: wanted, mode: \"0644\", @ME@{policy}}}")]);
    let watching = Watching::start(&desk, &[]);
    let fast = "while :; do echo drift >conf; done";
    let mut writer = Command::new("/bin/sh").args(["-c", fast]).current_dir(desk.path("")).spawn().unwrap();
    let pid = writer.id();
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        watching.until("the notice", || watching.notices(0).iter().any(|notice| notice.contains("conf is flapping")));
    }));
    writer.kill().unwrap();
    writer.wait().unwrap();
    told.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    watching.repairs(&desk, "conf", "wanted");
    let notice = watching.notices(0).remove(0);
    if has_system_capability() {
        assert!(notice.contains(&format!(", last by program sh (pid {pid}); checks now have pauses")), "{notice}");
    }
    assert_eq!(watching.stop(), Some(0));
}

/// True where the kernel names the processes that change files. Otherwise skips that part of the test.
fn has_system_capability() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let has = u64::from_str_radix(line.trim(), 16).unwrap() >> 21 & 1 == 1;
    if !has {
        skip(no_namespaces(), "cannot see the processes of other programs: CAP_SYS_ADMIN is missing");
    }
    has
}

/// Writes a file all the time for three seconds. Returns the number of writes.
fn storm(desk: &Desk, name: &str) -> usize {
    let (began, path, mut writes) = (Instant::now(), desk.path(name), 0);
    while began.elapsed() < Duration::from_secs(3) {
        fs::write(&path, format!("drift {writes}")).unwrap();
        writes += 1;
        if writes % 10 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    writes
}

#[test]
fn a_storm_of_writes_costs_a_bounded_number_of_checks() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", ""), &file("other", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    let before = watching.processor_time();
    let writes = storm(&desk, "conf");
    watching.repairs(&desk, "conf", "wanted\n");
    let spent = watching.processor_time().saturating_sub(before);
    let checks = count(&desk, "checks", "conf");
    // At most 50 checks a second before the flapping, which begins soon.
    assert!(writes > 1000 && checks < 100, "{writes} writes, {checks} checks");
    assert!(spent < Duration::from_secs(3), "{spent:?} for {writes} writes");
    assert!(count(&desk, "checks", "other") <= 2);
}

#[test]
fn a_storm_beside_a_managed_file_costs_no_check() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    let before = watching.processor_time();
    let writes = storm(&desk, "neighbour");
    let spent = watching.processor_time().saturating_sub(before);
    assert!(count(&desk, "checks", "conf") <= 2, "{writes} writes beside the file");
    assert!(spent < Duration::from_secs(3), "{spent:?} for {writes} writes");
    fs::write(desk.path("conf"), "drift").unwrap();
    watching.repairs(&desk, "conf", "wanted\n");
}
