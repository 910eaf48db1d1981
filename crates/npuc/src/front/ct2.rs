//! CTranslate2's container `model.bin`, binary versions 4 to 6: named tensors one after the other, then further names of some.
//!
//! The data of a tensor follows its name without any padding, so it begins at any byte of the file. Layout as CTranslate2
//! writes and reads it (its `python/ctranslate2/specs/model_spec.py` and `src/models/model.cc`); numbers are little endian.
//! Nothing is allocated by a number from the file before that many bytes are known to be there.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};

use super::reader::Reader;
use crate::diag::{Code, Diagnostic, Result};
use crate::tensor::{DType, Shape};

/// The versions that say the type of every tensor and have aliases; their layout is one.
const VERSIONS: RangeInclusive<u32> = 4..=6;
/// What the name of every kind of model ends with, and the zero byte behind it.
const SPEC_END: &[u8] = b"Spec\0";

/// What a container lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The version of the container: 4 to 6.
    pub version: u32,
    /// The kind of model, e.g. `WhisperSpec`.
    pub spec: String,
    /// The revision of the names that this kind of model has.
    pub revision: u32,
    /// The tensors, in the order of the file.
    pub tensors: Vec<StoredTensor>,
    /// Further names of tensors, each with the index in [`Container::tensors`].
    pub aliases: Vec<(String, usize)>,
}

/// A tensor as a container lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// The name in the file.
    pub name: String,
    /// The type of the elements.
    pub element: Element,
    /// Extents, outermost first; none for a single number.
    pub shape: Shape,
    /// The bytes in the file, at any alignment; as many as the element type and shape need.
    pub range: Range<usize>,
}

/// The types of elements that the container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// binary32.
    F32,
    /// Whole numbers of 8 bits: settings, and weights that CTranslate2 has quantised.
    I8,
    /// Whole numbers of 16 bits.
    I16,
    /// Whole numbers of 32 bits.
    I32,
    /// binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// The types by their number in the file.
    const ALL: [Element; 6] = [Element::F32, Element::I8, Element::I16, Element::I32, Element::F16, Element::Bf16];

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Element::I8 => 1,
            Element::I16 | Element::F16 | Element::Bf16 => 2,
            Element::F32 | Element::I32 => 4,
        }
    }

    /// What CTranslate2 calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Element::F32 => "float32",
            Element::I8 => "int8",
            Element::I16 => "int16",
            Element::I32 => "int32",
            Element::F16 => "float16",
            Element::Bf16 => "bfloat16",
        }
    }

    /// The format of weights of that type; `None` for whole numbers.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Element::F32 => Some(DType::F32),
            Element::F16 => Some(DType::F16),
            Element::Bf16 => Some(DType::BF16),
            Element::I8 | Element::I16 | Element::I32 => None,
        }
    }
}

/// The container in `file`, which is the whole file.
///
/// # Errors
/// Another kind of file, another version, a file that is cut short or goes on, malformed or repeated names, unknown element
/// types, data of the wrong size, and further names of tensors that are not there; the first of them.
pub fn parse(file: &[u8]) -> Result<Container> {
    if !begins_one(file) {
        return Err(foreign(file).into());
    }
    let mut reader = Reader::new(file);
    let version = reader.u32()?;
    if !VERSIONS.contains(&version) {
        return Err(Diagnostic::error(Code::BadHeader, "the container has a version that npuc does not read")
            .need(format!("{} to {}", VERSIONS.start(), VERSIONS.end()))
            .have(version)
            .help("convert the model again with a CTranslate2 of today")
            .into());
    }
    let spec = text(&mut reader)?;
    let revision = reader.u32()?;
    let count = reader.u32()?;
    let (mut tensors, mut names) = (Vec::new(), HashMap::new());
    for index in 0..count {
        reader.enter(format!("tensor {index} of {count}, at byte {}", reader.at()));
        let name = text(&mut reader)?;
        reader.enter(name.clone());
        if names.insert(name.clone(), tensors.len()).is_some() {
            return Err(reader.fault(Code::DuplicateName, "two tensors have the same name").into());
        }
        tensors.push(tensor(&mut reader, name, file.len())?);
    }
    let aliases = aliases(&mut reader, &mut names)?;
    if reader.at() < file.len() {
        return Err(Diagnostic::error(Code::BadOffsets, "there are bytes after the end of the container")
            .need(format!("{} bytes", reader.at()))
            .have(format!("{} bytes", file.len()))
            .into());
    }
    Ok(Container { version, spec, revision, tensors, aliases })
}

