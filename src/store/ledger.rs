//! The ledger of accepted commands: what was accepted is on disk before it is answered or run.
//!
//! It is what makes a replay visible, what a killed agent finds its work in, and what answers a
//! command that is sent twice. One line of JSON a record; a record that was not written to its end
//! was never acknowledged, and is cut off at the next start.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::host::fs;
use crate::wire::report::{ChannelState, Done};

use super::append::AppendFile;
use super::{StoreError, dir};

const FILE: &str = "ledger.jsonl";
/// The ledger is rewritten when it has more records than this, and twice as many as after the last time.
const COMPACT_AT: usize = 1000;
/// How long after its end a command is remembered: many times the skew that clocks are allowed.
pub const MEMORY: SignedDuration = SignedDuration::from_hours(1);
/// What the floor is above the end of a forgotten command: more than the skew that clocks are allowed.
const MARGIN: SignedDuration = SignedDuration::from_mins(1);
/// More than any ledger that is rewritten in time; a larger file is none of ours.
const MAX_SIZE: u64 = 1 << 30;

/// A command that is to be accepted.
#[derive(Debug, Clone)]
pub struct Acceptance<'a> {
    /// Its id.
    pub id: Uuid,
    /// SHA-256 of its signed bytes.
    pub digest: &'a str,
    /// When it was signed.
    pub issued: Timestamp,
    /// When its time is over.
    pub expires: Timestamp,
    /// The subject it came on; `None` when it was carried here by hand.
    pub subject: Option<&'a str>,
    /// The envelope as it came.
    pub envelope: &'a [u8],
    /// The channel that it moves, and to where.
    pub channel: Option<(&'a str, ChannelState)>,
}

