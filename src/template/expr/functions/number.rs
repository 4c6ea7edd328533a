//! Functions on numbers.

use std::cmp::Ordering;

use super::call_error::CallError;
use crate::model::EvaluationBudget;
use crate::template::expr::value::Value;
use crate::template::functions::print::truncate;

pub(super) fn abs(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    match args {
        [Value::Integer(value)] => Ok(Value::Integer(value.wrapping_abs())),
        [Value::Float(value)] => Ok(Value::Float(value.abs())),
        _ => Err(CallError::Arguments),
    }
}

/// Maps the one number that a function takes, as a float.
pub(super) fn map_float(args: &[Value], map: fn(f64) -> f64) -> Result<Value, CallError> {
    let [number] = args else { return Err(CallError::Arguments) };
    number.to_float().map(|number| Value::Float(map(number))).ok_or(CallError::Arguments)
}

pub(super) fn bitwise(args: &[Value], combine: fn(i64, i64) -> i64) -> Result<Value, CallError> {
    let [Value::Integer(a), Value::Integer(b)] = args else { return Err(CallError::Arguments) };
    Ok(Value::Integer(combine(*a, *b)))
}

pub(super) fn bitnot(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let [Value::Integer(value)] = args else { return Err(CallError::Arguments) };
    Ok(Value::Integer(!value))
}

pub(super) fn shift(args: &[Value], shift: fn(i64, u32) -> i64) -> Result<Value, CallError> {
    let [Value::Integer(value), Value::Integer(count)] = args else { return Err(CallError::Arguments) };
    if *count < 0 {
        return Err(CallError::Failed(format!("invalid operation: negative shift count {count}")));
    }
    Ok(Value::Integer(shift(*value, u32::try_from(*count).unwrap_or(u32::MAX))))
}

/// Collects the numbers of the arguments and of lists in them; at least one argument is required.
fn numbers(args: &[Value]) -> Result<Vec<&Value>, CallError> {
    let (mut found, mut left): (Vec<_>, Vec<_>) = (Vec::new(), args.iter().rev().collect());
    if args.is_empty() {
        return Err(CallError::Arguments);
    }
    while let Some(value) = left.pop() {
        match value {
            Value::Integer(_) | Value::Float(_) => found.push(value),
            Value::Array(items) => left.extend(items.iter().rev()),
            _ => return Err(CallError::Arguments),
        }
    }
    Ok(found)
}

fn floats(args: &[Value]) -> Result<Vec<f64>, CallError> {
    Ok(numbers(args)?.into_iter().filter_map(Value::to_float).collect())
}

/// The largest or the smallest number; nil without numbers.
pub(super) fn extreme(args: &[Value], wanted: Ordering) -> Result<Value, CallError> {
    let best = numbers(args)?.into_iter().reduce(|best, next| if exact_order(next, best) == wanted { next } else { best });
    Ok(best.cloned().unwrap_or_default())
}

/// Compares numbers without rounding an integer to a float.
fn exact_order(a: &Value, b: &Value) -> Ordering {
    // 2^63: a float from here on is larger than every integer.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    match (a, b) {
        (Value::Integer(integer), Value::Float(float)) if (-LIMIT..LIMIT).contains(float) => {
            integer.cmp(&truncate(*float)).then_with(|| 0.0.partial_cmp(&float.fract()).unwrap_or(Ordering::Equal))
        }
        (Value::Float(_), Value::Integer(_)) => exact_order(b, a).reverse(),
        _ => a.compare(b).unwrap_or(Ordering::Equal),
    }
}

pub(super) fn mean(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let numbers = floats(args)?;
    #[expect(clippy::cast_precision_loss, reason = "a list that fits into memory is shorter than 2^53")]
    let length = numbers.len().max(1) as f64;
    Ok(Value::Float(numbers.iter().fold(0.0, |sum, number| sum + number) / length))
}

pub(super) fn median(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let mut numbers = floats(args)?;
    numbers.sort_by(f64::total_cmp);
    let at = |index: usize| numbers.get(index).copied().unwrap_or_default();
    let middle = numbers.len() / 2;
    let is_even = numbers.len().is_multiple_of(2);
    Ok(Value::Float(if is_even { f64::midpoint(at(middle.saturating_sub(1)), at(middle)) } else { at(middle) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_are_exact_beyond_the_precision_of_floats() {
        let (integer, float) = (Value::Integer(9_007_199_254_740_993), Value::Float(9_007_199_254_740_992.0));
        let pick = |wanted| extreme(&[float.clone(), integer.clone()], wanted).ok();
        assert_eq!((pick(Ordering::Greater), pick(Ordering::Less)), (Some(integer.clone()), Some(float.clone())));
        for (a, b, expected) in [(1, 1.5, Ordering::Less), (-1, -1.5, Ordering::Greater), (i64::MAX, 1e300, Ordering::Less)] {
            assert_eq!(exact_order(&Value::Integer(a), &Value::Float(b)), expected);
            assert_eq!(exact_order(&Value::Float(b), &Value::Integer(a)), expected.reverse());
        }
    }
}
