//! `ensign trust show`: the content of a bundle, and its signers.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use crate::trust::bundle::{check_bundle, signing_keys};
use crate::wire::bundle::OperatorKey;
use crate::wire::{Envelope, TrustBundle};

use super::super::error::{CliError, Exit};
use super::super::ui::{Ui, Whole, text};
use super::files::{self, RootQuorum};

#[derive(Debug, Args)]
pub(super) struct TrustShowArgs {
    /// File of the bundle.
    pub(super) file: PathBuf,
    /// Print the bundle as one JSON document.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn show(args: &TrustShowArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let bytes = files::read(&args.file)?;
    let sealed = if Envelope::parse(&bytes).is_ok() { Some(files::read_signed(&args.file)?) } else { None };
    let bundle = sealed.as_ref().map_or_else(|| files::read_unsigned(&args.file), |sealed| Ok(sealed.bundle.clone()))?;
    let exit = if sealed.is_some() { Exit::Refused } else { Exit::Usage };
    check_bundle(&bundle).map_err(|error| CliError::from_error(exit, &error))?;
    if args.json {
        ui.json(&bundle);
    } else {
        print(&bundle, sealed.as_ref().map(|sealed| &sealed.envelope), now, ui);
    }
    let Some(sealed) = sealed else { return Ok(Exit::Success) };
    if !args.json {
        let before = files::previous_version(&args.file, bundle.version, None);
        for RootQuorum { root_set: whose, signed, needed, of } in files::quorums(&sealed.envelope, &bundle, before.as_ref()) {
            ui.line(text!("signed    by {} of {}; {} of {} must sign", signed, whose, needed, of));
        }
    }
    if sealed.trusted.is_some() { Ok(Exit::Success) } else { Err(unsigned_failure(&args.file)) }
}

fn unsigned_failure(file: &std::path::Path) -> CliError {
    let hint = format!("ensign trust sign {} --root KEY", file.display());
    CliError::new(Exit::Refused, crate::diag::Diagnostic::new("too few of the bundle's own roots signed it").hint(hint))
}

fn print(bundle: &TrustBundle, envelope: Option<&Envelope>, now: Timestamp, ui: &mut Ui) {
    let signed = if envelope.is_some() { "" } else { ", not signed" };
    let expired = if now > bundle.expires { ", expired" } else { "" };
    ui.line(text!("trust bundle of {}, version {}{}{}", bundle.fleet, bundle.version, signed, expired));
    ui.line(text!("expires   {}", bundle.expires));
    for root in &bundle.root.keys {
        let signed = envelope.zip(root.parse().ok()).is_some_and(|(envelope, key)| !signing_keys(envelope, &[key]).is_empty());
        let line = if signed { text!("root      {}  (signed)", root) } else { text!("root      {}", root) };
        ui.line(line);
    }
    ui.line(text!("threshold {} of {} roots", bundle.root.threshold, bundle.root.keys.len()));
    for key in &bundle.keys {
        ui.line(text!("key       {}{}  {}", key.id, validity_note(bundle, key, now), key.key));
    }
    print_rules(bundle, ui);
}

/// Returns the remark beside a key that is not simply valid.
fn validity_note(bundle: &TrustBundle, key: &OperatorKey, now: Timestamp) -> String {
    if bundle.revoked.contains(&key.id) {
        return " (revoked)".to_owned();
    }
    match (key.not_before, key.not_after) {
        (Some(from), _) if now < from => format!(" (valid from {from})"),
        (_, Some(to)) if now > to => format!(" (expired at {to})"),
        (_, Some(to)) => format!(" (until {to})"),
        _ => String::new(),
    }
}

/// Prints the rules with their numbers. Their JSON is the shortest exact form.
pub(super) fn print_rules(bundle: &TrustBundle, ui: &mut Ui) {
    for (number, rule) in (1..).zip(&bundle.rules) {
        ui.line(text!("rule {}    {}", number, Whole(serde_json::to_string(rule).unwrap_or_default())));
    }
}
