//! Rotation of trust, with real agents and servers: the next bundle, every invalid bundle, and nodes that were offline. The
//! operator's side uses the program itself.

use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::bundle::{OperatorKey, Roots, Rule};
use ensign::wire::report::LifecycleEvent;
use ensign::wire::{
    COMMAND_TYPE, CommandOutcome, CommandResult, MAX_ENVELOPE, NodeState, RejectionEvent, TRUST_TYPE, TrustBundle,
};
use jiff::{SignedDuration, Timestamp};

use crate::support::fleet::{self, Ran, ensign};
use crate::support::nats::binaries;
use crate::support::single_node::{FLEET, PATIENCE, SingleNodeFleet, node, on_every_server};

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// Another version of the first bundle of [`Fleet`], with these roots.
fn bundle(version: u64, roots: &[u8]) -> TrustBundle {
    TrustBundle {
        fleet: FLEET.into(),
        version,
        expires: Timestamp::now() + SignedDuration::from_hours(24 * 365),
        root: Roots { threshold: 1, keys: roots.iter().map(|seed| key(*seed).public().to_string()).collect() },
        keys: vec![OperatorKey { id: "ops".into(), key: key(2).public().to_string(), not_before: None, not_after: None }],
        revoked: vec![],
        rules: vec![Rule { keys: vec!["ops".into()], quorum: 1, ..Rule::default() }],
    }
}

fn sealed(bundle: &TrustBundle, by: &[u8]) -> Vec<u8> {
    of_type(TRUST_TYPE, bundle, by)
}

fn of_type(payload_type: &str, bundle: &TrustBundle, by: &[u8]) -> Vec<u8> {
    let keys: Vec<SigningKey> = by.iter().map(|seed| key(*seed)).collect();
    let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|key| ("root", key)).collect();
    sign_envelope(payload_type, serde_json::to_vec(bundle).unwrap(), &keys).encode()
}

/// Stores bytes on the subject of this version; the server sends them to the nodes.
async fn store_bundle(fleet: &SingleNodeFleet, version: u64, bytes: Vec<u8>) {
    fleet.bus.publish_stored(fleet.subjects.trust(version).as_str(), &[], bytes).await.unwrap();
}

async fn state(fleet: &SingleNodeFleet) -> Option<NodeState> {
    let stream = fleet.subjects.stream("STATE");
    let last = fleet.bus.last(&stream, fleet.subjects.state(&node()).as_str()).await.unwrap()?;
    Some(serde_json::from_slice(&last.payload).unwrap())
}

