//! `ensign fleet init`: the streams of a fleet, and the permissions on its server.

use clap::Args;
use serde_json::json;

use crate::config::parse_size;
use crate::fleet::setup::init::{Retention, RetentionRequest, create_streams};
use crate::fleet::setup::permissions::{Role, ServerUser, authorization};
use crate::model::{HumanDuration, NodeId};
use crate::transport::{Ensured, StorageQuota, TransportError};
use crate::wire::Subjects;

use super::super::error::{CliError, Exit};
use super::super::format::nodes;
use super::super::ui::{Ui, text};
use super::session::{FleetSession, OperatorArgs, connection_failure};
use crate::cli::local::inputs::OutputFormat;

/// Smallest stream in bytes: less would not hold the results of one job on a few thousand nodes.
const MIN_STREAM_SIZE: u64 = 1 << 20;

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Number of servers of a cluster that keep every stream. 1 at first; unchanged by default later.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: Option<u8>,
    /// Time for which results of jobs are kept. 7d at first; unchanged by default later.
    #[arg(long, value_name = "DURATION")]
    jobs: Option<HumanDuration>,
    /// Time for which events are kept. 30d at first; unchanged by default later.
    #[arg(long, value_name = "DURATION")]
    events: Option<HumanDuration>,
    /// Number of nodes, to compute sizes that are not given. Each node has a count of stable runs every hour, two changing runs
    /// a day, and ten commands a day.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    nodes: Option<u64>,
    /// Largest size of the results; the server reserves it, and a sixteenth more for rollouts. 1GiB at first; unchanged by
    /// default later.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    jobs_size: Option<u64>,
    /// Largest size of the events; the server reserves it. 1GiB at first; unchanged by default later.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    events_size: Option<u64>,
    /// Print the users of the NATS server's configuration with their permissions; touch nothing.
    #[arg(long)]
    print_permissions: bool,
    /// Node to print. May be repeated, or several with commas.
    #[arg(long, value_name = "NODE", value_delimiter = ',', requires = "print_permissions", default_value = "web1")]
    node: Vec<String>,
    /// Groups of these nodes, with commas.
    #[arg(long, value_name = "GROUP", value_delimiter = ',', requires = "print_permissions")]
    groups: Vec<String>,
}

pub(super) async fn run(args: InitArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    if args.print_permissions {
        return print_permissions(&args, context, ui);
    }
    let session = context.open().await?;
    let wanted = RetentionRequest {
        replicas: args.replicas.map(usize::from),
        jobs: args.jobs.map(HumanDuration::as_std),
        events: args.events.map(HumanDuration::as_std),
        jobs_size: args.jobs_size,
        events_size: args.events_size,
        nodes: args.nodes,
    };
    let retention = wanted.complete(&session.bus, &session.subjects).await.map_err(|error| connection_failure(&error))?;
    if let Some(count) = args.nodes {
        let days = |kept: std::time::Duration| kept.as_secs().div_ceil(86_400);
        ui.message(text!(
            "for {}: {} of events ({} days) and {} of results ({} days)",
            nodes(usize::try_from(count).unwrap_or(usize::MAX)),
            format_size(retention.events_size),
            days(retention.events),
            format_size(retention.jobs_size),
            days(retention.jobs)
        ));
    }
    let mut all = Vec::new();
    let mut made = |name: &str, ensured| {
        let (word, changes) = match ensured {
            Ensured::Created => ("created", Vec::new()),
            Ensured::Unchanged => ("unchanged", Vec::new()),
            Ensured::Updated(changes) => ("updated", changes),
        };
        let document = || json!({"name": name, "result": word, "changes": changes});
        match session.output {
            OutputFormat::Text if changes.is_empty() => ui.line(text!("{:<10} {}", word, name)),
            OutputFormat::Text => ui.line(text!("{:<10} {}: {}", word, name, changes.join(", "))),
            OutputFormat::Json => all.push(document()),
            OutputFormat::Jsonl => ui.jsonl(&document()),
        }
    };
    let result = create_streams(&session.bus, &session.subjects, retention, &mut made).await;
    if session.output == OutputFormat::Json {
        ui.json(&all);
    }
    match result {
        Ok(()) => {}
        Err(error @ TransportError::NoRoom { .. }) => return Err(quota_failure(&error, retention, &session).await),
        Err(error) => return Err(connection_failure(&error)),
    }
    ui.message("permissions of each role on the server: ensign fleet init --print-permissions");
    Ok(Exit::Success)
}

