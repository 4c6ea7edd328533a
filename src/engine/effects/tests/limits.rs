//! The limits of a node over what resources do.

use std::path::Path;

use serde_json::{Value, json};

use crate::engine::effects::of_signed;
use crate::model::MountLimit;
use crate::resource::Types;
use crate::trust::NodeLimits;

/// Whether a signed resource is within limits.
fn check(limits: &NodeLimits, kind: &str, properties: &Value) -> Result<(), String> {
    let command = json!({
        "id": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "fleet": "f", "to": {"nodes": ["web1"]},
        "issued": "2026-11-20T10:00:00Z", "expires": "2026-11-20T10:05:00Z",
        "action": {"ensure": {"type": kind, "properties": properties}},
    });
    limits.check(&serde_json::from_value(command).unwrap(), &of_signed(&Types::default(), kind, properties.as_object().unwrap()))
}

#[test]
fn paths_are_compared_part_by_part() {
    let limits = NodeLimits { paths: Some(vec!["/srv/www".into(), "/opt/".into()]), ..NodeLimits::default() };
    for (path, wanted) in [
        ("/srv/www", true),
        ("/srv/www/a/b", true),
        ("/srv/www/./a", true),
        ("/opt/x", true),
        ("/srv/www2", false),
        ("/srv/www/../../etc/passwd", false),
        ("/srv/www/..", false),
        ("/srv", false),
        ("srv/www/a", false),
        ("", false),
    ] {
        assert_eq!(limits.path_allowed(Path::new(path)), wanted, "{path}");
        assert_eq!(check(&limits, "file", &json!({"name": path})).is_ok(), wanted, "{path}");
    }
    for properties in [
        json!({"name": "/srv/www/{{ Facts.x }}"}),
        json!({"name": "/srv/www/a", "source": "/etc/shadow"}),
        json!({"name": "/srv/www/a", "source": 7}),
        json!({"name": "/srv/www/a", "backup": "/etc"}),
    ] {
        assert!(check(&limits, "file", &properties).is_err(), "{properties}");
    }
    assert!(check(&limits, "archive", &json!({"name": "/opt/a.tgz", "extract_parent": "/etc"})).is_err());
    for (kind, properties, wanted) in [
        ("line", json!({"name": "/srv/www/a"}), true),
        ("line", json!({"name": "any name", "path": "/srv/www/a"}), true),
        ("line", json!({"name": "/srv/www/a", "path": "/etc/a"}), false),
        ("symlink", json!({"name": "/srv/www/a", "target": "../www/b"}), true),
        ("symlink", json!({"name": "/srv/www/a", "target": "../../etc"}), false),
        ("symlink", json!({"name": "/srv/www/a", "target": "/etc"}), false),
        ("file", json!({"name": "/srv/www", "recurse": true, "backup": "/opt/kept"}), true),
    ] {
        assert_eq!(check(&limits, kind, &properties).is_ok(), wanted, "{kind} {properties}");
    }
    assert!(check(&limits, "service", &json!({"name": "nginx"})).is_ok());
    assert!(NodeLimits::default().path_allowed(Path::new("/etc/passwd")));
}

