//! Resource types as subcommands, each with its properties as flags, all derived from `TYPES`.
//! `ensign ensure` and `ensign fleet ensure` share them.

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand};
use serde_json::{Map, Value, json};

use crate::resource::{self, ResourceType};

use super::schemas;
use super::shape::Shape;

/// Long flags that the commands with resource types use themselves. A property of one of these names gets the
/// type's name before it: `--exec-timeout`.
const TAKEN: &[&str] = &[
    "all",
    "check",
    "data",
    "detach",
    "diff",
    "detailed-exitcodes",
    "fact",
    "facts",
    "fleet",
    "group",
    "hiera",
    "if",
    "key",
    "nats",
    "node",
    "noop",
    "output",
    "reason",
    "session",
    "timeout",
    "unless",
    "where",
];

/// A resource as the command line describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Described {
    /// The type.
    pub kind: &'static str,
    /// All its properties, `name` among them.
    pub properties: Map<String, Value>,
}

impl FromArgMatches for Described {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::raw(clap::error::ErrorKind::MissingSubcommand, "a resource type is missing\n");
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        let kind = resource::find(name).ok_or_else(missing)?;
        Ok(Self { kind: kind.name(), properties: read(kind, matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Described {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(resource::TYPES.iter().map(|kind| subcommand(*kind)))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        resource::find(name).is_some()
    }
}

/// The properties of a type that are flags, with their shapes and descriptions.
fn flags(kind: &dyn ResourceType) -> Vec<(String, Shape, String)> {
    let schema = kind.schema(&mut schemas::generator()).to_value();
    let definitions = schema.get("$defs").cloned().unwrap_or_default();
    let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let own = properties.into_iter().filter(|(name, _)| name != "name" && name != "ensure");
    own.map(|(name, property)| {
        let about = property.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ");
        (name, Shape::of(&property, &definitions), about)
    })
    .collect()
}

fn long(kind: &dyn ResourceType, property: &str) -> String {
    let flag = property.replace('_', "-");
    if TAKEN.contains(&flag.as_str()) { format!("{}-{flag}", kind.name()) } else { flag }
}

fn subcommand(kind: &dyn ResourceType) -> Command {
    let mut command = Command::new(kind.name())
        .about(kind.about())
        .arg(Arg::new("name").value_name("NAME").required(true).help("The name of the resource"))
        .arg(Arg::new("ensure").value_name("ENSURE").help("The state that is wanted; present when left out"));
    for (name, shape, about) in flags(kind) {
        let arg = Arg::new(format!("property {name}")).long(long(kind, &name)).help(about).help_heading("Properties");
        command = command.arg(match shape {
            Shape::Bool => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(["true", "false"])
                .value_name("BOOL"),
            Shape::List(_) | Shape::Map => arg.action(ArgAction::Append).allow_hyphen_values(true).value_name("VALUE"),
            _ => arg.allow_hyphen_values(true).value_name("VALUE"),
        });
    }
    for (name, repeated, about) in COMMON {
        let arg = Arg::new(*name).long(*name).help(*about).help_heading("Properties of every resource").value_name("VALUE");
        command = command.arg(if *repeated { arg.action(ArgAction::Append) } else { arg });
    }
    command
}

/// Flags for what every resource has.
const COMMON: &[(&str, bool, &str)] = &[
    ("alias", false, "A second name for the resource"),
    ("provider", false, "The provider to use"),
    ("require", true, "A resource, as type#name, that must not have failed in the session"),
    ("subscribe", true, "A resource, as type#name, on whose change in the session this one acts"),
    ("if", false, "Manage the resource only when this expression holds"),
    ("unless", false, "Do not manage the resource when this expression holds"),
    ("check", true, "A health check: a command in the convention of Nagios plugins"),
];

fn read(kind: &'static dyn ResourceType, matches: &ArgMatches) -> Result<Map<String, Value>, clap::Error> {
    let one = |id: &str| matches.get_one::<String>(id).cloned();
    let many = |id: &str| -> Vec<String> { matches.get_many::<String>(id).into_iter().flatten().cloned().collect() };
    let mut properties = Map::new();
    properties.insert("name".to_owned(), json!(one("name").unwrap_or_default()));
    if let Some(ensure) = one("ensure") {
        properties.insert("ensure".to_owned(), json!(ensure));
    }
    for (name, shape, _) in flags(kind) {
        let given = many(&format!("property {name}"));
        if given.is_empty() {
            continue;
        }
        let invalid = |text: &str, wanted: &str| {
            let message = format!("--{}: \"{text}\" is not {wanted}\n", long(kind, &name));
            clap::Error::raw(clap::error::ErrorKind::InvalidValue, message)
        };
        let value = match &shape {
            Shape::List(items) => given.iter().map(|text| scalar(items, text, invalid)).collect::<Result<Vec<_>, _>>()?.into(),
            Shape::Map => {
                let pairs = given.iter().map(|text| text.split_once('=').ok_or_else(|| invalid(text, "of the form name=value")));
                Value::Object(
                    pairs.map(|pair| pair.map(|(key, value)| (key.to_owned(), json!(value)))).collect::<Result<_, _>>()?,
                )
            }
            shape => scalar(shape, given.last().map_or("", String::as_str), invalid)?,
        };
        properties.insert(name, value);
    }
    for key in ["alias", "provider"] {
        properties.extend(one(key).map(|text| (key.to_owned(), json!(text))));
    }
    for key in ["require", "subscribe"] {
        let given = many(key);
        properties.extend((!given.is_empty()).then(|| (key.to_owned(), json!(given))));
    }
    let control: Map<String, Value> =
        ["if", "unless"].into_iter().filter_map(|key| one(key).map(|text| (key.to_owned(), json!(text)))).collect();
    properties.extend((!control.is_empty()).then(|| ("control".to_owned(), Value::Object(control))));
    let checks: Vec<Value> = many("check").into_iter().map(|command| json!({ "command": command })).collect();
    properties.extend((!checks.is_empty()).then(|| ("health_checks".to_owned(), Value::Array(checks))));
    Ok(properties)
}

fn scalar(shape: &Shape, text: &str, invalid: impl Fn(&str, &str) -> clap::Error) -> Result<Value, clap::Error> {
    match shape {
        Shape::Bool => text.parse::<bool>().map(Value::Bool).map_err(|_| invalid(text, "true or false")),
        Shape::Integer => text.parse::<i64>().map(Value::from).map_err(|_| invalid(text, "a whole number")),
        _ => Ok(Value::String(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Described, clap::Error> {
        let command = Described::augment_subcommands(Command::new("ensure").subcommand_required(true));
        Described::from_arg_matches(&command.try_get_matches_from([&["ensure"], words].concat())?)
    }

    #[test]
    fn flags_become_properties() {
        let file =
            parse(&["file", "/tmp/x", "absent", "--force", "--mode", "0644", "--content", "-n", "--require", "file#/a"]).unwrap();
        assert_eq!(file.kind, "file");
        let expected =
            json!({"name": "/tmp/x", "ensure": "absent", "content": "-n", "mode": "0644", "force": true, "require": ["file#/a"]});
        assert_eq!(Value::Object(file.properties), expected);
        let exec = parse(&[
            "exec",
            "x",
            "--returns",
            "0",
            "--returns",
            "2",
            "--exec-timeout",
            "5s",
            "--exec-unless",
            "t",
            "--unless",
            "e",
        ]);
        let expected = json!({"name": "x", "returns": [0, 2], "timeout": "5s", "unless": "t", "control": {"unless": "e"}});
        assert_eq!(Value::Object(exec.unwrap().properties), expected);
    }

    #[test]
    fn wrong_flags_are_refused() {
        for words in [&["file", "/x", "--mdoe", "1"][..], &["exec", "x", "--returns", "two"], &["widget", "x"], &["file"], &[]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
