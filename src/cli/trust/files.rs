//! The files of a trust bundle: `trust.json` to edit, `trust.dsse.json` signed, and `trust.7.dsse.json` for a replaced signed
//! version.
//!
//! A command may name either of the first two files. An edit of a signed bundle creates the next version. An edit of an
//! unsigned bundle continues that version.

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::{SignedDuration, Timestamp};

use crate::diag::{Diagnostic, error_chain};
use crate::host::fs::{self, WriteSpec};
use crate::model::HumanDuration;
use crate::trust::bundle::{check_bundle, signing_keys};
use crate::trust::{BundleAuthority, PublicKey, TrustedBundle, countersign, open_bundle};
use crate::wire::{Envelope, TRUST_TYPE, TrustBundle, envelope, json};

use super::super::error::{CliError, Exit};
use super::super::key::{self, NamedKey};
use super::super::ui::{Ui, text};

/// Time for which a new bundle is valid: one renewal a year. Nodes raise an alarm before it ends.
pub(in crate::cli) const DEFAULT_LIFETIME: &str = "365d";
const SIGNED_ENDING: &str = ".dsse.json";

/// The arguments of every edit of a bundle.
#[derive(Debug, Args)]
pub(super) struct BundleEditArgs {
    /// Bundle that `trust init` wrote, signed or not.
    pub(super) file: PathBuf,
    /// Root key file or ssh-agent:NAME, to sign at once. May be repeated. Others may add signatures with `trust sign`.
    #[arg(long, value_name = "KEY")]
    pub(super) root: Vec<PathBuf>,
    /// Lifetime of the bundle, from now.
    #[arg(long, value_name = "DURATION")]
    pub(super) life: Option<HumanDuration>,
}

/// A signed bundle, perhaps with too few signatures.
pub(super) struct SignedBundleFile {
    /// The envelope.
    pub(super) envelope: Envelope,
    /// The bundle in the envelope.
    pub(super) bundle: TrustBundle,
    /// The bundle as nodes accept it, when enough of its own roots signed.
    pub(super) trusted: Option<TrustedBundle>,
}

/// An edit of a bundle.
pub(super) struct BundleEdit {
    unsigned_path: PathBuf,
    signed_path: PathBuf,
    /// The next version of the bundle.
    pub(super) bundle: TrustBundle,
    before: Option<TrustedBundle>,
}

impl BundleEdit {
    /// Opens a bundle, by either of its files.
    ///
    /// # Errors
    /// When there is no bundle, or it can't be read.
    pub(super) fn open(edited: &BundleEditArgs, now: Timestamp) -> Result<Self, CliError> {
        let (plain, sealed) = file_names(&edited.file);
        let is_draft = edited.file == plain;
        // The named file must exist; the other one may.
        let draft = if is_draft || fs::exists(&plain) { Some(read_unsigned(&plain)?) } else { None };
        let signed = if !is_draft || fs::exists(&sealed) { Some(read_signed(&sealed)?) } else { None };
        let floor = signed.as_ref().map_or(1, |signed| signed.bundle.version + u64::from(signed.trusted.is_some()));
        let mut bundle = match (draft, signed.as_ref()) {
            (Some(draft), _) if is_draft || draft.version >= floor => draft,
            (_, Some(signed)) => signed.bundle.clone(),
            // The named file was read.
            (Some(draft), None) => draft,
            (None, None) => return Err(CliError::usage(format!("no bundle at {}", edited.file.display()))),
        };
        bundle.version = bundle.version.max(floor);
        if let Some(life) = edited.life {
            bundle.expires = expiry_after(life, now)?;
        }
        let before = previous_version(&sealed, bundle.version, signed.and_then(|signed| signed.trusted));
        Ok(Self { unsigned_path: plain, signed_path: sealed, bundle, before })
    }

    /// Writes the changed bundle, and signs it when there are keys.
    ///
    /// # Errors
    /// When nodes would refuse the bundle with any signatures, or a file can't be written.
    pub(super) fn save(self, edited: &BundleEditArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
        check_bundle(&self.bundle).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
        let roots = edited.root.iter().map(|path| key::signer(path)).collect::<Result<Vec<_>, _>>()?;
        write_unsigned(&self.unsigned_path, &self.bundle)?;
        if self.bundle.expires <= now {
            ui.warn(text!("the bundle expired at {}: --life 365d gives it a year from now", self.bundle.expires));
        }
        if roots.is_empty() {
            let (plain, version) = (self.unsigned_path.display(), self.bundle.version);
            ui.message(text!("wrote {}: version {}, not signed yet", plain, version));
            ui.message(text!("sign it: ensign trust sign {} --root KEY", plain));
            return Ok(Exit::Success);
        }
        let mut envelope = unsigned(&self.bundle)?;
        add_signatures(&mut envelope, &self.bundle, self.before.as_ref(), &roots, ui)?;
        write_signed(&self.signed_path, &envelope, &self.bundle)?;
        report_signatures(&self.signed_path, &envelope, &self.bundle, self.before.as_ref(), ui);
        Ok(Exit::Success)
    }
}

