//! `ensign trust status`: the bundle versions of the nodes of a fleet, and the next expiries.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use std::collections::BTreeMap;

use crate::diag::error_chain;
use crate::fleet::trust::{Published, TrustAdoption, read_published, trust_adoption};
use crate::trust::{TrustedBundle, TrustedKey};

use super::super::error::{CliError, Exit};
use super::super::fleet::session::{OperatorArgs, connection_failure};
use super::super::format::ago;
use super::super::ui::{Tone, Ui, text};
use super::publish;
use crate::cli::local::inputs::OutputFormat;

/// Remaining time from which an expiry is reported.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(30 * 24);

#[derive(Debug, Args)]
pub(super) struct TrustStatusArgs {
    #[command(flatten)]
    context: OperatorArgs,
}

/// The trust of a fleet at one moment.
#[derive(Debug, Serialize)]
struct TrustView {
    fleet: String,
    at: Timestamp,
    /// The published bundle; none when nothing was published.
    published: Option<PublishedBundle>,
    /// The published version that nodes do not accept.
    broken: Option<RejectedVersion>,
    /// The number of nodes for each version.
    versions: BTreeMap<u64, usize>,
    /// The adoption of the published version, or of the latest that any node has.
    nodes: TrustAdoption,
}

#[derive(Debug, Serialize)]
struct PublishedBundle {
    version: u64,
    digest: String,
    expires: Timestamp,
    keys: Vec<KeyValidity>,
}

#[derive(Debug, Serialize)]
struct KeyValidity {
    id: String,
    /// `valid`, `soon` (ends within 30 days), `early` (not valid yet), `over` or `revoked`.
    state: &'static str,
    not_before: Option<Timestamp>,
    not_after: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
struct RejectedVersion {
    version: u64,
    code: &'static str,
    why: String,
}

fn ends_soon(end: Timestamp, now: Timestamp) -> bool {
    now.checked_add(EXPIRY_WARNING).is_ok_and(|then| end < then)
}

fn key(key: &TrustedKey, now: Timestamp) -> KeyValidity {
    let state = match (key.not_before, key.not_after) {
        _ if key.revoked => "revoked",
        (Some(from), _) if now < from => "early",
        (_, Some(to)) if now > to => "over",
        (_, Some(to)) if ends_soon(to, now) => "soon",
        _ => "valid",
    };
    KeyValidity { id: key.id.clone(), state, not_before: key.not_before, not_after: key.not_after }
}

fn bundle(trusted: &TrustedBundle, now: Timestamp) -> PublishedBundle {
    PublishedBundle {
        version: trusted.version(),
        digest: trusted.digest().to_owned(),
        expires: trusted.expires(),
        keys: trusted.keys().iter().map(|known| key(known, now)).collect(),
    }
}

pub(super) async fn run(args: TrustStatusArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = args.context.open().await?;
    let states = session.states().await?;
    let there: Published = read_published(&session.bus, &session.subjects).await.map_err(|error| connection_failure(&error))?;
    let now = session.now();
    let mut versions = BTreeMap::new();
    for state in states.values() {
        *versions.entry(state.trust).or_default() += 1;
    }
    let wanted = there.latest().map(TrustedBundle::version).or_else(|| versions.keys().next_back().copied()).unwrap_or(0);
    let view = TrustView {
        fleet: session.operator.fleet.clone(),
        at: now,
        published: there.latest().map(|trusted| bundle(trusted, now)),
        broken: there.broken.as_ref().map(|(version, error)| RejectedVersion {
            version: *version,
            code: error.code().as_str(),
            why: error_chain(error),
        }),
        versions,
        nodes: trust_adoption(wanted, &states, &BTreeMap::new(), now),
    };
    match session.output {
        OutputFormat::Text => print(&view, ui),
        OutputFormat::Json => ui.json(&view),
        OutputFormat::Jsonl => ui.jsonl(&view),
    }
    Ok(Exit::Success)
}

fn print(view: &TrustView, ui: &mut Ui) {
    let mark = |ui: &Ui, what: String| text!("  {} {}", ui.paint(Tone::Changed, "!"), what);
    match &view.published {
        None => ui.line(text!("{}  nothing is published: nodes use the bundle of their configuration", view.fleet)),
        Some(bundle) => {
            let PublishedBundle { version, expires, .. } = bundle;
            ui.line(text!("{}  version {} is published, and expires at {}", view.fleet, version, expires));
            if *expires < view.at {
                ui.line(mark(
                    ui,
                    format!("it expired {} ago: nodes accept nothing new (ensign trust renew)", ago(*expires, view.at)),
                ));
            } else if ends_soon(*expires, view.at) {
                ui.line(mark(ui, format!("it expires in {} (ensign trust renew)", ago(view.at, *expires))));
            }
        }
    }
    if let Some(RejectedVersion { version, why, .. }) = &view.broken {
        ui.line(mark(ui, format!("nodes do not accept version {version} of the stream: {why}")));
    }
    for key in view.published.iter().flat_map(|bundle| &bundle.keys) {
        let what = match (key.state, key.not_before, key.not_after) {
            ("soon", _, Some(to)) => format!("ends in {}, at {to}", ago(view.at, to)),
            ("over", _, Some(to)) => format!("ended at {to}"),
            ("early", Some(from), _) => format!("begins at {from}"),
            ("revoked", ..) => "is revoked".to_owned(),
            _ => continue,
        };
        ui.line(mark(ui, format!("the key {} {what}", key.id)));
    }
    publish::print_adoption(&view.nodes, view.at, ui);
}
