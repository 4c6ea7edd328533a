//! How events and summaries look to people: one line a resource, one block a run.

use std::borrow::Cow;
use std::time::Duration;

use crate::model::{Outcome, Summary, TransactionEvent};

use super::ui::{Tone, Ui};

/// How wide the column is that says how it ended.
const WORD_WIDTH: usize = 7;

/// How wide the column is that says how long it took.
const TOOK_WIDTH: usize = 8;

/// How wide the column is that says what happened.
const WHAT_WIDTH: usize = 40;

/// The widest label that is padded to; longer ones push their line.
const MAX_LABEL: usize = 48;

/// A width for labels that are this wide.
pub fn label_width(labels: impl Iterator<Item = usize>) -> usize {
    labels.max().unwrap_or(0).min(MAX_LABEL)
}

/// The line of an event: mark, outcome, resource, what happened, how long it took.
pub fn event_line(ui: &Ui, event: &TransactionEvent, width: usize) -> String {
    let (mark, word, tone) = match event.outcome() {
        Outcome::Stable => ("✓", "stable", Tone::Good),
        Outcome::Changed => ("~", if event.noop { "would" } else { "changed" }, Tone::Notable),
        Outcome::Refreshed => ("↻", if event.noop { "would" } else { "refresh" }, Tone::Notable),
        Outcome::Failed => ("✗", "failed", Tone::Bad),
        Outcome::Skipped => ("-", "skipped", Tone::Dim),
        Outcome::Unmet => ("-", "unmet", Tone::Bad),
    };
    let mut head = String::with_capacity(16);
    head.extend([mark, " "]);
    pad(&mut head, word, WORD_WIDTH);
    let head = ui.paint(tone, &head);
    let took = duration(Duration::from_nanos(event.duration));
    let what = what(event);
    // An error may show the line it is about: that goes below, so that columns stay columns.
    let (first, more) = what.split_once('\n').unwrap_or((&what, ""));
    // Put together by hand: `format!` with widths is three times the work, and this line is written for every resource of
    // every run.
    let mut text = String::with_capacity(head.len() + width + 64);
    text.extend(["  ", &head, "  "]);
    pad(&mut text, &event.label(), width);
    text.push_str("  ");
    pad(&mut text, first, WHAT_WIDTH);
    text.push(' ');
    blanks(&mut text, TOOK_WIDTH.saturating_sub(took.chars().count()));
    text.push_str(&took);
    for line in more.lines() {
        text.push_str("\n      ");
        text.push_str(line);
    }
    text
}

/// Adds a text and fills up with blanks.
fn pad(line: &mut String, text: &str, width: usize) {
    line.push_str(text);
    blanks(line, width.saturating_sub(text.chars().count()));
}

fn blanks(line: &mut String, mut count: usize) {
    const BLANKS: &str = "                                ";
    while count > 0 {
        let some = count.min(BLANKS.len());
        line.push_str(BLANKS.get(..some).unwrap_or_default());
        count -= some;
    }
}

/// What happened, in a few words.
fn what(event: &TransactionEvent) -> Cow<'_, str> {
    match event.outcome() {
        Outcome::Failed => event.errors.join("; ").into(),
        Outcome::Unmet => format!("needs {}", event.unmet_requirements.join(", ")).into(),
        Outcome::Skipped => "control says no".into(),
        Outcome::Stable if event.health_check_only => checks(event).into(),
        Outcome::Stable => event.final_ensure.as_str().into(),
        Outcome::Changed | Outcome::Refreshed => event.changes.join(", ").into(),
    }
}

fn checks(event: &TransactionEvent) -> String {
    let names: Vec<String> = event.health_check.iter().map(|check| format!("{} {}", check.name, check.status.as_str())).collect();
    if names.is_empty() { "no health checks".to_owned() } else { names.join(", ") }
}

/// A duration with three significant digits.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        // Nearly all are short, and a float is slow to print.
        s if s < 0.001 => format!("{}µs", (duration.as_nanos() + 500) / 1000),
        s if s < 0.1 => format!("{:.1}ms", s * 1e3),
        s if s < 1.0 => format!("{:.0}ms", s * 1e3),
        s if s < 100.0 => format!("{s:.2}s"),
        s => format!("{}m{:02.0}s", (s / 60.0).floor(), s % 60.0),
    }
}

/// The counts of a run on one line; what is zero is left out.
pub fn summary_line(ui: &Ui, summary: &Summary, noop: bool) -> String {
    let changed = if noop { "would change" } else { "changed" };
    let parts = [
        (summary.stable_resources, "stable", Tone::Good),
        (summary.changed_resources, changed, Tone::Notable),
        (summary.refreshed_count, "of them refreshed", Tone::Notable),
        (summary.failed_resources, "failed", Tone::Bad),
        (summary.skipped_resources, "skipped", Tone::Dim),
        (summary.requirements_unmet_count, "requirements unmet", Tone::Bad),
    ];
    let shown: Vec<String> = parts
        .iter()
        .filter(|(count, _, _)| *count > 0)
        .map(|(count, word, tone)| ui.paint(*tone, &format!("{count} {word}")))
        .collect();
    let shown = if shown.is_empty() { String::new() } else { format!(": {}", shown.join(", ")) };
    let total = summary.total_resources;
    let noun = if total == 1 { "resource" } else { "resources" };
    format!("{total} {noun}{shown} in {}", duration(Duration::from_nanos(summary.total_duration)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
