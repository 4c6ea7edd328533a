//! Policy: finds the rule of the trust bundle that allows a command to its signers. The default is to deny.

use std::fmt;

use crate::model::Effects;
use crate::wire::bundle::Rule;
use crate::wire::command::{Action, Command, Selector};

use super::pattern;
use super::rights::Rights;

/// The allowing rule of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDecision {
    /// The number of the rule in the bundle, from 1.
    pub rule: usize,
    /// The signing keys that the rule counts.
    pub keys: Vec<String>,
    /// True when the rule allows the same to every node.
    pub for_all: bool,
    /// The rights of the run.
    pub rights: Rights,
}

/// The reason why no rule allows a command: the mismatch of the closest rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PolicyDenial {
    nearest: Option<(usize, String)>,
}

impl fmt::Display for PolicyDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.nearest {
            Some((rule, why)) => write!(f, "no rule allows it; the closest is rule {rule}, but {why}"),
            None => f.write_str("no rule names the keys that signed it"),
        }
    }
}

/// Finds the first rule that allows `command` to these distinct signers (ids of keys). `effects` are those of an `ensure`.
///
/// # Errors
/// When no rule does.
pub fn decide(rules: &[Rule], command: &Command, effects: &Effects, signers: &[String]) -> Result<PolicyDecision, PolicyDenial> {
    let mut nearest: Option<(usize, usize, String)> = None;
    for (number, rule) in (1..).zip(rules) {
        let keys: Vec<String> = signers.iter().filter(|id| names(rule, id)).cloned().collect();
        if keys.is_empty() {
            continue;
        }
        let asked = PolicyQuery { command, effects, keys: &keys };
        let passed = CHECKS.iter().map(|check| check(rule, &asked)).take_while(Option::is_none).count();
        let Some(why) = CHECKS.get(passed).and_then(|check| check(rule, &asked)) else {
            let for_all = rule.nodes.is_none() && rule.groups.is_none() && rule.max_nodes.is_none();
            return Ok(PolicyDecision { rule: number, keys, for_all, rights: Rights::from_rule(rule) });
        };
        if nearest.as_ref().is_none_or(|(most, _, _)| passed > *most) {
            nearest = Some((passed, number, why));
        }
    }
    Err(PolicyDenial { nearest: nearest.map(|(_, number, why)| (number, why)) })
}

/// Returns the rights of an assignment that was accepted before: the intersection of all rules that now allow the assignment. So
/// a wider rule that came later widens nothing. Without a rule, the rights are minimal.
pub fn assignment_rights(rules: &[Rule], command: &Command, signers: &[String]) -> Rights {
    let nothing = Effects::default();
    let fitting = rules.iter().filter(|rule| decide(std::slice::from_ref(rule), command, &nothing, signers).is_ok());
    fitting.map(Rights::from_rule).reduce(|all, other| all.intersect(&other)).unwrap_or_else(Rights::minimal)
}

/// True when a rule names the key of this id.
pub fn names(rule: &Rule, id: &str) -> bool {
    pattern::matches_any(&rule.keys, id)
}

/// The properties of a command that rules are compared with.
struct PolicyQuery<'a> {
    command: &'a Command,
    effects: &'a Effects,
    keys: &'a [String],
}

