//! The values of Go templates.
//!
//! Lists never change. Maps change through `set`, and all holders of a map see the change, as in Go.
//! A map can't contain itself, and the nesting is limited, so a walk over a value ends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Number, Value};

use crate::model::budget::VALUE_WEIGHT;
use crate::template::functions::gotime::{self, RFC3339_NANO, Time};
use crate::template::functions::limits::{MAX_VALUE_DEPTH, nested_too_deep};
use crate::template::functions::print::float_text;

/// The pairs of a map, in the order of their keys.
pub(super) type Pairs = BTreeMap<Rc<str>, GoValue>;

/// A value.
#[derive(Debug, Clone)]
pub(super) enum GoValue {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    List(Rc<GoList>),
    Map(Rc<GoMap>),
    Time(Rc<Time>),
}

#[derive(Debug)]
pub(super) struct GoList {
    pub(super) items: Vec<GoValue>,
    depth: usize,
}

#[derive(Debug)]
pub(super) struct GoMap {
    pairs: RefCell<Pairs>,
    depth: usize,
    origin: MapOrigin,
}

/// The origin of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MapOrigin {
    /// Created by a template, which may change the map.
    Made,
    /// From outside the template: read-only.
    Given,
    /// The environment: a missing key is the empty text.
    Environ,
}

/// Counts the cost of a template.
pub(super) trait CostMeter {
    /// Consumes `steps`.
    ///
    /// # Errors
    /// Too few steps are left.
    fn consume_steps(&self, steps: usize) -> Result<(), String>;

    /// Charges for `bytes` of memory before their allocation.
    ///
    /// # Errors
    /// The budget is exhausted.
    fn charge_memory(&self, bytes: usize) -> Result<(), String>;
}

fn nesting_depth<'a>(items: impl Iterator<Item = &'a GoValue>) -> Result<usize, String> {
    let depth = 1 + items.map(GoValue::depth).max().unwrap_or(0);
    if depth > MAX_VALUE_DEPTH { Err(nested_too_deep()) } else { Ok(depth) }
}

impl GoMap {
    /// Returns the value of a key, or `None` when the key is missing.
    pub(super) fn get(&self, key: &str) -> Option<GoValue> {
        let found = self.pairs.borrow().get(key).cloned();
        found.or_else(|| (self.origin == MapOrigin::Environ).then(|| GoValue::text("")))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.pairs.borrow().contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.pairs.borrow().len()
    }

    /// Returns a copy of the pairs.
    pub(super) fn pairs(&self) -> Pairs {
        self.pairs.borrow().clone()
    }

    /// Sets a key, or removes the key without a value.
    pub(super) fn set(self: &Rc<Self>, key: &str, value: Option<GoValue>, fuel: &dyn CostMeter) -> Result<(), String> {
        if self.origin != MapOrigin::Made {
            return Err("facts, data and environ can't be changed; change a copy: $copy := deepCopy .data".to_owned());
        }
        match value {
            Some(value) => {
                value.check_nesting(self, 1, fuel)?;
                self.pairs.borrow_mut().insert(Rc::from(key), value);
            }
            None => {
                self.pairs.borrow_mut().remove(key);
            }
        }
        Ok(())
    }
}

impl GoValue {
    pub(super) fn text(text: impl AsRef<str>) -> Self {
        Self::Text(Rc::from(text.as_ref()))
    }

    pub(super) fn list(items: Vec<Self>) -> Result<Self, String> {
        let depth = nesting_depth(items.iter())?;
        Ok(Self::List(Rc::new(GoList { items, depth })))
    }

    /// Creates a list of texts.
    pub(super) fn texts<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, String> {
        Self::list(texts.into_iter().map(Self::text).collect())
    }

    pub(super) fn map(pairs: Pairs) -> Result<Self, String> {
        Self::map_of(pairs, MapOrigin::Made)
    }