async fn until(fleet: &SingleNodeFleet, what: &str, holds: impl Fn(&NodeState) -> bool) -> NodeState {
    let start = Instant::now();
    loop {
        match state(fleet).await {
            Some(state) if holds(&state) => return state,
            last => assert!(start.elapsed() < PATIENCE, "waited for {what}; last: {last:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn wait_for_trust_version(fleet: &SingleNodeFleet, version: u64) -> NodeState {
    until(fleet, &format!("version {version}"), |state| state.trust == version).await
}

#[test]
fn every_attack_on_trust_is_refused_and_published() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        store_bundle(&fleet, 2, sealed(&bundle(2, &[1]), &[1])).await;
        wait_for_trust_version(&fleet, 2).await;
        let changed = |version: u64, change: &dyn Fn(&mut TrustBundle)| {
            let mut bundle = bundle(version, &[1]);
            change(&mut bundle);
            bundle
        };
        let padded = |mut bytes: Vec<u8>| {
            bytes.resize(MAX_ENVELOPE + 1, b' ');
            bytes
        };
        let weak = "ed25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let attacks = [
            ("a version left out", sealed(&bundle(4, &[1]), &[1]), "trust_version"),
            ("rollback", sealed(&changed(1, &|b| b.rules.clear()), &[1]), "trust_version"),
            ("the same version, changed", sealed(&changed(2, &|b| b.rules.clear()), &[1]), "trust_version"),
            ("old roots only", sealed(&bundle(3, &[8]), &[1]), "trust_quorum"),
            ("new roots only", sealed(&bundle(3, &[9]), &[9]), "trust_quorum"),
            ("an operator's key", sealed(&bundle(3, &[1]), &[2]), "trust_quorum"),
            ("another fleet", sealed(&changed(3, &|b| b.fleet = "other".into()), &[1]), "wrong_fleet"),
            ("a weak key", sealed(&changed(3, &|b| b.keys[0].key = weak.into()), &[1]), "weak_key"),
            ("no threshold", sealed(&changed(3, &|b| b.root.threshold = 0), &[1]), "bad_trust"),
            ("too large", padded(sealed(&bundle(3, &[1]), &[1])), "too_large"),
            ("a command's type", of_type(COMMAND_TYPE, &changed(3, &|b| b.revoked = vec!["x".into()]), &[1]), "wrong_type"),
            ("no envelope", b"{}".to_vec(), "bad_envelope"),
        ];
        let mut events = fleet.events().await;
        let mut refusals = Vec::new();
        for (what, bytes, code) in &attacks {
            store_bundle(&fleet, 3, bytes.clone()).await;
            // Again, as an attacker against disk space would: a known bundle is no news.
            store_bundle(&fleet, 3, bytes.clone()).await;
            let refused = loop {
                let message = tokio::time::timeout(PATIENCE, events.next()).await.unwrap_or_else(|_| panic!("an event: {what}"));
                let message = message.unwrap().unwrap();
                if message.subject.ends_with(".refused") {
                    break serde_json::from_slice::<RejectionEvent>(&message.payload).unwrap();
                }
            };
            assert_eq!((refused.code.as_str(), refused.id), (*code, None), "{what}: {}", refused.message);
            // From the live subject, or from the stream.
            let place = refused.subject.strip_prefix(&format!("ensign.v1.{FLEET}.")).unwrap();
            assert!(["live.trust.3", "trust.3"].contains(&place), "{what}: {place}");
            assert!(!refusals.contains(&refused.digest), "{what}: published twice");
            refusals.push(refused.digest);
            assert_eq!(state(&fleet).await.unwrap().trust, 2, "{what}");
            fleet.state(what, |state| state.alarms.iter().any(|trouble| trouble.contains(code))).await;
        }
        // After all these the right bundle still arrives, and brings other roots.
        store_bundle(&fleet, 3, sealed(&bundle(3, &[8]), &[1, 8])).await;
        wait_for_trust_version(&fleet, 3).await;
        store_bundle(&fleet, 4, sealed(&bundle(4, &[8]), &[8])).await;
        wait_for_trust_version(&fleet, 4).await;
        let command = fleet.file_command("motd", "hello\n");
        fleet.send(&command).await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        let late = async { while !events.next().await.unwrap().unwrap().subject.ends_with(".refused") {} };
        fleet.wait_until_published();
        assert!(tokio::time::timeout(Duration::from_millis(300), late).await.is_err(), "a refusal too many");
    });
}

#[test]
fn a_node_that_was_offline_takes_all_missed_trust_bundles_in_order() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        assert_eq!(fleet.start_agent().await.stop(), Some(0));
        // Three at once: other roots, an expired version, and the version that revokes the stolen key.
        store_bundle(&fleet, 2, sealed(&bundle(2, &[8]), &[1, 8])).await;
        let over = TrustBundle { expires: Timestamp::now() - SignedDuration::from_hours(1), ..bundle(3, &[8]) };
        store_bundle(&fleet, 3, sealed(&over, &[8])).await;
        store_bundle(&fleet, 4, sealed(&TrustBundle { revoked: vec!["ops".into()], ..bundle(4, &[8]) }, &[8])).await;
        let agent = fleet.start_agent().await;
        wait_for_trust_version(&fleet, 4).await;
        let command = fleet.file_command("motd", "hello\n");
        let answers = fleet.answers(&command, fleet.sign(&command), 1).await;
        assert_eq!(serde_json::from_value::<CommandResult>(answers[0].clone()).unwrap().code.as_deref(), Some("revoked_key"));
        let (mut events, mut said) = (fleet.events().await, Vec::new());
        while said.len() < 3 {
            let message = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event").unwrap().unwrap();
            if let Ok(life) = serde_json::from_slice::<LifecycleEvent>(&message.payload)
                && life.what == "trust"
            {
                said.push(life.message.unwrap());
            }
        }
        assert_eq!(said, [2, 3, 4].map(|version| format!("now uses version {version} of the trust bundle")));
        // The active bundle is on disk, also for a start without a server.
        agent.kill();
        std::fs::remove_file(fleet.path("trust.json")).unwrap();
        let _agent = fleet.start_agent().await;
        assert_eq!(wait_for_trust_version(&fleet, 4).await.trust, 4);
    });
}

