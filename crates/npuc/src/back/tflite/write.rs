//! A TFLite file in memory, without its weights: they are read, widened and written one after the other when
//! the file is written, so that no second copy of a model is ever held.
//!
//! The flatbuffer with all tables comes first and is small; the data of the buffers follows it. An offset in a
//! flatbuffer may point any distance ahead, so this is a plain TFLite file with inline buffers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use flatbuffers::FlatBufferBuilder;
use half::f16;
use npuc_kernels::dequant::dequantize_row;

use super::schema::{self, Builtin, Table, TensorInfo, TensorType};
use crate::bundle::{WeightRecord, held_as};
use crate::diag::{Code, Diagnostic, Result};
use crate::quant::{self, INT16_MAX, WeightFormat};
use crate::tensor::{DType, Tensor};

/// A flatbuffer, and with it a TFLite file with inline buffers, must be smaller than this.
pub const FILE_LIMIT_BYTES: u64 = 1 << 31;

/// Buffers begin at multiples of this (`force_align` of the schema).
const ALIGN_BYTES: u64 = 16;

/// How the numbers of a value are held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// In f32.
    Real,
    /// In int16 with a scale.
    Int16 { scale: f32 },
}

/// The data of a buffer.
#[derive(Debug)]
pub(super) enum Data {
    /// As it is.
    Bytes(Vec<u8>),
    /// A weight, written as f32.
    Single(Tensor),
    /// A weight, written as f16; all of its numbers are within the range.
    Half(Tensor),
    /// A weight, written in whole numbers with a scale for every row or one for all.
    Whole { tensor: Tensor, format: WeightFormat, scales: Arc<[f32]> },
}

impl Data {
    fn len_bytes(&self) -> Option<u64> {
        match self {
            Data::Bytes(bytes) => u64::try_from(bytes.len()).ok(),
            Data::Single(tensor) => u64::try_from(tensor.shape.elements()?).ok()?.checked_mul(4),
            Data::Half(tensor) => u64::try_from(tensor.shape.elements()?).ok()?.checked_mul(2),
            Data::Whole { tensor, format, scales: _ } => quant::quantised_bytes(tensor, *format),
        }
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Data::Bytes(bytes) => out.write_all(bytes),
            Data::Single(tensor) => write_f32(tensor, out),
            Data::Half(tensor) => write_f16(tensor, out),
            Data::Whole { tensor, format, scales } => quant::write_rows(tensor, *format, scales, out),
        }
    }
}

/// Writes a tensor as f32 in little-endian order, row by row.
pub fn write_f32(tensor: &Tensor, out: &mut dyn Write) -> io::Result<()> {
    if tensor.dtype == DType::F32 {
        return out.write_all(&tensor.bytes());
    }
    let mut raw = Vec::new();
    each_row(tensor, |row| {
        raw.clear();
        raw.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        out.write_all(&raw)
    })
}

/// Writes a tensor as f16 in little-endian order, row by row.
fn write_f16(tensor: &Tensor, out: &mut dyn Write) -> io::Result<()> {
    if tensor.dtype == DType::F16 {
        return out.write_all(&tensor.bytes());
    }
    let mut raw = Vec::new();
    each_row(tensor, |row| {
        raw.clear();
        raw.extend(row.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
        out.write_all(&raw)
    })
}

/// How many numbers f16 cannot hold, and the largest magnitude among them.
fn beyond_f16(tensor: &Tensor) -> io::Result<(usize, f32)> {
    let mut beyond = (0, 0.0f32);
    if tensor.dtype == DType::F16 {
        return Ok(beyond);
    }
    each_row(tensor, |row| {
        // A rounding to infinity counts; NaN and infinity themselves pass as they are.
        for &x in row.iter().filter(|x| x.is_finite() && !f16::from_f32(**x).is_finite()) {
            beyond = (beyond.0 + 1, beyond.1.max(x.abs()));
        }
        Ok(())
    })?;
    Ok(beyond)
}

/// Every row of a tensor in f32.
fn each_row(tensor: &Tensor, mut each: impl FnMut(&[f32]) -> io::Result<()>) -> io::Result<()> {
    let bytes: Cow<'_, [u8]> = tensor.bytes();
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let invalid = || io::Error::other("the rows of a tensor do not hold whole blocks");
    let row_bytes = tensor.dtype.row_bytes(cols).filter(|&n| n > 0).ok_or_else(invalid)?;
    let mut row = vec![0.0f32; cols];
    for stored in bytes.chunks_exact(row_bytes) {
        dequantize_row(tensor.dtype, stored, &mut row);
        each(&row)?;
    }
    Ok(())
}

/// How the numbers of a stored weight are read.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredForm {
    /// As they are.
    Real(DType),
    /// Whole numbers, row after row, with a scale for each row.
    Whole(WeightFormat, Arc<[f32]>),
}

