//! The file of an export: JSON, a line each. The first line says what is in it; each other one is a message.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::transport::Message;
use crate::wire::json::{self, JsonError};

/// What the first line begins with.
pub const FORMAT: &str = "io.ensign.v1.audit";

/// A line that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not strict JSON, or of another form.
    #[error("line {line} can't be read")]
    Json {
        /// Which, from 1.
        line: usize,
        /// Why.
        #[source]
        source: JsonError,
    },
    /// Another kind of file.
    #[error("this is no export of an audit: its first line does not say {FORMAT}")]
    Format,
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportHeader {
    /// Always [`FORMAT`].
    pub protocol: String,
    /// The fleet.
    pub fleet: String,
    /// When it was exported.
    pub at: Timestamp,
    /// From when on it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// What each stream still had, by its name without that of the fleet.
    pub streams: BTreeMap<String, StreamExtent>,
}

/// What a stream still had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamExtent {
    /// The number of its first message.
    pub first: u64,
    /// The number of its last message.
    pub last: u64,
    /// When the first one was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportRecord {
    /// The stream, by its name without that of the fleet.
    pub stream: String,
    /// Its number there.
    pub seq: u64,
    /// When the server says that it was stored.
    pub time: Timestamp,
    /// The subject.
    pub subject: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its bytes.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub payload: Vec<u8>,
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

impl ExportHeader {
    /// Reads the first line.
    ///
    /// # Errors
    /// When it is not that of an export.
    pub fn read(line: &str) -> Result<Self, RecordError> {
        let opening: Self = json::read(line.as_bytes()).map_err(|_| RecordError::Format)?;
        if opening.protocol == FORMAT { Ok(opening) } else { Err(RecordError::Format) }
    }

    /// From when on nothing can be missing for its age alone: the later of what was asked for, and of where each stream
    /// begins that has lost its beginning.
    pub fn horizon(&self) -> Option<Timestamp> {
        let begun = self.streams.values().filter(|extent| extent.first > 1).filter_map(|extent| extent.from);
        begun.chain(self.since).max()
    }
}

impl ExportRecord {
    /// A message of a stream.
    pub fn of(stream: &str, message: Message) -> Self {
        Self {
            stream: stream.to_owned(),
            seq: message.seq.unwrap_or_default(),
            time: message.time.unwrap_or_default(),
            subject: message.subject,
            headers: message.headers,
            payload: message.payload,
        }
    }

    /// Reads a line, whose number in the file this is.
    ///
    /// # Errors
    /// When it is not one.
    pub fn read(line: &str, number: usize) -> Result<Self, RecordError> {
        json::read(line.as_bytes()).map_err(|source| RecordError::Json { line: number, source })
    }

    /// The message as it came.
    pub fn into_message(self) -> Message {
        Message {
            subject: self.subject,
            headers: self.headers,
            payload: self.payload,
            time: Some(self.time),
            seq: Some(self.seq),
            ..Message::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let record = ExportRecord {
            stream: "JOBS".into(),
            seq: 7,
            time: "2026-01-01T00:00:00Z".parse().unwrap(),
            subject: "s".into(),
            headers: vec![("A".into(), "b".into()), ("A".into(), "c".into())],
            payload: vec![0, 255],
        };
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(ExportRecord::read(&line, 2).unwrap(), record);
        assert_eq!(ExportRecord::of("JOBS", record.clone().into_message()), record);
        assert!(matches!(ExportRecord::read("{}", 2), Err(RecordError::Json { line: 2, .. })));
        assert!(matches!(ExportHeader::read(&line), Err(RecordError::Format)));
    }

    #[test]
    fn the_horizon_is_where_the_last_stream_begins() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let (early, late) = (time("2026-01-01T00:00:00Z"), time("2026-01-02T00:00:00Z"));
        let extent = |first, from| StreamExtent { first, last: 9, from: Some(from) };
        let mut opening = ExportHeader {
            protocol: FORMAT.into(),
            fleet: "f".into(),
            at: late,
            since: None,
            streams: BTreeMap::from([("EVENTS".into(), extent(1, late)), ("JOBS".into(), extent(1, early))]),
        };
        assert_eq!(opening.horizon(), None);
        opening.streams.insert("JOBS".into(), extent(5, early));
        assert_eq!(opening.horizon(), Some(early));
        opening.since = Some(late);
        assert_eq!(opening.horizon(), Some(late));
    }
}
