//! The corpus of `tests/vectors/attacks`, sent to running agents over a real server at the time that each file names. The agent
//! accepts nothing, and answers and publishes each with its own code.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ensign::fleet::setup::init::{Retention, create_streams};
use ensign::store::{Acceptance, Ledger, LedgerOrigin, LostState};
use ensign::transport::{Bus, BusSettings, StartAt, StreamReader};
use ensign::wire::report::{ChannelPosition, RejectionEvent};
use ensign::wire::{CommandResult, NodeState, Subjects};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::clock::{Clock, library};
use crate::support::nats::{NatsServer, Options, binaries};
use crate::support::node_dir::read;
use crate::support::single_node::{Agent, PATIENCE};

/// The number of rejections that an agent publishes at once. A pause follows before each further one.
const ALLOWANCE: usize = 45;
const PAUSE: Duration = Duration::from_millis(120);

#[derive(Deserialize)]
struct Setup {
    fleet: String,
    node: String,
    groups: Vec<String>,
    roots: Vec<String>,
    threshold: u32,
    trust: String,
}

/// A file of the corpus; `tests/it/vectors/attacks.rs` explains the fields.
#[derive(Deserialize)]
struct Attack {
    expect: String,
    at: Timestamp,
    subject: Option<String>,
    message: String,
    pad_to: Option<usize>,
    #[serde(default)]
    is_trust: bool,
    trust: Option<String>,
    limits: Option<Value>,
    #[serde(default)]
    seen: BTreeMap<Uuid, String>,
    #[serde(default)]
    channels: BTreeMap<String, ChannelPosition>,
    born: Option<Timestamp>,
    obeyed: Option<u64>,
}

impl Attack {
    /// The required state of the node. Attacks with the same state go to the same agent.
    fn required_state(&self) -> String {
        json!([self.trust, self.limits, self.seen, self.channels, self.born, self.obeyed]).to_string()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.message.clone().into_bytes();
        bytes.resize(bytes.len().max(self.pad_to.unwrap_or_default()), b' ');
        bytes
    }

    /// The subject of the message: the one in the file, else the one that the program itself would use.
    fn subject(&self, setup: &Setup) -> String {
        let own = || {
            let envelope: Value = serde_json::from_str(&self.message).ok()?;
            let payload: Value = serde_json::from_slice(&STANDARD.decode(envelope["payload"].as_str()?).ok()?).ok()?;
            let action = payload["action"].as_object()?.keys().next()?.clone();
            let to = &payload["to"];
            let audience = match (to["groups"].is_array(), to["all"].as_bool()) {
                (true, _) => format!("group.{}", setup.groups[0]),
                (false, Some(true)) => "all".to_owned(),
                _ => format!("node.{}", setup.node),
            };
            Some(format!("ensign.v1.{}.cmd.{action}.{audience}", setup.fleet))
        };
        let usual = format!("ensign.v1.{}.cmd.ensure.node.{}", setup.fleet, setup.node);
        self.subject.clone().or_else(own).unwrap_or(usual)
    }
}

fn corpus() -> (Setup, BTreeMap<String, Vec<(String, Attack)>>) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let setup = serde_json::from_slice(&std::fs::read(folder.join("setup.json")).unwrap()).unwrap();
    let mut groups: BTreeMap<String, Vec<(String, Attack)>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder.join("attacks")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        // The node accepts these: they show that the others are refused only for their fault.
        if name.starts_with("control") {
            continue;
        }
        let attack: Attack = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        groups.entry(attack.required_state()).or_default().push((name, attack));
    }
    (setup, groups)
}

/// The attacked node, with an agent.
struct Victim {
    dir: tempfile::TempDir,
    clock: Clock,
    /// The number of commands in the ledger at the beginning.
    accepted: usize,
}

