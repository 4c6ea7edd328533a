//! The outbox: messages to the server that wait on disk until the server has them.
//!
//! One log that is appended to, and a small file that says how far it was delivered. A message may
//! be delivered twice after a crash, and the server drops the second by its id; it is never lost,
//! unless the outbox is full: then the oldest events go first, results last, and drops are counted.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::{Checkpoint, FsError, checkpoint, fs};
use crate::wire::digest;

use super::append::AppendFile;
use super::{StoreError, dir};

const POSITION: &str = "outbox.json";
/// A log that was delivered whole is left behind once it is this long; a shorter one is not worth the fsync.
const RENEW_AT: u64 = 1 << 20;
/// The longest first line of a message: subject, id and numbers.
const MAX_HEADER: u64 = 4096;

/// What goes first when there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Something that happened: the first to go.
    Event,
    /// An answer that somebody waits for, a summary: kept as long as anything is.
    Result,
}

/// A message to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where to.
    pub subject: String,
    /// What the server knows it by when it comes twice.
    pub msg_id: String,
    /// Its bytes.
    pub payload: Vec<u8>,
    /// Its class.
    pub class: Class,
}

/// A message in the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued {
    /// Its number, for [`Outbox::ack`].
    pub seq: u64,
    /// The message.
    pub message: Message,
}

/// The line before a payload in the log.
#[derive(Serialize, Deserialize)]
struct Header {
    subject: String,
    msg_id: String,
    class: Class,
    size: usize,
    sum: String,
}

/// How far the log was delivered, or dropped. Each class is delivered in order, so one number each is enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// Which log it is about.
    generation: u64,
    /// Events before this byte are gone.
    events: u64,
    /// Results before this byte are gone.
    results: u64,
    /// Messages that were dropped, ever.
    dropped: u64,
}

/// Where a message is in the log.
#[derive(Debug, Clone, Copy)]
struct Slot {
    seq: u64,
    offset: u64,
    len: usize,
}

/// The outbox of one directory, which the caller has to itself (as the ledger's lock gives it).
#[derive(Debug)]
pub struct Outbox {
    dir: PathBuf,
    log: AppendFile,
    position: Position,
    events: VecDeque<Slot>,
    results: VecDeque<Slot>,
    live: u64,
    max_bytes: u64,
    next: u64,
}

impl Outbox {
    /// Opens the outbox in this directory (made if need be), which holds at most `max_bytes` of messages.
    ///
    /// # Errors
    /// When the system refuses. A torn end is cut off: whoever wrote it was never told that it is there.
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Self, StoreError> {
        dir::create(dir)?;
        dir::sweep(dir)?;
        let logs = logs(dir)?;
        let position = position(dir).unwrap_or_else(|| {
            // Of two logs the older one holds everything that the newer one does.
            let generation = logs.first().map_or(0, |(generation, _)| *generation);
            Position { generation, ..Position::default() }
        });
        for (_, path) in logs.iter().filter(|(generation, _)| *generation != position.generation) {
            fs::remove(path)?;
        }
        let mut outbox = Self {
            log: AppendFile::open(&log_path(dir, position.generation))?,
            dir: dir.to_owned(),
            position,
            events: VecDeque::new(),
            results: VecDeque::new(),
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
        let mut end = self.position.events.min(self.position.results).min(self.log.len());
        let file = self.log.file().try_clone().map_err(|error| FsError::io("read", &path, error))?;
        let mut reader = BufReader::new(file);
        std::io::Seek::seek(&mut reader, std::io::SeekFrom::Start(end)).map_err(|error| FsError::io("read", &path, error))?;
        while let Some((message, len)) = read_frame(&mut reader).map_err(|error| FsError::io("read", &path, error))? {
            let gone = match message.class {
                Class::Event => self.position.events,
                Class::Result => self.position.results,
            };
            if end >= gone {
                self.add(message.class, end, len);
            }
            end += len as u64;
        }
        if end < self.log.len() {
            self.log.truncate(end)?;
        }
        if end < self.position.events.max(self.position.results) {
            // After a power cut the log may be behind. What comes next must not count as delivered.
            self.write_position(true)?;
        }
        Ok(())
    }

    fn add(&mut self, class: Class, offset: u64, len: usize) {
        let slot = Slot { seq: self.next, offset, len };
        self.next += 1;
        self.live += len as u64;
        match class {
            Class::Event => self.events.push_back(slot),
            Class::Result => self.results.push_back(slot),
        }
    }

    /// Adds a message. It survives the process from here on, and a power cut from the next [`Self::sync`] on.
    ///
    /// # Errors
    /// When it can't be written, or is larger than the outbox.
    pub fn push(&mut self, message: &Message) -> Result<(), StoreError> {
        let frame = frame(message)?;
        if frame.len() as u64 > self.max_bytes {
            return Err(StoreError::TooLarge { size: frame.len() as u64, limit: self.max_bytes });
        }
        self.make_room(frame.len() as u64)?;
        let offset = self.log.append(&frame)?;
        checkpoint(Checkpoint::OutboxWritten);
        self.add(message.class, offset, frame.len());
        Ok(())
    }

    /// Holds at most this much from now on. What is too much is dropped as by [`Self::push`].
    ///
    /// # Errors
    /// When that can't be written down.
    pub fn resize(&mut self, max_bytes: u64) -> Result<(), StoreError> {
        self.max_bytes = max_bytes;
        self.make_room(0)
    }

    /// Returns when everything that was pushed is on disk.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.log.sync()
    }

