//! The outbox: messages to the server that wait on disk until the server has stored them.
//!
//! A log for appending, and a small file with the delivered position. A message may be delivered twice after a crash, and the
//! server drops the second by its id. A message is lost only when the outbox is full or the message too old. Then the oldest
//! events go first, results last, and drops are counted.
//!
//! The messages of each stream form a [`StreamQueue`], in order. No queue waits for a stream that does not accept messages.
//!
//! Every message is a link of one chain: its receipt names the message before. The receipt is made on push and stored beside
//! the message, so that a repeated message has the same bytes. The end of the chain is in the log, and in the position file
//! after a new log begins.

mod frame;
mod message;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::host::{Checkpoint, FsError, checkpoint, fs};
use crate::wire::receipt::Receipt;
use crate::wire::report::{DroppedMessages, OpenLinks};

use super::append_log::AppendLog;
use super::{StoreError, state_dir};
pub use message::{ChainHead, OutboxMessage, Priority};
use queue::DeliveryQueue;
pub use queue::StreamQueue;

const POSITION: &str = "outbox.json";
/// A delivered log of this size, in bytes, is replaced by a new one. For a shorter log, the fsync costs more than the space.
const REWRITE_BYTES: u64 = 1 << 20;
/// The longest position file, in bytes.
const MAX_POSITION: u64 = 4096;
/// The earliest believable time of a push (2026-01-01), before the first release. Messages with earlier times come from a
/// wrong clock, and have no age.
const EARLIEST_TIME: i64 = 1_767_225_600;

/// A message in the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedMessage {
    /// The number for [`Outbox::ack`].
    pub seq: u64,
    /// The message.
    pub message: OutboxMessage,
    /// The text of the receipt, made on push.
    pub receipt: Option<String>,
}

/// Makes the receipt of a message as the next link after this end of the chain.
pub type MakeReceipt<'a> = &'a dyn Fn(&OutboxMessage, &ChainHead) -> Receipt;

/// The delivered or dropped position in the log. Each queue is delivered in order, so one number each is enough.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// The generation of the log.
    generation: u64,
    /// Events before this byte are delivered or dropped.
    events: u64,
    /// The position of queues without a number in `gone`, as in files from before there were several queues.
    results: u64,
    /// The position of each queue. Earlier messages are gone.
    #[serde(default)]
    gone: BTreeMap<DeliveryQueue, u64>,
    /// The number of messages that were ever dropped.
    dropped: u64,
    /// The part of them that were results.
    #[serde(default)]
    dropped_results: u64,
    /// Drops without a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unsaid: Option<DroppedMessages>,
    /// The end of the chain at the time of writing; later links in the log count more.
    #[serde(default)]
    head: ChainHead,
}

/// The place of a message in the log.
#[derive(Debug, Clone, Copy)]
struct Slot {
    seq: u64,
    offset: u64,
    len: usize,
    /// The time of the push, in seconds; before `NO_EARLIER` when unknown.
    at: i64,
    /// The position in the chain; 0 when there is none.
    chain_seq: u64,
}

/// The outbox of one directory. The caller holds the lock of the directory, as of the ledger.
#[derive(Debug)]
pub struct Outbox {
    dir: PathBuf,
    log: AppendLog,
    position: Position,
    queues: BTreeMap<DeliveryQueue, VecDeque<Slot>>,
    live: u64,
    max_bytes: u64,
    next: u64,
}

impl Position {
    /// Returns the byte before which a queue is delivered or dropped.
    fn delivered_before(&self, queue: DeliveryQueue) -> u64 {
        let older = if queue == DeliveryQueue::Events { self.events } else { self.results };
        self.gone.get(&queue).copied().unwrap_or(older)
    }
}

impl Outbox {
    /// Opens the outbox in this directory, created if needed, with at most `max_bytes` of messages.
    ///
    /// # Errors
    /// When the system refuses. A torn end is cut off: its writer never got a confirmation.
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Self, StoreError> {
        state_dir::create(dir)?;
        state_dir::remove_temporary_files(dir)?;
        let logs = logs(dir)?;
        let position = position(dir).unwrap_or_else(|| {
            // Of two logs the older one holds everything that the newer one holds.
            let generation = logs.first().map_or(0, |(generation, _)| *generation);
            Position { generation, ..Position::default() }
        });
        for (_, path) in logs.iter().filter(|(generation, _)| *generation != position.generation) {
            fs::remove(path)?;
        }
        let mut outbox = Self {
            log: AppendLog::open(&log_path(dir, position.generation))?,
            dir: dir.to_owned(),
            position,
            queues: DeliveryQueue::ALL.map(|queue| (queue, VecDeque::new())).into(),
            live: 0,
            max_bytes,
            next: 0,
        };
        outbox.load()?;
        outbox.make_room(0)?;
        Ok(outbox)
    }

