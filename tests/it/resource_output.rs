//! The output about single resources: on a pipe, at a terminal, and with the output of programs.

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
fn logoutput_shows_the_output_of_a_command() {
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

#[test]
fn long_steps_are_shown_on_a_terminal() {
    let desk = Desk::new();
    desk.write("m.yaml", "ccm:\n  resources:\n    - exec: {name: patience, command: \"sleep 2.5\"}\n    - exec: {name: quick, command: \"true\"}\n");
    // script(1) gives the program a terminal.
    let line = format!("{} apply m.yaml", env!("CARGO_BIN_EXE_ensign"));
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(desk.path("")).stdin(std::process::Stdio::null());
    let output = command.env("ENSIGN_HISTORY", "off").env("ENSIGN_RUNTIME", "off").env("NO_COLOR", "1").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("… exec#patience, 1 s") && shown.contains("… exec#patience, 2 s"), "{shown:?}");
    assert!(!shown.contains("… exec#quick"), "{shown:?}");
    // The progress line disappears before the line of the event.
    let last = shown.rfind("… exec#patience").unwrap();
    assert!(shown[last..].find("\r\u{1b}[K").unwrap() < shown[last..].find("patience  ").unwrap_or(usize::MAX), "{shown:?}");
    assert!(!desk.run(&["apply", "m.yaml"]).ends(0).err.contains('…'), "no terminal");
}

#[test]
fn older_property_names_are_accepted() {
    let desk = Desk::new();
    desk.write("data.yaml", "data: {site: x}\n");
    desk.write("m.yaml", "ccm:\n  resources:\n    - exec: {name: \"true\"}\n");
    desk.run(&["hiera", "parse", "data.yaml"]).ends(0).prints(&["\"site\": \"x\""]);
    assert!(desk.run(&["hiera", "facts", "--fact", "colour=red"]).ends(0).json()["colour"] == "red");
    desk.run(&["apply", "m.yaml", "--hiera", "data.yaml", "--monitor-only"]).ends(0);
    let ran = desk.run(&["apply", "m.yaml", "--debug"]);
    ran.ends(0).says(&["started", "resource=exec#true"]);
    desk.run(&["-v", "apply", "m.yaml"]).ends(0).says(&["read the manifest"]);
    assert_eq!(desk.run(&["apply", "m.yaml"]).ends(0).err, "");
}

#[test]
fn many_changes_are_listed_below_each_other() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("source")).unwrap();
    (0..300).for_each(|n| std::fs::write(desk.path(&format!("source/f{n:03}")), "").unwrap());
    desk.write(
        "m.yaml",
        "ccm:\n  resources:\n    - file: {name: \"@D@/to\", ensure: directory, recurse: true, source: source, @ME@, mode: \"0644\"}\n",
    );
    let ran = desk.run(&["apply", "m.yaml"]);
    ran.ends(0).prints(&["301 changes", "\n      created f000\n", "more", "1 resource: 1 changed"]);
    assert!(ran.out.lines().all(|line| line.len() < 200), "{ran:?}");
}
