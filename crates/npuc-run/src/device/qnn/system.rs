//! Reads context binaries through the library that knows their form.
//!
//! The structures that it gives are read only in the versions that were tried; a binary of a newer form is refused.
#![allow(unsafe_code)]

use std::cmp::Ordering;
use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::ptr;

use memmap2::MmapMut;
use npuc::{Code, Diagnostic, Result};

use super::abi::{self, Handle, encoding};
use super::info::{ContextInfo, EncodingInfo, GraphInfo, GraphSizes, TensorInfo};
use super::library::{System, dotted, text};

/// How a context binary begins. Seen in every binary of QNN 2.51; only used to say what is wrong with one that the library refuses.
const MAGIC: [u8; 8] = [0, 0, 0, 2, 0, 0, 0, 3];
/// Where behind that the place of its data is told, and then their bytes; they end the file.
const DATA_AT: usize = 16;
/// The version of the structures of a context and of a graph.
const STRUCTURE: u32 = 3;
/// The newest form of a binary of which sizes and tensors were read.
const FORM: [u32; 2] = [4, 0];
/// The size of what the HTP back end tells of a graph.
const SIZES_BYTES: u32 = 112;
/// The most tensors or graphs that are believed.
const MAX_COUNT: u32 = 1 << 20;

/// What the library tells of a binary.
#[repr(C)]
struct RawContext {
    version: u32,
    padding: u32,
    back_end: u32,
    build: *const c_char,
    core: [u32; 3],
    back_end_version: [u32; 3],
    soc_name: *const c_char,
    form: [u32; 3],
    form_padding: u32,
    blob_bytes: u64,
    tensor_count: u32,
    tensors: *const abi::Tensor,
    graph_count: u32,
    graphs: *const RawGraph,
    platform: *const c_void,
    meta_bytes: u32,
    meta: *const [u32; 2],
    soc: u32,
}

/// What the library tells of a graph.
#[repr(C)]
struct RawGraph {
    version: u32,
    name: *const c_char,
    input_count: u32,
    inputs: *const abi::Tensor,
    output_count: u32,
    outputs: *const abi::Tensor,
    updatable_count: u32,
    updatable: *const abi::Tensor,
    sizes_bytes: u32,
    sizes: *const RawSizes,
    operations: [u32; 2],
}

/// What the HTP back end tells of a graph.
#[repr(C)]
struct RawSizes {
    version: u32,
    spill_fill: u64,
    vtcm: u32,
    optimisation: u32,
    unknown: [u64; 6],
    io: u64,
    ops: u64,
    constants: u64,
    ddr: u64,
    shared: u64,
}

const _: () = {
    assert!(size_of::<RawContext>() == 144 && offset_of!(RawContext, build) == 16);
    assert!(offset_of!(RawContext, core) == 24 && offset_of!(RawContext, soc_name) == 48);
    assert!(offset_of!(RawContext, form) == 56 && offset_of!(RawContext, blob_bytes) == 72);
    assert!(offset_of!(RawContext, tensors) == 88 && offset_of!(RawContext, graphs) == 104);
    assert!(offset_of!(RawContext, meta) == 128 && offset_of!(RawContext, soc) == 136);
    assert!(size_of::<RawGraph>() == 88 && offset_of!(RawGraph, outputs) == 40);
    assert!(offset_of!(RawGraph, sizes) == 72 && offset_of!(RawGraph, operations) == 80);
    assert!(size_of::<RawSizes>() == SIZES_BYTES as usize && offset_of!(RawSizes, vtcm) == 16);
    assert!(offset_of!(RawSizes, io) == 72 && offset_of!(RawSizes, shared) == 104);
};

