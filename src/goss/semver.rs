//! Constraints over semantic versions, in the range syntax of Goss: `>1.0.0 <2.0.0 !=1.5.0 || >=3.0.0`.

use std::cmp::Ordering;

use super::error::RuleError;

/// A list of alternatives. All comparisons of an alternative must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Constraint(Vec<Vec<(Comparison, Version)>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

/// A version by semver.org 2.0.0, without the build metadata behind a `+`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    numbers: [u64; 3],
    /// The pre-release identifiers; empty for a release.
    prerelease: Vec<String>,
}

const SIGNS: &[(&str, Comparison)] = &[
    (">=", Comparison::GreaterOrEqual),
    ("<=", Comparison::LessOrEqual),
    ("!=", Comparison::NotEqual),
    ("==", Comparison::Equal),
    (">", Comparison::Greater),
    ("<", Comparison::Less),
    ("=", Comparison::Equal),
    ("!", Comparison::NotEqual),
];

impl Constraint {
    pub(super) fn read(text: &str) -> Result<Self, RuleError> {
        let wrong = || {
            RuleError::new(format!("the semver constraint \"{text}\" can't be read"))
                .hint("write it as \">1.0.0 <2.0.0 || >=3.1.0\"")
        };
        let alternative = |text: &str| {
            // A blank may separate a sign from its version.
            let joined = SIGNS.iter().take(6).fold(text.to_owned(), |text, (sign, _)| text.replace(&format!("{sign} "), sign));
            let comparisons: Option<Vec<_>> = joined.split_whitespace().map(comparison).collect();
            comparisons.filter(|comparisons| !comparisons.is_empty())
        };
        text.split("||").map(alternative).collect::<Option<Vec<_>>>().map(Self).ok_or_else(wrong)
    }

    pub(super) fn holds(&self, version: &str) -> bool {
        let Some(version) = Version::read(version) else { return false };
        let holds = |(comparison, wanted): &(Comparison, Version)| {
            let order = version.compare(wanted);
            match comparison {
                Comparison::Equal => order.is_eq(),
                Comparison::NotEqual => order.is_ne(),
                Comparison::Greater => order.is_gt(),
                Comparison::GreaterOrEqual => order.is_ge(),
                Comparison::Less => order.is_lt(),
                Comparison::LessOrEqual => order.is_le(),
            }
        };
        self.0.iter().any(|all| all.iter().all(holds))
    }
}

fn comparison(word: &str) -> Option<(Comparison, Version)> {
    let signed = SIGNS.iter().find_map(|(sign, comparison)| Some((*comparison, word.strip_prefix(sign)?)));
    let (comparison, version) = signed.unwrap_or((Comparison::Equal, word));
    Some((comparison, Version::read(version)?))
}

impl Version {
    fn read(text: &str) -> Option<Self> {
        let text = text.trim().split('+').next()?;
        let (numbers, before) = text.split_once('-').map_or((text, None), |(numbers, before)| (numbers, Some(before)));
        let mut parts = numbers.split('.').map(|part| part.parse().ok());
        let numbers = [parts.next()??, parts.next()??, parts.next()??];
        let before = before.map(|before| before.split('.').map(str::to_owned).collect()).unwrap_or_default();
        parts.next().is_none().then_some(Self { numbers, prerelease: before })
    }

    fn compare(&self, other: &Self) -> Ordering {
        let release = |version: &Self| version.prerelease.is_empty();
        self.numbers.cmp(&other.numbers).then_with(|| match (release(self), release(other)) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let pairs = self.prerelease.iter().zip(&other.prerelease).map(|(one, two)| compare_identifiers(one, two));
                let different = pairs.into_iter().find(|order| order.is_ne());
                different.unwrap_or_else(|| self.prerelease.len().cmp(&other.prerelease.len()))
            }
        })
    }
}

/// Compares pre-release identifiers. Numbers compare by value, and come before words.
fn compare_identifiers(one: &str, two: &str) -> Ordering {
    match (one.parse::<u64>(), two.parse::<u64>()) {
        (Ok(one), Ok(two)) => one.cmp(&two),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => one.cmp(two),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_order() {
        let order = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.1",
            "1.10.0",
            "2.0.0",
        ];
        for pair in order.windows(2) {
            let [one, two] = [0, 1].map(|at| Version::read(pair[at]).unwrap());
            assert_eq!(one.compare(&two), Ordering::Less, "{pair:?}");
        }
        assert!(Version::read("1.2.3+build").unwrap().compare(&Version::read("1.2.3").unwrap()).is_eq());
        assert!(["1.2", "1.2.x", "", "1.2.3.4"].iter().all(|text| Version::read(text).is_none()));
    }

    #[test]
    fn constraints_hold() {
        for (constraint, version, expected) in [
            (">1.0.0 <2.0.0 !=1.5.0", "1.5.0", false),
            (">1.0.0 <2.0.0 !=1.5.0", "1.5.1", true),
            (">5.0.0 || < 1.5.0", "1.0.1", true),
            ("1.2.3", "1.2.3", true),
            ("=1.2.3", "1.2.4", false),
            (">= 1.2.3", "1.2.3", true),
            ("<=1.2.3", "not a version", false),
        ] {
            assert_eq!(Constraint::read(constraint).unwrap().holds(version), expected, "{constraint} {version}");
        }
        assert!(["", ">", ">x", "1.0.0 ||"].iter().all(|text| Constraint::read(text).is_err()));
    }
}
