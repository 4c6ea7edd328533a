//! Changes of systemd units, as the manager signals them on the system bus (`org.freedesktop.systemd1(5)`).
//!
//! A thread of its own follows the signals, over a connection of its own.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::select;
use tokio::sync::Notify;
use zbus::{Connection, Message, MessageStream, OwnedObjectPath, OwnedVariant};

use super::systemd::{self, SystemdError};
use super::unit_table::{UnitSignal, UnitState, UnitTable};
use super::waker::Waker;
use crate::model::lock;

/// Signals of changed properties of units. Only signals from systemd itself count.
const CHANGED_PROPERTIES: &str = "type='signal',sender='org.freedesktop.systemd1',interface='org.freedesktop.DBus.Properties',\
                                  member='PropertiesChanged',path_namespace='/org/freedesktop/systemd1/unit',\
                                  arg0='org.freedesktop.systemd1.Unit'";
/// Signals of the manager: new and removed units, changed unit files, reloads.
const MANAGER_SIGNALS: &str = "type='signal',sender='org.freedesktop.systemd1',\
                               interface='org.freedesktop.systemd1.Manager',path='/org/freedesktop/systemd1'";
/// A new systemd on the bus, as after `systemctl daemon-reexec`.
const NEW_OWNER: &str = "type='signal',sender='org.freedesktop.DBus',interface='org.freedesktop.DBus',\
                         member='NameOwnerChanged',arg0='org.freedesktop.systemd1'";

/// Pauses before a new connection: the first, and the longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// The longest wait for the first connection. The bus of a running system answers within milliseconds.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);

/// A row of `ListUnitsByPatterns`: name, description, load state, active state, sub state, follower, object path, and the job.
type UnitRow = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Link {
    /// Waits for the first connection.
    #[default]
    Connecting,
    /// Signals arrive.
    Connected,
    /// Waits for another connection.
    Lost,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<UnitTable>,
    link: Mutex<Link>,
    link_changed: Condvar,
    /// New names wait for their object paths.
    names_added: Notify,
    /// The owner is gone.
    ended: Notify,
}

/// The changes since the last report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnitReport {
    /// The names of the units that may have changed.
    pub changed: BTreeSet<String>,
    /// Signals arrive, so that every change is reported.
    pub is_connected: bool,
}

/// A follower of systemd's signals, with a thread and a connection of its own.
#[derive(Debug)]
pub struct UnitEvents {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl UnitEvents {
    /// Starts the thread, and waits some seconds at most for its first connection. The thread calls `waker` after a change.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(waker: Waker) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let theirs = Arc::clone(&shared);
        let run = move || runtime.block_on(follow(&theirs, &waker));
        let thread = std::thread::Builder::new().name("unit-events".to_owned()).spawn(run)?;
        let events = Self { shared, thread: Some(thread) };
        let is_waiting = |link: &mut Link| *link == Link::Connecting;
        drop(events.shared.link_changed.wait_timeout_while(lock(&events.shared.link), FIRST_CONNECTION, is_waiting));
        Ok(events)
    }

    /// Watches a unit. Every later change is reported while the connection lasts.
    pub fn watch(&self, name: &str) {
        lock(&self.shared.table).watch(name);
        self.shared.names_added.notify_one();
    }

    /// Ends the watch of a unit.
    pub fn unwatch(&self, name: &str) {
        lock(&self.shared.table).unwatch(name);
    }

    /// Returns the changes since the last call. After a lost or new connection, every unit may have changed.
    pub fn report(&self) -> UnitReport {
        let changed = std::mem::take(&mut lock(&self.shared.table).changed);
        UnitReport { changed, is_connected: *lock(&self.shared.link) == Link::Connected }
    }
}

