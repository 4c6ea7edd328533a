//! Progress of a run, for a listener: sentences, and the state of slow steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Host;

/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);

/// The progress of a slow step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The step, as "downloading app.tar.gz".
    pub what: &'a str,
    /// Bytes that are done.
    pub done: u64,
    /// Bytes in all, where they are known.
    pub total: Option<u64>,
}

/// An event for the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressEvent<'a> {
    /// A sentence for a person while it lasts, as a wait.
    Said(&'a str),
    /// The progress of a slow step.
    At(Progress<'a>),
    /// The step of [`ProgressEvent::At`] has ended.
    Over,
    /// A resource has its turn.
    Begins {
        /// Its type.
        kind: &'a str,
        /// Its name.
        name: &'a str,
        /// The number of other resources in the same transaction.
        others: usize,
    },
    /// The step has ended.
    Ends,
}

/// The listener.
pub type ProgressListener = Arc<dyn Fn(ProgressEvent<'_>) + Send + Sync>;

/// Counts what is done of one thing and tells the audience of a host, a few times a second. Dropped, it says that it is
/// over.
pub struct Meter<'a> {
    host: &'a Host,
    what: String,
    done: u64,
    total: Option<u64>,
    told: Option<Instant>,
}

impl<'a> Meter<'a> {
    /// Nothing is done yet.
    pub fn new(host: &'a Host, what: String, total: Option<u64>) -> Self {
        Self { host, what, done: 0, total, told: None }
    }

    /// Sets the total.
    pub fn set_total(&mut self, total: Option<u64>) {
        self.total = total;
    }

    /// Sets the part that is done.
    pub fn set_done(&mut self, done: u64) {
        self.done = done;
    }

    /// Adds to the part that is done.
    pub fn add(&mut self, count: u64) {
        self.done += count;
        if self.told.is_none_or(|told| told.elapsed() >= PAUSE) {
            self.told = Some(Instant::now());
            self.host.notify_listener(ProgressEvent::At(Progress { what: &self.what, done: self.done, total: self.total }));
        }
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        if self.told.is_some() {
            self.host.notify_listener(ProgressEvent::Over);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_audience_hears_what_is_said_the_begin_and_the_end() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ears = Arc::clone(&heard);
        let host = Host::system(None).with_listener(Arc::new(move |news: ProgressEvent<'_>| {
            ears.lock().unwrap().push(format!("{news:?}"));
        }));
        host.notify("z");
        let mut meter = Meter::new(&host, "x".to_owned(), Some(9));
        meter.add(4);
        drop(meter);
        // What never began never ends.
        drop(Meter::new(&host, "y".to_owned(), None));
        let at = "At(Progress { what: \"x\", done: 4, total: Some(9) })";
        assert_eq!(*heard.lock().unwrap(), ["Said(\"z\")", at, "Over"]);
    }
}
