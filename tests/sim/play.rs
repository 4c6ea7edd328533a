//! The end of a command on a node: it follows from the seed, the node and the command, the same every time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ensign::agent::{Simulate, SimulatedRun};
use ensign::model::{NodeId, TransactionEvent};
use ensign::wire::Command;
use ensign::wire::command::Action;
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;

use super::options::{DurationRange, Fraction};

/// The reasons of failures: few causes for many nodes, as in practice.
const CAUSES: [&str; 3] =
    ["E: Unable to locate package", "could not write: No space left on device (os error 28)", "it did not start: exit status 1"];
/// Longer than the time limit of any command.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// The resources of every manifest, whatever its content.
const RESOURCES: [(&str, &str); 8] = [
    ("package", "nginx"),
    ("package", "openssl"),
    ("file", "/etc/nginx/nginx.conf"),
    ("file", "/etc/nginx/sites/app.conf"),
    ("file", "/etc/motd"),
    ("user", "app"),
    ("cron", "rotate"),
    ("service", "nginx"),
];

/// Decides how commands end.
pub(crate) struct CommandOutcomes {
    pub(crate) seed: u64,
    pub(crate) fails: Fraction,
    pub(crate) changes: Fraction,
    pub(crate) takes: DurationRange,
    pub(crate) silences: Fraction,
    /// Receives the nodes that fall silent.
    pub(crate) silent: UnboundedSender<NodeId>,
    /// The number of played commands. More than the accepted commands would mean that a command ran twice.
    pub(crate) played: AtomicU64,
}

/// Numbers from 0 up to 1, derived from the arguments.
pub(crate) fn dice<const N: usize>(seed: u64, about: &[&[u8]]) -> [f64; N] {
    std::array::from_fn(|throw| {
        let mut hash = Sha256::new();
        hash.update(seed.to_be_bytes());
        hash.update([u8::try_from(throw).unwrap_or(u8::MAX)]);
        for part in about {
            hash.update(part);
            hash.update([0]);
        }
        let bytes = hash.finalize();
        let bits = bytes.iter().take(4).fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte));
        f64::from(bits) / (f64::from(u32::MAX) + 1.0)
    })
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Stable,
    Changed,
    Failed(&'static str),
}

impl Simulate for CommandOutcomes {
    fn simulate(&self, node: &NodeId, command: &Command) -> SimulatedRun {
        self.played.fetch_add(1, Ordering::Relaxed);
        let [fate, time, cause, voice] = dice(self.seed, &[node.as_str().as_bytes(), command.id.as_bytes()]);
        let takes = self.takes.from + (self.takes.to - self.takes.from).mul_f64(time);
        if voice < self.silences.0 {
            // Fails only when the simulator ends.
            let _cut = self.silent.send(node.clone());
            return SimulatedRun { duration: FOREVER, events: Vec::new() };
        }
        let end = if fate < self.fails.0 {
            // Most failures have the first cause.
            End::Failed(if cause < 0.7 {
                CAUSES[0]
            } else if cause < 0.9 {
                CAUSES[1]
            } else {
                CAUSES[2]
            })
        } else if fate < self.fails.0 + self.changes.0 {
            End::Changed
        } else {
            End::Stable
        };
        let events = match &command.action {
            Action::Ensure(ensure) => {
                let name = ensure.properties.get("name").and_then(Value::as_str).unwrap_or_default();
                vec![event(node, command, 1, (&ensure.kind, name), end, takes)]
            }
            _ => manifest(node, command, end, takes),
        };
        SimulatedRun { duration: takes, events }
    }
}

/// The events of a manifest with this end of one resource. All other resources are unchanged.
fn manifest(node: &NodeId, command: &Command, end: End, takes: Duration) -> Vec<TransactionEvent> {
    let which = match end {
        End::Failed(cause) if cause == CAUSES[0] => 0,
        End::Failed(cause) if cause == CAUSES[1] => 3,
        End::Failed(_) => 7,
        _ => 4,
    };
    let each = takes / 8;
    (1..)
        .zip(RESOURCES)
        .map(|(seq, resource)| event(node, command, seq, resource, if seq == which + 1 { end } else { End::Stable }, each))
        .collect()
}

fn event(node: &NodeId, command: &Command, seq: u64, (kind, name): (&str, &str), end: End, takes: Duration) -> TransactionEvent {
    let (changed, failed) = (end == End::Changed, matches!(end, End::Failed(_)));
    TransactionEvent {
        protocol: ensign::model::event::TRANSACTION.to_owned(),
        event_id: Uuid::now_v7(),
        timestamp: Timestamp::now(),
        kind: kind.to_owned(),
        provider: "simulated".to_owned(),
        name: name.to_owned(),
        alias: String::new(),
        requested_ensure: "present".to_owned(),
        final_ensure: if failed { String::new() } else { "present".to_owned() },
        duration: u64::try_from(takes.as_nanos()).unwrap_or(u64::MAX),
        properties: json!({"name": name, "ensure": "present"}),
        status: (!failed).then(|| json!({"name": name, "ensure": "present", "metadata": {"provider": "simulated"}})),
        noop_message: if changed && command.options.noop { "would have changed it".to_owned() } else { String::new() },
        health_check: Vec::new(),
        health_check_only: false,
        errors: if let End::Failed(cause) = end { vec![cause.to_owned()] } else { Vec::new() },
        changed,
        refreshed: false,
        failed,
        skipped: false,
        noop: command.options.noop,
        unmet_requirements: Vec::new(),
        pending_refreshes: Vec::new(),
        node: Some(node.to_string()),
        run_id: Some(command.id),
        seq,
        manifest: None,
        changes: if changed { vec!["changed".to_owned()] } else { Vec::new() },
        diff: None,
        change_cause: None,
        attempts: None,
        reverted: false,
    }
}
