//! Resource types as subcommands, each with its properties as flags, all derived from `TYPES`. `ensign ensure` and `ensign
//! fleet ensure` share them.

use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, Subcommand};
use serde_json::{Map, Value, json};

use crate::resource::{self, ResourceType, Types};

use super::shape::PropertyShape;
use crate::cli::error::CliError;
use crate::cli::schemas;

/// The flags of a command besides those of properties.
pub trait CommandFlags: std::fmt::Debug + Clone + Send + Sync + 'static {
    /// Long flags of the command itself. A property of such a name gets the name of the type before it: `--exec-timeout`.
    const RESERVED: &'static [&'static str];
}

/// The flags of `ensign ensure`.
#[derive(Debug, Clone)]
pub struct LocalFlags;

impl CommandFlags for LocalFlags {
    const RESERVED: &'static [&'static str] = &[
        "check",
        "data",
        "detailed-exitcodes",
        "diff",
        "fact",
        "facts",
        "hiera",
        "if",
        "noop",
        "output",
        "session",
        "types",
        "unless",
    ];
}

/// The flags of `ensign fleet ensure`.
#[derive(Debug, Clone)]
pub struct FleetFlags;

impl CommandFlags for FleetFlags {
    const RESERVED: &'static [&'static str] = &[
        "all",
        "check",
        "config",
        "detach",
        "fleet",
        "group",
        "health-gate",
        "hold",
        "if",
        "key",
        "max-failed",
        "nats",
        "node",
        "noop",
        "out",
        "output",
        "reason",
        "server",
        "timeout",
        "types",
        "unless",
        "waves",
        "where",
    ];
}

/// A resource from the command line, beside the flags of `B`.
#[derive(Debug, Clone)]
pub struct ResourceArgs<B> {
    /// The resource type.
    pub kind: String,
    flags: ArgMatches,
    beside: PhantomData<B>,
}

impl<B: CommandFlags> ResourceArgs<B> {
    /// Returns all properties, with `name`.
    ///
    /// # Errors
    /// The flag with a wrong value.
    pub fn properties(self, types: &Types) -> Result<Map<String, Value>, CliError> {
        let read = match types.find(&self.kind) {
            Some(kind) => read::<B>(&*kind, &self.flags),
            None => read_untyped(&self.flags),
        };
        read.map_err(|error| CliError::usage(error.to_string().trim().trim_start_matches("error: ").to_owned()))
    }
}

