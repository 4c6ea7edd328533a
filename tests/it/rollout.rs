//! Rollouts: every node keeps to the waves by itself, even after the sender's end.

#[cfg(feature = "simulator")]
mod large_fleet;
mod revert;
pub mod single_node;

use std::path::Path;

use ensign::wire::{Ack, CommandResult};
use serde_json::{Value, json};

use crate::support::fleet::{Fleet, ensign};
use crate::support::nats::on_each;

const NODES: [&str; 4] = ["web1", "web2", "web3", "web4"];
const HOLD: &str = "1s";

/// Four nodes, and two manifests: one that can be applied, and one that fails everywhere.
fn fleet(binary: &Path) -> Fleet {
    fleet_of(binary, &NODES)
}

fn fleet_of(binary: &Path, nodes: &[&str]) -> Fleet {
    let named: Vec<(&str, &str)> = nodes.iter().map(|node| (*node, "web")).collect();
    let mut fleet = Fleet::new(binary, &named);
    for node in nodes {
        fleet.start(node, "web");
    }
    let own = nix::unistd::geteuid().as_raw();
    for (name, owner) in [("good", own.to_string()), ("bad", "nobody-has-this-name".to_owned())] {
        let manifest = json!({"ccm": {"resources": [{"file": [{format!("{{{{ Facts.site }}}}/{name}"): {
            "ensure": "present", "content": "x", "owner": owner, "group": own.to_string(), "mode": "0644",
        }}]}]}});
        std::fs::write(fleet.path(&format!("{name}.yaml")), manifest.to_string()).unwrap();
    }
    fleet
}

impl Fleet {
    /// Sends a manifest as a rollout, and lets the sending process end. Returns the id of the job.
    fn start_rollout(&self, manifest: &str, flags: &[&str]) -> String {
        let manifest = self.path(&format!("{manifest}.yaml"));
        let sent = self.run(&[&["apply", manifest.to_str().unwrap(), "--all", "--detach"], flags].concat());
        assert_eq!(sent.code, 0, "{}", sent.stderr);
        sent.stdout.trim().to_owned()
    }

    fn began(&self, name: &str) -> usize {
        NODES.iter().filter(|node| self.path(node).join("site").join(name).exists()).count()
    }

    fn rollout_status(&self, id: &str) -> Value {
        let status = self.run(&["rollout", "status", id, "--output", "json"]);
        assert_eq!(status.code, 0, "{}", status.stderr);
        status.json()
    }

    /// The acknowledgement and the result of each node.
    async fn reports(&self, id: &str) -> Vec<(Ack, CommandResult)> {
        let bus = self.connect("operator", None).await;
        let stream = self.subjects.stream("JOBS");
        let read =
            async |stage: &str| bus.last_per_subject(&stream, &format!("ensign.v1.test.job.{id}.*.{stage}")).await.unwrap();
        let (acks, dones) = (read("ack").await, read("done").await);
        let pair = |(ack, done): (&ensign::transport::Message, &ensign::transport::Message)| {
            (serde_json::from_slice(&ack.payload).unwrap(), serde_json::from_slice(&done.payload).unwrap())
        };
        acks.iter().zip(&dones).map(pair).collect()
    }
}

fn column(standing: &Value, name: &str) -> Vec<u64> {
    standing["waves"].as_array().unwrap().iter().map(|wave| wave[name].as_u64().unwrap()).collect()
}

#[test]
fn waves_begin_in_order_without_the_operator() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    on_each(|binary| {
        let fleet = fleet(binary);
        let id = fleet.start_rollout("good", &["--waves", "1,50%,100%", "--hold", "2s"]);
        let early = fleet.rollout_status(&id);
        assert_eq!(column(&early, "nodes"), vec![1, 1, 2], "{early}");
        assert_eq!(column(&early, "witnesses"), vec![1, 1, 0], "{early}");
        let watched = fleet.run(&["rollout", "watch", &id]);
        assert!(watched.code == 0 && watched.stdout.contains("budget  0 of 0 may fail"), "{}{}", watched.stdout, watched.stderr);
        let late = fleet.rollout_status(&id);
        assert_eq!((column(&late, "ok"), &late["state"]), (vec![1, 1, 2], &json!("done")), "{late}");
        let reports = runtime.block_on(fleet.reports(&id));
        assert_eq!(reports.len(), NODES.len());
        // Each wave began after the previous wave was healthy for its hold.
        let ended = |wave: u64| {
            let of_wave = reports.iter().filter(move |(ack, _)| ack.wave == Some(wave));
            of_wave.map(|(_, done)| done.at).collect::<Vec<_>>()
        };
        for wave in [2, 3] {
            let (before, after) = (ended(wave - 1), ended(wave));
            let last = *before.iter().max().unwrap() + jiff::SignedDuration::from_secs(2);
            assert!(after.iter().all(|at| *at >= last), "wave {wave}: {before:?} {after:?}");
        }
        assert_eq!(column(&late, "proved"), vec![1, 1, 0], "{late}");
        // A command without waves has no rollout.
        let id = fleet.start_rollout("good", &[]);
        let status = fleet.run(&["rollout", "status", &id]);
        assert!(status.code == 2 && status.stderr.contains("has no waves"), "{}", status.stderr);
        let usage = fleet.run(&["apply", fleet.path("good.yaml").to_str().unwrap(), "--all", "--hold", "2s"]);
        assert!(usage.code == 2 && usage.stderr.contains("--waves"), "{}", usage.stderr);
    });
}

