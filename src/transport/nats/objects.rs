//! Bundles in the object store. Every chunk is a direct get without a consumer. So a whole fleet can fetch at once, and a
//! node needs only the right to read one stream.

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::object_store::{Config, ObjectInfo, ObjectMetadata};
use async_nats::jetstream::stream::{DirectGetError, DirectGetErrorKind, Stream};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;

use super::super::{Ensured, Message, StoredObject, TransportError};
use super::{Bus, quota};

/// The size of the chunks of an object, in bytes: well below every server's limit for a message.
const CHUNK: usize = 128 * 1024;

impl Bus {
    /// Ensures that a bucket exists.
    ///
    /// # Errors
    /// When JetStream is not available or refuses.
    pub async fn ensure_bucket(&self, bucket: &str, replicas: usize) -> Result<Ensured, TransportError> {
        match self.jetstream.get_stream(format!("OBJ_{bucket}")).await {
            Ok(_) => return Ok(Ensured::Unchanged),
            Err(error) if matches!(error.kind(), GetStreamErrorKind::JetStream(_)) => self.unless_no_stream(error)?,
            Err(error) => return Err(self.no_jetstream_or(format!("could not look for the bucket {bucket}"), error)),
        }
        let config = Config { bucket: bucket.to_owned(), num_replicas: replicas, ..Config::default() };
        self.jetstream
            .create_object_store(config)
            .await
            .map_err(|error| quota::stream_refusal_error(format!("could not create the bucket {bucket}"), error))?;
        Ok(Ensured::Created)
    }

    /// Stores an object under `key`, in place of an earlier one.
    ///
    /// # Errors
    /// When the bucket does not exist, or the server does not acknowledge a chunk.
    pub async fn object_put(&self, bucket: &str, key: &str, content: &[u8]) -> Result<(), TransportError> {
        let store = self.jetstream.get_object_store(bucket).await.map_err(|error| {
            // The client has one kind of error for all causes; only the stream behind the bucket can be missing.
            self.no_jetstream_or(format!("could not open the bucket {bucket}"), error)
        })?;
        let metadata = ObjectMetadata { name: key.to_owned(), chunk_size: Some(CHUNK), ..ObjectMetadata::default() };
        let mut rest = content;
        store
            .put(metadata, &mut rest)
            .await
            .map_err(|error| TransportError::failed(format!("could not store obj://{bucket}/{key}"), error))?;
        Ok(())
    }

    /// Returns the size of the object under `key`; none when there is none.
    ///
    /// # Errors
    /// When the bucket can't be read.
    pub async fn object_size(&self, bucket: &str, key: &str) -> Result<Option<u64>, TransportError> {
        match self.object_info(bucket, key).await {
            Ok(info) => Ok(Some(info.size as u64)),
            Err(TransportError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the objects of a bucket.
    ///
    /// # Errors
    /// When the bucket does not exist, or can't be read.
    pub async fn objects(&self, bucket: &str) -> Result<Vec<StoredObject>, TransportError> {
        let messages = self.last_per_subject(&format!("OBJ_{bucket}"), &format!("$O.{bucket}.M.>")).await?;
        let object = |message: Message| {
            let info: ObjectInfo = serde_json::from_slice(&message.payload).ok()?;
            let stored = StoredObject { key: info.name, size: info.size as u64, stored: message.time };
            (!info.deleted).then_some(stored)
        };
        Ok(messages.into_iter().filter_map(object).collect())
    }

    /// Removes the object under `key`.
    ///
    /// # Errors
    /// When the object does not exist, or the server refuses.
    pub async fn object_delete(&self, bucket: &str, key: &str) -> Result<(), TransportError> {
        let doing = || format!("could not remove obj://{bucket}/{key}");
        let store = self.jetstream.get_object_store(bucket).await.map_err(|error| self.no_jetstream_or(doing(), error))?;
        store.delete(key).await.map_err(|error| TransportError::failed(doing(), error))
    }

    async fn object_info(&self, bucket: &str, key: &str) -> Result<ObjectInfo, TransportError> {
        let subject = format!("$O.{bucket}.M.{}", URL_SAFE.encode(key));
        let url = format!("obj://{bucket}/{key}");
        let meta = self.bucket_stream(bucket).await?.direct_get_last_for_subject(subject).await;
        let meta = meta.map_err(|error| self.object_read_error(&url, error))?;
        let info: ObjectInfo = serde_json::from_slice(&meta.payload)
            .map_err(|error| TransportError::failed(format!("could not read the metadata of {url}"), error))?;
        if info.deleted { Err(TransportError::NotFound(url)) } else { Ok(info) }
    }

    /// Returns the stream behind a bucket; the first read shows whether the stream exists.
    async fn bucket_stream(&self, bucket: &str) -> Result<Stream<()>, TransportError> {
        let stream = self.jetstream.get_stream_no_info(format!("OBJ_{bucket}")).await;
        stream.map_err(|error| TransportError::failed(format!("could not read the bucket {bucket}"), error))
    }

    fn object_read_error(&self, url: &str, error: DirectGetError) -> TransportError {
        match error.kind() {
            DirectGetErrorKind::NotFound => TransportError::NotFound(url.to_owned()),
            DirectGetErrorKind::TimedOut => TransportError::TimedOut(format!("reading {url}")),
            // No server answers a read of a missing stream.
            _ if self.is_connected() && self.has_jetstream() && error.to_string().contains("503") => {
                TransportError::NoStream(url.to_owned())
            }
            _ => self.no_jetstream_or(format!("could not read {url}"), error),
        }
    }

    /// Reads the object under `key`, when it has at most `max` bytes.
    ///
    /// # Errors
    /// When the object is missing, too large, or changes during the read.
    pub async fn object_get(&self, bucket: &str, key: &str, max: u64) -> Result<Vec<u8>, TransportError> {
        let url = format!("obj://{bucket}/{key}");
        let info = self.object_info(bucket, key).await?;
        if info.size as u64 > max {
            return Err(TransportError::TooLarge { what: url, size: info.size as u64, max });
        }
        let stream = self.bucket_stream(bucket).await?;
        let chunks = format!("$O.{bucket}.C.{}", info.nuid);
        let mut content = Vec::with_capacity(info.size);
        let mut next = 1;
        while content.len() < info.size {
            let chunk = stream.direct_get_next_for_subject(chunks.as_str(), Some(next)).await;
            let chunk = chunk.map_err(|error| self.object_read_error(&url, error))?;
            next = chunk.sequence + 1;
            content.extend_from_slice(&chunk.payload);
            // The metadata may be forged.
            if chunk.payload.is_empty() || content.len() > info.size {
                return Err(TransportError::failed(format!("could not read {url}"), "its chunks do not have the announced size"));
            }
        }
        Ok(content)
    }
}
