//! `ensign registration`: the services that hosts have registered.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::model::HumanDuration;
use crate::model::registration::{Registration, RegistrationFilter};
use crate::registry::{self, RegistrationEvent, RegistryError};
use crate::transport::{Bus, Ensured, TransportError};
use crate::wire::registration::STREAM;

use super::error::{CliError, Exit};
use super::interrupt::Interrupt;
use super::ui::{Text, Tone, Ui, text};
use crate::cli::args::connection;
use crate::cli::args::connection::Connection;
use crate::cli::local::inputs::OutputFormat;

/// Show and change registrations of services, as `register_when_stable` publishes them.
#[derive(Debug, Args)]
pub struct RegistrationArgs {
    #[command(subcommand)]
    command: RegistrationCommand,
    #[command(flatten)]
    connection: Connection,
    /// Stream that keeps registrations.
    #[arg(short = 'R', long, value_name = "STREAM", default_value = STREAM, global = true)]
    registration: String,
    /// Output format.
    #[arg(long, global = true, value_enum, default_value_t)]
    output: OutputFormat,
}

#[derive(Debug, Subcommand)]
enum RegistrationCommand {
    /// Create the stream that keeps registrations.
    Init {
        /// Number of servers of a cluster that keep the stream.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
        replicas: u8,
        /// Lifetime of a registration without a ttl of its own.
        #[arg(long, value_name = "DURATION", default_value = "1m")]
        max_age: HumanDuration,
    },
    /// Show the registrations.
    #[command(alias = "q")]
    Query(RegistrationFilterArgs),
    /// Show the registrations, then follow the changes.
    Watch(RegistrationFilterArgs),
    /// Register a service.
    #[command(alias = "c")]
    Create {
        #[command(flatten)]
        identity: RegistrationIdentity,
        /// Priority, from 1 to 255.
        #[arg(long, default_value_t = 100)]
        priority: u8,
        /// Lifetime of the registration: a duration or `never`.
        #[arg(long, value_name = "DURATION", default_value = "30s")]
        ttl: String,
        /// Annotation of the registration. May be repeated.
        #[arg(short = 'A', long = "annotation", value_name = "NAME=VALUE")]
        annotations: Vec<String>,
    },
    /// Remove a registration.
    #[command(alias = "delete")]
    Rm {
        #[command(flatten)]
        identity: RegistrationIdentity,
        /// Remove without a question.
        #[arg(long)]
        force: bool,
    },
}

/// The filter of registrations; `*` matches all.
#[derive(Debug, Args)]
struct RegistrationFilterArgs {
    /// Cluster to match.
    #[arg(default_value = "*")]
    cluster: String,
    /// Protocol to match.
    #[arg(default_value = "*")]
    protocol: String,
    /// Service to match.
    #[arg(default_value = "*")]
    service: String,
    /// Address to match.
    #[arg(default_value = "*")]
    address: String,
}

impl RegistrationFilterArgs {
    fn filter(&self) -> Result<RegistrationFilter, CliError> {
        RegistrationFilter::parse(&self.cluster, &self.protocol, &self.service, &self.address).map_err(CliError::usage)
    }
}

/// The identity of a registration.
#[derive(Debug, Args)]
struct RegistrationIdentity {
    /// Cluster of the service.
    #[arg(long)]
    cluster: String,
    /// Name of the service.
    #[arg(long)]
    service: String,
    /// Protocol of the service.
    #[arg(long)]
    protocol: String,
    /// Address of the service.
    #[arg(long)]
    address: String,
    /// Port of the service.
    #[arg(long)]
    port: u16,
}

impl RegistrationIdentity {
    fn entry(&self, more: Value) -> Result<Registration, CliError> {
        let Self { cluster, service, protocol, address, port } = self;
        let mut entry = json!({
            "cluster": cluster, "service": service, "protocol": protocol, "address": address, "port": port, "priority": 100
        });
        if let (Value::Object(entry), Value::Object(more)) = (&mut entry, more) {
            entry.extend(more);
        }
        serde_json::from_value(entry).map_err(|error| CliError::usage(error.to_string()))
    }
}