/// Returns the file to edit and the signed file, from either of them.
pub(super) fn file_names(path: &Path) -> (PathBuf, PathBuf) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.strip_suffix(SIGNED_ENDING) {
        Some(stem) => (path.with_file_name(format!("{stem}.json")), path.to_owned()),
        None => (path.to_owned(), path.with_extension("dsse.json")),
    }
}

/// Returns the path for a replaced signed bundle.
fn replaced_path(sealed: &Path, version: u64) -> PathBuf {
    let name = sealed.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    sealed.with_file_name(format!("{}.{version}{SIGNED_ENDING}", name.strip_suffix(SIGNED_ENDING).unwrap_or(name)))
}

/// Returns the signed bundles of other versions beside one, as [`replaced_path`] names them.
pub(super) fn versions_beside(path: &Path) -> Vec<(u64, PathBuf)> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name.strip_suffix(SIGNED_ENDING).unwrap_or(name);
    // A kept version is named after the same bundle.
    let stem = stem.rsplit_once('.').filter(|(_, version)| version.parse::<u64>().is_ok()).map_or(stem, |(stem, _)| stem);
    let prefix = format!("{stem}.");
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let versions = fs::list(directory).unwrap_or_default().into_iter().filter_map(|path| {
        let version = path.file_name()?.to_str()?.strip_prefix(&prefix)?.strip_suffix(SIGNED_ENDING)?.parse().ok()?;
        Some((version, path))
    });
    versions.collect()
}

/// Returns the bundle of the version before, when a file has it.
pub(super) fn previous_version(sealed: &Path, version: u64, there: Option<TrustedBundle>) -> Option<TrustedBundle> {
    let wanted = version.checked_sub(1)?;
    let old = || open_bundle(&read(&replaced_path(sealed, wanted)).ok()?, BundleAuthority::Stored).ok();
    there.filter(|there| there.version() == wanted).or_else(old)
}

/// Returns the time `life` from now, in whole seconds, as the text is for people too.
pub(in crate::cli) fn expiry_after(life: HumanDuration, now: Timestamp) -> Result<Timestamp, CliError> {
    let beyond = || CliError::usage(format!("{life} from now is out of range"));
    let life = SignedDuration::try_from(life.as_std()).map_err(|_| beyond())?;
    let then = now.checked_add(life).map_err(|_| beyond())?;
    Ok(Timestamp::from_second(then.as_second()).unwrap_or(then))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    fs::read_named(path, 4 * envelope::MAX_ENVELOPE as u64).map_err(|error| CliError::from_error(Exit::Usage, &error))
}

fn file_failure(path: &Path, why: &str) -> CliError {
    CliError::new(Exit::Usage, Diagnostic::new(format!("{}: {why}", path.display())))
}

pub(super) fn read_unsigned(path: &Path) -> Result<TrustBundle, CliError> {
    json::read(&read(path)?).map_err(|error| file_failure(path, &error_chain(&error)))
}

pub(super) fn read_signed(path: &Path) -> Result<SignedBundleFile, CliError> {
    let bytes = read(path)?;
    let envelope = Envelope::parse(&bytes).map_err(|error| file_failure(path, &error_chain(&error)))?;
    if envelope.payload_type != TRUST_TYPE {
        return Err(file_failure(path, &format!("contains {}, not a trust bundle", envelope.payload_type)));
    }
    let bundle = json::read(&envelope.payload).map_err(|error| file_failure(path, &error_chain(&error)))?;
    Ok(SignedBundleFile { bundle, envelope, trusted: open_bundle(&bytes, BundleAuthority::Stored).ok() })
}

pub(super) fn write_unsigned(path: &Path, bundle: &TrustBundle) -> Result<(), CliError> {
    write(path, unsigned_text(bundle)?.as_bytes())
}

/// Returns the text of a bundle to edit.
pub(in crate::cli) fn unsigned_text(bundle: &TrustBundle) -> Result<String, CliError> {
    let text = serde_json::to_string_pretty(bundle).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    Ok(format!("{text}\n"))
}

/// Writes a signed bundle. An existing one of another version is kept under a name with its version.
pub(super) fn write_signed(path: &Path, envelope: &Envelope, bundle: &TrustBundle) -> Result<(), CliError> {
    if let Ok(old) = read_signed(path)
        && old.bundle.version != bundle.version
    {
        write(&replaced_path(path, old.bundle.version), &old.envelope.encode())?;
    }
    write(path, &envelope.encode())
}

