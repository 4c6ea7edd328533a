//! Bucket values with signatures of operators: a node accepts values of permitted signers, and never an older version.

use std::process::Command as Process;

use ensign::transport::StreamSpec;
use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::data::{DATA_TYPE, SignedData};
use ensign::wire::{Command, CommandOutcome};
use jiff::{SignedDuration, Timestamp};

use crate::support::nats::binaries;
use crate::support::single_node::{FLEET, SingleNodeFleet};

pub async fn bucket(fleet: &SingleNodeFleet) {
    let spec = StreamSpec {
        name: "KV_conf".into(),
        subjects: vec!["$KV.conf.>".into()],
        max_per_subject: Some(1),
        allow_direct: true,
        replicas: 1,
        ..StreamSpec::default()
    };
    fleet.bus.ensure_stream(&spec).await.unwrap();
}

fn signed(key: &SigningKey, text: &str, issued: Timestamp) -> Vec<u8> {
    let data = SignedData {
        fleet: FLEET.into(),
        bucket: "conf".into(),
        key: "motd".into(),
        issued,
        expires: None,
        text: Some(text.into()),
        base64: None,
    };
    sign_envelope(DATA_TYPE, serde_json::to_vec(&data).unwrap(), &[("ops", key)]).encode()
}

async fn read(fleet: &SingleNodeFleet, bytes: &[u8]) -> Result<String, String> {
    fleet.bus.put_value("conf", "motd", bytes.to_vec()).await.unwrap();
    let command: Command = fleet.file_command("motd", "{{ kvGet('conf', 'motd') }}");
    fleet.send(&command).await;
    let done = fleet.only_result(command.id).await;
    match done.outcome {
        CommandOutcome::Stable | CommandOutcome::Changed => Ok(std::fs::read_to_string(fleet.path("motd")).unwrap()),
        _ => Err(format!("{} {:?}", done.message.unwrap_or_default(), done.event.map(|event| event.errors))),
    }
}

#[tokio::test]
async fn a_node_accepts_signed_values_and_no_older_version() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    bucket(&fleet).await;
    let agent = fleet.start_agent().await;
    let (now, ops, other) = (Timestamp::now(), &fleet.operator, SigningKey::from_seed(&[99; 32]));
    assert_eq!(read(&fleet, b"plain").await.as_deref(), Ok("plain"));
    let first = signed(ops, "first", now - SignedDuration::from_secs(10));
    assert_eq!(read(&fleet, &first).await.as_deref(), Ok("first"));
    let second = signed(ops, "second", now);
    assert_eq!(read(&fleet, &second).await.as_deref(), Ok("second"));
    let mut broken = second.clone();
    let place = broken.len() - 8;
    broken[place] = if broken[place] == b'A' { b'B' } else { b'A' };
    for (bytes, why) in [
        (first.as_slice(), "was read before"),
        (b"plain again", "it is not signed, and was at"),
        (&broken, "it is not signed by a key"),
        (&signed(&other, "forged", now + SignedDuration::from_secs(1)), "it is not signed by a key"),
    ] {
        let error = read(&fleet, bytes).await.unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    // The next agent remembers the latest version, too.
    agent.kill();
    let _agent = fleet.start_agent().await;
    assert!(read(&fleet, &first).await.unwrap_err().contains("was read before"));
    assert_eq!(read(&fleet, &second).await.as_deref(), Ok("second"));
}

#[tokio::test]
async fn an_operator_signs_values_and_sees_their_signers() {
    let fleet = SingleNodeFleet::new(&binaries()[0], "").await;
    bucket(&fleet).await;
    let key = fleet.path("ops.key");
    std::fs::write(&key, fleet.operator.to_openssh("ops", None).unwrap().as_bytes()).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let run = |words: &[&str]| {
        let mut process = Process::new(env!("CARGO_BIN_EXE_ensign"));
        process
            .args(["kv"])
            .args(words)
            .args(["--fleet", FLEET, "--nats", &fleet.server.url()])
            .arg("--trust")
            .arg(fleet.path("trust.json"));
        let ran = process.env("HOME", fleet.path("home")).env_remove("XDG_CONFIG_HOME").output().unwrap();
        (ran.status.code().unwrap(), format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr)))
    };
    let by = ["--key", key.to_str().unwrap()];
    for text in ["hello", "hello again"] {
        let (code, said) = run(&[&["put", "conf", "motd", text][..], &by].concat());
        assert!(code == 0 && said.contains("stored kv://conf/motd, signed by ops"), "{said}");
    }
    let (code, said) = run(&["get", "conf", "motd"]);
    assert!(code == 0 && said.contains("hello again") && said.contains("signed by ops at "), "{said}");
    fleet.bus.put_value("conf", "plain", b"x".to_vec()).await.unwrap();
    let forged = signed(&SigningKey::from_seed(&[99; 32]), "forged", Timestamp::now());
    fleet.bus.put_value("conf", "site/forged", forged.clone()).await.unwrap();
    let (code, said) = run(&["ls", "conf"]);
    assert!(code == 0 && said.contains("motd  signed by ops") && said.contains("plain  plain"), "{said}");
    assert!(said.contains("site/forged  kv://conf/site/forged: it is not signed by a key"), "{said}");
    fleet.bus.put_value("conf", "motd", forged).await.unwrap();
    let (code, said) = run(&["get", "conf", "motd"]);
    assert!(code != 0 && said.contains("it is not signed by a key of the trust bundle"), "{said}");
    let (code, said) = run(&[&["put", "none", "motd", "x"][..], &by].concat());
    assert!(code != 0 && said.contains("the bucket none"), "{said}");
}
