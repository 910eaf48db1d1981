//! Weights in the form of QNN's interface: matrices as filters of convolutions, everything else in a tensor's own data type.
//!
//! QNN does not check blocks, offsets, axes and sizes of buffers; what breaks a rule gives garbage in silence. So it is
//! refused here.

use half::f16;

use super::description::{DataType, Role, ScaleOffset};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::exec::to_f32;
use crate::tensor::{DType, Tensor};

/// The largest whole scale of a block; larger ones give garbage. Source: executed in the emulation of v75.
const LARGEST_BLOCK_SCALE: u8 = 16;
/// What the inputs of a matrix with whole scales of blocks must be a multiple of: with an odd number of blocks of 16 the
/// convolution gives garbage without a word. Source: executed in the emulation of v75 and v79.
pub(super) const LPBQ_INPUTS: usize = 32;
/// The most inputs that share the scale of a float block. Source: 16 to 128 were executed in the emulation of v75 and v79.
const LARGEST_FLOAT_BLOCK: u32 = 128;
/// How many rows are turned at once, so that every write is as long as a cache line.
const ROWS_AT_ONCE: usize = 64;

/// A matrix `[out, in]` as the filter `[1, 1, in, out]` of a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// The numbers, the outputs of an input side by side.
    pub data: Vec<u8>,
    /// Their data type: [`DataType::F16`], or [`DataType::S8`] with four-bit numbers one a byte.
    pub dtype: DataType,
    /// What they mean.
    pub encoding: FilterEncoding,
}

/// What the numbers of a filter mean.
#[derive(Clone, Debug, PartialEq)]
pub enum FilterEncoding {
    /// Themselves.
    Float,
    /// `q * scales[out]`, `q` in that many bits.
    Channels {
        /// 8 or 4.
        bits: u32,
        /// One an output.
        scales: Vec<f32>,
    },
    /// `q * scales[out] * block_scales[out][in / block]`, `q` in 4 bits.
    Blocks {
        /// Inputs that share a scale.
        block: u32,
        /// One an output.
        scales: Vec<f32>,
        /// `[out, in / block]`, each 1 to 16.
        block_scales: Vec<u8>,
    },
    /// `(q + offset) * scale`, `q` in 4 bits; needs f16 activations.
    FloatBlocks {
        /// Inputs that share a scale.
        block: u32,
        /// Scale and offset, `[out, in / block]`.
        blocks: Vec<[f32; 2]>,
    },
}

/// The filter of a matrix for whole-number activations, or for f16 ones, see [`float_filter`].
///
/// Errors: [`Code::Misfit`] for a format that has none, or for a matrix that is none; [`Code::BadRange`] for scales that
/// QNN cannot have.
pub fn filter(tensor: &Tensor) -> Result<Filter> {
    let inputs = tensor.shape.last().copied().unwrap_or(1);
    if let DType::Lpbq4(_) = tensor.dtype
        && !inputs.is_multiple_of(LPBQ_INPUTS)
    {
        let message = "the NPU reads blocks with whole scales wrongly where the inputs are no multiple of 32";
        let fault = Diagnostic::error(Code::Misfit, message).have(format!("{}{}", tensor.dtype, tensor.shape));
        return Err(fault
            .need(format!("inputs in multiples of {LPBQ_INPUTS}"))
            .help("take int8 for this matrix")
            .into());
    }
    unpacked(tensor)
}

/// The numbers and scales of a matrix as it is stored.
fn unpacked(tensor: &Tensor) -> Result<Filter> {
    let fault =
        |message: &str| Diagnostic::error(Code::Misfit, message).have(format!("{}{}", tensor.dtype, tensor.shape));
    let &[outputs, inputs] = &*tensor.shape else {
        return Err(fault("only a matrix becomes the filter of a convolution").into());
    };
    let row_bytes = tensor.dtype.row_bytes(inputs);
    let row_bytes = row_bytes.ok_or_else(|| fault("the inputs of a matrix do not divide into its blocks"))?;
    let mut encoding = FilterEncoding::of(tensor.dtype, outputs).ok_or_else(|| {
        fault("the format of a matrix has no form in QNN")
            .need("f16, int8, int4, lpbq4, bw4, q4_0 or q4_1")
            .help("build with a recipe, e.g. --recipe w4a16-lpbq-g32 or f16-bw4-g32")
    })?;
    let dtype = encoding.dtype();
    let element = dtype.bytes();
    let mut data = vec![0u8; outputs * inputs * element];
    let mut rows = vec![0u8; ROWS_AT_ONCE * inputs * element];
    let bytes = tensor.bytes();
    for (place, stored) in bytes.chunks(ROWS_AT_ONCE * row_bytes).enumerate() {
        let count = stored.len() / row_bytes;
        for (row, to) in stored.chunks_exact(row_bytes).zip(rows.chunks_exact_mut(inputs * element)) {
            encoding.read_row(tensor.dtype, row, to)?;
        }
        turn(&rows, count, inputs, element, &mut data[place * ROWS_AT_ONCE * element..], outputs);
    }
    Ok(Filter { data, dtype, encoding })
}

