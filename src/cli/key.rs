//! `ensign key`: keys to sign with, and keys for NATS.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use crate::fleet::setup::operator_config::SSH_AGENT;
use crate::host::fs;
use crate::transport::nkey::UserKey;
use crate::trust::{KeyError, PublicKey, SigningKey};

use super::error::{CliError, Exit};
use super::ui::{Ui, text};
use crate::cli::args::new_passphrase::NewPassphraseArgs;
use crate::cli::args::signer::{MAX_KEY_SIZE, key_file_failure, read_key_file, stem};
pub use crate::cli::args::signer::{NamedKey, signer, signer_refs};

/// Create, show and import keys to sign with, and keys for NATS.
#[derive(Debug, Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create a key: an OpenSSH private key file, and its public key in FILE.pub.
    New(KeyNewArgs),
    /// Show the public key of a private or public key, in both its forms.
    Show(KeyShowArgs),
    /// Import an OpenSSH private key (ssh-ed25519) into a new file, with a new passphrase.
    Import(KeyImportArgs),
}

#[derive(Debug, Args)]
struct KeyImportArgs {
    /// Private key to import, as ~/.ssh/id_ed25519. The file does not change.
    source: PathBuf,
    #[command(flatten)]
    new: KeyFileArgs,
}

#[derive(Debug, Args)]
struct KeyNewArgs {
    #[command(flatten)]
    new: KeyFileArgs,
    /// Create a key for a NATS user instead. The seed goes into the file, the public nkey is for the server.
    #[arg(long, conflicts_with_all = ["comment", "passphrase_env", "no_passphrase"])]
    nats: bool,
}

/// The new private key file.
#[derive(Debug, Args)]
struct KeyFileArgs {
    /// File to write, which must not exist.
    file: PathBuf,
    /// Comment of the public key, for people; the name of the file by default.
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    #[command(flatten)]
    passphrase: NewPassphraseArgs,
}

#[derive(Debug, Args)]
struct KeyShowArgs {
    /// Key file, public key, or ssh-agent:NAME.
    key: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs `ensign key`.
///
/// # Errors
/// When a file exists already, or can't be read or written.
pub fn run(args: KeyArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    match args.command {
        KeyCommand::New(new) if new.nats => new_nats(&new.new.file, ui),
        KeyCommand::New(new) => new_key(new.new, ui),
        KeyCommand::Import(import) => self::import(import, ui),
        KeyCommand::Show(show) => self::show(&show, ui),
    }
}

fn new_key(new: KeyFileArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let key = SigningKey::generate().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    write_key(&key, new, ui)
}

fn import(import: KeyImportArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    write_key(&read_key_file(&import.source)?, import.new, ui)
}

fn write_key(key: &SigningKey, new: KeyFileArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let passphrase = new.passphrase.read(&new.file.display().to_string())?;
    let comment = new.comment.unwrap_or_else(|| stem(&new.file));
    let text = key.to_openssh(&comment, passphrase.as_ref()).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    write_new(&new.file, text.as_bytes(), 0o600)?;
    let public = key.public().to_openssh(&comment);
    write_new(&public_file(&new.file), format!("{public}\n").as_bytes(), 0o644)?;
    ui.message(text!("wrote {} and {}", new.file.display(), public_file(&new.file).display()));
    print_public(&key.public(), &comment, ui);
    Ok(Exit::Success)
}

fn new_nats(file: &Path, ui: &mut Ui) -> Result<Exit, CliError> {
    let key = UserKey::generate().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    write_new(file, format!("{}\n", key.seed.reveal()).as_bytes(), 0o600)?;
    ui.message(text!("wrote {}; the public nkey for the server's configuration is", file.display()));
    ui.line(&key.public);
    Ok(Exit::Success)
}

fn show(show: &KeyShowArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let (key, comment) = public_key(&show.key)?;
    if show.json {
        ui.json(&json!({"openssh": key.to_openssh(&comment), "short": key.to_short(), "comment": comment}));
    } else {
        print_public(&key, &comment, ui);
    }
    Ok(Exit::Success)
}

fn print_public(key: &PublicKey, comment: &str, ui: &mut Ui) {
    ui.line(key.to_openssh(comment));
    ui.line(key.to_short());
}

/// Writes and syncs a new file.
fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), CliError> {
    let written = fs::create_new(path, mode).and_then(|mut file| {
        std::io::Write::write_all(&mut file, content).map_err(|error| fs::FsError::io("write", path, error))
    });
    written.map_err(|error| {
        let failure = CliError::from_error(Exit::Usage, &error);
        if fs::exists(path) { failure.hint("keys are never overwritten: choose another name") } else { failure }
    })
}

