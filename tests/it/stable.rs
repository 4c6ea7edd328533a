//! Runs without a change: the agent counts them and publishes the count at an interval. The test measures the stream of events.

use std::time::Instant;

use ensign::fleet::setup::init::STABLE_MESSAGE;
use ensign::transport::{Message, StartAt};
use ensign::wire::report::StableRuns;
use ensign::wire::subject::EventKind;
use serde_json::Value;

use crate::support::nats::on_each;
use crate::support::sim::SimulatedFleet;
use crate::support::single_node::PATIENCE;

const NODES: u32 = 20;

/// Two thousand nodes that run every five minutes and publish a count every hour, for thirty days.
const MONTH_OF_2000: u64 = 2000 * 24 * 30;

#[test]
fn stable_runs_of_a_month_fit_into_the_stream() {
    on_each(|binary| {
        let fleet = SimulatedFleet::new(binary);
        let flags = ["--change-rate", "0%", "--work", "1ms", "--heartbeat", "5s", "--stable-interval", "1s"];
        let sim = fleet.start(NODES, &flags);
        let manifest = fleet.path("manifest.yaml");
        std::fs::write(&manifest, "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n").unwrap();
        let how = ["--all", "--interval", "30s", "--splay", "0s"];
        let sent = fleet.run(&[&["assign", "base", manifest.to_str().unwrap()], &how[..]].concat());
        assert_eq!(sent.code, 0, "{}", sent.stderr);
        sim.wait_for("every node has run the assignment again", |figures| {
            figures["played"].as_u64() >= Some(2 * u64::from(NODES))
        });
        let stable = |row: &Value| row["assignments"][0]["stable_runs"].as_u64() >= Some(2);
        let until = Instant::now() + PATIENCE;
        loop {
            let states = fleet.run(&["nodes", "--output", "json"]).json();
            if states.as_array().unwrap().iter().all(stable) {
                break;
            }
            assert!(Instant::now() < until, "{states}");
        }
        sim.wait_for("everything is with the server", |figures| figures["waiting"] == 0);
        sim.stop();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let bus = fleet.connect().await;
            let stream = fleet.subjects.stream("EVENTS");
            let client = async_nats::connect(fleet.server.url()).await.unwrap();
            let info = async_nats::jetstream::new(client).get_stream(&stream).await.unwrap().cached_info().clone();
            let mut feed = bus.follow(&stream, fleet.subjects.events(None).as_str(), StartAt::Beginning).await.unwrap();
            let (mut counts, mut summaries, mut all, mut largest) = (0, 0, 0, 0);
            for _ in 0..info.state.messages {
                let message = feed.next().await.unwrap().unwrap();
                let size = size(&message);
                all += size;
                let kind = message.subject.rsplit('.').next().unwrap();
                if kind == EventKind::Stable.as_str() {
                    let told: StableRuns = serde_json::from_slice(&message.payload).unwrap();
                    assert!(told.runs["base"] >= 1, "{told:?}");
                    counts += 1;
                    largest = largest.max(size);
                }
                summaries += u32::from(kind == EventKind::Run.as_str());
            }
            // The first run of each node has a summary, and each later one is counted.
            assert!(summaries == NODES && counts >= NODES, "{summaries} summaries, {counts} counts");
            assert_eq!(all, info.state.bytes, "as the server counts it");
            let month = largest * MONTH_OF_2000;
            assert!(largest <= STABLE_MESSAGE && month <= 1 << 30, "{largest} bytes each are {month} in a month");
        });
    });
}

/// The bytes of a message as a stream counts them: a record has 22 bytes of its own, 8 of a hash, and 4 with headers.
fn size(message: &Message) -> u64 {
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    let headers = if headers == 0 { 0 } else { headers + "NATS/1.0\r\n\r\n".len() + 4 };
    (30 + message.subject.len() + headers + message.payload.len()) as u64
}
