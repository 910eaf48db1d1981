//! Matrices in whole numbers: plain rows inside a target's file, and their scales in a file of the bundle's own. Together they
//! become weights that the host reads, in memory.

use std::sync::Arc;

use super::WeightRecord;
use crate::diag::{Code, Diagnostic, Result};
use crate::quant::WeightFormat;
use crate::tensor::{DType, Shape, Tensor};

/// The file with the scales of all rows of all matrices in whole numbers: f32, little endian.
pub const SCALES: &str = "scales.bin";

/// The format in which the host reads a matrix of rows of `cols` numbers: int4 rows of an odd length as int8, int16 as f32,
/// from which rounding by rows gives the same whole numbers again.
pub fn held_as(format: WeightFormat, cols: usize) -> DType {
    match format {
        WeightFormat::Int16 => DType::F32,
        WeightFormat::Int4 if cols.is_multiple_of(DType::Int4.block_len()) => DType::Int4,
        WeightFormat::Int8 | WeightFormat::Int4 => DType::Int8,
    }
}

/// The weight that a record with scales means, from its bytes in the target's file and the bytes of [`SCALES`].
///
/// Errors: [`Code::BadBundle`] for a record that is no matrix, or whose bytes or scales are not there.
pub(super) fn read(record: &WeightRecord, file: &[u8], scales: &[u8]) -> Result<Tensor> {
    let fault = |message: &str| Diagnostic::error(Code::BadBundle, message).subject(&record.name);
    let format = WeightFormat::ALL.into_iter().find(|format| format.name() == record.dtype);
    let format = format.ok_or_else(|| fault("unknown format of whole numbers").have(&record.dtype))?;
    let &[rows, cols] = record.shape.as_slice() else {
        return Err(fault("a weight in whole numbers is no matrix").have(format!("{:?}", record.shape)).into());
    };
    let bits = rows.checked_mul(cols).and_then(|count| count.checked_mul(format.bits() as usize));
    let len = bits.map(|bits| bits.div_ceil(8)).filter(|&len| len as u64 == record.bytes);
    let numbers = part(file, record.offset, len)
        .ok_or_else(|| fault("the weight does not lie in its file with the size of its shape"))?;
    let scales = record.scales.and_then(|start| part(scales, start, rows.checked_mul(4)));
    let scales = scales.ok_or_else(|| fault("the scales of a weight are not in their file").have(SCALES))?;
    let dtype = held_as(format, cols);
    let mut bytes = Vec::new();
    for (row, scale) in scales.as_chunks::<4>().0.iter().enumerate() {
        let of_row = |place: usize| number(format, numbers, row * cols + place);
        match format {
            WeightFormat::Int16 => {
                let scale = f32::from_le_bytes(*scale);
                bytes.extend((0..cols).flat_map(|place| (f32::from(of_row(place)) * scale).to_le_bytes()));
            }
            WeightFormat::Int4 if dtype == DType::Int4 => {
                bytes.extend(scale);
                bytes.extend_from_slice(&numbers[row * cols / 2..][..cols / 2]);
            }
            WeightFormat::Int8 | WeightFormat::Int4 => {
                bytes.extend(scale);
                bytes.extend((0..cols).map(|place| of_row(place) as u8));
            }
        }
    }
    let tensor = Tensor::in_memory(dtype, Shape(record.shape.clone()), Arc::from(bytes));
    Ok(tensor.ok_or_else(|| fault("the weight has no rows in the format that the host reads"))?)
}

fn part(bytes: &[u8], start: u64, len: Option<usize>) -> Option<&[u8]> {
    bytes.get(usize::try_from(start).ok()?..)?.get(..len?)
}

/// A number of a matrix, by its place in row-major order.
fn number(format: WeightFormat, bytes: &[u8], place: usize) -> i16 {
    match format {
        WeightFormat::Int16 => i16::from_le_bytes([bytes[2 * place], bytes[2 * place + 1]]),
        WeightFormat::Int8 => i16::from(bytes[place] as i8),
        WeightFormat::Int4 => i16::from((bytes[place / 2] >> (4 * (place % 2)) << 4) as i8 >> 4),
    }
}

#[cfg(test)]
mod tests;