/// A check of a rule, in the order from coarse to fine. A result is the mismatch as a message.
type Check = fn(&Rule, &PolicyQuery<'_>) -> Option<String>;
const CHECKS: &[Check] = &[check_action, check_resource, check_target, check_node_count, check_channel, check_noop, check_quorum];

fn check_action(rule: &Rule, PolicyQuery { command, .. }: &PolicyQuery<'_>) -> Option<String> {
    let name = command.action.name();
    (!allows(rule.actions.as_deref(), name)).then(|| format!("it does not allow the action {name}"))
}

fn check_resource(rule: &Rule, PolicyQuery { command, effects, .. }: &PolicyQuery<'_>) -> Option<String> {
    match &command.action {
        Action::Ensure(ensure) => Rights::from_rule(rule).check_effects(&ensure.kind, effects).err(),
        // The content of a manifest is not known at verification.
        Action::Apply(_) | Action::Assign(_) if rule.types.is_some() || rule.names.is_some() => {
            Some("it allows single resources of some types or names, not a manifest".to_owned())
        }
        action if rule.types.is_some() || rule.names.is_some() => {
            Some(format!("it allows single resources of some types or names, not the action {}", action.name()))
        }
        _ => None,
    }
}

/// Compares the signed selection alone, part by part. The exclusion does not count: a rule for other nodes allows nothing here.
fn check_target(rule: &Rule, PolicyQuery { command, .. }: &PolicyQuery<'_>) -> Option<String> {
    if rule.nodes.is_none() && rule.groups.is_none() {
        return None;
    }
    let to = &command.to;
    if matches!(to.selector(), Some(Selector::All) | None) {
        return Some("it does not allow all nodes".to_owned());
    }
    // A rule that lists nodes allows no groups, and the other way round.
    let listed = |list: &Option<Vec<String>>, name: &str| list.as_deref().is_some_and(|list| pattern::matches_any(list, name));
    let covered = |glob: &str| rule.nodes.iter().flatten().any(|wider| pattern::covers(wider, glob));
    let node = to.nodes.iter().flatten().find(|node| !listed(&rule.nodes, node.as_str()));
    let glob = to.globs.iter().flatten().find(|glob| !covered(glob.as_str()));
    let group = to.groups.iter().flatten().find(|group| !listed(&rule.groups, group));
    let node = node.map(|node| format!("it does not allow the node {node}"));
    let glob = || glob.map(|glob| format!("it does not allow all nodes that match {glob}"));
    node.or_else(glob).or_else(|| group.map(|group| format!("it does not allow the group {group}")))
}

fn check_node_count(rule: &Rule, PolicyQuery { command, .. }: &PolicyQuery<'_>) -> Option<String> {
    let most = rule.max_nodes?;
    match command.to.selector() {
        Some(Selector::Nodes(nodes)) if nodes.len() as u64 <= most => None,
        Some(Selector::Nodes(nodes)) => Some(format!("it allows at most {most} nodes, not {}", nodes.len())),
        _ => Some(format!("it allows at most {most} nodes, each of them named")),
    }
}

fn check_channel(rule: &Rule, PolicyQuery { command, .. }: &PolicyQuery<'_>) -> Option<String> {
    let channels = rule.channels.as_deref()?;
    match command.channel_name() {
        Some(name) if pattern::matches_any(channels, name) => None,
        Some(name) => Some(format!("it does not allow the channel {name}")),
        None => Some("it allows only commands in a channel".to_owned()),
    }
}

fn check_noop(rule: &Rule, PolicyQuery { command, .. }: &PolicyQuery<'_>) -> Option<String> {
    let changes_nothing = match &command.action {
        Action::Facts(_) | Action::Status(_) => true,
        Action::Ensure(_) | Action::Apply(_) | Action::Run(_) => command.options.noop,
        Action::Assign(assign) => !assign.enforce,
        // Health checks run programs.
        Action::Healthcheck(_)
        | Action::Withdraw(_)
        | Action::Halt(_)
        | Action::Resume(_)
        | Action::Go(_)
        | Action::Cancel(_)
        | Action::Remove(_) => false,
    };
    (rule.noop_only && !changes_nothing).then(|| "it allows dry runs only".to_owned())
}

fn check_quorum(rule: &Rule, PolicyQuery { keys, .. }: &PolicyQuery<'_>) -> Option<String> {
    let (wanted, found) = (rule.quorum as usize, keys.len());
    (found < wanted).then(|| format!("it requires {wanted} signatures by its own keys, and has {found}"))
}

/// True when a list has a name. A missing list allows everything.
fn allows(list: Option<&[String]>, name: &str) -> bool {
    list.is_none_or(|list| pattern::matches_any(list, name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn denial(mut rule: Value, to: &Value) -> Option<String> {
        rule["keys"] = json!(["ops"]);
        let rule: Rule = serde_json::from_value(rule).unwrap();
        let command = json!({
            "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "f", "to": to, "action": {"status": {}},
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z",
        });
        let command: Command = serde_json::from_value(command).unwrap();
        assert_eq!(command.check(), Ok(()), "{}", command.to.describe_selection(9));
        decide(&[rule], &command, &Effects::default(), &["ops".to_owned()]).err().map(|denial| denial.to_string())
    }

    #[test]
    fn every_part_of_a_target_must_be_allowed() {
        let (web, groups) = (json!({"nodes": ["web*", "db1"]}), json!({"groups": ["w*"]}));
        let both = json!({"nodes": ["web*"], "groups": ["db"]});
        for (rule, to, wanted) in [
            (&web, json!({"nodes": ["web1", "db1"]}), None),
            (&web, json!({"globs": ["web*", "web1*"]}), None),
            (&web, json!({"nodes": ["db1"], "globs": ["web*"], "not": {"groups": ["canary"]}}), None),
            (&web, json!({"globs": ["web*", "db*"]}), Some("all nodes that match db*")),
            (&web, json!({"globs": ["*"], "not": {"globs": ["db*"]}}), Some("all nodes that match *")),
            (&web, json!({"nodes": ["db2"], "globs": ["web*"]}), Some("the node db2")),
            (&web, json!({"nodes": ["web1"], "groups": ["web"]}), Some("the group web")),
            (&groups, json!({"groups": ["web"], "not": {"nodes": ["web1"]}}), None),
            (&groups, json!({"groups": ["web", "db"]}), Some("the group db")),
            (&groups, json!({"nodes": ["web1"], "groups": ["web"]}), Some("the node web1")),
            (&groups, json!({"globs": ["w*"]}), Some("all nodes that match w*")),
            (&both, json!({"globs": ["web*"], "groups": ["db"]}), None),
            (&both, json!({"all": true, "not": {"nodes": ["x"]}}), Some("it does not allow all nodes")),
            (&json!({"nodes": ["web?"]}), json!({"globs": ["web*"]}), Some("all nodes that match web*")),
            (&json!({"max_nodes": 2}), json!({"globs": ["web1*"]}), Some("at most 2 nodes, each of them named")),
            (&json!({"max_nodes": 2}), json!({"nodes": ["a"], "groups": ["g"]}), Some("at most 2 nodes, each of them named")),
            (
                &json!({"max_nodes": 2}),
                json!({"nodes": ["a", "b", "c"], "not": {"globs": ["c*"]}}),
                Some("at most 2 nodes, not 3"),
            ),
            (&json!({"max_nodes": 2}), json!({"nodes": ["a", "b"], "not": {"groups": ["g"]}}), None),
            (&json!({}), json!({"globs": ["*"]}), None),
        ] {
            let denial = denial(rule.clone(), &to);
            let is_right = match wanted {
                None => denial.is_none(),
                Some(wanted) => denial.as_ref().is_some_and(|denial| denial.contains(wanted)),
            };
            assert!(is_right, "{rule} {to}: {denial:?}");
        }
    }
}
