//! JSON values in the shape of a type, and where they are not.
//!
//! The path of an error is put together while the error goes up, so what is right costs nothing, and a type is read by one
//! copy of its code: with a reader that keeps the path in mind, beside one that is fast, two copies of each would be 5 % of
//! the program.
//!
//! In: values that [`json`](super::json) or a manifest gave. Out: what the types say they are. It means what
//! `serde_json::from_value` means.

use std::fmt;

use serde::Deserialize;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, IntoDeserializer as _, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde_json::{Map, Number, Value};

/// A value that has not the shape of a type: where, and serde's words.
#[derive(Debug)]
pub struct Mismatch(Box<Inner>);

#[derive(Debug)]
struct Inner {
    /// The innermost step first.
    steps: Vec<Step>,
    source: serde_json::Error,
}

#[derive(Debug)]
enum Step {
    Key(String),
    Index(usize),
}

impl Mismatch {
    /// Where, as `action.ensure.type` or `files[2]`; `.` is the top.
    pub fn path(&self) -> String {
        let mut path = String::new();
        for step in self.0.steps.iter().rev() {
            match step {
                Step::Index(index) => path.extend(["[", &index.to_string(), "]"]),
                Step::Key(key) if path.is_empty() => path.push_str(key),
                Step::Key(key) => path.extend([".", key]),
            }
        }
        if path.is_empty() { ".".to_owned() } else { path }
    }

    /// What is wrong.
    pub fn inner(&self) -> &serde_json::Error {
        &self.0.source
    }

    /// What is wrong.
    pub fn into_inner(self) -> serde_json::Error {
        self.0.source
    }

    fn below(mut self, step: Step) -> Self {
        self.0.steps.push(step);
        self
    }
}

impl From<serde_json::Error> for Mismatch {
    fn from(source: serde_json::Error) -> Self {
        Self(Box::new(Inner { steps: Vec::new(), source }))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.steps.is_empty() {
            write!(to, "{}: ", self.path())?;
        }
        self.0.source.fmt(to)
    }
}

impl std::error::Error for Mismatch {}

impl serde::de::Error for Mismatch {
    fn custom<T: fmt::Display>(message: T) -> Self {
        serde_json::Error::custom(message).into()
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        serde_json::Error::invalid_type(found, wanted).into()
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        serde_json::Error::invalid_value(found, wanted).into()
    }
}

/// Reads a value.
///
/// # Errors
/// When the value has not the shape of `T`.
pub fn read<'de, T: Deserialize<'de>>(value: &'de Value) -> Result<T, Mismatch> {
    T::deserialize(Shape(value))
}

/// Reads a map.
///
/// # Errors
/// When the map has not the shape of `T`.
pub fn read_map<'de, T: Deserialize<'de>>(map: &'de Map<String, Value>) -> Result<T, Mismatch> {
    T::deserialize(Fields(map))
}

/// A value that is being read.
#[derive(Clone, Copy)]
struct Shape<'de>(&'de Value);

impl<'de> Shape<'de> {
    fn other<T>(self, wanted: &dyn Expected) -> Result<T, Mismatch> {
        Err(Mismatch::invalid_type(unexpected(self.0), wanted))
    }

    fn number<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if let Value::Number(value) = self.0 { number(value, visitor) } else { self.other(&visitor) }
    }

    fn text<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if let Value::String(text) = self.0 { visitor.visit_borrowed_str(text) } else { self.other(&visitor) }
    }

    fn array<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if let Value::Array(items) = self.0 { array(items, visitor) } else { self.other(&visitor) }
    }

    fn unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if self.0.is_null() { visitor.visit_unit() } else { self.other(&visitor) }
    }
}

fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Unexpected::Unsigned(value),
            (None, Some(value)) => Unexpected::Signed(value),
            (None, None) => Unexpected::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}

