//! Reads the reports of a job, many at a time, and the answers to its reply subject, into a [`JobTracker`].

use std::time::Instant;

use futures_util::FutureExt;

use crate::fleet::job::event::JobEvent;
use crate::fleet::targeting::key_discovery::KeyDiscovery;
use crate::fleet::targeting::parallel::map_parallel;
use crate::model::NodeId;
use crate::transport::{Inbox, Message, StreamReader, TransportError};

use super::JobTracker;

/// Most reports that are verified together: enough for all processors, few enough that a user sees progress.
const BATCH_SIZE: usize = 1024;

/// Takes reports until every node is in its terminal state or `deadline` has passed. A further call continues.
///
/// Calls `on_update` for each event. Without `feed`, only answers count. `answers` has the inbox, and the nodes by the number in the last token of the reply
/// subject.
///
/// # Errors
/// When the stream of reports can't be read any more.
pub async fn read_reports(
    gather: &mut JobTracker,
    mut feed: Option<&mut StreamReader>,
    mut answers: Option<(&mut Inbox, &[Option<NodeId>])>,
    deadline: Instant,
    on_update: &mut dyn FnMut(&JobTracker, JobEvent),
) -> Result<(), TransportError> {
    while !gather.is_done() {
        let look = gather.key_discovery.as_ref().and_then(KeyDiscovery::next_lookup);
        let (reports, answer) = tokio::select! {
            // Safe to cancel: a stream reader loses no message (see `StreamReader::next`).
            report = next_reports(&mut feed) => (report?, None),
            // Safe to cancel: an inbox loses no message. On a closed inbox this branch waits for ever, and the others go on.
            answer = next_answer(&mut answers) => (Vec::new(), Some(answer)),
            // Safe to cancel: a timer.
            () = sleep_until(look) => (Vec::new(), None),
            // Safe to cancel: a timer.
            () = tokio::time::sleep_until(deadline.into()) => return Ok(()),
        };
        let verifier = gather.verifier.clone();
        let mut verified = map_parallel(reports, move |report| verifier.report(report)).await;
        verified.extend(answer.map(|(answer, asked)| gather.verifier.answer(&answer, asked.as_ref())));
        for verified in verified {
            if let Some(update) = gather.take_or_hold(verified) {
                on_update(gather, update);
            }
        }
        for update in gather.take_discovered().await {
            on_update(gather, update);
        }
    }
    Ok(())
}

/// Waits until a time; for ever without a time.
async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the next reports of a stream; waits for ever without a stream. Safe to cancel.
async fn next_reports(feed: &mut Option<&mut StreamReader>) -> Result<Vec<Message>, TransportError> {
    let Some(feed) = feed else { return std::future::pending().await };
    match feed.next().await {
        Some(report) => with_arrived_reports(report?, feed),
        None => Err(TransportError::Disconnected),
    }
}

/// Returns a report together with the reports that have arrived after it.
fn with_arrived_reports(first: Message, feed: &mut StreamReader) -> Result<Vec<Message>, TransportError> {
    let mut reports = vec![first];
    while reports.len() < BATCH_SIZE {
        // Safe to cancel: a stream reader loses no message.
        match feed.next().now_or_never() {
            Some(Some(report)) => reports.push(report?),
            Some(None) | None => break,
        }
    }
    Ok(reports)
}

async fn next_answer(answers: &mut Option<(&mut Inbox, &[Option<NodeId>])>) -> (Message, Option<NodeId>) {
    if let Some((inbox, asked)) = answers {
        if let Some(message) = inbox.next().await {
            let number = message.subject.rsplit('.').next().and_then(|token| token.parse::<usize>().ok());
            let node = number.and_then(|number| asked.get(number)).cloned().flatten();
            return (message, node);
        }
        *answers = None;
    }
    std::future::pending().await
}
