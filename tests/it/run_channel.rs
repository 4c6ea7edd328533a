//! `ensign fleet run`: the assignment of a channel runs now, with its own rights.

use std::fs;
use std::path::Path;

use ensign::model::HumanDuration;
use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::bundle::{OperatorKey, Rule};
use ensign::wire::command::{Action, Assign, Command, RunChannel};
use ensign::wire::{COMMAND_TYPE, CommandOutcome, CommandResult};
use serde_json::json;

use crate::support::node_dir::as_operator;
use crate::support::single_node::{SingleNodeFleet, apply, assign_action, on_every_server};

/// Stores an assignment of a file, and waits for its first run. The next run at the interval is an hour away.
async fn assigned(fleet: &SingleNodeFleet, content: &str) {
    let (file, manifest) = (fleet.path("file"), fleet.path("manifest.yaml"));
    let properties = json!({"ensure": "present", "content": content, "owner": "root", "group": "root", "mode": "0644"});
    let text = json!({"ccm": {"resources": [{"file": [{(file.display().to_string()): properties}]}]}}).to_string();
    fs::write(&manifest, text).unwrap();
    let Action::Assign(assign) = assign_action(apply(&manifest)) else { panic!("an assignment") };
    let action = Action::Assign(Assign { interval: HumanDuration::seconds(3600), ..assign });
    let command = fleet.assignment(1, action);
    fleet.store_assignment(&command).await;
    assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
}

fn content(fleet: &SingleNodeFleet) -> String {
    fs::read_to_string(fleet.path("file")).unwrap()
}

fn run_command(fleet: &SingleNodeFleet, channel: &str, noop: bool) -> Command {
    let mut command = fleet.command(Action::Run(RunChannel { channel: channel.into() }));
    command.options.noop = noop;
    command
}

#[test]
fn a_channel_runs_now() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        assigned(&fleet, "wanted").await;
        fs::write(fleet.path("file"), "drift").unwrap();
        let dry = as_operator(&fleet, &["run", "base", "--all", "--noop", "--output", "json"]);
        assert_eq!(dry.code, 0, "{}{}", dry.stdout, dry.stderr);
        assert_eq!((&dry.json()["nodes"][0]["outcome"], content(&fleet).as_str()), (&json!("would_change"), "drift"));
        let ran = as_operator(&fleet, &["run", "base", "--node", "web1", "--reason", "CHG-3", "--output", "json"]);
        assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
        let node = &ran.json()["nodes"][0];
        assert_eq!((&node["outcome"], content(&fleet).as_str()), (&json!("changed"), "wanted"), "{node}");
        // Drift: no operator changed the assignment.
        let summary = &node["done"]["apply"];
        assert_eq!((&summary["corrective"], &summary["run_id"]), (&json!(1), &ran.json()["id"]), "{node}");
        let again = as_operator(&fleet, &["run", "base", "--group", "web"]);
        assert!(again.code == 0 && again.stdout.contains("stable"), "{}", again.stdout);
        let state = fleet.state("the run", |state| state.assignments.first().is_some_and(|base| base.stable_runs == 1)).await;
        assert!(state.alarms.is_empty(), "{state:?}");

        let none = as_operator(&fleet, &["run", "other", "--all", "--output", "json"]);
        assert_eq!((none.code, &none.json()["nodes"][0]["code"]), (3, &json!("no_channel")), "{}", none.stdout);
        assert_eq!(as_operator(&fleet, &["run", "a.b", "--all"]).code, 2);
        assert_eq!(as_operator(&fleet, &["run", "base"]).code, 2);
    });
}

