//! Names of jobs on the command line: an id, the first characters of an id, or `@last`.
//!
//! Every command about a job, a plan or a rollout takes a [`JobName`], and resolves it in a session.

use std::ffi::OsStr;

use clap::Arg;
use clap::builder::{PossibleValue, TypedValueParser, ValueParserFactory};
use uuid::Uuid;

use crate::diag::Diagnostic;
use crate::diag::clean::cell_with_limit;
use crate::fleet::job::records::{self, JobRecord};
use crate::fleet::{CheckedCommand, FleetConnection};
use crate::wire::Command;

use super::super::error::{CliError, Exit};
use super::super::format::{ago, spaced};
use super::super::ui::{Ui, text};
use super::job_record::record_failure;
use super::last_job;

/// The name of the job that this user sent last.
const LAST: &str = "@last";
/// Fewest characters of an id.
const MIN_CHARACTERS: usize = 4;
/// Jobs that the error about several jobs lists.
const MAX_LISTED: usize = 10;
/// Longest text of a listed job.
const MAX_TEXT: usize = 100;

/// A job that a command line names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobName {
    /// The whole id.
    Id(Uuid),
    /// The first characters of the id: hexadecimal digits in lower case, without hyphens.
    Prefix(String),
    /// The job that this user sent last.
    Last,
}

impl JobName {
    /// Parses the name of a job. The hyphens of an id may be missing.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text == LAST {
            return Ok(Self::Last);
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        let digits: String = text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
        let is_prefix = digits.len() >= MIN_CHARACTERS && digits.len() < 32 && digits.chars().all(|c| c.is_ascii_hexdigit());
        is_prefix.then_some(Self::Prefix(digits)).ok_or_else(|| {
            let forms = format!("an id, its first {MIN_CHARACTERS} or more characters, or {LAST}");
            format!("no job is named like this: use {forms}; `ensign fleet job list` shows them")
        })
    }

    /// Finds the id.
    ///
    /// # Errors
    /// When no job begins like this, several do, or the records can't be read.
    pub(super) async fn resolve(&self, session: &FleetConnection) -> Result<Uuid, CliError> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Last => last_job::read(&session.operator.fleet),
            Self::Prefix(digits) => {
                let records = records::read_records(&session.bus, &session.subjects).await;
                let mut records = records.map_err(|error| record_failure(&error))?;
                records.retain(|record| has_prefix(record.command.id, digits));
                match records.as_slice() {
                    [only] => Ok(only.command.id),
                    [] => Err(CliError::usage(format!("no job begins with {digits}: never sent, or removed for its age"))
                        .hint("`ensign fleet job list` shows the latest")),
                    several => Err(ambiguous(digits, several, session)),
                }
            }
        }
    }
}

fn has_prefix(id: Uuid, digits: &str) -> bool {
    id.simple().to_string().starts_with(digits)
}

fn ambiguous(digits: &str, records: &[JobRecord], session: &FleetConnection) -> CliError {
    let line = |record: &JobRecord| {
        // Parts of a record are foreign: a line end in them must forge no line of the list.
        let words = cell_with_limit(&describe(&record.command, &record.keyids, session), MAX_TEXT).into_owned();
        format!("\n{}  {words}", record.command.id)
    };
    let listed: String = records.iter().take(MAX_LISTED).map(line).collect();
    let more = records.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!("\nand {more} older") } else { String::new() };
    let diagnostic = Diagnostic::new(format!("{} jobs begin with {digits}:{listed}{more}", records.len()));
    CliError::new(Exit::Usage, diagnostic.hint("use more characters of the id"))
}

/// `3m ago, dry apply site for all nodes, by ops-alice`
fn describe(command: &Command, signers: &[String], session: &FleetConnection) -> String {
    let what = spaced(&[&action_name(command), &records::describe_object(&command.action)]);
    let (age, to) = (ago(command.issued, session.now()), records::describe_target(&command.to));
    format!("{age} ago, by {}: {what}for {to}", signers.join(", "))
}

/// `apply`, `dry apply`, `apply, plan`
pub(super) fn action_name(command: &Command) -> String {
    let name = command.action.name();
    match (command.options.noop, command.options.approves.is_some()) {
        (true, _) => format!("dry {name}"),
        (false, true) => format!("{name}, plan"),
        (false, false) => name.to_owned(),
    }
}

/// Shows the job about which a command is signed: its whole id, its signers and its action.
pub(super) fn show_signed_about(verb: &str, job: &CheckedCommand, session: &FleetConnection, ui: &mut Ui) {
    let command = job.command();
    ui.message(text!("{} {}", verb, command.id));
    ui.message(text!("  signed {}", describe(command, job.signers(), session)));
}

/// Parses a [`JobName`], and offers `@last` to the completions of a shell.
#[derive(Debug, Clone)]
pub(super) struct JobNameParser;

impl ValueParserFactory for JobName {
    type Parser = JobNameParser;

    fn value_parser() -> Self::Parser {
        JobNameParser
    }
}

impl TypedValueParser for JobNameParser {
    type Value = JobName;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&Arg>, value: &OsStr) -> Result<JobName, clap::Error> {
        TypedValueParser::parse_ref(&JobName::parse, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(std::iter::once(PossibleValue::new(LAST).help("The job that you sent last"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_its_id_by_a_prefix_or_as_the_last() {
        let id: Uuid = "0198c1f2-7a3b-7c4d-8e5f-102030405060".parse().unwrap();
        for (text, job) in [
            ("0198c1f2-7a3b-7c4d-8e5f-102030405060", JobName::Id(id)),
            ("0198c1f27a3b7c4d8e5f102030405060", JobName::Id(id)),
            ("@last", JobName::Last),
            ("0198", JobName::Prefix("0198".into())),
            ("0198C1F2-7A", JobName::Prefix("0198c1f27a".into())),
        ] {
            assert_eq!(JobName::parse(text), Ok(job), "{text}");
        }
        for text in ["", "019", "0-1-9", "last", "@last-1", "0198c1fg", "0198*", "0198c1f2-7a3b-7c4d-8e5f-1020304050600", "-019"]
        {
            assert!(JobName::parse(text).unwrap_err().contains("job list"), "{text}");
        }
        assert!(has_prefix(id, "0198c1f27a3b7") && !has_prefix(id, "0198c1f27a3c") && !has_prefix(id, "98c1"));
    }
}
