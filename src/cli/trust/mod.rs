//! `ensign trust`: the trust bundle, the signed list of keys and rules.
//!
//! `init` creates the first version, `edit` and `rule` the next ones. `sign` signs and `show` prints. `files` has the names of
//! the files. `publish` sends a bundle to the nodes of a fleet, and `status` reports their versions.

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

use super::error::{CliError, Exit};
use super::ui::Ui;

pub(in crate::cli) use files::{DEFAULT_LIFETIME, expiry_after, unsigned_text};
pub use init::{first_bundle, seal_bundle};

/// Create, edit, sign and publish the trust bundle: the keys of a fleet and their rights.
#[derive(Debug, Args)]
pub struct TrustArgs {
    #[command(subcommand)]
    command: TrustCommand,
}

#[derive(Debug, Subcommand)]
enum TrustCommand {
    /// Create and sign the first bundle of a fleet: its operators may do everything.
    Init(init::TrustInitArgs),
    /// Add a key, or replace a key.
    AddKey(edit::AddKeyArgs),
    /// Revoke keys: nodes refuse everything that they signed from then on.
    Revoke(edit::RevokeArgs),
    /// Remove keys. Revoke a key that may be stolen: the rejection then names the reason.
    RemoveKey(edit::RemoveKeyArgs),
    /// Change the root keys: the old and the new roots must sign the next bundle.
    RotateRoot(edit::RotateRootArgs),
    /// Extend the lifetime of the bundle.
    Renew(edit::RenewArgs),
    /// Add, remove and list rules: the rights of keys.
    #[command(subcommand)]
    Rule(rule::RuleCommand),
    /// Sign a bundle, or add signatures to a signed one.
    Sign(sign::TrustSignArgs),
    /// Show a signed or unsigned bundle, its signers, and its validity.
    Show(show::TrustShowArgs),
    /// Publish the next bundle, and wait until the nodes accept it.
    Publish(publish::TrustPublishArgs),
    /// Show the bundle versions of the nodes, and the next expiries.
    Status(status::TrustStatusArgs),
}

/// Runs `ensign trust`.
///
/// # Errors
/// When a key or bundle can't be used, or the fleet can't be reached.
pub fn run(args: TrustArgs, ui: &mut Ui) -> Result<Exit, CliError> {
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
        TrustCommand::Publish(args) => run_async(publish::run(args, ui)),
        TrustCommand::Status(args) => run_async(status::run(args, ui)),
    }
}

fn run_async(work: impl Future<Output = Result<Exit, CliError>>) -> Result<Exit, CliError> {
    tokio::runtime::Runtime::new().map_err(|error| CliError::from_error(Exit::Failed, &error))?.block_on(work)
}
