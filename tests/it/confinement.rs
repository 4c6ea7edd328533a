//! The kernel enforces the limits of a node against every command, also where a check fails.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::support::fleet::ensign;
use super::support::nats::binaries;
use super::support::node::{ENSIGN, Node};
use super::support::single_node::{Agent, SingleNodeFleet, ensure_action};
use ensign::wire::CommandOutcome;

/// A node that manages files below `own`, and may run commands there.
async fn fleet(limits: &str) -> (SingleNodeFleet, Agent) {
    let binary = binaries().into_iter().next().unwrap();
    let fleet = SingleNodeFleet::new(&binary, "").await;
    std::fs::create_dir(fleet.path("own")).unwrap();
    std::fs::write(fleet.path("beside"), "as it was").unwrap();
    // All users may write this file, except a confined run: the mode is not the reason for a failure.
    std::fs::set_permissions(fleet.path("beside"), std::fs::Permissions::from_mode(0o666)).unwrap();
    fleet.write_config(&limits.replace("OWN", fleet.path("own").to_str().unwrap()));
    let agent = fleet.start_agent().await;
    (fleet, agent)
}

async fn outcome(fleet: &SingleNodeFleet, script: &str) -> (CommandOutcome, String) {
    let command = fleet.command(ensure_action("exec", &json!({"name": "try", "command": script, "provider": "shell"})));
    fleet.send(&command).await;
    let done = fleet.only_result(command.id).await;
    let errors = done.event.map(|event| event.errors.join("; ")).unwrap_or_default();
    (done.outcome, format!("{script}: {errors} {:?}", done.message))
}

#[tokio::test]
async fn commands_stay_within_the_paths() {
    let (fleet, agent) = fleet("paths = [\"OWN\"]").await;
    let place =
        |script: &str| script.replace("DIR", fleet.dir.path().to_str().unwrap()).replace("PID", &agent.0.id().to_string());
    for allowed in [
        "echo x > DIR/own/a && cat DIR/own/a",
        "mkdir -p DIR/own/b/c && mv DIR/own/a DIR/own/b/c/a && rm -r DIR/own/b",
        "id && ls /usr/bin > /dev/null && cat /proc/self/status > DIR/own/status",
        "cp /bin/true DIR/own/true && chmod 700 DIR/own/true && DIR/own/true",
    ] {
        let (outcome, why) = outcome(&fleet, &place(allowed)).await;
        assert_eq!(outcome, CommandOutcome::Changed, "{why}");
    }
    for denied in [
        "echo x > DIR/beside",
        "echo x >> /etc/ensign-was-here",
        "rm -f DIR/beside && test ! -e DIR/beside",
        "cat DIR/beside",
        "cat DIR/state/node.key",
        "cat DIR/state/ledger*",
        "ls DIR/state",
        "rm -r DIR/state",
        "cat DIR/agent.toml",
        "cat /etc/shadow",
        "ls /root",
        "ln -s DIR/beside DIR/own/link && echo x > DIR/own/link",
        "ln DIR/beside DIR/own/hard",
        "echo x > /proc/self/root/etc/ensign-was-here",
        "cat /proc/PID/environ",
        "cat /proc/PID/root/etc/shadow",
        "readlink /proc/PID/fd/0",
        "nsenter -t PID -m cat DIR/beside",
        "nsenter -t 1 -a true",
        "unshare -m true",
        "mount --bind DIR DIR/own",
        "kill -TERM PID",
        "kill -KILL PID",
        "mknod DIR/own/disk b 8 0",
        "echo 1 > /proc/sys/kernel/sysrq",
    ] {
        let (outcome, why) = outcome(&fleet, &place(denied)).await;
        assert_eq!(outcome, CommandOutcome::Failed, "{why}");
    }
    assert_eq!(std::fs::read_to_string(fleet.path("beside")).unwrap(), "as it was");
    assert!(!std::path::Path::new("/etc/ensign-was-here").exists());
    let state = fleet.state("the confinement by the kernel", |state| state.confinement.is_some()).await;
    let confinement = state.confinement.unwrap();
    assert!(confinement.held.contains(&"files".to_owned()) && confinement.landlock >= 1, "{confinement:?}");
    drop(agent);
}

#[tokio::test]
async fn a_link_that_a_check_overlooks_leads_nowhere() {
    let (fleet, _agent) = fleet("paths = [\"OWN\"]").await;
    // Another process swaps it all the time: now a directory, now a link out of the paths.
    let (swapped, outside) = (fleet.path("own/swapped"), fleet.path("outside"));
    std::fs::create_dir(&outside).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = {
        let (stop, swapped, outside) = (Arc::clone(&stop), swapped.clone(), outside.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _there = std::fs::create_dir(&swapped);
                let _gone = std::fs::remove_dir_all(&swapped);
                let _there = std::os::unix::fs::symlink(&outside, &swapped);
                let _gone = std::fs::remove_file(&swapped);
            }
        })
    };
    for round in 0..20 {
        let command = fleet.file_command(&format!("own/swapped/{round}"), "x");
        fleet.send(&command).await;
        fleet.only_result(command.id).await;
    }
    stop.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[tokio::test]
