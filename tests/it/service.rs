//! The agent and its surroundings: the service manager with its watchdog, and a full disk.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use ensign::wire::{Ack, AckStatus, CommandOutcome, CommandResult, NodeState};
use serde_json::json;
use tokio::net::UnixDatagram;

use crate::support::single_node::{Agent, PATIENCE, SingleNodeFleet, ensure_action, node, on_every_server};
use crate::support::skip::{no_namespaces, skip};

/// The socket of the service manager: receives the messages of the agent, line by line.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(path: PathBuf) -> Self {
        Self { socket: UnixDatagram::bind(&path).unwrap(), path }
    }

    /// The agent as the manager starts it, with a watchdog limit of one second.
    fn process(&self, fleet: &SingleNodeFleet) -> Process {
        let mut process = fleet.process();
        process.env("NOTIFY_SOCKET", &self.path).env("WATCHDOG_USEC", "1000000");
        process
    }

    /// Returns the next message within this time.
    async fn next(&self, within: Duration) -> Option<String> {
        let mut buffer = [0; 4096];
        let size = tokio::time::timeout(within, self.socket.recv(&mut buffer)).await.ok()?.unwrap();
        Some(String::from_utf8(buffer[..size].to_vec()).unwrap())
    }

    /// Returns all messages of this period.
    async fn all(&self, during: Duration) -> Vec<String> {
        let end = Instant::now() + during;
        let mut told = Vec::new();
        while let Some(message) = self.next(end.saturating_duration_since(Instant::now())).await {
            told.push(message);
        }
        told
    }

    /// Waits for a message with this line.
    async fn wait_for(&self, line: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let message = self.next(end.saturating_duration_since(Instant::now())).await;
            let message = message.unwrap_or_else(|| panic!("never received: {line}"));
            if message.lines().any(|told| told == line) {
                return message;
            }
        }
    }
}

/// Returns the results of a command that is sent once, now.
async fn answered(fleet: &SingleNodeFleet) -> (AckStatus, CommandOutcome) {
    let command = fleet.file_command("motd", "hello\n");
    let answers = fleet.answers(&command, fleet.sign(&command), 2).await;
    let ack: Ack = serde_json::from_value(answers[0].clone()).unwrap();
    let done: CommandResult = serde_json::from_value(answers[1].clone()).unwrap();
    (ack.status, done.outcome)
}

#[test]
fn systemd_is_notified_of_start_liveness_and_stop() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        let manager = Manager::new(fleet.path("notify"));
        fleet.server.kill();
        let agent = Agent::start(&mut manager.process(&fleet));
        // Without a connection: alive, not ready.
        for _ in 0..2 {
            let told = manager.next(PATIENCE).await.expect("a sign of life");
            assert!(told.contains("WATCHDOG=1") && !told.contains("READY=1"), "{told:?}");
        }
        fleet.server.start_again();
        fleet.bus.watch().wait_for(|link| link.connected).await.unwrap();
        let ready = manager.wait_for("STATUS=node web1 of fleet test").await;
        assert_eq!(answered(&fleet).await, (AckStatus::Accepted, CommandOutcome::Changed));
        assert!(ready.contains("READY=1"), "{ready}");
        // Also during a run.
        let long = fleet.gated_command("long");
        fleet.send(&long).await;
        fleet.until("the run", || !fleet.lines("long").is_empty()).await;
        manager.all(Duration::ZERO).await;
        for _ in 0..2 {
            manager.wait_for("WATCHDOG=1").await;
        }
        assert_eq!(fleet.lines("long").len(), 1);
        fleet.open_gate("long");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(agent.0.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        manager.wait_for("STOPPING=1").await;
        assert_eq!(agent.stop(), Some(0));
        assert!(!manager.all(Duration::from_millis(100)).await.iter().any(|told| told.contains("READY=1")));
    });
}

#[test]
fn a_host_without_a_server_boots() {
    on_every_server(async |binary| {
        let mut fleet = SingleNodeFleet::new(binary, "").await;
        let manager = Manager::new(fleet.path("notify"));
        fleet.server.kill();
        let agent = Agent::start(&mut manager.process(&fleet));
        let ready = manager.wait_for("READY=1").await;
        assert!(ready.contains("waiting for a NATS server"), "{ready}");
        // A start can be stopped before its end, too.
        assert_eq!(agent.stop(), Some(0));
    });
}

