//! One node in hand-made waves: its behaviour without messages, and with messages of other senders.

use std::time::{Duration, Instant};

use base64::Engine;
use ensign::model::{HumanDuration, NodeId};
use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::command::{Action, Command, GoAhead, JobRef, RolloutPlan};
use ensign::wire::receipt::{HEADER, ReceiptBody};
use ensign::wire::report::{ROLLOUT_SUCCESS, RolloutResult};
use ensign::wire::rollout_plan::{OnFailure, RolloutPosition, WAVE_MARGIN, Wave, Witness};
use ensign::wire::subject::EventKind;
use ensign::wire::{Ack, AckStatus, COMMAND_TYPE, CommandOutcome, CommandResult, RejectionEvent};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::support::clock::{Clock, library};
use crate::support::single_node::{PATIENCE, SingleNodeFleet, ensure_action, node, on_every_server};

fn waves(steps: Vec<Wave>, max_failed: u64) -> RolloutPlan {
    RolloutPlan {
        steps,
        hold: HumanDuration::seconds(1),
        margin: WAVE_MARGIN,
        max_failed,
        health: false,
        go: false,
        on_failure: OnFailure::Stop,
    }
}

/// In one wave: the node may begin at once.
fn in_waves(mut command: Command) -> Command {
    let steps = vec![Wave { upto: RolloutPosition::LAST, witnesses: vec![], min_ok: 0 }];
    command.options.waves = Some(waves(steps, 1));
    command
}

/// A node without an agent: the test publishes its messages.
pub struct Canary {
    node: NodeId,
    key: SigningKey,
}

/// Puts the node into the second wave, after the wave of a canary.
pub fn after_canary(mut command: Command) -> (Command, Canary) {
    let key = SigningKey::from_seed(&[7; 32]);
    // The id of a command decides the order of the nodes.
    let node = loop {
        let own = RolloutPosition::for_node(command.id, &node());
        let mut others = (0..50).map(|n| format!("canary{n}").parse::<NodeId>().unwrap());
        match others.find(|other| RolloutPosition::for_node(command.id, other) < own) {
            Some(found) => break found,
            None => command.id = uuid::Uuid::now_v7(),
        }
    };
    let witnesses = vec![Witness { node: node.clone(), key: key.public().to_short() }];
    let first = Wave { upto: RolloutPosition::for_node(command.id, &node), witnesses, min_ok: 1 };
    command.options.waves = Some(waves(vec![first, Wave { upto: RolloutPosition::LAST, witnesses: vec![], min_ok: 0 }], 0));
    command.to = ensign::wire::Target::all();
    (command, Canary { node, key })
}

impl Canary {
    /// Publishes that this command succeeded on the canary; signed with this key, about this digest.
    async fn publish_success(&self, fleet: &SingleNodeFleet, command: &Command, key: &SigningKey, digest: &str) {
        let subject = fleet.subjects.rollout_ok(command.id, &self.node);
        let (protocol, outcome) = (ROLLOUT_SUCCESS.to_owned(), CommandOutcome::Changed);
        let mark =
            RolloutResult { protocol, id: command.id, node: self.node.clone(), at: Timestamp::now(), outcome, reverts: false };
        let payload = serde_json::to_vec(&mark).unwrap();
        let statement = ReceiptBody {
            node: self.node.clone(),
            boot: uuid::Uuid::nil(),
            seq: None,
            prev: None,
            subject: subject.as_str().to_owned(),
            sha256: ensign::wire::digest(&payload),
            at: mark.at,
            command: Some(digest.to_owned()),
        };
        let receipt = ensign::trust::issue_receipt(key, &statement);
        fleet.bus.publish_stored(subject.as_str(), &[(HEADER, receipt.as_str())], payload).await.unwrap();
    }

    /// Publishes a genuine success.
    pub async fn succeeds(&self, fleet: &SingleNodeFleet, command: &Command) {
        self.publish_success(fleet, command, &self.key, &digest(command)).await;
    }
}

fn digest(command: &Command) -> String {
    ensign::wire::digest(&serde_json::to_vec(command).unwrap())
}

/// A pause in which a permitted node would begin: the node checks every half second.
async fn pause() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

