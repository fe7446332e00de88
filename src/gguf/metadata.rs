//! Metadata: named values, with typed access whose errors name the key.

use super::error::shown;
use super::value::{Array, StringArray, Value};

/// A key that is missing, or whose value is not what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// No such key.
    #[error("metadata key `{key}` is missing")]
    Missing {
        /// The key asked for.
        key: String,
    },
    /// The value is of another kind.
    #[error("metadata key `{key}` is of type {found}, expected {wanted}")]
    Type {
        /// The key asked for.
        key: String,
        /// The kind asked for.
        wanted: &'static str,
        /// The kind found.
        found: String,
    },
    /// A number that does not fit.
    #[error("metadata key `{key}` is {value}, which is not a {wanted}")]
    Range {
        /// The key asked for.
        key: String,
        /// The kind asked for.
        wanted: &'static str,
        /// The number found.
        value: String,
    },
    /// A per-layer array with too few elements.
    #[error("metadata key `{key}` has {found} values, expected one, or one for each of the {wanted} layers")]
    Length {
        /// The key asked for.
        key: String,
        /// Layers.
        wanted: usize,
        /// Elements found.
        found: usize,
    },
    /// A key that is there twice.
    #[error("metadata key {key} is there twice")]
    Duplicate {
        /// The key, quoted.
        key: String,
    },
}

/// The metadata of a file: keys in file order, each once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indices into `entries`, sorted by key.
    by_key: Vec<u32>,
}

