//! Targets by patterns, combinations and exclusions; the retry of a job; the limit of offline nodes.

use std::path::Path;

use ensign::transport::Message;
use ensign::trust::{SigningKey, sign_envelope};
use ensign::wire::COMMAND_TYPE;
use serde_json::{Value, json};

use crate::support::fleet::{Fleet, Ran};
use crate::support::nats::on_each;

const NODES: [(&str, &str); 4] = [("web1", "web"), ("web2", "web"), ("web3", "canary"), ("db1", "db")];

fn fleet(binary: &Path, nodes: &[(&str, &str)]) -> Fleet {
    let mut fleet = Fleet::new(binary, &NODES);
    nodes.iter().for_each(|(node, group)| fleet.start_with(node, group, "", "exec = true"));
    fleet
}

/// Appends a line to a file of each node.
fn append(fleet: &Fleet, name: &str, more: &[&str]) -> Ran {
    let script = format!("echo done >> {{{{ Facts.site }}}}/{name}");
    let command = ["ensure", "exec", "append", "--provider", "shell", "--command", &script, "--output", "json"];
    fleet.run(&[&command, more].concat())
}

/// `web1 changed, web2 changed`
fn outcomes(ran: &Ran) -> String {
    let document = ran.json();
    let word = |node: &Value| format!("{} {}", node["node"].as_str().unwrap(), node["outcome"].as_str().unwrap());
    let mut words: Vec<String> = document["nodes"].as_array().unwrap().iter().map(word).collect();
    words.sort();
    words.join(", ")
}

/// The nodes on which the file has lines, with their number.
fn nodes_with(fleet: &Fleet, name: &str) -> String {
    let count = |node: &str| {
        let text = std::fs::read_to_string(fleet.path(node).join("site").join(name)).unwrap_or_default();
        text.lines().count()
    };
    let found: Vec<String> = NODES
        .iter()
        .filter(|(node, _)| count(node) > 0)
        .map(|(node, _)| match count(node) {
            1 => (*node).to_owned(),
            lines => format!("{node} {lines}"),
        })
        .collect();
    found.join(" ")
}

fn stored(fleet: &Fleet, stream: &str, filter: &str) -> Vec<Message> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bus = fleet.connect("operator", None).await;
        bus.last_per_subject(&fleet.subjects.stream(stream), filter).await.unwrap()
    })
}

fn job_count(fleet: &Fleet) -> usize {
    stored(fleet, "JOBS", fleet.subjects.job_commands().as_str()).len()
}

