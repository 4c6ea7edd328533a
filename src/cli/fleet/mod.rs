//! `ensign fleet`: one file per subcommand.
//!
//! `session.rs` connects to the fleet. `target.rs` and `target_filter.rs` are the flags that choose nodes, `source.rs` and
//! `manifest_args.rs` those of a manifest. `confirm.rs` asks before a change of many nodes. `send.rs` sends commands and `query.rs` queries, both with the keys of `seal.rs`.
//! `render_job.rs` prints the events of a job (`job_progress.rs` its progress), `job_record.rs` reads the record of one. `job_name.rs` finds a job by its id, by the
//! first characters of its id, or as the last one (`last_job.rs`).

mod admit;
pub(super) mod apply;
mod approve;
pub(super) mod audit;
mod cancel;
mod channel_history;
mod channel_position;
mod channels;
mod confirm;
mod create;
mod ensure;
mod event_filter;
mod event_text;
mod events;
mod explain;
mod facts;
mod healthcheck;
mod init;
mod job;
mod job_name;
mod job_progress;
mod job_record;
mod last_job;
mod manifest_args;
mod node_keys;
mod node_remove;
mod node_revoke;
mod node_selection;
mod nodes;
mod plan;
mod plan_output;
mod query;
mod render_job;
mod retry;
mod rollout;
mod run;
mod seal;
mod selection;
pub(super) mod send;
pub(super) mod session;
pub(super) mod source;
mod start;
pub(super) mod status;
pub(super) mod target;
mod target_filter;
mod token;
mod unknown_nodes;
mod waves;

use clap::{Args, Subcommand};

use super::error::{CliError, Exit};
use super::ui::Ui;
use crate::wire::Action;
use session::OperatorArgs;

/// Sign and send commands to a fleet, and watch it.
#[derive(Debug, Args)]
pub struct FleetArgs {
    #[command(flatten)]
    context: OperatorArgs,
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Create a fleet: its keys, trust bundle, operator.toml, and the configuration of its NATS server.
    Create(create::CreateArgs),
    /// Create or update the streams of the fleet, and print the permissions of each role.
    Init(init::InitArgs),
    /// Bring one resource to its desired state on every chosen node.
    Ensure(ensure::EnsureArgs),
    /// Apply a manifest or bundle on every chosen node.
    Apply(apply::ApplyArgs),
    /// Assign a manifest or bundle as desired state of every chosen node.
    Assign(channels::AssignArgs),
    /// Withdraw the assignment of a channel.
    Withdraw(channels::WithdrawArgs),
    /// Run the assignment of a channel now, on every chosen node.
    Run(run::RunArgs),
    /// Show the assignments, and the progress of the nodes.
    Channels,
    /// Show the versions of a channel, or assign an earlier one again.
    Channel(channel_history::ChannelArgs),
    /// Plan the changes of an apply or ensure on every chosen node, and approve a plan.
    Plan(plan::PlanArgs),
    /// Show fleet status.
    Status,
    /// List the nodes with their status, or those that a `where` selects.
    Nodes(nodes::NodesArgs),
    /// Ask nodes for their facts.
    Facts(facts::FactsArgs),
    /// Run the health checks of the assignments.
    Healthcheck(healthcheck::HealthcheckArgs),
    /// Show the events of the nodes.
    Events(events::EventsArgs),
    /// List, show, watch, resend or cancel commands that were sent.
    Job(job::JobArgs),
    /// Show or watch a rollout, wave by wave.
    Rollout(rollout::RolloutArgs),
    /// Halt a rollout: no further node begins. Runs in progress end as usual.
    Halt(rollout::OverrideArgs),
    /// Resume a halted rollout.
    Resume(rollout::OverrideArgs),
    /// Explain the outcome of a command on a node.
    Why(explain::WhyArgs),
    /// Show the audit trail: commands, their signers and reasons.
    Audit(audit::FleetAuditArgs),
    /// Print a token with which new hosts ask to join.
    Token(token::TokenArgs),
    /// Show the hosts that ask to join, and admit them.
    Admit(admit::AdmitArgs),
    /// Show one node in full, and manage the pinned keys of nodes.
    Node(nodes::NodeArgs),
}

/// Runs `ensign fleet`.
///
/// # Errors
/// When an argument is wrong or the fleet can't be reached.
pub fn run(args: FleetArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let context = args.context;
    runtime.block_on(async {
        match args.command {
            FleetCommand::Create(args) => create::run(&args, ui),
            FleetCommand::Init(args) => init::run(args, &context, ui).await,
            FleetCommand::Ensure(args) => ensure::run(args, &context, ui).await,
            FleetCommand::Apply(args) => apply::run(args, &context, ui).await,
            FleetCommand::Assign(args) => channels::assign(args, &context, ui).await,
            FleetCommand::Withdraw(args) => channels::withdraw(args, &context, ui).await,
            FleetCommand::Run(args) => run::run(args, &context, ui).await,
            FleetCommand::Channels => channels::list(&context, ui).await,
            FleetCommand::Channel(args) => channel_history::run(args, &context, ui).await,
            FleetCommand::Status => status::status(&context, ui).await,
            FleetCommand::Plan(args) => plan::run(args, &context, ui).await,
            FleetCommand::Nodes(args) => nodes::nodes(args, &context, ui).await,
            FleetCommand::Facts(args) => facts::run(args, &context, ui).await,
            FleetCommand::Healthcheck(args) => healthcheck::run(args, &context, ui).await,
            FleetCommand::Events(args) => events::run(args, &context, ui).await,
            FleetCommand::Job(args) => job::run(args, &context, ui).await,
            FleetCommand::Rollout(args) => rollout::run(args, &context, ui).await,
            FleetCommand::Halt(args) => rollout::send_override(args, Action::Halt, &context, ui).await,
            FleetCommand::Resume(args) => rollout::send_override(args, Action::Resume, &context, ui).await,
            FleetCommand::Why(args) => explain::run(args, &context, ui).await,
            FleetCommand::Audit(args) => audit::run(args, &context, ui).await,
            FleetCommand::Token(args) => token::run(args, &context, ui),
            FleetCommand::Admit(args) => admit::run(args, &context, ui).await,
            FleetCommand::Node(args) => nodes::node(args, &context, ui).await,
        }
    })
}