impl Metadata {
    /// Metadata from its entries.
    ///
    /// # Errors
    /// [`MetadataError::Duplicate`] when a key is there twice.
    pub fn new(entries: Vec<(String, Value)>) -> Result<Self, MetadataError> {
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        by_key.sort_unstable_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        for pair in by_key.windows(2) {
            let key = &entries[pair[0] as usize].0;
            if *key == entries[pair[1] as usize].0 {
                return Err(MetadataError::Duplicate { key: shown(key) });
            }
        }
        Ok(Self { entries, by_key })
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = self.by_key.binary_search_by(|&i| self.entries[i as usize].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.by_key[at] as usize].1)
    }

    fn need(&self, key: &str) -> Result<&Value, MetadataError> {
        self.get(key).ok_or_else(|| MetadataError::Missing { key: key.into() })
    }

    /// A string.
    ///
    /// # Errors
    /// The key is missing or no string. (All typed accessors: missing, or of another type, or out of range.)
    pub fn str(&self, key: &str) -> Result<&str, MetadataError> {
        match self.need(key)? {
            Value::String(text) => Ok(text),
            other => Err(wrong(key, "string", other)),
        }
    }

    /// Any integer kind whose value fits u32. Errors as for [`Metadata::str`].
    pub fn u32(&self, key: &str) -> Result<u32, MetadataError> {
        integer(key, self.need(key)?, "u32")
    }

    /// Any integer kind whose value fits u64. Errors as for [`Metadata::str`].
    pub fn u64(&self, key: &str) -> Result<u64, MetadataError> {
        integer(key, self.need(key)?, "u64")
    }

    /// A float, or an integer taken as one. Errors as for [`Metadata::str`]; not-a-number and infinity are refused.
    pub fn f32(&self, key: &str) -> Result<f32, MetadataError> {
        let value = self.need(key)?;
        let number = match value {
            Value::F32(v) => *v,
            Value::F64(v) => *v as f32,
            other => other.as_integer().ok_or_else(|| wrong(key, "f32", other))? as f32,
        };
        if !number.is_finite() {
            return Err(MetadataError::Range { key: key.into(), wanted: "finite f32", value: number.to_string() });
        }
        Ok(number)
    }

    /// A bool. Errors as for [`Metadata::str`].
    pub fn bool(&self, key: &str) -> Result<bool, MetadataError> {
        match self.need(key)? {
            Value::Bool(value) => Ok(*value),
            other => Err(wrong(key, "bool", other)),
        }
    }

    fn array(&self, key: &str, wanted: &'static str) -> Result<&Array, MetadataError> {
        match self.need(key)? {
            Value::Array(array) => Ok(array),
            other => Err(wrong(key, wanted, other)),
        }
    }

    /// An array of strings. Errors as for [`Metadata::str`].
    pub fn str_array(&self, key: &str) -> Result<&StringArray, MetadataError> {
        match self.array(key, "array of string")? {
            Array::String(strings) => Ok(strings),
            other => Err(wrong_array(key, "array of string", other)),
        }
    }

    /// An array of any integer kind whose values fit u32. Errors as for [`Metadata::str`].
    pub fn u32_array(&self, key: &str) -> Result<Vec<u32>, MetadataError> {
        integers(key, self.array(key, "array of u32")?, "array of u32", "u32")
    }

    /// An array of any integer kind whose values fit i32. Errors as for [`Metadata::str`].
    pub fn i32_array(&self, key: &str) -> Result<Vec<i32>, MetadataError> {
        integers(key, self.array(key, "array of i32")?, "array of i32", "i32")
    }

    /// An array of f32. Errors as for [`Metadata::str`].
    pub fn f32_array(&self, key: &str) -> Result<&[f32], MetadataError> {
        match self.array(key, "array of f32")? {
            Array::F32(values) => Ok(values),
            other => Err(wrong_array(key, "array of f32", other)),
        }
    }

    /// An array of bool. Errors as for [`Metadata::str`].
    pub fn bool_array(&self, key: &str) -> Result<&[bool], MetadataError> {
        match self.array(key, "array of bool")? {
            Array::Bool(values) => Ok(values),
            other => Err(wrong_array(key, "array of bool", other)),
        }
    }

    /// One number for each of `layers` layers: a scalar stands for all, an array gives each its own (further elements,
    /// of blocks that are skipped, are left out).
    ///
    /// # Errors
    /// As for [`Metadata::str`], and [`MetadataError::Length`] for an array with fewer elements than layers.
    pub fn per_layer_u32(&self, key: &str, layers: usize) -> Result<Vec<u32>, MetadataError> {
        match self.need(key)? {
            Value::Array(array) => {
                let mut values: Vec<u32> = integers(key, array, "u32 or array of u32", "u32")?;
                if values.len() < layers {
                    return Err(MetadataError::Length { key: key.into(), wanted: layers, found: values.len() });
                }
                values.truncate(layers);
                Ok(values)
            }
            scalar => Ok(vec![integer(key, scalar, "u32")?; layers]),
        }
    }
}

/// Turns "missing" into `None` and leaves every other error as it is, for keys that a file may lack.
pub trait Optional<T> {
    /// `Ok(None)` for a missing key.
    ///
    /// # Errors
    /// The key is there but its value is not what was asked for.
    fn optional(self) -> Result<Option<T>, MetadataError>;
}

