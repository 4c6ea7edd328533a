//! The limits of this host, as every part of the agent needs them: the verifier, the engine, fetching.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::config;
use crate::engine::Permit;
use crate::host::fs;
use crate::http;
use crate::manifest::fetch::FetchLimits;
use crate::model::Bounds;
use crate::trust::{Limits, PATH_TYPES, VALIDATE, further_paths, own_commands, path};

/// The type of everything that runs a command.
const EXEC: &str = "exec";

/// The limits as the verifier has them.
pub(super) fn of(settings: &config::Settings) -> Limits {
    let config::Limits { types, paths, exec, apply, fetch_hosts, .. } = settings.limits.clone();
    Limits { types, paths, exec, fetch_hosts, apply, channels: settings.channels.clone() }
}

/// The limits as fetching has them.
pub(super) fn fetching(settings: &config::Settings, timeout: Duration) -> FetchLimits {
    FetchLimits { max: settings.max_bundle, hosts: settings.limits.fetch_hosts.clone(), timeout }
}

/// The limits as resources that fetch and unpack have them.
pub(super) fn bounds(limits: &config::Limits) -> Bounds {
    Bounds {
        fetch_hosts: limits.fetch_hosts.clone(),
        internal: false,
        // Who may write somewhere may as well read there.
        read_paths: limits.read_paths.clone().or_else(|| limits.paths.clone()),
        archive_size: limits.archive_size,
        archive_entries: limits.archive_entries,
        archive_ratio: limits.archive_ratio,
    }
}

/// Asked by the engine for every resource, when its name is resolved.
pub(super) struct Permitted(pub(super) Limits);

impl Permit for Permitted {
    fn permit(&self, kind: &str, name: &str) -> Result<(), String> {
        if !self.0.type_allowed(kind) {
            return Err(format!("this node does not manage the type {kind}"));
        }
        // A line may name its path elsewhere, which was looked at with the plan.
        if PATH_TYPES.contains(&kind) && kind != "line" && !self.0.path_allowed(Path::new(name)) {
            return Err(format!("this node does not manage the path \"{name}\""));
        }
        if PATH_TYPES.contains(&kind) && name.starts_with('/') { real_path(&self.0, kind, Path::new(name)) } else { Ok(()) }
    }

    fn permit_plan(&self, rendered: &Value) -> Result<(), String> {
        check_rendered(&self.0, rendered)
    }
}

/// Whether a path is within the limits when links on the way to it are followed, now.
///
/// A link at its end is replaced or refused by most types; where it leads to a directory, something may be written there.
fn real_path(limits: &Limits, kind: &str, path: &Path) -> Result<(), String> {
    let Some(prefixes) = &limits.paths else { return Ok(()) };
    let Some((parent, name)) = path.parent().zip(path.file_name()) else { return Ok(()) };
    let beside = fs::real(parent).join(name);
    let real = if kind != "symlink" && path.is_dir() { fs::real(path) } else { beside };
    if prefixes.iter().any(|prefix| real.starts_with(fs::real(Path::new(prefix)))) {
        return Ok(());
    }
    Err(format!("\"{}\" leads to \"{}\", which this node does not manage", path.display(), real.display()))
}

/// Checks what resources of a planned manifest do beside what their names say.
///
/// # Errors
/// With the first thing that is over a limit, in words.
pub(super) fn check_rendered(limits: &Limits, rendered: &Value) -> Result<(), String> {
    let resources = rendered.pointer("/ccm/resources").and_then(Value::as_array);
    for (kind, properties) in resources.into_iter().flatten().filter_map(Value::as_object).flatten() {
        if let Some(properties) = properties.as_object() {
            check_properties(limits, kind, properties).map_err(|why| format!("a resource of type {kind}: {why}"))?;
        }
    }
    Ok(())
}

