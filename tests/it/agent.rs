//! The agent as a process, against a real server: commands that run once, refusals, restarts.

use std::path::Path;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::command::{Action, Apply, Command, Target};
use ensign::wire::report::ChannelPosition;
use ensign::wire::{Ack, AckStatus, COMMAND_TYPE, CommandOutcome, CommandResult, NodeState, RejectionEvent};
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::support::node_dir::stored;
use crate::support::single_node::{Agent, FLEET, PATIENCE, SingleNodeFleet, apply, node, on_every_server};

async fn passed(time: Timestamp) {
    while Timestamp::now() <= time {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends the same bytes until they have a result: an agent that is still connecting misses them.
async fn send_until_result(fleet: &SingleNodeFleet, command: &Command) -> CommandResult {
    let (envelope, start) = (fleet.sign(command), Instant::now());
    let (reply, mut inbox) = fleet.bus.request_inbox().await.unwrap();
    loop {
        fleet.publish(command, envelope.clone(), &format!("{reply}.1")).await;
        while let Ok(Some(answer)) = tokio::time::timeout(Duration::from_secs(1), inbox.next()).await {
            if !answer.no_responders {
                return fleet.only_result(command.id).await;
            }
        }
        assert!(start.elapsed() < 2 * PATIENCE, "no agent answers");
    }
}

#[test]
fn a_signed_ensure_runs_once_however_often_it_is_sent() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let command = fleet.file_command("motd", "hello\n");
        let envelope = fleet.sign(&command);
        let answers = fleet.answers(&command, envelope.clone(), 2).await;
        let ack: Ack = serde_json::from_value(answers[0].clone()).unwrap();
        assert_eq!((ack.status, ack.id), (AckStatus::Accepted, command.id));
        let done: CommandResult = serde_json::from_value(answers[1].clone()).unwrap();
        assert_eq!(done.outcome, CommandOutcome::Changed);
        assert_eq!(done.event.as_ref().unwrap().run_id, Some(command.id));
        assert_eq!(fleet.lines("motd"), ["hello"]);
        assert_eq!(fleet.only_result(command.id).await, done);
        // Again: the same answer, and no second run.
        std::fs::remove_file(fleet.path("motd")).unwrap();
        let again = fleet.answers(&command, envelope, 1).await;
        assert_eq!(serde_json::from_value::<CommandResult>(again[0].clone()).unwrap(), done);
        assert!(!fleet.path("motd").exists());
        assert_eq!(fleet.results(command.id).await.len(), 1);
        // A new command for the same file: changed once more, then stable. The stable run publishes no event.
        let outcomes = async |command: Command| {
            fleet.send(&command).await;
            fleet.only_result(command.id).await.outcome
        };
        assert_eq!(outcomes(fleet.file_command("motd", "hello\n")).await, CommandOutcome::Changed);
        assert_eq!(outcomes(fleet.file_command("motd", "hello\n")).await, CommandOutcome::Stable);
        fleet.wait_until_published();
        let events = stored(&fleet.bus, &fleet.subjects.stream("EVENTS"), fleet.subjects.events(None).as_str()).await;
        assert_eq!(events.iter().filter(|event| event.subject.ends_with(".transaction")).count(), 2);
    });
}

#[test]
fn invalid_commands_are_refused_answered_and_published() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "paths = [\"/nonesuch\"]\n").await;
        let _agent = fleet.start_agent().await;
        let good = fleet.slow_command("unused", 0);
        let with = |change: &dyn Fn(&mut Command)| {
            let mut command = Command { id: Uuid::now_v7(), ..good.clone() };
            change(&mut command);
            command
        };
        let other = SigningKey::from_seed(&[9; 32]);
        let forged = with(&|_| {});
        let mut cases = vec![(
            forged.clone(),
            sign_envelope(COMMAND_TYPE, serde_json::to_vec(&forged).unwrap(), &[("ops", &other)]).encode(),
            "bad_signature",
        )];
        for (command, code) in [
            (with(&|command| command.fleet = "other".into()), "wrong_fleet"),
            (with(&|command| command.to = Target::nodes(vec!["db1".parse().unwrap()])), "not_for_me"),
            (
                with(&|command| {
                    command.issued -= SignedDuration::from_mins(30);
                    command.expires = command.issued + SignedDuration::from_mins(5);
                }),
                "expired",
            ),
            (with(&|command| command.action = fleet.file_command("motd", "x").action), "local_limit"),
        ] {
            cases.push((command.clone(), fleet.sign(&command), code));
        }
        let mut events = fleet.events().await;
        for (command, envelope, code) in cases {
            let (reply, mut inbox) = fleet.bus.request_inbox().await.unwrap();
            let subject = format!("ensign.v1.{FLEET}.cmd.{}.node.web1", command.action.name());
            fleet.bus.publish_with_reply(&subject, &format!("{reply}.1"), &[], envelope).await.unwrap();
            let answer = tokio::time::timeout(PATIENCE, inbox.next()).await.expect("an answer");
            let done: CommandResult = serde_json::from_slice(&answer.unwrap().payload).unwrap();
            assert_eq!(done.code.as_deref(), Some(code), "{done:?}");
            let refused = loop {
                let message = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event").unwrap().unwrap();
                if message.subject.ends_with(".refused") {
                    break serde_json::from_slice::<RejectionEvent>(&message.payload).unwrap();
                }
            };
            assert_eq!((refused.code.as_str(), refused.digest), (code, done.digest));
        }
        assert!(!fleet.path("unused").exists() && !fleet.path("motd").exists());
    });
}