#[test]
fn a_canary_that_fails_stops_the_rest() {
    on_each(|binary| {
        let fleet = fleet(binary);
        let id = fleet.start_rollout("bad", &["--waves", "1,100%", "--hold", HOLD]);
        let watched = fleet.run(&["rollout", "watch", &id, "--output", "json"]);
        assert_eq!(watched.code, 1, "{}{}", watched.stdout, watched.stderr);
        let nodes = watched.json()["nodes"].as_array().unwrap().clone();
        let (failed, halted): (Vec<&Value>, Vec<&Value>) = nodes.iter().partition(|node| node["outcome"] == "failed");
        assert_eq!((failed.len(), halted.len()), (1, 3), "{nodes:?}");
        let canary = failed[0]["node"].as_str().unwrap();
        for node in halted {
            assert_eq!((&node["outcome"], &node["done"]["code"]), (&json!("halted"), &json!("halted")), "{node}");
            assert_eq!(node["done"]["message"], format!("the error budget of 0 is exhausted: {canary} failed first"));
        }
        let standing = fleet.rollout_status(&id);
        assert_eq!((&standing["state"], column(&standing, "failed")), (&json!("over_budget"), vec![1, 0]), "{standing}");
        // With a budget of two, three nodes may begin. After the third failure no further node begins.
        let id = fleet.start_rollout("bad", &["--waves", "3,100%", "--hold", HOLD, "--max-failed", "50%"]);
        let watched = fleet.run(&["rollout", "watch", &id, "--output", "json"]).json();
        let failed = watched["nodes"].as_array().unwrap().iter().filter(|node| node["outcome"] == "failed").count();
        assert_eq!(failed, 3, "{watched}");
        // The chains of the nodes include the failure messages: nothing is missing.
        NODES.iter().for_each(|node| fleet.wait_until_published(node));
        let (export, known) = (fleet.path("export.jsonl"), fleet.path("known_nodes"));
        let (export, known) = (export.to_str().unwrap(), known.to_str().unwrap());
        assert_eq!(fleet.run(&["audit", "export", export]).code, 0);
        let audit = ensign(&["audit", "verify", export, "--known-nodes", known]);
        assert_eq!(audit.code, 0, "{}{}", audit.stdout, audit.stderr);
    });
}

#[test]
fn a_halt_holds_waiting_nodes_and_a_resume_lets_them_continue() {
    on_each(|binary| {
        let mut fleet = fleet(binary);
        let id = fleet.start_rollout("good", &["--waves", "1,100%", "--hold", "15s"]);
        fleet.wait_for("the first wave", || fleet.began("good") == 1);
        let halted = fleet.run(&["halt", &id, "--reason", "smoke"]);
        assert!(halted.code == 0 && halted.stdout.contains("the job waits for its wave, and is halted"), "{}", halted.stdout);
        assert!(halted.stdout.contains("the job does not wait on this node"), "{}", halted.stdout);
        // A restarted node finds the halt.
        let waiting = NODES.iter().find(|node| !fleet.path(node).join("site/good").exists()).unwrap();
        fleet.kill(waiting);
        fleet.start(waiting, "web");
        fleet.wait_for("the end of the hold", || column(&fleet.rollout_status(&id), "proved") == [1, 0]);
        std::thread::sleep(std::time::Duration::from_secs(6));
        let standing = fleet.rollout_status(&id);
        assert_eq!((fleet.began("good"), &standing["state"]), (1, &json!("halted")), "{standing}");
        assert_eq!((&standing["word"]["reason"], column(&standing, "waiting")), (&json!("smoke"), vec![0, 3]), "{standing}");
        let why = fleet.run(&["why", &id, waiting]).stdout;
        assert!(why.contains("waits in wave 2") && why.contains("halted by ops-alice") && why.contains("smoke"), "{why}");
        let shown = fleet.run(&["rollout", "status", &id]).stdout;
        assert!(shown.contains("halted by ops-alice") && shown.contains("smoke"), "{shown}");
        let resumed = fleet.run(&["resume", &id]);
        assert_eq!(resumed.code, 0, "{}{}", resumed.stdout, resumed.stderr);
        let watched = fleet.run(&["rollout", "watch", &id, "--output", "json"]);
        assert_eq!((watched.code, fleet.began("good")), (0, 4), "{}{}", watched.stdout, watched.stderr);
    });
}

