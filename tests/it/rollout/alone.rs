//! One node in waves that are made by hand: what it does when nobody, or somebody else, tells it something.

use std::time::{Duration, Instant};

use base64::Engine;
use ensign::model::Span;
use ensign::trust::{SigningKey, seal};
use ensign::wire::command::{Action, Command, JobRef, Waves};
use ensign::wire::report::FailedMark;
use ensign::wire::subject::EventKind;
use ensign::wire::waves::{Place, Step};
use ensign::wire::{Ack, COMMAND_TYPE, Done, DoneOutcome, Refused};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::support::solo::{Agent, Fleet, PATIENCE, ensure, node, on_every_server};

/// The turn of the node comes so many seconds after the command was signed.
fn in_waves(mut command: Command, after: u64) -> Command {
    let steps = vec![Step { upto: Place::LAST, after: Span::seconds(after) }];
    command.options.waves = Some(Waves { steps, max_failed: 1, health: false });
    command
}

/// What is said of a job, so many milliseconds after it was signed.
fn word(fleet: &Fleet, halt: bool, job: &Command, after: i64) -> Command {
    let about = JobRef { job: job.id };
    let mut word = fleet.command(if halt { Action::Halt(about) } else { Action::Resume(about) });
    word.issued = job.issued + SignedDuration::from_millis(after);
    word.expires = word.issued + SignedDuration::from_mins(5);
    word
}

async fn keep(fleet: &Fleet, job: &Command, envelope: Vec<u8>) {
    fleet.bus.publish_stored(fleet.subjects.rollout_control(job.id).as_str(), &[], envelope).await.unwrap();
}

async fn accepted(fleet: &Fleet, command: &Command) -> Ack {
    serde_json::from_value(fleet.ask(command, fleet.sign(command), 1).await[0].clone()).unwrap()
}

