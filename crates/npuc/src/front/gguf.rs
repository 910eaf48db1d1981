//! GGUF files, versions 2 and 3: metadata, a list of tensors, then their data. Reads everything but the data.
//!
//! Layout as in the GGUF specification (ggml-org/ggml, docs/gguf.md); numbers are little endian. Nothing is
//! allocated by a number from the file before that many bytes are known to be there.

mod reader;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::layout::{self, Packing, Span};
use super::reader::Reader;
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::tensor::{DType, Shape, byte_len};

/// More tensors or keys than any file has.
const MAX_COUNT: u64 = 1 << 24;
/// The most extents a tensor has (source: `GGML_MAX_DIMS`).
const MAX_RANK: u32 = 4;
/// The alignment of tensor data where `general.alignment` is absent.
const DEFAULT_ALIGNMENT: usize = 32;

/// The header of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// The version of the format: 2 or 3.
    pub version: u32,
    /// The metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// The bytes of every key with its value, in the order of the file.
    pub entries: Vec<(String, Range<usize>)>,
    /// The tensors, in the order of the file.
    pub tensors: Vec<StoredTensor>,
}

/// A tensor as a GGUF header lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// The name in the file.
    pub name: String,
    /// How the elements are stored.
    pub dtype: DType,
    /// Extents, outermost first (the file has them innermost first).
    pub shape: Shape,
    /// The bytes in the file; as many as the format and shape need.
    pub range: Range<usize>,
}

/// A metadata value; numbers are widened.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned type.
    Unsigned(u64),
    /// Any signed type.
    Signed(i64),
    /// Either float type.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    String(String),
    /// An array of one element type.
    Array(Array),
}

/// The elements of an array; numbers are widened.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Any unsigned type.
    Unsigned(Vec<u64>),
    /// Any signed type.
    Signed(Vec<i64>),
    /// Either float type.
    Float(Vec<f64>),
    /// Truth values.
    Bool(Vec<bool>),
    /// Texts.
    String(Vec<String>),
    /// Arrays of arrays.
    Array(Vec<Array>),
}

impl Value {
    /// The type in words, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Unsigned(_) => "an unsigned number",
            Value::Signed(_) => "a signed number",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a truth value",
            Value::String(_) => "a text",
            Value::Array(Array::Unsigned(_) | Array::Signed(_)) => "an array of whole numbers",
            Value::Array(Array::Float(_)) => "an array of floats",
            Value::Array(Array::Bool(_)) => "an array of truth values",
            Value::Array(Array::String(_)) => "an array of texts",
            Value::Array(Array::Array(_)) => "an array of arrays",
        }
    }
}

/// Reads the header of a GGUF file. `file` is the whole file.
///
/// # Errors
/// A file that is cut short, a malformed header, repeated names, tensor types that npuc does not read, and
/// data that overlaps, leaves the file or is not aligned.
pub fn parse(file: &[u8]) -> Result<Gguf> {
    if let Some(fault) = super::lfs_pointer(file) {
        return Err(fault.into());
    }
    let mut reader = Reader::new(file);
    let version = version(&mut reader)?;
    let tensor_count = reader.u64()?;
    let key_count = reader.u64()?;
    for (count, what) in [(tensor_count, "tensors"), (key_count, "metadata keys")] {
        if count > MAX_COUNT {
            return Err(Diagnostic::error(Code::BadHeader, format!("the number of {what} is impossible"))
                .need(format!("at most {MAX_COUNT}"))
                .have(count)
                .into());
        }
    }
    let (metadata, entries) = metadata(&mut reader, key_count)?;
    let alignment = alignment(&metadata)?;
    let listed = listing(&mut reader, tensor_count)?;
    let tensors = place(listed, reader.at(), alignment, file.len())?;
    Ok(Gguf { version, metadata, entries, tensors })
}

fn version(reader: &mut Reader) -> Result<u32> {
    let magic = reader.take(4)?;
    if magic != b"GGUF" {
        return Err(Diagnostic::error(Code::BadHeader, "this is not a GGUF file")
            .need("the first four bytes `GGUF`")
            .have(format!("`{}`", magic.escape_ascii()))
            .into());
    }
    let version = reader.u32()?;
    let fault = match version {
        2 | 3 => return Ok(version),
        1 => Diagnostic::error(Code::BadHeader, "version 1 of GGUF is not supported").have(version),
        _ if (1..=3).contains(&version.swap_bytes()) => {
            Diagnostic::error(Code::BadHeader, "big-endian GGUF files are not supported")
                .have(format!("version {} with its bytes reversed", version.swap_bytes()))
        }
        _ => Diagnostic::error(Code::BadHeader, "the version of GGUF is not supported").have(version),
    };
    Err(fault.need("version 2 or 3, little endian").help("convert the model again with a current converter").into())
}

type Entries = Vec<(String, Range<usize>)>;