#[test]
fn a_canary_that_is_killed_stops_the_rest() {
    on_each(|binary| {
        const EIGHT: [&str; 8] = ["web1", "web2", "web3", "web4", "web5", "web6", "web7", "web8"];
        let mut fleet = fleet_of(binary, &EIGHT);
        let id = fleet.start_rollout("good", &["--waves", "1,50%,100%", "--hold", "8s", "--margin", "6s", "--timeout", "1s"]);
        let begun = |fleet: &Fleet| -> Vec<&str> {
            EIGHT.into_iter().filter(|node| fleet.path(node).join("site/good").exists()).collect()
        };
        // The sender is gone, and the first node dies before the hold is over.
        fleet.wait_for("the first wave", || !begun(&fleet).is_empty());
        let first = begun(&fleet).remove(0);
        fleet.kill(first);
        let halted = |outcome: &Value| outcome["outcome"] == "halted";
        let mut document = Value::Null;
        fleet.wait_for("the second wave ends", || {
            document = fleet.run(&["job", "show", &id, "--output", "json"]).json();
            document["nodes"].as_array().unwrap().iter().filter(|node| halted(node)).count() >= 3
        });
        let nodes = document["nodes"].as_array().unwrap();
        let said = |node: &Value| node["done"]["message"].as_str().unwrap().to_owned();
        let said: Vec<String> = nodes.iter().filter(|node| halted(node)).map(said).collect();
        assert!(said.iter().all(|text| text.contains(&format!("{first} stayed silent"))), "{said:?}");
        // The third wave waits for the second, which never begins.
        assert_eq!(begun(&fleet), [first]);
    });
}

#[test]
fn the_sender_or_another_operator_releases_each_wave() {
    on_each(|binary| {
        let fleet = fleet(binary);
        let flags = ["--waves", "1,50%,100%", "--hold", HOLD, "--go"];
        let manifest = fleet.path("good.yaml");
        let sent = fleet.run(&[&["apply", manifest.to_str().unwrap(), "--all"], &flags[..]].concat());
        assert_eq!((sent.code, fleet.began("good")), (0, 4), "{}{}", sent.stdout, sent.stderr);
        // Without a witness, each wave waits for a go-ahead.
        let id = fleet.start_rollout("good", &flags);
        fleet.wait_for("the first wave", || column(&fleet.rollout_status(&id), "proved") == [1, 0, 0]);
        std::thread::sleep(std::time::Duration::from_secs(4));
        assert_eq!(column(&fleet.rollout_status(&id), "ok"), [1, 0, 0]);
        let shown = fleet.run(&["rollout", "status", &id]).stdout;
        assert!(shown.contains("1 of 1, no go yet"), "{shown}");
        for wave in [2, 3] {
            let go = fleet.run(&["rollout", "go", &id]);
            assert!(go.code == 0 && go.stderr.contains(&format!("wave {wave} of")), "{}", go.stderr);
            fleet.wait_for("the next wave", || column(&fleet.rollout_status(&id), "ok").iter().sum::<u64>() >= [2, 4][wave - 2]);
        }
        let none = fleet.run(&["rollout", "go", &id]);
        assert!(none.code == 2 && none.stderr.contains("all of them have their go-ahead"), "{}", none.stderr);
    });
}

#[test]
fn assignments_are_applied_in_waves_too() {
    on_each(|binary| {
        let fleet = fleet(binary);
        let assign = |manifest: &str, flags: &[&str]| {
            let manifest = fleet.path(&format!("{manifest}.yaml"));
            let args = ["assign", "base", manifest.to_str().unwrap(), "--all", "--output", "json"];
            fleet.run(&[&args, flags].concat())
        };
        let outcomes = |document: &Value, outcome: &str| {
            document["nodes"].as_array().unwrap().iter().filter(|node| node["outcome"] == outcome).count()
        };
        let in_waves = |hold| ["--waves", "1,100%", "--hold", hold];
        let good = assign("good", &in_waves("2s"));
        assert_eq!((good.code, outcomes(&good.json(), "changed")), (0, 4), "{}{}", good.stdout, good.stderr);
        assert!(good.stderr.contains("waves of 1, 3 nodes"), "{}", good.stderr);
        let digest = |row: &Value| row["assignments"][0]["in_force"].clone();
        let in_force = || -> Vec<Value> {
            fleet.run(&["nodes", "--output", "json"]).json().as_array().unwrap().iter().map(digest).collect()
        };
        fleet.wait_for("all nodes report the active assignment", || in_force().iter().all(serde_json::Value::is_string));
        let before = in_force()[0].clone();
        // The first node with the next assignment fails: all others keep the previous assignment.
        let bad = assign("bad", &in_waves(HOLD));
        let document = bad.json();
        assert_eq!((outcomes(&document, "failed"), outcomes(&document, "halted")), (1, 3), "{document}");
        assert_eq!(bad.code, 1);
        fleet.wait_for("the states", || in_force().iter().filter(|digest| **digest == before).count() == 3);
        fleet.wait_for("the nodes report the reason", || {
            fleet.run(&["nodes"]).stdout.contains("was not begun: the error budget of 0 is exhausted")
        });
        // The next assignment is its own rollout.
        let again = assign("good", &in_waves("2s"));
        assert_eq!(again.code, 0, "{}{}", again.stdout, again.stderr);
        fleet.wait_for("all are back", || in_force().iter().all(|digest| *digest == before));
    });
}
