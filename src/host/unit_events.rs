//! Changes of systemd units, as the manager signals them on the system bus (`org.freedesktop.systemd1(5)`).
//!
//! A thread of its own follows the signals. The thread keeps the last state of each watched unit, because a look at a unit makes
//! systemd load and unload the unit, which it signals as well: only a different state is a change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::select;
use tokio::sync::Notify;
use zbus::{Connection, Message, MessageStream, OwnedObjectPath, OwnedVariant};

use super::systemd::{self, SystemdError, path_of};
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

/// The state of a unit: `ActiveState` and `SubState`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UnitState {
    active: String,
    sub: String,
}

impl UnitState {
    /// The state of a unit that is not in the memory of systemd.
    fn unloaded() -> Self {
        Self { active: "inactive".to_owned(), sub: "dead".to_owned() }
    }
}

/// A row of `ListUnitsByPatterns`: name, description, load state, active state, sub state, follower, object path, and the job.
type UnitRow = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

/// A signal of systemd, reduced to what may change a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UnitSignal {
    /// A unit has another state.
    State { path: String, active: Option<String>, sub: Option<String> },
    /// Another property of the unit changed, as its enablement.
    Property { path: String },
    /// A unit was loaded, in a state that the signal does not name.
    Loaded { path: String },
    /// A unit was unloaded.
    Unloaded { path: String },
    /// Unit files changed, or systemd read all of them again.
    Everything,
}

/// The watched units with the same object path: a unit and its aliases.
#[derive(Debug, Default)]
struct WatchedUnit {
    names: BTreeSet<String>,
    /// The last state; none before the first signal.
    state: Option<UnitState>,
}

/// The watched units and their changes.
#[derive(Debug, Default)]
struct UnitTable {
    units: BTreeMap<String, WatchedUnit>,
    paths: BTreeMap<String, String>,
    changed: BTreeSet<String>,
    /// Names whose object path systemd has not confirmed yet.
    unresolved: BTreeSet<String>,
}

impl UnitTable {
    fn watch(&mut self, name: &str) {
        if !self.paths.contains_key(name) {
            self.assign(name, path_of(name));
            self.unresolved.insert(name.to_owned());
        }
    }

    fn unwatch(&mut self, name: &str) {
        if let Some(path) = self.paths.remove(name)
            && let Some(unit) = self.units.get_mut(&path)
        {
            unit.names.remove(name);
            if unit.names.is_empty() {
                self.units.remove(&path);
            }
        }
        self.changed.remove(name);
        self.unresolved.remove(name);
    }

    /// Moves a name to the object path that systemd reports for it. True when the path is another one.
    fn assign(&mut self, name: &str, path: String) -> bool {
        if self.paths.get(name) == Some(&path) {
            return false;
        }
        self.unwatch(name);
        self.units.entry(path.clone()).or_default().names.insert(name.to_owned());
        self.paths.insert(name.to_owned(), path);
        true
    }

    fn mark_all(&mut self) {
        self.changed.extend(self.paths.keys().cloned());
    }

    /// Applies a signal. Returns the object path of a watched unit whose state must be asked for.
    fn apply(&mut self, signal: UnitSignal) -> Option<String> {
        match signal {
            UnitSignal::State { path, active, sub } => {
                let unit = self.units.get(&path)?;
                let last = unit.state.clone().unwrap_or_else(UnitState::unloaded);
                let state = UnitState { active: active.unwrap_or(last.active), sub: sub.unwrap_or(last.sub) };
                self.set_state(&path, state);
                None
            }
            UnitSignal::Property { path } => {
                self.changed.extend(self.units.get(&path)?.names.iter().cloned());
                None
            }
            UnitSignal::Loaded { path } => self.units.contains_key(&path).then_some(path),
            UnitSignal::Unloaded { path } => {
                self.set_state(&path, UnitState::unloaded());
                None
            }
            UnitSignal::Everything => {
                self.mark_all();
                self.unresolved.extend(self.paths.keys().cloned());
                None
            }
        }
    }

