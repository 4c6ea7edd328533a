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

fn check_target(rule: &Rule, PolicyQuery { command, .. }: &PolicyQuery<'_>) -> Option<String> {
    if rule.nodes.is_none() && rule.groups.is_none() {
        return None;
    }
    // A rule that lists nodes allows no groups, and the other way round.
    let listed = |list: &Option<Vec<String>>, name: &str| list.as_deref().is_some_and(|list| pattern::matches_any(list, name));
    match command.to.selector() {
        Some(Selector::Nodes(nodes)) => {
            let other = nodes.iter().find(|node| !listed(&rule.nodes, node.as_str()))?;
            Some(format!("it does not allow the node {other}"))
        }
        Some(Selector::Groups(groups)) => {
            let other = groups.iter().find(|group| !listed(&rule.groups, group))?;
            Some(format!("it does not allow the group {other}"))
        }
        Some(Selector::All) | None => Some("it does not allow all nodes".to_owned()),
    }
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
        | Action::Cancel(_) => false,
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
