//! `ensign fleet job cancel`: waiting commands never run, running ones are stopped, and no key does so without a rule.

use std::path::Path;

use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::bundle::{OperatorKey, Rule};
use ensign::wire::command::{Action, Command, JobRef, Target};
use ensign::wire::{COMMAND_TYPE, CommandOutcome, CommandResult};
use jiff::SignedDuration;
use serde_json::json;

use crate::rollout::single_node::after_canary;
use crate::support::fleet::Fleet;
use crate::support::nats::binaries;
use crate::support::single_node::{SingleNodeFleet, apply, assign_action, ensure_action, on_every_server};

fn cancel(fleet: &SingleNodeFleet, job: &Command) -> Command {
    Command { reason: Some("smoke".into()), ..fleet.command(Action::Cancel(JobRef { job: job.id })) }
}

/// Sends a command with its signature, and returns its result.
async fn answer(fleet: &SingleNodeFleet, command: &Command, envelope: Vec<u8>) -> CommandResult {
    serde_json::from_value(fleet.answers(command, envelope, 1).await[0].clone()).unwrap()
}

async fn cancelled(fleet: &SingleNodeFleet, job: &Command) -> CommandResult {
    let cancel = cancel(fleet, job);
    answer(fleet, &cancel, fleet.sign(&cancel)).await
}

#[track_caller]
fn assert_cancelled(result: &CommandResult) {
    assert_eq!((result.outcome, result.code.as_deref()), (CommandOutcome::Interrupted, Some("cancelled")), "{result:?}");
    let why = result.message.as_deref().unwrap();
    assert!(why.starts_with("cancelled by ops at ") && why.ends_with(": smoke"), "{why}");
}

/// A command whose shell writes its process id, and then waits for a child without end.
fn endless(fleet: &SingleNodeFleet) -> Command {
    let script = format!("echo $$ > {}; sleep 600; true", fleet.path("pid").display());
    fleet.command(ensure_action("exec", &json!({"name": "endless", "command": script, "provider": "shell"})))
}

/// The process group of [`endless`], while it has processes.
fn group(fleet: &SingleNodeFleet) -> bool {
    let pid: i32 = fleet.lines("pid")[0].parse().unwrap();
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid), None).is_ok()
}

#[test]
fn a_waiting_command_ends_while_another_runs_and_a_running_one_is_killed() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let (running, waiting) = (endless(&fleet), fleet.slow_command("waiting", 0));
        fleet.send(&running).await;
        fleet.until("the run", || fleet.lines("pid").len() == 1).await;
        fleet.answers(&waiting, fleet.sign(&waiting), 1).await;
        let said = cancelled(&fleet, &waiting).await;
        assert_eq!((said.outcome, said.message.as_deref()), (CommandOutcome::Changed, Some("the job waits, and will not run")));
        assert_cancelled(&fleet.only_result(waiting.id).await);
        assert!(group(&fleet) && fleet.lines("waiting").is_empty(), "the other command goes on");

        let stops = cancel(&fleet, &running);
        let said = answer(&fleet, &stops, fleet.sign(&stops)).await;
        let message = Some("the job is running, and is stopped");
        assert_eq!((said.outcome, said.message.as_deref()), (CommandOutcome::Changed, message));
        assert_cancelled(&fleet.only_result(running.id).await);
        fleet.until("the end of its processes", || !group(&fleet)).await;
        // A repetition gets the first answer; a later cancel finds the end.
        assert_eq!(answer(&fleet, &stops, fleet.sign(&stops)).await.message.as_deref(), message);
        let later = cancelled(&fleet, &running).await;
        let message = Some("the job has ended on this node: interrupted");
        assert_eq!((later.outcome, later.message.as_deref()), (CommandOutcome::Stable, message));
        // The node works as before.
        let next = fleet.slow_command("next", 0);
        fleet.send(&next).await;
        assert_eq!(fleet.only_result(next.id).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn a_cancel_counts_before_its_job_arrives_and_after_a_restart() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let job = fleet.slow_command("late", 0);
        let said = cancelled(&fleet, &job).await;
        let message = Some("the job is not on this node, and will not run when it arrives");
        assert_eq!((said.outcome, said.message.as_deref()), (CommandOutcome::Stable, message));
        drop(agent);
        let _agent = fleet.start_agent().await;
        assert_eq!(cancelled(&fleet, &job).await.message.as_deref(), Some("the job is cancelled already"));
        fleet.send(&job).await;
        assert_cancelled(&fleet.only_result(job.id).await);
        assert!(fleet.lines("late").is_empty());
    });
}

