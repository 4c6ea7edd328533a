use serde_json::json;

use crate::wire::subject::ReportStage;

use super::*;
use crate::fleet::targeting::node_identity::testing::{key, signed};
use crate::fleet::targeting::pinned_keys::{PinnedKey, PinnedKeys};

const ID: Uuid = Uuid::from_u128(1);
const DIGEST: &str = "d1";

fn subjects() -> Subjects {
    Subjects::new("f")
}

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn body(name: &str, extra: &serde_json::Value) -> Vec<u8> {
    let mut body = json!({"protocol": "p", "id": ID, "digest": DIGEST, "node": name, "at": "2026-01-01T00:00:00Z"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::to_vec(&body).unwrap()
}

/// A message that the node signed. All nodes of these tests have one key.
fn report(name: &str, stage: ReportStage, extra: &serde_json::Value) -> Message {
    own(unsigned(name, stage, extra), name)
}

fn unsigned(name: &str, stage: ReportStage, extra: &serde_json::Value) -> Message {
    let subject = subjects().job(ID, &node(name), stage).as_str().to_owned();
    Message { subject, payload: body(name, extra), ..Message::default() }
}

fn own(message: Message, name: &str) -> Message {
    signed(message, &key(1), name, Some(DIGEST))
}

fn done(name: &str, outcome: &str) -> Message {
    report(name, ReportStage::Done, &json!({"outcome": outcome}))
}

fn gather(nodes: &[(&str, Liveness)]) -> JobTracker {
    let expected = nodes
        .iter()
        .map(|(name, presence)| ExpectedNode { node: node(name), liveness: *presence, verification_error: None })
        .collect();
    JobTracker::new(subjects(), node_keys(), ID, DIGEST, expected)
}

fn node_keys() -> Arc<NodeKeys> {
    let mut known = PinnedKeys::default();
    for name in ["a", "b", "ok", "slow", "where", "back", "joined", "again"] {
        known.pin("f", &node(name), PinnedKey { key: key(1).public(), since: Timestamp::UNIX_EPOCH });
    }
    Arc::new(NodeKeys::new("f", known, None))
}

fn words(gather: JobTracker) -> String {
    let results = gather.finish();
    results.iter().map(|result| format!("{}={}", result.node, result.outcome.as_str())).collect::<Vec<_>>().join(" ")
}

const GONE: Liveness = Liveness::Offline(Timestamp::UNIX_EPOCH);

#[test]
fn every_node_ends_in_a_named_state() {
    let mut all = gather(&[
        ("ok", Liveness::Alive),
        ("slow", Liveness::Alive),
        ("silent", Liveness::Alive),
        ("where", Liveness::Alive),
        ("gone", GONE),
        ("back", GONE),
        ("typo", Liveness::Unknown),
    ]);
    let acked = all.take_report(&report("slow", ReportStage::Ack, &json!({"status": "accepted"})));
    assert_eq!(acked, Some(JobEvent::Acknowledged(node("slow"))));
    assert!(all.take_report(&done("ok", "stable")).is_some());
    assert!(all.take_report(&done("ok", "failed")).is_none(), "the first end stays");
    assert!(all.take_report(&report("where", ReportStage::Ack, &json!({"status": "not_selected"}))).is_some());
    assert!(all.take_report(&done("back", "changed")).is_some());
    assert!(all.take_report(&done("joined", "busy")).is_some());
    // Sent again to the node that was busy.
    assert!(all.take_report(&done("again", "busy")).is_some());
    assert!(all.take_report(&done("again", "changed")).is_some());
    assert!(all.take_report(&done("again", "busy")).is_none());
    assert!(!all.is_complete() && !all.is_answered());
    assert_eq!(all.progress(), JobProgress { done: 5, total: 9, missing: all.missing().count() });
    assert_eq!(
        words(all),
        "again=changed back=changed gone=offline joined=busy ok=stable silent=no_answer slow=unfinished typo=no_answer where=not_selected"
    );
}

#[test]
fn a_node_that_waits_for_its_wave_is_neither_silent_nor_unfinished() {
    let mut two = gather(&[("a", Liveness::Alive), ("b", Liveness::Alive)]);
    for name in ["a", "b"] {
        two.take_report(&report(name, ReportStage::Ack, &json!({"status": "accepted", "wave": 2})));
    }
    two.take_report(&done("a", "halted"));
    assert!(!two.is_complete());
    let results = two.finish();
    assert_eq!(results[1].wave, Some(2));
    let shown: Vec<_> = results.iter().map(|result| (result.outcome.as_str(), result.outcome.grade())).collect();
    assert_eq!(shown, [("halted", Grade::Incomplete), ("waiting", Grade::Incomplete)]);
}

#[test]
fn a_job_is_complete_when_every_online_node_has_ended() {
    let mut two = gather(&[("a", Liveness::Alive), ("b", GONE)]);
    assert!(!two.is_complete());
    two.take_report(&report("b", ReportStage::Ack, &json!({"status": "accepted"})));
    two.take_report(&done("a", "stable"));
    assert!(two.is_answered() && !two.is_complete(), "b is back, and at work");
    two.take_report(&done("b", "interrupted"));
    assert!(two.is_complete());
    assert!(gather(&[("b", GONE)]).is_complete());
    assert!(!gather(&[("c", Liveness::Unknown)]).is_complete(), "it may be new");
}

#[test]
fn reports_of_others_do_not_count() {
    let mut one = gather(&[("a", Liveness::Alive)]);
    let other_node = Message { payload: body("b", &json!({"outcome": "stable"})), ..done("a", "stable") };
    let other_node = own(other_node, "a");
    let other_digest = report("a", ReportStage::Done, &json!({"outcome": "stable", "digest": "d2"}));
    let other_job = Message {
        subject: subjects().job(Uuid::from_u128(2), &node("a"), ReportStage::Done).as_str().into(),
        ..done("a", "stable")
    };
    let garbage = own(Message { payload: b"{".to_vec(), ..done("a", "stable") }, "a");
    for message in [other_node, other_digest, other_job, garbage] {
        assert_eq!(one.take_report(&message), None);
    }
    assert_eq!(words(one), "a=no_answer");
}

#[test]
fn what_a_node_did_not_sign_does_not_count() {
    let outcome = json!({"outcome": "stable"});
    let honest = done("a", "changed");
    let changed = Message { payload: body("a", &json!({"outcome": "stable"})), ..honest.clone() };
    let others = signed(unsigned("a", ReportStage::Done, &outcome), &key(1), "b", Some(DIGEST));
    let replayed = signed(unsigned("a", ReportStage::Done, &outcome), &key(1), "a", Some("d0"));
    let forged = signed(unsigned("a", ReportStage::Done, &outcome), &key(9), "a", Some(DIGEST));
    let moved = Message { subject: unsigned("b", ReportStage::Done, &outcome).subject, ..honest.clone() };
    let mut all = gather(&[("a", Liveness::Alive), ("b", Liveness::Alive)]);
    for (message, why) in [
        (&unsigned("a", ReportStage::Done, &outcome), "it has no receipt"),
        (&forged, "not signed by the key of the node"),
        (&changed, "the content was changed"),
        (&others, "that of the node b"),
        (&replayed, "answers another command"),
        (&moved, "that of the node a"),
    ] {
        match all.take_report(message) {
            Some(JobEvent::Unverified { reason, .. }) => assert!(reason.contains(why), "{reason}, not {why}"),
            other => panic!("{other:?}, not {why}"),
        }
    }
    assert!(all.take_report(&moved).is_none(), "said once");
    assert!(!all.is_complete(), "its own word may still come");
    assert!(all.take_report(&honest).is_some());
    assert_eq!(words(all), "a=changed b=unverified");
}

#[test]
fn a_node_without_a_pinned_key_does_not_delay_the_job() {
    let expected = ExpectedNode { node: node("new"), liveness: Liveness::Unknown, verification_error: Some("its state".into()) };
    let mut one = JobTracker::new(subjects(), node_keys(), ID, DIGEST, vec![expected]);
    assert!(!one.is_complete());
    assert!(matches!(one.take_report(&done("new", "stable")), Some(JobEvent::Unverified { .. })));
    assert!(one.is_complete());
    let results = one.finish();
    assert_eq!((results[0].outcome.as_str(), results[0].verified), ("unverified", false));
    assert!(results[0].doubt.as_ref().unwrap().contains("the key of the node is not pinned"), "{results:?}");
}

#[test]
fn answers_are_provisional() {
    let answer = |name: &str, extra: serde_json::Value| own(Message { payload: body(name, &extra), ..Message::default() }, name);
    let refusal = json!({"outcome": "refused", "code": "bad_signature", "id": null});
    let mut two = gather(&[("a", Liveness::Alive), ("b", Liveness::Alive)]);
    // Only rejections, and only of the node on whose subject the command went.
    assert_eq!(two.take_answer(&answer("a", json!({"outcome": "stable"})), None), None);
    assert_eq!(two.take_answer(&answer("a", refusal.clone()), Some(&node("b"))), None);
    assert!(two.take_answer(&answer("a", refusal.clone()), None).is_some());
    assert!(two.take_answer(&answer("b", refusal), Some(&node("b"))).is_some());
    assert!(two.is_complete());
    // A report of the stream replaces an answer.
    assert!(two.take_report(&done("a", "changed")).is_some());
    assert_eq!(words(two), "a=changed b=refused");
}

#[test]
fn the_server_reports_that_no_agent_is_connected() {
    let mut one = gather(&[("a", Liveness::Alive)]);
    let nobody = Message { no_responders: true, ..Message::default() };
    assert_eq!(one.take_answer(&nobody, None), None);
    assert!(one.take_answer(&nobody, Some(&node("a"))).is_some());
    assert!(one.is_complete());
    assert_eq!(words(one), "a=offline");
}

#[test]
fn grades_order_the_exit_codes() {
    let worst = [NodeOutcome::Stable, NodeOutcome::Busy, NodeOutcome::Refused("x".into()), NodeOutcome::Failed]
        .map(|outcome| outcome.grade());
    assert!(worst.is_sorted());
}

#[test]
fn without_the_stream_signed_answers_count() {
    let answer = |name: &str, extra: serde_json::Value| own(Message { payload: body(name, &extra), ..Message::default() }, name);
    let mut one = gather(&[("a", Liveness::Unknown)]).without_stream(false);
    let acked = one.take_answer(&answer("a", json!({"status": "accepted"})), Some(&node("a")));
    assert_eq!(acked, Some(JobEvent::Acknowledged(node("a"))));
    let unsigned = Message { payload: body("a", &json!({"outcome": "stable"})), ..Message::default() };
    assert!(matches!(one.take_answer(&unsigned, Some(&node("a"))), Some(JobEvent::Unverified { .. })));
    assert_eq!(one.take_answer(&answer("b", json!({"outcome": "stable"})), Some(&node("a"))), None);
    assert!(!one.is_done());
    assert!(one.take_answer(&answer("a", json!({"outcome": "stable"})), Some(&node("a"))).is_some());
    assert!(one.is_done());
    // The nodes of a group are unknown: those that answer count, and others may still answer.
    let mut group = gather(&[]).without_stream(true);
    group.take_answer(&answer("a", json!({"outcome": "changed"})), None);
    assert!(group.is_complete() && !group.is_done());
    assert_eq!(words(group), "a=changed");
}

#[test]
fn a_node_whose_disk_takes_no_result_does_not_delay_the_job() {
    let mut two = gather(&[("a", Liveness::Alive), ("b", Liveness::Alive)]);
    two.take_report(&report("a", ReportStage::Ack, &json!({"status": "accepted"})));
    assert!(two.take_unwritten(&node("b")).is_none(), "b has not accepted the command");
    assert!(two.take_unwritten(&node("a")).is_some());
    assert_eq!(two.missing().count(), 1);
    assert!(two.take_report(&done("a", "changed")).is_some(), "the disk has space again");
    assert_eq!(words(two), "a=changed b=no_answer");
}