impl<B: CommandFlags> FromArgMatches for ResourceArgs<B> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::raw(clap::error::ErrorKind::MissingSubcommand, "a resource type is missing\n");
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        // Wrong values of flags are errors of the parser, for types of the table.
        resource::find(name).map_or(Ok(()), |kind| read::<B>(kind, matches).map(drop))?;
        Ok(Self { kind: name.to_owned(), flags: matches.clone(), beside: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<B: CommandFlags> Subcommand for ResourceArgs<B> {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(resource::TYPES.iter().map(|kind| subcommand::<B>(*kind))).allow_external_subcommands(true)
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        name != "api"
    }
}

/// Returns the properties of a type that are flags, with their shapes and descriptions.
fn flags(kind: &dyn ResourceType) -> Vec<(String, PropertyShape, String)> {
    let schema = kind.schema(&mut schemas::generator()).to_value();
    let definitions = schema.get("$defs").cloned().unwrap_or_default();
    let properties = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let own = properties.into_iter().filter(|(name, _)| name != "name" && name != "ensure");
    own.map(|(name, property)| {
        let about = property.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ");
        (name, PropertyShape::from_schema(&property, &definitions), about)
    })
    .collect()
}

fn long<B: CommandFlags>(kind: &dyn ResourceType, property: &str) -> String {
    let flag = property.replace('_', "-");
    if B::RESERVED.contains(&flag.as_str()) { format!("{}-{flag}", kind.name()) } else { flag }
}

/// Returns the subcommand of a type. Its flags are created on use, as the flags of all types would dominate the start time.
fn subcommand<B: CommandFlags>(kind: &'static dyn ResourceType) -> Command {
    Command::new(kind.name()).about(kind.about()).defer(add_flags::<B>)
}

/// Returns the subcommand of a type outside of the table.
pub fn external_subcommand<B: CommandFlags>(kind: &dyn ResourceType) -> Command {
    with_flags::<B>(Command::new(kind.name().to_owned()).about(kind.about().to_owned()), kind)
}

/// Returns the subcommand of a type that only nodes know.
pub fn untyped_subcommand(name: &str) -> Command {
    let value = |name: &'static str| Arg::new(name).long(name).value_name("VALUE");
    let property = value("property").value_name("KEY=VALUE").action(ArgAction::Append);
    let command = Command::new(name.to_owned())
        .about("A resource of a type that only nodes know")
        .arg(Arg::new("name").value_name("NAME").required(true).help("Name of the resource"))
        .arg(value("ensure").help("Wanted state; that of the type by default"))
        .arg(property.help("A property: text, or JSON where the value begins as a list, map or quoted text. May be repeated"));
    with_common_flags(command)
}

/// Adds the flags of a type to its command.
fn add_flags<B: CommandFlags>(command: Command) -> Command {
    match resource::find(command.get_name()) {
        Some(kind) => with_flags::<B>(command, kind),
        None => command,
    }
}

fn with_flags<B: CommandFlags>(command: Command, kind: &dyn ResourceType) -> Command {
    let usual = default_ensure(kind).unwrap_or_else(|| DEFAULT_ENSURE.to_owned());
    let mut command = command
        .arg(Arg::new("name").value_name("NAME").required(true).help("Name of the resource"))
        .arg(Arg::new("ensure").value_name("ENSURE").help(format!("Wanted state; {usual} by default")));
    for (name, shape, about) in flags(kind) {
        let arg = Arg::new(format!("property {name}")).long(long::<B>(kind, &name)).help(about).help_heading("Properties");
        command = command.arg(match shape {
            PropertyShape::Bool => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(["true", "false"])
                .value_name("BOOL"),
            PropertyShape::List(_) | PropertyShape::Map => {
                arg.action(ArgAction::Append).allow_hyphen_values(true).value_name("VALUE")
            }
            _ => arg.allow_hyphen_values(true).value_name("VALUE"),
        });
    }
    with_common_flags(command)
}

fn with_common_flags(mut command: Command) -> Command {
    for (name, repeated, about) in COMMON {
        let arg = Arg::new(*name).long(*name).help(*about).help_heading("Properties of every resource").value_name("VALUE");
        command = command.arg(if *repeated { arg.action(ArgAction::Append) } else { arg });
    }
    command
}

/// The default state of most types.
const DEFAULT_ENSURE: &str = "present";

/// Flags for the common properties of resources.
const COMMON: &[(&str, bool, &str)] = &[
    ("alias", false, "A second name for the resource"),
    ("provider", false, "The provider to use"),
    ("require", true, "A resource, as type#name, that must not have failed in the session"),
    ("subscribe", true, "A resource, as type#name, whose change in the session refreshes this one"),
    ("if", false, "Manage the resource only when this expression holds"),
    ("unless", false, "Do not manage the resource when this expression holds"),
    ("check", true, "A health check: a command in the convention of Nagios plugins"),
    ("policy", true, "A key of the policy, as retry=3 or timeout=30s; semaphore may be repeated"),
];

fn read<B: CommandFlags>(kind: &dyn ResourceType, matches: &ArgMatches) -> Result<Map<String, Value>, clap::Error> {
    let one = |id: &str| matches.get_one::<String>(id).cloned();
    let many = |id: &str| -> Vec<String> { matches.get_many::<String>(id).into_iter().flatten().cloned().collect() };
    let mut properties = Map::new();
    properties.insert("name".to_owned(), json!(one("name").unwrap_or_default()));
    if let Some(usual) = default_ensure(kind) {
        properties.insert("ensure".to_owned(), json!(one("ensure").unwrap_or(usual)));
    }
    for (name, shape, _) in flags(kind) {
        let given = many(&format!("property {name}"));
        if given.is_empty() {
            continue;
        }
        let invalid = |text: &str, wanted: &str| {
            let message = format!("--{}: \"{text}\" is not {wanted}\n", long::<B>(kind, &name));
            clap::Error::raw(clap::error::ErrorKind::InvalidValue, message)
        };
        let value = match &shape {
            PropertyShape::List(items) => {
                given.iter().map(|text| scalar(items, text, invalid)).collect::<Result<Vec<_>, _>>()?.into()
            }
            PropertyShape::Map => {
                let pairs = given.iter().map(|text| pair(text, invalid));
                Value::Object(pairs.collect::<Result<_, _>>()?)
            }
            shape => scalar(shape, given.last().map_or("", String::as_str), invalid)?,
        };
        properties.insert(name, value);
    }
    // `--owner user:group`, as chown writes it.
    if let Some((owner, group)) = properties.get("owner").and_then(Value::as_str).and_then(|both| both.split_once(':')) {
        let (owner, group) = (json!(owner), json!(group));
        properties.insert("owner".to_owned(), owner);
        properties.entry("group").or_insert(group);
    }
    read_common(matches, &mut properties)?;
    Ok(properties)
}

/// Reads the flags of a type that is not known here. A value is text, or JSON where it begins as a list, map or quoted text.
fn read_untyped(matches: &ArgMatches) -> Result<Map<String, Value>, clap::Error> {
    if matches.try_get_many::<String>("property").is_err() {
        return Err(clap::Error::raw(clap::error::ErrorKind::InvalidSubcommand, "the resource type is unknown\n"));
    }
    let one = |id: &str| matches.get_one::<String>(id).cloned();
    let mut properties = Map::new();
    properties.insert("name".to_owned(), json!(one("name").unwrap_or_default()));
    properties.extend(one("ensure").map(|ensure| ("ensure".to_owned(), json!(ensure))));
    for text in matches.get_many::<String>("property").into_iter().flatten() {
        let invalid = |text: &str, wanted: &str| {
            clap::Error::raw(clap::error::ErrorKind::InvalidValue, format!("--property: \"{text}\" is not {wanted}\n"))
        };
        let (key, value) = text.split_once('=').ok_or_else(|| invalid(text, "of the form name=value"))?;
        let value = match value.starts_with(['[', '{', '"']) {
            true => serde_json::from_str(value).map_err(|error| invalid(text, &format!("JSON: {error}")))?,
            false => json!(value),
        };
        properties.insert(key.to_owned(), value);
    }
    read_common(matches, &mut properties)?;
    Ok(properties)
}

/// Reads the flags of the common properties.
fn read_common(matches: &ArgMatches, properties: &mut Map<String, Value>) -> Result<(), clap::Error> {
    let one = |id: &str| matches.get_one::<String>(id).cloned();
    let many = |id: &str| -> Vec<String> { matches.get_many::<String>(id).into_iter().flatten().cloned().collect() };
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
    let policy = read_policy(&many("policy"))?;
    properties.extend((!policy.is_empty()).then(|| ("policy".to_owned(), Value::Object(policy))));
    Ok(())
}

/// Reads the keys of a policy: `key=value`. The policy itself rejects unknown keys and wrong values.
fn read_policy(given: &[String]) -> Result<Map<String, Value>, clap::Error> {
    let mut policy = Map::new();
    for text in given {
        let invalid = |text: &str, expected: &str| {
            clap::Error::raw(clap::error::ErrorKind::InvalidValue, format!("--policy: \"{text}\" is not {expected}\n"))
        };
        let (key, value) = pair(text, invalid)?;
        match (key.as_str(), value.as_str()) {
            ("semaphore", _) => match policy.entry(key).or_insert_with(|| json!([])) {
                Value::Array(list) => list.push(value),
                other => *other = json!([value]),
            },
            (_, Some(flag @ ("true" | "false"))) => drop(policy.insert(key, json!(flag == "true"))),
            _ => drop(policy.insert(key, value)),
        }
    }
    Ok(policy)
}

/// Returns the default state: that of the type, else `present`. None where a type has no states.
fn default_ensure(kind: &dyn ResourceType) -> Option<String> {
    let schema = kind.schema(&mut schemas::generator()).to_value();
    let usual = schema.pointer("/properties/ensure")?.get("default").and_then(Value::as_str);
    Some(usual.unwrap_or(DEFAULT_ENSURE).to_owned())
}

/// Parses `name=value`.
fn pair(text: &str, invalid: impl Fn(&str, &str) -> clap::Error) -> Result<(String, Value), clap::Error> {
    let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), json!(value)));
    pair.ok_or_else(|| invalid(text, "of the form name=value"))
}

