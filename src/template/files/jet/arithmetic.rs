//! Arithmetic in Jet: integers from data and facts, and floats, which all literals are.
//!
//! The left operand decides: two integers give an integer, anything else a float. A text on the right is parsed as a number.

use serde_json::Value;

use crate::template::functions::print::{float_text, truncate};

/// Returns a number as an index or a count, without its fraction.
pub(super) fn to_integer(value: &Value) -> Option<i64> {
    match value.as_i64() {
        None => value.as_f64().map(truncate),
        whole => whole,
    }
}

/// Returns a float as a value; NaN and infinity become texts.
fn float(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| Value::String(float_text(value)), Value::Number)
}

/// The two operands of an operator.
enum Operands {
    Whole(i64, i64),
    Float(f64, f64),
}

fn operands(sign: &str, args: &[Value]) -> Result<Operands, String> {
    let [left, right] = args else { return Err(format!("{sign} takes two operands")) };
    if !left.is_number() {
        return Err(format!("{sign} takes numbers, but its left side is not a number"));
    }
    let wrong = || format!("{sign} takes numbers, but its right side is not a number");
    let right = match right {
        Value::String(digits) => match (left.as_i64(), digits.parse::<i64>()) {
            (Some(_), Ok(whole)) => Value::from(whole),
            (Some(_), Err(_)) => return Err(wrong()),
            (None, _) => digits.parse().map(float).map_err(|_| wrong())?,
        },
        number if number.is_number() => number.clone(),
        _ => return Err(wrong()),
    };
    match (left.as_i64(), right.as_i64()) {
        (Some(left), Some(right)) => Ok(Operands::Whole(left, right)),
        _ => left.as_f64().zip(right.as_f64()).map(|(left, right)| Operands::Float(left, right)).ok_or_else(wrong),
    }
}

fn operate(sign: &str, args: &[Value], whole: fn(i64, i64) -> Option<i64>, floats: fn(f64, f64) -> f64) -> Result<Value, String> {
    match operands(sign, args)? {
        Operands::Whole(_, 0) if sign == "/" => Err("division by zero".to_owned()),
        Operands::Whole(left, right) => {
            whole(left, right).map(Value::from).ok_or_else(|| format!("{sign}: the result is too large"))
        }
        Operands::Float(left, right) => Ok(float(floats(left, right))),
    }
}

/// `a + b`, where `a` is not a text.
pub(super) fn plus(args: &[Value]) -> Result<Value, String> {
    operate("+", args, i64::checked_add, |left, right| left + right)
}

/// `a - b`
pub(super) fn minus(args: &[Value]) -> Result<Value, String> {
    operate("-", args, i64::checked_sub, |left, right| left - right)
}

/// `a * b`
pub(super) fn times(args: &[Value]) -> Result<Value, String> {
    operate("*", args, i64::checked_mul, |left, right| left * right)
}

/// `a / b`
pub(super) fn div(args: &[Value]) -> Result<Value, String> {
    operate("/", args, i64::checked_div, |left, right| left / right)
}

/// `a % b`, always an integer.
pub(super) fn rem(args: &[Value]) -> Result<Value, String> {
    let (left, right) = match operands("%", args)? {
        Operands::Whole(left, right) => (left, right),
        Operands::Float(left, right) => (truncate(left), truncate(right)),
    };
    left.checked_rem(right).map(Value::from).ok_or_else(|| "division by zero".to_owned())
}

/// `-a` and `+a`
pub(super) fn signed(args: &[Value]) -> Result<Value, String> {
    let [Value::String(sign), number] = args else { return Err("a sign takes one number".to_owned()) };
    let negative = sign == "-";
    match (number.as_i64(), number.as_f64()) {
        (Some(whole), _) if negative => whole.checked_neg().map(Value::from).ok_or_else(|| "the number is too large".to_owned()),
        (None, Some(value)) if negative => Ok(float(-value)),
        (Some(_), _) | (_, Some(_)) => Ok(number.clone()),
        _ => Err(format!("{sign} takes a number")),
    }
}