#[test]
fn a_key_runs_only_the_channels_of_its_rule_with_the_rights_of_the_assignment() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let rules: [(&str, &str, bool); 5] = [
            // This rule gives no right on files by itself: the assignment has its own.
            ("runner", r#"{"actions": ["run"], "channels": ["base"], "reads": ["/srv/none"]}"#, true),
            ("other-channel", r#"{"actions": ["run"], "channels": ["web-*"]}"#, false),
            ("other-action", r#"{"actions": ["halt", "apply", "healthcheck"]}"#, false),
            ("typed", r#"{"types": ["file"]}"#, false),
            ("noop", r#"{"noop_only": true}"#, false),
        ];
        let keys: Vec<SigningKey> = (0..rules.len() as u8).map(|seed| SigningKey::from_seed(&[50 + seed; 32])).collect();
        let bundle = fleet.trust_with(1, |bundle| {
            for ((id, rule, _), key) in rules.iter().zip(&keys) {
                let key = key.public().to_string();
                bundle.keys.push(OperatorKey { id: (*id).into(), key, not_before: None, not_after: None });
                let mut rule: serde_json::Value = serde_json::from_str(rule).unwrap();
                rule["keys"] = json!([id]);
                bundle.rules.push(serde_json::from_value::<Rule>(rule).unwrap());
            }
        });
        fs::write(fleet.path("trust.json"), bundle).unwrap();
        let _agent = fleet.start_agent().await;
        assigned(&fleet, "wanted").await;
        for ((id, _, is_allowed), key) in rules.iter().zip(&keys) {
            fs::write(fleet.path("file"), "drift").unwrap();
            let command = run_command(&fleet, "base", false);
            let envelope = sign_envelope(COMMAND_TYPE, serde_json::to_vec(&command).unwrap(), &[(*id, key)]).encode();
            fleet.answers(&command, envelope, 1).await;
            let result: CommandResult = fleet.only_result(command.id).await;
            let wanted =
                if *is_allowed { (CommandOutcome::Changed, None) } else { (CommandOutcome::Refused, Some("not_allowed")) };
            assert_eq!((result.outcome, result.code.as_deref()), wanted, "{id}: {result:?}");
            assert_eq!(content(&fleet), if *is_allowed { "wanted" } else { "drift" }, "{id}");
        }
        // Dry runs alone, for a rule that allows nothing else.
        let (dry, key) = (run_command(&fleet, "base", true), &keys[4]);
        let envelope = sign_envelope(COMMAND_TYPE, serde_json::to_vec(&dry).unwrap(), &[("noop", key)]).encode();
        fleet.answers(&dry, envelope, 1).await;
        assert_eq!(fleet.only_result(dry.id).await.outcome, CommandOutcome::WouldChange);
        assert_eq!(content(&fleet), "drift");
    });
}

#[test]
fn a_run_of_a_channel_can_be_cancelled() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let manifest = fleet.path("manifest.yaml");
        let script = format!("echo begun >> {0}; while [ -e {0}.hold ]; do sleep 0.05; done", fleet.path("log").display());
        let exec = json!({"long": {"command": script, "provider": "shell"}});
        fs::write(&manifest, json!({"ccm": {"resources": [{"exec": [exec]}]}}).to_string()).unwrap();
        let assignment = fleet.assignment(1, assign_action(apply(&manifest)));
        fleet.store_assignment(&assignment).await;
        fleet.only_result(assignment.id).await;
        fs::write(fleet.path("log.hold"), "").unwrap();
        let run = run_command(&fleet, "base", false);
        fleet.send(&run).await;
        fleet.until("the run", || fleet.lines("log").len() == 2).await;
        let id = run.id.to_string();
        let cancelled = as_operator(&fleet, &["job", "cancel", &id]);
        // The record of the job is in the stream only when the program itself sent the job.
        assert_eq!(cancelled.code, 2, "{}", cancelled.stderr);
        let cancel = fleet.command(Action::Cancel(ensign::wire::command::JobRef { job: run.id }));
        fleet.send(&cancel).await;
        let result = fleet.only_result(run.id).await;
        assert_eq!((result.outcome, result.code.as_deref()), (CommandOutcome::Interrupted, Some("cancelled")), "{result:?}");
        fs::remove_file(fleet.path("log.hold")).unwrap();
    });
}

#[test]
fn a_key_for_dry_runs_starts_no_program_of_an_assignment() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let key = SigningKey::from_seed(&[50; 32]);
        let bundle = fleet.trust_with(1, |bundle| {
            let public = key.public().to_string();
            bundle.keys.push(OperatorKey { id: "noop".into(), key: public, not_before: None, not_after: None });
            bundle.rules.push(Rule { keys: vec!["noop".into()], quorum: 1, noop_only: true, ..Rule::default() });
        });
        fs::write(fleet.path("trust.json"), bundle).unwrap();
        let _agent = fleet.start_agent().await;
        let (manifest, guard) = (fleet.path("manifest.yaml"), fleet.path("guard"));
        let exec = json!({"guarded": {"command": "/bin/true", "unless": format!("/bin/touch {}", guard.display())}});
        fs::write(&manifest, json!({"ccm": {"resources": [{"exec": [exec]}]}}).to_string()).unwrap();
        let assignment = fleet.assignment(1, assign_action(apply(&manifest)));
        fleet.store_assignment(&assignment).await;
        fleet.only_result(assignment.id).await;
        // The rule without limits runs the guard, also in a dry run; the rule for dry runs only does not.
        for (id, signer, runs_guard) in [("ops", &fleet.operator, true), ("noop", &key, false)] {
            fs::remove_file(&guard).unwrap();
            let command = run_command(&fleet, "base", true);
            let envelope = sign_envelope(COMMAND_TYPE, serde_json::to_vec(&command).unwrap(), &[(id, signer)]).encode();
            fleet.answers(&command, envelope, 1).await;
            let result = fleet.only_result(command.id).await;
            assert_eq!((guard.exists(), result.outcome == CommandOutcome::Failed), (runs_guard, !runs_guard), "{id}: {result:?}");
        }
    });
}
