//! `ensign fleet token`, `ensign agent join`, `ensign fleet admit`: hosts become nodes, against real servers.

use std::os::unix::fs::PermissionsExt;

use ensign::transport::{Bus, BusSettings, Credentials};
use ensign::wire::join::JoinRequest;
use jiff::Timestamp;

use super::hosts::{Host, block_on, connect, finish, lines, recorded, start_join, token};
use crate::support::fleet::{FLEET, Fleet};
use crate::support::nats::{binaries, on_each};

/// Admits by token until a host with this name was admitted.
fn admit_by_token(fleet: &Fleet, node: &str) {
    fleet.wait_for(&format!("{node} is admitted"), || {
        let ran = fleet.run(&["admit", "--by-token"]);
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        ran.stdout.contains(&format!("admitted {node} "))
    });
}

#[test]
fn a_host_joins_with_a_token_and_obeys_the_operator() {
    on_each(|binary| {
        let mut fleet = Fleet::created(binary);
        let token = token(&fleet, &["--group", "web,eu", "--uses", "2"]);
        let host = start_join(&fleet, "web1", &token, "2m");
        admit_by_token(&fleet, "web1");
        let said = finish(host, 0);
        assert!(said.contains("ensign fleet admit web1 --fingerprint SHA256:"), "{said}");

        // Secrets are files of the owner only, and the key is pinned without a first use.
        let state = fleet.path("web1/state");
        for file in ["node.key", "join/user.nk", "join/node.creds"] {
            assert_eq!(std::fs::metadata(state.join(file)).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
        }
        let pinned = lines(&fleet.path("known_nodes"));
        assert!(pinned.iter().any(|line| line.starts_with(&format!("{FLEET} web1 ed25519:"))), "{pinned:?}");

        // The agent runs with the configuration as written, but without a port. Commands by node and by group reach the node.
        let config = std::fs::read_to_string(fleet.path("web1/agent.toml")).unwrap();
        assert!(config.contains("groups = [\"web\", \"eu\"]") && config.contains("exec = false"), "{config}");
        std::fs::write(fleet.path("web1/agent.toml"), format!("{config}[http]\nlisten = \"off\"\n")).unwrap();
        fleet.spawn("web1");
        fleet.wait_for("web1 is online", || fleet.node_row("web1").is_some_and(|row| row["presence"] == "alive"));
        for (name, target) in [("by-node", ["--node", "web1"]), ("by-group", ["--group", "web"])] {
            let link = fleet.path("web1").join(name);
            let ran = fleet.run(&[&["ensure", "symlink", link.to_str().unwrap(), "--target", "elsewhere"], &target[..]].concat());
            assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
            assert!(link.is_symlink());
        }
        let alarms = fleet.node_row("web1").unwrap()["alarms"].clone();
        assert!(alarms.as_array().is_none_or(Vec::is_empty), "a new node has lost nothing: {alarms}");
        // While the agent runs, the join still says that it is done.
        finish(start_join(&fleet, "web1", &token, "2m"), 0);
    });
}

#[test]
fn an_interrupted_join_continues_with_the_same_keys() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--group", "web"]);
    let said = finish(start_join(&fleet, "web1", &token, "1s"), 4);
    assert!(said.contains("no operator admitted this host") && said.contains("run it again with the same token"), "{said}");
    assert!(!fleet.path("web1/agent.toml").exists());
    let key = std::fs::read(fleet.path("web1/state/node.key")).unwrap();

    // The list shows the host, and the wrong fingerprint admits no host.
    let shown = fleet.run(&["admit", "--output", "json"]).json();
    assert_eq!((shown[0]["node"].as_str(), shown[0]["groups"][0].as_str()), (Some("web1"), Some("web")), "{shown}");
    let fingerprint = shown[0]["fingerprint"].as_str().unwrap();
    let wrong = fleet.run(&["admit", "web1", "--fingerprint", &fingerprint.replace("SHA256:", "SHA256:x")]);
    assert!(wrong.code == 4 && wrong.stderr.contains(fingerprint), "{}", wrong.stderr);
    assert!(recorded(&fleet).is_empty());
    let admitted = fleet.run(&["admit", "web1", "--fingerprint", fingerprint]);
    assert_eq!(admitted.code, 0, "{}", admitted.stderr);

    finish(start_join(&fleet, "web1", &token, "2m"), 0);
    assert_eq!(std::fs::read(fleet.path("web1/state/node.key")).unwrap(), key);
    // A third run finds its own configuration. Another token finds that of another join.
    assert!(finish(start_join(&fleet, "web1", &token, "2m"), 0).contains("joined the fleet test before"));
    let other = self::token(&fleet, &[]);
    assert!(finish(start_join(&fleet, "web1", &other, "2m"), 2).contains("belongs to a fleet already"));
    assert!(finish(start_join(&fleet, "web1", &token, "2m"), 0).contains("joined the fleet test before"));
    assert_eq!(recorded(&fleet).len(), 1);
}