fn number<'de, V: Visitor<'de>>(number: &Number, visitor: V) -> Result<V::Value, Mismatch> {
    match (number.as_u64(), number.as_i64()) {
        (Some(value), _) => visitor.visit_u64(value),
        (None, Some(value)) => visitor.visit_i64(value),
        (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
    }
}

fn array<'de, V: Visitor<'de>>(items: &'de [Value], visitor: V) -> Result<V::Value, Mismatch> {
    let mut rest = Items { items: items.iter(), index: 0 };
    let value = visitor.visit_seq(&mut rest)?;
    if rest.items.len() > 0 {
        return Err(Mismatch::invalid_length(items.len(), &"fewer elements in array"));
    }
    Ok(value)
}

fn object<'de, V: Visitor<'de>>(map: &'de Map<String, Value>, visitor: V) -> Result<V::Value, Mismatch> {
    let mut rest = Entries { entries: map.iter(), value: None };
    let value = visitor.visit_map(&mut rest)?;
    if rest.entries.len() > 0 {
        return Err(Mismatch::invalid_length(map.len(), &"fewer elements in map"));
    }
    Ok(value)
}

/// Methods of a [`Deserializer`] that do what another one does.
macro_rules! same {
    ($as:ident: $($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
            self.$as(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for Shape<'de> {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(value) => number(value, visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => array(items, visitor),
            Value::Object(map) => object(map, visitor),
        }
    }

    same!(number: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 deserialize_u8 deserialize_u16
        deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64);
    same!(text: deserialize_char deserialize_str deserialize_string deserialize_identifier);
    same!(array: deserialize_seq);
    same!(unit: deserialize_unit);
    same!(deserialize_bytes: deserialize_byte_buf);

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if let Value::Bool(value) = self.0 { visitor.visit_bool(*value) } else { self.other(&visitor) }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if self.0.is_array() { self.array(visitor) } else { self.text(visitor) }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Mismatch> {
        self.unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Mismatch> {
        self.array(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(self, _: &'static str, _: usize, visitor: V) -> Result<V::Value, Mismatch> {
        self.array(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        if let Value::Object(map) = self.0 { object(map, visitor) } else { self.other(&visitor) }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        if self.0.is_array() { self.array(visitor) } else { self.deserialize_map(visitor) }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(Variant { name, value: None }),
            Value::Object(map) => {
                let mut entries = map.iter();
                match (entries.next(), entries.next()) {
                    (Some((name, value)), None) => visitor.visit_enum(Variant { name, value: Some(value) }),
                    _ => Err(Mismatch::invalid_value(Unexpected::Map, &"map with a single key")),
                }
            }
            _ => self.other(&"string or map"),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_unit()
    }
}

/// What is left of an array.
struct Items<'de> {
    items: std::slice::Iter<'de, Value>,
    index: usize,
}

impl<'de> SeqAccess<'de> for &mut Items<'de> {
    type Error = Mismatch;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Mismatch> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(Shape(item)).map(Some).map_err(|wrong| wrong.below(Step::Index(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// What is left of a map, and the value of the key that was read last.
struct Entries<'de> {
    entries: serde_json::map::Iter<'de>,
    value: Option<(&'de String, &'de Value)>,
}

impl<'de> MapAccess<'de> for &mut Entries<'de> {
    type Error = Mismatch;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Mismatch> {
        self.value = self.entries.next();
        let Some((key, _)) = self.value else { return Ok(None) };
        seed.deserialize(Key(key)).map(Some).map_err(|wrong| wrong.below(Step::Key(key.clone())))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Mismatch> {
        let (key, value) = self.value.take().ok_or_else(|| Mismatch::custom("value is missing"))?;
        seed.deserialize(Shape(value)).map_err(|wrong| wrong.below(Step::Key(key.clone())))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// A key of a map; numbers and the like stand in it as text.
struct Key<'de>(&'de str);

/// Methods that take what a key says as a value of another kind.
macro_rules! parsed {
    ($($method:ident $visit:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
            match self.0.parse() {
                Ok(value) => visitor.$visit(value),
                Err(_) => visitor.visit_borrowed_str(self.0),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Key<'de> {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_borrowed_str(self.0)
    }

    parsed!(deserialize_i8 visit_i8 deserialize_i16 visit_i16 deserialize_i32 visit_i32 deserialize_i64 visit_i64
        deserialize_u8 visit_u8 deserialize_u16 visit_u16 deserialize_u32 visit_u32 deserialize_u64 visit_u64
        deserialize_bool visit_bool);

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Mismatch> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mismatch> {
        visitor.visit_enum(BorrowedStrDeserializer::new(self.0))
    }

    serde::forward_to_deserialize_any! {
        i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A variant of an enum: its name, or a map of its name to what it has.
struct Variant<'de> {
    name: &'de str,
    value: Option<&'de Value>,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Mismatch;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Mismatch> {
        let name: serde::de::value::StrDeserializer<'_, Mismatch> = self.name.into_deserializer();
        seed.deserialize(name).map(|variant| (variant, self))
    }
}

impl<'de> Variant<'de> {
    /// What the variant has, as what it should be.
    fn read<T>(
        self,
        wanted: &'static str,
        read: impl FnOnce(Shape<'de>, &dyn Expected) -> Result<T, Mismatch>,
    ) -> Result<T, Mismatch> {
        match self.value {
            Some(value) => read(Shape(value), &wanted),
            None => Err(Mismatch::invalid_type(Unexpected::UnitVariant, &wanted)),
        }
        .map_err(|wrong| wrong.below(Step::Key(self.name.to_owned())))
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = Mismatch;

    fn unit_variant(self) -> Result<(), Mismatch> {
        let value = self.value.map_or(Ok(()), |value| <()>::deserialize(Shape(value)));
        value.map_err(|wrong| wrong.below(Step::Key(self.name.to_owned())))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Mismatch> {
        self.read("newtype variant", |shape, _| seed.deserialize(shape))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Mismatch> {
        self.read("tuple variant", |shape, wanted| match shape.0 {
            Value::Array(items) if items.is_empty() => visitor.visit_unit(),
            Value::Array(items) => array(items, visitor),
            _ => shape.other(wanted),
        })
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Mismatch> {
        self.read("struct variant", |shape, wanted| match shape.0 {
            Value::Object(map) => object(map, visitor),
            _ => shape.other(wanted),
        })
    }
}

/// A map that is being read.
struct Fields<'de>(&'de Map<String, Value>);

impl<'de> Deserializer<'de> for Fields<'de> {
    type Error = Mismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mismatch> {
        object(self.0, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests;
