//! Blocking access of a run to the bus.

use std::sync::{Arc, OnceLock};

use tokio::runtime::{Builder, Handle, Runtime};

use crate::diag::error_chain;
use crate::model::registration::RegistrationFilter;
use crate::model::{BusValue, DiscoveryClient, Registration};
use crate::transport::{Bus, BusSettings};

use super::verifier::{BusVerifier, Unverified};

/// The way to publish registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishMode {
    /// Into the stream, with an acknowledgement.
    Stored,
    /// To the subscribers of that moment.
    Announced,
}

/// The bus, for a run. A connection of its own begins with the first use.
pub struct Registry {
    access: BusAccess,
    stream: String,
    publish: PublishMode,
    verifier: Arc<dyn BusVerifier>,
}

/// Returns the settings of the connection; called once, at the first use.
type SettingsLoader = Box<dyn Fn() -> Result<BusSettings, String> + Send + Sync>;

enum BusAccess {
    /// A connection that the caller keeps alive.
    Shared(Handle, Bus),
    Own {
        settings: SettingsLoader,
        opened: OnceLock<Result<(Runtime, Bus), String>>,
    },
}

impl Registry {
    /// Uses a connection that `handle` drives. Must not be called on a thread that drives other tasks of that runtime.
    pub fn with_shared_bus(
        handle: Handle,
        bus: Bus,
        stream: impl Into<String>,
        publish: PublishMode,
        verifier: Arc<dyn BusVerifier>,
    ) -> Self {
        Self { access: BusAccess::Shared(handle, bus), stream: stream.into(), publish, verifier }
    }

    /// Uses a connection of its own, without keys.
    pub fn with_own_bus(
        settings: impl Fn() -> Result<BusSettings, String> + Send + Sync + 'static,
        stream: impl Into<String>,
    ) -> Self {
        let access = BusAccess::Own { settings: Box::new(settings), opened: OnceLock::new() };
        Self { access, stream: stream.into(), publish: PublishMode::Stored, verifier: Arc::new(Unverified) }
    }

    fn block_on_bus<T, E: std::error::Error + 'static>(
        &self,
        question: impl AsyncFnOnce(&Bus) -> Result<T, E>,
    ) -> Result<T, String> {
        let (handle, bus) = match &self.access {
            BusAccess::Shared(handle, bus) => (handle, bus),
            BusAccess::Own { settings, opened } => {
                let (runtime, bus) = opened.get_or_init(|| open(settings)).as_ref().map_err(Clone::clone)?;
                (runtime.handle(), bus)
            }
        };
        handle.block_on(question(bus)).map_err(|error| error_chain(&error))
    }
}

fn open(settings: &SettingsLoader) -> Result<(Runtime, Bus), String> {
    let settings = settings()?;
    // A thread of its own answers the server while the run is busy.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| format!("could not start a thread for the connection: {error}"))?;
    let bus = runtime.block_on(Bus::connect(&settings)).map_err(|error| error_chain(&error))?;
    Ok((runtime, bus))
}

impl DiscoveryClient for Registry {
    fn value(&self, bucket: &str, key: &str) -> Result<BusValue<String>, String> {
        let bytes = self.block_on_bus(async |bus: &Bus| bus.value(bucket, key).await)?;
        let (value, signed) = self.verifier.value(bucket, key, bytes)?;
        let value = String::from_utf8(value).map_err(|_| format!("kv://{bucket}/{key} is not UTF-8 text"))?;
        Ok(BusValue { value, signed })
    }

    fn registrations(&self, filter: &RegistrationFilter) -> Result<BusValue<Vec<Registration>>, String> {
        let found = self.block_on_bus(async |bus: &Bus| super::messages(bus, &self.stream, filter).await)?;
        let (found, signed) = self.verifier.registrations(found)?;
        let value = super::entries(found).map_err(|error| error_chain(&error))?;
        Ok(BusValue { value, signed })
    }

    fn register(&self, entry: &Registration) -> Result<(), String> {
        self.block_on_bus(async |bus: &Bus| match self.publish {
            PublishMode::Stored => super::publish(bus, &self.stream, entry, self.verifier.as_ref()).await,
            PublishMode::Announced => super::announce(bus, entry, self.verifier.as_ref()).await,
        })
    }
}