async fn types_that_change_the_whole_system_run_outside_the_confinement() {
    let (fleet, _agent) = fleet("paths = [\"OWN\", \"/proc/sys/vm\", \"/etc/sysctl.d\"]\ntypes = [\"sysctl\", \"file\"]").await;
    let before = std::fs::read_to_string("/proc/sys/vm/swappiness").unwrap();
    let key = json!({"name": "vm.swappiness", "value": before.trim(), "persist": false});
    let command = fleet.command(ensure_action("sysctl", &key));
    fleet.send(&command).await;
    let done = fleet.only_result(command.id).await;
    assert_eq!(done.outcome, CommandOutcome::Stable, "{done:?}");
    // A missing directory of `paths` is made outside of the confinement, its content inside.
    std::fs::remove_dir(fleet.path("own")).unwrap();
    for (name, kind) in [("own", "directory"), ("own/file", "present")] {
        let file = json!({"name": fleet.path(name), "ensure": kind, "owner": "root", "group": "root", "mode": "0755"});
        let command = fleet.command(ensure_action("file", &file));
        fleet.send(&command).await;
        let done = fleet.only_result(command.id).await;
        assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
    }
}

#[tokio::test]
async fn an_agent_that_requires_confinement_names_what_is_missing() {
    let (fleet, _agent) = fleet("paths = [\"OWN\"]\nconfine = \"required\"").await;
    fleet.until("the log has the confinement", || fleet.log().contains("the kernel enforces these limits: ")).await;
    assert!(fleet.log().contains("not enforced by the kernel: attributes"), "{}", fleet.log());
    let (outcome, why) = outcome(&fleet, "true").await;
    assert_eq!(outcome, CommandOutcome::Changed, "{why}");
}

#[test]
fn a_hardened_unit_of_a_node_with_files_only_has_a_low_exposure() {
    let dir = tempfile::tempdir().unwrap();
    let config = |types: &str| {
        let text = format!(
            "fleet = \"test\"\n[nats]\nservers = [\"nats://127.0.0.1:4222\"]\n[trust]\nroot = [\"ed25519:AAAA\"]\n\
             [limits]\ntypes = [{types}]\npaths = [\"/srv\"]\n"
        );
        let path = dir.path().join("agent.toml");
        std::fs::write(&path, text).unwrap();
        path
    };
    let harden = |types: &str| ensign(&["agent", "harden", "--config", config(types).to_str().unwrap()]);
    let unit = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd/ensign-agent.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let exposed = |drop_in: &str| {
        let path = dir.path().join("ensign-agent.service");
        std::fs::write(&path, format!("{unit}\n{drop_in}")).unwrap();
        let mut analyze = std::process::Command::new("systemd-analyze");
        analyze.args(["security", "--offline=true", "--no-pager", "--threshold=30"]).arg(path);
        analyze.output().unwrap()
    };
    let files = harden("\"file\"");
    assert_eq!(files.code, 0, "{}", files.stderr);
    let output = exposed(&files.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(!exposed(&harden("\"package\"").stdout).status.success());
    // The agent refuses files that others may change.
    std::fs::set_permissions(config("\"file\""), std::fs::Permissions::from_mode(0o666)).unwrap();
    let ran = ensign(&["agent", "harden", "--config", dir.path().join("agent.toml").to_str().unwrap()]);
    assert!(ran.code != 0 && ran.stderr.contains("can be changed by others: run `chmod go-w "), "{}", ran.stderr);
}

#[test]
fn a_hardened_agent_still_manages_its_files() {
    // Containers hide Landlock, unless they have this option.
    let calls = "--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp";
    let Some(node) = Node::start_with(&[calls.to_owned()]) else { return };
    let unit = std::fs::read_to_string(format!("{}/deploy/systemd/ensign-agent.service", env!("CARGO_MANIFEST_DIR"))).unwrap();
    node.write("/etc/systemd/system/ensign-agent.service", &unit.replace("/usr/bin/ensign", ENSIGN));
    let file = json!({
        "name": "/srv/www/index.html", "ensure": "present", "content": "hello", "owner": "daemon", "group": "daemon", "mode": "0640"
    });
    let command = json!({"fleet": "test", "to": {"nodes": ["web1"]}, "action": {"ensure": {"type": "file", "properties": file}}});
    node.write("/root/command.json", &command.to_string());
    node.sh(&format!(
        r#"cd /root; mkdir -p /etc/ensign /srv/www
        {ENSIGN} key new --no-passphrase root.key; {ENSIGN} key new --no-passphrase ops.key
        {ENSIGN} trust init --fleet test --root root.key --operator ops=ops.key.pub --out .
        cp trust.dsse.json /etc/ensign/trust.json
        cat >/etc/ensign/agent.toml <<EOF
fleet = "test"
node = "web1"
[http]
listen = "off"
[nats]
servers = ["nats://127.0.0.1:4222"]
[trust]
root = ["$(cat root.key.pub)"]
bundle = "trust.json"
[limits]
types = ["file"]
paths = ["/srv/www"]
EOF
        mkdir /etc/systemd/system/ensign-agent.service.d
        {ENSIGN} agent harden >/etc/systemd/system/ensign-agent.service.d/harden.conf
        systemctl daemon-reload; systemctl start ensign-agent
        {ENSIGN} sign command.json --key ops.key --out signed.json; {ENSIGN} agent accept signed.json"#
    ));
    assert_eq!(node.sh("stat -c '%U:%G %a' /srv/www/index.html; cat /srv/www/index.html"), "daemon:daemon 640\nhello");
    let log = node.sh("journalctl -u ensign-agent --no-pager");
    assert!(log.contains("the kernel enforces these limits: devices, files, "), "{log}");
    // Also on a read-only system, the lock orders its runs and those of people.
    assert!(!log.contains("runs of this host may overlap"), "{log}");
    assert_eq!(node.sh("stat -c '%a' /run/ensign /run/ensign/run.lock"), "700\n600\n");
}
