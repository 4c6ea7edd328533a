//! Health checks by rules, from the command line. Unit tests beside the code cover each rule.

use crate::local::Desk;

const RULES: &str = r#"
data: {conf: "@D@/conf", word: "{{ secret('./key') }}"}
ccm:
  resources:
  - file:
      - defaults: {ensure: present, mode: "0640", @ME@}
      - "@D@/conf":
          content: "word = {{ Data.word }}\n"
          health_checks:
            - goss_rules:
                file:
                  "{{ Data.conf }}": {exists: true, mode: "0640", contents: ["{{ Data.word }}", "!nosuch"]}
                command:
                  "grep -c word {{ Data.conf }}": {exit-status: 0, stdout: {ge: 1}}
              tries: 2
              try_sleep: 1ms
"#;

fn desk(rules: &str) -> Desk {
    let desk = Desk::new();
    desk.write("key", "hunter2-geheim\n");
    desk.write("m.yaml", rules);
    desk
}

#[test]
fn rules_are_checked_after_the_resource() {
    let desk = desk(RULES);
    let ran = desk.run(&["apply", "m.yaml", "--health-check-only"]);
    ran.ends(1).prints(&["status \"CRITICAL\": Count: 5, Failed: 3, Skipped: 2", "exists: expected true, found false"]);
    let events = desk.run(&["apply", "m.yaml", "--output", "json"]).ends(0).json()["events"].clone();
    let check = &events[0]["health_check"][0];
    assert_eq!((&check["status"], &check["tries"]), (&0.into(), &1.into()), "{events}");
    assert_eq!(check["Output"], "Count: 5, Failed: 0, Skipped: 0");
    assert_eq!(check["name"], "goss");

    std::fs::write(desk.path("conf"), "nosuch\n").unwrap();
    let ran = desk.run(&["apply", "m.yaml", "--health-check-only", "--output", "json"]);
    let output = ran.ends(1).json()["events"][0]["health_check"][0]["Output"].clone();
    let output = output.as_str().unwrap();
    assert!(output.contains("contents: patterns not met: ***, !nosuch") && !ran.out.contains("hunter2"), "{}", ran.out);
    desk.run(&["check", "m.yaml"]).ends(0);
}

#[test]
fn invalid_health_rules_are_reported_before_anything_runs() {
    for (from, to, messages) in [
        ("mode: \"0640\", c", "mod: \"0640\", c", &["unknown attribute \"mod\"", "did you mean \"mode\"?"][..]),
        ("exit-status: 0, ", "", &["exit-status is missing", "hint: add the wanted value, as exit-status: 0"]),
        ("stdout: {ge: 1}", "stdout: {match-regexp: (}", &["can't be read"]),
        ("                command:", "                commando:", &["unknown section \"commando\"", "did you mean \"command\"?"]),
        ("grep -c word {{ Data.conf }}", "grep {{ Data.conf ++ }}", &["resolving health_checks: expr compile error"]),
    ] {
        assert!(RULES.contains(from), "{from}");
        let desk = desk(&RULES.replace(from, to));
        let ran = desk.run(&["check", "m.yaml"]);
        ran.ends(2).says(messages);
        assert!(ran.err.contains("m.yaml:"), "{ran:?}");
    }
}
