//! The only reason for a test not to run: a named property of the host that no package changes.
//!
//! In continuous integration (`CI=true`) a skip is a failure. Everywhere a [`Reason`] that a package or a build option removes
//! is a failure, unless `ENSIGN_ALLOW_SKIP=1`. `tests/run` counts the skips of a run and prints them at the end.

use std::io::Write;

/// Reason for which a test does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The tests run as another user than root.
    NoRoot,
    /// Root of a container that may not make namespaces, mounts or control groups.
    NoNamespaces,
    /// A program, library or build option is missing; `tests/run` installs or sets all of them.
    Missing,
}

impl Reason {
    fn is_of_the_host(self) -> bool {
        self != Self::Missing
    }
}

/// Skips the test for this reason, or fails it where a skip is not allowed.
///
/// # Panics
/// In continuous integration, and for something that is only missing, unless `ENSIGN_ALLOW_SKIP=1`.
pub fn skip(reason: Reason, detail: &str) {
    let is_set = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    assert!(!is_set("CI", "true"), "{reason:?}: {detail}");
    assert!(
        reason.is_of_the_host() || is_set("ENSIGN_ALLOW_SKIP", "1"),
        "{detail}\nhint: tests/run installs what the tests need; ENSIGN_ALLOW_SKIP=1 skips this test"
    );
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("skipped ({reason:?}): {test}: {detail}");
    if let Some(list) = std::env::var_os("ENSIGN_SKIPPED") {
        let mut list = std::fs::File::options().create(true).append(true).open(list).unwrap();
        list.write_all(format!("{reason:?}\t{test}\t{detail}\n").as_bytes()).unwrap();
    }
}

/// True for root; another user skips the test.
pub fn is_root(need: &str) -> bool {
    let is = nix::unistd::geteuid().is_root();
    if !is {
        skip(Reason::NoRoot, need);
    }
    is
}

/// The reason for which this user can't mount or make namespaces.
pub fn no_namespaces() -> Reason {
    if nix::unistd::geteuid().is_root() { Reason::NoNamespaces } else { Reason::NoRoot }
}

/// True where the program can be started; otherwise skips the test. `package` is its package in Debian.
pub fn has_program(program: &str, package: &str) -> bool {
    let is = std::process::Command::new(program).arg("--version").output().is_ok();
    if !is {
        skip(Reason::Missing, &format!("cannot start {program}: install the package {package}"));
    }
    is
}
