//! `ensign fleet token`: a join token for new hosts.

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::diag::Diagnostic;
use crate::fleet::account::{AccountDirectory, TokenTerms};
use crate::fleet::admission::{TokenRequest, make_token};
use crate::host::{Host, fs};
use crate::model::HumanDuration;
use crate::trust::TrustedBundle;

use super::session::{OperatorArgs, configured_trust};
use crate::cli::error::{CliError, Exit};
use crate::cli::ui::{Ui, text};

/// Largest file of certificates in bytes: it travels in the token.
const MAX_CERTIFICATES: u64 = 16 << 10;
/// Longest life of a token in seconds: the token is a secret until its end.
const MAX_TTL: u64 = 30 * 86_400;

#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    /// Group of the nodes that join with the token. May be repeated, or several with commas.
    #[arg(long = "group", value_name = "GROUP", value_delimiter = ',')]
    groups: Vec<String>,
    /// Number of hosts that may join with the token.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    uses: u32,
    /// Time after which the token ends.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    ttl: HumanDuration,
    /// Name of the token, for `ensign fleet admit` and the record of admissions; made by default.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Prints a join token.
///
/// # Errors
/// When the keys of the fleet or its trust bundle can't be read.
pub(super) fn run(args: TokenArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let seconds = args.ttl.as_std().as_secs();
    if !(60..=MAX_TTL).contains(&seconds) {
        return Err(CliError::usage(format!("a join token lives for 1m to 30d, not {}", args.ttl)));
    }
    let operator = context.operator()?;
    let account = open_account(context)?;
    let trust = operator_trust(configured_trust(&operator)?)?;
    let now = Host::system(None).now();
    let terms = TokenTerms {
        name: args.name.unwrap_or_else(|| default_name(&args.groups)),
        groups: args.groups,
        uses: args.uses,
        expires: end_of_life(now, seconds),
    };
    let ca = operator.bus.tls.as_ref().and_then(|tls| tls.ca.as_deref()).map(|path| fs::read_named_text(path, MAX_CERTIFICATES));
    let request = TokenRequest {
        terms: &terms,
        servers: operator.bus.servers.clone(),
        ca: ca.transpose().map_err(|error| CliError::from_error(Exit::Usage, &error))?,
        domain: operator.bus.jetstream_domain.clone(),
        trust: &trust,
    };
    let signer = account.join_signer().map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    let token = make_token(&signer, request).map_err(|error| CliError::from_error(Exit::Usage, &error))?;
    ui.data(format!("{}\n", token.encode().reveal()).as_bytes());
    let groups = if terms.groups.is_empty() { "none".to_owned() } else { terms.groups.join(", ") };
    ui.message(text!(
        "join token {}: groups {}, uses {}, until {:.0}. The token is a secret until then.",
        terms.name,
        groups,
        terms.uses,
        terms.expires
    ));
    ui.message(text!("on each host: ensign agent join TOKEN"));
    ui.message(text!("here: ensign fleet admit"));
    Ok(Exit::Success)
}

/// Returns the end of a token in whole seconds, as its JWT has it.
fn end_of_life(now: Timestamp, seconds: u64) -> Timestamp {
    let life = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or_default());
    let end = now.checked_add(life).unwrap_or(Timestamp::MAX);
    Timestamp::from_second(end.as_second()).unwrap_or(end)
}

/// Makes a name that people can tell from those of other tokens.
fn default_name(groups: &[String]) -> String {
    let group = groups.first().map_or("token", String::as_str);
    let id = Uuid::now_v7().simple().to_string();
    let end: String = id.chars().skip(24).collect();
    format!("{group}-{end}").chars().take(63).collect()
}

/// Opens the account of the fleet: the directory of `operator.toml`.
pub(super) fn open_account(context: &OperatorArgs) -> Result<AccountDirectory, CliError> {
    let hint = "`ensign fleet create` makes the keys of a fleet in operator mode; name its operator.toml with --operator";
    let Some((_, path)) = context.connection.read_operator_config()? else {
        return Err(CliError::usage("no operator.toml, and so no keys of a fleet").hint(hint));
    };
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), Path::to_owned);
    AccountDirectory::open(&directory).map_err(|error| CliError::from_error(Exit::Usage, &error).hint(hint))
}

/// Returns the trust bundle of the operator, which enrolment needs.
pub(super) fn operator_trust(configured: Option<TrustedBundle>) -> Result<TrustedBundle, CliError> {
    configured.ok_or_else(|| {
        let missing = Diagnostic::new("no trust bundle configured, so hosts could not know the root keys of the fleet");
        CliError::new(Exit::Usage, missing).hint("set `trust` in operator.toml, or use --trust FILE")
    })
}
