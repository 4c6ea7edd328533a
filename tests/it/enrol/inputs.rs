//! Wrong arguments of `ensign fleet create`, forged join tokens, and the page about enrolment.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ensign::fleet::account::{AccountDirectory, TokenError, TokenTerms};
use ensign::transport::nkey::UserKey;
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

use crate::support::fleet::{Ran, ensign};
use crate::support::nats::binaries;
use crate::support::port::Port;

fn create(name: &str, server: &str, dir: &Path, more: &[&str]) -> Ran {
    let dir = dir.to_str().unwrap();
    ensign(&[&["fleet", "create", name, "--server", server, "--dir", dir, "--no-passphrase"], more].concat())
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn private_files_are_private_and_nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("a b/fleet");
    let made = create("test", "nats://127.0.0.1:4222", &place, &[]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stderr.contains("move root.key"), "{}", made.stderr);
    assert!(made.stdout.contains(&format!("nats-server -c '{}'", place.join("nats-server.conf").display())), "{}", made.stdout);
    let public = ["nats-server.conf", "operator.key.pub", "operator.toml", "root.key.pub", "trust.dsse.json", "trust.json"];
    assert_eq!(names(dir.path().join("a b").as_path()), ["fleet"]);
    for path in names(&place).into_iter().chain(names(&place.join("nats")).into_iter().map(|name| format!("nats/{name}"))) {
        let mode = std::fs::metadata(place.join(&path)).unwrap().permissions().mode() & 0o777;
        let wanted = if path == "nats" {
            0o700
        } else if public.contains(&path.as_str()) {
            0o644
        } else {
            0o600
        };
        assert_eq!(mode, wanted, "{path}");
    }
    assert_eq!(std::fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
    let config = std::fs::read_to_string(place.join("nats-server.conf")).unwrap();
    for seed in ["operator", "account", "node-signer", "join-signer"] {
        let seed = std::fs::read_to_string(place.join(format!("nats/{seed}.nk"))).unwrap();
        assert!(seed.starts_with('S') && !config.contains(seed.trim()));
    }
    let before = std::fs::read(place.join("root.key")).unwrap();
    let again = create("test", "nats://127.0.0.1:4222", &place, &[]);
    assert!(again.code == 2 && again.stderr.contains("exists already") && again.stderr.contains("--dir"), "{}", again.stderr);
    assert_eq!(std::fs::read(place.join("root.key")).unwrap(), before);
}

#[test]
fn wrong_arguments_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("fleet");
    let good = "nats://127.0.0.1:4222";
    std::os::unix::fs::symlink("/nonexistent", dir.path().join("link")).unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let cases: [(Ran, &str); 10] = [
        (create("Prod", good, &place, &[]), "Prod"),
        (create("a.b", good, &place, &[]), "a.b"),
        (create("test", "http://x", &place, &[]), "nats:// or tls://"),
        (create("test", "nats://u:hunter2@x", &place, &[]), "no password"),
        (create("test", "nats://a,nats://b", &place, &[]), "--server"),
        (create("test", "tls://x", &place, &[]), "--tls-cert"),
        (create("test", good, &place, &["--tls-cert", "/c", "--tls-key", "/k"]), "tls://"),
        (create("test", good, &place, &["--data", "x"]), "--data"),
        (create("test", good, &dir.path().join("link"), &[]), "exists already"),
        (create("test", good, &dir.path().join("file/fleet"), &[]), "file"),
    ];
    for (ran, part) in &cases {
        assert!(
            ran.code == 2 && ran.stderr.contains(part) && !ran.stderr.contains("hunter2"),
            "{part}: {} {}",
            ran.code,
            ran.stderr
        );
    }
    // Without a terminal and a passphrase.
    let asked = ensign(&["fleet", "create", "test", "--server", good, "--dir", place.to_str().unwrap()]);
    assert!(asked.code == 2 && asked.stderr.contains("--no-passphrase"), "{}", asked.stderr);
    assert_eq!(names(dir.path()), ["file", "link"]);
}

#[test]
fn a_server_with_tls_gets_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("fleet");
    let more =
        ["--tls-cert", "/etc/x/c.pem", "--tls-key", "/etc/x/k.pem", "--tls-ca", "/etc/x/ca.pem", "--data", "/var/lib/nats"];
    let made = create("test", "tls://nats.example.org", &place, &more);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let config = std::fs::read_to_string(place.join("nats-server.conf")).unwrap();
    for part in ["listen: \"0.0.0.0:4222\"", "cert_file: \"/etc/x/c.pem\"", "store_dir: \"/var/lib/nats/jetstream\""] {
        assert!(config.contains(part), "{part}: {config}");
    }
    let operator = std::fs::read_to_string(place.join("operator.toml")).unwrap();
    assert!(operator.contains("tls://nats.example.org:4222") && operator.contains("/etc/x/ca.pem"), "{operator}");
}