/// The filter of a matrix for f16 activations: blocks with whole scales become float blocks, which denote the same numbers.
///
/// Errors: as [`filter`].
pub fn float_filter(tensor: &Tensor) -> Result<Filter> {
    let Filter { data, dtype, encoding } = unpacked(tensor)?;
    let FilterEncoding::Blocks { block, scales, block_scales } = encoding else {
        return Ok(Filter { data, dtype, encoding });
    };
    let of_row = block_scales.len() / scales.len().max(1);
    let rows = scales.iter().zip(block_scales.chunks_exact(of_row.max(1)));
    let blocks = rows.flat_map(|(scale, blocks)| blocks.iter().map(move |&block| [scale * f32::from(block), 0.0]));
    Ok(Filter { data, dtype, encoding: FilterEncoding::FloatBlocks { block, blocks: blocks.collect() } })
}

/// Writes `count` rows of `inputs` elements side by side into the columns of a matrix with `outputs` columns.
fn turn(rows: &[u8], count: usize, inputs: usize, element: usize, to: &mut [u8], outputs: usize) {
    let width = inputs * element;
    for (input, to) in to.chunks_mut(outputs * element).enumerate() {
        for (row, to) in to.chunks_exact_mut(element).take(count).enumerate() {
            to.copy_from_slice(&rows[row * width + input * element..][..element]);
        }
    }
}

impl FilterEncoding {
    /// The encoding of a matrix in that format, without its scales yet; `None` if the format has no form in QNN.
    fn of(dtype: DType, outputs: usize) -> Option<FilterEncoding> {
        let channels = |bits| Some(FilterEncoding::Channels { bits, scales: Vec::with_capacity(outputs) });
        let float_blocks = |len: usize| Some(FilterEncoding::FloatBlocks { block: len as u32, blocks: Vec::new() });
        match dtype {
            DType::F16 => Some(FilterEncoding::Float),
            DType::Int8 => channels(8),
            DType::Int4 => channels(4),
            DType::Lpbq4(group) => {
                let scales = Vec::with_capacity(outputs);
                Some(FilterEncoding::Blocks { block: group.elements() as u32, scales, block_scales: Vec::new() })
            }
            DType::Bw4(_) | DType::Q4_0 | DType::Q4_1 => float_blocks(dtype.block_len()),
            DType::F32 | DType::BF16 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => None,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => None,
        }
    }

    /// What a matrix in that format becomes in that role, without its scales; `None` if it has no form in QNN.
    pub(super) fn in_role(role: &Role, dtype: DType) -> Option<FilterEncoding> {
        match (FilterEncoding::of(dtype, 0)?, role) {
            (FilterEncoding::Blocks { block, .. }, Role::FloatFilter(_)) => {
                Some(FilterEncoding::FloatBlocks { block, blocks: Vec::new() })
            }
            (encoding, _) => Some(encoding),
        }
    }

    /// Whether an odd number of blocks of 16 is read wrongly, see [`LPBQ_INPUTS`].
    pub(super) fn reads_pairs_of_blocks(&self) -> bool {
        match self {
            FilterEncoding::Blocks { .. } => true,
            FilterEncoding::Float | FilterEncoding::Channels { .. } | FilterEncoding::FloatBlocks { .. } => false,
        }
    }

    /// The data type of the numbers.
    pub(super) fn dtype(&self) -> DataType {
        match self {
            FilterEncoding::Float => DataType::F16,
            FilterEncoding::Channels { .. } | FilterEncoding::Blocks { .. } | FilterEncoding::FloatBlocks { .. } => {
                DataType::S8
            }
        }
    }

