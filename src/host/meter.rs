//! The meter of a slow step: counts its progress, and reports to the listener of the run.

use std::time::{Duration, Instant};

use super::machine::Host;
use super::progress::{Progress, ProgressEvent};

/// Interval between two reports of the progress.
const PAUSE: Duration = Duration::from_millis(100);

/// Counts the progress of a step and reports it to the listener, a few times a second. Dropping it reports the end.
pub struct Meter<'a> {
    host: &'a Host,
    what: String,
    done: u64,
    total: Option<u64>,
    told: Option<Instant>,
}

impl<'a> Meter<'a> {
    /// Creates a meter with no progress yet.
    pub fn new(host: &'a Host, what: String, total: Option<u64>) -> Self {
        Self { host, what, done: 0, total, told: None }
    }

    /// Sets the total.
    pub fn set_total(&mut self, total: Option<u64>) {
        self.total = total;
    }

    /// Sets the finished part.
    pub fn set_done(&mut self, done: u64) {
        self.done = done;
    }

    /// Adds to the finished part.
    pub fn add(&mut self, count: u64) {
        self.done += count;
        if self.told.is_none_or(|told| told.elapsed() >= PAUSE) {
            self.told = Some(Instant::now());
            self.host.notify_listener(ProgressEvent::Progress(Progress { what: &self.what, done: self.done, total: self.total }));
        }
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        if self.told.is_some() {
            self.host.notify_listener(ProgressEvent::ProgressEnded);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn the_listener_gets_messages_start_and_end() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ears = Arc::clone(&heard);
        let host = Host::system(None).with_listener(Arc::new(move |news: ProgressEvent<'_>| {
            ears.lock().unwrap().push(format!("{news:?}"));
        }));
        host.notify("z");
        let mut meter = Meter::new(&host, "x".to_owned(), Some(9));
        meter.add(4);
        drop(meter);
        // A step without progress sends no event.
        drop(Meter::new(&host, "y".to_owned(), None));
        let at = "Progress(Progress { what: \"x\", done: 4, total: Some(9) })";
        assert_eq!(*heard.lock().unwrap(), ["Message(\"z\")", at, "ProgressEnded"]);
    }
}
