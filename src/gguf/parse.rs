//! Reads header, metadata and tensor index.

use std::ops::Range;

use super::error::{GgufError, Problem, shown};
use super::metadata::{Metadata, Optional};
use super::reader::{Failure, Reader, Within};
use super::source::ByteSource;
use super::types::TensorType;
use super::value::{Array, StringArray, Value, ValueType};

/// More metadata keys than any model has; they keep bookkeeping for tiny keys to a few megabytes.
const MOST_KEYS: u64 = 1 << 14;
/// More tensors than any model has.
const MOST_TENSORS: u64 = 1 << 16;
/// The specification's limit on a key.
const MOST_KEY_BYTES: u64 = 65_535;
/// ggml allows 63; a few converters write more.
const MOST_NAME_BYTES: u64 = 255;
/// Data offsets are multiples of `general.alignment`, or of this.
const ALIGNMENT: u64 = 32;
const MOST_ALIGNMENT: u64 = 1 << 20;

/// Where a tensor is and how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, for example `blk.0.attn_q.weight`.
    pub name: String,
    /// How its values are stored.
    pub ty: TensorType,
    /// 1 to 4 sizes in ggml's order: `dims[0]` values are contiguous (a row). None is zero.
    pub dims: Vec<u64>,
    /// First byte, from the start of the source.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Values in a row: `dims[0]`.
    pub fn cols(&self) -> u64 {
        self.dims.first().copied().unwrap_or(0)
    }

    /// Rows: the product of all other dimensions, 1 for a vector.
    pub fn rows(&self) -> u64 {
        self.dims.iter().skip(1).product()
    }

    /// One past the last byte, from the start of the source.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// A tensor as the index lists it, of a type that this engine reads or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTensor {
    /// The name.
    pub name: String,
    /// The type's id; see [`TensorType::from_id`] and [`TensorType::name_of_id`].
    pub type_id: u32,
    /// 1 to 4 sizes in ggml's order, none of them zero.
    pub dims: Vec<u64>,
    /// First byte, from the start of the source.
    pub offset: u64,
    /// Size in bytes; for a type that this engine does not read, up to the next tensor or the end, and so with its padding.
    pub bytes: u64,
}

/// What a model file lists, also where this engine cannot read all of its tensors: for showing it.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Format version, 2 or 3.
    pub version: u32,
    /// The metadata (of the first part).
    pub metadata: Metadata,
    /// Tensors in file order.
    pub tensors: Vec<ListedTensor>,
}

impl Outline {
    /// Reads header, metadata and tensor index of a model as [`Gguf::read`] does, but takes tensors of every type.
    ///
    /// # Errors
    /// As for [`Gguf::read`], apart from types that are not supported.
    pub async fn read(source: &impl ByteSource) -> Result<Outline, GgufError> {
        let Part { version, metadata, tensors, .. } = read_parts(source, Types::Any).await?;
        sorted_names(&tensors, |tensor| &tensor.name).map_err(|problem| fail(source, problem.into()))?;
        Ok(Outline { version, metadata, tensors })
    }
}

impl From<&Gguf> for Outline {
    fn from(gguf: &Gguf) -> Self {
        let listed = |t: &TensorInfo| ListedTensor {
            name: t.name.clone(),
            type_id: t.ty.id(),
            dims: t.dims.clone(),
            offset: t.offset,
            bytes: t.bytes,
        };
        Self { version: gguf.version, metadata: gguf.metadata.clone(), tensors: gguf.tensors.iter().map(listed).collect() }
    }
}

/// Which types of tensors are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Types {
    Supported,
    Any,
}

/// The index of a model file (or of all parts of a split one).
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Format version, 2 or 3.
    pub version: u32,
    /// The metadata (of the first part).
    pub metadata: Metadata,
    /// Tensors in file order. Names are unique, ranges lie inside the source and do not overlap.
    pub tensors: Vec<TensorInfo>,
    /// Where tensor data starts (in the first part).
    pub data_offset: u64,
    /// Length of the source in bytes.
    pub file_len: u64,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
}

/// One file's content; tensor offsets are from the start of the source.
struct Part {
    version: u32,
    metadata: Metadata,
    tensors: Vec<ListedTensor>,
    data_offset: u64,
}

