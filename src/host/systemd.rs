//! systemd over D-Bus: its manager on the system bus, as `org.freedesktop.systemd1(5)` describes it.
//!
//! The connection is opened again after a restart of the bus. Calls block. Code that waits for a job checks the cancel flag of
//! the run meanwhile. Unit names have their suffix here.

use std::collections::HashMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::runtime::{Builder, Runtime};
use zbus::{Connection, Message, MessageStream, OwnedObjectPath, OwnedVariant, Variant};

use super::cancel::CANCEL_POLL;
use super::run_scope::RunScope;
use crate::model::lock;

const BUS: &str = "unix:path=/run/dbus/system_bus_socket";
const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// The match rule for ended jobs. Only signals from systemd itself count.
const ENDED_JOBS: &str = "type='signal',sender='org.freedesktop.systemd1',interface='org.freedesktop.systemd1.Manager',\
                          path='/org/freedesktop/systemd1',member='JobRemoved'";

/// The longest wait for an answer of systemd.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest wait while systemd reloads its configuration, the same as in systemd's own tools.
const RELOAD: Duration = Duration::from_secs(180);

/// A failed request to systemd.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// systemd refused.
    #[error("{0}")]
    Refused(String),
    /// The bus can't be reached, or the connection broke.
    #[error("could not reach systemd over D-Bus")]
    Bus(#[source] zbus::Error),
    /// No answer arrived in time.
    #[error("systemd did not answer on D-Bus within {0:?}")]
    NoAnswer(Duration),
    /// A job did not end in time.
    #[error("it takes longer than {0:?}")]
    JobTimeout(Duration),
    /// The run was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
}

impl From<zbus::Error> for SystemdError {
    fn from(error: zbus::Error) -> Self {
        match error {
            zbus::Error::MethodError(name, text, _) => Self::Refused(text.unwrap_or_else(|| name.to_string())),
            zbus::Error::FDO(error) => match *error {
                zbus::fdo::Error::ZBus(inner) => inner.into(),
                other => Self::Refused(zbus::DBusError::description(&other).map_or_else(|| other.to_string(), str::to_owned)),
            },
            other => Self::Bus(other),
        }
    }
}

/// A unit in the memory of systemd. The values are those of `systemctl show`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unit {
    /// The name of the unit; differs from the requested name for an alias.
    pub id: String,
    /// `loaded`, `not-found`, `masked`, `bad-setting`, `error`, ...
    pub load: String,
    /// `active`, `reloading`, `inactive`, `failed`, `activating`, `deactivating`, ...
    pub active: String,
    /// The state in the terms of the unit's kind: `running`, `exited`, `auto-restart`, ...
    pub sub: String,
    /// The path of the unit file; empty when there is none.
    pub fragment: String,
    /// The names of the unit, separated by blanks.
    pub names: String,
    /// The loaded drop-ins, separated by blanks.
    pub drop_ins: String,
    /// The enablement at the last check of systemd, in the terms of `systemctl is-enabled`.
    pub file_state: String,
    /// The files have changed since systemd read them.
    pub outdated: bool,
    /// A condition of the unit failed at the last start.
    pub condition_failed: bool,
}

impl Unit {
    /// The properties that a unit is read from.
    pub const PROPERTIES: &'static [&'static str] = &[
        "Id",
        "LoadState",
        "ActiveState",
        "SubState",
        "FragmentPath",
        "Names",
        "DropInPaths",
        "UnitFileState",
        "NeedDaemonReload",
        "ConditionResult",
        "ConditionTimestampMonotonic",
    ];

    /// Creates a unit from these properties; booleans are `yes` or `no`.
    pub fn from_properties(mut property: impl FnMut(&str) -> String) -> Self {
        Self {
            id: property("Id"),
            load: property("LoadState"),
            active: property("ActiveState"),
            sub: property("SubState"),
            fragment: property("FragmentPath"),
            names: property("Names"),
            drop_ins: property("DropInPaths"),
            file_state: property("UnitFileState"),
            outdated: property("NeedDaemonReload") == "yes",
            // Before the first start, and after garbage collection, the result is "no" too.
            condition_failed: property("ConditionResult") == "no"
                && !matches!(property("ConditionTimestampMonotonic").as_str(), "" | "0"),
        }
    }
}

