//! The output: a line of JSON per second, and one at the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::json;

use super::nodes::SimulatedNodes;

/// Prints the figures of all nodes together.
pub(crate) struct Printer {
    fleet: Arc<SimulatedNodes>,
    began: Instant,
    /// The time since which all expected nodes are connected.
    all: Option<Timestamp>,
    connects: u64,
    ticks: u32,
}

/// The number of calls of [`Printer::tick`] for one line.
const TICKS: u32 = 10;
/// The time between two ticks.
pub(crate) const TICK: Duration = Duration::from_millis(100);

impl Printer {
    pub(crate) fn new(fleet: &Arc<SimulatedNodes>) -> Self {
        Self { fleet: Arc::clone(fleet), began: Instant::now(), all: None, connects: 0, ticks: 0 }
    }

    /// Checks the connections; prints a line now and then.
    pub(crate) fn tick(&mut self) {
        let there = self.fleet.nodes.iter().all(|node| node.is_offline() || node.link().connected);
        self.all = if there { self.all.or_else(|| Some(Timestamp::now())) } else { None };
        if self.ticks.is_multiple_of(TICKS) {
            self.line(false);
        }
        self.ticks = self.ticks.wrapping_add(1);
    }

    fn seconds(&self) -> f64 {
        (self.began.elapsed().as_secs_f64() * 100.0).round() / 100.0
    }

    /// Prints the current figures.
    pub(crate) fn line(&mut self, last: bool) {
        let seconds = self.seconds();
        let (mut running, mut connected, mut connects) = (0_u64, 0_u64, 0_u64);
        let (mut accepted, mut ended, mut waiting, mut dropped) = (0, 0, 0, 0);
        for node in &self.fleet.nodes {
            let link = node.link();
            connects += link.connects;
            if let Some(figures) = node.with(ensign::agent::Agent::queue_stats) {
                running += 1;
                connected += u64::from(link.connected);
                accepted += figures.accepted;
                ended += figures.ended;
                waiting += figures.waiting;
                dropped += figures.dropped;
            }
        }
        let line = json!({
            "summary": last,
            "seconds": seconds,
            "nodes": self.fleet.nodes.len(),
            "leaving": self.fleet.nodes.iter().filter(|node| node.is_offline()).count(),
            "left": self.fleet.left.load(Ordering::Relaxed),
            "running": running,
            "connected": connected,
            "all_connected_at": self.all.map(|at| at.as_duration().as_secs_f64()),
            "connects": connects,
            "connects_since": connects - self.connects,
            "accepted": accepted,
            "played": self.fleet.play.played.load(Ordering::Relaxed),
            "ended": ended,
            "waiting": waiting,
            "dropped": dropped,
            "memory_kib": resident(),
            "files": last.then(files),
        });
        self.connects = connects;
        println!("{line}");
    }
}

/// The resident memory of the process, in KiB, without pages of files.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// The number of open files of the process.
fn files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
