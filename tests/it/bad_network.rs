//! A bad network between agent and server: half-open, slow, cut again and again. Nothing is lost, nothing runs twice.

use std::time::{Duration, Instant};

use ensign::transport::BusSettings;
use ensign::wire::command::Command;
use ensign::wire::{CommandOutcome, CommandResult};

use crate::support::node_dir::{NodeDir, NodeSettings, read};
use crate::support::proxy::{Direction, Proxy};
use crate::support::single_node::{PATIENCE, SingleNodeFleet, on_every_server};

const STALLED: Direction = Direction { stalled: true, delay: Duration::ZERO, piece: 0 };
const GOOD: Direction = Direction { stalled: false, delay: Duration::ZERO, piece: 0 };

/// A node behind the proxy. The agent notices a silent server after two or three times `ping`.
fn node_behind_proxy(fleet: &SingleNodeFleet, proxy: &Proxy, ping: &str) -> NodeDir {
    let wishes = NodeSettings { nats: format!("ping_interval = \"{ping}\""), ..NodeSettings::default() };
    NodeDir::new(fleet, "web1", &proxy.url(), &wishes)
}

fn port(fleet: &SingleNodeFleet) -> u16 {
    fleet.server.url().rsplit(':').next().unwrap().parse().unwrap()
}

/// Sends the same bytes until the node answers, as an operator without an answer does.
async fn send_until_result(fleet: &SingleNodeFleet, place: &NodeDir, command: &Command) -> CommandResult {
    let (envelope, start) = (fleet.sign(command), Instant::now());
    while place.first_answer(fleet, command, &envelope, Duration::from_millis(500)).await.is_none() {
        assert!(start.elapsed() < 3 * PATIENCE, "no answer\n{}", place.log());
    }
    place.only_result(&fleet.bus, command.id).await
}

async fn until_logged(place: &NodeDir, text: &str, times: usize) {
    let start = Instant::now();
    while place.log().matches(text).count() < times {
        assert!(start.elapsed() < 2 * PATIENCE, "{text}, {times} times:\n{}", place.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_silent_server_is_noticed_within_a_minute() {
    assert!(3 * BusSettings::default().ping <= Duration::from_secs(60));
}

#[test]
fn a_half_open_connection_is_replaced() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let proxy = Proxy::new(port(&fleet));
        let place = node_behind_proxy(&fleet, &proxy, "1s");
        let _agent = place.start(&fleet.bus, &mut place.process()).await;
        // Both directions, then only the messages from the server: the node can publish, and receives nothing.
        for (number, up) in [STALLED, GOOD].into_iter().enumerate() {
            let name = format!("effect{number}");
            let mut command = place.append_command(&fleet, &name);
            let script = format!("touch {0}.begun; sleep 1; echo line >> {0}", place.site().join(&name).display());
            command.action = crate::support::single_node::ensure_action(
                "exec",
                &serde_json::json!({"name": name, "command": script, "provider": "shell"}),
            );
            fleet.send(&command).await;
            fleet.until("the run", || place.site().join(format!("{name}.begun")).exists()).await;
            proxy.set(up, STALLED);
            until_logged(&place, "lost the connection to NATS", number + 1).await;
            proxy.set(GOOD, GOOD);
            assert_eq!(place.only_result(&fleet.bus, command.id).await.outcome, CommandOutcome::Changed);
            let next = place.append_command(&fleet, &name);
            assert_eq!(send_until_result(&fleet, &place, &next).await.outcome, CommandOutcome::Changed);
            assert_eq!(place.lines(&name), 2);
            assert_eq!(place.results(&fleet.bus, command.id).await.len(), 1);
        }
    });
}

#[test]
fn a_slow_network_only_takes_longer() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let proxy = Proxy::new(port(&fleet));
        // A busy machine adds delay: a slow link must not count as silent.
        let place = node_behind_proxy(&fleet, &proxy, "10s");
        let _agent = place.start(&fleet.bus, &mut place.process()).await;
        for way in [
            Direction { delay: Duration::from_millis(150), ..GOOD },
            Direction { delay: Duration::from_micros(200), piece: 3, stalled: false },
        ] {
            proxy.set(way, way);
            let command = place.append_command(&fleet, "effect");
            let envelope = fleet.sign(&command);
            assert!(place.first_answer(&fleet, &command, &envelope, PATIENCE).await.is_some());
            assert_eq!(place.only_result(&fleet.bus, command.id).await.outcome, CommandOutcome::Changed);
        }
        assert_eq!(place.lines("effect"), 2);
        assert!(!place.log().contains("lost the connection"), "{}", place.log());
    });
}

#[test]
fn a_connection_that_is_cut_again_and_again_loses_nothing() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let proxy = Proxy::new(port(&fleet));
        let place = node_behind_proxy(&fleet, &proxy, "1s");
        let _agent = place.start(&fleet.bus, &mut place.process()).await;
        let work = async {
            for number in 0..4 {
                let command = place.append_command(&fleet, &format!("effect{number}"));
                assert_eq!(send_until_result(&fleet, &place, &command).await.outcome, CommandOutcome::Changed);
            }
        };
        let trouble = async {
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_millis(250)).await;
                proxy.cut();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = work => {}
            () = trouble => {}
        }
        for number in 0..4 {
            assert_eq!(place.lines(&format!("effect{number}")), 1);
        }
        place.wait_until_published();
        let events = place.events(&fleet.bus).await;
        let runs = events.iter().filter(|event| event.subject.ends_with(".run")).count();
        let ids: std::collections::BTreeSet<String> = events
            .iter()
            .map(|event| read::<serde_json::Value>(event).unwrap()["event_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!((runs, ids.len()), (4, events.len()));
    });
}
