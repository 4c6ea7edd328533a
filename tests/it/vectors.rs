//! Test vectors: files under `tests/vectors` that every later version must read, or refuse, the same way.
//!
//! `v1` has one file for each kind of message. `attacks` has messages that must be refused, each with its code. `ENSIGN_BLESS=1
//! cargo test --test it vectors` writes them from the code here. That is for new files: the files of a released protocol never
//! change.

mod attacks;
mod messages;

use std::path::{Path, PathBuf};

use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::COMMAND_TYPE;
use serde_json::{Value, json};

/// The time of all messages here.
const NOW: &str = "2026-11-20T10:01:00Z";
const ID: &str = "0198c1f2-7a3b-7c4d-8e5f-102030405060";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name)
}

/// The test key of this number. Test keys are public.
fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

fn short(seed: u8) -> String {
    key(seed).public().to_short()
}

/// An envelope as text, signed by keys with these ids as hints.
fn sealed(payload_type: &str, payload: &str, by: &[(&str, u8)]) -> String {
    let keys: Vec<(&str, SigningKey)> = by.iter().map(|(id, seed)| (*id, key(*seed))).collect();
    let keys: Vec<(&str, &SigningKey)> = keys.iter().map(|(id, key)| (*id, key)).collect();
    String::from_utf8(sign_envelope(payload_type, payload.into(), &keys).encode()).unwrap()
}

fn signed(command: &Value, by: &[(&str, u8)]) -> String {
    sealed(COMMAND_TYPE, &command.to_string(), by)
}

#[expect(clippy::needless_pass_by_value, reason = "written in place by every caller")]
fn ensure(kind: &str, properties: Value) -> Value {
    json!({
        "id": ID,
        "fleet": "prod",
        "to": {"nodes": ["web1"]},
        "issued": "2026-11-20T10:00:00Z",
        "expires": "2026-11-20T10:05:00Z",
        "action": {"ensure": {"type": kind, "properties": properties}},
        "options": {"noop": false, "timeout": "5m"},
        "reason": "CHG-1234",
    })
}

fn apply(epoch: u64, serial: u64, digit: &str) -> Value {
    let mut value = ensure("", Value::Null);
    value["action"] = json!({"apply": {"url": "https://repo.example/base.tar.gz", "sha256": digit.repeat(64), "size": 18211}});
    value["channel"] = json!({"name": "base", "epoch": epoch, "serial": serial});
    value
}

/// `value` with one changed place.
fn with(mut value: Value, pointer: &str, change: Value) -> Value {
    if let Some(place) = value.pointer_mut(pointer) {
        *place = change;
    } else {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        value.pointer_mut(parent).unwrap()[key] = change;
    }
    value
}

/// Compares with the files of a folder; with `ENSIGN_BLESS` writes them first.
fn check_files(name: &str, built: &[(String, Value)]) {
    let folder = folder(name);
    if std::env::var_os("ENSIGN_BLESS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (file, value) in built {
            std::fs::write(folder.join(file), serde_json::to_string_pretty(value).unwrap() + "\n").unwrap();
        }
    }
    for (file, value) in built {
        assert_eq!(&read(&folder.join(file)), value, "{file}: ENSIGN_BLESS=1 writes new vectors");
    }
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The JSON files of a folder, sorted by name.
fn files(name: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths
}
