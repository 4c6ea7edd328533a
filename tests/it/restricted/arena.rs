//! The attacked node. Its agent has a mount namespace of its own, and its trust bundle a key for every kind of restricted rule.
//! Traps show whether an attack did harm.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ensign::fleet::setup::init::{Retention, create_streams};
use ensign::transport::{Bus, BusSettings};
use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::{COMMAND_TYPE, NodeState, Subjects, TRUST_TYPE};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::nats::{NatsServer, Options};
use crate::support::node_dir::read;
use crate::support::single_node::{Agent, PATIENCE};

use super::cases::{AttackRequest, Case};

const FLEET: &str = "test";
/// A text that must never leave the node.
const SECRET: &str = "correct-horse-battery-staple";
/// Files of the system that attacks aim at.
const WATCHED: &[&str] =
    &["/etc/fstab", "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/cron.d", "/etc/sysctl.d", "/etc/profile.d", "/root/.ssh"];

/// Template files that read forbidden data.
const TEMPLATES: &[(&str, &str)] = &[
    ("jinja", "{% include 'W/secret' %}"),
    ("go", "{{ readFile \"W/secret\" }}{{ env \"AGENT_SECRET\" }}"),
    ("jet", "[[ include \"W/secret\" ]][[ readFile(\"W/secret\") ]]"),
];

/// Gives the agent an `/etc` of its own, so that a successful attack does no harm to the machine.
const OWN_ETC: &str = "mount -t tmpfs tmpfs W/layer && mkdir W/layer/upper W/layer/work \
    && mount -t overlay overlay -o lowerdir=/etc,upperdir=W/layer/upper,workdir=W/layer/work /etc && exec \"$@\"";

/// The keys of the operators by name, with the rule of each. `W` is the directory of the test.
fn rules() -> Vec<(&'static str, Value)> {
    vec![
        ("ops", json!({})),
        ("noop", json!({"noop_only": true})),
        ("noop-exec", json!({"noop_only": true, "types": ["exec", "file", "service", "scaffold"]})),
        ("service", json!({"types": ["service"], "names": ["nginx"]})),
        ("types", json!({"types": ["service", "package"]})),
        ("files", json!({"types": ["file", "line", "symlink", "scaffold", "archive"], "names": ["W/www/**"]})),
        ("names", json!({"names": ["W/www/**"]})),
        ("mount", json!({"types": ["mount"], "names": ["W/www/**"]})),
        ("apply", json!({"types": ["apply", "file"], "names": ["W/www/**"]})),
        ("ls", json!({"types": ["exec"], "names": ["/bin/ls *", "ls"]})),
        ("jobs", json!({"types": ["cron"], "names": ["backup", "/bin/true"]})),
        ("kernel", json!({"types": ["sysctl"], "names": ["net.*"]})),
        ("people", json!({"types": ["user", "group"], "names": ["web*"]})),
        ("exact", json!({"types": ["file", "line"], "names": ["W/www/plain"]})),
        ("any-file", json!({"types": ["file", "line", "cron", "sysctl"]})),
        ("halts", json!({"actions": ["halt", "resume"], "nodes": ["db*"]})),
    ]
}

pub struct Arena {
    server: NatsServer,
    bus: Bus,
    subjects: Subjects,
    dir: TempDir,
    keys: BTreeMap<&'static str, SigningKey>,
    /// All messages that any client published.
    heard: Arc<Mutex<Vec<u8>>>,
    agent: Option<Agent>,
    pid: u32,
    before: BTreeMap<String, String>,
}

impl Arena {
    pub async fn new(binary: &Path, limits: &str) -> Self {
        let server = NatsServer::start_binary(binary, &Options { jetstream: true, ..Options::default() });
        let bus = Bus::connect(&BusSettings { servers: vec![server.url()], ..BusSettings::default() }).await.unwrap();
        let subjects = Subjects::new(FLEET);
        create_streams(
            &bus,
            &subjects,
            Retention { jobs_size: 16 << 20, events_size: 16 << 20, ..Retention::default() },
            &mut |_, _| (),
        )
        .await
        .unwrap();
        let heard = listen(&bus).await;
        let dir = TempDir::new().unwrap();
        let keys = rules().iter().zip(10..).map(|((id, _), seed)| (*id, SigningKey::from_seed(&[seed; 32]))).collect();
        let mut arena = Self { server, bus, subjects, dir, keys, heard, agent: None, pid: 0, before: BTreeMap::new() };
        arena.make_files(limits);
        arena.start().await;
        arena.before = arena.snapshot();
        arena
    }

    /// Returns a text with the directory of the test in the place of `W`.
    pub fn expand(&self, text: &str) -> String {
        let place = self.dir.path().display().to_string();
        text.replace("W/", &format!("{place}/"))
    }

