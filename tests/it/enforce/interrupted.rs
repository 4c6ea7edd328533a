//! Watched assignments whose repair is interrupted, and those whose successor waits.

use std::fs;

use ensign::wire::{CommandOutcome, NodeState};

use super::{content, enforced, manifest, repaired, status, watched};
use crate::rollout::single_node::after_canary;
use crate::support::single_node::{SingleNodeFleet, on_every_server};

/// The file is repaired, and its subscriber is about to be refreshed, when the agent dies.
#[test]
fn a_repair_that_a_kill_interrupts_is_completed_after_the_start() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let (conf, path) = (fleet.path("conf"), fleet.path("killed.yaml"));
        let dir = fleet.path("");
        let command = "echo begun >> begun; test ! -e closed || sleep 60; echo reloaded >> reloaded";
        let text = format!(
            "ccm:\n  resources:\n\
             \x20   - file: {{name: {conf}, ensure: present, content: wanted, owner: root, group: root, mode: \"0644\"}}\n\
             \x20   - exec: {{name: reload, provider: shell, cwd: {dir}, command: \"{command}\", refreshonly: true, subscribe: [\"file#{conf}\"]}}\n",
            conf = conf.display(),
            dir = dir.display(),
        );
        fs::write(&path, text).unwrap();
        let agent = fleet.start_agent().await;
        let assignment = fleet.assignment(1, enforced(&path));
        fleet.store_assignment(&assignment).await;
        watched(&fleet, 1).await;
        let count = |name: &str| content(&fleet.path(name)).unwrap_or_default().lines().count();
        assert_eq!((count("begun"), count("reloaded")), (1, 1));

        fs::write(fleet.path("closed"), "").unwrap();
        fs::write(&conf, "drift").unwrap();
        fleet.until("the refresh of the repair has begun", || count("begun") == 2).await;
        assert_eq!(content(&conf).as_deref(), Some("wanted"));
        agent.kill();
        fs::remove_file(fleet.path("closed")).unwrap();
        fs::write(&conf, "drift while no agent runs").unwrap();
        let _agent = fleet.start_agent().await;
        repaired("drift while no agent ran", &conf, "wanted").await;
        fleet.until("the pending refresh", || count("reloaded") == 2).await;
        watched(&fleet, 1).await;
        fs::write(&conf, "drift").unwrap();
        repaired("drift after the start", &conf, "wanted").await;
        fleet.until("the next refresh", || count("reloaded") == 3).await;
        fleet.until("the repair has ended", || status(&fleet).running.is_none()).await;
        fleet.wait_until_published();
        let results = fleet.results(assignment.id).await;
        assert_eq!(results.iter().map(|result| result.outcome).collect::<Vec<_>>(), [CommandOutcome::Changed], "{results:?}");
    });
}

#[test]
fn while_the_next_assignment_waits_for_its_wave_the_one_before_is_enforced() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let motd = fleet.path("managed/motd");
        fleet.store_assignment(&fleet.assignment(1, enforced(&manifest(&fleet, &["motd"], "first")))).await;
        watched(&fleet, 1).await;
        let (next, canary) = after_canary(fleet.assignment(2, enforced(&manifest(&fleet, &["motd"], "second"))));
        fleet.store_assignment(&next).await;
        let is_waiting = |state: &NodeState| state.channels.get("base").is_some_and(|at| at.serial == 2);
        fleet.state("the next assignment is accepted", is_waiting).await;
        for _ in 0..2 {
            fs::write(&motd, "drift").unwrap();
            repaired("drift while the next one waits", &motd, "first").await;
        }
        canary.succeeds(&fleet, &next).await;
        repaired("the wave of the node", &motd, "second").await;
        watched(&fleet, 2).await;
        fs::write(&motd, "drift").unwrap();
        repaired("drift of the next one", &motd, "second").await;
    });
}
