use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};

use serde_json::{Value, json};

use super::*;
use crate::host::fake::{FakeRunner, host};
use crate::host::{Host, Output};
use crate::model::ResourceLimits;

fn run_on(rules: &Value, host: &Host) -> GossOutcome {
    GossRules::read(rules.as_object().unwrap()).unwrap().run(host)
}

#[track_caller]
fn holds(rules: &Value) {
    let outcome = run_on(rules, &Host::system(None));
    assert!(outcome.failures.is_empty() && outcome.skipped < outcome.count, "{outcome:?}");
}

#[track_caller]
fn fails(rules: &Value, why: &[&str]) {
    let outcome = run_on(rules, &Host::system(None));
    assert_eq!(outcome.failures.len(), why.len(), "{outcome:?}");
    outcome.failures.iter().zip(why).for_each(|(found, why)| assert!(found.contains(why), "{why} is not in {found}"));
}

#[test]
fn files() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("conf"), "port = 80\n# ssl\n").unwrap();
    std::fs::set_permissions(at("conf"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("conf", at("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("lost")).unwrap();
    let me = crate::host::account::effective_uid();
    let digest = "6b66ff9c2c2b5a3d6a5d2d8d6f1e8a8c";
    holds(&json!({"file": {
        at("conf"): {
            "exists": true, "mode": "0640", "size": {"lt": 100}, "uid": me, "filetype": "file",
            "contents": ["port", "/^port = \\d+$/", "!tls"], "sha256": fs_sha(&at("conf")), "sha512": {"have-len": 128},
            "title": "x", "meta": {"any": ["thing"]},
        },
        at("link"): {"exists": true, "filetype": "symlink", "linked-to": "conf", "contains": ["ssl"]},
        at("lost"): {"exists": true, "filetype": "symlink"},
        at("no"): {"exists": false, "mode": "0644"},
        "by a name": {"path": at("conf"), "exists": true},
        "/dev/null": {"exists": true, "filetype": "character-device"},
        "/": {"exists": true, "filetype": "directory", "owner": "root", "group": "root"},
    }}));
    fails(
        &json!({"file": {
            at("conf"): {"exists": true, "mode": "0644", "contents": ["!port"], "sha256": digest, "linked-to": "x"},
            at("no"): {"exists": true, "mode": "0644"},
            "/dev/zero": {"exists": true, "contents": ["x"]},
            "relative": {"exists": true, "mode": "0644"},
        }}),
        &[
            "mode: expected \"0644\", found \"0640\"",
            "linked-to: not a symbolic link",
            "contents: patterns not met: !port",
            "sha256: expected",
            "exists: expected true, found false",
            "not a regular file",
            "must be absolute",
        ],
    );
}

fn fs_sha(path: &str) -> String {
    crate::host::fs::sha256(&std::fs::read(path).unwrap())
}

#[test]
fn accounts_processes_and_the_kernel() {
    let names = crate::host::kernel::names().unwrap();
    holds(&json!({
        "user": {"root": {"exists": true, "uid": 0, "gid": {"le": 0}, "groups": ["root"], "home": "/root", "shell": {"have-prefix": "/"}},
                 "nosuchuser": {"exists": false, "uid": 7}},
        "group": {"root": {"exists": true, "gid": 0}, "x": {"groupname": "nosuchgroup", "exists": false}},
        "kernel-param": {"kernel.ostype": {"value": "Linux"}, "kernel/osrelease": {"value": names.release}},
        "mount": {"/proc": {"exists": true, "filesystem": "proc", "opts": ["rw"], "source": "proc"}, "/nope": {"exists": false}},
        "interface": {"lo": {"exists": true, "mtu": {"gt": 1000}}, "nope0": {"exists": false, "mtu": 1}},
        "process": {"nosuchprogram": {"running": false, "count": 0}},
    }));
    fails(
        &json!({
            "user": {"root": {"exists": true, "uid": 1, "groups": ["wheel"]}},
            "kernel-param": {"no.such": {"value": 1}, "../x": {"value": 1}},
            "process": {"nosuchprogram": {"running": true}},
        }),
        &[
            "uid: expected 1, found 0",
            "groups: expected [\"wheel\"]",
            "value: could not read /proc/sys/no/such",
            "no name of a parameter",
            "running",
        ],
    );
}

#[test]
fn a_process_is_known_by_its_program() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("ensign-test-with-a-long-name");
    std::fs::copy("/bin/sleep", &long).unwrap();
    let mut child = std::process::Command::new(&long).arg("30").spawn().unwrap();
    // Right after the start, the kernel has no command line yet.
    let line = format!("/proc/{}/cmdline", child.id());
    while std::fs::read(&line).unwrap().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    holds(
        &json!({"process": {"ensign-test-with-a-long-name": {"running": true, "count": 1}, "ensign-test-with-another": {"running": false}}}),
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn commands() {
    holds(&json!({"command": {
        "echo one; echo two >&2; exit 3": {"exit-status": 3, "stdout": ["one"], "stderr": "two", "timeout": 5000},
        "named": {"exec": "echo '{\"a\": {\"b\": 5}}'", "exit-status": 0, "stdout": {"gjson": {"a.b": {"gt": 4}}}, "stderr": ""},
        "left out": {"exec": "exit 1", "exit-status": 0, "skip": true},
    }}));
    fails(
        &json!({"command": {
            "echo out": {"exit-status": 1, "stdout": ["!out"]},
            "sleep 5": {"exit-status": 0, "stdout": ["x"], "timeout": 50},
        }}),
        &["exit-status: expected 1, found 0", "patterns not met: !out", "took longer than"],
    );
}

#[test]
fn packages_and_services_are_asked_for() {
    let answers = |outputs: &[(i32, &str)]| {
        let outputs =
            outputs.iter().map(|(code, text)| Output { code: *code, stdout: text.as_bytes().to_vec(), stderr: Vec::new() });
        FakeRunner::answering(outputs)
    };
    let rules = json!({"package": {
        "a": {"installed": true, "versions": ["1.2-3"]},
        "b": {"installed": false, "versions": ["1"]},
        "c": {"name": "d", "installed": true},
    }});
    let root = tempfile::tempdir().unwrap();
    let status = root.path().join("var/lib/dpkg/status");
    std::fs::create_dir_all(status.parent().unwrap()).unwrap();
    let paragraph = |name: &str, status: &str, architecture: &str| {
        format!("Package: {name}\nStatus: {status}\nArchitecture: {architecture}\nVersion: 1.2-3\n\n")
    };
    let database =
        [("a", "hold ok installed", "amd64"), ("b", "deinstall ok config-files", "all"), ("e", "install ok installed", "i386")];
    let text: String = database.iter().map(|(name, status, architecture)| paragraph(name, status, architecture)).collect();
    std::fs::write(&status, text).unwrap();
    // One read serves all packages, without a program. Only a pattern runs dpkg-query.
    let runner = answers(&[(0, "installed 1\nconfig-files 2\nnot-installed \n")]);
    let outcome = run_on(&rules, &host(runner.clone()).with_root(root.path()));
    assert_eq!((outcome.failures.len(), outcome.skipped, runner.ran().len()), (1, 1, 0), "{outcome:?}");
    let rules_of_more = json!({"package": {
        "e:i386": {"installed": true}, "e:amd64": {"installed": false}, "lib*": {"installed": true, "versions": ["1"]},
    }});
    let outcome = run_on(&rules_of_more, &host(runner.clone()).with_root(root.path()));
    assert_eq!((outcome.failures, runner.ran().len()), (vec![], 1));
    // Without a database of dpkg, one call of rpm serves all packages.
    let elsewhere = tempfile::tempdir().unwrap();
    let directory = elsewhere.path().display().to_string();
    let runner = answers(&[(0, &directory), (0, "a\t0\t1.2\t3\tx86_64\n")]);
    let outcome = run_on(&rules, &host(runner.clone()).with_root(elsewhere.path()));
    assert_eq!((outcome.failures.len(), outcome.skipped, runner.ran().len()), (1, 1, 2), "{outcome:?}");
    let runner = answers(&[(0, ""), (3, ""), (0, "")]);
    let rules = json!({"service": {"ssh": {"enabled": true, "running": false}, "x.timer": {"running": true}}});
    assert_eq!(run_on(&rules, &host(runner.clone())), GossOutcome { count: 3, failures: vec![], skipped: 0 });
    let ran: Vec<String> = runner.ran().iter().map(|words| words.join(" ")).collect();
    assert_eq!(ran[0], "systemctl --quiet is-enabled -- ssh.service");
    assert_eq!(ran[2], "systemctl --quiet is-active -- x.timer");
    let rules = json!({"service": {"-x": {"running": true}}, "package": {"--eval": {"installed": true}}});
    assert_eq!(run_on(&rules, &host(answers(&[]))).failures.len(), 2);
}

#[test]
fn ports_and_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_port = udp.local_addr().unwrap().port();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    holds(&json!({
        "port": {
            format!("tcp:{port}"): {"listening": true, "ip": {"consist-of": ["127.0.0.1"]}},
            format!("{port}"): {"listening": true},
            format!("udp:{udp_port}"): {"listening": true, "ip": ["127.0.0.1"]},
            format!("tcp:{closed}"): {"listening": false, "ip": ["1.2.3.4"]},
        },
        "addr": {
            format!("tcp://127.0.0.1:{port}"): {"reachable": true, "timeout": 60000, "local-address": "127.0.0.1"},
            format!("tcp://127.0.0.1:{closed}"): {"reachable": false, "timeout": 5000},
            "udp": {"address": format!("udp://127.0.0.1:{udp_port}"), "reachable": true, "timeout": 60000},
        },
        "dns": {
            "localhost": {"resolvable": true, "addrs": ["127.0.0.1"], "timeout": 5000},
            "127.0.0.9": {"resolveable": true, "addrs": {"consist-of": ["127.0.0.9"]}},
            "x": {"resolve": "no..such", "resolvable": false, "timeout": 2000},
        },
    }));
    fails(
        &json!({
            "port": {"sctp:1": {"listening": true}, format!("tcp:{port}"): {"listening": true, "ip": ["0.0.0.0"]}},
            "addr": {"nothing": {"reachable": true}, format!("tcp://127.0.0.1:{port}"): {"reachable": true, "local-address": "x"}},
            "dns": {"MX:example.net": {"resolvable": true}},
        }),
        &["no port", "ip: expected [\"0.0.0.0\"]", "no address", "no IP address", "records of type MX"],
    );
}

/// Answers each connection with the next response, and returns the requests.
fn serve(answers: Vec<String>) -> (u16, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = move |answer: String| {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = vec![0; 4096];
        let length = stream.read(&mut asked).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8_lossy(&asked[..length]).into_owned()
    };
    (port, std::thread::spawn(move || answers.into_iter().map(answer).collect()))
}

fn http(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len())
}

#[test]
fn web_servers() {
    let (port, asked) = serve(vec![
        http("200 OK", "content-type: text/html\r\n", "<h1>up</h1>\n"),
        http("302 Found", "Location: /next\r\n", ""),
        http("200 OK", "", "next"),
        http("301 Moved Permanently", "Location: /next\r\n", ""),
        http("503 Service Unavailable", "", "down"),
    ]);
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    holds(&json!({"http": {url("/a"): {
        "status": 200, "headers": ["Content-Type: text/html"], "body": ["up", "!/error/i"], "timeout": 60000,
        "username": "u", "password": "p", "request-headers": ["X-Probe: 1"], "method": "post", "request-body": "{}",
    }}}));
    holds(&json!({"http": {url("/b"): {"status": 200, "body": "next", "username": "u", "timeout": 60000}}}));
    holds(&json!({"http": {url("/c"): {"status": 301, "no-follow-redirects": true}}}));
    fails(
        &json!({"http": {"down": {"url": url("/d"), "status": {"lt": 400}, "body": ["up"]}}}),
        &["status: expected {\"lt\":400}, found 503"],
    );
    let asked = asked.join().unwrap();
    assert!(
        asked[0].starts_with("POST /a ") && asked[0].contains("x-probe: 1") && asked[0].contains("authorization: Basic dTpw"),
        "{}",
        asked[0]
    );
    assert!(asked[2].starts_with("GET /next ") && asked[2].contains("authorization"), "{}", asked[2]);
    fails(
        &json!({"http": {url("/gone"): {"status": 200, "body": ["x"]}, "ftp://x/": {"status": 200}}}),
        &["error sending request", "not a URL"],
    );
}

#[test]
fn credentials_go_to_their_own_server_only() {
    let (other, other_asked) = serve(vec![http("200 OK", "", "")]);
    let (port, asked) = serve(vec![http("307 Temporary Redirect", &format!("Location: http://localhost:{other}/\r\n"), "")]);
    let rule = json!({"status": 200, "username": "u", "password": "p", "request-headers": ["X-Token: t"], "timeout": 60000});
    holds(&json!({"http": {format!("http://127.0.0.1:{port}/"): rule}}));
    assert!(asked.join().unwrap()[0].contains("x-token: t"));
    let seen = &other_asked.join().unwrap()[0];
    assert!(!seen.contains("authorization") && !seen.contains("x-token"), "{seen}");
}

#[test]
fn limits_apply_to_local_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let rules = json!({
        "http": {
            format!("http://127.0.0.1:{port}/"): {"status": 200, "body": ["x"]},
            format!("http://localhost:{port}/"): {"status": 200, "method": "PUT"},
        },
        "addr": {format!("tcp://localhost:{port}"): {"reachable": true, "timeout": 60_000}, format!("tcp://[::ffff:127.0.0.1]:{port}"): {"reachable": true}},
        "dns": {"localhost": {"resolvable": true}},
    });
    let confined = Host::system(None).with_limits(ResourceLimits { internal: false, ..ResourceLimits::default() });
    let outcome = run_on(&rules, &confined);
    assert_eq!(outcome.failures.len(), 3, "{outcome:?}");
    assert!(outcome.failures.iter().all(|why| why.contains("internal to this machine")), "{outcome:?}");
    let named = ResourceLimits { internal: false, fetch_hosts: Some(vec!["localhost".to_owned()]), ..ResourceLimits::default() };
    let rules = json!({"addr": {format!("tcp://localhost:{port}"): {"reachable": true, "timeout": 60000}, "tcp://a.example:1": {"reachable": false}}});
    let outcome = run_on(&rules, &Host::system(None).with_limits(named));
    assert!(matches!(outcome.failures.as_slice(), [one] if one.contains("not among the `fetch_hosts`")), "{outcome:?}");
}

#[test]
fn errors_name_the_rule() {
    for (rules, message, key, hint) in [
        (json!({"fil": {}}), "unknown section \"fil\"", "fil", "did you mean \"file\"?"),
        (json!({"gossfile": {}}), "unknown section", "gossfile", "not supported"),
        (
            json!({"file": {"/a": {"exist": true}}}),
            "file \"/a\": unknown attribute \"exist\"",
            "exist",
            "did you mean \"exists\"?",
        ),
        (json!({"file": {"/a": {"mode": "0644"}}}), "file \"/a\": exists is missing", "/a", "exists: true"),
        (json!({"file": {"/a": {"exists": true, "md5": "x"}}}), "md5 is not supported", "md5", "sha256"),
        (json!({"command": {"a": {"stdout": []}}}), "exit-status is missing", "a", "exit-status: 0"),
        (
            json!({"http": {"a": {"status": 200, "timeout": "5s"}}}),
            "timeout: expected a whole number of milliseconds",
            "timeout",
            "",
        ),
        (json!({"http": {"a": {"status": 200, "request-headers": "x"}}}), "a list of headers", "request-headers", ""),
        (json!({"port": {"a": {"listening": {"gte": 1}}}}), "listening: unknown matcher \"gte\"", "gte", "did you mean"),
        (json!({"user": {"a": true}}), "a map of attributes", "a", ""),
        (json!({"user": ["a"]}), "a map of names", "user", ""),
        (json!({"user": {}}), "no rules", "", ""),
        (json!({}), "no rules", "", ""),
    ] {
        let wrong = GossRules::read(rules.as_object().unwrap()).unwrap_err();
        assert!(wrong.to_string().contains(message), "{wrong}");
        assert_eq!(wrong.key.clone().unwrap_or_default(), key, "{wrong}");
        assert!(wrong.hint.clone().unwrap_or_default().contains(hint), "{wrong:?}");
    }
    let templates = json!({"file": {"{{ x }}": {"exists": "{{ y }}", "mode": "{{ z }}"}}, "addr": {"a": {"reachable": true, "timeout": "{{ t }}"}}});
    assert!(GossRules::read(templates.as_object().unwrap()).is_ok());
}

#[test]
fn the_summary_names_the_first_failures() {
    let outcome = GossOutcome { count: 9, failures: (0..7).map(|n| format!("f{n}")).collect(), skipped: 1 };
    assert_eq!(outcome.summary(), "Count: 9, Failed: 7, Skipped: 1; f0; f1; f2; f3; f4; and 2 more");
    assert_eq!(GossOutcome::default().summary(), "Count: 0, Failed: 0, Skipped: 0");
}

#[test]
fn rules_have_their_effects() {
    for (rules, wanted) in [
        (
            json!({"command": {"a": {"exec": "c"}, "d": {}, "e": null, "f": {"exec": ""}}}),
            "runs \"c\" runs \"d\" runs \"e\" runs \"f\"",
        ),
        (json!({"command": ["x"]}), "has an effect that is not known: goss_rules: the section command can't be read"),
        (json!({"command": {"x": 7}}), "has an effect that is not known: goss_rules: the section command can't be read"),
        (json!({"nope": {}}), "has an effect that is not known: goss_rules: the section nope can't be read"),
        (
            json!({"file": {"/a": {"exists": true}, "/b": {"contains": ["x"]}, "c": {"path": "/d", "sha256": "x"}}}),
            "looks for \"/a\" reads \"/b\" reads \"/d\"",
        ),
        (json!({"port": {"tcp:22": {"listening": true}}, "package": {"x": {}}}), ""),
        (json!({"addr": {"tcp://h:80": {}, "x": {"address": "[::1]:80"}}}), "connects to \"h\" connects to \"::1\""),
        (json!({"dns": {"name": {}, "x": {"resolve": "other"}}}), "connects to \"name\" connects to \"other\""),
        (json!({"mount": {"/srv": {"exists": true}}}), "looks for \"/srv\""),
        (
            json!({"kernel-param": {"kernel.ostype": {}, "x": {"name": "net.ipv4.tcp_fastopen_key"}}}),
            "reads \"/proc/sys/net/ipv4/tcp_fastopen_key\"",
        ),
        (json!({"http": {"http://localhost:8080/health": {"status": 200}}}), "connects to \"localhost\""),
        (json!({"http": {"http://localhost/": {"status": 200, "body": []}}}), "sends a request to \"http://localhost/\""),
        (json!({"http": {"x": {"url": "https://u:p@h/?t=1", "status": 200}}}), "sends a request to \"https://h/\""),
    ] {
        let found: Vec<_> = effects(rules.as_object().unwrap()).iter().map(ToString::to_string).collect();
        assert_eq!(found.join(" "), wanted, "{rules}");
    }
}
