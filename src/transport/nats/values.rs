//! Single messages of streams by their subject: values of key-value buckets, and removal of outdated messages.

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{DirectGetError, DirectGetErrorKind, Stream};
use jiff::Timestamp;

use super::super::{Message, StartAt, TransportError, api_prefix};
use super::{Bus, StreamReader, headers_of};

/// Headers of the messages that mark a removed value.
const REMOVAL_HEADERS: [&str; 2] = ["KV-Operation", "Nats-Marker-Reason"];

/// Returns the URL of a key of a bucket. An error has the URL and the reason why no such key can exist.
fn check_name(bucket: &str, key: &str) -> Result<String, (String, &'static str)> {
    let url = format!("kv://{bucket}/{key}");
    let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if bucket.is_empty() || !bucket.chars().all(is_token) {
        return Err((url, "the name of a bucket is made of a-z, A-Z, 0-9, - and _"));
    }
    let is_key = |c: char| is_token(c) || matches!(c, '/' | '=' | '.');
    if key.is_empty() || key.starts_with('.') || key.ends_with('.') || !key.chars().all(is_key) {
        return Err((url, "a key is made of a-z, A-Z, 0-9, -, _, /, = and ."));
    }
    Ok(url)
}

impl Bus {
    /// Returns the value under a key of a key-value bucket (NATS ADR-8). Reads without a consumer.
    ///
    /// # Errors
    /// When the bucket or the key does not exist, or the key was deleted.
    pub async fn value(&self, bucket: &str, key: &str) -> Result<Vec<u8>, TransportError> {
        let url = check_name(bucket, key).map_err(|(url, why)| TransportError::failed(format!("could not read {url}"), why))?;
        let stream = self.jetstream.get_stream_no_info(format!("KV_{bucket}")).await;
        let stream = stream.map_err(|error| TransportError::failed(format!("could not read {url}"), error))?;
        let last = stream.direct_get_last_for_subject(format!("$KV.{bucket}.{key}")).await;
        let last = last.map_err(|error| self.value_read_error(&url, bucket, error))?;
        let is_gone = REMOVAL_HEADERS.iter().any(|header| last.headers.get(*header).is_some());
        if is_gone { Err(TransportError::NotFound(url)) } else { Ok(last.payload.to_vec()) }
    }

    /// Follows the later values of a key, and its removal.
    ///
    /// # Errors
    /// When the bucket does not exist, or may not be read.
    pub async fn follow_value(&self, bucket: &str, key: &str) -> Result<StreamReader, TransportError> {
        check_name(bucket, key).map_err(|(url, why)| TransportError::failed(format!("could not follow {url}"), why))?;
        self.follow(&format!("KV_{bucket}"), &format!("$KV.{bucket}.{key}"), StartAt::New).await
    }

    /// Stores a value under a key of an existing bucket.
    ///
    /// # Errors
    /// When the bucket does not exist, or the server refuses.
    pub async fn put_value(&self, bucket: &str, key: &str, value: Vec<u8>) -> Result<(), TransportError> {
        check_name(bucket, key).map_err(|(url, why)| TransportError::failed(format!("could not store {url}"), why))?;
        // A leaf node with JetStream keeps `$KV.>` to itself: only requests with a domain leave it.
        let domain = self.jetstream_domain.as_deref();
        let prefix = domain.map(|domain| format!("{}.", api_prefix(Some(domain)))).unwrap_or_default();
        match self.publish_stored(&format!("{prefix}$KV.{bucket}.{key}"), &[], value).await {
            Err(TransportError::NoStream(_)) => Err(TransportError::NotFound(format!("the bucket {bucket}"))),
            stored => stored.map(drop),
        }
    }

    /// Returns the values of a bucket, by key.
    ///
    /// # Errors
    /// When the bucket does not exist.
    pub async fn values(&self, bucket: &str) -> Result<Vec<(String, Vec<u8>)>, TransportError> {
        check_name(bucket, "x").map_err(|(_, why)| TransportError::failed(format!("could not read the bucket {bucket}"), why))?;
        let prefix = format!("$KV.{bucket}.");
        let messages = match self.last_per_subject(&format!("KV_{bucket}"), &format!("{prefix}>")).await {
            Err(TransportError::NoStream(_)) => return Err(TransportError::NotFound(format!("the bucket {bucket}"))),
            messages => messages?,
        };
        let is_there = |message: &Message| REMOVAL_HEADERS.iter().all(|header| message.header(header).is_none());
        let values = messages.into_iter().filter(is_there);
        Ok(values.filter_map(|message| Some((message.subject.strip_prefix(&prefix)?.to_owned(), message.payload))).collect())
    }