fn scalar(shape: &PropertyShape, text: &str, invalid: impl Fn(&str, &str) -> clap::Error) -> Result<Value, clap::Error> {
    match shape {
        PropertyShape::Bool => text.parse::<bool>().map(Value::Bool).map_err(|_| invalid(text, "true or false")),
        PropertyShape::Integer => text.parse::<i64>().map(Value::from).map_err(|_| invalid(text, "a whole number")),
        PropertyShape::Map => pair(text, invalid).map(|pair| Value::Object([pair].into_iter().collect())),
        _ => Ok(Value::String(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<B: CommandFlags>(words: &[&str]) -> Result<(String, Value), clap::Error> {
        let command = ResourceArgs::<B>::augment_subcommands(Command::new("ensure").subcommand_required(true));
        let described = ResourceArgs::<B>::from_arg_matches(&command.try_get_matches_from([&["ensure"], words].concat())?)?;
        let kind = described.kind.clone();
        let wrong = |failure: CliError| clap::Error::raw(clap::error::ErrorKind::InvalidValue, failure.message_text());
        Ok((kind, Value::Object(described.properties(&Types::default()).map_err(wrong)?)))
    }

    #[test]
    fn flags_become_properties() {
        let words = ["file", "/tmp/x", "absent", "--force", "--mode", "0644", "--content", "-n", "--require", "file#/a"];
        let expected =
            json!({"name": "/tmp/x", "ensure": "absent", "content": "-n", "mode": "0644", "force": true, "require": ["file#/a"]});
        assert_eq!(parse::<LocalFlags>(&words).unwrap(), ("file".to_owned(), expected));
        let words = [
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
            "--timeout",
            "1",
        ];
        assert!(parse::<FleetFlags>(&words).is_err(), "the flag of the command itself is not known to the type");
        let expected = json!({"name": "x", "ensure": "present", "returns": [0, 2], "timeout": "5s", "unless": "t", "control": {"unless": "e"}});
        assert_eq!(parse::<FleetFlags>(&words[..12]).unwrap().1, expected);
        assert_eq!(parse::<LocalFlags>(&["service", "x"]).unwrap().1, json!({"name": "x", "ensure": "running"}));
        let expected = json!({"name": "x", "ensure": "stopped", "enable": false});
        assert_eq!(parse::<LocalFlags>(&["service", "x", "stopped", "--enable=false"]).unwrap().1, expected);
        let expected = json!({"name": "/x", "ensure": "present", "owner": "a", "group": "b"});
        assert_eq!(parse::<LocalFlags>(&["file", "/x", "--owner", "a:b"]).unwrap().1, expected);
        assert_eq!(parse::<FleetFlags>(&["file", "/x", "--owner", "a", "--file-group", "b"]).unwrap().1, expected);
        assert_eq!(parse::<LocalFlags>(&["file", "/x", "--owner", "a", "--group", "b"]).unwrap().1, expected);
        let words = [
            "exec",
            "x",
            "--policy",
            "retry=3",
            "--policy",
            "noop=true",
            "--policy",
            "semaphore=db:2",
            "--policy",
            "semaphore=net",
        ];
        let expected =
            json!({"name": "x", "ensure": "present", "policy": {"retry": "3", "noop": true, "semaphore": ["db:2", "net"]}});
        assert_eq!(parse::<FleetFlags>(&words).unwrap().1, expected);
        let words =
            ["scaffold", "/x", "--source", "t", "--post", "*.sh=chmod +x {}", "--post", "*.go=go fmt", "--scaffold-data", "a=1"];
        let expected = json!({"name": "/x", "ensure": "present", "source": "t", "data": {"a": "1"},
            "post": [{"*.sh": "chmod +x {}"}, {"*.go": "go fmt"}]});
        assert_eq!(parse::<LocalFlags>(&words).unwrap().1, expected);
    }

    #[test]
    fn properties_of_an_unknown_type_are_text_or_json() {
        let read = |words: &[&str]| {
            let matches = untyped_subcommand("mine").try_get_matches_from([&["mine", "x"], words].concat())?;
            read_untyped(&matches).map(Value::Object)
        };
        let words = ["--ensure", "running", "--property", "port=010", "--property", "hosts=[\"a\"]", "--property", "text=\"[x\""];
        let found = read(&[&words[..], &["--property", "empty=", "--policy", "retry=3"]].concat()).unwrap();
        let policy = json!({"retry": "3"});
        assert_eq!(
            found,
            json!({"name": "x", "ensure": "running", "port": "010", "hosts": ["a"], "text": "[x", "empty": "", "policy": policy})
        );
        assert_eq!(read(&[]).unwrap(), json!({"name": "x"}));
        for wrong in ["port", "hosts=[1,"] {
            assert!(read(&["--property", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wrong_flags_are_refused() {
        for words in [
            &["file", "/x", "--mdoe", "1"][..],
            &["exec", "x", "--returns", "two"],
            &["scaffold", "/x", "--post", "two"],
            &["exec", "x", "--policy", "retry"],
            &["widget", "x"],
            &["file"],
            &[],
        ] {
            assert!(parse::<LocalFlags>(words).is_err(), "{words:?}");
        }
    }
}
