//! `ensign trust status`: the bundle versions of the nodes of a fleet, and the next expiries.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use std::collections::BTreeMap;

use crate::diag::chain;
use crate::fleet::trust::{Published, TrustAdoption, published, trust_adoption};
use crate::trust::{TrustedBundle, TrustedKey};

use super::super::error::{Exit, Failure};
use super::super::fleet::session::{Context, failure};
use super::super::format::ago;
use super::super::ui::{Tone, Ui, text};
use super::publish;
use crate::cli::local::inputs::OutputFormat;

/// Remaining time from which an expiry is reported.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    context: Context,
}

/// The trust of a fleet at one moment.
#[derive(Debug, Serialize)]
struct View {
    fleet: String,
    at: Timestamp,
    /// The published bundle; none when nothing was published.
    published: Option<Bundle>,
    /// The published version that nodes do not accept.
    broken: Option<Broken>,
    /// The number of nodes for each version.
    versions: BTreeMap<u64, usize>,
    /// The adoption of the published version, or of the latest that any node has.
    nodes: TrustAdoption,
}

#[derive(Debug, Serialize)]
struct Bundle {
    version: u64,
    digest: String,
    expires: Timestamp,
    keys: Vec<Key>,
}

#[derive(Debug, Serialize)]
struct Key {
    id: String,
    /// `valid`, `soon` (ends within 30 days), `early` (not valid yet), `over` or `revoked`.
    state: &'static str,
    not_before: Option<Timestamp>,
    not_after: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
struct Broken {
    version: u64,
    code: &'static str,
    why: String,
}

fn soon(end: Timestamp, now: Timestamp) -> bool {
    now.checked_add(SOON).is_ok_and(|then| end < then)
}

fn key(key: &TrustedKey, now: Timestamp) -> Key {
    let state = match (key.not_before, key.not_after) {
        _ if key.revoked => "revoked",
        (Some(from), _) if now < from => "early",
        (_, Some(to)) if now > to => "over",
        (_, Some(to)) if soon(to, now) => "soon",
        _ => "valid",
    };
    Key { id: key.id.clone(), state, not_before: key.not_before, not_after: key.not_after }
}

fn bundle(trusted: &TrustedBundle, now: Timestamp) -> Bundle {
    Bundle {
        version: trusted.version(),
        digest: trusted.digest().to_owned(),
        expires: trusted.expires(),
        keys: trusted.keys().iter().map(|known| key(known, now)).collect(),
    }
}

pub(super) async fn run(args: Status, ui: &mut Ui) -> Result<Exit, Failure> {
    let session = args.context.open().await?;
    let states = session.states().await?;
    let there: Published = published(&session.bus, &session.subjects).await.map_err(|error| failure(&error))?;
    let now = session.now();
    let mut versions = BTreeMap::new();
    for state in states.values() {
        *versions.entry(state.trust).or_default() += 1;
    }
    let wanted = there.latest().map(TrustedBundle::version).or_else(|| versions.keys().next_back().copied()).unwrap_or(0);
    let view = View {
        fleet: session.operator.fleet.clone(),
        at: now,
        published: there.latest().map(|trusted| bundle(trusted, now)),
        broken: there.broken.as_ref().map(|(version, error)| Broken {
            version: *version,
            code: error.code().as_str(),
            why: chain(error),
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

fn print(view: &View, ui: &mut Ui) {
    let mark = |ui: &Ui, what: String| text!("  {} {}", ui.paint(Tone::Changed, "!"), what);
    match &view.published {
        None => ui.line(text!("{}  nothing is published: nodes use the bundle of their configuration", view.fleet)),
        Some(bundle) => {
            let Bundle { version, expires, .. } = bundle;
            ui.line(text!("{}  version {} is published, and expires at {}", view.fleet, version, expires));
            if *expires < view.at {
                ui.line(mark(
                    ui,
                    format!("it expired {} ago: nodes accept nothing new (ensign trust renew)", ago(*expires, view.at)),
                ));
            } else if soon(*expires, view.at) {
                ui.line(mark(ui, format!("it expires in {} (ensign trust renew)", ago(view.at, *expires))));
            }
        }
    }
    if let Some(Broken { version, why, .. }) = &view.broken {
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
    publish::print(&view.nodes, view.at, ui);
}
