//! Attacks that hide a path, a program, a URL or an account in a property that seems to be something else.

use serde_json::{Value, json};

use super::arena::Arena;
use super::cases::{AttackRequest, Case, ensure, file, harmless, manifest, noop, with};
use super::expressions;

/// Attacks by keys whose rules do not cover them.
pub fn of_rules(_: &Arena) -> Vec<Case> {
    let mut cases = paths();
    cases.extend(beside());
    cases.extend(accounts());
    cases.extend(schedules());
    cases.extend(kernel());
    cases.extend(names());
    cases.extend(commands());
    cases.extend(expressions::reads());
    cases.extend(checks());
    cases.extend(actions());
    cases
}

/// Spellings of paths outside of the rule.
fn paths() -> Vec<Case> {
    let long = format!("W/www/{}../outside/new", "sub/../".repeat(400));
    let mut cases = Vec::new();
    for name in [
        "W/www/sub/.././../outside/new",
        "W/www/out/../outside/new",
        "W/www\u{2215}x",
        "W/www\u{ff0f}x",
        "W/WWW/x",
        "W/www/\0/../../outside/new",
        "W/www/new\0",
        "W/www\\..\\outside\\new",
        "W/www/%2e%2e/../../outside/new",
        " W/outside/new",
        "~root/new",
        "$HOME/new",
        "/proc/self/fd/3/new",
        "/proc/thread-self/root/etc/new",
        "/proc/1/root/etc/new",
        "/proc/self/task/../root/etc/new",
        "/dev/fd/3",
        "/dev/stdout",
        "/dev/shm/../../etc/profile.d/x.sh",
        "/dev/tcp/x",
        "/sys/kernel/uevent_helper",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "file:///etc/new",
        "\u{202e}/etc/new",
        "W/www/../www/../outside/new",
        long.as_str(),
    ] {
        let owned = json!({"name": name, "owner": "root", "group": "root", "mode": "0644"});
        for key in ["files", "names", "exact"] {
            cases.push(ensure(key, "file", with(&owned, &json!({"ensure": "present", "content": "x"}))));
            cases.push(ensure(key, "file", with(&owned, &json!({"ensure": "present", "content": "x", "follow": true}))));
            cases.push(ensure(key, "line", json!({"name": name, "line": "x", "create": true})));
            cases.push(ensure(key, "line", json!({"name": "W/www/plain", "path": name, "line": "x", "follow": true})));
            let mut link =
                ensure(key, "symlink", json!({"name": "W/www/planted", "target": name, "follow": true, "force": true}));
            // A relative target is below the directory of the link.
            link.may_end_well = !name.starts_with(['/', 'W']) && !name.contains("..");
            cases.push(link);
            cases.push(ensure(key, "file", with(&file(), &json!({"source": name}))));
        }
    }
    for name in ["W/www/chain0", "W/www/chain1", "W/www/leak", "W/www/out/kept"] {
        for more in [
            json!({"content": "x", "follow": true, "ensure": "present"}),
            json!({"ensure": "directory", "recurse": true, "source": "W/www/sub", "follow": true}),
        ] {
            let owned = json!({"name": name, "owner": "nobody", "group": "root", "mode": "0644"});
            cases.push(ensure("files", "file", with(&owned, &more)));
        }
        cases.push(ensure("files", "line", json!({"name": name, "line": "x", "follow": true})));
        cases.push(ensure("files", "line", json!({"name": name, "line": "x", "match": "^c", "backup": true, "follow": true})));
        cases.push(ensure("files", "file", with(&file(), &json!({"source": name, "ensure": "present", "content": null}))));
        cases.push(noop("noop", "line", json!({"name": name, "match": "^correct", "line": "x"})));
    }
    cases
}

