//! Sprig: numbers.

use super::super::item::Item;
use super::{ANY, Function, MAX_MADE, arity, float, function, int, one, three, two};

pub(super) static TABLE: &[Function] = &[
    function("atoi", 1, 1, |_, args| Ok(Item::Int(int(one(args)?)))),
    function("int", 1, 1, |_, args| Ok(Item::Int(int(one(args)?)))),
    function("int64", 1, 1, |_, args| Ok(Item::Int(int(one(args)?)))),
    function("float64", 1, 1, |_, args| Ok(Item::Float(float(one(args)?)))),
    function("toDecimal", 1, 1, |c, args| {
        let text = super::string(c, one(args)?)?;
        Ok(Item::Int(i64::from_str_radix(&text, 8).unwrap_or(0)))
    }),
    function("add1", 1, 1, |_, args| checked(int(one(args)?).checked_add(1))),
    function("add", 0, ANY, |_, args| checked(args.iter().map(int).try_fold(0, i64::checked_add))),
    function("sub", 2, 2, |_, args| on(args, i64::checked_sub)),
    function("div", 2, 2, |_, args| divided(args, i64::checked_div)),
    function("mod", 2, 2, |_, args| divided(args, i64::checked_rem)),
    function("mul", 1, ANY, |_, args| checked(args.iter().map(int).try_fold(1, i64::checked_mul))),
    function("max", 1, ANY, |_, args| Ok(Item::Int(args.iter().map(int).max().unwrap_or(0)))),
    function("biggest", 1, ANY, |_, args| Ok(Item::Int(args.iter().map(int).max().unwrap_or(0)))),
    function("min", 1, ANY, |_, args| Ok(Item::Int(args.iter().map(int).min().unwrap_or(0)))),
    function("add1f", 1, 1, |_, args| Ok(tidy(float(one(args)?) + 1.0))),
    function("addf", 0, ANY, |_, args| Ok(tidy(args.iter().map(float).sum()))),
    function("subf", 1, ANY, |_, args| folded(args, |one, two| one - two)),
    function("mulf", 1, ANY, |_, args| folded(args, |one, two| one * two)),
    function("divf", 1, ANY, |_, args| folded(args, |one, two| one / two)),
    function("maxf", 1, ANY, |_, args| folded(args, f64::max)),
    function("minf", 1, ANY, |_, args| folded(args, f64::min)),
    function("ceil", 1, 1, |_, args| Ok(Item::Float(float(one(args)?).ceil()))),
    function("floor", 1, 1, |_, args| Ok(Item::Float(float(one(args)?).floor()))),
    function("round", 2, 3, |_, args| match args {
        [value, places, rest @ ..] => {
            let on = rest.first().map_or(0.5, float);
            let scale = 10_f64.powi(i32::try_from(int(places)).unwrap_or(0).clamp(-300, 300));
            let scaled = float(value) * scale;
            let up = scaled.fract() >= on || (scaled < 0.0 && scaled.fract() > -on && scaled.fract() != 0.0);
            Ok(tidy(if up { scaled.ceil() } else { scaled.floor() } / scale))
        }
        _ => arity(),
    }),
    function("until", 1, 1, |_, args| {
        let most = int(one(args)?);
        steps(0, most, if most < 0 { -1 } else { 1 })
    }),
    function("untilStep", 3, 3, |_, args| {
        let (from, to, step) = three(args)?;
        steps(int(from), int(to), int(step))
    }),
    function("seq", 0, 3, |_, args| {
        let numbers: Vec<i64> = args.iter().map(int).collect();
        let (from, step, to) = match numbers.as_slice() {
            [to] => (1, if *to < 1 { -1 } else { 1 }, *to),
            [from, to] => (*from, if to < from { -1 } else { 1 }, *to),
            [from, step, to] if (step > &0) == (to >= from) => (*from, *step, *to),
            _ => return Ok(Item::text("")),
        };
        let items = series(from, to.saturating_add(step.signum()), step)?;
        Ok(Item::text(items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")))
    }),
];

fn checked(value: Option<i64>) -> Result<Item, String> {
    value.map(Item::Int).ok_or_else(|| "the result is too large".to_owned())
}

fn on(args: &[Item], operate: fn(i64, i64) -> Option<i64>) -> Result<Item, String> {
    let (one, two) = two(args)?;
    checked(operate(int(one), int(two)))
}

fn divided(args: &[Item], operate: fn(i64, i64) -> Option<i64>) -> Result<Item, String> {
    let (_, by) = two(args)?;
    if int(by) == 0 { Err("division by zero".to_owned()) } else { on(args, operate) }
}

fn folded(args: &[Item], operate: fn(f64, f64) -> f64) -> Result<Item, String> {
    args.iter().map(float).reduce(operate).map(tidy).ok_or_else(|| "wrong number of arguments".to_owned())
}

/// Rounds a float as decimal arithmetic would: 0.1 + 0.2 is 0.3.
fn tidy(value: f64) -> Item {
    Item::Float(format!("{value:.14e}").parse().unwrap_or(value))
}

/// Returns the numbers from `from` up to, but not including, `to`.
fn series(from: i64, to: i64, step: i64) -> Result<Vec<i64>, String> {
    let mut numbers = Vec::new();
    let mut at = from;
    while (step > 0 && at < to) || (step < 0 && at > to) {
        if numbers.len() >= MAX_MADE {
            return Err(format!("the list would have more than {MAX_MADE} numbers"));
        }
        numbers.push(at);
        let Some(next) = at.checked_add(step) else { break };
        at = next;
    }
    Ok(numbers)
}

fn steps(from: i64, to: i64, step: i64) -> Result<Item, String> {
    Item::list(series(from, to, step)?.into_iter().map(Item::Int).collect())
}
