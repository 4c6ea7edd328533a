//! The attacks. `W` in a text is the directory of the test. The keys may manage `W/www`, only root may read `W/secret`, and
//! `W/outside` must stay unchanged. A file in `W/marks` proves that a program ran.

use serde_json::{Map, Value, json};

use super::arena::Arena;

/// The request of an attack.
pub enum AttackRequest {
    /// A single resource.
    Ensure(String, Value),
    /// The same as a dry run.
    Noop(String, Value),
    /// A manifest.
    Manifest(String),
    /// The same as a dry run.
    NoopManifest(String),
    /// Any action. True for a dry run.
    Action(Value, bool),
}

/// An attack.
pub struct Case {
    pub about: String,
    pub key: &'static str,
    pub ask: AttackRequest,
    pub only_where: Option<String>,
    /// True when a run without harm is as good as a rejection.
    pub may_end_well: bool,
}

pub fn ensure(key: &'static str, kind: &str, properties: Value) -> Case {
    let about = format!("{key}: {kind} {properties}");
    Case { about, key, ask: AttackRequest::Ensure(kind.to_owned(), properties), only_where: None, may_end_well: false }
}

/// An attack that does no harm when it runs: only what happens counts.
pub fn harmless(mut case: Case) -> Case {
    case.may_end_well = true;
    case
}

pub fn noop(key: &'static str, kind: &str, properties: Value) -> Case {
    let about = format!("{key}, dry run: {kind} {properties}");
    Case { about, key, ask: AttackRequest::Noop(kind.to_owned(), properties), only_where: None, may_end_well: true }
}

pub fn manifest(key: &'static str, text: &str) -> Case {
    Case {
        about: format!("{key}: {text}"),
        key,
        ask: AttackRequest::Manifest(text.to_owned()),
        only_where: None,
        may_end_well: false,
    }
}

fn manifest_of(kind: &str, properties: &Value) -> String {
    json!({"ccm": {"resources": [{kind: properties}]}}).to_string()
}

/// Returns the properties with more of them.
pub fn with(base: &Value, more: &Value) -> Value {
    let mut all: Map<String, Value> = base.as_object().unwrap().clone();
    all.extend(more.as_object().unwrap().clone());
    Value::Object(all)
}

pub fn file() -> Value {
    json!({"name": "W/www/file", "ensure": "present", "content": "x", "owner": "root", "group": "root", "mode": "0644"})
}

/// Forms of a command that leaves a mark.
const PROGRAMS: &[&str] = &["touch W/marks/ran", "/bin/sh -c 'touch W/marks/ran'", "W/www/evil"];

/// Properties with a program, each for the types that have it.
fn with_programs(program: &str) -> Vec<(&'static str, Value)> {
    let service = json!({"name": "nginx", "ensure": "running"});
    let exec = json!({"name": "true"});
    let scaffold = json!({"name": "W/www/tree", "ensure": "present", "source": "W/www/tpl"});
    let line = json!({"name": "W/www/plain", "line": "x"});
    let checks = [
        json!({"health_checks": [{"command": program}]}),
        json!({"health_checks": [{"command": program, "tries": 2, "name": "x"}]}),
        json!({"health_checks": [{"goss_rules": {"command": {program: {"exit-status": 0}}}}]}),
        json!({"health_checks": [{"goss_rules": {"command": {"x": {"exec": program, "exit-status": 0}}}}]}),
        json!({"health_checks": [{"goss_rules": {"command": {"{{ 'x' }}": {"exec": format!("{{{{ '{program}' }}}}")}}}}]}),
    ];
    let mut found: Vec<(&str, Value)> = Vec::new();
    for check in &checks {
        found.push(("exec", with(&exec, check)));
        found.push(("service", with(&service, check)));
        found.push(("file", with(&file(), check)));
        found.push(("scaffold", with(&scaffold, check)));
    }
    for guard in ["onlyif", "unless"] {
        for provider in ["posix", "shell"] {
            found.push(("exec", with(&exec, &json!({guard: program, "provider": provider}))));
            found.push(("exec", with(&exec, &json!({guard: format!("{{{{ '{program}' }}}}"), "provider": provider}))));
        }
    }
    found.push(("file", with(&file(), &json!({"validate": format!("{program} %s")}))));
    found.push(("line", with(&line, &json!({"validate": format!("{program} %s")}))));
    found.push(("scaffold", with(&scaffold, &json!({"post": [{"*": program}]}))));
    found
}

