//! What is asked of a node without running anything: its facts, its state.

use std::sync::Arc;

use serde_json::Value;

use crate::template;
use crate::wire::command::{Action, Facts};

use super::work::Ended;
use super::{Node, say};

/// The most bytes of an answer: with what is around it, it must pass the server's limit of a message.
const MOST: usize = 512 * 1024;

/// Answers what needs no run.
pub(super) async fn answer(node: &Arc<Node>, action: &Action) -> Ended {
    match action {
        Action::Facts(wanted) => facts(node, wanted).await,
        Action::Status(_) => match serde_json::to_value(say::state(node, true)) {
            Ok(state) => within_size(state),
            Err(error) => Ended::failed(format!("the state can't be written as JSON: {error}")),
        },
        Action::Halt(wanted) | Action::Resume(wanted) => {
            // Intake hears them; one that comes here was heard by an agent that died before it had written that down.
            Ended::failed(format!("the agent was started anew: of {}, what the stream of rollouts says counts", wanted.job))
        }
        other => Ended::failed(format!("the action {} is not for the queue of commands", other.name())),
    }
}

async fn facts(node: &Arc<Node>, wanted: &Facts) -> Ended {
    let gather = Arc::clone(&node.facts);
    let Ok(facts) = tokio::task::spawn_blocking(move || gather()).await else {
        return Ended::failed("gathering the facts broke: the program has an error");
    };
    match &wanted.query {
        None => within_size(facts),
        Some(query) => match template::query(&facts, query) {
            Some(found) => within_size(found),
            None => Ended::failed(format!("no fact of this host is at {query}")),
        },
    }
}

fn within_size(answer: Value) -> Ended {
    match answer.to_string().len() {
        size if size > MOST => Ended::failed(format!("the answer has {size} bytes; at most {MOST} travel: ask for less")),
        _ => Ended::answered(answer),
    }
}
