//! Functions on texts.

use super::call_error::CallError;
use crate::model::EvaluationBudget;
use crate::template::expr::value::Value;

/// The most repetitions of a text, as in the Go library.
const MAX_REPEAT: i64 = 1_000_000;
/// The most bytes of a repeated text, as in the Go library.
const MAX_REPEATED: usize = 64 << 20;

/// Maps the one text that a function takes.
pub(super) fn map_text(args: &[Value], map: fn(&str) -> String) -> Result<Value, CallError> {
    let [Value::String(text)] = args else { return Err(CallError::Arguments) };
    Ok(Value::String(map(text)))
}

/// Compares a text with a part.
pub(super) fn compare(args: &[Value], compare: fn(&str, &str) -> Value) -> Result<Value, CallError> {
    let [Value::String(text), Value::String(part)] = args else { return Err(CallError::Arguments) };
    Ok(compare(text, part))
}

/// Converts an index to a value; -1 means none.
pub(super) fn index_value(index: Option<usize>) -> Value {
    index.map_or(Value::Integer(-1), Value::from)
}

pub(super) fn trim(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    match args {
        [Value::String(text)] => Ok(text.trim().into()),
        [Value::String(text), Value::String(set)] => Ok(text.trim_matches(|c| set.contains(c)).into()),
        _ => Err(CallError::Arguments),
    }
}

/// Strips a part from an end of a text. The part is a blank when the call has no part.
pub(super) fn strip(args: &[Value], strip: for<'t> fn(&'t str, &str) -> Option<&'t str>) -> Result<Value, CallError> {
    let (text, part) = match args {
        [Value::String(text)] => (text, " "),
        [Value::String(text), Value::String(part)] => (text, part.as_str()),
        _ => return Err(CallError::Arguments),
    };
    Ok(strip(text, part).unwrap_or(text).into())
}

pub(super) fn replace(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let (text, from, to, count) = match args {
        [Value::String(text), Value::String(from), Value::String(to)] => (text, from, to, -1),
        [Value::String(text), Value::String(from), Value::String(to), Value::Integer(count)] => (text, from, to, *count),
        _ => return Err(CallError::Arguments),
    };
    Ok(Value::String(usize::try_from(count).map_or_else(|_| text.replace(from, to), |count| text.replacen(from, to, count))))
}

/// Splits as Go's `SplitN`: at most so many parts, all for a number below zero, none for zero. An empty separator splits
/// between characters.
pub(super) fn split(args: &[Value], keep: bool) -> Result<Value, CallError> {
    let (text, separator, most) = match args {
        [Value::String(text), Value::String(separator)] => (text, separator, -1),
        [Value::String(text), Value::String(separator), most] => {
            (text, separator, most.to_integer().ok_or(CallError::Arguments)?)
        }
        _ => return Err(CallError::Arguments),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut rest = text.as_str();
    while parts.len() + 1 < most {
        let end = if separator.is_empty() { rest.chars().next().map(char::len_utf8) } else { rest.find(separator.as_str()) };
        let Some(end) = end.filter(|end| !separator.is_empty() || *end < rest.len()) else { break };
        let (part, behind) = rest.split_at(end + if keep { separator.len() } else { 0 });
        parts.push(part.into());
        rest = if keep { behind } else { behind.strip_prefix(separator.as_str()).unwrap_or(behind) };
    }
    if most > 0 && !(separator.is_empty() && rest.is_empty()) {
        parts.push(rest.into());
    }
    Ok(Value::Array(parts))
}

pub(super) fn repeat(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let [Value::String(text), times] = args else { return Err(CallError::Arguments) };
    let times = times.to_integer().ok_or(CallError::Arguments)?;
    let count =
        usize::try_from(times).map_err(|_| format!("invalid argument for repeat (expected positive integer, got {times})"))?;
    if times > MAX_REPEAT || text.len().saturating_mul(count) > MAX_REPEATED {
        return Err(CallError::Failed("memory budget exceeded".to_owned()));
    }
    Ok(Value::String(text.repeat(count)))
}

pub(super) fn join(args: &[Value], _: &EvaluationBudget) -> Result<Value, CallError> {
    let (items, glue) = match args {
        [Value::Array(items)] => (items, ""),
        [Value::Array(items), Value::String(glue)] => (items, glue.as_str()),
        _ => return Err(CallError::Arguments),
    };
    let text = |item: &Value| {
        let refused = || format!("join requires texts, got {}: map(list, string(#)) makes texts", item.kind());
        item.as_str().map(str::to_owned).ok_or_else(refused)
    };
    Ok(Value::String(items.iter().map(text).collect::<Result<Vec<_>, _>>()?.join(glue)))
}
