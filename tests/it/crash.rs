//! The program dies, as under `kill -9`, at every checkpoint of `src/host/checkpoint.rs`. Then every command has one end and
//! runs at most once. No message is missing or double, and no reader sees half of a file.
//!
//! This file has commands that run once. `crash/channels.rs` has desired state and trust, `crash/waves.rs` rollouts,
//! `crash/cancel.rs` cancelled jobs.

mod cancel;
mod channels;
mod waves;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ensign::host::Checkpoint;
use ensign::store::outbox::{Outbox, OutboxMessage as Waiting, Priority};
use ensign::wire::command::{Action, Apply, Command};
use ensign::wire::{CommandOutcome, NodeState};
use futures_util::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::nats::binaries;
use crate::support::node_dir::{NodeDir, NodeSettings, no_receipt, read, stop, wait_for_exit};
use crate::support::single_node::{Agent, PATIENCE, SingleNodeFleet};
use crate::support::skip::{Reason, skip};
use crate::support::web::{Reply, Web};

/// The number of nodes that die at once.
const NODES: usize = 4;
/// The number of passes at which the agent dies, from the first. Several parts of the program pass a checkpoint: the trust
/// bundle is written before the manifest.
const TIMES: u32 = 3;
/// Messages that wait from the beginning: together longer than the length at which the outbox begins a new log.
const WAITING: usize = 11;
/// Checkpoints that a command that runs once does not reach; other tests do.
const ELSEWHERE: [&[Checkpoint]; 3] = [channels::ONLY, waves::ONLY, cancel::ONLY];
/// The number of resources in the manifest.
const RESOURCES: usize = 4;

/// True where the program has checkpoints; otherwise skips the test.
fn is_armed() -> bool {
    let is = cfg!(feature = "checkpoints");
    if !is {
        skip(Reason::Missing, "the program has no checkpoints: test with --all-features");
    }
    is
}

/// A manifest whose resources reach every checkpoint of a run. Its data name the directory that it writes to.
struct Bundle {
    packed: Vec<u8>,
    archive: Vec<u8>,
    web: Web,
}

/// Noise, so that compressing does not make it small.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

impl Bundle {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("archive")).unwrap();
        std::fs::write(at("archive/manifest.yaml"), "an entry\n").unwrap();
        std::fs::write(at("archive/noise"), noise(300_000)).unwrap();
        let archive = ensign::manifest::bundle::pack(&at("archive")).unwrap();
        let (served, digest) = (archive.clone(), ensign::host::fs::sha256(&archive));
        let packed: std::sync::Arc<std::sync::OnceLock<Vec<u8>>> = std::sync::Arc::default();
        let bundle = std::sync::Arc::clone(&packed);
        let web = Web::new(move |asked| match asked.path.as_str() {
            "/bundle.tgz" => Reply::ok(bundle.get().unwrap()),
            _ => Reply::file(asked, &served, "one"),
        });
        let own = std::fs::metadata("/proc/self").unwrap();
        let (uid, gid) = {
            use std::os::unix::fs::MetadataExt;
            (own.uid().to_string(), own.gid().to_string())
        };
        let manifest = json!({"ccm": {"resources": [
            {"exec": [{"effect": {"command": "echo {{ Data.run }} >> {{ Data.dir }}/effect", "provider": "shell"}}]},
            {"file": [{"{{ Data.dir }}/conf": {"ensure": "present", "source": "conf", "owner": uid, "group": gid, "mode": "0640"}}]},
            {"symlink": [{"{{ Data.dir }}/link": {"ensure": "present", "target": "conf"}}]},
            {"archive": [{"{{ Data.dir }}/a.tgz": {
                "ensure": "present", "url": web.url("/a.tgz"), "checksum": digest, "owner": uid, "group": gid,
                "extract_parent": "{{ Data.dir }}/out",
            }}]},
        ]}});
        std::fs::create_dir(at("bundle")).unwrap();
        std::fs::write(at("bundle/manifest.yaml"), manifest.to_string()).unwrap();
        std::fs::write(at("bundle/conf"), NEW).unwrap();
        let bytes = ensign::manifest::bundle::pack(&at("bundle")).unwrap();
        packed.set(bytes.clone()).unwrap();
        Self { packed: bytes, archive, web }
    }

    fn apply(&self, place: &Path, run: &str) -> Apply {
        Apply {
            url: self.web.url("/bundle.tgz"),
            sha256: ensign::host::fs::sha256(&self.packed),
            size: self.packed.len() as u64,
            data: BTreeMap::from([("dir".to_owned(), json!(place)), ("run".to_owned(), json!(run))]),
        }
    }
}

