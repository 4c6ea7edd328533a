//! The watch of a value of a NATS bucket. A thread follows the value, and ends the wait of `apply --watch`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;

use crate::diag::error_chain;
use crate::host::waker::Waker;
use crate::transport::{Bus, BusSettings, TransportError};

/// Pause before the next attempt to follow the value, while there is no server or no bucket.
const RETRY: Duration = Duration::from_secs(5);

/// The news of a value.
#[derive(Debug, Clone)]
pub(super) struct ValueWatch {
    has_changed: Arc<AtomicBool>,
    waker: Waker,
}

impl ValueWatch {
    /// Starts a thread that follows the value, until the program ends. Each news ends the wait of `waker`.
    pub(super) fn start(settings: BusSettings, bucket: String, key: String, waker: Waker) -> Self {
        let watch = Self { has_changed: Arc::default(), waker };
        let news = watch.clone();
        thread::spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return tracing::warn!(%error, "cannot follow kv://{bucket}/{key}; the sweep reads it again"),
            };
            runtime.block_on(async {
                loop {
                    if let Err(error) = news.follow(&settings, &bucket, &key).await {
                        tracing::info!("cannot follow kv://{bucket}/{key}: {}", error_chain(&error));
                    }
                    tokio::time::sleep(RETRY).await;
                }
            });
        });
        watch
    }

    /// Returns true once after news.
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed.swap(false, Ordering::Relaxed)
    }

    async fn follow(&self, settings: &BusSettings, bucket: &str, key: &str) -> Result<(), TransportError> {
        let bus = Bus::connect(settings).await?;
        let mut values = bus.follow_value(bucket, key).await?;
        // The value may have changed before this moment.
        self.report();
        while let Some(value) = values.next().await {
            value?;
            self.report();
        }
        Ok(())
    }

    fn report(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}