    /// Whether some inputs of an output share a scale and others do not.
    pub(super) fn has_blocks(&self) -> bool {
        match self {
            FilterEncoding::Float | FilterEncoding::Channels { .. } => false,
            FilterEncoding::Blocks { .. } | FilterEncoding::FloatBlocks { .. } => true,
        }
    }

    /// Whether a convolution computes rightly with such a filter and activations of that type. Source: executed in the emulation of v75;
    /// whole blocks with f16 activations give garbage, float blocks with u16 are refused late.
    pub(super) fn goes_with(&self, activations: DataType) -> bool {
        match self {
            FilterEncoding::Float => activations == DataType::F16,
            FilterEncoding::FloatBlocks { block, .. } => activations == DataType::F16 && *block <= LARGEST_FLOAT_BLOCK,
            FilterEncoding::Channels { .. } => matches!(activations, DataType::U16 | DataType::F16),
            FilterEncoding::Blocks { .. } => activations == DataType::U16,
        }
    }

    /// Takes in a stored row: its numbers to `to`, its scales to the others'.
    fn read_row(&mut self, dtype: DType, row: &[u8], to: &mut [u8]) -> Result<()> {
        match self {
            FilterEncoding::Float => to.copy_from_slice(row),
            FilterEncoding::Channels { bits, scales } => {
                let (scale, body) = row_scale(row)?;
                scales.push(scale);
                match bits {
                    8 => to.copy_from_slice(body),
                    _ => signed_nibbles(body, to),
                }
            }
            FilterEncoding::Blocks { block, scales, block_scales } => {
                let (scale, body) = row_scale(row)?;
                scales.push(scale);
                for (stored, to) in body.chunks_exact(dtype.block_bytes()).zip(to.chunks_exact_mut(*block as usize)) {
                    block_scales.push(block_scale(stored[0])?);
                    signed_nibbles(&stored[1..], to);
                }
            }
            FilterEncoding::FloatBlocks { block, blocks } => {
                let stored = row.chunks_exact(dtype.block_bytes());
                for (stored, to) in stored.zip(to.chunks_exact_mut(*block as usize)) {
                    blocks.push(float_block(dtype, stored, to)?);
                }
            }
        }
        Ok(())
    }
}

/// The scale at the start of a row, and the rest. The scale of a row of zeros may be 0, which QNN cannot have.
fn row_scale(row: &[u8]) -> Result<(f32, &[u8])> {
    let (scale, body) = row.split_first_chunk().expect("a row begins with its scale");
    match f32::from_le_bytes(*scale) {
        0.0 if body.iter().all(|&byte| byte == 0) => Ok((1.0, body)),
        scale if scale > 0.0 && scale.is_finite() => Ok((scale, body)),
        scale => Err(bad_scale("the scale of a row", scale)),
    }
}

fn block_scale(scale: u8) -> Result<u8> {
    if (1..=LARGEST_BLOCK_SCALE).contains(&scale) {
        return Ok(scale);
    }
    let fault = Diagnostic::error(Code::BadRange, "the scale of a block is none that the NPU multiplies with");
    Err(fault.need(format!("1 to {LARGEST_BLOCK_SCALE}")).have(scale).into())
}

fn bad_scale(what: &str, scale: f32) -> Error {
    let fault = Diagnostic::error(Code::BadRange, format!("{what} is none that QNN takes"));
    fault.need("a finite number above 0").have(scale).into()
}

/// Two elements a byte, the first in the low half.
fn signed_nibbles(from: &[u8], to: &mut [u8]) {
    for (byte, pair) in from.iter().zip(to.chunks_exact_mut(2)) {
        pair[0] = ((*byte << 4) as i8 >> 4) as u8;
        pair[1] = (*byte as i8 >> 4) as u8;
    }
}

