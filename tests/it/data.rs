//! Data, variables and secrets from the command line: the output of `ensign data parse`, the place of `.env`. No secret is in
//! anything that leaves a run.

use std::path::Path;

use serde_json::json;

use crate::local::{Desk, Ran};

const DATA: &str = "\
hierarchy:
  order: [\"role:{{ lookup('facts.role') }}\", \"site:{{ Facts.site }}\", global]
  merge: deep
data:
  # @require
  # @validate isIPv4(value)
  ip:
  web: {port: 80, users: [{name: a}, {name: b}]}
  ratio: 2.5
overrides:
  role:web: {web: {port: 8080}, ip: 192.0.2.7}
";

#[test]
fn data_is_resolved_and_printed() {
    let desk = Desk::new();
    desk.write("d.yaml", DATA);
    let ran = desk.run(&["data", "parse", "d.yaml", "role=web"]);
    let data = json!({"ip": "192.0.2.7", "web": {"port": 8080, "users": [{"name": "a"}, {"name": "b"}]}, "ratio": 2.5});
    assert_eq!(ran.ends(0).json(), data);
    let order = "role:web  matched, merged\n  site:     no match: its expressions have no value here\n  global    matched, no override of this name\n";
    ran.says(&["hierarchy, merge deep:\n", order]);

    let ran = desk.run(&["hiera", "resolve", "d.yaml", "role=web", "--query", "web.users.#.name", "--output", "jsonl"]);
    assert_eq!((ran.ends(0).out.as_str(), ran.err.as_str()), ("[\"a\",\"b\"]\n", ""));
    let ran = desk.run(&["data", "parse", "d.yaml", "role=web", "--env", "--env-prefix", "X", "-D", "ip=192.0.2.8"]);
    let lines = "X_IP=192.0.2.8\nX_WEB={\"port\":8080,\"users\":[{\"name\":\"a\"},{\"name\":\"b\"}]}\nX_RATIO=2.500000\n";
    assert_eq!((ran.ends(0).out.as_str(), ran.err.as_str()), (lines, ""));
    let explained = desk.run(&["data", "parse", "d.yaml", "role=web", "--explain"]).json();
    assert_eq!(explained["order"][1], json!({"entry": "site:{{ Facts.site }}", "name": "site:", "fate": "no_match"}));

    desk.write("facts.yaml", "role: db\nsite: x\n");
    desk.write("over.yaml", "ip: 192.0.2.9\nweb: {port: 1}\n");
    let ran = desk.run(&["data", "parse", "d.yaml", "--facts", "facts.yaml", "--data-file", "over.yaml", "--yaml"]);
    ran.ends(0).prints(&["ip: 192.0.2.9\n", "port: 1\n"]);

    for (args, code, message) in [
        (&["d.yaml"][..], 2, "d.yaml:7:3: key \"ip\" is required but has no value"),
        (&["d.yaml", "-D", "ip=x"], 2, "d.yaml:7:3: key \"ip\" failed validation \"isIPv4(value)\": it is \"x\""),
        (&["d.yaml", "role=web", "--query", "no.such"], 1, "nothing in the data matches \"no.such\""),
        (&["d.yaml", "role"], 2, "the fact \"role\" has no value"),
        (&["no.yaml"], 2, "could not read no.yaml"),
        (&["facts.yaml", "--data-file", "d.yaml", "-D", "x"], 2, "--data \"x\" has no value"),
    ] {
        let ran = desk.run(&[&["data", "parse"], args].concat());
        ran.ends(code).says(&[message]);
        assert_eq!(ran.out, "", "{ran:?}");
    }
}

#[test]
fn annotations_hold_for_data_from_outside_and_within() {
    let desk = Desk::new();
    desk.write("over.yaml", "data:\n  # @validate isInt(value)\n  port: 80\n  who: over\n");
    desk.write(
        "m.yaml",
        "data:\n  # @validate value != 'over'\n  who: me\n  # @typo\n  x: 1\nccm:\n  resources:\n  - exec: {name: 'true'}\n",
    );
    desk.run(&["check", "m.yaml"]).ends(0).says(&["m.yaml:4:3: unrecognized annotation @typo at \"x\""]);
    desk.run(&["apply", "m.yaml", "--data", "over.yaml"]).ends(2).says(&["m.yaml:3:3: key \"who\" failed validation"]);
    desk.write("over.yaml", "data:\n  # @validate isInt(value)\n  port: \"{{ lookup('facts.port') }}\"\n");
    let args = ["ensure", "exec", "true", "--data", "over.yaml", "--fact", "port=x"];
    desk.run(&args).ends(2).says(&["over.yaml:3:3: key \"port\" failed validation", "hint: give a whole number"]);
    desk.write("parent.yaml", "data: {who: over}\nccm:\n  resources:\n  - apply: {name: m.yaml}\n");
    desk.run(&["apply", "parent.yaml"]).ends(1).prints(&["key \"who\" failed validation"]);
}

#[test]
fn variables_are_read_from_files_beside_the_manifest() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("site")).unwrap();
    desk.write(".env", "HERE=here\nBOTH=here\n");
    desk.write("site/.env", "export BOTH='beside'\nHOME=\"other\"\n");
    let content = "{{ Environ.HERE }} {{ Environ.BOTH }} {{ lookup('environ.HOME') }} {{ lookup('env.NO', 'none') }}";
    let file = format!("- file: {{name: '@D@/out', ensure: present, content: \"{content}\", @ME@, mode: '0644'}}\n");
    desk.write("site/m.yaml", &format!("ccm:\n  resources:\n  {file}"));
    desk.run(&["apply", "site/m.yaml"]).ends(0);
    assert_eq!(std::fs::read_to_string(desk.path("out")).unwrap(), "here beside other none");
    desk.run(&["apply", "site/m.yaml", "--no-read-env"]).ends(0);
    let home = desk.path("home");
    assert_eq!(std::fs::read_to_string(desk.path("out")).unwrap(), format!("  {} none", home.display()));
    desk.run(&["ensure", "file", "@D@/one", "--content", "{{ Environ.BOTH }}"]).ends(0);
    assert_eq!(std::fs::read_to_string(desk.path("one")).unwrap(), "here");
    desk.write("site/.env", "A=1\nhunter2\n");
    let ran = desk.run(&["check", "site/m.yaml"]);
    ran.ends(2).says(&["site/.env:2:1: a line is NAME=value"]);
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
}