    /// The oldest messages, at most `count`, in the order in which they were pushed.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn peek(&self, count: usize) -> Result<Vec<Queued>, StoreError> {
        let mut slots: Vec<Slot> = self.events.iter().take(count).chain(self.results.iter().take(count)).copied().collect();
        slots.sort_by_key(|slot| slot.seq);
        slots.into_iter().take(count).map(|slot| self.read(slot)).collect()
    }

    fn read(&self, slot: Slot) -> Result<Queued, StoreError> {
        let bytes = self.log.read_at(slot.offset, slot.len)?;
        let damaged = || FsError::io("read", self.log.path(), std::io::Error::other("a message was changed on disk"));
        let (message, _) = read_frame(&mut bytes.as_slice()).ok().flatten().ok_or_else(damaged)?;
        Ok(Queued { seq: slot.seq, message })
    }

    /// The server has every message up to the one of this number.
    ///
    /// # Errors
    /// When that can't be written down; then they are delivered again after a restart.
    pub fn ack(&mut self, through: u64) -> Result<(), StoreError> {
        for queue in [&mut self.events, &mut self.results] {
            let count = queue.iter().take_while(|slot| slot.seq <= through).count();
            self.live -= queue.drain(..count).map(|slot| slot.len as u64).sum::<u64>();
        }
        if self.is_empty() && self.log.len() >= RENEW_AT { self.renew() } else { self.write_position(false) }
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.events.len() + self.results.len()
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages were dropped for want of room, ever.
    pub fn dropped(&self) -> u64 {
        self.position.dropped
    }

    /// Makes room for as many bytes, and when there is none, for a tenth of the whole more, so that it lasts.
    fn make_room(&mut self, wanted: u64) -> Result<(), StoreError> {
        if self.live + wanted > self.max_bytes {
            let keep = (self.max_bytes - self.max_bytes / 10).saturating_sub(wanted);
            while self.live > keep {
                let Some(slot) = self.events.pop_front().or_else(|| self.results.pop_front()) else { break };
                self.live -= slot.len as u64;
                self.position.dropped += 1;
            }
            self.write_position(false)?;
        }
        // What was delivered or dropped still takes room in the file.
        if self.log.len() + wanted > 2 * self.max_bytes.max(RENEW_AT) { self.renew() } else { Ok(()) }
    }

    fn write_position(&mut self, durable: bool) -> Result<(), StoreError> {
        let first = |queue: &VecDeque<Slot>| queue.front().map_or(self.log.len(), |slot| slot.offset);
        self.position.events = first(&self.events);
        self.position.results = first(&self.results);
        let bytes = serde_json::to_vec(&self.position)?;
        let path = self.dir.join(POSITION);
        if durable { dir::write_atomic(&path, &bytes) } else { dir::replace_unsynced(&path, &bytes) }?;
        checkpoint(Checkpoint::OutboxPosition);
        Ok(())
    }

    /// Begins a new log with what still waits. Until the position names the new log, the old one counts.
    fn renew(&mut self) -> Result<(), StoreError> {
        let generation = self.position.generation + 1;
        let path = log_path(&self.dir, generation);
        fs::remove(&path)?;
        let mut log = AppendFile::open(&path)?;
        let mut moved = [self.events.clone(), self.results.clone()];
        let mut slots: Vec<&mut Slot> = moved.iter_mut().flatten().collect();
        slots.sort_by_key(|slot| slot.seq);
        for slot in slots {
            slot.offset = log.append(&self.log.read_at(slot.offset, slot.len)?)?;
        }
        log.sync()?;
        checkpoint(Checkpoint::OutboxCopied);
        let [events, results] = moved;
        let before = (std::mem::replace(&mut self.log, log), self.position);
        let queues = (std::mem::replace(&mut self.events, events), std::mem::replace(&mut self.results, results));
        self.position.generation = generation;
        if let Err(error) = self.write_position(true) {
            (self.log, self.position) = before;
            (self.events, self.results) = queues;
            return Err(error);
        }
        checkpoint(Checkpoint::OutboxRenewed);
        Ok(fs::remove(before.0.path())?)
    }
}

