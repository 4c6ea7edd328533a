//! Two hundred nodes: the budget stops them without the sender.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::support::nats::on_each;
use crate::support::sim::SimulatedFleet;

const NODES: u32 = 200;

#[test]
fn a_budget_halts_a_large_fleet_after_the_operator_was_killed() {
    on_each(|binary| {
        let fleet = SimulatedFleet::new(binary);
        // Of the twenty nodes of the first wave, about twelve fail; four may.
        let sim = fleet.start(NODES, &["--fail-rate", "60%", "--work", "1ms..50ms"]);
        let what = ["ensure", "file", "/srv/motd", "--content", "x", "--owner", "root", "--file-group", "root", "--mode=0644"];
        let how = ["--all", "--waves", "10%,50%,100%", "--hold", "2s", "--max-failed", "2%"];
        let mut operator =
            fleet.process(&[&what[..], &how].concat()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(operator.stderr.take().unwrap()).lines().map_while(Result::ok);
        let id = said.into_iter().find_map(|line| Some(line.strip_prefix("job ")?.split(':').next()?.to_owned())).unwrap();
        sim.wait_for("the first wave", |figures| figures["ended"].as_u64() > Some(0));
        operator.kill().unwrap();
        operator.wait().unwrap();

        let watched = fleet.run(&["rollout", "watch", &id, "--output", "json"]);
        let document = watched.json();
        let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
        for node in document["nodes"].as_array().unwrap() {
            *outcomes.entry(node["outcome"].as_str().unwrap()).or_default() += 1;
        }
        assert_eq!(watched.code, 1, "{}", watched.stderr);
        assert_eq!(outcomes.values().sum::<usize>(), NODES as usize, "{outcomes:?}");
        assert!(outcomes["failed"] > 4, "{outcomes:?}");
        let standing = fleet.run(&["rollout", "status", &id, "--output", "json"]).json();
        let column = |name: &str| -> Vec<u64> {
            standing["waves"].as_array().unwrap().iter().map(|wave| wave[name].as_u64().unwrap()).collect()
        };
        assert_eq!((&standing["state"], column("nodes")), (&Value::from("over_budget"), vec![20, 80, 100]), "{standing}");
        // Also in the first wave: a node that receives the fifth failure before its turn does not begin.
        let halted = column("halted");
        assert_eq!(halted[1..], [80, 100], "{standing}");
        assert_eq!(halted.iter().sum::<u64>(), outcomes["halted"] as u64, "{standing}");
        assert!(halted[0] + outcomes["failed"] as u64 <= 20, "{standing}");
        sim.stop();
    });
}

#[test]
fn a_silent_canary_stops_a_large_fleet_without_an_operator() {
    on_each(|binary| {
        let fleet = SimulatedFleet::new(binary);
        let sim = fleet.start(NODES, &["--silent-rate", "100%"]);
        let what = ["ensure", "file", "/srv/motd", "--content", "x", "--owner", "root", "--file-group", "root", "--mode=0644"];
        // Many may fail, and the canary did not: it is silent. Time alone releases no wave.
        let how = [
            "--all",
            "--waves",
            "1,10%,100%",
            "--hold",
            "1s",
            "--margin",
            "8s",
            "--timeout",
            "2s",
            "--max-failed",
            "50%",
            "--detach",
        ];
        let sent = fleet.run(&[&what[..], &how].concat());
        assert_eq!(sent.code, 0, "{}", sent.stderr);
        sim.wait_for("the canary is silent", |figures| figures["played"] == 1 && figures["connected"] == NODES - 1);
        let id = sent.stdout.trim();
        let watched = fleet.run(&["rollout", "watch", id, "--output", "json"]);
        assert_eq!(watched.code, 4, "{}", watched.stderr);
        let standing = fleet.run(&["rollout", "status", id, "--output", "json"]).json();
        let column = |name: &str| -> Vec<u64> {
            standing["waves"].as_array().unwrap().iter().map(|wave| wave[name].as_u64().unwrap()).collect()
        };
        assert_eq!((column("nodes"), column("halted")), (vec![1, 19, 180], vec![0, 19, 180]), "{standing}");
        let figures = sim.figures();
        assert_eq!((&figures["played"], &figures["accepted"]), (&Value::from(1), &Value::from(NODES)));
        sim.stop();
    });
}
