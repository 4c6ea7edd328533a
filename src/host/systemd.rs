//! systemd over D-Bus: its manager on the system bus, as `org.freedesktop.systemd1(5)` describes it.
//!
//! The connection is made anew after a restart of the bus. Calls block. Code that waits for a job checks the cancel flag of the
//! run meanwhile. Units are named with their suffix here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::runtime::{Builder, Runtime};
use zbus::{Connection, MessageStream, OwnedObjectPath, OwnedVariant, Variant};

use super::{CANCEL_POLL, Host};

const BUS: &str = "unix:path=/run/dbus/system_bus_socket";
const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// Jobs that have ended. Only systemd's own word counts.
const ENDED_JOBS: &str = "type='signal',sender='org.freedesktop.systemd1',interface='org.freedesktop.systemd1.Manager',\
                          path='/org/freedesktop/systemd1',member='JobRemoved'";

/// The longest wait for an answer of systemd.
const ANSWER: Duration = Duration::from_secs(30);
/// The longest wait while systemd reads its configuration again, the same as in its own tools.
const RELOAD: Duration = Duration::from_secs(180);

/// systemd could not be asked, or said no.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// systemd refused.
    #[error("{0}")]
    Refused(String),
    /// The bus can't be reached, or the connection broke.
    #[error("could not speak to systemd over D-Bus")]
    Bus(#[source] zbus::Error),
    /// No answer came in time.
    #[error("systemd did not answer on D-Bus within {0:?}")]
    Silent(Duration),
    /// A job did not end in time.
    #[error("it takes longer than {0:?}")]
    Late(Duration),
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

/// A unit as systemd has it in memory. The words are those of `systemctl show`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unit {
    /// Its name; another than was asked for where that is an alias.
    pub id: String,
    /// `loaded`, `not-found`, `masked`, `bad-setting`, `error`, ...
    pub load: String,
    /// `active`, `reloading`, `inactive`, `failed`, `activating`, `deactivating`, ...
    pub active: String,
    /// The same in the words of its kind: `running`, `exited`, `auto-restart`, ...
    pub sub: String,
    /// The file that it was read from; empty when there is none.
    pub fragment: String,
    /// Its other names, and its own, with blanks.
    pub names: String,
    /// The drop-ins that were read, with blanks.
    pub drop_ins: String,
    /// The enablement at the last check of systemd, in the words of `systemctl is-enabled`.
    pub file_state: String,
    /// Its files have changed since they were read.
    pub outdated: bool,
    /// A condition in its file did not hold when it was last started.
    pub unmet: bool,
}

impl Unit {
    /// The properties that make it up.
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

    /// A unit from these properties; truth is `yes` or `no`.
    pub fn of(mut property: impl FnMut(&str) -> String) -> Self {
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
            // Before the first start, and once it was forgotten, the result is "no" too.
            unmet: property("ConditionResult") == "no" && !matches!(property("ConditionTimestampMonotonic").as_str(), "" | "0"),
        }
    }
}

/// True where systemd is this machine's init, as `sd_booted(3)` tells.
pub fn is_booted() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// systemd of this machine.
pub struct Systemd {
    runtime: Runtime,
    connection: Mutex<Option<Connection>>,
}

impl Systemd {
    /// Connects to the system bus.
    ///
    /// # Errors
    /// When there is none, or it does not let us in.
    pub fn connect() -> Result<Self, SystemdError> {
        let io = |error: std::io::Error| SystemdError::Bus(zbus::Error::InputOutput(error.into()));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(io)?;
        let connection = runtime.block_on(open())?;
        Ok(Self { runtime, connection: Mutex::new(Some(connection)) })
    }

    /// A unit; it is loaded when it was not.
    ///
    /// # Errors
    /// When systemd can't be asked, or takes the name for none.
    pub fn unit(&self, name: &str) -> Result<Unit, SystemdError> {
        let properties = self.properties(name, UNIT)?;
        Ok(Unit::of(|key| properties.get(key).map(word).unwrap_or_default()))
    }

    /// Properties of the unit's own kind, as `Type` and `Result` of a service; empty where it has none of the name.
    ///
    /// # Errors
    /// When systemd can't be asked.
    pub fn own_properties(&self, name: &str, keys: &[&str]) -> Result<Vec<String>, SystemdError> {
        let properties = self.properties(name, &interface_of(name))?;
        Ok(keys.iter().map(|key| properties.get(*key).map(word).unwrap_or_default()).collect())
    }

    fn properties(&self, name: &str, interface: &str) -> Result<HashMap<String, OwnedVariant>, SystemdError> {
        let path = path_of(name);
        self.talk(ANSWER, async |connection| {
            let reply = connection.call_method(Some(SYSTEMD), path.as_str(), Some(PROPERTIES), "GetAll", &(interface,)).await?;
            reply.body().deserialize()
        })
    }