pub fn dry_runs(_: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for program in PROGRAMS {
        for (kind, properties) in with_programs(program) {
            for key in ["noop", "noop-exec"] {
                cases.push(noop(key, kind, properties.clone()));
            }
            let ask = AttackRequest::NoopManifest(manifest_of(kind, &properties));
            let about = format!("noop, manifest: {kind} {properties}");
            cases.push(Case { about, key: "noop", ask, only_where: None, may_end_well: true });
        }
        cases.push(noop("noop", "exec", json!({"name": program})));
        cases.push(noop("noop", "exec", json!({"name": "x", "command": program, "refreshonly": true})));
    }
    let job = json!({"job": "0198c1f2-7a3b-7c4d-8e5f-102030405060"});
    for action in [json!({"halt": job}), json!({"resume": job}), json!({"cancel": job})] {
        for is_noop in [true, false] {
            let about = format!("noop: {action} {is_noop}");
            cases.push(Case {
                about,
                key: "noop",
                ask: AttackRequest::Action(action.clone(), is_noop),
                only_where: None,
                may_end_well: false,
            });
        }
    }
    cases
}

/// Expressions that read forbidden data.
const READS: &[&str] = &[
    "readFile('W/secret')",
    "file('W/secret')",
    "template('W/secret')",
    "upper(readFile('W/secret'))",
    "toBase64(readFile('W/secret'))",
    "readFile('W/www/../secret')",
    "readFile('W/www/leak')",
    "readFile('/proc/self/root' + 'W/secret')",
    "secret('file:W/secret')",
    "secret('W/secret')",
    "secret('env:AGENT_SECRET')",
    "Environ.AGENT_SECRET",
    "lookup('environ.AGENT_SECRET', 'none')",
    "lookup('env.AGENT_SECRET', 'none')",
    "jet('W/secret')",
    "readFile('/proc/self/environ')",
    "readFile('W/state/node.key')",
    "readFile('W/etc/state/node.key')",
    "readFile('W/pipe')",
    "readFile('/proc/kmsg')",
    "readFile('/dev/zero')",
];

/// True for an expression without a secret: a missing variable, or a template that is given as its text.
fn reads_nothing(expression: &str) -> bool {
    ["lookup", "template(", "jet("].iter().any(|start| expression.starts_with(start))
}

/// Properties that can hold an expression.
fn properties_with_expression() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    let service = json!({"name": "nginx", "ensure": "running"});
    let link = json!({"name": "W/www/link", "target": "plain", "ensure": "present"});
    let line = json!({"name": "W/www/plain", "line": "x"});
    let mut found = Vec::new();
    for slot in ["ensure", "alias", "name", "enable", "provider"] {
        found.push(("service", "service", service.clone(), slot));
        found.push(("types", "service", service.clone(), slot));
    }
    for slot in ["ensure", "alias", "name", "content", "owner", "group", "mode", "source", "backup", "follow"] {
        for key in ["files", "names"] {
            found.push((key, "file", file(), slot));
        }
    }
    for slot in ["target", "name", "ensure"] {
        found.push(("files", "symlink", link.clone(), slot));
    }
    for slot in ["line", "match", "path", "after"] {
        found.push(("files", "line", line.clone(), slot));
    }
    found.push(("types", "package", json!({"name": "ensign-no-such-package", "ensure": "present"}), "ensure"));
    found.push(("people", "user", json!({"name": "webx", "ensure": "absent"}), "comment"));
    found.push(("kernel", "sysctl", json!({"name": "net.ensign.none", "value": "1"}), "value"));
    found
}