#[test]
fn an_operator_admits_from_a_list_and_refuses_by_name() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--group", "web", "--uses", "9"]);
    let (web1, web2) = (start_join(&fleet, "web1", &token, "2m"), start_join(&fleet, "web2", &token, "2m"));
    let mut shown = serde_json::Value::Null;
    fleet.wait_for("both hosts ask", || {
        shown = fleet.run(&["admit", "--output", "json"]).json();
        shown.as_array().unwrap().len() == 2
    });
    let web1_shown = shown.as_array().unwrap().iter().find(|host| host["node"] == "web1").unwrap();
    let list = fleet.path("hosts");
    std::fs::write(&list, format!("# new\nweb1 {} db,eu\n", web1_shown["fingerprint"].as_str().unwrap())).unwrap();
    let ran = fleet.run(&["admit", "--list", list.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    finish(web1, 0);
    let config = std::fs::read_to_string(fleet.path("web1/agent.toml")).unwrap();
    assert!(config.contains("groups = [\"db\", \"eu\"]"), "{config}");

    assert_eq!(fleet.run(&["admit", "--refuse", "web9"]).code, 4);
    let refused = fleet.run(&["admit", "--refuse", "web2"]);
    assert!(refused.code == 0 && refused.stdout.contains("refused  web2"), "{}{}", refused.stdout, refused.stderr);
    assert!(finish(web2, 3).contains("an operator refused this host"));
    assert!(!fleet.path("web2/agent.toml").exists());

    for (text, part) in [("web1\n", "is not `node fingerprint [groups]`"), ("Web.1 SHA256:x\n", ":1 is not"), ("web1 x\n", ":1")]
    {
        std::fs::write(&list, text).unwrap();
        let ran = fleet.run(&["admit", "--list", list.to_str().unwrap()]);
        assert!(ran.code == 2 && ran.stderr.contains(part), "{text}: {}", ran.stderr);
    }
}

#[test]
fn a_revoked_node_needs_the_hand_of_the_operator() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--uses", "9"]);
    let host = Host::new("web1", &token);
    block_on(async {
        let bus = connect(&token).await;
        host.ask(&fleet, &bus, &token).await;
        assert_eq!(fleet.run(&["admit", "--by-token"]).code, 0);
        assert_eq!(recorded(&fleet).len(), 1);
        let forgotten = fleet.run(&["node", "forget", "web1"]);
        assert_eq!(forgotten.code, 0, "{}", forgotten.stderr);
        // The same keys with the same token, which has uses left.
        host.ask(&fleet, &bus, &token).await;
        let ran = fleet.run(&["admit", "--by-token"]);
        assert!(ran.code == 4 && ran.stdout.contains("its key is not pinned now"), "{}{}", ran.stdout, ran.stderr);
        assert_eq!(recorded(&fleet).len(), 1);
    });
}