#[test]
fn a_full_queue_is_busy_and_intake_answers_during_a_run() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let long = fleet.gated_command("long");
        fleet.send(&long).await;
        fleet.until("the run", || !fleet.lines("long").is_empty()).await;
        let waiting: Vec<Command> = (0..2).map(|number| fleet.slow_command(&format!("w{number}"), 0)).collect();
        for command in &waiting {
            let ack: Ack = serde_json::from_value(fleet.answers(command, fleet.sign(command), 1).await[0].clone()).unwrap();
            assert_eq!(ack.status, AckStatus::Accepted);
        }
        let over = fleet.slow_command("over", 0);
        let done: CommandResult = serde_json::from_value(fleet.answers(&over, fleet.sign(&over), 1).await[0].clone()).unwrap();
        assert_eq!((done.outcome, fleet.lines("long").len()), (CommandOutcome::Busy, 1));
        fleet.open_gate("long");
        for command in &waiting {
            assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        }
        assert!(fleet.lines("over").is_empty());
    });
}

#[test]
fn a_command_that_waited_too_long_does_not_run() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let held = fleet.gated_command("held");
        fleet.send(&held).await;
        fleet.until("the command runs", || !fleet.lines("held").is_empty()).await;
        // The node accepts a late command for half a minute, as clocks differ, and starts none after its time.
        let mut late = fleet.slow_command("late", 0);
        late.expires = late.issued + SignedDuration::from_secs(1);
        let ack = fleet.answers(&late, fleet.sign(&late), 1).await;
        assert_eq!(ack[0]["status"], "accepted", "{ack:?}");
        fleet.until("its time is over", || Timestamp::now() > late.expires).await;
        fleet.open_gate("held");
        let done = fleet.only_result(late.id).await;
        assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Expired, Some("expired")), "{done:?}");
        assert!(fleet.lines("late").is_empty());
    });
}

#[test]
fn a_killed_agent_ends_every_command_once() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let (running, waiting) = (fleet.gated_command("running"), fleet.slow_command("waiting", 0));
        fleet.send(&running).await;
        fleet.until("the run", || !fleet.lines("running").is_empty()).await;
        let mut expired = fleet.slow_command("expired", 0);
        expired.expires = expired.issued + SignedDuration::from_secs(8);
        for command in [&expired, &waiting] {
            let answer = fleet.answers(command, fleet.sign(command), 1).await;
            assert_eq!(answer[0]["status"], "accepted", "{answer:?}");
        }
        agent.kill();
        passed(expired.expires).await;
        let agent = fleet.start_agent().await;
        assert_eq!(fleet.only_result(running.id).await.outcome, CommandOutcome::Interrupted);
        assert_eq!(fleet.only_result(waiting.id).await.outcome, CommandOutcome::Changed);
        assert_eq!(fleet.only_result(expired.id).await.outcome, CommandOutcome::Expired);
        assert_eq!(fleet.lines("waiting"), ["begun", "ended"]);
        assert!(fleet.lines("expired").is_empty());
        // Sent again, the ledger answers them, and another kill changes nothing.
        agent.kill();
        let _agent = fleet.start_agent().await;
        for (command, outcome) in [(&running, CommandOutcome::Interrupted), (&waiting, CommandOutcome::Changed)] {
            let done: CommandResult =
                serde_json::from_value(fleet.answers(command, fleet.sign(command), 1).await[0].clone()).unwrap();
            assert_eq!(done.outcome, outcome);
            fleet.only_result(command.id).await;
        }
        assert_eq!(fleet.lines("running").first().map(String::as_str), Some("begun"));
        assert_eq!(fleet.lines("waiting").len(), 2);
    });
}