/// A `halt` or `resume` of a job, signed this many milliseconds after the job.
fn override_command(fleet: &SingleNodeFleet, halt: bool, job: &Command, after: i64) -> Command {
    let about = JobRef { job: job.id };
    let mut word = fleet.command(if halt { Action::Halt(about) } else { Action::Resume(about) });
    word.issued = job.issued + SignedDuration::from_millis(after);
    word.expires = word.issued + SignedDuration::from_mins(5);
    word
}

async fn keep(fleet: &SingleNodeFleet, job: &Command, envelope: Vec<u8>) {
    fleet.bus.publish_stored(fleet.subjects.rollout_control(job.id).as_str(), &[], envelope).await.unwrap();
}

async fn accepted(fleet: &SingleNodeFleet, command: &Command) -> Ack {
    serde_json::from_value(fleet.answers(command, fleet.sign(command), 1).await[0].clone()).unwrap()
}

#[test]
fn a_job_that_waits_for_its_wave_delays_no_other_job() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let (command, canary) = after_canary(fleet.slow_command("waits", 0));
        let ack = accepted(&fleet, &command).await;
        assert_eq!(ack.wave, Some(2));
        // Other commands run meanwhile: a waiting rollout takes no place in the queue.
        fleet.send(&fleet.slow_command("other", 0)).await;
        fleet.until("the other", || fleet.lines("other").len() == 2).await;
        // Killed and started again, the node continues to wait, and begins once.
        agent.kill();
        let _agent = fleet.start_agent().await;
        pause().await;
        assert!(fleet.lines("waits").is_empty());
        let again = accepted(&fleet, &command).await;
        assert_eq!((again.id, again.wave), (command.id, Some(2)));
        canary.succeeds(&fleet, &command).await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        assert_eq!(fleet.lines("waits"), ["begun", "ended"]);
    });
}

#[test]
fn no_broker_invents_the_success_of_a_wave() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let (command, canary) = after_canary(fleet.file_command("guarded", "x"));
        let (other, others) = after_canary(fleet.file_command("other", "x"));
        accepted(&fleet, &command).await;
        // Without a signature, by another key, about another command, from another job, on the subject of another node.
        let subject = fleet.subjects.rollout_ok(command.id, &canary.node);
        fleet.bus.publish_stored(subject.as_str(), &[], b"{}".to_vec()).await.unwrap();
        pause().await;
        canary.publish_success(&fleet, &command, &SigningKey::from_seed(&[8; 32]), &digest(&command)).await;
        pause().await;
        canary.publish_success(&fleet, &command, &canary.key, &digest(&other)).await;
        pause().await;
        others.succeeds(&fleet, &other).await;
        let (stream, theirs) = (fleet.subjects.stream("ROLLOUTS"), fleet.subjects.rollout_ok(other.id, &others.node));
        let taken = fleet.bus.last(&stream, theirs.as_str()).await.unwrap().unwrap();
        let receipt = taken.header(HEADER).unwrap().to_owned();
        fleet.bus.publish_stored(subject.as_str(), &[(HEADER, receipt.as_str())], taken.payload).await.unwrap();
        pause().await;
        let stranger = fleet.subjects.rollout_ok(command.id, &"stranger".parse().unwrap());
        fleet.bus.publish_stored(stranger.as_str(), &[], b"{}".to_vec()).await.unwrap();
        pause().await;
        assert!(!fleet.path("guarded").exists());
        canary.succeeds(&fleet, &command).await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn a_wave_that_stays_silent_has_failed() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let (mut command, canary) = after_canary(fleet.file_command("silent", "x"));
        // A second for the run, one for the hold, and the margin.
        command.options.timeout = HumanDuration::seconds(1);
        command.options.waves.as_mut().unwrap().margin = HumanDuration::seconds(4);
        accepted(&fleet, &command).await;
        let done = fleet.only_result(command.id).await;
        assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Halted, Some("halted")));
        let said = format!("0 of the 1 nodes of wave 1 that must succeed did, and {} stayed silent", canary.node);
        assert_eq!(done.message, Some(said));
        canary.succeeds(&fleet, &command).await;
        pause().await;
        assert!(!fleet.path("silent").exists(), "its end is its end");
    });
}

