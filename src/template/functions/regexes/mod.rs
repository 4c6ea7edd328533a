//! Regular expressions of templates, bounded in size and charged to the budget.
//!
//! Matching takes time in proportion to the text and, for hard expressions, to the size of the compiled program. The crate
//! does not tell that size, so `compile` tries the small limit first. `syntax` translates the syntax of Go.

mod syntax;

use std::ops::Deref;

use regex::{Regex, RegexBuilder};

use crate::model::EvaluationBudget;

/// The largest program of an ordinary expression, in bytes: most expressions fit.
const ORDINARY_PROGRAM_BYTES: usize = 64 << 10;
/// The largest program of any expression, in bytes.
const MAX_PROGRAM_BYTES: usize = 1 << 20;
/// The work of the compilation of a large program, in units of the budget.
const COMPILE_WORK: usize = 2 << 20;

/// A compiled expression.
#[derive(Debug, Clone)]
pub(in crate::template) struct Pattern {
    regex: Regex,
    /// The work for each byte of a text, in units of the budget.
    cost: usize,
}

impl Pattern {
    /// Compiles an expression in the syntax of Go.
    pub(in crate::template) fn compile(pattern: &str) -> Result<Self, String> {
        let pattern = syntax::translate(pattern).map_err(|why| error_message(&why))?;
        let of = |limit: usize| RegexBuilder::new(&pattern).size_limit(limit).dfa_size_limit(MAX_PROGRAM_BYTES).build();
        match of(ORDINARY_PROGRAM_BYTES) {
            Ok(regex) => Ok(Self { regex, cost: 8 }),
            Err(regex::Error::CompiledTooBig(_)) => {
                of(MAX_PROGRAM_BYTES).map(|regex| Self { regex, cost: 256 }).map_err(|error| error_message(&error.to_string()))
            }
            Err(error) => Err(error_message(&error.to_string())),
        }
    }

    /// Compiles an expression that an evaluation computed, and charges the budget.
    pub(in crate::template) fn compile_charged(pattern: &str, budget: &EvaluationBudget) -> Result<Self, String> {
        budget.charge_work(COMPILE_WORK).map_err(|spent| spent.to_string())?;
        Self::compile(pattern)
    }

    /// The expression, after charging the budget for a match against `text`.
    pub(in crate::template) fn charge(&self, text: &str, budget: &EvaluationBudget) -> Result<&Regex, String> {
        budget.charge_work(text.len().saturating_mul(self.cost)).map_err(|spent| spent.to_string())?;
        Ok(&self.regex)
    }
}

impl Deref for Pattern {
    type Target = Regex;

    fn deref(&self) -> &Regex {
        &self.regex
    }
}

/// The error message for a regular expression that can't be read, on one line.
fn error_message(shown: &str) -> String {
    let why = shown.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    format!("the regular expression can't be read: {why}")
}