/// True where systemd is the init of this machine, as in `sd_booted(3)`.
pub fn is_booted() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The systemd of this machine.
pub struct Systemd {
    runtime: Runtime,
    connection: Mutex<Option<Connection>>,
}

impl Systemd {
    /// Connects to the system bus.
    ///
    /// # Errors
    /// When there is no bus, or the bus denies access.
    pub fn connect() -> Result<Self, SystemdError> {
        let io = |error: std::io::Error| SystemdError::Bus(zbus::Error::InputOutput(error.into()));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(io)?;
        let connection = runtime.block_on(open())?;
        Ok(Self { runtime, connection: Mutex::new(Some(connection)) })
    }

    /// Returns a unit; systemd loads the unit if necessary.
    ///
    /// # Errors
    /// When systemd can't be reached, or rejects the name.
    pub fn unit(&self, name: &str) -> Result<Unit, SystemdError> {
        let properties = self.properties(name, UNIT)?;
        Ok(Unit::from_properties(|key| properties.get(key).map(format_value).unwrap_or_default()))
    }

    /// Returns properties of the unit's own kind, as `Type` and `Result` of a service. A property that the kind does not have is
    /// empty.
    ///
    /// # Errors
    /// When systemd can't be reached.
    pub fn own_properties(&self, name: &str, keys: &[&str]) -> Result<Vec<String>, SystemdError> {
        let properties = self.properties(name, &interface_of(name))?;
        Ok(keys.iter().map(|key| properties.get(*key).map(format_value).unwrap_or_default()).collect())
    }

    fn properties(&self, name: &str, interface: &str) -> Result<HashMap<String, OwnedVariant>, SystemdError> {
        let path = path_of(name);
        self.with_connection(ANSWER, async |connection| {
            let reply = connection.call_method(Some(SYSTEMD), path.as_str(), Some(PROPERTIES), "GetAll", &(interface,)).await?;
            reply.body().deserialize()
        })
    }

    /// Returns the enablement of a unit, in the terms of `systemctl is-enabled`; none when it has no file. systemd searches for
    /// all links to the unit again, which takes some milliseconds.
    ///
    /// # Errors
    /// When systemd can't be reached.
    pub fn unit_file_state(&self, name: &str) -> Result<Option<String>, SystemdError> {
        let asked = self.with_connection(ANSWER, async |connection| {
            let reply = connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), "GetUnitFileState", &(name,)).await?;
            reply.body().deserialize::<String>()
        });
        match asked {
            Ok(state) => Ok(Some(state)),
            Err(SystemdError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The directories of unit files, in the order of their precedence.
    ///
    /// # Errors
    /// When systemd can't be reached.
    pub fn unit_path(&self) -> Result<Vec<String>, SystemdError> {
        self.with_connection(ANSWER, async |connection| {
            let asked = (MANAGER, "UnitPath");
            let reply = connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(PROPERTIES), "Get", &asked).await?;
            Vec::<String>::try_from(reply.body().deserialize::<OwnedVariant>()?)
        })
    }

    /// Enables or disables a unit for the next boot. The manager in memory sees the change after [`Self::reload`].
    ///
    /// # Errors
    /// When systemd refuses.
    pub fn enable(&self, name: &str, on: bool) -> Result<(), SystemdError> {
        self.with_connection(ANSWER, async |connection| {
            let names: &[&str] = &[name];
            // Permanently, not until the next boot; and without replacing existing links.
            if on {
                let body = (names, false, false);
                connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), "EnableUnitFiles", &body).await?;
            } else {
                let body = (names, false);
                connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), "DisableUnitFiles", &body).await?;
            }
            Ok(())
        })
    }

    /// Makes systemd read all unit files again.
    ///
    /// # Errors
    /// When systemd refuses.
    pub fn reload(&self) -> Result<(), SystemdError> {
        self.with_connection(RELOAD, async |connection| {
            connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), "Reload", &()).await.map(drop)
        })
    }

    /// Runs a job, as `StartUnit`, to its end. Returns its result: `done`, `failed`, `timeout`, `dependency`, ...; none when the
    /// bus disconnected meanwhile.
    ///
    /// # Errors
    /// When systemd refuses the job, it takes longer than `limit`, or the run is over.
    pub fn job(&self, method: &str, name: &str, limit: Duration, scope: &RunScope) -> Result<Option<String>, SystemdError> {
        let mut held = lock(&self.connection);
        self.runtime.block_on(async {
            // Before the job, so that its end can't be missed.
            let (connection, mut ended) = match listen(held.take()).await {
                Ok(both) => both,
                Err(_) => listen(None).await?,
            };
            let body = (name, "replace");
            let asked = connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), method, &body);
            let asked = with_ended_jobs(asked, &mut ended);
            let answered = tokio::time::timeout(ANSWER, asked).await.map_err(|_| SystemdError::NoAnswer(ANSWER))?;
            let Some((reply, mut early)) = answered? else { return Ok(None) };
            let job: OwnedObjectPath = reply.body().deserialize()?;
            let result = match early.remove(&job) {
                Some(result) => Ok(Some(result)),
                None => wait_for(&job, &mut ended, limit, scope).await,
            };
            if !matches!(result, Ok(None)) {
                *held = Some(connection);
            }
            result
        })
    }

    /// Sends a request, and again on a new connection when the old connection broke.
    fn with_connection<T>(&self, limit: Duration, ask: impl AsyncFn(Connection) -> zbus::Result<T>) -> Result<T, SystemdError> {
        let mut held = lock(&self.connection);
        self.runtime.block_on(async {
            let once = async |connection: Connection| {
                tokio::time::timeout(limit, ask(connection)).await.map_err(|_| SystemdError::NoAnswer(limit))?.map_err(Into::into)
            };
            if let Some(connection) = held.clone().filter(|connection| !connection.is_closed()) {
                match once(connection).await {
                    Err(SystemdError::Bus(_)) => {}
                    answered => return answered,
                }
            }
            let connection = open().await?;
            *held = Some(connection.clone());
            once(connection).await
        })
    }
}

