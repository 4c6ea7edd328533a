//! `ensign trust`: the bundle that says who may do what. `init.rs` makes the first one, `edit.rs` and `rule.rs` the next
//! ones, `sign.rs` signs, `show.rs` shows; `files.rs` knows which file is which. `publish.rs` and `status.rs` bring a
//! bundle to the nodes of a fleet, and tell what became of it.

mod edit;
mod files;
mod init;
mod publish;
mod rule;
mod show;
mod sign;
mod status;

use clap::{Args, Subcommand};

use crate::host::Host;

use super::error::{Exit, Failure};
use super::ui::Ui;

pub use init::{first_bundle, seal_bundle};

/// The trust bundle: which keys may do what in a fleet.
#[derive(Debug, Args)]
pub struct TrustArgs {
    #[command(subcommand)]
    command: TrustCommand,
}

#[derive(Debug, Subcommand)]
enum TrustCommand {
    /// Makes and signs the first bundle of a fleet: its operators may do everything.
    Init(init::Init),
    /// Lets another key in, or puts another key in the place of one.
    AddKey(edit::AddKey),
    /// Takes every right from keys: what they signed is refused from then on.
    Revoke(edit::Revoke),
    /// Forgets keys. Revoke what may have been stolen: a refusal then says why.
    RemoveKey(edit::RemoveKey),
    /// Changes the root keys: the next bundle needs the old and the new ones to sign.
    RotateRoot(edit::RotateRoot),
    /// Gives the bundle more time.
    Renew(edit::Renew),
    /// What keys may do.
    #[command(subcommand)]
    Rule(rule::RuleCommand),
    /// Signs a bundle, or adds signatures to one that others signed.
    Sign(sign::Sign),
    /// Shows a signed or unsigned bundle, who signed it, and whether it is valid.
    Show(show::Show),
    /// Publishes the next bundle, and waits until the nodes obey it.
    Publish(publish::Publish),
    /// Which versions the nodes obey, and what expires when.
    Status(status::Status),
}

/// Runs `ensign trust`.
///
/// # Errors
/// When a key or bundle can't be used, or the fleet can't be reached.
pub fn run(args: TrustArgs, ui: &mut Ui) -> Result<Exit, Failure> {
    let now = Host::system(None).now();
    match args.command {
        TrustCommand::Init(args) => init::init(&args, now, ui),
        TrustCommand::AddKey(args) => edit::add_key(&args, now, ui),
        TrustCommand::Revoke(args) => edit::revoke(&args, now, ui),
        TrustCommand::RemoveKey(args) => edit::remove_key(&args, now, ui),
        TrustCommand::RotateRoot(args) => edit::rotate_root(&args, now, ui),
        TrustCommand::Renew(args) => edit::renew(&args, now, ui),
        TrustCommand::Rule(command) => rule::run(&command, now, ui),
        TrustCommand::Sign(args) => sign::sign(&args, ui),
        TrustCommand::Show(args) => show::show(&args, now, ui),
        TrustCommand::Publish(args) => online(publish::run(args, ui)),
        TrustCommand::Status(args) => online(status::run(args, ui)),
    }
}

fn online(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    tokio::runtime::Runtime::new().map_err(|error| Failure::from_error(Exit::Failed, &error))?.block_on(work)
}