/// The further names; `names` has the index of each tensor.
fn aliases(reader: &mut Reader<'_>, names: &mut HashMap<String, usize>) -> Result<Vec<(String, usize)>> {
    reader.enter("the number of aliases".into());
    let count = reader.u32()?;
    let mut aliases = Vec::new();
    for index in 0..count {
        reader.enter(format!("alias {index} of {count}, at byte {}", reader.at()));
        let (alias, of) = (text(reader)?, text(reader)?);
        reader.enter(alias.clone());
        let Some(&tensor) = names.get(&of) else {
            let fault = reader.fault(Code::MissingTensor, "an alias names a tensor that is not there");
            return Err(fault.have(of).into());
        };
        if names.insert(alias.clone(), tensor).is_some() {
            return Err(reader.fault(Code::DuplicateName, "an alias is the name of another tensor").into());
        }
        aliases.push((alias, tensor));
    }
    Ok(aliases)
}

/// What follows a tensor's name.
fn tensor(reader: &mut Reader<'_>, name: String, file_bytes: usize) -> Result<StoredTensor> {
    let rank = reader.u8()?;
    let extents = reader.take(4 * u64::from(rank))?.as_chunks::<4>().0;
    let extents = extents.iter().map(|&extent| usize::try_from(u32::from_le_bytes(extent)));
    let shape: Option<Vec<usize>> = extents.map(std::result::Result::ok).collect();
    let id = reader.u8()?;
    let Some(&element) = Element::ALL.get(usize::from(id)) else {
        return Err(reader
            .fault(Code::UnknownTensorType, "a tensor has an element type that the format does not know")
            .need(format!("0 to {}", Element::ALL.len() - 1))
            .have(format!("{id} at byte {}", reader.at() - 1))
            .into());
    };
    let bytes = reader.u32()?;
    let start = reader.at();
    let needed = shape.map(Shape).and_then(|shape| {
        let bytes = shape.elements()?.checked_mul(element.bytes())?;
        Some((shape, bytes))
    });
    let Some((shape, needed)) = needed else {
        return Err(reader.fault(Code::BadOffsets, "the size of a tensor overflows").into());
    };
    if usize::try_from(bytes) != Ok(needed) {
        return Err(reader
            .fault(Code::BadOffsets, "the data of a tensor has the wrong size")
            .need(format!("{needed} bytes for shape {shape} of {}", element.name()))
            .have(format!("{bytes} bytes, from byte {start}"))
            .into());
    }
    if file_bytes - start < needed {
        return Err(reader
            .fault(Code::TruncatedFile, "the file ends before the data of its tensors does")
            .need(format!("{} bytes at least", start.saturating_add(needed)))
            .have(format!("{file_bytes} bytes"))
            .help("copy or download the file again")
            .into());
    }
    reader.take(bytes.into())?;
    Ok(StoredTensor { name, element, shape, range: start..start + needed })
}

/// A text with its length, in which a zero byte behind it counts.
fn text(reader: &mut Reader<'_>) -> Result<String> {
    let (at, length) = (reader.at(), reader.u16()?);
    let bytes = reader.take(length.into())?;
    match bytes.split_last() {
        Some((0, text)) if !text.is_empty() => reader.utf8(text),
        Some(_) | None => Err(reader
            .fault(Code::BadHeader, "a text is empty or does not end with a zero byte")
            .have(format!("`{}`, {length} bytes at byte {at}", bytes[..bytes.len().min(64)].escape_ascii()))
            .into()),
    }
}

/// Whether a file begins as a container does, of whatever version: a small number, and the name of a kind of model.
fn begins_one(file: &[u8]) -> bool {
    let Some((version, rest)) = file.split_first_chunk::<4>() else { return false };
    let Some((length, rest)) = rest.split_first_chunk::<2>() else { return false };
    let spec = rest.get(..u16::from_le_bytes(*length).into());
    u32::from_le_bytes(*version) < 1 << 8 && spec.is_some_and(|spec| spec.ends_with(SPEC_END))
}

/// The fault of a file that is none.
fn foreign(file: &[u8]) -> Diagnostic {
    if let Some(fault) = super::lfs_pointer(file) {
        return fault;
    }
    let unknown = |message: &str| Diagnostic::error(Code::UnknownFormat, message);
    // Archives of torch.save, and the pickles that older ones are.
    if file.starts_with(b"PK\x03\x04") || file.starts_with(&[0x80, 2]) {
        return unknown("the file holds weights as PyTorch pickles them, which npuc does not read")
            .help("save the model again with `save_pretrained(..., safe_serialization=True)`");
    }
    if file.starts_with(b"lmgg") {
        return unknown("the file is one of whisper.cpp's, which npuc does not read")
            .help("give the model's Hugging Face folder or its CTranslate2 folder");
    }
    let begin = file[..file.len().min(16)].escape_ascii();
    unknown("the file is no container of CTranslate2")
        .need("a version and the name of a kind of model, such as WhisperSpec")
        .have(format!("{} bytes that begin with `{begin}`", file.len()))
}
