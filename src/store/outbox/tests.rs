use proptest::prelude::*;

use uuid::Uuid;

use super::*;
use crate::wire::digest;
use crate::wire::receipt::{RECEIPT_TYPE, Receipt, ReceiptBody};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// A receipt without a signature: who signs is none of the outbox's business.
fn seal(message: &OutboxMessage, head: &ChainHead) -> Receipt {
    let statement = ReceiptBody {
        node: "web1".parse().unwrap(),
        boot: Uuid::nil(),
        seq: Some(head.seq + 1),
        prev: head.digest.clone(),
        subject: message.subject.clone(),
        sha256: digest(&message.payload),
        at: NOW,
        command: message.command.clone(),
    };
    Receipt { statement: serde_json::to_vec(&statement).unwrap(), signature: RECEIPT_TYPE.into() }
}

fn push(outbox: &mut Outbox, message: &OutboxMessage) -> Result<(), StoreError> {
    outbox.push(message, NOW, &seal)
}

fn message(id: &str, class: Priority, size: usize) -> OutboxMessage {
    OutboxMessage { subject: "s".into(), msg_id: id.into(), payload: vec![b'x'; size], priority: class, command: None }
}

/// The oldest messages to the one stream that they all go to, where a test does not say otherwise.
fn peek(outbox: &Outbox, count: usize) -> Vec<QueuedMessage> {
    outbox.peek(StreamQueue::Events, count, u64::MAX).unwrap()
}

fn ids_of(outbox: &Outbox, lane: StreamQueue) -> Vec<String> {
    outbox.peek(lane, usize::MAX, u64::MAX).unwrap().into_iter().map(|queued| queued.message.msg_id).collect()
}

fn ids(outbox: &Outbox) -> Vec<String> {
    ids_of(outbox, StreamQueue::Events)
}

fn ack(outbox: &mut Outbox, count: usize) {
    if let Some(last) = peek(outbox, count).last() {
        outbox.ack(StreamQueue::Events, last.seq).unwrap();
    }
}

/// A message to the stream of a lane.
fn to(lane: StreamQueue, id: &str, class: Priority) -> OutboxMessage {
    let kind = match lane {
        StreamQueue::Rollouts => "rollout",
        StreamQueue::Jobs => "job",
        StreamQueue::Events => "event",
    };
    OutboxMessage { subject: format!("ensign.v1.test.{kind}.x"), ..message(id, class, 100) }
}

#[test]
fn a_blocked_stream_blocks_only_its_own_queue() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    for n in 0..4 {
        push(&mut outbox, &to(StreamQueue::Events, &format!("e{n}"), Priority::Event)).unwrap();
        push(&mut outbox, &to(StreamQueue::Jobs, &format!("j{n}"), Priority::Result)).unwrap();
        push(&mut outbox, &to(StreamQueue::Events, &format!("s{n}"), Priority::Result)).unwrap();
    }
    push(&mut outbox, &to(StreamQueue::Rollouts, "r", Priority::Result)).unwrap();
    assert_eq!(outbox.open_links(), Some(OpenLinks { first: 1, count: 13 }));
    let jobs = outbox.peek(StreamQueue::Jobs, 3, u64::MAX).unwrap();
    outbox.ack(StreamQueue::Jobs, jobs[2].seq).unwrap();
    outbox.ack(StreamQueue::Rollouts, u64::MAX).unwrap();
    let events = ["e0", "s0", "e1", "s1", "e2", "s2", "e3", "s3"];
    for _ in 0..2 {
        let of = |lane| ids_of(&outbox, lane);
        assert_eq!(
            (of(StreamQueue::Rollouts), of(StreamQueue::Jobs), of(StreamQueue::Events)),
            (vec![], vec!["j3".into()], events.map(str::to_owned).into())
        );
        drop(outbox);
        outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    }
    assert_eq!(outbox.open_links(), Some(OpenLinks { first: 1, count: 9 }));
    ack(&mut outbox, 2);
    assert_eq!(outbox.open_links(), Some(OpenLinks { first: 4, count: 7 }));
    // Drops without a report are open too.
    let first = peek(&outbox, 1).remove(0);
    outbox.record_rejected(first.seq);
    ack(&mut outbox, usize::MAX);
    outbox.ack(StreamQueue::Jobs, u64::MAX).unwrap();
    assert_eq!(outbox.open_links(), Some(OpenLinks { first: 4, count: 1 }));
    assert!(outbox.take_unreported_drops().is_some() && outbox.open_links().is_none());
}