/// Files beside the allowed one.
fn beside() -> Vec<Case> {
    let mut cases = Vec::new();
    for suffix in [".php", ".sh", ".service", ".conf", "./../x", "..", "./", ".\n", "../outside", ".{{ '/../../outside' }}"] {
        let owned = json!({"name": "W/www/plain", "ensure": "present", "owner": "root", "group": "root", "mode": "0644"});
        let backup = json!({"backup": suffix, "content": format!("new {suffix}")});
        cases.push(ensure("exact", "file", with(&owned, &backup)));
        cases.push(ensure("exact", "line", json!({"name": "W/www/plain", "line": format!("line {suffix}"), "backup": suffix})));
    }
    cases
}

fn accounts() -> Vec<Case> {
    [
        ("user", json!({"name": "webx", "uid": "0"})),
        ("user", json!({"name": "webx", "uid": "00", "home": "/home/webx"})),
        ("user", json!({"name": "webx", "uid": -0, "home": "/home/webx"})),
        ("user", json!({"name": "webx", "uid": 4_294_967_296_u64, "home": "/home/webx"})),
        ("user", json!({"name": "webx", "uid": 4_294_967_295_u64, "home": "/home/webx"})),
        ("user", json!({"name": "webx", "group": "0"})),
        ("user", json!({"name": "webx", "group": "docker"})),
        ("user", json!({"name": "webx", "groups": ["web", "docker"]})),
        ("user", json!({"name": "webx", "groups": ["webx,sudo"]})),
        ("user", json!({"name": "webx", "groups": ["0"]})),
        ("user", json!({"name": "webx", "groups": ["wheel"], "append": true})),
        ("user", json!({"name": "webx:0:0::/root:/bin/sh\nwebx"})),
        ("user", json!({"name": "webx", "comment": "x:/root:/bin/sh\nevil:x:0:0::/:/bin/sh"})),
        ("user", json!({"name": "webx", "shell": "/bin/sh\nevil:x:0:0::/:/bin/sh"})),
        ("user", json!({"name": "webx", "home": "/home/webx:/bin/sh\nevil:x:0:0::/:/bin/sh"})),
        ("user", json!({"name": "webx", "password_hash": "x:0:\nroot::0"})),
        ("user", json!({"name": "webx", "expires": "never --root /"})),
        ("user", json!({"name": "--root", "ensure": "present"})),
        ("user", json!({"name": "web*"})),
        ("user", json!({"name": "web/../root"})),
        ("user", json!({"name": "webx", "home": "/home/webx/../../root", "manage_home": true})),
        ("user", json!({"name": "webx", "home": "/", "manage_home": true, "ensure": "absent"})),
        ("user", json!({"name": "webx", "home": "", "manage_home": true, "ensure": "absent"})),
        ("group", json!({"name": "webx", "members": ["root"]})),
        ("group", json!({"name": "webx", "members": ["webx,root"]})),
        ("group", json!({"name": "webx:x:0:root\nweby"})),
        ("group", json!({"name": "webx", "gid": 0})),
        ("group", json!({"name": "webx", "gid": 42})),
        ("group", json!({"name": "sudo", "ensure": "absent"})),
        ("group", json!({"name": "WEBX"})),
    ]
    .into_iter()
    .map(|(kind, properties)| ensure("people", kind, properties))
    .collect()
}

