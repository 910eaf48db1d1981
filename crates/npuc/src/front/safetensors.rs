//! safetensors files: eight bytes of header length, a JSON header that names byte ranges, the bytes.
//!
//! Only the header is read. The reader of the `safetensors` crate drops repeated names and its errors
//! name no tensor, so the header is parsed here; the crate's table of element types is used.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::layout::{self, Packing, Span};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::tensor::Shape;

/// The longest header that readers of the format accept (source: `MAX_HEADER_SIZE` of the safetensors crate).
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A tensor as a safetensors header lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// The name in the file.
    pub name: String,
    /// The element type, of all that the format has.
    pub dtype: Dtype,
    /// Extents, outermost first.
    pub shape: Shape,
    /// The bytes in the file; as many as the element type and shape need.
    pub range: Range<usize>,
}

/// The tensors of a safetensors file, in the order of the header. `file` is the whole file.
///
/// # Errors
/// A file that is cut short, a malformed header, repeated names, and data that overlaps, leaves the file,
/// leaves holes or has the wrong size; all faults of the layout at once.
pub fn parse(file: &[u8]) -> Result<Vec<StoredTensor>> {
    let (header, data_start) = split_header(file)?;
    let Pairs::<Entry>(entries) = serde_json::from_slice(header)
        .map_err(|e| Diagnostic::error(Code::BadHeader, format!("the header is malformed: {e}")))?;

    let mut faults = Vec::new();
    let mut names = HashSet::new();
    for (name, _) in &entries {
        if !names.insert(name) {
            faults.push(Diagnostic::error(Code::DuplicateName, "two tensors have the same name").subject(name));
        }
    }
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        match place(name, entry, data_start) {
            Ok(tensor) => tensors.push(tensor),
            Err(fault) => faults.push(*fault),
        }
    }
    Error::check(faults)?;
    let mut spans: Vec<Span> =
        tensors.iter().map(|t| Span { name: &t.name, start: t.range.start, end: t.range.end }).collect();
    Error::check(layout::faults(&mut spans, data_start, file.len(), Packing::Exact))?;
    Ok(tensors)
}

/// The JSON text and the offset of the data.
fn split_header(file: &[u8]) -> Result<(&[u8], usize)> {
    let cut = |need: u64| {
        Diagnostic::error(Code::TruncatedFile, "the file ends inside its header")
            .need(format!("{need} bytes at least"))
            .have(format!("{} bytes", file.len()))
            .help("copy or download the file again")
    };
    if let Some(fault) = super::lfs_pointer(file) {
        return Err(fault.into());
    }
    let (length, rest) = file.split_first_chunk::<8>().ok_or_else(|| cut(8))?;
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(Diagnostic::error(
            Code::BadHeader,
            "the header length is impossible: this is not a safetensors file",
        )
        .need(format!("at most {MAX_HEADER_BYTES} bytes, the limit of the format"))
        .have(format!("{length} bytes"))
        .into());
    }
    // Fits: at most MAX_HEADER_BYTES.
    let header = rest.get(..length as usize).ok_or_else(|| cut(8 + length))?;
    Ok((header, 8 + header.len()))
}

/// Turns an entry's offsets into bytes of the file, of the size that type and shape need.
fn place(name: String, entry: Entry, data_start: usize) -> Result<StoredTensor, Box<Diagnostic>> {
    let fault = |code, message: &str| Diagnostic::error(code, message).subject(&name);
    let Ok(dtype) = serde_json::from_value::<Dtype>(entry.dtype.as_str().into()) else {
        return Err(Box::new(
            fault(Code::UnknownTensorType, "a tensor has an element type that the format does not know")
                .need("F32, F16 or BF16")
                .have(entry.dtype),
        ));
    };
    let (begin, end) = entry.data_offsets;
    let have = || format!("data_offsets [{begin}, {end}]");
    let shape = Shape(entry.shape);
    let bits = shape.elements().and_then(|n| n.checked_mul(dtype.bitsize()));
    let Some(bits) = bits else {
        return Err(Box::new(
            fault(Code::BadOffsets, "the size of a tensor overflows").have(format!("shape {shape} of {dtype:?}")),
        ));
    };
    if begin > end {
        return Err(Box::new(
            fault(Code::BadOffsets, "the data of a tensor ends before it begins").need("begin <= end").have(have()),
        ));
    }
    if !bits.is_multiple_of(8) || end - begin != bits / 8 {
        return Err(Box::new(
            fault(Code::BadOffsets, "the data of a tensor has the wrong size")
                .need(format!("{} bytes for shape {shape} of {dtype:?}", bits.div_ceil(8)))
                .have(format!("{} bytes, {}", end - begin, have())),
        ));
    }
    let (Some(start), Some(stop)) = (data_start.checked_add(begin), data_start.checked_add(end)) else {
        return Err(Box::new(fault(Code::BadOffsets, "the data of a tensor leaves the file").have(have())));
    };
    Ok(StoredTensor { name, dtype, shape, range: start..stop })
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// A JSON object whose repeated names are kept, which maps drop. The key `__metadata__`, an object of texts
/// that safetensors allows, is checked and left out.
pub(super) struct Pairs<T>(pub(super) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<T>, D::Error> {
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
    type Value = Pairs<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
        let mut pairs = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<BTreeMap<String, String>>()
                    .map_err(|e| A::Error::custom(format!("__metadata__: {e}")))?;
                continue;
            }
            let value = map.next_value().map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
            pairs.push((name, value));
        }
        Ok(Pairs(pairs))
    }
}
