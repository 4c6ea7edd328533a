//! Desired state: nodes apply the latest assignment of a channel, with a broker or without one, and never an older one.

use std::path::PathBuf;

use ensign::transport::StartAt;
use ensign::wire::report::RejectionEvent;
use ensign::wire::subject::EventKind;
use serde_json::Value;

use crate::support::fleet::{Fleet, Ran};
use crate::support::nats::binaries;
use crate::support::single_node::PATIENCE;

const NODES: [(&str, &str); 2] = [("web1", "web"), ("db1", "db")];

fn fleet(binary: &std::path::Path) -> Fleet {
    let mut fleet = Fleet::new(binary, &NODES);
    for (node, group) in NODES {
        fleet.start(node, group);
    }
    fleet
}

/// A manifest that writes `content` to a file of each node.
fn manifest(fleet: &Fleet, content: &str) -> String {
    let own = std::fs::metadata("/proc/self").unwrap();
    let (uid, gid) = (std::os::unix::fs::MetadataExt::uid(&own), std::os::unix::fs::MetadataExt::gid(&own));
    let text = format!(
        "ccm:\n  resources:\n    - file:\n        - \"{{{{ Facts.site }}}}/motd\":\n            ensure: present\n            content: \"{content}\"\n            owner: \"{uid}\"\n            group: \"{gid}\"\n            mode: \"0644\"\n"
    );
    let path = fleet.path(&format!("{}.yaml", content.replace(|c: char| !c.is_ascii_alphanumeric(), "_")));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn motd(fleet: &Fleet, node: &str) -> PathBuf {
    fleet.path(node).join("site/motd")
}

fn content(fleet: &Fleet, node: &str) -> String {
    std::fs::read_to_string(motd(fleet, node)).unwrap_or_default()
}

fn assign(fleet: &Fleet, content: &str, more: &[&str]) -> Ran {
    let manifest = manifest(fleet, content);
    fleet.run(&[&["assign", "base", &manifest, "--output", "json", "--timeout", "60s"], more].concat())
}

fn outcome(ran: &Ran, node: &str) -> String {
    let document = ran.json();
    let of = document["nodes"].as_array().unwrap().iter().find(|row| row["node"] == node);
    of.map(|row| row["outcome"].as_str().unwrap().to_owned()).unwrap_or_default()
}

fn state(fleet: &Fleet, node: &str) -> Value {
    fleet.node_row(node).unwrap()
}

fn base(fleet: &Fleet) -> Value {
    fleet.run(&["channels", "--output", "json"]).json()[0].clone()
}

#[test]
fn an_offline_node_catches_up_and_a_node_without_a_broker_continues() {
    for binary in binaries() {
        let mut fleet = fleet(&binary);
        let first = assign(&fleet, "one", &["--all", "--reason", "CHG-1"]);
        assert_eq!(
            (first.code, outcome(&first, "web1"), outcome(&first, "db1")),
            (0, "changed".into(), "changed".into()),
            "{}",
            first.stderr
        );
        assert_eq!((content(&fleet, "web1"), content(&fleet, "db1")), ("one".into(), "one".into()));

        fleet.stop("db1");
        let second = assign(&fleet, "two", &["--all"]);
        assert_eq!((second.code, outcome(&second, "web1")), (4, "changed".into()), "{}", second.stdout);
        fleet.wait_for("the assignment is active on one node", || {
            let row = base(&fleet);
            row["serial"] == 2 && row["in_force"] == 1 && row["nodes"] == 2
        });
        let row = base(&fleet);
        assert_eq!((row["behind"][0].as_str(), content(&fleet, "db1").as_str()), (Some("db1"), "one"));
        fleet.start("db1", "db");
        fleet.wait_for("db1 caught up", || content(&fleet, "db1") == "two");
        fleet.wait_for("the assignment is active on all nodes", || base(&fleet)["in_force"] == 2);

        // A reboot without a broker: the last accepted assignment applies, from the disk alone.
        let before = state(&fleet, "web1")["boot"].clone();
        fleet.kill("web1");
        fleet.server.kill();
        std::fs::write(motd(&fleet, "web1"), "drift").unwrap();
        fleet.spawn("web1");
        fleet.wait_for("repaired without a broker", || content(&fleet, "web1") == "two");
        fleet.server.start_again();
        fleet.wait_for("web1 is back", || state(&fleet, "web1")["boot"] != before);
        assert_eq!(state(&fleet, "web1")["channels"]["base"]["serial"], 2);
    }
}

#[test]
fn an_unusable_assignment_leaves_the_last_good_one_active() {
    let mut fleet = fleet(&binaries()[0]);
    assert_eq!(assign(&fleet, "good", &["--all"]).code, 0);
    let broken = fleet.path("broken.yaml");
    std::fs::write(&broken, "ccm:\n  resources:\n    - file:\n        - /x:\n            colour: red\n").unwrap();
    let args = ["assign", "base", broken.to_str().unwrap(), "--all", "--output", "json", "--timeout", "60s"];
    // The operator's tool refuses to send it without `--no-check`.
    let refused = fleet.run(&args);
    let said = format!("{}:5:13", broken.display());
    assert!(refused.code == 2 && refused.stderr.contains(&said) && refused.stderr.contains("--no-check"), "{}", refused.stderr);
    assert_eq!(base(&fleet)["serial"], 1);
    let failed = fleet.run(&[&args[..], &["--no-check"]].concat());
    assert_eq!((failed.code, outcome(&failed, "web1")), (1, "failed".into()), "{}", failed.stdout);
    assert!(failed.stdout.contains("colour"), "{}", failed.stdout);
    fleet.wait_for("the alarm", || state(&fleet, "web1")["alarms"].to_string().contains("the previous one stays active"));
    fleet.wait_for("the assignment is active on no node", || {
        let row = base(&fleet);
        row["in_force"] == 0 && row["serials"]["2"] == 2
    });
    fleet.kill("web1");
    std::fs::write(motd(&fleet, "web1"), "drift").unwrap();
    fleet.spawn("web1");
    fleet.wait_for("repaired to the last good one", || content(&fleet, "web1") == "good");
    // The next good assignment ends the alarm.
    assert_eq!(assign(&fleet, "better", &["--all"]).code, 0);
    assert_eq!(content(&fleet, "web1"), "better");
    fleet.wait_for("no alarm", || state(&fleet, "web1")["alarms"].as_array().is_none_or(Vec::is_empty));
}

#[test]
fn channels_select_nodes_and_can_be_ended() {
    let mut fleet = fleet(&binaries()[0]);
    let some = assign(&fleet, "web", &["--all", "--where", "Facts.role == 'web'"]);
    assert_eq!(
        (some.code, outcome(&some, "web1"), outcome(&some, "db1")),
        (0, "changed".into(), "not_selected".into()),
        "{}",
        some.stderr
    );
    assert!(!motd(&fleet, "db1").exists());

    let monitored = assign(&fleet, "seen", &["--all", "--monitor"]);
    assert_eq!((monitored.code, outcome(&monitored, "db1")), (0, "would_change".into()), "{}", monitored.stdout);
    assert_eq!((content(&fleet, "web1"), content(&fleet, "db1")), ("web".into(), String::new()));

    // The latest is for web alone: the same message excludes db.
    assert_eq!(assign(&fleet, "only", &["--group", "web"]).code, 0);
    fleet.wait_for("db1 has left the channel", || {
        let state = state(&fleet, "db1");
        state["channels"]["base"]["serial"] == 3 && state["assignments"].as_array().is_none_or(Vec::is_empty)
    });
    let whole = fleet.run(&["withdraw", "base", "--group", "web"]);
    assert!(whole.code == 2 && whole.stderr.contains("as a whole"), "{}", whole.stderr);
    let typo = fleet.run(&["withdraw", "bsae"]);
    assert!(typo.code == 2 && typo.stderr.contains("known channels: base"), "{}", typo.stderr);
    let withdrawn = fleet.run(&["withdraw", "base", "--output", "json", "--timeout", "60s"]);
    assert_eq!((withdrawn.code, outcome(&withdrawn, "web1")), (0, "stable".into()), "{}", withdrawn.stderr);
    fleet.wait_for("nothing is assigned", || state(&fleet, "web1")["assignments"].as_array().is_none_or(Vec::is_empty));
    fleet.kill("web1");
    std::fs::write(motd(&fleet, "web1"), "mine").unwrap();
    fleet.start("web1", "web");
    assert_eq!((content(&fleet, "web1").as_str(), base(&fleet)["manifest"].is_null()), ("mine", true));
}

#[tokio::test]
async fn no_older_forged_or_foreign_assignment_replaces_the_active_one() {
    let fleet = tokio::task::spawn_blocking(|| fleet(&binaries()[0])).await.unwrap();
    let operator = fleet.connect("operator", None).await;
    let stream = fleet.subjects.stream("DESIRED");
    let subject = fleet.subjects.desired("base");
    assert_eq!(assign(&fleet, "one", &["--all"]).code, 0);
    let old = operator.last_per_subject(&stream, subject.as_str()).await.unwrap().remove(0).payload;
    assert_eq!(assign(&fleet, "two", &["--all"]).code, 0);
    let new = operator.last_per_subject(&stream, subject.as_str()).await.unwrap().remove(0).payload;
    let mut forged = new.clone();
    let signature = String::from_utf8(new.clone()).unwrap().find("\"sig\":\"").unwrap() + 7;
    forged[signature] = if forged[signature] == b'A' { b'B' } else { b'A' };
    let node = "web1".parse().unwrap();
    let refusals = fleet.subjects.event(&node, EventKind::Refused);
    let mut feed = operator.follow(&fleet.subjects.stream("EVENTS"), refusals.as_str(), StartAt::New).await.unwrap();
    let elsewhere = fleet.subjects.desired("other");
    for (subject, payload, code) in [
        (subject.as_str(), old.clone(), "stale_serial"),
        (subject.as_str(), forged, "bad_signature"),
        (elsewhere.as_str(), b"{}".to_vec(), "bad_envelope"),
    ] {
        operator.publish_stored(subject, &[], payload).await.unwrap();
        let heard = tokio::time::timeout(PATIENCE, feed.next()).await;
        let refused: RejectionEvent = serde_json::from_slice(&heard.expect(code).unwrap().unwrap().payload).unwrap();
        assert_eq!((refused.code.as_str(), refused.subject.contains("desired")), (code, true), "{}", refused.message);
    }
    assert_eq!(content(&fleet, "web1"), "two");
    fleet.wait_for("the state has the serial", || state(&fleet, "web1")["channels"]["base"]["serial"] == 2);
    // The user of another node may not publish for the channel at all.
    let web = fleet.connect("web1", Some("_INBOX_web1")).await;
    assert!(web.publish_stored(subject.as_str(), &[], new).await.is_err());
    let latest = operator.last_per_subject(&stream, subject.as_str()).await.unwrap().remove(0).payload;
    assert_ne!(latest, old);
    drop(fleet);
}

#[test]
fn data_of_the_host_overrides_the_manifest_and_is_remembered() {
    let mut fleet = fleet(&binaries()[0]);
    let (config, data) = (fleet.path("web1/agent.toml"), fleet.path("web1/data.yaml"));
    std::fs::write(&data, "data:\n  greeting: from the host\n").unwrap();
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("data = \"{}\"\n{text}", data.display())).unwrap();
    fleet.kill("web1");
    let before = state(&fleet, "web1")["boot"].clone();
    fleet.spawn("web1");
    fleet.wait_for("web1 is online", || state(&fleet, "web1")["boot"] != before);
    let manifest = manifest(&fleet, "{{ Data.greeting }}");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, format!("data:\n  greeting: from the manifest\n{text}")).unwrap();
    let assigned = fleet.run(&["assign", "base", &manifest, "--all", "--output", "json", "--timeout", "60s"]);
    assert_eq!(assigned.code, 0, "{}{}", assigned.stdout, assigned.stderr);
    assert_eq!((content(&fleet, "web1"), content(&fleet, "db1")), ("from the host".into(), "from the manifest".into()));
    // The file is gone: the old data stay.
    std::fs::remove_file(&data).unwrap();
    fleet.kill("web1");
    std::fs::write(motd(&fleet, "web1"), "drift").unwrap();
    fleet.spawn("web1");
    fleet.wait_for("repaired with the old data", || content(&fleet, "web1") == "from the host");
    fleet.wait_for("the alarm", || state(&fleet, "web1")["alarms"].to_string().contains("using the last copy"));
    // The same with an unreadable file; the alarm names the place of the mistake.
    std::fs::write(&data, "data: [\n").unwrap();
    let applied = fleet.run(&["apply", &manifest, "--node", "web1", "--timeout", "60s"]);
    assert_eq!((applied.code, content(&fleet, "web1").as_str()), (0, "from the host"), "{}{}", applied.stdout, applied.stderr);
    fleet.wait_for("its place is shown", || state(&fleet, "web1")["alarms"].to_string().contains("data.yaml:"));
    // The alarm ends when the file is right again.
    std::fs::write(&data, "data:\n  greeting: anew\n").unwrap();
    let applied = fleet.run(&["apply", &manifest, "--node", "web1", "--timeout", "60s"]);
    assert_eq!((applied.code, content(&fleet, "web1").as_str()), (0, "anew"), "{}{}", applied.stdout, applied.stderr);
    fleet.wait_for("no alarm", || state(&fleet, "web1")["alarms"].as_array().is_none_or(Vec::is_empty));
}

