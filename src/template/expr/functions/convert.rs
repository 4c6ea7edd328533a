//! Functions that convert a value to another type, and that name its type.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::call_error::CallError;
use crate::model::EvaluationBudget;
use crate::template::expr::value::Value;
use crate::template::functions::gotime::{self, RFC3339_NANO};
use crate::template::functions::json;

fn one_text(args: &[Value]) -> Result<&str, CallError> {
    if let [Value::String(text)] = args { Ok(text) } else { Err(CallError::Arguments) }
}

pub(super) fn kind(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    Ok(Value::from(match args {
        [Value::Nil] => "nil",
        [Value::Bool(_)] => "bool",
        [Value::Integer(_)] => "int",
        [Value::Float(_)] => "float",
        [Value::String(_)] => "string",
        [Value::Array(_) | Value::Bytes(_)] => "array",
        [Value::Map(_) | Value::KeyedMap(_)] => "map",
        [Value::Time(_)] => "time.Time",
        [Value::Duration(_)] => "time.Duration",
        [Value::Month(_)] => "time.Month",
        [Value::Weekday(_)] => "time.Weekday",
        [Value::Location(_)] => "time.Location",
        _ => return Err(CallError::Arguments),
    }))
}

pub(super) fn int(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let number = match args {
        [Value::Month(number) | Value::Weekday(number)] => Some(i64::from(*number)),
        [Value::Duration(number)] => Some(*number),
        [Value::String(text)] => text.parse().ok(),
        [number] => number.to_integer(),
        _ => return Err(CallError::Arguments),
    };
    number.map(Value::Integer).ok_or_else(|| unconvertible("int", args))
}

pub(super) fn float(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let number = match args {
        [Value::String(text)] => text.parse().ok(),
        [number] => number.to_float(),
        _ => return Err(CallError::Arguments),
    };
    number.map(Value::Float).ok_or_else(|| unconvertible("float", args))
}

fn unconvertible(name: &str, args: &[Value]) -> CallError {
    let shown = args.first().map_or_else(String::new, |value| value.as_str().unwrap_or(value.kind()).to_owned());
    CallError::Failed(format!("invalid operation: {name}({shown})"))
}

pub(super) fn string(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    if let [value] = args { Ok(Value::String(value.to_string())) } else { Err(CallError::Arguments) }
}

pub(super) fn to_base64(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    Ok(Value::String(STANDARD.encode(one_text(args)?)))
}

pub(super) fn from_base64(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let bytes = STANDARD.decode(one_text(args)?).map_err(|error| format!("cannot decode Base64: {error}"))?;
    Ok(Value::String(String::from_utf8(bytes).map_err(|error| format!("the decoded Base64 is not UTF-8: {error}"))?))
}

pub(super) fn to_json(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    if let [value] = args { Ok(Value::String(json::indented(&to_go_json(value)))) } else { Err(CallError::Arguments) }
}

/// Converts a value to JSON as Go does: times by RFC 3339, durations in nanoseconds, bytes in Base64.
fn to_go_json(value: &Value) -> Json {
    match value {
        Value::Array(items) => items.iter().map(to_go_json).collect(),
        Value::Map(map) => map.iter().map(|(key, item)| (key.clone(), to_go_json(item))).collect(),
        Value::Duration(nanoseconds) => Json::from(*nanoseconds),
        Value::Month(number) | Value::Weekday(number) => Json::from(*number),
        Value::Bytes(bytes) => Json::from(STANDARD.encode(bytes)),
        Value::Time(time) => Json::from(gotime::format(time, RFC3339_NANO)),
        other => other.clone().into_json(),
    }
}

pub(super) fn from_json(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let value: Json = serde_json::from_str(one_text(args)?).map_err(|error| error.to_string())?;
    Ok(with_float_numbers(Value::from(&value)))
}

/// Converts all numbers to floats, as Go decodes JSON.
fn with_float_numbers(value: Value) -> Value {
    match value {
        Value::Integer(_) => value.to_float().map_or(value, Value::Float),
        Value::Array(items) => Value::Array(items.into_iter().map(with_float_numbers).collect()),
        Value::Map(map) => map.into_iter().map(|(key, item)| (key, with_float_numbers(item))).collect(),
        other => other,
    }
}
