//! Renders events and summaries for people: a line for each resource, a block for each run.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::Value;

use crate::diag;
use crate::model::{ResourceOutcome, Summary, TransactionEvent};

use super::ui::{Text, Tone, Ui, Whole, text};

/// Width of the column of the outcome.
const OUTCOME_WIDTH: usize = 7;

/// Width of the column of the duration.
const DURATION_WIDTH: usize = 8;

/// Width of the column of the changes.
const CHANGES_WIDTH: usize = 40;

/// Widest label that sets the column; a longer label moves the rest of its line.
const MAX_LABEL: usize = 48;

/// Most steps on one line.
const MAX_INLINE_STEPS: usize = 4;
/// Most steps in a list.
const MAX_LISTED_STEPS: usize = 20;

/// Most lines of one error.
const MAX_ERROR_LINES: usize = 200;

/// Returns the column width for labels of these widths.
pub fn label_width(labels: impl Iterator<Item = usize>) -> usize {
    labels.max().unwrap_or(0).min(MAX_LABEL)
}

/// Returns the line of an event: mark, outcome, resource, changes, duration.
pub fn event_line(ui: &Ui, event: &TransactionEvent, width: usize) -> Text {
    let (mark, word, tone) = match event.outcome() {
        ResourceOutcome::Stable => ("✓", "stable", Tone::Success),
        ResourceOutcome::Changed => ("~", if event.noop { "would" } else { "changed" }, Tone::Changed),
        ResourceOutcome::Refreshed => ("↻", if event.noop { "would" } else { "refresh" }, Tone::Changed),
        ResourceOutcome::Failed => ("✗", "failed", Tone::Error),
        ResourceOutcome::Skipped => ("-", "skipped", Tone::Dim),
        ResourceOutcome::Unmet => ("-", "unmet", Tone::Error),
    };
    let mut head = Text::default();
    head.push(mark);
    head.push(" ");
    head.push_part(word, OUTCOME_WIDTH);
    let took = duration(Duration::from_nanos(event.duration));
    let what = describe_changes(event);
    // Further lines of an error go below, so that columns stay aligned.
    let (first, more) = what.split_once('\n').unwrap_or((&what, ""));
    // Assembled by hand: `format!` with widths takes three times as long, and every resource of every run has this line.
    let mut text = Text::default();
    text.push("  ");
    text.push_part(&ui.paint(tone, head), 0);
    text.push("  ");
    text.push_part(&event.label(), width);
    text.push("  ");
    text.push_part(first, CHANGES_WIDTH);
    text.push(" ");
    text.push_blanks(DURATION_WIDTH.saturating_sub(took.chars().count()));
    text.push_part(&took, 0);
    for line in more.lines().take(MAX_ERROR_LINES) {
        text.push("\n      ");
        text.push_part(&Whole(line), 0);
    }
    text
}

/// Returns the last lines of the program output of an event.
pub fn program_output(event: &TransactionEvent) -> impl Iterator<Item = &str> {
    let output = event.status.as_ref().and_then(|status| status.get("output")).and_then(Value::as_str).unwrap_or_default();
    let lines = output.lines().count();
    output.lines().skip(lines.saturating_sub(MAX_ERROR_LINES))
}

/// Returns the changes in a few words.
fn describe_changes(event: &TransactionEvent) -> Cow<'_, str> {
    let changes = match event.outcome() {
        ResourceOutcome::Failed => event.errors.join("; ").into(),
        ResourceOutcome::Unmet => format!("needs {}", event.unmet_requirements.join(", ")).into(),
        ResourceOutcome::Skipped if event.reverted => event.errors.join("; ").into(),
        ResourceOutcome::Skipped => "excluded by control".into(),
        ResourceOutcome::Stable if event.health_check_only => describe_checks(event).into(),
        ResourceOutcome::Stable => event.final_ensure.as_str().into(),
        ResourceOutcome::Changed if event.reverted => format!("reverted: {}", join_steps(&event.changes)).into(),
        ResourceOutcome::Changed | ResourceOutcome::Refreshed => join_steps(&event.changes).into(),
    };
    let changes = match event.attempts {
        Some(attempts) => format!("{changes} ({attempts} attempts)").into(),
        None => changes,
    };
    match event.pending_refreshes.as_slice() {
        [] => changes,
        after => format!("{changes} (pending refresh after {})", after.join(", ")).into(),
    }
}

