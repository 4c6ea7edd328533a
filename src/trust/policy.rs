//! Policy: which rule of the trust bundle allows a command to those who signed it. Default deny.

use std::fmt;

use crate::wire::bundle::Rule;
use crate::wire::command::{Action, Command, Ensure, Target};

use super::glob;
use super::reach::reaches;

/// The rule that allows a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Its place in the bundle, from 1.
    pub rule: usize,
    /// The signing keys that it counts.
    pub keys: Vec<String>,
    /// True when it would allow the same to every node.
    pub for_all: bool,
}

/// No rule allows a command: what the rule that came nearest lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Denied {
    nearest: Option<(usize, String)>,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.nearest {
            Some((rule, why)) => write!(f, "no rule allows it; rule {rule} comes nearest, but {why}"),
            None => f.write_str("no rule names the keys that signed it"),
        }
    }
}

/// Finds the first rule that allows `command` to these distinct signers (ids of keys).
///
/// # Errors
/// When none does.
pub fn decide(rules: &[Rule], command: &Command, signers: &[String]) -> Result<Allowed, Denied> {
    let mut nearest: Option<(usize, usize, String)> = None;
    for (number, rule) in (1..).zip(rules) {
        let keys: Vec<String> = signers.iter().filter(|id| names(rule, id)).cloned().collect();
        if keys.is_empty() {
            continue;
        }
        let passed = CHECKS.iter().map(|check| check(rule, command, &keys)).take_while(Option::is_none).count();
        let Some(why) = CHECKS.get(passed).and_then(|check| check(rule, command, &keys)) else {
            let for_all = rule.nodes.is_none() && rule.groups.is_none() && rule.max_nodes.is_none();
            return Ok(Allowed { rule: number, keys, for_all });
        };
        if nearest.as_ref().is_none_or(|(most, _, _)| passed > *most) {
            nearest = Some((passed, number, why));
        }
    }
    Err(Denied { nearest: nearest.map(|(_, number, why)| (number, why)) })
}

/// True when a rule is about the key of this id.
pub fn names(rule: &Rule, id: &str) -> bool {
    glob::any(&rule.keys, id)
}

/// What is checked of a rule, the coarse before the fine; each says what does not fit.
type Check = fn(&Rule, &Command, &[String]) -> Option<String>;
const CHECKS: &[Check] = &[action, what, audience, count, channel, noop, quorum];

fn action(rule: &Rule, command: &Command, _: &[String]) -> Option<String> {
    let name = command.action.name();
    (!allows(rule.actions.as_deref(), name)).then(|| format!("it does not allow the action {name}"))
}

fn what(rule: &Rule, command: &Command, _: &[String]) -> Option<String> {
    match &command.action {
        Action::Ensure(ensure) => resource(rule, ensure),
        // What a manifest holds is not known when it is verified.
        Action::Apply(_) | Action::Assign(_) if rule.types.is_some() || rule.names.is_some() => {
            Some("it allows single resources of some types or names, not a manifest".to_owned())
        }
        action if rule.types.is_some() || rule.names.is_some() => {
            Some(format!("it allows single resources of some types or names, not the action {}", action.name()))
        }
        _ => None,
    }
}

fn resource(rule: &Rule, ensure: &Ensure) -> Option<String> {
    reaches(ensure).into_iter().find_map(|reach| {
        if !allows(rule.types.as_deref(), reach.kind) {
            let own = reach.kind == ensure.kind;
            let brings = if own { String::new() } else { format!(", which the {} brings along", ensure.kind) };
            return Some(format!("it does not allow the type {}{brings}", reach.kind));
        }
        let names = rule.names.as_deref()?;
        if glob::is_template(&reach.name) {
            return Some(format!("it allows some names only, and \"{}\" is made on the node", reach.shown()));
        }
        (!glob::any(names, &reach.compared())).then(|| format!("it does not allow {} \"{}\"", reach.kind, reach.shown()))
    })
}

fn audience(rule: &Rule, command: &Command, _: &[String]) -> Option<String> {
    if rule.nodes.is_none() && rule.groups.is_none() {
        return None;
    }
    // A rule that lists nodes says nothing about groups, and the other way round.
    let listed = |list: &Option<Vec<String>>, name: &str| list.as_deref().is_some_and(|list| glob::any(list, name));
    match command.to.target() {
        Some(Target::Nodes(nodes)) => {
            let other = nodes.iter().find(|node| !listed(&rule.nodes, node.as_str()))?;
            Some(format!("it does not allow the node {other}"))
        }
        Some(Target::Groups(groups)) => {
            let other = groups.iter().find(|group| !listed(&rule.groups, group))?;
            Some(format!("it does not allow the group {other}"))
        }
        Some(Target::All) | None => Some("it does not allow all nodes".to_owned()),
    }
}

fn count(rule: &Rule, command: &Command, _: &[String]) -> Option<String> {
    let most = rule.max_nodes?;
    match command.to.target() {
        Some(Target::Nodes(nodes)) if nodes.len() as u64 <= most => None,
        Some(Target::Nodes(nodes)) => Some(format!("it allows at most {most} nodes, not {}", nodes.len())),
        _ => Some(format!("it allows at most {most} nodes, each of them named")),
    }
}