fn log_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("outbox.{generation}.log"))
}

/// The logs in the directory, the oldest first.
fn logs(dir: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let generation = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("outbox.")?.strip_suffix(".log")?.parse().ok();
    let mut logs: Vec<(u64, PathBuf)> =
        fs::list(dir)?.into_iter().filter_map(|path| generation(&path).map(|number| (number, path))).collect();
    logs.sort();
    Ok(logs)
}

/// The position file; one that is not there or damaged only means that messages are delivered again.
fn position(dir: &Path) -> Option<Position> {
    serde_json::from_slice(&fs::read(&dir.join(POSITION), MAX_HEADER).ok()?).ok()
}

/// A line that describes the payload, the payload, and the end of the line.
fn frame(message: &Message) -> Result<Vec<u8>, StoreError> {
    let header = Header {
        subject: message.subject.clone(),
        msg_id: message.msg_id.clone(),
        class: message.class,
        size: message.payload.len(),
        sum: sum(&message.payload),
    };
    let mut bytes = serde_json::to_vec(&header)?;
    if bytes.len() as u64 >= MAX_HEADER {
        return Err(StoreError::TooLarge { size: bytes.len() as u64, limit: MAX_HEADER });
    }
    bytes.push(b'\n');
    bytes.extend_from_slice(&message.payload);
    bytes.push(b'\n');
    Ok(bytes)
}

/// Against torn writes, not against people.
fn sum(payload: &[u8]) -> String {
    digest(payload).chars().take(16).collect()
}

