//! Metadata values.

/// The kinds of metadata value that GGUF has, with their ids in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The kind with this id, if there is one.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The name in messages, for example `u32` or `string`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// The fewest bytes that one such value takes in a file (a string: its length field).
    pub(super) fn least_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of one kind of value. Arrays of arrays are refused when a file is read: no model uses them.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// What the value is called in messages, for example `u32` or `array of string`.
    pub fn kind(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.value_type().name()),
            _ => self.value_type().name().into(),
        }
    }

    /// The kind of value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Any integer kind, widened; `None` for everything else.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

impl Array {
    /// The kind of the elements.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index` as a value of its own; `None` past the end.
    pub fn get(&self, index: usize) -> Option<Value> {
        Some(match self {
            Self::U8(v) => Value::U8(*v.get(index)?),
            Self::I8(v) => Value::I8(*v.get(index)?),
            Self::U16(v) => Value::U16(*v.get(index)?),
            Self::I16(v) => Value::I16(*v.get(index)?),
            Self::U32(v) => Value::U32(*v.get(index)?),
            Self::I32(v) => Value::I32(*v.get(index)?),
            Self::F32(v) => Value::F32(*v.get(index)?),
            Self::Bool(v) => Value::Bool(*v.get(index)?),
            Self::String(v) => Value::String(v.get(index)?.into()),
            Self::U64(v) => Value::U64(*v.get(index)?),
            Self::I64(v) => Value::I64(*v.get(index)?),
            Self::F64(v) => Value::F64(*v.get(index)?),
        })
    }
}

/// Many strings in one piece of memory: a vocabulary has 250 000 of them, and a `String` each would take three times the
/// bytes that the file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringArray {
    text: String,
    /// Where each string ends in `text`.
    ends: Vec<u32>,
}

impl StringArray {
    /// An empty array with room for `count` strings.
    pub(super) fn with_capacity(count: usize) -> Self {
        Self { text: String::new(), ends: Vec::with_capacity(count) }
    }

    /// Appends a string; `false`, and nothing appended, when all strings together would pass 4 GiB.
    pub fn push(&mut self, text: &str) -> bool {
        self.push_of(text, u64::MAX)
    }

    /// Appends a string of an array that can only have `most` more bytes: no more is reserved, so that the memory stays
    /// below the size of the file that the strings come from. Growth is by an eighth for the same reason.
    pub(super) fn push_of(&mut self, text: &str, most: u64) -> bool {
        let Some(end) = self.text.len().checked_add(text.len()).and_then(|end| u32::try_from(end).ok()) else { return false };
        if self.text.capacity() - self.text.len() < text.len() {
            let growth = usize::try_from(most).unwrap_or(usize::MAX).min(self.text.len() / 8 + 1024);
            self.text.reserve_exact(growth.max(text.len()));
        }
        self.text.push_str(text);
        self.ends.push(end);
        true
    }

    /// Gives back what was reserved too much.
    pub(super) fn shrink(&mut self) {
        self.text.shrink_to_fit();
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `index`; `None` past the end.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { *self.ends.get(index - 1)? as usize };
        self.text.get(start..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator + Clone + '_ {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

impl<T: AsRef<str>> FromIterator<T> for StringArray {
    /// Collects strings; those past 4 GiB in total are left out (a file with so many is refused when it is read).
    fn from_iter<I: IntoIterator<Item = T>>(strings: I) -> Self {
        let mut array = Self::default();
        for text in strings {
            if !array.push(text.as_ref()) {
                break;
            }
        }
        array
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_arrays_keep_every_string() {
        let strings = ["", "a", "", "äöü", "\u{1F600}", ""];
        let array: StringArray = strings.iter().collect();
        assert_eq!(array.len(), 6);
        assert!(array.iter().eq(strings));
        assert!(array.iter().rev().eq(strings.into_iter().rev()));
        assert_eq!(array.get(6), None);
        assert_eq!(Array::String(array).get(4), Some(Value::String("\u{1F600}".into())));
    }

    #[test]
    fn type_ids() {
        for (id, ty) in ValueType::ALL.into_iter().enumerate() {
            assert_eq!(ty as usize, id);
            assert_eq!(ValueType::from_id(id as u32), Some(ty));
        }
        assert_eq!(ValueType::from_id(13), None);
    }
}