    fn load(&mut self) -> Result<(), StoreError> {
        let path = self.log.path().to_owned();
        let gone = DeliveryQueue::ALL.map(|queue| self.position.delivered_before(queue));
        let (first, last) = (gone.iter().min().copied().unwrap_or_default(), gone.iter().max().copied().unwrap_or_default());
        let mut end = first.min(self.log.len());
        let file = self.log.file().try_clone().map_err(|error| FsError::io("read", &path, error))?;
        let mut reader = BufReader::new(file);
        std::io::Seek::seek(&mut reader, std::io::SeekFrom::Start(end)).map_err(|error| FsError::io("read", &path, error))?;
        while let Some((frame, len)) = frame::read(&mut reader).map_err(|error| FsError::io("read", &path, error))? {
            let queue = DeliveryQueue::for_message(&frame.message.subject, frame.message.priority);
            let gone = self.position.delivered_before(queue);
            // After a power cut the position file may be ahead of the log: the later end of the chain counts.
            let link = frame.receipt.as_deref().and_then(frame::chain_position);
            let place = link.as_ref().map_or(0, |link| link.seq);
            if let Some(link) = link.filter(|link| link.seq > self.position.head.seq) {
                self.position.head = link;
            }
            if end >= gone {
                let slot =
                    Slot { seq: self.next, offset: end, len, at: frame.at.map_or(0, Timestamp::as_second), chain_seq: place };
                self.add(queue, slot);
            }
            end += len as u64;
        }
        if end < self.log.len() {
            self.log.truncate(end)?;
        }
        if end < last {
            // After a power cut the log may be behind. New messages must not count as delivered.
            self.write_position(true)?;
        }
        Ok(())
    }

    fn add(&mut self, queue: DeliveryQueue, slot: Slot) {
        self.next = slot.seq + 1;
        self.live += slot.len as u64;
        self.queues.entry(queue).or_default().push_back(slot);
    }

    /// Adds a message, with the receipt that `seal` makes as the next link of the chain. The message survives the process
    /// from here on, and a power cut after the next [`Self::sync`].
    ///
    /// # Errors
    /// When the message can't be written, or is larger than the outbox.
    pub fn push(&mut self, message: &OutboxMessage, now: Timestamp, seal: MakeReceipt<'_>) -> Result<(), StoreError> {
        let receipt = seal(message, &self.position.head);
        let bytes = frame::encode(message, now, Some(receipt.encode()))?;
        if bytes.len() as u64 > self.max_bytes {
            return Err(StoreError::TooLarge { size: bytes.len() as u64, limit: self.max_bytes });
        }
        self.make_room(bytes.len() as u64)?;
        let offset = self.log.append(&bytes)?;
        checkpoint(Checkpoint::OutboxWritten);
        let link = self.position.head.seq + 1;
        let slot = Slot { seq: self.next, offset, len: bytes.len(), at: now.as_second(), chain_seq: link };
        self.add(DeliveryQueue::for_message(&message.subject, message.priority), slot);
        self.position.head = ChainHead { seq: link, digest: Some(receipt.digest()) };
        Ok(())
    }

    /// Sets the size limit. Messages above it are dropped as by [`Self::push`].
    ///
    /// # Errors
    /// When the drops can't be recorded.
    pub fn resize(&mut self, max_bytes: u64) -> Result<(), StoreError> {
        self.max_bytes = max_bytes;
        self.make_room(0)
    }