impl Victim {
    fn new(setup: &Setup, needs: &Attack, url: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let trust = needs.trust.as_ref().unwrap_or(&setup.trust);
        std::fs::write(dir.path().join("trust.json"), trust).unwrap();
        let limits: String = needs
            .limits
            .iter()
            .flat_map(|limits| limits.as_object().unwrap())
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| format!("{key} = {value}\n"))
            .collect();
        let limits = if needs.limits.is_some() { limits } else { "exec = true\n".to_owned() };
        let config = format!(
            "fleet = {:?}\nnode = {:?}\ngroups = {:?}\nstate_dir = \"state\"\nfacts_dirs = []\nheartbeat = \"1s\"\n[http]\nlisten = \"off\"\n[nats]\nservers = [{url:?}]\n\
             [trust]\nroot = {:?}\nthreshold = {}\nbundle = \"trust.json\"\n[limits]\n{limits}",
            setup.fleet, setup.node, setup.groups, setup.roots, setup.threshold
        );
        std::fs::write(dir.path().join("agent.toml"), config).unwrap();
        let clock = Clock::new(&dir.path().join("clock"));
        let mut victim = Self { dir, clock, accepted: 0 };
        victim.write_ledger(setup, needs);
        victim
    }

    /// Writes a ledger with the earlier state of the node: creation time, trust version, acceptances.
    fn write_ledger(&mut self, setup: &Setup, needs: &Attack) {
        let mut ledger = Ledger::open(&self.dir.path().join("state")).unwrap();
        let before = needs.at - SignedDuration::from_secs(1);
        let born = needs.born.unwrap_or(needs.at - SignedDuration::from_hours(24));
        ledger.record_origin(LedgerOrigin { at: born, lost: LostState::default() }).unwrap();
        ledger.record_trust_version(needs.obeyed.unwrap_or_default()).unwrap();
        let seen = needs.seen.iter().map(|(id, digest)| (*id, digest.as_str(), None));
        let moved = needs.channels.iter().map(|(name, state)| (Uuid::now_v7(), "0", Some((name.as_str(), state.clone()))));
        for (id, digest, channel) in seen.chain(moved) {
            let acceptance = Acceptance {
                id,
                digest,
                issued: before,
                expires: needs.at,
                subject: None,
                envelope: b"{}",
                channel,
                signers: &[],
            };
            ledger.record_acceptance(&acceptance).unwrap();
            let done: CommandResult = serde_json::from_value(json!({
                "protocol": ensign::wire::report::RESULT, "id": id, "digest": digest, "node": setup.node, "at": before, "outcome": "stable",
            }))
            .unwrap();
            ledger.record_result(id, &done).unwrap();
            self.accepted += 1;
        }
    }

    async fn start(&self, bus: &Bus, subjects: &Subjects, setup: &Setup, library: &std::path::Path) -> Agent {
        let mut states = bus.subscribe(subjects.state(&setup.node.parse().unwrap()).as_str()).await.unwrap();
        bus.flush_roundtrip().await.unwrap();
        let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_ensign"));
        process.args(["agent", "run", "--config"]).arg(self.dir.path().join("agent.toml"));
        self.clock.set_environment(library, &mut process);
        let log = std::fs::File::create(self.dir.path().join("agent.log")).unwrap();
        let agent = Agent::start(process.stderr(log).stdin(std::process::Stdio::null()));
        let alive = async { while read::<NodeState>(&states.next().await.unwrap()).is_none_or(|state| !state.alive) {} };
        assert!(tokio::time::timeout(PATIENCE, alive).await.is_ok(), "{}", self.log());
        agent
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }

    fn assert_nothing_accepted(&self) {
        let ledger = std::fs::read_to_string(self.dir.path().join("state/ledger.jsonl")).unwrap();
        let accepted = ledger.lines().filter(|line| line.starts_with("{\"accepted\"")).count();
        assert_eq!(accepted, self.accepted, "{}", self.log());
    }
}

async fn refusal(events: &mut StreamReader) -> RejectionEvent {
    loop {
        let message = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event").unwrap().unwrap();
        if message.subject.ends_with(".refused") {
            return read(&message).unwrap();
        }
    }
}

#[tokio::test]
async fn a_running_agent_refuses_the_attack_corpus_with_reasons() {
    let Some(library) = library() else { return };
    let (setup, groups) = corpus();
    let server = NatsServer::start_binary(binaries().last().unwrap(), &Options { jetstream: true, ..Options::default() });
    let bus = Bus::connect(&BusSettings { servers: vec![server.url()], ..BusSettings::default() }).await.unwrap();
    let subjects = Subjects::new(&setup.fleet);
    let retention = Retention { jobs_size: 16 << 20, events_size: 16 << 20, ..Retention::default() };
    create_streams(&bus, &subjects, retention, &mut |_, _| ()).await.unwrap();
    let stream = subjects.stream("EVENTS");
    let (mut refused, mut unheard, mut wrong) = (0, 0, Vec::new());
    for attacks in groups.values() {
        let victim = Victim::new(&setup, &attacks[0].1, &server.url());
        victim.clock.stop_at(&attacks[0].1.at.strftime("%Y-%m-%d %H:%M:%S").to_string());
        let agent = victim.start(&bus, &subjects, &setup, &library).await;
        let mut events = bus.follow(&stream, subjects.events(None).as_str(), StartAt::New).await.unwrap();
        for (number, (name, attack)) in attacks.iter().enumerate() {
            if number >= ALLOWANCE {
                tokio::time::sleep(PAUSE).await;
            }
            victim.clock.stop_at(&attack.at.strftime("%Y-%m-%d %H:%M:%S").to_string());
            let (reply, mut inbox) = bus.request_inbox().await.unwrap();
            bus.publish_with_reply(&attack.subject(&setup), &format!("{reply}.1"), &[], attack.bytes()).await.unwrap();
            let answer = tokio::time::timeout(PATIENCE, inbox.next()).await.expect("an answer").unwrap();
            if answer.no_responders {
                unheard += 1;
                continue;
            }
            let Some(done) = read::<CommandResult>(&answer) else {
                wrong.push(format!("{name}: {}", String::from_utf8_lossy(&answer.payload)));
                continue;
            };
            let code = done.code.clone().unwrap_or_default();
            // A trust bundle on a command subject: whatever its fault, a trust bundle is no command.
            if code != attack.expect && !attack.is_trust {
                wrong.push(format!("{name}: {code} ({:?}) instead of {}", done.message, attack.expect));
            }
            let event = refusal(&mut events).await;
            if (event.code, event.digest) != (code, done.digest) {
                wrong.push(format!("{name}: another event"));
            }
            refused += 1;
        }
        agent.kill();
        victim.assert_nothing_accepted();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused >= 80 && unheard <= 5, "{refused} refused, {unheard} without any answer");
    let results = bus.last_per_subject(&subjects.stream("JOBS"), subjects.all_jobs().as_str()).await.unwrap();
    for message in results.iter().filter(|message| message.subject.ends_with(".done")) {
        let outcome = read::<CommandResult>(message).unwrap().outcome;
        assert!(["Refused", "Expired"].contains(&format!("{outcome:?}").as_str()), "{outcome:?}");
    }
}
