//! The transport against real servers: the oldest and the newest supported version.

use std::time::{Duration, Instant};

use ensign::transport::{Bus, BusSettings, Credentials, Ensured, StartAt, StreamSpec, TransportError};
use jiff::Timestamp;

use crate::support::nats::{NatsServer, Options, binaries};
use crate::support::port::Port;
use crate::support::single_node::PATIENCE;

fn settings(server: &NatsServer) -> BusSettings {
    BusSettings { servers: vec![server.url()], ..BusSettings::default() }
}

fn spec(name: &str, subject: &str) -> StreamSpec {
    StreamSpec {
        name: name.into(),
        subjects: vec![subject.into()],
        max_age: Some(Duration::from_secs(3600)),
        max_bytes: Some(1 << 24),
        max_per_subject: None,
        allow_direct: true,
        dedupe_window: Duration::from_secs(60),
        replicas: 1,
        ..StreamSpec::default()
    }
}

fn with_jetstream() -> Options {
    Options { jetstream: true, ..Options::default() }
}

#[tokio::test]
async fn plain_messages_go_both_ways() {
    for binary in binaries() {
        let server = NatsServer::start_binary(&binary, &Options::default());
        let bus = Bus::connect(&settings(&server)).await.unwrap();
        assert!(bus.is_connected());
        let mut inbox = bus.subscribe("a.>").await.unwrap();
        bus.flush_roundtrip().await.unwrap();
        let (answers, mut answered) = bus.request_inbox().await.unwrap();
        let reply = format!("{answers}.7");
        bus.publish_with_reply("a.b", &reply, &[("X", "1")], b"hello".to_vec()).await.unwrap();
        let message = inbox.next().await.unwrap();
        assert_eq!(
            (message.subject.as_str(), message.payload.as_slice(), message.header("x")),
            ("a.b", &b"hello"[..], Some("1"))
        );
        bus.publish(message.reply.as_deref().unwrap(), &[], b"yes".to_vec()).await.unwrap();
        let answer = answered.next().await.unwrap();
        assert_eq!((answer.subject.as_str(), answer.no_responders), (reply.as_str(), false));
        // Without a subscriber, the server says so at once.
        bus.publish_with_reply("nobody", &format!("{answers}.8"), &[], vec![]).await.unwrap();
        assert!(answered.next().await.unwrap().no_responders);
        assert!(matches!(bus.publish("a.c", &[], vec![0; 2 << 20]).await, Err(TransportError::TooLarge { .. })));
        bus.drain(Instant::now() + Duration::from_secs(3)).await;
        assert!(bus.watch().borrow().closed && inbox.next().await.is_none());
    }
}

#[tokio::test]
async fn streams_are_made_changed_and_read() {
    for binary in binaries() {
        let server = NatsServer::start_binary(&binary, &with_jetstream());
        let bus = Bus::connect(&settings(&server)).await.unwrap();
        assert!(
            matches!(bus.publish_stored("s.a", &[], vec![]).await, Err(TransportError::NoStream(subject)) if subject == "s.a")
        );
        assert!(matches!(bus.last_per_subject("S", "s.>").await, Err(TransportError::NoStream(_))));
        assert_eq!(bus.ensure_stream(&spec("S", "s.>")).await.unwrap(), Ensured::Created);
        assert_eq!(bus.ensure_stream(&spec("S", "s.>")).await.unwrap(), Ensured::Unchanged);
        let changed = StreamSpec { max_bytes: None, ..spec("S", "s.>") };
        assert!(
            matches!(bus.ensure_stream(&changed).await.unwrap(), Ensured::Updated(changes) if changes == ["max_bytes 16777216 → -1"])
        );
        assert_eq!(bus.last_per_subject("S", "s.>").await.unwrap(), vec![]);
        let before = Timestamp::now();
        for n in 0_u64..700 {
            let body = format!("{n}").into_bytes();
            assert_eq!(
                bus.publish_stored(&format!("s.{}", n % 7), &[("Nats-Msg-Id", &n.to_string())], body).await.unwrap(),
                n + 1
            );
        }
        // The same id again is the same message.
        assert_eq!(bus.publish_stored("s.0", &[("Nats-Msg-Id", "0")], vec![]).await.unwrap(), 1);
        let last = bus.last_per_subject("S", "s.>").await.unwrap();
        let bodies: Vec<_> = last.iter().map(|message| String::from_utf8(message.payload.clone()).unwrap()).collect();
        assert_eq!(bodies, ["693", "694", "695", "696", "697", "698", "699"]);
        assert!(last.iter().all(|message| message.time.is_some_and(|time| time >= before)));
        assert_eq!(bus.last_per_subject("S", "s.3").await.unwrap().len(), 1);
        let mut all = bus.follow("S", "s.>", StartAt::Beginning).await.unwrap();
        let mut new = bus.follow("S", "s.>", StartAt::New).await.unwrap();
        for n in 1..=700 {
            assert_eq!(all.next().await.unwrap().unwrap().seq, Some(n));
        }
        bus.publish_stored("s.new", &[], vec![]).await.unwrap();
        for feed in [&mut all, &mut new] {
            assert_eq!(feed.next().await.unwrap().unwrap().subject, "s.new");
        }
        let mut since = bus.follow("S", "s.>", StartAt::Since(last[6].time.unwrap())).await.unwrap();
        assert_eq!(since.next().await.unwrap().unwrap().seq, Some(700));
    }
}

