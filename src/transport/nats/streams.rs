//! JetStream: stored publishes, and reading of streams.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig, OrderedErrorKind};
use async_nats::jetstream::consumer::{DeliverPolicy, push};
use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, ConsumerErrorKind, Republish};
use async_nats::jetstream::{self, ErrorCode};
use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::time::timeout;

use super::super::{Ensured, Message, StartAt, StreamSpec, TransportCause, TransportError, is_at_least};
use super::{Bus, RESPONSE_TIMEOUT, header_map, message, quota};

/// The most bytes of one reading of the latest messages: twice the states of a hundred thousand nodes. A publisher must not
/// decide about the memory of a reader.
const MAX_LATEST_BYTES: usize = 512 << 20;
/// The silence after which a subject that existed at the beginning of a reading counts as removed.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(500);
/// The waits for a new reader of a stream. For a minute or more after the crash of a server, its cluster still places readers
/// on it. No answer comes from there, and the next attempt may be placed on another. The last wait is for a slow server.
const READER_WAITS: [Duration; 4] = [Duration::from_secs(1), Duration::from_secs(1), Duration::from_secs(2), RESPONSE_TIMEOUT];
/// The approximate bytes of a message beside its payload.
const MESSAGE_COST: usize = 512;

impl Bus {
    /// Publishes and waits until a stream has stored the message; returns the sequence number.
    ///
    /// # Errors
    /// When there is no connection, or no stream has the subject. When the server has no JetStream, or no response arrives within
    /// five seconds. After a time-out the message may have been stored.
    pub async fn publish_stored(&self, subject: &str, headers: &[(&str, &str)], payload: Vec<u8>) -> Result<u64, TransportError> {
        if !self.is_connected() {
            return Err(TransportError::Disconnected);
        }
        self.check_size(subject, payload.len())?;
        let denied = self.counters().denied;
        let failed = |error: PublishError| match error.kind() {
            PublishErrorKind::StreamNotFound => {
                if self.has_jetstream() {
                    TransportError::NoStream(subject.to_owned())
                } else {
                    TransportError::NoJetStream
                }
            }
            // The server tells of a denied message on the connection, and answers nothing.
            PublishErrorKind::TimedOut if self.counters().denied > denied => TransportError::Denied(subject.to_owned()),
            PublishErrorKind::TimedOut => TransportError::TimedOut(format!("storing a message on {subject}")),
            PublishErrorKind::WrongLastSequence => TransportError::Conflict(subject.to_owned()),
            // Newer servers have a second code for this error, which the client does not know.
            PublishErrorKind::Other if is_sequence_conflict(&error) => TransportError::Conflict(subject.to_owned()),
            _ => TransportError::failed(format!("could not store a message on {subject}"), error),
        };
        let publish = PublishMessage::build().payload(payload.into()).headers(header_map(headers));
        let ack = self.jetstream.send_publish(subject.to_owned(), publish).await.map_err(failed)?;
        Ok(ack.await.map_err(failed)?.sequence)
    }

    /// True when the server supports a lifetime of single messages (`Nats-TTL`, NATS ADR-43).
    pub fn has_message_ttl(&self) -> bool {
        self.server_version().is_some_and(|version| is_at_least(&version, (2, 11)))
    }

    /// True when the server has JetStream, or reaches a domain that has. A leaf node without JetStream reports none of its own.
    pub(super) fn has_jetstream(&self) -> bool {
        self.jetstream_domain.is_some() || self.client.try_server_info().is_some_and(|info| info.jetstream)
    }

    pub(super) fn no_jetstream_or(&self, doing: String, error: impl Into<TransportCause>) -> TransportError {
        if !self.is_connected() {
            TransportError::Disconnected
        } else if self.has_jetstream() {
            TransportError::failed(doing, error)
        } else {
            TransportError::NoJetStream
        }
    }

    /// Returns without an error when the stream does not exist.
    pub(super) fn unless_no_stream(&self, error: GetStreamError) -> Result<(), TransportError> {
        match error.kind() {
            GetStreamErrorKind::JetStream(cause) if cause.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(()),
            GetStreamErrorKind::JetStream(cause)
                if [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT]
                    .contains(&cause.error_code()) =>
            {
                Err(TransportError::NoJetStream)
            }
            _ => Err(self.no_jetstream_or("could not ask for a stream".to_owned(), error)),
        }
    }

