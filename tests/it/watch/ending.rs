//! The end of a watch, its exit codes, and watches beside each other.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{Watching, count, file, site};
use crate::local::{Desk, finish};
use crate::support::processes::{descendants, is_alive};
use crate::support::single_node::PATIENCE;

#[test]
fn a_signal_ends_the_program_at_once() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let desk = Desk::new();
        site(&desk, &[&file("conf", "wanted", "")]);
        let mut watching = Watching::start(&desk, &[]);
        watching.signal(signal);
        let began = Instant::now();
        assert_eq!(watching.ends(), Some(0), "{signal}");
        assert!(began.elapsed() < Duration::from_secs(5), "{signal}: {:?}", began.elapsed());
    }
}

#[test]
fn a_signal_ends_the_command_of_a_resource_with_everything_it_started() {
    let desk = Desk::new();
    site(&desk, &["exec: {name: slow, command: \"touch begun; sleep 1000; true\", provider: shell, cwd: \"@D@\"}"]);
    let mut watching = Watching::spawn(desk.command(&["apply", "--watch", "site.yaml"]));
    watching.until("the command", || desk.path("begun").exists());
    let started = descendants(watching.child.id());
    assert!(!started.is_empty());
    watching.signal(Signal::SIGTERM);
    assert_eq!(watching.ends(), Some(4), "the manifest was never applied as a whole: {}", watching.err());
    watching.until("the end of all processes", || !started.iter().any(|process| is_alive(*process)));
}

#[test]
fn the_exit_code_tells_if_something_fails_now() {
    let desk = Desk::new();
    site(&desk, &[&file("dir/a", "wanted", "")]);
    let watching = Watching::start(&desk, &[]);
    assert_eq!(watching.stop(), Some(1));
    let watching = Watching::start(&desk, &[]);
    fs::create_dir(desk.path("dir")).unwrap();
    watching.sees(0, "a changed");
    assert_eq!(watching.stop(), Some(0), "what failed before is repaired");
}

#[test]
fn a_converged_manifest_ends_the_program_with_its_exit_code() {
    let ends = |desk: &Desk, more: &[&str]| {
        let args = [&["apply", "--watch", "site.yaml", "--converged-timeout", "300ms", "--converged-exit"], more].concat();
        let mut watching = Watching::spawn(desk.command(&args));
        let code = watching.ends();
        watching.until("all messages", || !watching.err().is_empty());
        (code, watching.err())
    };
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", "")]);
    let (code, err) = ends(&desk, &["--detailed-exitcodes"]);
    assert!(code == Some(10) && err.contains("converged: everything is as wanted"), "{code:?}: {err}");
    let (code, err) = ends(&desk, &["--detailed-exitcodes"]);
    assert!(code == Some(0) && err.contains("converged"), "{code:?}: {err}");
    fs::remove_file(desk.path("conf")).unwrap();
    assert_eq!(ends(&desk, &[]).0, Some(0));
    // A dry run is converged when its wishes do not change.
    fs::remove_file(desk.path("conf")).unwrap();
    let (code, err) = ends(&desk, &["--noop"]);
    assert!(code == Some(0) && err.contains("converged: 1 resource would change"), "{code:?}: {err}");
    // A failure that stays is not converged, and yet all that is left.
    site(&desk, &[&file("conf", "wanted", ""), &file("dir/a", "wanted", "")]);
    let (code, err) = ends(&desk, &["--detailed-exitcodes"]);
    assert!(code == Some(1) && !err.contains("converged"), "{code:?}: {err}");
}

#[test]
fn the_end_of_the_convergence_is_reported() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", "")]);
    let watching = Watching::start(&desk, &["--converged-timeout", "200ms"]);
    let expected = |number: usize| {
        let both = ["converged: everything is as wanted", "no longer converged"];
        watching.until("the notice", || watching.notices(0).len() >= number);
        assert_eq!(watching.notices(0), both.iter().cycle().take(number).map(ToString::to_string).collect::<Vec<_>>());
    };
    expected(1);
    fs::write(desk.path("conf"), "drift").unwrap();
    expected(3);
}

#[test]
fn noop_reports_a_wish_once_and_repairs_nothing() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", ""), &file("other", "wanted", "")]);
    desk.run(&["apply", "site.yaml"]).ends(0);
    let watching = Watching::start(&desk, &["--noop"]);
    let before = watching.now();
    fs::write(desk.path("conf"), "drift").unwrap();
    watching.sees(before, "conf would change");
    watching.until("the notice", || watching.notices(before).len() == 1);
    // The same wish after another event is no news.
    fs::write(desk.path("conf"), "drift").unwrap();
    fs::write(desk.path("other"), "drift").unwrap();
    watching.sees(before, "other would change");
    watching.until("the second notice", || watching.notices(before).len() == 2);
    assert!(watching.words(before).len() <= 3, "{:?}", watching.words(before));
    assert_eq!(fs::read_to_string(desk.path("conf")).unwrap(), "drift");
    assert_eq!(watching.stop(), Some(0));
}