#[tokio::test]
async fn a_stream_republishes_what_it_stores() {
    for binary in binaries() {
        let server = NatsServer::start_binary(&binary, &with_jetstream());
        let bus = Bus::connect(&settings(&server)).await.unwrap();
        let plain = spec("S", "s.>");
        let on = StreamSpec { deny_delete: true, republish: Some(("s.>".into(), "live.s.>".into())), ..plain.clone() };
        assert_eq!(bus.ensure_stream(&plain).await.unwrap(), Ensured::Created);
        let Ensured::Updated(changes) = bus.ensure_stream(&on).await.unwrap() else { panic!() };
        assert_eq!(changes, ["deny_delete false → true", "republish none → s.> to live.s.>"]);
        assert_eq!(bus.ensure_stream(&on).await.unwrap(), Ensured::Unchanged);
        let mut live = bus.subscribe("live.s.*").await.unwrap();
        bus.flush_roundtrip().await.unwrap();
        bus.publish_stored("s.7", &[], b"seven".to_vec()).await.unwrap();
        let message = live.next().await.unwrap();
        assert_eq!((message.subject.as_str(), message.payload.as_slice()), ("live.s.7", &b"seven"[..]));
    }
}

#[tokio::test]
async fn objects_come_back_as_they_were() {
    for binary in binaries() {
        let server = NatsServer::start_binary(&binary, &with_jetstream());
        let bus = Bus::connect(&settings(&server)).await.unwrap();
        assert!(bus.object_put("b", "k", b"x").await.is_err());
        assert_eq!(bus.ensure_bucket("b", 1).await.unwrap(), Ensured::Created);
        assert_eq!(bus.ensure_bucket("b", 1).await.unwrap(), Ensured::Unchanged);
        let large: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
        for (key, content) in [("empty", &[][..]), ("small", b"abc"), ("dir/large.tar.gz", &large)] {
            bus.object_put("b", key, content).await.unwrap();
            assert!(bus.object_get("b", key, 1_000_000).await.unwrap() == content, "{key}");
        }
        bus.object_put("b", "small", b"other").await.unwrap();
        assert_eq!(bus.object_get("b", "small", 10).await.unwrap(), b"other");
        assert!(matches!(bus.object_get("b", "small", 4).await, Err(TransportError::TooLarge { size: 5, max: 4, .. })));
        assert!(matches!(bus.object_get("b", "none", 4).await, Err(TransportError::NotFound(_))));
        assert!(bus.object_get("none", "none", 4).await.is_err());
    }
}