    pub(super) fn map_of(pairs: Pairs, nature: MapOrigin) -> Result<Self, String> {
        let depth = nesting_depth(pairs.values())?;
        Ok(Self::Map(Rc::new(GoMap { pairs: RefCell::new(pairs), depth, origin: nature })))
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Map(map) => map.depth,
            _ => 0,
        }
    }

    /// Refuses to store a value below `above` when it contains `above` or is nested too deep.
    fn check_nesting(&self, above: &Rc<GoMap>, depth: usize, fuel: &dyn CostMeter) -> Result<(), String> {
        fuel.consume_steps(1)?;
        if depth > MAX_VALUE_DEPTH {
            return Err(nested_too_deep());
        }
        match self {
            Self::List(list) => list.items.iter().try_for_each(|item| item.check_nesting(above, depth + 1, fuel)),
            Self::Map(map) if Rc::ptr_eq(map, above) => Err("a map can't hold itself".to_owned()),
            Self::Map(map) => map.pairs.borrow().values().try_for_each(|item| item.check_nesting(above, depth + 1, fuel)),
            _ => Ok(()),
        }
    }

    /// True unless the value is nil, false, 0, or an empty text, list or map.
    pub(super) fn is_truthy(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => map.len() > 0,
            Self::Time(_) => true,
        }
    }

    /// Returns Go's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "<nil>",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
            Self::List(_) => "[]interface {}",
            Self::Map(_) => "map[string]interface {}",
            Self::Time(_) => "time.Time",
        }
    }

    /// Returns Go's name of the kind.
    pub(super) fn kind_name(&self) -> &'static str {
        match self {
            Self::Nil => "invalid",
            Self::List(_) => "slice",
            Self::Map(_) => "map",
            Self::Time(_) => "struct",
            other => other.type_name(),
        }
    }

    /// Returns the value as Go prints it with `%v`.
    pub(super) fn to_text(&self, fuel: &dyn CostMeter) -> Result<Rc<str>, String> {
        if let Self::Text(text) = self {
            return Ok(Rc::clone(text));
        }
        let mut out = String::new();
        self.push_text(&mut out, fuel)?;
        Ok(Rc::from(out))
    }

    /// Appends the value to `out` as Go prints it with `%v`.
    pub(super) fn push_text(&self, out: &mut String, fuel: &dyn CostMeter) -> Result<(), String> {
        fuel.consume_steps(1)?;
        match self {
            Self::Nil => out.push_str("<nil>"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(value) => out.push_str(&value.to_string()),
            Self::Float(value) => out.push_str(&float_text(*value)),
            Self::Text(text) => {
                fuel.consume_steps(text.len() / 16)?;
                fuel.charge_memory(text.len())?;
                out.push_str(text);
            }
            Self::Time(time) => out.push_str(&time.to_string()),
            Self::List(list) => {
                out.push('[');
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        out.push(' ');
                    }
                    item.push_text(out, fuel)?;
                }
                out.push(']');
            }
            Self::Map(map) => {
                out.push_str("map[");
                for (index, (key, item)) in map.pairs.borrow().iter().enumerate() {
                    if index > 0 {
                        out.push(' ');
                    }
                    out.push_str(key);
                    out.push(':');
                    item.push_text(out, fuel)?;
                }
                out.push(']');
            }
        }
        Ok(())
    }

    /// Converts JSON; all maps get the origin `nature`.
    pub(super) fn from_json(value: &Value, nature: MapOrigin) -> Result<Self, String> {
        Ok(match value {
            Value::Null => Self::Nil,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => match number.as_i64() {
                Some(whole) => Self::Int(whole),
                None => Self::Float(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => Self::text(text),
            Value::Array(items) => Self::list(items.iter().map(|item| Self::from_json(item, nature)).collect::<Result<_, _>>()?)?,
            Value::Object(map) => {
                let pairs = map.iter().map(|(key, item)| Ok((Rc::from(key.as_str()), Self::from_json(item, nature)?)));
                Self::map_of(pairs.collect::<Result<_, String>>()?, nature)?
            }
        })
    }

    /// Converts to JSON.
    pub(super) fn to_json(&self, fuel: &dyn CostMeter) -> Result<Value, String> {
        fuel.consume_steps(1)?;
        fuel.charge_memory(VALUE_WEIGHT)?;
        Ok(match self {
            Self::Nil => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(value) => Value::from(*value),
            // As in Go's JSON: an integral float has no point.
            Self::Float(value) => {
                to_integer(*value).map_or_else(|| Number::from_f64(*value).map_or(Value::Null, Value::Number), Value::from)
            }
            Self::Text(text) => {
                fuel.consume_steps(text.len() / 16)?;
                fuel.charge_memory(text.len())?;
                Value::from(text.as_ref())
            }
            Self::Time(time) => Value::from(gotime::format(time, RFC3339_NANO)),
            Self::List(list) => Value::Array(list.items.iter().map(|item| item.to_json(fuel)).collect::<Result<_, _>>()?),
            Self::Map(map) => {
                let pairs = map.pairs.borrow();
                let pairs = pairs.iter().map(|(key, item)| Ok((key.to_string(), item.to_json(fuel)?)));
                Value::Object(pairs.collect::<Result<Map<_, _>, String>>()?)
            }
        })
    }

    /// Returns a deep copy, which a template may change.
    pub(super) fn deep_copy(&self, fuel: &dyn CostMeter) -> Result<Self, String> {
        fuel.consume_steps(1)?;
        match self {
            Self::List(list) => Self::list(list.items.iter().map(|item| item.deep_copy(fuel)).collect::<Result<_, _>>()?),
            Self::Map(map) => {
                let pairs = map.pairs.borrow();
                let pairs = pairs.iter().map(|(key, item)| Ok((Rc::clone(key), item.deep_copy(fuel)?)));
                Self::map(pairs.collect::<Result<_, String>>()?)
            }
            other => Ok(other.clone()),
        }
    }

    /// Compares two values with all their items; numbers by value, whatever their type.
    pub(super) fn equals(&self, other: &Self, fuel: &dyn CostMeter) -> Result<bool, String> {
        fuel.consume_steps(1)?;
        Ok(match (self, other) {
            (Self::Nil, Self::Nil) => true,
            (Self::Bool(one), Self::Bool(two)) => one == two,
            (Self::Text(one), Self::Text(two)) => one == two,
            (Self::Time(one), Self::Time(two)) => one == two,
            (Self::List(one), Self::List(two)) => {
                if one.items.len() != two.items.len() {
                    return Ok(false);
                }
                for (one, two) in one.items.iter().zip(&two.items) {
                    if !one.equals(two, fuel)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Map(one), Self::Map(two)) => {
                let (one, two) = (one.pairs.borrow(), two.pairs.borrow());
                if one.len() != two.len() {
                    return Ok(false);
                }
                for ((key, one), (other, two)) in one.iter().zip(two.iter()) {
                    if key != other || !one.equals(two, fuel)? {
                        return Ok(false);
                    }
                }
                true
            }
            _ => match (self.number(), other.number()) {
                (Some(one), Some(two)) => one.cmp(&two).is_eq(),
                _ => false,
            },
        })
    }

    /// Returns the value of a number.
    pub(super) fn number(&self) -> Option<Numeric> {
        match self {
            Self::Int(value) => Some(Numeric::Int(*value)),
            Self::Float(value) => Some(Numeric::Float(*value)),
            _ => None,
        }
    }
}

/// Returns a float without a fraction as an integer.
pub(super) fn to_integer(value: f64) -> Option<i64> {
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    let fits = value.fract() == 0.0 && value.abs() <= LIMIT;
    fits.then(|| format!("{value:.0}").parse().ok()).flatten()
}

/// An integer or a float.
#[derive(Debug, Clone, Copy)]
pub(super) enum Numeric {
    Int(i64),
    Float(f64),
}

impl Numeric {
    pub(super) fn float(self) -> f64 {
        match self {
            // With a fraction on either side, the nearest float decides.
            #[expect(clippy::cast_precision_loss, reason = "the nearest float is meant")]
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    pub(super) fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        match (self, other) {
            (Self::Int(one), Self::Int(two)) => one.cmp(two),
            _ => self.float().total_cmp(&other.float()),
        }
    }
}
