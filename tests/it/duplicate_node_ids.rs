//! Two hosts with one node id, as after a copy of a machine: each raises an alarm, and the operator sees it.

use crate::support::node_dir::{NodeDir, NodeSettings, as_operator, stop};
use crate::support::single_node::{Agent, SingleNodeFleet, on_every_server};

#[test]
fn a_copied_machine_is_an_alarm_on_both_and_for_the_operator() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let [first, second] = [(); 2].map(|()| NodeDir::new(&fleet, "web1", &fleet.server.url(), &NodeSettings::default()));
        // A machine with some history, copied with its state.
        let mut agent = first.start(&fleet.bus, &mut first.process()).await;
        let command = first.append_command(&fleet, "effect");
        fleet.send(&command).await;
        first.only_result(&fleet.bus, command.id).await;
        stop(&mut agent).await;
        let copied = std::process::Command::new("cp").arg("-a").arg(first.state_dir()).arg(second.path("")).status().unwrap();
        assert!(copied.success());
        let one = first.start(&fleet.bus, &mut first.process()).await;
        let two = Agent::start(&mut second.process());
        let said = "another agent uses the node id web1";
        let is_alarmed = |state: &ensign::wire::NodeState| state.alarms.iter().any(|text| text.starts_with(said));
        let state = first.until(&fleet.bus, "an alarm", is_alarmed).await;
        let other = |state: &ensign::wire::NodeState, boot| state.boot != boot;
        first.until(&fleet.bus, "an alarm on the other", |next| other(next, state.boot) && is_alarmed(next)).await;
        let status = as_operator(&fleet, &["status"]);
        assert!(status.code == 0 && status.stdout.contains(said), "{}", status.stdout);
        // One of them stops: the alarm ends.
        two.kill();
        first.until(&fleet.bus, "no alarm", |state| state.alarms.is_empty()).await;
        drop(one);
    });
}
