//! Attacks on enrolment: with a stolen token, and by a broker that forges answers.

use ensign::fleet::account::{AccountDirectory, TokenTerms};
use ensign::model::Secret;
use ensign::transport::nkey::UserKey;
use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::TRUST_TYPE;
use ensign::wire::join::{ADMISSION_TYPE, JoinAnswer, JoinToken};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::hosts::{Host, block_on, connect, finish, recorded, start_join, token};
use crate::support::fleet::{Fleet, Ran, ensign};
use crate::support::nats::{binaries, on_each};

fn by_token(fleet: &Fleet) -> Ran {
    fleet.run(&["admit", "--by-token"])
}

/// A JWT with the terms of `change`, signed by the join key of this directory, for the user of a token.
fn signed_terms(directory: &std::path::Path, token: &JoinToken, uses: u32, life: i64) -> Secret {
    let user = UserKey::from_seed(&token.seed).unwrap().public;
    let expires = Timestamp::now().checked_add(SignedDuration::from_secs(life)).unwrap();
    let terms = TokenTerms { name: "t".into(), groups: vec![], uses, expires };
    Secret::new(AccountDirectory::open(directory).unwrap().join_signer().unwrap().join_user(&terms, &user).unwrap())
}

#[test]
fn a_token_admits_no_more_hosts_than_its_uses() {
    on_each(|binary| {
        let fleet = Fleet::created(binary);
        let token = token(&fleet, &["--uses", "1"]);
        block_on(async {
            let bus = connect(&token).await;
            // Two at once, then the first again, byte by byte.
            let hosts = [Host::new("web1", &token), Host::new("web2", &token)];
            let request = hosts[0].signed(&token.seed);
            let subject = fleet.subjects.join_request(&hosts[0].user.public);
            bus.publish_stored(subject.as_str(), &[], request.clone()).await.unwrap();
            hosts[1].ask(&fleet, &bus, &token).await;
            let ran = by_token(&fleet);
            assert!(ran.stdout.contains("admitted web1"), "{}{}", ran.stdout, ran.stderr);
            assert!(ran.stdout.contains("refused  web2") && ran.stdout.contains("no uses left"), "{}", ran.stdout);
            bus.publish_stored(subject.as_str(), &[], request).await.unwrap();
            let again = by_token(&fleet);
            assert!(again.code == 0 && again.stdout.is_empty(), "{}{}", again.stdout, again.stderr);
            assert_eq!(recorded(&fleet).len(), 1);
        });
    });
}

#[test]
fn a_request_that_proves_too_little_admits_no_host() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--group", "web", "--uses", "9"]);
    let other = tempfile::tempdir().unwrap();
    let foreign = other.path().join("fleet");
    let made = ensign(&[
        "fleet",
        "create",
        "test",
        "--server",
        "nats://127.0.0.1:1",
        "--no-passphrase",
        "--dir",
        foreign.to_str().unwrap(),
    ]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    block_on(async {
        let bus = connect(&token).await;
        let send = async |host: &Host, bytes: Vec<u8>| {
            bus.publish_stored(fleet.subjects.join_request(&host.user.public).as_str(), &[], bytes).await.unwrap();
        };
        let none = async |what: &str, kind: &str| {
            let ran = by_token(&fleet);
            assert!(ran.stdout.is_empty() && ran.stderr.contains(kind), "{what}: {}{}", ran.stdout, ran.stderr);
            assert!(recorded(&fleet).is_empty(), "{what}");
            let operator = fleet_bus(&fleet).await;
            operator.purge(&fleet.subjects.stream("JOIN"), fleet.subjects.joins().as_str()).await.unwrap();
        };
        let with_jwt = |jwt: &Secret| {
            let mut host = Host::new("web1", &token);
            host.request.token = jwt.reveal().to_owned();
            host
        };

        let host = with_jwt(&signed_terms(&fleet.path(""), &token, 9, -60));
        send(&host, host.signed(&token.seed)).await;
        none("an expired token", "1 join requests with an expired token").await;

        let host = with_jwt(&signed_terms(&foreign, &token, 9, 3600));
        send(&host, host.signed(&token.seed)).await;
        none("a token of another account", "with a token that is not of this fleet").await;

        let edited = edit_terms(token.jwt.reveal());
        let host = with_jwt(&Secret::new(edited));
        send(&host, host.signed(&token.seed)).await;
        none("edited terms", "with a token that is not of this fleet").await;

        let host = Host::new("web1", &token);
        send(&host, host.signed(&UserKey::generate().unwrap().seed)).await;
        none("a JWT without its seed", "not signed by the host and the token").await;

        let host = Host { key: SigningKey::generate().unwrap(), ..Host::new("web1", &token) };
        send(&host, host.signed(&token.seed)).await;
        none("another node key than named", "not signed by the host and the token").await;

        let (host, elsewhere) = (Host::new("web1", &token), Host::new("web2", &token));
        send(&elsewhere, host.signed(&token.seed)).await;
        none("a request on another subject", "on the subject of another host").await;

        let mut host = Host::new("web1", &token);
        host.request.fleet = "other".into();
        send(&host, host.signed(&token.seed)).await;
        none("a request for another fleet", "for another fleet").await;
    });
}