/// A command that was accepted, and whose end is not written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Its id.
    pub id: Uuid,
    /// SHA-256 of its signed bytes.
    pub digest: String,
    /// The envelope as it came.
    pub envelope: Vec<u8>,
    /// The subject it came on.
    pub subject: Option<String>,
    /// True when its run had begun: it may have changed the host, and must not be begun again.
    pub started: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Accepted(Accepted),
    Started { id: Uuid },
    Done { id: Uuid, done: Box<Done> },
    Channel { name: String, state: ChannelState },
    Floor { at: Timestamp },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Accepted {
    id: Uuid,
    digest: String,
    issued: Timestamp,
    expires: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    envelope: Vec<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channel: Option<(String, ChannelState)>,
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

#[derive(Debug)]
struct Entry {
    /// Its place in the order of acceptance.
    order: u64,
    accepted: Accepted,
    started: bool,
    done: Option<Done>,
}

/// The ledger, open for this process alone.
#[derive(Debug)]
pub struct Ledger {
    log: AppendFile,
    entries: HashMap<Uuid, Entry>,
    channels: BTreeMap<String, ChannelState>,
    floor: Option<Timestamp>,
    next: u64,
    records: usize,
    compact_at: usize,
    torn: bool,
    _lock: dir::Lock,
}

impl Ledger {
    /// Opens the ledger in this directory (made if need be), which becomes this process's alone.
    ///
    /// # Errors
    /// When another process has it, or the file is damaged anywhere but at its end.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        dir::create(dir)?;
        let lock = dir::lock(dir)?;
        dir::sweep(dir)?;
        // A rewritten one that did not come into its place.
        fs::remove(&dir.join(FILE).with_extension("new"))?;
        let mut ledger = Self {
            log: AppendFile::open(&dir.join(FILE))?,
            entries: HashMap::new(),
            channels: BTreeMap::new(),
            floor: None,
            next: 0,
            records: 0,
            compact_at: COMPACT_AT,
            torn: false,
            _lock: lock,
        };
        ledger.replay()?;
        Ok(ledger)
    }

    fn replay(&mut self) -> Result<(), StoreError> {
        let bytes = fs::read(self.log.path(), MAX_SIZE)?;
        let mut read = 0;
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let ended = line.ends_with(b"\n");
            let last = lines.peek().is_none();
            match serde_json::from_slice::<Record>(line) {
                Ok(record) if ended => self.apply(record),
                Err(source) if ended && !(last && line.contains(&0)) => {
                    return Err(StoreError::Damaged { path: self.log.path().to_owned(), line: index + 1, source });
                }
                // Written in part; or, after a power cut, its end but not its middle, which then has zeros.
                _ => {
                    self.torn = true;
                    return self.log.truncate(read);
                }
            }
            read += line.len() as u64;
        }
        Ok(())
    }

    fn apply(&mut self, record: Record) {
        self.records += 1;
        match record {
            Record::Accepted(accepted) => {
                if let Some((name, state)) = accepted.channel.clone() {
                    self.channels.insert(name, state);
                }
                self.raise_floor(accepted.issued);
                let entry = Entry { order: self.next, started: false, done: None, accepted };
                self.next += 1;
                self.entries.insert(entry.accepted.id, entry);
            }
            Record::Started { id } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.started = true;
                }
            }
            Record::Done { id, done } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.done = Some(*done);
                    // It will not be run again: from here on its digest is enough.
                    entry.accepted.envelope = Vec::new();
                }
            }
            Record::Channel { name, state } => {
                self.channels.insert(name, state);
            }
            Record::Floor { at } => self.raise_floor(at),
        }
    }

    fn raise_floor(&mut self, at: Timestamp) {
        self.floor = self.floor.max(Some(at));
    }

    fn write(&mut self, record: Record) -> Result<(), StoreError> {
        self.log.append_durably(&line(&record)?)?;
        self.apply(record);
        Ok(())
    }

    /// Writes down that a command was accepted. When this returns, it is on disk.
    ///
    /// # Errors
    /// When it was accepted before, or could not be written: then it must not be answered as accepted, nor run.
    pub fn accept(&mut self, command: &Acceptance<'_>) -> Result<(), StoreError> {
        if self.entries.contains_key(&command.id) {
            return Err(StoreError::Known(command.id));
        }
        self.write(Record::Accepted(Accepted {
            id: command.id,
            digest: command.digest.to_owned(),
            issued: command.issued,
            expires: command.expires,
            subject: command.subject.map(str::to_owned),
            envelope: command.envelope.to_vec(),
            channel: command.channel.clone().map(|(name, state)| (name.to_owned(), state)),
        }))
    }

    /// Writes down that its run begins. When this returns, it is on disk, and it will not be begun again.
    ///
    /// # Errors
    /// When it was never accepted, or could not be written: then it must not be run.
    pub fn start(&mut self, id: Uuid) -> Result<(), StoreError> {
        self.known(id)?;
        self.write(Record::Started { id })
    }

    /// Writes down its end. From time to time this also rewrites the ledger without what is long over.
    ///
    /// # Errors
    /// When it was never accepted, or could not be written.
    pub fn done(&mut self, id: Uuid, done: &Done) -> Result<(), StoreError> {
        self.known(id)?;
        self.write(Record::Done { id, done: Box::new(done.clone()) })?;
        if self.records > self.compact_at && self.compact(done.at).is_err() {
            // The end is written down, only the tidying failed: a full disk, perhaps. Later, then.
            self.compact_at = self.records + COMPACT_AT;
        }
        Ok(())
    }

    fn known(&self, id: Uuid) -> Result<(), StoreError> {
        if self.entries.contains_key(&id) { Ok(()) } else { Err(StoreError::Unknown(id)) }
    }

    /// Rewrites the ledger without the commands that are done and whose time is long over.
    ///
    /// # Errors
    /// When it can't be written; then the old one stays.
    pub fn compact(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let over = |entry: &Entry| entry.done.is_some() && now.duration_since(entry.accepted.expires) > MEMORY;
        // What is forgotten could come again under a clock that was set back; the floor keeps it out.
        if let Some(latest) = self.entries.values().filter(|entry| over(entry)).map(|entry| entry.accepted.expires).max() {
            self.raise_floor(latest.saturating_add(MARGIN).unwrap_or(latest));
        }
        let mut kept: Vec<&Entry> = self.entries.values().filter(|entry| !over(entry)).collect();
        kept.sort_by_key(|entry| entry.order);
        let mut records: Vec<Record> = self.floor.iter().map(|at| Record::Floor { at: *at }).collect();
        records.extend(kept.into_iter().flat_map(Entry::records));
        // After the commands, whose own channel states are older or the same.
        records.extend(self.channels.iter().map(|(name, state)| Record::Channel { name: name.clone(), state: state.clone() }));
        let mut bytes = Vec::new();
        for record in &records {
            bytes.extend(line(record)?);
        }
        self.log.replace_with(&bytes)?;
        self.entries.retain(|_, entry| !over(entry));
        self.records = records.len();
        self.compact_at = (2 * self.records).max(COMPACT_AT);
        Ok(())
    }

    /// The digest of the command of this id, when one was accepted and is remembered.
    pub fn seen(&self, id: Uuid) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.accepted.digest.as_str())
    }

    /// Where a channel is.
    pub fn channel(&self, name: &str) -> Option<&ChannelState> {
        self.channels.get(name)
    }

    /// Where all channels are.
    pub fn channels(&self) -> &BTreeMap<String, ChannelState> {
        &self.channels
    }

    /// A time that has surely passed, whatever the clock says: no command is to be judged by an earlier one.
    pub fn floor(&self) -> Option<Timestamp> {
        self.floor
    }

    /// How a command ended.
    pub fn result(&self, id: Uuid) -> Option<&Done> {
        self.entries.get(&id)?.done.as_ref()
    }

    /// How many of the commands that are remembered were accepted, and how many of those have ended.
    pub fn counts(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.values().filter(|entry| entry.done.is_some()).count())
    }

    /// The commands whose end is not written down, in the order in which they were accepted.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        let mut open: Vec<&Entry> = self.entries.values().filter(|entry| entry.done.is_none()).collect();
        open.sort_by_key(|entry| entry.order);
        open.into_iter()
            .map(|entry| Unfinished {
                id: entry.accepted.id,
                digest: entry.accepted.digest.clone(),
                envelope: entry.accepted.envelope.clone(),
                subject: entry.accepted.subject.clone(),
                started: entry.started,
            })
            .collect()
    }

    /// True when the end of the file was cut off as it was opened: a record that nobody was told of.
    pub fn was_torn(&self) -> bool {
        self.torn
    }
}