#[test]
fn a_peek_respects_its_limits() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    for size in [5000, 10, 10, 5000, 10] {
        push(&mut outbox, &message(&size.to_string(), Priority::Event, size)).unwrap();
    }
    let mut batches = Vec::new();
    while !outbox.is_empty() {
        let batch = outbox.peek(StreamQueue::Events, 16, 3000).unwrap();
        batches.push(batch.len());
        outbox.ack(StreamQueue::Events, batch.last().unwrap().seq).unwrap();
    }
    assert_eq!(batches, [1, 2, 1, 1]);
}

/// A position file from the time of a single queue of results.
#[test]
fn an_older_position_counts_for_every_queue() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    for (lane, id, class) in [
        (StreamQueue::Jobs, "j0", Priority::Result),
        (StreamQueue::Events, "e0", Priority::Event),
        (StreamQueue::Events, "s0", Priority::Result),
        (StreamQueue::Jobs, "j1", Priority::Result),
        (StreamQueue::Events, "e1", Priority::Event),
    ] {
        push(&mut outbox, &to(lane, id, class)).unwrap();
    }
    let offset = |queue: DeliveryQueue, at: usize| outbox.queues[&queue][at].offset;
    let older = format!(
        "{{\"generation\":0,\"events\":{},\"results\":{},\"dropped\":0}}",
        offset(DeliveryQueue::Events, 1),
        offset(DeliveryQueue::Jobs, 1)
    );
    drop(outbox);
    std::fs::write(dir.path().join(POSITION), older).unwrap();
    let outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    assert_eq!((ids_of(&outbox, StreamQueue::Jobs), ids(&outbox)), (vec!["j1".into()], vec!["e1".into()]));
}

#[test]
fn messages_wait_in_order_until_they_are_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    let binary = OutboxMessage {
        subject: "s".into(),
        msg_id: "b".into(),
        payload: (0..=255).collect(),
        priority: Priority::Result,
        command: None,
    };
    push(&mut outbox, &message("a", Priority::Event, 0)).unwrap();
    push(&mut outbox, &binary).unwrap();
    push(&mut outbox, &message("c", Priority::Event, 10)).unwrap();
    outbox.sync().unwrap();
    assert_eq!((ids(&outbox), outbox.len()), (vec!["a".into(), "b".into(), "c".into()], 3));
    assert_eq!(peek(&outbox, 2).len(), 2);
    ack(&mut outbox, 1);
    drop(outbox);
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(peek(&outbox, 1)[0].message, binary);
    assert_eq!(ids(&outbox), ["b", "c"]);
    ack(&mut outbox, 9);
    assert!(outbox.is_empty());
    push(&mut outbox, &message("d", Priority::Event, 1)).unwrap();
    drop(outbox);
    assert_eq!(ids(&Outbox::open(dir.path(), 1 << 20).unwrap()), ["d"]);
}

#[test]
fn results_outlive_events_and_drops_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 8000).unwrap();
    push(&mut outbox, &message("r0", Priority::Result, 100)).unwrap();
    for n in 0..30 {
        push(&mut outbox, &message(&format!("e{n}"), Priority::Event, 100)).unwrap();
    }
    let left = ids(&outbox);
    assert_eq!((left.first().unwrap().as_str(), left.last().unwrap().as_str()), ("r0", "e29"));
    assert_eq!(outbox.dropped().0 + left.len() as u64, 31);
    drop(outbox);
    let mut outbox = Outbox::open(dir.path(), 8000).unwrap();
    assert_eq!(ids(&outbox), left);
    for n in 1..30 {
        push(&mut outbox, &message(&format!("r{n}"), Priority::Result, 100)).unwrap();
    }
    let left = ids(&outbox);
    assert!(left.iter().all(|id| id.starts_with('r')) && left.last().unwrap() == "r29", "{left:?}");
    assert_eq!(outbox.dropped().0 + left.len() as u64, 60);
    assert!(matches!(push(&mut outbox, &message("big", Priority::Result, 8000)), Err(StoreError::TooLarge { .. })));
    assert_eq!(ids(&outbox), left);
}