    /// Returns the last message of a subject in a stream, with its storage time. Reads without a consumer.
    ///
    /// # Errors
    /// When the stream or the message does not exist, or the account may not read it.
    pub async fn last_on(&self, stream: &str, subject: &str) -> Result<Message, TransportError> {
        let doing = || format!("could not read the last message on {subject}");
        let handle = self.jetstream.get_stream_no_info(stream).await;
        let handle = handle.map_err(|error| TransportError::failed(doing(), error))?;
        match handle.direct_get_last_for_subject(subject).await {
            Ok(last) => Ok(Message {
                subject: last.subject.into_string(),
                headers: headers_of(&last.headers),
                payload: last.payload.to_vec(),
                time: Timestamp::from_nanosecond(last.time.unix_timestamp_nanos()).ok(),
                seq: Some(last.sequence),
                ..Message::default()
            }),
            Err(error) => Err(match error.kind() {
                DirectGetErrorKind::NotFound => TransportError::NotFound(format!("a message on {subject}")),
                DirectGetErrorKind::TimedOut => TransportError::TimedOut(format!("reading the last message on {subject}")),
                _ => TransportError::failed(doing(), error),
            }),
        }
    }

    fn value_read_error(&self, url: &str, bucket: &str, error: DirectGetError) -> TransportError {
        match error.kind() {
            DirectGetErrorKind::NotFound => TransportError::NotFound(url.to_owned()),
            DirectGetErrorKind::TimedOut => TransportError::TimedOut(format!("reading {url}")),
            // No server answers a read of a missing stream.
            _ if self.is_connected() && self.has_jetstream() => {
                TransportError::NotFound(format!("the bucket {bucket} (asked for {url})"))
            }
            _ => self.no_jetstream_or(format!("could not read {url}"), error),
        }
    }

    /// Returns the last message of a subject of a stream, if any. Reads without a consumer (NATS ADR-31), which the stream
    /// must allow.
    ///
    /// # Errors
    /// When the stream does not exist, or does not answer.
    pub async fn last(&self, stream: &str, subject: &str) -> Result<Option<Message>, TransportError> {
        let handle = self.stream_handle(stream).await?;
        self.read_directly(stream, handle.direct_get_last_for_subject(subject).await)
    }

    /// Returns the first message after this position whose subject matches `filter`, if any. Reads without a consumer, which
    /// the stream must allow.
    ///
    /// # Errors
    /// When the stream does not exist, or does not answer.
    pub async fn stored_after(&self, stream: &str, filter: &str, after: u64) -> Result<Option<Message>, TransportError> {
        let handle = self.stream_handle(stream).await?;
        self.read_directly(stream, handle.direct_get_next_for_subject(filter, Some(after.saturating_add(1))).await)
    }

    /// Returns a stream without a request for its information, which nodes may not send.
    async fn stream_handle(&self, stream: &str) -> Result<Stream<()>, TransportError> {
        if !self.is_connected() {
            return Err(TransportError::Disconnected);
        }
        let handle = self.jetstream.get_stream_no_info(stream).await;
        handle.map_err(|error| TransportError::failed(format!("could not read the stream {stream}"), error))
    }

    fn read_directly(
        &self,
        stream: &str,
        found: Result<StreamMessage, DirectGetError>,
    ) -> Result<Option<Message>, TransportError> {
        match found {
            Ok(found) => Ok(Some(Message {
                subject: found.subject.into_string(),
                headers: headers_of(&found.headers),
                payload: found.payload.into(),
                time: Timestamp::from_nanosecond(found.time.unix_timestamp_nanos()).ok(),
                seq: Some(found.sequence),
                ..Message::default()
            })),
            Err(error) => match error.kind() {
                DirectGetErrorKind::NotFound => Ok(None),
                DirectGetErrorKind::TimedOut => Err(TransportError::TimedOut(format!("reading the stream {stream}"))),
                // No server answers a read of a missing stream.
                _ if self.is_connected() && self.has_jetstream() => Err(TransportError::NoStream(stream.to_owned())),
                _ => Err(self.no_jetstream_or(format!("could not read the stream {stream}"), error)),
            },
        }
    }

    /// Removes all messages of a subject from a stream; returns their number.
    ///
    /// # Errors
    /// When the stream does not exist, or the server refuses.
    pub async fn purge(&self, stream: &str, subject: &str) -> Result<u64, TransportError> {
        let purged = self.stream(stream).await?.purge().filter(subject).await;
        purged
            .map(|answer| answer.purged)
            .map_err(|error| self.no_jetstream_or(format!("could not remove {subject} from {stream}"), error))
    }
}
