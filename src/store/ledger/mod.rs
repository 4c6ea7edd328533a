//! The ledger of accepted commands: a command is on disk before the node answers or runs it.
//!
//! The ledger detects replays, returns unfinished work to a killed agent, and answers a repeated command. Every record is a
//! line of JSON. A record without its end was never acknowledged, and the next start truncates the record.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::host::fs;
use crate::wire::report::{ChannelPosition, CommandResult};

use super::append_log::AppendLog;
use super::{StoreError, state_dir};

const FILE: &str = "ledger.jsonl";
/// The ledger is rewritten when it has more records than this, and twice as many as after the last time.
const COMPACT_AT: usize = 1000;
/// The time for which a command is remembered after its end: many times the allowed clock skew.
pub const REPLAY_MEMORY: SignedDuration = SignedDuration::from_hours(1);
/// The longest lifetime of a command that runs once. Assignments live longer: their channel rejects older ones.
const MAX_COMMAND_LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// The distance of the floor from the end of a forgotten command: more than the allowed clock skew.
const FLOOR_MARGIN: SignedDuration = SignedDuration::from_mins(1);
/// The largest ledger. Rewriting keeps a ledger smaller, so a larger file is damaged or foreign.
const MAX_SIZE: u64 = 1 << 30;

/// A command to accept.
#[derive(Debug, Clone)]
pub struct Acceptance<'a> {
    /// Its id.
    pub id: Uuid,
    /// SHA-256 of its signed bytes.
    pub digest: &'a str,
    /// The time of the signature.
    pub issued: Timestamp,
    /// The time of expiry.
    pub expires: Timestamp,
    /// The subject of the command; `None` when a user submitted the command on this host.
    pub subject: Option<&'a str>,
    /// The envelope as received.
    pub envelope: &'a [u8],
    /// The channel that the command moves, and its new position.
    pub channel: Option<(&'a str, ChannelPosition)>,
    /// The keys that signed the command.
    pub signers: &'a [String],
}

/// The state of a node that was lost when its ledger was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LostState {
    /// An earlier ledger.
    pub ledger: bool,
    /// The active trust bundle.
    pub trust: bool,
}

/// The origin of the ledger: its time, and the loss at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerOrigin {
    /// The time of origin. Commands signed before may have run without a record.
    pub at: Timestamp,
    /// The loss. A new node has none.
    #[serde(default)]
    pub lost: LostState,
}

/// An accepted command without a recorded end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedCommand {
    /// Its id.
    pub id: Uuid,
    /// SHA-256 of its signed bytes.
    pub digest: String,
    /// The envelope as received.
    pub envelope: Vec<u8>,
    /// The subject of the command.
    pub subject: Option<String>,
    /// True when the run had begun. The run may have changed the host, and must not begin again.
    pub started: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Accepted(Accepted),
    Started {
        id: Uuid,
    },
    Done {
        id: Uuid,
        done: Box<CommandResult>,
    },
    Channel {
        name: String,
        state: ChannelPosition,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        signers: Vec<String>,
    },
    Floor {
        at: Timestamp,
    },
    Born(LedgerOrigin),
    Trust {
        version: u64,
    },
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
    channel: Option<(String, ChannelPosition)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    signers: Vec<String>,
    /// True for a command that was signed later than the believed time: such a command does not raise the floor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ahead: bool,
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

#[derive(Debug)]
struct LedgerEntry {
    /// Its position in the order of acceptance.
    order: u64,
    accepted: Accepted,
    started: bool,
    result: Option<CommandResult>,
}

/// The ledger, open for this process alone.
#[derive(Debug)]
pub struct Ledger {
    log: AppendLog,
    entries: HashMap<Uuid, LedgerEntry>,
    channels: BTreeMap<String, ChannelPosition>,
    /// The signers of the last step of each channel.
    channel_signers: BTreeMap<String, Vec<String>>,
    floor: Option<Timestamp>,
    /// The latest time to which the floor may rise; any time when none.
    clock_limit: Option<Timestamp>,
    origin: Option<LedgerOrigin>,
    trust: Option<u64>,
    next_order: u64,
    records: usize,
    compact_at: usize,
    was_truncated: bool,
    _lock: state_dir::DirectoryLock,
}