/// Returns the failure for missing space: the request, the quota, and sizes that may fit.
async fn quota_failure(error: &TransportError, retention: Retention, session: &FleetSession) -> CliError {
    let asked = format!(
        "all streams of the fleet set {} aside: {} for results, {} for events, the rest for rollouts and requests to join",
        format_size(retention.reserved()),
        format_size(retention.jobs_size),
        format_size(retention.events_size),
    );
    let room = session.bus.storage_quota().await.ok();
    let has = match room {
        Some(StorageQuota { stored, reserved, limit: Some(limit) }) => format!(
            "the account may have {}, of which {} are set aside and {} stored",
            format_size(limit),
            format_size(reserved),
            format_size(stored)
        ),
        Some(StorageQuota { stored, reserved, limit: None }) => format!(
            "the account has {} set aside and {} stored, and no limit of its own: the server's is `max_file_store` in its \
             `jetstream {{}}`, or three quarters of what was free on its disk",
            format_size(reserved),
            format_size(stored)
        ),
        None => "the server does not report the quota of the account".to_owned(),
    };
    let sizes = format_size(smaller_size(retention, room)).replace(' ', "");
    let remedy = format!("ask for less, as with --jobs-size {sizes} --events-size {sizes}, or give the server more");
    CliError::from_error(Exit::Partial, error).hint(format!("{asked}; {has}; {remedy}"))
}

/// Returns a size of results and events that may fit: from the free space, else a part of the request.
fn smaller_size(retention: Retention, room: Option<StorageQuota>) -> u64 {
    let left = room.and_then(|room| Some(room.limit?.saturating_sub(room.reserved.max(room.stored))));
    // A third for each leaves space for the unbounded streams: states, assignments, bundles.
    let fits = left.map_or(retention.jobs_size.min(retention.events_size) / 16, |left| left / 3);
    (fits >> 20).max(1) << 20
}

/// Formats a size as `1 GiB`, `64 MiB`, `3 KiB`: whole GiB, or rounded up.
fn format_size(count: u64) -> String {
    match count {
        0 => "nothing".to_owned(),
        _ if count.trailing_zeros() >= 30 => format!("{} GiB", count >> 30),
        _ if count >= 1 << 20 => format!("{} MiB", count.div_ceil(1 << 20)),
        _ => format!("{} KiB", count.div_ceil(1 << 10)),
    }
}

/// Parses a size of the command line.
fn size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Some(size) if size >= MIN_STREAM_SIZE => Ok(size),
        Some(_) => Err(format!("at least {} are needed", format_size(MIN_STREAM_SIZE))),
        None => Err("a size is a number with KiB, MiB or GiB, as 256MiB".to_owned()),
    }
}

fn print_permissions(args: &InitArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let operator = context.operator()?;
    let nodes = args
        .node
        .iter()
        .map(|node| node.parse::<NodeId>().map_err(|error| CliError::usage(error.to_string())))
        .collect::<Result<Vec<_>, _>>()?;
    let user = |role: Role, name: &str| ServerUser { role, nkey: format!("NKEY_OF_{}", name.to_uppercase()) };
    let users: Vec<ServerUser> = [user(Role::Operator, "operator")]
        .into_iter()
        .chain(nodes.into_iter().map(|node| user(Role::Node(node.clone(), args.groups.clone()), node.as_str())))
        .chain([user(Role::Monitor, "monitor")])
        .collect();
    let text = authorization(&users, &Subjects::new(operator.fleet), operator.bus.jetstream_domain.as_deref());
    ui.data(text.as_bytes());
    ui.message("`ensign key new --nats FILE` creates an nkey: the file is for the node, the line it prints for the server");
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_said() {
        for (text, wanted) in [("1GiB", "1 GiB"), ("64MiB", "64 MiB"), ("1500000", "2 MiB"), ("1536MiB", "1536 MiB")] {
            assert_eq!(format_size(size(text).unwrap()), wanted);
        }
        for wrong in ["", "1GB", "-1", "64 M", "1023KiB", "99999999999GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_proposed_fits() {
        let default = Retention::default();
        let room = |limit| Some(StorageQuota { stored: 0, reserved: 100 << 20, limit });
        assert_eq!(smaller_size(default, room(Some(400 << 20))), 100 << 20);
        assert_eq!(smaller_size(default, room(Some(1 << 20))), 1 << 20);
        assert_eq!(smaller_size(default, room(None)), 64 << 20);
        assert_eq!(smaller_size(default, None), 64 << 20);
    }
}