    /// Waits until all pushed messages are on disk.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.log.sync()
    }

    /// Returns the oldest messages of a queue, in the order of their pushes. At most `count` messages with at most `bytes`
    /// together; a single larger message is returned alone.
    ///
    /// # Errors
    /// When the messages can't be read.
    pub fn peek(&self, lane: StreamQueue, count: usize, bytes: u64) -> Result<Vec<QueuedMessage>, StoreError> {
        let of_lane = self.queues.iter().filter(|(queue, _)| queue.stream_queue() == lane);
        let mut slots: Vec<Slot> = of_lane.flat_map(|(_, slots)| slots.iter().take(count)).copied().collect();
        slots.sort_by_key(|slot| slot.seq);
        let mut before = 0;
        let fits = |slot: &Slot| {
            let fits = before == 0 || before + slot.len as u64 <= bytes;
            before += slot.len as u64;
            fits
        };
        slots.into_iter().take(count).take_while(fits).map(|slot| self.read(slot)).collect()
    }

    fn read(&self, slot: Slot) -> Result<QueuedMessage, StoreError> {
        let bytes = self.log.read_at(slot.offset, slot.len)?;
        let damaged = || FsError::io("read", self.log.path(), std::io::Error::other("a message was changed on disk"));
        let (frame, _) = frame::read(&mut bytes.as_slice()).ok().flatten().ok_or_else(damaged)?;
        Ok(QueuedMessage { seq: slot.seq, message: frame.message, receipt: frame.receipt })
    }

    /// Records that the server has every message of a queue up to this number.
    ///
    /// # Errors
    /// When the record can't be written; then the messages are delivered again after a restart.
    pub fn ack(&mut self, lane: StreamQueue, through: u64) -> Result<(), StoreError> {
        for (_, slots) in self.queues.iter_mut().filter(|(queue, _)| queue.stream_queue() == lane) {
            let count = slots.iter().take_while(|slot| slot.seq <= through).count();
            self.live -= slots.drain(..count).map(|slot| slot.len as u64).sum::<u64>();
        }
        if self.is_empty() && self.log.len() >= REWRITE_BYTES { self.rewrite_log() } else { self.write_position(false) }
    }

    /// Drops events older than `age`. Results have no age: a client may still wait for them.
    ///
    /// # Errors
    /// When the drops can't be recorded; then the events are dropped again.
    pub fn expire(&mut self, now: Timestamp, age: SignedDuration) -> Result<(), StoreError> {
        let limit = now.as_second().saturating_sub(age.as_secs());
        let events = self.queues.entry(DeliveryQueue::Events).or_default();
        let count = events.iter().take_while(|slot| (EARLIEST_TIME..limit).contains(&slot.at)).count();
        let old: Vec<Slot> = events.drain(..count).collect();
        old.iter().for_each(|slot| self.drop_slot(slot, Priority::Event));
        if old.is_empty() { Ok(()) } else { self.write_position(false) }
    }

    /// Counts a message that the server never accepts as dropped. The caller acknowledges it as sent.
    pub fn record_rejected(&mut self, seq: u64) {
        let find = |slots: &VecDeque<Slot>| slots.iter().find(|slot| slot.seq == seq).copied();
        let found = self.queues.iter().find_map(|(queue, slots)| Some((queue.priority(), find(slots)?)));
        if let Some((class, slot)) = found {
            self.count_drop(&slot, class);
        }
    }

    /// Returns the number of waiting messages.
    pub fn len(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// True when no message waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of messages ever dropped (for size, age or lack of room), and of the results among them.
    pub fn dropped(&self) -> (u64, u64) {
        (self.position.dropped, self.position.dropped_results)
    }

    /// Returns the end of the chain of receipts.
    pub fn chain_head(&self) -> &ChainHead {
        &self.position.head
    }

    /// Returns the open part of the chain: waiting messages, and drops without a report. None when the chain has no open
    /// part.
    pub fn open_links(&self) -> Option<OpenLinks> {
        let waiting = self.queues.values().flatten().map(|slot| slot.chain_seq).filter(|link| *link > 0);
        let untold = self.position.unsaid.as_ref();
        let first = waiting.chain(untold.map(|dropped| dropped.first)).min()?;
        Some(OpenLinks { first, count: self.len() as u64 + untold.map_or(0, |dropped| dropped.events + dropped.results) })
    }

    /// Takes the drops since the last call.
    pub fn take_unreported_drops(&mut self) -> Option<DroppedMessages> {
        self.position.unsaid.take()
    }

    /// Puts drops back whose report failed.
    pub fn restore_unreported_drops(&mut self, dropped: &DroppedMessages) {
        self.position.unsaid = Some(match &self.position.unsaid {
            Some(more) => more.with(dropped),
            None => dropped.clone(),
        });
    }

    fn count_drop(&mut self, slot: &Slot, class: Priority) {
        let results = u64::from(class == Priority::Result);
        self.position.dropped += 1;
        self.position.dropped_results += results;
        self.restore_unreported_drops(&DroppedMessages {
            events: 1 - results,
            results,
            first: slot.chain_seq,
            last: slot.chain_seq,
        });
    }

    fn drop_slot(&mut self, slot: &Slot, class: Priority) {
        self.live -= slot.len as u64;
        self.count_drop(slot, class);
    }

    /// Makes room for `wanted` bytes. When there is none, drops a tenth of the outbox more, so that the next pushes find
    /// room.
    fn make_room(&mut self, wanted: u64) -> Result<(), StoreError> {
        if self.live + wanted > self.max_bytes {
            let keep = (self.max_bytes - self.max_bytes / 10).saturating_sub(wanted);
            while self.live > keep {
                let Some((slot, class)) = self.pop() else { break };
                self.drop_slot(&slot, class);
            }
            self.write_position(false)?;
        }
        // Delivered and dropped messages still take up space in the file.
        if self.log.len() + wanted > 2 * self.max_bytes.max(REWRITE_BYTES) { self.rewrite_log() } else { Ok(()) }
    }

    /// Takes the message to drop next: the oldest event, else the oldest message.
    fn pop(&mut self) -> Option<(Slot, Priority)> {
        if let Some(slot) = self.queues.get_mut(&DeliveryQueue::Events).and_then(VecDeque::pop_front) {
            return Some((slot, Priority::Event));
        }
        let fronts = self.queues.values_mut().filter(|slots| !slots.is_empty());
        let oldest = fronts.min_by_key(|slots| slots.front().map(|slot| slot.seq))?;
        Some((oldest.pop_front()?, Priority::Result))
    }

    fn write_position(&mut self, durable: bool) -> Result<(), StoreError> {
        let first = |slots: &VecDeque<Slot>| slots.front().map_or(self.log.len(), |slot| slot.offset);
        self.position.gone = self.queues.iter().map(|(queue, slots)| (*queue, first(slots))).collect();
        self.position.events = self.position.delivered_before(DeliveryQueue::Events);
        self.position.results =
            DeliveryQueue::RESULTS.into_iter().map(|queue| self.position.delivered_before(queue)).min().unwrap_or_default();
        let bytes = serde_json::to_vec(&self.position)?;
        let path = self.dir.join(POSITION);
        if durable { state_dir::write_atomic(&path, &bytes) } else { state_dir::replace_unsynced(&path, &bytes) }?;
        checkpoint(Checkpoint::OutboxPosition);
        Ok(())
    }

    /// Begins a new log with the waiting messages. Until the position names the new log, the old one counts.
    fn rewrite_log(&mut self) -> Result<(), StoreError> {
        let generation = self.position.generation + 1;
        let path = log_path(&self.dir, generation);
        fs::remove(&path)?;
        let mut log = AppendLog::open(&path)?;
        let mut moved = self.queues.clone();
        let mut slots: Vec<&mut Slot> = moved.values_mut().flatten().collect();
        slots.sort_by_key(|slot| slot.seq);
        for slot in slots {
            slot.offset = log.append(&self.log.read_at(slot.offset, slot.len)?)?;
        }
        log.sync()?;
        checkpoint(Checkpoint::OutboxCopied);
        let before = (std::mem::replace(&mut self.log, log), self.position.clone());
        let queues = std::mem::replace(&mut self.queues, moved);
        self.position.generation = generation;
        if let Err(error) = self.write_position(true) {
            (self.log, self.position) = before;
            self.queues = queues;
            return Err(error);
        }
        checkpoint(Checkpoint::OutboxRenewed);
        Ok(fs::remove(before.0.path())?)
    }
}

fn log_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("outbox.{generation}.log"))
}

/// Returns the logs in the directory, the oldest first.
fn logs(dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let generation = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("outbox.")?.strip_suffix(".log")?.parse().ok();
    let mut logs: Vec<(u64, PathBuf)> =
        fs::list(dir)?.into_iter().filter_map(|path| generation(&path).map(|number| (number, path))).collect();
    logs.sort();
    Ok(logs)
}

/// Reads the position file. A missing or damaged file only means that messages are delivered again.
fn position(dir: &Path) -> Option<Position> {
    serde_json::from_slice(&fs::read(&dir.join(POSITION), MAX_POSITION).ok()?).ok()
}
