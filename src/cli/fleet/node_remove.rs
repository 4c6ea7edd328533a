//! `ensign fleet node remove|removed`: nodes that have left the fleet for good.

use clap::Args;
use serde_json::json;

use crate::diag::error_chain;
use crate::fleet::targeting::removals::{Removal, RemovalVerifier};
use crate::fleet::targeting::states::{Liveness, liveness};
use crate::fleet::targeting::{key_discovery, node_identity};
use crate::fleet::{CommandDraft, NodeStates};
use crate::model::{HumanDuration, NodeId};
use crate::transport::{MESSAGE_ID, Message, TransportError};
use crate::wire::command::NoParameters;
use crate::wire::{Action, CommandOptions, Target};

use super::super::error::{CliError, Exit};
use super::super::ui::{Ui, text};
use super::node_revoke;
use super::seal::sign;
use super::session::{FleetSession, OperatorArgs, check_failure, configured_trust, connection_failure, node_keys_failure};
use crate::cli::local::inputs::OutputFormat;

/// Lifetime of the signed record, as every command has one. The removal counts for good.
const LIFETIME: HumanDuration = HumanDuration::seconds(300);

#[derive(Debug, Args)]
pub(super) struct NodeRemoveArgs {
    /// Ids of the nodes.
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<NodeId>,
    /// Reason, for the other operators.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Remove nodes even when their heartbeats arrive. The agent still accepts commands, and its node is shown as unverified.
    #[arg(long)]
    force: bool,
}

/// Signs and stores the removal of nodes, and forgets their keys.
///
/// # Errors
/// When a node is unknown or online. When the trust bundle does not allow a removal, or the server does not store it.
pub(super) async fn remove(args: &NodeRemoveArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    let verifier = verifier(&session)?;
    session.node_keys.expect(&args.nodes);
    let states = session.states().await?;
    for node in &args.nodes {
        check_removable(node, args.force, &states, &session)?;
    }
    // Nothing is stored before all are signed and allowed.
    let sign = |node| sign_removal(node, args.reason.as_deref(), &verifier, &session);
    let signed: Vec<_> = args.nodes.iter().map(sign).collect::<Result<_, _>>()?;
    for (removal, message) in signed {
        store(&removal.node, &message, &session, ui).await?;
        match session.output {
            OutputFormat::Text => ui.message(text!("{}: removed; its state and its key are forgotten", removal.node)),
            OutputFormat::Json | OutputFormat::Jsonl => ui.jsonl(&document(&removal)),
        }
        if node_revoke::is_admitted(&removal.node, context) {
            ui.message(text!("hint: its user may still connect: `ensign fleet node revoke {}`", removal.node));
        }
    }
    Ok(Exit::Success)
}

/// Removes a node whose user the server refuses from now on: no token admits it again, on any machine.
///
/// # Errors
/// As [`remove`], but an unknown or online node is removed, too.
pub(super) async fn remove_revoked(node: &NodeId, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    let stored = async {
        let (_, message) = sign_removal(node, Some("its user was revoked"), &verifier(&session)?, &session)?;
        store(node, &message, &session, ui).await
    };
    if let Err(failure) = stored.await {
        forget(node, &session)?;
        ui.report(&failure);
        ui.message(text!("hint: {} is refused by the server, and not yet removed: `ensign fleet node remove {}`", node, node));
        return Ok(Exit::Partial);
    }
    ui.message(text!("{}: removed; its state and its key are forgotten", node));
    Ok(Exit::Success)
}

/// Returns the verifier of the operator, without which nothing says who may remove nodes.
fn verifier(session: &FleetSession) -> Result<RemovalVerifier, CliError> {
    let trust = configured_trust(&session.operator)?.ok_or_else(|| {
        let hint = "set `trust` in operator.toml, or give --trust FILE: it says who may remove nodes";
        CliError::usage("no trust bundle of the fleet is configured").hint(hint)
    })?;
    RemovalVerifier::new(&session.subjects, trust).map_err(|error| check_failure(&error))
}