fn write(path: &Path, content: &[u8]) -> Result<(), CliError> {
    let spec = WriteSpec { uid: None, gid: None, mode: 0o644 };
    let path = if path.parent() == Some(Path::new("")) { Path::new(".").join(path) } else { path.to_owned() };
    fs::write_atomic(&path, &mut &*content, spec).map_err(|error| CliError::from_error(Exit::Usage, &error))
}

/// Returns an envelope without signatures around a bundle.
pub(super) fn unsigned(bundle: &TrustBundle) -> Result<Envelope, CliError> {
    let payload = serde_json::to_vec(bundle).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    Ok(Envelope { payload_type: TRUST_TYPE.to_owned(), payload, signatures: Vec::new() })
}

fn roots(bundle: &TrustBundle) -> Vec<PublicKey> {
    bundle.root.keys.iter().filter_map(|key| key.parse().ok()).collect()
}

/// Signs with root keys of the bundle or of the version before.
///
/// # Errors
/// When a key belongs to neither, or does not sign.
pub(super) fn add_signatures(
    envelope: &mut Envelope,
    bundle: &TrustBundle,
    before: Option<&TrustedBundle>,
    signers: &[NamedKey],
    ui: &mut Ui,
) -> Result<(), CliError> {
    let own = roots(bundle);
    for signer in signers.iter().filter(|signer| !own.contains(&signer.key.public())) {
        match before {
            Some(before) if before.roots().contains(&signer.key.public()) => {}
            Some(_) => {
                let message = format!("{} is a root key neither of this bundle nor of the version before", signer.id);
                return Err(CliError::usage(message).hint("`ensign trust show` lists the root keys"));
            }
            None if bundle.version == 1 => {
                return Err(CliError::usage(format!("{} is not a root key of this bundle", signer.id)));
            }
            None => {
                ui.warn(text!(
                    "{} is not a root key of this bundle: it counts only as a root key of the version before",
                    signer.id
                ));
            }
        }
    }
    countersign(envelope, &key::signer_refs(signers)).map_err(|error| CliError::from_error(Exit::Usage, &error))
}

/// The signatures of one set of roots: counts, and whether they suffice.
pub(super) struct RootQuorum {
    pub(super) root_set: &'static str,
    pub(super) signed: usize,
    pub(super) needed: u32,
    pub(super) of: usize,
}

impl RootQuorum {
    pub(super) fn is_reached(&self) -> bool {
        self.needed > 0 && self.signed >= self.needed as usize
    }
}

/// Returns the quorums of a bundle: of its own roots, and of those of the version before when at hand.
pub(super) fn quorums(envelope: &Envelope, bundle: &TrustBundle, before: Option<&TrustedBundle>) -> Vec<RootQuorum> {
    let count = |whose, keys: &[PublicKey], needed| RootQuorum {
        root_set: whose,
        signed: signing_keys(envelope, keys).len(),
        needed,
        of: keys.len(),
    };
    let own = count("its own roots", &roots(bundle), bundle.root.threshold);
    let old = before.map(|before| count("the roots of the version before", before.roots(), before.bundle().root.threshold));
    [own].into_iter().chain(old).collect()
}

/// Reports the written bundle and its missing signatures.
pub(super) fn report_signatures(
    path: &Path,
    envelope: &Envelope,
    bundle: &TrustBundle,
    before: Option<&TrustedBundle>,
    ui: &mut Ui,
) {
    let (path, version) = (path.display(), bundle.version);
    ui.message(text!("wrote {}: version {} of the trust bundle of {}", path, version, bundle.fleet));
    let quorums = quorums(envelope, bundle, before);
    for RootQuorum { root_set: whose, signed, needed, of } in &quorums {
        ui.message(text!("signed by {} of {}; {} of {} must sign", signed, whose, needed, of));
    }
    if !quorums.iter().all(RootQuorum::is_reached) {
        ui.message(text!("more signatures are needed: ensign trust sign {} --root KEY", path));
    } else if version > 1 {
        ui.message(text!("publish it: ensign trust publish {}", path));
    }
}

/// Parses `ID=PUBLICKEY`, with the key itself or its file.
pub(super) fn id_and_key(text: &str) -> Result<(String, PublicKey), CliError> {
    let (id, key) = text
        .split_once('=')
        .ok_or_else(|| CliError::usage(format!("\"{text}\" has no key")).hint("write ops-alice=alice.key.pub"))?;
    Ok((id.to_owned(), key::public_key(key)?.0))
}
