//! The limits that the server itself enforces, with the users of `ensign fleet init --print-permissions`. No client publishes
//! for another node or reads another node's messages. A read-only user can only read.

use std::path::Path;
use std::time::{Duration, Instant};

use ensign::fleet::setup::permissions::MONITOR_INBOX;
use ensign::transport::Bus;
use ensign::wire::subject::{EventKind, ReportStage};
use uuid::Uuid;

use crate::support::fleet::{FLEET, Fleet};
use crate::support::nats::binaries;
use crate::support::single_node::PATIENCE;

const NODES: [(&str, &str); 2] = [("web1", "web"), ("db1", "db")];

/// Panics unless the server denies each of these, and says so.
pub(crate) async fn denied(bus: &Bus, who: &str, publish: &[String], subscribe: &[String]) {
    let before = bus.counters().denied;
    let mut wanted = before;
    let mut inboxes = Vec::new();
    for (number, subject) in publish.iter().chain(subscribe).enumerate() {
        if number < publish.len() {
            bus.publish(subject, &[], b"{}".to_vec()).await.unwrap();
        } else {
            inboxes.push(bus.subscribe(subject).await.unwrap());
        }
        wanted += 1;
        let start = Instant::now();
        while bus.counters().denied < wanted {
            assert!(start.elapsed() < PATIENCE, "the server does not deny {subject} to {who}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn confined(binary: &Path) {
    let fleet = Fleet::new(binary, &NODES);
    let subjects = &fleet.subjects;
    let of_nodes = |node: &str| {
        let node = node.parse().unwrap();
        let mut all: Vec<String> = [EventKind::Transaction, EventKind::Run, EventKind::Refused, EventKind::Lifecycle]
            .map(|kind| subjects.event(&node, kind).to_string())
            .into();
        all.extend([ReportStage::Ack, ReportStage::Done].map(|stage| subjects.job(Uuid::nil(), &node, stage).to_string()));
        all.push(subjects.state(&node).to_string());
        all
    };
    let commands: Vec<String> = ["node.web1", "node.db1", "group.web", "group.db", "all"]
        .iter()
        .flat_map(|audience| ["ensure", "apply"].map(|action| format!("ensign.v1.{FLEET}.cmd.{action}.{audience}")))
        .collect();
    let bucket = subjects.bucket();
    let streams: Vec<String> = ["JOBS", "EVENTS", "STATE", "DESIRED"]
        .iter()
        .flat_map(|name| {
            let stream = subjects.stream(name);
            ["STREAM.DELETE", "STREAM.PURGE", "STREAM.UPDATE", "STREAM.MSG.DELETE"].map(|api| format!("$JS.API.{api}.{stream}"))
        })
        .chain([format!("$JS.API.STREAM.DELETE.OBJ_{bucket}"), format!("$O.{bucket}.M.x"), format!("$O.{bucket}.C.x")])
        .collect();

    // A node: nothing of another node, no command, no stream. It receives only its own commands and inbox.
    let node = fleet.connect("web1", Some("_INBOX_web1")).await;
    let others = [of_nodes("db1"), commands.clone(), streams.clone(), vec!["_INBOX_db1.x".into(), "_INBOX.x".into()]].concat();
    let hear = [
        format!("ensign.v1.{FLEET}.cmd.*.node.db1"),
        format!("ensign.v1.{FLEET}.cmd.*.group.db"),
        format!("ensign.v1.{FLEET}.cmd.>"),
        subjects.all_jobs().to_string(),
        subjects.events(None).to_string(),
        subjects.states().to_string(),
        subjects.state(&"db1".parse().unwrap()).to_string(),
        "_INBOX_db1.>".to_owned(),
        format!("{MONITOR_INBOX}.>"),
        "_INBOX.>".to_owned(),
        "$JS.API.>".to_owned(),
        ">".to_owned(),
    ];
    denied(&node, "a node", &others, &hear).await;

    // The operator sends commands, and publishes for no node.
    let operator = fleet.connect("operator", None).await;
    denied(
        &operator,
        "an operator",
        &[of_nodes("web1"), of_nodes("db1"), vec!["_INBOX_web1.x".into()]].concat(),
        &["_INBOX_web1.>".into()],
    )
    .await;

    // The monitor publishes nothing at all.
    let monitor = fleet.connect("monitor", Some(MONITOR_INBOX)).await;
    let said = [of_nodes("web1"), commands, streams, vec!["_INBOX_web1.x".into()]].concat();
    denied(&monitor, "a monitor", &said, &["_INBOX_web1.>".into(), "_INBOX.>".into(), format!("ensign.v1.{FLEET}.cmd.>")]).await;

    // No stream has any of these messages.
    for name in ["JOBS", "EVENTS", "STATE"] {
        let all = operator.last_per_subject(&subjects.stream(name), ">").await.unwrap();
        assert!(all.is_empty(), "{name}: {all:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_user_publishes_or_reads_for_another_node() {
    for binary in binaries() {
        confined(&binary).await;
    }
}