impl Ledger {
    /// Opens the ledger in this directory, for this process alone. Creates the directory if needed.
    ///
    /// # Errors
    /// When another process has the ledger, or the file is damaged anywhere but at its end.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        state_dir::create(dir)?;
        let lock = state_dir::lock(dir)?;
        state_dir::remove_temporary_files(dir)?;
        // A rewritten ledger that did not replace the old one.
        fs::remove(&dir.join(FILE).with_extension("new"))?;
        let mut ledger = Self {
            log: AppendLog::open(&dir.join(FILE))?,
            entries: HashMap::new(),
            channels: BTreeMap::new(),
            channel_signers: BTreeMap::new(),
            floor: None,
            clock_limit: None,
            origin: None,
            trust: None,
            next_order: 0,
            records: 0,
            compact_at: COMPACT_AT,
            was_truncated: false,
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
                // A partial record; or, after a power cut, a record whose middle has zeros.
                _ => {
                    self.was_truncated = true;
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
                    self.channel_signers.insert(name.clone(), accepted.signers.clone());
                    self.channels.insert(name, state);
                }
                if !accepted.ahead {
                    self.raise_floor(accepted.issued);
                }
                let entry = LedgerEntry { order: self.next_order, started: false, result: None, accepted };
                self.next_order += 1;
                self.entries.insert(entry.accepted.id, entry);
            }
            Record::Started { id } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.started = true;
                }
            }
            Record::Done { id, done } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.result = Some(*done);
                    // The command will not run again: from here on its digest is enough.
                    entry.accepted.envelope = Vec::new();
                }
            }
            Record::Channel { name, state, signers } => {
                self.channel_signers.insert(name.clone(), signers);
                self.channels.insert(name, state);
            }
            Record::Floor { at } => self.raise_floor(at),
            Record::Born(birth) => self.origin = Some(birth),
            Record::Trust { version } => self.trust = self.trust.max(Some(version)),
        }
    }

    /// True when the ledger has no record.
    pub fn is_new(&self) -> bool {
        self.records == 0
    }

    /// Records the origin of the ledger, also of a remade ledger, and the loss at that time.
    ///
    /// # Errors
    /// When the record could not be written.
    pub fn record_origin(&mut self, birth: LedgerOrigin) -> Result<(), StoreError> {
        self.write(Record::Born(birth))
    }

    /// Returns the origin of the ledger; none when unknown.
    pub fn origin(&self) -> Option<LedgerOrigin> {
        self.origin
    }

    /// Records the version of a newly active trust bundle.
    ///
    /// # Errors
    /// When the record could not be written.
    pub fn record_trust_version(&mut self, version: u64) -> Result<(), StoreError> {
        if self.trust >= Some(version) { Ok(()) } else { self.write(Record::Trust { version }) }
    }

    /// Returns the latest version of the trust bundle that was ever active.
    pub fn trust_version(&self) -> Option<u64> {
        self.trust
    }

    /// Sets the latest time that is believed to have passed. A clock that jumped further ahead raises no floor and expires no
    /// record.
    pub fn advance_clock_floor(&mut self, until: Timestamp) {
        self.clock_limit = Some(until);
    }

    fn raise_floor(&mut self, at: Timestamp) {
        self.floor = self.floor.max(Some(at));
    }

    /// Verifies that the ledger is still the file that the next start opens.
    ///
    /// # Errors
    /// With [`StoreError::Displaced`] when the file, or a directory above it, was removed or replaced.
    pub fn verify_path(&self) -> Result<(), StoreError> {
        self.log.verify_path()
    }

    fn write(&mut self, record: Record) -> Result<(), StoreError> {
        self.verify_path()?;
        self.log.append_durably(&line(&record)?)?;
        self.apply(record);
        Ok(())
    }

    /// Records an accepted command. On return the record is on disk.
    ///
    /// # Errors
    /// When the command was accepted before, or could not be written. The caller must then neither acknowledge nor run the
    /// command.
    pub fn record_acceptance(&mut self, command: &Acceptance<'_>) -> Result<(), StoreError> {
        if self.entries.contains_key(&command.id) {
            return Err(StoreError::AlreadyAccepted(command.id));
        }
        self.write(Record::Accepted(Accepted {
            id: command.id,
            digest: command.digest.to_owned(),
            issued: command.issued,
            expires: command.expires,
            subject: command.subject.map(str::to_owned),
            envelope: command.envelope.to_vec(),
            channel: command.channel.clone().map(|(name, state)| (name.to_owned(), state)),
            signers: command.signers.to_vec(),
            ahead: self.clock_limit.is_some_and(|until| command.issued > until),
        }))
    }

    /// Records the start of a run. On return the record is on disk, and the run will not begin again.
    ///
    /// # Errors
    /// When the command was never accepted, or could not be written. The caller must then not run the command.
    pub fn record_start(&mut self, id: Uuid) -> Result<(), StoreError> {
        self.require_accepted(id)?;
        self.write(Record::Started { id })
    }

    /// Records the end of a command. From time to time, also rewrites the ledger without expired records.
    ///
    /// # Errors
    /// When the command was never accepted, or could not be written.
    pub fn record_result(&mut self, id: Uuid, done: &CommandResult) -> Result<(), StoreError> {
        self.require_accepted(id)?;
        self.write(Record::Done { id, done: Box::new(done.clone()) })?;
        if self.records > self.compact_at && self.compact(done.at).is_err() {
            // The end is recorded and only the rewrite failed, perhaps on a full disk. The next end tries again.
            self.compact_at = self.records + COMPACT_AT;
        }
        Ok(())
    }

    fn require_accepted(&self, id: Uuid) -> Result<(), StoreError> {
        if self.entries.contains_key(&id) { Ok(()) } else { Err(StoreError::NeverAccepted(id)) }
    }

    /// Rewrites the ledger without commands that have ended and expired long ago.
    ///
    /// # Errors
    /// When the ledger can't be written; then the old file stays.
    pub fn compact(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let now = self.clock_limit.map_or(now, |until| until.min(now));
        let over = |entry: &LedgerEntry| entry.result.is_some() && now.duration_since(entry.accepted.expires) > REPLAY_MEMORY;
        // A forgotten command could come again under a clock that was set back; the floor rejects it.
        let short = |entry: &&LedgerEntry| entry.accepted.expires.duration_since(entry.accepted.issued) <= MAX_COMMAND_LIFETIME;
        let forgotten = self.entries.values().filter(|entry| over(entry)).filter(short);
        if let Some(latest) = forgotten.map(|entry| entry.accepted.expires).max() {
            self.raise_floor(latest.saturating_add(FLOOR_MARGIN).unwrap_or(latest));
        }
        let mut kept: Vec<&LedgerEntry> = self.entries.values().filter(|entry| !over(entry)).collect();
        kept.sort_by_key(|entry| entry.order);
        let mut records: Vec<Record> = self.origin.map(Record::Born).into_iter().collect();
        records.extend(self.trust.map(|version| Record::Trust { version }));
        records.extend(self.floor.map(|at| Record::Floor { at }));
        records.extend(kept.into_iter().flat_map(LedgerEntry::records));
        // After the commands, whose own channel positions are older or the same.
        records.extend(self.channels.iter().map(|(name, state)| Record::Channel {
            name: name.clone(),
            state: state.clone(),
            signers: self.channel_signers.get(name).cloned().unwrap_or_default(),
        }));
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

    /// Returns the digest of a remembered command.
    pub fn accepted_digest(&self, id: Uuid) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.accepted.digest.as_str())
    }

    /// Returns the position of a channel.
    pub fn channel(&self, name: &str) -> Option<&ChannelPosition> {
        self.channels.get(name)
    }

    /// Returns the positions of all channels.
    pub fn channels(&self) -> &BTreeMap<String, ChannelPosition> {
        &self.channels
    }

    /// Returns the signers of the last step of each channel.
    pub fn channel_signers(&self) -> impl Iterator<Item = &[String]> {
        self.channel_signers.values().map(Vec::as_slice)
    }

    /// Returns a time that has passed for certain, independent of the clock. No command is verified with an earlier time.
    pub fn floor(&self) -> Option<Timestamp> {
        self.floor
    }

    /// Returns the signers of each remembered command.
    pub fn signers(&self) -> impl Iterator<Item = &[String]> {
        self.entries.values().map(|entry| entry.accepted.signers.as_slice())
    }

    /// Returns the result of a command.
    pub fn result(&self, id: Uuid) -> Option<&CommandResult> {
        self.entries.get(&id)?.result.as_ref()
    }

    /// Returns the number of remembered commands that were accepted, and of those that have ended.
    pub fn counts(&self) -> (usize, usize) {
        (self.entries.len(), self.entries.values().filter(|entry| entry.result.is_some()).count())
    }

    /// Returns the commands without a recorded end, in the order of acceptance.
    pub fn unfinished(&self) -> Vec<UnfinishedCommand> {
        let mut open: Vec<&LedgerEntry> = self.entries.values().filter(|entry| entry.result.is_none()).collect();
        open.sort_by_key(|entry| entry.order);
        open.into_iter()
            .map(|entry| UnfinishedCommand {
                id: entry.accepted.id,
                digest: entry.accepted.digest.clone(),
                envelope: entry.accepted.envelope.clone(),
                subject: entry.accepted.subject.clone(),
                started: entry.started,
            })
            .collect()
    }

    /// True when opening truncated an incomplete last record, which was never acknowledged.
    pub fn was_truncated(&self) -> bool {
        self.was_truncated
    }
}

impl LedgerEntry {
    fn records(&self) -> Vec<Record> {
        let id = self.accepted.id;
        let mut records = vec![Record::Accepted(self.accepted.clone())];
        records.extend(self.started.then_some(Record::Started { id }));
        records.extend(self.result.clone().map(|done| Record::Done { id, done: Box::new(done) }));
        records
    }
}

fn line(record: &Record) -> Result<Vec<u8>, StoreError> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests;