#[test]
fn what_types_write_by_themselves_is_limited() {
    let limits = |paths: &[&str]| NodeLimits {
        paths: Some(paths.iter().map(|&p| p.into()).collect()),
        exec: true,
        ..NodeLimits::default()
    };
    let etc = limits(&["/etc", "/proc/sys/net", "/home", "/var/mail"]);
    for (kind, properties, wanted) in [
        ("user", json!({"name": "a"}), true),
        ("user", json!({"name": "a", "home": "/srv/a"}), true),
        ("user", json!({"name": "a", "home": "/home/a", "manage_home": true}), true),
        ("user", json!({"name": "a", "home": "/srv/a", "manage_home": true}), false),
        ("user", json!({"name": "a", "home": "/home/{{ x }}", "manage_home": true}), false),
        ("user", json!({"name": "a", "manage_home": true}), false),
        ("group", json!({"name": "a"}), true),
        ("cron", json!({"name": "a", "command": "c"}), true),
        ("cron", json!({"name": "../../srv/a", "command": "c"}), false),
        ("sysctl", json!({"name": "net.ipv4.ip_forward", "value": 1}), true),
        ("sysctl", json!({"name": "net/ipv4/ip_forward", "value": 1}), true),
        ("sysctl", json!({"name": "vm.swappiness", "value": 1}), false),
        ("sysctl", json!({"name": "net.{{ x }}", "value": 1}), false),
    ] {
        assert_eq!(check(&etc, kind, &properties).is_ok(), wanted, "{kind} {properties}");
        let elsewhere = check(&limits(&["/srv"]), kind, &properties);
        assert!(elsewhere.unwrap_err().starts_with("this node does not manage the path"), "{kind} {properties}");
    }
    assert!(check(&limits(&["/etc/cron.d"]), "user", &json!({"name": "a"})).is_err());
}

#[test]
fn commands_are_off_by_default_in_every_form() {
    let limits = NodeLimits::default();
    for (kind, properties) in [
        ("exec", json!({"name": "id"})),
        ("file", json!({"name": "/a", "health_checks": [{"command": "id"}]})),
        ("file", json!({"name": "/a", "health_checks": [{"goss_rules": "{{ x }}"}]})),
        ("file", json!({"name": "/a", "health_checks": [{"goss_rules": {"command": {"id": {"exit-status": 0}}}}]})),
        ("file", json!({"name": "/a", "health_checks": [{"goss_rules": {"command": {"x": {"exec": "id"}}}}]})),
        ("scaffold", json!({"name": "/a", "post": [{"*": "id"}]})),
        ("cron", json!({"name": "a", "command": "id"})),
        ("sysctl", json!({"name": "kernel.core_pattern", "value": "|/x"})),
        ("file", json!({"name": "/a", "validate": "id %s"})),
        ("line", json!({"name": "/a", "validate": "id %s"})),
    ] {
        let refused = check(&limits, kind, &properties).unwrap_err();
        assert_eq!(refused, "this node runs no commands from the network", "{kind} {properties}");
        assert!(check(&NodeLimits { exec: true, ..NodeLimits::default() }, kind, &properties).is_ok(), "{kind} {properties}");
    }
    let files = NodeLimits { types: Some(vec!["file".into()]), exec: true, ..NodeLimits::default() };
    assert!(check(&files, "exec", &json!({"name": "id"})).is_err());
    assert!(!NodeLimits { apply: false, ..NodeLimits::default() }.type_allowed("apply"));
}

#[test]
fn of_the_host_itself_a_status_may_be_asked_and_no_more() {
    let limits = NodeLimits { fetch_hosts: Some(vec!["good.example".into()]), ..NodeLimits::default() };
    let allowed = |url: &str, thing: &Value| {
        let checks = json!({"name": "/a", "health_checks": [{"goss_rules": {"http": {url: thing}}}]});
        check(&limits, "file", &checks).is_ok()
    };
    let own = "http://localhost:8080/health";
    assert!(allowed(own, &json!({"status": 200, "method": "head", "timeout": 50, "no-follow-redirects": true})));
    assert!(allowed("x", &json!({"status": 200, "url": "https://[::1]/"})));
    for (url, thing) in [
        (own, json!({"status": 200, "body": ["x"]})),
        (own, json!({"status": 200, "headers": ["x"]})),
        (own, json!({"status": 200, "method": "POST"})),
        (own, json!({"status": 200, "method": ["GET"]})),
        (own, json!({"status": 200, "request-headers": ["X: y"]})),
        (own, json!({"status": 200, "request-body": "x"})),
        (own, json!({"status": 200, "username": "u", "password": "p"})),
        (own, json!({"status": 200, "url": "http://evil.example/"})),
        ("http://u:p@localhost/", json!({"status": 200})),
        ("http://169.254.169.254/latest", json!({"status": 200})),
        ("http://{{ x }}@localhost/", json!({"status": 200})),
        ("http://localhost.evil.example/", json!({"status": 200})),
    ] {
        assert!(!allowed(url, &thing), "{url} {thing}");
    }
}

