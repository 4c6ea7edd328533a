//! What one resource touches besides what its name says.
//!
//! Rules and limits speak of types and names. A resource could say one name and do another thing:
//! an `exec` has its `command`, and variables that decide what that is, an archive unpacks elsewhere, any resource brings
//! commands as health checks. All of these are given here as further pairs of type and name, so that whoever
//! checks names checks them too. Health checks are in `health.rs`.

pub(super) mod health;

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::model::SysctlKey;
use crate::wire::command::Ensure;

/// The type of everything that runs a command.
pub(super) const EXEC: &str = "exec";
/// What stands for a command that can't be read from the properties.
const UNREADABLE: &str = "(not readable)";

/// A type and a name that a resource acts under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach<'a> {
    /// The resource type.
    pub(super) kind: &'a str,
    /// The name, path or command; or what a command finds around it, as `NAME=value`.
    pub(super) name: Cow<'a, str>,
    /// True for `NAME=value`: values of variables are secrets.
    is_variable: bool,
}

impl<'a> Reach<'a> {
    fn new(kind: &'a str, name: impl Into<Cow<'a, str>>) -> Self {
        Self { kind, name: name.into(), is_variable: false }
    }

    fn variable(pair: impl Into<Cow<'a, str>>) -> Self {
        Self { is_variable: true, ..Self::new(EXEC, pair) }
    }

    /// The name as rules compare it: a path without `.` and `..`. A command stays as it is, since only some of its words
    /// may be paths.
    pub(super) fn compared(&self) -> Cow<'_, str> {
        if self.kind == EXEC { Cow::Borrowed(&self.name) } else { Cow::Owned(super::glob::normal(&self.name)) }
    }

    /// The name for messages: of a variable without its value.
    pub(super) fn shown(&self) -> Cow<'_, str> {
        match self.name.split_once('=') {
            Some((name, _)) if self.is_variable => Cow::Owned(format!("{name}=...")),
            None if self.is_variable => Cow::Borrowed("..."),
            _ => self.compared(),
        }
    }
}

/// Everything that a resource acts on, its own name first.
pub(super) fn reaches(ensure: &Ensure) -> Vec<Reach<'_>> {
    let kind = ensure.kind.as_str();
    let property = |name: &str| ensure.properties.get(name).filter(|value| !value.is_null());
    let own = path(kind, &ensure.properties).or(ensure.name()).unwrap_or(UNREADABLE);
    let mut found = vec![Reach::new(kind, own)];
    match kind {
        EXEC => {
            found.extend(["command", "onlyif", "unless"].into_iter().filter_map(property).map(command));
            found.extend(surroundings(&ensure.properties));
        }
        "cron" => {
            found.extend(property("command").filter(|value| value.as_str() != Some("")).map(command));
            found.extend(cron_variables(&ensure.properties).map(Reach::variable));
        }
        "sysctl" => found.extend(own_commands(kind, &ensure.properties).into_iter().map(|line| Reach::new(EXEC, line))),
        "archive" => found.extend(property("extract_parent").map(|value| Reach::new(kind, text(value)))),
        // Read, not written; but what may be read here ends in a file that others may read.
        "file" | "scaffold" => found.extend(property("source").map(|value| Reach::new(kind, text(value)))),
        _ => {}
    }
    found.extend(further_paths(kind, &ensure.properties).into_iter().map(|path| Reach::new(kind, path)));
    found.extend(property(VALIDATE).filter(|value| value.as_str() != Some("")).map(command));
    found.extend(property("post").into_iter().flat_map(commands));
    found.extend(health::reaches(&ensure.properties));
    found
}

/// The property with a command that must accept new content.
pub const VALIDATE: &str = "validate";

/// The path that a resource is about, where its name may be something else.
pub fn path<'a>(kind: &str, properties: &'a Map<String, Value>) -> Option<&'a str> {
    let given = |key: &str| properties.get(key).filter(|value| !matches!(value, Value::Null) && value.as_str() != Some(""));
    if kind == "line" { given("path").or(given("name")).map(text) } else { None }
}