/// A weight inside a TFLite file.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredWeight {
    /// The name of its tensor.
    pub name: String,
    /// How its numbers are stored.
    pub form: StoredForm,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl StoredWeight {
    /// The same for a bundle with the file at `path`, where the scales of a row begin at `scales` in their file.
    pub fn record(&self, path: &str, scales: u64) -> WeightRecord {
        let StoredWeight { name, form, shape, offset, bytes } = self.clone();
        let (dtype, scales) = match form {
            StoredForm::Real(dtype) => (dtype.name(), None),
            StoredForm::Whole(format, _) => (format.name(), Some(scales)),
        };
        WeightRecord { name, dtype: dtype.into(), shape, file: path.into(), offset, bytes, scales }
    }

    /// The format in which the host reads it.
    pub fn held_as(&self) -> DType {
        match &self.form {
            StoredForm::Real(dtype) => *dtype,
            StoredForm::Whole(format, _) => held_as(*format, self.shape.last().copied().unwrap_or(1)),
        }
    }
}

/// A TFLite file, ready to be written.
#[derive(Debug)]
pub struct TfliteFile {
    /// The flatbuffer, with the offsets to the data that follows.
    head: Vec<u8>,
    /// The data of each buffer, with the bytes of padding before it or its length.
    data: Vec<(usize, Data)>,
    /// Whether the data lies outside the flatbuffer, without lengths.
    outer: bool,
    len_bytes: u64,
    weights: Vec<StoredWeight>,
    inputs: Vec<PortScale>,
    outputs: Vec<PortScale>,
}

/// A port of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct PortScale {
    /// The port's name.
    pub name: String,
    /// The scale of an int16 port; `None` for f32.
    pub scale: Option<f32>,
}

impl TfliteFile {
    /// The weights that lie in the file as numbers that the host can read.
    pub fn weights(&self) -> &[StoredWeight] {
        &self.weights
    }

    /// The size of the file.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[PortScale] {
        &self.inputs
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> &[PortScale] {
        &self.outputs
    }

    /// Writes the file.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.head)?;
        for (padding, data) in &self.data {
            out.write_all(&[0; ALIGN_BYTES as usize][..*padding])?;
            if !self.outer {
                let len = data.len_bytes().and_then(|len| u32::try_from(len).ok());
                out.write_all(&len.ok_or_else(|| io::Error::other("a buffer is too large"))?.to_le_bytes())?;
            }
            data.write_to(out)?;
        }
        Ok(())
    }
}

/// Collects the tensors, buffers and operators of a model.
#[derive(Debug)]
pub(super) struct Writer {
    tensors: Vec<TensorInfo>,
    operators: Vec<(Builtin, Vec<i32>, i32)>,
    data: Vec<Data>,
    /// Constants that are there already.
    known: HashMap<Constant, i32>,
}

/// A constant of the graph's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Constant {
    ty: TensorType,
    shape: Vec<i32>,
    bytes: Vec<u8>,
    scale_bits: Option<u32>,
}

