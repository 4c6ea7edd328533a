//! Data of hosts on the bus: service registrations, values of key-value buckets, and objects of the object store
//! (`objects.rs`).
//!
//! Any client with the right to publish can forge data. The `Door` of a reader decides which data carries the signature of
//! a known key. A registration is a hint about a service, never a command. `exchange.rs` gives a run, which blocks, access to
//! the asynchronous bus. Neighbours: `wire::registration` has the subjects, `model::registration` the form, `transport` the
//! bus.

mod blocking_client;
mod objects;
mod verifier;

use std::time::Duration;

use crate::model::Registration;
use crate::model::registration::RegistrationFilter;
use crate::transport::{Bus, Ensured, MESSAGE_TTL, Message, StartAt, StreamReader, StreamSpec, TransportError};
use crate::wire::{receipt, registration};

pub use blocking_client::{PublishMode, Registry};
pub use objects::BusObjects;
pub use verifier::{BusVerifier, Unverified};

/// Header of a marker: the reason for which the last message of its subject is gone.
const MARKER_HEADER: &str = "Nats-Marker-Reason";
/// Header of a message that replaces all others of its subject.
const ROLLUP_HEADER: &str = "Nats-Rollup";
/// Header with the stream that must store the message.
const EXPECTED_STREAM_HEADER: &str = "Nats-Expected-Stream";

/// A registration that can't be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// An error of the bus.
    #[error(transparent)]
    Bus(#[from] TransportError),
    /// The stored message is not a registration.
    #[error("the message on {subject} is not a registration")]
    Entry {
        /// The subject of the message.
        subject: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// Ensures that the stream of registrations exists: the last message of each subject, for `max_age`.
///
/// # Errors
/// When JetStream is not available or refuses.
pub async fn init(bus: &Bus, stream: &str, replicas: usize, max_age: Duration) -> Result<Ensured, RegistryError> {
    let spec = StreamSpec {
        name: stream.to_owned(),
        subjects: vec![registration::all().to_string()],
        max_age: Some(max_age),
        max_bytes: None,
        max_per_subject: Some(1),
        allow_direct: true,
        dedupe_window: max_age.min(Duration::from_secs(120)),
        replicas,
        latest_only: true,
        marker_ttl: Some(max_age),
        ..StreamSpec::default()
    };
    Ok(bus.ensure_stream(&spec).await?)
}

/// Publishes a registration into the stream, and waits until it is stored.
///
/// Servers without message lifetimes ignore `ttl`; the stream then decides.
///
/// # Errors
/// When the stream does not store it.
pub async fn publish(bus: &Bus, stream: &str, entry: &Registration, door: &dyn BusVerifier) -> Result<(), RegistryError> {
    let ttl = entry.ttl.filter(|_| bus.has_message_ttl()).map(crate::model::registration::Ttl::header);
    let mut headers = vec![(ROLLUP_HEADER, "sub"), (EXPECTED_STREAM_HEADER, stream)];
    headers.extend(ttl.as_deref().map(|ttl| (MESSAGE_TTL, ttl)));
    let (subject, payload) = (registration::subject(entry), json(entry)?);
    let receipt = door.receipt(subject.as_str(), &payload);
    headers.extend(receipt.as_deref().map(|receipt| (receipt::HEADER, receipt)));
    bus.publish_stored(subject.as_str(), &headers, payload).await?;
    Ok(())
}

/// Publishes a registration to the subscribers of this moment.
///
/// # Errors
/// When there is no connection.
pub async fn announce(bus: &Bus, entry: &Registration, door: &dyn BusVerifier) -> Result<(), RegistryError> {
    let (subject, payload) = (registration::subject(entry), json(entry)?);
    let receipt = door.receipt(subject.as_str(), &payload);
    let headers: Vec<(&str, &str)> = receipt.as_deref().map(|receipt| (receipt::HEADER, receipt)).into_iter().collect();
    bus.publish(subject.as_str(), &headers, payload).await?;
    Ok(bus.flush_roundtrip().await?)
}

fn json(entry: &Registration) -> Result<Vec<u8>, RegistryError> {
    serde_json::to_vec(entry).map_err(|source| RegistryError::Entry { subject: registration::subject(entry).to_string(), source })
}

/// Returns the registrations that match a filter, by address and port.
///
/// # Errors
/// When the stream does not exist, or has a message that is not a registration.
pub async fn query(bus: &Bus, stream: &str, filter: &RegistrationFilter) -> Result<Vec<Registration>, RegistryError> {
    entries(messages(bus, stream, filter).await?)
}

/// Returns the messages of the registrations that match a filter.
async fn messages(bus: &Bus, stream: &str, filter: &RegistrationFilter) -> Result<Vec<Message>, RegistryError> {
    let messages = bus.last_per_subject(stream, registration::matching(filter).as_str()).await?;
    Ok(messages.into_iter().filter(|message| message.header(MARKER_HEADER).is_none()).collect())
}

/// Parses the registrations in messages, sorted by address and port.
fn entries(messages: Vec<Message>) -> Result<Vec<Registration>, RegistryError> {
    let mut entries = messages.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
    entries.sort_by(|a, b| (&a.address, a.port).cmp(&(&b.address, b.port)));
    Ok(entries)
}

fn entry(message: Message) -> Result<Registration, RegistryError> {
    Registration::from_json(&message.payload).map_err(|source| RegistryError::Entry { subject: message.subject, source })
}

/// Removes a registration; false when there was none.
///
/// # Errors
/// When the stream does not exist, or the server refuses.
pub async fn remove(bus: &Bus, stream: &str, entry: &Registration) -> Result<bool, RegistryError> {
    Ok(bus.purge(stream, registration::subject(entry).as_str()).await? > 0)
}

/// A reader of new and removed registrations.
#[derive(Debug)]
pub struct RegistrationWatch {
    feed: StreamReader,
}

/// A change of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistrationEvent {
    /// A registration was published.
    Registered(Registration),
    /// A registration is gone. Its subject still has cluster, protocol, service and address.
    Removed([String; 4]),
}

/// Follows the registrations that match a filter, beginning with the existing ones.
///
/// # Errors
/// When the stream does not exist.
pub async fn watch(bus: &Bus, stream: &str, filter: &RegistrationFilter) -> Result<RegistrationWatch, RegistryError> {
    Ok(RegistrationWatch { feed: bus.follow(stream, registration::matching(filter).as_str(), StartAt::Latest).await? })
}

impl RegistrationWatch {
    /// Returns the next change; none when the connection was closed. Skips messages that are not registrations.
    ///
    /// # Errors
    /// When the stream is gone.
    pub async fn next(&mut self) -> Option<Result<RegistrationEvent, RegistryError>> {
        loop {
            let message = match self.feed.next().await? {
                Ok(message) => message,
                Err(error) => return Some(Err(error.into())),
            };
            let happened = if message.header(MARKER_HEADER).is_some() {
                registration::parse_subject(&message.subject).map(RegistrationEvent::Removed)
            } else {
                Registration::from_json(&message.payload).ok().map(RegistrationEvent::Registered)
            };
            if let Some(happened) = happened {
                return Some(Ok(happened));
            }
        }
    }
}
