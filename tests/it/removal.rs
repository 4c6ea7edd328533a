//! Removal of nodes: what the other operators see, what a returning node gets, and what a restricted key, a node and a hostile
//! server can't do.

use std::path::Path;

use ensign::fleet::CommandDraft;
use ensign::fleet::job::seal;
use ensign::model::HumanDuration;
use ensign::trust::SigningKey;
use ensign::wire::command::{Command, NoParameters};
use ensign::wire::{Action, CommandOptions, Target};
use serde_json::{Value, json};

use crate::support::fleet::{FLEET, Fleet, Ran, ensign};
use crate::support::nats::on_each;

const NODES: [(&str, &str); 2] = [("web1", "web"), ("db1", "db")];

/// Two online nodes, an operator with the trust bundle, and a copy of the keys that a second operator has pinned.
fn fleet(binary: &Path) -> Fleet {
    let mut fleet = Fleet::new(binary, &NODES);
    let path = fleet.path("operator.toml");
    let operator = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("trust = \"trust.dsse.json\"\nknown_nodes = \"known\"\n{operator}")).unwrap();
    for (node, group) in NODES {
        fleet.start_with(node, group, "", "exec = true");
    }
    std::fs::copy(fleet.path("known"), fleet.path("second")).unwrap();
    fleet
}

fn rows(ran: &Ran) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    ran.json().as_array().unwrap().iter().map(|row| (text(&row["node"]), text(&row["presence"]))).collect()
}

fn nodes(fleet: &Fleet, known: &str) -> Vec<(String, String)> {
    let known = fleet.path(known).display().to_string();
    rows(&fleet.run(&["nodes", "--known-nodes", &known, "--output", "json"]))
}

fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    wanted.iter().map(|(node, word)| ((*node).to_owned(), (*word).to_owned())).collect()
}

fn run_on_all(fleet: &Fleet, name: &str) -> Ran {
    fleet.run(&["ensure", "exec", name, "--command", "true", "--all", "--timeout", "10s", "--output", "json"])
}

fn outcomes(ran: &Ran) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    ran.json()["nodes"].as_array().unwrap().iter().map(|row| (text(&row["node"]), text(&row["outcome"]))).collect()
}

#[test]
fn a_removed_node_is_gone_for_every_operator_and_returns_only_with_its_key() {
    on_each(|binary| {
        let mut fleet = fleet(binary);
        // Slips change nothing.
        for (node, why) in [("db1", "db1 is online"), ("db2", "has no node db2")] {
            let ran = fleet.run(&["node", "remove", node]);
            assert!(ran.code == 2 && ran.stderr.contains(why) && ran.stderr.contains("hint:"), "{} {}", ran.code, ran.stderr);
        }
        fleet.stop("db1");
        let before = run_on_all(&fleet, "before");
        assert_eq!((before.code, outcomes(&before)), (4, pairs(&[("db1", "offline"), ("web1", "changed")])), "{}", before.stderr);
        let removed = fleet.run(&["node", "remove", "db1", "--reason", "retired"]);
        assert_eq!((removed.code, removed.stderr.as_str()), (0, "db1: removed; its state and its key are forgotten\n"));
        for operator in ["known", "second"] {
            assert_eq!(nodes(&fleet, operator), pairs(&[("web1", "alive")]), "{operator}");
        }
        assert!(!std::fs::read_to_string(fleet.path("known")).unwrap().contains(" db1 "));
        let after = run_on_all(&fleet, "after");
        assert_eq!((after.code, outcomes(&after)), (0, pairs(&[("web1", "changed")])), "{}", after.stderr);
        let list = fleet.run(&["node", "removed", "--output", "json"]).json();
        assert_eq!(
            (&list[0]["node"], &list[0]["by"], &list[0]["reason"]),
            (&json!("db1"), &json!(["ops-alice"]), &json!("retired"))
        );
        let again = fleet.run(&["node", "remove", "db1"]);
        assert!(again.code == 2 && again.stderr.contains("db1 was removed already"), "{}", again.stderr);
        // It comes back: no first use, also for the operator that has its old key.
        fleet.spawn("db1");
        let doubtful = pairs(&[("db1", "unverified"), ("web1", "alive")]);
        for operator in ["known", "second"] {
            fleet.wait_for("the state of the node", || nodes(&fleet, operator) == doubtful);
        }
        let row = fleet.run(&["status"]).stdout;
        assert!(row.contains("it was removed on") && row.contains("ensign fleet node trust db1 KEY"), "{row}");
        let returned = run_on_all(&fleet, "returned");
        assert!(outcomes(&returned).contains(&("web1".to_owned(), "changed".to_owned())), "{}", returned.stdout);
        assert!(!outcomes(&returned).contains(&("db1".to_owned(), "changed".to_owned())), "{}", returned.stdout);
        let named = fleet.run(&["ensure", "exec", "named", "--command", "true", "--node", "db1", "--timeout", "5s"]);
        assert!(named.code == 4 && named.stdout.contains("it was removed on"), "{}{}", named.stdout, named.stderr);
        // Its key, as an operator reads it on the host.
        let config = fleet.path("db1/agent.toml").display().to_string();
        let key = ensign(&["agent", "key", "--config", &config]);
        let key = key.stdout.lines().next().unwrap().to_owned();
        let trusted = fleet.run(&["node", "trust", "db1", &key]);
        assert_eq!(trusted.code, 0, "{}", trusted.stderr);
        assert_eq!(nodes(&fleet, "known"), pairs(&[("db1", "alive"), ("web1", "alive")]));
        assert_eq!(nodes(&fleet, "second"), doubtful, "each operator decides");
        let last = run_on_all(&fleet, "last");
        assert_eq!((last.code, outcomes(&last)), (0, pairs(&[("db1", "changed"), ("web1", "changed")])), "{}", last.stderr);
    });
}

