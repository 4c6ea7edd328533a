//! A node that took an assignment goes back to the one before, when the rollout of the assignment fails.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ensign::model::{HumanDuration, NodeId};
use ensign::trust::SigningKey;
use ensign::wire::command::{Command, RolloutPlan};
use ensign::wire::receipt::{HEADER, ReceiptBody};
use ensign::wire::report::{NodeState, ROLLOUT_FAILURE, RevertStatus, RolloutResult};
use ensign::wire::rollout_plan::{OnFailure, RolloutPosition, WAVE_MARGIN, Wave, Witness};
use ensign::wire::{CommandOutcome, digest};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::fleet::Fleet;
use crate::support::nats::on_each;
use crate::support::single_node::{SingleNodeFleet, apply, assign_action, node, on_every_server};

/// A manifest that writes its name into `site` and appends it to `effect`. Its health is good while there is no `broken`.
fn manifest(directory: &Path, name: &str, fails: bool) -> PathBuf {
    let at = |file: &str| directory.join(file).display().to_string();
    let own = nix::unistd::geteuid().as_raw().to_string();
    let check = format!("sh -c 'test ! -e {} || exit 2'", at("broken"));
    let file = json!({at("site"): {
        "ensure": "present", "content": name, "owner": own, "group": own, "mode": "0644",
        "health_checks": [{"command": check, "tries": 1}],
    }});
    let effect = json!({"effect": {"command": format!("echo {name} >> {}", at("effect")), "provider": "shell"}});
    let last = json!({"last": {"command": if fails { "false" } else { "true" }, "provider": "shell"}});
    let path = directory.join(format!("{name}.yaml"));
    std::fs::write(&path, json!({"ccm": {"resources": [{"file": [file]}, {"exec": [effect, last]}]}}).to_string()).unwrap();
    path
}

/// An assignment whose nodes go back. This node is in the first of two waves, with another witness if there is one.
fn in_first_wave(mut command: Command, hold: u64, other: Option<(&NodeId, &SigningKey)>) -> Command {
    let own = SigningKey::from_seed(&[9; 32]);
    let both: Vec<(NodeId, &SigningKey)> =
        [(node(), &own)].into_iter().chain(other.map(|(other, key)| (other.clone(), key))).collect();
    let upto = both.iter().map(|(node, _)| RolloutPosition::for_node(command.id, node)).max().unwrap();
    let min_ok = both.len() as u64;
    let witnesses = both.into_iter().map(|(node, key)| Witness { node, key: key.public().to_short() }).collect();
    command.options.waves = Some(RolloutPlan {
        steps: vec![Wave { upto, witnesses, min_ok }, Wave { upto: RolloutPosition::LAST, witnesses: vec![], min_ok: 0 }],
        hold: HumanDuration::seconds(hold),
        margin: WAVE_MARGIN,
        max_failed: 0,
        health: true,
        go: false,
        on_failure: OnFailure::Revert,
    });
    command
}

fn assignment(fleet: &SingleNodeFleet, serial: u64, name: &str, fails: bool) -> Command {
    fleet.assignment(serial, assign_action(apply(&manifest(&fleet.path(""), name, fails))))
}

async fn assigned(fleet: &SingleNodeFleet, command: &Command) -> CommandOutcome {
    fleet.store_assignment(command).await;
    fleet.only_result(command.id).await.outcome
}

fn site(fleet: &SingleNodeFleet) -> String {
    std::fs::read_to_string(fleet.path("site")).unwrap_or_default()
}

fn runs(fleet: &SingleNodeFleet, name: &str) -> usize {
    fleet.lines("effect").iter().filter(|line| *line == name).count()
}

fn reverted(state: &NodeState) -> Option<&RevertStatus> {
    state.assignments.first()?.reverted.as_ref()
}

/// The failures of a command that the stream has.
async fn failures(fleet: &SingleNodeFleet, command: &Command) -> Vec<RolloutResult> {
    let stream = fleet.subjects.stream("ROLLOUTS");
    let marks = fleet.bus.last_per_subject(&stream, fleet.subjects.rollout_failures(command.id).as_str()).await.unwrap();
    marks.iter().map(|mark| serde_json::from_slice(&mark.payload).unwrap()).collect()
}

