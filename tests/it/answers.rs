//! What the program says of single resources: on a pipe, at a terminal, of what a program printed.

use serde_json::{Value, json};

use crate::local::Desk;

fn request(kind: &str, properties: &Value) -> String {
    json!({"protocol": "io.choria.ccm.v1.resource.ensure.request", "type": kind, "properties": properties}).to_string()
}

fn me() -> (String, String) {
    (nix::unistd::geteuid().to_string(), nix::unistd::getegid().to_string())
}

#[test]
fn metadata_has_sizes_and_digests() {
    let desk = Desk::new();
    let ((owner, group), digest) = (me(), "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    desk.write("file", "hello");
    std::fs::create_dir(desk.path("directory")).unwrap();
    std::os::unix::fs::symlink("file", desk.path("link")).unwrap();
    let metadata = |name: &str, ensure: &str, more: &[&str]| {
        let properties = json!({"name": desk.path(name), "ensure": ensure, "owner": owner, "group": group, "mode": "0755"});
        let args = [&["ensure", "api", "pipe"], more].concat();
        desk.pipe(&args, request("file", &properties).as_bytes()).ends(0).json()["state"]["status"]["metadata"].clone()
    };
    let directory = metadata("directory", "directory", &[]);
    assert_eq!((directory["size"].as_u64(), &directory["checksum"]), (Some(size(&desk, "directory")), &Value::Null));
    for (name, ensure) in [("file", "present"), ("link", "present"), ("file", "absent"), ("link", "absent")] {
        let found = metadata(name, ensure, &["--noop"]);
        assert_eq!((&found["size"], &found["checksum"]), (&json!(5), &json!(digest)), "{name} {ensure}");
    }
}

fn size(desk: &Desk, name: &str) -> u64 {
    std::fs::metadata(desk.path(name)).unwrap().len()
}

#[test]
fn requirements_that_are_not_met_are_errors_on_a_pipe() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("session")).unwrap();
    desk.run(&["ensure", "exec", "false", "--session", "@D@/session"]).ends(1);
    let wants = |name: &str| request("exec", &json!({"name": "true", "require": [name]}));
    for (session, name, error) in [
        (true, "exec#false", "requirements of exec#true are not met: exec#false"),
        (false, "exec#false", "it is the only resource of this request"),
        (false, "exce#false", "did you mean \"exec#false\"?"),
    ] {
        let args: &[&str] = &["ensure", "api", "pipe", "--session", "@D@/session"];
        let ran = desk.pipe(args.get(..if session { 5 } else { 3 }).unwrap(), wants(name).as_bytes());
        let response = ran.ends(0).json();
        assert_eq!(response["state"], Value::Null);
        assert!(response["error"].as_str().is_some_and(|text| text.contains(error)), "{error}: {response}");
    }
}

#[test]
fn output_that_is_to_be_logged_is_shown() {
    let desk = Desk::new();
    desk.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec:\n        - defaults: {provider: shell}\n        \
         - loud: {command: \"echo one; echo two\", logoutput: true}\n        - quiet: {command: echo three}\n",
    );
    let ran = desk.run(&["apply", "m.yaml"]);
    ran.ends(0).prints(&["\n      one\n      two\n"]);
    assert!(!ran.out.contains("three"), "{ran:?}");
    desk.run(&["ensure", "exec", "echo four", "--logoutput"]).ends(0).prints(&["    four\n"]);
}