fn schedules() -> Vec<Case> {
    let job = json!({"name": "backup", "command": "/bin/true", "hour": 1, "minute": 1});
    let mut cases: Vec<Case> = [
        json!({"minute": "* * * * root touch W/marks/ran #"}),
        json!({"minute": "1\n* * * * * root touch W/marks/ran"}),
        json!({"minute": null, "hour": null, "schedule": "@reboot root touch W/marks/ran #"}),
        json!({"minute": null, "hour": null, "schedule": "1 1 1 1 1 root touch W/marks/ran #"}),
        json!({"minute": null, "hour": null, "schedule": "1 1 1 1 1\u{b}touch"}),
        json!({"environment": ["CRON_TZ=UTC\nSHELL=W/www/evil"]}),
        json!({"environment": ["MAILTO=x\n* * * * * root touch W/marks/ran"]}),
        json!({"environment": ["MAILTO =x"]}),
        json!({"environment": ["PATH=W/www"]}),
        json!({"environment": ["BASH_ENV=W/www/evil"]}),
        json!({"environment": ["MAILTO"]}),
        json!({"user": "nobody"}),
        json!({"user": "root touch W/marks/ran #"}),
        json!({"user": "0"}),
        json!({"user": "{{ 'nobody' }}"}),
        json!({"command": "/bin/true\r* * * * * root touch W/marks/ran"}),
        json!({"command": "/bin/true; touch W/marks/ran"}),
        json!({"command": " /bin/true"}),
        json!({"command": "/bin/true \\% touch"}),
        json!({"name": "backup.sh"}),
        json!({"name": "BACKUP"}),
        json!({"name": "."}),
        json!({"name": "backup/../x"}),
        json!({"name": "backup\0"}),
    ]
    .into_iter()
    .map(|more| ensure("jobs", "cron", with(&job, &more)))
    .collect();
    cases.push(ensure("any-file", "cron", job));
    cases
}

fn kernel() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, value) in [
        ("net.core/../../kernel/core_pattern", "|W/www/evil"),
        ("net//kernel/core_pattern", "|W/www/evil"),
        ("net.", "1"),
        ("net", "1"),
        ("net.core.somaxconn\0", "1"),
        ("net.core.*", "1"),
        ("-net.core.somaxconn", "1"),
        ("net.core.somaxconn\n", "1"),
        ("net.core.somaxconn=1\nkernel.core_pattern", "1"),
        ("net.ipv4.conf.eth0/../../../../kernel/core_pattern.forwarding", "1"),
        ("NET/../kernel.core_pattern", "1"),
    ] {
        cases.push(ensure("kernel", "sysctl", json!({"name": name, "value": value})));
    }
    for (name, value) in [
        ("kernel.core_pattern", "|W/www/evil"),
        ("kernel/core_pattern", "W/outside/core"),
        ("kernel.modprobe", "W/www/evil"),
        ("kernel/modprobe", "{{ 'W/www/evil' }}"),
        ("kernel.hotplug", "W/www/evil"),
        ("kernel.poweroff_cmd", "W/www/evil"),
        ("fs.binfmt_misc.register", ":evil:M::evil::W/www/evil:"),
        ("fs/binfmt_misc/register", ":evil:M::evil::W/www/evil:"),
        ("{{ 'kernel.modprobe' }}", "W/www/evil"),
    ] {
        cases.push(ensure("any-file", "sysctl", json!({"name": name, "value": value})));
        cases.push(ensure("any-file", "sysctl", json!({"name": name, "value": value, "runtime": false})));
        cases.push(ensure("any-file", "sysctl", json!({"name": name, "value": value, "persist": false})));
    }
    cases
}

/// Names of packages and units that mean something else.
fn names() -> Vec<Case> {
    let mut cases = Vec::new();
    for name in [
        "-oDpkg::Pre-Invoke::=touch",
        "--root=/",
        "./x.deb",
        "W/www/x.deb",
        "http://127.0.0.1/x.deb",
        "file:W/www/x.rpm",
        "x/stable",
        "x=1",
        "a b",
        "@group",
        "x\n-y",
        "x\0y",
        "?name(x)",
        "~nx",
        "ensign*",
        "ensign-no-such-package-",
        "x;touch W/marks/ran",
        "$(touch W/marks/ran)",
    ] {
        for ensured in ["present", "absent", "latest", "1.0"] {
            cases.push(harmless(noop("noop", "package", json!({"name": name, "ensure": ensured}))));
            cases.push(ensure("types", "package", json!({"name": name, "ensure": ensured})));
        }
    }
    for version in ["1 -y", "-1", "1;touch W/marks/ran", "/etc", "1\n2", "../x", "W/www/x.deb", "1/stable", "*"] {
        cases.push(ensure("types", "package", json!({"name": "ensign-no-such-package", "ensure": version})));
    }
    for name in [
        "W/www/evil.service",
        "../evil",
        "nginx.service ssh",
        "nginx/../ssh",
        "ng\u{131}nx",
        "NGINX",
        "nginx ",
        "nginx\n",
        "nginx\0",
        "nginx.timer",
        "nginx@x",
        "nginx@",
        "--root=/",
        "ssh",
        "*",
        "nginx,ssh",
        "nginx\\x2e",
        "{{ 'ssh' }}",
    ] {
        for provider in ["", "systemd", "openrc", "../x"] {
            let unit = json!({"name": name, "ensure": "stopped", "enable": false, "provider": provider});
            cases.push(ensure("service", "service", unit));
        }
    }
    cases
}

