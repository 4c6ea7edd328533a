//! `ensign fleet status`: the fleet as the states of its nodes tell it; and the table of its nodes.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::fleet::view::{self, FleetView, NodeRow};

use super::super::error::{Exit, Failure};
use super::super::local::OutputFormat;
use super::super::ui::{Tone, Ui};
use super::report::{ago, nodes as count};
use super::session::{Context, Session};

pub(super) async fn status(context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    print_status(&context.open().await?, ui).await
}

pub(in crate::cli) async fn print_status(session: &Session, ui: &mut Ui) -> Result<Exit, Failure> {
    let states = session.states().await?;
    let view = view::fleet(&session.operator.fleet, &states, session.now());
    match session.output {
        OutputFormat::Json => ui.json(&view),
        OutputFormat::Jsonl => ui.jsonl(&view),
        OutputFormat::Text => print_view(&view, ui),
    }
    Ok(Exit::Done)
}

fn print_view(view: &FleetView, ui: &mut Ui) {
    ui.line(format_args!("{}  {}, {} alive", view.fleet, count(view.nodes), view.alive));
    ui.line(format_args!("last runs  {}", counts(&view.last_runs)));
    ui.line(format_args!("versions   {}", counts(&view.versions)));
    ui.line(format_args!("trust      {}", counts(&view.trust)));
    for attention in &view.attention {
        ui.line(format_args!("  {} {:<20} {}", ui.paint(Tone::Notable, "!"), attention.node.as_str(), attention.what));
    }
}

fn counts<K: Display>(counts: &BTreeMap<K, usize>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    counts.iter().map(|(key, count)| format!("{key}: {count}")).collect::<Vec<_>>().join(", ")
}

pub(in crate::cli) async fn print_nodes(session: &Session, ui: &mut Ui) -> Result<Exit, Failure> {
    print_rows(&view::rows(&session.states().await?, session.now()), session, ui);
    Ok(Exit::Done)
}

pub(super) fn print_rows(rows: &[NodeRow], session: &Session, ui: &mut Ui) {
    let now = session.now();
    match session.output {
        OutputFormat::Json => ui.json(&rows),
        OutputFormat::Jsonl => rows.iter().for_each(|row| ui.jsonl(row)),
        OutputFormat::Text => {
            let width = rows.iter().map(|row| row.state.node.as_str().len()).max().unwrap_or(0).max(4);
            let wide = rows.iter().map(|row| row.state.groups.join(",").len()).max().unwrap_or(0).clamp(6, 32);
            let title =
                format!("{:<width$}  {:<10} {:<11} {:>6}  {:<wide$} TROUBLES", "NODE", "STATE", "LAST RUN", "HEARD", "GROUPS");
            ui.line(ui.paint(Tone::Dim, &title));
            for row in rows {
                let tone = if row.presence == "alive" { Tone::Good } else { Tone::Bad };
                let line = format!(
                    "{:<width$}  {} {:<11} {:>6}  {:<wide$} {}",
                    row.state.node.as_str(),
                    ui.paint(tone, &format!("{:<10}", row.presence)),
                    row.outcome,
                    ago(row.state.at, now),
                    row.state.groups.join(","),
                    row.state.troubles.join("; "),
                );
                ui.line(line.trim_end());
            }
        }
    }
}