    /// Ensures that a stream exists with these settings; other settings of an existing stream stay.
    ///
    /// # Errors
    /// When JetStream is not available or refuses.
    pub async fn ensure_stream(&self, spec: &StreamSpec) -> Result<Ensured, TransportError> {
        // Older servers accept unknown settings, and forget them.
        let spec = &StreamSpec { marker_ttl: spec.marker_ttl.filter(|_| self.has_message_ttl()), ..spec.clone() };
        let existing = match self.jetstream.get_stream(&spec.name).await {
            Ok(stream) => Some(stream.cached_info().config.clone()),
            Err(error) => {
                self.unless_no_stream(error)?;
                None
            }
        };
        let doing = |what: &str| format!("could not {what} the stream {}", spec.name);
        let Some(mut config) = existing else {
            let mut config = Config { name: spec.name.clone(), ..Config::default() };
            apply_spec(&mut config, spec);
            self.jetstream.create_stream(config).await.map_err(|error| quota::stream_refusal_error(doing("create"), error))?;
            return Ok(Ensured::Created);
        };
        let changes = apply_spec(&mut config, spec);
        if changes.is_empty() {
            return Ok(Ensured::Unchanged);
        }
        self.jetstream.update_stream(config).await.map_err(|error| quota::stream_refusal_error(doing("change"), error))?;
        Ok(Ensured::Updated(changes))
    }

    /// Returns the time of the server, from its information about a stream.
    ///
    /// # Errors
    /// When the stream does not exist, or the server reports no time.
    pub async fn server_time(&self, stream: &str) -> Result<Timestamp, TransportError> {
        let doing = || format!("could not ask for the stream {stream}");
        let told: Response<serde_json::Value> = self
            .jetstream
            .request(format!("STREAM.INFO.{stream}"), &())
            .await
            .map_err(|error| TransportError::failed(doing(), error))?;
        let time = match &told {
            Response::Ok(info) => info.get("ts").and_then(serde_json::Value::as_str).and_then(|time| time.parse().ok()),
            Response::Err { .. } => None,
        };
        time.ok_or_else(|| TransportError::NoStream(stream.to_owned()))
    }

    pub(super) async fn stream(&self, name: &str) -> Result<jetstream::stream::Stream, TransportError> {
        match self.jetstream.get_stream(name).await {
            Ok(stream) => Ok(stream),
            Err(error) => {
                self.unless_no_stream(error)?;
                Err(TransportError::NoStream(name.to_owned()))
            }
        }
    }

    /// Returns the last message of every subject that `filter` matches, by subject.
    ///
    /// A message that is replaced during the reading arrives later, as the newer message. The count of the server before that
    /// does not include it. So the reading ends when every subject of the beginning was seen. A subject that was removed
    /// meanwhile is noticed after half a second of silence.
    ///
    /// # Errors
    /// When the stream does not exist, or the messages stop coming.
    pub async fn last_per_subject(&self, stream: &str, filter: &str) -> Result<Vec<Message>, TransportError> {
        let doing = || format!("could not read the stream {stream}");
        let handle = self.stream(stream).await?;
        let mut missing = HashSet::new();
        let mut subjects = handle.info_with_subjects(filter).await.map_err(|error| TransportError::failed(doing(), error))?;
        while let Some(subject) = subjects.next().await {
            missing.insert(subject.map_err(|error| TransportError::failed(doing(), error))?.0);
            let least = missing.len() * MESSAGE_COST;
            if least > MAX_LATEST_BYTES {
                let what = format!("the latest messages of the stream {stream}");
                return Err(TransportError::TooLarge { what, size: least as u64, max: MAX_LATEST_BYTES as u64 });
            }
        }
        let mut latest = BTreeMap::new();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let consumer = self.consumer(&handle, filter, DeliverPolicy::LastPerSubject).await?;
        let (mut size, mut pending) = (0, consumer.cached_info().num_pending);
        let mut messages = consumer.messages().await.map_err(|error| TransportError::failed(doing(), error))?;
        let mut heard = Instant::now();
        while !missing.is_empty() {
            // Others may be replaced all the time: only silence of the missing subjects counts.
            let patience = if pending == 0 { SILENCE_TIMEOUT.saturating_sub(heard.elapsed()) } else { RESPONSE_TIMEOUT };
            let next = match timeout(patience, messages.next()).await {
                Ok(next) => next.ok_or(TransportError::Disconnected)?,
                Err(_) if pending == 0 => break,
                Err(_) => return Err(TransportError::TimedOut(format!("reading the stream {stream}"))),
            };
            let next = next.map_err(|error| TransportError::failed(doing(), error))?;
            pending = next.info().map_err(|error| TransportError::failed(doing(), error))?.pending;
            let message = to_message(next)?;
            size += message.payload.len() + MESSAGE_COST;
            if size > MAX_LATEST_BYTES {
                let what = format!("the latest messages of the stream {stream}");
                return Err(TransportError::TooLarge { what, size: size as u64, max: MAX_LATEST_BYTES as u64 });
            }
            if missing.remove(&message.subject) {
                heard = Instant::now();
            }
            // After a loss the client continues with all messages, not only the last ones: later ones win.
            latest.insert(message.subject.clone(), message);
        }
        Ok(latest.into_values().collect())
    }

