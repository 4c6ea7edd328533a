//! `ensign fleet node trust|forget|keys|revoke|remove|removed`: the pinned keys, which verify the messages of nodes.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::fleet::Operator;
use crate::fleet::targeting::node_identity;
use crate::fleet::targeting::pinned_keys::PinnedKey;
use crate::host::Host;
use crate::model::NodeId;
use crate::trust::PublicKey;

use super::super::error::{CliError, Exit};
use super::super::key;
use super::super::ui::{Ui, text};
use super::node_remove::NodeRemoveArgs;
use super::session::{OperatorArgs, node_keys_failure};
use super::{node_remove, node_revoke, unknown_nodes};
use crate::cli::local::inputs::OutputFormat;

#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Pin the key of a node, as `ensign agent key` prints it there, or the keys of all nodes with signed states.
    Trust(NodeTrustArgs),
    /// Forget the key of a node, as of a rebuilt host: the next key that its state shows is pinned.
    Forget(NodeForgetArgs),
    /// Revoke an admitted node: the server disconnects its user and refuses it from then on, and the node is removed.
    Revoke(NodeForgetArgs),
    /// Remove nodes from the fleet: every operator sees a signed removal, and forgets state and key.
    Remove(NodeRemoveArgs),
    /// List the removed nodes: when, by which keys, and why.
    Removed,
    /// List the pinned keys.
    Keys,
}

#[derive(Debug, Args)]
pub(super) struct NodeTrustArgs {
    /// Id of the node.
    #[arg(required_unless_present = "all_new", requires = "public")]
    node: Option<NodeId>,
    /// Public key of the node, as "ssh-ed25519 AAAA..." or "ed25519:...", or a file with it.
    #[arg(value_name = "KEY")]
    public: Option<String>,
    /// Pin the key of every new node from its state. For the first contact with a large fleet, where only its nodes may publish.
    #[arg(long, conflicts_with = "node")]
    all_new: bool,
}

#[derive(Debug, Args)]
pub(super) struct NodeForgetArgs {
    /// Id of the node.
    node: NodeId,
}

pub(super) async fn run(command: NodeCommand, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    match command {
        NodeCommand::Trust(NodeTrustArgs { all_new: true, .. }) => trust_all(context, ui).await,
        NodeCommand::Trust(trust) => {
            let (operator, path) = pinned_keys_of(context)?;
            self::trust(&trust, &operator.fleet, &path, ui)
        }
        NodeCommand::Forget(forget) => {
            let (operator, path) = pinned_keys_of(context)?;
            self::forget(&forget.node, &operator.fleet, &path, ui)
        }
        NodeCommand::Revoke(revoke) => {
            node_revoke::revoke(&revoke.node, &context.operator()?.bus, context, ui).await?;
            node_remove::remove_revoked(&revoke.node, context, ui).await
        }
        NodeCommand::Remove(remove) => node_remove::remove(&remove, context, ui).await,
        NodeCommand::Removed => node_remove::list(context, ui).await,
        NodeCommand::Keys => {
            let (operator, path) = pinned_keys_of(context)?;
            keys(&operator.fleet, &path, context.output, ui)
        }
    }
}

/// Returns the operator and the file of pinned keys.
fn pinned_keys_of(context: &OperatorArgs) -> Result<(Operator, PathBuf), CliError> {
    let operator = context.operator()?;
    let path = operator.known_nodes.clone();
    let path =
        path.ok_or_else(|| CliError::usage("no known_nodes file configured").hint("use --known-nodes FILE, or set HOME"))?;
    Ok((operator, path))
}

/// Pins the keys of all new nodes.
async fn trust_all(context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    let before = session.node_keys.count();
    session.node_keys.expect_all();
    let states = session.states().await?;
    ui.message(text!("pinned {} new nodes, {} in all", session.node_keys.count() - before, session.node_keys.count()));
    unknown_nodes::warn_unpinned(&states, ui);
    Ok(if states.more_unknown > 0 { Exit::Partial } else { Exit::Success })
}

fn trust(args: &NodeTrustArgs, fleet: &str, path: &Path, ui: &mut Ui) -> Result<Exit, CliError> {
    let (Some(node), Some(public)) = (&args.node, &args.public) else {
        return Err(CliError::usage("no node named").hint("ensign fleet node trust NODE KEY"));
    };
    let (public, _): (PublicKey, String) = key::public_key(public)?;
    let mut known = node_identity::read_pinned_keys(path).map_err(|error| node_keys_failure(&error))?;
    let before = known.pin(fleet, node, PinnedKey { key: public, since: Host::system(None).now() });
    node_identity::write_pinned_keys(path, &known).map_err(|error| node_keys_failure(&error))?;
    match before {
        Some(before) if before.key != public => {
            ui.message(text!("{}: {}, was {}", node, public.fingerprint(), before.key.fingerprint()));
        }
        _ => ui.message(text!("{}: {}", node, public.fingerprint())),
    }
    Ok(Exit::Success)
}

fn forget(node: &NodeId, fleet: &str, path: &Path, ui: &mut Ui) -> Result<Exit, CliError> {
    let mut known = node_identity::read_pinned_keys(path).map_err(|error| node_keys_failure(&error))?;
    let Some(before) = known.forget(fleet, node) else {
        return Err(CliError::usage(format!("{} has no key of {node} in the fleet {fleet}", path.display())));
    };
    node_identity::write_pinned_keys(path, &known).map_err(|error| node_keys_failure(&error))?;
    ui.message(text!("{}: {} is forgotten", node, before.key.fingerprint()));
    Ok(Exit::Success)
}

fn keys(fleet: &str, path: &Path, output: OutputFormat, ui: &mut Ui) -> Result<Exit, CliError> {
    let known = node_identity::read_pinned_keys(path).map_err(|error| node_keys_failure(&error))?;
    let document = |node: &NodeId, known: &PinnedKey| json!({"node": node, "key": known.key.to_short(), "fingerprint": known.key.fingerprint(), "since": known.since});
    match output {
        OutputFormat::Text => {
            for (node, known) in known.nodes(fleet) {
                ui.line(text!("{:<20} {} since {:.0}", node.as_str(), known.key.fingerprint(), known.since));
            }
        }
        OutputFormat::Json => ui.json(&known.nodes(fleet).map(|(node, known)| document(node, known)).collect::<Vec<_>>()),
        OutputFormat::Jsonl => known.nodes(fleet).for_each(|(node, known)| ui.jsonl(&document(node, known))),
    }
    Ok(Exit::Success)
}
