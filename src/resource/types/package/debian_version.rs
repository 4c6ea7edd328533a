//! Debian versions, compared as dpkg does: `[epoch:]upstream[-revision]`.
//!
//! The rule is that of deb-version(7) and Debian Policy 5.6.12. Tested against `dpkg --compare-versions`. The rule of RPM is in
//! `rpm_version.rs`.

use std::cmp::Ordering;

/// Compares two versions.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (parts(a), parts(b));
    digits(a.epoch.as_bytes(), b.epoch.as_bytes())
        .then_with(|| part(a.upstream.as_bytes(), b.upstream.as_bytes()))
        .then_with(|| part(a.revision.as_bytes(), b.revision.as_bytes()))
}

struct Parts<'a> {
    epoch: &'a str,
    upstream: &'a str,
    revision: &'a str,
}

/// Splits a version: the epoch ends at the first colon, the revision begins after the last hyphen; both are optional.
fn parts(version: &str) -> Parts<'_> {
    let (epoch, rest) = version.split_once(':').unwrap_or(("", version));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
    Parts { epoch, upstream, revision }
}

/// Compares alternating non-digit and digit segments, from the first character on.
fn part(mut a: &[u8], mut b: &[u8]) -> Ordering {
    while !a.is_empty() || !b.is_empty() {
        let (text_a, rest_a) = split_at(a, |c| !c.is_ascii_digit());
        let (text_b, rest_b) = split_at(b, |c| !c.is_ascii_digit());
        let longest = text_a.len().max(text_b.len());
        let differs = (0..longest).map(|at| weight(text_a.get(at)).cmp(&weight(text_b.get(at)))).find(|order| order.is_ne());
        if let Some(order) = differs {
            return order;
        }
        let (number_a, rest_a) = split_at(rest_a, u8::is_ascii_digit);
        let (number_b, rest_b) = split_at(rest_b, u8::is_ascii_digit);
        let order = digits(number_a, number_b);
        if order.is_ne() {
            return order;
        }
        (a, b) = (rest_a, rest_b);
    }
    Ordering::Equal
}

/// A tilde sorts before the end, the end before letters, letters before everything else.
fn weight(character: Option<&u8>) -> i32 {
    match character {
        None => 0,
        Some(b'~') => -1,
        Some(c) if c.is_ascii_alphabetic() => i32::from(*c),
        Some(c) => i32::from(*c) + 256,
    }
}

/// Compares numbers of any length; no digits count as 0.
fn digits(a: &[u8], b: &[u8]) -> Ordering {
    let significant = |number| split_at(number, |c| *c == b'0').1;
    let (a, b) = (significant(a), significant(b));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

fn split_at(text: &[u8], belongs: impl Fn(&u8) -> bool) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|c| !belongs(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    use super::*;
    use crate::skip::has_program;

    #[test]
    fn as_the_policy_says() {
        for (a, order, b) in [
            ("1.0", Ordering::Equal, "1.0"),
            ("1.0", Ordering::Equal, "1.00"),
            ("1.0", Ordering::Equal, "1.0-0"),
            ("0:1.0", Ordering::Equal, "1.0"),
            ("1.01", Ordering::Equal, "1.1"),
            ("1.0", Ordering::Less, "1.0-1"),
            ("1.0~rc1", Ordering::Less, "1.0"),
            ("1.0~~", Ordering::Less, "1.0~~a"),
            ("1.0~", Ordering::Less, "1.0"),
            ("2.0", Ordering::Less, "1:1.0"),
            ("1.9", Ordering::Less, "1.10"),
            ("1.2a", Ordering::Less, "1.2.1"),
            ("1.0A.9", Ordering::Less, "1.0a.5"),
            ("1.0+b1", Ordering::Greater, "1.0"),
            ("1.0-1-2", Ordering::Greater, "1.0-3"),
            ("99999999999999999999999", Ordering::Greater, "9999999999999999999999"),
        ] {
            assert_eq!(compare(a, b), order, "{a} {b}");
            assert_eq!(compare(b, a), order.reverse(), "{b} {a}");
        }
    }

    /// Generates pairs of valid versions, similar enough for every branch of the rule.
    fn pairs() -> impl Strategy<Value = (String, String)> {
        let version = "([0-3]:)?[0-9][0-9a-bAZ.+~]{0,5}(-[0-9ab.+~]{1,3})?";
        let near = (version, "[0-9aZ.+~]{0,2}").prop_map(|(one, more)| (one.clone(), format!("{one}{more}")));
        prop_oneof![(version, version).prop_map(|(a, b)| (a, b)), near]
    }

    /// One shell compares thousands of pairs with dpkg.
    #[test]
    fn as_dpkg_does() {
        if !has_program("dpkg", "dpkg") {
            return;
        }
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let drawn: Vec<_> = (0..4000).map(|_| pairs().new_tree(&mut runner).unwrap().current()).collect();
        let said = |order| match order {
            Ordering::Less => "lt",
            Ordering::Equal => "eq",
            Ordering::Greater => "gt",
        };
        let lines: Vec<String> = drawn.iter().map(|(a, b)| format!("{a} {} {b}", said(compare(a, b)))).collect();
        let script = "while read -r a is b; do dpkg --compare-versions $a $is $b && echo yes || echo \"$a $is $b\"; done";
        let answers = super::super::tests::ask("/bin/sh", &["-c", script], &(lines.join("\n") + "\n"));
        assert_eq!(answers.len(), drawn.len());
        let wrong: Vec<_> = answers.into_iter().filter(|answer| answer != "yes").collect();
        assert!(wrong.is_empty(), "dpkg does not think that {wrong:?}");
        for order in ["lt", "eq", "gt"] {
            assert!(lines.iter().filter(|line| line.contains(order)).count() > 100, "hardly any pair is {order}");
        }
    }
}