/// The policy of a resource forbids its change: that is no change of the program, and no fight.
#[test]
fn a_resource_that_is_only_observed_is_reported_once_and_never_counts_as_changed() {
    let desk = Desk::new();
    let observed = ", policy: {noop: true}";
    site(&desk, &[&file("conf", "wanted", observed), &file("other", "wanted", "")]);
    desk.write("conf", "drift");
    desk.write("other", "wanted\n");
    std::fs::set_permissions(desk.path("other"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let watching = Watching::start(&desk, &["--interval", "100ms", "--detailed-exitcodes"]);
    watching.sees(0, "conf would change");
    // Many sweeps and many events find the same.
    let checks = count(&desk, "checks", "conf");
    for _ in 0..10 {
        desk.write("conf", "drift");
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    watching.until("further checks", || count(&desk, "checks", "conf") >= checks + 8);
    let told = watching.words(0).iter().filter(|word| word.starts_with("conf ")).count();
    assert_eq!(told, 1, "{:?}", watching.words(0));
    assert_eq!(watching.notices(0).len(), 1, "{:?}", watching.notices(0));
    // Another change is news.
    let before = watching.now();
    desk.write("conf", "wanted\n");
    let checks = count(&desk, "checks", "conf");
    watching.until("a stable check", || count(&desk, "checks", "conf") >= checks + 2);
    desk.write("conf", "other drift");
    watching.sees(before, "conf would change");
    assert_eq!(watching.stop(), Some(0), "nothing was changed");
}

#[test]
fn two_watches_of_one_host_take_turns() {
    let desk = Desk::new();
    site(
        &desk,
        &[
            "exec: {name: slow, command: \"touch begun; while [ ! -e open ]; do sleep 0.05; done\", provider: shell, cwd: \"@D@\"}",
        ],
    );
    fs::rename(desk.path("site.yaml"), desk.path("slow.yaml")).unwrap();
    let slow = Watching::spawn(desk.command(&["apply", "--watch", "slow.yaml"]));
    slow.until("the first run", || desk.path("begun").exists());
    site(&desk, &[&file("conf", "wanted", "")]);
    let second = Watching::spawn(desk.command(&["apply", "--watch", "site.yaml"]));
    second.says("waiting for another run: ensign apply --watch slow.yaml");
    assert!(!desk.path("conf").exists());
    fs::write(desk.path("open"), "").unwrap();
    second.repairs(&desk, "conf", "wanted\n");
    fs::write(desk.path("conf"), "drift").unwrap();
    second.repairs(&desk, "conf", "wanted\n");
    assert_eq!((slow.stop(), second.stop()), (Some(0), Some(0)));
}

#[test]
fn a_sweep_finds_what_no_event_told() {
    let desk = Desk::new();
    let exec = "exec: {name: build, command: \"touch state\", provider: shell, cwd: \"@D@\", unless: \"test -e @D@/state\"}";
    site(&desk, &[&file("conf", "wanted", ""), exec]);
    desk.run(&["apply", "site.yaml"]).ends(0);
    // A change through another name of the file is no event of its directory.
    fs::create_dir(desk.path("elsewhere")).unwrap();
    fs::hard_link(desk.path("conf"), desk.path("elsewhere/name")).unwrap();
    let watching = Watching::start(&desk, &["--interval", "500ms"]);
    fs::write(desk.path("elsewhere/name"), "drift").unwrap();
    fs::remove_file(desk.path("state")).unwrap();
    watching.repairs(&desk, "conf", "wanted\n");
    watching.until("the command", || desk.path("state").exists());
}

#[test]
fn a_busy_host_delays_a_repair_and_does_not_end_the_watch() {
    let desk = Desk::new();
    site(
        &desk,
        &[
            "exec: {name: slow, command: \"touch begun; while [ ! -e open ]; do sleep 0.05; done\", provider: shell, cwd: \"@D@\"}",
        ],
    );
    fs::rename(desk.path("site.yaml"), desk.path("slow.yaml")).unwrap();
    let slow = desk.command(&["apply", "slow.yaml"]).spawn().unwrap();
    let began = Instant::now();
    while !desk.path("begun").exists() {
        assert!(began.elapsed() < PATIENCE);
    }
    site(&desk, &[&file("conf", "wanted", "")]);
    let watching = Watching::spawn(desk.command(&["apply", "--watch", "site.yaml", "--wait", "0"]));
    watching.says("another run is under way: ensign apply slow.yaml");
    fs::write(desk.path("open"), "").unwrap();
    finish(slow).ends(0);
    watching.repairs(&desk, "conf", "wanted\n");
    watching.until("the summary", || watching.out.lock().unwrap().iter().any(|line| line.contains("1 changed")));
    assert_eq!(watching.stop(), Some(0));
}

#[test]
fn text_tells_repairs_with_their_latency() {
    let desk = Desk::new();
    site(&desk, &[&file("conf", "wanted", "")]);
    let watching = Watching::spawn(desk.command(&["apply", "--watch", "site.yaml"]));
    let has = |text: &str| watching.out.lock().unwrap().iter().any(|line| line.contains(text));
    watching.until("the summary", || has("1 changed"));
    fs::write(desk.path("conf"), "drift").unwrap();
    watching.until("the repair", || has("repaired ") && has(" after the change"));
    assert_eq!(watching.stop(), Some(0));
}