fn metadata(reader: &mut Reader, count: u64) -> Result<(BTreeMap<String, Value>, Entries)> {
    let (mut metadata, mut entries) = (BTreeMap::new(), Vec::new());
    for i in 0..count {
        reader.enter(format!("metadata key {} of {count}", i + 1));
        let start = reader.at();
        let key = reader.string()?;
        reader.enter(key.clone());
        let kind = reader.u32()?;
        let value = reader.value(kind)?;
        entries.push((key.clone(), start..reader.at()));
        if metadata.insert(key, value).is_some() {
            return Err(reader.fault(Code::DuplicateName, "a metadata key is given twice").into());
        }
    }
    Ok((metadata, entries))
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<usize> {
    let key = "general.alignment";
    let Some(value) = metadata.get(key) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let fault = Diagnostic::error(Code::BadHeader, "the alignment is impossible").subject(key);
    let fault = fault.need("a power of two that 32 bits can hold");
    match value {
        Value::Unsigned(alignment) => match u32::try_from(*alignment) {
            Ok(bytes) if bytes.is_power_of_two() => Ok(bytes as usize),
            Ok(_) | Err(_) => Err(fault.have(alignment).into()),
        },
        Value::Signed(_) | Value::Float(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => {
            Err(fault.have(value.kind()).into())
        }
    }
}

/// A tensor's entry before its type and place are checked.
struct Entry {
    name: String,
    shape: Shape,
    type_id: u32,
    offset: u64,
}

fn listing(reader: &mut Reader, count: u64) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for i in 0..count {
        reader.enter(format!("tensor {} of {count}", i + 1));
        let name = reader.string()?;
        reader.enter(name.clone());
        let rank = reader.u32()?;
        if rank > MAX_RANK {
            return Err(reader
                .fault(Code::BadHeader, "a tensor has too many extents")
                .need(format!("at most {MAX_RANK}"))
                .have(rank)
                .into());
        }
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(reader.length()?);
        }
        dims.reverse();
        let type_id = reader.u32()?;
        let offset = reader.u64()?;
        entries.push(Entry { name, shape: Shape(dims), type_id, offset });
    }
    Ok(entries)
}

/// Checks types and places of the tensors; `header_bytes` is where the header ends.
fn place(entries: Vec<Entry>, header_bytes: usize, alignment: usize, file_bytes: usize) -> Result<Vec<StoredTensor>> {
    let mut names = HashSet::new();
    let mut faults: Vec<Diagnostic> = entries
        .iter()
        .filter(|entry| !names.insert(&entry.name))
        .map(|entry| Diagnostic::error(Code::DuplicateName, "two tensors have the same name").subject(&entry.name))
        .collect();
    faults.extend(unreadable_types(&entries));
    Error::check(faults)?;

    let Some(data_start) = header_bytes.checked_next_multiple_of(alignment) else {
        return Err(Diagnostic::error(Code::BadHeader, "the alignment is impossible").have(alignment).into());
    };
    let mut faults = Vec::new();
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        match place_one(entry, data_start) {
            Ok(tensor) => tensors.push(tensor),
            Err(fault) => faults.push(*fault),
        }
    }
    Error::check(faults)?;
    let mut spans: Vec<Span> =
        tensors.iter().map(|t| Span { name: &t.name, start: t.range.start, end: t.range.end }).collect();
    Error::check(layout::faults(&mut spans, data_start, file_bytes, Packing::Aligned(alignment)))?;
    Ok(tensors)
}

fn place_one(entry: Entry, data_start: usize) -> Result<StoredTensor, Box<Diagnostic>> {
    let Entry { name, shape, type_id, offset } = entry;
    let fault = |message: &str| Diagnostic::error(Code::BadOffsets, message).subject(&name);
    // Types were checked before.
    let Some(dtype) = dtype(type_id) else {
        return Err(Box::new(fault("a tensor has no readable type").have(type_id)));
    };
    let Some(bytes) = byte_len(dtype, &shape) else {
        let cols = shape.last().copied().unwrap_or(1);
        return Err(Box::new(if cols.is_multiple_of(dtype.block_len()) {
            fault("the size of a tensor overflows").have(format!("shape {shape} of {dtype}"))
        } else {
            fault("the rows of a tensor are not whole blocks")
                .need(format!("a multiple of {} columns for {dtype}", dtype.block_len()))
                .have(format!("{cols} columns, shape {shape}"))
        }));
    };
    let start = usize::try_from(offset).ok().and_then(|offset| data_start.checked_add(offset));
    match start.and_then(|start| Some(start..start.checked_add(bytes)?)) {
        Some(range) => Ok(StoredTensor { name, dtype, shape, range }),
        None => Err(Box::new(fault("the data of a tensor leaves the file").have(format!("offset {offset}")))),
    }
}

/// One fault for each type that npuc does not read, with the tensors that have it.
fn unreadable_types(entries: &[Entry]) -> Vec<Diagnostic> {
    let mut by_type: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| dtype(entry.type_id).is_none()) {
        by_type.entry(entry.type_id).or_default().push(&entry.name);
    }
    let stored = DType::ALL.into_iter().filter(|dtype| self::type_id(*dtype).is_some());
    let readable: Vec<String> = stored.map(|dtype| dtype.name().to_uppercase()).collect();
    let fault = |(id, names): (u32, Vec<&str>)| {
        let (message, have) = match foreign_type(id) {
            Some(name) => ("tensors are stored in a format that npuc does not read", format!("{name} (type id {id})")),
            None => ("tensors are stored in a format that npuc does not know", format!("type id {id}")),
        };
        Diagnostic::error(Code::UnknownTensorType, message)
            .subject(super::name_list(&names))
            .need(readable.join(", "))
            .have(have)
            .help("use a GGUF of the model in one of these formats, or its Hugging Face folder")
    };
    by_type.into_iter().map(fault).collect()
}

/// The format of a type id.
fn dtype(type_id: u32) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| self::type_id(*dtype) == Some(type_id))
}

/// The type id of a format; `None` if GGUF has no such format (source: `enum ggml_type`).
pub const fn type_id(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2K => 10,
        DType::Q3K => 11,
        DType::Q4K => 12,
        DType::Q5K => 13,
        DType::Q6K => 14,
        DType::BF16 => 30,
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => return None,
    })
}

/// The name of a type id that exists but is not read (source: `enum ggml_type`, with its removed members).
fn foreign_type(type_id: u32) -> Option<&'static str> {
    Some(match type_id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        39 => "MXFP4",
        _ => return None,
    })
}
