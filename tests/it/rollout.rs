//! Commands in waves: every node keeps to them by itself, whatever becomes of who sent them.

mod alone;
#[cfg(feature = "simulator")]
mod many;

use std::path::Path;

use ensign::wire::{Ack, Done};
use serde_json::{Value, json};

use crate::support::fleet::{Fleet, ensign};
use crate::support::nats::on_each;

const NODES: [&str; 4] = ["web1", "web2", "web3", "web4"];
/// Between two waves, where what happens in the first must be known before the second: nodes keep to the clock, and a
/// busy machine is slow.
const HOLD: &str = "12s";

/// Four nodes, and two manifests: one that can be applied, and one that fails everywhere.
fn fleet(binary: &Path) -> Fleet {
    let mut fleet = Fleet::new(binary, &NODES.map(|node| (node, "web")));
    for node in NODES {
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
    /// Sends a manifest in waves, and lets the process that sent it end; gives the id of the job.
    fn roll(&self, manifest: &str, flags: &[&str]) -> String {
        let manifest = self.path(&format!("{manifest}.yaml"));
        let sent = self.run(&[&["apply", manifest.to_str().unwrap(), "--all", "--detach"], flags].concat());
        assert_eq!(sent.code, 0, "{}", sent.stderr);
        sent.stdout.trim().to_owned()
    }

    fn began(&self, name: &str) -> usize {
        NODES.iter().filter(|node| self.path(node).join("site").join(name).exists()).count()
    }

    fn standing(&self, id: &str) -> Value {
        let status = self.run(&["rollout", "status", id, "--output", "json"]);
        assert_eq!(status.code, 0, "{}", status.stderr);
        status.json()
    }

    /// The acknowledgement and the result of each node.
    async fn reports(&self, id: &str) -> Vec<(Ack, Done)> {
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

/// When a wave begins.
fn begins(standing: &Value, wave: usize) -> jiff::Timestamp {
    standing["waves"][wave]["begins"].as_str().unwrap().parse().unwrap()
}

fn column(standing: &Value, name: &str) -> Vec<u64> {
    standing["waves"].as_array().unwrap().iter().map(|wave| wave[name].as_u64().unwrap()).collect()
}

#[test]
fn waves_begin_in_order_when_nobody_is_there_to_see_it() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    on_each(|binary| {
        let fleet = fleet(binary);
        let id = fleet.roll("good", &["--waves", "1,50%,100%", "--hold", "2s"]);
        let early = fleet.standing(&id);
        assert_eq!(column(&early, "nodes"), vec![1, 1, 2], "{early}");
        // Unless it took until the last turn to ask.
        let late = jiff::Timestamp::now() >= begins(&early, 2);
        assert!(early["state"] == "running" || (late && early["state"] == "done"), "{early}");
        let watched = fleet.run(&["rollout", "watch", &id]);
        assert!(watched.code == 0 && watched.stdout.contains("budget  0 of 0 may fail"), "{}{}", watched.stdout, watched.stderr);
        let late = fleet.standing(&id);
        assert_eq!((column(&late, "ok"), &late["state"]), (vec![1, 1, 2], &json!("done")), "{late}");
        let reports = runtime.block_on(fleet.reports(&id));
        assert_eq!(reports.len(), NODES.len());
        let mut turns = Vec::new();
        for (ack, done) in reports {
            assert!(done.at >= ack.due.unwrap() && ack.at < done.at, "{ack:?} {done:?}");
            turns.push(ack.due.unwrap());
        }
        turns.sort();
        turns.dedup();
        assert_eq!(turns.len(), 3, "{turns:?}");
        // What is not in waves has none.
        let id = fleet.roll("good", &[]);
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
        let id = fleet.roll("bad", &["--waves", "1,100%", "--hold", HOLD]);
        let watched = fleet.run(&["rollout", "watch", &id, "--output", "json"]);
        assert_eq!(watched.code, 1, "{}{}", watched.stdout, watched.stderr);
        let nodes = watched.json()["nodes"].as_array().unwrap().clone();
        let (failed, halted): (Vec<&Value>, Vec<&Value>) = nodes.iter().partition(|node| node["outcome"] == "failed");
        assert_eq!((failed.len(), halted.len()), (1, 3), "{nodes:?}");
        let canary = failed[0]["node"].as_str().unwrap();
        for node in halted {
            assert_eq!((&node["outcome"], &node["done"]["code"]), (&json!("halted"), &json!("halted")), "{node}");
            assert_eq!(node["done"]["message"], format!("the error budget of 0 is spent: {canary} failed first"));
        }
        let standing = fleet.standing(&id);
        assert_eq!((&standing["state"], column(&standing, "failed")), (&json!("over_budget"), vec![1, 0]), "{standing}");
        // With a budget of two, three nodes may begin; what comes after the third failure does not.
        let id = fleet.roll("bad", &["--waves", "3,100%", "--hold", HOLD, "--max-failed", "50%"]);
        let watched = fleet.run(&["rollout", "watch", &id, "--output", "json"]).json();
        let failed = watched["nodes"].as_array().unwrap().iter().filter(|node| node["outcome"] == "failed").count();
        assert_eq!(failed, 3, "{watched}");
        // What was said of failures has its place in the chains of the nodes: nothing is missing.
        NODES.iter().for_each(|node| fleet.settled(node));
        let (export, known) = (fleet.path("export.jsonl"), fleet.path("known_nodes"));
        let (export, known) = (export.to_str().unwrap(), known.to_str().unwrap());
        assert_eq!(fleet.run(&["audit", "export", export]).code, 0);
        let audit = ensign(&["audit", "verify", export, "--known-nodes", known]);
        assert_eq!(audit.code, 0, "{}{}", audit.stdout, audit.stderr);
    });
}

#[test]
fn a_halt_holds_those_that_wait_and_a_resume_lets_them_go_on() {
    on_each(|binary| {
        let mut fleet = fleet(binary);
        let id = fleet.roll("good", &["--waves", "1,100%", "--hold", "20s"]);
        fleet.wait_for("the first wave", || fleet.began("good") == 1);
        let halted = fleet.run(&["halt", &id, "--reason", "smoke"]);
        assert!(halted.code == 0 && halted.stdout.contains("it waits for its turn, and is halted"), "{}", halted.stdout);
        assert!(halted.stdout.contains("it does not wait here"), "{}", halted.stdout);
        // A node that is started anew finds the halt.
        let waiting = NODES.iter().find(|node| !fleet.path(node).join("site/good").exists()).unwrap();
        fleet.kill(waiting);
        fleet.start(waiting, "web");
        let due = begins(&fleet.standing(&id), 1);
        fleet.wait_for("the turn of the second wave", || jiff::Timestamp::now() > due + jiff::SignedDuration::from_millis(1500));
        let standing = fleet.standing(&id);
        assert_eq!((fleet.began("good"), &standing["state"]), (1, &json!("halted")), "{standing}");
        assert_eq!((&standing["word"]["reason"], column(&standing, "waiting")), (&json!("smoke"), vec![0, 3]), "{standing}");
        let shown = fleet.run(&["rollout", "status", &id]).stdout;
        assert!(shown.contains("halted by ops-alice") && shown.contains("smoke"), "{shown}");
        let resumed = fleet.run(&["resume", &id]);
        assert_eq!(resumed.code, 0, "{}{}", resumed.stdout, resumed.stderr);
        let watched = fleet.run(&["rollout", "watch", &id, "--output", "json"]);
        assert_eq!((watched.code, fleet.began("good")), (0, 4), "{}{}", watched.stdout, watched.stderr);
    });
}

#[test]
fn what_stands_is_taken_up_in_waves_too() {
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
        fleet.wait_for("all say that it is in force", || in_force().iter().all(serde_json::Value::is_string));
        let before = in_force()[0].clone();
        // The first that takes up another one fails: all others stay with the one before.
        let bad = assign("bad", &in_waves(HOLD));
        let document = bad.json();
        assert_eq!((outcomes(&document, "failed"), outcomes(&document, "halted")), (1, 3), "{document}");
        assert_eq!(bad.code, 1);
        fleet.wait_for("the states", || in_force().iter().filter(|digest| **digest == before).count() == 3);
        fleet.wait_for("the nodes say why", || {
            fleet.run(&["nodes"]).stdout.contains("was not begun: the error budget of 0 is spent")
        });
        // What comes next is a rollout of its own.
        let again = assign("good", &in_waves("2s"));
        assert_eq!(again.code, 0, "{}{}", again.stdout, again.stderr);
        fleet.wait_for("all are back", || in_force().iter().all(|digest| *digest == before));
    });
}