#[test]
fn hosts_are_those_of_the_url() {
    let limits = NodeLimits { fetch_hosts: Some(vec!["good.example".into(), "*.cdn.example".into()]), ..NodeLimits::default() };
    for (url, wanted) in [
        ("https://good.example/m.tgz", true),
        ("https://GOOD.example:8443/m.tgz", true),
        ("https://a.cdn.example/m.tgz", true),
        ("https://cdn.example/m.tgz", false),
        ("https://good.example@evil.example/m.tgz", false),
        ("https://good.example.evil.example/m.tgz", false),
        ("https://evil.example/?good.example", false),
        ("https://127.0.0.1/m.tgz", false),
        ("https://{{ x }}/m.tgz", false),
        ("good.example/m.tgz", false),
        ("obj://bucket/key", true),
        ("file:///srv/m.tgz", true),
    ] {
        let archive = json!({"name": "/a.tgz", "ensure": "present", "url": url});
        assert_eq!(check(&limits, "archive", &archive).is_ok(), wanted, "{url}");
    }
    for (section, key, wanted) in [
        ("http", "https://good.example/x", true),
        ("http", "https://evil.example/x", false),
        ("http", "https://{{ x }}/x", false),
        ("addr", "tcp://good.example:80", true),
        ("addr", "tcp://127.0.0.1:80", true),
        ("addr", "tcp://169.254.169.254:80", false),
        ("addr", "evil.example:80", false),
        ("addr", "good.example:80", true),
        ("dns", "evil.example", false),
        ("dns", "good.example", true),
        ("port", "tcp:22", true),
    ] {
        let checks = json!({"name": "/a", "health_checks": [{"goss_rules": {section: {key: {}}}}]});
        assert_eq!(check(&limits, "file", &checks).is_ok(), wanted, "{section} {key}");
    }
    let named = json!({"name": "/a", "health_checks": [{"goss_rules": {"http": {"x": {"url": "https://evil.example"}}}}]});
    assert!(check(&limits, "file", &named).is_err());
    let message = check(&limits, "archive", &json!({"name": "/a.tgz", "url": "https://u:pw@evil.example/a.tgz"})).unwrap_err();
    assert_eq!(message, "this node does not fetch from \"https://evil.example/a.tgz\"");
}

