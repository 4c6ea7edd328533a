//! `ensign trust init`: the first bundle of a fleet.

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;

use crate::host::fs;
use crate::model::HumanDuration;
use crate::trust::bundle::check_bundle;
use crate::trust::{BundleAuthority, PublicKey, open_bundle, sign_envelope_with};
use crate::wire::bundle::{OperatorKey, Roots, Rule};
use crate::wire::{TRUST_TYPE, TrustBundle};

use super::super::error::{CliError, Exit};
use super::super::key::{self, NamedKey};
use super::super::ui::{Ui, text};
use super::files::{self, RootQuorum};

#[derive(Debug, Args)]
pub(super) struct TrustInitArgs {
    /// Name of the fleet.
    #[arg(long, env = "ENSIGN_FLEET", hide_env_values = true)]
    fleet: String,
    /// Root key file or ssh-agent:NAME, which may change the bundle. May be repeated; all of them sign.
    #[arg(long, value_name = "KEY", required_unless_present = "root_public")]
    root: Vec<PathBuf>,
    /// Public key (or its file) of a root that signs elsewhere with `trust sign`. May be repeated.
    #[arg(long, value_name = "PUBLICKEY")]
    root_public: Vec<String>,
    /// Operator: the id in rules, with the public key or its file. May be repeated.
    #[arg(long, value_name = "ID=PUBLICKEY", required = true)]
    operator: Vec<String>,
    /// Number of roots that must sign.
    #[arg(long, default_value_t = 1)]
    threshold: u32,
    /// Time after which nodes accept no new work under the bundle, from now.
    #[arg(long, value_name = "DURATION", default_value = files::DEFAULT_LIFETIME)]
    life: HumanDuration,
    /// Directory for trust.json (to edit) and trust.dsse.json (signed).
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// Returns the first bundle of a fleet, in which the operators may do everything.
pub fn first_bundle(
    fleet: &str,
    roots: &[PublicKey],
    threshold: u32,
    operators: &[(String, PublicKey)],
    expires: Timestamp,
) -> TrustBundle {
    TrustBundle {
        fleet: fleet.to_owned(),
        version: 1,
        expires,
        root: Roots { threshold, keys: roots.iter().map(PublicKey::to_short).collect() },
        keys: operators
            .iter()
            .map(|(id, key)| OperatorKey { id: id.clone(), key: key.to_openssh(id), not_before: None, not_after: None })
            .collect(),
        revoked: Vec::new(),
        rules: vec![Rule { keys: operators.iter().map(|(id, _)| id.clone()).collect(), quorum: 1, ..Rule::default() }],
    }
}

/// Signs a bundle, after the check that nodes will make.
///
/// # Errors
/// When the bundle is invalid, or the keys do not reach its threshold.
pub fn seal_bundle(bundle: &TrustBundle, roots: &[NamedKey]) -> Result<Vec<u8>, CliError> {
    check_bundle(bundle).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let payload = serde_json::to_vec(bundle).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let sealed = sign_envelope_with(TRUST_TYPE, payload, &key::signer_refs(roots));
    let signed = sealed.map_err(|error| CliError::from_error(Exit::Usage, &error))?.encode();
    open_bundle(&signed, BundleAuthority::Stored).map_err(|error| {
        CliError::from_error(Exit::Usage, &error).hint("give --root for each of the root keys that must sign")
    })?;
    Ok(signed)
}

pub(super) fn init(args: &TrustInitArgs, now: Timestamp, ui: &mut Ui) -> Result<Exit, CliError> {
    let (plain, sealed) = (args.out.join("trust.json"), args.out.join("trust.dsse.json"));
    if fs::exists(&plain) {
        let hint = "change it with `ensign trust add-key`, `revoke`, `rule`, ..., or edit and sign it: ensign trust sign trust.json --root KEY";
        return Err(CliError::usage(format!("{} exists already", plain.display())).hint(hint));
    }
    let roots = args.root.iter().map(|path| key::signer(path)).collect::<Result<Vec<_>, _>>()?;
    let operators = args.operator.iter().map(|text| files::id_and_key(text)).collect::<Result<Vec<_>, _>>()?;
    let elsewhere = args.root_public.iter().map(|key| Ok(key::public_key(key)?.0)).collect::<Result<Vec<_>, CliError>>()?;
    let publics: Vec<PublicKey> = roots.iter().map(|root| root.key.public()).chain(elsewhere).collect();
    let bundle = first_bundle(&args.fleet, &publics, args.threshold, &operators, files::expiry_after(args.life, now)?);
    check_bundle(&bundle).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let mut envelope = files::unsigned(&bundle)?;
    files::add_signatures(&mut envelope, &bundle, None, &roots, ui)?;
    let reached = files::quorums(&envelope, &bundle, None).iter().all(RootQuorum::is_reached);
    if !reached && args.root_public.is_empty() {
        let hint = "give --root for each of the root keys that must sign, or --root-public for those of others";
        return Err(CliError::usage(format!("{} of {} roots must sign", args.threshold, publics.len())).hint(hint));
    }
    fs::create_directory(&args.out, 0o755).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    files::write_unsigned(&plain, &bundle)?;
    files::write_signed(&sealed, &envelope, &bundle)?;
    files::report_signatures(&sealed, &envelope, &bundle, None, ui);
    ui.message("for agent.toml:");
    print_section(&publics, args.threshold, &sealed, ui);
    Ok(Exit::Success)
}

/// Prints the `[trust]` section for this bundle.
fn print_section(roots: &[PublicKey], threshold: u32, bundle: &Path, ui: &mut Ui) {
    let keys: Vec<String> = roots.iter().map(|root| format!("\"{}\"", root.to_short())).collect();
    ui.line(text!("[trust]\nroot = [{}]", keys.join(", ")));
    if threshold != 1 {
        ui.line(text!("threshold = {}", threshold));
    }
    let name = bundle.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    ui.line(text!("bundle = \"{}\"", name));
}

#[cfg(test)]
mod tests {
    use super::super::show::{TrustShowArgs, show};
    use super::super::sign::{TrustSignArgs, sign};
    use super::*;
    use crate::trust::SigningKey;

