//! Disks that are full or read-only: the disk of the state, and disks that resources write to. Nothing runs without a record,
//! nothing is lost, and existing files stay.

use ensign::wire::command::Command;
use ensign::wire::{CommandOutcome, CommandResult};
use serde_json::json;

use crate::support::nats::binaries;
use crate::support::node_dir::{NodeDir, NodeSettings, as_operator, read, wait_for_exit};
use crate::support::single_node::{Agent, PATIENCE, SingleNodeFleet, ensure_action};
use crate::support::tmpfs::Tmpfs;

/// Sends a command, and returns its first direct result, accepted or not.
async fn answer(fleet: &SingleNodeFleet, place: &NodeDir, command: &Command) -> CommandResult {
    let message = place.first_answer(fleet, command, &fleet.sign(command), PATIENCE).await.expect("an answer");
    read(&message).unwrap_or_else(|| panic!("the command was accepted: {}", String::from_utf8_lossy(&message.payload)))
}

fn with_state_on(fleet: &SingleNodeFleet, disk: &Tmpfs) -> NodeDir {
    let wishes = NodeSettings { state: disk.path("state").display().to_string(), ..NodeSettings::default() };
    NodeDir::new(fleet, "web1", &fleet.server.url(), &wishes)
}

#[tokio::test]
async fn with_a_full_disk_nothing_runs_unrecorded_and_nothing_is_lost() {
    let Some(disk) = Tmpfs::new(512) else { return };
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let place = with_state_on(&fleet, &disk);
    let bus = &fleet.bus;
    let _agent = place.start(bus, &mut place.process()).await;

    // The disk becomes full during a run: the result waits for space.
    let script = format!(
        "touch {0}.begun; while [ ! -e {0}.go ]; do sleep 0.05; done; echo line >> {0}",
        place.site().join("slow").display()
    );
    let slow = place.command(&fleet, ensure_action("exec", &json!({"name": "slow", "command": script, "provider": "shell"})));
    fleet.send(&slow).await;
    fleet.until("the run", || place.site().join("slow.begun").exists()).await;
    disk.fill();
    std::fs::write(place.site().join("slow.go"), "").unwrap();
    fleet.until("the end of the run", || place.lines("slow") == 1).await;

    // No command runs without a record, even if the resource's disk has space; the node reports this. The last page of the
    // ledger may have space for a few.
    let (mut taken, mut refused) = (Vec::new(), None);
    for number in 0..12 {
        let command = place.append_command(&fleet, &format!("effect{number}"));
        let answer = place.first_answer(&fleet, &command, &fleet.sign(&command), PATIENCE).await.expect("an answer");
        match read::<CommandResult>(&answer) {
            None => taken.push((number, command)),
            Some(done) => {
                assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("storage")), "{done:?}");
                assert!(done.message.unwrap().contains("No space left on device"));
                refused = Some((number, command));
                break;
            }
        }
    }
    let (number, refused) = refused.expect("a disk that is full");
    let effect = format!("effect{number}");
    assert_eq!(place.lines(&effect), 0);
    // The agent still answers, and names the error.
    assert_eq!(answer(&fleet, &place, &refused).await.code.as_deref(), Some("storage"));
    place.until(bus, "an alarm", |state| state.alarms.iter().any(|text| text.contains("No space left"))).await;

    disk.make_room();
    place.until(bus, "no alarm", |state| state.alarms.is_empty()).await;
    assert_eq!(place.only_result(bus, slow.id).await.outcome, CommandOutcome::Changed);
    // The operator sends the refused command again.
    assert!(place.first_answer(&fleet, &refused, &fleet.sign(&refused), PATIENCE).await.is_some());
    fleet.until("the command is done", || place.lines(&effect) == 1).await;
    for (number, command) in taken {
        assert_eq!(place.only_result(bus, command.id).await.outcome, CommandOutcome::Changed);
        assert_eq!(place.lines(&format!("effect{number}")), 1);
    }
    place.until(bus, "nothing waits", |state| state.outbox == 0 && state.running.is_none()).await;
    let outcomes: Vec<_> = place.results(bus, refused.id).await.into_iter().map(|done| done.outcome).collect();
    assert_eq!(outcomes.last(), Some(&CommandOutcome::Changed), "{outcomes:?}");
    assert_eq!((place.lines("slow"), place.results(bus, slow.id).await.len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_disk_takes_no_result_does_not_delay_the_operator() {
    let Some(disk) = Tmpfs::new(512) else { return };
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let place = with_state_on(&fleet, &disk);
    let bus = &fleet.bus;
    let _agent = place.start(bus, &mut place.process()).await;
    let file = place.site().join("slow").display().to_string();
    let script = format!("touch {file}.begun; while [ ! -e {file}.go ]; do sleep 0.05; done; echo line >> {file}");
    let args = ["ensure", "exec", "slow", "--command", &script, "--provider", "shell", "--node", "web1", "--output", "json"];
    let ran = std::thread::scope(|scope| {
        let operator = scope.spawn(|| as_operator(&fleet, &args));
        let wait = async {
            fleet.until("the run", || place.site().join("slow.begun").exists()).await;
            disk.fill();
            // The last page of the ledger may have space for a few records.
            for number in 0.. {
                let command = place.append_command(&fleet, &format!("effect{number}"));
                let answer = place.first_answer(&fleet, &command, &fleet.sign(&command), PATIENCE).await.expect("an answer");
                if read::<CommandResult>(&answer).is_some() {
                    break;
                }
            }
            std::fs::write(format!("{file}.go"), "").unwrap();
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(wait));
        tokio::task::block_in_place(|| operator.join().unwrap())
    });
    let document = ran.json();
    assert_eq!((ran.code, document["nodes"][0]["outcome"].as_str()), (4, Some("unwritten")), "{document} {}", ran.stderr);
    disk.make_room();
    let id = document["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(place.only_result(bus, id).await.outcome, CommandOutcome::Changed);
    place.until(bus, "no alarm", |state| state.alarms.is_empty() && state.unwritten.is_none()).await;
}

#[tokio::test]
async fn a_read_only_state_directory_raises_an_alarm_and_the_agent_continues() {
    let Some(disk) = Tmpfs::new(512) else { return };
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let place = with_state_on(&fleet, &disk);
    let agent = place.start(&fleet.bus, &mut place.process()).await;
    agent.kill();
    disk.set_read_only(true);
    let mut agent = Agent::start(&mut place.process());
    let status = wait_for_exit(&mut agent).await;
    let log = place.log();
    assert!(status.code() == Some(1) && log.contains("Read-only file system") && log.contains("state"), "{status:?}: {log}");
    disk.set_read_only(false);
    let _agent = place.start(&fleet.bus, &mut place.process()).await;
    let command = place.append_command(&fleet, "effect");
    fleet.send(&command).await;
    assert_eq!(place.only_result(&fleet.bus, command.id).await.outcome, CommandOutcome::Changed);
}

#[tokio::test]
async fn a_target_without_space_keeps_its_content() {
    let Some(disk) = Tmpfs::new(256) else { return };
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let place = NodeDir::new(&fleet, "web1", &fleet.server.url(), &NodeSettings::default());
    let _agent = place.start(&fleet.bus, &mut place.process()).await;
    let target = disk.path("conf");
    std::fs::write(&target, "old\n").unwrap();
    let file = |content: &str| {
        let properties =
            json!({"name": target, "ensure": "present", "content": content, "owner": "0", "group": "0", "mode": "0644"});
        place.command(&fleet, ensure_action("file", &properties))
    };
    let run = async |command: Command| {
        fleet.send(&command).await;
        place.only_result(&fleet.bus, command.id).await
    };
    let large = "new, and much longer\n".repeat(400);
    disk.fill();
    for reason in ["No space left on device", "Read-only file system"] {
        let done = run(file(&large)).await;
        let said = done.event.as_ref().map(|event| event.errors.join("; ")).unwrap_or_default();
        assert_eq!(done.outcome, CommandOutcome::Failed, "{done:?}");
        assert!(said.contains(reason) && said.contains("conf"), "{said}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old\n");
        let names: Vec<_> = std::fs::read_dir(disk.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        disk.set_read_only(true);
    }
    disk.set_read_only(false);
    disk.make_room();
    assert_eq!(run(file(&large)).await.outcome, CommandOutcome::Changed);
    assert_eq!(std::fs::read_to_string(&target).unwrap(), large);
}

/// Takes away the state directory in one of several ways.
fn take_away(place: &NodeDir, how: &str) {
    let (state, away) = (place.state_dir(), place.path("away"));
    match how {
        "removed" => std::fs::remove_dir_all(state).unwrap(),
        "moved" => std::fs::rename(state, away).unwrap(),
        "replaced" => {
            std::fs::rename(state, &away).unwrap();
            std::fs::rename(place.path("backup"), state).unwrap();
        }
        _ => std::fs::remove_file(state.join("ledger.jsonl")).unwrap(),
    }
}

#[tokio::test]
async fn without_its_state_directory_an_agent_accepts_and_runs_nothing() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let bus = &fleet.bus;
    for how in ["removed", "moved", "replaced", "unlinked"] {
        let place = NodeDir::new(&fleet, how, &fleet.server.url(), &NodeSettings::default());
        let agent = place.start(bus, &mut place.process()).await;
        let before = place.append_command(&fleet, "before");
        fleet.send(&before).await;
        assert_eq!(place.only_result(bus, before.id).await.outcome, CommandOutcome::Changed);
        std::fs::create_dir(place.path("backup")).unwrap();
        for name in ["ledger.jsonl", "node.key", "trust.json"] {
            std::fs::copy(place.state_dir().join(name), place.path("backup").join(name)).unwrap();
        }
        // One command runs, and one waits behind it.
        let script = format!("touch {0}.begun; while [ ! -e {0}.go ]; do sleep 0.05; done", place.site().join("long").display());
        let long = place.command(&fleet, ensure_action("exec", &json!({"name": "long", "command": script, "provider": "shell"})));
        let waiting = place.append_command(&fleet, "waiting");
        fleet.send(&long).await;
        fleet.until("the run", || place.site().join("long.begun").exists()).await;
        assert!(place.first_answer(&fleet, &waiting, &fleet.sign(&waiting), PATIENCE).await.is_some());

        take_away(&place, how);
        // Without a request.
        let is_told =
            |text: &String| text.contains("was removed or replaced while the agent ran") && text.contains("until a restart");
        place.until(bus, "an alarm", |state| state.alarms.iter().any(is_told)).await;
        for _ in 0..2 {
            let after = place.append_command(&fleet, "after");
            let done = answer(&fleet, &place, &after).await;
            assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("storage")), "{how}: {done:?}");
            assert!(is_told(&done.message.unwrap()));
        }
        // The running command ends and is reported. The waiting command does not start, as the start could not be recorded.
        std::fs::write(place.site().join("long.go"), "").unwrap();
        assert_eq!(place.only_result(bus, long.id).await.outcome, CommandOutcome::Changed, "{how}");
        let refused = place.only_result(bus, waiting.id).await;
        assert_eq!((refused.outcome, refused.code.as_deref()), (CommandOutcome::Refused, Some("storage")), "{how}: {refused:?}");
        assert_eq!((place.lines("after"), place.lines("waiting")), (0, 0));
        place.until(bus, "the alarm is still reported", |state| state.alarms.iter().any(is_told)).await;

        agent.kill();
        let _agent = place.start(bus, &mut place.process()).await;
        let again = place.append_command(&fleet, "again");
        fleet.send(&again).await;
        assert_eq!(place.only_result(bus, again.id).await.outcome, CommandOutcome::Changed, "{how}");
        // Commands that were done or refused before do not run now.
        assert_eq!((place.lines("before"), place.lines("after"), place.lines("waiting")), (1, 0, 0), "{how}");
    }
}
