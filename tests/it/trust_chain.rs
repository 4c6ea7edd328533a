//! Trust that begins with root keys alone, and streams that lost versions. Nodes follow the whole chain, and report a gap. The
//! files beside the latest bundle repair the stream. The agent also reports subscriptions that a server does not permit.

use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::bundle::Roots;
use ensign::wire::{CommandOutcome, NodeState, TRUST_TYPE, TrustBundle};

use crate::support::fleet::{self, Ran, ensign};
use crate::support::nats::binaries;
use crate::support::single_node::{SingleNodeFleet, on_every_server};

fn root(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// A version with the content of the fleet's first bundle, with this root, signed by these.
fn bundle(fleet: &SingleNodeFleet, version: u64, of: u8, by: &[u8]) -> Vec<u8> {
    let envelope = ensign::wire::Envelope::parse(&fleet.trust(version)).unwrap();
    let mut bundle: TrustBundle = serde_json::from_slice(&envelope.payload).unwrap();
    bundle.root = Roots { threshold: 1, keys: vec![root(of).public().to_string()] };
    let keys: Vec<SigningKey> = by.iter().map(|seed| root(*seed)).collect();
    let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|key| ("root", key)).collect();
    sign_envelope(TRUST_TYPE, serde_json::to_vec(&bundle).unwrap(), &keys).encode()
}

async fn store_bundle(fleet: &SingleNodeFleet, version: u64, bytes: Vec<u8>) {
    fleet.bus.publish_stored(fleet.subjects.trust(version).as_str(), &[], bytes).await.unwrap();
}

fn has_alarm(state: &NodeState, part: &str) -> bool {
    state.alarms.iter().any(|trouble| trouble.contains(part))
}

#[test]
fn a_node_with_root_keys_only_accepts_the_chain_that_they_signed() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        fleet.edit_config("bundle = \"trust.json\"\n", "");
        std::fs::remove_file(fleet.path("trust.json")).unwrap();
        let agent = fleet.start_agent().await;
        let state = fleet.state("the node waits", |state| has_alarm(state, "no trust bundle yet")).await;
        assert_eq!(state.trust, 0);
        let early = fleet.file_command("early", "x");
        let refused = fleet.answers(&early, fleet.sign(&early), 1).await.remove(0);
        assert_eq!((refused["outcome"].as_str(), refused["code"].as_str()), (Some("refused"), Some("unknown_key")), "{refused}");
        // The node refuses a chain of other roots, and a chain that begins later.
        store_bundle(&fleet, 1, bundle(&fleet, 1, 9, &[9])).await;
        fleet.state("another root is refused", |state| state.trust == 0 && has_alarm(state, "trust_quorum")).await;
        store_bundle(&fleet, 1, bundle(&fleet, 2, 1, &[1])).await;
        fleet.state("another version is refused", |state| state.trust == 0 && has_alarm(state, "trust_version")).await;
        // The assignment waits in the stream until the node trusts its signer.
        let manifest = fleet.path("m.yaml");
        let text = format!(
            "ccm:\n  resources:\n    - file:\n        - {}: {{ensure: present, content: hi, owner: root, group: root, mode: \"0644\"}}\n",
            fleet.path("assigned").display()
        );
        std::fs::write(&manifest, text).unwrap();
        fleet
            .store_assignment(
                &fleet.assignment(1, crate::support::single_node::assign_action(crate::support::single_node::apply(&manifest))),
            )
            .await;
        // Later versions have other roots.
        store_bundle(&fleet, 3, bundle(&fleet, 3, 8, &[8])).await;
        store_bundle(&fleet, 2, bundle(&fleet, 2, 8, &[1, 8])).await;
        store_bundle(&fleet, 1, bundle(&fleet, 1, 1, &[1])).await;
        fleet.state("the whole chain", |state| state.trust == 3 && state.alarms.is_empty()).await;
        fleet.until("the node keeps the assignment", || fleet.path("assigned").exists()).await;
        let command = fleet.file_command("motd", "hello\n");
        fleet.send(&command).await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        assert!(!fleet.path("early").exists());
        agent.stop();
        let _agent = fleet.start_agent().await;
        fleet.state("the latest is kept", |state| state.trust == 3).await;
    });
}