    /// Returns the enablement of a unit, in the words of `systemctl is-enabled`; none when it has no file. systemd searches for
    /// all links to the unit again, which takes some milliseconds.
    ///
    /// # Errors
    /// When systemd can't be reached.
    pub fn unit_file_state(&self, name: &str) -> Result<Option<String>, SystemdError> {
        let asked = self.talk(ANSWER, async |connection| {
            let reply = connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), "GetUnitFileState", &(name,)).await?;
            reply.body().deserialize::<String>()
        });
        match asked {
            Ok(state) => Ok(Some(state)),
            Err(SystemdError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The directories in which units are looked for, the first with precedence.
    ///
    /// # Errors
    /// When systemd can't be asked.
    pub fn unit_path(&self) -> Result<Vec<String>, SystemdError> {
        self.talk(ANSWER, async |connection| {
            let asked = (MANAGER, "UnitPath");
            let reply = connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(PROPERTIES), "Get", &asked).await?;
            Vec::<String>::try_from(reply.body().deserialize::<OwnedVariant>()?)
        })
    }

    /// Enables or disables a unit for the next boot. The manager in memory does not know before [`Self::reload`].
    ///
    /// # Errors
    /// When systemd refuses.
    pub fn enable(&self, name: &str, on: bool) -> Result<(), SystemdError> {
        self.talk(ANSWER, async |connection| {
            let names: &[&str] = &[name];
            // For good, not until the next boot; and, where that is asked too, not over what is there already.
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

    /// Has systemd read all unit files again.
    ///
    /// # Errors
    /// When it refuses.
    pub fn reload(&self) -> Result<(), SystemdError> {
        self.talk(RELOAD, async |connection| {
            connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), "Reload", &()).await.map(drop)
        })
    }

    /// Runs a job, as `StartUnit`, to its end, and gives its result: `done`, `failed`, `timeout`, `dependency`, ...;
    /// none when the bus went away meanwhile.
    ///
    /// # Errors
    /// When systemd refuses it, it takes longer than `limit`, or the run is over.
    pub fn job(&self, method: &str, name: &str, limit: Duration, host: &Host) -> Result<Option<String>, SystemdError> {
        let mut held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        self.runtime.block_on(async {
            // Before the job, so that its end can't be missed.
            let (connection, mut ended) = match listen(held.take()).await {
                Ok(both) => both,
                Err(_) => listen(None).await?,
            };
            let body = (name, "replace");
            let asked = connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), method, &body);
            let reply = tokio::time::timeout(ANSWER, asked).await.map_err(|_| SystemdError::Silent(ANSWER))??;
            let job: OwnedObjectPath = reply.body().deserialize()?;
            let result = wait_for(&job, &mut ended, limit, host).await;
            if !matches!(result, Ok(None)) {
                *held = Some(connection);
            }
            result
        })
    }

    /// Sends a request, and again on a new connection when the old connection broke.
    fn talk<T>(&self, limit: Duration, ask: impl AsyncFn(Connection) -> zbus::Result<T>) -> Result<T, SystemdError> {
        let mut held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        self.runtime.block_on(async {
            let once = async |connection: Connection| {
                tokio::time::timeout(limit, ask(connection)).await.map_err(|_| SystemdError::Silent(limit))?.map_err(Into::into)
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

async fn open() -> Result<Connection, SystemdError> {
    let connecting = zbus::conn::Builder::address(BUS).build();
    let connection = tokio::time::timeout(ANSWER, connecting).await.map_err(|_| SystemdError::Silent(ANSWER))??;
    // Signals are sent only to those who asked for them.
    let asked = connection.call_method(Some(SYSTEMD), MANAGER_PATH, Some(MANAGER), "Subscribe", &());
    tokio::time::timeout(ANSWER, asked).await.map_err(|_| SystemdError::Silent(ANSWER))??;
    Ok(connection)
}

/// A connection, this one where it works, and on it the ends of jobs from now on.
async fn listen(held: Option<Connection>) -> Result<(Connection, MessageStream), SystemdError> {
    let connection = match held.filter(|connection| !connection.is_closed()) {
        Some(connection) => connection,
        None => open().await?,
    };
    let listening = MessageStream::for_match_rule(ENDED_JOBS, &connection, None);
    let ended = tokio::time::timeout(ANSWER, listening).await.map_err(|_| SystemdError::Silent(ANSWER))??;
    Ok((connection, ended))
}

async fn wait_for(
    job: &OwnedObjectPath,
    ended: &mut MessageStream,
    limit: Duration,
    host: &Host,
) -> Result<Option<String>, SystemdError> {
    let until = Instant::now() + limit;
    loop {
        if let Ok(next) = tokio::time::timeout(CANCEL_POLL, ended.next()).await {
            let Some(Ok(message)) = next else { return Ok(None) };
            let (_, path, _, result): (u32, OwnedObjectPath, String, String) = message.body().deserialize()?;
            if path == *job {
                return Ok(Some(result));
            }
        } else if host.is_over() {
            return Err(SystemdError::Cancelled);
        } else if Instant::now() >= until {
            return Err(SystemdError::Late(limit));
        }
    }
}

/// Returns the object of a unit; systemd loads the unit on use. Escaped as `sd_bus_path_encode(3)` does.
fn path_of(name: &str) -> String {
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

/// The interface of a kind of unit: `foo.timer` has `...systemd1.Timer`.
fn interface_of(name: &str) -> String {
    let kind = name.rsplit('.').next().unwrap_or_default();
    let (first, rest) = kind.split_at_checked(1).unwrap_or_default();
    format!("{SYSTEMD}.{}{rest}", first.to_ascii_uppercase())
}

/// A value as `systemctl show` writes it, of the kinds that are asked for here.
fn word(value: &OwnedVariant) -> String {
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
            Unit::of(|key| match key {
                "NeedDaemonReload" => "yes".into(),
                "ConditionResult" => result.into(),
                "ConditionTimestampMonotonic" => at.into(),
                _ => key.to_lowercase(),
            })
        };
        let unit = said("yes", "17");
        assert_eq!((unit.id.as_str(), unit.active.as_str(), unit.outdated, unit.unmet), ("id", "activestate", true, false));
        for (result, at, unmet) in [("no", "17", true), ("no", "0", false), ("no", "", false), ("", "", false)] {
            assert_eq!(said(result, at).unmet, unmet, "{result} {at}");
        }
    }
}