#[tokio::test]
async fn a_server_without_jetstream_is_reported() {
    for binary in binaries() {
        let server = NatsServer::start_binary(&binary, &Options::default());
        let bus = Bus::connect(&settings(&server)).await.unwrap();
        for result in [
            bus.publish_stored("s.a", &[], vec![]).await.map(drop),
            bus.ensure_stream(&spec("S", "s.>")).await.map(drop),
            bus.ensure_bucket("b", 1).await.map(drop),
            bus.object_get("b", "k", 1).await.map(drop),
            bus.object_put("b", "k", b"").await,
            bus.last_per_subject("S", "s.>").await.map(drop),
        ] {
            assert!(matches!(result, Err(TransportError::NoJetStream)), "{result:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_readers_and_subscriptions_survive_a_server_restart() {
    for binary in binaries() {
        let mut server = NatsServer::start_binary(&binary, &with_jetstream());
        let bus = Bus::connect(&BusSettings { retry_initial: true, ..settings(&server) }).await.unwrap();
        let mut link = bus.watch();
        link.wait_for(|link| link.connected).await.unwrap();
        bus.check_version().unwrap();
        bus.ensure_stream(&spec("S", "s.>")).await.unwrap();
        bus.publish_stored("s.old", &[], vec![]).await.unwrap();
        let mut new = bus.follow("S", "s.>", StartAt::New).await.unwrap();
        let mut inbox = bus.subscribe("plain").await.unwrap();
        server.kill();
        link.wait_for(|link| !link.connected).await.unwrap();
        assert!(matches!(bus.publish_stored("s.no", &[], vec![]).await, Err(TransportError::Disconnected)));
        server.start_again();
        link.wait_for(|link| link.connected && link.connects == 2).await.unwrap();
        bus.publish("plain", &[], vec![]).await.unwrap();
        inbox.next().await.unwrap();
        bus.publish_stored("s.new", &[], vec![]).await.unwrap();
        let next = tokio::time::timeout(PATIENCE, new.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(next.subject, "s.new");
        assert_eq!(bus.counters().disconnects, 1);
    }
}

#[tokio::test]
async fn credentials_are_used_and_their_refusal_is_clear() {
    let users = "authorization { users = [{user: a, password: p}, {user: limited, password: p, permissions: {publish: [\"ok\"], subscribe: [\"_INBOX_l.>\"]}}] }";
    let server = NatsServer::start(&Options { config: users.into(), ..Options::default() });
    let user = |user: &str, password: &str| BusSettings {
        credentials: Some(Credentials::UserPassword { user: user.into(), password: ensign::model::Secret::new(password) }),
        inbox_prefix: Some("_INBOX_l".into()),
        ..settings(&server)
    };
    assert!(Bus::connect(&user("a", "p")).await.is_ok());
    let refused = Bus::connect(&user("a", "wrong")).await.unwrap_err();
    assert!(ensign::diag::error_chain(&refused).contains("authorization violation"), "{refused:?}");
    assert!(Bus::connect(&settings(&server)).await.is_err());
    let limited = Bus::connect(&user("limited", "p")).await.unwrap();
    limited.publish("forbidden", &[], vec![]).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while limited.counters().denied == 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A daemon waits for the server, and for a repair of the credentials.
    let bus = Bus::connect(&BusSettings { retry_initial: true, ..user("a", "wrong") }).await.unwrap();
    while bus.counters().auth_errors == 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let port = Port::new();
    let nobody = BusSettings { servers: vec![format!("nats://{}", port.address())], ..BusSettings::default() };
    assert!(matches!(Bus::connect(&nobody).await, Err(TransportError::Connect { .. })));
    assert!(!Bus::connect(&BusSettings { retry_initial: true, ..nobody }).await.unwrap().is_connected());
}

/// Many writers replace the one message of their subject, as heartbeats do: a reader must find every subject.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_message_of_each_subject_is_found_while_others_replace_it() {
    const SUBJECTS: usize = 60;
    for binary in binaries() {
        let server = NatsServer::start_binary(&binary, &with_jetstream());
        let bus = Bus::connect(&settings(&server)).await.unwrap();
        bus.ensure_stream(&StreamSpec { max_per_subject: Some(1), ..spec("S", "s.>") }).await.unwrap();
        for subject in 0..SUBJECTS {
            bus.publish_stored(&format!("s.{subject}"), &[], b"0".to_vec()).await.unwrap();
        }
        let writer = Bus::connect(&settings(&server)).await.unwrap();
        let (done, mut stop) = tokio::sync::watch::channel(false);
        let writing = tokio::spawn(async move {
            let mut round = 0_u64;
            while !*stop.borrow_and_update() {
                round += 1;
                for subject in 0..SUBJECTS {
                    writer.publish(&format!("s.{subject}"), &[], round.to_string().into_bytes()).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        });
        for reading in 0..200 {
            let found = bus.last_per_subject("S", "s.>").await.unwrap();
            assert_eq!(found.len(), SUBJECTS, "reading {reading} of {}", binary.display());
        }
        done.send_replace(true);
        writing.await.unwrap();
    }
}
