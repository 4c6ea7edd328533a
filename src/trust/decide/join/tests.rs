use serde_json::{Value, json};

use super::*;
use crate::trust::sign_envelope;
use crate::wire::TRUST_TYPE;
use crate::wire::join::AdmissionDecision;

const NOW: &str = "2026-01-02T10:00:00Z";

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

fn nkey(seed: u8) -> String {
    nkeys::KeyPair::new_from_raw(nkeys::KeyPairType::User, [seed; 32]).unwrap().public_key()
}

fn request() -> JoinRequest {
    JoinRequest {
        fleet: "prod".into(),
        node: "web1".parse().unwrap(),
        node_key: key(1).public().to_short(),
        user_key: nkey(2),
        token: "ey.a.b".into(),
        trust: PinnedTrust { roots: roots(9), version: 4 },
        nonce: "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".into(),
        issued: NOW.parse().unwrap(),
        hostname: "web1.example.org".into(),
        os: "Debian 13".into(),
    }
}

fn bundle_of(version: u64, root: u8, more: &Value) -> Value {
    let mut bundle = json!({
        "fleet": "prod", "version": version, "expires": "2027-01-01T00:00:00Z",
        "root": {"threshold": 1, "keys": [key(root).public().to_short()]},
        "keys": [{"id": "ops", "key": key(50).public().to_short()}, {"id": "bob", "key": key(51).public().to_short()}],
        "rules": [{"keys": ["ops"]}, {"keys": ["bob"], "actions": ["admit"], "groups": ["db"]}],
    });
    bundle.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    bundle
}

fn sealed(bundle: &Value, roots: &[u8]) -> Vec<u8> {
    let keys: Vec<SigningKey> = roots.iter().map(|seed| key(*seed)).collect();
    let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|key| ("root", key)).collect();
    sign_envelope(TRUST_TYPE, bundle.to_string().into_bytes(), &keys).encode()
}

fn roots(seed: u8) -> String {
    open_bundle(&sealed(&bundle_of(1, seed, &json!({})), &[seed]), BundleAuthority::Stored).unwrap().roots_digest()
}

fn signed(request: &JoinRequest) -> Vec<u8> {
    sign_join_request(request, &key(1), &key(3), &key(2)).encode()
}

fn admission(digest: &str) -> Value {
    json!({
        "fleet": "prod", "node": "web1", "node_key": key(1).public().to_short(), "user_key": nkey(2), "request": digest,
        "trust": 4, "groups": ["web"], "decision": {"admitted": {"jwt": "ey.c.d"}}, "issued": NOW, "expires": "2026-01-03T10:00:00Z",
    })
}

fn by(admission: &Value, seed: u8) -> Vec<u8> {
    sign_envelope(ADMISSION_TYPE, admission.to_string().into_bytes(), &[("ops", &key(seed))]).encode()
}

#[test]
fn a_request_proves_all_three_keys() {
    let opened = OpenedJoinRequest::open(&signed(&request())).unwrap();
    assert_eq!((opened.request.clone(), opened.node_key), (request(), key(1).public()));
    opened.check_token(&nkey(3)).unwrap();
    assert!(opened.check_token(&nkey(4)).is_err());
    let fails = |bytes: &[u8], part: &str| {
        let error = crate::diag::error_chain(&OpenedJoinRequest::open(bytes).unwrap_err());
        assert!(error.contains(part), "{part}: {error}");
    };
    let plain = serde_json::to_vec(&request()).unwrap();
    let with = |keys: &[u8]| {
        let keys: Vec<SigningKey> = keys.iter().map(|seed| key(*seed)).collect();
        let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|key| ("node", key)).collect();
        sign_envelope(JOIN_TYPE, plain.clone(), &keys).encode()
    };
    fails(&with(&[2, 3]), "the node key did not sign");
    fails(&with(&[1, 3]), "the user key did not sign");
    fails(&with(&[]), "the node key did not sign");
    fails(&sign_envelope("other", plain.clone(), &[("node", &key(1)), ("user", &key(2))]).encode(), "payload type is \"other\"");
    // The keys of another host, and changed content.
    fails(
        &sign_join_request(&JoinRequest { node_key: key(7).public().to_short(), ..request() }, &key(1), &key(3), &key(2))
            .encode(),
        "node key",
    );
    fails(&sign_join_request(&JoinRequest { user_key: nkey(7), ..request() }, &key(1), &key(3), &key(2)).encode(), "user key");
    fails(&signed(&JoinRequest { user_key: "UWEB".into(), ..request() }), "user key of the join request can't be used");
    fails(&signed(&JoinRequest { hostname: "x".repeat(256), ..request() }), "wrong size");
    fails(&signed(&JoinRequest { nonce: "AAAA".into(), ..request() }), "wrong size");
    fails(&signed(&JoinRequest { token: "x".repeat(MAX_REQUEST), ..request() }), "more than 8192");
    let mut changed = Envelope::parse(&signed(&request())).unwrap();
    changed.payload = serde_json::to_vec(&JoinRequest { node: "db1".parse().unwrap(), ..request() }).unwrap();
    fails(&changed.encode(), "the node key did not sign");
}

