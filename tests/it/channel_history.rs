//! The versions of a channel, and the way back to an earlier one: only what a known key signed is signed again.

use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::COMMAND_TYPE;
use ensign::wire::command::Command;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::fleet::Fleet;
use crate::support::nats::on_each;

fn write(fleet: &Fleet, name: &str) -> String {
    let own = nix::unistd::geteuid().as_raw().to_string();
    let file =
        json!({"{{ Facts.site }}/conf": {"ensure": "present", "content": name, "owner": own, "group": own, "mode": "0644"}});
    let path = fleet.path(&format!("{name}.yaml"));
    std::fs::write(&path, json!({"ccm": {"resources": [{"file": [file]}]}}).to_string()).unwrap();
    path.display().to_string()
}

fn assign(fleet: &Fleet, name: &str, flags: &[&str]) {
    let sent = fleet.run(&[&["assign", "base", &write(fleet, name), "--all", "--reason", name], flags].concat());
    assert_eq!(sent.code, 0, "{}{}", sent.stdout, sent.stderr);
}

fn history(fleet: &Fleet) -> Vec<Value> {
    let shown = fleet.run(&["channel", "history", "base", "--output", "json"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    shown.json().as_array().unwrap().clone()
}

fn content(fleet: &Fleet) -> String {
    std::fs::read_to_string(fleet.path("web1/site/conf")).unwrap_or_default()
}

/// The latest command of the channel.
async fn latest(fleet: &Fleet) -> Command {
    let bus = fleet.connect("operator", None).await;
    let read = ensign::fleet::desired_state::view::read_channel(&bus, &fleet.subjects, "base").await.unwrap();
    read.desired.unwrap().command
}

/// Stores the record of an assignment that an unknown key signed, as an account on the server can.
async fn forge(fleet: &Fleet, serial: u64) {
    let bus = fleet.connect("operator", None).await;
    let mut command = latest(fleet).await;
    command.id = Uuid::now_v7();
    command.channel.as_mut().unwrap().serial = serial;
    let stranger = SigningKey::from_seed(&[77; 32]);
    let envelope = sign_envelope(COMMAND_TYPE, serde_json::to_vec(&command).unwrap(), &[("ops-alice", &stranger)]);
    bus.publish_stored(fleet.subjects.job_command(command.id).as_str(), &[], envelope.encode()).await.unwrap();
}

#[test]
fn an_earlier_version_of_a_channel_is_assigned_again() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    on_each(|binary| {
        let mut fleet = Fleet::new(binary, &[("web1", "web")]);
        fleet.start("web1", "web");
        assign(&fleet, "one", &["--interval", "7m", "--timeout", "90s"]);
        let first = runtime.block_on(latest(&fleet));
        assign(&fleet, "two", &[]);
        let rows = history(&fleet);
        let seen: Vec<_> = rows.iter().map(|row| (row["serial"].clone(), row["latest"].clone(), row["reason"].clone())).collect();
        assert_eq!(seen, [(json!(2), json!(true), json!("two")), (json!(1), json!(false), json!("one"))], "{rows:?}");
        assert!(rows.iter().all(|row| row["unverified"].is_null()), "{rows:?}");
        // Other nodes than those that were signed for need a new assignment.
        let other = fleet.run(&["channel", "rollback", "base", "--all"]);
        assert!(other.code == 2 && other.stderr.contains("no target of its own"), "{}", other.stderr);
        let back = fleet.run(&["channel", "rollback", "base"]);
        assert_eq!(back.code, 0, "{}{}", back.stdout, back.stderr);
        assert!(back.stderr.contains("channel base, serial 3: the same as serial 1"), "{}", back.stderr);
        assert_eq!(content(&fleet), "one");
        let again = runtime.block_on(latest(&fleet));
        assert_eq!((&again.action, &again.to, again.options.timeout), (&first.action, &first.to, first.options.timeout));
        assert_eq!((again.channel.as_ref().unwrap().serial, again.reason.as_deref()), (3, Some("rollback to serial 1")));
        assert_ne!(again.id, first.id);
        let text = fleet.run(&["channel", "history", "base"]).stdout;
        assert!(text.contains("base@3") && text.contains("(latest)") && text.contains("signed by"), "{text}");
    });
}

#[test]
fn only_a_signed_and_available_version_is_assigned_again() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    on_each(|binary| {
        let mut fleet = Fleet::new(binary, &[("web1", "web")]);
        fleet.start("web1", "web");
        assign(&fleet, "one", &[]);
        assign(&fleet, "two", &[]);
        assign(&fleet, "three", &[]);
        runtime.block_on(forge(&fleet, 9));
        let rows = history(&fleet);
        let forged = rows.iter().find(|row| row["serial"] == 9).unwrap();
        assert!(forged["unverified"].is_string() && forged["latest"] == false, "{forged}");
        let text = fleet.run(&["channel", "history", "base"]).stdout;
        assert!(text.contains("base@9") && text.contains("unverified"), "{text}");
        for (serial, why) in [("9", "serial 9 is not verified"), ("8", "has no serial 8 on record")] {
            let refused = fleet.run(&["channel", "rollback", "base", "--to", serial, "--yes"]);
            assert!(refused.code == 2 && refused.stderr.contains(why), "{} {}", refused.code, refused.stderr);
        }
        // A key without the right signs, and the node refuses.
        let (key, trust) = (fleet.path("ops-bob.key").display().to_string(), fleet.path("trust.dsse.json").display().to_string());
        let refused = fleet.run(&["--key", &key, "--trust", &trust, "channel", "rollback", "base", "--yes"]);
        assert!(refused.code != 0, "{}{}", refused.stdout, refused.stderr);
        assert_eq!(content(&fleet), "three");
        // The bundle of the first version is gone.
        let url = rows.iter().find(|row| row["serial"] == 1).unwrap()["manifest"].as_str().unwrap().to_owned();
        let (bucket, name) = url.strip_prefix("obj://").unwrap().split_once('/').unwrap();
        runtime.block_on(async {
            fleet.connect("operator", None).await.object_delete(bucket, name).await.unwrap();
        });
        let before = history(&fleet).len();
        let gone = fleet.run(&["channel", "rollback", "base", "--to", "1", "--yes"]);
        assert!(gone.code != 0 && gone.stderr.contains("cannot read the bundle of the earlier version"), "{}", gone.stderr);
        assert!(gone.stderr.contains("nothing was signed") && history(&fleet).len() == before, "{}", gone.stderr);
        assert_eq!(content(&fleet), "three");
    });
}
