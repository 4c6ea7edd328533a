//! Three hosts with networks of their own, one of them cut off. The operator sees the missing host, and the others continue.
//! When the host is back, its messages arrive once, and it applies the current desired state.

use ensign::wire::command::{Action, Apply, Command, NoParameters, Target};
use ensign::wire::{CommandOutcome, NodeState};
use serde_json::Value;
use uuid::Uuid;

use crate::support::nats::binaries;
use crate::support::netns::Netns;
use crate::support::node_dir::{NodeDir, NodeSettings, as_operator};
use crate::support::proxy::Proxy;
use crate::support::single_node::{Agent, PATIENCE, SingleNodeFleet, apply, assign_action};

struct Host {
    network: Netns,
    place: NodeDir,
    agent: Agent,
}

async fn host(fleet: &SingleNodeFleet, number: u8) -> Option<Host> {
    let network = Netns::new(number)?;
    let port = fleet.server.url().rsplit(':').next().unwrap().parse().unwrap();
    // The door is between the server, which listens on loopback alone, and the host; it changes nothing.
    let door = Proxy::at(network.address, port);
    // An operator takes a node for silent after twice the heartbeat, also when this machine is only busy.
    let wishes =
        NodeSettings { nats: "ping_interval = \"1s\"".to_owned(), heartbeat: "5s".to_owned(), ..NodeSettings::default() };
    let place = NodeDir::new(fleet, &format!("web{number}"), &door.url(), &wishes);
    let agent = place.start(&fleet.bus, &mut place.process_in(&network.starter())).await;
    Some(Host { network, place, agent })
}