/// The events about a return.
async fn events(fleet: &SingleNodeFleet) -> Vec<String> {
    fleet.wait_until_published();
    let filter = format!("ensign.v1.test.event.{}.lifecycle", node());
    let stored = crate::support::node_dir::stored(&fleet.bus, &fleet.subjects.stream("EVENTS"), &filter).await;
    let events = stored.iter().map(|event| serde_json::from_slice::<Value>(&event.payload).unwrap());
    events.filter(|event| event["what"] == "reverted").map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_failed_run_goes_back_for_good() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let first = assignment(&fleet, 1, "one", false);
        assert_eq!(assigned(&fleet, &first).await, CommandOutcome::Changed);
        // The node has the content on its own disk.
        std::fs::remove_file(fleet.path("one.yaml")).unwrap();
        let second = in_first_wave(assignment(&fleet, 2, "two", true), 60, None);
        fleet.store_assignment(&second).await;
        let done = fleet.only_result(second.id).await;
        let said = done.message.clone().unwrap_or_default();
        assert!(done.outcome == CommandOutcome::Failed && said.contains("reverted from serial 2 to serial 1"), "{done:?}");
        fleet.until("the content before", || site(&fleet) == "one").await;
        let state = fleet.state("the return", |state| reverted(state).is_some()).await;
        let back = reverted(&state).unwrap();
        assert!(back.to == Some(1) && back.why.contains("its run failed: exec#last"), "{back:?}");
        assert!(state.alarms.iter().any(|alarm| alarm.contains("channel base: reverted from serial 2 to serial 1")), "{state:?}");
        assert_eq!((state.channels["base"].serial, state.assignments[0].id), (2, second.id), "the serial counts as used");
        let marks = failures(&fleet, &second).await;
        assert!(marks.len() == 1 && marks[0].reverts, "{marks:?}");
        // The same command again, also after a restart, is not applied again.
        fleet.store_assignment(&second).await;
        agent.kill();
        let agent = fleet.start_agent().await;
        fleet
            .state("the first runs again", |state| {
                reverted(state).is_some() && state.assignments[0].ran.is_some_and(|ran| ran > done.at) && state.running.is_none()
            })
            .await;
        assert_eq!((runs(&fleet, "two"), site(&fleet)), (1, "one".to_owned()));
        let told = events(&fleet).await;
        assert!(told.len() == 1 && told[0].contains("base: reverted from serial 2 to serial 1"), "{told:?}");
        // A later serial takes its place.
        let third = assignment(&fleet, 3, "three", false);
        assert_eq!(assigned(&fleet, &third).await, CommandOutcome::Changed);
        assert_eq!(site(&fleet), "three");
        fleet.state("the third", |state| state.assignments[0].id == third.id && reverted(state).is_none()).await;
        drop(agent);
    });
}

#[test]
fn without_an_assignment_before_a_failed_one_ends() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let first = in_first_wave(assignment(&fleet, 1, "one", true), 60, None);
        assert_eq!(assigned(&fleet, &first).await, CommandOutcome::Failed);
        let state = fleet.state("the end", |state| reverted(state).is_some()).await;
        assert_eq!((reverted(&state).unwrap().to, &state.assignments[0].in_force), (None, &None), "{state:?}");
        assert_eq!(site(&fleet), "one", "nothing is undone");
        let told = events(&fleet).await;
        assert!(told.len() == 1 && told[0].contains("ended serial 1 and undid nothing, as no assignment was before"), "{told:?}");
    });
}

#[test]
fn health_that_turns_critical_before_the_end_of_the_hold_goes_back() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        assert_eq!(assigned(&fleet, &assignment(&fleet, 1, "one", false)).await, CommandOutcome::Changed);
        let second = in_first_wave(assignment(&fleet, 2, "two", false), 8, None);
        assert_eq!(assigned(&fleet, &second).await, CommandOutcome::Changed);
        std::fs::write(fleet.path("broken"), "").unwrap();
        fleet.until("the content before", || site(&fleet) == "one").await;
        let state = fleet.state("the return", |state| reverted(state).is_some()).await;
        assert_eq!(reverted(&state).unwrap().why, "a health check is critical");
        let marks = failures(&fleet, &second).await;
        assert!(marks.len() == 1 && marks[0].reverts, "{marks:?}");
        let stream = fleet.subjects.stream("ROLLOUTS");
        let ok = fleet.bus.last_per_subject(&stream, fleet.subjects.rollout_successes(second.id).as_str()).await.unwrap();
        assert!(ok.is_empty(), "no success was reported");
    });
}

/// Publishes a failure of a witness, signed with this key if there is one.
async fn publish_failure(fleet: &SingleNodeFleet, command: &Command, other: &NodeId, key: Option<&SigningKey>, reverts: bool) {
    let subject = fleet.subjects.rollout_failed(command.id, other);
    let (protocol, outcome) = (ROLLOUT_FAILURE.to_owned(), CommandOutcome::Failed);
    let mark = RolloutResult { protocol, id: command.id, node: other.clone(), at: Timestamp::now(), outcome, reverts };
    let payload = serde_json::to_vec(&mark).unwrap();
    let statement = ReceiptBody {
        node: other.clone(),
        boot: uuid::Uuid::nil(),
        seq: None,
        prev: None,
        subject: subject.as_str().to_owned(),
        sha256: digest(&payload),
        at: mark.at,
        command: Some(digest(&serde_json::to_vec(command).unwrap())),
    };
    let receipt = key.map(|key| ensign::trust::issue_receipt(key, &statement));
    let headers: Vec<(&str, &str)> = receipt.iter().map(|receipt| (HEADER, receipt.as_str())).collect();
    fleet.bus.publish_stored(subject.as_str(), &headers, payload).await.unwrap();
}

