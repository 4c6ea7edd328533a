//! `ensign fleet create`: a new fleet, with a NATS server in operator mode.

use std::path::{Path, PathBuf, absolute};

use clap::Args;
use zeroize::Zeroizing;

use crate::fleet::account::{FleetFile, NewAccount, ServerAddress, ServerTls, new_account};
use crate::host::fs::NewDirectory;
use crate::host::{Host, fs};
use crate::model::{HumanDuration, Secret, check_name};
use crate::trust::SigningKey;
use crate::wire::Subjects;

use super::super::error::{CliError, Exit};
use super::super::key::NamedKey;
use super::super::trust::{self, DEFAULT_LIFETIME, expiry_after};
use super::super::ui::{Ui, text};
use crate::cli::args::connection::config_file;
use crate::cli::args::new_passphrase::NewPassphraseArgs;

/// Id of the first operator in rules and records.
const OPERATOR: &str = "operator";

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Name of the fleet.
    name: String,
    /// URL of the NATS server for nodes and operators, as nats://nats.example.org:4222 or tls://nats.example.org.
    #[arg(long, value_name = "URL")]
    server: String,
    /// New directory for all files; NAME below ~/.config/ensign by default.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Directory of the server's data on its host; `server` in the new directory by default.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Certificate file of the server on its host, for tls://.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key file of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// File with the authority that signed the certificate, where the system does not know the authority.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    #[command(flatten)]
    passphrase: NewPassphraseArgs,
}

/// Runs `ensign fleet create`.
///
/// # Errors
/// When an argument is wrong, the directory exists, or a file can't be written. Nothing is left behind then.
pub(super) fn run(args: &CreateArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    check_name("fleet", &args.name).map_err(|error| CliError::usage(error.to_string()))?;
    let (server, tls) = server(args)?;
    let directory = directory(args)?;
    let data = match &args.data {
        Some(data) if data.is_relative() => {
            let message = format!("--data {} is a relative path", data.display());
            return Err(CliError::usage(message).hint("the server may run elsewhere: --data /var/lib/nats"));
        }
        Some(data) => data.clone(),
        None => directory.join("server"),
    };
    let passphrase = args.passphrase.read("root.key and operator.key")?;
    let new = NewDirectory::new(&directory).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let subjects = Subjects::new(&args.name);
    let account = NewAccount { subjects: &subjects, server: &server, tls: tls.as_ref(), data: &data };
    let account = new_account(&account).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let own = [trust_files(&args.name, passphrase.as_ref())?, vec![operator_config(args, &server)]].concat();
    for FleetFile { name, content, mode } in own.iter().chain(&account) {
        let written = new.file(Path::new(name), content.reveal().as_bytes(), *mode);
        written.map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    }
    new.persist().map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    print_next_steps(&directory, ui);
    Ok(Exit::Success)
}

/// Returns the address and the certificate of the server.
fn server(args: &CreateArgs) -> Result<(ServerAddress, Option<ServerTls>), CliError> {
    let server = ServerAddress::parse(&args.server)
        .map_err(|error| CliError::usage(format!("--server: {error}")).hint("write nats://host:4222 or tls://host:4222"))?;
    let tls = args.tls_cert.clone().zip(args.tls_key.clone()).map(|(cert, key)| ServerTls { cert, key });
    match (&tls, server.tls) {
        (None, true) => {
            let hint = "give the files on the host of the server: --tls-cert FILE --tls-key FILE";
            Err(CliError::usage("a server with tls:// needs a certificate").hint(hint))
        }
        (Some(_), false) => Err(CliError::usage("the URL begins with nats://, but there is a certificate").hint("write tls://")),
        _ => Ok((server, tls)),
    }
}