/// What the context binary at `path` holds.
///
/// Errors: [`Code::Unreadable`]; [`Code::UnknownFormat`] for a file that the library does not take for a whole context binary, or of a
/// newer form than npuc knows.
pub(super) fn read(system: &System, path: &Path) -> Result<ContextInfo> {
    let mut file = map(path)?;
    let reader = Reader::new(system)?;
    let (mut raw, mut size) = (ptr::null::<c_void>(), 0);
    let (start, len_bytes) = (file.as_mut_ptr().cast::<c_void>(), file.len() as u64);
    // SAFETY: the buffer has `len_bytes` bytes, and what is written are a pointer to the reader's own memory and a size.
    let status =
        unsafe { (system.functions.binary_info)(reader.handle, start, len_bytes, &raw mut raw, &raw mut size) };
    let fault = |message: &str| Diagnostic::error(Code::UnknownFormat, message).file(path);
    if status != 0 || raw.is_null() {
        let have =
            format!("{len_bytes} bytes, which QNN {} refuses (error {})", dotted(system.version), status & 0xffff);
        return Err(refused(&file).file(path).have(have).into());
    }
    let raw = raw.cast::<RawContext>();
    // SAFETY: every version of the structure begins with its version.
    let version = unsafe { (*raw).version };
    if version != STRUCTURE {
        let fault = fault("QNN describes the context binary in a way that npuc does not know");
        return Err(fault.need(format!("version {STRUCTURE}")).have(format!("version {version}")).into());
    }
    // SAFETY: the reader keeps the structure of this version while it lives.
    let raw = unsafe { &*raw };
    if (raw.form[0], raw.form[1]) > (FORM[0], FORM[1]) {
        let fault = fault("the context binary is of a newer form than npuc knows");
        let need = format!("{}.{} or older", FORM[0], FORM[1]);
        return Err(fault.need(need).have(format!("{}, made by {}", dotted(raw.form), text(raw.build))).into());
    }
    context(raw, len_bytes)
        .ok_or_else(|| fault("QNN describes the context binary in a way that npuc cannot read").into())
}

/// Why a file is no context binary, as far as its first bytes tell.
fn refused(file: &[u8]) -> Diagnostic {
    let fault = |message: &str| Diagnostic::error(Code::UnknownFormat, message);
    let copy = "copy it again, or make it again with `npuc build`";
    let Some(rest) = file.strip_prefix(&MAGIC) else {
        return fault("the file is no context binary of QNN").help("a binary of a newer QNN may need newer libraries");
    };
    let number = |at: usize| rest.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let end = number(DATA_AT).zip(number(DATA_AT + 8)).and_then(|(start, len)| start.checked_add(len));
    match end.map(|end| (end, end.cmp(&(file.len() as u64)))) {
        None => fault("the context binary is cut short").need("its whole header").help(copy),
        Some((end, Ordering::Greater)) => {
            fault("the context binary is cut short").need(format!("{end} bytes, which its header tells")).help(copy)
        }
        Some((end, Ordering::Less)) => fault("the file goes on behind the end of its context binary")
            .need(format!("{end} bytes, which its header tells"))
            .help(copy),
        Some((_, Ordering::Equal)) => fault("the context binary is damaged, or of a newer QNN")
            .help(copy)
            .help("if it is of a newer QNN, name the folder of that one's libraries in NPUC_QNN_LIBRARIES"),
    }
}

fn map(path: &Path) -> Result<MmapMut> {
    let fault = |e: io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path);
    let file = File::open(path).map_err(fault)?;
    let data = file.metadata().map_err(fault)?;
    if !data.is_file() || data.len() == 0 {
        let message = if data.is_file() { "the file is empty" } else { "the path is not a regular file" };
        return Err(Diagnostic::error(Code::UnknownFormat, message).file(path).into());
    }
    // SAFETY: a file that is cut short while it is read ends this process, which exists for such ends; what is written stays here.
    Ok(unsafe { memmap2::MmapOptions::new().map_copy(&file) }.map_err(fault)?)
}

/// A reader, which owns what it has read.
struct Reader<'a> {
    system: &'a System,
    handle: Handle,
}

impl Reader<'_> {
    fn new(system: &System) -> Result<Reader<'_>> {
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is written.
        let status = unsafe { (system.functions.create)(&raw mut handle) };
        if status != 0 {
            let fault = Diagnostic::error(Code::ToolFailed, "QNN makes no reader of context binaries");
            return Err(fault.have(format!("error {}", status & 0xffff)).into());
        }
        Ok(Reader { system, handle })
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is the library's and freed once.
        unsafe { (self.system.functions.free)(self.handle) };
    }
}

/// `None` if a structure in it has another version than npuc knows.
fn context(raw: &RawContext, bytes: u64) -> Option<ContextInfo> {
    let meta = (raw.meta_bytes >= 8 && !raw.meta.is_null()).then(|| {
        // SAFETY: it has at least eight bytes.
        unsafe { *raw.meta }
    });
    Some(ContextInfo {
        bytes,
        build: text(raw.build),
        core: raw.core,
        back_end: raw.back_end_version,
        form: raw.form,
        soc: raw.soc,
        dsp_arch: meta.map(|[_, arch]| arch).filter(|arch| *arch != 0),
        blob_bytes: raw.blob_bytes,
        tensors: list(raw.tensors, raw.tensor_count)?.iter().map(tensor).collect::<Option<_>>()?,
        graphs: list(raw.graphs, raw.graph_count)?.iter().map(graph).collect::<Option<_>>()?,
    })
}