pub fn reads(_: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for (key, kind, base, slot) in properties_with_expression() {
        for expression in READS {
            for text in [format!("{{{{ {expression} }}}}"), format!("x ${{ {expression} }}")] {
                let mut case = ensure(key, kind, with(&base, &json!({slot: text})));
                // A variable outside of the scope may be empty.
                case.may_end_well = reads_nothing(expression);
                cases.push(case);
            }
        }
    }
    for (key, kind, base) in [
        ("service", "service", json!({"name": "nginx", "ensure": "running"})),
        ("files", "file", file()),
        ("names", "file", file()),
    ] {
        for expression in READS {
            let compare = format!("len({expression}) > 0");
            for condition in ["if", "unless"] {
                let control = json!({"control": {condition: compare}});
                let mut case = ensure(key, kind, with(&base, &control));
                case.may_end_well = reads_nothing(expression);
                cases.push(case);
            }
            let check = json!({"health_checks": [{"goss_rules": {"matching": {"x": {"content": format!("{{{{ {expression} }}}}"), "matches": {"match-regexp": "^c"}}}}}]});
            let mut case = ensure(key, kind, with(&base, &check));
            case.may_end_well = reads_nothing(expression);
            cases.push(case);
        }
    }
    for source in
        ["W/secret", "W/www/../secret", "W/www/leak", "/etc/shadow", "file://W/secret", "../secret", "W/pipe", "/proc/kmsg"]
    {
        for key in ["files", "names"] {
            let base = json!({"name": "W/www/copy", "ensure": "present", "owner": "root", "group": "root", "mode": "0644", "source": source});
            cases.push(ensure(key, "file", base));
        }
    }
    for source in ["W/outside", "/root", "/etc", "W"] {
        let tree = json!({"name": "W/www/copies", "ensure": "directory", "owner": "root", "group": "root", "mode": "0755", "source": source, "recurse": true});
        cases.push(ensure("files", "file", tree));
        cases.push(ensure("files", "scaffold", json!({"name": "W/www/copies", "ensure": "present", "source": source})));
    }
    for engine in ["jinja", "go", "jet"] {
        let source = format!("W/www/tpl-{engine}");
        let scaffold = json!({"name": "W/www/rendered", "ensure": "present", "engine": engine, "source": source});
        cases.push(ensure("files", "scaffold", scaffold));
    }
    // A comparison discloses as much as an output.
    for goss in [
        json!({"file": {"W/secret": {"contents": ["/correct/"]}}}),
        json!({"file": {"x": {"path": "W/secret", "sha256": "00"}}}),
        json!({"file": {"{{ 'W/secret' }}": {"contains": ["c"]}}}),
        json!({"file": {"W/www/leak": {"contents": ["c"]}}}),
        json!({"file": {"W/www/../secret": {"size": 29, "contents": ["c"]}}}),
        json!({"http": {"http://169.254.169.254/": {"status": 200}}}),
    ] {
        cases.push(ensure(
            "service",
            "service",
            json!({"name": "nginx", "ensure": "running", "health_checks": [{"goss_rules": goss}]}),
        ));
        cases.push(ensure("files", "file", with(&file(), &json!({"health_checks": [{"goss_rules": goss}]}))));
    }
    for expression in
        ["readFile('W/secret') == ''", "secret('file:W/secret') != ''", "reduce(1..40, #acc + #acc, 'aaaaaaaaaa') == ''"]
    {
        let mut case = ensure("files", "file", file());
        case.about = format!("where {expression}");
        case.only_where = Some(expression.replace("W/", "/"));
        cases.push(case);
    }
    cases
}