    #[test]
    fn a_first_bundle_is_one_that_nodes_believe() {
        let root = NamedKey { id: "root".into(), key: Box::new(SigningKey::from_seed(&[1; 32])) };
        let alice = ("ops-alice".to_owned(), SigningKey::from_seed(&[2; 32]).public());
        let roots = [root.key.public()];
        let bundle = first_bundle("prod", &roots, 1, &[alice], "2030-01-01T00:00:00Z".parse().unwrap());
        let signed = seal_bundle(&bundle, &[root]).unwrap();
        let opened = open_bundle(&signed, BundleAuthority::Roots { fleet: "prod", keys: &roots, threshold: 1 }).unwrap();
        assert_eq!(opened.bundle(), &bundle);
        let other = NamedKey { id: "root".into(), key: Box::new(SigningKey::from_seed(&[3; 32])) };
        assert!(seal_bundle(&bundle, &[other]).is_err(), "signed by somebody else");
    }

    #[test]
    fn files_are_written_edited_and_signed_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["root.key", "alice.key"] {
            let key = SigningKey::generate().unwrap();
            std::fs::write(path(name), key.to_openssh("c", None).unwrap().as_bytes()).unwrap();
            std::fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
        let args = TrustInitArgs {
            fleet: "prod".into(),
            root: vec![path("root.key")],
            root_public: Vec::new(),
            operator: vec![format!("ops-alice={}", path("alice.key").display())],
            threshold: 1,
            life: HumanDuration::seconds(3600),
            out: path("out"),
        };
        let (now, mut ui) = (Timestamp::now(), Ui::new());
        init(&args, now, &mut ui).unwrap();
        assert!(init(&args, now, &mut ui).is_err(), "an edited bundle is not lost");
        let first = std::fs::read(path("out/trust.dsse.json")).unwrap();
        let edited = std::fs::read_to_string(path("out/trust.json")).unwrap().replace("\"version\": 1", "\"version\": 2");
        std::fs::write(path("out/trust.json"), edited).unwrap();
        sign(&TrustSignArgs { file: path("out/trust.json"), root: args.root, out: None }, &mut ui).unwrap();
        assert_eq!(std::fs::read(path("out/trust.1.dsse.json")).unwrap(), first, "the version before stays");
        let signed = std::fs::read(path("out/trust.dsse.json")).unwrap();
        assert_eq!(open_bundle(&signed, BundleAuthority::Stored).unwrap().version(), 2);
        for file in ["out/trust.json", "out/trust.dsse.json"] {
            show(&TrustShowArgs { file: path(file), json: false }, now, &mut ui).unwrap();
        }
    }
}
