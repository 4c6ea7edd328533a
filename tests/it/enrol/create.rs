//! `ensign fleet create`: real servers run its configuration unedited. The server itself confines nodes and join tokens by the
//! names and tags in their JWTs, and refuses revoked nodes.

use std::path::Path;

use ensign::fleet::account::{AccountDirectory, Admission, TokenTerms, append_admission};
use ensign::fleet::setup::permissions::{Role, inbox_prefix, join_inbox_prefix, permissions, scoped_inbox_prefix};
use ensign::transport::nkey::{UserKey, creds};
use ensign::transport::{Bus, BusSettings, Credentials, TransportError};
use ensign::trust::SigningKey;
use ensign::wire::subject::{EventKind, ReportStage};
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::permissions::denied;
use crate::support::fleet::{FLEET, Fleet};
use crate::support::nats::{binaries, on_each};
use crate::support::single_node::PATIENCE;

/// The directory of a fleet that `ensign fleet create` made.
fn account(fleet: &Fleet) -> AccountDirectory {
    AccountDirectory::open(&fleet.path("")).unwrap()
}

/// Admits a node as `ensign fleet admit` does, and writes its `.creds` file.
fn admit(fleet: &Fleet, node: &str, groups: &[&str]) -> UserKey {
    let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
    let user = UserKey::generate().unwrap();
    let jwt = account(fleet).node_signer().unwrap().node_user(&node.parse().unwrap(), &groups, &user.public).unwrap();
    let path = fleet.path(&format!("{node}.creds"));
    std::fs::write(&path, creds(&jwt, &user.seed).reveal()).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let admission = Admission {
        node: node.parse().unwrap(),
        groups,
        user: user.public.clone(),
        key: SigningKey::generate().unwrap().public().to_short(),
        token: None,
        at: Timestamp::now(),
    };
    append_admission(&fleet.path("admitted"), &admission).unwrap();
    user
}

/// Connects with a `.creds` file of the fleet.
async fn connect(fleet: &Fleet, name: &str, inbox: Option<String>) -> Result<Bus, TransportError> {
    let settings = BusSettings {
        servers: vec![fleet.server.url()],
        credentials: Some(Credentials::CredsFile(fleet.path(&format!("{name}.creds")))),
        inbox_prefix: inbox,
        ..BusSettings::default()
    };
    Bus::connect(&settings).await
}

async fn connect_node(fleet: &Fleet, node: &str) -> Result<Bus, TransportError> {
    connect(fleet, node, Some(scoped_inbox_prefix(node))).await
}