#[test]
fn a_node_that_cannot_follow_says_which_version_is_missing() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        store_bundle(&fleet, 4, fleet.trust(4)).await;
        let missing = "cannot update: the stream has version 4, and version 2 is missing";
        fleet.state("an alarm", |state| state.trust == 1 && has_alarm(state, missing)).await;
        // Also found at a start, without a message.
        agent.stop();
        let _agent = fleet.start_agent().await;
        fleet.state("an alarm at the start", |state| state.trust == 1 && has_alarm(state, missing)).await;
        fleet.store_trust(3).await;
        fleet.store_trust(2).await;
        fleet.state("the node follows", |state| state.trust == 4 && state.alarms.is_empty()).await;
    });
}

fn trust(fleet: &fleet::Fleet, args: &[&str]) -> Ran {
    let operator = fleet.path("operator.toml").display().to_string();
    ensign(&[&["trust"], args, &["--operator", &operator]].concat())
}

/// With the permissions of nodes, and the files of the tool.
#[test]
fn a_lost_stream_is_filled_again_from_the_files_beside_the_latest() {
    for binary in binaries() {
        let mut fleet = fleet::Fleet::new(&binary, &[("web1", "web"), ("db1", "db")]);
        fleet.start("web1", "web");
        let path = |name: &str| fleet.path(name).display().to_string();
        let [sealed, key] = ["trust.dsse.json", "root.key"].map(path);
        for life in ["300d", "301d", "302d"] {
            let renewed = ensign(&["trust", "renew", &sealed, "--life", life, "--root", &key]);
            assert_eq!(renewed.code, 0, "{}", renewed.stderr);
        }
        // One command publishes all versions, though its argument is the latest alone.
        let published = trust(&fleet, &["publish", &sealed]);
        assert_eq!((published.code, published.stdout.as_str()), (0, "1 of 1 nodes use version 4\n"), "{}", published.stderr);
        for version in 1..=4 {
            let said = format!("version {version} of the trust bundle of test is published");
            assert!(published.stderr.contains(&said), "{said}: {}", published.stderr);
        }
        // The stream is lost; an operator publishes the latest file only.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let operator = fleet.connect("operator", None).await;
            operator.purge(&fleet.subjects.stream("TRUST"), fleet.subjects.trust_versions().as_str()).await.unwrap();
        });
        let alone = fleet.path("alone");
        std::fs::create_dir(&alone).unwrap();
        std::fs::copy(&sealed, alone.join("trust.dsse.json")).unwrap();
        let latest = trust(&fleet, &["publish", alone.join("trust.dsse.json").to_str().unwrap()]);
        assert!(latest.code == 0 && latest.stderr.contains("nothing was published before"), "{}", latest.stderr);
        // A new node with the root keys alone.
        let section = std::fs::read_to_string(fleet.path("trust.toml")).unwrap();
        let roots: Vec<&str> = section.lines().filter(|line| !line.starts_with("bundle")).collect();
        std::fs::write(fleet.path("trust.toml"), roots.join("\n")).unwrap();
        fleet.start("db1", "db");
        let missing = "db1                  this node uses version 0 of the trust bundle and cannot update: the stream has version 4, and version 1 is missing";
        fleet.wait_for("its alarm is shown", || fleet.run(&["status"]).stdout.contains(missing));
        let repaired = trust(&fleet, &["publish", &sealed]);
        assert_eq!((repaired.code, repaired.stdout.as_str()), (0, "2 of 2 nodes use version 4\n"), "{}", repaired.stderr);
        assert!(repaired.stderr.contains("version 1 of the trust bundle of test is published"), "{}", repaired.stderr);
        assert!(repaired.stderr.contains("version 4 is published already"), "{}", repaired.stderr);
        fleet.wait_for("all is well", || !fleet.run(&["status"]).stdout.contains('!'));
    }
}

#[test]
fn a_group_that_the_server_does_not_permit_is_an_alarm() {
    for binary in binaries() {
        let mut fleet = fleet::Fleet::new(&binary, &[("web1", "web")]);
        fleet.start("web1", "web\", \"extra\", \"more");
        let said = "the server denies this node the commands for group extra, group more;";
        fleet.wait_for("the groups are named", || fleet.run(&["status"]).stdout.contains(said));
        // Commands to the other groups still arrive, and the alarm ends with the groups.
        let config = fleet.path("web1/agent.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replace(", \"extra\", \"more\"", "")).unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(fleet.pid("web1")).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
        fleet.wait_for("no alarm", || !fleet.run(&["status"]).stdout.contains("denies this node the commands"));
    }
}