#[test]
fn no_resume_undoes_the_cancel_of_a_job_in_waves() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let control = |action: fn(JobRef) -> Action, job: &Command, after: i64| {
            let mut command = Command { to: Target::all(), ..fleet.command(action(JobRef { job: job.id })) };
            command.issued = job.issued + SignedDuration::from_millis(after);
            command.reason = Some("smoke".into());
            command
        };
        // The node learns of one cancel from the stream, and of the other by a message.
        for is_stored in [true, false] {
            let (job, canary) = after_canary(fleet.slow_command("wave", 0));
            fleet.answers(&job, fleet.sign(&job), 1).await;
            let (cancel, resume) = (control(Action::Cancel, &job, 10), control(Action::Resume, &job, 20));
            let subject = fleet.subjects.rollout_control(job.id);
            if is_stored {
                fleet.bus.publish_stored(subject.as_str(), &[], fleet.sign(&cancel)).await.unwrap();
            } else {
                let said = answer(&fleet, &cancel, fleet.sign(&cancel)).await;
                assert_eq!(said.message.as_deref(), Some("the job waits, and will not run"));
            }
            assert_cancelled(&fleet.only_result(job.id).await);
            answer(&fleet, &resume, fleet.sign(&resume)).await;
            canary.succeeds(&fleet, &job).await;
            // Another command shows that the node had its chance.
            let other = fleet.slow_command("other", 0);
            fleet.send(&other).await;
            fleet.only_result(other.id).await;
            assert!(fleet.lines("wave").is_empty());
        }
    });
}

#[test]
fn long_reasons_do_not_keep_the_agent_from_starting() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let agent = fleet.start_agent().await;
        let actions: [fn(JobRef) -> Action; 2] = [Action::Cancel, Action::Halt];
        for action in actions {
            // Together longer than the files of overrides may be.
            for _ in 0..40 {
                let mut command = fleet.command(action(JobRef { job: uuid::Uuid::now_v7() }));
                command.reason = Some("x".repeat(40_000));
                assert_eq!(answer(&fleet, &command, fleet.sign(&command)).await.outcome, CommandOutcome::Stable);
            }
        }
        drop(agent);
        let _agent = fleet.start_agent().await;
    });
}

/// Keys without the right to cancel, by their rules.
fn weak_rules() -> Vec<(&'static str, Rule)> {
    let rule = |keys: &str, change: &dyn Fn(&mut Rule)| {
        let mut rule = Rule { keys: vec![keys.into()], quorum: 1, ..Rule::default() };
        change(&mut rule);
        rule
    };
    vec![
        ("halts", rule("halts", &|rule| rule.actions = Some(vec!["halt".into(), "resume".into(), "ensure".into()]))),
        ("noop", rule("noop", &|rule| rule.noop_only = true)),
        ("elsewhere", rule("elsewhere", &|rule| rule.nodes = Some(vec!["db*".into()]))),
        ("typed", rule("typed", &|rule| rule.types = Some(vec!["exec".into()]))),
        ("channels", rule("channels", &|rule| rule.channels = Some(vec!["*".into()]))),
        ("two", rule("two", &|rule| rule.quorum = 2)),
    ]
}

#[test]
fn a_key_without_the_right_cancels_nothing() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let keys: Vec<SigningKey> = (0..weak_rules().len() as u8).map(|seed| SigningKey::from_seed(&[40 + seed; 32])).collect();
        let bundle = fleet.trust_with(1, |bundle| {
            for ((id, rule), key) in weak_rules().into_iter().zip(&keys) {
                let key = key.public().to_string();
                bundle.keys.push(OperatorKey { id: id.into(), key, not_before: None, not_after: None });
                bundle.rules.push(rule);
            }
        });
        std::fs::write(fleet.path("trust.json"), bundle).unwrap();
        let _agent = fleet.start_agent().await;
        let job = fleet.gated_command("job");
        fleet.send(&job).await;
        fleet.until("the run", || fleet.lines("job").len() == 1).await;
        for ((id, _), key) in weak_rules().into_iter().zip(&keys) {
            let cancel = cancel(&fleet, &job);
            let envelope = sign_envelope(COMMAND_TYPE, serde_json::to_vec(&cancel).unwrap(), &[(id, key)]).encode();
            let said = answer(&fleet, &cancel, envelope).await;
            assert_eq!((said.outcome, said.code.as_deref()), (CommandOutcome::Refused, Some("not_allowed")), "{id}: {said:?}");
        }
        let mut noop = cancel(&fleet, &job);
        noop.options.noop = true;
        assert_eq!(answer(&fleet, &noop, fleet.sign(&noop)).await.code.as_deref(), Some("malformed"));
        fleet.open_gate("job");
        assert_eq!(fleet.only_result(job.id).await.outcome, CommandOutcome::Changed);
    });
}

