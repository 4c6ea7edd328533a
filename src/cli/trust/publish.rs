//! `ensign trust publish`: sends the next bundle to the nodes of a fleet, and reports their answers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use crate::fleet::trust::{ChainError, OutdatedNode, TrustAdoption, plan_publication, publish, read_published, trust_adoption};
use crate::model::{HumanDuration, NodeId};
use crate::transport::{Message, StartAt, StreamReader, TransportError};
use crate::trust::{BundleError, TrustedBundle};
use crate::wire::report::RejectionEvent;
use crate::wire::{NodeState, json};

use super::super::error::{CliError, Exit};
use super::super::fleet::session::{FleetSession, OperatorArgs, connection_failure};
use super::super::format::ago;
use super::super::ui::{Ui, text};
use super::files;
use crate::cli::local::inputs::OutputFormat;

/// Time between two looks at the answers of the nodes.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Most nodes that are named.
const MAX_NAMED: usize = 20;

#[derive(Debug, Args)]
pub(super) struct TrustPublishArgs {
    /// Signed bundles. Earlier versions beside them (trust.N.dsse.json) that the stream lacks are published too, the oldest
    /// first.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Longest wait until the online nodes accept the bundle.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    wait: HumanDuration,
    /// Publish without waiting.
    #[arg(long, conflicts_with = "wait")]
    detach: bool,
    #[command(flatten)]
    context: OperatorArgs,
}

pub(super) async fn run(mut args: TrustPublishArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    for file in &args.files {
        let sealed = files::read_signed(file)?;
        let fleet = args.context.fleet.get_or_insert_with(|| sealed.bundle.fleet.clone());
        if *fleet != sealed.bundle.fleet {
            return Err(CliError::usage(format!("{} is of the fleet {}, not of {fleet}", file.display(), sealed.bundle.fleet)));
        }
    }
    let session = args.context.open().await?;
    // Opened before the publication, so that no answer is missed.
    let mut heard =
        if args.detach { None } else { Some(NodeReports::open(&session).await.map_err(|error| connection_failure(&error))?) };
    let Some(bundle) = publish_bundles(&args.files, &session, ui).await? else { return Ok(Exit::Success) };
    let Some(heard) = &mut heard else { return Ok(Exit::Success) };
    let found = heard.wait(&bundle, args.wait.as_std(), &session).await.map_err(|error| connection_failure(&error))?;
    Ok(report_adoption(&found, &session, ui))
}

/// Checks the bundles, stores those that the stream lacks, and returns the latest.
async fn publish_bundles(files: &[PathBuf], session: &FleetSession, ui: &mut Ui) -> Result<Option<TrustedBundle>, CliError> {
    let there = read_published(&session.bus, &session.subjects).await.map_err(|error| connection_failure(&error))?;
    let mut named = BTreeMap::new();
    for file in files {
        named.insert(files::read_signed(file)?.bundle.version, (file.clone(), files::read(file)?));
    }
    let latest = named.keys().next_back().copied();
    for file in files {
        for (version, path) in files::versions_beside(file) {
            // A published version never changes, and a named file goes before a file beside it.
            if latest.is_none_or(|latest| version > latest) || there.has(version) || named.contains_key(&version) {
                continue;
            }
            match files::read_signed(&path) {
                Ok(sealed) if sealed.trusted.is_some() && sealed.bundle.fleet == session.operator.fleet => {
                    named.insert(version, (path.clone(), files::read(&path)?));
                }
                _ => ui.warn(text!("ignored {}: not a signed bundle of this fleet", path.display())),
            }
        }
    }
    let at_hand = named.iter().map(|(version, (_, bytes))| (*version, bytes.clone())).collect();
    let chain = plan_publication(&there, &at_hand).map_err(|error| chain_failure(&error, &named))?;
    let Some(bundle) = chain.bundles.last().cloned() else { return Ok(None) };
    if bundle.is_expired(session.now()) {
        ui.warn(text!("version {} expired at {}: nodes accept nothing new under it", bundle.version(), bundle.expires()));
    }
    if let Some(first) = chain.bundles.first().filter(|first| there.is_empty() && first.version() > 1) {
        ui.warn(text!(
            "nothing was published before: only nodes can check version {} against their own, and nodes with the root keys alone need version 1",
            first.version()
        ));
    }
    for bundle in &chain.bundles {
        let version = bundle.version();
        if chain.missing.contains(&version) {
            publish(&session.bus, &session.subjects, &there, bundle).await.map_err(|error| {
                connection_failure(&error)
                    .hint("another operator may have published at the same moment: see `ensign trust status`")
            })?;
            ui.message(text!("version {} of the trust bundle of {} is published", version, bundle.fleet()));
        } else if named.contains_key(&version) {
            ui.message(text!("version {} is published already", version));
        }
    }
    Ok(Some(bundle))
}