#[test]
fn a_result_survives_the_server() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let command = fleet.gated_command("slow");
        fleet.send(&command).await;
        fleet.until("the run", || !fleet.lines("slow").is_empty()).await;
        fleet.server.kill();
        fleet.open_gate("slow");
        fleet.until("the end of the run", || fleet.lines("slow").len() == 2).await;
        // The attempt fails.
        tokio::time::sleep(Duration::from_millis(500)).await;
        fleet.server.start_again();
        fleet.bus.watch().wait_for(|link| link.connected).await.unwrap();
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        // The agent takes commands again.
        assert_eq!(send_until_result(&fleet, &fleet.file_command("motd", "back\n")).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn a_stopping_agent_reports_it_and_gives_a_run_time_to_end() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let (short, long) = (fleet.slow_command("short", 1), fleet.slow_command("long", 50));
        fleet.send(&short).await;
        fleet.until("the run", || !fleet.lines("short").is_empty()).await;
        assert_eq!(agent.stop(), Some(0));
        assert_eq!(fleet.lines("short"), ["begun", "ended"]);
        let states = fleet.subjects.stream("STATE");
        let last = fleet.bus.last_per_subject(&states, fleet.subjects.states().as_str()).await.unwrap();
        let state: NodeState = serde_json::from_slice(&last[0].payload).unwrap();
        assert!(!state.alive && state.alarms.is_empty(), "{state:?}");
        let agent = fleet.start_agent().await;
        // The next agent publishes the result for which there was no time left.
        assert_eq!(fleet.only_result(short.id).await.outcome, CommandOutcome::Changed);
        fleet.send(&long).await;
        fleet.until("the run", || !fleet.lines("long").is_empty()).await;
        let start = Instant::now();
        assert_eq!(agent.stop(), Some(0));
        assert!(start.elapsed() < Duration::from_secs(40), "the agent waited for the end of the run");
        let _agent = fleet.start_agent().await;
        let done = fleet.only_result(long.id).await;
        assert_eq!((done.outcome, fleet.lines("long")), (CommandOutcome::Interrupted, vec!["begun".to_owned()]));
    });
}

#[test]
fn bundles_are_applied_by_digest() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let source = fleet.path("source");
        std::fs::create_dir_all(source.join("files")).unwrap();
        std::fs::write(source.join("files/motd"), "from the bundle\n").unwrap();
        let manifest = format!(
            "ccm:\n  resources:\n    - file:\n        - {}:\n            ensure: present\n            source: files/motd\n            owner: root\n            group: root\n            mode: \"0644\"\n",
            fleet.path("applied").display()
        );
        std::fs::write(source.join("manifest.yaml"), manifest).unwrap();
        let packed = fleet.path("bundle.tgz");
        std::fs::write(&packed, ensign::manifest::bundle::pack(&source).unwrap()).unwrap();
        let mut command = fleet.command(Action::Apply(apply(&packed)));
        command.channel = Some(ensign::wire::command::Channel { name: "base".into(), epoch: 1, serial: 7 });
        fleet.send(&command).await;
        let done = fleet.only_result(command.id).await;
        assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
        let state = done.apply.unwrap();
        assert_eq!((state.summary.changed_resources, state.manifest.unwrap().digest), (1, Some(apply(&packed).sha256)));
        assert_eq!(fleet.lines("applied"), ["from the bundle"]);
        assert!(std::fs::read_dir(fleet.path("state/work")).unwrap().next().is_none());
        let states = fleet.subjects.stream("STATE");
        let channel = async || {
            let last = fleet.bus.last_per_subject(&states, fleet.subjects.states().as_str()).await.unwrap();
            serde_json::from_slice::<NodeState>(&last[0].payload).unwrap().channels.remove("base")
        };
        let wanted = ChannelPosition { epoch: 1, serial: 7, digest: apply(&packed).sha256 };
        let start = Instant::now();
        while channel().await.as_ref() != Some(&wanted) {
            assert!(start.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The node refuses another artifact under the same URL, and uses nothing of it.
        let swapped = fleet.command(Action::Apply(apply(&packed)));
        std::fs::write(
            &packed,
            ensign::manifest::bundle::pack(&source)
                .map(|mut bytes| {
                    bytes[20] ^= 1;
                    bytes
                })
                .unwrap(),
        )
        .unwrap();
        fleet.send(&swapped).await;
        let done = fleet.only_result(swapped.id).await;
        assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("bad_artifact")));
        // From the object store of the server.
        std::fs::remove_file(fleet.path("applied")).unwrap();
        let bytes = ensign::manifest::bundle::pack(&source).unwrap();
        fleet.bus.ensure_bucket(&fleet.subjects.bucket(), 1).await.unwrap();
        fleet.bus.object_put(&fleet.subjects.bucket(), "m", &bytes).await.unwrap();
        std::fs::write(&packed, &bytes).unwrap();
        let stored = Apply { url: format!("obj://{}/m", fleet.subjects.bucket()), ..apply(&packed) };
        let command = fleet.command(Action::Apply(stored));
        fleet.send(&command).await;
        let done = fleet.only_result(command.id).await;
        assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
        assert_eq!(fleet.lines("applied"), ["from the bundle"]);
    });
}