const OLD: &str = "old\n";
const NEW: &str = "new, and longer\n";

/// Panics when a file is incomplete.
fn is_whole(site: &Path) {
    let conf = std::fs::read_to_string(site.join("conf")).unwrap();
    assert!([OLD, NEW].contains(&conf.as_str()), "{conf:?}");
    for (name, wanted) in [("out/manifest.yaml", b"an entry\n".to_vec()), ("out/noise", noise(300_000))] {
        if let Ok(found) = std::fs::read(site.join(name)) {
            assert!(found == wanted, "{name} has {} bytes", found.len());
        }
    }
}

/// Panics unless everything is as the manifest wants.
fn is_done(site: &Path, bundle: &Bundle) {
    is_whole(site);
    assert_eq!(std::fs::read_to_string(site.join("conf")).unwrap(), NEW);
    assert_eq!(std::fs::read_link(site.join("link")).unwrap(), Path::new("conf"));
    assert!(std::fs::read(site.join("a.tgz")).unwrap() == bundle.archive);
    assert!(site.join("out/noise").exists() && site.join("out/manifest.yaml").exists());
}

/// Lines of `effect` that a run wrote.
fn effects(site: &Path, run: &str) -> usize {
    std::fs::read_to_string(site.join("effect")).unwrap_or_default().lines().filter(|line| *line == run).count()
}

/// The age that leftovers must have before they are removed. Only the age of a link shows that its maker is gone.
fn age(has_link: bool) -> Duration {
    Duration::from_millis(if has_link { 1100 } else { 20 })
}

struct Stage {
    fleet: SingleNodeFleet,
    bundle: Bundle,
    /// A ledger that is compacted at the end of the next command.
    ledger: String,
}

impl Stage {
    async fn new() -> Self {
        let fleet = SingleNodeFleet::new(binaries().last().unwrap(), "").await;
        let mut stage = Self { fleet, bundle: Bundle::new(), ledger: String::new() };
        stage.ledger = stage.full_ledger().await;
        stage
    }

    /// The records of one command as an agent wrote them, repeated under other ids.
    async fn full_ledger(&self) -> String {
        let place = self.place("template");
        let mut agent = place.start(&self.fleet.bus, &mut place.process()).await;
        let command = place.append_command(&self.fleet, "effect");
        self.fleet.send(&command).await;
        place.only_result(&self.fleet.bus, command.id).await;
        stop(&mut agent).await;
        let records = std::fs::read_to_string(place.state_dir().join("ledger.jsonl")).unwrap();
        assert_eq!(records.lines().count(), 5, "{records}");
        // The start of its memory and the version of trust come first and once.
        let start = records.match_indices('\n').nth(1).unwrap().0 + 1;
        let (head, one) = records.split_at(start);
        let again = (0..334).map(|_| one.replace(&command.id.to_string(), &Uuid::now_v7().to_string()));
        std::iter::once(head.to_owned()).chain(again).collect()
    }

    fn place(&self, node: &str) -> NodeDir {
        let wishes = NodeSettings { limits: "fetch_hosts = [\"127.0.0.1\"]".to_owned(), ..NodeSettings::default() };
        NodeDir::new(&self.fleet, node, &self.fleet.server.url(), &wishes)
    }

