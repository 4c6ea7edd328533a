//! Plans and their approval: on the node, and from the operator's side with a fleet.

use std::os::unix::fs::PermissionsExt;

use ensign::wire::command::{Action, Command, FactsQuery, NoParameters};
use ensign::wire::{CommandOutcome, CommandResult};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::fleet::{Fleet, Ran, owner};
use crate::support::nats::binaries;
use crate::support::single_node::{self, ensure_action, on_every_server};

/// The same command as a dry run, or as the approval of a dry run.
fn as_dry_run(command: &Command) -> Command {
    let mut dry = Command { id: Uuid::now_v7(), ..command.clone() };
    dry.options.noop = true;
    dry
}

fn as_approval(command: &Command, plan: Uuid) -> Command {
    let mut approving = Command { id: Uuid::now_v7(), ..command.clone() };
    approving.options.approves = Some(plan);
    approving
}

async fn result(fleet: &single_node::SingleNodeFleet, command: &Command) -> CommandResult {
    fleet.send(command).await;
    fleet.only_result(command.id).await
}

fn refused(done: &CommandResult, why: &str) {
    assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("plan_changed")), "{done:?}");
    assert!(done.message.as_deref().unwrap().contains(why), "{:?}, wanted {why}", done.message);
}

#[test]
fn an_approved_plan_is_applied_exactly() {
    on_every_server(async |binary| {
        let fleet = single_node::SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let motd = fleet.file_command("motd", "hello\n");
        let planned = as_dry_run(&motd);
        let done = result(&fleet, &planned).await;
        assert_eq!(done.outcome, CommandOutcome::WouldChange);
        let plan = done.plan.unwrap();
        assert_eq!((plan.changes.len(), plan.more), (1, 0));
        assert_eq!(plan.changes[0].resource, format!("file#{}", fleet.path("motd").display()));
        assert!(!plan.changes[0].what.is_empty() && !plan.changes[0].what.contains("hello"), "{plan:?}");
        assert!(!fleet.path("motd").exists());

        // The approval must name a planned dry run of the same command.
        refused(&result(&fleet, &as_approval(&motd, Uuid::now_v7())).await, "has no dry run");
        refused(&result(&fleet, &as_approval(&fleet.file_command("motd", "other\n"), planned.id)).await, "of another manifest");
        let other = fleet.file_command("other", "x");
        result(&fleet, &other).await;
        refused(&result(&fleet, &as_approval(&other, other.id)).await, "was no dry run");
        assert!(!fleet.path("motd").exists());

        // A restart keeps the plan.
        agent.kill();
        let _agent = fleet.start_agent().await;
        let done = result(&fleet, &as_approval(&motd, planned.id)).await;
        assert_eq!((done.outcome, done.plan), (CommandOutcome::Changed, None), "{:?}", done.message);
        assert_eq!(fleet.lines("motd"), ["hello"]);
        // The changes are done already: nothing is left that could differ.
        assert_eq!(result(&fleet, &as_approval(&motd, planned.id)).await.outcome, CommandOutcome::Stable);
        // But the change needed now is not the approved one.
        std::fs::set_permissions(fleet.path("motd"), PermissionsExt::from_mode(0o600)).unwrap();
        refused(&result(&fleet, &as_approval(&motd, planned.id)).await, "now needs another change");
        let mode = std::fs::metadata(fleet.path("motd")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn changed_values_behind_the_same_plan_text_are_noticed() {
    on_every_server(async |binary| {
        let fleet = single_node::SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        std::fs::write(fleet.path("source"), "one").unwrap();
        let command = fleet.file_command("motd", &format!("{{{{ readFile('{}') }}}}", fleet.path("source").display()));
        let planned = as_dry_run(&command);
        let first = result(&fleet, &planned).await.plan.unwrap();
        std::fs::write(fleet.path("source"), "two").unwrap();
        let again = result(&fleet, &as_dry_run(&command)).await.plan.unwrap();
        assert_eq!((&first.digest, &first.action), (&again.digest, &again.action));
        assert_ne!(first.resolved_digest, again.resolved_digest);
        refused(&result(&fleet, &as_approval(&command, planned.id)).await, "need other values");
        assert!(!fleet.path("motd").exists());
        std::fs::write(fleet.path("source"), "one").unwrap();
        assert_eq!(result(&fleet, &as_approval(&command, planned.id)).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn a_dry_run_is_no_change_and_leaves_the_last_result() {
    on_every_server(async |binary| {
        let fleet = single_node::SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let real = fleet.file_command("real", "x");
        assert_eq!(result(&fleet, &real).await.outcome, CommandOutcome::Changed);
        let of_real = |state: &ensign::wire::NodeState| state.last_run.as_ref().is_some_and(|run| run.run_id == real.id);
        fleet.state("the run", of_real).await;
        assert_eq!(result(&fleet, &as_dry_run(&fleet.file_command("never", "x"))).await.outcome, CommandOutcome::WouldChange);
        // The state of the node comes after the result.
        let after = fleet.file_command("real", "x");
        assert_eq!(result(&fleet, &as_dry_run(&after)).await.outcome, CommandOutcome::Stable);
        fleet.wait_until_published();
        let status = crate::support::fleet::ensign(&[
            "agent",
            "status",
            "--output",
            "json",
            "--config",
            fleet.path("agent.toml").to_str().unwrap(),
        ]);
        assert_eq!(status.json()["last_run"]["run_id"], json!(real.id), "{}", status.stdout);
        fleet.state("the same", of_real).await;
    });
}

#[test]
fn a_secret_is_no_part_of_a_plan() {
    on_every_server(async |binary| {
        let fleet = single_node::SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        std::fs::write(fleet.path("secret"), "geheim-one").unwrap();
        let (out, secret) = (fleet.path("out").display().to_string(), fleet.path("secret").display().to_string());
        let script = format!("echo {{{{ secret('file:{secret}') }}}} > {out}");
        let command = fleet.command(ensure_action("exec", &json!({"name": "tell", "command": script, "provider": "shell"})));
        let planned = as_dry_run(&command);
        let plan = result(&fleet, &planned).await.plan.unwrap();
        let text = serde_json::to_string(&plan).unwrap();
        assert!(!text.contains("geheim"), "{text}");
        std::fs::write(fleet.path("secret"), "geheim-two").unwrap();
        assert_eq!(result(&fleet, &as_approval(&command, planned.id)).await.outcome, CommandOutcome::Changed);
        assert_eq!(fleet.lines("out"), ["geheim-two"]);
    });
}

#[test]
fn a_plan_shows_updates_and_diffs_of_world_readable_files_only() {
    on_every_server(async |binary| {
        let fleet = single_node::SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let motd = fleet.file_command("motd", "hello\n");
        let enter = |mode| std::fs::set_permissions(fleet.dir.path(), PermissionsExt::from_mode(mode)).unwrap();
        enter(0o755);
        let change = async || result(&fleet, &as_dry_run(&motd)).await.plan.unwrap().changes.remove(0);
        let new = change().await;
        assert_eq!(
            (new.what.as_str(), new.diff.as_deref()),
            ("created the file", Some("--- now\n+++ wanted\n@@ -0,0 +1 @@\n+hello\n"))
        );
        std::fs::write(fleet.path("motd"), "old\n").unwrap();
        let update = change().await;
        assert_eq!(update.what, "updated the file: content");
        assert_eq!(update.diff.as_deref(), Some("--- now\n+++ wanted\n@@ -1 +1 @@\n-old\n+hello\n"));
        // No other user reaches a file below a closed directory, whatever the mode of the file.
        enter(0o700);
        assert_eq!(change().await.diff, None);
        enter(0o755);
        // A plan does not show content that only some users may read on the node.
        std::fs::set_permissions(fleet.path("motd"), PermissionsExt::from_mode(0o640)).unwrap();
        let private = change().await;
        assert!(private.what.starts_with("updated the file: content"), "{private:?}");
        assert_eq!(private.diff, None);
        // The same for content that only some users will be able to read.
        std::fs::remove_file(fleet.path("motd")).unwrap();
        let private = json!({"name": fleet.path("motd"), "ensure": "present", "content": "x", "owner": "root", "group": "root", "mode": "0640"});
        let planned = result(&fleet, &as_dry_run(&fleet.command(ensure_action("file", &private)))).await.plan.unwrap();
        assert_eq!((planned.changes.len(), &planned.changes[0].diff), (1, &None));
    });
}

#[test]
fn queries_do_not_wait_for_a_run() {
    on_every_server(async |binary| {
        let fleet = single_node::SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let slow = fleet.gated_command("slow");
        fleet.send(&slow).await;
        fleet.until("the run", || !fleet.lines("slow").is_empty()).await;
        let facts = fleet.command(Action::Facts(FactsQuery { query: Some("host.info.os".into()) }));
        assert_eq!(result(&fleet, &facts).await.answer, Some(json!("linux")));
        let status = fleet.command(Action::Status(NoParameters {}));
        let answer = result(&fleet, &status).await.answer.unwrap();
        assert_eq!((&answer["node"], &answer["running"]), (&json!("web1"), &json!(slow.id)));
        let none = fleet.command(Action::Facts(FactsQuery { query: Some("no.such.fact".into()) }));
        let done = result(&fleet, &none).await;
        assert_eq!((done.outcome, done.answer), (CommandOutcome::Stable, None));
        assert_eq!(fleet.lines("slow"), ["begun"]);
        // The same query again has the same end, and no second one.
        let again = fleet.answers(&facts, fleet.sign(&facts), 1).await;
        assert_eq!(again[0]["outcome"], "stable");
        fleet.only_result(facts.id).await;
        fleet.open_gate("slow");
        fleet.only_result(slow.id).await;
        let health = fleet.command(Action::Healthcheck(ensign::wire::command::Healthcheck::default()));
        assert_eq!(result(&fleet, &health).await.outcome, CommandOutcome::Stable);
    });
}

#[test]
fn an_approval_covers_changes_beyond_the_shown_ones() {
    on_every_server(async |binary| {
        let fleet = single_node::SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let file = |number: usize| {
            format!(
                "        - {}:\n            ensure: present\n            content: secret\n            owner: root\n            group: root\n            mode: \"0644\"\n",
                fleet.path(&format!("many/{number}")).display()
            )
        };
        let files: String = (0..70).map(file).collect();
        let manifest = format!("ccm:\n  resources:\n    - file:\n{files}");
        std::fs::create_dir(fleet.path("many")).unwrap();
        std::fs::write(fleet.path("manifest.yaml"), manifest).unwrap();
        let command = fleet.command(Action::Apply(single_node::apply(&fleet.path("manifest.yaml"))));
        let planned = as_dry_run(&command);
        let plan = result(&fleet, &planned).await.plan.unwrap();
        assert_eq!((plan.changes.len(), plan.more), (50, 20));
        // Also beyond the shown part, the node makes the approved change or none.
        std::fs::write(fleet.path("many/69"), "drift").unwrap();
        refused(&result(&fleet, &as_approval(&command, planned.id)).await, "a part that plans do not list");
        std::fs::remove_file(fleet.path("many/69")).unwrap();
        assert_eq!(result(&fleet, &as_approval(&command, planned.id)).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn an_exec_runs_once_when_it_is_approved() {
    on_every_server(async |binary| {
        let fleet = single_node::SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let script = format!("echo ran >> {}", fleet.path("ran").display());
        let command = fleet.command(ensure_action("exec", &json!({"name": "once", "command": script, "provider": "shell"})));
        let planned = as_dry_run(&command);
        assert_eq!(result(&fleet, &planned).await.plan.unwrap().changes.len(), 1);
        assert!(fleet.lines("ran").is_empty());
        assert_eq!(result(&fleet, &as_approval(&command, planned.id)).await.outcome, CommandOutcome::Changed);
        assert_eq!(fleet.lines("ran"), ["ran"]);
    });
}

const NODES: [(&str, &str); 3] = [("web1", "web"), ("web2", "web"), ("db1", "db")];

fn outcomes(ran: &Ran) -> Vec<(String, String)> {
    let document = ran.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    document["nodes"].as_array().unwrap().iter().map(|node| (text(&node["node"]), text(&node["outcome"]))).collect()
}

fn three(changes: [&str; 3]) -> Vec<(String, String)> {
    ["db1", "web1", "web2"].into_iter().zip(changes).map(|(node, outcome)| (node.to_owned(), outcome.to_owned())).collect()
}

#[test]
fn a_fleet_applies_exactly_the_approved_plan() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &NODES);
        NODES.iter().for_each(|(node, group)| fleet.start(node, group));
        let [uid, gid] = owner();
        // The same file on every node, under a name of the node's own.
        let planned = |content: &str, more: &[&str]| {
            let manifest = format!(
                "ccm:\n  resources:\n    - file:\n        - \"{{{{ Facts.site }}}}/motd\":\n            ensure: present\n            content: \"{content}\"\n            owner: \"{uid}\"\n            group: \"{gid}\"\n            mode: \"0640\"\n"
            );
            let path = fleet.path(&format!("{content}.yaml"));
            std::fs::write(&path, manifest).unwrap();
            fleet.run(&[&["plan", "apply", path.to_str().unwrap()], more].concat())
        };
        let plan = planned("one", &["--all", "--output", "json"]);
        assert_eq!(plan.code, 0, "{}", plan.stderr);
        let document = plan.json();
        let id = document["id"].as_str().unwrap().to_owned();
        let groups = document["groups"].as_array().unwrap();
        assert_eq!((groups.len(), groups[0]["nodes"].as_array().unwrap().len()), (1, 3), "{document:#}");
        assert!(groups[0]["changes"][0]["resource"].as_str().unwrap().ends_with("<node>/site/motd"), "{document:#}");
        assert!(std::path::Path::new(document["file"].as_str().unwrap()).is_file());
        assert!(plan.stderr.contains(&format!("fleet plan --approve {id}")), "{}", plan.stderr);
        assert!(!fleet.path("web1/site/motd").exists());
        let file = document["file"].as_str().unwrap().to_owned();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

        // One node first, then all: the first node has nothing left to do.
        let first = fleet.run(&["plan", "--approve", &id, "--node", "web1", "--output", "json"]);
        assert_eq!((first.code, outcomes(&first)), (0, vec![("web1".into(), "changed".into())]), "{}", first.stderr);
        let all = fleet.run(&["plan", "--approve", &id, "--output", "json"]);
        assert_eq!((all.code, outcomes(&all)), (0, three(["changed", "stable", "changed"])), "{}", all.stderr);
        assert_eq!(std::fs::read_to_string(fleet.path("db1/site/motd")).unwrap(), "one");

        // A node that would make another change refuses; the others apply. From the data on the server, on another machine.
        let plan = planned("two", &["--all", "--out", fleet.path("plan.json").to_str().unwrap()]);
        assert!(plan.code == 0 && plan.stdout.contains("1 change"), "{}{}", plan.stdout, plan.stderr);
        let saved: Value = serde_json::from_slice(&std::fs::read(fleet.path("plan.json")).unwrap()).unwrap();
        std::fs::remove_file(fleet.path("web2/site/motd")).unwrap();
        let approved = fleet.run(&["apply", "--approve", saved["id"].as_str().unwrap(), "--output", "json"]);
        assert_eq!((approved.code, outcomes(&approved)), (3, three(["changed", "changed", "refused"])), "{}", approved.stderr);
        assert!(approved.stderr.contains("from the server"), "{}", approved.stderr);
        let refused = &approved.json()["nodes"][2]["done"];
        assert!(refused["message"].as_str().unwrap().contains("now needs another change"), "{refused}");
        // By its file; then with an old plan, and without one.
        let by_file = fleet.run(&["plan", "--approve", fleet.path("plan.json").to_str().unwrap(), "--node", "db1"]);
        assert!(by_file.code == 0 && by_file.stdout.contains("stable"), "{}{}", by_file.stdout, by_file.stderr);
        let mut old = saved.clone();
        old["expires"] = json!("2026-01-01T00:00:00Z");
        std::fs::write(fleet.path("old.json"), old.to_string()).unwrap();
        let too_old = fleet.run(&["plan", "--approve", fleet.path("old.json").to_str().unwrap()]);
        assert!(too_old.code == 2 && too_old.stderr.contains("too old"), "{}", too_old.stderr);
        for (name, said) in [("no-such-file", "neither the id"), ("0198c1f2-7a3b-7c4d-8e5f-102030405060", "unknown job")] {
            let none = fleet.run(&["plan", "--approve", name]);
            assert!(none.code == 2 && none.stderr.contains(said), "{}", none.stderr);
        }
        // A resource in its wanted state is no change; the text says so.
        let same = planned("two", &["--node", "web1,db1"]);
        assert!(same.code == 0 && same.stdout.contains("no change"), "{}{}", same.stdout, same.stderr);
        // A manifest, and an operator with read rights only.
        std::fs::create_dir(fleet.path("site")).unwrap();
        std::fs::write(fleet.path("site/manifest.yaml"), "ccm:\n  resources:\n    - file:\n        - \"{{ Facts.site }}/d\":\n            ensure: directory\n            owner: \"UID\"\n            group: \"GID\"\n            mode: \"0755\"\n".replace("UID", &uid).replace("GID", &gid)).unwrap();
        let plan = fleet.run(&["plan", "apply", fleet.path("site").to_str().unwrap(), "--group", "web", "--output", "json"]);
        assert_eq!(plan.json()["groups"][0]["nodes"], json!(["web1", "web2"]), "{}{}", plan.stdout, plan.stderr);
        let approved = fleet.run(&["plan", "--approve", plan.json()["id"].as_str().unwrap()]);
        assert!(approved.code == 0 && fleet.path("web2/site/d").is_dir(), "{}{}", approved.stdout, approved.stderr);
    }
}

#[test]
fn nodes_are_selected_by_facts_and_queried() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &NODES);
        NODES.iter().for_each(|(node, group)| fleet.start(node, group));
        let selected = fleet.run(&["nodes", "--where", "Facts.role == 'web'", "--output", "json"]);
        let document = selected.json();
        assert_eq!(
            (selected.code, &document["selected"], &document["not_selected"]),
            (0, &json!(["web1", "web2"]), &json!(["db1"]))
        );
        let text = fleet.run(&["nodes", "--where", "Facts.role == 'web'"]);
        assert!(text.stderr.contains("selects 2 of 3 nodes") && text.stdout.contains("not selected: db1"), "{}", text.stdout);
        assert_eq!(fleet.run(&["nodes", "--group", "db", "--output", "json"]).json().as_array().unwrap().len(), 1);
        for command in [&["nodes"] as &[&str], &["facts", "role", "--all"], &["ensure", "file", "/x", "absent", "--all"]] {
            let wrong = fleet.run(&[command, &["--where", "Facts.role = 'web'"]].concat());
            assert!(wrong.code == 2 && wrong.stderr.contains("--where:1:"), "{}", wrong.stderr);
            let wrong = fleet.run(&[command, &["--where", "facts.role == 'web'"]].concat());
            assert!(wrong.code == 2 && wrong.stderr.contains("did you mean"), "{}", wrong.stderr);
        }
        let roles = fleet.run(&["facts", "role", "--all"]);
        assert!(
            roles.code == 0 && roles.stdout.contains("2× web") && roles.stdout.contains("1× db"),
            "{}{}",
            roles.stdout,
            roles.stderr
        );
        let by_node = fleet.run(&["facts", "role", "--all", "--where", "Facts.role == 'web'", "--by-node"]);
        assert_eq!((by_node.code, by_node.stdout.as_str()), (0, "web1  web\nweb2  web\n"), "{}", by_node.stderr);
        let json = fleet.run(&["facts", "role", "--group", "web", "--output", "json"]).json();
        assert_eq!(json["values"], json!([{"value": "web", "nodes": ["web1", "web2"]}]));
        let none = fleet.run(&["facts", "no.such", "--all"]);
        assert!(none.code == 1 && none.stderr.contains("no node has a fact at no.such"), "{}{}", none.stdout, none.stderr);
        let all: Value = fleet.run(&["facts", "--node", "web1"]).json();
        assert_eq!(all["role"], "web");

        let health = fleet.run(&["healthcheck", "--all"]);
        assert!(health.code == 0 && health.stdout.contains("web2  nothing is assigned"), "{}{}", health.stdout, health.stderr);
        let health = fleet.run(&["healthcheck", "--node", "db1", "--channel", "base"]);
        assert!(health.code == 1 && health.stdout.contains("channel base"), "{}{}", health.stdout, health.stderr);

        let node = fleet.run(&["node", "web1"]);
        assert!(
            node.code == 0 && node.stdout.contains("asked now") && node.stdout.contains("groups       web"),
            "{}",
            node.stdout
        );
        assert_eq!(fleet.run(&["node", "web1", "--output", "json"]).json()["live"], true);
        fleet.kill("web1");
        let node = fleet.run(&["node", "web1"]);
        assert!(node.code == 4 && node.stderr.contains("last state it published"), "{}{}", node.stdout, node.stderr);
        let node = fleet.run(&["node", "wbe1"]);
        assert!(node.code == 2 && node.stderr.contains("did you mean web1"), "{}", node.stderr);
    }
}

#[test]
fn the_health_of_an_assignment_is_checked_on_request() {
    for binary in binaries() {
        let mut fleet = Fleet::new(&binary, &NODES);
        fleet.start("web1", "web");
        let [uid, gid] = owner();
        let rules = "goss_rules:\n                  file:\n                    \"{{ Facts.site }}/ok\": {exists: true}\n";
        let manifest = format!(
            "ccm:\n  resources:\n    - file:\n        - \"{{{{ Facts.site }}}}/app\":\n            ensure: present\n            content: x\n            owner: \"{uid}\"\n            group: \"{gid}\"\n            mode: \"0644\"\n            health_checks:\n              - name: there\n                {rules}"
        );
        std::fs::write(fleet.path("health.yaml"), manifest).unwrap();
        std::fs::write(fleet.path("web1/site/ok"), "").unwrap();
        let assigned = fleet.run(&["assign", "base", fleet.path("health.yaml").to_str().unwrap(), "--all", "--timeout", "20s"]);
        assert_eq!(assigned.code, 0, "{}{}", assigned.stdout, assigned.stderr);
        let look = |more: &[&str]| fleet.run(&[&["healthcheck", "--node", "web1"], more].concat());
        let well = look(&[]);
        assert!(well.code == 0 && well.stdout.contains("OK       base file#"), "{}{}", well.stdout, well.stderr);
        std::fs::remove_file(fleet.path("web1/site/ok")).unwrap();
        let ill = look(&["--channel", "base", "--output", "json"]);
        let node = &ill.json()["nodes"][0];
        assert_eq!(
            (ill.code, &node["done"]["answer"][0]["status"], &node["done"]["answer"][0]["name"]),
            (1, &2.into(), &"there".into())
        );
        assert_eq!(look(&["--channel", "other"]).code, 1);
        let node = fleet.run(&["node", "web1"]).stdout;
        assert!(node.contains("assigned     base: "), "{node}");
    }
}