/// Drift differs from an intended change, and failures have a start. Both survive a restart.
#[test]
fn runs_report_drift_intended_changes_and_the_start_of_failures() {
    for binary in binaries() {
        let mut fleet = fleet(&binary);
        assert_eq!(assign(&fleet, "one", &["--all"]).code, 0);
        fleet.wait_for("the state reports this", || state(&fleet, "web1")["last_run"]["outcome"] == "changed");
        assert_eq!(state(&fleet, "web1")["last_run"]["corrective"], Value::Null);
        fleet.stop("web1");
        std::fs::write(motd(&fleet, "web1"), "drift").unwrap();
        fleet.start("web1", "web");
        fleet.wait_for("repaired", || state(&fleet, "web1")["last_run"]["corrective"] == 1);
        let status = fleet.run(&["status"]).stdout;
        assert!(status.contains("drift      corrected on 1 node by the last run"), "{status}");
        let events = fleet.run(&["events", "--since", "1h", "--node", "web1", "--output", "json"]).json();
        let causes: Vec<&str> = events.as_array().unwrap().iter().filter_map(|event| event["change_cause"].as_str()).collect();
        assert_eq!(causes, ["intentional", "corrective"], "{events}");
        // New content is intended.
        assert_eq!(assign(&fleet, "two", &["--all"]).code, 0);
        fleet.wait_for("the state reports this", || state(&fleet, "web1")["last_run"]["corrective"] == Value::Null);

        // From now on the file is not writable.
        fleet.stop("web1");
        std::fs::remove_file(motd(&fleet, "web1")).unwrap();
        std::fs::create_dir(motd(&fleet, "web1")).unwrap();
        fleet.start("web1", "web");
        fleet.wait_for("the run fails", || state(&fleet, "web1")["failing"][0]["resource"].is_string());
        let failing = |fleet: &Fleet| state(fleet, "web1")["failing"][0].clone();
        let first = failing(&fleet);
        assert_eq!(
            (&first["channel"], first["resource"].as_str()),
            (&Value::from("base"), Some(format!("file#{}", motd(&fleet, "web1").display()).as_str()))
        );
        let status = fleet.run(&["status"]).stdout;
        assert!(status.contains("web1") && status.contains("channel base: file#") && status.contains("(since "), "{status}");
        fleet.stop("web1");
        fleet.start("web1", "web");
        fleet.wait_for("the run fails again", || {
            let again = failing(&fleet);
            again["since"].is_string() && again["since"] == first["since"]
        });
        assert!(state(&fleet, "web1")["platform"].as_str().unwrap().contains("debian"), "{}", state(&fleet, "web1"));
        fleet.stop("web1");
        std::fs::remove_dir(motd(&fleet, "web1")).unwrap();
        fleet.start("web1", "web");
        fleet.wait_for("mended", || content(&fleet, "web1") == "two" && failing(&fleet) == Value::Null);
    }
}