/// The paths that a resource writes, or makes reachable, beside the one that it is about.
///
/// What is derived from that path, as a backup beside it, is not among them. What is no path, but stands where one could, is
/// given as it is: whoever compares it with paths finds that it is none.
pub fn further_paths<'a>(kind: &str, properties: &'a Map<String, Value>) -> Vec<Cow<'a, str>> {
    let given = |key: &str| properties.get(key).filter(|value| !matches!(value, Value::Null | Value::Bool(false))).map(text);
    let name = given("name").unwrap_or(UNREADABLE);
    match kind {
        "file" | "line" => {
            // Beside the file, unless it is a directory; a template may become one.
            let kept = given("backup").filter(|kept| kept.starts_with('/') || super::glob::is_template(kept));
            let below = given("recurse").map(|_| Cow::Owned(format!("{}/*/*", name.trim_end_matches('/'))));
            kept.map(Cow::Borrowed).into_iter().chain(below).collect()
        }
        // Who may write below the link writes where it leads.
        "symlink" => given("target").filter(|target| !target.is_empty()).map(|target| beside(name, target)).into_iter().collect(),
        "mount" => mounted(properties),
        // It is made, moved or removed with all that it holds.
        "user" => given("manage_home").map(|_| Cow::Borrowed(given("home").unwrap_or(UNREADABLE))).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The system's own files that a resource of this type writes. They follow from its type and name, so rules need not list
/// them; a node that limits paths does.
pub fn system_paths(kind: &str, properties: &Map<String, Value>) -> Vec<String> {
    let name = properties.get("name").map_or(UNREADABLE, text);
    let all = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    match kind {
        "user" => all(&["/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow"]),
        "group" => all(&["/etc/group", "/etc/gshadow"]),
        "cron" if name.contains('/') => all(&[UNREADABLE]),
        "cron" => vec![format!("/etc/cron.d/{name}")],
        "sysctl" => match name.parse::<SysctlKey>() {
            Ok(key) => vec![format!("/proc/sys/{}", key.path()), "/etc/sysctl.d".to_owned()],
            Err(_) => all(&[UNREADABLE]),
        },
        _ => Vec::new(),
    }
}

/// The commands that a resource lets others run: cron, and the kernel where a setting names a program.
pub fn own_commands<'a>(kind: &str, properties: &'a Map<String, Value>) -> Vec<&'a str> {
    let given = |key: &str| properties.get(key).filter(|value| !value.is_null() && value.as_str() != Some("")).map(text);
    match kind {
        "cron" => given("command").into_iter().chain(cron_variables(properties)).collect(),
        "sysctl" => match given("name").map(str::parse::<SysctlKey>) {
            Some(Ok(key)) if !PROGRAM_KEYS.iter().any(|of| key.path().starts_with(of)) => Vec::new(),
            _ => given("value").into_iter().collect(),
        },
        _ => Vec::new(),
    }
}

/// What `environment` has: a list of `NAME=value`, or one.
fn variables(properties: &Map<String, Value>) -> Vec<&str> {
    match properties.get("environment") {
        Some(Value::Array(pairs)) => pairs.iter().map(text).collect(),
        other => other.filter(|value| !value.is_null()).map(text).into_iter().collect(),
    }
}

/// The variables of a `cron` that decide what its command is, as `SHELL` and `PATH` do; a few are known not to.
fn cron_variables(properties: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let harmless = |pair: &&str| pair.split('=').next().is_some_and(|name| CRON_VARIABLES.contains(&name));
    variables(properties).into_iter().filter(move |pair| !harmless(pair))
}

/// What decides which program a command of an `exec` is and what it does, beside the command itself: its variables, where it
/// is looked for and where it runs, the last two as the variables that a shell has for them.
fn surroundings(properties: &Map<String, Value>) -> Vec<Reach<'_>> {
    let given = |key: &str| properties.get(key).filter(|value| !value.is_null() && value.as_str() != Some("")).map(text);
    let named = [("PATH", given("path")), ("PWD", given("cwd"))];
    let named = named.into_iter().filter_map(|(name, value)| Some(Reach::variable(format!("{name}={}", value?))));
    variables(properties).into_iter().map(Reach::variable).chain(named).collect()
}

/// Variables of cron itself: where mail goes, and whose clock counts.
const CRON_VARIABLES: &[&str] = &["MAILTO", "MAILFROM", "CRON_TZ"];

/// Settings of the kernel whose values are programs that it runs, or bring such.
const PROGRAM_KEYS: &[&str] =
    &["kernel/core_pattern", "kernel/modprobe", "kernel/hotplug", "kernel/poweroff_cmd", "fs/binfmt_misc/"];