/// Returns the absolute path of the new directory, which must not exist.
fn directory(args: &CreateArgs) -> Result<PathBuf, CliError> {
    let directory = match &args.dir {
        Some(directory) => directory.clone(),
        None => config_file(&args.name)
            .ok_or_else(|| CliError::usage("there is no home directory for the files of the fleet").hint("use --dir DIR"))?,
    };
    let directory = absolute(&directory).map_err(|error| CliError::usage(format!("{}: {error}", directory.display())))?;
    if fs::exists(&directory) || fs::is_symlink(&directory) {
        let message = format!("{} exists already", directory.display());
        return Err(CliError::usage(message).hint("keys are never overwritten: choose another directory with --dir"));
    }
    Ok(directory)
}

/// Makes the root key, the key of the operator, and the first trust bundle.
fn trust_files(fleet: &str, passphrase: Option<&Secret>) -> Result<Vec<FleetFile>, CliError> {
    let failed = |error| CliError::from_error(Exit::Failed, &error);
    let root = SigningKey::generate().map_err(failed)?;
    let operator = SigningKey::generate().map_err(failed)?;
    let life = DEFAULT_LIFETIME.parse::<HumanDuration>().map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    let expires = expiry_after(life, Host::system(None).now())?;
    let bundle = trust::first_bundle(fleet, &[root.public()], 1, &[(OPERATOR.to_owned(), operator.public())], expires);
    let private = |key: &SigningKey, comment: &str| -> Result<Secret, CliError> {
        let text: Zeroizing<String> = key.to_openssh(comment, passphrase).map_err(failed)?;
        Ok(Secret::new(text.as_str()))
    };
    let public = |key: &SigningKey, comment: &str| Secret::new(format!("{}\n", key.public().to_openssh(comment)));
    let (root_text, operator_text) = (private(&root, "root")?, private(&operator, OPERATOR)?);
    let (root_public, operator_public) = (public(&root, "root"), public(&operator, OPERATOR));
    let plain = trust::unsigned_text(&bundle)?;
    let signed = trust::seal_bundle(&bundle, &[NamedKey { id: "root".to_owned(), key: Box::new(root) }])?;
    let file = |name, content, mode| FleetFile { name, content, mode };
    Ok(vec![
        file("root.key", root_text, 0o600),
        file("root.key.pub", root_public, 0o644),
        file("operator.key", operator_text, 0o600),
        file("operator.key.pub", operator_public, 0o644),
        file("trust.json", Secret::new(plain), 0o644),
        file("trust.dsse.json", Secret::new(String::from_utf8_lossy(&signed)), 0o644),
    ])
}

/// Returns `operator.toml`.
fn operator_config(args: &CreateArgs, server: &ServerAddress) -> FleetFile {
    let mut nats = toml::Table::new();
    nats.insert("servers".to_owned(), vec![server.url.clone()].into());
    nats.insert("creds".to_owned(), "operator.creds".into());
    if let Some(ca) = &args.tls_ca {
        let ca = absolute(ca).unwrap_or_else(|_| ca.clone());
        nats.insert("tls".to_owned(), toml::Table::from_iter([("ca".to_owned(), ca.display().to_string().into())]).into());
    }
    let mut file = toml::Table::new();
    file.insert("fleet".to_owned(), args.name.clone().into());
    file.insert("keys".to_owned(), vec!["operator.key"].into());
    file.insert("trust".to_owned(), "trust.dsse.json".into());
    file.insert("nats".to_owned(), nats.into());
    FleetFile { name: "operator.toml", content: Secret::new(file.to_string()), mode: 0o644 }
}

fn print_next_steps(directory: &Path, ui: &mut Ui) {
    let quoted = |name: &str| shell_words::quote(&directory.join(name).display().to_string()).into_owned();
    ui.message(text!("wrote {}: the keys and the configuration of the fleet and of its server", directory.display()));
    ui.message("move root.key to a safe place outside of this machine: only changes of the trust bundle need it");
    ui.message("the server needs nats-server.conf alone, which holds no secret. Next:");
    let operator = quoted("operator.toml");
    ui.line(text!("nats-server -c {}", quoted("nats-server.conf")));
    ui.line(text!("ensign fleet init --operator {}", operator));
    ui.line(text!("ensign fleet token --operator {} --uses 10 --ttl 1h", operator));
}
