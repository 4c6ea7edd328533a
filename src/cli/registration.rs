//! `ensign registration`: the services that hosts have registered.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::model::HumanDuration;
use crate::model::registration::{Registration, RegistrationFilter};
use crate::registry::{self, Happened, RegistryError};
use crate::transport::{Bus, Ensured, TransportError};
use crate::wire::registration::STREAM;

use super::error::{Exit, Failure};
use super::ui::{Text, Tone, Ui, text};
use crate::cli::args::connection;
use crate::cli::args::connection::Connection;
use crate::cli::local::inputs::OutputFormat;

/// Show and change registrations of services, as `register_when_stable` publishes them.
#[derive(Debug, Args)]
pub struct RegistrationArgs {
    #[command(subcommand)]
    command: Command,
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
enum Command {
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
    Query(Which),
    /// Show the registrations, then follow the changes.
    Watch(Which),
    /// Register a service.
    #[command(alias = "c")]
    Create {
        #[command(flatten)]
        identity: Identity,
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
        identity: Identity,
        /// Remove without a question.
        #[arg(long)]
        force: bool,
    },
}

/// The filter of registrations; `*` matches all.
#[derive(Debug, Args)]
struct Which {
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

impl Which {
    fn filter(&self) -> Result<RegistrationFilter, Failure> {
        RegistrationFilter::of(&self.cluster, &self.protocol, &self.service, &self.address).map_err(Failure::usage)
    }
}

/// The identity of a registration.
#[derive(Debug, Args)]
struct Identity {
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

impl Identity {
    fn entry(&self, more: Value) -> Result<Registration, Failure> {
        let Self { cluster, service, protocol, address, port } = self;
        let mut entry = json!({
            "cluster": cluster, "service": service, "protocol": protocol, "address": address, "port": port, "priority": 100
        });
        if let (Value::Object(entry), Value::Object(more)) = (&mut entry, more) {
            entry.extend(more);
        }
        serde_json::from_value(entry).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Runs `ensign registration`.
///
/// # Errors
/// When an argument is wrong, or the server does not answer.
pub fn run(args: RegistrationArgs, ui: &mut Ui) -> Result<Exit, Failure> {
    // Wrong arguments fail before the connection is opened.
    let wanted = Wanted::of(args.command)?;
    let settings = args.connection.settings()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::from_error(Exit::Failed, &error))?;
    runtime.block_on(async {
        let bus = Bus::connect(&settings).await.map_err(|error| connection::failure(&error))?;
        let (stream, output) = (args.registration.as_str(), args.output);
        let done = match wanted {
            Wanted::Init(replicas, max_age) => init(&bus, stream, replicas, max_age, output, ui).await,
            Wanted::Query(filter) => query(&bus, stream, &filter, output, ui).await,
            Wanted::Watch(filter) => watch(&bus, stream, &filter, output, ui).await,
            Wanted::Create(entry) => registry::publish(&bus, stream, &entry, &registry::Unverified).await,
            Wanted::Remove(entry) => remove(&bus, stream, &entry, ui).await,
        };
        done.map(|()| Exit::Success).map_err(|error| failure(&error, stream))
    })
}

/// A command with checked arguments.
enum Wanted {
    Init(usize, HumanDuration),
    Query(RegistrationFilter),
    Watch(RegistrationFilter),
    Create(Registration),
    Remove(Registration),
}

impl Wanted {
    fn of(command: Command) -> Result<Self, Failure> {
        Ok(match command {
            Command::Init { replicas, max_age } => Self::Init(replicas.into(), max_age),
            Command::Query(which) => Self::Query(which.filter()?),
            Command::Watch(which) => Self::Watch(which.filter()?),
            Command::Create { identity, priority, ttl, annotations } => {
                let annotations = annotations.iter().map(|text| annotation(text)).collect::<Result<BTreeMap<_, _>, _>>()?;
                Self::Create(identity.entry(json!({"priority": priority, "ttl": ttl, "annotations": annotations}))?)
            }
            Command::Rm { identity, force } => {
                let entry = identity.entry(json!({}))?;
                if !force && !confirmed(&entry)? {
                    return Err(Failure::usage("nothing was removed"));
                }
                Self::Remove(entry)
            }
        })
    }
}

fn annotation(text: &str) -> Result<(&str, &str), Failure> {
    let parts = text.split_once(['=', ':']);
    parts.ok_or_else(|| Failure::usage(format!("--annotation \"{text}\" has no value")).hint("write --annotation name=value"))
}

fn confirmed(entry: &Registration) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("cannot ask for confirmation without a terminal").hint("use --force"));
    }
    let Registration { cluster, service, protocol, address, port, .. } = entry;
    let port = port.unwrap_or_default();
    let question = text!("Remove registration entry {}/{}/{} at {}:{}? [y/N]", cluster, service, protocol, address, port);
    Ui::new().confirm(question).map_err(|error| Failure::from_error(Exit::Failed, &error))
}

fn failure(error: &RegistryError, stream: &str) -> Failure {
    match error {
        RegistryError::Bus(TransportError::NoStream(_)) => {
            Failure::from_error(Exit::Partial, error).hint(format!("`ensign registration init` creates the stream {stream}"))
        }
        RegistryError::Bus(error) => connection::failure(error),
        RegistryError::Entry { .. } => Failure::from_error(Exit::Failed, error),
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
    let (word, changes) = match registry::init(bus, stream, replicas, max_age.get()).await? {
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
        ui.say("this server is older than 2.11: the ttl of a registration has no effect, only the age of the stream has");
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
        OutputFormat::Text if found.is_empty() => ui.say("no registrations match"),
        OutputFormat::Text => found.iter().for_each(|entry| ui.line(shown(entry))),
    }
    Ok(())
}

/// `prod  http  web  10.0.0.1:80  priority 10  a=b`
fn shown(entry: &Registration) -> Text {
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
    loop {
        let next = tokio::select! {
            // Cancel-safe: the stream reader loses no message.
            next = watch.next() => next,
            // Cancel-safe: a signal is not lost before it comes.
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(happened) = next else { return Ok(()) };
        match (happened?, output) {
            (Happened::Registered(entry), OutputFormat::Text) => {
                let sign = ui.paint(Tone::Success, "+");
                ui.line(text!("{} {}", sign, shown(&entry)));
            }
            (Happened::Removed([cluster, protocol, service, address]), OutputFormat::Text) => {
                let sign = ui.paint(Tone::Error, "-");
                ui.line(text!("{} {:<12} {:<8} {:<16} {}", sign, cluster, protocol, service, address));
            }
            (Happened::Registered(entry), _) => ui.jsonl(&json!({"action": "register", "entry": entry})),
            (Happened::Removed([cluster, protocol, service, address]), _) => {
                let entry = json!({"cluster": cluster, "protocol": protocol, "service": service, "address": address});
                ui.jsonl(&json!({"action": "remove", "entry": entry}));
            }
        }
        ui.flush();
    }
}

async fn remove(bus: &Bus, stream: &str, entry: &Registration, ui: &mut Ui) -> Result<(), RegistryError> {
    if !registry::remove(bus, stream, entry).await? {
        ui.say("no such registration");
    }
    Ok(())
}