#[test]
fn a_clock_that_jumps_begins_no_wave_and_ends_none() {
    let Some(library) = library() else { return };
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let (clock, mut process) = (Clock::new(&fleet.path("clock")), fleet.process());
        clock.set_environment(&library, &mut process);
        let _agent = fleet.start_agent_process(&mut process).await;
        let (command, canary) = after_canary(fleet.file_command("jumps", "x"));
        accepted(&fleet, &command).await;
        // Far beyond the time of the previous wave, and back.
        for seconds in [1800, -1800, 0] {
            clock.off_by(seconds);
            pause().await;
            assert!(!fleet.path("jumps").exists(), "{seconds}");
        }
        canary.succeeds(&fleet, &command).await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn a_witness_that_is_not_selected_answers_once() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let mut command = fleet.file_command("never", "x");
        command.to.filter = Some("false".to_owned());
        let witnesses = vec![Witness { node: node(), key: SigningKey::from_seed(&[7; 32]).public().to_short() }];
        let first = Wave { upto: RolloutPosition::for_node(command.id, &node()), witnesses, min_ok: 1 };
        command.options.waves = Some(waves(vec![first, Wave { upto: RolloutPosition::LAST, witnesses: vec![], min_ok: 0 }], 0));
        let mut marks = fleet.bus.subscribe(fleet.subjects.rollout_ok(command.id, &node()).as_str()).await.unwrap();
        fleet.bus.flush_roundtrip().await.unwrap();
        for _ in 0..10 {
            assert_eq!(accepted(&fleet, &command).await.status, AckStatus::NotSelected);
        }
        fleet.wait_until_published();
        let mark = tokio::time::timeout(PATIENCE, marks.next()).await.expect("a mark").unwrap();
        let mark: RolloutResult = serde_json::from_slice(&mark.payload).unwrap();
        assert_eq!(mark.outcome, CommandOutcome::NotSelected);
        assert!(tokio::time::timeout(Duration::from_secs(1), marks.next()).await.is_err(), "a second mark");
    });
}

#[test]
fn a_wave_waits_for_its_go_ahead() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let (mut command, canary) = after_canary(fleet.file_command("ahead", "x"));
        command.options.waves.as_mut().unwrap().go = true;
        accepted(&fleet, &command).await;
        canary.succeeds(&fleet, &command).await;
        pause().await;
        let go = |job, wave, key: Option<&SigningKey>| {
            let go = fleet.command(Action::Go(GoAhead { job, wave }));
            match key {
                Some(key) => sign_envelope(COMMAND_TYPE, serde_json::to_vec(&go).unwrap(), &[("ops", key)]).encode(),
                None => fleet.sign(&go),
            }
        };
        let mallory = SigningKey::from_seed(&[9; 32]);
        for envelope in [go(command.id, 2, Some(&mallory)), go(uuid::Uuid::nil(), 2, None), go(command.id, 1, None)] {
            fleet.bus.publish_stored(fleet.subjects.rollout_go_ahead(command.id).as_str(), &[], envelope).await.unwrap();
            pause().await;
            assert!(!fleet.path("ahead").exists());
        }
        fleet
            .bus
            .publish_stored(fleet.subjects.rollout_go_ahead(command.id).as_str(), &[], go(command.id, 2, None))
            .await
            .unwrap();
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn without_a_server_no_wave_begins() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let (command, canary) = after_canary(fleet.file_command("held", "x"));
        accepted(&fleet, &command).await;
        fleet.server.kill();
        pause().await;
        assert!(!fleet.path("held").exists());
        fleet.server.start_again();
        fleet.bus.watch().wait_for(|link| link.connected).await.unwrap();
        canary.succeeds(&fleet, &command).await;
        // The agent may need half a minute to connect again.
        let start = Instant::now();
        while !fleet.path("held").exists() {
            assert!(start.elapsed() < 2 * PATIENCE, "the rollout did not continue");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let done = fleet.only_result(command.id).await;
        assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
        // The same without the stream.
        let delete = format!("$JS.API.STREAM.DELETE.{}", fleet.subjects.stream("ROLLOUTS"));
        let (reply, mut inbox) = fleet.bus.request_inbox().await.unwrap();
        fleet.bus.publish_with_reply(&delete, &format!("{reply}.1"), &[], vec![]).await.unwrap();
        tokio::time::timeout(PATIENCE, inbox.next()).await.expect("the stream is deleted").unwrap();
        let command = in_waves(fleet.file_command("blind", "x"));
        accepted(&fleet, &command).await;
        fleet.until("the query fails", || fleet.log().contains("cannot ask whether the command may begin")).await;
        pause().await;
        assert!(!fleet.path("blind").exists());
    });
}