    /// Removes the messages on a subject from a stream.
    ///
    /// # Errors
    /// When the stream does not exist, or the server refuses.
    pub async fn remove_messages(&self, stream: &str, subject: &str) -> Result<(), TransportError> {
        let purge = self.stream(stream).await?.purge().filter(subject).await;
        purge
            .map(drop)
            .map_err(|error| TransportError::failed(format!("could not remove {subject} from the stream {stream}"), error))
    }

    /// Returns the numbers of the first and the last message of a stream, and the time of the first. In an empty stream the
    /// last number is below the first.
    ///
    /// # Errors
    /// When the stream does not exist.
    pub async fn stream_extent(&self, stream: &str) -> Result<(u64, u64, Option<Timestamp>), TransportError> {
        let state = self.stream(stream).await?.cached_info().state.clone();
        let from = Timestamp::from_nanosecond(state.first_timestamp.unix_timestamp_nanos()).ok();
        Ok((state.first_sequence, state.last_sequence, from.filter(|_| state.messages > 0)))
    }

    /// Reads a stream from a point on, and continues with new messages, also across reconnects.
    ///
    /// # Errors
    /// When the stream does not exist, or may not be read.
    pub async fn follow(&self, stream: &str, filter: &str, from: StartAt) -> Result<StreamReader, TransportError> {
        let (policy, first) = match from {
            StartAt::Beginning => (DeliverPolicy::All, 0),
            StartAt::Latest => (DeliverPolicy::LastPerSubject, 0),
            StartAt::New => {
                let first = self.stream(stream).await?.cached_info().state.last_sequence + 1;
                (DeliverPolicy::ByStartSequence { start_sequence: first }, first)
            }
            StartAt::Since(time) => {
                let start_time = async_nats::datetime::from_nanos(time.as_nanosecond())
                    .map_err(|error| TransportError::failed(format!("could not read the stream {stream} from {time}"), error))?;
                (DeliverPolicy::ByStartTime { start_time }, 0)
            }
        };
        let since = if let StartAt::Since(time) = from { Some(time) } else { None };
        let consumer = self.consumer(&self.stream(stream).await?, filter, policy).await?;
        let backlog = consumer.cached_info().num_pending;
        let messages = consumer
            .messages()
            .await
            .map_err(|error| TransportError::failed(format!("could not read the stream {stream}"), error))?;
        Ok(StreamReader { messages: Box::new(messages), stream: stream.to_owned(), backlog, first, since })
    }

    /// Creates a reader, which the servers of a cluster place on any of them: again, where no answer comes.
    async fn consumer(
        &self,
        stream: &jetstream::stream::Stream,
        filter: &str,
        deliver_policy: DeliverPolicy,
    ) -> Result<jetstream::consumer::Consumer<OrderedConfig>, TransportError> {
        let name = &stream.cached_info().config.name;
        for wait in READER_WAITS {
            let config = push::OrderedConfig {
                deliver_subject: self.client.new_inbox(),
                filter_subject: filter.to_owned(),
                deliver_policy,
                ..OrderedConfig::default()
            };
            let Ok(created) = timeout(wait, stream.create_consumer(config)).await else { continue };
            if !created.as_ref().is_err_and(|error| error.kind() == ConsumerErrorKind::TimedOut) {
                return created.map_err(|error| TransportError::failed(format!("could not read the stream {name}"), error));
            }
        }
        Err(TransportError::TimedOut(format!("reading the stream {name}")))
    }
}

/// The messages of a stream, in order, without gaps.
pub struct StreamReader {
    // Large, and moved often.
    messages: Box<Ordered>,
    stream: String,
    backlog: u64,
    first: u64,
    since: Option<Timestamp>,
}

impl std::fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl StreamReader {
    /// Returns the number of messages that existed when the reading began.
    pub fn backlog(&self) -> u64 {
        self.backlog
    }

    /// Returns the next message; none when the connection was closed. Safe to cancel: no message is lost.
    ///
    /// # Errors
    /// When the stream is gone, or can't be read any more.
    pub async fn next(&mut self) -> Option<Result<Message, TransportError>> {
        loop {
            let next = self.messages.next().await?;
            // This only means that the server was away: the client then creates a new consumer.
            if next.as_ref().is_err_and(|error| error.kind() == OrderedErrorKind::MissingHeartbeat) {
                continue;
            }
            let message = next
                .map_err(|error| TransportError::failed(format!("could not read the stream {}", self.stream), error))
                .and_then(to_message);
            // When the connection is lost before the first message, the client starts again from the beginning.
            let early = |message: &Message| {
                message.seq.is_some_and(|seq| seq < self.first)
                    || self.since.is_some_and(|since| message.time.is_some_and(|time| time < since))
            };
            if !message.as_ref().is_ok_and(early) {
                return Some(message);
            }
        }
    }
}

