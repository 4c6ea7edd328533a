//! `ensign plan --graph`: the order of the resources of a manifest, as text or for a program that draws it.

use clap::ValueEnum;

use crate::cli::ui::{Text, Tone, Ui, text};
use crate::engine::Plan;
use crate::engine::graph::{Edge, Reason};
use crate::manifest::Ordering;

/// The formats of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum GraphFormat {
    /// Each resource, with what it waits for.
    Text,
    /// The language of Graphviz.
    Dot,
    /// The language of Mermaid.
    Mermaid,
}

/// Prints the graph of a plan.
pub(super) fn print(plan: &Plan, format: GraphFormat, ui: &mut Ui) {
    match format {
        GraphFormat::Text => print_text(plan, ui),
        GraphFormat::Dot => ui.data(dot(plan).as_bytes()),
        GraphFormat::Mermaid => ui.data(mermaid(plan).as_bytes()),
    }
}

/// Returns the reference of a resource, with its secrets redacted.
fn label(plan: &Plan, index: usize) -> String {
    let mut label = plan.resources.get(index).map(|planned| planned.reference().to_string()).unwrap_or_default();
    plan.secrets().redact_in(&mut label);
    label
}

/// Returns the reasons of an edge, with secrets redacted.
fn reasons(plan: &Plan, edge: &Edge) -> String {
    let mut reasons = edge.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    plan.secrets().redact_in(&mut reasons);
    reasons
}

fn print_text(plan: &Plan, ui: &mut Ui) {
    let graph = plan.graph();
    if graph.ordering() == Ordering::List {
        ui.line("the resources run in their written order (ordering: list)");
    }
    for at in graph.order() {
        ui.line(text!("{}", label(plan, *at)));
        for edge in graph.incoming(*at) {
            let line: Text = text!("  after {} ({})", label(plan, edge.before), reasons(plan, edge));
            ui.line(text!("{}", ui.paint(Tone::Dim, line)));
        }
    }
}

/// Returns true for an edge that a property of the manifest makes.
fn is_explicit(edge: &Edge) -> bool {
    edge.reasons.iter().any(|reason| matches!(reason, Reason::Explicit(_)))
}

fn dot(plan: &Plan) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let mut lines = vec!["digraph manifest {".to_owned(), "  rankdir = LR;".to_owned()];
    lines.extend(plan.graph().order().iter().map(|at| format!("  r{at} [label = {}];", quote(&label(plan, *at)))));
    lines.extend(plan.graph().edges().iter().map(|edge| {
        let style = if is_explicit(edge) { "solid" } else { "dashed" };
        format!("  r{} -> r{} [label = {}, style = {style}];", edge.before, edge.after, quote(&reasons(plan, edge)))
    }));
    lines.push("}\n".to_owned());
    lines.join("\n")
}

fn mermaid(plan: &Plan) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('#', "#35;").replace('"', "#quot;"));
    let mut lines = vec!["flowchart LR".to_owned()];
    lines.extend(plan.graph().order().iter().map(|at| format!("  r{at}[{}]", quote(&label(plan, *at)))));
    lines.extend(plan.graph().edges().iter().map(|edge| {
        let arrow = if is_explicit(edge) { "-->" } else { "-.->" };
        format!("  r{} {arrow}|{}| r{}", edge.before, quote(&reasons(plan, edge)), edge.after)
    }));
    lines.join("\n") + "\n"
}
