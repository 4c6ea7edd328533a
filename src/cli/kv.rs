//! `ensign kv`: signed values of key-value buckets, which nodes can verify.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::diag::error_chain;
use crate::host::{Host, fs};
use crate::model::HumanDuration;
use crate::transport::TransportError;
use crate::trust::decide::data::{DataReader, OpenedValue, open_unverified};
use crate::trust::{BundleAuthority, TrustedBundle, open_bundle, sign_envelope_with};
use crate::wire::data::{DATA_TYPE, SignedData, is_signed_data};
use crate::wire::{Envelope, MAX_ENVELOPE, json};

use super::error::{CliError, Exit};
use super::fleet::session::{FleetSession, OperatorArgs, signer_refs, signers};
use super::ui::{Ui, text};
use crate::cli::args::connection::connection_failure;
use crate::cli::local::inputs::OutputFormat;

/// Sign values of key-value buckets, and show their signers.
#[derive(Debug, Args)]
pub struct KvArgs {
    #[command(subcommand)]
    command: KvCommand,
    #[command(flatten)]
    context: OperatorArgs,
}

#[derive(Debug, Subcommand)]
enum KvCommand {
    /// Sign a value and store it.
    Put(KvPutArgs),
    /// Show a value and its signers.
    Get {
        /// Name of the bucket.
        bucket: String,
        /// Key in the bucket.
        #[arg(value_name = "KEY")]
        name: String,
    },
    /// List the keys of a bucket and the signers of their values.
    Ls {
        /// Name of the bucket.
        bucket: String,
    },
}

#[derive(Debug, Args)]
struct KvPutArgs {
    /// Name of the bucket.
    bucket: String,
    /// Key in the bucket.
    #[arg(value_name = "KEY")]
    name: String,
    /// Value to store.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    value: Option<String>,
    /// File with the value.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Time for which nodes accept the value; until the next value by default.
    #[arg(long, value_name = "DURATION")]
    life: Option<HumanDuration>,
}

/// A value for the output.
#[derive(Debug, Serialize)]
struct KvEntry {
    key: String,
    /// `signed`, `plain`, or the error.
    state: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    signers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issued: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
}

/// Runs `ensign kv`.
///
/// # Errors
/// When an argument is wrong, or the server does not answer.
pub fn run(args: &KvArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    runtime.block_on(async {
        let session = args.context.open().await?;
        match &args.command {
            KvCommand::Put(put) => store(&session, put, ui).await,
            KvCommand::Get { bucket, name } => get(&session, bucket, name, ui).await,
            KvCommand::Ls { bucket } => list(&session, bucket, ui).await,
        }
    })
}

async fn store(session: &FleetSession, put: &KvPutArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let value = match (&put.value, &put.file) {
        (_, Some(path)) => fs::read(path, MAX_ENVELOPE as u64).map_err(|error| CliError::from_error(Exit::Usage, &error))?,
        (value, None) => value.clone().unwrap_or_default().into_bytes(),
    };
    let keys = signers(&session.operator)?;
    let issued = later_than(previous_issued(session, put).await?, session.now());
    let life = put.life.map(|life| SignedDuration::try_from(life.as_std()).unwrap_or(SignedDuration::MAX));
    let data = SignedData {
        fleet: session.operator.fleet.clone(),
        bucket: put.bucket.clone(),
        key: put.name.clone(),
        issued,
        expires: life.map(|life| issued.saturating_add(life).unwrap_or(Timestamp::MAX)),
        text: None,
        base64: None,
    }
    .with_value(&value);
    data.value().map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let failed = |error| CliError::from_error(Exit::Failed, &error);
    let payload = serde_json::to_vec(&data).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let signed = sign_envelope_with(DATA_TYPE, payload, &signer_refs(&keys)).map_err(failed)?.encode();
    if signed.len() > MAX_ENVELOPE {
        let what = format!("the signed value has {} bytes; nodes accept at most {MAX_ENVELOPE}", signed.len());
        return Err(CliError::usage(what).hint("put large values into a bundle, whose digest is signed"));
    }
    session.bus.put_value(&put.bucket, &put.name, signed).await.map_err(|error| connection_failure(&error))?;
    let by = keys.iter().map(|key| key.id.as_str()).collect::<Vec<_>>().join(", ");
    ui.message(text!("stored kv://{}/{}, signed by {}", put.bucket, put.name, by));
    Ok(Exit::Success)
}

/// Returns the signing time of the current value. Nodes do not go back to an earlier time.
async fn previous_issued(session: &FleetSession, put: &KvPutArgs) -> Result<Option<Timestamp>, CliError> {
    match session.bus.value(&put.bucket, &put.name).await {
        Ok(bytes) => Ok(parse_unverified(&bytes).map(|data| data.issued)),
        Err(TransportError::NotFound(_)) => Ok(None),
        Err(error) => Err(connection_failure(&error)),
    }
}