#[test]
fn a_host_accepts_the_answer_to_its_own_request_only() {
    let request = request();
    let digest = OpenedJoinRequest::open(&signed(&request)).unwrap().digest;
    let at = |bundles: &[Vec<u8>], admission: Vec<u8>, now: &str| {
        let context = AdmissionContext { request: &request, digest: &digest, trust: &request.trust, now: now.parse().unwrap() };
        let answer = JoinAnswer { admission, bundles: bundles.to_vec() }.encode();
        open_answer(&answer, &context).map(|opened| opened.bundle.version()).map_err(|error| crate::diag::error_chain(&error))
    };
    let four = sealed(&bundle_of(4, 9, &json!({})), &[9]);
    let good = admission(&digest);
    let fails = |bundles: &[Vec<u8>], admission: Vec<u8>, part: &str| {
        let error = at(bundles, admission, NOW).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    };
    assert_eq!(at(std::slice::from_ref(&four), by(&good, 50), NOW), Ok(4));
    // New root keys, signed by the old ones.
    let five = sealed(&bundle_of(5, 8, &json!({})), &[8, 9]);
    assert_eq!(at(&[four.clone(), five.clone()], by(&good, 50), NOW), Ok(5));
    fails(&[four.clone(), sealed(&bundle_of(5, 8, &json!({})), &[8])], by(&good, 50), "the current roots");
    fails(std::slice::from_ref(&five), by(&good, 50), "root keys of the answer are not those of the token");
    fails(&[], by(&good, 50), "no trust bundle");
    fails(&[sealed(&bundle_of(3, 9, &json!({})), &[9])], by(&good, 50), "older than version 4");
    fails(&[sealed(&bundle_of(4, 9, &json!({"fleet": "other"})), &[9])], by(&good, 50), "its fleet differs");
    fails(&[sealed(&bundle_of(4, 9, &json!({"revoked": ["ops"]})), &[9])], by(&good, 50), "no rule names the keys");
    let one = std::slice::from_ref(&four);
    assert!(at(one, by(&good, 50), "2027-01-01T00:00:01Z").unwrap_err().contains("bundle of the answer expired"));
    assert!(at(one, by(&good, 50), "2026-01-03T10:00:01Z").unwrap_err().contains("the admission expired"));
    fails(one, by(&good, 52), "no rule names the keys");
    fails(one, by(&good, 51), "rule 2 does not allow the group web");
    fails(one, sign_envelope(JOIN_TYPE, good.to_string().into_bytes(), &[("ops", &key(50))]).encode(), "payload type");
    for (name, value, part) in [
        ("fleet", json!("other"), "its fleet differs"),
        ("node", json!("web2"), "its node differs"),
        ("node_key", json!(key(7).public().to_short()), "its node key differs"),
        ("user_key", json!(nkey(7)), "its user key differs"),
        ("request", json!("00"), "its digest differs"),
        ("trust", json!(5), "older than version 5"),
        ("more", json!(1), "unknown field"),
    ] {
        let mut changed = good.clone();
        changed[name] = value;
        fails(one, by(&changed, 50), part);
    }
}

#[test]
fn rules_decide_over_admissions() {
    let rule = |rule: Value| serde_json::from_value::<Rule>(rule).unwrap();
    for (written, groups, wanted) in [
        (json!({"keys": ["ops"]}), &["web"][..], Ok(1)),
        (json!({"keys": ["ops"]}), &[], Ok(1)),
        (json!({"keys": ["bob"]}), &[], Err("no rule names the keys")),
        (json!({"keys": ["ops"], "actions": ["admit"]}), &["web"], Ok(1)),
        (json!({"keys": ["ops"], "actions": ["ensure", "assign"]}), &[], Err("does not allow the action admit")),
        (json!({"keys": ["ops"], "types": ["file"]}), &[], Err("single resources")),
        (json!({"keys": ["ops"], "names": ["*"]}), &[], Err("single resources")),
        (json!({"keys": ["ops"], "channels": ["*"]}), &[], Err("single resources")),
        (json!({"keys": ["ops"], "noop_only": true}), &[], Err("dry runs")),
        (json!({"keys": ["ops"], "nodes": ["web*"]}), &[], Ok(1)),
        (json!({"keys": ["ops"], "nodes": ["web*"]}), &["web"], Err("does not allow the group web")),
        (json!({"keys": ["ops"], "nodes": ["db*"]}), &[], Err("does not allow the node web1")),
        (json!({"keys": ["ops"], "groups": ["web", "berlin"]}), &["web"], Ok(1)),
        (json!({"keys": ["ops"], "groups": ["web"]}), &["web", "db"], Err("does not allow the group db")),
        (json!({"keys": ["ops"], "groups": ["web"]}), &[], Err("only nodes of the groups web")),
        (json!({"keys": ["ops"], "groups": ["web"], "nodes": ["web*"]}), &[], Ok(1)),
        (json!({"keys": ["ops"], "groups": ["web"], "nodes": ["db*"]}), &["web"], Err("does not allow the node web1")),
        (json!({"keys": ["ops"], "quorum": 2}), &[], Err("requires 2 signatures")),
    ] {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        let found = admission_rule(&[rule(written.clone())], &["ops".to_owned()], "web1", &groups);
        match wanted {
            Ok(number) => assert_eq!(found, Ok(number), "{written}"),
            Err(part) => assert!(found.as_ref().is_err_and(|why| why.contains(part)), "{written}: {found:?}"),
        }
    }
}

#[test]
fn the_digest_of_root_keys_ignores_their_order() {
    let of = |threshold: u32, seeds: &[u8]| {
        let keys: Vec<String> = seeds.iter().map(|seed| key(*seed).public().to_short()).collect();
        let bundle = bundle_of(1, 9, &json!({"root": {"threshold": threshold, "keys": keys}}));
        open_bundle(&sealed(&bundle, seeds), BundleAuthority::Stored).unwrap().roots_digest()
    };
    assert_eq!(of(1, &[1, 2]), of(1, &[2, 1]));
    assert_ne!(of(1, &[1, 2]), of(2, &[1, 2]));
    assert_ne!(of(1, &[1, 2]), of(1, &[1]));
    let admitted: AdmissionDecision = serde_json::from_value(json!({"refused": {"reason": "no"}})).unwrap();
    assert_eq!(admitted, AdmissionDecision::Refused { reason: "no".into() });
}