/// Runs `ensign registration`.
///
/// # Errors
/// When an argument is wrong, or the server does not answer.
pub fn run(args: RegistrationArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    // Wrong arguments fail before the connection is opened.
    let wanted = RegistrationAction::from_command(args.command)?;
    let settings = args.connection.settings()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    runtime.block_on(async {
        let bus = Bus::connect(&settings).await.map_err(|error| connection::connection_failure(&error))?;
        let (stream, output) = (args.registration.as_str(), args.output);
        let done = match wanted {
            RegistrationAction::Init(replicas, max_age) => init(&bus, stream, replicas, max_age, output, ui).await,
            RegistrationAction::Query(filter) => query(&bus, stream, &filter, output, ui).await,
            RegistrationAction::Watch(filter) => watch(&bus, stream, &filter, output, ui).await,
            RegistrationAction::Create(entry) => registry::publish(&bus, stream, &entry, &registry::Unverified).await,
            RegistrationAction::Remove(entry) => remove(&bus, stream, &entry, ui).await,
        };
        done.map(|()| Exit::Success).map_err(|error| failure(&error, stream))
    })
}

/// A command with checked arguments.
enum RegistrationAction {
    Init(usize, HumanDuration),
    Query(RegistrationFilter),
    Watch(RegistrationFilter),
    Create(Registration),
    Remove(Registration),
}

impl RegistrationAction {
    fn from_command(command: RegistrationCommand) -> Result<Self, CliError> {
        Ok(match command {
            RegistrationCommand::Init { replicas, max_age } => Self::Init(replicas.into(), max_age),
            RegistrationCommand::Query(which) => Self::Query(which.filter()?),
            RegistrationCommand::Watch(which) => Self::Watch(which.filter()?),
            RegistrationCommand::Create { identity, priority, ttl, annotations } => {
                let annotations = annotations.iter().map(|text| annotation(text)).collect::<Result<BTreeMap<_, _>, _>>()?;
                Self::Create(identity.entry(json!({"priority": priority, "ttl": ttl, "annotations": annotations}))?)
            }
            RegistrationCommand::Rm { identity, force } => {
                let entry = identity.entry(json!({}))?;
                if !force && !confirm_removal(&entry)? {
                    return Err(CliError::usage("nothing was removed"));
                }
                Self::Remove(entry)
            }
        })
    }
}

fn annotation(text: &str) -> Result<(&str, &str), CliError> {
    let parts = text.split_once(['=', ':']);
    parts.ok_or_else(|| CliError::usage(format!("--annotation \"{text}\" has no value")).hint("write --annotation name=value"))
}

fn confirm_removal(entry: &Registration) -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::usage("cannot ask for confirmation without a terminal").hint("use --force"));
    }
    let Registration { cluster, service, protocol, address, port, .. } = entry;
    let port = port.unwrap_or_default();
    let question = text!("Remove registration entry {}/{}/{} at {}:{}? [y/N]", cluster, service, protocol, address, port);
    Ui::new().confirm(question).map_err(|error| CliError::from_error(Exit::Failed, &error))
}

fn failure(error: &RegistryError, stream: &str) -> CliError {
    match error {
        RegistryError::Bus(TransportError::NoStream(_)) => {
            CliError::from_error(Exit::Partial, error).hint(format!("`ensign registration init` creates the stream {stream}"))
        }
        RegistryError::Bus(error) => connection::connection_failure(error),
        RegistryError::Entry { .. } => CliError::from_error(Exit::Failed, error),
    }
}

