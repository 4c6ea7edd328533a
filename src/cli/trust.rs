//! `ensign trust`: the bundle that says who may do what, made, edited, signed and shown.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};

use crate::diag::{Diagnostic, chain};
use crate::host::Host;
use crate::host::fs::{self, WriteSpec};
use crate::model::Span;
use crate::trust::bundle::check_bundle;
use crate::trust::{Pin, PublicKey, TrustedBundle, open_bundle, seal_by};
use crate::wire::bundle::{OperatorKey, Roots, Rule};
use crate::wire::{TRUST_TYPE, TrustBundle, envelope, json};

use super::error::{Exit, Failure};
use super::key::{self, Signer};
use super::ui::Ui;

/// A life that needs a renewal a year; nodes alarm before it ends.
const LIFE: &str = "365d";

/// The trust bundle: which keys may do what in a fleet.
#[derive(Debug, Args)]
pub struct TrustArgs {
    #[command(subcommand)]
    command: TrustCommand,
}

#[derive(Debug, Subcommand)]
enum TrustCommand {
    /// Makes and signs the first bundle of a fleet: its operators may do everything.
    Init(Init),
    /// Signs an edited bundle.
    Sign(Sign),
    /// Shows a signed or unsigned bundle, and whether it is valid.
    Show(Show),
}

