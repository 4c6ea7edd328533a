//! Contexts of the NATS CLI, for agents and operators.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::fleet::Fleet;
use crate::support::jwt::Operator;
use crate::support::nats::{NatsServer, Options};
use crate::support::single_node::{self, on_every_server};

fn run(config_home: &std::path::Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ensign"));
    command.args(args).env("XDG_CONFIG_HOME", config_home).env("NO_COLOR", "1");
    command.env_remove("NATS_URL").env_remove("NATS_CONTEXT").output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn operators_and_agents_connect_with_a_nats_context() {
    on_every_server(async |binary| {
        let mut fleet = Fleet::new(binary, &[("web1", "web")]);
        let home = fleet.path("config");
        std::fs::create_dir_all(home.join("nats/context")).unwrap();
        let write = |name: &str, context: Value| {
            std::fs::write(home.join(format!("nats/context/{name}.json")), context.to_string()).unwrap();
        };
        let url = fleet.server.url();
        // As `nats context add` writes it: unset keys are empty.
        write(
            "ops",
            json!({"description": "x", "url": url, "token": "", "user": "", "nkey": fleet.path("operator.nk"), "nsc": ""}),
        );
        write("wrong", json!({"url": url, "socks_proxy": "socks5://127.0.0.1:1"}));
        fleet.start("web1", "web");
        // The agent uses the file of a context, and its own operations work.
        let node = fleet.path("node-context.json");
        std::fs::write(&node, json!({"url": url, "nkey": fleet.path("web1.nk")}).to_string()).unwrap();
        let written = std::fs::read_to_string(fleet.path("web1/agent.toml")).unwrap();
        let config = written
            .replace(&format!("servers = [\"{url}\"]\n"), &format!("context = \"{}\"\n", node.display()))
            .replace("nkey = \"../web1.nk\"\n", "");
        fleet.kill("web1");
        std::fs::write(fleet.path("web1/agent.toml"), &config).unwrap();
        let checked = run(&home, &["agent", "check", "--config", fleet.path("web1/agent.toml").to_str().unwrap()]);
        assert!(checked.status.success() && text(&checked).contains(&url), "{}", text(&checked));
        let _agent = single_node::Agent::start(
            Command::new(env!("CARGO_BIN_EXE_ensign"))
                .args(["agent", "run", "--config"])
                .arg(fleet.path("web1/agent.toml"))
                .stderr(std::fs::File::create(fleet.path("context.log")).unwrap()),
        );
        // The list of known nodes is beside it: in a directory of this test.
        let empty = fleet.path("empty.toml").display().to_string();
        std::fs::write(&empty, "").unwrap();
        let nodes = |args: &[&str]| run(&home, &[&["fleet", "--fleet", "test", "--operator", &empty, "nodes"], args].concat());
        fleet.wait_for("the agent with a context", || text(&nodes(&["--context", "ops"])).contains("alive"));
        let none = nodes(&["--context", ""]);
        assert!(none.status.code() == Some(2) && text(&none).contains("no NATS context is selected"), "{}", text(&none));
        std::fs::write(home.join("nats/context.txt"), "ops").unwrap();
        assert!(nodes(&["--context", ""]).status.success());
        std::fs::write(fleet.path("op.toml"), "fleet = \"test\"\n[nats]\ncontext = \"ops\"\n").unwrap();
        let by_file = run(&home, &["fleet", "--operator", fleet.path("op.toml").to_str().unwrap(), "nodes"]);
        assert!(by_file.status.success(), "{}", text(&by_file));
        for (context, said) in [
            ("wrong", "`socks_proxy` is not supported"),
            ("absent", "known contexts: ops, wrong"),
            ("../ops", "is not the name of a NATS context"),
        ] {
            let refused = nodes(&["--context", context]);
            assert!(refused.status.code() == Some(2) && text(&refused).contains(said), "{}", text(&refused));
        }
    });
}

#[test]
fn a_context_may_hold_a_user_token_and_its_seed() {
    on_every_server(async |binary| {
        let operator = Operator::new();
        let server = NatsServer::start_binary(binary, &Options { config: operator.config.clone(), ..Options::default() });
        let creds = operator.user(&json!({}));
        let lines: Vec<&str> = creds.lines().collect();
        let after = |what: &str| lines[lines.iter().position(|line| line.starts_with(what)).unwrap() + 1];
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("nats/context")).unwrap();
        let (jwt, seed) = (after("-----BEGIN NATS USER JWT"), after("-----BEGIN USER NKEY SEED"));
        for (context, wanted) in [
            (json!({"url": server.url(), "user_jwt": jwt, "user_seed": seed}), "JetStream"),
            (json!({"url": server.url()}), "authorization violation"),
        ] {
            std::fs::write(home.path().join("nats/context/jwt.json"), context.to_string()).unwrap();
            let empty = home.path().join("empty.toml");
            std::fs::write(&empty, "").unwrap();
            let operator = empty.to_str().unwrap();
            let asked = run(home.path(), &["fleet", "--fleet", "test", "--operator", operator, "--context", "jwt", "nodes"]);
            // After the login, the client finds that this account has no streams.
            assert!(text(&asked).contains(wanted) && !text(&asked).contains(seed), "{}", text(&asked));
        }
    });
}
