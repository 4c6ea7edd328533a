//! Regular expressions of templates: bounded in size, and paid for by what they may cost.
//!
//! Matching takes time in proportion to the text and, for hard expressions, to the size of the program. The size is not
//! told, so that it is found by trying: most expressions fit the small one. `syntax` puts those of Go into those of the crate.

mod syntax;

use std::ops::Deref;

use regex::{Regex, RegexBuilder};

use crate::model::EvaluationBudget;

/// The largest program of an ordinary expression, in bytes.
const SMALL: usize = 64 << 10;
/// The largest program of all, in bytes.
const LARGE: usize = 1 << 20;
/// The work of making a large program.
const COMPILING: usize = 2 << 20;

/// An expression that was read.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    regex: Regex,
    /// Work for each byte of a text.
    cost: usize,
}

impl Pattern {
    /// Reads an expression, which is in the syntax of Go.
    pub(super) fn read(pattern: &str) -> Result<Self, String> {
        let pattern = syntax::translated(pattern).map_err(|why| no_regex(&why))?;
        let of = |limit: usize| RegexBuilder::new(&pattern).size_limit(limit).dfa_size_limit(LARGE).build();
        match of(SMALL) {
            Ok(regex) => Ok(Self { regex, cost: 8 }),
            Err(regex::Error::CompiledTooBig(_)) => {
                of(LARGE).map(|regex| Self { regex, cost: 256 }).map_err(|error| no_regex(&error.to_string()))
            }
            Err(error) => Err(no_regex(&error.to_string())),
        }
    }

    /// Reads an expression that an evaluation has made, which costs work.
    pub(super) fn made(pattern: &str, budget: &EvaluationBudget) -> Result<Self, String> {
        budget.work(COMPILING).map_err(|spent| spent.to_string())?;
        Self::read(pattern)
    }

    /// The expression, to be used on a text that is paid for.
    pub(super) fn on(&self, text: &str, budget: &EvaluationBudget) -> Result<&Regex, String> {
        budget.work(text.len().saturating_mul(self.cost)).map_err(|spent| spent.to_string())?;
        Ok(&self.regex)
    }
}

impl Deref for Pattern {
    type Target = Regex;

    fn deref(&self) -> &Regex {
        &self.regex
    }
}

/// Why a regular expression can't be read, on one line.
fn no_regex(shown: &str) -> String {
    let why = shown.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    format!("the regular expression can't be read: {why}")
}