/// Connects to the system bus, as a subscriber to the signals of systemd.
pub(super) async fn open() -> Result<Connection, SystemdError> {
    let connecting = zbus::conn::Builder::address(BUS).build();
    let connection = tokio::time::timeout(ANSWER, connecting).await.map_err(|_| SystemdError::NoAnswer(ANSWER))??;
    subscribe(&connection).await?;
    Ok(connection)
}

/// Subscribes to the signals of systemd, which sends signals only to subscribers.
pub(super) async fn subscribe(connection: &Connection) -> Result<(), SystemdError> {
    call_manager(connection, "Subscribe", &()).await.map(drop)
}

/// Calls a method of the manager.
pub(super) async fn call_manager<B>(connection: &Connection, method: &str, body: &B) -> Result<Message, SystemdError>
where
    B: serde::Serialize + zbus::zvariant::DynamicType,
{
    let asked = connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), method, body);
    Ok(tokio::time::timeout(ANSWER, asked).await.map_err(|_| SystemdError::NoAnswer(ANSWER))??)
}

/// Subscribes to the ends of jobs. Uses this connection if it works, else a new one.
async fn listen(held: Option<Connection>) -> Result<(Connection, MessageStream), SystemdError> {
    let connection = match held.filter(|connection| !connection.is_closed()) {
        Some(connection) => connection,
        None => open().await?,
    };
    let listening = MessageStream::for_match_rule(ENDED_JOBS, &connection, None);
    let ended = tokio::time::timeout(ANSWER, listening).await.map_err(|_| SystemdError::NoAnswer(ANSWER))??;
    Ok((connection, ended))
}

/// Waits for a reply. Returns also the results of the jobs that ended meanwhile; none when the bus disconnected.
///
/// Signals are read before the reply too. Behind a full queue of signals, no reply arrives.
async fn with_ended_jobs(
    asked: impl Future<Output = zbus::Result<Message>>,
    ended: &mut MessageStream,
) -> Result<Option<(Message, HashMap<OwnedObjectPath, String>)>, SystemdError> {
    let (mut asked, mut early) = (pin!(asked), HashMap::new());
    loop {
        // Cancel-safe: a message that was not returned stays in the queue, and the request goes on.
        tokio::select! {
            reply = &mut asked => return Ok(Some((reply?, early))),
            signal = ended.next() => {
                let Some(Ok(signal)) = signal else { return Ok(None) };
                early.extend([ended_job(&signal)?]);
            }
        }
    }
}

