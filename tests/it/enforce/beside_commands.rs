//! Repairs of drift beside commands: a flow of commands does not hold up a repair, and a long command raises an alarm.

use std::fs;

use ensign::wire::CommandOutcome;

use super::{content, enforced, manifest, repaired, status, watched};
use crate::support::single_node::{SingleNodeFleet, on_every_server};

#[test]
fn a_flow_of_commands_does_not_hold_up_a_repair() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        fleet.edit_config("queue = 2", "queue = 16");
        let _agent = fleet.start_agent().await;
        fleet.store_assignment(&fleet.assignment(1, enforced(&manifest(&fleet, &["file"], "wanted")))).await;
        watched(&fleet, 1).await;
        let file = fleet.path("managed/file");
        // Each command runs for a moment, and the queue is never empty before the last.
        let commands: Vec<_> = (0..10).map(|_| fleet.slow_command("flow", 1)).collect();
        for command in &commands {
            fleet.answers(command, fleet.sign(command), 1).await;
        }
        fleet.until("the first command", || fleet.lines("flow").len() == 1).await;
        fs::write(&file, "drift").unwrap();
        repaired("during the flow", &file, "wanted").await;
        // The watcher may notice the drift only after the command that runs: then one more goes first.
        let ended = fleet.lines("flow").iter().filter(|line| *line == "ended").count();
        assert!(ended <= 3, "{ended} of {} commands ran before the repair", commands.len());
        for command in &commands {
            assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        }
    });
}

#[test]
fn a_long_command_that_holds_up_a_repair_raises_an_alarm() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        fleet.edit_config("queue = 2", "queue = 2\nmax_repair_wait = \"1s\"");
        let _agent = fleet.start_agent().await;
        fleet.store_assignment(&fleet.assignment(1, enforced(&manifest(&fleet, &["file"], "wanted")))).await;
        watched(&fleet, 1).await;
        let long = fleet.gated_command("long");
        fleet.send(&long).await;
        fleet.until("the run", || fleet.lines("long").len() == 1).await;
        let file = fleet.path("managed/file");
        fs::write(&file, "drift").unwrap();
        let alarm = format!("behind the command {}", long.id);
        let state = fleet.state("the alarm", |state| state.alarms.iter().any(|text| text.contains(&alarm))).await;
        let text = state.alarms.iter().find(|text| text.contains(&alarm)).unwrap();
        assert!(text.starts_with("channel base: drift is not repaired") && text.contains("more than 1s"), "{text}");
        assert!(text.contains(&format!("`ensign fleet job cancel {}`", long.id)), "{text}");
        assert!(status(&fleet).alarms.contains_key("repair_wait"));
        assert_eq!(content(&file).as_deref(), Some("drift"));
        fleet.open_gate("long");
        repaired("after the command", &file, "wanted").await;
        fleet.state("no alarm", |state| state.alarms.is_empty()).await;
    });
}