/// The next message and its length in the log; `None` at the end, or where it is torn.
fn read_frame(reader: &mut impl BufRead) -> std::io::Result<Option<(Message, usize)>> {
    let mut line = Vec::new();
    reader.by_ref().take(MAX_HEADER).read_until(b'\n', &mut line)?;
    let Ok(header) = serde_json::from_slice::<Header>(&line) else { return Ok(None) };
    if line.last() != Some(&b'\n') {
        return Ok(None);
    }
    let mut payload = Vec::new();
    reader.by_ref().take((header.size as u64).saturating_add(1)).read_to_end(&mut payload)?;
    let ended = payload.pop() == Some(b'\n');
    if !ended || payload.len() != header.size || sum(&payload) != header.sum {
        return Ok(None);
    }
    let len = line.len() + payload.len() + 1;
    let message = Message { subject: header.subject, msg_id: header.msg_id, payload, class: header.class };
    Ok(Some((message, len)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(id: &str, class: Class, size: usize) -> Message {
        Message { subject: "s".into(), msg_id: id.into(), payload: vec![b'x'; size], class }
    }

    fn ids(outbox: &Outbox) -> Vec<String> {
        outbox.peek(usize::MAX).unwrap().into_iter().map(|queued| queued.message.msg_id).collect()
    }

    fn ack(outbox: &mut Outbox, count: usize) {
        if let Some(last) = outbox.peek(count).unwrap().last() {
            outbox.ack(last.seq).unwrap();
        }
    }

    #[test]
    fn messages_wait_in_order_until_they_are_delivered() {
        let dir = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
        let binary = Message { subject: "s".into(), msg_id: "b".into(), payload: (0..=255).collect(), class: Class::Result };
        outbox.push(&message("a", Class::Event, 0)).unwrap();
        outbox.push(&binary).unwrap();
        outbox.push(&message("c", Class::Event, 10)).unwrap();
        outbox.sync().unwrap();
        assert_eq!((ids(&outbox), outbox.len()), (vec!["a".into(), "b".into(), "c".into()], 3));
        assert_eq!(outbox.peek(2).unwrap().len(), 2);
        ack(&mut outbox, 1);
        drop(outbox);
        let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(outbox.peek(1).unwrap()[0].message, binary);
        assert_eq!(ids(&outbox), ["b", "c"]);
        ack(&mut outbox, 9);
        assert!(outbox.is_empty());
        outbox.push(&message("d", Class::Event, 1)).unwrap();
        drop(outbox);
        assert_eq!(ids(&Outbox::open(dir.path(), 1 << 20).unwrap()), ["d"]);
    }

    #[test]
    fn results_outlive_events_and_drops_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(dir.path(), 2000).unwrap();
        outbox.push(&message("r0", Class::Result, 100)).unwrap();
        for n in 0..30 {
            outbox.push(&message(&format!("e{n}"), Class::Event, 100)).unwrap();
        }
        let left = ids(&outbox);
        assert_eq!((left.first().unwrap().as_str(), left.last().unwrap().as_str()), ("r0", "e29"));
        assert_eq!(outbox.dropped() + left.len() as u64, 31);
        drop(outbox);
        let mut outbox = Outbox::open(dir.path(), 2000).unwrap();
        assert_eq!(ids(&outbox), left);
        for n in 1..30 {
            outbox.push(&message(&format!("r{n}"), Class::Result, 100)).unwrap();
        }
        let left = ids(&outbox);
        assert!(left.iter().all(|id| id.starts_with('r')) && left.last().unwrap() == "r29", "{left:?}");
        assert_eq!(outbox.dropped() + left.len() as u64, 60);
        assert!(matches!(outbox.push(&message("big", Class::Result, 2000)), Err(StoreError::TooLarge { .. })));
        assert_eq!(ids(&outbox), left);
    }

    #[test]
    fn an_ack_takes_what_was_sent_even_when_others_were_dropped_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(dir.path(), 1000).unwrap();
        for n in 0..5 {
            outbox.push(&message(&format!("e{n}"), Class::Event, 50)).unwrap();
        }
        let sent = outbox.peek(3).unwrap();
        for n in 5..9 {
            outbox.push(&message(&format!("e{n}"), Class::Event, 50)).unwrap();
        }
        assert!(outbox.dropped() > 0);
        outbox.ack(sent.last().unwrap().seq).unwrap();
        let left = ids(&outbox);
        assert!(left.contains(&"e8".to_owned()) && !left.contains(&"e2".to_owned()), "{left:?}");
    }

    #[test]
    fn the_file_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
        for n in 0..200 {
            outbox.push(&message(&format!("m{n}"), Class::Event, 50_000)).unwrap();
            if n % 3 == 0 {
                ack(&mut outbox, 3);
            }
            let size: u64 = logs(dir.path()).unwrap().iter().map(|(_, path)| path.metadata().unwrap().len()).sum();
            assert!(size <= 2 << 20, "{size}");
        }
        assert!(outbox.position.generation > 2);
        assert_eq!(outbox.dropped(), 0);
        assert_eq!(logs(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_lost_position_only_delivers_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
        outbox.push(&message("a", Class::Event, 1)).unwrap();
        outbox.push(&message("b", Class::Event, 1)).unwrap();
        ack(&mut outbox, 1);
        drop(outbox);
        // A newer log that was not yet named by the position when the process died.
        std::fs::write(log_path(dir.path(), 1), "{").unwrap();
        std::fs::write(dir.path().join(POSITION), "{\"gen").unwrap();
        assert_eq!(ids(&Outbox::open(dir.path(), 1 << 20).unwrap()), ["a", "b"]);
        assert!(!log_path(dir.path(), 1).exists());
    }

    #[test]
    fn a_log_behind_its_position_does_not_swallow_what_comes_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
        outbox.push(&message("a", Class::Event, 500)).unwrap();
        ack(&mut outbox, 1);
        drop(outbox);
        std::fs::write(log_path(dir.path(), 0), "").unwrap();
        let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
        outbox.push(&message("b", Class::Event, 1000)).unwrap();
        drop(outbox);
        assert_eq!(ids(&Outbox::open(dir.path(), 1 << 20).unwrap()), ["b"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is pushed, delivered, and killed in between: nothing is lost, nothing changes its order.
        #[test]
        fn nothing_is_lost(steps in proptest::collection::vec((0..4u8, 0..200usize), 1..60)) {
            let dir = tempfile::tempdir().unwrap();
            let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
            let (mut model, mut next) = (VecDeque::new(), 0);
            for (what, size) in steps {
                match what {
                    0 | 1 => {
                        let class = if what == 0 { Class::Event } else { Class::Result };
                        outbox.push(&message(&next.to_string(), class, size)).unwrap();
                        model.push_back(next.to_string());
                        next += 1;
                    }
                    2 => {
                        let count = size % 4;
                        ack(&mut outbox, count);
                        model.drain(..count.min(model.len()));
                    }
                    _ => {
                        // Killed in the middle of a write.
                        drop(outbox);
                        let generation = position(dir.path()).unwrap_or_default().generation;
                        let path = log_path(dir.path(), generation);
                        let torn = frame(&message("torn", Class::Event, 100)).unwrap();
                        let mut bytes = std::fs::read(&path).unwrap();
                        bytes.extend_from_slice(&torn[..size % torn.len()]);
                        std::fs::write(&path, bytes).unwrap();
                        outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
                    }
                }
                prop_assert_eq!(ids(&outbox), model.iter().cloned().collect::<Vec<_>>());
            }
        }
    }
}
