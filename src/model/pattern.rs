//! Wildcards of all patterns. `?` matches one character and `*` any number, neither across a `/`. `**` matches across.

/// True when the whole of `text` matches `pattern`. The time is at most pattern × text.
pub fn matches(pattern: &str, text: &str) -> bool {
    matches_where(pattern, text, |_| true)
}

/// True when every text that matches `pattern` matches `wider` too. The answer may be false by mistake, but never true.
///
/// A `*` of `wider` matches a `*` as any other text. A `?` must not stand for a `*`, so a pattern with `?` covers nothing.
pub fn covers(wider: &str, pattern: &str) -> bool {
    !wider.contains('?') && matches(wider, pattern)
}

/// True when the whole of `text` matches `pattern`, and wildcards match only characters that `reaches` allows.
pub fn matches_where(pattern: &str, text: &str, reaches: impl Fn(char) -> bool) -> bool {
    let text: Vec<char> = text.chars().collect();
    // reach[i]: the pattern so far matches the first i characters.
    let mut reach = vec![false; text.len() + 1];
    if let Some(start) = reach.first_mut() {
        *start = true;
    }
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        reach = match c {
            '*' => {
                let across = rest.next_if_eq(&'*').is_some();
                spread(&reach, &text, |c| reaches(c) && (across || c != '/'))
            }
            '?' => step(&reach, &text, |c| reaches(c) && c != '/'),
            wanted => step(&reach, &text, |c| c == wanted),
        };
    }
    reach.last() == Some(&true)
}

/// Extends each match by any number of characters that fit.
fn spread(reach: &[bool], text: &[char], fits: impl Fn(char) -> bool) -> Vec<bool> {
    let mut on = false;
    let mut before = None;
    reach
        .iter()
        .enumerate()
        .map(|(i, here)| {
            let stopped = before.is_some_and(|c: &char| !fits(*c));
            on = *here || (on && !stopped);
            before = text.get(i);
            on
        })
        .collect()
}

/// Extends each match by one character that fits.
fn step(reach: &[bool], text: &[char], fits: impl Fn(char) -> bool) -> Vec<bool> {
    std::iter::once(false).chain(reach.iter().zip(text).map(|(here, c)| *here && fits(*c))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_only_narrower_patterns() {
        for (wider, pattern, wanted) in [
            ("*", "web*", true),
            ("*", "*", true),
            ("**", "*", true),
            ("web*", "web*", true),
            ("web*", "web1*", true),
            ("web*", "web*x", true),
            ("*-eu", "web*-eu", true),
            ("a*c*", "a*b*c*", true),
            ("web*", "*", false),
            ("web*", "we*", false),
            ("web*", "*web", false),
            ("web1*", "web*", false),
            ("*-eu", "web*", false),
            ("web1", "web*", false),
            ("web?", "web*", false),
            ("?*", "*", false),
            ("web*?", "web**", false),
            ("", "*", false),
        ] {
            assert_eq!(covers(wider, pattern), wanted, "{wider} {pattern}");
        }
    }

    /// Compares [`covers`] with all texts of up to four letters.
    #[test]
    fn a_covered_pattern_matches_no_text_outside() {
        let texts = |letters: &[char]| {
            let mut all = vec![String::new()];
            let mut last = all.clone();
            for _ in 0..4 {
                last = last.iter().flat_map(|text| letters.iter().map(move |letter| format!("{text}{letter}"))).collect();
                all.extend(last.iter().cloned());
            }
            all
        };
        let (patterns, names) = (texts(&['a', 'b', '*', '?']), texts(&['a', 'b']));
        let is_glob = |pattern: &&String| !pattern.contains('?') && !pattern.contains("**");
        for pattern in patterns.iter().filter(is_glob) {
            let matched: Vec<&String> = names.iter().filter(|name| matches(pattern, name)).collect();
            for wider in patterns.iter().filter(|wider| covers(wider, pattern)) {
                assert!(matched.iter().all(|name| matches(wider, name)), "{wider} {pattern}");
            }
        }
    }
}