#[test]
fn an_agent_without_a_server_waits_for_one() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        fleet.server.kill();
        let mut agent = Agent::start(&mut fleet.process());
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(agent.0.try_wait().unwrap(), None);
        fleet.server.start_again();
        fleet.bus.watch().wait_for(|link| link.connected).await.unwrap();
        assert_eq!(send_until_result(&fleet, &fleet.file_command("motd", "here\n")).await.outcome, CommandOutcome::Changed);
        assert_eq!(agent.stop(), Some(0));
    });
}

#[test]
fn two_agents_of_one_id_are_noticed() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let subject = fleet.subjects.state(&node());
        let mut states = fleet.bus.subscribe(subject.as_str()).await.unwrap();
        let mut next = async || {
            let message = tokio::time::timeout(PATIENCE, states.next()).await.expect("a state").unwrap();
            serde_json::from_slice::<NodeState>(&message.payload).unwrap()
        };
        let own = next().await;
        let twin = NodeState { boot: Uuid::now_v7(), hostname: "clone".into(), ..own.clone() };
        fleet.bus.publish(subject.as_str(), &[], serde_json::to_vec(&twin).unwrap()).await.unwrap();
        let start = Instant::now();
        loop {
            let state = next().await;
            if state.boot == own.boot && state.alarms == ["another agent uses the node id web1: on host \"clone\""] {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{state:?}");
        }
    });
}

#[test]
fn one_state_directory_is_for_one_agent() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let mut second = Agent::start(&mut fleet.process());
        assert_eq!(second.0.wait().unwrap().code(), Some(1));
    });
}

#[test]
fn where_selects_nodes_by_facts() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        for (expression, status) in
            [("Facts.host.info.os == 'linux'", AckStatus::Accepted), ("Facts.host.info.os == 'plan9'", AckStatus::NotSelected)]
        {
            let mut command = fleet.file_command("motd", "x");
            command.to.filter = Some(expression.into());
            let ack: Ack = serde_json::from_value(fleet.answers(&command, fleet.sign(&command), 1).await[0].clone()).unwrap();
            assert_eq!(ack.status, status, "{expression}");
        }
    });
}

#[test]
fn the_check_prints_the_identity_of_the_node() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let check = |config: &Path| {
            let output =
                Process::new(env!("CARGO_BIN_EXE_ensign")).args(["agent", "check", "--config"]).arg(config).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
            (output.status.code(), text)
        };
        let (code, text) = check(&fleet.path("agent.toml"));
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("node     web1") && text.contains("version 1"), "{text}");
        assert!(text.contains("kernel   ") && text.contains("  not held  `exec` without `paths`"), "{text}");
        let config = std::fs::read_to_string(fleet.path("agent.toml")).unwrap();
        std::fs::write(fleet.path("bad.toml"), config.replace("queue = 2", "queu = 2")).unwrap();
        let (code, text) = check(&fleet.path("bad.toml"));
        assert!(code == Some(2) && text.contains("bad.toml:6:1: unknown key `queu`") && text.contains("did you mean"), "{text}");
        let other = SigningKey::from_seed(&[7; 32]).public().to_string();
        let pinned = SigningKey::from_seed(&[1; 32]).public().to_string();
        std::fs::write(fleet.path("other.toml"), config.replace(&pinned, &other)).unwrap();
        let (code, text) = check(&fleet.path("other.toml"));
        assert!(code == Some(2) && text.contains("has signatures of 0 of the pinned roots"), "{text}");
    });
}