impl Writer {
    pub(super) fn new() -> Writer {
        Writer { tensors: Vec::new(), operators: Vec::new(), data: Vec::new(), known: HashMap::new() }
    }

    /// A value that is computed or enters; gives its index.
    pub(super) fn value(&mut self, name: String, form: Form, shape: Vec<i32>) -> i32 {
        let (ty, scales) = match form {
            Form::Real => (TensorType::Float32, Arc::default()),
            Form::Int16 { scale } => (TensorType::Int16, Arc::from([scale])),
        };
        self.tensor(TensorInfo { name, ty, shape, buffer: 0, scales })
    }

    /// A weight in f32.
    pub(super) fn weight(&mut self, name: String, shape: Vec<i32>, tensor: Tensor) -> i32 {
        let buffer = self.buffer(Data::Single(tensor));
        self.tensor(TensorInfo { name, ty: TensorType::Float32, shape, buffer, scales: Arc::default() })
    }

    /// A weight in f16 that is widened before it is used.
    ///
    /// Errors: [`Code::Misfit`] for numbers that f16 cannot hold.
    pub(super) fn half_weight(&mut self, name: String, shape: Vec<i32>, tensor: Tensor) -> Result<i32> {
        let unreadable = |e: io::Error| Diagnostic::error(Code::Unreadable, e.to_string()).subject(&name);
        let (count, largest) = beyond_f16(&tensor).map_err(unreadable)?;
        if count > 0 {
            return Err(Diagnostic::error(Code::Misfit, "a weight has numbers that f16 cannot hold")
                .subject(&name)
                .need(format!("magnitudes of at most {}", f16::MAX))
                .have(format!("{count} larger ones, up to {largest}"))
                .help("store the weights in f32")
                .into());
        }
        let buffer = self.buffer(Data::Half(tensor));
        let stored = TensorInfo {
            name: name.clone(),
            ty: TensorType::Float16,
            shape: shape.clone(),
            buffer,
            scales: Arc::default(),
        };
        let stored = self.tensor(stored);
        let widened = self.value(format!("{name}/dequantize"), Form::Real, shape);
        self.operator(Builtin::Dequantize, vec![stored], widened);
        Ok(widened)
    }

    /// A weight in whole numbers, with a scale for each row or one for all.
    pub(super) fn whole_weight(
        &mut self,
        name: String,
        shape: Vec<i32>,
        tensor: Tensor,
        format: WeightFormat,
        scales: Arc<[f32]>,
    ) -> i32 {
        let ty = match format {
            WeightFormat::Int16 => TensorType::Int16,
            WeightFormat::Int8 => TensorType::Int8,
            WeightFormat::Int4 => TensorType::Int4,
        };
        let buffer = self.buffer(Data::Whole { tensor, format, scales: Arc::clone(&scales) });
        self.tensor(TensorInfo { name, ty, shape, buffer, scales })
    }

    /// A bias in int64, of as many numbers as scales.
    pub(super) fn bias(&mut self, name: String, numbers: &[i64], scales: Arc<[f32]>) -> i32 {
        let bytes = numbers.iter().flat_map(|q| q.to_le_bytes()).collect();
        let buffer = self.buffer(Data::Bytes(bytes));
        self.tensor(TensorInfo { name, ty: TensorType::Int64, shape: vec![numbers.len() as i32], buffer, scales })
    }

    /// A vector of whole numbers; equal ones are stored once.
    pub(super) fn ints(&mut self, values: &[i32]) -> i32 {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(TensorType::Int32, vec![values.len() as i32], bytes, None)
    }

    /// One real number, of shape [1]; equal ones are stored once. In int16 it is the largest number of its own scale.
    pub(super) fn scalar(&mut self, value: f32, int16: bool) -> i32 {
        if !int16 {
            return self.constant(TensorType::Float32, vec![1], value.to_le_bytes().to_vec(), None);
        }
        let (number, scale) = match value {
            0.0 => (0i16, 1.0),
            _ => ((INT16_MAX * value.signum()) as i16, value.abs() / INT16_MAX),
        };
        self.constant(TensorType::Int16, vec![1], number.to_le_bytes().to_vec(), Some(scale))
    }