async fn passed(time: Timestamp) {
    while Timestamp::now() <= time {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What something gives, and how many seconds it took, at least one: how fast this machine is now.
async fn timed<T>(work: impl Future<Output = T>) -> (T, u64) {
    let start = Instant::now();
    (work.await, start.elapsed().as_secs() + 1)
}

fn turn(command: &Command) -> Timestamp {
    command.options.waves.as_ref().unwrap().last_begins(command.issued)
}

#[test]
fn a_job_waits_for_its_turn_without_keeping_others_from_theirs() {
    on_every_server(async |binary| {
        let fleet = Fleet::new(binary, "").await;
        let (_, pace) = timed(fleet.agent()).await;
        let agent = fleet.agent().await;
        // Time for two commands and a start.
        let command = in_waves(fleet.slow("waits", 0), 2 + 4 * pace);
        let ack = accepted(&fleet, &command).await;
        assert_eq!(ack.due, Some(turn(&command)));
        // Others run meanwhile: it takes no place in the queue.
        fleet.send(&fleet.slow("other", 0)).await;
        fleet.until("the other", || fleet.lines("other").len() == 2).await;
        // Killed and started again, it waits on, and begins once.
        agent.kill();
        let _agent = fleet.agent().await;
        assert!(Timestamp::now() < turn(&command) && fleet.lines("waits").is_empty(), "too slow to tell");
        let again = accepted(&fleet, &command).await;
        assert_eq!((again.id, again.due), (command.id, Some(turn(&command))));
        let done = fleet.only_result(command.id).await;
        assert!(done.outcome == DoneOutcome::Changed && done.at >= turn(&command), "{done:?}");
        assert_eq!(fleet.lines("waits"), ["begun", "ended"]);
    });
}

#[test]
fn without_a_server_nothing_begins() {
    on_every_server(async |binary| {
        let mut fleet = Fleet::new(binary, "").await;
        let (_agent, pace) = timed(fleet.agent()).await;
        let command = in_waves(fleet.file("held", "x"), 2 + 2 * pace);
        accepted(&fleet, &command).await;
        fleet.server.kill();
        assert!(Timestamp::now() < turn(&command), "too slow to tell");
        passed(turn(&command) + SignedDuration::from_secs(1)).await;
        assert!(!fleet.path("held").exists());
        fleet.server.up();
        fleet.bus.watch().wait_for(|link| link.connected).await.unwrap();
        // The agent may take half a minute to connect again.
        let start = Instant::now();
        while !fleet.path("held").exists() {
            assert!(start.elapsed() < 2 * PATIENCE, "it did not go on");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let done = fleet.only_result(command.id).await;
        assert_eq!(done.outcome, DoneOutcome::Changed, "{done:?}");
        // Nor without the stream.
        let delete = format!("$JS.API.STREAM.DELETE.{}", fleet.subjects.stream("ROLLOUTS"));
        let (reply, mut inbox) = fleet.bus.request_inbox().await.unwrap();
        fleet.bus.publish_with_reply(&delete, &format!("{reply}.1"), &[], vec![]).await.unwrap();
        tokio::time::timeout(PATIENCE, inbox.next()).await.expect("the stream is deleted").unwrap();
        let command = in_waves(fleet.file("blind", "x"), 0);
        accepted(&fleet, &command).await;
        fleet.until("it asks in vain", || fleet.log().contains("can't be asked whether it may begin")).await;
        passed(turn(&command) + SignedDuration::from_secs(2)).await;
        assert!(!fleet.path("blind").exists());
    });
}

#[test]
fn only_the_latest_word_of_an_operator_counts() {
    on_every_server(async |binary| {
        let fleet = Fleet::new(binary, "").await;
        let _agent = fleet.agent().await;
        // What is no word on this job changes nothing, and is said.
        let mallory = SigningKey::from_seed(&[9; 32]);
        let mut refusals = fleet.bus.subscribe(fleet.subjects.event(&node(), EventKind::Refused).as_str()).await.unwrap();
        fleet.bus.flush_roundtrip().await.unwrap();
        for (code, name) in
            [("bad_signature", "forged"), ("wrong_fleet", "foreign"), ("expired", "old"), ("subject_mismatch", "about")]
        {
            let command = in_waves(fleet.file(name, "x"), 1);
            let mut halt = word(&fleet, true, &command, 1);
            let envelope = match name {
                "forged" => seal(COMMAND_TYPE, serde_json::to_vec(&halt).unwrap(), &[("ops", &mallory)]).encode(),
                "foreign" => {
                    halt.fleet = "other".into();
                    fleet.sign(&halt)
                }
                "old" => fleet.sign(&word(&fleet, true, &command, -120_000)),
                _ => fleet.sign(&word(&fleet, true, &fleet.file("x", "x"), 1)),
            };
            keep(&fleet, &command, envelope).await;
            accepted(&fleet, &command).await;
            let message = tokio::time::timeout(PATIENCE, refusals.next()).await.expect(name).unwrap();
            let refused: Refused = serde_json::from_slice(&message.payload).unwrap();
            assert_eq!((refused.code.as_str(), refused.subject), (code, fleet.subjects.rollout_control(command.id).to_string()));
            assert_eq!(fleet.only_result(command.id).await.outcome, DoneOutcome::Changed, "{name}");
        }
        // A halt holds, also when an older resume takes its place in the stream.
        let command = in_waves(fleet.file("halted", "x"), 1);
        let (before, halt, after) =
            (word(&fleet, false, &command, 1), word(&fleet, true, &command, 2), word(&fleet, false, &command, 3));
        keep(&fleet, &command, fleet.sign(&halt)).await;
        accepted(&fleet, &command).await;
        fleet.until("the halt is heard", || fleet.log().contains("halted by ops")).await;
        keep(&fleet, &command, fleet.sign(&before)).await;
        let done: Done = serde_json::from_value(fleet.ask(&before, fleet.sign(&before), 1).await[0].clone()).unwrap();
        assert_eq!(done.message.as_deref(), Some("something later was said of this job"));
        passed(turn(&command) + SignedDuration::from_secs(1)).await;
        assert!(!fleet.path("halted").exists());
        // A later one lets it go on, at once, by the ordinary way alone; and its result is kept as any other.
        let done: Done = serde_json::from_value(fleet.ask(&after, fleet.sign(&after), 1).await[0].clone()).unwrap();
        assert_eq!(done.outcome, DoneOutcome::Changed, "{done:?}");
        assert_eq!(fleet.only_result(command.id).await.outcome, DoneOutcome::Changed);
        assert_eq!(fleet.only_result(after.id).await.outcome, DoneOutcome::Changed);
    });
}

#[test]
fn others_failures_and_the_end_of_its_time_end_it() {
    on_every_server(async |binary| {
        let fleet = Fleet::new(binary, "").await;
        let agent = fleet.agent().await;
        let mut command = in_waves(fleet.file("spent", "x"), 1);
        command.to = ensign::wire::Audience::all();
        for name in ["db1", "db2"] {
            let subject = fleet.subjects.rollout_failed(command.id, &name.parse().unwrap());
            fleet.bus.publish_stored(subject.as_str(), &[], b"{}".to_vec()).await.unwrap();
        }
        accepted(&fleet, &command).await;
        let done = fleet.only_result(command.id).await;
        assert_eq!((done.outcome, done.code.as_deref()), (DoneOutcome::Halted, Some("halted")));
        assert_eq!(done.message.as_deref(), Some("the error budget of 1 is spent: db1, db2 failed first"));
        // A node that died while it ran has failed too, and says so when it is back.
        let command = in_waves(fleet.slow("dies", 20), 0);
        fleet.send(&command).await;
        fleet.until("the run", || !fleet.lines("dies").is_empty()).await;
        agent.kill();
        // Meanwhile, the time of another one runs out: as its own ledger has it, it was accepted hours ago.
        let mut late = in_waves(fleet.file("late", "x"), 0);
        late.issued -= SignedDuration::from_hours(2);
        late.expires = late.issued + SignedDuration::from_mins(5);
        let halt = word(&fleet, true, &late, 1);
        keep(&fleet, &late, fleet.sign(&halt)).await;
        let record = json!({"accepted": {
            "id": late.id, "digest": "0", "issued": late.issued, "expires": late.expires,
            "envelope": base64::engine::general_purpose::STANDARD.encode(fleet.sign(&late)),
        }});
        let ledger = fleet.path("state/ledger.jsonl");
        let mut text = std::fs::read_to_string(&ledger).unwrap();
        text.extend([record.to_string(), "\n".to_owned()]);
        std::fs::write(&ledger, text).unwrap();
        let _agent = fleet.agent().await;
        assert_eq!(fleet.only_result(command.id).await.outcome, DoneOutcome::Interrupted);
        let stream = fleet.subjects.stream("ROLLOUTS");
        let failures = fleet.subjects.rollout_failures(command.id);
        let mut marks = fleet.bus.follow(&stream, failures.as_str(), ensign::transport::From::Beginning).await.unwrap();
        let mark = tokio::time::timeout(PATIENCE, marks.next()).await.expect("a mark").unwrap().unwrap();
        let mark: FailedMark = serde_json::from_slice(&mark.payload).unwrap();
        assert_eq!((mark.node, mark.outcome), (node(), DoneOutcome::Interrupted));
        // Whether it was halted it may not even have been able to ask.
        let done = fleet.only_result(late.id).await;
        assert!([DoneOutcome::Halted, DoneOutcome::Expired].contains(&done.outcome), "{done:?}");
        assert!(!fleet.path("late").exists());
    });
}

#[test]
fn health_that_turns_critical_counts_as_a_failure() {
    on_every_server(async |binary| {
        let fleet = Fleet::new(binary, "").await;
        let (agent, pace): (Agent, u64) = timed(fleet.agent()).await;
        let file = fleet.path("healthy");
        let check = json!([{"command": format!("sh -c 'test ! -e {} || exit 2'", fleet.path("broken").display()), "tries": 1}]);
        let own = nix::unistd::geteuid().as_raw().to_string();
        let properties = json!({"name": file, "ensure": "present", "content": "x", "owner": own, "group": own, "mode": "0644", "health_checks": check});
        let gated = |hold: u64| {
            let mut command = fleet.command(ensure("file", &properties));
            // The node is in the first of two waves.
            let steps = [(Place::of(command.id, &node()), 0), (Place::LAST, hold)];
            let steps = steps.map(|(upto, after)| Step { upto, after: Span::seconds(after) }).to_vec();
            command.options.waves = Some(Waves { steps, max_failed: 0, health: true });
            command
        };
        let mut events = fleet.events().await;
        let run = async |breaks: bool| {
            // Where its health breaks, that is to be after the run and before it is looked at.
            let command = gated(if breaks { 4 + 4 * pace } else { 4 });
            fleet.send(&command).await;
            assert_ne!(fleet.only_result(command.id).await.outcome, DoneOutcome::Failed);
            let looks = command.options.waves.as_ref().unwrap().looks(Place::of(command.id, &node()), command.issued);
            if breaks {
                assert!(Timestamp::now() < looks, "too slow to tell");
                std::fs::write(fleet.path("broken"), "").unwrap();
            }
            passed(looks).await;
            command
        };
        let (well, ill) = (run(false).await, run(true).await);
        let stream = fleet.subjects.stream("ROLLOUTS");
        let filter = format!("ensign.v1.test.rollout.{}.failed.web1", ill.id);
        let mut marks = fleet.bus.follow(&stream, &filter, ensign::transport::From::Beginning).await.unwrap();
        tokio::time::timeout(PATIENCE, marks.next()).await.expect("a mark").unwrap().unwrap();
        let none = fleet.bus.last_per_subject(&stream, fleet.subjects.rollout_failures(well.id).as_str()).await.unwrap();
        assert!(none.is_empty());
        let event = loop {
            let message = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event").unwrap().unwrap();
            let event: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
            if event["health_check_only"] == true {
                break event;
            }
        };
        assert_eq!((&event["failed"], &event["run_id"]), (&json!(true), &json!(ill.id)), "{event}");
        // Nothing was run for it but the checks, and nothing else came of it.
        assert_eq!(fleet.results(ill.id).await.len(), 1);
        assert_eq!(agent.stop(), Some(0));
    });
}