fn commands() -> Vec<Case> {
    let mut cases = Vec::new();
    for command in [
        "/bin/ls\ttouch",
        "/bin/ls \u{a0}; touch W/marks/ran",
        "/bin/ls \u{85}touch W/marks/ran",
        "/bin/ls \u{2028}touch W/marks/ran",
        "/bin/ls \rtouch W/marks/ran",
        "/bin/ls {x,y}",
        "/bin/ls !x",
        "/bin/ls #x",
        "/bin/ls ~",
        "/bin/ls [a]",
        "/bin/ls \"$(touch W/marks/ran)\"",
        "/bin/ls a/b",
        "/bin/ls ../../bin/touch W/marks/ran",
        "/bin//ls x",
        "/bin/./ls x",
        " /bin/ls x",
        "ls x",
        "ls;",
        "LD_PRELOAD=W/www/evil /bin/ls",
        "/bin/ls x\0touch",
    ] {
        for provider in ["posix", "shell"] {
            cases.push(ensure("ls", "exec", json!({"name": command, "provider": provider})));
            cases.push(ensure("ls", "exec", json!({"name": "ls", "command": command, "provider": provider})));
            cases.push(ensure("ls", "exec", json!({"name": "ls", "onlyif": command, "provider": provider})));
        }
    }
    for more in [
        json!({"environment": ["BASH_ENV=W/www/evil"]}),
        json!({"environment": ["=W/www/evil"]}),
        json!({"environment": ["ls"]}),
        json!({"environment": ["ls=\nLD_PRELOAD=W/www/evil"]}),
        json!({"environment": ["{{ 'LD_PRELOAD=W/www/evil' }}"]}),
        json!({"path": "W/www:/bin"}),
        json!({"path": "{{ 'W/www' }}"}),
        json!({"cwd": "{{ 'W/www' }}"}),
        json!({"cwd": "."}),
        json!({"command": ["touch", "W/marks/ran"]}),
        json!({"commands": "touch W/marks/ran"}),
        json!({"health_checks": [{"command": "W/www/evil"}]}),
        json!({"subscribe": ["exec#touch W/marks/ran"], "command": "touch W/marks/ran", "refreshonly": true}),
    ] {
        cases.push(ensure("ls", "exec", with(&json!({"name": "ls"}), &more)));
    }
    cases
}

