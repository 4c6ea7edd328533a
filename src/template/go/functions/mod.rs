//! The functions of Go templates: those of the language, those of Sprig that give the same every
//! time, and those that look at the surroundings.

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

/// The longest text, in bytes, and the longest list that a function makes.
const MAX_MADE: usize = 1 << 20;

/// What a function does: its arguments to its result, or to what is wrong.
type Call = fn(&Context<'_>, &[Item]) -> Result<Item, String>;

/// A function.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
}

/// How a function is called.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// Evaluates only until an argument does not hold.
    And,
    /// Evaluates only until an argument holds.
    Or,
    /// With the least and the most arguments it takes.
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

/// What is not there on purpose, and why.
const LEFT_OUT: &[(&[&str], &str)] = &[
    (
        &["randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randBytes", "randInt", "shuffle", "uuidv4", "ago"],
        "it gives something else every time, so that the file would never be as wanted; put the value into the data",
    ),
    (&["getHostByName"], "templates do not use the network; put the address into the data"),
    (&["include"], "it is Helm's; {{ render \"_partials/file\" . }} renders a file, {{ template \"name\" . }} what define made"),
    (&["toYaml", "fromYaml"], "they are Helm's; toJson writes what YAML can read"),
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

/// The function of this name.
pub(super) fn find(name: &str) -> Option<&'static Function> {
    BY_NAME.get(name).copied()
}

/// The names of all functions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().copied().flatten().map(|function| function.name)
}

/// Why a function that one may expect is not there.
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

/// A number of things as a value.
pub(super) fn count(count: usize) -> Item {
    Item::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

/// For a function whose arguments were counted before.
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

/// A value where text is wanted.
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

/// A value where a list is wanted.
fn as_list(item: &Item) -> Result<&Rc<List>, String> {
    match item {
        Item::List(list) => Ok(list),
        Item::Nil => Err("a list is wanted, and there is no value".to_owned()),
        other => Err(format!("a list is wanted, not {}", other.type_name())),
    }
}

/// A value where a map is wanted.
fn as_map(item: &Item) -> Result<&Rc<Dict>, String> {
    match item {
        Item::Map(map) => Ok(map),
        Item::Nil => Err("a map is wanted, and there is no value".to_owned()),
        other => Err(format!("a map is wanted, not {}", other.type_name())),
    }
}

/// A value as a whole number, as Sprig converts: text is read, what is no number is 0.
fn int(item: &Item) -> i64 {
    match item {
        Item::Int(value) => *value,
        Item::Float(value) => truncated(*value),
        Item::Bool(value) => i64::from(*value),
        Item::Text(text) => text.trim().parse().unwrap_or_else(|_| truncated(text.trim().parse().unwrap_or(0.0))),
        _ => 0,
    }
}

/// The whole part, at most what a whole number holds.
#[expect(clippy::cast_possible_truncation, reason = "the conversion keeps to the bounds")]
fn truncated(value: f64) -> i64 {
    value as i64
}

/// A value as a float.
fn float(item: &Item) -> f64 {
    match item {
        Item::Text(text) => text.trim().parse().unwrap_or(0.0),
        Item::Bool(value) => f64::from(u8::from(*value)),
        other => other.number().map_or(0.0, Numeric::float),
    }
}

/// A whole number that says how many.
fn size(item: &Item) -> Result<usize, String> {
    let wanted = int(item);
    usize::try_from(wanted).ok().filter(|size| *size <= MAX_MADE).ok_or_else(|| format!("{wanted} is out of range"))
}