fn manifest(fleet: &Fleet, content: &str) -> String {
    let [uid, gid] = crate::support::fleet::owner();
    let text = format!(
        "ccm:\n  resources:\n    - file:\n        - \"{{{{ Facts.site }}}}/motd\":\n            ensure: present\n            content: \"{content}\"\n            owner: \"{uid}\"\n            group: \"{gid}\"\n            mode: \"0644\"\n"
    );
    let path = fleet.path(&format!("{content}.yaml"));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn patterns_combinations_and_exclusions_reach_exactly_their_nodes() {
    on_each(|binary| {
        let fleet = fleet(binary, &NODES);
        for (name, flags, wanted) in [
            ("glob", &["--node", "web*"] as &[&str], "web1 web2 web3"),
            ("mixed", &["--node", "web*", "--group", "db", "--not-node", "web3"], "web1 web2 db1"),
            ("all", &["--all", "--not-group", "web,canary"], "db1"),
            ("group", &["--group", "web,db", "--not-node", "*2,db1"], "web1"),
            ("names", &["--node", "web1,web3", "--not-group", "canary"], "web1"),
            ("where", &["--node", "web*", "--where", "Facts.role == 'web'"], "web1 web2"),
            ("waves", &["--node", "*", "--not-node", "web3", "--waves", "1,100%", "--hold", "1s"], "web1 web2 db1"),
        ] {
            let ran = append(&fleet, name, flags);
            assert_eq!((ran.code, nodes_with(&fleet, name).as_str()), (0, wanted), "{}{}", ran.stdout, ran.stderr);
            assert!(!outcomes(&ran).contains("no_answer"), "{}", ran.stdout);
        }
        // Excluded nodes heard some of these commands. Each has ended all that it heard, and reported none.
        assert_eq!(append(&fleet, "last", &["--all"]).code, 0);
        let refused = stored(&fleet, "EVENTS", fleet.subjects.refusals().as_str());
        assert!(refused.is_empty(), "{}", refused[0].subject);

        // Empty and misspelled selections.
        let no_match = append(&fleet, "none", &["--node", "mail*"]);
        assert!(no_match.code == 4 && no_match.stderr.contains("no node matches mail*"), "{} {}", no_match.code, no_match.stderr);
        let typo = append(&fleet, "typo", &["--all", "--not-group", "cnary", "--noop"]);
        assert!(typo.stderr.contains("no node is in the group cnary; did you mean canary?"), "{}", typo.stderr);
        for (flags, why) in [
            (&["--not-node", "web1"] as &[&str], "no nodes are chosen"),
            (&["--all", "--node", "web*"], "--all already includes"),
            (&["--node", "web?"], "not a node id"),
            (&["--node", "web**"], "not a pattern of node ids"),
            (&["--group", "w*"], "not the name of a group"),
            (&["--node", "web1", "--not-node", "web1"], "\"web1\" is both selected and excluded"),
        ] {
            let wrong = append(&fleet, "wrong", flags);
            assert!(wrong.code == 2 && wrong.stderr.contains(why), "{flags:?}: {}", wrong.stderr);
        }
        let rows = fleet.run(&["nodes", "--node", "web*", "--not-node", "web2", "--output", "json"]).json();
        let names: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["node"].as_str().unwrap()).collect();
        assert_eq!(names, ["web1", "web3"]);

        // The target of a plan is approved as it was signed.
        let path = manifest(&fleet, "planned");
        let plan =
            fleet.run(&["plan", "apply", &path, "--node", "web*", "--group", "db", "--not-node", "web3", "--output", "json"]);
        let planned = plan.json()["to"].clone();
        assert_eq!(planned, json!({"globs": ["web*"], "groups": ["db"], "not": {"nodes": ["web3"]}}), "{}", plan.stderr);
        let approved = fleet.run(&["plan", "--approve", plan.json()["id"].as_str().unwrap(), "--output", "json"]);
        assert_eq!(
            (approved.code, outcomes(&approved).as_str()),
            (0, "db1 changed, web1 changed, web2 changed"),
            "{}",
            approved.stderr
        );
        let jobs = fleet.run(&["job", "list", "--limit", "1", "--output", "json"]).json();
        assert_eq!(jobs[0]["to"], planned);
    });
}

#[test]
fn an_assignment_ends_on_the_nodes_that_the_next_one_excludes() {
    on_each(|binary| {
        let fleet = fleet(binary, &NODES);
        let assign = |content: &str, flags: &[&str]| {
            fleet.run(&[&["assign", "base", &manifest(&fleet, content), "--output", "json", "--timeout", "60s"], flags].concat())
        };
        let first = assign("first", &["--node", "web*", "--not-group", "canary"]);
        assert_eq!((first.code, outcomes(&first).as_str()), (0, "web1 changed, web2 changed"), "{}", first.stderr);
        let second = assign("second", &["--all", "--not-node", "web*"]);
        assert_eq!((second.code, outcomes(&second).as_str()), (0, "db1 changed"), "{}", second.stderr);
        let assigned = |node: &str| fleet.node_row(node).unwrap()["assignments"].as_array().map_or(0, Vec::len);
        fleet.wait_for("the channel has ended on the others", || {
            NODES.iter().all(|(node, _)| assigned(node) == usize::from(*node == "db1"))
        });
        assert_eq!((nodes_with(&fleet, "motd").as_str(), job_count(&fleet)), ("web1 web2 db1", 2));
        let withdrawn = fleet.run(&["withdraw", "base", "--not-node", "db1"]);
        assert!(withdrawn.code == 2 && withdrawn.stderr.contains("as a whole"), "{}", withdrawn.stderr);
    });
}

