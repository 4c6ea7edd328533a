//! `ensign fleet`: one file a subcommand. `session.rs` opens the way to the fleet, `target.rs` and
//! `which.rs` are the nodes, `source.rs` what is applied, `collect.rs` sends and collects, `report.rs` follows a command and prints what becomes of it.

pub(super) mod apply;
mod approve;
pub(super) mod audit;
mod channels;
mod ensure;
mod events;
mod facts;
mod follow;
mod go_ahead;
mod healthcheck;
mod init;
mod job;
mod node_keys;
mod nodes;
mod plan;
pub(super) mod render_job;
mod rollout;
pub(super) mod session;
pub(super) mod source;
pub(super) mod status;
pub(super) mod target;
mod target_filter;
mod waves;
mod why;

use clap::{Args, Subcommand};

use super::error::{Exit, Failure};
use super::ui::Ui;
use session::Context;

/// Ask a fleet: sign, send, watch.
#[derive(Debug, Args)]
pub struct FleetArgs {
    #[command(flatten)]
    context: Context,
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Makes the streams of the fleet, or brings them up to date; prints the permissions that each role needs.
    Init(init::InitArgs),
    /// Brings one resource to its desired state on every chosen node.
    Ensure(ensure::EnsureArgs),
    /// Applies a manifest or bundle on every chosen node.
    Apply(apply::ApplyArgs),
    /// Has every chosen node keep to a manifest or bundle from now on.
    Assign(channels::AssignArgs),
    /// Ends what was assigned in a channel.
    Withdraw(channels::WithdrawArgs),
    /// What is assigned, and how far the nodes are.
    Channels,
    /// What an apply or ensure would change on every chosen node; and the approval of just that.
    Plan(plan::PlanArgs),
    /// How the fleet stands.
    Status,
    /// The nodes, and how each of them stands; or those that a `where` selects.
    Nodes(nodes::NodesArgs),
    /// What nodes are: their facts, asked of them.
    Facts(facts::FactsArgs),
    /// Looks at the health checks of what is assigned.
    Healthcheck(healthcheck::HealthcheckArgs),
    /// What happened on the nodes.
    Events(events::EventsArgs),
    /// Commands that were sent.
    Job(job::JobArgs),
    /// A command in waves: how it stands, wave by wave.
    Rollout(rollout::RolloutArgs),
    /// Halts a command in waves: no node begins any more that has not begun. What runs ends as any other.
    Halt(rollout::WordArgs),
    /// Lets a command in waves go on that was halted.
    Resume(rollout::WordArgs),
    /// Why a node did what it did about a command, or did nothing.
    Why(why::WhyArgs),
    /// Who asked for what, and why.
    Audit(audit::AuditArgs),
    /// One node in full, asked for its state now; and the keys by which the words of nodes are known.
    Node(nodes::NodeArgs),
}

/// Runs `ensign fleet`.
///
/// # Errors
/// When the request is wrong, the fleet can't be reached, or it was not told to do anything.
pub fn run(args: FleetArgs, ui: &mut Ui) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::from_error(Exit::Failed, &error))?;
    let context = args.context;
    runtime.block_on(async {
        match args.command {
            FleetCommand::Init(args) => init::run(args, &context, ui).await,
            FleetCommand::Ensure(args) => ensure::run(args, &context, ui).await,
            FleetCommand::Apply(args) => apply::run(args, &context, ui).await,
            FleetCommand::Assign(args) => channels::assign(args, &context, ui).await,
            FleetCommand::Withdraw(args) => channels::withdraw(args, &context, ui).await,
            FleetCommand::Channels => channels::list(&context, ui).await,
            FleetCommand::Status => status::status(&context, ui).await,
            FleetCommand::Plan(args) => plan::run(args, &context, ui).await,
            FleetCommand::Nodes(args) => nodes::nodes(args, &context, ui).await,
            FleetCommand::Facts(args) => facts::run(args, &context, ui).await,
            FleetCommand::Healthcheck(args) => healthcheck::run(args, &context, ui).await,
            FleetCommand::Events(args) => events::run(args, &context, ui).await,
            FleetCommand::Job(args) => job::run(args, &context, ui).await,
            FleetCommand::Rollout(args) => rollout::run(args, &context, ui).await,
            FleetCommand::Halt(args) => rollout::say(args, true, &context, ui).await,
            FleetCommand::Resume(args) => rollout::say(args, false, &context, ui).await,
            FleetCommand::Why(args) => why::run(args, &context, ui).await,
            FleetCommand::Audit(args) => audit::run(args, &context, ui).await,
            FleetCommand::Node(args) => nodes::node(args, &context, ui).await,
        }
    })
}