fn check_properties(limits: &Limits, kind: &str, properties: &Map<String, Value>) -> Result<(), String> {
    let is_given = |key: &&str| match properties.get(*key) {
        None | Some(Value::Null) => false,
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    };
    if let Some(key) = ["post", VALIDATE].iter().find(|key| is_given(key))
        && !limits.type_allowed(EXEC)
    {
        return Err(format!("its {key} run commands, and this node runs none"));
    }
    if is_given(&"health_checks") {
        limits.check_health(properties)?;
    }
    if !own_commands(kind, properties).is_empty() && !limits.type_allowed(EXEC) {
        return Err("it lets others run commands, and this node runs none".to_owned());
    }
    limits.check_system(kind, properties)?;
    let text = |key: &str| properties.get(key).and_then(Value::as_str);
    if let Some(parent) = text("extract_parent").filter(|parent| !limits.path_allowed(Path::new(parent))) {
        return Err(format!("this node does not manage the path \"{parent}\""));
    }
    let beside = path(kind, properties).map(Into::into).into_iter().chain(further_paths(kind, properties));
    if let Some(other) = beside.into_iter().find(|path| !limits.path_allowed(Path::new(path.as_ref()))) {
        return Err(format!("this node does not manage the path \"{other}\""));
    }
    if let Some(host) = text("url").and_then(http::host_of).filter(|host| !limits.host_allowed(host)) {
        return Err(format!("this node does not fetch from \"{host}\""));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_resources_do_beside_their_names_is_limited() {
        let limits = Limits {
            paths: Some(vec!["/srv".into()]),
            fetch_hosts: Some(vec!["good.example".into()]),
            exec: false,
            ..Limits::default()
        };
        for (properties, allowed) in [
            (json!({"name": "/srv/a", "health_checks": [], "post": null}), true),
            (json!({"health_checks": [{"command": "id"}]}), false),
            (json!({"health_checks": [{"goss_rules": {"command": {"id": {"exit-status": 0}}}}]}), false),
            (json!({"health_checks": [{"goss_rules": {"port": {"tcp:22": {"listening": true}}}}]}), true),
            (json!({"health_checks": [{"goss_rules": {"http": {"https://good.example/": {"status": 200}}}}]}), true),
            (json!({"health_checks": [{"goss_rules": {"http": {"https://evil.example/": {"status": 200}}}}]}), false),
            (json!({"health_checks": [{"goss_rules": {"file": {"/etc/shadow": {"exists": true}}}}]}), true),
            (json!({"health_checks": [{"goss_rules": {"file": {"/etc/shadow": {"contents": ["root"]}}}}]}), false),
            (json!({"post": [{"*": "id"}]}), false),
            (json!({"extract_parent": "/srv/x", "url": "https://good.example/a"}), true),
            (json!({"extract_parent": "/etc"}), false),
            (json!({"url": "https://evil.example/a"}), false),
            (json!({"validate": ""}), true),
            (json!({"validate": "id %s"}), false),
        ] {
            let rendered = json!({"ccm": {"resources": [{"file": {"name": "/srv/b"}}, {"archive": properties}]}});
            assert_eq!(check_rendered(&limits, &rendered).is_ok(), allowed, "{rendered}");
        }
        for (kind, properties, allowed) in [
            ("line", json!({"name": "any name", "path": "/srv/a"}), true),
            ("line", json!({"name": "/srv/a", "path": "/etc/a"}), false),
            ("line", json!({"name": "/etc/a"}), false),
            ("symlink", json!({"name": "/srv/a", "target": "b"}), true),
            ("symlink", json!({"name": "/srv/a", "target": "../etc"}), false),
            ("mount", json!({"name": "/srv/a", "device": "/etc"}), false),
            ("file", json!({"name": "/srv/a", "backup": "/var/backups"}), false),
            ("user", json!({"name": "a"}), false),
            ("cron", json!({"name": "a", "command": "id"}), false),
            ("sysctl", json!({"name": "vm.swappiness", "value": 1}), false),
        ] {
            let rendered = json!({"ccm": {"resources": [{kind: properties}]}});
            assert_eq!(check_rendered(&limits, &rendered).is_ok(), allowed, "{rendered}");
        }
        let unpathed = Limits { paths: None, exec: false, ..Limits::default() };
        for (kind, properties, allowed) in [
            ("user", json!({"name": "a", "home": "/x", "manage_home": true}), true),
            ("cron", json!({"name": "a", "ensure": "absent"}), true),
            ("cron", json!({"name": "a", "command": "id"}), false),
            ("sysctl", json!({"name": "vm.swappiness", "value": 1}), true),
            ("sysctl", json!({"name": "kernel/modprobe", "value": "/x"}), false),
        ] {
            let rendered = json!({"ccm": {"resources": [{kind: properties}]}});
            assert_eq!(check_rendered(&unpathed, &rendered).is_ok(), allowed, "{rendered}");
        }
        let permitted = Permitted(limits);
        for (kind, name, allowed) in [
            ("file", "/srv/a", true),
            ("file", "/etc/a", false),
            ("file", "/srv/../etc/a", false),
            ("mount", "/etc", false),
            ("symlink", "/etc/a", false),
            ("service", "nginx", true),
            ("exec", "id", false),
        ] {
            assert_eq!(permitted.permit(kind, name).is_ok(), allowed, "{kind} {name}");
        }
    }

    #[test]
    fn links_lead_nowhere_else() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("own/sub")).unwrap();
        std::fs::create_dir(root.join("other")).unwrap();
        std::os::unix::fs::symlink(root.join("other"), root.join("own/out")).unwrap();
        std::os::unix::fs::symlink(root.join("own/sub"), root.join("own/in")).unwrap();
        std::os::unix::fs::symlink(root.join("own"), root.join("alias")).unwrap();
        for prefix in ["own", "alias"] {
            let prefix = root.join(prefix);
            let limits = Limits { paths: Some(vec![prefix.display().to_string()]), ..Limits::default() };
            for (kind, below, allowed) in [
                ("file", "a", true),
                ("file", "sub/new/deep", true),
                ("file", "in/a", true),
                ("file", "out/a", false),
                ("file", "out/new/deep", false),
                ("scaffold", "out", false),
                ("symlink", "out", true),
            ] {
                let path = prefix.join(below);
                let permitted = Permitted(limits.clone()).permit(kind, path.to_str().unwrap());
                assert_eq!(permitted.is_ok(), allowed, "{kind} {}: {permitted:?}", path.display());
            }
        }
    }
}