/// The operator's view of a command for all: the exit code, and the outcome on each node.
fn run_on_all(fleet: &SingleNodeFleet, name: &str) -> (i32, Vec<(String, String)>) {
    let ran = as_operator(fleet, &["ensure", "exec", name, "--command", "true", "--all", "--timeout", "8s", "--output", "json"]);
    let document: Value = ran.json();
    let outcome = |node: &Value| (node["node"].as_str().unwrap().to_owned(), node["outcome"].as_str().unwrap().to_owned());
    (ran.code, document["nodes"].as_array().unwrap().iter().map(outcome).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_cut_off_is_named_and_reports_when_it_is_back() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let mut hosts = Vec::new();
    for number in 1..=3 {
        let Some(host) = host(&fleet, number).await else { return };
        hosts.push(host);
    }
    let lost = &hosts[2];
    let bus = &fleet.bus;
    let good = |outcomes: &[(String, String)]| outcomes.iter().filter(|(_, outcome)| outcome == "changed").count();
    let (code, outcomes) = run_on_all(&fleet, "before");
    assert_eq!((code, good(&outcomes)), (0, 3), "{outcomes:?}");

    // A command runs on the host while it is cut off, and ends.
    let mut long = lost.place.append_command(&fleet, "long");
    let script = format!("touch {0}.begun; sleep 3; echo line >> {0}", lost.place.site().join("long").display());
    long.action = crate::support::single_node::ensure_action(
        "exec",
        &serde_json::json!({"name": "long", "command": script, "provider": "shell"}),
    );
    fleet.send(&long).await;
    fleet.until("the run", || lost.place.site().join("long.begun").exists()).await;
    lost.network.cut();
    let (code, outcomes) = run_on_all(&fleet, "cut");
    assert_eq!((code, good(&outcomes)), (4, 2), "{outcomes:?}");
    assert!(["offline", "no_answer"].contains(&outcomes[2].1.as_str()), "{outcomes:?}");
    fleet.until("the end of the run", || lost.place.lines("long") == 1).await;
    lost.network.heal();
    assert_eq!(lost.place.only_result(bus, long.id).await.outcome, CommandOutcome::Changed);
    lost.place.until(bus, "an empty outbox and no alarm", |state| state.outbox == 0 && state.alarms.is_empty()).await;
    assert_eq!(lost.place.lines("long"), 1);
    let (code, outcomes) = run_on_all(&fleet, "healed");
    assert_eq!((code, good(&outcomes)), (0, 3), "{outcomes:?}");

    // The host can send, and receives nothing: its agent connects again, as often as necessary.
    let deaf = &hosts[1];
    let lost = || deaf.place.log().matches("lost the connection to NATS").count();
    let before = lost();
    deaf.network.deafen();
    fleet.until("the agent notices the lost connection", || lost() > before).await;
    deaf.network.undeafen();
    let command: Command =
        Command { to: Target::nodes(vec![deaf.place.node.clone()]), ..deaf.place.append_command(&fleet, "heard") };
    let (envelope, start) = (fleet.sign(&command), std::time::Instant::now());
    while deaf.place.first_answer(&fleet, &command, &envelope, std::time::Duration::from_millis(500)).await.is_none() {
        assert!(start.elapsed() < 3 * PATIENCE, "{}", deaf.place.log());
    }
    assert_eq!(deaf.place.only_result(bus, command.id).await.outcome, CommandOutcome::Changed);
    assert_eq!(deaf.place.lines("heard"), 1);
}

fn is_in_force(state: &NodeState, serial: u64, id: Option<Uuid>) -> bool {
    let is_there = state.channels.get("base").is_some_and(|channel| channel.serial == serial);
    is_there && state.assignments.first().map(|assignment| assignment.id) == id && state.outbox == 0
}

/// A manifest that writes its serial into a file beside it.
fn serial_manifest(fleet: &SingleNodeFleet, number: u64) -> Apply {
    let own = nix::unistd::geteuid().as_raw().to_string();
    let file =
        serde_json::json!({"ensure": "present", "content": number.to_string(), "owner": own, "group": own, "mode": "0644"});
    let manifest = serde_json::json!({"ccm": {"resources": [{"file": [{"{{ Data.site }}/motd": file}]}]}});
    let path = fleet.path(&format!("{number}.yaml"));
    std::fs::write(&path, manifest.to_string()).unwrap();
    apply(&path)
}

/// The assignment of each host has its own manifest, which names the place to write to. All are in one channel.
async fn assigned(fleet: &SingleNodeFleet, site: &std::path::Path, number: u64) -> Command {
    let mut manifest = serial_manifest(fleet, number);
    manifest.data.insert("site".into(), serde_json::json!(site));
    let command = fleet.assignment(number, assign_action(manifest));
    fleet.store_assignment(&command).await;
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_cut_off_catches_up_with_its_assignments() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    let Some(near) = host(&fleet, 4).await else { return };
    let Some(mut far) = host(&fleet, 5).await else { return };
    let bus = &fleet.bus;
    // Both hosts write the same file, on this host: the test looks at that file.
    let site = far.place.site();
    let first = assigned(&fleet, &site, 1).await;
    for host in [&near, &far] {
        host.place.until(bus, "the first", |state| is_in_force(state, 1, Some(first.id))).await;
    }
    // While one host is offline: a second assignment, two new trust bundles, a withdrawal, and another assignment.
    far.network.cut();
    let second = assigned(&fleet, &site, 2).await;
    near.place.until(bus, "the second", |state| is_in_force(state, 2, Some(second.id))).await;
    far.network.heal();
    far.place.until(bus, "the second", |state| is_in_force(state, 2, Some(second.id))).await;
    for host in [&near, &far] {
        let done = host.place.only_result(bus, second.id).await;
        assert!([CommandOutcome::Changed, CommandOutcome::Stable].contains(&done.outcome), "{done:?}");
    }

    far.network.cut();
    fleet.store_trust(2).await;
    near.place.until(bus, "version 2", |state| state.trust == 2).await;
    let third = fleet.assignment(3, Action::Withdraw(NoParameters {}));
    fleet.store_assignment(&third).await;
    near.place.until(bus, "the withdrawal", |state| is_in_force(state, 3, None)).await;
    fleet.store_trust(3).await;
    near.place.until(bus, "version 3", |state| state.trust == 3).await;
    far.network.heal();
    far.place.until(bus, "the withdrawal", |state| is_in_force(state, 3, None) && state.trust == 3).await;
    assert_eq!(far.place.only_result(bus, third.id).await.outcome, CommandOutcome::Stable);

    // Killed while offline, with two new assignments: the agent has to run only the later one.
    far.network.cut();
    let fourth = assigned(&fleet, &site, 4).await;
    near.place.until(bus, "the fourth", |state| is_in_force(state, 4, Some(fourth.id))).await;
    let fifth = assigned(&fleet, &site, 5).await;
    near.place.until(bus, "the fifth", |state| is_in_force(state, 5, Some(fifth.id))).await;
    // The next agent needs the state directory, so the old one must end first.
    far.agent.0.kill().unwrap();
    far.agent.0.wait().unwrap();
    far.agent = Agent::start(&mut far.place.process_in(&far.network.starter()));
    far.network.heal();
    far.place.until(bus, "the fifth", |state| is_in_force(state, 5, Some(fifth.id))).await;
    assert_eq!(std::fs::read_to_string(site.join("motd")).unwrap(), "5");
    far.place.only_result(bus, fifth.id).await;
    assert_eq!(far.place.results(bus, fourth.id).await.len(), 0);
}