/// Raises the uses in the payload of a JWT, and keeps its signature.
fn edit_terms(jwt: &str) -> String {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let parts: Vec<&str> = jwt.split('.').collect();
    let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    let edited = claims.replace("uses:9", "uses:99");
    assert_ne!(edited, claims);
    format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode(edited), parts[2])
}

/// A connection as the operator, which stands for the broker: it may write every answer.
async fn fleet_bus(fleet: &Fleet) -> ensign::transport::Bus {
    let settings = ensign::transport::BusSettings {
        servers: vec![fleet.server.url()],
        credentials: Some(ensign::transport::Credentials::CredsFile(fleet.path("operator.creds"))),
        ..ensign::transport::BusSettings::default()
    };
    ensign::transport::Bus::connect(&settings).await.unwrap()
}

#[test]
fn names_of_other_nodes_stay_with_them() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--uses", "9"]);
    block_on(async {
        let bus = connect(&token).await;
        Host::new("db1", &token).ask(&fleet, &bus, &token).await;
        assert_eq!(by_token(&fleet).code, 0);
        let thief = Host::new("db1", &token);
        thief.ask(&fleet, &bus, &token).await;
        let ran = by_token(&fleet);
        assert!(ran.stdout.contains("refused  db1") && ran.stdout.contains("another host has this name"), "{}", ran.stdout);
        // By hand it needs more than the fingerprint.
        let ran = fleet.run(&["admit", "db1", "--fingerprint", &thief.key.public().fingerprint()]);
        assert_ne!(ran.code, 0);
        // One user key for two names would let the one revoke the other.
        let first = Host::new("web1", &token);
        first.ask(&fleet, &bus, &token).await;
        assert!(by_token(&fleet).stdout.contains("admitted web1"));
        let mut second = Host { user: first.user.clone(), ..Host::new("web2", &token) };
        second.request.user_key = first.user.public.clone();
        second.ask(&fleet, &bus, &token).await;
        let ran = by_token(&fleet);
        assert!(!ran.stdout.contains("admitted"), "{}", ran.stdout);
        assert_eq!(recorded(&fleet).len(), 2);
    });
}

#[test]
fn a_host_waits_through_forged_answers() {
    on_each(|binary| {
        let fleet = Fleet::created(binary);
        let token = token(&fleet, &["--group", "web"]);
        let host = start_join(&fleet, "web1", &token, "3m");
        let mut shown = serde_json::Value::Null;
        fleet.wait_for("the host asks", || {
            shown = fleet.run(&["admit", "--output", "json"]).json();
            !shown.as_array().unwrap().is_empty()
        });
        block_on(async {
            let broker = fleet_bus(&fleet).await;
            let stream = fleet.subjects.stream("JOIN");
            let asked = broker.last_per_subject(&stream, fleet.subjects.join_requests().as_str()).await.unwrap().remove(0);
            let request = ensign::wire::Envelope::parse(&asked.payload).unwrap();
            let content: serde_json::Value = serde_json::from_slice(&request.payload).unwrap();
            let subject = fleet.subjects.join_answer(content["user_key"].as_str().unwrap()).to_string();
            let admission = json!({
                "fleet": "test", "node": "web1", "node_key": content["node_key"], "user_key": content["user_key"],
                "request": request.digest(), "trust": 1, "groups": ["web"], "decision": {"admitted": {"jwt": "x"}},
                "issued": Timestamp::now(), "expires": "2099-01-01T00:00:00Z",
            });
            let own = SigningKey::generate().unwrap();
            let by_own = sign_envelope(ADMISSION_TYPE, admission.to_string().into_bytes(), &[("operator", &own)]).encode();
            let bundle = json!({
                "fleet": "test", "version": 9, "expires": "2099-01-01T00:00:00Z",
                "root": {"threshold": 1, "keys": [own.public().to_short()]},
                "keys": [{"id": "operator", "key": own.public().to_short()}], "rules": [{"keys": ["operator"]}],
            });
            let own_roots = sign_envelope(TRUST_TYPE, bundle.to_string().into_bytes(), &[("root", &own)]).encode();
            let real_roots = std::fs::read(fleet.path("trust.dsse.json")).unwrap();
            for bundles in [vec![own_roots.clone()], vec![real_roots.clone()], vec![real_roots, own_roots], vec![]] {
                let answer = JoinAnswer { admission: by_own.clone(), bundles }.encode();
                broker.publish_stored(&subject, &[], answer).await.unwrap();
                // Longer than two polls of the host: it read this answer.
                tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            }
            broker.publish_stored(&subject, &[], b"{}".to_vec()).await.unwrap();
        });
        assert!(!fleet.path("web1/agent.toml").exists());
        // The true answer replaces the forged one.
        let ran = by_token(&fleet);
        assert!(ran.code == 0 && ran.stdout.contains("admitted web1"), "{}{}", ran.stdout, ran.stderr);
        finish(host, 0);
    });
}