#[test]
fn only_signed_failures_of_the_wave_send_a_healthy_node_back() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        assert_eq!(assigned(&fleet, &assignment(&fleet, 1, "one", false)).await, CommandOutcome::Changed);
        let (other, key): (NodeId, _) = ("web9".parse().unwrap(), SigningKey::from_seed(&[7; 32]));
        let second = in_first_wave(assignment(&fleet, 2, "two", false), 4, Some((&other, &key)));
        assert_eq!(assigned(&fleet, &second).await, CommandOutcome::Changed);
        // The server invents a failure, or repeats one of a node that could not fetch the manifest. The node asks each second.
        let forger = SigningKey::from_seed(&[8; 32]);
        for (key, reverts) in [(None, true), (Some(&forger), true), (Some(&key), false)] {
            publish_failure(&fleet, &second, &other, key, reverts).await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            let state = fleet.state("a state", |_| true).await;
            assert!(reverted(&state).is_none() && site(&fleet) == "two", "{state:?}");
        }
        publish_failure(&fleet, &second, &other, Some(&key), true).await;
        fleet.until("the content before", || site(&fleet) == "one").await;
        let state = fleet.state("the return", |state| reverted(state).is_some()).await;
        assert_eq!(reverted(&state).unwrap().why, "1 of 2 witnesses of wave 1 failed (web9), and 2 must succeed");
        assert!(failures(&fleet, &second).await.iter().all(|mark| mark.node == other), "its own run was good");
        let told = events(&fleet).await;
        assert_eq!(told.len(), 1, "{told:?}");
    });
}

#[test]
fn a_canary_goes_back_while_the_operator_is_away() {
    const NODES: [&str; 3] = ["web1", "web2", "web3"];
    on_each(|binary| {
        let mut fleet = Fleet::new(binary, &NODES.map(|node| (node, "web")));
        for node in NODES {
            fleet.start_with(node, "web", "", "exec = true");
        }
        let own = nix::unistd::geteuid().as_raw().to_string();
        let write = |name: &str, fails: bool| {
            let file = json!({"{{ Facts.site }}/conf": {"ensure": "present", "content": name, "owner": own, "group": own, "mode": "0644"}});
            let last = json!({"last": {"command": if fails { "false" } else { "true" }, "provider": "shell"}});
            let path = fleet.path(&format!("{name}.yaml"));
            std::fs::write(&path, json!({"ccm": {"resources": [{"file": [file]}, {"exec": [last]}]}}).to_string()).unwrap();
            path.display().to_string()
        };
        let (good, bad) = (write("good", false), write("bad", true));
        let content = |node: &str| std::fs::read_to_string(fleet.path(node).join("site/conf")).unwrap_or_default();
        let sent = fleet.run(&["assign", "base", &good, "--all"]);
        assert_eq!(sent.code, 0, "{}{}", sent.stdout, sent.stderr);
        let flags = ["--all", "--waves", "1,100%", "--hold", "30s", "--on-failure", "revert"];
        // An option of assignments only.
        let apply = fleet.run(&[&["apply", &good], &flags[..]].concat());
        assert!(apply.code == 2 && apply.stderr.contains("on_failure"), "{}", apply.stderr);
        let sent = fleet.run(&[&["assign", "base", &bad, "--detach"], &flags[..]].concat());
        assert_eq!(sent.code, 0, "{}{}", sent.stdout, sent.stderr);
        assert!(sent.stderr.contains("go back to their assignment before"), "{}", sent.stderr);
        let id = sent.stdout.trim().to_owned();
        let mut shown = Value::Null;
        fleet.wait_for("the return of the canary", || {
            shown = fleet.run(&["job", "show", &id, "--output", "json"]).json();
            shown["reverted"].as_object().is_some_and(|reverted| reverted.len() == 1)
        });
        let (canary, back) = shown["reverted"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(back["to"], json!(1), "{shown}");
        fleet.wait_for("the content before", || NODES.iter().all(|node| content(node) == "good"));
        let text = fleet.run(&["job", "show", &id]).stdout;
        assert!(text.contains(&format!("{canary}  reverted to serial 1")), "{text}");
        fleet.wait_for("the status", || {
            fleet.run(&["status"]).stdout.contains("channel base: reverted from serial 2 to serial 1: its run failed: exec#last")
        });
        let channels = fleet.run(&["channels"]).stdout;
        assert!(channels.contains("1 node went back to the assignment before"), "{channels}");
        let events = fleet.run(&["events", "--since", "10m"]).stdout;
        assert!(events.contains("reverted from serial 2 to serial 1"), "{events}");
    });
}