#[test]
fn queued_commands_are_verified_again_under_a_new_trust_bundle() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let (slow, next) = (fleet.gated_command("slow"), fleet.file_command("motd", "hello\n"));
        fleet.send(&slow).await;
        fleet.until("the command runs", || !fleet.lines("slow").is_empty()).await;
        let ack = fleet.answers(&next, fleet.sign(&next), 1).await;
        assert_eq!(ack[0]["status"], "accepted", "{ack:?}");
        store_bundle(&fleet, 2, sealed(&TrustBundle { revoked: vec!["ops".into()], ..bundle(2, &[1]) }, &[1])).await;
        wait_for_trust_version(&fleet, 2).await;
        assert_eq!(fleet.lines("slow").len(), 1, "the first was still running");
        fleet.open_gate("slow");
        assert_eq!(fleet.only_result(slow.id).await.outcome, CommandOutcome::Changed);
        let done = fleet.only_result(next.id).await;
        assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("revoked_key")));
        assert!(!fleet.path("motd").exists());
    });
}

#[test]
fn an_expired_bundle_raises_an_alarm_and_accepts_its_successor() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let over = TrustBundle { expires: Timestamp::now() - SignedDuration::from_hours(1), ..bundle(1, &[1]) };
        std::fs::write(fleet.path("trust.json"), sealed(&over, &[1])).unwrap();
        let _agent = fleet.start_agent().await;
        let trouble = |text: &'static str| move |state: &NodeState| state.alarms.iter().any(|trouble| trouble.contains(text));
        until(&fleet, "the alarm", trouble("the trust bundle expired at")).await;
        let command = fleet.file_command("motd", "hello\n");
        let answers = fleet.answers(&command, fleet.sign(&command), 1).await;
        assert_eq!(serde_json::from_value::<CommandResult>(answers[0].clone()).unwrap().code.as_deref(), Some("trust_expired"));
        let soon = TrustBundle { expires: Timestamp::now() + SignedDuration::from_hours(24 * 29), ..bundle(2, &[1]) };
        store_bundle(&fleet, 2, sealed(&soon, &[1])).await;
        until(&fleet, "the notice", trouble("the trust bundle expires at")).await;
        let command = fleet.file_command("motd", "hello\n");
        fleet.send(&command).await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        store_bundle(&fleet, 3, sealed(&bundle(3, &[1]), &[1])).await;
        until(&fleet, "no alarm", |state| state.trust == 3 && state.alarms.is_empty()).await;
    });
}

/// `ensign trust`, as the operator of this fleet.
fn trust(fleet: &fleet::Fleet, args: &[&str]) -> Ran {
    let operator = fleet.path("operator.toml");
    let ran = ensign(&[&["trust"], args, &["--operator", operator.to_str().unwrap()]].concat());
    println!("ensign trust {args:?}: {}\n{}{}", ran.code, ran.stdout, ran.stderr);
    ran
}