#[test]
fn only_the_latest_halt_or_resume_counts() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        // A message that is no `halt` or `resume` of this job changes nothing, and is reported.
        let mallory = SigningKey::from_seed(&[9; 32]);
        let mut refusals = fleet.bus.subscribe(fleet.subjects.event(&node(), EventKind::Refused).as_str()).await.unwrap();
        fleet.bus.flush_roundtrip().await.unwrap();
        for (code, name) in
            [("bad_signature", "forged"), ("wrong_fleet", "foreign"), ("expired", "old"), ("subject_mismatch", "about")]
        {
            let command = in_waves(fleet.file_command(name, "x"));
            let mut halt = override_command(&fleet, true, &command, 1);
            let envelope = match name {
                "forged" => sign_envelope(COMMAND_TYPE, serde_json::to_vec(&halt).unwrap(), &[("ops", &mallory)]).encode(),
                "foreign" => {
                    halt.fleet = "other".into();
                    fleet.sign(&halt)
                }
                "old" => fleet.sign(&override_command(&fleet, true, &command, -120_000)),
                _ => fleet.sign(&override_command(&fleet, true, &fleet.file_command("x", "x"), 1)),
            };
            keep(&fleet, &command, envelope).await;
            accepted(&fleet, &command).await;
            let message = tokio::time::timeout(PATIENCE, refusals.next()).await.expect(name).unwrap();
            let refused: RejectionEvent = serde_json::from_slice(&message.payload).unwrap();
            assert_eq!((refused.code.as_str(), refused.subject), (code, fleet.subjects.rollout_control(command.id).to_string()));
            assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed, "{name}");
        }
        // A halt stays, even if an older resume replaces it in the stream.
        let command = in_waves(fleet.file_command("halted", "x"));
        let (before, halt, after) = (
            override_command(&fleet, false, &command, 1),
            override_command(&fleet, true, &command, 2),
            override_command(&fleet, false, &command, 3),
        );
        keep(&fleet, &command, fleet.sign(&halt)).await;
        accepted(&fleet, &command).await;
        fleet.until("the node has the halt", || fleet.log().contains("halted by ops")).await;
        keep(&fleet, &command, fleet.sign(&before)).await;
        let done: CommandResult =
            serde_json::from_value(fleet.answers(&before, fleet.sign(&before), 1).await[0].clone()).unwrap();
        assert_eq!(done.message.as_deref(), Some("a later `halt` or `resume` of this job is active"));
        pause().await;
        assert!(!fleet.path("halted").exists());
        // A later resume releases the command at once, by direct message alone. The result is stored like any other.
        let done: CommandResult = serde_json::from_value(fleet.answers(&after, fleet.sign(&after), 1).await[0].clone()).unwrap();
        assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        assert_eq!(fleet.only_result(after.id).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn a_waiting_job_ends_by_failures_of_others_and_by_its_deadline() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let mut command = in_waves(fleet.file_command("spent", "x"));
        command.to = ensign::wire::Target::all();
        for name in ["db1", "db2"] {
            let subject = fleet.subjects.rollout_failed(command.id, &name.parse().unwrap());
            fleet.bus.publish_stored(subject.as_str(), &[], b"{}".to_vec()).await.unwrap();
        }
        accepted(&fleet, &command).await;
        let done = fleet.only_result(command.id).await;
        assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Halted, Some("halted")));
        assert_eq!(done.message.as_deref(), Some("the error budget of 1 is exhausted: db1, db2 failed first"));
        // A node that died during its run has failed too, and reports this when it is back.
        let command = in_waves(fleet.slow_command("dies", 20));
        fleet.send(&command).await;
        fleet.until("the run", || !fleet.lines("dies").is_empty()).await;
        agent.kill();
        // Meanwhile the time of another command ends: its own ledger has an acceptance of hours ago.
        let mut late = in_waves(fleet.file_command("late", "x"));
        late.issued -= SignedDuration::from_hours(2);
        late.expires = late.issued + SignedDuration::from_mins(5);
        let halt = override_command(&fleet, true, &late, 1);
        keep(&fleet, &late, fleet.sign(&halt)).await;
        let record = json!({"accepted": {
            "id": late.id, "digest": "0", "issued": late.issued, "expires": late.expires,
            "envelope": base64::engine::general_purpose::STANDARD.encode(fleet.sign(&late)),
        }});
        let ledger = fleet.path("state/ledger.jsonl");
        let mut text = std::fs::read_to_string(&ledger).unwrap();
        text.extend([record.to_string(), "\n".to_owned()]);
        std::fs::write(&ledger, text).unwrap();
        let _agent = fleet.start_agent().await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Interrupted);
        let stream = fleet.subjects.stream("ROLLOUTS");
        let failures = fleet.subjects.rollout_failures(command.id);
        let mut marks = fleet.bus.follow(&stream, failures.as_str(), ensign::transport::StartAt::Beginning).await.unwrap();
        let mark = tokio::time::timeout(PATIENCE, marks.next()).await.expect("a mark").unwrap().unwrap();
        let mark: RolloutResult = serde_json::from_slice(&mark.payload).unwrap();
        assert_eq!((mark.node, mark.outcome), (node(), CommandOutcome::Interrupted));
        // The node may have had no chance to query a halt.
        let done = fleet.only_result(late.id).await;
        assert!([CommandOutcome::Halted, CommandOutcome::Expired].contains(&done.outcome), "{done:?}");
        assert!(!fleet.path("late").exists());
    });
}