pub fn names(_: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    for name in [
        "W/outside/new",
        "W/www/../outside/new",
        "W/www/./../outside/new",
        "W/www//../outside/new",
        "W/www/out/new",
        "W/www/out/kept",
        "W/wwwx",
        "W/www/sub/../../outside/new",
        "//etc/new",
        "/proc/self/cwd/new",
        "/proc/self/root/etc/new",
        "www/new",
        "W/www/{{ '../outside/new' }}",
        "W/www/${ '..' }/outside/new",
        "W/www",
        "W/www/",
        "W/www/.",
        "W/",
        "/",
        "W/etc/agent.toml",
        "W/etc/state/ledger.jsonl",
    ] {
        let named = |more: Value| with(&json!({"name": name}), &more);
        let owned = json!({"owner": "root", "group": "root", "mode": "0666"});
        for key in ["files", "names"] {
            let may_be_own = name.trim_end_matches(['/', '.']).ends_with("W/www");
            let mut add = |mut case: Case| {
                case.may_end_well = may_be_own;
                cases.push(case);
            };
            add(ensure(key, "file", named(with(&owned, &json!({"ensure": "present", "content": "x"})))));
            add(ensure(key, "file", named(with(&owned, &json!({"ensure": "absent", "force": true})))));
            add(ensure(key, "file", named(with(&owned, &json!({"ensure": "directory"})))));
            add(ensure(key, "symlink", named(json!({"target": "plain", "force": true}))));
            add(ensure(key, "line", named(json!({"line": "x"}))));
            add(ensure(key, "scaffold", named(json!({"ensure": "present", "source": "W/www/tpl"}))));
            add(ensure(key, "archive", named(json!({"url": "http://127.0.0.1:1/x.tar.gz", "extract_parent": name}))));
        }
    }
    for target in ["/etc", "W/secret", "../outside", "../../etc/shadow", "/proc/self/root", "W/www/../secret", "{{ '/etc' }}"] {
        cases.push(ensure("files", "symlink", json!({"name": "W/www/planted", "target": target})));
        cases.push(ensure("names", "symlink", json!({"name": "W/www/planted", "target": target, "ensure": "present"})));
    }
    for more in [
        json!({"backup": "W/outside"}),
        json!({"backup": "/etc/cron.d"}),
        json!({"backup": "../outside"}),
        json!({"owner": "nobody", "name": "W/outside/kept"}),
        json!({"path": "W/outside/kept"}),
        json!({"source": "/etc/shadow", "content": null}),
        json!({"validate": "W/www/evil %s"}),
    ] {
        for key in ["files", "names"] {
            cases.push(ensure(key, "file", with(&file(), &more)));
            cases.push(ensure(key, "line", with(&json!({"name": "W/www/plain", "line": "y"}), &more)));
        }
    }
    for sign in [";", "&&", "||", "|", "&", "\n", "$(", "`", ">W/marks/ran ", "<(", "\\\n"] {
        for provider in ["posix", "shell"] {
            let command = match sign {
                "$(" => "/bin/ls $(touch W/marks/ran)".to_owned(),
                "`" => "/bin/ls `touch W/marks/ran`".to_owned(),
                "<(" => "/bin/ls <(touch W/marks/ran)".to_owned(),
                other => format!("/bin/ls / {other} touch W/marks/ran"),
            };
            let mut case = ensure("ls", "exec", json!({"name": command, "provider": provider}));
            // Without a shell they are arguments.
            case.may_end_well = provider == "posix";
            cases.push(case);
            let mut case = ensure("ls", "exec", json!({"name": "ls", "command": command, "provider": provider}));
            case.may_end_well = provider == "posix";
            cases.push(case);
        }
    }
    for more in [
        json!({"environment": ["LD_PRELOAD=W/www/evil"]}),
        json!({"environment": ["PATH=W/www"]}),
        json!({"path": "W/www"}),
        json!({"cwd": "W/www"}),
        json!({"onlyif": "touch W/marks/ran"}),
        json!({"unless": "touch W/marks/ran"}),
        json!({"command": "touch W/marks/ran"}),
        json!({"command": "/bin/ls {{ '; touch W/marks/ran' }}", "provider": "shell"}),
    ] {
        cases.push(ensure("ls", "exec", with(&json!({"name": "ls"}), &more)));
    }
    let options = [
        "bind",
        "rbind",
        "bind,ro",
        "defaults,bind",
        "move",
        "X-mount.mkdir,bind",
        "x-systemd.automount,bind",
        "bind=",
        "\"bind\"",
        "remount,bind",
    ];
    for option in options {
        for fstype in ["none", "tmpfs", "auto", "ramfs", "ext4"] {
            for device in ["/etc", "/", "W/outside"] {
                let mount =
                    json!({"name": "W/www/sub", "ensure": "mounted", "device": device, "fstype": fstype, "options": option});
                cases.push(ensure("mount", "mount", mount));
            }
        }
    }
    for (device, fstype, option) in MOUNTS {
        let mount = json!({"name": "W/www/sub", "ensure": "mounted", "device": device, "fstype": fstype, "options": option});
        cases.push(ensure("mount", "mount", mount));
    }
    for (kind, key, properties) in [
        ("cron", "jobs", json!({"name": "backup", "command": "touch W/marks/ran", "hour": 1})),
        ("cron", "jobs", json!({"name": "../../W/marks/x", "command": "/bin/true"})),
        ("cron", "jobs", json!({"name": "backup", "command": "/bin/true\n* * * * * root touch W/marks/ran"})),
        ("cron", "jobs", json!({"name": "backup", "command": "/bin/true", "environment": ["SHELL=W/www/evil"]})),
        ("cron", "jobs", json!({"name": "backup", "command": "/bin/true", "user": "root\n* * * * * root touch W/marks/ran #"})),
        ("cron", "jobs", json!({"name": "backup", "command": "/bin/true % touch"})),
        ("sysctl", "kernel", json!({"name": "kernel.core_pattern", "value": "|W/www/evil"})),
        ("sysctl", "kernel", json!({"name": "net/../kernel/core_pattern", "value": "|W/www/evil"})),
        ("sysctl", "kernel", json!({"name": "net.core.somaxconn", "value": "1\nkernel.core_pattern = |W/www/evil"})),
        ("user", "people", json!({"name": "root", "password_hash": "x"})),
        ("user", "people", json!({"name": "webx", "groups": ["sudo"]})),
        ("user", "people", json!({"name": "webx", "uid": 0})),
        ("user", "people", json!({"name": "webx", "manage_home": true, "home": "/etc"})),
        ("user", "people", json!({"name": "webx", "gid": "root"})),
        ("group", "people", json!({"name": "sudo", "members": ["webx"]})),
        ("group", "people", json!({"name": "webx:", "ensure": "present"})),
        ("apply", "apply", json!({"name": "W/www/nested.yaml"})),
    ] {
        cases.push(ensure(key, kind, properties));
    }
    cases.push(manifest("files", &manifest_of("file", &file())));
    cases.push(manifest("names", &manifest_of("file", &file())));
    cases
}