#[test]
fn an_answer_to_another_host_or_an_earlier_request_is_none() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--uses", "9"]);
    finish(start_join(&fleet, "web1", &token, "1s"), 4);
    finish(start_join(&fleet, "web2", &token, "1s"), 4);
    assert_eq!(by_token(&fleet).code, 0);
    block_on(async {
        let broker = fleet_bus(&fleet).await;
        let stream = fleet.subjects.stream("JOIN");
        let answers = broker.last_per_subject(&stream, fleet.subjects.join_answers().as_str()).await.unwrap();
        let [one, two] = [&answers[0], &answers[1]];
        // Each host gets the answer of the other one.
        broker.publish_stored(&one.subject, &[], two.payload.clone()).await.unwrap();
        broker.publish_stored(&two.subject, &[], one.payload.clone()).await.unwrap();
    });
    for node in ["web1", "web2"] {
        let said = finish(start_join(&fleet, node, &token, "3s"), 4);
        assert!(said.contains("the admission is for another request"), "{said}");
        assert!(!fleet.path(node).join("agent.toml").exists());
    }
}

#[test]
fn an_operator_admits_only_what_a_rule_allows() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--group", "web", "--uses", "9"]);
    let plain = fleet.path("restricted.json");
    let bundle = ensign::trust::open_bundle(
        &std::fs::read(fleet.path("trust.dsse.json")).unwrap(),
        ensign::trust::BundleAuthority::Stored,
    );
    let mut bundle = serde_json::to_value(bundle.unwrap().bundle()).unwrap();
    bundle["rules"] = json!([{"keys": ["*"], "actions": ["admit"], "groups": ["db"]}]);
    std::fs::write(&plain, bundle.to_string()).unwrap();
    let root = fleet.path("root.key").display().to_string();
    let signed = ensign(&["trust", "sign", plain.to_str().unwrap(), "--root", &root]);
    assert_eq!(signed.code, 0, "{}", signed.stderr);
    let sealed = fleet.path("restricted.dsse.json").display().to_string();
    block_on(async {
        let bus = connect(&token).await;
        Host::new("web1", &token).ask(&fleet, &bus, &token).await;
        let ran = fleet.run(&["admit", "--by-token", "--trust", &sealed]);
        assert!(ran.code == 3 && ran.stderr.contains("does not allow the group web"), "{} {}", ran.code, ran.stderr);
        assert!(recorded(&fleet).is_empty());
        assert!(!fleet.path("known_nodes").exists(), "no key is pinned");
    });
}

#[test]
fn ten_thousand_junk_requests_take_one_line() {
    let fleet = Fleet::created(&binaries()[0]);
    let token = token(&fleet, &["--uses", "9"]);
    block_on(async {
        let bus = connect(&token).await;
        let mut host = Host::new("web1", &token);
        host.request.hostname = "\u{1b}[2Jweb1\nadmitted root".into();
        host.ask(&fleet, &bus, &token).await;
        for number in 0..10_000 {
            let subject = fleet.subjects.join_request(&format!("UJUNK{number}"));
            bus.publish(subject.as_str(), &[], vec![b'x'; 200]).await.unwrap();
        }
        // A stored message has a later place than those before.
        Host::new("web2", &token).ask(&fleet, &bus, &token).await;
        let ran = fleet.run(&["admit"]);
        assert_eq!((ran.code, ran.stdout.lines().count()), (0, 2), "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("left out 10000 join requests not signed by the host"), "{}", ran.stderr);
        assert!(ran.stderr.lines().count() < 5, "{}", ran.stderr);
        assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
    });
}