    /// A node with old content, a ledger that is about to be compacted, and an outbox with many messages.
    fn used_place(&self, node: &str) -> NodeDir {
        let place = self.place(node);
        std::fs::write(place.site().join("conf"), OLD).unwrap();
        std::fs::create_dir(place.state_dir()).unwrap();
        std::fs::write(place.state_dir().join("ledger.jsonl"), &self.ledger).unwrap();
        let mut outbox = Outbox::open(&place.state_dir().join("outbox"), 64 << 20).unwrap();
        for _ in 0..WAITING {
            let id = Uuid::now_v7().to_string();
            let payload = json!({"event_id": id, "padding": "x".repeat(100_000)}).to_string().into_bytes();
            let subject = format!("ensign.v1.test.event.{node}.transaction");
            let waiting = Waiting { subject, msg_id: id, payload, priority: Priority::Event, command: None };
            // From before nodes signed their messages.
            outbox.push(&waiting, jiff::Timestamp::now(), &no_receipt).unwrap();
        }
        place
    }

    fn command(&self, place: &NodeDir, run: &str) -> Command {
        place.command(&self.fleet, Action::Apply(self.bundle.apply(&place.site(), run)))
    }

    /// Lets an agent die at a checkpoint, starts it again, and checks. False when the agent did not reach the checkpoint.
    async fn crash_at(&self, at: Checkpoint, count: u32) -> bool {
        let bus = &self.fleet.bus;
        let place = self.used_place(&format!("{}-{count}", at.name().replace('.', "-")));
        let first = self.command(&place, "first");
        let envelope = self.fleet.sign(&first);
        let mut process = place.process();
        process.env("ENSIGN_CHECKPOINT", format!("{}:{count}", at.name()));
        let died = self.run_until_death(&place, &mut process, &first, &envelope).await;
        is_whole(&place.site());
        // A checkpoint of another thread may stop the run between any two steps.
        tokio::time::sleep(age(place.leftovers().iter().any(|path| path.is_symlink()))).await;
        let mut agent = place.start(bus, &mut place.process()).await;
        // An operator without an answer sends the same bytes again.
        place.first_answer(&self.fleet, &first, &envelope, PATIENCE).await.expect("an answer");
        let done = place.only_result(bus, first.id).await;
        let second = self.command(&place, "second");
        self.fleet.send(&second).await;
        let again = place.only_result(bus, second.id).await;
        assert_eq!(again.outcome, CommandOutcome::Changed, "{again:?}");
        place.wait_until_published();
        assert_eq!(stop(&mut agent).await.code(), Some(0));

        let site = place.site();
        is_done(&site, &self.bundle);
        assert_eq!(effects(&site, "second"), 1);
        match done.outcome {
            CommandOutcome::Changed => assert_eq!(effects(&site, "first"), 1),
            CommandOutcome::Interrupted => assert!(effects(&site, "first") <= 1),
            _ => panic!("{done:?}"),
        }
        assert_eq!(place.results(bus, first.id).await.len(), 1);
        self.check_events(&place, (&first, done.outcome), &second).await;
        assert_eq!(place.leftovers(), Vec::<std::path::PathBuf>::new());
        assert!(Outbox::open(&place.state_dir().join("outbox"), 64 << 20).unwrap().is_empty());
        died
    }

    /// Starts an agent that must die, and sends the command when it is online. True when it died.
    async fn run_until_death(&self, place: &NodeDir, process: &mut Process, command: &Command, envelope: &[u8]) -> bool {
        let bus = &self.fleet.bus;
        let mut states = place.states(bus).await;
        let mut results = bus.subscribe(&format!("ensign.v1.test.job.{}.{}.done", command.id, place.node)).await.unwrap();
        bus.flush_roundtrip().await.unwrap();
        let mut agent = Agent::start(process);
        let work = async {
            while read::<NodeState>(&states.next().await.unwrap()).is_none_or(|state| !state.alive) {}
            self.fleet.publish(command, envelope.to_vec(), "_INBOX.nobody").await;
            results.next().await.unwrap();
        };
        tokio::select! {
            status = wait_for_exit(&mut agent) => {
                assert_eq!(status.signal(), Some(9), "{status:?}\n{}", place.log());
                return true;
            }
            worked = tokio::time::timeout(PATIENCE, work) => assert!(worked.is_ok(), "{}", place.log()),
        }
        let status = stop(&mut agent).await;
        assert!(status.signal() == Some(9) || status.code() == Some(0), "{status:?}\n{}", place.log());
        status.signal() == Some(9)
    }