async fn confined(binary: &Path) {
    let fleet = Fleet::created(binary);
    let subjects = &fleet.subjects;
    admit(&fleet, "web-1", &["web", "eu_1"]);
    admit(&fleet, "db_1", &[]);
    admit(&fleet, "web", &[]);

    // Each subject that a node needs, in both directions.
    for (node, groups) in [("web-1", vec!["web", "eu_1"]), ("db_1", vec![]), ("web", vec![])] {
        let groups: Vec<String> = groups.into_iter().map(str::to_owned).collect();
        let role = Role::Node(node.parse().unwrap(), groups);
        let own = permissions(&role, subjects, None);
        let inbox = inbox_prefix(&node.parse().unwrap());
        let scoped = |subject: &String| subject.replace(&inbox, &scoped_inbox_prefix(node));
        let bus = connect_node(&fleet, node).await.unwrap();
        let mut inboxes = Vec::new();
        for subject in &own.subscribe {
            inboxes.push(bus.subscribe(&scoped(subject)).await.unwrap());
        }
        for subject in &own.publish {
            bus.publish(&scoped(subject).replace(['*', '>'], "x"), &[], b"{}".to_vec()).await.unwrap();
        }
        bus.flush_roundtrip().await.unwrap();
        let refused = bus.denied_subscriptions();
        assert_eq!((bus.counters().denied, refused.len()), (0, 0), "{node} on {}: {refused:?}", binary.display());
    }

    // Nothing of another node, no command, no stream, no group without its tag.
    let id = |node: &str| node.parse().unwrap();
    let others = vec![
        subjects.state(&id("db_1")).to_string(),
        subjects.event(&id("db_1"), EventKind::Run).to_string(),
        subjects.job(Uuid::nil(), &id("db_1"), ReportStage::Done).to_string(),
        subjects.state(&id("web")).to_string(),
        format!("ensign.v1.{FLEET}.cmd.ensure.node.web-1"),
        format!("ensign.v1.{FLEET}.cmd.ensure.all"),
        subjects.join_request("x").to_string(),
        subjects.join_answer("x").to_string(),
        "_INBOX_NODE.db_1.x".to_owned(),
        "_INBOX.x".to_owned(),
        format!("$JS.API.STREAM.PURGE.{}", subjects.stream("JOBS")),
        "$SYS.REQ.CLAIMS.UPDATE".to_owned(),
    ];
    let hear = [
        format!("ensign.v1.{FLEET}.cmd.*.node.db_1"),
        format!("ensign.v1.{FLEET}.cmd.*.node.web"),
        format!("ensign.v1.{FLEET}.cmd.*.group.db"),
        format!("ensign.v1.{FLEET}.cmd.*.group.*"),
        subjects.all_jobs().to_string(),
        subjects.joins().to_string(),
        "_INBOX_NODE.db_1.>".to_owned(),
        "_INBOX.>".to_owned(),
        ">".to_owned(),
    ];
    denied(&connect_node(&fleet, "web-1").await.unwrap(), "a node", &others, &hear).await;
    let groups = [format!("ensign.v1.{FLEET}.cmd.*.group.web"), format!("ensign.v1.{FLEET}.cmd.*.group.*")];
    denied(&connect_node(&fleet, "db_1").await.unwrap(), "a node without groups", &[], &groups).await;

    // The operator sends commands and publishes for no node; the monitor publishes nothing.
    let operator = connect(&fleet, "operator", None).await.unwrap();
    denied(&operator, "an operator", &others[..3], &["_INBOX_NODE.web-1.>".to_owned()]).await;
    let monitor = connect(&fleet, "monitor", Some("_INBOX_MONITOR".to_owned())).await.unwrap();
    denied(&monitor, "a monitor", &others, &["_INBOX_NODE.web-1.>".to_owned()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_confines_nodes_by_name_and_tags() {
    for binary in binaries() {
        confined(&binary).await;
    }
}

#[test]
fn agents_of_a_created_fleet_run_commands_by_node_and_group() {
    on_each(|binary| {
        let mut fleet = Fleet::created(binary);
        let config = std::fs::read(fleet.path("nats-server.conf")).unwrap();
        for (node, group) in [("web1", "web"), ("web2", "web"), ("db1", "db")] {
            admit(&fleet, node, &[group]);
            fleet.start_with(node, group, "", "exec = true");
        }
        for (target, count) in [(["--node", "web1"], 1), (["--group", "web"], 2), (["--group", "db"], 1)] {
            let args = ["ensure", "exec", "hello", "--command", "true", "--output", "json"];
            let ran = fleet.run(&[&args, &target[..]].concat());
            assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
            assert_eq!(ran.json()["nodes"].as_array().unwrap().len(), count, "{target:?}");
        }
        assert_eq!(std::fs::read(fleet.path("nats-server.conf")).unwrap(), config, "a node adds nothing to the configuration");
    });
}

async fn revoked(binary: &Path) {
    let mut fleet = Fleet::created(binary);
    admit(&fleet, "web1", &["web"]);
    admit(&fleet, "web2", &["web"]);
    let node = connect_node(&fleet, "web1").await.unwrap();
    let other = connect_node(&fleet, "web2").await.unwrap();
    let mut state = node.watch();

    let revoke = fleet.run(&["node", "revoke", "web1"]);
    assert_eq!(revoke.code, 0, "{}", revoke.stderr);
    tokio::time::timeout(PATIENCE, state.wait_for(|state| !state.connected)).await.expect("the server disconnects it").unwrap();
    assert!(connect_node(&fleet, "web1").await.is_err());
    other.flush_roundtrip().await.unwrap();

    // After a restart, and on a server without data: the configuration has the new account.
    fleet.server.restart();
    assert!(connect_node(&fleet, "web1").await.is_err());
    connect_node(&fleet, "web2").await.unwrap();
    fleet.server.kill();
    std::fs::remove_dir_all(fleet.path("server")).unwrap();
    fleet.server.start_again();
    assert!(connect_node(&fleet, "web1").await.is_err());
    connect_node(&fleet, "web2").await.unwrap();

    // Without its streams, the server refuses the node, and the view keeps it.
    admit(&fleet, "web4", &[]);
    let partial = fleet.run(&["node", "revoke", "web4"]);
    assert!(partial.code == 4 && partial.stderr.contains("not yet removed"), "{}", partial.stderr);
    assert!(connect_node(&fleet, "web4").await.is_err());
    assert_eq!(fleet.run(&["init"]).code, 0);

    // A second revocation keeps the first, also from a copy of the directory that does not know the first.
    admit(&fleet, "web3", &[]);
    assert_eq!(fleet.run(&["node", "revoke", "web2"]).code, 0);
    for node in ["web1", "web2"] {
        assert!(connect_node(&fleet, node).await.is_err(), "{node}");
    }
    connect_node(&fleet, "web3").await.unwrap();

    let unknown = fleet.run(&["node", "revoke", "db9"]);
    assert!(unknown.code == 2 && unknown.stderr.contains("no admission of db9"), "{}", unknown.stderr);
    fleet.server.kill();
    let down = fleet.run(&["node", "revoke", "web3"]);
    assert!(down.code == 4 && down.stderr.contains("hint"), "{}", down.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_node_is_disconnected_and_stays_out() {
    for binary in binaries() {
        revoked(&binary).await;
    }
}

fn terms(expires: Timestamp) -> TokenTerms {
    TokenTerms { name: "t1".to_owned(), groups: vec!["web".to_owned()], uses: 100, expires }
}

async fn joining(binary: &Path) {
    let fleet = Fleet::created(binary);
    let subjects = &fleet.subjects;
    let account = account(&fleet);
    let signer = account.join_signer().unwrap();
    let user = UserKey::generate().unwrap();
    let write = |name: &str, expires| {
        let jwt = signer.join_user(&terms(expires), &user.public).unwrap();
        let path = fleet.path(&format!("{name}.creds"));
        std::fs::write(&path, creds(&jwt, &user.seed).reveal()).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    let hour = SignedDuration::from_hours(1);
    write("join", Timestamp::now() + hour);
    write("late", Timestamp::now() - hour);
    assert!(connect(&fleet, "late", None).await.is_err(), "an expired token connects");

    let join = connect(&fleet, "join", Some(join_inbox_prefix(&user.public))).await.unwrap();
    let own = UserKey::generate().unwrap().public;
    join.publish_stored(subjects.join_request(&own).as_str(), &[], b"request".to_vec()).await.unwrap();
    let operator = connect(&fleet, "operator", None).await.unwrap();
    let stream = subjects.stream("JOIN");
    let requests = operator.last_per_subject(&stream, subjects.join_requests().as_str()).await.unwrap();
    assert_eq!(requests.iter().map(|message| message.payload.as_slice()).collect::<Vec<_>>(), [b"request"]);
    operator.publish_stored(subjects.join_answer(&own).as_str(), &[], b"answer".to_vec()).await.unwrap();
    let answer = join.last_on(&stream, subjects.join_answer(&own).as_str()).await.unwrap();
    assert_eq!(answer.payload, b"answer");

    // A message that is larger than a request ends the connection.
    let large = connect(&fleet, "join", Some(join_inbox_prefix(&user.public))).await.unwrap();
    assert!(large.publish_stored(subjects.join_request(&own).as_str(), &[], vec![b'x'; 9000]).await.is_err());

    let publish = vec![
        subjects.join_answer(&own).to_string(),
        subjects.state(&"web1".parse().unwrap()).to_string(),
        format!("ensign.v1.{FLEET}.cmd.ensure.all"),
        format!("$JS.API.DIRECT.GET.{stream}"),
        format!("$JS.API.DIRECT.GET.{stream}.{}", subjects.join_request(&own)),
        format!("$JS.API.DIRECT.GET.{}.{}", subjects.stream("TRUST"), subjects.trust(1)),
        format!("$JS.API.STREAM.INFO.{stream}"),
        format!("$JS.API.CONSUMER.CREATE.{stream}"),
        "_INBOX.x".to_owned(),
    ];
    let subscribe = [
        subjects.joins().to_string(),
        subjects.join_answers().to_string(),
        subjects.join_requests().to_string(),
        subjects.states().to_string(),
        subjects.live_trust_versions().to_string(),
        format!("ensign.v1.{FLEET}.cmd.*.all"),
        "$SRV.*".to_owned(),
        "_INBOX.>".to_owned(),
        "_INBOX_NODE.web1.>".to_owned(),
        ">".to_owned(),
    ];
    denied(&join, "a join token", &publish, &subscribe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_token_may_only_ask_to_join() {
    for binary in binaries() {
        joining(&binary).await;
    }
}
