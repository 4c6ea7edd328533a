//! The NATS client behind [`Bus`]: the connection and plain messages.
//!
//! `streams` has JetStream, `objects` the object store, `values` single messages by their subject, `quota` the storage quota.
//! `link` monitors the connection, `reason` explains its errors.

mod connection_monitor;
mod objects;
mod quota;
mod reason;
mod streams;
mod values;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use async_nats::{Client, ConnectOptions, HeaderMap, ServerAddr, Subscriber};
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::timeout;

use super::credentials;
use super::nkey::UserKey;
use super::{BusSettings, ConnectionCounters, ConnectionState, Credentials, Message, TransportError, api_prefix, is_supported};
use crate::model::Secret;
use connection_monitor::{ConnectionMonitor, connect_timeout};
use reason::{hide_password, reason};

pub use quota::{StorageQuota, StreamLimits};
pub use streams::StreamReader;

/// The longest wait for the response to a request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the bus. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Bus {
    client: Client,
    jetstream: jetstream::Context,
    jetstream_domain: Option<String>,
    monitor: ConnectionMonitor,
}

impl Bus {
    /// Connects. With `retry_initial`, returns at once and connects in the background, for ever; see [`Bus::watch`].
    ///
    /// # Errors
    /// When the settings can't be used. Without `retry_initial`, also when no server accepts the connection or is new enough.
    pub async fn connect(settings: &BusSettings) -> Result<Self, TransportError> {
        let servers = settings
            .servers
            .iter()
            .map(|url| url.parse::<ServerAddr>().map_err(|error| TransportError::Url(hide_password(url), error.into())))
            .collect::<Result<Vec<_>, _>>()?;
        let watcher = ConnectionMonitor::new(servers.len());
        let client = options(settings, &watcher).await?.connect(servers).await.map_err(|error| TransportError::Connect {
            servers: settings.servers.iter().map(|url| hide_password(url)).collect::<Vec<_>>().join(", "),
            source: reason(&error.to_string()).into(),
        })?;
        let jetstream_domain = settings.jetstream_domain.clone();
        let jetstream = jetstream::ContextBuilder::new()
            .timeout(RESPONSE_TIMEOUT)
            .ack_timeout(RESPONSE_TIMEOUT)
            .api_prefix(api_prefix(jetstream_domain.as_deref()))
            .build(client.clone());
        let bus = Self { client, jetstream, jetstream_domain, monitor: watcher };
        if !settings.retry_initial {
            bus.check_version()?;
        }
        Ok(bus)
    }

    /// True while connected.
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    /// Returns the version of the server; none before the first connection.
    pub fn server_version(&self) -> Option<String> {
        self.client.try_server_info().map(|info| info.version).filter(|version| !version.is_empty())
    }

    /// Checks that the server is at least [`super::OLDEST_SERVER`].
    ///
    /// # Errors
    /// When the server is older, or before the first connection.
    pub fn check_version(&self) -> Result<(), TransportError> {
        match self.server_version() {
            Some(version) if is_supported(&version) => Ok(()),
            Some(version) => Err(TransportError::TooOld(version)),
            None => Err(TransportError::Disconnected),
        }
    }

    /// Returns the state of the connection as it changes.
    pub fn watch(&self) -> watch::Receiver<ConnectionState> {
        self.monitor.link()
    }

    /// Counts as a reconnect for all tasks: the streams answer again. Behind a leaf node, the connection to the leaf node lasts
    /// while the leaf node itself is cut off.
    pub fn announce_reconnect(&self) {
        self.monitor.announce_reconnect();
    }

    /// Returns the subjects that the server denied on this connection.
    pub fn denied_subscriptions(&self) -> BTreeSet<String> {
        self.monitor.denied_subscriptions()
    }

    /// Returns the errors so far.
    pub fn counters(&self) -> ConnectionCounters {
        self.monitor.counters()
    }

    /// Hands a message to the connection, without a guarantee of delivery. See [`Bus::publish_stored`].
    ///
    /// # Errors
    /// When the message is too large, or the connection was closed.
    pub async fn publish(&self, subject: &str, headers: &[(&str, &str)], payload: Vec<u8>) -> Result<(), TransportError> {
        self.send(subject, None, headers, payload).await
    }