    /// Checks that no event is double, and that none is missing of a run that ended.
    async fn check_events(&self, place: &NodeDir, (first, outcome): (&Command, CommandOutcome), second: &Command) {
        let events: Vec<(String, Value)> =
            place.events(&self.fleet.bus).await.iter().map(|event| (event.subject.clone(), read(event).unwrap())).collect();
        let mut ids: Vec<&str> = events.iter().map(|(_, event)| event["event_id"].as_str().unwrap()).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all, "double events");
        let of = |kind: &str, run: &Command| {
            let is_of =
                |(subject, event): &&(String, Value)| subject.ends_with(kind) && event["run_id"] == run.id.to_string().as_str();
            events.iter().filter(is_of).count()
        };
        let padded = events.iter().filter(|(_, event)| event["padding"].is_string()).count();
        assert_eq!(padded, WAITING, "the waiting messages");
        // After an interrupted run only some resources need a change.
        assert!(of("transaction", second) >= 1);
        assert_eq!(of("run", second), 1);
        if outcome == CommandOutcome::Changed {
            assert_eq!((of("transaction", first), of("run", first)), (RESOURCES, 1));
        } else {
            assert!(of("transaction", first) <= RESOURCES && of("run", first) <= 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_ends_once_wherever_the_agent_dies() {
    if !is_armed() {
        return;
    }
    let (stage, next) = (Stage::new().await, AtomicUsize::new(0));
    let worker = async || {
        while let Some(at) = Checkpoint::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            if ELSEWHERE.iter().any(|others| others.contains(at)) {
                continue;
            }
            for count in 1..=TIMES {
                let died = stage.crash_at(*at, count).await;
                assert!(died || count > 1, "the agent does not come to {}", at.name());
                if !died {
                    break;
                }
            }
        }
    };
    join_all((0..NODES).map(|_| worker())).await;
}

#[test]
fn a_local_apply_leaves_old_or_new_wherever_it_dies() {
    if !is_armed() {
        return;
    }
    let bundle = Bundle::new();
    let directory = tempfile::tempdir().unwrap();
    let unpacked = directory.path().join("bundle");
    std::fs::create_dir(&unpacked).unwrap();
    let caps = ensign::manifest::bundle::BundleLimits::default();
    let manifest =
        ensign::manifest::bundle::unpack(bundle.packed.as_slice(), bundle.packed.len() as u64, &unpacked, &caps).unwrap();
    let mut deaths = 0;
    for at in Checkpoint::ALL {
        for count in 1..=TIMES {
            let site = directory.path().join(format!("{}-{count}", at.name()));
            std::fs::create_dir(&site).unwrap();
            std::fs::write(site.join("conf"), OLD).unwrap();
            let run = |checkpoint: Option<String>| {
                let data = json!({"data": {"dir": site, "run": "first"}}).to_string();
                std::fs::write(directory.path().join("data.json"), data).unwrap();
                let mut process = Process::new(env!("CARGO_BIN_EXE_ensign"));
                process.args(["apply", "--data"]).arg(directory.path().join("data.json")).arg(&manifest);
                process.envs(checkpoint.map(|checkpoint| ("ENSIGN_CHECKPOINT", checkpoint)));
                process.stdin(Stdio::null()).output().unwrap()
            };
            let output = run(Some(format!("{}:{count}", at.name())));
            if output.status.signal() != Some(9) {
                assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
                break;
            }
            deaths += 1;
            is_whole(&site);
            std::thread::sleep(age(*at == Checkpoint::LinkMade));
            let output = run(None);
            assert_eq!(output.status.code(), Some(0), "{}: {}", at.name(), String::from_utf8_lossy(&output.stderr));
            is_done(&site, &bundle);
            let mut names: Vec<_> =
                std::fs::read_dir(&site).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            assert_eq!(names, ["a.tgz", "conf", "effect", "link", "out"], "after {}", at.name());
            assert_eq!(std::fs::read_dir(site.join("out")).unwrap().count(), 2, "after {}", at.name());
        }
    }
    assert!(deaths >= 10, "{deaths}");
}