/// Numbers -8 to 7 of a block into `to`, and its scale above 0 and offset: with a negative scale `s` the number
/// `-1 - q` and the scale `-s` mean the same.
fn float_block(dtype: DType, stored: &[u8], to: &mut [u8]) -> Result<[f32; 2]> {
    let half = |at: usize| f16::from_le_bytes([stored[at], stored[at + 1]]).to_f32();
    let scale = half(0);
    // What GGUF adds after the product, in place of an offset of the number.
    let (offset, minimum) = match dtype == DType::Q4_0 {
        true => (0.0, 0.0),
        false if dtype == DType::Q4_1 => (0.0, half(2)),
        false => (half(2), 0.0),
    };
    if let Some(bad) = [scale, offset, minimum].into_iter().find(|number| !number.is_finite()) {
        return Err(bad_scale("the scale or offset of a block", bad));
    }
    if scale == 0.0 {
        to.fill(0);
        return Ok(if minimum == 0.0 { [1.0, 0.0] } else { [minimum.abs(), minimum.signum()] });
    }
    let offset = if let DType::Bw4(_) = dtype {
        signed_nibbles(&stored[4..], to);
        offset
    } else {
        centred_nibbles(&stored[stored.len() - 16..], to);
        // d * nibble + m = d * (q + 8 + m / d), and GGUF's Q4_0 is d * q.
        if dtype == DType::Q4_1 { 8.0 + minimum / scale } else { 0.0 }
    };
    if scale > 0.0 {
        return Ok([scale, offset]);
    }
    to.iter_mut().for_each(|number| *number = !*number);
    Ok([-scale, 1.0 - offset])
}

/// GGUF's nibbles less 8: the first half of a block in the low halves of its bytes, the second in the high ones.
fn centred_nibbles(from: &[u8], to: &mut [u8]) {
    let (low, high) = to.split_at_mut(from.len());
    for (byte, (low, high)) in from.iter().zip(low.iter_mut().zip(high)) {
        *low = (byte & 15).wrapping_sub(8);
        *high = (byte >> 4).wrapping_sub(8);
    }
}

/// The numbers of a weight that is no matrix in a tensor's data type.
///
/// Errors: [`Code::BadRange`] for numbers beyond the type or its encoding.
pub fn weight(tensor: &Tensor, dtype: DataType, encoding: Option<ScaleOffset>) -> Result<Vec<u8>> {
    reals(&to_f32(tensor), dtype, encoding)
}

/// Real numbers in a tensor's data type: rounded to the nearest.
///
/// Errors: as [`weight`].
pub fn reals(numbers: &[f32], dtype: DataType, encoding: Option<ScaleOffset>) -> Result<Vec<u8>> {
    let fault = |x: f32| Diagnostic::error(Code::BadRange, format!("a constant is not for {dtype:?}")).have(x);
    let mut bytes = Vec::with_capacity(numbers.len() * dtype.bytes());
    for &x in numbers {
        match (dtype, encoding) {
            (DataType::F32, None) => bytes.extend(x.to_le_bytes()),
            (DataType::F16, None) => {
                let half = f16::from_f32(x);
                if !half.is_finite() {
                    return Err(fault(x).need("magnitudes of at most 65504").into());
                }
                bytes.extend(half.to_le_bytes());
            }
            (_, Some(ScaleOffset { scale, offset })) => {
                let number = (f64::from(x) / f64::from(scale)).round() - f64::from(offset);
                bytes.extend(whole(number as i64, dtype).ok_or_else(|| fault(x))?);
            }
            (_, None) => return Err(fault(x).need("an encoding of a real number").into()),
        }
    }
    Ok(bytes)
}

/// Whole numbers as they are.
///
/// Errors: [`Code::BadRange`] for numbers beyond the type.
pub fn numbers(numbers: &[i64], dtype: DataType) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(numbers.len() * dtype.bytes());
    for &number in numbers {
        let fault = || Diagnostic::error(Code::BadRange, format!("a constant is not for {dtype:?}")).have(number);
        bytes.extend(whole(number, dtype).ok_or_else(fault)?);
    }
    Ok(bytes)
}

/// The bytes of a whole number, if the type has it.
fn whole(number: i64, dtype: DataType) -> Option<Vec<u8>> {
    match dtype {
        DataType::S8 => Some(i8::try_from(number).ok()?.to_le_bytes().to_vec()),
        DataType::U8 => Some(u8::try_from(number).ok()?.to_le_bytes().to_vec()),
        DataType::U16 => Some(u16::try_from(number).ok()?.to_le_bytes().to_vec()),
        DataType::S32 | DataType::I32 => Some(i32::try_from(number).ok()?.to_le_bytes().to_vec()),
        DataType::U32 => Some(u32::try_from(number).ok()?.to_le_bytes().to_vec()),
        DataType::F16 | DataType::F32 => None,
    }
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