/// Rules decide on the signed text: no exclusion makes a pattern or `all` fit a rule that lists nodes.
#[test]
fn a_restricted_key_reaches_only_the_nodes_of_its_rule() {
    on_each(|binary| {
        let fleet = fleet(binary, &NODES[..2]);
        let file = fleet.path("web1/site/bob");
        let ensure = |flags: &[&str]| {
            let key = fleet.path("ops-bob.key");
            let [uid, gid] = crate::support::fleet::owner();
            let file = ["ensure", "file", file.to_str().unwrap(), "--content", "x", "--owner", &uid, "--file-group", &gid];
            fleet.run(&[&file, &["--mode", "0600", "--key", key.to_str().unwrap()] as &[&str], flags].concat())
        };
        for (flags, why) in [
            (&["--node", "web1*"] as &[&str], "all nodes that match web1*"),
            (&["--node", "*"], "all nodes that match *"),
            (&["--node", "web*", "--not-node", "web2"], "all nodes that match web*"),
            (&["--node", "web1,*1"], "all nodes that match *1"),
            (&["--node", "web1", "--group", "web"], "the group web"),
            (&["--all", "--not-group", "db,canary"], "it does not allow all nodes"),
            (&["--all", "--not-node", "web2"], "it does not allow all nodes"),
        ] {
            let ran = ensure(flags);
            assert!(ran.code == 3 && ran.stdout.contains(why) && !file.exists(), "{flags:?}: {}{}", ran.stdout, ran.stderr);
        }
        let allowed = ensure(&["--node", "web1", "--not-group", "db"]);
        assert!(allowed.code == 0 && file.exists(), "{}{}", allowed.stdout, allowed.stderr);
    });
}

#[test]
fn the_failed_and_offline_nodes_of_a_job_are_retried() {
    on_each(|binary| {
        let mut fleet = fleet(binary, &[NODES[0], NODES[1], NODES[3]]);
        fleet.kill("db1");
        fleet.wait_until_offline("db1");
        std::fs::write(fleet.path("web2/site/broken"), "").unwrap();
        let script = "test ! -e {{ Facts.site }}/broken && echo done >> {{ Facts.site }}/log";
        let command = ["ensure", "exec", "try", "--provider", "shell", "--command", script, "--output", "json"];
        let first =
            fleet.run(&[&command, &["--all", "--where", "Facts.role != 'mail'", "--reason", "CHG-7"] as &[&str]].concat());
        assert_eq!((first.code, outcomes(&first).as_str()), (1, "db1 offline, web1 changed, web2 failed"), "{}", first.stderr);
        let job = first.json()["id"].as_str().unwrap().to_owned();

        // The limit of offline nodes counts the retried nodes.
        let sent = job_count(&fleet);
        let limited = fleet.run(&["job", "retry", &job, "--max-offline", "0"]);
        assert!(limited.code == 4 && limited.stderr.contains("1 of 2 targeted nodes are not online"), "{}", limited.stderr);
        assert_eq!(job_count(&fleet), sent);

        std::fs::remove_file(fleet.path("web2/site/broken")).unwrap();
        fleet.start_with("db1", "db", "", "exec = true");
        let failed = fleet.run(&["job", "retry", &job, "--outcome", "failed", "--output", "json"]);
        assert_eq!((failed.code, outcomes(&failed).as_str()), (0, "web2 changed"), "{}", failed.stderr);
        let second = failed.json()["id"].as_str().unwrap().to_owned();
        assert_ne!(second, job);
        for said in [format!("retries   {job}"), "1 node, failed: web2".to_owned(), "reason    CHG-7".to_owned()] {
            assert!(failed.stderr.contains(&said), "{said}: {}", failed.stderr);
        }
        let offline = fleet.run(&["job", "retry", &job, "--outcome", "offline,no_answer", "--output", "json"]);
        assert_eq!((offline.code, outcomes(&offline).as_str()), (0, "db1 changed"), "{}", offline.stderr);
        assert_eq!(nodes_with(&fleet, "log"), "web1 web2 db1");
        let list = fleet.run(&["job", "list", "--limit", "1", "--output", "json"]).json();
        assert_eq!(
            list[0]["to"],
            json!({"nodes": ["db1"], "where": "Facts.role != 'mail'"}),
            "an offline node has evaluated nothing"
        );
        let nothing = fleet.run(&["job", "retry", &second]);
        assert!(nothing.code == 0 && nothing.stderr.contains("nothing is sent"), "{}", nothing.stderr);
        assert_eq!(job_count(&fleet), sent + 2);

        // Other commands, other records.
        let status = fleet.run(&["healthcheck", "--node", "web1", "--output", "json"]).json();
        let query = fleet.run(&["job", "retry", status["id"].as_str().unwrap()]);
        assert!(query.code == 2 && query.stderr.contains("is not retried"), "{}", query.stderr);
        let unknown = fleet.run(&["job", "retry", &job, "--outcome", "changed"]);
        assert!(unknown.code == 2 && unknown.stderr.contains("possible values: failed, refused"), "{}", unknown.stderr);
        let forged = uuid::Uuid::now_v7();
        let record = stored(&fleet, "JOBS", fleet.subjects.job_command(job.parse().unwrap()).as_str());
        let payload = ensign::wire::Envelope::parse(&record[0].payload).unwrap().payload;
        let payload = String::from_utf8(payload).unwrap().replace(&job, &forged.to_string()).replace("echo done", "touch /pwned");
        let envelope = sign_envelope(COMMAND_TYPE, payload.into_bytes(), &[("ops-alice", &SigningKey::from_seed(&[9; 32]))]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bus = fleet.connect("operator", None).await;
            bus.publish_stored(fleet.subjects.job_command(forged).as_str(), &[], envelope.encode()).await.unwrap();
        });
        let trust = fleet.path("trust.dsse.json").display().to_string();
        let refused = fleet.run(&["job", "retry", &forged.to_string(), "--trust", &trust]);
        assert!(
            refused.code == 3 && refused.stderr.contains("no key of the trust bundle"),
            "{} {}",
            refused.code,
            refused.stderr
        );
    });
}

