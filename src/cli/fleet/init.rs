//! `ensign fleet init`: the streams of a fleet, and who may do what on its server.

use clap::Args;
use serde_json::json;

use crate::fleet::init::{Retention, init};
use crate::fleet::permissions::{Role, User, authorization};
use crate::model::{NodeId, Span};
use crate::transport::Ensured;
use crate::wire::Subjects;

use super::super::error::{Exit, Failure};
use super::super::local::OutputFormat;
use super::super::ui::Ui;
use super::session::{Context, failure};

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// On how many servers of a cluster everything is kept.
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    /// How long results of jobs are kept.
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    jobs: Span,
    /// How long events are kept.
    #[arg(long, value_name = "DURATION", default_value = "30d")]
    events: Span,
    /// Touches nothing: prints the users of the NATS server's configuration and what each may do.
    #[arg(long)]
    print_permissions: bool,
    /// A node to print. May be repeated, or several with commas.
    #[arg(long, value_name = "NODE", value_delimiter = ',', requires = "print_permissions", default_value = "web1")]
    node: Vec<String>,
    /// The groups of these nodes, with commas.
    #[arg(long, value_name = "GROUP", value_delimiter = ',', requires = "print_permissions")]
    groups: Vec<String>,
}

pub(super) async fn run(args: InitArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    if args.print_permissions {
        return print_permissions(&args, context, ui);
    }
    let session = context.open().await?;
    let retention =
        Retention { replicas: args.replicas, jobs: args.jobs.get(), events: args.events.get(), ..Retention::default() };
    let made = init(&session.bus, &session.subjects, retention).await.map_err(|error| failure(&error))?;
    for (name, ensured) in made {
        let (word, changes) = match ensured {
            Ensured::Created => ("created", Vec::new()),
            Ensured::Unchanged => ("unchanged", Vec::new()),
            Ensured::Updated(changes) => ("updated", changes),
        };
        match session.output {
            OutputFormat::Text if changes.is_empty() => ui.line(format_args!("{word:<10} {name}")),
            OutputFormat::Text => ui.line(format_args!("{word:<10} {name}: {}", changes.join(", "))),
            _ => ui.jsonl(&json!({"name": name, "result": word, "changes": changes})),
        }
    }
    ui.say("what each role may do on the server: ensign fleet init --print-permissions");
    Ok(Exit::Done)
}

fn print_permissions(args: &InitArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    let operator = context.operator()?;
    let nodes = args
        .node
        .iter()
        .map(|node| node.parse::<NodeId>().map_err(|error| Failure::usage(error.to_string())))
        .collect::<Result<Vec<_>, _>>()?;
    let user = |role: Role, name: &str| User { role, nkey: format!("NKEY_OF_{}", name.to_uppercase()) };
    let users: Vec<User> = [user(Role::Operator, "operator")]
        .into_iter()
        .chain(nodes.into_iter().map(|node| user(Role::Node(node.clone(), args.groups.clone()), node.as_str())))
        .chain([user(Role::Monitor, "monitor")])
        .collect();
    ui.raw(authorization(&users, &Subjects::new(operator.fleet)).as_bytes());
    ui.say("`ensign key new --nats FILE` makes an nkey: the file is for the node, the line it prints for the server");
    Ok(Exit::Done)
}
