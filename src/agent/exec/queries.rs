//! Queries: commands that change nothing. The agent answers them beside the queue of commands, also during a run. Cancelled
//! commands that had not begun end here too.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::durable::publisher::Publisher;
use crate::agent::durable::state::DurableState;
use crate::agent::identity::AgentInstance;
use crate::agent::intake::fair_queue::{FairQueue, JobReceiver, QueueLimits};
use crate::agent::status::NodeStateSource;
use crate::agent::status::facts_cache::FactsCache;
use crate::agent::status::messages;
use crate::template;
use crate::transport::Bus;
use crate::wire::CommandOutcome;
use crate::wire::command::{Action, FactsQuery, GoAhead, JobRef};

use super::job::Job;
use super::result::RunResult;

/// Most waiting queries. Each takes a moment: a longer queue comes from a program in a loop, which gets `busy`.
pub(in crate::agent) const MAX_WAITING: QueueLimits = QueueLimits { total: 32, per_key: 16 };
/// Longest time for gathering facts: a file system that hangs must not hold up all queries.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Largest answer, in bytes. With its envelope it must pass the server's limit of a message.
const MAX_ANSWER: usize = 512 * 1024;

/// Returns true for a command that is answered beside the queue of commands.
pub(in crate::agent) fn is_query(action: &Action) -> bool {
    matches!(action, Action::Facts(_) | Action::Status(_))
}

/// Answers queries.
#[derive(Clone)]
pub(in crate::agent) struct Queries {
    pub(in crate::agent) identity: Arc<AgentInstance>,
    pub(in crate::agent) facts: Arc<FactsCache>,
    pub(in crate::agent) node_state: NodeStateSource,
    pub(in crate::agent) durable: Arc<DurableState>,
    pub(in crate::agent) publisher: Publisher,
}

/// The running task that answers.
pub(in crate::agent) struct Handle {
    /// Takes queries.
    pub(in crate::agent) queue: Arc<FairQueue>,
    task: JoinHandle<()>,
}

impl Handle {
    /// Starts the task.
    pub(in crate::agent) fn spawn(queries: Queries, bus: Bus, stop: watch::Receiver<bool>) -> Self {
        let (queue, jobs) = FairQueue::open();
        Self { queue, task: tokio::spawn(queries.run(bus, jobs, stop)) }
    }

    /// Waits until the task has ended. The ledger has the queries that still wait.
    pub(in crate::agent) async fn join(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task of queries panicked");
        }
    }
}

impl Queries {
    async fn run(self, bus: Bus, mut jobs: JobReceiver, mut stop: watch::Receiver<bool>) {
        loop {
            // Cancel-safe: a watch keeps its last value, and a query whose answer is dropped is in the ledger, not begun.
            let (job, result) = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                answered = self.next(&mut jobs) => answered,
            };
            let result = result.into_command_result(&self.identity, &job);
            tracing::info!(id = %job.id(), action = job.command.action.name(), outcome = ?result.outcome, "answered");
            self.publisher.persist_result(&result, false, &mut stop).await;
            if let Some(reply) = job.reply() {
                self.publisher.publish_best_effort(&bus, reply, messages::json(&result), Some(job.digest())).await;
            }
        }
    }

    async fn next(&self, jobs: &mut JobReceiver) -> (Box<Job>, RunResult) {
        let job = jobs.next().await;
        if let Some(why) = self.durable.cancelled().find(job.id()) {
            return (job, RunResult::cancelled(why));
        }
        let result = tokio::time::timeout(TIMEOUT, self.answer(&job.command.action)).await;
        (job, result.unwrap_or_else(|_| RunResult::failed(format!("the query took longer than {TIMEOUT:?}"))))
    }

    /// Answers a command that needs no run.
    pub(in crate::agent) async fn answer(&self, action: &Action) -> RunResult {
        match action {
            Action::Facts(wanted) => self.facts(wanted).await,
            Action::Status(_) => match serde_json::to_value(self.node_state.state(true)) {
                Ok(state) => within_size(state),
                Err(error) => RunResult::failed(format!("cannot write the state as JSON: {error}")),
            },
            Action::Halt(JobRef { job }) | Action::Resume(JobRef { job }) | Action::Go(GoAhead { job, .. }) => {
                // The intake handles overrides. This one was accepted by an agent that died before the end of the override.
                RunResult::failed(format!("the agent was restarted: the stream of rollouts decides about {job}"))
            }
            // The intake stores a cancel before its command: the job is cancelled.
            Action::Cancel(JobRef { job }) => {
                RunResult::with_reason(CommandOutcome::Changed, format!("the job {job} is cancelled; the agent was restarted"))
            }
            other => RunResult::failed(format!("the action {} does not belong in the queue of commands", other.name())),
        }
    }

    async fn facts(&self, wanted: &FactsQuery) -> RunResult {
        let (facts, query) = (Arc::clone(&self.facts), wanted.query.clone());
        let gather = move || match query {
            None => Some(facts.gather()),
            Some(query) => template::query(&facts.gather(), &query),
        };
        let Ok(found) = tokio::task::spawn_blocking(gather).await else {
            return RunResult::failed("gathering the facts panicked: the program has an error");
        };
        match (&wanted.query, found) {
            // A fact that only other hosts have is an answer, too.
            (Some(query), None) => RunResult::with_reason(CommandOutcome::Stable, format!("no fact of this host is at {query}")),
            (_, found) => within_size(found.unwrap_or_default()),
        }
    }
}

fn within_size(answer: Value) -> RunResult {
    match answer.to_string().len() {
        size if size > MAX_ANSWER => {
            RunResult::failed(format!("the answer has {size} bytes, and the limit is {MAX_ANSWER}: ask for less"))
        }
        _ => RunResult::answered(answer),
    }
}