/// Mounts that expose other directories, or run a program.
const MOUNTS: &[(&str, &str, &str)] = &[
    ("/etc", "tmpfs", "bind"),
    ("/", "ramfs", "rbind"),
    ("overlay", "overlay", "lowerdir=../../etc,upperdir=W/www/sub,workdir=W/www/work"),
    ("overlay", "overlay", "lowerdir=/etc"),
    ("overlay", "overlay", "lowerdir+=/etc"),
    ("overlay", "overlay", "lowerdir=W/www:etc"),
    ("proc", "proc", "defaults"),
    ("x", "devtmpfs", "defaults"),
    ("sysfs", "sysfs", "defaults"),
    ("cgroup2", "cgroup2", "defaults"),
    ("bpf", "bpf", "defaults"),
    ("devpts", "devpts", "defaults"),
    ("securityfs", "securityfs", "defaults"),
    ("debugfs", "debugfs", "defaults"),
    ("W/www/evil#x", "fuse", "defaults"),
    ("W/www/evil#x", "fuse.W/www/evil", "defaults"),
    ("x", "fuse.evil", "defaults"),
    ("tmpfs", "tmpfs", "helper=W/www/evil"),
    ("tmpfs", "tmpfs", "uhelper=evil"),
    ("tmpfs", "../../W/www/evil", "defaults"),
    ("W/secret", "auto", "loop"),
    ("W/secret", "ext4", "loop"),
    ("/dev/vda", "ext4", "ro"),
    ("UUID=0", "ext4", "defaults"),
    ("none", "none", "bind"),
    ("//127.0.0.1/x", "cifs", "credentials=W/secret"),
    ("127.0.0.1:/x", "nfs", "defaults"),
    ("tmpfs", "tmpfs", "defaults"),
    ("tmpfs\n/etc", "tmpfs", "defaults"),
    ("tmpfs", "tmpfs", "defaults\n/etc /mnt none bind 0 0"),
];

