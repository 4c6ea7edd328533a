//! `ensign fleet events`: the events of the nodes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::diag::error_chain;
use crate::fleet::NodeKeys;
use crate::fleet::targeting::key_discovery;
use crate::fleet::targeting::node_identity::IdentityError;
use crate::model::{HumanDuration, NodeId};
use crate::transport::{Message, StartAt};
use crate::wire::json as strict;

use super::super::error::{CliError, Exit};
use super::super::ui::{Tone, Ui, text};
use super::event_filter::EventFilterArgs;
use super::event_text::{event_line, subject_node};
use super::session::{FleetSession, OperatorArgs, connection_failure};
use crate::cli::local::inputs::OutputFormat;

/// Longest wait for the next event that must be there.
const MAX_EVENT_WAIT: Duration = Duration::from_secs(5);
/// Most lookups of the state of a new node, and the pause between two.
const MAX_LOOKUPS: usize = 8;
const LOOKUP_PAUSE: Duration = Duration::from_millis(250);
/// Pause before a node without a verified state is looked up again.
const RETRY_LOOKUP_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Follow new events.
    #[arg(long)]
    follow: bool,
    /// Age of the oldest event; 1h by default, and with --job the age of the job.
    #[arg(long, value_name = "DURATION")]
    since: Option<HumanDuration>,
    /// Node whose events are shown.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    #[command(flatten)]
    filter: EventFilterArgs,
}

pub(super) async fn run(args: EventsArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let node = args.node.as_deref().map(str::parse::<NodeId>).transpose().map_err(|error| CliError::usage(error.to_string()))?;
    let session = context.open().await?;
    // The states have the keys of nodes that are met for the first time.
    let states = session.states().await?;
    let wanted = args.filter.resolve(&states, &session).await?;
    let since = match args.since {
        Some(since) => session.now().checked_sub(SignedDuration::try_from(since.as_std()).unwrap_or(SignedDuration::MAX)).ok(),
        None => wanted.since(session.now()),
    };
    let filter = wanted.subject(node.as_ref(), &session.subjects);
    let mut feed = session
        .bus
        .follow(&session.subjects.stream("EVENTS"), filter.as_str(), since.map_or(StartAt::Beginning, StartAt::Since))
        .await
        .map_err(|error| connection_failure(&error))?;
    let mut left = feed.backlog();
    let mut all = Vec::new();
    let mut greeted = LookedUpNodes::default();
    let mut any = false;
    let interrupted = session.interrupt.listen();
    tokio::pin!(interrupted);
    while (args.follow || left > 0) && !ui.is_gone() {
        let next = tokio::select! {
            // Cancel-safe: the stream reader loses no message.
            next = feed.next() => next,
            // Cancel-safe: a moment in time. Old events were removed during the read: no more of them follow.
            () = tokio::time::sleep(MAX_EVENT_WAIT), if !args.follow => None,
            // Cancel-safe: one future hears all signals.
            () = &mut interrupted => None,
        };
        let Some(message) = next else { break };
        let message = message.map_err(|error| connection_failure(&error))?;
        left = left.saturating_sub(1);
        if !wanted.includes(&message) {
            continue;
        }
        any = true;
        greeted.look_up(&message, &session).await;
        match session.output {
            OutputFormat::Json if !args.follow => all.extend(event_document(&message, &session.node_keys)),
            OutputFormat::Text => {
                let mut line = event_line(&message, ui);
                if let Some(why) = verification_error(&message, &session.node_keys) {
                    line = text!("{}  {}", line, ui.paint(Tone::Error, text!("! {}", why)));
                }
                ui.line(line);
                ui.flush();
            }
            // A list without an end has a document per line.
            OutputFormat::Json | OutputFormat::Jsonl => {
                event_document(&message, &session.node_keys).iter().for_each(|event| ui.jsonl(event));
                ui.flush();
            }
        }
    }
    if !any && !args.follow {
        let age = args.since.map_or_else(|| wanted.usual_age().to_owned(), |since| format!("the last {since}"));
        let which = if wanted.is_narrow() { "such " } else { "" };
        ui.message(text!("no {}events of {} in {}", which, args.node.as_deref().unwrap_or("any node"), age));
    }
    if session.output == OutputFormat::Json && !args.follow {
        ui.json(&Value::Array(all));
    }
    Ok(Exit::Success)
}

/// Most nodes that are looked up while events are read.
const MAX_LOOKED_UP_NODES: usize = 256;

/// Nodes that were looked up because their keys were unknown, with the time of the lookup.
#[derive(Default)]
struct LookedUpNodes(HashMap<NodeId, Instant>);

impl LookedUpNodes {
    /// Looks up the node of a message at its first message: the node joined after the states were read.
    async fn look_up(&mut self, message: &Message, session: &FleetSession) {
        let Some(node) = subject_node(message) else { return };
        let is_unknown = matches!(session.node_keys.verify(&node, message), Err(IdentityError::Unknown));
        // A crowd of invented nodes is not looked up: each lookup would wait.
        if !is_unknown
            || self.0.len() >= MAX_LOOKED_UP_NODES
            || self.0.get(&node).is_some_and(|looked| looked.elapsed() < RETRY_LOOKUP_AFTER)
        {
            return;
        }
        // The first event of a node may arrive before its state.
        for _ in 0..MAX_LOOKUPS {
            if key_discovery::pin_key_from_state(&session.bus, &session.subjects, &session.node_keys, &node, session.now()).await
            {
                break;
            }
            tokio::time::sleep(LOOKUP_PAUSE).await;
        }
        if let Err(error) = session.node_keys.save() {
            tracing::warn!("{}", error_chain(&error));
        }
        self.0.insert(node, Instant::now());
    }
}

/// Returns the reason to doubt that an event is from the node that it names.
fn verification_error(message: &Message, node_keys: &NodeKeys) -> Option<String> {
    let Some(node) = subject_node(message) else {
        return Some("not on the subject of a node".to_owned());
    };
    node_keys.verify(&node, message).err().map(|doubt| doubt.to_string())
}

/// Returns the event, with the field `verified`.
fn event_document(message: &Message, node_keys: &NodeKeys) -> Option<Value> {
    let mut event = strict::parse(&message.payload).ok()?;
    let fields = event.as_object_mut()?;
    if let Some(node) = subject_node(message).filter(|_| !fields.contains_key("node")) {
        fields.insert("node".to_owned(), json!(node));
    }
    fields.insert("verified".to_owned(), Value::Bool(verification_error(message, node_keys).is_none()));
    Some(event)
}
