//! The rules of keys over what resources do.

use serde_json::{Value, json};

use crate::engine::effects::of_signed;
use crate::model::Effects;
use crate::resource::Types;
use crate::trust::decide::policy::decide;
use crate::wire::bundle::Rule;
use crate::wire::command::{Action, Command};

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
    let command = command(changes);
    let effects = match &command.action {
        Action::Ensure(ensure) => of_signed(&Types::default(), &ensure.kind, &ensure.properties),
        _ => Effects::default(),
    };
    decide(&rules, &command, &effects, &signers).map(|allowed| allowed.rule).map_err(|denied| denied.to_string())
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
        "no rule allows it; the closest is rule 2, but it allows dry runs only"
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
        (
            json!({"names": ["/srv/**"]}),
            ensure("file", &json!({"name": "/srv/../etc/passwd"})),
            Some("the file writes \"/srv/../etc/passwd\""),
        ),
        (json!({"names": ["/srv/**"]}), ensure("file", &json!({"name": "/srv/{{ x }}"})), Some("is unknown")),
        (json!({"names": ["/srv/**"]}), ensure("file", &json!({"name": "/srv/${ x }"})), Some("is unknown")),
        (json!({"names": ["/srv/**"]}), ensure("file", &json!({"name": "/srv/a", "source": "/etc/shadow"})), Some("/etc/shadow")),
        (
            json!({"names": ["uptime"]}),
            ensure("exec", &json!({"name": "uptime", "command": "rm -r /"})),
            Some("the exec runs \"rm -r /\""),
        ),
        // A command is no path: not all of it is one name.
        (
            json!({"names": ["/bin/ls"]}),
            ensure("exec", &json!({"name": "/bin/rm -r x/../../bin/ls"})),
            Some("the exec runs \"/bin/rm -r x/../../bin/ls\""),
        ),
        (
            json!({"names": ["uptime"]}),
            ensure("exec", &json!({"name": "uptime", "environment": ["LD_PRELOAD=/x"]})),
            Some("the exec sets \"LD_PRELOAD=...\""),
        ),
        (
            json!({"names": ["uptime"]}),
            ensure("exec", &json!({"name": "uptime", "path": "/x"})),
            Some("the exec sets \"PATH=...\""),
        ),
        (json!({"names": ["make"]}), ensure("exec", &json!({"name": "make", "cwd": "/x"})), Some("the exec sets \"PWD=...\"")),
        (
            json!({"names": ["make", "PWD=/srv/*", "LANG=C"]}),
            ensure("exec", &json!({"name": "make", "cwd": "/srv/x", "environment": ["LANG=C"]})),
            None,
        ),
        (
            json!({"names": ["uptime"]}),
            ensure("cron", &json!({"name": "uptime", "environment": ["TOKEN=hunter2"]})),
            Some("the cron sets \"TOKEN=...\""),
        ),
        (json!({"names": ["/srv/*"]}), ensure("archive", &json!({"name": "/srv/a.tgz", "extract_parent": "/etc"})), Some("/etc")),
        (
            json!({"types": ["file"]}),
            ensure("file", &json!({"name": "/srv/a", "health_checks": [{"command": "rm"}]})),
            Some("the file runs \"rm\", and the rule does not allow the type exec"),
        ),
        (json!({}), ensure("file", &json!({"name": "/srv/a", "health_checks": [{"command": "rm"}]})), None),
        (json!({"types": ["package"], "names": ["demo-*"]}), ensure("package", &json!({"name": "demo-plain"})), None),
        (
            json!({"names": ["demo-*"]}),
            ensure("package", &json!({"name": "bash"})),
            Some("the package manages the package \"bash\""),
        ),
        (json!({"names": ["demo-*"]}), ensure("package", &json!({"name": "not-demo-plain"})), Some("not-demo-plain")),
        (json!({"names": ["bash"]}), ensure("package", &json!({"name": "bash:i386"})), Some("bash:i386")),
        (json!({"names": ["g++"]}), ensure("package", &json!({"name": "g++"})), None),
        (json!({"names": ["demo-*"]}), ensure("package", &json!({"name": "demo-{{ x }}"})), Some("is unknown")),
        (json!({"names": ["demo-*"]}), ensure("package", &json!({"name": ["demo-x"]})), Some("which the rule does not allow")),
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
        (json!({"channels": ["base"]}), apply(), Some("only commands in a channel")),
        (json!({"channels": ["base"]}), json!({}), Some("only commands in a channel")),
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
        verdict(&rules, &json!({}), &["ops-a"]).unwrap_err().ends_with("it requires 2 signatures by its own keys, and has 1")
    );
    assert!(verdict(&rules, &json!({}), &["ops-a", "ci"]).is_err());
    assert_eq!(verdict(&rules, &json!({}), &["ops-a", "ops-b"]), Ok(1));
}

#[test]
fn the_rule_that_comes_nearest_is_named() {
    let rules = [json!({"keys": ["a"], "actions": ["apply"]}), json!({"keys": ["a"], "types": ["service"]})];
    assert_eq!(
        verdict(&rules, &json!({}), &["a"]).unwrap_err(),
        "no rule allows it; the closest is rule 2, but it does not allow the type file"
    );
}