async fn init(
    bus: &Bus,
    stream: &str,
    replicas: usize,
    max_age: HumanDuration,
    output: OutputFormat,
    ui: &mut Ui,
) -> Result<(), RegistryError> {
    let (word, changes) = match registry::init(bus, stream, replicas, max_age.as_std()).await? {
        Ensured::Created => ("created", Vec::new()),
        Ensured::Unchanged => ("unchanged", Vec::new()),
        Ensured::Updated(changes) => ("updated", changes),
    };
    match output {
        OutputFormat::Text if changes.is_empty() => ui.line(text!("{:<10} {}", word, stream)),
        OutputFormat::Text => ui.line(text!("{:<10} {}: {}", word, stream, changes.join(", "))),
        _ => ui.jsonl(&json!({"name": stream, "result": word, "changes": changes})),
    }
    if !bus.has_message_ttl() {
        ui.message("this server is older than 2.11: the ttl of a registration has no effect, only the age of the stream has");
    }
    Ok(())
}

async fn query(
    bus: &Bus,
    stream: &str,
    filter: &RegistrationFilter,
    output: OutputFormat,
    ui: &mut Ui,
) -> Result<(), RegistryError> {
    let mut found = registry::query(bus, stream, filter).await?;
    // Stable: sorted within a service by address and port.
    found.sort_by(|a, b| (&a.cluster, &a.protocol, &a.service).cmp(&(&b.cluster, &b.protocol, &b.service)));
    match output {
        OutputFormat::Json => ui.json(&found),
        OutputFormat::Jsonl => found.iter().for_each(|entry| ui.jsonl(entry)),
        OutputFormat::Text if found.is_empty() => ui.message("no registrations match"),
        OutputFormat::Text => found.iter().for_each(|entry| ui.line(registration_line(entry))),
    }
    Ok(())
}

/// `prod  http  web  10.0.0.1:80  priority 10  a=b`
fn registration_line(entry: &Registration) -> Text {
    let Registration { cluster, protocol, service, address, port, priority, annotations, .. } = entry;
    let place = match port {
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
        None => address.clone(),
    };
    let more: Vec<String> = annotations.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let more = more.join(" ");
    text!("{:<12} {:<8} {:<16} {:<24} priority {:<4} {}", cluster, protocol, service, place, priority, more).trim_end()
}

async fn watch(
    bus: &Bus,
    stream: &str,
    filter: &RegistrationFilter,
    output: OutputFormat,
    ui: &mut Ui,
) -> Result<(), RegistryError> {
    let mut watch = registry::watch(bus, stream, filter).await?;
    let interrupted = Interrupt::default().listen();
    tokio::pin!(interrupted);
    loop {
        let next = tokio::select! {
            // Cancel-safe: the stream reader loses no message.
            next = watch.next() => next,
            // Cancel-safe: one future hears all signals.
            () = &mut interrupted => None,
        };
        let Some(happened) = next else { return Ok(()) };
        match (happened?, output) {
            (RegistrationEvent::Registered(entry), OutputFormat::Text) => {
                let sign = ui.paint(Tone::Success, "+");
                ui.line(text!("{} {}", sign, registration_line(&entry)));
            }
            (RegistrationEvent::Removed([cluster, protocol, service, address]), OutputFormat::Text) => {
                let sign = ui.paint(Tone::Error, "-");
                ui.line(text!("{} {:<12} {:<8} {:<16} {}", sign, cluster, protocol, service, address));
            }
            (RegistrationEvent::Registered(entry), _) => ui.jsonl(&json!({"action": "register", "entry": entry})),
            (RegistrationEvent::Removed([cluster, protocol, service, address]), _) => {
                let entry = json!({"cluster": cluster, "protocol": protocol, "service": service, "address": address});
                ui.jsonl(&json!({"action": "remove", "entry": entry}));
            }
        }
        ui.flush();
    }
}

async fn remove(bus: &Bus, stream: &str, entry: &Registration, ui: &mut Ui) -> Result<(), RegistryError> {
    if !registry::remove(bus, stream, entry).await? {
        ui.message("no such registration");
    }
    Ok(())
}
