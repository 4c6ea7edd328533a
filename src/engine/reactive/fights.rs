//! Fights: the processes that undo the repairs of resources, as far as the kernel names them.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::host::file_writers::{FileWriter, FileWriterLog};
use crate::model::WatchTarget;

use super::flapping::WINDOW;

/// Most logs at the same time. The kernel queues up to 16,384 changes for each.
const MAX_LOGS: usize = 4;

/// The logs of processes that change the files of suspicious resources, by key of the resource.
#[derive(Default)]
pub(super) struct Fights(BTreeMap<u32, (Instant, FileWriterLog)>);

impl Fights {
    /// Opens a log for the files of a resource. Without the privilege for it, there is none.
    pub(super) fn watch(&mut self, key: u32, targets: &[WatchTarget], now: Instant) {
        if self.0.len() >= MAX_LOGS || self.0.contains_key(&key) {
            return;
        }
        let files = targets.iter().filter_map(|target| match target {
            WatchTarget::Path(path) => Some(path.as_path()),
            _ => None,
        });
        match FileWriterLog::open(files) {
            Ok(log) => {
                self.0.insert(key, (now, log));
            }
            Err(error) => tracing::debug!(%error, "the kernel does not name the process that undoes repairs"),
        }
    }

    /// Reads all logs. A log ends when its repairs no longer count.
    pub(super) fn read(&mut self, now: Instant) {
        self.0.retain(|_, (since, _)| now.saturating_duration_since(*since) < WINDOW);
        self.0.values_mut().for_each(|(_, log)| log.read());
    }

    /// Ends the log of a resource. Returns the process of the last change.
    pub(super) fn end(&mut self, key: u32) -> Option<FileWriter> {
        let (_, mut log) = self.0.remove(&key)?;
        log.read();
        log.last().cloned()
    }
}