#[test]
fn nothing_is_mounted_that_the_owner_did_not_list() {
    let entry = |fstype: &str, options: &[&str], device: &str| MountLimit {
        fstype: fstype.into(),
        options: options.iter().map(|&option| option.into()).collect(),
        devices: vec![device.into()],
    };
    let mount = |limits: &NodeLimits, device: &str, fstype: &str, options: &str| {
        let all = json!({"name": "/srv/m", "ensure": "mounted", "device": device, "fstype": fstype, "options": options});
        check(limits, "mount", &all)
    };
    let paths = NodeLimits { paths: Some(vec!["/srv".into()]), exec: true, ..NodeLimits::default() };
    let bound = [
        paths.clone(),
        NodeLimits::default(),
        NodeLimits { types: Some(vec!["mount".into()]), exec: true, ..NodeLimits::default() },
        NodeLimits { read_paths: Some(vec!["/srv".into()]), exec: true, ..NodeLimits::default() },
    ];
    for (device, fstype, options) in [
        ("/etc", "tmpfs", "bind"),
        ("/", "ramfs", "rbind"),
        ("overlay", "overlay", "lowerdir=../../etc"),
        ("overlay", "overlay", "lowerdir=/etc,upperdir=/srv/a,workdir=/srv/b"),
        ("proc", "proc", "defaults"),
        ("x", "devtmpfs", "defaults"),
        ("/srv/evil#x", "fuse", "defaults"),
        ("tmpfs", "tmpfs", "nosuid,nodev"),
        ("{{ x }}", "tmpfs", "nosuid,nodev"),
    ] {
        for limits in &bound {
            let why = mount(limits, device, fstype, options).unwrap_err();
            assert!(why.contains("does not m") || why.contains("path") || why.contains("commands"), "{why}");
        }
        assert!(mount(&NodeLimits { exec: true, ..NodeLimits::default() }, device, fstype, options).is_ok(), "{device}");
    }
    let listed = NodeLimits {
        mount: Some(vec![
            entry("tmpfs", &["nosuid", "nodev", "size=*"], "tmpfs"),
            entry("none", &["bind", "suid", "dev"], "/opt/shared"),
            entry("fuse.sshfs", &["nosuid", "nodev"], "host:/x"),
        ]),
        ..paths
    };
    assert_eq!(mount(&listed, "tmpfs", "tmpfs", "nosuid,nodev,size=10m"), Ok(()));
    assert_eq!(mount(&listed, "/opt/shared", "none", "bind"), Ok(()));
    assert_eq!(mount(&listed, "host:/x", "fuse.sshfs", "nosuid,nodev"), Ok(()));
    let no_programs = NodeLimits { exec: false, ..listed.clone() };
    assert!(mount(&no_programs, "host:/x", "fuse.sshfs", "nosuid,nodev").is_err(), "a helper is a program");
    for (device, fstype, options) in [
        ("tmpfs", "tmpfs", "defaults"),
        ("tmpfs", "tmpfs", "nosuid,nodev,bind"),
        ("/etc", "tmpfs", "nosuid,nodev"),
        ("/opt/shared", "none", "rbind"),
        ("/opt/shared/..", "none", "bind"),
        ("/", "none", "bind"),
    ] {
        assert!(mount(&listed, device, fstype, options).is_err(), "{device} {fstype} {options}");
    }
    let outside = json!({"name": "/etc", "ensure": "mounted", "device": "tmpfs", "fstype": "tmpfs", "options": "nosuid,nodev"});
    assert!(check(&listed, "mount", &outside).is_err());
}

#[test]
fn what_is_read_is_limited_as_what_is_written() {
    let limits = NodeLimits {
        paths: Some(vec!["/srv".into()]),
        read_paths: Some(vec!["/opt".into()]),
        exec: true,
        ..NodeLimits::default()
    };
    let source = |path: &str| json!({"name": "/srv/a", "ensure": "present", "source": path});
    for (path, wanted) in
        [("/srv/b", true), ("/opt/b", true), ("/etc/shadow", false), ("b", false), ("/opt/../etc/shadow", false)]
    {
        assert_eq!(check(&limits, "file", &source(path)).is_ok(), wanted, "{path}");
        let scaffold = json!({"name": "/srv/a", "ensure": "present", "source": path});
        assert_eq!(check(&limits, "scaffold", &scaffold).is_ok(), wanted, "{path}");
    }
    let content = json!({"name": "/srv/a", "ensure": "present", "health_checks": [
        {"goss_rules": {"file": {"/etc/shadow": {"exists": true, "contents": ["root"]}}}},
    ]});
    assert!(check(&limits, "file", &content).is_err());
}

#[test]
fn a_policy_has_no_effects_and_hides_none() {
    let limits = NodeLimits { paths: Some(vec!["/srv".into()]), exec: false, ..NodeLimits::default() };
    let file = |checks: Value| {
        let policy = json!({"retry": "{{ Data.retries }}", "noop": true});
        json!({"name": "/srv/a", "ensure": "absent", "policy": policy, "health_checks": checks})
    };
    assert_eq!(check(&limits, "file", &file(json!([]))), Ok(()));
    assert!(check(&limits, "file", &file(json!([{"command": "id"}]))).is_err());
}
