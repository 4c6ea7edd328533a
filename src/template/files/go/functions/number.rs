//! Sprig: numbers.

use super::arguments::{as_float, as_integer, as_text, one_argument, three_arguments, two_arguments, wrong_arity};
use super::function::{ANY, GoFunction, function};
use crate::template::files::go::value::GoValue;
use crate::template::functions::limits::MAX_RESULT;

pub(super) static TABLE: &[GoFunction] = &[
    function("atoi", 1, 1, |_, args| Ok(GoValue::Int(as_integer(one_argument(args)?)))),
    function("int", 1, 1, |_, args| Ok(GoValue::Int(as_integer(one_argument(args)?)))),
    function("int64", 1, 1, |_, args| Ok(GoValue::Int(as_integer(one_argument(args)?)))),
    function("float64", 1, 1, |_, args| Ok(GoValue::Float(as_float(one_argument(args)?)))),
    function("toDecimal", 1, 1, |c, args| {
        let text = as_text(c, one_argument(args)?)?;
        Ok(GoValue::Int(i64::from_str_radix(&text, 8).unwrap_or(0)))
    }),
    function("add1", 1, 1, |_, args| integer_result(as_integer(one_argument(args)?).checked_add(1))),
    function("add", 0, ANY, |_, args| integer_result(args.iter().map(as_integer).try_fold(0, i64::checked_add))),
    function("sub", 2, 2, |_, args| map_integers(args, i64::checked_sub)),
    function("div", 2, 2, |_, args| divide(args, i64::checked_div)),
    function("mod", 2, 2, |_, args| divide(args, i64::checked_rem)),
    function("mul", 1, ANY, |_, args| integer_result(args.iter().map(as_integer).try_fold(1, i64::checked_mul))),
    function("max", 1, ANY, |_, args| Ok(GoValue::Int(args.iter().map(as_integer).max().unwrap_or(0)))),
    function("biggest", 1, ANY, |_, args| Ok(GoValue::Int(args.iter().map(as_integer).max().unwrap_or(0)))),
    function("min", 1, ANY, |_, args| Ok(GoValue::Int(args.iter().map(as_integer).min().unwrap_or(0)))),
    function("add1f", 1, 1, |_, args| Ok(round_decimal(as_float(one_argument(args)?) + 1.0))),
    function("addf", 0, ANY, |_, args| Ok(round_decimal(args.iter().map(as_float).sum()))),
    function("subf", 1, ANY, |_, args| fold_floats(args, |one, two| one - two)),
    function("mulf", 1, ANY, |_, args| fold_floats(args, |one, two| one * two)),
    function("divf", 1, ANY, |_, args| fold_floats(args, |one, two| one / two)),
    function("maxf", 1, ANY, |_, args| fold_floats(args, f64::max)),
    function("minf", 1, ANY, |_, args| fold_floats(args, f64::min)),
    function("ceil", 1, 1, |_, args| Ok(GoValue::Float(as_float(one_argument(args)?).ceil()))),
    function("floor", 1, 1, |_, args| Ok(GoValue::Float(as_float(one_argument(args)?).floor()))),
    function("round", 2, 3, |_, args| match args {
        [value, places, rest @ ..] => {
            let on = rest.first().map_or(0.5, as_float);
            let scale = 10_f64.powi(i32::try_from(as_integer(places)).unwrap_or(0).clamp(-300, 300));
            let scaled = as_float(value) * scale;
            let up = scaled.fract() >= on || (scaled < 0.0 && scaled.fract() > -on && scaled.fract() != 0.0);
            Ok(round_decimal(if up { scaled.ceil() } else { scaled.floor() } / scale))
        }
        _ => wrong_arity(),
    }),
    function("until", 1, 1, |_, args| {
        let most = as_integer(one_argument(args)?);
        series_list(0, most, if most < 0 { -1 } else { 1 })
    }),
    function("untilStep", 3, 3, |_, args| {
        let (from, to, step) = three_arguments(args)?;
        series_list(as_integer(from), as_integer(to), as_integer(step))
    }),
    function("seq", 0, 3, |_, args| {
        let numbers: Vec<i64> = args.iter().map(as_integer).collect();
        let (from, step, to) = match numbers.as_slice() {
            [to] => (1, if *to < 1 { -1 } else { 1 }, *to),
            [from, to] => (*from, if to < from { -1 } else { 1 }, *to),
            [from, step, to] if (step > &0) == (to >= from) => (*from, *step, *to),
            _ => return Ok(GoValue::text("")),
        };
        let items = series(from, to.saturating_add(step.signum()), step)?;
        Ok(GoValue::text(items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")))
    }),
];

fn integer_result(value: Option<i64>) -> Result<GoValue, String> {
    value.map(GoValue::Int).ok_or_else(|| "the result is too large".to_owned())
}

fn map_integers(args: &[GoValue], operate: fn(i64, i64) -> Option<i64>) -> Result<GoValue, String> {
    let (one, two) = two_arguments(args)?;
    integer_result(operate(as_integer(one), as_integer(two)))
}

fn divide(args: &[GoValue], operate: fn(i64, i64) -> Option<i64>) -> Result<GoValue, String> {
    let (_, by) = two_arguments(args)?;
    if as_integer(by) == 0 { Err("division by zero".to_owned()) } else { map_integers(args, operate) }
}

fn fold_floats(args: &[GoValue], operate: fn(f64, f64) -> f64) -> Result<GoValue, String> {
    args.iter().map(as_float).reduce(operate).map(round_decimal).ok_or_else(|| "wrong number of arguments".to_owned())
}

/// Rounds a float as decimal arithmetic would: 0.1 + 0.2 is 0.3.
fn round_decimal(value: f64) -> GoValue {
    GoValue::Float(format!("{value:.14e}").parse().unwrap_or(value))
}

/// Returns the numbers from `from` up to, but not including, `to`.
fn series(from: i64, to: i64, step: i64) -> Result<Vec<i64>, String> {
    let mut numbers = Vec::new();
    let mut at = from;
    while (step > 0 && at < to) || (step < 0 && at > to) {
        if numbers.len() >= MAX_RESULT {
            return Err(format!("the list would have more than {MAX_RESULT} numbers"));
        }
        numbers.push(at);
        let Some(next) = at.checked_add(step) else { break };
        at = next;
    }
    Ok(numbers)
}

fn series_list(from: i64, to: i64, step: i64) -> Result<GoValue, String> {
    GoValue::list(series(from, to, step)?.into_iter().map(GoValue::Int).collect())
}
