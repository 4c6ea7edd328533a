//! Authentication in both directions: TLS with certificates of an own authority, the ways to log in, bundles over `https://`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use ensign::diag::error_chain;
use ensign::model::Secret;
use ensign::transport::nkey::UserKey;
use ensign::transport::{Bus, BusSettings, Credentials, Tls};
use ensign::wire::command::{Action, Apply};
use ensign::wire::{CommandOutcome, CommandResult};
use serde_json::json;

use crate::support::certificates::Certificates;
use crate::support::fleet::ensign;
use crate::support::jwt::Operator;
use crate::support::nats::{NatsServer, Options, binaries};
use crate::support::single_node::{Agent, PATIENCE, SingleNodeFleet, apply, on_every_server};

fn server(binary: &Path, config: impl Into<String>) -> NatsServer {
    NatsServer::start_binary(binary, &Options { config: config.into(), ..Options::default() })
}

/// A server with TLS and this certificate; `more` goes into the block.
fn tls_server(binary: &Path, certificates: &Certificates, name: &str, more: &str) -> NatsServer {
    server(binary, tls_block(certificates, name, more))
}

fn tls_block(certificates: &Certificates, name: &str, more: &str) -> String {
    let path = |name: &str| certificates.path(name).display().to_string();
    let [cert, key, ca] = [&format!("{name}.pem"), &format!("{name}.key"), "ca.pem"].map(path);
    format!("tls {{ cert_file: \"{cert}\", key_file: \"{key}\", ca_file: \"{ca}\", timeout: 60, {more} }}\n")
}

/// Sends a message to itself: the connection works.
async fn works(settings: &BusSettings) {
    let bus = Bus::connect(settings).await.unwrap_or_else(|error| panic!("{}", error_chain(&error)));
    let mut inbox = bus.subscribe("a.b").await.unwrap();
    bus.publish("a.b", &[], b"hello".to_vec()).await.unwrap();
    let message = tokio::time::timeout(PATIENCE, inbox.next()).await.unwrap().unwrap();
    assert_eq!(message.payload, b"hello");
}

/// Returns the error of a refused connection.
async fn refused(settings: &BusSettings) -> String {
    match Bus::connect(settings).await {
        Ok(_) => panic!("let in: {settings:?}"),
        Err(error) => error_chain(&error),
    }
}