#[test]
fn an_operator_rotates_trust_with_the_program() {
    for binary in binaries() {
        let mut fleet = fleet::Fleet::new(&binary, &[("web1", "web"), ("web2", "web")]);
        fleet.start("web1", "web");
        fleet.start("web2", "web");
        let dir = fleet.path("");
        let path = |name: &str| dir.join(name).display().to_string();
        let [plain, sealed, root, root2] = ["trust.json", "trust.dsse.json", "root.key", "root2.key"].map(path);
        let edit = |args: &[&str]| {
            let ran = ensign(&[&["trust"], args].concat());
            assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
            ran.stderr
        };
        let first = trust(&fleet, &["publish", &sealed]);
        assert_eq!((first.code, first.stdout.as_str()), (0, "2 of 2 nodes use version 1\n"));
        // A stolen key, while one node is offline.
        fleet.stop("web2");
        let said = edit(&["revoke", &sealed, "ops-bob", "--root", &root]);
        assert!(said.contains("version 2") && said.contains("publish it"), "{said}");
        let published = trust(&fleet, &["publish", &sealed, "--output", "json"]);
        let found = published.json();
        assert_eq!((published.code, &found["obeying"], &found["offline"][0]["node"]), (0, &1.into(), &"web2".into()));
        let refused = fleet.run(&["--key", &path("ops-bob.key"), "ensure", "service", "x", "--node", "web1"]);
        assert_eq!(refused.code, 3, "{}{}", refused.stdout, refused.stderr);
        fleet.start("web2", "web");
        fleet.wait_for("web2 has caught up", || trust(&fleet, &["status", "--output", "json"]).json()["nodes"]["obeying"] == 2);
        // Other roots: one signs here, the other on another machine.
        assert_eq!(ensign(&["key", "new", "--no-passphrase", &root2]).code, 0);
        edit(&["rotate-root", &sealed, "--add", &format!("{root2}.pub"), "--remove", &format!("{root}.pub")]);
        let said = edit(&["sign", &plain, "--root", &root2]);
        assert!(
            said.contains("signed by 0 of the roots of the version before") && said.contains("more signatures are needed"),
            "{said}"
        );
        let early = trust(&fleet, &["publish", &sealed]);
        assert!(early.code == 3 && early.stderr.contains("current roots"), "{}", early.stderr);
        edit(&["sign", &sealed, "--root", &root]);
        let published = trust(&fleet, &["publish", &sealed]);
        assert_eq!((published.code, published.stdout.as_str()), (0, "2 of 2 nodes use version 3\n"));
        // An operator for a day, and a rule. Edits before a signature are one version.
        let carol = path("carol.key");
        assert_eq!(ensign(&["key", "new", "--no-passphrase", &carol]).code, 0);
        edit(&["add-key", &sealed, &format!("carol={carol}.pub"), "--not-after", "1d"]);
        edit(&["rule", "add", &plain, "--keys", "carol", "--actions", "ens*", "--types", "file", "--root", &root2]);
        assert_eq!(trust(&fleet, &["publish", &sealed]).stdout, "2 of 2 nodes use version 4\n");
        let status = trust(&fleet, &["status"]);
        assert!(
            status.stdout.contains("version 4 is published") && status.stdout.contains("the key carol ends in"),
            "{}",
            status.stdout
        );
        // The tool refuses an old file before it publishes anything.
        let back = trust(&fleet, &["publish", &path("trust.3.dsse.json")]);
        assert!(back.code == 0 && back.stderr.contains("published already"), "{}", back.stderr);
        edit(&["renew", &sealed, "--life", "400d", "--root", &root2]);
        edit(&["remove-key", &sealed, "carol", "--root", &root2]);
        // The tool does not skip a missing version.
        std::fs::rename(path("trust.5.dsse.json"), path("elsewhere.dsse.json")).unwrap();
        let skipped = trust(&fleet, &["publish", &sealed]);
        assert!(skipped.code == 3 && skipped.stderr.contains("publish the versions between"), "{}", skipped.stderr);
        let both = trust(&fleet, &["publish", &path("elsewhere.dsse.json"), &sealed]);
        assert_eq!((both.code, both.stdout.as_str()), (0, "2 of 2 nodes use version 6\n"));
    }
}

/// A real ssh-agent, with this key.
struct SshAgent {
    child: Child,
    socket: std::path::PathBuf,
}