#[test]
fn a_key_cannot_fill_the_record_of_cancelled_jobs() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let other = SigningKey::from_seed(&[40; 32]);
        let bundle = fleet.trust_with(1, |bundle| {
            let key = other.public().to_string();
            bundle.keys.push(OperatorKey { id: "other".into(), key, not_before: None, not_after: None });
            bundle.rules.push(Rule { keys: vec!["other".into()], quorum: 1, ..Rule::default() });
        });
        std::fs::write(fleet.path("trust.json"), bundle).unwrap();
        let _agent = fleet.start_agent().await;
        let mut codes = Vec::new();
        let job = fleet.gated_command("job");
        fleet.send(&job).await;
        fleet.until("the run", || fleet.lines("job").len() == 1).await;
        for _ in 0..257 {
            codes.push(cancelled(&fleet, &fleet.slow_command("unknown", 0)).await.code);
        }
        assert_eq!((codes.iter().flatten().count(), codes[256].as_deref()), (1, Some("busy")));
        let cancel_by_other = cancel(&fleet, &fleet.slow_command("unknown", 0));
        let payload = serde_json::to_vec(&cancel_by_other).unwrap();
        let envelope = sign_envelope(COMMAND_TYPE, payload, &[("other", &other)]).encode();
        assert_eq!(answer(&fleet, &cancel_by_other, envelope).await.outcome, CommandOutcome::Stable);
        // A job that the node has needs no place.
        assert_eq!(cancelled(&fleet, &job).await.outcome, CommandOutcome::Changed);
        assert_cancelled(&fleet.only_result(job.id).await);
    });
}

#[test]
fn an_operator_cancels_a_job_from_anywhere() {
    for binary in binaries() {
        let nodes = [("web1", "web"), ("db1", "db")];
        let mut fleet = Fleet::new(&binary, &nodes);
        nodes.iter().for_each(|(node, group)| fleet.start_with(node, group, "", "exec = true"));
        // The second resource must not begin.
        let manifest = fleet.path("site");
        std::fs::create_dir(&manifest).unwrap();
        let exec = |command: &str| json!({"command": command, "provider": "shell"});
        let first = json!({"first": exec("touch {{ Facts.site }}/begun; sleep 600")});
        let second = json!({"second": exec("touch {{ Facts.site }}/second")});
        let text = json!({"ccm": {"resources": [{"exec": [first]}, {"exec": [second]}]}}).to_string();
        std::fs::write(manifest.join("manifest.yaml"), text).unwrap();
        let sent = fleet.run(&["apply", manifest.to_str().unwrap(), "--all", "--detach"]);
        assert_eq!(sent.code, 0, "{}", sent.stderr);
        let id = sent.stdout.trim().to_owned();
        fleet.wait_for("every run", || nodes.iter().all(|(node, _)| fleet.path(node).join("site/begun").exists()));
        let ended = fleet.run(&["job", "cancel", &id, "--reason", "CHG-9", "--output", "json"]);
        assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
        let document = ended.json();
        for node in document["nodes"].as_array().unwrap() {
            assert_eq!((&node["outcome"], &node["done"]["code"]), (&json!("interrupted"), &json!("cancelled")), "{node}");
            let why = node["done"]["message"].as_str().unwrap();
            assert!(why.starts_with("cancelled by ops-alice at ") && why.ends_with(": CHG-9"), "{why}");
            let error = node["done"]["apply"]["error"].as_str().unwrap_or_default();
            assert!(error.is_empty() || error.contains("cancelled by"), "{error}");
        }
        assert_eq!(document["nodes"].as_array().map(Vec::len), Some(2));
        assert!(nodes.iter().all(|(node, _)| !fleet.path(node).join("site/second").exists()));
        let again = fleet.run(&["job", "cancel", &id]);
        assert!(again.code == 0 && again.stdout.contains("the job has ended on this node: interrupted"), "{}", again.stdout);
        let why = fleet.run(&["why", &id, "web1"]).stdout;
        assert!(why.contains("cancelled by ops-alice") && why.contains("CHG-9"), "{why}");
        let list = fleet.run(&["job", "list", "--output", "json"]).json();
        let cancels = list.as_array().unwrap().iter().filter(|job| job["action"] == "cancel");
        assert!(cancels.clone().all(|job| job["what"] == id) && cancels.count() == 2, "{list}");
        assert_eq!(fleet.run(&["job", "cancel", "0198c1f2-7a3b-7c4d-8e5f-102030405060"]).code, 2);
        // An assignment is withdrawn.
        let short = json!({"ccm": {"resources": [{"exec": [{"nothing": {"command": "/bin/true"}}]}]}});
        std::fs::write(manifest.join("manifest.yaml"), short.to_string()).unwrap();
        let assigned = fleet.run(&["assign", "base", manifest.to_str().unwrap(), "--all", "--output", "json"]).json();
        let refused = fleet.run(&["job", "cancel", assigned["id"].as_str().unwrap()]);
        assert!(refused.code == 2 && refused.stderr.contains("`ensign fleet withdraw base`"), "{}", refused.stderr);
    }
}

#[test]
fn an_assignment_is_not_cancelled() {
    on_every_server(async |binary: &Path| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let _agent = fleet.start_agent().await;
        let manifest = fleet.path("manifest.yaml");
        let exec = json!({"nothing": {"command": "/bin/true"}});
        std::fs::write(&manifest, json!({"ccm": {"resources": [{"exec": [exec]}]}}).to_string()).unwrap();
        let assignment = fleet.assignment(1, assign_action(apply(&manifest)));
        fleet.store_assignment(&assignment).await;
        fleet.only_result(assignment.id).await;
        let said = cancelled(&fleet, &assignment).await;
        assert_eq!((said.outcome, said.code.as_deref()), (CommandOutcome::Refused, Some("not_cancellable")), "{said:?}");
    });
}
