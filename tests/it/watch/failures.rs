//! Subscribers, requirements and failures, while a manifest is kept in force.

use std::fs;
use std::time::{Duration, Instant};

use super::{JSONL, Watching, count, file, reload, site};
use crate::local::Desk;

#[test]
fn a_subscriber_of_two_resources_is_refreshed_when_either_drifts() {
    let desk = Desk::new();
    let [a, b] = ["a", "b"].map(|name| file(name, "wanted", ""));
    site(&desk, &[&a, &b, &reload("reload", "echo reloaded >> log", "[\"file#@D@/a\", \"file#@D@/b\"]")]);
    let watching = Watching::start(&desk, &[]);
    assert_eq!(count(&desk, "log", "reloaded"), 1, "one refresh for both");
    for (number, name) in ["a", "b"].iter().enumerate() {
        let before = watching.now();
        fs::write(desk.path(name), "drift").unwrap();
        watching.sees(before, "reload refreshed");
        assert_eq!(watching.words(before), [format!("{name} changed"), "reload refreshed".to_owned()]);
        assert_eq!(count(&desk, "log", "reloaded"), number + 2);
    }
}

#[test]
fn a_refresh_survives_the_failure_of_the_subscriber() {
    let desk = Desk::new();
    site(&desk, &[&file("a", "wanted", ""), &reload("reload", "test -e open && echo reloaded >> log", "[\"file#@D@/a\"]")]);
    let watching = Watching::start(&desk, &[]);
    watching.sees(0, "reload failed");
    fs::write(desk.path("open"), "").unwrap();
    watching.sees(0, "reload refreshed");
    assert_eq!(count(&desk, "log", "reloaded"), 1);
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn a_refresh_survives_a_kill_and_a_restart() {
    let desk = Desk::new();
    let resources = [file("a", "wanted", ""), reload("reload", "test -e open && echo reloaded >> log", "[\"file#@D@/a\"]")];
    site(&desk, &[&resources[0], &resources[1]]);
    let watching = Watching::start(&desk, &[]);
    watching.sees(0, "reload failed");
    drop(watching);
    fs::write(desk.path("open"), "").unwrap();
    let watching = Watching::start(&desk, &[]);
    watching.sees(0, "reload refreshed");
    assert_eq!((count(&desk, "log", "reloaded"), watching.words(0)[0].as_str()), (1, "a stable"));
    drop(watching);
    let watching = Watching::start(&desk, &[]);
    assert_eq!((count(&desk, "log", "reloaded"), watching.stop()), (1, Some(0)), "the refresh is no longer pending");
}

#[test]
fn a_failed_requirement_blocks_and_its_success_unblocks() {
    let desk = Desk::new();
    let below = file("below", "wanted", ", require: [\"file#@D@/dir/a\"]");
    site(&desk, &[&file("dir/a", "wanted", ""), &below, &file("other", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    assert_eq!(watching.words(0), ["a failed", "below unmet", "other changed"]);
    fs::write(desk.path("below"), "drift").unwrap();
    let before = watching.now();
    fs::create_dir(desk.path("dir")).unwrap();
    watching.repairs(&desk, "below", "wanted\n");
    watching.sees(before, "below changed");
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn a_failure_is_tried_again_with_growing_pauses_and_repaired_by_an_event() {
    let desk = Desk::new();
    site(&desk, &[&file("dir/a", "wanted", "")]);
    let began = Instant::now();
    let watching = Watching::start(&desk, &[]);
    let failures = || watching.words(0).iter().filter(|word| *word == "a failed").count();
    watching.until("two tries", || failures() >= 3);
    // The pauses are 1, 2, 4, ... seconds.
    assert!(began.elapsed() >= Duration::from_secs(3));
    let (seconds, tries) = (began.elapsed().as_secs() + 1, failures());
    assert!(tries <= 2 + seconds.next_power_of_two().ilog2() as usize, "{tries} tries in {seconds} s");
    fs::create_dir(desk.path("dir")).unwrap();
    watching.repairs(&desk, "dir/a", "wanted\n");
    watching.sees(0, "a changed");
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn tries_that_are_used_up_are_reported_and_an_event_tries_again() {
    let desk = Desk::new();
    site(&desk, &[&file("dir/a", "wanted", ", policy: {retry: 1, delay: 50ms}")]);
    let watching = Watching::start(&desk, &[]);
    watching.until("the notice", || !watching.notices(0).is_empty());
    let notices = watching.notices(0);
    assert!(notices[0].ends_with("failed 2 times; the next event or sweep tries again"), "{notices:?}");
    fs::create_dir(desk.path("dir")).unwrap();
    watching.repairs(&desk, "dir/a", "wanted\n");
    watching.sees(0, "a changed");
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn fail_on_error_ends_a_pass_and_not_the_watch() {
    let desk = Desk::new();
    let items: String =
        [file("dir/a", "wanted", ""), file("b", "wanted", "")].iter().map(|item| format!("    - {item}\n")).collect();
    desk.write("site.yaml", &format!("ccm:\n  fail_on_error: true\n  resources:\n{items}"));
    let command = desk.command(&[&["apply", "--watch", "site.yaml"], JSONL].concat());
    let watching = Watching::spawn(command);
    watching.sees(0, "a failed");
    fs::create_dir(desk.path("dir")).unwrap();
    watching.repairs(&desk, "dir/a", "wanted\n");
    watching.repairs(&desk, "b", "wanted\n");
    watching.sees(0, "b changed");
    assert_eq!(watching.stop(), Some(0));
}