impl SshAgent {
    fn with(dir: &Path, key: &Path) -> Self {
        let socket = dir.join("agent.sock");
        let child =
            Process::new("ssh-agent").arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let agent = Self { child: child.expect("ssh-agent (package openssh-client)"), socket };
        let start = Instant::now();
        // The socket exists before ssh-agent listens to it.
        while std::os::unix::net::UnixStream::connect(&agent.socket).is_err() {
            assert!(start.elapsed() < PATIENCE, "the agent listens");
            std::thread::sleep(Duration::from_millis(10));
        }
        let added = Process::new("ssh-add").arg("-q").arg(key).env("SSH_AUTH_SOCK", &agent.socket).status().unwrap();
        assert!(added.success());
        agent
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut program = Process::new(env!("CARGO_BIN_EXE_ensign"));
        let output =
            program.args(args).env("SSH_AUTH_SOCK", &self.socket).env("NO_COLOR", "1").stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Drop for SshAgent {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

#[test]
fn an_ssh_agent_signs_commands() {
    let binary = &binaries()[0];
    let mut fleet = fleet::Fleet::new(binary, &[("web1", "web")]);
    fleet.start("web1", "web");
    let path = |name: &str| fleet.path(name).display().to_string();
    let agent = SshAgent::with(&fleet.path(""), &fleet.path("ops-alice.key"));
    let shown = agent.run(&["key", "show", "ssh-agent:ops-alice"]);
    let public = std::fs::read_to_string(fleet.path("ops-alice.key.pub")).unwrap();
    assert!(shown.code == 0 && shown.stdout.starts_with(public.trim()), "{}{}", shown.stdout, shown.stderr);
    let listed = Process::new("ssh-add").arg("-l").env("SSH_AUTH_SOCK", &agent.socket).output().unwrap();
    let fingerprint = String::from_utf8(listed.stdout).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    assert!(fingerprint.starts_with("SHA256:"), "{fingerprint}");
    let operator = path("operator.toml");
    for (number, name) in ["ops-alice", &fingerprint, &path("ops-alice.key.pub"), ""].into_iter().enumerate() {
        let (key, motd) = (format!("ssh-agent:{name}"), path(&format!("web1/site/{number}")));
        let ensure = [
            "ensure",
            "file",
            &motd,
            "present",
            "--content",
            "hello",
            "--owner",
            "root",
            "--file-group",
            "root",
            "--mode",
            "0644",
        ];
        let ran = agent.run(&[&["fleet", "--operator", &operator, "--key", &key], &ensure[..], &["--node", "web1"]].concat());
        assert_eq!(ran.code, 0, "{key}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(std::fs::read_to_string(&motd).unwrap(), "hello");
    }
    // A key that the agent lacks; an agent that does not run; a key of a FIDO device.
    let other = agent.run(&["key", "show", "ssh-agent:nobody"]);
    assert!(
        other.code == 2 && other.stderr.contains("it has \"ops-alice\"") && other.stderr.contains("ssh-add"),
        "{}",
        other.stderr
    );
    let (text, blob) = ("sk-ssh-ed25519@openssh.com", key(5).public().to_openssh(""));
    let raw = STANDARD.decode(blob.split(' ').nth(1).unwrap()).unwrap();
    let string = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
    let fido = [string(text.as_bytes()), string(&raw[19..]), string(b"ssh:")].concat();
    std::fs::write(fleet.path("fido.pub"), format!("{text} {} token\n", STANDARD.encode(fido))).unwrap();
    for name in [path("fido.pub"), format!("ssh-agent:{}", path("fido.pub"))] {
        let refused = agent.run(&["key", "show", &name]);
        assert!(refused.code == 2 && refused.stderr.contains("FIDO device"), "{name}: {}", refused.stderr);
    }
    drop(agent);
    let gone = fleet.run(&["--key", "ssh-agent:x", "ensure", "service", "x", "--node", "web1"]);
    assert!(gone.code == 2 && gone.stderr.contains("ssh-agent"), "{}", gone.stderr);
}
