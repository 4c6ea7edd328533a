//! Queues of the outbox: messages to one stream keep their order, and wait for no other stream.

use serde::{Deserialize, Serialize};

use crate::wire::Subjects;

use super::message::Priority;

/// The messages of one stream. A queue is delivered in order, and no queue waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamQueue {
    /// Reports that stop rollouts: `ROLLOUTS`.
    Rollouts,
    /// Results for waiting clients: `JOBS`.
    Jobs,
    /// All events: `EVENTS`.
    Events,
}

impl StreamQueue {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rollouts, Self::Jobs, Self::Events];

    /// Returns the queue of a subject.
    pub fn for_subject(subject: &str) -> Self {
        let found = Self::ALL.into_iter().find(|lane| lane.stream() == Subjects::stream_for(subject));
        found.unwrap_or(Self::Events)
    }

    /// Returns the name of its stream, for [`Subjects::stream`].
    pub fn stream(self) -> &'static str {
        match self {
            Self::Rollouts => "ROLLOUTS",
            Self::Jobs => "JOBS",
            Self::Events => "EVENTS",
        }
    }
}

/// A class of messages that is delivered and dropped in order, so that one number is its position. Each queue has one for
/// messages dropped last, and another for messages dropped first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeliveryQueue {
    /// To `ROLLOUTS`.
    Rollouts,
    /// To `JOBS`.
    Jobs,
    /// To `EVENTS`: summaries of runs, lifecycle events.
    Summaries,
    /// To `EVENTS`: events that may be dropped, also for their age.
    Events,
}

impl DeliveryQueue {
    pub(super) const ALL: [Self; 4] = [Self::Rollouts, Self::Jobs, Self::Summaries, Self::Events];
    /// The queues whose messages are dropped last.
    pub(super) const RESULTS: [Self; 3] = [Self::Rollouts, Self::Jobs, Self::Summaries];

    pub(super) fn for_message(subject: &str, class: Priority) -> Self {
        match (StreamQueue::for_subject(subject), class) {
            (StreamQueue::Rollouts, _) => Self::Rollouts,
            (StreamQueue::Jobs, _) => Self::Jobs,
            (StreamQueue::Events, Priority::Result) => Self::Summaries,
            (StreamQueue::Events, Priority::Event) => Self::Events,
        }
    }

    pub(super) fn stream_queue(self) -> StreamQueue {
        match self {
            Self::Rollouts => StreamQueue::Rollouts,
            Self::Jobs => StreamQueue::Jobs,
            Self::Summaries | Self::Events => StreamQueue::Events,
        }
    }

    pub(super) fn priority(self) -> Priority {
        if self == Self::Events { Priority::Event } else { Priority::Result }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::subject::{EventKind, ReportStage};

    #[test]
    fn every_subject_of_a_node_has_the_lane_of_its_stream() {
        let (subjects, node, id) = (Subjects::new("job"), "event".parse().unwrap(), uuid::Uuid::nil());
        for (subject, lane) in [
            (subjects.job(id, &node, ReportStage::Done), StreamQueue::Jobs),
            (subjects.event(&node, EventKind::Run), StreamQueue::Events),
            (subjects.rollout_failed(id, &node), StreamQueue::Rollouts),
        ] {
            assert_eq!(StreamQueue::for_subject(subject.as_str()), lane, "{subject}");
        }
        for queue in DeliveryQueue::ALL {
            assert_eq!(queue == DeliveryQueue::Events, !DeliveryQueue::RESULTS.contains(&queue));
        }
    }
}
