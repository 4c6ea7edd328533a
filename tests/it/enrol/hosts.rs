//! Hosts that join a fleet, for the tests of this folder: with the program itself, or as a client with a token.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use ensign::model::Secret;
use ensign::transport::nkey::UserKey;
use ensign::transport::{Bus, BusSettings, Credentials};
use ensign::trust::SigningKey;
use ensign::trust::decide::join::sign_join_request;
use ensign::wire::join::{JoinRequest, JoinToken};
use jiff::Timestamp;

use crate::support::fleet::Fleet;

/// A token of the fleet, as `ensign fleet token` prints it.
pub fn token(fleet: &Fleet, args: &[&str]) -> JoinToken {
    let made = fleet.run(&[&["token"], args].concat());
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert_eq!(made.stdout.lines().count(), 1, "{}", made.stdout);
    assert!(!made.stderr.contains("ensign-join-1"), "{}", made.stderr);
    JoinToken::parse(&made.stdout).unwrap()
}

/// Starts `ensign agent join` for a host with its files below `NAME/` of the fleet. The token is on standard input.
pub fn start_join(fleet: &Fleet, node: &str, token: &JoinToken, timeout: &str) -> Child {
    let home = fleet.path(node);
    let mut child = Command::new(env!("CARGO_BIN_EXE_ensign"))
        .args(["agent", "join", "-", "--no-start", "--name", node, "--timeout", timeout, "--output", "json", "--config"])
        .arg(home.join("agent.toml"))
        .arg("--state")
        .arg(home.join("state"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(token.encode().reveal().as_bytes()).unwrap();
    child
}

/// Ends a join, which must have this exit code. Returns its messages.
pub fn finish(child: Child, code: i32) -> String {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(code), "{text}");
    text
}

/// Lines of the record of admissions.
pub fn recorded(fleet: &Fleet) -> Vec<String> {
    lines(&fleet.path("admitted"))
}

pub fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Connects as the user of a token.
pub async fn connect(token: &JoinToken) -> Bus {
    let user = UserKey::from_seed(&token.seed).unwrap().public;
    let settings = BusSettings {
        servers: token.servers.clone(),
        credentials: Some(Credentials::Jwt { jwt: token.jwt.clone(), seed: token.seed.clone() }),
        inbox_prefix: Some(format!("_INBOX_JOIN.{user}")),
        ..BusSettings::default()
    };
    Bus::connect(&settings).await.unwrap()
}

/// A host without the program: its keys, and the request that it would send.
pub struct Host {
    pub key: SigningKey,
    pub user: UserKey,
    pub request: JoinRequest,
}

impl Host {
    pub fn new(node: &str, token: &JoinToken) -> Self {
        let (key, user) = (SigningKey::generate().unwrap(), UserKey::generate().unwrap());
        let request = JoinRequest {
            fleet: token.fleet.clone(),
            node: node.parse().unwrap(),
            node_key: key.public().to_short(),
            user_key: user.public.clone(),
            token: token.jwt.reveal().to_owned(),
            trust: token.trust.clone(),
            nonce: key.public().to_short().replace("ed25519:", ""),
            issued: Timestamp::now(),
            hostname: node.to_owned(),
            os: "debian 13 x86_64".to_owned(),
        };
        Self { key, user, request }
    }

    /// The request, signed with the keys of this host and the seed of a token.
    pub fn signed(&self, seed: &Secret) -> Vec<u8> {
        let (token, user) = (SigningKey::from_user_nkey(seed).unwrap(), SigningKey::from_user_nkey(&self.user.seed).unwrap());
        sign_join_request(&self.request, &self.key, &token, &user).encode()
    }

    /// Stores the request as a host does.
    pub async fn ask(&self, fleet: &Fleet, bus: &Bus, token: &JoinToken) {
        let subject = fleet.subjects.join_request(&self.user.public);
        bus.publish_stored(subject.as_str(), &[], self.signed(&token.seed)).await.unwrap();
    }
}

/// Runs a test with a runtime of its own.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}
