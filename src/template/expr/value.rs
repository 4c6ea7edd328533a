//! Values of expressions.

use std::cmp::Ordering;
use std::fmt::{self, Write as _};

use indexmap::IndexMap;
use serde_json::{Number, Value as Json};

use crate::template::functions::gotime::{Location, Time, format_duration, month_name, weekday_name};
use crate::template::functions::print;

/// A value of an expression.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::template) enum Value {
    #[default]
    Nil,
    Bool(bool),
    Integer(i64),
    Float(f64),
    String(String),
    Bytes(Vec<u8>),
    Array(Vec<Self>),
    Map(IndexMap<String, Self>),
    /// A map with keys of any type, from `groupBy` and `fromPairs`.
    KeyedMap(Vec<(Self, Self)>),
    Time(Box<Time>),
    /// A duration in nanoseconds.
    Duration(i64),
    Location(Box<Location>),
    /// A month, from 1.
    Month(i8),
    /// A weekday, from Sunday as 0.
    Weekday(i8),
}

impl Value {
    pub(super) fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// The bytes of a text or of bytes.
    pub(super) fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::String(text) => Some(text.as_bytes()),
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A number as a float.
    pub(super) fn to_float(&self) -> Option<f64> {
        match self {
            // The nearest float, as Go converts.
            #[expect(clippy::cast_precision_loss, reason = "numbers beyond 2^53 are rounded in Go too")]
            Self::Integer(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// A number as an integer, without its fraction.
    pub(super) fn to_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            // Go on amd64 gives the smallest integer for a float beyond the limits.
            Self::Float(value) if !(-9.3e18..9.3e18).contains(value) => Some(i64::MIN),
            Self::Float(value) => Some(print::truncate(*value)),
            _ => None,
        }
    }

    /// The order of two values; none when their types have no order.
    pub(super) fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) | (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            (Self::String(a), Self::String(b)) => Some(a.cmp(b)),
            (Self::Time(a), Self::Time(b)) => a.partial_cmp(b),
            _ => self.to_float()?.partial_cmp(&other.to_float()?),
        }
    }

    /// The name of the type, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "<nil>",
            Self::Bool(_) => "bool",
            Self::Integer(_) => "int",
            Self::Float(_) => "float64",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Array(_) => "list",
            Self::Map(_) | Self::KeyedMap(_) => "map",
            Self::Time(_) | Self::Duration(_) | Self::Location(_) | Self::Month(_) | Self::Weekday(_) => "time",
        }
    }

    /// Converts to JSON. Times, durations and zones become texts; bytes become a list of numbers.
    pub(super) fn into_json(self) -> Json {
        match self {
            Self::Nil => Json::Null,
            Self::Bool(value) => Json::Bool(value),
            Self::Integer(value) => Json::from(value),
            Self::Float(value) => Number::from_f64(value).map_or_else(|| Json::String(print::float_text(value)), Json::Number),
            Self::String(text) => Json::String(text),
            Self::Bytes(bytes) => Json::from(bytes),
            Self::Array(items) => items.into_iter().map(Self::into_json).collect(),
            Self::Map(map) => map.into_iter().map(|(key, value)| (key, value.into_json())).collect(),
            Self::KeyedMap(pairs) => pairs.into_iter().map(|(key, value)| (key.to_string(), value.into_json())).collect(),
            other => Json::String(other.to_string()),
        }
    }
}

/// Writes a value as Go's `%v` does.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => time.fmt(f),
            Self::Duration(nanoseconds) => f.write_str(&format_duration(*nanoseconds)),
            Self::Location(location) => f.write_str(&location.name),
            Self::Month(month) => f.write_str(month_name(*month)),
            Self::Weekday(day) => f.write_str(weekday_name(*day)),
            Self::Float(value) => f.write_str(&print::float_text(*value)),
            Self::Nil => f.write_str("<nil>"),
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::String(text) => f.write_str(text),
            Self::Bytes(bytes) => write_list(f, bytes),
            Self::Array(items) => write_list(f, items),
            Self::Map(map) => {
                let mut pairs: Vec<_> = map.iter().collect();
                pairs.sort_unstable_by_key(|(key, _)| key.as_str());
                write_map(f, pairs)
            }
            Self::KeyedMap(pairs) => {
                let mut pairs: Vec<_> = pairs.iter().map(|(key, value)| (key, value)).collect();
                pairs.sort_by(|(a, _), (b, _)| a.compare(b).unwrap_or_else(|| a.to_string().cmp(&b.to_string())));
                write_map(f, pairs)
            }
        }
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display]) -> fmt::Result {
    f.write_char('[')?;
    for (index, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if index > 0 { " " } else { "" })?;
    }
    f.write_char(']')
}

fn write_map<K: fmt::Display>(f: &mut fmt::Formatter<'_>, pairs: Vec<(K, &Value)>) -> fmt::Result {
    f.write_str("map[")?;
    for (index, (key, value)) in pairs.into_iter().enumerate() {
        write!(f, "{}{key}:{value}", if index > 0 { " " } else { "" })?;
    }
    f.write_char(']')
}

impl From<&Json> for Value {
    fn from(value: &Json) -> Self {
        match value {
            Json::Null => Self::Nil,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => {
                number.as_i64().map_or_else(|| Self::Float(number.as_f64().unwrap_or(f64::NAN)), Self::Integer)
            }
            Json::String(text) => Self::String(text.clone()),
            Json::Array(items) => Self::Array(items.iter().map(Self::from).collect()),
            Json::Object(map) => map.iter().map(|(key, value)| (key.clone(), Self::from(value))).collect(),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl FromIterator<(String, Self)> for Value {
    fn from_iter<I: IntoIterator<Item = (String, Self)>>(pairs: I) -> Self {
        Self::Map(pairs.into_iter().collect())
    }
}
