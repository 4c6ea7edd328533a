//! `ensign fleet status`: the fleet by the states of its nodes, and the table of its nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Display;

use crate::fleet::job::error_normalizer;
use crate::fleet::status;
use crate::fleet::status::{Alert, FleetStatus, NodeStatus};
use crate::fleet::targeting::states::NodeLiveness;
use crate::model::NodeId;

use super::super::error::{CliError, Exit};
use super::super::format::{ago, names, nodes as count};
use super::super::ui::{Tone, Ui, text};
use super::session::{FleetSession, OperatorArgs};
use super::unknown_nodes;
use crate::cli::local::inputs::OutputFormat;

pub(super) async fn status(context: &OperatorArgs, ui: &mut Ui) -> Result<Exit, CliError> {
    print_status(&context.open().await?, ui).await
}

pub(in crate::cli) async fn print_status(session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    session.warn_of_clock(ui);
    let states = session.states().await?;
    unknown_nodes::warn_unpinned(&states, ui);
    let view = status::fleet_status(&session.operator.fleet, &states);
    match session.output {
        OutputFormat::Json => ui.json(&view),
        OutputFormat::Jsonl => ui.jsonl(&view),
        OutputFormat::Text => print_view(&view, ui),
    }
    Ok(Exit::Success)
}

fn print_view(view: &FleetStatus, ui: &mut Ui) {
    ui.line(text!("{}  {}, {} alive", view.fleet, count(view.nodes), view.alive));
    ui.line(text!("last runs  {}", counts(&view.last_runs)));
    if view.drifted > 0 {
        ui.line(text!("drift      corrected on {} by the last run", count(view.drifted)));
    }
    if view.watching > 0 {
        ui.line(text!("watched    on {}, converged on {}", count(view.watching), view.converged));
    }
    ui.line(text!("versions   {}", counts(&view.versions)));
    ui.line(text!("trust      {}", counts(&view.trust)));
    for alarm in group_alerts(&view.attention) {
        let mark = ui.paint(Tone::Changed, "!");
        match alarm.nodes.as_slice() {
            [node] => ui.line(text!("  {} {:<20} {}", mark, node.as_str(), alarm.example)),
            several => ui.line(text!("  {} {:<20} {}  {}", mark, count(several.len()), alarm.cause, names(several))),
        }
    }
}

/// The nodes with one cause of alerts.
struct AlertGroup {
    cause: String,
    example: String,
    nodes: Vec<NodeId>,
}

/// Groups the alerts by cause: those of most nodes first, then in the order of the nodes.
fn group_alerts(attention: &[Alert]) -> Vec<AlertGroup> {
    let mut alarms: Vec<AlertGroup> = Vec::new();
    for Alert { node, what } in attention {
        let cause = error_normalizer::normalize(what, node);
        match alarms.iter_mut().find(|alarm| alarm.cause == cause) {
            Some(alarm) => alarm.nodes.push(node.clone()),
            None => alarms.push(AlertGroup { cause, example: what.clone(), nodes: vec![node.clone()] }),
        }
    }
    alarms.sort_by_key(|alarm| Reverse(alarm.nodes.len()));
    alarms
}

fn counts<K: Display>(counts: &BTreeMap<K, usize>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    counts.iter().map(|(key, count)| format!("{key}: {count}")).collect::<Vec<_>>().join(", ")
}

pub(in crate::cli) async fn print_nodes(session: &FleetSession, ui: &mut Ui) -> Result<Exit, CliError> {
    session.warn_of_clock(ui);
    let states = session.states().await?;
    unknown_nodes::warn_unpinned(&states, ui);
    print_rows(&status::node_statuses(&states), session, ui);
    Ok(Exit::Success)
}

pub(super) fn print_rows(rows: &[NodeStatus], session: &FleetSession, ui: &mut Ui) {
    let now = session.now();
    match session.output {
        OutputFormat::Json => ui.json(&rows),
        OutputFormat::Jsonl => rows.iter().for_each(|row| ui.jsonl(row)),
        OutputFormat::Text => {
            let width = rows.iter().map(|row| row.state.node.as_str().len()).max().unwrap_or(0).max(4);
            let wide = rows.iter().map(|row| row.state.groups.join(",").len()).max().unwrap_or(0).clamp(6, 32);
            let title =
                text!("{:<width$}  {:<10} {:<11} {:>6}  {:<wide$} ALARMS", "NODE", "STATE", "LAST RUN", "HEARD", "GROUPS");
            ui.line(ui.paint(Tone::Dim, title));
            for row in rows {
                let tone = if row.presence == NodeLiveness::Alive { Tone::Success } else { Tone::Error };
                let line = text!(
                    "{:<width$}  {:<10} {:<11} {:>6}  {:<wide$} {}",
                    row.state.node.as_str(),
                    ui.paint(tone, row.presence.as_str()),
                    row.outcome,
                    ago(row.state.at, now),
                    row.state.groups.join(","),
                    row.state.alarms.join("; "),
                );
                ui.line(line.trim_end());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_of_one_cause_are_one() {
        let attention = |node: &str, what: &str| Alert { node: node.parse().unwrap(), what: what.to_owned() };
        let all = [
            attention("web1", "silent since 2026-01-02T09:00:00Z"),
            attention("web2", "less than 64 MiB are free on the file system of /var/lib/ensign"),
            attention("web3", "silent since 2026-01-02T09:11:12Z"),
        ];
        let shown: Vec<(usize, String)> =
            group_alerts(&all).into_iter().map(|alarm| (alarm.nodes.len(), alarm.example)).collect();
        assert_eq!(shown, [(2, all[0].what.clone()), (1, all[1].what.clone())]);
    }
}