fn public_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".pub");
    PathBuf::from(name)
}

/// Returns a public key with its comment, from its text or from a file of either half.
///
/// # Errors
/// When the text is neither a key nor a key file.
pub fn public_key(text_or_file: &str) -> Result<(PublicKey, String), CliError> {
    if let Ok(key) = text_or_file.parse::<PublicKey>() {
        return Ok((key, comment_of(text_or_file)));
    }
    if text_or_file.starts_with(SSH_AGENT) {
        let signer = signer(Path::new(text_or_file))?;
        return Ok((signer.key.public(), signer.id));
    }
    let path = Path::new(text_or_file);
    let text = fs::read_named_text(path, MAX_KEY_SIZE).map_err(|error| {
        CliError::from_error(Exit::Usage, &error)
            .hint("give a key file, or a public key as \"ssh-ed25519 AAAA...\" or \"ed25519:...\"")
    })?;
    if let Ok(key) = text.parse::<PublicKey>() {
        return Ok((key, comment_of(&text)));
    }
    // The public half is in the file beside it, and needs no passphrase.
    if let Ok(beside) = fs::read_named_text(&public_file(path), MAX_KEY_SIZE)
        && let Ok(key) = beside.parse::<PublicKey>()
    {
        return Ok((key, comment_of(&beside)));
    }
    // For a public key of a kind that can't sign, the error of the public key is the better one.
    if let Err(error @ (KeyError::Fido(_) | KeyError::Algorithm(_))) = text.parse::<PublicKey>() {
        return Err(key_file_failure(path, &error));
    }
    let signer = signer(path)?;
    Ok((signer.key.public(), signer.id))
}

fn comment_of(line: &str) -> String {
    line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Secret;

    fn new(file: PathBuf) -> KeyFileArgs {
        KeyFileArgs { file, comment: None, passphrase: NewPassphraseArgs::none() }
    }

    #[test]
    fn keys_are_made_once_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ops-alice.key");
        let mut ui = Ui::new();
        new_key(new(file.clone()), &mut ui).unwrap();
        assert!(new_key(new(file.clone()), &mut ui).is_err());
        let signer = signer(&file).unwrap();
        assert_eq!(signer.id, "ops-alice");
        for given in [file.clone(), public_file(&file)] {
            let (public, comment) = public_key(given.to_str().unwrap()).unwrap();
            assert_eq!((public, comment.as_str()), (signer.key.public(), "ops-alice"));
        }
        let copy = dir.path().join("copy.key");
        import(KeyImportArgs { source: file.clone(), new: new(copy.clone()) }, &mut ui).unwrap();
        assert_eq!(super::signer(&copy).unwrap().key.public(), signer.key.public());
        assert_eq!(public_key(&signer.key.public().to_short()).unwrap().0, signer.key.public());
        assert!(public_key("nonsense").is_err());
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn nkeys_are_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("web1.nk");
        new_nats(&file, &mut Ui::new()).unwrap();
        assert!(UserKey::from_seed(&Secret::new(std::fs::read_to_string(&file).unwrap())).is_ok());
    }
}
