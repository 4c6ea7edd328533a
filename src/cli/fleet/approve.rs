//! `ensign fleet plan --approve`: lets nodes make the changes that they had planned.
//!
//! The approved action comes from a command with a valid signature, or from this command line. The command shows the action
//! before it signs.

use std::collections::BTreeSet;
use std::path::Path;

use uuid::Uuid;

use crate::fleet::job::records;
use crate::fleet::plan::{self, FleetPlan};
use crate::fleet::{CheckedCommand, CommandDraft, ExpectedNode, NodeStates};
use crate::host::fs;
use crate::model::NodeId;
use crate::wire::{CommandOptions, Selector};

use super::super::error::{CliError, Exit};
use super::super::format::{ago, names, nodes};
use super::super::ui::{Ui, text};
use super::super::verify;
use super::channel_position::next_position;
use super::confirm::{self, ConfirmArgs};
use super::job_name::JobName;
use super::job_record::{record, results};
use super::plan_output::{plan_failure, plan_file, print_groups};
use super::send::send;
use super::session::{FleetSession, OperatorArgs, check_failure};
use super::target::TargetArgs;
use crate::cli::local::inputs::OutputFormat;

/// Approves a plan, for its nodes or for the named ones.
pub(super) async fn approve(name: &str, target: &TargetArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let chosen = target.nodes.is_given() || target.only_where.is_some();
    let to = if chosen { Some(target.target()?) } else { None };
    let file = Path::new(name);
    // A whole id comes before a file of this name, and the file before the first characters of an id.
    let plan = match JobName::parse(name) {
        Ok(id @ JobName::Id(_)) => Some(id),
        _ if fs::is_file(file) => None,
        Ok(id) => Some(id),
        Err(_) => return Err(CliError::usage(format!("{name} is neither the id nor the file of a plan"))),
    };
    let session = context.open().await?;
    let mut states = session.states().await?;
    let (planned, plan) = match plan {
        None => read_file(file, &session).await?,
        Some(id) => find(id.resolve(&session).await?, &states, &session, ui).await?,
    };
    plan.check_approvable(&session.operator.fleet, session.now()).map_err(|error| plan_failure(&error))?;
    // The timeout changes only where the command line names one.
    let timeout = Some(target.timeout()).filter(|timeout| *timeout != CommandOptions::default().timeout);
    let channel = match &planned.command().channel {
        Some(channel) => Some(next_position(&channel.name, &states, &session, ui).await?.0),
        None => None,
    };
    let mut order = plan::approval_draft(&planned, to, timeout, target.reason.clone(), channel);
    order.options.noop = target.noop;
    target.check_offline(&order.to, &states)?;
    show_approved(&plan, &order, &states, &session, ui);
    show_signed(&planned, &order, target, ui);
    if confirm::confirm_signature(target.confirm.yes, "not approved", &session, ui).await? {
        // The answer may have taken minutes.
        states = session.states_of(&order.to).await?;
    }
    // The question was asked above.
    let confirm = ConfirmArgs { yes: true };
    let target = TargetArgs { timeout: Some(order.options.timeout), confirm, ..target.clone() };
    Ok(send(order, &target, &states, &session, ui).await?.exit)
}

/// Reads a plan from its file. The file names its command; the signature decides what the command is.
async fn read_file(file: &Path, session: &FleetSession) -> Result<(CheckedCommand, FleetPlan), CliError> {
    let plan = FleetPlan::read(file).map_err(|error| plan_failure(&error))?;
    plan.check_approvable(&session.operator.fleet, session.now()).map_err(|error| plan_failure(&error))?;
    let checker = session.checker()?;
    let record = record(plan.id, session).await?;
    let checked = checker.check(&record.envelope).map_err(|error| check_failure(&error))?;
    // The command is signed, and is the one that the file names.
    checker.check_pinned(&record.envelope, &plan.digest).map_err(|error| check_failure(&error))?;
    Ok((checked, plan))
}

/// Finds a plan by its id: in the file of this user, else on the server. In both cases its command is the signed one.
async fn find(
    id: Uuid,
    states: &NodeStates,
    session: &FleetSession,
    ui: &mut Ui,
) -> Result<(CheckedCommand, FleetPlan), CliError> {
    let checker = session.checker()?;
    let own = plan_file(id).filter(|file| fs::is_file(file));
    let own = own.map(|file| FleetPlan::read(&file)).transpose().map_err(|error| plan_failure(&error))?;
    let record = record(id, session).await?;
    if let Some(plan) = own {
        let checked = checker.check_pinned(&record.envelope, &plan.digest).map_err(|error| check_failure(&error))?;
        return Ok((checked, plan));
    }
    let checked = checker.check(&record.envelope).map_err(|error| check_failure(&error))?;
    let results = results(&record, states, session).await?;
    let plan = FleetPlan::from_results(checked.command(), checked.digest(), &results).map_err(|error| plan_failure(&error))?;
    ui.message(text!("the plan {} from the server:", id));
    if session.output == OutputFormat::Text {
        print_groups(&plan.groups, ui);
    }
    Ok((checked, plan))
}

/// Shows everything that will be signed.
fn show_signed(planned: &CheckedCommand, order: &CommandDraft, target: &TargetArgs, ui: &mut Ui) {
    let command = planned.command();
    let signers = if planned.signers().is_empty() {
        "unknown, from its file on this machine".to_owned()
    } else {
        planned.signers().join(", ")
    };
    ui.message(text!("approves  {} (sha256 {})", command.id, planned.digest()));
    ui.message(text!("planned   by {}, at {:.0}", signers, command.issued));
    ui.message(text!("action    {}", verify::describe_action(&order.action, order.options.noop)));
    ui.message(text!("of        {}", verify::describe_target(&order.to)));
    if let Some(channel) = &order.channel {
        ui.message(text!("channel   {} {}.{}", channel.name, channel.epoch, channel.serial));
    }
    ui.message(text!("timeout   {}", order.options.timeout));
    if let Some(waves) = target.waves.counts() {
        ui.message(text!("waves     {}", waves));
    }
    ui.message(text!("reason    {}", order.reason.as_deref().unwrap_or("none")));
}

/// Shows the approved changes, and the nodes that will refuse because they have no plan.
fn show_approved(plan: &FleetPlan, order: &CommandDraft, states: &NodeStates, session: &FleetSession, ui: &mut Ui) {
    let expected = states.expected(&order.to);
    let meant: BTreeSet<&NodeId> = expected.iter().map(|expected| &expected.node).collect();
    let (changing, same) = plan.counts_of(|node| meant.contains(node));
    ui.message(text!(
        "approving the plan of {} ago: {} {} for {}; {} would change, {} would not",
        ago(plan.issued, session.now()),
        order.action.name(),
        records::describe_object(&order.action),
        records::describe_target(&order.to),
        nodes(changing),
        same
    ));
    let has_plan = |node: &NodeId| plan.nodes.get(node).is_some_and(|node| node.digest.is_some());
    // Only the nodes know which of them a `where` leaves out.
    let without: Vec<NodeId> = expected
        .into_iter()
        .map(|ExpectedNode { node, .. }| node)
        .filter(|node| !has_plan(node) && plan.nodes.get(node).is_none_or(|node| node.outcome != "not_selected"))
        .collect();
    if !without.is_empty() {
        let all = !matches!(order.to.selector(), Some(Selector::Nodes(_)));
        let why = if all { "they are targeted, but not in the plan" } else { "they are not in the plan" };
        ui.message(text!("{} will refuse, {}: {}", nodes(without.len()), why, names(&without)));
    }
}