impl Drop for UnitEvents {
    fn drop(&mut self) {
        self.shared.ended.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by then.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    /// Records a new or lost connection. Every unit may have changed while signals were missing.
    fn set_link(&self, link: Link, waker: &Waker) {
        lock(&self.table).mark_all();
        *lock(&self.link) = link;
        self.link_changed.notify_all();
        waker.wake();
    }
}

/// Follows the signals over one connection after the other, until the owner is gone.
async fn follow(shared: &Shared, waker: &Waker) {
    tokio::select! {
        () = reconnect(shared, waker) => {}
        () = shared.ended.notified() => {}
    }
}

async fn reconnect(shared: &Shared, waker: &Waker) {
    let mut pause = RECONNECT.0;
    loop {
        if let Err(error) = follow_connection(shared, waker, &mut pause).await {
            tracing::debug!(error = %crate::diag::error_chain(&error), "lost the signals of systemd");
        }
        if *lock(&shared.link) != Link::Lost {
            shared.set_link(Link::Lost, waker);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT.1);
    }
}

/// Follows the signals of one connection until it breaks.
async fn follow_connection(shared: &Shared, waker: &Waker, pause: &mut Duration) -> Result<(), SystemdError> {
    let connection = systemd::open().await?;
    // A call over the connection of the signals would wait for an answer behind signals that nothing reads meanwhile.
    let calls = systemd::open().await?;
    let rules = [CHANGED_PROPERTIES, MANAGER_SIGNALS, NEW_OWNER];
    let [properties, manager, owner] = rules.map(|rule| MessageStream::for_match_rule(rule, &connection, None));
    let mut signals = select(properties.await?, select(manager.await?, owner.await?));
    lock(&shared.table).apply(UnitSignal::Everything);
    shared.set_link(Link::Connected, waker);
    *pause = RECONNECT.0;
    loop {
        resolve_names(shared, waker, &calls).await?;
        tokio::select! {
            next = signals.next() => {
                let Some(message) = next else { return Ok(()) };
                let message = message?;
                if message.header().member().is_some_and(|member| member.as_str() == "NameOwnerChanged") {
                    systemd::subscribe(&connection).await?;
                }
                handle(shared, waker, &calls, &message).await?;
            }
            () = shared.names_added.notified() => {}
        }
    }
}

async fn handle(shared: &Shared, waker: &Waker, connection: &Connection, message: &Message) -> Result<(), SystemdError> {
    let Some(signal) = read_signal(message)? else { return Ok(()) };
    let unknown = lock(&shared.table).apply(signal);
    if let Some(path) = unknown {
        let state = loaded_state(connection, &path, shared).await?;
        lock(&shared.table).set_state(&path, state);
    }
    if !lock(&shared.table).changed.is_empty() {
        waker.wake();
    }
    Ok(())
}

/// Asks for the object paths of new names: an alias has the path of its unit.
async fn resolve_names(shared: &Shared, waker: &Waker, connection: &Connection) -> Result<(), SystemdError> {
    loop {
        let Some(name) = lock(&shared.table).unresolved.pop_first() else { return Ok(()) };
        let path: OwnedObjectPath = match systemd::call_manager(connection, "LoadUnit", &(&name,)).await {
            Ok(reply) => reply.body().deserialize()?,
            // An invalid name has no signals either.
            Err(SystemdError::Refused(_)) => continue,
            Err(error) => return Err(error),
        };
        let mut table = lock(&shared.table);
        if table.is_watched(&name) && table.assign(&name, path.as_str().to_owned()) {
            // Signals under the right path were ignored so far.
            table.changed.insert(name);
            waker.wake();
        }
    }
}

/// Returns the state of a unit without loading it.
async fn loaded_state(connection: &Connection, path: &str, shared: &Shared) -> Result<UnitState, SystemdError> {
    let names: Vec<String> = lock(&shared.table).names(path);
    // The names are patterns for systemd, in which a backslash quotes.
    let patterns: Vec<String> = names.iter().map(|name| name.replace('\\', "\\\\")).collect();
    let body = (Vec::<String>::new(), patterns);
    let reply = systemd::call_manager(connection, "ListUnitsByPatterns", &body).await?;
    let rows: Vec<UnitRow> = reply.body().deserialize()?;
    let row = rows.into_iter().find(|row| row.6.as_str() == path);
    Ok(row.map_or_else(UnitState::unloaded, |row| UnitState { active: row.3, sub: row.4 }))
}

/// Reads a signal; none for a signal that changes no unit.
fn read_signal(message: &Message) -> Result<Option<UnitSignal>, SystemdError> {
    let header = message.header();
    let (Some(path), Some(member)) = (header.path(), header.member()) else { return Ok(None) };
    Ok(match member.as_str() {
        "PropertiesChanged" => {
            let (_, values, invalidated): (String, HashMap<String, OwnedVariant>, Vec<String>) = message.body().deserialize()?;
            properties_signal(path.as_str(), &values, &invalidated)
        }
        "UnitNew" | "UnitRemoved" => {
            let (_, path): (String, OwnedObjectPath) = message.body().deserialize()?;
            let path = path.as_str().to_owned();
            Some(if member.as_str() == "UnitNew" { UnitSignal::Loaded { path } } else { UnitSignal::Unloaded { path } })
        }
        "Reloading" => {
            let is_begin: bool = message.body().deserialize()?;
            (!is_begin).then_some(UnitSignal::Everything)
        }
        "UnitFilesChanged" | "NameOwnerChanged" => Some(UnitSignal::Everything),
        _ => None,
    })
}

fn properties_signal(path: &str, values: &HashMap<String, OwnedVariant>, invalidated: &[String]) -> Option<UnitSignal> {
    let text = |name: &str| values.get(name).and_then(|value| String::try_from(value.try_clone().ok()?).ok());
    let path = path.to_owned();
    let matters = |name: &str| ["LoadState", "UnitFileState", "ActiveState", "SubState"].contains(&name);
    let (active, sub) = (text("ActiveState"), text("SubState"));
    let is_other = ["LoadState", "UnitFileState"].iter().any(|name| values.contains_key(*name));
    if is_other || invalidated.iter().any(|name| matters(name)) {
        return Some(UnitSignal::Property { path });
    }
    (active.is_some() || sub.is_some()).then_some(UnitSignal::State { path, active, sub })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/org/freedesktop/systemd1/unit/a_2eservice";

    fn state(active: &str, sub: &str) -> UnitSignal {
        UnitSignal::State { path: PATH.to_owned(), active: Some(active.to_owned()), sub: Some(sub.to_owned()) }
    }

    #[test]
    fn the_thread_ends_with_its_owner() {
        let waker = Waker::new().unwrap();
        let events = UnitEvents::start(waker.clone()).unwrap();
        events.watch("a.service");
        let report = events.report();
        assert_eq!(report.is_connected, systemd::is_booted(), "{report:?}");
        // The thread wakes the owner after its first attempt to connect.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !waker.clear() {
            assert!(std::time::Instant::now() < deadline, "the owner was not woken");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(events);
    }

    #[test]
    fn properties_are_read() {
        let value = |text: &str| OwnedVariant::try_from(zbus::Variant::from(text.to_owned())).unwrap();
        let values = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
        let read = |pairs: &[(&str, &str)], invalidated: &[&str]| {
            let invalidated: Vec<String> = invalidated.iter().map(|name| (*name).to_owned()).collect();
            properties_signal(PATH, &values(pairs), &invalidated)
        };
        assert_eq!(
            read(&[("ActiveState", "active"), ("SubState", "running"), ("Job", "x")], &[]),
            Some(state("active", "running"))
        );
        assert_eq!(read(&[("Job", "x")], &["Conditions"]), None);
        assert_eq!(read(&[], &["UnitFileState"]), Some(UnitSignal::Property { path: PATH.to_owned() }));
        assert_eq!(read(&[("UnitFileState", "enabled")], &[]), Some(UnitSignal::Property { path: PATH.to_owned() }));
    }
}