/// Returns the time of a value that follows one of `before`, whose operator's clock may have been a little ahead.
fn later_than(before: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let next = before.and_then(|before| before.checked_add(SignedDuration::from_millis(1)).ok());
    next.filter(|next| next.duration_since(now) < crate::trust::decide::verify::MAX_CLOCK_SKEW).map_or(now, |next| next.max(now))
}

/// Parses an envelope without verification.
fn parse_unverified(bytes: &[u8]) -> Option<SignedData> {
    let envelope = Envelope::parse(bytes).ok().filter(|_| is_signed_data(bytes))?;
    json::read(&envelope.payload).ok()
}

async fn get(session: &FleetSession, bucket: &str, key: &str, ui: &mut Ui) -> Result<Exit, CliError> {
    let trust = trust_bundle(session)?;
    let bytes = session.bus.value(bucket, key).await.map_err(|error| connection_failure(&error))?;
    let shown = KvEntry::read(session, trust.as_ref(), bucket, key, bytes, true);
    let good = shown.is_acceptable();
    match session.output {
        OutputFormat::Json => ui.json(&shown),
        OutputFormat::Jsonl => ui.jsonl(&shown),
        OutputFormat::Text => {
            ui.message(text!("kv://{}/{}: {}", bucket, key, shown.describe()));
            if let Some(value) = &shown.value {
                ui.line(value);
            }
        }
    }
    Ok(if good { Exit::Success } else { Exit::Failed })
}

async fn list(session: &FleetSession, bucket: &str, ui: &mut Ui) -> Result<Exit, CliError> {
    let trust = trust_bundle(session)?;
    let values = session.bus.values(bucket).await.map_err(|error| connection_failure(&error))?;
    let shown: Vec<KvEntry> =
        values.into_iter().map(|(key, bytes)| KvEntry::read(session, trust.as_ref(), bucket, &key, bytes, false)).collect();
    match session.output {
        OutputFormat::Json => ui.json(&shown),
        OutputFormat::Jsonl => shown.iter().for_each(|value| ui.jsonl(value)),
        OutputFormat::Text => shown.iter().for_each(|value| ui.line(text!("{}  {}", value.key, value.describe()))),
    }
    Ok(Exit::Success)
}

fn trust_bundle(session: &FleetSession) -> Result<Option<TrustedBundle>, CliError> {
    let Some(path) = session.operator.trust.as_ref() else { return Ok(None) };
    let bytes = fs::read_named(path, MAX_ENVELOPE as u64).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    open_bundle(&bytes, BundleAuthority::Stored).map(Some).map_err(|error| CliError::from_error(Exit::Usage, &error))
}

impl KvEntry {
    fn read(
        session: &FleetSession,
        trust: Option<&TrustedBundle>,
        bucket: &str,
        key: &str,
        bytes: Vec<u8>,
        with_value: bool,
    ) -> Self {
        let issued = parse_unverified(&bytes).map(|data| data.issued);
        let (state, signers, value) = match trust {
            Some(trust) => {
                let now = Host::system(None).now().max(session.now());
                let reader = DataReader { trust, node: None, now, bucket, key, newest: None };
                match reader.open(bytes) {
                    Ok(OpenedValue::Plain(value)) => ("plain".to_owned(), vec![], Some(value)),
                    Ok(OpenedValue::Signed { value, signers, .. }) => ("signed".to_owned(), signers, Some(value)),
                    Err(error) => (error_chain(&error), vec![], None),
                }
            }
            None if is_signed_data(&bytes) => match open_unverified(bytes) {
                Ok(value) => ("not verified: no trust bundle configured".to_owned(), vec![], Some(value)),
                Err(why) => (why, vec![], None),
            },
            None => ("plain".to_owned(), vec![], Some(bytes)),
        };
        let value = value.filter(|_| with_value).map(|value| String::from_utf8_lossy(&value).into_owned());
        Self { key: key.to_owned(), state, signers, issued, value }
    }

    /// Returns false for a signed value that is not verified.
    fn is_acceptable(&self) -> bool {
        matches!(self.state.as_str(), "plain" | "signed")
    }

    fn describe(&self) -> String {
        match self.issued {
            Some(at) if !self.signers.is_empty() => format!("signed by {} at {at}", self.signers.join(", ")),
            _ => self.state.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_later_than_the_one_before() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let now = at("2026-11-20T10:00:00Z");
        for (before, wanted) in [
            (None, "2026-11-20T10:00:00Z"),
            (Some("2026-11-19T10:00:00Z"), "2026-11-20T10:00:00Z"),
            (Some("2026-11-20T10:00:05Z"), "2026-11-20T10:00:05.001Z"),
            // Nodes refuse a value so far ahead, and every value after it.
            (Some("2026-11-20T11:00:00Z"), "2026-11-20T10:00:00Z"),
        ] {
            assert_eq!(later_than(before.map(at), now), at(wanted), "{before:?}");
        }
    }
}
