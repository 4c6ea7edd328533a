//! Verification of values and registrations from the bus. Signed values of buckets are verified, and an older value never
//! replaces a newer one. Nodes sign registrations with their own keys. This node signs its own registrations here too.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::runtime::Handle;

use crate::diag::error_chain;
use crate::host::fs;
use crate::model::registration::Ttl;
use crate::model::{Registration, lock};
use crate::registry::BusVerifier;
use crate::store::signed_values::NewestValue;
use crate::transport::Message;
use crate::trust::decide::data::{DataReader, NewestSigned, OpenedValue};
use crate::trust::decide::verify::MAX_CLOCK_SKEW;
use crate::trust::keys::pinned_key_line::PinnedKeyLine;
use crate::trust::{PublicKey, verify_receipt};
use crate::wire::receipt::{self, Receipt};

use crate::agent::exec::context::RunContext;

/// Largest file of pinned keys, in bytes: more than ten thousand nodes.
const MAX_KNOWN_NODES_FILE: u64 = 4 << 20;
/// Validity of a registration that does not name its own.
const DEFAULT_TTL: SignedDuration = SignedDuration::from_hours(24);

/// The access of one run to the bus. The kernel may keep the run from all files of the agent. The files that the run needs are
/// read before. The agent's own thread writes.
pub(in crate::agent) struct VerifiedBus {
    context: Arc<RunContext>,
    runtime: Handle,
    /// The text of the file of pinned keys, if there is one.
    pinned_keys: Option<Result<String, String>>,
}

impl VerifiedBus {
    /// Opens the access. The caller is on the agent's own thread, within its runtime.
    pub(in crate::agent) fn open(context: &Arc<RunContext>) -> Self {
        let path = context.settings.now().registration.known_nodes.clone();
        let pinned_keys = path.map(|path| fs::read_text(&path, MAX_KNOWN_NODES_FILE).map_err(|error| error_chain(&error)));
        Self { context: Arc::clone(context), runtime: Handle::current(), pinned_keys }
    }

    /// Records an accepted value. Returns when the value is on disk.
    fn remember(&self, name: String, newest: NewestSigned) {
        let context = Arc::clone(&self.context);
        let NewestSigned { issued, digest } = newest;
        let noted = self.runtime.spawn(async move {
            let noted = lock(&context.values).record(name, NewestValue { issued, digest });
            context.status.report_storage_error(noted);
        });
        // Fails only when the agent ends, and the run with it.
        let _ended = self.runtime.block_on(noted).is_ok();
    }
}

impl BusVerifier for VerifiedBus {
    fn value(&self, bucket: &str, key: &str, bytes: Vec<u8>) -> Result<(Vec<u8>, bool), String> {
        let (trust, settings) = (self.context.trust.current(), self.context.settings.now());
        let name = format!("{bucket}/{key}");
        let newest = lock(&self.context.values).newest(&name).cloned();
        let newest = newest.map(|NewestValue { issued, digest }| NewestSigned { issued, digest });
        let reader = DataReader {
            trust: &trust,
            node: Some((&settings.node, &settings.groups)),
            now: self.context.durable.monotonic_now(self.context.identity.now()),
            bucket,
            key,
            newest: newest.as_ref(),
        };
        match reader.open(bytes).map_err(|error| error.to_string())? {
            OpenedValue::Plain(value) => Ok((value, false)),
            OpenedValue::Signed { value, newest, signers } => {
                tracing::debug!(name, ?signers, issued = %newest.issued, "read a signed value");
                self.remember(name, newest);
                Ok((value, true))
            }
        }
    }

    fn registrations(&self, messages: Vec<Message>) -> Result<(Vec<Message>, bool), String> {
        let Some(text) = &self.pinned_keys else { return Ok((messages, false)) };
        let settings = self.context.settings.now();
        let known = pinned_keys_of_fleet(text.as_ref().map_err(Clone::clone)?, &settings.fleet);
        let known = known.map_err(|why| format!("cannot read the file of known nodes: {why}"))?;
        let now = self.context.identity.now();
        let before = messages.len();
        let kept: Vec<Message> = messages.into_iter().filter(|message| is_signed(message, &known, now)).collect();
        if kept.len() < before {
            let dropped = before - kept.len();
            tracing::warn!(dropped, "dropped registrations: no known node signed them");
            self.context.counters.unsigned_registrations(dropped);
        }
        Ok((kept, true))
    }

    fn receipt(&self, subject: &str, payload: &[u8]) -> Option<String> {
        Some(self.context.durable.receipt_signer().receipt(subject, payload, None, self.context.identity.now(), None).encode())
    }
}

