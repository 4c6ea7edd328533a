//! `ensign-sim`: a fleet in one process, against a real server.
//!
//! Each node is an agent with every part of production (connection, verifier, ledger, outbox, publisher, heartbeat) except the
//! engine. The end of a command follows from the command, the node and a seed, and is the same every time. `options.rs` has the
//! flags, `nodes.rs` the nodes, `play.rs` the ends, `figures.rs` the output.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool of the tests, which speaks on standard output")]

mod figures;
mod nodes;
mod options;
mod play;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use ensign::diag::error_chain;
use tokio::signal::unix::{SignalKind, signal};

use figures::{Printer, TICK};
use nodes::SimulatedNodes;
use options::Options;

/// An error of the start, for the user.
type StartError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let options = Options::parse();
    let done = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads)
        // For the unpacking of archives and the resolution of names: never one thread per node.
        .max_blocking_threads(4)
        .enable_all()
        .build()
        .map_err(StartError::from)
        .and_then(|runtime| runtime.block_on(run(options)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error_chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), StartError> {
    if options.verbose {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // A node falls silent once, so the number of nodes bounds this queue.
    let (silent, mut silenced) = tokio::sync::mpsc::unbounded_channel();
    let (fleet, state) = SimulatedNodes::prepare(&options, silent)?;
    let fleet = Arc::new(fleet);
    let mut printer = Printer::new(&fleet);
    let starting = tokio::spawn(Arc::clone(&fleet).start(options.threads));
    let mut tick = tokio::time::interval(TICK);
    let mut starting = std::pin::pin!(starting);
    let mut started = false;
    loop {
        // Cancel-safe: an interval, a signal and a channel keep their items, and the handle is borrowed.
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = tick.tick() => printer.tick(),
            Some(node) = silenced.recv() => fleet.silence(&node).await,
            result = &mut starting, if !started => {
                result??;
                started = true;
            }
        }
    }
    printer.line(true);
    fleet.stop().await;
    drop(state);
    Ok(())
}