/// Where a link leads: relative targets are seen from its directory.
fn beside<'a>(link: &str, target: &'a str) -> Cow<'a, str> {
    match link.rsplit_once('/') {
        // A template stays to be seen: resolving `..` could take it away.
        Some((directory, _)) if !target.starts_with('/') && !super::glob::is_template(target) => {
            Cow::Owned(super::glob::normal(&format!("{directory}/{target}")))
        }
        _ => Cow::Borrowed(target),
    }
}

/// What a mount makes reachable below its mount point: its device, and what its options name. A file system in memory brings
/// nothing with it.
fn mounted(properties: &Map<String, Value>) -> Vec<Cow<'_, str>> {
    let given = |key: &str| properties.get(key).filter(|value| !value.is_null()).map(text).filter(|text| !text.is_empty());
    let device = given("device").filter(|_| !matches!(given("fstype"), Some("tmpfs" | "ramfs")));
    let values = given("options").into_iter().flat_map(|options| options.split(',')).filter_map(|one| one.split_once('='));
    let named =
        values.flat_map(|(_, value)| value.split(':')).filter(|part| part.starts_with('/') || super::glob::is_template(part));
    device.into_iter().chain(named).map(Cow::Borrowed).collect()
}

/// The URLs that a resource fetches from.
pub(super) fn urls(ensure: &Ensure) -> Vec<&str> {
    let url = ensure.properties.get("url").filter(|value| !value.is_null()).map(text);
    let source = ensure.properties.get("source").and_then(Value::as_str).filter(|source| source.contains("://"));
    url.into_iter().chain(source).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or(UNREADABLE)
}

fn command(value: &Value) -> Reach<'_> {
    Reach::new(EXEC, text(value))
}