#[derive(Debug, Args)]
struct Init {
    /// The fleet.
    #[arg(long, env = "ENSIGN_FLEET")]
    fleet: String,
    /// A root key file: whoever has it may change the bundle. May be repeated; all of them sign.
    #[arg(long, value_name = "KEYFILE", required = true)]
    root: Vec<PathBuf>,
    /// An operator: what rules call them, and their public key or its file. May be repeated.
    #[arg(long, value_name = "ID=PUBLICKEY", required = true)]
    operator: Vec<String>,
    /// How many roots must sign.
    #[arg(long, default_value_t = 1)]
    threshold: u32,
    /// When nodes stop accepting new work under it, from now.
    #[arg(long, value_name = "DURATION", default_value = LIFE)]
    life: Span,
    /// Where to write trust.json (to edit) and trust.dsse.json (signed).
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct Sign {
    /// The bundle to sign: the JSON that `trust init` wrote, edited, with its version raised by one.
    file: PathBuf,
    /// A root key file. May be repeated.
    #[arg(long, value_name = "KEYFILE", required = true)]
    root: Vec<PathBuf>,
    /// Where to write the signed bundle; FILE with the ending .dsse.json when not given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Show {
    /// The bundle.
    file: PathBuf,
    /// Prints the bundle as one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs `ensign trust`.
///
/// # Errors
/// When a key or bundle can't be used.
pub fn run(args: TrustArgs, ui: &mut Ui) -> Result<Exit, Failure> {
    let now = Host::system(None).now();
    match args.command {
        TrustCommand::Init(args) => init(&args, now, ui),
        TrustCommand::Sign(args) => sign(&args, ui),
        TrustCommand::Show(args) => show(&args, now, ui),
    }
}

/// The first bundle of a fleet, in which the operators may do everything.
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

/// The signed form of a bundle, after the check that nodes will make.
///
/// # Errors
/// When it is invalid, or the keys do not reach its threshold.
pub fn seal_bundle(bundle: &TrustBundle, roots: &[Signer]) -> Result<Vec<u8>, Failure> {
    check_bundle(bundle).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let payload = serde_json::to_vec(bundle).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    let signed =
        seal_by(TRUST_TYPE, payload, &key::borrowed(roots)).map_err(|error| Failure::from_error(Exit::Usage, &error))?.encode();
    open_bundle(&signed, Pin::Kept)
        .map_err(|error| Failure::from_error(Exit::Usage, &error).hint("give --root for each of the root keys that must sign"))?;
    Ok(signed)
}

fn init(args: &Init, now: Timestamp, ui: &mut Ui) -> Result<Exit, Failure> {
    let (plain, sealed) = (args.out.join("trust.json"), args.out.join("trust.dsse.json"));
    if plain.exists() {
        let hint = "edit it, raise its version by one, and sign it: ensign trust sign trust.json --root KEYFILE";
        return Err(Failure::usage(format!("{} is there already", plain.display())).hint(hint));
    }
    let roots = args.root.iter().map(|path| key::signer(path)).collect::<Result<Vec<_>, _>>()?;
    let operators = args.operator.iter().map(|text| operator(text)).collect::<Result<Vec<_>, _>>()?;
    let life = SignedDuration::try_from(args.life.get()).unwrap_or(SignedDuration::ZERO);
    let expires = now.checked_add(life).map_err(|_| Failure::usage(format!("{} from now is beyond all calendars", args.life)))?;
    let publics: Vec<PublicKey> = roots.iter().map(|root| root.key.public()).collect();
    // Whole seconds: the text is for people too.
    let expires = Timestamp::from_second(expires.as_second()).unwrap_or(expires);
    let bundle = first_bundle(&args.fleet, &publics, args.threshold, &operators, expires);
    let signed = seal_bundle(&bundle, &roots)?;
    let text = serde_json::to_string_pretty(&bundle).map_err(|error| Failure::from_error(Exit::Failed, &error))?;
    fs::create_directory(&args.out, 0o755).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
    write(&plain, format!("{text}\n").as_bytes())?;
    write(&sealed, &signed)?;
    ui.say(format_args!("wrote {} and {}; for agent.toml:", plain.display(), sealed.display()));
    print_section(&publics, args.threshold, &sealed, ui);
    Ok(Exit::Done)
}

fn operator(text: &str) -> Result<(String, PublicKey), Failure> {
    let (id, key) = text.split_once('=').ok_or_else(|| {
        Failure::usage(format!("--operator \"{text}\" has no key")).hint("write --operator ops-alice=alice.key.pub")
    })?;
    Ok((id.to_owned(), key::public_key(key)?.0))
}

/// The `[trust]` section that believes this bundle.
fn print_section(roots: &[PublicKey], threshold: u32, bundle: &Path, ui: &mut Ui) {
    let keys: Vec<String> = roots.iter().map(|root| format!("\"{}\"", root.to_short())).collect();
    ui.line(format_args!("[trust]\nroot = [{}]", keys.join(", ")));
    if threshold != 1 {
        ui.line(format_args!("threshold = {threshold}"));
    }
    let name = bundle.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    ui.line(format_args!("bundle = \"{name}\""));
}

fn sign(args: &Sign, ui: &mut Ui) -> Result<Exit, Failure> {
    let bundle = read_plain(&args.file)?;
    let roots = args.root.iter().map(|path| key::signer(path)).collect::<Result<Vec<_>, _>>()?;
    let signed = seal_bundle(&bundle, &roots)?;
    let out = args.out.clone().unwrap_or_else(|| args.file.with_extension("dsse.json"));
    if let Ok(before) = read(&out).map_err(drop).and_then(|bytes| open_bundle(&bytes, Pin::Kept).map_err(drop))
        && bundle.version != before.version() + 1
    {
        let (old, new) = (before.version(), bundle.version);
        ui.warn(format_args!(
            "{} was version {old}, this is {new}: nodes that have {old} accept only {}",
            out.display(),
            old + 1
        ));
    }
    write(&out, &signed)?;
    ui.say(format_args!("wrote {}: version {} of the trust bundle of {}", out.display(), bundle.version, bundle.fleet));
    Ok(Exit::Done)
}

fn show(args: &Show, now: Timestamp, ui: &mut Ui) -> Result<Exit, Failure> {
    let bytes = read(&args.file)?;
    match open_bundle(&bytes, Pin::Kept) {
        Ok(trusted) => {
            print(trusted.bundle(), Some(&trusted), now, args.json, ui);
            Ok(Exit::Done)
        }
        // Not an envelope at all: perhaps one that is not signed yet.
        Err(_) if envelope::Envelope::parse(&bytes).is_err() => {
            let bundle = read_plain(&args.file)?;
            check_bundle(&bundle).map_err(|error| Failure::from_error(Exit::Usage, &error))?;
            print(&bundle, None, now, args.json, ui);
            Ok(Exit::Done)
        }
        Err(error) => Err(Failure::from_error(Exit::Refused, &error)),
    }
}

fn print(bundle: &TrustBundle, trusted: Option<&TrustedBundle>, now: Timestamp, as_json: bool, ui: &mut Ui) {
    if as_json {
        ui.json(bundle);
        return;
    }
    let signed = match trusted {
        None => "not signed",
        Some(trusted) if trusted.is_expired(now) => "signed by its own roots, expired",
        Some(_) => "signed by its own roots",
    };
    ui.line(format_args!("trust bundle of {}, version {}, {signed}", bundle.fleet, bundle.version));
    ui.line(format_args!("expires   {}", bundle.expires));
    for root in &bundle.root.keys {
        ui.line(format_args!("root      {root}"));
    }
    ui.line(format_args!("threshold {} of {} roots", bundle.root.threshold, bundle.root.keys.len()));
    for key in &bundle.keys {
        let revoked = if bundle.revoked.contains(&key.id) { " (revoked)" } else { "" };
        ui.line(format_args!("key       {}{revoked}  {}", key.id, key.key));
    }
    for (number, rule) in (1..).zip(&bundle.rules) {
        // The rule as it is written is the shortest exact way to say what it allows.
        ui.line(format_args!("rule {number}    {}", serde_json::to_string(rule).unwrap_or_default()));
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path, 4 * envelope::MAX_ENVELOPE as u64).map_err(|error| Failure::from_error(Exit::Usage, &error))
}

fn read_plain(path: &Path) -> Result<TrustBundle, Failure> {
    json::read(&read(path)?)
        .map_err(|error| Failure::new(Exit::Usage, Diagnostic::new(format!("{}: {}", path.display(), chain(&error)))))
}

fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let spec = WriteSpec { uid: None, gid: None, mode: 0o644 };
    let path = if path.parent() == Some(Path::new("")) { Path::new(".").join(path) } else { path.to_owned() };
    fs::write_atomic(&path, &mut &*content, spec).map_err(|error| Failure::from_error(Exit::Usage, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::SigningKey;

    #[test]
    fn a_first_bundle_is_one_that_nodes_believe() {
        let root = Signer { id: "root".into(), key: Box::new(SigningKey::from_seed(&[1; 32])) };
        let alice = ("ops-alice".to_owned(), SigningKey::from_seed(&[2; 32]).public());
        let roots = [root.key.public()];
        let bundle = first_bundle("prod", &roots, 1, &[alice], "2030-01-01T00:00:00Z".parse().unwrap());
        let signed = seal_bundle(&bundle, &[root]).unwrap();
        let opened = open_bundle(&signed, Pin::Roots { fleet: "prod", keys: &roots, threshold: 1 }).unwrap();
        assert_eq!(opened.bundle(), &bundle);
        let other = Signer { id: "root".into(), key: Box::new(SigningKey::from_seed(&[3; 32])) };
        assert!(seal_bundle(&bundle, &[other]).is_err(), "signed by somebody else");
    }

    #[test]
    fn files_are_written_edited_and_signed_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["root.key", "alice.key"] {
            let key = SigningKey::generate().unwrap();
            std::fs::write(path(name), key.to_openssh("c", None).unwrap().as_bytes()).unwrap();
        }
        let args = Init {
            fleet: "prod".into(),
            root: vec![path("root.key")],
            operator: vec![format!("ops-alice={}", path("alice.key").display())],
            threshold: 1,
            life: Span::seconds(3600),
            out: path("out"),
        };
        let (now, mut ui) = (Timestamp::now(), Ui::new());
        init(&args, now, &mut ui).unwrap();
        assert!(init(&args, now, &mut ui).is_err(), "an edited bundle is not lost");
        let edited = std::fs::read_to_string(path("out/trust.json")).unwrap().replace("\"version\": 1", "\"version\": 2");
        std::fs::write(path("out/trust.json"), edited).unwrap();
        sign(&Sign { file: path("out/trust.json"), root: args.root, out: None }, &mut ui).unwrap();
        let signed = std::fs::read(path("out/trust.dsse.json")).unwrap();
        assert_eq!(open_bundle(&signed, Pin::Kept).unwrap().version(), 2);
        for file in ["out/trust.json", "out/trust.dsse.json"] {
            show(&Show { file: path(file), json: false }, now, &mut ui).unwrap();
        }
    }
}
