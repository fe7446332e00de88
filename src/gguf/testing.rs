//! A small GGUF writer for tests, of this room and of others.

use super::types::TensorType;
use super::value::{Array, Value, ValueType};

/// Builds a GGUF file in memory. It writes whatever it is told to, so that tests can make bad files too.
#[derive(Clone, Debug)]
pub struct Writer {
    /// Format version.
    pub version: u32,
    /// Alignment of tensor data. It is not written by itself: add `general.alignment` too.
    pub alignment: u64,
    /// Metadata in order.
    pub entries: Vec<(String, Value)>,
    /// Tensors in order.
    pub tensors: Vec<Tensor>,
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its type id.
    pub type_id: u32,
    /// Its dimensions in ggml's order.
    pub dims: Vec<u64>,
    /// Its offset from the start of the data; `None`: after the tensor before it.
    pub offset: Option<u64>,
    /// Its data.
    pub data: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Self {
        Self { version: 3, alignment: 32, entries: Vec::new(), tensors: Vec::new() }
    }
}

impl Writer {
    /// Adds a metadata value.
    pub fn entry(mut self, key: &str, value: Value) -> Self {
        self.entries.push((key.into(), value));
        self
    }

    /// Adds a string.
    pub fn text(self, key: &str, text: &str) -> Self {
        self.entry(key, Value::String(text.into()))
    }

    /// Adds an array of strings.
    pub fn texts<T: AsRef<str>>(self, key: &str, texts: impl IntoIterator<Item = T>) -> Self {
        self.entry(key, Value::Array(Array::String(texts.into_iter().collect())))
    }

    /// Adds a tensor of these bytes.
    pub fn tensor(mut self, name: &str, ty: TensorType, dims: &[u64], data: Vec<u8>) -> Self {
        self.tensors.push(Tensor { name: name.into(), type_id: ty.id(), dims: dims.into(), offset: None, data });
        self
    }

    /// Adds a tensor filled with zeros of the right size.
    pub fn zeros(self, name: &str, ty: TensorType, dims: &[u64]) -> Self {
        let row = dims.first().and_then(|&cols| ty.row_bytes(cols)).unwrap_or(0);
        let bytes = dims.iter().skip(1).fold(row, |product, dim| product * dim);
        self.tensor(name, ty, dims, vec![0; bytes as usize])
    }

    /// Header, metadata and tensor index, without padding.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_text(&mut out, key);
            out.extend((value.value_type() as u32).to_le_bytes());
            put_value(&mut out, value);
        }
        let mut next = 0u64;
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                out.extend(dim.to_le_bytes());
            }
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(next).to_le_bytes());
            next = (next + tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        out
    }

    /// The whole file.
    pub fn build(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
            out.extend(&tensor.data);
        }
        out
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::String(text) => put_text(out, text),
        Value::Array(array) => {
            let ty: ValueType = array.value_type();
            out.extend((ty as u32).to_le_bytes());
            out.extend((array.len() as u64).to_le_bytes());
            for value in (0..array.len()).filter_map(|index| array.get(index)) {
                put_value(out, &value);
            }
        }
    }
}