/// A signed command to remove web1, changed by `change`.
fn removal(signer: (&str, &SigningKey), change: impl FnOnce(&mut Command)) -> Vec<u8> {
    let draft = CommandDraft {
        action: Action::Remove(NoParameters {}),
        to: Target::nodes(vec!["web1".parse().unwrap()]),
        options: CommandOptions::default(),
        channel: None,
        reason: None,
        lifetime: HumanDuration::seconds(300),
    };
    let mut command = draft.command(FLEET, uuid::Uuid::now_v7(), jiff::Timestamp::now());
    change(&mut command);
    seal::sign(command, &[(signer.0, signer.1)]).unwrap().envelope
}

#[test]
fn only_a_removal_that_the_trust_bundle_allows_counts() {
    on_each(|binary| {
        let fleet = fleet(binary);
        let both = pairs(&[("db1", "alive"), ("web1", "alive")]);
        // A key that may only ensure files.
        let bob = fleet.path("ops-bob.key").display().to_string();
        let refused = fleet.run(&["node", "remove", "web1", "--force", "--key", &bob]);
        assert_eq!(refused.code, 3, "{}", refused.stderr);
        assert!(refused.stderr.contains("the trust bundle does not allow the removal"), "{}", refused.stderr);
        // A user without the permission, as on a server with the configuration of an older version.
        let config = std::fs::read_to_string(fleet.path("operator.toml")).unwrap();
        let reader = format!("{}inbox_prefix = \"_INBOX_MONITOR\"\n", config.replace("operator.nk", "monitor.nk"));
        std::fs::write(fleet.path("reader.toml"), reader).unwrap();
        let reader = fleet.path("reader.toml").display().to_string();
        let denied = ensign(&["fleet", "--operator", &reader, "node", "remove", "web1", "--force"]);
        assert!(denied.code == 4 && denied.stderr.contains("does not allow this user to publish on"), "{}", denied.stderr);
        assert!(denied.stderr.contains("--print-permissions"), "{}", denied.stderr);
        let (alice, bob, stranger) = (fleet.key("ops-alice"), fleet.key("ops-bob"), SigningKey::from_seed(&[7; 32]));
        let (alice, bob, stranger) = (("ops-alice", &alice), ("ops-bob", &bob), ("ops-alice", &stranger));
        let of_db1 = |command: &mut Command| command.to = Target::nodes(vec!["db1".parse().unwrap()]);
        let forged = [
            ("restricted key", removal(bob, |_| ())),
            ("unknown key", removal(stranger, |_| ())),
            ("another node", removal(alice, of_db1)),
            ("another fleet", removal(alice, |command| command.fleet = "other".to_owned())),
            ("all nodes", removal(alice, |command| command.to = Target::all())),
            ("another action", removal(alice, |command| command.action = Action::Status(NoParameters {}))),
            ("a filter", removal(alice, |command| command.to.filter = Some("false".to_owned()))),
            ("no envelope", b"{}".to_vec()),
            ("nothing", Vec::new()),
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let subject = fleet.subjects.removal(&"web1".parse().unwrap()).to_string();
        runtime.block_on(async {
            let node = fleet.connect("db1", Some("_INBOX_db1")).await;
            crate::permissions::denied(&node, "db1", std::slice::from_ref(&subject), &[]).await;
            let own = fleet.connect("web1", Some("_INBOX_web1")).await;
            crate::permissions::denied(&own, "web1", std::slice::from_ref(&subject), &[]).await;
        });
        for (what, payload) in forged {
            runtime.block_on(async {
                let bus = fleet.connect("operator", None).await;
                bus.publish_stored(&subject, &[], payload).await.unwrap();
            });
            assert_eq!(nodes(&fleet, "known"), both, "{what}");
        }
        // A key that is pinned after a removal outlives its replay.
        let valid = removal(alice, |_| ());
        let store = || {
            runtime.block_on(async {
                let bus = fleet.connect("operator", None).await;
                bus.publish_stored(&subject, &[], valid.clone()).await.unwrap();
            });
        };
        store();
        fleet.wait_for("the removal counts", || nodes(&fleet, "second").contains(&("web1".to_owned(), "unverified".to_owned())));
        let config = fleet.path("web1/agent.toml").display().to_string();
        let key = ensign(&["agent", "key", "--config", &config]);
        assert_eq!(fleet.run(&["node", "trust", "web1", key.stdout.lines().next().unwrap()]).code, 0);
        store();
        fleet.wait_for("the node counts again", || nodes(&fleet, "known") == both);
        // A node takes no removal as a command.
        let sent = runtime.block_on(async {
            let bus = fleet.connect("operator", None).await;
            let (inbox, mut answers) = bus.request_inbox().await.unwrap();
            let live = format!("ensign.v1.{FLEET}.cmd.remove.node.web1");
            bus.publish_with_reply(&live, &format!("{inbox}.1"), &[], valid.clone()).await.unwrap();
            tokio::time::timeout(std::time::Duration::from_secs(20), answers.next()).await.unwrap().unwrap()
        });
        let sent = String::from_utf8_lossy(&sent.payload).into_owned();
        assert!(sent.contains("a removal is a record for operators"), "{sent}");
    });
}
