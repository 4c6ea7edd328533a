//! `ensign sign`: signs a command from a file, without a network.
//!
//! Any user may send or carry the signed command: nodes check its signatures, see `ensign agent accept`.

use std::path::PathBuf;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use crate::diag::{Diagnostic, error_chain};
use crate::host::Host;
use crate::host::fs::{self, WriteSpec};
use crate::model::HumanDuration;
use crate::trust::{countersign, sign_envelope_with};
use crate::wire::command::{MAX_ASSIGNMENT_LIFETIME, MAX_LIFETIME};
use crate::wire::{COMMAND_TYPE, Command, Envelope, MAX_ENVELOPE, json};

use super::error::{CliError, Exit};
use super::key;
use super::ui::{Ui, text};
use super::verify;

/// Sign a command from a file, without a network, or add signatures to a signed one.
#[derive(Debug, Args)]
pub struct SignArgs {
    /// Command as JSON (`ensign schema command`), or a signed command. Missing `id`, `issued` and `expires` are filled in.
    file: PathBuf,
    /// Private key: its file, or ssh-agent:NAME. May be repeated, where rules require several.
    #[arg(long, value_name = "FILE", required = true)]
    key: Vec<PathBuf>,
    /// Time for which nodes may accept the command, where `expires` is missing; the longest allowed by default.
    #[arg(long, value_name = "DURATION")]
    life: Option<HumanDuration>,
    /// File for the signed command; standard output by default.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs `ensign sign`.
///
/// # Errors
/// When the command is wrong, or a key can't be used.
pub fn run(args: &SignArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let bytes = fs::read_named(&args.file, 4 * MAX_ENVELOPE as u64).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let host = Host::system(None);
    let signers = args.key.iter().map(|path| key::signer(path)).collect::<Result<Vec<_>, _>>()?;
    let keys = key::signer_refs(&signers);
    let failed = |error| CliError::from_error(Exit::Failed, &error);
    let envelope = match Envelope::parse(&bytes) {
        Ok(envelope) if envelope.payload_type != COMMAND_TYPE => {
            let what =
                format!("{} is signed already, and is not a command but \"{}\"", args.file.display(), envelope.payload_type);
            return Err(CliError::usage(what).hint("`ensign trust sign` signs trust bundles"));
        }
        Ok(mut envelope) => {
            parse_command(&envelope.payload, args)?;
            countersign(&mut envelope, &keys).map_err(failed)?;
            envelope
        }
        Err(_) => sign_envelope_with(COMMAND_TYPE, fill_missing_fields(&bytes, args, &host)?, &keys).map_err(failed)?,
    };
    let command = parse_command(&envelope.payload, args)?;
    if command.expires < host.now() {
        ui.warn(text!("the command expired at {}: no node accepts it", command.expires));
    }
    let signed = envelope.encode();
    if signed.len() > MAX_ENVELOPE {
        let what = format!("the signed command has {} bytes; nodes accept at most {MAX_ENVELOPE}", signed.len());
        return Err(CliError::usage(what).hint("use an apply for a large manifest: it names the manifest by URL"));
    }
    match &args.out {
        None => {
            ui.data(&signed);
            ui.data(b"\n");
        }
        Some(path) => {
            let spec = WriteSpec { uid: None, gid: None, mode: 0o644 };
            fs::write_atomic(&path_in_directory(path), &mut signed.as_slice(), spec)
                .map_err(|error| CliError::from_error(Exit::Usage, &error))?;
        }
    }
    let (what, whom) = (verify::describe_command(&command), verify::describe_command_target(&command));
    ui.message(text!("signed {}: {}, of {}, until {}", command.id, what, whom, command.expires));
    Ok(Exit::Success)
}

fn path_in_directory(path: &std::path::Path) -> PathBuf {
    if path.parent() == Some(std::path::Path::new("")) { std::path::Path::new(".").join(path) } else { path.to_owned() }
}

/// Parses the command as nodes will.
fn parse_command(payload: &[u8], args: &SignArgs) -> Result<Command, CliError> {
    let wrong = |why: String| {
        let diagnostic = Diagnostic::new(format!("{}: {why}", args.file.display()));
        CliError::new(Exit::Usage, diagnostic.hint("`ensign schema command` describes it; docs/wire.md has an example"))
    };
    let command: Command = json::read(payload).map_err(|error| wrong(error_chain(&error)))?;
    command.check().map_err(|error| wrong(error_chain(&error)))?;
    Ok(command)
}

/// Returns the bytes to sign: those of the file where nothing is missing.
fn fill_missing_fields(bytes: &[u8], args: &SignArgs, host: &Host) -> Result<Vec<u8>, CliError> {
    let written: Result<Map<String, Value>, _> = serde_json::from_slice(bytes);
    let Ok(mut command) = written else { return Ok(bytes.to_vec()) };
    let whole = ["id", "issued", "expires"].iter().all(|key| command.contains_key(*key));
    // The strict reader reports errors in the command.
    if whole {
        return Ok(bytes.to_vec());
    }
    json::read::<Value>(bytes).map_err(|error| CliError::usage(format!("{}: {}", args.file.display(), error_chain(&error))))?;
    let action = command.get("action").and_then(Value::as_object);
    let standing = action.is_some_and(|action| action.contains_key("assign") || action.contains_key("withdraw"));
    let longest = if standing { MAX_ASSIGNMENT_LIFETIME } else { MAX_LIFETIME };
    let now = host.now();
    let issued = match command.get("issued").and_then(Value::as_str) {
        Some(text) => text.parse().unwrap_or(now),
        None => now,
    };
    let life = SignedDuration::try_from(args.life.unwrap_or(longest).as_std()).unwrap_or(SignedDuration::ZERO);
    let expires: Timestamp = issued.saturating_add(life).unwrap_or(issued);
    command.entry("id").or_insert_with(|| host.new_id().to_string().into());
    command.entry("issued").or_insert_with(|| issued.to_string().into());
    command.entry("expires").or_insert_with(|| expires.to_string().into());
    serde_json::to_vec(&command).map_err(|error| CliError::from_error(Exit::Failed, &error))
}