/// The commands in a list of objects, under all of their keys.
fn commands(value: &Value) -> Vec<Reach<'_>> {
    let unreadable = || vec![Reach::new(EXEC, UNREADABLE)];
    let Value::Array(items) = value else { return unreadable() };
    items
        .iter()
        .flat_map(|item| match item {
            Value::Object(item) => item.values().map(command).collect(),
            _ => unreadable(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(kind: &str, properties: &Value) -> Vec<(String, String)> {
        let ensure = Ensure { kind: kind.into(), properties: properties.as_object().unwrap().clone() };
        reaches(&ensure).into_iter().map(|r| (r.kind.into(), r.name.into_owned())).collect()
    }

    #[test]
    fn commands_and_further_paths_are_found() {
        for (kind, properties, wanted) in [
            ("file", json!({"name": "/a"}), vec![("file", "/a")]),
            ("file", json!({"name": "/a", "source": "/b"}), vec![("file", "/a"), ("file", "/b")]),
            ("file", json!({"name": "/a", "source": null, "health_checks": []}), vec![("file", "/a")]),
            ("exec", json!({"name": "n", "command": "c", "unless": "u"}), vec![("exec", "n"), ("exec", "c"), ("exec", "u")]),
            (
                "exec",
                json!({"name": "n", "environment": ["A=b", 7], "path": "/x:/y", "cwd": "/z"}),
                vec![("exec", "n"), ("exec", "A=b"), ("exec", UNREADABLE), ("exec", "PATH=/x:/y"), ("exec", "PWD=/z")],
            ),
            ("exec", json!({"name": "n", "environment": [], "path": "", "cwd": null}), vec![("exec", "n")]),
            ("archive", json!({"name": "/a", "extract_parent": "/b"}), vec![("archive", "/a"), ("archive", "/b")]),
            ("service", json!({"name": "s", "health_checks": [{"command": "c"}]}), vec![("service", "s"), ("exec", "c")]),
            ("service", json!({"name": "s", "health_checks": {"command": "c"}}), vec![("service", "s"), ("exec", UNREADABLE)]),
            ("service", json!({"name": "s", "health_checks": [{"name": "x"}]}), vec![("service", "s"), ("exec", UNREADABLE)]),
            ("service", json!({"name": "s", "health_checks": [{"goss_rules": {}}]}), vec![("service", "s")]),
            (
                "service",
                json!({"name": "s", "health_checks": [{"goss_rules": {"command": {"a": {"exec": "c"}, "d": {}, "e": null}}}]}),
                vec![("service", "s"), ("exec", "c"), ("exec", "d"), ("exec", "e")],
            ),
            (
                "service",
                json!({"name": "s", "health_checks": [{"command": "b", "goss_rules": {"command": ["x"], "file": 7}}]}),
                vec![("service", "s"), ("exec", "b"), ("exec", UNREADABLE), ("file", UNREADABLE)],
            ),
            (
                "service",
                json!({"name": "s", "health_checks": [{"goss_rules": {"file": {
                    "/a": {"exists": true}, "/b": {"contains": ["x"]}, "c": {"path": "/d", "sha256": "x"},
                }}}]}),
                vec![("service", "s"), ("file", "/b"), ("file", "/d")],
            ),
            ("scaffold", json!({"name": "/a", "post": [{"*": "c"}]}), vec![("scaffold", "/a"), ("exec", "c")]),
            ("exec", json!({"name": "n", "command": ["c"]}), vec![("exec", "n"), ("exec", UNREADABLE)]),
            ("file", json!({"name": "/a", "validate": "c %s", "backup": true}), vec![("file", "/a"), ("exec", "c %s")]),
            ("file", json!({"name": "/a", "validate": ["c"]}), vec![("file", "/a"), ("exec", UNREADABLE)]),
            ("file", json!({"name": "/a", "validate": "", "backup": ".x", "recurse": false}), vec![("file", "/a")]),
            ("file", json!({"name": "/a", "backup": "/b"}), vec![("file", "/a"), ("file", "/b")]),
            ("file", json!({"name": "/a", "backup": "{{ x }}"}), vec![("file", "/a"), ("file", "{{ x }}")]),
            ("file", json!({"name": "/a", "recurse": true}), vec![("file", "/a"), ("file", "/a/*/*")]),
            ("line", json!({"name": "/a", "line": "x"}), vec![("line", "/a")]),
            ("line", json!({"name": "/a", "path": "/b", "validate": "c %s"}), vec![("line", "/b"), ("exec", "c %s")]),
            ("line", json!({"name": "/a", "path": 7}), vec![("line", UNREADABLE)]),
            ("symlink", json!({"name": "/a/b", "target": "/c"}), vec![("symlink", "/a/b"), ("symlink", "/c")]),
            ("symlink", json!({"name": "/a/b", "target": "../../c"}), vec![("symlink", "/a/b"), ("symlink", "/c")]),
            (
                "symlink",
                json!({"name": "/a/b", "target": "{{ x }}/../c"}),
                vec![("symlink", "/a/b"), ("symlink", "{{ x }}/../c")],
            ),
            ("symlink", json!({"name": "/a/b", "ensure": "absent"}), vec![("symlink", "/a/b")]),
            (
                "mount",
                json!({"name": "/m", "device": "/srv", "options": "bind,x=/y:/z,ro"}),
                vec![("mount", "/m"), ("mount", "/srv"), ("mount", "/y"), ("mount", "/z")],
            ),
            ("user", json!({"name": "a", "home": "/h", "manage_home": false}), vec![("user", "a")]),
            ("user", json!({"name": "a", "home": "/h", "manage_home": true}), vec![("user", "a"), ("user", "/h")]),
            ("user", json!({"name": "a", "manage_home": "{{ x }}"}), vec![("user", "a"), ("user", UNREADABLE)]),
            ("group", json!({"name": "a", "members": ["b"]}), vec![("group", "a")]),
            ("cron", json!({"name": "a", "ensure": "absent"}), vec![("cron", "a")]),
            (
                "cron",
                json!({"name": "a", "command": "c", "environment": ["MAILTO=x", "SHELL=/x"]}),
                vec![("cron", "a"), ("exec", "c"), ("exec", "SHELL=/x")],
            ),
            ("cron", json!({"name": "a", "environment": "PATH=/x"}), vec![("cron", "a"), ("exec", "PATH=/x")]),
            ("sysctl", json!({"name": "vm.swappiness", "value": "1"}), vec![("sysctl", "vm.swappiness")]),
            ("sysctl", json!({"name": "kernel/modprobe", "value": "/x"}), vec![("sysctl", "kernel/modprobe"), ("exec", "/x")]),
            ("sysctl", json!({"name": "kernel.{{ x }}", "value": "/x"}), vec![("sysctl", "kernel.{{ x }}"), ("exec", "/x")]),
            ("mount", json!({"name": "/m", "device": "UUID=1"}), vec![("mount", "/m"), ("mount", "UUID=1")]),
            ("mount", json!({"name": "/m", "device": "none", "fstype": "tmpfs"}), vec![("mount", "/m")]),
        ] {
            let wanted: Vec<(String, String)> = wanted.into_iter().map(|(k, n)| (k.into(), n.into())).collect();
            assert_eq!(of(kind, &properties), wanted, "{properties}");
        }
    }
}