#[test]
fn an_ack_removes_sent_messages_after_drops() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 4000).unwrap();
    for n in 0..5 {
        push(&mut outbox, &message(&format!("e{n}"), Priority::Event, 50)).unwrap();
    }
    let sent = peek(&outbox, 3);
    for n in 5..9 {
        push(&mut outbox, &message(&format!("e{n}"), Priority::Event, 50)).unwrap();
    }
    assert!(outbox.dropped().0 > 0);
    outbox.ack(StreamQueue::Events, sent.last().unwrap().seq).unwrap();
    let left = ids(&outbox);
    assert!(left.contains(&"e8".to_owned()) && !left.contains(&"e2".to_owned()), "{left:?}");
}

#[test]
fn the_file_does_not_grow_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    for n in 0..200 {
        push(&mut outbox, &message(&format!("m{n}"), Priority::Event, 50_000)).unwrap();
        if n % 3 == 0 {
            ack(&mut outbox, 3);
        }
        let size: u64 = logs(dir.path()).unwrap().iter().map(|(_, path)| path.metadata().unwrap().len()).sum();
        assert!(size <= 2 << 20, "{size}");
    }
    assert!(outbox.position.generation > 2);
    assert_eq!(outbox.dropped(), (0, 0));
    assert_eq!(logs(dir.path()).unwrap().len(), 1);
}

#[test]
fn a_lost_position_only_delivers_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    push(&mut outbox, &message("a", Priority::Event, 1)).unwrap();
    push(&mut outbox, &message("b", Priority::Event, 1)).unwrap();
    ack(&mut outbox, 1);
    drop(outbox);
    // A newer log that the position did not name yet when the process died.
    std::fs::write(log_path(dir.path(), 1), "{").unwrap();
    std::fs::write(dir.path().join(POSITION), "{\"gen").unwrap();
    assert_eq!(ids(&Outbox::open(dir.path(), 1 << 20).unwrap()), ["a", "b"]);
    assert!(!log_path(dir.path(), 1).exists());
}

#[test]
fn a_log_behind_its_position_keeps_new_messages() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    push(&mut outbox, &message("a", Priority::Event, 500)).unwrap();
    ack(&mut outbox, 1);
    drop(outbox);
    std::fs::write(log_path(dir.path(), 0), "").unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    push(&mut outbox, &message("b", Priority::Event, 1000)).unwrap();
    drop(outbox);
    assert_eq!(ids(&Outbox::open(dir.path(), 1 << 20).unwrap()), ["b"]);
}

#[test]
fn events_grow_old_and_results_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    let day = SignedDuration::from_hours(24);
    for (id, class, at) in [
        ("wrong clock", Priority::Event, Timestamp::UNIX_EPOCH),
        ("old", Priority::Event, NOW - 8 * day),
        ("result", Priority::Result, NOW - 8 * day),
        ("young", Priority::Event, NOW - 6 * day),
    ] {
        outbox.push(&message(id, class, 10), at, &seal).unwrap();
    }
    outbox.expire(NOW, 7 * day).unwrap();
    assert_eq!(ids(&outbox), ["wrong clock", "old", "result", "young"], "what has no age holds up those behind it");
    ack(&mut outbox, 1);
    outbox.expire(NOW, 7 * day).unwrap();
    assert_eq!((ids(&outbox), outbox.dropped()), (vec!["result".into(), "young".into()], (1, 0)));
    drop(outbox);
    let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(ids(&outbox), ["result", "young"]);
    assert_eq!(outbox.take_unreported_drops(), Some(DroppedMessages { events: 1, results: 0, first: 2, last: 2 }));
    assert_eq!(outbox.take_unreported_drops(), None);
}

#[test]
fn drops_are_reported_with_their_chain_position() {
    let dir = tempfile::tempdir().unwrap();
    let mut outbox = Outbox::open(dir.path(), 8000).unwrap();
    for n in 0..30 {
        push(&mut outbox, &message(&n.to_string(), Priority::Event, 100)).unwrap();
    }
    let first = peek(&outbox, 1).remove(0);
    let left = frame::chain_position(&first.receipt.unwrap()).unwrap().seq;
    let told = outbox.take_unreported_drops().unwrap();
    assert_eq!((told.events, told.results, told.first, told.last), (left - 1, 0, 1, left - 1));
    // A drop whose report failed is reported with the later drops.
    outbox.record_rejected(first.seq);
    outbox.restore_unreported_drops(&told);
    assert_eq!(outbox.take_unreported_drops().map(|told| (told.events, told.last)), Some((left, left)));
    assert_eq!(outbox.dropped(), (left, 0));
}

