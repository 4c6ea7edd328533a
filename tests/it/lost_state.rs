//! Lost state: a ledger, a trust bundle, or both. Nothing runs a second time, a revoked key stays revoked, and the node reports
//! the loss.

use std::io::{BufRead, BufReader};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::{Ack, AckStatus, COMMAND_TYPE, CommandOutcome, CommandResult, Envelope};

use crate::support::nats::binaries;
use crate::support::single_node::{SingleNodeFleet, apply, assign_action};
use crate::support::skip::has_program;

fn remove(fleet: &SingleNodeFleet, names: &[&str]) {
    for name in names {
        let path = fleet.path("state").join(name);
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
}

async fn answer(fleet: &SingleNodeFleet, command: &ensign::wire::Command) -> (CommandOutcome, Option<String>) {
    let answer = fleet.answers(command, fleet.sign(command), 1).await.remove(0);
    match serde_json::from_value::<Ack>(answer.clone()) {
        Ok(ack) if ack.status == AckStatus::Accepted => (fleet.only_result(command.id).await.outcome, None),
        _ => serde_json::from_value::<CommandResult>(answer).map(|done| (done.outcome, done.code)).unwrap(),
    }
}

#[tokio::test]
async fn a_command_does_not_run_again_after_the_ledger_was_lost() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let agent = fleet.start_agent().await;
    let once = fleet.slow_command("once", 0);
    assert_eq!(answer(&fleet, &once).await.0, CommandOutcome::Changed);
    fleet.wait_until_published();
    agent.kill();
    remove(&fleet, &["ledger.jsonl"]);
    let agent = fleet.start_agent().await;
    let said = "the ledger of accepted commands was lost: commands signed before ";
    let is_said = |state: &ensign::wire::NodeState| state.alarms.iter().any(|text| text.starts_with(said));
    fleet.state("the loss", is_said).await;
    assert_eq!(answer(&fleet, &once).await, (CommandOutcome::Refused, Some("before_ledger".to_owned())));
    let new = fleet.slow_command("new", 0);
    assert_eq!(answer(&fleet, &new).await.0, CommandOutcome::Changed);
    fleet.wait_until_published();
    // All state is lost, including the key. To the others this is a new node, and it runs no command twice.
    agent.kill();
    std::fs::remove_dir_all(fleet.path("state")).unwrap();
    let _agent = fleet.start_agent().await;
    for command in [&once, &new] {
        assert_eq!(answer(&fleet, command).await.1.as_deref(), Some("before_ledger"));
    }
    assert_eq!((fleet.lines("once").len(), fleet.lines("new").len()), (2, 2), "each command ran once, to its end");
    fleet.state("no loss", |state| !is_said(state)).await;
}

#[tokio::test]
async fn a_node_without_its_trust_bundle_refuses_all_commands() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let agent = fleet.start_agent().await;
    fleet.store_trust(2).await;
    fleet.state("version 2", |state| state.trust == 2).await;
    agent.kill();
    // Withheld: the stream has no version any more.
    let stream = fleet.subjects.stream("TRUST");
    fleet.bus.purge(&stream, fleet.subjects.trust(2).as_str()).await.unwrap();
    remove(&fleet, &["trust.json"]);
    let agent = fleet.start_agent().await;
    let said = "the trust state was lost: version 2 of the trust bundle was in force, and only version 1 is left";
    fleet.state("the loss", |state| state.trust == 1 && state.alarms.iter().any(|text| text.starts_with(said))).await;
    let refused = (CommandOutcome::Refused, Some("trust_lost".to_owned()));
    assert_eq!(answer(&fleet, &fleet.slow_command("held", 0)).await, refused);
    // Another start does not change this.
    agent.kill();
    let _agent = fleet.start_agent().await;
    assert_eq!(answer(&fleet, &fleet.slow_command("held", 0)).await, refused);
    fleet.store_trust(2).await;
    fleet.state("version 2 again", |state| state.trust == 2 && state.alarms.is_empty()).await;
    assert_eq!(answer(&fleet, &fleet.slow_command("free", 0)).await.0, CommandOutcome::Changed);
    assert!(fleet.lines("held").is_empty());
}

#[tokio::test]
async fn a_node_without_state_begins_with_its_configured_trust_bundle() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let agent = fleet.start_agent().await;
    let revoking = fleet.trust_with(2, |bundle| bundle.revoked = vec!["ops".into()]);
    let subject = fleet.subjects.trust(2);
    fleet.bus.publish_stored(subject.as_str(), &[], revoking.clone()).await.unwrap();
    fleet.state("version 2", |state| state.trust == 2).await;
    let revoked = (CommandOutcome::Refused, Some("revoked_key".to_owned()));
    assert_eq!(answer(&fleet, &fleet.slow_command("before", 0)).await, revoked);
    agent.kill();
    std::fs::remove_dir_all(fleet.path("state")).unwrap();
    fleet.bus.purge(&fleet.subjects.stream("TRUST"), subject.as_str()).await.unwrap();
    let _agent = fleet.start_agent().await;
    assert_eq!(answer(&fleet, &fleet.slow_command("meanwhile", 0)).await.0, CommandOutcome::Changed);
    fleet.bus.publish_stored(subject.as_str(), &[], revoking).await.unwrap();
    fleet.state("version 2 again", |state| state.trust == 2).await;
    assert_eq!(answer(&fleet, &fleet.slow_command("after", 0)).await, revoked);
    assert!(fleet.lines("before").is_empty() && fleet.lines("after").is_empty());
}