#[tokio::test]
async fn a_server_is_trusted_by_its_certificate_authority() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    for binary in binaries() {
        let server = tls_server(&binary, &certificates, "server", "");
        let port = server.url().rsplit(':').next().unwrap().to_owned();
        let with = |ca: &Path, url: String| BusSettings {
            servers: vec![url],
            tls: Some(Tls { ca: Some(ca.to_owned()), ..Tls::default() }),
            ..BusSettings::default()
        };
        let ca = certificates.path("ca.pem");
        for url in [server.url(), format!("tls://localhost:{port}"), format!("nats://localhost:{port}")] {
            works(&with(&ca, url)).await;
        }
        for settings in
            [BusSettings { servers: vec![server.url()], ..BusSettings::default() }, with(&others.path("ca.pem"), server.url())]
        {
            let why = refused(&settings).await;
            assert!(why.contains(&server.url()) && why.contains("an authority that is not trusted"), "{why}");
        }
        // The right authority, for another name.
        let elsewhere = tls_server(&binary, &certificates, "elsewhere", "");
        let why = refused(&with(&ca, elsewhere.url())).await;
        assert!(why.contains(&elsewhere.url()) && why.contains("for another name"), "{why}");
        for (file, said) in [("none.pem", "No such file"), ("openssl.cnf", "UnknownIssuer")] {
            let why = refused(&with(&certificates.path(file), server.url())).await;
            assert!(why.contains(said), "{file}: {why}");
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_when_it_is_required() {
    let certificates = Certificates::new();
    for binary in binaries() {
        let server = server(&binary, "");
        let tls = Tls { ca: Some(certificates.path("ca.pem")), ..Tls::default() };
        let settings = |required| BusSettings {
            servers: vec![server.url()],
            tls: Some(Tls { required, ..tls.clone() }),
            ..BusSettings::default()
        };
        works(&settings(false)).await;
        let why = refused(&settings(true)).await;
        assert!(why.contains("does not speak TLS"), "{why}");
        let by_url = BusSettings { servers: vec![server.url().replace("nats://", "tls://")], ..settings(false) };
        let why = refused(&by_url).await;
        assert!(why.contains("does not speak TLS"), "{why}");
    }
}

#[tokio::test]
async fn a_server_that_requires_a_client_certificate_gets_one() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    for binary in binaries() {
        let server = tls_server(&binary, &certificates, "server", "verify: true");
        let with = |own: Option<&Certificates>| BusSettings {
            servers: vec![server.url()],
            tls: Some(Tls {
                ca: Some(certificates.path("ca.pem")),
                cert: own.map(|own| own.path("client.pem")),
                key: own.map(|own| own.path("client.key")),
                required: true,
            }),
            ..BusSettings::default()
        };
        works(&with(Some(&certificates))).await;
        let why = refused(&with(None)).await;
        assert!(why.contains("asks for a client certificate"), "{why}");
        let why = refused(&with(Some(&others))).await;
        assert!(why.contains("our certificate"), "{why}");
    }
}

#[tokio::test]
async fn a_creds_file_logs_in_to_an_account_of_an_operator() {
    let dir = tempfile::tempdir().unwrap();
    for binary in binaries() {
        let (operator, stranger) = (Operator::new(), Operator::new());
        let server = server(&binary, operator.config.clone());
        let with = |name: &str, content: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            BusSettings { servers: vec![server.url()], credentials: Some(Credentials::CredsFile(path)), ..BusSettings::default() }
        };
        let good = operator.user(&json!({}));
        works(&with("good.creds", &good)).await;
        works(&with("crlf.creds", &good.replace('\n', "\r\n"))).await;
        // Of an account that this server does not know; of no user; the token of one user with the seed of another.
        let mixed = operator.user(&json!({}));
        let mixed = format!("{}{}", &good[..good.find("*****").unwrap()], &mixed[mixed.find("*****").unwrap()..]);
        for wrong in [stranger.user(&json!({})), mixed] {
            let why = refused(&with("wrong.creds", &wrong)).await;
            assert!(why.contains("authorization violation"), "{why}");
        }
        let why = refused(&BusSettings { credentials: None, ..with("good.creds", &good) }).await;
        assert!(why.contains("authorization violation"), "{why}");
        // Not a creds file: the error comes before any connection, with the name of the file.
        let seed = UserKey::generate().unwrap().seed;
        for content in ["", "rubbish", seed.reveal(), &good[..good.find("*****").unwrap()]] {
            let why = refused(&with("bad.creds", content)).await;
            assert!(why.contains("could not read the NATS credentials") && why.contains("bad.creds"), "{why}");
            assert!(content.is_empty() || !why.contains(content), "{why}");
        }
        let gone =
            BusSettings { credentials: Some(Credentials::CredsFile(dir.path().join("none.creds"))), ..with("good.creds", &good) };
        let why = refused(&gone).await;
        assert!(why.contains("none.creds") && why.contains("No such file"), "{why}");
        // The server denies operations that the token does not permit.
        let mute = operator.user(&json!({"pub": {"deny": [">"]}}));
        let bus = Bus::connect(&with("mute.creds", &mute)).await.unwrap();
        bus.publish("a.b", &[], vec![]).await.unwrap();
        let start = std::time::Instant::now();
        while bus.counters().denied == 0 {
            assert!(start.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn keys_passwords_and_tokens_log_in() {
    for binary in binaries() {
        let (own, other) = (UserKey::generate().unwrap(), UserKey::generate().unwrap());
        let password = |password: &str| Credentials::UserPassword { user: "u".into(), password: Secret::new(password) };
        let token = |token: &str| Credentials::Token(Secret::new(token));
        let cases = [
            (
                format!("authorization {{ users = [{{ nkey: {} }}] }}", own.public),
                Credentials::NkeySeed(own.seed.clone()),
                Credentials::NkeySeed(other.seed.clone()),
            ),
            ("authorization { users = [{ user: u, password: right }] }".to_owned(), password("right"), password("wrong")),
            ("authorization { token: right }".to_owned(), token("right"), token("wrong")),
        ];
        for (config, right, wrong) in cases {
            let server = server(&binary, config);
            let with = |credentials| BusSettings { servers: vec![server.url()], credentials, ..BusSettings::default() };
            works(&with(Some(right))).await;
            for credentials in [Some(wrong), None] {
                let why = refused(&with(credentials)).await;
                assert!(why.contains("authorization violation"), "{why}");
            }
        }
        let server = server(&binary, "");
        let not_a_seed = Credentials::NkeySeed(Secret::new("SUNOT-A-SEED"));
        let settings = BusSettings { servers: vec![server.url()], credentials: Some(not_a_seed), ..BusSettings::default() };
        // A server without a login accepts every client; an invalid seed is an error all the same.
        let why = refused(&settings).await;
        assert!(why.contains("nkey") && !why.contains("SUNOT"), "{why}");
    }
}

#[test]
fn a_private_key_that_others_can_read_is_refused() {
    let certificates = Certificates::new();
    let path = |name: &str| certificates.path(name);
    let settings = || {
        let written = Tls { ca: None, cert: Some(path("client.pem")), key: Some(path("client.key")), required: true };
        written.check_key_permissions().map(|_| ()).map_err(|error| error_chain(&error))
    };
    assert_eq!(settings(), Ok(()));
    std::fs::set_permissions(path("client.key"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let operator = path("operator.toml");
    let text = "fleet = \"test\"\n[nats]\nservers = [\"tls://localhost:4222\"]\n[nats.tls]\ncert = \"client.pem\"\nkey = \"client.key\"\n";
    std::fs::write(&operator, text).unwrap();
    let ran = ensign(&["fleet", "--operator", operator.to_str().unwrap(), "status"]);
    assert!(ran.code != 0 && ran.stderr.contains("client.key") && ran.stderr.contains("chmod"), "{}", ran.stderr);
    assert!(settings().is_err());
}

#[test]
fn an_agent_reports_why_it_is_not_connected() {
    on_every_server(async |binary| {
        let (certificates, others, operator) = (Certificates::new(), Certificates::new(), Operator::new());
        let server = server(binary, tls_block(&certificates, "server", "") + &operator.config);
        let fleet = SingleNodeFleet::new(binary, "").await;
        let written = std::fs::read_to_string(fleet.path("agent.toml")).unwrap();
        for (name, of) in [("node.creds", &operator), ("strange.creds", &Operator::new())] {
            std::fs::write(fleet.path(name), of.user(&json!({}))).unwrap();
            std::fs::set_permissions(fleet.path(name), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
        for (authority, creds, said) in [
            (&others, "node.creds", "an authority that is not trusted"),
            (&certificates, "strange.creds", "does not accept the credentials"),
            (&certificates, "node.creds", "connected to NATS"),
        ] {
            let ca = authority.path("ca.pem").display().to_string();
            let login = format!("creds = \"{creds}\"\n[nats.tls]\nca = \"{ca}\"\n[trust]");
            let config = written.replace(&fleet.server.url(), &server.url()).replace("[trust]", &login);
            std::fs::write(fleet.path("agent.toml"), config).unwrap();
            let agent = Agent::start(&mut fleet.process());
            fleet.until(said, || fleet.log().contains(said)).await;
            agent.kill();
        }
    });
}

/// A web server with TLS over a directory; ends with this value.
pub struct Web {
    child: Child,
    port: u16,
}

const WEB: &str = "\
import http.server, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('server.pem', 'server.key')
class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args):
        super().__init__(*args, directory=sys.argv[1])
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
";

impl Web {
    pub fn new(certificates: &Certificates, directory: &Path) -> Self {
        let mut child = Process::new("python3")
            .args(["-c", WEB])
            .arg(directory)
            .current_dir(certificates.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }
}

impl Web {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// A bundle that writes one file, served over TLS as `bundle.tar.gz`; and the command for it, with its own digest.
fn bundle(fleet: &SingleNodeFleet, certificates: &Certificates) -> (Web, Apply) {
    let (source, served) = (fleet.path("source"), fleet.path("served"));
    for directory in [&source, &served] {
        std::fs::create_dir(directory).unwrap();
    }
    let name = fleet.path("applied").display().to_string();
    let file = json!({name: {"ensure": "present", "content": "over TLS\n", "owner": "root", "group": "root", "mode": "0644"}});
    let manifest = json!({"ccm": {"resources": [{"file": [file]}]}});
    std::fs::write(source.join("manifest.yaml"), manifest.to_string()).unwrap();
    let packed = served.join("bundle.tar.gz");
    std::fs::write(&packed, ensign::manifest::bundle::pack(&source).unwrap()).unwrap();
    let web = Web::new(certificates, &served);
    let url = format!("https://localhost:{}/bundle.tar.gz", web.port);
    (web, Apply { url, ..apply(&packed) })
}

async fn applied(fleet: &SingleNodeFleet, apply: Apply) -> CommandResult {
    let command = fleet.command(Action::Apply(apply));
    fleet.send(&command).await;
    fleet.only_result(command.id).await
}

/// An agent that trusts only this authority.
fn agent_with_authority(fleet: &SingleNodeFleet, ca: &Path) -> Process {
    let mut process = fleet.process();
    process.env("SSL_CERT_FILE", ca).env_remove("SSL_CERT_DIR");
    process
}

#[test]
fn bundles_are_fetched_over_https() {
    on_every_server(async |binary| {
        let certificates = Certificates::new();
        let fleet = SingleNodeFleet::new(binary, "fetch_hosts = [\"localhost\"]").await;
        let (_web, good) = bundle(&fleet, &certificates);
        let agent = fleet.start_agent_process(&mut agent_with_authority(&fleet, &certificates.path("ca.pem"))).await;
        let done = applied(&fleet, good.clone()).await;
        assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
        assert_eq!(fleet.lines("applied"), ["over TLS"]);
        std::fs::remove_file(fleet.path("applied")).unwrap();
        // The same bytes, but with a signature over others.
        let digest = good.sha256.chars().rev().collect();
        for wrong in [Apply { sha256: digest, ..good.clone() }, Apply { size: good.size + 1, ..good.clone() }] {
            let done = applied(&fleet, wrong).await;
            assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("bad_artifact")), "{done:?}");
            assert!(done.message.unwrap().contains("is not what was signed"));
        }
        let none = Apply { url: good.url.replace("bundle", "none"), ..good.clone() };
        let done = applied(&fleet, none).await;
        assert!(done.outcome == CommandOutcome::Failed && done.message.clone().unwrap().contains("404"), "{done:?}");
        // The limits permit the name, not the address behind it.
        let other = Apply { url: good.url.replace("localhost", "127.0.0.1"), ..good.clone() };
        let done = applied(&fleet, other).await;
        assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("local_limit")), "{done:?}");
        assert!(done.message.clone().unwrap().contains("127.0.0.1"), "{done:?}");
        // An authority that the host does not know.
        agent.kill();
        let others = Certificates::new();
        let _agent = fleet.start_agent_process(&mut agent_with_authority(&fleet, &others.path("ca.pem"))).await;
        let done = applied(&fleet, good).await;
        assert_eq!(done.outcome, CommandOutcome::Failed, "{done:?}");
        let why = done.message.unwrap();
        assert!(why.contains("could not fetch https://localhost") && why.contains("invalid peer certificate"), "{why}");
        assert!(!fleet.path("applied").exists());
    });
}

#[test]
fn addresses_of_this_machine_are_fetched_from_only_when_listed() {
    on_every_server(async |binary| {
        let certificates = Certificates::new();
        let fleet = SingleNodeFleet::new(binary, "").await;
        let (_web, good) = bundle(&fleet, &certificates);
        let _agent = fleet.start_agent_process(&mut agent_with_authority(&fleet, &certificates.path("ca.pem"))).await;
        for url in [good.url.clone(), good.url.replace("localhost", "127.0.0.1")] {
            let done = applied(&fleet, Apply { url: url.clone(), ..good.clone() }).await;
            let why = done.message.clone().unwrap();
            assert!(why.contains("internal to this machine") && why.contains("fetch_hosts"), "{url}: {done:?}");
            assert!(!fleet.path("applied").exists());
        }
    });
}

#[test]
fn a_host_that_is_not_listed_is_refused() {
    on_every_server(async |binary| {
        let certificates = Certificates::new();
        let fleet = SingleNodeFleet::new(binary, "fetch_hosts = [\"artifacts.example\"]").await;
        let (_web, good) = bundle(&fleet, &certificates);
        let _agent = fleet.start_agent_process(&mut agent_with_authority(&fleet, &certificates.path("ca.pem"))).await;
        let done = applied(&fleet, good).await;
        assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("local_limit")), "{done:?}");
        assert!(done.message.clone().unwrap().contains("localhost"), "{done:?}");
        assert!(!fleet.path("applied").exists());
    });
}