/// The directory of a new fleet.
fn fleet(name: &str) -> (TempDir, AccountDirectory) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("fleet");
    assert_eq!(create(name, "nats://127.0.0.1:4222", &place, &[]).code, 0);
    let account = AccountDirectory::open(&place).unwrap();
    (dir, account)
}

#[test]
fn only_join_tokens_of_this_fleet_verify() {
    let ((_own, account), (_other, stranger)) = (fleet("test"), fleet("test"));
    let user = UserKey::generate().unwrap().public;
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let terms = TokenTerms {
        name: "t1".into(),
        groups: vec!["web".into(), "eu_1".into()],
        uses: 100,
        expires: now + SignedDuration::from_hours(1),
    };
    let signer = account.join_signer().unwrap();
    let token = signer.join_user(&terms, &user).unwrap();
    assert_eq!(signer.verify(&token, now).unwrap(), (user.clone(), terms.clone()));
    assert!(matches!(signer.verify(&token, terms.expires), Err(TokenError::Expired { .. })));

    // Another fleet, the signing key of nodes, and texts that are no token.
    let forged = stranger.join_signer().unwrap().join_user(&terms, &user).unwrap();
    let node = account.node_signer().unwrap().node_user(&"web1".parse().unwrap(), &[], &user).unwrap();
    let (head, rest) = token.split_once('.').unwrap();
    let (body, signature) = rest.split_once('.').unwrap();
    let other_body = forged.split('.').nth(1).unwrap();
    let none = "eyJ0eXAiOiJKV1QiLCJhbGciOiJub25lIn0";
    let texts = [
        forged.clone(),
        node,
        String::new(),
        "..".into(),
        "a.b.c".into(),
        format!("{head}.{other_body}.{signature}"),
        format!("{head}.{body}."),
        format!("{head}.{body}"),
        format!("{none}.{body}.{signature}"),
        format!("{token}x"),
        format!("{token}.x"),
        "x".repeat(5000),
        account.jwt().to_owned(),
    ];
    for text in &texts {
        assert!(matches!(signer.verify(text, now), Err(TokenError::Signature(_) | TokenError::Terms(_))), "{text}");
    }
    // Terms and keys that no token can have.
    for wrong in [
        TokenTerms { name: "T 1".into(), ..terms.clone() },
        TokenTerms { groups: vec!["a.b".into()], ..terms.clone() },
        TokenTerms { groups: vec!["*".into()], ..terms.clone() },
    ] {
        assert!(signer.join_user(&wrong, &user).is_err(), "{wrong:?}");
    }
    assert!(signer.join_user(&terms, account.public_key()).is_err());
    assert!(account.node_signer().unwrap().node_user(&"web1".parse().unwrap(), &[">".to_owned()], &user).is_err());
    // The seed of another key in the place of the signer.
    std::fs::copy(stranger.path("nats/join-signer.nk"), account.path("nats/join-signer.nk")).unwrap();
    assert!(account.join_signer().is_err());
}

#[test]
fn the_page_about_enrolment_creates_a_fleet() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations/enrolment.md")).unwrap();
    let block = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (desk, port) = (tempfile::tempdir().unwrap(), Port::new());
    let programs = desk.path().join("bin");
    std::fs::create_dir(&programs).unwrap();
    for (name, program) in [("ensign", Path::new(env!("CARGO_BIN_EXE_ensign"))), ("nats-server", &*binaries()[0])] {
        std::os::unix::fs::symlink(program, programs.join(name)).unwrap();
    }
    // The shell starts the server in the background; a reader sees its first line.
    let wait =
        format!("until (exec 3<>/dev/tcp/127.0.0.1/{}) 2>/dev/null; do sleep 0.05; done\nensign fleet init", port.number());
    let script = block.replace("4222", &port.number().to_string()).replace("ensign fleet init", &wait);
    let script = format!("set -e\ntrap 'kill $(jobs -p)' EXIT\n{script}");
    let output = Command::new("/bin/bash")
        .args(["-c", &script])
        .env_clear()
        .env("HOME", desk.path())
        .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("created    ENSIGN_prod-eu_JOIN"), "{stdout}{stderr}");
    assert!(page.contains("ensign fleet node revoke web1"));
}