impl Gguf {
    /// Reads header, metadata and tensor index of a model, of all parts when the source joins several. No tensor data is
    /// read, and no more than the file's own size is allocated, apart from a few megabytes of bookkeeping.
    ///
    /// # Errors
    /// The source fails, or the file is not a sound GGUF file of version 2 or 3 with supported tensor types.
    pub async fn read(source: &impl ByteSource) -> Result<Gguf, GgufError> {
        let Part { version, metadata, tensors, data_offset } = read_parts(source, Types::Supported).await?;
        let info = |t: ListedTensor| {
            let ty = TensorType::from_id(t.type_id)?;
            Some(TensorInfo { name: t.name, ty, dims: t.dims, offset: t.offset, bytes: t.bytes })
        };
        // None is left out: others were refused.
        let tensors: Vec<TensorInfo> = tensors.into_iter().filter_map(info).collect();
        let by_name = sorted_names(&tensors, |tensor| &tensor.name).map_err(|problem| fail(source, problem.into()))?;
        Ok(Gguf { version, metadata, tensors, data_offset, file_len: source.len(), by_name })
    }

    /// Reads the metadata alone (of the first part): enough for a tokenizer, and possible for files whose tensors this
    /// engine cannot read.
    ///
    /// # Errors
    /// As for [`Gguf::read`], up to the end of the metadata.
    pub async fn read_metadata(source: &impl ByteSource) -> Result<Metadata, GgufError> {
        let range = source.parts().into_iter().next().unwrap_or(0..source.len());
        let mut reader = Reader::new(source, range);
        let header = read_header(&mut reader).await.map_err(|failure| fail(source, failure))?;
        read_entries(&mut reader, header.keys).await.map_err(|failure| fail(source, failure))
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.by_name.binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[at] as usize])
    }
}

fn fail(source: &impl ByteSource, failure: Failure) -> GgufError {
    match failure {
        Failure::Source(error) => GgufError::Source(error),
        Failure::Problem(problem) => GgufError::Bad { place: source.describe(), problem },
    }
}

fn in_part(part: u64, failure: Failure) -> Failure {
    match failure {
        Failure::Problem(problem) => Problem::InPart { part, problem: Box::new(problem) }.into(),
        source => source,
    }
}

/// A number of the `split.` keys; `None` when the key is not there.
fn split_number(metadata: &Metadata, key: &str) -> Result<Option<u64>, Failure> {
    metadata.u64(key).optional().map_err(|error| Problem::from(error).into())
}

/// Checks that a part is the one that belongs at place `number` (from 1) of `count`.
fn check_place(metadata: &Metadata, number: u64, count: u64) -> Result<(), Failure> {
    let says_no = split_number(metadata, "split.no")?.unwrap_or(0).saturating_add(1);
    let says_count = split_number(metadata, "split.count")?.unwrap_or(1);
    if says_no != number || says_count != count {
        return Err(Problem::SplitOrder { place_no: number, says_no, says_count, count }.into());
    }
    Ok(())
}

/// All parts of a model joined; that names are unique is still to be checked.
async fn read_parts(source: &impl ByteSource, types: Types) -> Result<Part, GgufError> {
    let bad = |failure| fail(source, failure);
    let ranges = source.parts();
    let mut parts = ranges.iter().enumerate();
    let whole = 0..source.len();
    let first_range = parts.next().map_or(&whole, |(_, range)| range);
    let first = read_part(source, first_range.clone(), types).await.map_err(bad)?;
    let count = split_number(&first.metadata, "split.count").map_err(bad)?.unwrap_or(1).max(1);
    let opened = ranges.len().max(1) as u64;
    if count != opened {
        let part = split_number(&first.metadata, "split.no").map_err(bad)?.unwrap_or(0).saturating_add(1);
        let alone = opened == 1;
        return Err(bad(if alone { Problem::SplitAlone { part, count } } else { Problem::SplitCount { found: opened, count } }.into()));
    }
    let Part { version, metadata, mut tensors, data_offset } = first;
    if opened > 1 {
        check_place(&metadata, 1, count).map_err(bad)?;
    }
    for (index, range) in parts {
        let number = index as u64 + 1;
        let part = read_part(source, range.clone(), types).await.map_err(|failure| bad(in_part(number, failure)))?;
        check_place(&part.metadata, number, count).map_err(bad)?;
        tensors.extend(part.tensors);
    }
    if opened > 1 {
        let found = tensors.len() as u64;
        match split_number(&metadata, "split.tensors.count").map_err(bad)? {
            Some(count) if count != found => return Err(bad(Problem::SplitTensors { found, count }.into())),
            _ => {}
        }
    }
    Ok(Part { version, metadata, tensors, data_offset })
}