    /// Publishes a message with a subject for replies.
    ///
    /// # Errors
    /// When the message is too large, or the connection was closed.
    pub async fn publish_with_reply(
        &self,
        subject: &str,
        reply: &str,
        headers: &[(&str, &str)],
        payload: Vec<u8>,
    ) -> Result<(), TransportError> {
        self.send(subject, Some(reply), headers, payload).await
    }

    async fn send(
        &self,
        subject: &str,
        reply: Option<&str>,
        headers: &[(&str, &str)],
        payload: Vec<u8>,
    ) -> Result<(), TransportError> {
        self.check_size(subject, payload.len())?;
        let (subject_owned, headers, payload) = (subject.to_owned(), header_map(headers), payload.into());
        let sent = match reply {
            Some(reply) => self.client.publish_with_reply_and_headers(subject_owned, reply.to_owned(), headers, payload).await,
            None => self.client.publish_with_headers(subject_owned, headers, payload).await,
        };
        sent.map_err(|error| TransportError::failed(format!("could not publish on {subject}"), error))
    }

    fn check_size(&self, subject: &str, size: usize) -> Result<(), TransportError> {
        let max = self.client.max_payload();
        // Before the first connection the limit is unknown; the client checks again.
        if max > 0 && size > max {
            return Err(TransportError::TooLarge {
                what: format!("the message on {subject}"),
                size: size as u64,
                max: max as u64,
            });
        }
        Ok(())
    }

    /// Creates a subject for replies, and subscribes to the subject and one token below. `<subject>.<n>` separates the
    /// replies to several messages.
    ///
    /// # Errors
    /// When the connection was closed.
    pub async fn request_inbox(&self) -> Result<(String, Inbox), TransportError> {
        let subject = self.client.new_inbox();
        let inbox = self.subscribe(&format!("{subject}.*")).await?;
        Ok((subject, inbox))
    }

    /// Subscribes, also across reconnects.
    ///
    /// # Errors
    /// When the subject is invalid, or the connection was closed.
    pub async fn subscribe(&self, subject: &str) -> Result<Inbox, TransportError> {
        let subscriber = self
            .client
            .subscribe(subject.to_owned())
            .await
            .map_err(|error| TransportError::failed(format!("could not subscribe to {subject}"), error))?;
        Ok(Inbox { subscriber })
    }

    /// Waits until the server has processed everything that was sent before, including subscriptions.
    ///
    /// # Errors
    /// When there is no connection, or no response within five seconds.
    pub async fn flush_roundtrip(&self) -> Result<(), TransportError> {
        if !self.is_connected() {
            return Err(TransportError::Disconnected);
        }
        // The client's own flush ends at the socket. A message to ourselves passes through the server.
        let subject = self.client.new_inbox();
        let mut echo = self.subscribe(&subject).await?;
        self.publish(&subject, &[], Vec::new()).await?;
        match timeout(RESPONSE_TIMEOUT, echo.next()).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(TransportError::Disconnected),
            Err(_) => Err(TransportError::TimedOut("waiting for the NATS server".to_owned())),
        }
    }

    /// Unsubscribes, sends all pending messages, and closes; gives up at `deadline`.
    pub async fn drain(&self, deadline: Instant) {
        let mut link = self.watch();
        let closed = async {
            if self.client.drain().await.is_ok() {
                // The sender lives as long as `self`, so an error is impossible; an error would mean closed.
                let _closed = link.wait_for(|link| link.closed).await.is_ok();
            }
        };
        if tokio::time::timeout_at(deadline.into(), closed).await.is_err() {
            tracing::debug!("the connection was not drained in time");
        }
    }
}

/// The messages of a subscription, which ends on drop.
#[derive(Debug)]
pub struct Inbox {
    subscriber: Subscriber,
}

impl Inbox {
    /// Returns the next message; none when the connection was closed. Safe to cancel: no message is lost.
    pub async fn next(&mut self) -> Option<Message> {
        self.subscriber.next().await.map(message)
    }
}