fn channel(rule: &Rule, command: &Command, _: &[String]) -> Option<String> {
    let channels = rule.channels.as_deref()?;
    match &command.channel {
        Some(channel) if glob::any(channels, &channel.name) => None,
        Some(channel) => Some(format!("it does not allow the channel {}", channel.name)),
        None => Some("it allows only what is in a channel".to_owned()),
    }
}

fn noop(rule: &Rule, command: &Command, _: &[String]) -> Option<String> {
    let changes_nothing = match &command.action {
        Action::Healthcheck(_) | Action::Facts(_) | Action::Status(_) => true,
        Action::Assign(assign) => !assign.enforce,
        _ => command.options.noop,
    };
    (rule.noop_only && !changes_nothing).then(|| "it allows dry runs only".to_owned())
}

fn quorum(rule: &Rule, _: &Command, keys: &[String]) -> Option<String> {
    let (wanted, found) = (rule.quorum as usize, keys.len());
    (found < wanted).then(|| format!("it wants {wanted} signatures by keys of its own, and has {found}"))
}

/// A list that is left out allows everything.
fn allows(list: Option<&[String]>, name: &str) -> bool {
    list.is_none_or(|list| glob::any(list, name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn command(changes: &Value) -> Command {
        let mut value = json!({
            "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "f", "to": {"nodes": ["web1"]},
            "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z",
            "action": {"ensure": {"type": "file", "properties": {"name": "/srv/a"}}},
        });
        for (key, change) in changes.as_object().unwrap() {
            value[key] = change.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn verdict(rules: &[Value], changes: &Value, signers: &[&str]) -> Result<usize, String> {
        let rules: Vec<Rule> = rules.iter().map(|rule| serde_json::from_value(rule.clone()).unwrap()).collect();
        let signers: Vec<String> = signers.iter().map(|id| (*id).to_owned()).collect();
        decide(&rules, &command(changes), &signers).map(|allowed| allowed.rule).map_err(|denied| denied.to_string())
    }

    fn ensure(kind: &str, properties: &Value) -> Value {
        json!({"action": {"ensure": {"type": kind, "properties": properties}}})
    }

    fn apply() -> Value {
        json!({"action": {"apply": {"url": "u", "sha256": "", "size": 1}}})
    }

    #[test]
    fn what_no_rule_allows_is_denied() {
        assert_eq!(verdict(&[], &json!({}), &["a"]).unwrap_err(), "no rule names the keys that signed it");
        let rules = [json!({"keys": ["ops-*"]}), json!({"keys": ["ci"], "noop_only": true})];
        assert_eq!(verdict(&rules, &json!({}), &["ops-alice"]), Ok(1));
        assert_eq!(
            verdict(&rules, &json!({}), &["ci"]).unwrap_err(),
            "no rule allows it; rule 2 comes nearest, but it allows dry runs only"
        );
        assert_eq!(verdict(&rules, &json!({"options": {"noop": true}}), &["ci"]), Ok(2));
        assert!(verdict(&rules, &json!({}), &["other"]).is_err());
    }

    #[test]
    fn each_condition_counts() {
        let channel = |name: &str| json!({"action": apply()["action"], "channel": {"name": name, "epoch": 1, "serial": 1}});
        for (rule, changes, wanted) in [
            (json!({"actions": ["apply"]}), json!({}), Some("the action ensure")),
            (json!({"actions": ["ensure"]}), json!({}), None),
            (json!({"types": ["service", "pack*"]}), json!({}), Some("the type file")),
            (json!({"types": ["file"]}), json!({}), None),
            (json!({"types": ["file"]}), apply(), Some("not a manifest")),
            (json!({"names": ["**"]}), apply(), Some("not a manifest")),
            (json!({}), apply(), None),
            (json!({"names": ["/srv/**"]}), json!({}), None),
            (json!({"names": ["/srv/**"]}), ensure("file", &json!({"name": "/srv/../etc/passwd"})), Some("file \"/etc/passwd\"")),
            (json!({"names": ["/srv/**"]}), ensure("file", &json!({"name": "/srv/{{ x }}"})), Some("made on the node")),
            (json!({"names": ["/srv/**"]}), ensure("file", &json!({"name": "/srv/${ x }"})), Some("made on the node")),
            (
                json!({"names": ["/srv/**"]}),
                ensure("file", &json!({"name": "/srv/a", "source": "/etc/shadow"})),
                Some("/etc/shadow"),
            ),
            (json!({"names": ["uptime"]}), ensure("exec", &json!({"name": "uptime", "command": "rm -r /"})), Some("\"rm -r /\"")),
            // A command is no path: not all of it is one name.
            (
                json!({"names": ["/bin/ls"]}),
                ensure("exec", &json!({"name": "/bin/rm -r x/../../bin/ls"})),
                Some("exec \"/bin/rm -r x/../../bin/ls\""),
            ),
            (
                json!({"names": ["uptime"]}),
                ensure("exec", &json!({"name": "uptime", "environment": ["LD_PRELOAD=/x"]})),
                Some("exec \"LD_PRELOAD=...\""),
            ),
            (json!({"names": ["uptime"]}), ensure("exec", &json!({"name": "uptime", "path": "/x"})), Some("exec \"PATH=...\"")),
            (json!({"names": ["make"]}), ensure("exec", &json!({"name": "make", "cwd": "/x"})), Some("exec \"PWD=...\"")),
            (
                json!({"names": ["make", "PWD=/srv/*", "LANG=C"]}),
                ensure("exec", &json!({"name": "make", "cwd": "/srv/x", "environment": ["LANG=C"]})),
                None,
            ),
            (
                json!({"names": ["uptime"]}),
                ensure("cron", &json!({"name": "uptime", "environment": ["TOKEN=hunter2"]})),
                Some("exec \"TOKEN=...\""),
            ),
            (
                json!({"names": ["/srv/*"]}),
                ensure("archive", &json!({"name": "/srv/a.tgz", "extract_parent": "/etc"})),
                Some("/etc"),
            ),
            (
                json!({"types": ["file"]}),
                ensure("file", &json!({"name": "/srv/a", "health_checks": [{"command": "rm"}]})),
                Some("the type exec, which the file brings along"),
            ),
            (json!({}), ensure("file", &json!({"name": "/srv/a", "health_checks": [{"command": "rm"}]})), None),
            (json!({"types": ["package"], "names": ["demo-*"]}), ensure("package", &json!({"name": "demo-plain"})), None),
            (json!({"names": ["demo-*"]}), ensure("package", &json!({"name": "bash"})), Some("package \"bash\"")),
            (json!({"names": ["demo-*"]}), ensure("package", &json!({"name": "not-demo-plain"})), Some("not-demo-plain")),
            (json!({"names": ["bash"]}), ensure("package", &json!({"name": "bash:i386"})), Some("bash:i386")),
            (json!({"names": ["g++"]}), ensure("package", &json!({"name": "g++"})), None),
            (json!({"names": ["demo-*"]}), ensure("package", &json!({"name": "demo-{{ x }}"})), Some("made on the node")),
            (json!({"names": ["demo-*"]}), ensure("package", &json!({"name": ["demo-x"]})), Some("does not allow package")),
            (json!({"types": ["service"]}), ensure("package", &json!({"name": "demo-plain"})), Some("the type package")),
            (json!({"nodes": ["web*"]}), json!({}), None),
            (json!({"nodes": ["web*"]}), json!({"to": {"nodes": ["web1", "db1"]}}), Some("the node db1")),
            (json!({"nodes": ["web*"]}), json!({"to": {"groups": ["web"]}}), Some("the group web")),
            (json!({"nodes": ["*"]}), json!({"to": {"all": true}}), Some("all nodes")),
            (json!({"groups": ["web"]}), json!({"to": {"groups": ["web"]}}), None),
            (json!({"groups": ["web"]}), json!({"to": {"groups": ["web", "db"]}}), Some("the group db")),
            (json!({"groups": ["web"]}), json!({}), Some("the node web1")),
            (json!({"max_nodes": 2}), json!({"to": {"nodes": ["a", "b"]}}), None),
            (json!({"max_nodes": 2}), json!({"to": {"nodes": ["a", "b", "c"]}}), Some("at most 2 nodes, not 3")),
            (json!({"max_nodes": 2}), json!({"to": {"groups": ["a"]}}), Some("each of them named")),
            (json!({"max_nodes": 2}), json!({"to": {"all": true}}), Some("each of them named")),
            (json!({"channels": ["base"]}), channel("base"), None),
            (json!({"channels": ["base"]}), channel("other"), Some("the channel other")),
            (json!({"channels": ["base"]}), apply(), Some("only what is in a channel")),
            (json!({"channels": ["base"]}), json!({}), Some("only what is in a channel")),
        ] {
            let mut rule = rule;
            rule["keys"] = json!(["a"]);
            match (verdict(std::slice::from_ref(&rule), &changes, &["a"]), wanted) {
                (Ok(_), None) => {}
                (Err(message), Some(wanted)) if message.contains(wanted) => {}
                (verdict, wanted) => panic!("{rule} {changes}: {verdict:?}, wanted {wanted:?}"),
            }
        }
    }

    #[test]
    fn a_quorum_counts_the_rules_own_keys() {
        let rules = [json!({"keys": ["ops-*"], "quorum": 2})];
        assert!(
            verdict(&rules, &json!({}), &["ops-a"]).unwrap_err().ends_with("it wants 2 signatures by keys of its own, and has 1")
        );
        assert!(verdict(&rules, &json!({}), &["ops-a", "ci"]).is_err());
        assert_eq!(verdict(&rules, &json!({}), &["ops-a", "ops-b"]), Ok(1));
    }

    #[test]
    fn the_rule_that_comes_nearest_is_named() {
        let rules = [json!({"keys": ["a"], "actions": ["apply"]}), json!({"keys": ["a"], "types": ["service"]})];
        assert_eq!(
            verdict(&rules, &json!({}), &["a"]).unwrap_err(),
            "no rule allows it; rule 2 comes nearest, but it does not allow the type file"
        );
    }
}