const SECRETS: &str = r#"
data:
  pw: "{{ secret('db') }}"
  # @validate value == 'x'
  checked: "@CHECKED@"
ccm:
  pre_message: "with {{ Data.pw }}"
  resources:
  - file: {name: "@D@/conf", ensure: present, content: "pw={{ secret('db') }}\nb64={{ toBase64(Data.pw) }}\n", @ME@, mode: "0600"}
  - exec: {name: shown, provider: shell, command: "echo {{ secret('db') }}; echo {{ upper(Data.pw) }}", logoutput: true}
  - exec: {name: broken, provider: shell, command: "echo {{ secret('./key') | split('\n') | last() }} >&2; exit 3"}
  - exec: {name: "false {{ Data.pw }}"}
  - exec: {name: checks, command: "true", health_checks: [{command: "/bin/echo {{ Data.pw }}"}, {command: "/bin/sh -c 'echo {{ secret(\"env:TOKEN\") }}; exit 2'"}]}
  - exec: {name: unread, command: "{{ int(secret('db')) }}"}
  - exec: {name: missing, command: "{{ secret('nosuch') }}"}
"#;

/// All text in the files below a directory.
fn all_text(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        text +=
            &if path.is_dir() { all_text(&path) } else { String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned() };
    }
    text
}

#[test]
fn a_secret_is_in_no_output_of_a_run() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("credentials")).unwrap();
    desk.write("credentials/db", "hunter2-geheim\n");
    desk.write("key", "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n");
    desk.write("m.yaml", &SECRETS.replace("@CHECKED@", "x"));
    desk.write("wrong.yaml", &SECRETS.replace("@CHECKED@", "{{ secret('db') }}"));
    let secrets = ["hunter2-geheim", "HUNTER2-GEHEIM", "aHVudGVyMi1nZWhlaW0=", "MIIEvQIBADANBgkq", "t0ken-of-env"];
    let run = |args: &[&str]| {
        let mut command = desk.command(args);
        let output =
            command.env("CREDENTIALS_DIRECTORY", desk.path("credentials")).env("TOKEN", "t0ken-of-env").output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let ran = Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        for secret in secrets {
            assert!(!ran.out.contains(secret) && !ran.err.contains(secret), "{secret} in {args:?}: {ran:#?}");
        }
        ran
    };
    run(&["plan", "m.yaml"]).prints(&["the content holds a secret"]);
    run(&["apply", "m.yaml", "--render"]).ends(0).prints(&["pw: '***'"]);
    run(&["data", "parse", "m.yaml"]).ends(0).prints(&["\"pw\": \"***\""]);
    run(&["check", "wrong.yaml"]).ends(2).says(&["its value is a secret and not shown"]);
    let ran = run(&["apply", "m.yaml", "--output", "json", "--diff", "--session", "session"]);
    let events = ran.ends(1).json()["events"].clone();
    assert_eq!(events[1]["status"]["output"], "***\n***", "{}", events[1]);
    assert!(events[2]["error"][0].as_str().unwrap().contains("\"***\""), "{}", events[2]);
    assert_eq!(events[3]["name"], "false ***");
    assert_eq!(events[4]["health_check"][1]["Output"], "***");
    let missing = events[6]["error"][0].as_str().unwrap();
    assert!(missing.contains("credentials/nosuch"), "{missing}");
    let written = std::fs::read_to_string(desk.path("conf")).unwrap();
    assert_eq!(written, "pw=hunter2-geheim\nb64=aHVudGVyMi1nZWhlaW0=\n");
    run(&["apply", "m.yaml"]).ends(1).prints(&["stable", "with ***"]);
    run(&["session", "report", "--session", "session"]);
    let session = all_text(&desk.path("session"));
    assert!(session.contains("false ***"), "{session}");
    assert!(secrets.iter().all(|secret| !session.contains(secret)), "{session}");
}