    /// That many zeros, of shape [count]; equally many are stored once.
    pub(super) fn zeros(&mut self, count: i32) -> i32 {
        self.constant(TensorType::Float32, vec![count], vec![0; count as usize * size_of::<f32>()], None)
    }

    pub(super) fn operator(&mut self, builtin: Builtin, inputs: Vec<i32>, output: i32) {
        self.operators.push((builtin, inputs, output));
    }

    fn constant(&mut self, ty: TensorType, shape: Vec<i32>, bytes: Vec<u8>, scale: Option<f32>) -> i32 {
        let constant = Constant { ty, shape, bytes, scale_bits: scale.map(f32::to_bits) };
        if let Some(&index) = self.known.get(&constant) {
            return index;
        }
        let buffer = self.buffer(Data::Bytes(constant.bytes.clone()));
        let (name, shape) = (format!("constant.{buffer}"), constant.shape.clone());
        let index = self.tensor(TensorInfo { name, ty, shape, buffer, scales: scale.into_iter().collect() });
        self.known.insert(constant, index);
        index
    }

    fn tensor(&mut self, info: TensorInfo) -> i32 {
        self.tensors.push(info);
        self.tensors.len() as i32 - 1
    }

    /// Buffer 0 is the empty one.
    fn buffer(&mut self, data: Data) -> u32 {
        self.data.push(data);
        self.data.len() as u32
    }

    /// The file, with its buffers inside the flatbuffer or, where they are `outer`, behind it.
    ///
    /// Errors: [`Code::Misfit`] for a file with inner buffers that would reach [`FILE_LIMIT_BYTES`].
    pub(super) fn finish(self, name: &str, inputs: &[i32], outputs: &[i32], outer: bool) -> Result<TfliteFile> {
        let (mut head, fields) = self.tables(name, inputs, outputs, outer)?;
        let port = |&index: &i32| {
            let info = &self.tensors[index as usize];
            PortScale { name: info.name.clone(), scale: info.scales.first().copied() }
        };
        let (inputs, outputs) = (inputs.iter().map(port).collect(), outputs.iter().map(port).collect());
        head.resize(head.len().next_multiple_of(ALIGN_BYTES as usize), 0);
        // Where the data of each buffer is; an inner one has its length before it.
        let length_bytes = if outer { 0 } else { 4 };
        let mut starts: Vec<u64> = Vec::with_capacity(self.data.len());
        let mut end = head.len() as u64;
        for data in &self.data {
            let start = (end + length_bytes).next_multiple_of(ALIGN_BYTES);
            starts.push(start);
            end = match data.len_bytes() {
                Some(len) if len < 1 << 62 && end < 1 << 62 => start + len,
                Some(_) | None => return Err(too_large(name, "more than 2^62 bytes")),
            };
        }
        if end >= FILE_LIMIT_BYTES && !outer {
            return Err(too_large(name, &format!("{end} bytes")));
        }
        let weights = self.stored_weights(&starts);
        let mut data = Vec::with_capacity(self.data.len());
        let mut written = head.len() as u64;
        for ((field, start), item) in fields.into_iter().zip(starts).zip(self.data) {
            if outer {
                head[field..field + 8].copy_from_slice(&start.to_le_bytes());
            } else {
                // Both are below the limit of 2^31, and the data follows every table.
                let offset = (start - length_bytes - field as u64) as u32;
                head[field..field + 4].copy_from_slice(&offset.to_le_bytes());
            }
            let padding = (start - length_bytes - written) as usize;
            written = start + item.len_bytes().unwrap_or(0);
            data.push((padding, item));
        }
        Ok(TfliteFile { head, data, outer, len_bytes: end, weights, inputs, outputs })
    }

