//! The end of waiting by the user: Ctrl-C or SIGTERM.

use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The user's interruption of one command. Until the first [`Interrupt::listen`], a signal ends the program, as without this.
/// From then on no signal is lost, also between two waits: an interruption ends every later wait at once.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct Interrupt(Arc<OnceLock<watch::Receiver<bool>>>);

impl Interrupt {
    /// Listens from this call on. The future resolves after a signal, which may have come before. Needs a runtime.
    pub(in crate::cli) fn listen(&self) -> impl Future<Output = ()> + use<> {
        let mut interrupted = self.0.get_or_init(start_listening).clone();
        async move {
            if interrupted.wait_for(|is_set| *is_set).await.is_err() {
                // No signal can be heard: each then ends the program by itself.
                std::future::pending::<()>().await;
            }
        }
    }

    /// True after a signal that [`Interrupt::listen`] heard.
    pub(in crate::cli) fn is_set(&self) -> bool {
        self.0.get().is_some_and(|interrupted| *interrupted.borrow())
    }
}

/// Registers both signals before it returns.
fn start_listening() -> watch::Receiver<bool> {
    let (sender, interrupted) = watch::channel(false);
    let registered = signal(SignalKind::interrupt()).and_then(|interrupt| Ok((interrupt, signal(SignalKind::terminate())?)));
    if let Ok((mut interrupt, mut terminate)) = registered {
        tokio::spawn(async move {
            tokio::select! {
                // Cancel-safe, both: after the first signal nothing waits for another.
                _ = interrupt.recv() => (),
                _ = terminate.recv() => (),
            }
            sender.send_replace(true);
        });
    }
    interrupted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_between_two_waits_is_not_lost() {
        let interrupt = Interrupt::default();
        let first = interrupt.listen();
        assert!(!interrupt.is_set());
        drop(first);
        let own = std::process::Command::new("kill").args(["-INT", &std::process::id().to_string()]).status().unwrap();
        assert!(own.success());
        interrupt.listen().await;
        assert!(interrupt.is_set());
        interrupt.clone().listen().await;
    }
}
