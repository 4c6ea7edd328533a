//! Commands as files: signed, shown and handed to the node, without a network.

use serde_json::{Value, json};

use crate::support::fleet::{Fleet, Ran, ensign};
use crate::support::single_node::on_every_server;

#[test]
fn a_command_file_is_signed_verified_and_delivered() {
    on_every_server(async |binary| {
        let mut fleet = Fleet::new(binary, &[("web1", "web")]);
        fleet.start("web1", "web");
        let path = |name: &str| fleet.path(name).display().to_string();
        let (plain, signed) = (path("command.json"), path("signed.json"));
        let file = fleet.path("web1/site/bob-file");
        let command = |to: &Value, properties: &Value| json!({"fleet": "test", "to": to, "action": {"ensure": {"type": "file", "properties": properties}}, "reason": "CHG-1"});
        let properties =
            json!({"name": file, "ensure": "present", "content": "x\n", "owner": "root", "group": "root", "mode": "0644"});
        std::fs::write(&plain, command(&json!({"nodes": ["web1"]}), &properties).to_string()).unwrap();
        let sign = |file: &str, key: &str| ensign(&["sign", file, "--key", &path(key), "--out", &signed]);
        let made = sign(&plain, "ops-bob.key");
        assert_eq!(made.code, 0, "{}", made.stderr);
        assert!(made.stderr.contains("ensure file#") && made.stderr.contains("of nodes web1"), "{}", made.stderr);
        let trust = path("trust.dsse.json");
        let verify = |more: &[&str]| ensign(&[&["verify", &signed, "--trust", &trust], more].concat());
        let good = verify(&[]);
        assert_eq!(good.code, 0, "{}{}", good.stdout, good.stderr);
        for line in [
            "asks      ensure file#",
            "of        nodes web1",
            "reason    CHG-1",
            "web1      would accept it: signed by ops-bob, allowed by rule 2",
        ] {
            assert!(good.stdout.lines().any(|found| found.starts_with(line)), "{line} is not in\n{}", good.stdout);
        }
        let code = |ran: &Ran, node: &str| ran.json()["nodes"][node]["code"].as_str().map(str::to_owned);
        let elsewhere = verify(&["--node", "db1", "--output", "json"]);
        assert_eq!((elsewhere.code, code(&elsewhere, "db1").as_deref()), (3, Some("not_for_me")), "{}", elsewhere.stdout);
        let later = verify(&["--at", "2030-01-01T00:00:00Z", "--output", "json"]);
        assert_eq!((later.code, code(&later, "web1").as_deref()), (3, Some("expired")), "{}", later.stdout);
        assert_eq!(verify(&["--root", &path("ops-bob.key.pub")]).code, 3, "another root");
        assert_eq!(verify(&["--root", &path("root.key.pub")]).code, 0);
        // A second signature on the same bytes.
        let before: Value = serde_json::from_slice(&std::fs::read(&signed).unwrap()).unwrap();
        assert_eq!(sign(&signed, "ops-alice.key").code, 0);
        let after: Value = serde_json::from_slice(&std::fs::read(&signed).unwrap()).unwrap();
        assert_eq!((&before["payload"], after["signatures"].as_array().unwrap().len()), (&after["payload"], 2));
        // Carried to the node, without the operator.
        let config = fleet.path("web1/agent.toml").display().to_string();
        let done = ensign(&["agent", "accept", &signed, "--config", &config]);
        assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "x\n");
        // The record has the command, as if it had come over NATS: no answer without a command.
        fleet.wait_until_published("web1");
        let export = path("export.jsonl");
        assert_eq!(fleet.run(&["audit", "export", &export]).code, 0);
        let (known, trust) = (path("known_nodes"), path("trust.dsse.json"));
        let audit = ["audit", "verify", &export, "--known-nodes", &known, "--trust", &trust, "--output", "json"];
        let audit = ensign(&audit);
        assert_eq!((audit.code, &audit.json()["commands"]), (0, &json!(1)), "{}", audit.stdout);
        let events = fleet.run(&["events"]).stdout;
        assert!(events.contains("from a file: ensure "), "{events}");
        // Tool and node refuse a forbidden command with the same code.
        let path = |name: &str| fleet.path(name).display().to_string();
        let other = json!({"name": fleet.path("web1/site/other"), "ensure": "absent"});
        std::fs::write(&plain, command(&json!({"groups": ["web"]}), &other).to_string()).unwrap();
        assert_eq!(ensign(&["sign", &plain, "--key", &path("ops-bob.key"), "--out", &signed]).code, 0);
        let denied = ensign(&["verify", &signed, "--trust", &path("trust.dsse.json"), "--output", "json"]);
        assert_eq!((denied.code, code(&denied, "any").as_deref()), (3, Some("not_allowed")), "{}", denied.stdout);
        let refused = ensign(&["agent", "accept", &signed, "--config", &config]);
        assert!(refused.code == 3 && refused.stdout.contains("refused not_allowed"), "{}{}", refused.stdout, refused.stderr);
        // The tool does not sign a file that is no command.
        for (text, said) in [
            (command(&json!({"nodes": []}), &properties).to_string(), "must have nodes, globs or groups"),
            (json!({"fleet": "test"}).to_string(), "missing field"),
            ("{\"fleet\": \"a\", \"fleet\": \"b\"}".to_owned(), "duplicate"),
            ("nonsense".to_owned(), "command.json"),
            (std::fs::read_to_string(path("trust.dsse.json")).unwrap(), "is not a command"),
        ] {
            std::fs::write(&plain, text).unwrap();
            let refused = ensign(&["sign", &plain, "--key", &path("ops-bob.key")]);
            assert!(refused.code == 2 && refused.stderr.contains(said) && refused.stdout.is_empty(), "{}", refused.stderr);
        }
    });
}
