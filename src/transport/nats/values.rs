//! Single messages of streams by their subject: values of key-value buckets, removal of what is no longer so.

use async_nats::jetstream::stream::{DirectGetError, DirectGetErrorKind};

use jiff::Timestamp;

use super::super::{Message, TransportError};
use super::{Bus, headers_of};

impl Bus {
    /// The value under a key of a key-value bucket (NATS ADR-8). Read without a consumer.
    ///
    /// # Errors
    /// When the bucket or the key is not there, or the key was deleted.
    pub async fn value(&self, bucket: &str, key: &str) -> Result<Vec<u8>, TransportError> {
        let url = format!("kv://{bucket}/{key}");
        let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if bucket.is_empty() || !bucket.chars().all(is_token) {
            return Err(TransportError::failed(
                format!("could not read {url}"),
                "the name of a bucket is made of a-z, A-Z, 0-9, - and _",
            ));
        }
        let is_key = |c: char| is_token(c) || matches!(c, '/' | '=' | '.');
        if key.is_empty() || key.starts_with('.') || key.ends_with('.') || !key.chars().all(is_key) {
            return Err(TransportError::failed(
                format!("could not read {url}"),
                "a key is made of a-z, A-Z, 0-9, -, _, /, = and .",
            ));
        }
        let stream = self.jetstream.get_stream_no_info(format!("KV_{bucket}")).await;
        let stream = stream.map_err(|error| TransportError::failed(format!("could not read {url}"), error))?;
        let last = stream.direct_get_last_for_subject(format!("$KV.{bucket}.{key}")).await;
        let last = last.map_err(|error| self.unread_value(&url, bucket, error))?;
        let is_gone = ["KV-Operation", "Nats-Marker-Reason"].iter().any(|header| last.headers.get(*header).is_some());
        if is_gone { Err(TransportError::NotFound(url)) } else { Ok(last.payload.to_vec()) }
    }

    fn unread_value(&self, url: &str, bucket: &str, error: DirectGetError) -> TransportError {
        match error.kind() {
            DirectGetErrorKind::NotFound => TransportError::NotFound(url.to_owned()),
            DirectGetErrorKind::TimedOut => TransportError::TimedOut(format!("reading {url}")),
            // Nobody answers a read of a stream that is not there.
            _ if self.is_connected() && self.has_jetstream() => {
                TransportError::NotFound(format!("the bucket {bucket} (asked for {url})"))
            }
            _ => self.no_jetstream_or(format!("could not read {url}"), error),
        }
    }

    /// The last message of a subject of a stream; none when there is none. Read without a consumer (NATS ADR-31), which
    /// the stream must allow.
    ///
    /// # Errors
    /// When the stream is not there, or does not answer.
    pub async fn last(&self, stream: &str, subject: &str) -> Result<Option<Message>, TransportError> {
        let doing = || format!("could not read {subject} of the stream {stream}");
        if !self.is_connected() {
            return Err(TransportError::Disconnected);
        }
        let handle = self.jetstream.get_stream_no_info(stream).await;
        let handle = handle.map_err(|error| TransportError::failed(doing(), error))?;
        match handle.direct_get_last_for_subject(subject).await {
            Ok(last) => Ok(Some(Message {
                subject: last.subject.into_string(),
                headers: headers_of(&last.headers),
                payload: last.payload.into(),
                time: Timestamp::from_nanosecond(last.time.unix_timestamp_nanos()).ok(),
                seq: Some(last.sequence),
                ..Message::default()
            })),
            Err(error) => match error.kind() {
                DirectGetErrorKind::NotFound => Ok(None),
                DirectGetErrorKind::TimedOut => {
                    Err(TransportError::TimedOut(format!("reading {subject} of the stream {stream}")))
                }
                // Nobody answers a read of a stream that is not there.
                _ if self.is_connected() && self.has_jetstream() => Err(TransportError::NoStream(stream.to_owned())),
                _ => Err(self.no_jetstream_or(doing(), error)),
            },
        }
    }

    /// Removes all messages of a subject from a stream; gives how many there were.
    ///
    /// # Errors
    /// When the stream is not there or refuses.
    pub async fn purge(&self, stream: &str, subject: &str) -> Result<u64, TransportError> {
        let purged = self.stream(stream).await?.purge().filter(subject).await;
        purged
            .map(|answer| answer.purged)
            .map_err(|error| self.no_jetstream_or(format!("could not remove {subject} from {stream}"), error))
    }
}
