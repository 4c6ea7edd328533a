//! The end of waiting by the user.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves on Ctrl-C or SIGTERM.
pub(super) async fn interrupted() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            // SIGTERM then ends the program by itself.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        // Cancel-safe, both: a signal is not lost before it comes.
        _ = tokio::signal::ctrl_c() => (),
        _ = terminated => (),
    }
}
