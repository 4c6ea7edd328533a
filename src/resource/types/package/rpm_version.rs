//! RPM versions, compared as rpm does: `[epoch:]version[-release]`.
//!
//! Segments are compared by the rule of rpm-version(7) (`rpmvercmp` in rpm), the three parts in the order of rpm-dependencies(7).
//! Tested against rpm itself. The rule of Debian is in `debian_version.rs`.

use std::cmp::Ordering;

/// Compares two versions. A missing part does not count, except the epoch, which is 0 then.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (parts(a), parts(b));
    segments(a.epoch.unwrap_or("0"), b.epoch.unwrap_or("0")).then_with(|| without_epoch(&a, &b))
}

/// True where an installed version is the requested one, as `V`, `V-R`, `E:V` or `E:V-R`. Missing parts do not count.
pub(super) fn matches_request(installed: &str, asked: &str) -> bool {
    let (installed, asked) = (parts(installed), parts(asked));
    let epoch = asked.epoch.is_none_or(|epoch| segments(installed.epoch.unwrap_or("0"), epoch).is_eq());
    epoch && without_epoch(&installed, &asked).is_eq()
}

fn without_epoch(a: &Parts<'_>, b: &Parts<'_>) -> Ordering {
    segments(a.version, b.version).then_with(|| match (a.release, b.release) {
        (Some(a), Some(b)) => segments(a, b),
        _ => Ordering::Equal,
    })
}

struct Parts<'a> {
    epoch: Option<&'a str>,
    version: &'a str,
    release: Option<&'a str>,
}

fn parts(text: &str) -> Parts<'_> {
    let (epoch, rest) = text.split_once(':').map_or((None, text), |(epoch, rest)| (Some(epoch), rest));
    let (version, release) = rest.rsplit_once('-').map_or((rest, None), |(version, release)| (version, Some(release)));
    Parts { epoch, version, release }
}

/// Compares letters and numbers segment by segment. Separators do not count, except `~` and `^`.
fn segments(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        (a, b) = (after_separators(a), after_separators(b));
        match (a.split_first(), b.split_first()) {
            // A tilde sorts before everything, the end included.
            (Some((b'~', rest_a)), Some((b'~', rest_b))) => (a, b) = (rest_a, rest_b),
            (Some((b'~', _)), _) => return Ordering::Less,
            (_, Some((b'~', _))) => return Ordering::Greater,
            // A caret sorts after the end, and before everything else.
            (Some((b'^', rest_a)), Some((b'^', rest_b))) => (a, b) = (rest_a, rest_b),
            (Some((b'^', _)), None) => return Ordering::Greater,
            (None, Some((b'^', _))) => return Ordering::Less,
            (Some((b'^', _)), Some(_)) => return Ordering::Less,
            (Some(_), Some((b'^', _))) => return Ordering::Greater,
            (None, None) => return Ordering::Equal,
            (Some(_), None) => return Ordering::Greater,
            (None, Some(_)) => return Ordering::Less,
            (Some((first, _)), Some(_)) => {
                let order;
                (order, a, b) = segment(first.is_ascii_digit(), a, b);
                if order.is_ne() {
                    return order;
                }
            }
        }
    }
}

/// Compares one segment, of the kind at the beginning of the first text. Returns the rests too.
fn segment<'a>(number: bool, a: &'a [u8], b: &'a [u8]) -> (Ordering, &'a [u8], &'a [u8]) {
    let belongs = if number { u8::is_ascii_digit } else { u8::is_ascii_alphabetic };
    let ((one, a), (two, b)) = (split_at(a, belongs), split_at(b, belongs));
    let order = if two.is_empty() {
        // Of different kinds: a number is newer than letters.
        if number { Ordering::Greater } else { Ordering::Less }
    } else if number {
        let significant = |number| split_at(number, |c| *c == b'0').1;
        let (one, two) = (significant(one), significant(two));
        one.len().cmp(&two.len()).then_with(|| one.cmp(two))
    } else {
        one.cmp(two)
    };
    (order, a, b)
}

fn after_separators(text: &[u8]) -> &[u8] {
    split_at(text, |c| !c.is_ascii_alphanumeric() && !matches!(c, b'~' | b'^')).1
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
    fn epochs_versions_and_releases() {
        for (a, order, b) in [
            ("1.0", Ordering::Equal, "1.0"),
            ("1.0-1", Ordering::Equal, "1.0"),
            ("1.0-1", Ordering::Less, "1.0-2"),
            ("2.0-1", Ordering::Less, "1:1.0-1"),
            ("0:2.0-1", Ordering::Equal, "2.0-1"),
            ("1.0~rc1-1", Ordering::Less, "1.0-1"),
            ("1.0^git1", Ordering::Greater, "1.0"),
            ("1.0^git1", Ordering::Less, "1.0.1"),
            ("1.0A.9", Ordering::Less, "1.0a.5"),
            ("1.0a", Ordering::Less, "1.0.1"),
            ("1.9", Ordering::Less, "1.10"),
        ] {
            assert_eq!(compare(a, b), order, "{a} {b}");
            assert_eq!(compare(b, a), order.reverse(), "{b} {a}");
        }
    }

    #[test]
    fn missing_parts_do_not_count() {
        for (installed, asked, wanted) in [
            ("1.0-1", "1.0", true),
            ("1:1.0-1", "1.0", true),
            ("1:1.0-1", "1.0-1", true),
            ("1:1.0-1", "1:1.0-1", true),
            ("1:1.0-1", "1:1.0", true),
            ("1:1.0-1", "2:1.0", false),
            ("1.0-1", "0:1.0-1", true),
            ("1.0-2", "1.0-1", false),
            ("1.0-1", "1.0~rc1", false),
            ("5.8-9.el9", "5.8-9.el9", true),
            ("1.0a.5-1", "1.0A.9", false),
        ] {
            assert_eq!(matches_request(installed, asked), wanted, "{installed} {asked}");
        }
    }

    /// One rpm compares thousands of pairs.
    #[test]
    fn as_rpm_does() {
        if !has_program("rpm", "rpm") {
            return;
        }
        let version = "[0-9a-bAZ._+~^]{1,7}";
        let near = (version, "[0-9aZ.~^]{0,2}").prop_map(|(one, more)| (one.clone(), format!("{one}{more}")));
        let pairs = prop_oneof![(version, version).prop_map(|(a, b)| (a, b)), near];
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let drawn: Vec<_> = (0..6000).map(|_| pairs.new_tree(&mut runner).unwrap().current()).collect();
        let answers: Vec<String> = drawn
            .chunks(500)
            .flat_map(|some| {
                let calls: String = some.iter().map(|(a, b)| format!("print(rpm.vercmp(\"{a}\",\"{b}\"))")).collect();
                super::super::tests::ask("rpm", &["--eval", &format!("%{{lua: {calls}}}")], "")
            })
            .collect();
        // `print` of Lua in a macro expansion adds no separator between the numbers.
        let text = answers.concat();
        let mut numbers = text.as_str();
        for (a, b) in &drawn {
            let (number, rest) = numbers.split_at(if numbers.starts_with('-') { 2 } else { 1 });
            numbers = rest;
            let order = number.parse::<i32>().unwrap().cmp(&0);
            assert_eq!(segments(a, b), order, "{a} {b}");
        }
        assert!(numbers.is_empty());
    }
}
