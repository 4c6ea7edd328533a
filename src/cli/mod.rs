//! The command line: one file per command. `ui` prints; `error` has hints and exit codes.
//!
//! stdout has data, stderr has messages.

pub mod agent;
pub mod args;
pub mod audit;
pub mod bundle;
pub mod demo;
pub mod doc;
#[cfg(test)]
mod doc_check;
pub mod error;
pub mod fleet;
mod format;
pub mod key;
pub mod kv;
pub mod local;
pub mod registration;
pub mod render;
pub mod schemas;
pub mod shell;
pub mod sign;
pub mod trust;
pub mod ui;
pub mod verify;

use crate::cli::local::apply;
use crate::cli::local::data;
use crate::cli::local::ensure;
use crate::cli::local::facts;
use crate::cli::local::session;
use crate::cli::local::status;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::diag::clean;

use error::{Exit, Failure};
use ui::{Ui, text};

/// Signed, self-healing configuration for fleets, over NATS.
#[derive(Debug, Parser)]
#[command(name = "ensign", version, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    /// Log the steps of the command.
    #[arg(short = 'v', long, global = true, hide = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Log all details.
    #[arg(long, global = true, hide = true)]
    debug: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Apply(apply::Apply),
    Plan(apply::PlanArgs),
    Check(apply::Check),
    Ensure(ensure::Ensure),
    Status(status::Status),
    Facts(facts::Facts),
    #[command(subcommand, alias = "hiera")]
    Data(data::Data),
    #[command(subcommand)]
    Session(session::Sessions),
    #[command(alias = "reg")]
    Registration(registration::RegistrationArgs),
    Kv(kv::KvArgs),
    Doc(doc::Doc),
    Schema(doc::Schema),
    Completions(shell::Completions),
    Man(shell::Man),
    /// Print the version.
    Version,
    #[command(subcommand)]
    Bundle(bundle::Bundle),
    Demo(demo::DemoArgs),
    Fleet(Box<fleet::FleetArgs>),
    Key(key::KeyArgs),
    Trust(trust::TrustArgs),
    Audit(audit::AuditArgs),
    Sign(sign::Sign),
    Verify(verify::Verify),
    #[command(subcommand)]
    Agent(agent::Agent),
}

/// Runs the command line `args`, which begins with the name of the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    std::panic::set_hook(Box::new(ui::panicked));
    let mut ui = Ui::new();
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // The error quotes the arguments. They are cleaned first, so that a line end in them forges no line.
            let words = args.iter().map(|word| clean::line(&word.to_string_lossy()).into_owned());
            let error = Cli::try_parse_from(words).err().unwrap_or(error);
            return ExitCode::from(ui.parsed(&error).code());
        }
    };
    // The configuration of an agent sets its log.
    if (cli.debug || cli.verbose > 0) && !matches!(cli.command, Command::Agent(_)) {
        agent::log::verbose(cli.debug || cli.verbose > 1);
    }
    let result = dispatch(cli.command, &mut ui);
    let exit = result.unwrap_or_else(|failure| failure.report(&mut ui));
    ui.flush();
    ExitCode::from(exit.code())
}

fn dispatch(command: Command, ui: &mut Ui) -> Result<Exit, Failure> {
    match command {
        Command::Apply(args) => apply::apply(&args, ui),
        Command::Plan(args) => apply::apply(&args.into(), ui),
        Command::Check(args) => apply::check(&args, ui),
        Command::Ensure(args) => ensure::ensure(args, ui),
        Command::Status(args) => status::status(&args, ui),
        Command::Facts(args) => facts::facts(&args, ui),
        Command::Data(command) => data::data(&command, ui),
        Command::Session(command) => session::session(&command, ui),
        Command::Registration(args) => registration::run(args, ui),
        Command::Kv(args) => kv::run(&args, ui),
        Command::Doc(args) => doc::doc(&args, ui),
        Command::Schema(args) => doc::schema(&args, ui),
        Command::Completions(args) => Ok(shell::completions(&args, Cli::command(), ui)),
        Command::Man(args) => shell::man(&args, Cli::command(), ui),
        Command::Version => {
            ui.line(text!("ensign {}", env!("CARGO_PKG_VERSION")));
            Ok(Exit::Success)
        }
        Command::Agent(command) => agent::agent(&command, ui),
        Command::Bundle(command) => bundle::run(command, ui),
        Command::Demo(args) => demo::run(&args, ui),
        Command::Fleet(args) => fleet::run(*args, ui),
        Command::Key(args) => key::run(args, ui),
        Command::Sign(args) => sign::run(&args, ui),
        Command::Verify(args) => verify::run(&args, ui),
        Command::Trust(args) => trust::run(args, ui),
        Command::Audit(args) => audit::run(args, ui),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flags_collide() {
        Cli::command().debug_assert();
    }
}
