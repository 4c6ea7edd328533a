//! Resource types of the command line that are not in the table. A second parse has a subcommand for the named type.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command};

use super::properties::{FleetFlags, LocalFlags, external_subcommand, untyped_subcommand};
use super::types::TypesArgs;
use crate::diag::did_you_mean;
use crate::resource;

/// A resource type of the command line that is not in the table.
struct NamedType {
    /// The subcommands before the type: `ensure`, or `fleet ensure`.
    path: Vec<String>,
    name: String,
    types: TypesArgs,
}

/// Parses the command line. `command` makes the parser.
///
/// # Errors
/// For wrong arguments, and for an unknown type. `fleet` sends a type that only its nodes know.
pub fn parse(command: impl Fn() -> Command, args: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let matches = command().try_get_matches_from(args)?;
    let Some(named) = find_named(&matches) else { return Ok(matches) };
    let types = named
        .types
        .read()
        .map_err(|failure| clap::Error::raw(ErrorKind::ValueValidation, format!("{}\n", failure.message_text())))?;
    let is_fleet = named.path.first().is_some_and(|first| first == "fleet");
    let is_close = did_you_mean(&named.name, resource::TYPES.iter().map(|kind| kind.name())).is_some();
    let added = match types.find(&named.name) {
        Some(kind) if is_fleet => Some(external_subcommand::<FleetFlags>(&*kind)),
        Some(kind) => Some(external_subcommand::<LocalFlags>(&*kind)),
        None => (is_fleet && !is_close).then(|| untyped_subcommand(&named.name)),
    };
    let change = |parent: Command| match &added {
        Some(added) => parent.subcommand(added.clone()),
        // The parser's own error has the names of the table.
        None => parent.allow_external_subcommands(false),
    };
    change_at(command(), &named.path, &change).try_get_matches_from(args)
}

/// Finds the subcommand that the parser does not have.
fn find_named(matches: &ArgMatches) -> Option<NamedType> {
    let (mut matches, mut path, mut named) = (matches, Vec::new(), None);
    while let Some((name, inner)) = matches.subcommand() {
        named = matches.try_get_one::<PathBuf>("types").ok().flatten().cloned().or(named);
        // The parser keeps the words after an unknown subcommand under no name.
        if let Ok(Some(words)) = inner.try_get_many::<OsString>("") {
            let words: Vec<&OsString> = words.collect();
            let types = TypesArgs { types: flag_value(&words).or(named) };
            return Some(NamedType { path, name: name.to_owned(), types });
        }
        path.push(name.to_owned());
        matches = inner;
    }
    None
}

/// Returns the value of `--types` in words that are not parsed yet.
fn flag_value(words: &[&OsString]) -> Option<PathBuf> {
    let pairs = words.iter().zip(words.iter().skip(1).map(Some).chain([None]));
    let value = pairs.filter_map(|(word, next)| match word.to_str()? {
        "--types" => next.map(|next| PathBuf::from(*next)),
        text => text.strip_prefix("--types=").map(PathBuf::from),
    });
    value.last()
}

/// Changes the subcommand at a path.
fn change_at(command: Command, path: &[String], change: &impl Fn(Command) -> Command) -> Command {
    match path.split_first() {
        None => change(command),
        Some((first, rest)) => command.mut_subcommand(first, |inner| change_at(inner, rest, change)),
    }
}