#[test]
fn nothing_is_signed_when_too_many_nodes_are_offline() {
    on_each(|binary| {
        let mut fleet = fleet(binary, &NODES);
        fleet.kill("db1");
        fleet.wait_until_offline("db1");
        let path = manifest(&fleet, "limited");
        for args in [
            &["ensure", "exec", "x", "--command", "/bin/true", "--all", "--max-offline", "0"] as &[&str],
            &["ensure", "exec", "x", "--command", "/bin/true", "--all", "--max-offline", "24%", "--detach"],
            &["apply", &path, "--all", "--max-offline", "0"],
            &["plan", "apply", &path, "--all", "--max-offline", "0"],
            &["assign", "base", &path, "--all", "--max-offline", "0"],
        ] {
            let ran = fleet.run(args);
            assert!(
                ran.code == 4
                    && ran.stderr.contains("1 of 4 targeted nodes are not online, and at most")
                    && ran.stderr.contains("offline: db1; nothing was signed or sent"),
                "{args:?}: {} {}",
                ran.code,
                ran.stderr
            );
        }
        assert_eq!(job_count(&fleet), 0);
        let unknown = append(&fleet, "named", &["--node", "web1,typo", "--max-offline", "0"]);
        assert!(unknown.code == 4 && unknown.stderr.contains("offline: typo"), "{}", unknown.stderr);
        let wrong = append(&fleet, "wrong", &["--all", "--max-offline", "few"]);
        assert!(wrong.code == 2 && wrong.stderr.contains("neither a number of nodes nor a percentage"), "{}", wrong.stderr);
        for limit in ["1", "25%"] {
            let ran = append(&fleet, "sent", &["--all", "--max-offline", limit]);
            assert_eq!((ran.code, outcomes(&ran).contains("db1 offline")), (4, true), "{}", ran.stderr);
        }
        let without = append(&fleet, "without", &["--all", "--not-node", "db1", "--max-offline", "0"]);
        assert_eq!((without.code, nodes_with(&fleet, "without").as_str()), (0, "web1 web2 web3"), "{}", without.stderr);
    });
}