#[test]
fn every_effect_of_a_resource_must_be_allowed() {
    let file = |more: &Value| {
        let mut all = json!({"name": "/srv/a", "ensure": "present", "owner": "root", "group": "root", "mode": "0644"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ensure("file", &all)
    };
    let srv = json!({"keys": ["a"], "names": ["/srv/**"]});
    let kinds =
        json!({"keys": ["a"], "types": ["file", "user", "group", "mount", "service", "line", "scaffold", "apply", "cron"]});
    let reads = json!({"keys": ["a"], "types": ["file"], "names": ["/srv/**"], "reads": ["/etc/app/**"]});
    let people = json!({"keys": ["a"], "types": ["user", "group"], "names": ["web*", "/home/web*", "/home/web*/**"]});
    let mounts = json!({"keys": ["a"], "types": ["mount"], "names": ["/srv/**", "tmpfs"]});
    let mount = |device: &str, fstype: &str, options: &str| {
        ensure("mount", &json!({"name": "/srv/m", "ensure": "mounted", "device": device, "fstype": fstype, "options": options}))
    };
    let user = |more: &Value| {
        let mut all = json!({"name": "web1"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ensure("user", &all)
    };
    let exact = json!({"keys": ["a"], "types": ["file", "line"], "names": ["/srv/a"]});
    let service = |more: &Value| {
        let mut all = json!({"name": "x", "ensure": "running"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ensure("service", &all)
    };
    let registers = || {
        let entry = json!({"cluster": "prod", "service": "db", "protocol": "tcp", "address": "10.0.0.1", "priority": 1});
        service(&json!({"register_when_stable": [entry]}))
    };
    let asks = |rule: Value| service(&json!({"health_checks": [{"goss_rules": {"http": {"http://localhost/x": rule}}}]}));
    let parameter = |name: &str| {
        let rules = json!({"kernel-param": {name: {"value": {"have-prefix": "a"}}}});
        service(&json!({"health_checks": [{"goss_rules": rules}]}))
    };
    for (rule, changes, wanted) in [
        (&srv, file(&json!({})), None),
        (&srv, file(&json!({"mode": "{{ Facts.x }}", "content": "{{ Facts.x }}"})), None),
        (&srv, file(&json!({"ensure": "{{ Facts.x }}"})), Some("is not known")),
        (&srv, file(&json!({"source": "/srv/b"})), None),
        (&srv, file(&json!({"source": "/etc/shadow"})), Some("reads \"/etc/shadow\"")),
        (&srv, file(&json!({"source": "{{ x }}"})), Some("is unknown")),
        (&srv, file(&json!({"backup": "/etc"})), Some("writes everything below \"/etc\"")),
        (&srv, file(&json!({"backup": true})), None),
        (&srv, file(&json!({"validate": "sh -c x %s"})), Some("runs \"sh -c x %s\"")),
        (&srv, file(&json!({"content": "x", "validate": "/srv/evil %s"})), Some("runs \"/srv/evil %s\"")),
        (&srv, ensure("file", &json!({"name": "/srv", "ensure": "absent", "force": true})), Some("everything below \"/srv\"")),
        (&srv, ensure("symlink", &json!({"name": "/srv/a", "target": "../etc"})), Some("exposes")),
        (
            &srv,
            ensure("scaffold", &json!({"name": "/srv/a", "ensure": "present", "source": "/etc"})),
            Some("reads everything below \"/etc\""),
        ),
        (&srv, ensure("nope", &json!({"name": "/srv/a"})), Some("there is no type nope")),
        (&kinds, file(&json!({"source": "/etc/shadow"})), Some("neither the names nor the reads")),
        (
            &kinds,
            ensure(
                "service",
                &json!({"name": "x", "health_checks": [
                    {"goss_rules": {"file": {"/etc/shadow": {"exists": true, "contents": ["root"]}}}},
                ]}),
            ),
            Some("neither the names nor the reads"),
        ),
        (&kinds, ensure("line", &json!({"name": "/etc/hosts", "line": "x"})), None),
        (&kinds, ensure("apply", &json!({"name": "/srv/m.yaml"})), Some("m.yaml")),
        (&kinds, ensure("cron", &json!({"name": "a", "command": "c", "minute": "1"})), Some("does not allow the type exec")),
        (&kinds, mount("x", "fuse", "ro"), Some("does not allow the type exec")),
        (&kinds, mount("tmpfs", "tmpfs", "helper=x"), Some("does not allow the type exec")),
        (&kinds, mount("tmpfs", "tmpfs", "unheard=x"), Some("unheard")),
        (&srv, file(&json!({"backup": ".sh"})), None),
        (&exact, file(&json!({"backup": true})), None),
        (&exact, file(&json!({"backup": ".sh"})), Some("writes \"/srv/a.*.sh\"")),
        (&exact, ensure("line", &json!({"name": "/srv/a", "line": "x", "backup": ".sh"})), Some("writes \"/srv/a.*.sh\"")),
        (&kinds, registers(), Some("registers \"prod/db\"")),
        (&json!({"keys": ["a"], "names": ["x"]}), registers(), Some("registers \"prod/db\"")),
        (&json!({"keys": ["a"], "types": ["service"], "names": ["x", "prod/*"]}), registers(), None),
        (&json!({"keys": ["a"]}), registers(), None),
        (&kinds, asks(json!({"status": 200})), None),
        (&kinds, asks(json!({"status": 200, "body": ["a"]})), Some("sends a request to \"http://localhost/x\"")),
        (&kinds, asks(json!({"status": 200, "method": "DELETE"})), Some("sends a request")),
        (&kinds, asks(json!({"url": "http://10.0.0.1/", "status": 200})), Some("sends a request to \"http://10.0.0.1/\"")),
        (&json!({"keys": ["a"], "types": ["service"], "reads": ["http://localhost/**"]}), asks(json!({"body": ["a"]})), None),
        (&kinds, parameter("kernel.ostype"), None),
        (&kinds, parameter("net/ipv4/tcp_fastopen_key"), Some("reads \"/proc/sys/net/ipv4/tcp_fastopen_key\"")),
        (&kinds, parameter("net.ipv6.conf.all.stable_secret"), Some("stable_secret")),
        (&reads, file(&json!({"source": "/etc/app/x"})), None),
        (&reads, file(&json!({"source": "/etc/app/../shadow"})), Some("neither")),
        (&people, user(&json!({"groups": ["web"]})), None),
        (&people, user(&json!({"groups": ["sudo"]})), Some("the account \"sudo\"")),
        (&people, user(&json!({"group": "root"})), Some("the account \"root\"")),
        (&people, user(&json!({"uid": 0, "home": "/home/web1"})), Some("the account \"root\"")),
        (&people, user(&json!({"uid": "{{ x }}", "home": "/home/web1"})), Some("is not known")),
        (&people, user(&json!({"home": "/home/web1", "manage_home": true})), None),
        (&people, user(&json!({"home": "/etc", "manage_home": true})), Some("below \"/etc\"")),
        (&people, ensure("group", &json!({"name": "web", "members": ["alice"]})), Some("the account \"alice\"")),
        (&mounts, mount("tmpfs", "tmpfs", "size=1m"), None),
        (&mounts, mount("/etc", "tmpfs", "bind"), Some("exposes")),
        (&mounts, mount("etc", "none", "rbind"), Some("exposes")),
        (&mounts, mount("tmpfs", "overlay", "lowerdir=../etc"), Some("exposes")),
        (&mounts, mount("proc", "proc", "defaults"), Some("mounts \"proc\"")),
        (&mounts, mount("tmpfs", "cifs", "credentials=/root/x"), Some("reads")),
    ] {
        match (verdict(std::slice::from_ref(rule), &changes, &["a"]), wanted) {
            (Ok(_), None) => {}
            (Err(message), Some(wanted)) if message.contains(wanted) => {}
            (verdict, wanted) => panic!("{rule} {changes}: {verdict:?}, wanted {wanted:?}"),
        }
    }
}

#[test]
fn dry_runs_run_no_programs() {
    let rule = json!({"keys": ["a"], "noop_only": true});
    let noop = |kind: &str, properties: Value| {
        let mut all = ensure(kind, &properties);
        all["options"] = json!({"noop": true});
        verdict(std::slice::from_ref(&rule), &all, &["a"]).is_ok()
    };
    assert!(noop("exec", json!({"name": "reboot"})), "not run in a dry run");
    assert!(noop("file", json!({"name": "/a", "ensure": "absent", "validate": "x %s"})));
    for (kind, properties) in [
        ("exec", json!({"name": "x", "onlyif": "id"})),
        ("exec", json!({"name": "x", "unless": "id"})),
        ("exec", json!({"name": "x", "unless": "{{ 'id' }}"})),
        ("service", json!({"name": "x", "health_checks": [{"command": "id"}]})),
        ("service", json!({"name": "x", "health_checks": [{"goss_rules": {"command": {"id": {"exit-status": 0}}}}]})),
        ("scaffold", json!({"name": "/a", "ensure": "present", "source": "/a", "post": [{"*": "id"}]})),
        ("line", json!({"name": "/etc/shadow", "match": "^root", "line": "x"})),
    ] {
        assert!(!noop(kind, properties.clone()), "{kind} {properties}");
    }
    for (action, wanted) in [
        (json!({"facts": {}}), true),
        (json!({"status": {}}), true),
        (json!({"healthcheck": {}}), false),
        (json!({"halt": {"job": "0198c1f2-7a3b-7c4d-8e5f-102030405060"}}), false),
        (json!({"resume": {"job": "0198c1f2-7a3b-7c4d-8e5f-102030405060"}}), false),
        (json!({"cancel": {"job": "0198c1f2-7a3b-7c4d-8e5f-102030405060"}}), false),
        (json!({"withdraw": {}}), false),
    ] {
        for dry in [true, false] {
            let all = json!({"action": action, "options": {"noop": dry}});
            assert_eq!(verdict(std::slice::from_ref(&rule), &all, &["a"]).is_ok(), wanted, "{action}");
        }
    }
}
