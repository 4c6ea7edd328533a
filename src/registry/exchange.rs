//! Blocking access of a run to the bus.

use std::sync::{Arc, OnceLock};

use tokio::runtime::{Builder, Handle, Runtime};

use crate::diag::chain;
use crate::model::registration::RegistrationFilter;
use crate::model::{BusValue, DiscoveryClient, Registration};
use crate::transport::{Bus, BusSettings};

use super::door::{Door, Unverified};

/// The way to publish registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// Into the stream, with an acknowledgement.
    Stored,
    /// To the subscribers of that moment.
    Announced,
}

/// The bus, for a run. A connection of its own begins with the first use.
pub struct Registry {
    way: Way,
    stream: String,
    publish: Publish,
    door: Arc<dyn Door>,
}

/// Returns the settings of the connection; called once, at the first use.
type Settings = Box<dyn Fn() -> Result<BusSettings, String> + Send + Sync>;

enum Way {
    /// A connection that the caller keeps alive.
    Shared(Handle, Bus),
    Own {
        settings: Settings,
        opened: OnceLock<Result<(Runtime, Bus), String>>,
    },
}

impl Registry {
    /// Uses a connection that `handle` drives. Must not be called on a thread that drives other tasks of that runtime.
    pub fn over(handle: Handle, bus: Bus, stream: impl Into<String>, publish: Publish, door: Arc<dyn Door>) -> Self {
        Self { way: Way::Shared(handle, bus), stream: stream.into(), publish, door }
    }

    /// Uses a connection of its own, without keys.
    pub fn to(settings: impl Fn() -> Result<BusSettings, String> + Send + Sync + 'static, stream: impl Into<String>) -> Self {
        let way = Way::Own { settings: Box::new(settings), opened: OnceLock::new() };
        Self { way, stream: stream.into(), publish: Publish::Stored, door: Arc::new(Unverified) }
    }

    fn ask<T, E: std::error::Error + 'static>(&self, question: impl AsyncFnOnce(&Bus) -> Result<T, E>) -> Result<T, String> {
        let (handle, bus) = match &self.way {
            Way::Shared(handle, bus) => (handle, bus),
            Way::Own { settings, opened } => {
                let (runtime, bus) = opened.get_or_init(|| open(settings)).as_ref().map_err(Clone::clone)?;
                (runtime.handle(), bus)
            }
        };
        handle.block_on(question(bus)).map_err(|error| chain(&error))
    }
}

fn open(settings: &Settings) -> Result<(Runtime, Bus), String> {
    let settings = settings()?;
    // A thread of its own answers the server while the run is busy.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| format!("could not start a thread for the connection: {error}"))?;
    let bus = runtime.block_on(Bus::connect(&settings)).map_err(|error| chain(&error))?;
    Ok((runtime, bus))
}

impl DiscoveryClient for Registry {
    fn value(&self, bucket: &str, key: &str) -> Result<BusValue<String>, String> {
        let bytes = self.ask(async |bus: &Bus| bus.value(bucket, key).await)?;
        let (value, signed) = self.door.value(bucket, key, bytes)?;
        let value = String::from_utf8(value).map_err(|_| format!("kv://{bucket}/{key} is not UTF-8 text"))?;
        Ok(BusValue { value, signed })
    }

    fn registrations(&self, filter: &RegistrationFilter) -> Result<BusValue<Vec<Registration>>, String> {
        let found = self.ask(async |bus: &Bus| super::messages(bus, &self.stream, filter).await)?;
        let (found, signed) = self.door.registrations(found)?;
        let value = super::entries(found).map_err(|error| chain(&error))?;
        Ok(BusValue { value, signed })
    }

    fn register(&self, entry: &Registration) -> Result<(), String> {
        self.ask(async |bus: &Bus| match self.publish {
            Publish::Stored => super::publish(bus, &self.stream, entry, self.door.as_ref()).await,
            Publish::Announced => super::announce(bus, entry, self.door.as_ref()).await,
        })
    }
}