/// Refuses what is likely a slip: a name that nothing is known of, and a node that is online.
fn check_removable(node: &NodeId, force: bool, states: &NodeStates, session: &FleetSession) -> Result<(), CliError> {
    let has_state = states.contains_key(node) || states.unverified.iter().any(|other| other.node == *node);
    if !has_state && session.node_keys.key(node).is_none() {
        let failure = match session.node_keys.removed().into_iter().find(|removal| removal.node == *node) {
            Some(removal) => {
                CliError::usage(format!("{node} was removed already, on {:.0} by {}", removal.at, removal.by.join(", ")))
            }
            None => CliError::usage(format!("the fleet {} has no node {node}", session.operator.fleet)),
        };
        return Err(failure.hint("`ensign fleet nodes` lists the nodes, `ensign fleet node removed` the removed ones"));
    }
    let is_online = states.get(node).is_some_and(|state| liveness(state, states.read_at) == Liveness::Alive);
    if is_online && !force {
        let hint = "stop its agent first (`systemctl disable --now ensign-agent` there); --force removes it all the same";
        return Err(CliError::usage(format!("{node} is online: its heartbeats arrive. Nothing was removed")).hint(hint));
    }
    Ok(())
}

/// Signs the removal of a node. Returns it with its message, which the own trust bundle allows.
fn sign_removal(
    node: &NodeId,
    reason: Option<&str>,
    verifier: &RemovalVerifier,
    session: &FleetSession,
) -> Result<(Removal, Message), CliError> {
    let draft = CommandDraft {
        action: Action::Remove(NoParameters {}),
        to: Target::nodes(vec![node.clone()]),
        options: CommandOptions::default(),
        channel: None,
        reason: reason.map(str::to_owned),
        lifetime: LIFETIME,
    };
    let id = session.host.new_id();
    let sealed = sign(draft.command(&session.operator.fleet, id, session.now()), session)?;
    let message = Message {
        subject: session.subjects.removal(node).to_string(),
        payload: sealed.envelope,
        headers: vec![(MESSAGE_ID.to_owned(), id.to_string())],
        ..Message::default()
    };
    let removal = verifier.verify(&message).map_err(|error| {
        CliError::from_error(Exit::Refused, &error)
            .hint(format!("the other operators would not accept it: {node} was not removed"))
    })?;
    Ok((removal, message))
}

/// Stores a removal, and takes away what the fleet knows of the node.
async fn store(node: &NodeId, message: &Message, session: &FleetSession, ui: &mut Ui) -> Result<(), CliError> {
    let headers: Vec<(&str, &str)> = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let stored = session.bus.publish_stored(&message.subject, &headers, message.payload.clone()).await;
    stored.map_err(|error| match &error {
        TransportError::NoStream(_) => CliError::from_error(Exit::Failed, &error)
            .hint("run `ensign fleet init` again: the stream of states of an older version takes no removals"),
        _ => connection_failure(&error),
    })?;
    let state = session.subjects.state(node);
    if let Err(error) = session.bus.remove_messages(&session.subjects.stream("STATE"), state.as_str()).await {
        ui.warn(text!("the last state of {} stays stored, and does not count: {}", node, error_chain(&error)));
    }
    forget(node, session)
}

fn forget(node: &NodeId, session: &FleetSession) -> Result<(), CliError> {
    let (fleet, Some(path)) = (&session.operator.fleet, session.operator.known_nodes.as_deref()) else { return Ok(()) };
    let mut known = node_identity::read_pinned_keys(path).map_err(|error| node_keys_failure(&error))?;
    if known.forget(fleet, node).is_some() {
        node_identity::write_pinned_keys(path, &known).map_err(|error| node_keys_failure(&error))?;
    }
    Ok(())
}

/// Lists the removed nodes.
///
/// # Errors
/// When the stream of states can't be read.
pub(super) async fn list(context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    session.states().await?;
    // A node that was admitted since may have no state yet.
    let nodes = session.node_keys.removed().into_iter().map(|removal| removal.node).collect();
    key_discovery::pin_admitted_keys(&session.bus, &session.subjects, &session.node_keys, nodes).await;
    let removed = session.node_keys.removed();
    match session.output {
        OutputFormat::Json => ui.json(&removed.iter().map(document).collect::<Vec<_>>()),
        OutputFormat::Jsonl => removed.iter().for_each(|removal| ui.jsonl(&document(removal))),
        OutputFormat::Text => {
            for removal in &removed {
                let reason = removal.reason.as_deref().unwrap_or_default();
                ui.line(text!("{:<20} {:.0} by {}  {}", removal.node, removal.at, removal.by.join(", "), reason).trim_end());
            }
        }
    }
    if removed.is_empty() {
        ui.message(text!("no node was removed"));
    }
    Ok(Exit::Success)
}

fn document(removal: &Removal) -> serde_json::Value {
    json!({"node": removal.node, "removed": removal.at, "by": removal.by, "reason": removal.reason})
}