    /// Records a state, and marks the unit if the last state is another one.
    fn set_state(&mut self, path: &str, state: UnitState) {
        let Some(unit) = self.units.get_mut(path) else { return };
        if unit.state.as_ref() != Some(&state) {
            unit.state = Some(state);
            self.changed.extend(unit.names.iter().cloned());
        }
    }
}

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
    /// New names, or the end.
    news: Notify,
    end: Mutex<bool>,
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
        self.shared.news.notify_one();
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
        *lock(&self.shared.end) = true;
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by then.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        *lock(&self.end)
    }

    /// Every unit may have changed when signals were missing, and may change unseen from now on when the connection is lost.
    fn set_link(&self, link: Link, waker: &Waker) {
        lock(&self.table).mark_all();
        *lock(&self.link) = link;
        self.link_changed.notify_all();
        waker.wake();
    }
}

/// Follows the signals over one connection after the other, to the end.
async fn follow(shared: &Shared, waker: &Waker) {
    let mut pause = RECONNECT.0;
    while !shared.is_over() {
        let connected = follow_connection(shared, waker, &mut pause).await;
        if let Err(error) = connected {
            tracing::debug!(error = %crate::diag::error_chain(&error), "lost the signals of systemd");
        }
        if shared.is_over() {
            return;
        }
        if *lock(&shared.link) != Link::Lost {
            shared.set_link(Link::Lost, waker);
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = until_over(shared) => return,
        }
        pause = (pause * 2).min(RECONNECT.1);
    }
}

async fn until_over(shared: &Shared) {
    while !shared.is_over() {
        shared.news.notified().await;
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
            () = shared.news.notified() => {}
        }
        if shared.is_over() {
            return Ok(());
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
        if table.paths.contains_key(&name) && table.assign(&name, path.as_str().to_owned()) {
            // Signals under the right path were ignored so far.
            table.changed.insert(name);
            waker.wake();
        }
    }
}

/// Returns the state of a unit without loading it.
async fn loaded_state(connection: &Connection, path: &str, shared: &Shared) -> Result<UnitState, SystemdError> {
    let names: Vec<String> =
        lock(&shared.table).units.get(path).map(|unit| unit.names.iter().cloned().collect()).unwrap_or_default();
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

    fn changes(table: &mut UnitTable, signal: UnitSignal) -> Vec<String> {
        table.apply(signal);
        std::mem::take(&mut table.changed).into_iter().collect()
    }

    #[test]
    fn only_another_state_is_a_change() {
        let mut table = UnitTable::default();
        table.watch("a.service");
        table.watch("b.service");
        let loaded = || UnitSignal::Loaded { path: PATH.to_owned() };
        let unloaded = || UnitSignal::Unloaded { path: PATH.to_owned() };
        for (signal, is_change) in [
            (state("inactive", "dead"), true),
            (state("inactive", "dead"), false),
            // A look at an inactive unit loads and unloads it.
            (loaded(), false),
            (unloaded(), false),
            (state("activating", "start"), true),
            (UnitSignal::State { path: PATH.to_owned(), active: Some("active".to_owned()), sub: None }, true),
            (state("active", "start"), false),
            (unloaded(), true),
            (UnitSignal::Property { path: PATH.to_owned() }, true),
            (UnitSignal::State { path: "/other".to_owned(), active: None, sub: None }, false),
        ] {
            let text = format!("{signal:?}");
            let expected = if is_change { vec!["a.service".to_owned()] } else { vec![] };
            assert_eq!(changes(&mut table, signal), expected, "{text}");
        }
        assert_eq!(table.apply(loaded()), Some(PATH.to_owned()), "a loaded unit may have another state");
        assert_eq!(changes(&mut table, UnitSignal::Everything), ["a.service", "b.service"]);
    }

    #[test]
    fn an_alias_follows_its_unit() {
        let mut table = UnitTable::default();
        table.watch("alias.service");
        table.watch("a.service");
        assert_eq!(changes(&mut table, state("active", "running")), ["a.service"]);
        assert!(table.assign("alias.service", PATH.to_owned()));
        assert!(!table.assign("alias.service", PATH.to_owned()));
        assert_eq!(changes(&mut table, state("failed", "failed")), ["a.service", "alias.service"]);
        table.unwatch("a.service");
        assert_eq!(changes(&mut table, state("active", "running")), ["alias.service"]);
        table.unwatch("alias.service");
        assert!(table.units.is_empty() && table.paths.is_empty() && table.unresolved.is_empty());
        assert_eq!(table.apply(UnitSignal::Loaded { path: PATH.to_owned() }), None);
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
