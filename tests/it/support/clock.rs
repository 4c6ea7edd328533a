//! A separate clock for one process, by libfaketime (Debian package `faketime`). Tests can set the clock while the process
//! runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::skip::{Reason, skip};

/// Returns the path of the library.
pub fn library() -> Option<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    let found = directories.map(|at| at.join("faketime/libfaketimeMT.so.1")).find(|path| path.is_file());
    if found.is_none() {
        skip(Reason::Missing, "cannot find libfaketime: install the package faketime");
    }
    found
}

/// The clock of a process.
pub struct Clock(PathBuf);

impl Clock {
    /// A clock whose setting is in this file: right at first.
    pub fn new(file: &Path) -> Self {
        let clock = Self(file.to_owned());
        clock.off_by(0);
        clock
    }

    /// Sets the environment of a process that is about to start.
    pub fn set_environment(&self, library: &Path, process: &mut Command) {
        process.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &self.0).env("FAKETIME_NO_CACHE", "1");
        process.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("TZ", "UTC");
    }

    /// Sets the clock this many seconds before or after the right time.
    pub fn off_by(&self, seconds: i64) {
        self.write(&format!("{seconds:+}"));
    }

    /// Stops the clock at this moment: `2026-11-20 10:01:00`, UTC.
    pub fn stop_at(&self, moment: &str) {
        self.write(moment);
    }

    fn write(&self, text: &str) {
        let beside = self.0.with_extension("next");
        std::fs::write(&beside, format!("{text}\n")).unwrap();
        std::fs::rename(beside, &self.0).unwrap();
    }
}
