//! The file format of an export: one JSON value a line. The first line is the header, each further line a message.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::transport::Message;
use crate::wire::json::{self, JsonError};

/// The value of `protocol` in the header.
pub const FORMAT: &str = "io.ensign.v1.audit";

/// A line that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not strict JSON, or of another form.
    #[error("line {line} can't be read")]
    Json {
        /// The number of the line, from 1.
        line: usize,
        /// The cause.
        #[source]
        source: JsonError,
    },
    /// The file is not an export.
    #[error("not an audit export: the first line does not name {FORMAT}")]
    Format,
}

/// The header: the first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportHeader {
    /// Always [`FORMAT`].
    pub protocol: String,
    /// The fleet.
    pub fleet: String,
    /// Time of the export.
    pub at: Timestamp,
    /// Start of the requested period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The extent of each stream, by its name without the prefix of the fleet.
    pub streams: BTreeMap<String, StreamExtent>,
}

/// The messages that a stream had at the time of the export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamExtent {
    /// Sequence number of the first message.
    pub first: u64,
    /// Sequence number of the last message.
    pub last: u64,
    /// Time at which the first message was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
}

/// A message of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportRecord {
    /// The stream, by its name without the prefix of the fleet.
    pub stream: String,
    /// Its sequence number in the stream.
    pub seq: u64,
    /// Time at which it was stored, by the clock of the server.
    pub time: Timestamp,
    /// The subject.
    pub subject: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its payload, in base64.
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
    /// Reads the header from the first line.
    ///
    /// # Errors
    /// When the line is not the header of an export.
    pub fn read(line: &str) -> Result<Self, RecordError> {
        let opening: Self = json::read(line.as_bytes()).map_err(|_| RecordError::Format)?;
        if opening.protocol == FORMAT { Ok(opening) } else { Err(RecordError::Format) }
    }

    /// Returns the time since which no message is missing for its age alone.
    ///
    /// The latest of the requested start and the starts of those streams that have removed their first messages.
    pub fn horizon(&self) -> Option<Timestamp> {
        let begun = self.streams.values().filter(|extent| extent.first > 1).filter_map(|extent| extent.from);
        begun.chain(self.since).max()
    }
}

impl ExportRecord {
    /// Builds the record of a message.
    pub fn new(stream: &str, message: Message) -> Self {
        Self {
            stream: stream.to_owned(),
            seq: message.seq.unwrap_or_default(),
            time: message.time.unwrap_or_default(),
            subject: message.subject,
            headers: message.headers,
            payload: message.payload,
        }
    }

    /// Reads the line with this number in the file.
    ///
    /// # Errors
    /// When the line is not a record.
    pub fn read(line: &str, number: usize) -> Result<Self, RecordError> {
        json::read(line.as_bytes()).map_err(|source| RecordError::Json { line: number, source })
    }

    /// Returns the message as the server sent it.
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
        assert_eq!(ExportRecord::new("JOBS", record.clone().into_message()), record);
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