    fn expand_value(&self, value: &Value) -> Value {
        serde_json::from_str(&self.expand(&value.to_string())).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn make_files(&self, limits: &str) {
        for directory in ["www/sub", "www/tpl", "outside", "marks", "etc", "layer"] {
            std::fs::create_dir_all(self.path(directory)).unwrap();
        }
        std::fs::write(self.path("secret"), format!("{SECRET}\n")).unwrap();
        std::fs::set_permissions(self.path("secret"), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(self.path("outside/kept"), "kept").unwrap();
        std::fs::write(self.path("www/plain"), "plain\n").unwrap();
        std::os::unix::fs::symlink(self.path("outside"), self.path("www/out")).unwrap();
        std::os::unix::fs::symlink(self.path("secret"), self.path("www/leak")).unwrap();
        nix::unistd::mkfifo(&self.path("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        std::fs::write(self.path("www/evil"), self.expand("#!/bin/sh\n: > W/marks/evil\n")).unwrap();
        std::fs::set_permissions(self.path("www/evil"), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(self.path("www/tpl/new"), "x").unwrap();
        std::os::unix::fs::symlink("chain2", self.path("www/chain1")).unwrap();
        std::os::unix::fs::symlink("sub/../leak", self.path("www/chain2")).unwrap();
        std::os::unix::fs::symlink("chain1", self.path("www/chain0")).unwrap();
        for (engine, text) in TEMPLATES {
            std::fs::create_dir(self.path(&format!("www/tpl-{engine}"))).unwrap();
            std::fs::write(self.path(&format!("www/tpl-{engine}/a.j2")), self.expand(text)).unwrap();
        }
        let root = SigningKey::from_seed(&[1; 32]);
        let rules: Vec<Value> = rules()
            .iter()
            .map(|(id, rule)| {
                let mut rule = self.expand_value(rule);
                rule["keys"] = json!([id]);
                rule
            })
            .collect();
        let keys: Vec<Value> = self.keys.iter().map(|(id, key)| json!({"id": id, "key": key.public().to_string()})).collect();
        let bundle = json!({
            "fleet": FLEET, "version": 1, "expires": Timestamp::now() + SignedDuration::from_hours(24 * 365),
            "root": {"threshold": 1, "keys": [root.public().to_string()]}, "keys": keys, "rules": rules,
        });
        let trust = sign_envelope(TRUST_TYPE, bundle.to_string().into_bytes(), &[("root", &root)]).encode();
        std::fs::write(self.path("etc/trust.json"), trust).unwrap();
        let config = format!(
            "fleet = \"{FLEET}\"\nnode = \"web1\"\nstate_dir = \"state\"\nfacts_dirs = []\nheartbeat = \"1s\"\n\
             [http]\nlisten = \"off\"\n[nats]\nservers = [\"{}\"]\n[trust]\nroot = [\"{}\"]\nbundle = \"trust.json\"\n[limits]\n{}\n",
            self.server.url(),
            root.public(),
            self.expand(limits)
        );
        std::fs::write(self.path("etc/agent.toml"), config).unwrap();
    }

    async fn start(&mut self) {
        let mut states = self.bus.subscribe(self.subjects.states().as_str()).await.unwrap();
        self.bus.flush_roundtrip().await.unwrap();
        let log = std::fs::File::create(self.path("agent.log")).unwrap();
        let mut process = Process::new("unshare");
        process.args(["--mount", "--propagation", "private", "sh", "-c", &self.expand(OWN_ETC), "sh"]);
        process.args([env!("CARGO_BIN_EXE_ensign"), "agent", "run", "--config"]).arg(self.path("etc/agent.toml"));
        process.env("AGENT_SECRET", SECRET).stderr(log).stdin(Stdio::null());
        let agent = Agent::start(&mut process);
        let alive = async { while read::<NodeState>(&states.next().await.unwrap()).is_none_or(|state| !state.alive) {} };
        assert!(tokio::time::timeout(PATIENCE, alive).await.is_ok(), "{}", self.log());
        self.pid = agent.0.id();
        self.agent = Some(agent);
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }

    /// Returns everything that an attack could change.
    fn snapshot(&self) -> BTreeMap<String, String> {
        let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.pid)).unwrap_or_default();
        let mut found = BTreeMap::from([("what is mounted".to_owned(), mounts)]);
        let own = ["outside", "marks", "secret", "etc/agent.toml", "etc/trust.json"].map(|name| self.path(name));
        for path in WATCHED.iter().map(|path| PathBuf::from(format!("/proc/{}/root{path}", self.pid))).chain(own) {
            list(&path, &mut found);
        }
        found
    }

    /// Sends one attack. An error is the harm that it did.
    pub async fn send(&mut self, case: &Case) -> Result<(), String> {
        self.heard.lock().unwrap().clear();
        let answer = self.send_case(case).await;
        let outcome = answer["outcome"].as_str().unwrap_or_default().to_owned();
        let mut harm = Vec::new();
        if !case.may_end_well && ["stable", "changed"].contains(&outcome.as_str()) {
            harm.push(format!("the agent said \"{outcome}\""));
        }
        let now = self.snapshot();
        let differs = |name: &&String| self.before.get(*name) != now.get(*name);
        harm.extend(self.before.keys().chain(now.keys()).filter(differs).map(|name| format!("{name} changed")));
        self.before = now;
        self.bus.flush_roundtrip().await.unwrap();
        if leaks(&self.heard.lock().unwrap()) {
            harm.push("the secret was published".to_owned());
        }
        let mut public = BTreeMap::new();
        list(&self.path("www"), &mut public);
        harm.extend(public.iter().filter(|(_, text)| leaks(text.as_bytes())).map(|(name, _)| format!("{name} has the secret")));
        if leaks(self.log().as_bytes()) {
            harm.push("the secret was logged".to_owned());
            std::fs::write(self.path("agent.log"), "").unwrap();
        }
        if harm.is_empty() { Ok(()) } else { Err(format!("{} ({answer})", harm.join(", "))) }
    }

    async fn send_case(&self, case: &Case) -> Value {
        let now = Timestamp::now();
        let id = Uuid::now_v7();
        let (action, noop) = self.action(&case.ask, id);
        let mut options = json!({"timeout": "20s"});
        if noop {
            options["noop"] = json!(true);
        }
        let name = action.as_object().unwrap().keys().next().unwrap().clone();
        let mut command = json!({
            "id": id, "fleet": FLEET, "to": {"nodes": ["web1"]}, "issued": now, "expires": now + SignedDuration::from_mins(5),
            "action": action, "options": options,
        });
        if let Some(only_where) = &case.only_where {
            command["to"]["where"] = json!(only_where);
        }
        let key = &self.keys[case.key];
        let envelope = sign_envelope(COMMAND_TYPE, command.to_string().into_bytes(), &[(case.key, key)]).encode();
        let (reply, mut inbox) = self.bus.request_inbox().await.unwrap();
        let subject = format!("ensign.v1.{FLEET}.cmd.{name}.node.web1");
        self.bus.publish_with_reply(&subject, &format!("{reply}.1"), &[], envelope).await.unwrap();
        loop {
            let message = tokio::time::timeout(PATIENCE, inbox.next()).await;
            let message = message.unwrap_or_else(|_| panic!("{}: no answer\n{}", case.about, self.log())).unwrap();
            let answer: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
            // An acknowledgement comes first.
            if answer.get("outcome").is_some() {
                return answer;
            }
        }
    }

    fn action(&self, ask: &AttackRequest, id: Uuid) -> (Value, bool) {
        match ask {
            AttackRequest::Ensure(kind, properties) => {
                (json!({"ensure": {"type": kind, "properties": self.expand_value(properties)}}), false)
            }
            AttackRequest::Noop(kind, properties) => {
                (json!({"ensure": {"type": kind, "properties": self.expand_value(properties)}}), true)
            }
            AttackRequest::Manifest(text) => (self.manifest(text, id), false),
            AttackRequest::NoopManifest(text) => (self.manifest(text, id), true),
            AttackRequest::Action(action, noop) => (self.expand_value(action), *noop),
        }
    }

    fn manifest(&self, text: &str, id: Uuid) -> Value {
        let path = self.path(&format!("etc-{id}.yaml"));
        let bytes = self.expand(text).into_bytes();
        std::fs::write(&path, &bytes).unwrap();
        json!({"apply": {"url": format!("file://{}", path.display()), "sha256": ensign::host::fs::sha256(&bytes), "size": bytes.len()}})
    }

    /// Panics unless the keys can still do what their rules permit: the agent must not refuse everything.
    pub async fn check_permitted_commands(&mut self) {
        let content = json!({"name": "W/www/mine", "ensure": "present", "content": "mine", "owner": "root", "group": "root", "mode": "0644"});
        for key in ["ops", "files"] {
            std::fs::remove_file(self.path("www/mine")).ok();
            let about = format!("{key} may do this");
            let case = Case {
                about,
                key,
                ask: AttackRequest::Ensure("file".to_owned(), content.clone()),
                only_where: None,
                may_end_well: true,
            };
            let answer = self.send_case(&case).await;
            assert_eq!(answer["outcome"], "changed", "{key}: {answer}");
            assert_eq!(std::fs::read_to_string(self.path("www/mine")).unwrap(), "mine");
        }
    }
}

async fn listen(bus: &Bus) -> Arc<Mutex<Vec<u8>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut all = bus.subscribe(">").await.unwrap();
    let shared = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Some(message) = all.next().await {
            // The attacker's own message is no leak; none of them has the secret.
            shared.lock().unwrap().extend_from_slice(&message.payload);
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    heard
}

/// True when the bytes hold the secret, as it is or in an equivalent form.
fn leaks(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let reversed: String = SECRET.chars().rev().collect();
    let encoded = STANDARD.encode(SECRET);
    let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    // The last characters of base64 depend on what follows.
    [SECRET, &SECRET.to_uppercase(), &reversed, &encoded[..30], &hex].iter().any(|form| text.contains(form))
}

/// Everything below a path with its content and mode.
fn list(path: &Path, found: &mut BTreeMap<String, String>) {
    let Ok(meta) = path.symlink_metadata() else { return };
    let mode = meta.permissions().mode();
    let content = if meta.is_file() {
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    } else {
        String::new()
    };
    found.insert(path.display().to_string(), format!("{mode:o} {content}"));
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            list(&entry.path(), found);
        }
    }
}
