//! `ensign fleet why`: explains the outcome of a command on a node.

use clap::Args;

use crate::fleet::job::explain::{Explanation, explain};
use crate::model::NodeId;

use super::super::error::{CliError, Exit};
use super::super::ui::{Tone, Ui, text};
use super::job_name::JobName;
use super::job_record::recorded;
use super::session::{OperatorArgs, configured_trust, connection_failure};
use crate::cli::local::inputs::OutputFormat;

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// Id of the job, its first characters, or @last.
    #[arg(hide_possible_values = true)]
    id: JobName,
    /// Id of the node.
    node: NodeId,
}

pub(super) async fn run(args: WhyArgs, context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    let session = context.open().await?;
    let trust = configured_trust(&session.operator)?;
    let (command, envelope) = recorded(args.id.resolve(&session).await?, &session).await?;
    let states = session.states().await?;
    let (bus, subjects, node_keys) = (&session.bus, &session.subjects, &session.node_keys);
    let what = (&command, &envelope);
    let why = explain(bus, subjects, node_keys, &states, trust.as_ref(), what, &args.node)
        .await
        .map_err(|error| connection_failure(&error))?;
    let (verdict, because) = why.verdict();
    let mut document = serde_json::to_value(&why).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    if let Some(map) = document.as_object_mut() {
        map.insert("verdict".to_owned(), verdict.into());
        map.insert("because".to_owned(), because.as_str().into());
    }
    match session.output {
        OutputFormat::Json => ui.json(&document),
        OutputFormat::Jsonl => ui.jsonl(&document),
        OutputFormat::Text => print(&why, verdict, &because, ui),
    }
    Ok(Exit::Success)
}

fn print(why: &Explanation, verdict: &str, because: &str, ui: &mut Ui) {
    let tone = match verdict {
        "stable" | "changed" | "would_change" | "not_selected" => Tone::Success,
        "failed" | "refused" => Tone::Error,
        _ => Tone::Changed,
    };
    ui.line(text!("{}  {}  {}", why.node, ui.paint(tone, verdict), because));
    let command = &why.command;
    let mut field = |name: &str, text: String| ui.line(text!("  {:<10} {}", name, text));
    let noop = if command.noop { " (noop)" } else { "" };
    field("command", format!("{}{noop}, to {}", command.action, command.audience));
    let checked = if command.signers_verified { "" } else { " (not checked: no trust bundle is configured)" };
    field("signed", format!("{:.0} by {}{checked}", command.time, command.signers.join(", ")));
    if let Some(reason) = &command.reason {
        field("reason", reason.clone());
    }
    if let Some(done) = &why.done {
        for (resource, error) in &done.failures {
            field("failed", format!("{resource}: {error}"));
        }
    }
    let situation = &why.situation;
    let heard = situation.heard.map_or_else(String::new, |at| format!(", last heard {at:.0}"));
    let trust = situation.trust.map_or_else(String::new, |version| format!(", trust bundle {version}"));
    field("node", format!("{}{heard}{trust}", situation.presence.as_str()));
    if let Some(channel) = &situation.channel {
        field("channel", channel.clone());
    }
    for alarm in &situation.alarms {
        field("alarm", alarm.clone());
    }
    for doubt in &why.doubts {
        field("unverified", doubt.clone());
    }
}