/// Returns the pinned keys of a fleet by node. The first line of a node counts.
fn pinned_keys_of_fleet<'a>(text: &'a str, fleet: &str) -> Result<BTreeMap<&'a str, PinnedKeyLine<'a>>, String> {
    let mut known = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = PinnedKeyLine::parse(line).map_err(|error| format!("line {number}: {}", error_chain(&error)))?;
        if let Some(line) = line.filter(|line| line.fleet == fleet) {
            known.entry(line.node).or_insert(line);
        }
    }
    Ok(known)
}

/// Returns true when a known node signed a registration that is valid now.
fn is_signed(message: &Message, known: &BTreeMap<&str, PinnedKeyLine<'_>>, now: Timestamp) -> bool {
    let header = message.header(receipt::HEADER);
    let claimed = header.and_then(|header| Receipt::parse(header).ok()).and_then(|receipt| receipt.read().ok());
    let Some(claimed) = claimed else { return false };
    let key = known.get(claimed.node.as_str()).and_then(|line| line.read().ok());
    let Some((node, key, _)): Option<(_, PublicKey, _)> = key else { return false };
    let Ok(attested) = verify_receipt(header, &key, &node, &message.subject, &message.payload) else { return false };
    let at = attested.statement.at;
    let lasts = match Registration::from_json(&message.payload).map(|entry| entry.ttl) {
        Ok(Some(Ttl::For(span))) => SignedDuration::try_from(span.as_std()).unwrap_or(SignedDuration::MAX),
        Ok(Some(Ttl::Never)) => SignedDuration::MAX,
        Ok(None) => DEFAULT_TTL,
        Err(_) => return false,
    };
    let ends = at.saturating_add(lasts).unwrap_or(Timestamp::MAX);
    at.duration_since(now) <= MAX_CLOCK_SKEW && now.duration_since(ends) <= MAX_CLOCK_SKEW
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::trust::{SigningKey, issue_receipt};
    use crate::wire::digest;
    use crate::wire::receipt::ReceiptBody;

    const SUBJECT: &str = "choria.ccm.registration.v1.prod.tcp.web.10_0_0_1.37fd7630379a59f9";

    fn message(seed: u8, node: &str, at: &str, ttl: &serde_json::Value) -> Message {
        let entry = json!({
            "cluster": "prod", "protocol": "tcp", "service": "web", "address": "10.0.0.1", "port": 80, "priority": 1, "ttl": ttl,
        });
        let payload = entry.to_string().into_bytes();
        let statement = ReceiptBody {
            node: node.parse().unwrap(),
            boot: Uuid::nil(),
            seq: None,
            prev: None,
            subject: SUBJECT.into(),
            sha256: digest(&payload),
            at: at.parse().unwrap(),
            command: None,
        };
        let receipt = issue_receipt(&SigningKey::from_seed(&[seed; 32]), &statement);
        Message { subject: SUBJECT.into(), payload, headers: vec![(receipt::HEADER.into(), receipt)], ..Message::default() }
    }

    #[test]
    fn a_registration_counts_when_a_known_node_signed_it_for_now() {
        let line = |fleet: &str, node: &str, seed: u8| {
            let key = SigningKey::from_seed(&[seed; 32]).public();
            format!("{fleet} {node} {key} 2026-01-01T00:00:00Z\n")
        };
        let text = ["# known\n".to_owned(), line("prod", "web1", 1), line("prod", "web1", 9), line("test", "web2", 2)].concat();
        let known = pinned_keys_of_fleet(&text, "prod").unwrap();
        let now = "2026-11-20T10:00:00Z".parse().unwrap();
        let never = json!("never");
        let good = message(1, "web1", "2026-11-20T09:59:00Z", &json!("10m"));
        let with = |change: &dyn Fn(&mut Message)| {
            let mut message = good.clone();
            change(&mut message);
            message
        };
        for (message, wanted) in [
            (good.clone(), true),
            (message(9, "web1", "2026-11-20T09:59:00Z", &never), false),
            (message(2, "web2", "2026-11-20T09:59:00Z", &never), false),
            (message(1, "web1", "2026-11-20T09:00:00Z", &json!("10m")), false),
            (message(1, "web1", "2026-11-19T09:00:00Z", &json!(null)), false),
            (message(1, "web1", "2025-11-19T09:00:00Z", &never), true),
            (message(1, "web1", "2026-11-20T11:00:00Z", &never), false),
            (with(&|message| message.headers.clear()), false),
            (with(&|message| message.subject.push('0')), false),
            (with(&|message| message.payload.push(b' ')), false),
        ] {
            assert_eq!(is_signed(&message, &known, now), wanted, "{message:?}");
        }
        assert!(pinned_keys_of_fleet("prod web1\n", "prod").unwrap_err().starts_with("line 1: not `fleet node"));
    }
}