impl<T> Optional<T> for Result<T, MetadataError> {
    fn optional(self) -> Result<Option<T>, MetadataError> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(MetadataError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn wrong(key: &str, wanted: &'static str, found: &Value) -> MetadataError {
    MetadataError::Type { key: key.into(), wanted, found: found.kind() }
}

fn wrong_array(key: &str, wanted: &'static str, found: &Array) -> MetadataError {
    MetadataError::Type { key: key.into(), wanted, found: format!("array of {}", found.value_type().name()) }
}

fn integer<T: TryFrom<i128>>(key: &str, value: &Value, wanted: &'static str) -> Result<T, MetadataError> {
    let number = value.as_integer().ok_or_else(|| wrong(key, wanted, value))?;
    T::try_from(number).map_err(|_| MetadataError::Range { key: key.into(), wanted, value: number.to_string() })
}

fn integers<T>(key: &str, array: &Array, wanted: &'static str, element: &'static str) -> Result<Vec<T>, MetadataError>
where
    T: TryFrom<u8> + TryFrom<i8> + TryFrom<u16> + TryFrom<i16> + TryFrom<u32> + TryFrom<i32> + TryFrom<u64> + TryFrom<i64>,
{
    fn all<T: TryFrom<S>, S: Copy + std::fmt::Display>(key: &str, values: &[S], element: &'static str) -> Result<Vec<T>, MetadataError> {
        let fit = |&v: &S| T::try_from(v).map_err(|_| MetadataError::Range { key: key.into(), wanted: element, value: v.to_string() });
        values.iter().map(fit).collect()
    }
    match array {
        Array::U8(v) => all(key, v, element),
        Array::I8(v) => all(key, v, element),
        Array::U16(v) => all(key, v, element),
        Array::I16(v) => all(key, v, element),
        Array::U32(v) => all(key, v, element),
        Array::I32(v) => all(key, v, element),
        Array::U64(v) => all(key, v, element),
        Array::I64(v) => all(key, v, element),
        other => Err(wrong_array(key, wanted, other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let entry = |key: &str, value| (key.to_string(), value);
        Metadata::new(vec![
            entry("z.name", Value::String("x".into())),
            entry("a.count", Value::U64(7)),
            entry("a.minus", Value::I32(-1)),
            entry("a.huge", Value::U64(1 << 40)),
            entry("a.eps", Value::F32(1e-6)),
            entry("a.nan", Value::F32(f32::NAN)),
            entry("a.flag", Value::Bool(true)),
            entry("a.heads", Value::Array(Array::I32(vec![4, 0, 4]))),
            entry("a.tokens", Value::Array(Array::String(["a", "b"].iter().collect()))),
        ])
        .unwrap()
    }

    #[test]
    fn typed_access() {
        let m = sample();
        assert_eq!(m.str("z.name"), Ok("x"));
        assert_eq!(m.u32("a.count"), Ok(7));
        assert_eq!(m.u64("a.huge"), Ok(1 << 40));
        assert_eq!(m.f32("a.eps"), Ok(1e-6));
        assert_eq!(m.f32("a.count"), Ok(7.0));
        assert_eq!(m.bool("a.flag"), Ok(true));
        assert_eq!(m.str_array("a.tokens").unwrap().get(1), Some("b"));
        assert_eq!(m.u32_array("a.heads"), Ok(vec![4, 0, 4]));
        assert_eq!(m.per_layer_u32("a.heads", 2), Ok(vec![4, 0]));
        assert_eq!(m.per_layer_u32("a.count", 3), Ok(vec![7; 3]));
        assert_eq!(m.iter().next().unwrap().0, "z.name");
    }

    #[test]
    fn errors_name_the_key() {
        let m = sample();
        assert_eq!(m.u32("b").unwrap_err().to_string(), "metadata key `b` is missing");
        assert_eq!(m.u32("b").optional(), Ok(None));
        assert_eq!(m.u32("z.name").unwrap_err().to_string(), "metadata key `z.name` is of type string, expected u32");
        assert!(m.u32("z.name").optional().is_err());
        assert_eq!(m.u32("a.huge").unwrap_err().to_string(), "metadata key `a.huge` is 1099511627776, which is not a u32");
        assert_eq!(m.u32("a.minus").unwrap_err().to_string(), "metadata key `a.minus` is -1, which is not a u32");
        assert!(m.f32("a.nan").is_err());
        assert_eq!(
            m.str_array("a.heads").unwrap_err().to_string(),
            "metadata key `a.heads` is of type array of i32, expected array of string"
        );
        assert_eq!(
            m.per_layer_u32("a.heads", 4).unwrap_err().to_string(),
            "metadata key `a.heads` has 3 values, expected one, or one for each of the 4 layers"
        );
        let twice = vec![("k".to_string(), Value::U8(1)), ("j".to_string(), Value::U8(1)), ("k".to_string(), Value::U8(2))];
        assert_eq!(Metadata::new(twice).unwrap_err(), MetadataError::Duplicate { key: "\"k\"".into() });
    }
}