async fn read_part<S: ByteSource>(source: &S, range: Range<u64>, types: Types) -> Result<Part, Failure> {
    let mut reader = Reader::new(source, range.clone());
    let header = read_header(&mut reader).await?;
    let metadata = read_entries(&mut reader, header.keys).await?;
    let alignment = alignment(&metadata)?;
    let mut tensors = read_infos(&mut reader, header.tensors, types).await?;
    // Rounding up cannot overflow: the header is limited and so is the alignment.
    let data_offset = reader.offset().next_multiple_of(alignment);
    measure_unknown(&mut tensors, (range.end - range.start).saturating_sub(data_offset));
    place(&mut tensors, &range, data_offset, alignment)?;
    Ok(Part { version: header.version, metadata, tensors, data_offset: range.start + data_offset })
}

struct Header {
    version: u32,
    tensors: u64,
    keys: u64,
}

async fn read_header<S: ByteSource>(reader: &mut Reader<'_, S>) -> Result<Header, Failure> {
    if reader.left() < 4 {
        let mut found = Vec::new();
        while reader.left() > 0 {
            found.extend(reader.bytes::<1>().await.within(|| "the file's first bytes".into())?);
        }
        return Err(Problem::Magic { found }.into());
    }
    let header = || "the header (24 bytes)".to_string();
    let magic = reader.bytes::<4>().await.within(header)?;
    if magic != *b"GGUF" {
        return Err(Problem::Magic { found: magic.into() }.into());
    }
    let version = reader.u32().await.within(header)?;
    match version {
        2 | 3 => {}
        // Small numbers look like this when their bytes are swapped.
        _ if version != 0 && version & 0xffff == 0 => return Err(Problem::BigEndian { version }.into()),
        _ => return Err(Problem::Version { version }.into()),
    }
    let tensors = reader.u64().await.within(header)?;
    let keys = reader.u64().await.within(header)?;
    if tensors > MOST_TENSORS {
        return Err(Problem::TooMany { what: "tensors", count: tensors, most: MOST_TENSORS }.into());
    }
    if keys > MOST_KEYS {
        return Err(Problem::TooMany { what: "metadata keys", count: keys, most: MOST_KEYS }.into());
    }
    Ok(Header { version, tensors, keys })
}

/// A key or tensor name.
async fn read_name<S: ByteSource>(reader: &mut Reader<'_, S>, most: u64, what: impl Fn() -> String) -> Result<String, Failure> {
    let offset = reader.offset();
    let len = reader.u64().await.within(|| format!("the name of {}", what()))?;
    if len == 0 || len > most {
        return Err(Problem::NameLength { what: what(), offset, len, most }.into());
    }
    reader.text(len, |text, _| text.to_owned()).await.within(|| format!("the name of {}", what()))
}

async fn read_entries<S: ByteSource>(reader: &mut Reader<'_, S>, count: u64) -> Result<Metadata, Failure> {
    let mut entries = Vec::new();
    for index in 0..count {
        let key = read_name(reader, MOST_KEY_BYTES, || format!("metadata key {} of {count}", index + 1)).await?;
        let value = read_value(reader, &key).await?;
        entries.push((key, value));
    }
    Metadata::new(entries).map_err(|error| Problem::from(error).into())
}

async fn read_type<S: ByteSource>(reader: &mut Reader<'_, S>, key: &str) -> Result<ValueType, Failure> {
    let offset = reader.offset();
    let id = reader.u32().await.within(|| format!("the value type of {}", shown(key)))?;
    ValueType::from_id(id).ok_or_else(|| Problem::ValueType { key: shown(key), id, offset }.into())
}