/// The entries of a list; `None` if it cannot be one.
fn list<'a, T>(start: *const T, count: u32) -> Option<&'a [T]> {
    match count {
        0 => Some(&[]),
        _ if start.is_null() || count > MAX_COUNT => None,
        // SAFETY: the library tells the number of entries with each list of its own.
        _ => Some(unsafe { std::slice::from_raw_parts(start, count as usize) }),
    }
}

fn graph(raw: &RawGraph) -> Option<GraphInfo> {
    if raw.version != STRUCTURE || raw.name.is_null() {
        return None;
    }
    let sizes = (raw.sizes_bytes >= SIZES_BYTES && !raw.sizes.is_null()).then(|| {
        // SAFETY: it has the size of the structure.
        let raw = unsafe { &*raw.sizes };
        GraphSizes {
            spill_fill_bytes: raw.spill_fill,
            vtcm_bytes: raw.vtcm,
            optimisation: raw.optimisation,
            io_bytes: raw.io,
            op_bytes: raw.ops,
            const_bytes: raw.constants,
            ddr_bytes: raw.ddr,
            shared_weight_bytes: raw.shared,
        }
    });
    Some(GraphInfo {
        name: text(raw.name),
        inputs: list(raw.inputs, raw.input_count)?.iter().map(tensor).collect::<Option<_>>()?,
        outputs: list(raw.outputs, raw.output_count)?.iter().map(tensor).collect::<Option<_>>()?,
        updatable: raw.updatable_count,
        sizes,
    })
}

fn tensor(raw: &abi::Tensor) -> Option<TensorInfo> {
    // What stands in a tensor of version 1 stands there in version 2 too.
    if !matches!(raw.version, 1 | 2) || raw.name.is_null() {
        return None;
    }
    Some(TensorInfo {
        name: text(raw.name),
        id: raw.id,
        dtype: dtype_name(raw.dtype),
        shape: list(raw.shape, raw.rank)?.to_vec(),
        encoding: meaning(&raw.quantisation)?,
    })
}

/// The name of a data type by QNN's number.
fn dtype_name(number: u32) -> String {
    let name = match number {
        0x08 => "i8",
        0x16 => "i16",
        0x32 => "i32",
        0x64 => "i64",
        0x108 => "u8-plain",
        0x116 => "u16-plain",
        0x132 => "u32",
        0x164 => "u64",
        0x216 => "f16",
        0x226 => "bf16",
        0x232 => "f32",
        0x304 => "s4",
        0x308 => "s8",
        0x316 => "s16",
        0x332 => "s32",
        0x404 => "u4",
        0x408 => "u8",
        0x416 => "u16",
        0x432 => "u32-fixed",
        0x508 => "bool",
        other => return format!("{other:#x}"),
    };
    name.into()
}

fn meaning(raw: &abi::Quantisation) -> Option<EncodingInfo> {
    if raw.definition != 1 {
        return Some(EncodingInfo::None);
    }
    let meaning = &raw.meaning;
    // SAFETY: every variant is plain numbers and pointers, and the encoding's number tells which one is there.
    unsafe {
        match raw.encoding {
            encoding::SCALE_OFFSET => {
                let abi::ScaleOffset { scale, offset } = meaning.scale_offset;
                Some(EncodingInfo::ScaleOffset { scale, offset, bits: None })
            }
            encoding::BITS => {
                let abi::BitsScaleOffset { bits, scale, offset } = meaning.few_bits;
                Some(EncodingInfo::ScaleOffset { scale, offset, bits: Some(bits) })
            }
            encoding::AXIS => {
                let abi::AxisScaleOffset { axis, count, entries } = meaning.axis;
                let entries = list(entries, count)?;
                let scales = ends(entries.iter().map(|entry| entry.scale));
                let offsets = ends(entries.iter().map(|entry| entry.offset));
                Some(EncodingInfo::Axis { axis, count, scales, offsets, bits: None })
            }
            encoding::BITS_AXIS => {
                let abi::BitsAxis { bits, axis, count, scales, offsets } = meaning.few_bits_axis;
                let scales = ends(list(scales, count)?.iter().copied());
                let offsets = if offsets.is_null() { [0; 2] } else { ends(list(offsets, count)?.iter().copied()) };
                Some(EncodingInfo::Axis { axis, count, scales, offsets, bits: Some(bits) })
            }
            other => Some(EncodingInfo::Other(other)),
        }
    }
}

/// The smallest and the largest; zeros if there is none.
fn ends<T: PartialOrd + Copy + Default>(values: impl Iterator<Item = T>) -> [T; 2] {
    let wider = |[low, high]: [T; 2], x: T| [if x < low { x } else { low }, if x > high { x } else { high }];
    values.map(|x| [x, x]).reduce(|ends, [x, _]| wider(ends, x)).unwrap_or_default()
}