pub fn limits(_: &Arena) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut both = |kind: &str, properties: Value| {
        cases.push(ensure("ops", kind, properties.clone()));
        cases.push(manifest("ops", &manifest_of(kind, &properties)));
    };
    for (device, fstype, options) in MOUNTS {
        for state in ["mounted", "present"] {
            both("mount", json!({"name": "W/www/sub", "ensure": state, "device": device, "fstype": fstype, "options": options}));
        }
    }
    for name in [
        "W/outside/new",
        "W/www/../outside/new",
        "W/www/out/new",
        "/proc/self/root/etc/new",
        "W/etc/state/x",
        "/etc/profile.d/x.sh",
    ] {
        let owned = json!({"name": name, "owner": "root", "group": "root", "mode": "0644"});
        both("file", with(&owned, &json!({"ensure": "present", "content": "x"})));
        both("file", with(&owned, &json!({"ensure": "directory"})));
        both("line", json!({"name": name, "line": "x"}));
        both("line", json!({"name": "W/www/plain", "path": name, "line": "x"}));
        both("scaffold", json!({"name": name, "ensure": "present", "source": "W/www/tpl"}));
        both("symlink", json!({"name": name, "target": "x"}));
        both("file", with(&file(), &json!({"backup": name, "content": "another"})));
    }
    both(
        "file",
        json!({"name": "W/www/out", "ensure": "directory", "recurse": true, "purge": true, "force": true, "owner": "root", "group": "root", "mode": "0777", "source": "W/www/sub"}),
    );
    for source in ["W/secret", "/etc/shadow", "W/www/leak", "W/www/../secret"] {
        let copy = json!({"name": "W/www/copy", "ensure": "present", "owner": "root", "group": "root", "mode": "0644"});
        both("file", with(&copy, &json!({"source": source})));
        both("file", with(&copy, &json!({"content": format!("{{{{ readFile('{source}') }}}}")})));
        both("file", with(&copy, &json!({"content": format!("{{{{ secret('file:{source}') }}}}")})));
    }
    for source in ["W/outside", "/etc", "/root", "W/www/out"] {
        let tree = json!({"name": "W/www/copies", "ensure": "directory", "owner": "root", "group": "root", "mode": "0755", "recurse": true});
        both("file", with(&tree, &json!({"source": source})));
        both("scaffold", json!({"name": "W/www/copies", "ensure": "present", "source": source}));
    }
    for program in PROGRAMS {
        for (kind, properties) in with_programs(program) {
            if kind != "service" {
                both(kind, properties);
            }
        }
        both("exec", json!({"name": program}));
        both("cron", json!({"name": "backup", "command": program}));
        both("sysctl", json!({"name": "kernel.core_pattern", "value": format!("|{program}")}));
    }
    for (kind, properties) in [
        ("user", json!({"name": "webx"})),
        ("group", json!({"name": "webx"})),
        ("cron", json!({"name": "webx", "command": "true"})),
        ("sysctl", json!({"name": "net.core.somaxconn", "value": "4096"})),
        ("apply", json!({"name": "/etc/hostname"})),
    ] {
        both(kind, properties);
    }
    cases
}