/// Adds every receipt that waits to those that were seen, and holds each to follow one that was seen.
fn gather(outbox: &Outbox, seen: &mut std::collections::HashMap<String, u64>) -> Result<(), TestCaseError> {
    for queued in peek(outbox, usize::MAX) {
        let receipt = Receipt::parse(&queued.receipt.unwrap()).unwrap();
        let statement = receipt.read().unwrap();
        let seq = statement.seq.unwrap();
        if let Some(prev) = statement.prev {
            prop_assert_eq!(seen.get(&prev).copied(), Some(seq - 1), "{} follows nothing", seq);
        }
        seen.insert(receipt.digest(), seq);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any order of pushes, deliveries and kills loses no message and keeps the order.
    #[test]
    fn nothing_is_lost(steps in proptest::collection::vec((0..4u8, 0..200usize), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
        let (mut model, mut next) = (VecDeque::new(), 0);
        for (what, size) in steps {
            match what {
                0 | 1 => {
                    let class = if what == 0 { Priority::Event } else { Priority::Result };
                    push(&mut outbox, &message(&next.to_string(), class, size)).unwrap();
                    model.push_back(next.to_string());
                    next += 1;
                }
                2 => {
                    let count = size % 4;
                    ack(&mut outbox, count);
                    model.drain(..count.min(model.len()));
                }
                _ => {
                    // Killed in the middle of a write.
                    drop(outbox);
                    let generation = position(dir.path()).unwrap_or_default().generation;
                    let path = log_path(dir.path(), generation);
                    let torn = frame::encode(&message("torn", Priority::Event, 100), NOW, None).unwrap();
                    let mut bytes = std::fs::read(&path).unwrap();
                    bytes.extend_from_slice(&torn[..size % torn.len()]);
                    std::fs::write(&path, bytes).unwrap();
                    outbox = Outbox::open(dir.path(), 1 << 20).unwrap();
                }
            }
            prop_assert_eq!(ids(&outbox), model.iter().cloned().collect::<Vec<_>>());
        }
    }

    /// The chain of receipts continues over every kill without a fork, and over every power cut with at most one. Each link
    /// names an existing link, and a message sent again has the same bytes.
    #[test]
    fn the_chain_goes_on(steps in proptest::collection::vec((0..6u8, 0..400usize), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut outbox = Outbox::open(dir.path(), 4000).unwrap();
        let mut seen = std::collections::HashMap::new();
        let (mut synced, mut cuts, mut pushed) = (0, 0, 0_u64);
        for (what, size) in steps {
            match what {
                0 | 1 => {
                    let class = if what == 0 { Priority::Event } else { Priority::Result };
                    push(&mut outbox, &message(&pushed.to_string(), class, size)).unwrap();
                    pushed += 1;
                }
                2 => ack(&mut outbox, size % 4),
                3 => {
                    outbox.sync().unwrap();
                    synced = outbox.log.len();
                }
                4 => {
                    // Killed in the middle of a write.
                    let (path, before) = (outbox.log.path().to_owned(), peek(&outbox, usize::MAX));
                    drop(outbox);
                    let torn = frame::encode(&message("torn", Priority::Event, 100), NOW, None).unwrap();
                    let mut bytes = std::fs::read(&path).unwrap();
                    bytes.extend_from_slice(&torn[..size % torn.len()]);
                    std::fs::write(&path, bytes).unwrap();
                    outbox = Outbox::open(dir.path(), 4000).unwrap();
                    let receipts = |all: Vec<QueuedMessage>| all.into_iter().map(|one| (one.message, one.receipt)).collect::<Vec<_>>();
                    prop_assert_eq!(receipts(peek(&outbox, usize::MAX)), receipts(before));
                }
                _ => {
                    // A power cut: unsynced bytes may be gone. A new log was synced when it began.
                    let path = outbox.log.path().to_owned();
                    drop(outbox);
                    let bytes = std::fs::read(&path).unwrap();
                    let kept = usize::try_from(synced).unwrap().min(bytes.len());
                    std::fs::write(&path, &bytes[..kept]).unwrap();
                    outbox = Outbox::open(dir.path(), 4000).unwrap();
                    cuts += 1;
                }
            }
            gather(&outbox, &mut seen)?;
        }
        // Without a cut the chain has exactly one link a message.
        if cuts == 0 {
            prop_assert_eq!(outbox.chain_head().seq, pushed);
        }
    }
}
