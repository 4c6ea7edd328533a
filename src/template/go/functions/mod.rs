//! The functions of Go templates.
//!
//! The language's own functions, Sprig's functions with reproducible results, and the functions that need the scope.

mod builtin;
mod data;
mod date;
mod encode;
mod letters;
mod list;
mod number;
mod outside;
mod path;
mod regexes;
mod text;
mod url;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::LazyLock;

use super::Context;
use super::item::{Dict, Item, List, Numeric};

pub(super) use date::method as time_method;

/// The maximum length of texts (bytes) and lists (items) that a function creates.
const MAX_MADE: usize = 1 << 20;

/// The code of a function: takes the arguments, returns the result or the error message.
type Call = fn(&Context<'_>, &[Item]) -> Result<Item, String>;

/// A function of templates.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
}

/// The way in which a function takes its arguments.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// Evaluates its arguments up to the first false value.
    And,
    /// Evaluates its arguments up to the first true value.
    Or,
    /// With the minimum and maximum number of arguments.
    Plain(Call, usize, usize),
}

/// Any number of arguments.
const ANY: usize = usize::MAX;

const fn function(name: &'static str, least: usize, most: usize, call: Call) -> Function {
    Function { name, shape: Shape::Plain(call, least, most) }
}

static TABLES: &[&[Function]] = &[
    builtin::TABLE,
    text::TABLE,
    letters::TABLE,
    number::TABLE,
    list::TABLE,
    data::TABLE,
    encode::TABLE,
    date::TABLE,
    path::TABLE,
    regexes::TABLE,
    outside::TABLE,
    url::TABLE,
];

static BY_NAME: LazyLock<HashMap<&'static str, &'static Function>> =
    LazyLock::new(|| TABLES.iter().copied().flatten().map(|function| (function.name, function)).collect());

/// The functions left out on purpose, with the reason.
const LEFT_OUT: &[(&[&str], &str)] = &[
    (
        &["randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randBytes", "randInt", "shuffle", "uuidv4", "ago"],
        "its value differs every time, so the file would never be up to date; put the value into the data",
    ),
    (&["getHostByName"], "templates do not use the network; put the address into the data"),
    (&["include"], "it is Helm's; {{ render \"_partials/file\" . }} renders a file, {{ template \"name\" . }} renders a define"),
    (&["toYaml", "fromYaml"], "they are Helm's; use toJson, as YAML can read JSON"),
    (
        &["semver", "semverCompare"],
        "versions are compared where packages are installed; here, split them and compare their parts as numbers",
    ),
    (
        &[
            "bcrypt",
            "htpasswd",
            "genPrivateKey",
            "derivePassword",
            "buildCustomCert",
            "genCA",
            "genCAWithKey",
            "genSelfSignedCert",
            "genSelfSignedCertWithKey",
            "genSignedCert",
            "genSignedCertWithKey",
            "encryptAES",
            "decryptAES",
        ],
        "templates make no keys and keep no secrets; put the value into the data, or ask for it with lookup",
    ),
    (&["call"], "no value is a function here"),
    (&["template"], "it is a statement here: {{ template \"name\" . }}; files are rendered with render"),
];

/// Returns the function of a name.
pub(super) fn find(name: &str) -> Option<&'static Function> {
    BY_NAME.get(name).copied()
}

/// Returns the names of all functions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().copied().flatten().map(|function| function.name)
}

/// Returns the reason to leave out a well-known function.
pub(super) fn left_out(name: &str) -> Option<&'static str> {
    LEFT_OUT.iter().find(|(names, _)| names.contains(&name)).map(|(_, why)| *why)
}

/// Calls a function with all its arguments.
pub(super) fn call(function: &Function, context: &Context<'_>, args: &[Item]) -> Result<Item, String> {
    let name = function.name;
    let (call, least, most) = match function.shape {
        Shape::Plain(call, least, most) => (call, least, most),
        Shape::And | Shape::Or => return Err(format!("{name} takes arguments")),
    };
    if args.len() < least || args.len() > most {
        let takes = match (least, most) {
            (least, ANY) => format!("at least {least}"),
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        return Err(format!("wrong number of arguments for {name}: it takes {takes}, not {}", args.len()));
    }
    call(context, args).map_err(|why| format!("error calling {name}: {why}"))
}

/// Returns a count as a value.
pub(super) fn count(count: usize) -> Item {
    Item::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Returns the error for a wrong number of arguments, which [`call`] has excluded.
fn arity<T>() -> Result<T, String> {
    Err("wrong number of arguments".to_owned())
}

fn one(args: &[Item]) -> Result<&Item, String> {
    if let [one] = args { Ok(one) } else { arity() }
}

fn two(args: &[Item]) -> Result<(&Item, &Item), String> {
    if let [one, two] = args { Ok((one, two)) } else { arity() }
}

fn three(args: &[Item]) -> Result<(&Item, &Item, &Item), String> {
    if let [one, two, three] = args { Ok((one, two, three)) } else { arity() }
}

/// Returns an argument as a text.
fn string(context: &Context<'_>, item: &Item) -> Result<Rc<str>, String> {
    match item {
        Item::Nil => Err("an argument has no value; give it one with default".to_owned()),
        other => other.show(context),
    }
}

fn strings<const N: usize>(context: &Context<'_>, args: &[Item]) -> Result<[Rc<str>; N], String> {
    let texts: Vec<Rc<str>> = args.iter().map(|item| string(context, item)).collect::<Result<_, _>>()?;
    texts.try_into().map_err(|_| "wrong number of arguments".to_owned())
}

/// Returns an argument as a list.
fn as_list(item: &Item) -> Result<&Rc<List>, String> {
    match item {
        Item::List(list) => Ok(list),
        Item::Nil => Err("expected a list, but there is no value".to_owned()),
        other => Err(format!("expected a list, not {}", other.type_name())),
    }
}

/// Returns an argument as a map.
fn as_map(item: &Item) -> Result<&Rc<Dict>, String> {
    match item {
        Item::Map(map) => Ok(map),
        Item::Nil => Err("expected a map, but there is no value".to_owned()),
        other => Err(format!("expected a map, not {}", other.type_name())),
    }
}

/// Converts to an integer as Sprig does: texts are parsed, other types are 0.
fn int(item: &Item) -> i64 {
    match item {
        Item::Int(value) => *value,
        Item::Float(value) => truncated(*value),
        Item::Bool(value) => i64::from(*value),
        Item::Text(text) => text.trim().parse().unwrap_or_else(|_| truncated(text.trim().parse().unwrap_or(0.0))),
        _ => 0,
    }
}

/// Truncates a float, within the bounds of an integer.
#[expect(clippy::cast_possible_truncation, reason = "the conversion keeps to the bounds")]
fn truncated(value: f64) -> i64 {
    value as i64
}

/// Converts to a float as Sprig does: texts are parsed, other types are 0.
fn float(item: &Item) -> f64 {
    match item {
        Item::Text(text) => text.trim().parse().unwrap_or(0.0),
        Item::Bool(value) => f64::from(u8::from(*value)),
        other => other.number().map_or(0.0, Numeric::float),
    }
}

/// Returns an argument as a count or a length.
fn size(item: &Item) -> Result<usize, String> {
    let wanted = int(item);
    usize::try_from(wanted).ok().filter(|size| *size <= MAX_MADE).ok_or_else(|| format!("{wanted} is out of range"))
}
