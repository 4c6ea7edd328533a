//! Edits a trust bundle into its next version: operator keys, root keys, lifetime.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::model::HumanDuration;
use crate::trust::PublicKey;
use crate::trust::decide::policy::names;
use crate::wire::TrustBundle;
use crate::wire::bundle::OperatorKey;

use super::super::error::{CliError, Exit};
use super::super::key;
use super::super::ui::{Ui, text};
use super::files::{self, BundleEdit, BundleEditArgs};

#[derive(Debug, Args)]
pub(super) struct AddKeyArgs {
    #[command(flatten)]
    edited: BundleEditArgs,
    /// Id of the key in rules, with the public key or its file: ops-carol=carol.pub. May be repeated.
    #[arg(value_name = "ID=PUBLICKEY", required = true)]
    keys: Vec<String>,
    /// Start of the validity: a time (2027-01-31T08:00:00Z), a day (2027-01-31, UTC), or a duration from now (30d).
    #[arg(long, value_name = "WHEN")]
    not_before: Option<String>,
    /// End of the validity, in the same forms.
    #[arg(long, value_name = "WHEN")]
    not_after: Option<String>,
    /// Replace the key that has this id.
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Args)]
pub(super) struct RevokeArgs {
    #[command(flatten)]
    edited: BundleEditArgs,
    /// Ids of the keys.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct RemoveKeyArgs {
    #[command(flatten)]
    edited: BundleEditArgs,
    /// Ids of the keys.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct RotateRootArgs {
    #[command(flatten)]
    edited: BundleEditArgs,
    /// New root: the public key or its file. May be repeated.
    #[arg(long, value_name = "PUBLICKEY")]
    add: Vec<String>,
    /// Root to remove: the public key or its file. May be repeated.
    #[arg(long, value_name = "PUBLICKEY")]
    remove: Vec<String>,
    /// Number of roots that must sign from now on.
    #[arg(long, value_name = "N")]
    threshold: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct RenewArgs {
    /// Bundle that `trust init` wrote, signed or not.
    file: PathBuf,
    /// Root key file or ssh-agent:NAME, to sign at once. May be repeated.
    #[arg(long, value_name = "KEY")]
    root: Vec<PathBuf>,
    /// Lifetime of the bundle, from now.
    #[arg(long, value_name = "DURATION", default_value = files::DEFAULT_LIFETIME)]
    life: HumanDuration,
}

fn parse_time(text: &str, now: Timestamp) -> Result<Timestamp, CliError> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let day = text.parse::<Date>().ok().and_then(|day| day.to_zoned(TimeZone::UTC).ok());
    if let Some(day) = day {
        return Ok(day.timestamp());
    }
    let span = text.parse::<HumanDuration>().map_err(|_| {
        CliError::usage(format!("\"{text}\" is not a time")).hint("write 2027-01-31T08:00:00Z, 2027-01-31 or 30d")
    })?;
    files::expiry_after(span, now)
}

pub(super) fn add_key(args: &AddKeyArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let mut work = BundleEdit::open(&args.edited, now)?;
    let window = |text: &Option<String>| text.as_deref().map(|text| parse_time(text, now)).transpose();
    let (not_before, not_after) = (window(&args.not_before)?, window(&args.not_after)?);
    for text in &args.keys {
        let (id, public) = files::id_and_key(text)?;
        let bundle = &mut work.bundle;
        let key = OperatorKey { key: public.to_openssh(&id), id, not_before, not_after };
        match bundle.keys.iter_mut().find(|there| there.id == key.id) {
            Some(there) if args.replace => {
                bundle.revoked.retain(|id| *id != key.id);
                *there = key;
            }
            Some(there) => {
                let message = format!("the key {} exists already", there.id);
                return Err(CliError::usage(message).hint("--replace replaces it"));
            }
            None => {
                if !bundle.rules.iter().any(|rule| names(rule, &key.id)) {
                    ui.warn(text!("no rule names {}: it has no rights until `ensign trust rule add` adds one", key.id));
                }
                bundle.keys.push(key);
            }
        }
    }
    work.save(&args.edited, now, ui)
}

fn check_key_ids(bundle: &TrustBundle, ids: &[String]) -> Result<(), CliError> {
    match ids.iter().find(|id| bundle.keys.iter().all(|key| key.id != **id)) {
        None => Ok(()),
        Some(id) => {
            let all: Vec<&str> = bundle.keys.iter().map(|key| key.id.as_str()).collect();
            Err(CliError::usage(format!("unknown key {id}")).hint(format!("known keys: {}", all.join(", "))))
        }
    }
}

pub(super) fn revoke(args: &RevokeArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let mut work = BundleEdit::open(&args.edited, now)?;
    check_key_ids(&work.bundle, &args.ids)?;
    for id in &args.ids {
        if !work.bundle.revoked.contains(id) {
            work.bundle.revoked.push(id.clone());
        }
    }
    work.save(&args.edited, now, ui)
}

pub(super) fn remove_key(args: &RemoveKeyArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let mut work = BundleEdit::open(&args.edited, now)?;
    check_key_ids(&work.bundle, &args.ids)?;
    work.bundle.keys.retain(|key| !args.ids.contains(&key.id));
    work.bundle.revoked.retain(|id| !args.ids.contains(id));
    for id in &args.ids {
        if work.bundle.rules.iter().any(|rule| rule.keys.contains(id)) {
            ui.warn(text!("a rule still names {}: a later key of this id would have its rights", id));
        }
    }
    work.save(&args.edited, now, ui)
}

pub(super) fn rotate_root(args: &RotateRootArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let mut work = BundleEdit::open(&args.edited, now)?;
    let read = |keys: &[String]| keys.iter().map(|key| Ok(key::public_key(key)?.0)).collect::<Result<Vec<PublicKey>, CliError>>();
    let (add, remove) = (read(&args.add)?, read(&args.remove)?);
    let root = &mut work.bundle.root;
    for key in &remove {
        let before = root.keys.len();
        root.keys.retain(|there| there.parse::<PublicKey>().ok() != Some(*key));
        if root.keys.len() == before {
            return Err(CliError::usage(format!("{key} is not a root key of this bundle")));
        }
    }
    root.keys.extend(add.iter().map(PublicKey::to_short));
    root.threshold = args.threshold.unwrap_or(root.threshold);
    work.save(&args.edited, now, ui)
}

pub(super) fn renew(args: &RenewArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let edited = BundleEditArgs { file: args.file.clone(), root: args.root.clone(), life: Some(args.life) };
    BundleEdit::open(&edited, now)?.save(&edited, now, ui)
}