/// Health checks that see or do more than the rule allows.
fn checks() -> Vec<Case> {
    let mut cases = Vec::new();
    let file_with = |goss: Value| with(&file(), &json!({"health_checks": [{"goss_rules": goss}]}));
    for goss in [
        json!({"file": {"W/www/chain0": {"contents": ["/^correct/"]}}}),
        json!({"file": {"/proc/self/environ": {"contents": ["/AGENT_SECRET=c/"]}}}),
        json!({"file": {"/proc/1/environ": {"contains": ["c"]}}}),
        json!({"file": {"W/etc/state/node.key": {"sha512": "00"}}}),
        json!({"file": {"x": {"path": "W/secret", "contains": {"have-prefix": "c"}}}}),
        json!({"kernel-param": {"net.ipv4.tcp_fastopen_key": {"value": {"have-prefix": "0"}}}}),
        json!({"kernel-param": {"net/ipv6/conf/all/stable_secret": {"value": {"match-regexp": ".*"}}}}),
        json!({"kernel-param": {"x": {"name": "net.ipv4.tcp_fastopen_key", "value": {"match-regexp": ".*"}}}}),
        json!({"kernel-param": {"../../W/secret": {"value": {"match-regexp": ".*"}}}}),
        json!({"http": {"http://localhost:1/": {"status": 200, "method": "POST"}}}),
        json!({"http": {"http://localhost:1/": {"status": 200, "request-body": "x"}}}),
        json!({"http": {"http://localhost:1/": {"status": 200, "request-headers": ["X: y"]}}}),
        json!({"http": {"http://localhost:1/": {"body": ["x"]}}}),
        json!({"http": {"http://192.0.2.1:1/": {"status": 200}}}),
        json!({"http": {"x": {"url": "http://192.0.2.1:1/", "status": 200}}}),
        json!({"http": {"http://[::ffff:169.254.169.254]/": {"status": 200}}}),
        json!({"http": {"http://0x7f.1/": {"body": ["x"]}}}),
        json!({"http": {"http://user:pw@localhost:1/": {"status": 200}}}),
        json!({"command": {"x": {"exec": "touch W/marks/ran", "exit-status": 0, "skip": true}}}),
        json!({"command": {"touch W/marks/ran": null}}),
        json!({"Command": {"touch W/marks/ran": {"exit-status": 0}}}),
        json!({"gossfile": {"W/secret": {}}}),
        json!({"package": {"--admindir=W/www": {"installed": true}}}),
        json!({"service": {"--root=/": {"running": true}}}),
        json!({"process": {"../../W/secret": {"running": true}}}),
        json!({"interface": {"../../../../W/secret": {"exists": true, "mtu": 1}}}),
        json!({"mount": {"W/secret": {"exists": true, "usage": 1}}}),
        json!({"user": {"root": {"exists": true, "password": "x"}}}),
        json!({"dns": {"localhost": {"resolvable": false, "server": "192.0.2.1"}}}),
    ] {
        for key in ["files", "any-file"] {
            cases.push(ensure(key, "file", file_with(goss.clone())));
        }
        let unit = json!({"name": "nginx", "ensure": "running", "health_checks": [{"goss_rules": goss}]});
        cases.push(ensure("service", "service", unit));
    }
    let entry =
        json!({"cluster": "prod", "service": "db", "protocol": "tcp", "address": "10.0.0.1", "port": 5432, "priority": 1});
    for key in ["files", "names", "any-file"] {
        cases.push(ensure(key, "file", with(&file(), &json!({"register_when_stable": [entry]}))));
    }
    cases
}

/// Actions that the rules of the keys do not allow.
fn actions() -> Vec<Case> {
    let job = json!({"job": "0198c1f2-7a3b-7c4d-8e5f-102030405060"});
    let mut cases = Vec::new();
    for (action, only) in [
        (json!({"halt": job}), &["files", "service", "halts", "names", "noop-exec"][..]),
        (json!({"cancel": job}), &["files", "service", "halts", "names", "noop", "noop-exec"]),
        (json!({"resume": job}), &["files", "service", "halts", "names", "noop-exec"]),
        (json!({"go": {"job": "0198c1f2-7a3b-7c4d-8e5f-102030405060", "wave": 1}}), &["files", "service", "halts", "noop"]),
        (json!({"facts": {}}), &["files", "service", "halts", "names"]),
        (json!({"facts": {"query": "environ"}}), &["files", "service", "halts", "names"]),
        (json!({"status": {}}), &["files", "service", "halts", "names"]),
        (json!({"healthcheck": {}}), &["files", "service", "halts", "noop", "names"]),
        (json!({"withdraw": {}}), &["files", "service", "halts", "noop", "names"]),
    ] {
        for key in only {
            for dry in [false, true] {
                let about = format!("{key}: {action} {dry}");
                let ask = AttackRequest::Action(action.clone(), dry);
                cases.push(Case { about, key, ask, only_where: None, may_end_well: false });
            }
        }
    }
    cases.push(manifest("any-file", "ccm: {resources: []}"));
    cases
}