/// True when the server reports another message as the last one of a subject.
fn is_sequence_conflict(error: &PublishError) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<jetstream::Error>());
    cause.is_some_and(|cause| cause.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
}

fn to_message(stored: jetstream::Message) -> Result<Message, TransportError> {
    let (seq, time) = stored
        .info()
        .map(|info| (info.stream_sequence, info.published))
        .map_err(|error| TransportError::failed("could not read a message of a stream", error))?;
    Ok(Message {
        seq: Some(seq),
        time: Timestamp::from_nanosecond(time.unix_timestamp_nanos()).ok(),
        reply: None,
        ..message(stored.message)
    })
}

/// Changes `config` to match `spec`; returns each change, for people.
fn apply_spec(config: &mut Config, spec: &StreamSpec) -> Vec<String> {
    // The server writes -1 for "no limit".
    let bound = |value: Option<u64>| value.map_or(-1, |value| i64::try_from(value).unwrap_or(i64::MAX));
    let mut changes = Vec::new();
    let mut set = |name: &str, old: String, new: String| {
        if old != new {
            changes.push(format!("{name} {old} → {new}"));
        }
    };
    set("subjects", config.subjects.join(" "), spec.subjects.join(" "));
    config.subjects.clone_from(&spec.subjects);
    let max_age = spec.max_age.unwrap_or_default();
    set("max_age", format!("{:?}", config.max_age), format!("{max_age:?}"));
    config.max_age = max_age;
    set("max_bytes", config.max_bytes.to_string(), bound(spec.max_bytes).to_string());
    config.max_bytes = bound(spec.max_bytes);
    set("max_per_subject", config.max_messages_per_subject.to_string(), bound(spec.max_per_subject).to_string());
    config.max_messages_per_subject = bound(spec.max_per_subject);
    let max_message_size = spec.max_message_size.unwrap_or(-1);
    set("max_message_size", config.max_message_size.to_string(), max_message_size.to_string());
    config.max_message_size = max_message_size;
    set("allow_direct", config.allow_direct.to_string(), spec.allow_direct.to_string());
    config.allow_direct = spec.allow_direct;
    set("dedupe_window", format!("{:?}", config.duplicate_window), format!("{:?}", spec.dedupe_window));
    config.duplicate_window = spec.dedupe_window;
    set("latest_only", config.allow_rollup.to_string(), spec.latest_only.to_string());
    config.allow_rollup = spec.latest_only;
    let deny_delete = spec.latest_only || spec.deny_delete;
    set("deny_delete", config.deny_delete.to_string(), deny_delete.to_string());
    config.deny_delete = deny_delete;
    let shown = |from: &str, to: &str| format!("{from} to {to}");
    let republished = config.republish.as_ref().map(|old| shown(&old.source, &old.destination));
    let republish = spec.republish.as_ref().map(|(from, to)| shown(from, to));
    set("republish", republished.unwrap_or_else(|| "none".to_owned()), republish.unwrap_or_else(|| "none".to_owned()));
    config.republish = spec.republish.as_ref().map(|(from, to)| Republish {
        source: from.clone(),
        destination: to.clone(),
        headers_only: false,
    });
    set("markers", format!("{:?}", config.subject_delete_marker_ttl), format!("{:?}", spec.marker_ttl));
    (config.allow_message_ttl, config.subject_delete_marker_ttl) = (spec.marker_ttl.is_some(), spec.marker_ttl);
    set("replicas", config.num_replicas.to_string(), spec.replicas.to_string());
    config.num_replicas = spec.replicas;
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_streams_are_described() {
        let spec = StreamSpec {
            name: "S".into(),
            subjects: vec!["a.>".into()],
            max_age: Some(Duration::from_secs(60)),
            max_bytes: None,
            max_per_subject: Some(1),
            allow_direct: true,
            dedupe_window: Duration::from_secs(60),
            replicas: 1,
            ..StreamSpec::default()
        };
        let mut config = Config::default();
        apply_spec(&mut config, &spec);
        assert_eq!(apply_spec(&mut config, &spec), Vec::<String>::new());
        config.max_age = Duration::from_secs(30);
        config.max_messages_per_subject = -1;
        assert_eq!(apply_spec(&mut config, &spec), ["max_age 30s → 60s", "max_per_subject -1 → 1"]);
    }
}
