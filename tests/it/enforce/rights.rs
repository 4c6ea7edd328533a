//! The rights of watches and reversals: limits of the node, and the rule of the key that signed the assignment.

use std::fs;

use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::bundle::{OperatorKey, Rule};
use ensign::wire::command::Action;
use ensign::wire::{COMMAND_TYPE, CommandOutcome, NodeState};

use super::{content, enforced, manifest, repaired, status, watched};
use crate::support::single_node::{SingleNodeFleet, on_every_server};

/// A watch would tell the holder of the key when a file changes that the key may not read.
#[test]
fn a_resource_that_the_rule_denies_has_no_watch() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let narrow = SigningKey::from_seed(&[5; 32]);
        let readable = fleet.path("readable");
        let trust = fleet.trust_with(1, |bundle| {
            let key = narrow.public().to_string();
            bundle.keys.push(OperatorKey { id: "narrow".into(), key, not_before: None, not_after: None });
            let reads = Some(vec![readable.display().to_string()]);
            let actions = Some(vec!["assign".into()]);
            bundle.rules[0] = Rule { keys: vec!["narrow".into()], quorum: 1, actions, reads, ..Rule::default() };
        });
        fs::write(fleet.path("trust.json"), trust).unwrap();
        let (secret, copy, denied) = (fleet.path("secret"), fleet.path("copy"), fleet.path("denied"));
        fs::write(&readable, "one").unwrap();
        fs::write(&secret, "secret").unwrap();
        let path = fleet.path("sources.yaml");
        let file = |name: &std::path::Path, source: &std::path::Path| {
            let (name, source) = (name.display(), source.display());
            format!("    - file: {{name: {name}, ensure: present, source: {source}, owner: root, group: root, mode: \"0644\"}}\n")
        };
        fs::write(&path, format!("ccm:\n  resources:\n{}{}", file(&copy, &readable), file(&denied, &secret))).unwrap();
        let _agent = fleet.start_agent().await;
        let command = fleet.assignment(1, enforced(&path));
        let signed = sign_envelope(COMMAND_TYPE, serde_json::to_vec(&command).unwrap(), &[("narrow", &narrow)]).encode();
        fleet.bus.publish_stored(fleet.subjects.desired("base").as_str(), &[], signed).await.unwrap();
        let is_settled = |state: &NodeState| {
            let watch = state.assignments.first().and_then(|assignment| assignment.watch);
            watch.is_some_and(|watch| (watch.clean, watch.failed) == (1, 1))
        };
        fleet.state("one resource is denied", is_settled).await;
        assert_eq!((content(&copy).as_deref(), content(&denied)), (Some("one"), None));

        // The denied one is tried again after its pauses only, and never because its source changed.
        for number in 0..20 {
            fs::write(&secret, format!("secret {number}")).unwrap();
        }
        fs::write(&readable, "two").unwrap();
        repaired("the allowed one follows its source", &copy, "two").await;
        fs::write(&copy, "drift").unwrap();
        repaired("drift of the allowed one", &copy, "two").await;
        let repairs = status(&fleet).counts.repairs;
        assert!(repairs.failures_retried <= 6, "{repairs:?}");
        assert_eq!(content(&denied), None);
        assert_eq!(status(&fleet).watches.get("base").map(|watch| watch.resources), Some(2));
    });
}

#[test]
fn a_key_may_not_watch_where_the_node_forbids_watches() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "watch = false").await;
        let _agent = fleet.start_agent().await;
        let path = manifest(&fleet, &["motd"], "first");
        let command = fleet.assignment(1, enforced(&path));
        fleet.store_assignment(&command).await;
        let result = fleet.only_result(command.id).await;
        assert_eq!((result.outcome, result.code.as_deref()), (CommandOutcome::Refused, Some("local_limit")), "{result:?}");
        // The same assignment without a watch is applied.
        let Action::Assign(mut assign) = enforced(&path) else { panic!("an assignment") };
        assign.watch = false;
        let command = fleet.assignment(2, Action::Assign(assign));
        fleet.store_assignment(&command).await;
        assert_eq!(fleet.only_result(command.id).await.outcome, CommandOutcome::Changed);
        assert!(status(&fleet).watches.is_empty());
    });
}

/// A reversal has the rights of the present command: what that may not write stays, with the record.
#[test]
fn a_reversal_stays_within_the_limits_of_the_present_command() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let (inside, outside) = (fleet.path("inside"), fleet.path("outside"));
        fs::write(&outside, "before").unwrap();
        let write = |files: &[&std::path::Path]| {
            let file = |path: &&std::path::Path| {
                let path = path.display();
                format!(
                    "    - file: {{name: {path}, ensure: present, content: one, owner: root, group: root, mode: \"0644\", on_removal: revert}}\n"
                )
            };
            let resources: String = files.iter().map(file).collect();
            fs::write(fleet.path("reversal.yaml"), format!("ccm:\n  resources:\n{resources}")).unwrap();
            enforced(&fleet.path("reversal.yaml"))
        };
        let agent = fleet.start_agent().await;
        let both = fleet.assignment(1, write(&[&inside, &outside]));
        fleet.store_assignment(&both).await;
        watched(&fleet, 1).await;
        assert_eq!(content(&outside).as_deref(), Some("one"));
        agent.stop();

        fleet.write_config(&format!("paths = [\"{}\"]", inside.display()));
        let agent = fleet.start_agent().await;
        let only_inside = fleet.assignment(2, write(&[&inside]));
        fleet.store_assignment(&only_inside).await;
        let result = fleet.only_result(only_inside.id).await;
        assert_eq!(result.outcome, CommandOutcome::Failed, "{result:?}");
        let outside_name = outside.display().to_string();
        assert!(result.failures.keys().any(|resource| resource.contains(&outside_name)), "{result:?}");
        assert_eq!(content(&outside).as_deref(), Some("one"));
        agent.stop();

        // With the right, the next run reverses: nothing was forgotten.
        fleet.write_config("");
        let _agent = fleet.start_agent().await;
        fleet.store_assignment(&fleet.assignment(3, write(&[&inside]))).await;
        repaired("the reversal", &outside, "before").await;
    });
}
