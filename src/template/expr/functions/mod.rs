//! Functions of the Expr language that take values. `predicates` has the functions that take a predicate.

mod call_error;
mod convert;
mod list;
mod number;
mod text;
mod time;

pub(super) use self::time::method;

use self::call_error::CallError;
use super::value::Value;
use crate::model::EvaluationBudget;

/// A function of the Expr language.
type Builtin = fn(&[Value], &EvaluationBudget) -> Result<Value, CallError>;

/// All functions, sorted by name for the binary search.
const BUILTINS: &[(&str, Builtin)] = &[
    ("abs", number::abs),
    ("bitand", |args, _| number::bitwise(args, |a, b| a & b)),
    ("bitnand", |args, _| number::bitwise(args, |a, b| a & !b)),
    ("bitnot", number::bitnot),
    ("bitor", |args, _| number::bitwise(args, |a, b| a | b)),
    ("bitshl", |args, _| number::shift(args, |value, count| value.checked_shl(count).unwrap_or(0))),
    ("bitshr", |args, _| number::shift(args, |value, count| value.checked_shr(count).unwrap_or(value >> 63))),
    ("bitushr", |args, _| {
        number::shift(args, |value, count| value.cast_unsigned().checked_shr(count).unwrap_or(0).cast_signed())
    }),
    ("bitxor", |args, _| number::bitwise(args, |a, b| a ^ b)),
    ("ceil", |args, _| number::map_float(args, f64::ceil)),
    ("concat", list::concat),
    ("date", time::date),
    ("duration", time::duration),
    ("first", |args, _| list::first_or_last(args, 0)),
    ("flatten", list::flatten),
    ("float", convert::float),
    ("floor", |args, _| number::map_float(args, f64::floor)),
    ("fromBase64", convert::from_base64),
    ("fromJSON", convert::from_json),
    ("fromPairs", list::from_pairs),
    ("get", list::get),
    ("hasPrefix", |args, _| text::compare(args, |text, part| text.starts_with(part).into())),
    ("hasSuffix", |args, _| text::compare(args, |text, part| text.ends_with(part).into())),
    ("indexOf", |args, _| text::compare(args, |text, part| text::index_value(text.find(part)))),
    ("int", convert::int),
    ("join", text::join),
    ("keys", list::keys),
    ("last", |args, _| list::first_or_last(args, -1)),
    ("lastIndexOf", |args, _| text::compare(args, |text, part| text::index_value(text.rfind(part)))),
    ("len", list::len),
    ("lower", |args, _| text::map_text(args, crate::template::functions::print::lower)),
    ("max", |args, _| number::extreme(args, std::cmp::Ordering::Greater)),
    ("mean", number::mean),
    ("median", number::median),
    ("min", |args, _| number::extreme(args, std::cmp::Ordering::Less)),
    ("now", time::now),
    ("repeat", text::repeat),
    ("replace", text::replace),
    ("reverse", list::reverse),
    ("round", |args, _| number::map_float(args, f64::round)),
    ("sort", list::sort),
    ("split", |args, _| text::split(args, false)),
    ("splitAfter", |args, _| text::split(args, true)),
    ("string", convert::string),
    ("take", list::take),
    ("timezone", time::timezone),
    ("toBase64", convert::to_base64),
    ("toJSON", convert::to_json),
    ("toPairs", list::to_pairs),
    ("trim", text::trim),
    ("trimPrefix", |args, _| text::strip(args, |text, part| text.strip_prefix(part))),
    ("trimSuffix", |args, _| text::strip(args, |text, part| text.strip_suffix(part))),
    ("type", convert::kind),
    ("uniq", list::uniq),
    ("upper", |args, _| text::map_text(args, crate::template::functions::print::upper)),
    ("values", list::values),
];

/// The names of all functions.
pub(super) fn names() -> impl Iterator<Item = &'static str> + Clone {
    BUILTINS.iter().map(|(name, _)| *name)
}

fn find(name: &str) -> Option<Builtin> {
    let at = BUILTINS.binary_search_by_key(&name, |(name, _)| name).ok()?;
    BUILTINS.get(at).map(|(_, function)| *function)
}

/// True for the name of a function of the language.
pub(super) fn is_builtin(name: &str) -> bool {
    find(name).is_some()
}

/// Calls a function of the language; none when no function has the name.
pub(super) fn call(name: &str, args: &[Value], budget: &EvaluationBudget) -> Option<Result<Value, String>> {
    let result = find(name)?(args, budget);
    Some(result.map_err(|call_error| match call_error {
        CallError::Failed(why) => why,
        CallError::Arguments => {
            let kinds: Vec<_> = args.iter().map(Value::kind).collect();
            format!("invalid arguments for {name}: {}", kinds.join(", "))
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order() {
        assert!(BUILTINS.is_sorted_by_key(|(name, _)| name));
    }

    #[test]
    fn wrong_arguments_are_named() {
        let error = call("upper", &[Value::Integer(1), Value::Nil], &EvaluationBudget::default()).unwrap().unwrap_err();
        assert_eq!(error, "invalid arguments for upper: int, <nil>");
    }
}
