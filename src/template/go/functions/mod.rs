//! The functions of Go templates.
//!
//! The language's own functions, Sprig's functions with reproducible results, and the functions that need the scope.

mod builtin;
mod context_functions;
mod data;
mod date;
mod encode;
mod letters;
mod list;
mod number;
mod path;
mod regexes;
mod text;
mod url;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::LazyLock;

use super::GoContext;
use super::value::{GoList, GoMap, GoValue, Numeric};

pub(super) use date::method as time_method;

/// The maximum length of texts (bytes) and lists (items) that a function creates.
const MAX_RESULT: usize = 1 << 20;

/// The code of a function: takes the arguments, returns the result or the error message.
type FunctionBody = fn(&GoContext<'_>, &[GoValue]) -> Result<GoValue, String>;

/// A function of templates.
#[derive(Debug)]
pub(super) struct GoFunction {
    pub(super) name: &'static str,
    pub(super) shape: CallShape,
}

/// The way in which a function takes its arguments.
#[derive(Debug, Clone, Copy)]
pub(super) enum CallShape {
    /// Evaluates its arguments up to the first false value.
    And,
    /// Evaluates its arguments up to the first true value.
    Or,
    /// With the minimum and maximum number of arguments.
    Plain(FunctionBody, usize, usize),
}

/// Any number of arguments.
const ANY: usize = usize::MAX;

const fn function(name: &'static str, least: usize, most: usize, call: FunctionBody) -> GoFunction {
    GoFunction { name, shape: CallShape::Plain(call, least, most) }
}

static TABLES: &[&[GoFunction]] = &[
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
    context_functions::TABLE,
    url::TABLE,
];

static BY_NAME: LazyLock<HashMap<&'static str, &'static GoFunction>> =
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
pub(super) fn find(name: &str) -> Option<&'static GoFunction> {
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
pub(super) fn call(function: &GoFunction, context: &GoContext<'_>, args: &[GoValue]) -> Result<GoValue, String> {
    let name = function.name;
    let (call, least, most) = match function.shape {
        CallShape::Plain(call, least, most) => (call, least, most),
        CallShape::And | CallShape::Or => return Err(format!("{name} takes arguments")),
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
pub(super) fn count_value(count: usize) -> GoValue {
    GoValue::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Returns the error for a wrong number of arguments, which [`call`] has excluded.
fn wrong_arity<T>() -> Result<T, String> {
    Err("wrong number of arguments".to_owned())
}

fn one_argument(args: &[GoValue]) -> Result<&GoValue, String> {
    if let [one] = args { Ok(one) } else { wrong_arity() }
}

fn two_arguments(args: &[GoValue]) -> Result<(&GoValue, &GoValue), String> {
    if let [one, two] = args { Ok((one, two)) } else { wrong_arity() }
}

fn three_arguments(args: &[GoValue]) -> Result<(&GoValue, &GoValue, &GoValue), String> {
    if let [one, two, three] = args { Ok((one, two, three)) } else { wrong_arity() }
}

/// Returns an argument as a text.
fn as_text(context: &GoContext<'_>, item: &GoValue) -> Result<Rc<str>, String> {
    match item {
        GoValue::Nil => Err("an argument has no value; give it one with default".to_owned()),
        other => other.to_text(context),
    }
}

fn as_texts<const N: usize>(context: &GoContext<'_>, args: &[GoValue]) -> Result<[Rc<str>; N], String> {
    let texts: Vec<Rc<str>> = args.iter().map(|item| as_text(context, item)).collect::<Result<_, _>>()?;
    texts.try_into().map_err(|_| "wrong number of arguments".to_owned())
}

/// Returns an argument as a list.
fn as_list(item: &GoValue) -> Result<&Rc<GoList>, String> {
    match item {
        GoValue::List(list) => Ok(list),
        GoValue::Nil => Err("expected a list, but there is no value".to_owned()),
        other => Err(format!("expected a list, not {}", other.type_name())),
    }
}

/// Returns an argument as a map.
fn as_map(item: &GoValue) -> Result<&Rc<GoMap>, String> {
    match item {
        GoValue::Map(map) => Ok(map),
        GoValue::Nil => Err("expected a map, but there is no value".to_owned()),
        other => Err(format!("expected a map, not {}", other.type_name())),
    }
}

/// Converts to an integer as Sprig does: texts are parsed, other types are 0.
fn as_integer(item: &GoValue) -> i64 {
    match item {
        GoValue::Int(value) => *value,
        GoValue::Float(value) => truncate(*value),
        GoValue::Bool(value) => i64::from(*value),
        GoValue::Text(text) => text.trim().parse().unwrap_or_else(|_| truncate(text.trim().parse().unwrap_or(0.0))),
        _ => 0,
    }
}

/// Truncates a float, within the bounds of an integer.
#[expect(clippy::cast_possible_truncation, reason = "the conversion keeps to the bounds")]
fn truncate(value: f64) -> i64 {
    value as i64
}

/// Converts to a float as Sprig does: texts are parsed, other types are 0.
fn as_float(item: &GoValue) -> f64 {
    match item {
        GoValue::Text(text) => text.trim().parse().unwrap_or(0.0),
        GoValue::Bool(value) => f64::from(u8::from(*value)),
        other => other.number().map_or(0.0, Numeric::float),
    }
}

/// Returns an argument as a count or a length.
fn as_count(item: &GoValue) -> Result<usize, String> {
    let wanted = as_integer(item);
    usize::try_from(wanted).ok().filter(|size| *size <= MAX_RESULT).ok_or_else(|| format!("{wanted} is out of range"))
}