#[test]
fn health_that_turns_critical_counts_as_a_failure() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let file = fleet.path("healthy");
        let check = json!([{"command": format!("sh -c 'test ! -e {} || exit 2'", fleet.path("broken").display()), "tries": 1}]);
        let own = nix::unistd::geteuid().as_raw().to_string();
        let properties = json!({"name": file, "ensure": "present", "content": "x", "owner": own, "group": own, "mode": "0644", "health_checks": check});
        let gated = |hold: u64| {
            let mut command = fleet.command(ensure_action("file", &properties));
            // The node is in the first of two waves.
            let witnesses = vec![Witness { node: node(), key: SigningKey::from_seed(&[7; 32]).public().to_short() }];
            let first = Wave { upto: RolloutPosition::for_node(command.id, &node()), witnesses, min_ok: 1 };
            let steps = vec![first, Wave { upto: RolloutPosition::LAST, witnesses: vec![], min_ok: 0 }];
            command.options.waves = Some(RolloutPlan { hold: HumanDuration::seconds(hold), health: true, ..waves(steps, 0) });
            command
        };
        let mut events = fleet.events().await;
        let run = async |breaks: bool| {
            // A failing health check must come after the run and before the end of the hold.
            let command = gated(if breaks { 8 } else { 1 });
            fleet.send(&command).await;
            let done = fleet.only_result(command.id).await;
            assert_ne!(done.outcome, CommandOutcome::Failed);
            if breaks {
                assert!(Timestamp::now() < done.at + SignedDuration::from_secs(8), "too slow for a decision");
                std::fs::write(fleet.path("broken"), "").unwrap();
            }
            command
        };
        let stream = fleet.subjects.stream("ROLLOUTS");
        let well = run(false).await;
        let ok = fleet.subjects.rollout_successes(well.id);
        let mut marks = fleet.bus.follow(&stream, ok.as_str(), ensign::transport::StartAt::Beginning).await.unwrap();
        tokio::time::timeout(PATIENCE, marks.next()).await.expect("a mark").unwrap().unwrap();
        let ill = run(true).await;
        let filter = format!("ensign.v1.test.rollout.{}.failed.web1", ill.id);
        let mut marks = fleet.bus.follow(&stream, &filter, ensign::transport::StartAt::Beginning).await.unwrap();
        tokio::time::timeout(PATIENCE, marks.next()).await.expect("a mark").unwrap().unwrap();
        // The node reports success for the command that was healthy to the end of its hold, and not for the other.
        let said = async |filter: ensign::wire::subject::Subject| {
            fleet.bus.last_per_subject(&stream, filter.as_str()).await.unwrap().len()
        };
        let (ok, failed) = (|id| fleet.subjects.rollout_successes(id), |id| fleet.subjects.rollout_failures(id));
        assert_eq!((said(ok(well.id)).await, said(failed(well.id)).await), (1, 0));
        assert_eq!((said(ok(ill.id)).await, said(failed(ill.id)).await), (0, 1));
        let event = loop {
            let message = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event").unwrap().unwrap();
            let event: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
            if event["health_check_only"] == true {
                break event;
            }
        };
        assert_eq!((&event["failed"], &event["run_id"]), (&json!(true), &json!(ill.id)), "{event}");
        // Only the checks ran, without any other effect.
        assert_eq!(fleet.results(ill.id).await.len(), 1);
        assert_eq!(agent.stop(), Some(0));
    });
}