/// Returns a job that ended, and its result.
fn ended_job(signal: &Message) -> Result<(OwnedObjectPath, String), SystemdError> {
    let (_, path, _, result): (u32, OwnedObjectPath, String, String) = signal.body().deserialize()?;
    Ok((path, result))
}

async fn wait_for(
    job: &OwnedObjectPath,
    ended: &mut MessageStream,
    limit: Duration,
    scope: &RunScope,
) -> Result<Option<String>, SystemdError> {
    let until = Instant::now() + limit;
    loop {
        if let Ok(next) = tokio::time::timeout(CANCEL_POLL, ended.next()).await {
            let Some(Ok(message)) = next else { return Ok(None) };
            let (path, result) = ended_job(&message)?;
            if path == *job {
                return Ok(Some(result));
            }
        }
        if scope.is_over() {
            return Err(SystemdError::Cancelled);
        }
        if Instant::now() >= until {
            return Err(SystemdError::JobTimeout(limit));
        }
    }
}

/// Returns the object path of a unit; systemd loads the unit on use. Escaped as `sd_bus_path_encode(3)` does.
pub(super) fn path_of(name: &str) -> String {
    let mut path = format!("{MANAGER_PATH}/unit/");
    for (at, byte) in name.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (at > 0 && byte.is_ascii_digit()) {
            path.push(char::from(byte));
        } else {
            path.push('_');
            path.push_str(&super::fs::hex(&[byte]));
        }
    }
    path
}

/// The D-Bus interface of a kind of unit: `foo.timer` has `...systemd1.Timer`.
fn interface_of(name: &str) -> String {
    let kind = name.rsplit('.').next().unwrap_or_default();
    let (first, rest) = kind.split_at_checked(1).unwrap_or_default();
    format!("{SYSTEMD}.{}{rest}", first.to_ascii_uppercase())
}

/// Formats a value as `systemctl show` does. Supports the types of the requested properties only.
fn format_value(value: &OwnedVariant) -> String {
    match &**value {
        Variant::Str(text) => text.to_string(),
        Variant::U64(number) => number.to_string(),
        Variant::Bool(true) => "yes".to_owned(),
        Variant::Bool(false) => "no".to_owned(),
        Variant::Array(_) => {
            let list = value.try_clone().ok().and_then(|list| Vec::<String>::try_from(list).ok());
            list.unwrap_or_default().join(" ")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_paths() {
        for (name, path) in [("ssh.service", "ssh_2eservice"), ("1a@b-c.timer", "_31a_40b_2dc_2etimer"), ("a_b", "a_5fb")] {
            assert_eq!(path_of(name), format!("/org/freedesktop/systemd1/unit/{path}"));
        }
    }

    #[test]
    fn kinds_of_units_have_interfaces() {
        for (name, interface) in [
            ("a.service", "org.freedesktop.systemd1.Service"),
            ("a.b.timer", "org.freedesktop.systemd1.Timer"),
            ("a@b.socket", "org.freedesktop.systemd1.Socket"),
        ] {
            assert_eq!(interface_of(name), interface);
        }
    }

    #[test]
    fn a_unit_is_read_from_its_properties() {
        let said = |result: &'static str, at: &'static str| {
            Unit::from_properties(|key| match key {
                "NeedDaemonReload" => "yes".into(),
                "ConditionResult" => result.into(),
                "ConditionTimestampMonotonic" => at.into(),
                _ => key.to_lowercase(),
            })
        };
        let unit = said("yes", "17");
        assert_eq!(
            (unit.id.as_str(), unit.active.as_str(), unit.outdated, unit.condition_failed),
            ("id", "activestate", true, false)
        );
        for (result, at, unmet) in [("no", "17", true), ("no", "0", false), ("no", "", false), ("", "", false)] {
            assert_eq!(said(result, at).condition_failed, unmet, "{result} {at}");
        }
    }
}
