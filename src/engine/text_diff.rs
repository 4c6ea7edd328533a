//! Unified diffs of two texts, for previews of changes (`apply_changes.rs`).

use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::udiff::UnifiedHunkHeader;
use similar::{DiffOp, group_diff_ops};

/// Number of lines around a change.
const AROUND: usize = 3;

/// Returns the unified diff of two texts; empty for equal texts.
///
/// The function uses this one algorithm, not the text diffs of the crate. Those link all algorithms, a third of a megabyte.
pub(super) fn unified_diff(before: &str, after: &str) -> String {
    let [old, new] = [before, after].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let (old, new) = (old.as_slice(), new.as_slice());
    let mut found = Compact::new(Replace::new(Capture::new()), old, new);
    // Writing to a string cannot fail.
    let Ok(()) = myers::diff(&mut found, old, 0..old.len(), new, 0..new.len());
    let mut diff = String::new();
    for hunk in group_diff_ops(found.into_inner().into_inner().into_ops(), AROUND) {
        if diff.is_empty() {
            diff.push_str("--- now\n+++ wanted\n");
        }
        diff.push_str(&UnifiedHunkHeader::new(&hunk).to_string());
        diff.push('\n');
        for step in hunk {
            let (from, to) = (old.get(step.old_range()), new.get(step.new_range()));
            match step {
                DiffOp::Equal { .. } => push(&mut diff, ' ', from),
                _ => {
                    push(&mut diff, '-', from);
                    push(&mut diff, '+', to);
                }
            }
        }
    }
    diff
}

fn push(diff: &mut String, sign: char, lines: Option<&[&str]>) {
    for line in lines.unwrap_or_default() {
        diff.push(sign);
        diff.push_str(line);
        if !line.ends_with('\n') {
            diff.push_str("\n\\ No newline at end of file\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::unified_diff;

    #[test]
    fn hunks_have_headers_context_and_ends() {
        assert_eq!(unified_diff("a\n", "a\n"), "");
        assert_eq!(unified_diff("", "a\n"), "--- now\n+++ wanted\n@@ -0,0 +1 @@\n+a\n");
        assert_eq!(unified_diff("a", "b\n"), "--- now\n+++ wanted\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n");
        let lines = |changed: &[usize]| -> String {
            (1..=20).map(|line| if changed.contains(&line) { "x\n".to_owned() } else { format!("{line}\n") }).collect()
        };
        let expected = "--- now\n+++ wanted\n\
            @@ -1,5 +1,5 @@\n 1\n-2\n+x\n 3\n 4\n 5\n\
            @@ -15,6 +15,6 @@\n 15\n 16\n 17\n-18\n+x\n 19\n 20\n";
        assert_eq!(unified_diff(&lines(&[]), &lines(&[2, 18])), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        /// The same as what the crate itself prints.
        #[test]
        fn the_form_is_that_of_others(before in "[a-c\n]{0,30}", after in "[a-c\n]{0,30}") {
            let theirs = similar::TextDiff::from_lines(&before, &after).unified_diff().header("now", "wanted").to_string();
            prop_assert_eq!(unified_diff(&before, &after), theirs);
        }
    }
}