#[tokio::test]
async fn an_assignment_that_is_not_renewed_raises_an_alarm_and_stays_active() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let _agent = fleet.start_agent().await;
    std::fs::write(fleet.path("m.yaml"), "ccm:\n  resources: []\n").unwrap();
    let mut command = fleet.assignment(1, assign_action(apply(&fleet.path("m.yaml"))));
    command.expires = command.issued + jiff::SignedDuration::from_secs(4);
    fleet.store_assignment(&command).await;
    let said = "channel base: the assignment expired at ";
    let state = fleet.state("the alarm", |state| state.alarms.iter().any(|trouble| trouble.contains(said))).await;
    assert_eq!((state.assignments.len(), state.assignments[0].id), (1, command.id), "{state:?}");
}

#[tokio::test]
async fn a_costly_where_blocks_no_other_command() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let _agent = fleet.start_agent().await;
    let mut costly = fleet.slow_command("costly", 0);
    let squares = "len(filter(map(1..3000, len(filter(1..3000, # % 7 == 0))), # > 0)) > 0";
    costly.to.filter = Some(squares.to_owned());
    costly.options.timeout = ensign::model::HumanDuration::seconds(5);
    fleet.send(&costly).await;
    let status = fleet.command(ensign::wire::Action::Status(ensign::wire::command::NoParameters {}));
    assert_eq!(answer(&fleet, &status).await, (CommandOutcome::Stable, None));
    assert!(!fleet.log().contains("bad_where"), "the agent's own thread evaluated the filter first");
    fleet.until("its end", || fleet.log().contains("bad_where")).await;
}

#[tokio::test]
async fn a_stopping_agent_accepts_no_command() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let agent = fleet.start_agent().await;
    let running = fleet.gated_command("running");
    fleet.send(&running).await;
    fleet.until("the run", || !fleet.lines("running").is_empty()).await;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(agent.0.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    fleet.until("the agent stops", || fleet.log().contains("stopping")).await;
    // The agent no longer listens, or reports its stop.
    fleet.send(&fleet.slow_command("late", 0)).await;
    fleet.open_gate("running");
    let mut agent = agent;
    assert!(agent.0.wait().unwrap().success());
    assert_eq!((fleet.lines("running").len(), fleet.lines("late").len()), (2, 0));
}

#[tokio::test]
async fn a_flood_of_forged_messages_does_not_delay_a_valid_command() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let _agent = fleet.start_agent().await;
    let foreign: Vec<(String, SigningKey)> =
        (0..16).map(|n| (if n == 0 { "ops".into() } else { format!("x{n}") }, SigningKey::from_seed(&[100 + n; 32]))).collect();
    let by: Vec<(&str, &SigningKey)> = foreign.iter().map(|(id, key)| (id.as_str(), key)).collect();
    let forged = |n: u32| {
        let command = fleet.slow_command(&format!("forged{n}"), 0);
        let envelope: Envelope = sign_envelope(COMMAND_TYPE, serde_json::to_vec(&command).unwrap(), &by);
        (command, envelope.encode())
    };
    let mut slowest = Duration::ZERO;
    for round in 0..5 {
        for n in 0..20 {
            let (command, envelope) = forged(round * 20 + n);
            fleet.publish(&command, envelope, "_INBOX.nobody").await;
        }
        let began = Instant::now();
        let (outcome, code) = answer(&fleet, &fleet.slow_command("good", 0)).await;
        assert_eq!((outcome, code), (CommandOutcome::Changed, None));
        slowest = slowest.max(began.elapsed());
    }
    println!("behind 20 forged messages of 16 signatures, a command is done within {slowest:?}");
    assert_eq!(fleet.lines("good").len(), 10);
}

#[tokio::test]
async fn acknowledged_commands_are_on_the_disk() {
    if !has_program("strace", "strace") {
        return;
    }
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let agent = fleet.start_agent().await;
    let (trace, pid) = (fleet.path("trace"), agent.0.id().to_string());
    let mut strace = Process::new("strace")
        .args(["-f", "-y", "-e", "trace=write,writev,fdatasync,fsync,sendto,sendmsg", "-s", "4096", "-p", &pid, "-o"])
        .arg(&trace)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut attached = String::new();
    BufReader::new(strace.stderr.as_mut().unwrap()).read_line(&mut attached).unwrap();
    assert!(attached.contains("attached"), "{attached}");
    assert_eq!(answer(&fleet, &fleet.slow_command("once", 0)).await.0, CommandOutcome::Changed);
    agent.kill();
    strace.wait().unwrap();
    let text = std::fs::read_to_string(trace).unwrap();
    let first = |what: &dyn Fn(&str) -> bool| text.lines().position(what).unwrap_or_else(|| panic!("{text}"));
    let written = first(&|line| line.contains("write(") && line.contains("ledger.jsonl"));
    let synced = first(&|line| line.contains("sync(") && line.contains("ledger.jsonl"));
    let told = first(&|line| line.contains("io.ensign.v1.job.ack"));
    assert!(written < synced && synced < told, "{written}, {synced}, {told}: {text}");
}