async fn options(settings: &BusSettings, watcher: &ConnectionMonitor) -> Result<ConnectOptions, TransportError> {
    // Installs the only cryptographic library of this build. An error means that one is installed already.
    let _installed = rustls::crypto::ring::default_provider().install_default().is_ok();
    let (events, delays, attempts) = (watcher.clone(), watcher.clone(), watcher.clone());
    let mut options = ConnectOptions::new()
        .name(&settings.name)
        .ping_interval(settings.ping)
        .subscription_capacity(settings.backlog)
        .read_buffer_capacity(read_buffer(settings))
        .event_callback(move |event| {
            events.record_event(&event);
            std::future::ready(())
        })
        // Its events do not say why an attempt failed; here it shows the servers, with their last error, before each
        // round. `None` leaves the choice among them to the client.
        .reconnect_to_server_callback(move |servers, _| {
            attempts.log_failed_attempts(
                servers.iter().filter_map(|server| Some((server.to_string(), server.last_error.as_deref()?))),
            );
            std::future::ready(None)
        })
        .reconnect_delay_callback(move |attempts| delays.reconnect_delay(attempts));
    if settings.retry_initial {
        options = options.retry_on_initial_connect().connection_timeout(connect_timeout(settings.servers.len()));
    }
    if let Some(prefix) = &settings.inbox_prefix {
        options = options.custom_inbox_prefix(prefix);
    }
    if settings.tls_first {
        options = options.tls_first();
    }
    if let Some(tls) = &settings.tls {
        options = options.require_tls(tls.required || settings.tls_first);
        if let Some(ca) = &tls.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let (Some(cert), Some(key)) = (&tls.cert, &tls.key) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
    }
    let in_url = || settings.servers.iter().find_map(|url| credentials::from_url(url));
    Ok(match settings.credentials.clone().or_else(in_url) {
        None => options,
        Some(Credentials::CredsFile(path)) => {
            options.credentials_file(&path).await.map_err(|error| TransportError::Credentials(path, error.into()))?
        }
        Some(Credentials::NkeySeed(seed)) => {
            // The client would report only that it can't sign, and only after the server asks.
            UserKey::from_seed(&seed)?;
            options.nkey(seed.reveal().trim().to_owned())
        }
        Some(Credentials::UserPassword { user, password }) => options.user_and_password(user, password.reveal().to_owned()),
        Some(Credentials::Jwt { jwt, seed }) => {
            UserKey::from_seed(&seed)?;
            let text = creds(&jwt, &seed);
            let failed = |error| TransportError::failed("could not use the JWT of the NATS user", error);
            options.credentials(text.reveal()).map_err(failed)?
        }
        Some(Credentials::Token(token)) => options.token(token.reveal().to_owned()),
    })
}

/// Returns JWT and seed in the form of a credentials file.
fn creds(jwt: &Secret, seed: &Secret) -> Secret {
    let (jwt, seed) = (jwt.reveal().trim(), seed.reveal().trim());
    Secret::new(format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    ))
}

/// Returns the size of a read from the socket. A client that collects from a fleet reads much. A node reads a command now and
/// then, and would waste 64 KiB.
fn read_buffer(settings: &BusSettings) -> u16 {
    if settings.backlog >= BusSettings::GATHER_BACKLOG { u16::MAX } else { 8 * 1024 }
}

fn header_map(headers: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (key, value) in headers {
        map.append(*key, *value);
    }
    map
}

fn headers_of(map: &HeaderMap) -> Vec<(String, String)> {
    map.iter().flat_map(|(key, values)| values.iter().map(|value| (key.to_string(), value.as_str().to_owned()))).collect()
}

fn message(message: async_nats::Message) -> Message {
    Message {
        subject: message.subject.into_string(),
        reply: message.reply.map(async_nats::Subject::into_string),
        headers: message.headers.as_ref().map(headers_of).unwrap_or_default(),
        payload: message.payload.into(),
        no_responders: message.status == Some(async_nats::StatusCode::NO_RESPONDERS),
        ..Message::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_not_shown() {
        for (url, shown) in
            [("nats://u:p@host:4222", "nats://***@host:4222"), ("tls://host", "tls://host"), ("host:4222", "host:4222")]
        {
            assert_eq!(hide_password(url), shown);
        }
    }
}