async fn read_value<S: ByteSource>(reader: &mut Reader<'_, S>, key: &str) -> Result<Value, Failure> {
    let ty = read_type(reader, key).await?;
    let what = || format!("the value of metadata key {}", shown(key));
    Ok(match ty {
        ValueType::U8 => Value::U8(u8::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(reader.bytes().await.within(what)?)),
        ValueType::Bool => {
            let offset = reader.offset();
            let [value] = reader.bytes().await.within(what)?;
            if value > 1 {
                return Err(Problem::Bool { key: shown(key), value, offset }.into());
            }
            Value::Bool(value == 1)
        }
        ValueType::String => Value::String(reader.string().await.within(what)?),
        ValueType::Array => Value::Array(read_array(reader, key).await?),
    })
}

async fn read_array<S: ByteSource>(reader: &mut Reader<'_, S>, key: &str) -> Result<Array, Failure> {
    let offset = reader.offset();
    let ty = read_type(reader, key).await?;
    let what = || format!("the {} array of metadata key {}", ty.name(), shown(key));
    let count = reader.u64().await.within(what)?;
    reader.check(count.saturating_mul(ty.least_bytes())).within(what)?;
    Ok(match ty {
        ValueType::U8 => Array::U8(reader.array(count, u8::from_le_bytes).await.within(what)?),
        ValueType::I8 => Array::I8(reader.array(count, i8::from_le_bytes).await.within(what)?),
        ValueType::U16 => Array::U16(reader.array(count, u16::from_le_bytes).await.within(what)?),
        ValueType::I16 => Array::I16(reader.array(count, i16::from_le_bytes).await.within(what)?),
        ValueType::U32 => Array::U32(reader.array(count, u32::from_le_bytes).await.within(what)?),
        ValueType::I32 => Array::I32(reader.array(count, i32::from_le_bytes).await.within(what)?),
        ValueType::F32 => Array::F32(reader.array(count, f32::from_le_bytes).await.within(what)?),
        ValueType::U64 => Array::U64(reader.array(count, u64::from_le_bytes).await.within(what)?),
        ValueType::I64 => Array::I64(reader.array(count, i64::from_le_bytes).await.within(what)?),
        ValueType::F64 => Array::F64(reader.array(count, f64::from_le_bytes).await.within(what)?),
        ValueType::Bool => {
            let start = reader.offset();
            let bytes = reader.array(count, u8::from_le_bytes).await.within(what)?;
            if let Some(at) = bytes.iter().position(|&byte| byte > 1) {
                return Err(Problem::Bool { key: shown(key), value: bytes[at], offset: start + at as u64 }.into());
            }
            Array::Bool(bytes.into_iter().map(|byte| byte == 1).collect())
        }
        ValueType::String => Array::String(read_strings(reader, key, count).await?),
        ValueType::Array => return Err(Problem::NestedArray { key: shown(key), offset }.into()),
    })
}

/// Strings of an array; that `count` length fields fit was checked.
async fn read_strings<S: ByteSource>(reader: &mut Reader<'_, S>, key: &str, count: u64) -> Result<StringArray, Failure> {
    let mut strings = StringArray::with_capacity(count as usize);
    for index in 0..count {
        let what = || format!("string {index} of {count} of metadata key {}", shown(key));
        let len = reader.u64().await.within(what)?;
        if !reader.text(len, |text, left| strings.push_of(text, left.saturating_add(len))).await.within(what)? {
            return Err(Problem::TextTooLong { what: format!("metadata key {}", shown(key)) }.into());
        }
    }
    strings.shrink();
    Ok(strings)
}

fn alignment(metadata: &Metadata) -> Result<u64, Problem> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(ALIGNMENT) };
    match value.as_integer().map(u64::try_from) {
        Some(Ok(n)) if n.is_power_of_two() && (8..=MOST_ALIGNMENT).contains(&n) => Ok(n),
        _ => {
            let found = value.as_integer().map_or_else(|| format!("of type {}", value.kind()), |n| n.to_string());
            Err(Problem::Alignment { found, most: MOST_ALIGNMENT })
        }
    }
}

