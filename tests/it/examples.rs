//! The example in another language: a node executes the commands that it signs.

use std::process::Command;

use ensign::transport::StartAt;
use ensign::wire::{CommandOutcome, CommandResult};
use serde_json::Value;
use uuid::Uuid;

use crate::support::fleet::{FLEET, Fleet};
use crate::support::nats::binaries;
use crate::support::single_node::PATIENCE;
use crate::support::skip::{Reason, skip};

const SIGN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/examples/sign.py");

/// The output of the example for these arguments.
fn sign(fleet: &Fleet, more: &[&str]) -> Vec<u8> {
    let key = fleet.path("ops-alice.key");
    let ran = Command::new("python3").args([SIGN, "--key", key.to_str().unwrap(), "--fleet", FLEET]).args(more).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    ran.stdout
}

fn id(envelope: &[u8]) -> Uuid {
    let envelope = ensign::wire::Envelope::parse(envelope).unwrap();
    let command: Value = serde_json::from_slice(&envelope.payload).unwrap();
    command["id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_node_executes_commands_signed_by_python() {
    let there = Command::new("python3").args(["-c", "import cryptography"]).output();
    if !there.is_ok_and(|ran| ran.status.success()) {
        return skip(Reason::Missing, "python3 has no module `cryptography` (Debian: python3-cryptography)");
    }
    let fleet = tokio::task::spawn_blocking(|| {
        let mut fleet = Fleet::new(&binaries()[0], &[("web1", "web")]);
        fleet.start("web1", "web");
        fleet
    });
    let fleet = fleet.await.unwrap();
    let operator = fleet.connect("operator", None).await;
    let file = fleet.path("web1/site/motd");
    let own = std::fs::metadata("/proc/self").unwrap();
    let (uid, gid) = (std::os::unix::fs::MetadataExt::uid(&own), std::os::unix::fs::MetadataExt::gid(&own));
    let (owner, group) = (format!("owner={uid}"), format!("group={gid}"));
    let wanted = ["ensure=present", "content=from python\n", "mode=0644", &owner, &group];
    let ensure =
        |to: &[&str]| sign(&fleet, &[to, &["--reason", "CHG-7", "ensure", "file", file.to_str().unwrap()], &wanted].concat());

    let envelope = ensure(&["--node", "web1"]);
    let id = id(&envelope);
    let reports = fleet.subjects.job_reports(id);
    let mut feed = operator.follow(&fleet.subjects.stream("JOBS"), reports.as_str(), StartAt::Beginning).await.unwrap();
    let subject = "ensign.v1.test.cmd.ensure.node.web1";
    operator.publish(subject, &[], envelope.clone()).await.unwrap();
    let done = loop {
        let next = tokio::time::timeout(PATIENCE, feed.next()).await.unwrap().unwrap().unwrap();
        if next.subject.ends_with(".done") {
            break serde_json::from_slice::<CommandResult>(&next.payload).unwrap();
        }
    };
    assert_eq!((done.id, done.outcome), (Some(id), CommandOutcome::Changed), "{:?}", done.message);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "from python\n");

    // By file, as from a USB stick: the node answers a replay without a run, and refuses an altered file.
    let carried = |name: &str, bytes: &[u8]| {
        let path = fleet.path(name);
        std::fs::write(&path, bytes).unwrap();
        let config = fleet.path("web1/agent.toml");
        crate::support::fleet::ensign(&["agent", "accept", path.to_str().unwrap(), "--config", config.to_str().unwrap()])
    };
    std::fs::write(&file, "drift").unwrap();
    let again = carried("same.json", &envelope);
    assert_eq!((again.code, std::fs::read_to_string(&file).unwrap().as_str()), (0, "drift"), "{}", again.stderr);
    let fresh = carried("fresh.json", &ensure(&["--all"]));
    assert_eq!((fresh.code, std::fs::read_to_string(&file).unwrap().as_str()), (0, "from python\n"), "{}", fresh.stderr);
    let altered = String::from_utf8(ensure(&["--group", "web"])).unwrap().replace("\"payload\": \"ey", "\"payload\": \"eX");
    let altered = carried("altered.json", altered.as_bytes());
    assert!(
        altered.code == 3 && (altered.stdout.clone() + &altered.stderr).contains("bad_signature"),
        "{}{}",
        altered.stdout,
        altered.stderr
    );
}
