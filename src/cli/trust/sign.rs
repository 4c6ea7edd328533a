//! `ensign trust sign`: adds signatures to a bundle, by one person or by several in turn.

use std::path::PathBuf;

use clap::Args;

use crate::host::fs;
use crate::trust::bundle::check_bundle;

use super::super::error::{CliError, Exit};
use super::super::key;
use super::super::ui::{Ui, text};
use super::files::{self, SignedBundleFile};

#[derive(Debug, Args)]
pub(super) struct TrustSignArgs {
    /// Bundle: the edited trust.json, or the signed file to add signatures to.
    pub(super) file: PathBuf,
    /// Root key file or ssh-agent:NAME. May be repeated.
    #[arg(long, value_name = "KEY", required = true)]
    pub(super) root: Vec<PathBuf>,
    /// File for the signed bundle; by default beside the edited one, with the ending .dsse.json.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

pub(super) fn sign(args: &TrustSignArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let (plain, sealed) = files::file_names(&args.file);
    let there = if fs::exists(&sealed) || args.file == sealed { Some(files::read_signed(&sealed)?) } else { None };
    let (bundle, mut envelope) = match there {
        Some(SignedBundleFile { ref bundle, ref envelope, .. }) if args.file == sealed => (bundle.clone(), envelope.clone()),
        _ => {
            let bundle = files::read_unsigned(&plain)?;
            // Existing signatures stay, as long as the bundle is the same.
            let before = there.as_ref().filter(|there| there.bundle == bundle).map(|there| there.envelope.clone());
            let envelope = before.map_or_else(|| files::unsigned(&bundle), Ok)?;
            (bundle, envelope)
        }
    };
    check_bundle(&bundle).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let roots = args.root.iter().map(|path| key::signer(path)).collect::<Result<Vec<_>, _>>()?;
    let other = there.as_ref().filter(|there| there.bundle != bundle && there.trusted.is_some());
    if let Some(other) = other.filter(|other| bundle.version != other.bundle.version + 1) {
        let (old, new) = (other.bundle.version, bundle.version);
        ui.warn(text!("{} is version {}, this is {}: nodes with {} accept only {}", sealed.display(), old, new, old, old + 1));
    }
    let before = files::previous_version(&sealed, bundle.version, there.and_then(|there| there.trusted));
    files::add_signatures(&mut envelope, &bundle, before.as_ref(), &roots, ui)?;
    let out = args.out.clone().unwrap_or(sealed);
    files::write_signed(&out, &envelope, &bundle)?;
    files::report_signatures(&out, &envelope, &bundle, before.as_ref(), ui);
    Ok(Exit::Success)
}
