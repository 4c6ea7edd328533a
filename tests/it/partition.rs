//! Three hosts with networks of their own, one of them cut off: the operator is told who is missing, the others go on, and
//! what the lost one had to say comes when it is back, once.

use ensign::wire::DoneOutcome;
use ensign::wire::command::{Audience, Command};
use serde_json::Value;

use crate::support::nats::binaries;
use crate::support::netns::Netns;
use crate::support::place::{Place, Wishes, as_operator};
use crate::support::proxy::Proxy;
use crate::support::solo::{Agent, Fleet, PATIENCE};

struct Host {
    network: Netns,
    place: Place,
    _agent: Agent,
}

async fn host(fleet: &Fleet, number: u8) -> Option<Host> {
    let network = Netns::new(number)?;
    let port = fleet.server.url().rsplit(':').next().unwrap().parse().unwrap();
    // It stands between the server, which listens on loopback alone, and the host; it is only a door.
    let door = Proxy::at(network.address, port);
    // Who says nothing for twice the heartbeat is taken for dead, also when this machine is only busy.
    let wishes = Wishes { nats: "ping_interval = \"1s\"".to_owned(), heartbeat: "5s".to_owned(), ..Wishes::default() };
    let place = Place::new(fleet, &format!("web{number}"), &door.url(), &wishes);
    let agent = place.start(&fleet.bus, &mut place.process_in(&network.starter())).await;
    Some(Host { network, place, _agent: agent })
}

/// What the operator hears of a command for all: the exit code, and the outcome on each node.
fn asked_all(fleet: &Fleet, name: &str) -> (i32, Vec<(String, String)>) {
    let ran = as_operator(fleet, &["ensure", "exec", name, "--command", "true", "--all", "--timeout", "8s", "--output", "json"]);
    let document: Value = ran.json();
    let outcome = |node: &Value| (node["node"].as_str().unwrap().to_owned(), node["outcome"].as_str().unwrap().to_owned());
    (ran.code, document["nodes"].as_array().unwrap().iter().map(outcome).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_cut_off_is_named_and_reports_when_it_is_back() {
    let fleet = Fleet::new(&binaries()[0], "").await;
    let mut hosts = Vec::new();
    for number in 1..=3 {
        let Some(host) = host(&fleet, number).await else { return };
        hosts.push(host);
    }
    let lost = &hosts[2];
    let bus = &fleet.bus;
    let good = |outcomes: &[(String, String)]| outcomes.iter().filter(|(_, outcome)| outcome == "changed").count();
    let (code, outcomes) = asked_all(&fleet, "before");
    assert_eq!((code, good(&outcomes)), (0, 3), "{outcomes:?}");

    // Something runs on it while it is cut off, and ends.
    let mut long = lost.place.append(&fleet, "long");
    let script = format!("touch {0}.begun; sleep 3; echo line >> {0}", lost.place.site().join("long").display());
    long.action =
        crate::support::solo::ensure("exec", &serde_json::json!({"name": "long", "command": script, "provider": "shell"}));
    fleet.send(&long).await;
    fleet.until("the run", || lost.place.site().join("long.begun").exists()).await;
    lost.network.cut();
    let (code, outcomes) = asked_all(&fleet, "cut");
    assert_eq!((code, good(&outcomes)), (4, 2), "{outcomes:?}");
    assert!(["offline", "no_answer"].contains(&outcomes[2].1.as_str()), "{outcomes:?}");
    fleet.until("the end of the run", || lost.place.lines("long") == 1).await;
    lost.network.heal();
    assert_eq!(lost.place.only_result(bus, long.id).await.outcome, DoneOutcome::Changed);
    lost.place.until(bus, "it is as the others", |state| state.outbox == 0 && state.troubles.is_empty()).await;
    assert_eq!(lost.place.lines("long"), 1);
    let (code, outcomes) = asked_all(&fleet, "healed");
    assert_eq!((code, good(&outcomes)), (0, 3), "{outcomes:?}");

    // It is heard, and hears nothing: then it makes its connection anew, as often as it must.
    let deaf = &hosts[1];
    let lost = || deaf.place.log().matches("lost the connection to NATS").count();
    let before = lost();
    deaf.network.deafen();
    fleet.until("it is noticed", || lost() > before).await;
    deaf.network.hear();
    let command: Command = Command { to: Audience::nodes(vec![deaf.place.node.clone()]), ..deaf.place.append(&fleet, "heard") };
    let (envelope, start) = (fleet.sign(&command), std::time::Instant::now());
    while deaf.place.ask(&fleet, &command, &envelope, std::time::Duration::from_millis(500)).await.is_none() {
        assert!(start.elapsed() < 3 * PATIENCE, "{}", deaf.place.log());
    }
    assert_eq!(deaf.place.only_result(bus, command.id).await.outcome, DoneOutcome::Changed);
    assert_eq!(deaf.place.lines("heard"), 1);
}