/// The tensor index; offsets are still those of the file, from the start of its data.
async fn read_infos<S: ByteSource>(reader: &mut Reader<'_, S>, count: u64, types: Types) -> Result<Vec<ListedTensor>, Failure> {
    let mut tensors = Vec::new();
    for index in 0..count {
        let name = read_name(reader, MOST_NAME_BYTES, || format!("tensor {} of {count}", index + 1)).await?;
        let what = || format!("the description of tensor {}", shown(&name));
        let dimensions = reader.u32().await.within(what)?;
        if !(1..=4).contains(&dimensions) {
            return Err(Problem::Dimensions { tensor: shown(&name), count: dimensions }.into());
        }
        let dims = reader.array(dimensions.into(), u64::from_le_bytes).await.within(what)?;
        let id = reader.u32().await.within(what)?;
        let offset = reader.u64().await.within(what)?;
        if dims.contains(&0) {
            return Err(Problem::EmptyDimension { tensor: shown(&name), dims }.into());
        }
        // A type that is only listed: its size is measured later.
        let listed = types == Types::Any && TensorType::from_id(id).is_none();
        let Some(ty) = TensorType::from_id(id).or(listed.then_some(TensorType::F32)) else {
            return Err(Problem::TensorType { tensor: shown(&name), id }.into());
        };
        let Some(row) = ty.row_bytes(dims[0]) else {
            let (tensor, cols) = (shown(&name), dims[0]);
            return Err(if cols.is_multiple_of(ty.block_len() as u64) {
                Problem::Overflow { tensor, dims }.into()
            } else {
                Problem::RowLength { tensor, ty, cols }.into()
            });
        };
        // The number of values is checked too, so that `rows() * cols()` cannot overflow anywhere.
        let values = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let bytes = dims[1..].iter().try_fold(row, |product, &dim| product.checked_mul(dim));
        let (Some(_), Some(bytes)) = (values, bytes) else {
            return Err(Problem::Overflow { tensor: shown(&name), dims }.into());
        };
        tensors.push(ListedTensor { name, type_id: id, dims, offset, bytes });
    }
    Ok(tensors)
}

/// Tensors whose type has no known size reach up to the next one, or to the end of the data. Offsets are those of the file.
fn measure_unknown(tensors: &mut [ListedTensor], data_len: u64) {
    if tensors.iter().all(|t| TensorType::from_id(t.type_id).is_some()) {
        return;
    }
    let mut starts: Vec<u64> = tensors.iter().map(|t| t.offset).collect();
    starts.sort_unstable();
    for tensor in tensors.iter_mut().filter(|t| TensorType::from_id(t.type_id).is_none()) {
        let next = starts.get(starts.partition_point(|start| *start <= tensor.offset)).copied();
        tensor.bytes = next.unwrap_or(data_len).min(data_len).saturating_sub(tensor.offset);
    }
}

/// Makes offsets absolute, and checks that every tensor lies inside its part and that none overlap.
fn place(tensors: &mut [ListedTensor], part: &Range<u64>, data_offset: u64, alignment: u64) -> Result<(), Problem> {
    let part_len = part.end - part.start;
    for tensor in tensors.iter_mut() {
        if !tensor.offset.is_multiple_of(alignment) {
            return Err(Problem::Misaligned { tensor: shown(&tensor.name), offset: tensor.offset, alignment });
        }
        let start = data_offset.saturating_add(tensor.offset);
        let end = start.saturating_add(tensor.bytes);
        if end > part_len {
            return Err(Problem::TensorOutOfRange { tensor: shown(&tensor.name), start, end, file_len: part_len });
        }
        tensor.offset = part.start + start;
    }
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&i| tensors[i as usize].offset);
    for pair in order.windows(2) {
        let (first, second) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        let end = first.offset + first.bytes;
        if end > second.offset {
            return Err(Problem::Overlap {
                first: shown(&first.name),
                second: shown(&second.name),
                first_end: end - part.start,
                second_start: second.offset - part.start,
            });
        }
    }
    Ok(())
}

fn sorted_names<T>(tensors: &[T], name: impl Fn(&T) -> &str) -> Result<Vec<u32>, Problem> {
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    let name = |i: u32| name(&tensors[i as usize]);
    by_name.sort_unstable_by(|&a, &b| name(a).cmp(name(b)));
    for pair in by_name.windows(2) {
        if name(pair[0]) == name(pair[1]) {
            return Err(Problem::DuplicateTensor { tensor: shown(name(pair[0])) });
        }
    }
    Ok(by_name)
}