    /// `starts` are the places of the data.
    fn stored_weights(&self, starts: &[u64]) -> Vec<StoredWeight> {
        let stored = |TensorInfo { name, buffer, .. }: &TensorInfo| {
            let place = (*buffer as usize).checked_sub(1)?;
            let (form, tensor) = match &self.data[place] {
                Data::Bytes(_) => return None,
                Data::Single(tensor) => (StoredForm::Real(DType::F32), tensor),
                Data::Half(tensor) => (StoredForm::Real(DType::F16), tensor),
                Data::Whole { tensor, format, scales } => {
                    let by_rows = tensor.shape.len() == 2 && tensor.shape[0] == scales.len();
                    (by_rows.then(|| StoredForm::Whole(*format, Arc::clone(scales)))?, tensor)
                }
            };
            let (shape, bytes) = (tensor.shape.to_vec(), self.data[place].len_bytes()?);
            Some(StoredWeight { name: name.clone(), form, shape, offset: starts[place], bytes })
        };
        self.tensors.iter().filter_map(stored).collect()
    }

    /// The flatbuffer and the place in it of every offset that has to be filled in.
    fn tables(&self, name: &str, inputs: &[i32], outputs: &[i32], outer: bool) -> Result<(Vec<u8>, Vec<usize>)> {
        let mut fbb = FlatBufferBuilder::new();
        let mut kinds: Vec<(Builtin, i32)> = Vec::new();
        let mut operators = Vec::with_capacity(self.operators.len());
        for (builtin, inputs, output) in &self.operators {
            let types: Vec<TensorType> = inputs.iter().map(|&input| self.tensors[input as usize].ty).collect();
            let version = builtin.version(&types);
            let same = |(kind, of): &(Builtin, i32)| (kind.code(), *of) == (builtin.code(), version);
            let code = kinds.iter().position(same).unwrap_or_else(|| {
                kinds.push((*builtin, version));
                kinds.len() - 1
            });
            let shape = &self.tensors[*output as usize].shape;
            let call = schema::Call { builtin: *builtin, inputs, output: *output, types: &types, shape };
            operators.push(schema::operator(&mut fbb, code as u32, &call));
        }
        let code = |&(kind, version): &(Builtin, i32)| schema::operator_code(&mut fbb, kind, version);
        let codes: Vec<Table> = kinds.iter().map(code).collect();
        let tensors: Vec<Table> = self.tensors.iter().map(|info| schema::tensor(&mut fbb, info)).collect();
        let mut buffers = vec![schema::empty_buffer(&mut fbb)];
        buffers.extend(self.data.iter().zip(1u32..).map(|(data, mark)| match outer {
            false => schema::open_buffer(&mut fbb, mark),
            true => schema::outer_buffer(&mut fbb, u64::from(mark), data.len_bytes().unwrap_or(u64::MAX)),
        }));
        let graph = schema::subgraph(&mut fbb, name, &tensors, inputs, outputs, &operators);
        let description = concat!("npuc ", env!("CARGO_PKG_VERSION"));
        let model = schema::model(&mut fbb, &codes, graph, description, &buffers);
        fbb.finish(model, Some(schema::IDENTIFIER));
        let head = fbb.finished_data().to_vec();
        let number = if outer { 1 } else { 0 };
        let field = |table: &Table| schema::field_place(&head, head.len() - table.value() as usize, number);
        let fields = buffers[1..].iter().map(field).collect::<Option<Vec<usize>>>();
        let fields = fields
            .ok_or_else(|| Diagnostic::error(Code::Misfit, "a buffer has no place in the TFLite file").subject(name))?;
        Ok((head, fields))
    }
}

fn too_large(name: &str, have: &str) -> crate::Error {
    Diagnostic::error(Code::Misfit, "the TFLite file would be too large")
        .subject(name)
        .need(format!("less than {FILE_LIMIT_BYTES} bytes, which is what the offsets of a flatbuffer reach"))
        .have(have)
        .help("cut the model into more chunks (--chunks), or let weights lie behind the flatbuffer (--outer-buffers)")
        .into()
}
