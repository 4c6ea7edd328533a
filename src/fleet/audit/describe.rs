//! Short descriptions of commands, for tables.

use crate::wire::{Action, Selector, Target};

/// Describes an action: `ensure file#/etc/motd`, `apply obj://...`
pub fn describe_action(action: &Action) -> String {
    match action {
        Action::Ensure(ensure) => {
            let name = ensure.properties.get("name").and_then(serde_json::Value::as_str).unwrap_or_default();
            format!("ensure {}#{name}", ensure.kind)
        }
        Action::Apply(apply) => format!("apply {}", apply.url),
        Action::Assign(assign) => format!("assign {}", assign.manifest.url),
        Action::Run(run) => format!("run {}", run.channel),
        Action::Halt(of) | Action::Resume(of) | Action::Cancel(of) => format!("{} {}", action.name(), of.job),
        Action::Go(ahead) => format!("go {} wave {}", ahead.job, ahead.wave),
        Action::Withdraw(_) | Action::Healthcheck(_) | Action::Facts(_) | Action::Status(_) | Action::Remove(_) => {
            action.name().to_owned()
        }
    }
}

/// Describes a target with its filter: `web1, web2`, `group web`, `all`.
pub fn describe_target(audience: &Target) -> String {
    let to = match audience.selector() {
        Some(Selector::Nodes(nodes)) => nodes.iter().map(crate::model::NodeId::as_str).collect::<Vec<_>>().join(", "),
        Some(Selector::Groups(groups)) => format!("group {}", groups.join(", ")),
        Some(Selector::All) => "all".to_owned(),
        Some(Selector::Mixed) => audience.describe_selection(usize::MAX),
        None => "no node".to_owned(),
    };
    let to = format!("{to}{}", audience.describe_exclusion(usize::MAX));
    match &audience.filter {
        Some(condition) => format!("{to} where {condition}"),
        None => to,
    }
}
