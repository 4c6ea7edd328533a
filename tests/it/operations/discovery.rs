//! Agents are services to the tools of NATS (NATS ADR-32), confined to their own subjects.

use std::path::Path;
use std::time::Duration;

use ensign::transport::Bus;
use serde_json::Value;

use crate::support::fleet::Fleet;
use crate::support::single_node::{PATIENCE, on_every_server};

/// Returns this many answers to a request, and everything that arrives soon after the last.
async fn answers(bus: &Bus, subject: &str, count: usize) -> Vec<Value> {
    let (reply, mut inbox) = bus.request_inbox().await.unwrap();
    bus.publish_with_reply(subject, &format!("{reply}.1"), &[], Vec::new()).await.unwrap();
    let mut found = Vec::new();
    let wait = |found: &[Value]| if found.len() < count { PATIENCE } else { Duration::from_millis(500) };
    while let Ok(Some(message)) = tokio::time::timeout(wait(&found), inbox.next()).await {
        if !message.no_responders {
            found.push(serde_json::from_slice(&message.payload).unwrap());
        }
    }
    found.sort_by_key(|answer: &Value| answer["id"].as_str().map(str::to_owned));
    found
}

#[test]
fn every_agent_answers_service_discovery() {
    on_every_server(async |binary: &Path| {
        let mut fleet = Fleet::new(binary, &[("web1", "web"), ("db1", "db")]);
        fleet.start("web1", "web");
        fleet.start("db1", "db");
        let done = fleet.run(&["ensure", "exec", "id", "--command", "id", "--node", "web1"]);
        assert_eq!(done.code, 3, "{}{}", done.stdout, done.stderr);
        for user in ["operator", "monitor"] {
            let inbox = (user == "monitor").then_some("_INBOX_MONITOR");
            let bus = fleet.connect(user, inbox).await;
            let all = answers(&bus, "$SRV.PING", 2).await;
            let ids: Vec<_> = all.iter().map(|answer| answer["id"].as_str().unwrap()).collect();
            assert_eq!(ids, ["test-db1", "test-web1"]);
            assert_eq!(all[1]["type"], "io.nats.micro.v1.ping_response");
            let metadata = &all[1]["metadata"];
            assert_eq!(
                (&metadata["node"], &metadata["fleet"], &metadata["groups"]),
                (&"web1".into(), &"test".into(), &"web".into())
            );
            let info = answers(&bus, "$SRV.INFO.ensign", 2).await;
            assert_eq!(info.len(), 2);
            assert_eq!(info[0]["endpoints"][0]["subject"], "ensign.v1.test.cmd.*.node.db1");
            let stats = answers(&bus, "$SRV.STATS.ensign.test-web1", 1).await;
            assert_eq!((stats.len(), &stats[0]["endpoints"][0]["num_errors"]), (1, &1.into()), "{stats:?}");
            assert!(stats[0]["endpoints"][0]["last_error"].as_str().unwrap().starts_with("local_limit: "), "{stats:?}");
            assert!(answers(&bus, "$SRV.PING.other", 0).await.is_empty());
        }
        // A node can't query others, and can't answer for others.
        let node = fleet.connect("web1", Some("_INBOX_web1")).await;
        assert!(answers(&node, "$SRV.PING", 0).await.is_empty());
        let mut other = node.subscribe("$SRV.*.ensign.test-db1").await.unwrap();
        node.flush_roundtrip().await.unwrap();
        let bus = fleet.connect("operator", None).await;
        bus.publish("$SRV.PING.ensign.test-db1", &[], Vec::new()).await.unwrap();
        bus.flush_roundtrip().await.unwrap();
        node.flush_roundtrip().await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(300), other.next()).await.is_err());
    });
}