/// A small file system of its own, unmounted with this value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts the file system; skips the test where this user can't.
    fn mount(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let mounted = Process::new("mount").args(["-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs"]).arg(path).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(path.to_owned()));
        }
        skip(no_namespaces(), "cannot mount a small disk");
        None
    }

    /// Uses all free space.
    fn fill(&self) {
        let error = std::fs::write(self.0.join("filler"), vec![0; 2 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _gone = Process::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A command whose record does not fit the last page of a file.
fn command_with_large_record(fleet: &SingleNodeFleet, script: &str) -> ensign::wire::Command {
    let command = format!("{script} # {}", "x".repeat(9000));
    fleet.command(ensure_action("exec", &json!({"name": "large", "command": command, "provider": "shell"})))
}

async fn results_of(fleet: &SingleNodeFleet, command: &ensign::wire::Command, count: usize) -> Vec<CommandResult> {
    let answers = fleet.answers(command, fleet.sign(command), count).await;
    answers.into_iter().filter_map(|answer| serde_json::from_value(answer).ok()).collect()
}

/// Waits for a state with this property.
async fn state(fleet: &SingleNodeFleet, what: &str, holds: impl Fn(&NodeState) -> bool) {
    let start = Instant::now();
    let states = fleet.subjects.stream("STATE");
    loop {
        let last = fleet.bus.last_per_subject(&states, fleet.subjects.state(&node()).as_str()).await.unwrap();
        let state: NodeState = serde_json::from_slice(&last[0].payload).unwrap();
        if holds(&state) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}: {state:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn has_disk_alarm(state: &NodeState) -> bool {
    state.alive && state.alarms.iter().any(|trouble| trouble.contains("No space left on device"))
}

#[test]
fn a_full_disk_refuses_commands_until_it_has_space_again() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let Some(disk) = SmallDisk::mount(&fleet.path("state")) else { return };
        let mut agent = fleet.start_agent().await;
        disk.fill();
        for _ in 0..2 {
            let script = format!("touch {}", fleet.path("ran").display());
            let done =
                results_of(&fleet, &command_with_large_record(&fleet, &script), 1).await.pop().expect("no acknowledgement");
            assert_eq!((done.outcome, done.code.as_deref()), (CommandOutcome::Refused, Some("storage")), "{done:?}");
            let why = done.message.unwrap();
            assert!(why.contains("could not write") && why.contains("No space left on device"), "{why}");
            // The alarm stays as long as its cause, also over heartbeats.
            state(&fleet, "the alarm", has_disk_alarm).await;
            tokio::time::sleep(Duration::from_millis(1500)).await;
            state(&fleet, "the alarm", has_disk_alarm).await;
        }
        assert!(!fleet.path("ran").exists() && agent.0.try_wait().unwrap().is_none());
        disk.make_room();
        // Without a request.
        state(&fleet, "no alarm", |state| state.alive && state.alarms.is_empty()).await;
        assert_eq!(answered(&fleet).await, (AckStatus::Accepted, CommandOutcome::Changed));
        // All records before and after are whole.
        agent.kill();
        let _agent = fleet.start_agent().await;
        assert_eq!(answered(&fleet).await, (AckStatus::Accepted, CommandOutcome::Stable));
    });
}

#[test]
fn a_disk_that_fills_during_a_run_does_not_lose_its_result() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let Some(disk) = SmallDisk::mount(&fleet.path("state")) else { return };
        let agent = fleet.start_agent().await;
        let script = format!("touch {0}; while [ ! -e {0}.open ]; do sleep 0.05; done", fleet.path("ran").display());
        let command = command_with_large_record(&fleet, &script);
        fleet.send(&command).await;
        fleet.until("the run", || fleet.path("ran").exists()).await;
        disk.fill();
        fleet.open_gate("ran");
        state(&fleet, "the alarm", has_disk_alarm).await;
        disk.make_room();
        let done = fleet.only_result(command.id).await;
        assert_eq!(done.outcome, CommandOutcome::Changed, "{done:?}");
        // The result survives a kill.
        agent.kill();
        let _agent = fleet.start_agent().await;
        assert_eq!(results_of(&fleet, &command, 1).await, [done]);
    });
}

#[test]
fn an_agent_starts_on_a_full_disk() {
    on_every_server(async |binary| {
        let fleet = SingleNodeFleet::new(binary, "").await;
        let Some(disk) = SmallDisk::mount(&fleet.path("state")) else { return };
        fleet.start_agent().await.kill();
        disk.fill();
        let _agent = fleet.start_agent().await;
        let done = results_of(&fleet, &command_with_large_record(&fleet, "true"), 1).await.pop().expect("no acknowledgement");
        assert_eq!(done.code.as_deref(), Some("storage"), "{done:?}");
        disk.make_room();
        state(&fleet, "no alarm", |state| state.alive && state.alarms.is_empty()).await;
        assert_eq!(answered(&fleet).await, (AckStatus::Accepted, CommandOutcome::Changed));
    });
}