#[test]
fn a_removed_node_is_admitted_again_only_by_hand() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--uses", "9"]);
    let host = Host::new("web1", &token);
    block_on(async {
        let bus = connect(&token).await;
        host.ask(&fleet, &bus, &token).await;
        assert_eq!(fleet.run(&["admit", "--by-token"]).code, 0);
        // The machine of a second operator: it pinned the key, and has no record of the admission.
        let pinned = std::fs::read(fleet.path("known_nodes")).unwrap();
        let removed = fleet.run(&["node", "remove", "web1"]);
        assert_eq!(removed.code, 0, "{}", removed.stderr);
        assert!(removed.stderr.contains("ensign fleet node revoke web1"), "{}", removed.stderr);
        std::fs::write(fleet.path("known_nodes"), &pinned).unwrap();
        std::fs::remove_file(fleet.path("admitted")).unwrap();
        host.ask(&fleet, &bus, &token).await;
        let ran = fleet.run(&["admit", "--by-token"]);
        assert!(ran.code == 4 && ran.stdout.contains("was removed"), "{}{}", ran.stdout, ran.stderr);
        assert_eq!(recorded(&fleet), [""; 0]);
        // By hand, with a new request: the answer to the first one is still stored.
        let fingerprint = host.key.public().fingerprint();
        let again = Host { request: JoinRequest { issued: Timestamp::now(), ..host.request.clone() }, ..host };
        again.ask(&fleet, &bus, &token).await;
        let ran = fleet.run(&["admit", "web1", "--fingerprint", &fingerprint]);
        assert_eq!((ran.code, recorded(&fleet).len()), (0, 1), "{}{}", ran.stdout, ran.stderr);
        // The admission ends the removal, also for an operator that only has the key from before.
        std::fs::write(fleet.path("old"), &pinned).unwrap();
        for known in ["known_nodes", "old", "new"] {
            let known = fleet.path(known).display().to_string();
            let list = fleet.run(&["node", "removed", "--known-nodes", &known]);
            assert!(list.stderr.contains("no node was removed"), "{known}: {}{}", list.stdout, list.stderr);
        }
    });
}

#[test]
fn an_admitted_key_is_pinned_without_a_first_use() {
    let mut fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--uses", "9"]);
    let joins = start_join(&fleet, "web1", &token, "2m");
    admit_by_token(&fleet, "web1");
    finish(joins, 0);
    let pinned = lines(&fleet.path("known_nodes"));
    // The node restarts with another key before the second operator has ever met it.
    std::fs::remove_file(fleet.path("web1/state/node.key")).unwrap();
    let config = std::fs::read_to_string(fleet.path("web1/agent.toml")).unwrap();
    std::fs::write(fleet.path("web1/agent.toml"), format!("{config}[http]\nlisten = \"off\"\n")).unwrap();
    fleet.spawn("web1");
    let seen_by = |name: &str| {
        let known = fleet.path(name).display().to_string();
        fleet.run(&["nodes", "--known-nodes", &known, "--output", "json"]).json()
    };
    fleet.wait_for("the state of the node", || seen_by("first")[0]["presence"] == "unverified");
    assert_eq!(seen_by("second")[0]["presence"], "unverified");
    let own = |lines: &[String]| {
        lines.iter().find(|line| line.starts_with(&format!("{FLEET} web1 "))).map(|line| line[..60].to_owned())
    };
    assert_eq!(own(&lines(&fleet.path("second"))), own(&pinned));
    // An admission that another key signed, as the owner of the server stores it, does not count.
    let subject = fleet.subjects.admitted(&"web1".parse().unwrap()).to_string();
    block_on(async {
        let credentials = Some(Credentials::CredsFile(fleet.path("operator.creds")));
        let settings = BusSettings { servers: vec![fleet.server.url()], credentials, ..BusSettings::default() };
        let bus = Bus::connect(&settings).await.unwrap();
        bus.publish_stored(&subject, &[], b"{}".to_vec()).await.unwrap();
    });
    assert_eq!(seen_by("third")[0]["presence"], "alive", "without an admission, the first state decides");
}

#[test]
fn wrong_input_is_explained() {
    let fleet = Fleet::created(&binaries()[0]);
    for (args, part) in [
        (&["token", "--ttl", "10s"][..], "lives for 1m to 30d"),
        (&["token", "--uses", "0"], "--uses"),
        (&["token", "--group", "a.b"], "a.b"),
        (&["admit", "web1"], "--fingerprint"),
        (&["admit", "--follow"], "--by-token"),
    ] {
        let ran = fleet.run(args);
        assert!(ran.code == 2 && ran.stderr.contains(part), "{args:?}: {} {}", ran.code, ran.stderr);
    }
    let config = fleet.path("none/agent.toml").display().to_string();
    let join = |token: &str| crate::support::fleet::ensign(&["agent", "join", token, "--config", &config, "--name", "web1"]);
    for wrong in ["x", "ensign-join-1.e30", "-"] {
        let ran = join(wrong);
        assert!(ran.code == 2 && ran.stderr.contains("hint: `ensign fleet token`"), "{wrong}: {}", ran.stderr);
    }
    assert!(!fleet.path("none").exists());
}