/// Returns the changed properties: few steps on one line, many below each other, and only the first of very many.
fn join_steps(steps: &[String]) -> String {
    if steps.len() <= MAX_INLINE_STEPS {
        return steps.join(", ");
    }
    let (shown, rest) = steps.split_at(steps.len().min(MAX_LISTED_STEPS));
    // A type that lists only the first of its steps says how many more there are.
    let counted = rest.last().and_then(|last| last.strip_prefix("and ")?.strip_suffix(" more")?.parse::<usize>().ok());
    let more = counted.map_or(rest.len(), |counted| rest.len() - 1 + counted);
    let mut lines = vec![diag::count_noun((shown.len() + more) as u64, "change")];
    lines.extend_from_slice(shown);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    lines.join("\n")
}

fn describe_checks(event: &TransactionEvent) -> String {
    let names: Vec<String> = event.health_check.iter().map(|check| format!("{} {}", check.name, check.status.as_str())).collect();
    if names.is_empty() { "no health checks".to_owned() } else { names.join(", ") }
}

/// Formats a duration with three significant digits.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        // Nearly all durations are short, and a float is slow to print.
        s if s < 0.001 => format!("{}µs", (duration.as_nanos() + 500) / 1000),
        s if s < 0.1 => format!("{:.1}ms", s * 1e3),
        s if s < 1.0 => format!("{:.0}ms", s * 1e3),
        s if s < 100.0 => format!("{s:.2}s"),
        s => format!("{}m{:02.0}s", (s / 60.0).floor(), s % 60.0),
    }
}

/// Returns the counts of a run on one line, without the zero counts.
pub fn summary_line(ui: &Ui, summary: &Summary, noop: bool) -> Text {
    let changed = if noop { "would change" } else { "changed" };
    let parts = [
        (summary.stable_resources, "stable", Tone::Success),
        (summary.changed_resources, changed, Tone::Changed),
        (summary.refreshed_count, "of them refreshed", Tone::Changed),
        (summary.failed_resources, "failed", Tone::Error),
        (summary.skipped_resources, "skipped", Tone::Dim),
        (summary.requirements_unmet_count, "requirements unmet", Tone::Error),
    ];
    let shown = parts
        .iter()
        .filter(|(count, _, _)| *count > 0)
        .map(|(count, word, tone)| ui.paint(*tone, text!("{} {}", count, word)).into());
    let shown = Text::join(shown, ", ");
    let shown = if shown.is_empty() { shown } else { text!(": {}", shown) };
    let total = summary.total_resources;
    text!("{}{} in {}", diag::count_noun(total, "resource"), shown, duration(Duration::from_nanos(summary.total_duration)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_changes_stand_below_each_other() {
        let steps = |count: usize| (1..=count).map(|n| format!("created {n}")).collect::<Vec<_>>();
        assert_eq!(join_steps(&steps(2)), "created 1, created 2");
        assert!(join_steps(&steps(5)).starts_with("5 changes\ncreated 1\n"));
        let mut many = steps(200);
        many.push("and 1800 more".to_owned());
        let shown = join_steps(&many);
        assert!(shown.starts_with("2000 changes\n") && shown.ends_with("\ncreated 20\nand 1980 more"), "{shown}");
        assert_eq!(shown.lines().count(), 22);
    }

    #[test]
    fn durations_read_well() {
        for (nanos, text) in [
            (499, "0µs"),
            (412_000, "412µs"),
            (999_600, "1000µs"),
            (1_140_000, "1.1ms"),
            (412_000_000, "412ms"),
            (2_500_000_000, "2.50s"),
            (125_000_000_000, "2m05s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), text);
        }
    }
}
