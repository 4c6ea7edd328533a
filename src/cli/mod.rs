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
mod interrupt;
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
mod user_state;
pub mod verify;

use crate::cli::args::external_type;
use crate::cli::local::apply;
use crate::cli::local::data;
use crate::cli::local::ensure;
use crate::cli::local::facts;
use crate::cli::local::session;
use crate::cli::local::status;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::diag::clean;

use error::{CliError, Exit};
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
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Apply(apply::LocalApplyArgs),
    Plan(apply::LocalPlanArgs),
    Check(apply::LocalCheckArgs),
    Ensure(ensure::LocalEnsureArgs),
    Status(status::LocalStatusArgs),
    Facts(facts::LocalFactsArgs),
    #[command(subcommand, alias = "hiera")]
    Data(data::DataCommand),
    #[command(subcommand)]
    Session(session::SessionCommand),
    #[command(alias = "reg")]
    Registration(registration::RegistrationArgs),
    Kv(kv::KvArgs),
    Doc(doc::DocArgs),
    Schema(doc::SchemaArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
    /// Print the version.
    Version,
    #[command(subcommand)]
    Bundle(bundle::BundleCommand),
    Demo(demo::DemoArgs),
    Fleet(Box<fleet::FleetArgs>),
    Key(key::KeyArgs),
    Trust(trust::TrustArgs),
    Audit(audit::AuditArgs),
    Sign(sign::SignArgs),
    Verify(verify::VerifyArgs),
    #[command(subcommand)]
    Agent(agent::AgentCommand),
}

/// Runs the command line `args`, which begins with the name of the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    std::panic::set_hook(Box::new(ui::print_panic));
    let mut ui = Ui::new();
    let args: Vec<OsString> = args.into_iter().collect();
    let parse = |args: &[OsString]| external_type::parse(Cli::command, args).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parse(&args) {
        Ok(cli) => cli,
        Err(error) => {
            // The error quotes the arguments. They are cleaned first, so that a line end in them forges no line.
            let words = args.iter().map(|word| clean::line(&word.to_string_lossy()).into_owned().into());
            let words: Vec<OsString> = words.collect();
            let error = parse(&words).err().unwrap_or(error);
            return ExitCode::from(ui.print_parser_result(&error).code());
        }
    };
    // The configuration of an agent sets its log.
    if (cli.debug || cli.verbose > 0) && !matches!(cli.command, CliCommand::Agent(_)) {
        agent::log::start_verbose_log(cli.debug || cli.verbose > 1);
    }
    let result = dispatch(cli.command, &mut ui);
    let exit = result.unwrap_or_else(|failure| ui.report(&failure));
    ui.flush();
    ExitCode::from(exit.code())
}

fn dispatch(command: CliCommand, ui: &mut Ui) -> Result<Exit, CliError> {
    match command {
        CliCommand::Apply(args) => apply::apply(&args, ui),
        CliCommand::Plan(args) => apply::apply(&args.into(), ui),
        CliCommand::Check(args) => apply::check(&args, ui),
        CliCommand::Ensure(args) => ensure::ensure(args, ui),
        CliCommand::Status(args) => status::status(&args, ui),
        CliCommand::Facts(args) => facts::facts(&args, ui),
        CliCommand::Data(command) => data::data(&command, ui),
        CliCommand::Session(command) => session::session(&command, ui),
        CliCommand::Registration(args) => registration::run(args, ui),
        CliCommand::Kv(args) => kv::run(&args, ui),
        CliCommand::Doc(args) => doc::doc(&args, ui),
        CliCommand::Schema(args) => doc::schema(&args, ui),
        CliCommand::Completions(args) => Ok(shell::completions(&args, Cli::command(), ui)),
        CliCommand::Man(args) => shell::man(&args, Cli::command(), ui),
        CliCommand::Version => {
            ui.line(text!("ensign {}", env!("CARGO_PKG_VERSION")));
            Ok(Exit::Success)
        }
        CliCommand::Agent(command) => agent::agent(&command, ui),
        CliCommand::Bundle(command) => bundle::run(command, ui),
        CliCommand::Demo(args) => demo::run(&args, ui),
        CliCommand::Fleet(args) => fleet::run(*args, ui),
        CliCommand::Key(args) => key::run(args, ui),
        CliCommand::Sign(args) => sign::run(&args, ui),
        CliCommand::Verify(args) => verify::run(&args, ui),
        CliCommand::Trust(args) => trust::run(args, ui),
        CliCommand::Audit(args) => audit::run(args, ui),
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
