//! What is asked of a node without running anything: its facts, its state. Answered on a task of its own, so that nobody
//! waits for a run; in the order in which it came, one after the other.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::template;
use crate::transport::Bus;
use crate::wire::CommandOutcome;
use crate::wire::command::{Action, Facts, GoAhead, JobRef};

use crate::agent::Node;
use crate::agent::exec::run::{Job, RunOutcomeReport};
use crate::agent::intake::fair_queue::{FairQueue, JobReceiver, QueueLimits};
use crate::agent::status::messages;

/// Questions that wait: each is answered within a moment, so more than this is somebody's loop, and told `busy`.
pub(in crate::agent) const MAX_WAITING: QueueLimits = QueueLimits { all: 32, each: 16 };
/// How long gathering facts may take: a file system that hangs must not hold up all questions.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most bytes of an answer: with what is around it, it must pass the server's limit of a message.
const MOST: usize = 512 * 1024;

/// True for what is answered past the queue of commands.
pub(in crate::agent) fn is_query(action: &Action) -> bool {
    matches!(action, Action::Facts(_) | Action::Status(_))
}

/// The running task that answers.
pub(in crate::agent) struct Handle {
    /// Takes questions.
    pub(in crate::agent) queue: Arc<FairQueue>,
    task: JoinHandle<()>,
}

impl Handle {
    /// Starts it.
    pub(in crate::agent) fn spawn(node: Arc<Node>, bus: Bus, stop: watch::Receiver<bool>) -> Self {
        let (queue, questions) = FairQueue::open();
        Self { queue, task: tokio::spawn(run(node, bus, questions, stop)) }
    }

    /// Waits until nothing is answered any more. What still waits is in the ledger.
    pub(in crate::agent) async fn ended(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task that answers questions broke");
        }
    }
}

async fn run(node: Arc<Node>, bus: Bus, mut questions: JobReceiver, mut stop: watch::Receiver<bool>) {
    loop {
        // Cancel-safe: a watch keeps its last value, and a question whose answer is dropped is in the ledger, not begun.
        let (job, ended) = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            answered = next(&node, &mut questions) => answered,
        };
        let done = ended.into_done(&node, &job);
        tracing::info!(id = %job.id(), action = job.command.action.name(), outcome = ?done.outcome, "answered");
        node.persist_result(&done, false, &mut stop).await;
        if let Some(reply) = &job.reply {
            node.publish_best_effort(&bus, reply, messages::json(&done), Some(job.digest())).await;
        }
    }
}

async fn next(node: &Arc<Node>, questions: &mut JobReceiver) -> (Box<Job>, RunOutcomeReport) {
    let job = questions.next().await;
    let answer = answer(node, &job.command.action);
    let ended = tokio::time::timeout(PATIENCE, answer).await;
    (job, ended.unwrap_or_else(|_| RunOutcomeReport::failed(format!("it took longer than {PATIENCE:?}"))))
}

/// Answers what needs no run.
pub(in crate::agent) async fn answer(node: &Arc<Node>, action: &Action) -> RunOutcomeReport {
    match action {
        Action::Facts(wanted) => facts(node, wanted).await,
        Action::Status(_) => match serde_json::to_value(messages::state(node, true)) {
            Ok(state) => within_size(state),
            Err(error) => RunOutcomeReport::failed(format!("the state can't be written as JSON: {error}")),
        },
        Action::Halt(JobRef { job }) | Action::Resume(JobRef { job }) | Action::Go(GoAhead { job, .. }) => {
            // Intake hears them; one that comes here was heard by an agent that died before it had written that down.
            RunOutcomeReport::failed(format!("the agent was started anew: of {job}, what the stream of rollouts says counts"))
        }
        other => RunOutcomeReport::failed(format!("the action {} is not for the queue of commands", other.name())),
    }
}

async fn facts(node: &Arc<Node>, wanted: &Facts) -> RunOutcomeReport {
    let (gather, query) = (Arc::clone(&node.facts), wanted.query.clone());
    let look = move || match query {
        None => Some(gather()),
        Some(query) => template::query(&gather(), &query),
    };
    let Ok(found) = tokio::task::spawn_blocking(look).await else {
        return RunOutcomeReport::failed("gathering the facts broke: the program has an error");
    };
    match &wanted.query {
        None => within_size(found.unwrap_or_default()),
        Some(query) => match found {
            Some(found) => within_size(found),
            // That a host has not what others have is an answer.
            None => RunOutcomeReport::plain(CommandOutcome::Stable, format!("no fact of this host is at {query}")),
        },
    }
}

fn within_size(answer: Value) -> RunOutcomeReport {
    match answer.to_string().len() {
        size if size > MOST => {
            RunOutcomeReport::failed(format!("the answer has {size} bytes; at most {MOST} travel: ask for less"))
        }
        _ => RunOutcomeReport::answered(answer),
    }
}