fn chain_failure(error: &ChainError, named: &BTreeMap<u64, (PathBuf, Vec<u8>)>) -> CliError {
    let file = |version: u64| named.get(&version).map_or_else(String::new, |(path, _)| format!("{}: ", path.display()));
    let (place, hint) = match error {
        ChainError::Bundle { version, source: BundleError::Quorum { .. } } => {
            (file(*version), "roots of the version before and of this one must sign: ensign trust sign FILE --root KEY")
        }
        ChainError::Bundle { version, .. } => (file(*version), "edit the published version again"),
        ChainError::DifferentBundle(version) => {
            (file(*version), "a published version never changes: make the next version from it")
        }
        ChainError::Gap { found, .. } => {
            (file(*found), "publish the versions between as well: name their files, or keep them beside it as trust.N.dsse.json")
        }
    };
    let diagnostic = crate::diag::Diagnostic::new(format!("{place}{}", crate::diag::error_chain(error)));
    CliError::new(Exit::Refused, diagnostic).hint(hint)
}

/// The messages of nodes, from before a bundle is published.
struct NodeReports {
    states: StreamReader,
    refusals: StreamReader,
    nodes: BTreeMap<NodeId, NodeState>,
    /// The latest rejection of each node: the digest, and the reason.
    refused: BTreeMap<NodeId, (String, String)>,
}

impl NodeReports {
    async fn open(session: &FleetSession) -> Result<Self, TransportError> {
        let (bus, subjects) = (&session.bus, &session.subjects);
        let refusals = bus.follow(&subjects.stream("EVENTS"), subjects.refusals().as_str(), StartAt::New).await?;
        // Followed before the stored states are read: no state falls between the two.
        let states = bus.follow(&subjects.stream("STATE"), subjects.states().as_str(), StartAt::New).await?;
        let mut heard = Self { states, refusals, nodes: BTreeMap::new(), refused: BTreeMap::new() };
        for message in bus.last_per_subject(&subjects.stream("STATE"), subjects.states().as_str()).await? {
            heard.record_state(&message, session);
        }
        Ok(heard)
    }

    /// Waits until all online nodes accept a bundle, or `patience` is over.
    async fn wait(
        &mut self,
        bundle: &TrustedBundle,
        patience: Duration,
        session: &FleetSession,
    ) -> Result<TrustAdoption, TransportError> {
        let until = Instant::now() + patience;
        let mut look = tokio::time::interval(CHECK_INTERVAL);
        loop {
            // Cancel-safe: stream readers lose no message, an interval keeps its next tick.
            tokio::select! {
                message = self.states.next() => {
                    self.record_state(&message.ok_or(TransportError::Disconnected)??, session);
                }
                message = self.refusals.next() => self.record_rejection(&message.ok_or(TransportError::Disconnected)??),
                _ = look.tick() => {
                    let found = self.adoption(bundle, session.now());
                    let settled = found.behind.iter().all(|behind| behind.why.is_some());
                    if settled || Instant::now() > until {
                        return Ok(found);
                    }
                }
            }
        }
    }

    fn record_state(&mut self, message: &Message, session: &FleetSession) {
        // The server pins the subject to the node.
        if let Ok(state) = json::read::<NodeState>(&message.payload)
            && session.subjects.state(&state.node).as_str() == message.subject
        {
            self.nodes.insert(state.node.clone(), state);
        }
    }

    fn record_rejection(&mut self, message: &Message) {
        if let Ok(refused) = json::read::<RejectionEvent>(&message.payload) {
            self.refused.insert(refused.node, (refused.digest, format!("{}: {}", refused.code, refused.message)));
        }
    }

    fn adoption(&self, bundle: &TrustedBundle, now: Timestamp) -> TrustAdoption {
        let of_this = self.refused.iter().filter(|(_, (digest, _))| digest == bundle.digest());
        let refusals = of_this.map(|(node, (_, why))| (node.clone(), why.clone())).collect();
        trust_adoption(bundle.version(), &self.nodes, &refusals, now)
    }
}

fn report_adoption(found: &TrustAdoption, session: &FleetSession, ui: &mut Ui) -> Exit {
    let exit = match found.behind.iter().find(|behind| behind.why.is_some()) {
        Some(_) => Exit::Refused,
        None if found.behind.is_empty() => Exit::Success,
        None => Exit::Partial,
    };
    match session.output {
        OutputFormat::Text => print_adoption(found, session.now(), ui),
        OutputFormat::Json => ui.json(&json!(found)),
        OutputFormat::Jsonl => ui.jsonl(&json!(found)),
    }
    exit
}

/// `9998 of 10000 nodes use version 8; 2 are offline`, and their names.
pub(super) fn print_adoption(found: &TrustAdoption, now: Timestamp, ui: &mut Ui) {
    let mut parts = vec![format!("{} of {} nodes use version {}", found.obeying, found.nodes, found.version)];
    for (count, what) in [(found.behind.len(), "are online and do not"), (found.offline.len(), "are offline")] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    ui.line(parts.join("; "));
    let named = |behind: &OutdatedNode, what: &str, ui: &mut Ui| {
        let why = behind.why.as_deref().map_or_else(String::new, |why| format!("; {why}"));
        ui.line(text!("  {:<20} version {}, {}{}", behind.node.as_str(), behind.version, what, why));
    };
    for behind in found.behind.iter().take(MAX_NAMED) {
        named(behind, "alive", ui);
    }
    for behind in found.offline.iter().take(MAX_NAMED) {
        named(behind, &format!("last heard {} ago", ago(behind.heard, now)), ui);
    }
    if found.behind.len() > MAX_NAMED || found.offline.len() > MAX_NAMED {
        ui.line("  and others: ensign trust status --output json names all");
    }
}