impl Entry {
    fn records(&self) -> Vec<Record> {
        let id = self.accepted.id;
        let mut records = vec![Record::Accepted(self.accepted.clone())];
        records.extend(self.started.then_some(Record::Started { id }));
        records.extend(self.done.clone().map(|done| Record::Done { id, done: Box::new(done) }));
        records
    }
}

fn line(record: &Record) -> Result<Vec<u8>, StoreError> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::DoneOutcome;
    use crate::wire::report::DONE;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn id(n: u8) -> Uuid {
        Uuid::from_bytes([n; 16])
    }

    fn accept(ledger: &mut Ledger, n: u8, channel: Option<(&str, ChannelState)>) {
        let (issued, expires) = (at(i64::from(n)), at(i64::from(n) + 300));
        let command =
            Acceptance { id: id(n), digest: &format!("d{n}"), issued, expires, subject: Some("s"), envelope: b"{}", channel };
        ledger.accept(&command).unwrap();
    }

    fn done(n: u8, when: i64) -> Done {
        Done {
            protocol: DONE.into(),
            id: Some(id(n)),
            digest: format!("d{n}"),
            node: "web1".parse().unwrap(),
            at: at(when),
            outcome: DoneOutcome::Stable,
            code: None,
            message: Some("x".into()),
            event: None,
            apply: None,
            failures: BTreeMap::default(),
            plan: None,
            answer: None,
            rule: None,
            signers: vec![],
        }
    }

    fn state(serial: u64) -> ChannelState {
        ChannelState { epoch: 1, serial, digest: "a".into() }
    }

    #[test]
    fn everything_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        accept(&mut ledger, 1, Some(("base", state(1))));
        accept(&mut ledger, 2, Some(("base", state(2))));
        accept(&mut ledger, 3, None);
        ledger.start(id(1)).unwrap();
        ledger.done(id(1), &done(1, 10)).unwrap();
        ledger.start(id(2)).unwrap();
        assert!(matches!(ledger.done(id(9), &done(9, 10)), Err(StoreError::Unknown(_))));
        drop(ledger);
        let ledger = Ledger::open(dir.path()).unwrap();
        assert_eq!((ledger.seen(id(1)), ledger.seen(id(9))), (Some("d1"), None));
        assert_eq!(ledger.channel("base"), Some(&state(2)));
        assert_eq!(ledger.result(id(1)), Some(&done(1, 10)));
        assert_eq!(ledger.floor(), Some(at(3)));
        let open: Vec<_> = ledger.unfinished().into_iter().map(|open| (open.id, open.started, open.envelope)).collect();
        assert_eq!(open, [(id(2), true, b"{}".to_vec()), (id(3), false, b"{}".to_vec())]);
    }

    #[test]
    fn the_directory_is_one_agents() {
        let dir = tempfile::tempdir().unwrap();
        let _held = Ledger::open(dir.path()).unwrap();
        assert!(matches!(Ledger::open(dir.path()), Err(StoreError::InUse { .. })));
    }

    #[test]
    fn an_id_is_accepted_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        accept(&mut ledger, 1, None);
        let again = Acceptance {
            id: id(1),
            digest: "other",
            issued: at(0),
            expires: at(1),
            subject: None,
            envelope: b"",
            channel: Some(("base", state(9))),
        };
        assert!(matches!(ledger.accept(&again), Err(StoreError::Known(_))));
        assert_eq!((ledger.seen(id(1)), ledger.channel("base")), (Some("d1"), None));
    }

    #[test]
    fn a_torn_end_is_cut_off_and_a_damaged_middle_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut ledger = Ledger::open(dir.path()).unwrap();
        accept(&mut ledger, 1, None);
        drop(ledger);
        let good = std::fs::read(&path).unwrap();
        for tail in [&b"{\"started\":{\"id\""[..], b"\0\0\0\0", b"{\"sta\0\0\0\n", &good[..good.len() - 1]] {
            std::fs::write(&path, [&good, tail].concat()).unwrap();
            let mut ledger = Ledger::open(dir.path()).unwrap();
            assert!(ledger.was_torn());
            accept(&mut ledger, 2, None);
            drop(ledger);
            let ledger = Ledger::open(dir.path()).unwrap();
            assert!(!ledger.was_torn());
            assert_eq!((ledger.seen(id(1)), ledger.seen(id(2))), (Some("d1"), Some("d2")));
        }
        for damage in [&b"garbage\n"[..], b"\0\0\n"] {
            std::fs::write(&path, [&good, damage, &good].concat()).unwrap();
            let message = Ledger::open(dir.path()).unwrap_err().to_string();
            assert_eq!(message, format!("{}, line 2, is damaged", path.display()));
        }
    }

    #[test]
    fn what_is_long_over_is_forgotten_and_still_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        for n in 1..=3 {
            accept(&mut ledger, n, Some(("base", state(u64::from(n)))));
        }
        ledger.done(id(1), &done(1, 10)).unwrap();
        ledger.done(id(2), &done(2, 10)).unwrap();
        ledger.start(id(3)).unwrap();
        // Just before the hour nothing is forgotten.
        ledger.compact(at(301 + 3600)).unwrap();
        assert!(ledger.seen(id(1)).is_some());
        ledger.compact(at(302 + 3600)).unwrap();
        drop(ledger);
        let ledger = Ledger::open(dir.path()).unwrap();
        assert_eq!((ledger.seen(id(1)), ledger.seen(id(2))), (None, Some("d2")));
        assert_eq!(ledger.channel("base"), Some(&state(3)));
        assert_eq!(ledger.floor(), Some(at(301 + 60)));
        assert_eq!(ledger.unfinished().len(), 1);
        assert!(ledger.unfinished()[0].started);
        assert_eq!(ledger.result(id(2)), Some(&done(2, 10)));
    }

    #[test]
    fn the_file_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        ledger.compact_at = 20;
        for n in 0..30 {
            accept(&mut ledger, n, None);
            ledger.done(id(n), &done(n, i64::from(n) * 1000)).unwrap();
            ledger.compact_at = ledger.compact_at.min(20);
        }
        drop(ledger);
        let ledger = Ledger::open(dir.path()).unwrap();
        assert!(ledger.records < 25, "{}", ledger.records);
        assert_eq!(ledger.seen(id(29)), Some("d29"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        /// A process that dies at any byte of its writing leaves the records before that byte.
        #[test]
        fn any_cut_leaves_the_records_before_it(cut in any::<prop::sample::Index>()) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(FILE);
            let mut ledger = Ledger::open(dir.path()).unwrap();
            let mut ends = vec![];
            for n in 0..5 {
                accept(&mut ledger, n, None);
                ends.push(ledger.log.len());
            }
            drop(ledger);
            let bytes = std::fs::read(&path).unwrap();
            let cut = cut.index(bytes.len() + 1);
            std::fs::File::create(&path).unwrap().write_all(&bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut as u64).count();
            let ledger = Ledger::open(dir.path()).unwrap();
            prop_assert_eq!(ledger.unfinished().len(), whole);
        }
    }
}
