//! SIGHUP: the agent reads the configuration again, and uses all or nothing of it.

use std::os::unix::net::UnixDatagram;

use ensign::wire::command::{Command, Target};
use ensign::wire::{AckStatus, CommandOutcome, CommandResult};

use crate::support::single_node::{PATIENCE, SingleNodeFleet, on_every_server};

#[test]
fn a_reload_changes_groups_and_limits_and_loses_no_command() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let to_group = |group: &str| {
            let mut command = fleet.file_command("motd", group);
            command.to = Target { nodes: None, groups: Some(vec![group.to_owned()]), ..command.to };
            command
        };
        let accepted = async |command: &Command| {
            let first = &fleet.answers(command, fleet.sign(command), 1).await[0];
            first["status"].as_str() == Some("accepted")
        };
        assert!(accepted(&to_group("web")).await);
        fleet.edit_config("groups = [\"web\"]", "groups = [\"db\"]");
        fleet.edit_config("[limits]", "[limits]\npaths = [\"/nonesuch\"]");
        fleet.edit_config("heartbeat = \"1s\"", "heartbeat = \"2s\"\nevents = \"all\"");
        agent.hangup();
        let state = fleet.state("the new group", |state| state.groups == ["db"]).await;
        assert_eq!((state.interval, state.alarms.as_slice()), (2, &[][..]));
        // The agent no longer listens for the old group, and the new limits hold.
        let command = to_group("db");
        let done: CommandResult =
            serde_json::from_value(fleet.answers(&command, fleet.sign(&command), 1).await[0].clone()).unwrap();
        assert_eq!(done.code.as_deref(), Some("local_limit"));
        let (old, mut inbox) = (to_group("web"), fleet.bus.request_inbox().await.unwrap());
        fleet.publish(&old, fleet.sign(&old), &format!("{}.1", inbox.0)).await;
        let answer = tokio::time::timeout(PATIENCE, inbox.1.next()).await.expect("an answer").unwrap();
        assert!(answer.no_responders || answer.payload.is_empty(), "{answer:?}");
        fleet.edit_config("paths = [\"/nonesuch\"]", "");
        // Commands that arrive during a reload are not lost.
        let commands: Vec<Command> = (0..20).map(|number| fleet.file_command(&format!("f{number}"), "x")).collect();
        for (number, command) in commands.iter().enumerate() {
            if number % 4 == 0 {
                let (from, to) = if number % 8 == 0 { ("[\"db\"]", "[\"db\", \"x\"]") } else { ("[\"db\", \"x\"]", "[\"db\"]") };
                fleet.edit_config(from, to);
                agent.hangup();
                if number == 0 {
                    fleet.state("both groups", |state| state.groups.len() == 2).await;
                }
            }
            // The queue of this agent is short: one after the other.
            let answers = fleet.answers(command, fleet.sign(command), 2).await;
            assert_eq!(answers[0]["status"], serde_json::to_value(AckStatus::Accepted).unwrap(), "{answers:?}");
            assert_eq!(answers[1]["outcome"], serde_json::to_value(CommandOutcome::Changed).unwrap(), "{answers:?}");
        }
        assert_eq!(agent.stop(), Some(0));
    });
}

#[test]
fn queued_commands_are_checked_against_new_limits_and_groups() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let held = fleet.gated_command("held");
        fleet.send(&held).await;
        fleet.until("the command runs", || !fleet.lines("held").is_empty()).await;
        let limited = fleet.file_command("motd", "hello\n");
        let mut to_group = fleet.slow_command("group", 0);
        to_group.to = Target { nodes: None, groups: Some(vec!["web".to_owned()]), ..to_group.to };
        for command in [&limited, &to_group] {
            assert_eq!(fleet.answers(command, fleet.sign(command), 1).await[0]["status"], "accepted");
        }
        fleet.edit_config("groups = [\"web\"]", "groups = [\"db\"]");
        fleet.edit_config("[limits]", "[limits]\npaths = [\"/nonesuch\"]");
        agent.hangup();
        fleet.state("the new group", |state| state.groups == ["db"]).await;
        fleet.open_gate("held");
        assert_eq!(fleet.only_result(held.id).await.outcome, CommandOutcome::Changed);
        for (command, code) in [(&limited, "local_limit"), (&to_group, "not_for_me")] {
            let done = fleet.only_result(command.id).await;
            assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some(code)), "{done:?}");
        }
        assert!(!fleet.path("motd").exists() && fleet.lines("group").is_empty());
        assert_eq!(agent.stop(), Some(0));
    });
}

#[test]
fn a_faulty_configuration_changes_nothing_and_raises_an_alarm() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        fleet.edit_config("queue = 2", "queu = 1\nlog = \"debug\"");
        agent.hangup();
        let state = fleet.state("an alarm", |state| !state.alarms.is_empty()).await;
        let config = fleet.path("agent.toml").display().to_string();
        let wanted =
            format!("the configuration is invalid and was not applied: {config}:6:1: unknown key `queu` (did you mean `queue`?)");
        assert_eq!(state.alarms, [wanted]);
        fleet.until("the log shows the line", || fleet.log().contains("queu = 1")).await;
        assert!(!fleet.log().contains("DEBUG"), "{}", fleet.log());
        // A warning names the keys that need a restart, the rest applies. The node id stays.
        fleet.edit_config("queu = 1", "queue = 1");
        fleet.edit_config("node = \"web1\"", "node = \"web2\"");
        fleet.edit_config("log = \"debug\"", "log = \"info,ensign::agent=debug\"");
        agent.hangup();
        fleet.state("no alarm", |state| state.alarms.is_empty()).await;
        fleet.until("a key that needs a restart", || fleet.log().contains("changes of node need a restart")).await;
        let long = fleet.gated_command("long");
        fleet.send(&long).await;
        fleet.until("the run", || !fleet.lines("long").is_empty()).await;
        let [first, second] = ["a", "b"].map(|name| fleet.slow_command(name, 0));
        let answer = async |command: &Command| fleet.answers(command, fleet.sign(command), 1).await[0].clone();
        assert_eq!(answer(&first).await["status"], "accepted");
        assert_eq!(answer(&second).await["outcome"], "busy");
        fleet.open_gate("long");
        // A missing file is a mistake like any other.
        std::fs::remove_file(fleet.path("agent.toml")).unwrap();
        agent.hangup();
        fleet.state("an alarm", |state| state.alarms.iter().any(|trouble| trouble.contains("agent.toml"))).await;
        assert_eq!(agent.stop(), Some(0));
    });
}

#[test]
fn systemd_is_notified_of_a_reload() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let path = fleet.path("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let agent = fleet.start_agent_process(fleet.process().env("NOTIFY_SOCKET", &path)).await;
        let heard = || {
            let mut bytes = [0; 512];
            let length = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        while !heard().contains("READY=1") {}
        agent.hangup();
        let reloading = loop {
            let text = heard();
            if !text.contains("READY=1") {
                break text;
            }
        };
        assert!(reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="), "{reloading}");
        while !heard().contains("READY=1") {}
        assert_eq!(agent.stop(), Some(0));
    });
}
