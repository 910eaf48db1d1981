//! Quantised weights, a few rows at a time: mapped files in, a stream out, no tensor in memory.

use std::io::{self, Write};

use half::f16;
use npuc_kernels::dequant::dequantize_row;
use npuc_kernels::quantize::{Search, largest_magnitude, positive_bf16_scales, quantize_row, saturates};
use rayon::prelude::*;

use crate::diag::{Code, Diagnostic, Error, Result};
use crate::tensor::{DType, Tensor};

/// Elements that are quantised at a time: enough that threads seldom wait for each other.
const BATCH_ELEMENTS: usize = 1 << 22;

/// What the scales of blocks of 32 are, whatever they are stored as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scales {
    /// f16, as GGUF has them.
    #[default]
    F16,
    /// Positive f16 numbers that are bf16 numbers too, for NPUs that multiply with such.
    PositiveBf16,
}

/// What goes wrong while a weight is written: the weight itself, or the place that it is written to.
#[derive(Debug)]
pub enum Fault {
    /// The weight.
    Weight(Error),
    /// The output.
    Output(io::Error),
}

/// The memory that [`write()`] needs at most for rows of `cols` elements, besides the weight itself.
pub fn need_bytes(cols: usize, threads: usize) -> u64 {
    let rows = batch_rows(cols);
    (rows * cols * 4 + threads * cols * 4) as u64
}

fn batch_rows(cols: usize) -> usize {
    (BATCH_ELEMENTS / cols.max(1)).max(1)
}

/// Writes a weight in the format `to`, rounding to the nearest with scales chosen by `search`. What is stored so already
/// stays bit for bit, but for scales that become positive bf16 numbers. Pages of the mapped file are given back once they are read.
///
/// Errors: [`Code::NonFiniteWeights`] for NaN and infinity, [`Code::BadRange`] for numbers that the format cannot hold.
pub fn write(
    name: &str,
    tensor: &Tensor,
    to: DType,
    search: Search,
    scales: Scales,
    out: &mut dyn Write,
) -> Result<(), Fault> {
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let bytes = tensor.bytes();
    let (Some(row_bytes), Some(out_bytes)) = (tensor.dtype.row_bytes(cols), to.row_bytes(cols)) else {
        let fault = Diagnostic::error(Code::GroupSize, "the groups of a format do not divide the rows of a weight");
        return Err(Fault::Weight(fault.subject(name).need(format!("a divisor of {cols} columns")).have(to).into()));
    };
    let mut batch = Vec::new();
    let mut done = 0;
    for stored in bytes.chunks((batch_rows(cols) * row_bytes).max(1)) {
        if tensor.dtype == to {
            let rows = stored.par_chunks_exact(row_bytes);
            rows.map_init(|| vec![0.0f32; cols], |row, stored| finite(name, tensor.dtype, stored, row))
                .collect::<Result<()>>()
                .map_err(Fault::Weight)?;
            match scales {
                Scales::F16 => out.write_all(stored).map_err(Fault::Output)?,
                Scales::PositiveBf16 => {
                    batch.clear();
                    batch.extend_from_slice(stored);
                    let rows = batch.par_chunks_exact_mut(row_bytes);
                    rows.for_each_init(
                        || vec![0.0f32; cols],
                        |row, stored| {
                            dequantize_row(to, stored, row);
                            positive_bf16_scales(to, row, stored);
                        },
                    );
                    out.write_all(&batch).map_err(Fault::Output)?;
                }
            }
        } else {
            batch.resize(stored.len() / row_bytes * out_bytes, 0);
            let rows = stored.par_chunks_exact(row_bytes).zip(batch.par_chunks_exact_mut(out_bytes));
            let quantised = rows.map_init(
                || vec![0.0f32; cols],
                |row, (stored, out)| {
                    dequantize_row(tensor.dtype, stored, row);
                    checked(name, row, to)?;
                    quantize_row(to, row, None, search, out);
                    if scales == Scales::PositiveBf16 {
                        positive_bf16_scales(to, row, out);
                    }
                    Ok(())
                },
            );
            quantised.collect::<Result<()>>().map_err(Fault::Weight)?;
            out.write_all(&batch).map_err(Fault::Output)?;
        }
        tensor.release(done..done + stored.len());
        done += stored.len();
    }
    Ok(())
}

/// Refuses a weight with values that are not finite.
///
/// Errors: [`Code::NonFiniteWeights`].
pub fn check_finite(name: &str, tensor: &Tensor) -> Result<()> {
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let Some(row_bytes) = tensor.dtype.row_bytes(cols).filter(|bytes| *bytes > 0) else { return Ok(()) };
    let (bytes, mut row) = (tensor.bytes(), vec![0.0; cols]);
    bytes.chunks_exact(row_bytes).try_for_each(|stored| finite(name, tensor.dtype, stored, &mut row))
}

/// Refuses a stored row with values that are not finite; its values are left in `row`.
fn finite(name: &str, dtype: DType, stored: &[u8], row: &mut [f32]) -> Result<()> {
    dequantize_row(dtype, stored, row);
    finite_row(name, row).map(|_| ())
}

/// The largest magnitude of a row, all of which must be finite.
fn finite_row(name: &str, row: &[f32]) -> Result<f32> {
    largest_magnitude(row).ok_or_else(|| {
        let odd = row.iter().filter(|x| !x.is_finite()).count();
        let fault = Diagnostic::error(Code::NonFiniteWeights, "a weight holds values that are not finite");
        fault.subject(name).need("finite values").have(format!("{odd} in a row of {}", row.len())).into()
    })
}

/// Refuses a row that a format cannot hold.
pub(super) fn checked(name: &str, row: &[f32], to: DType) -> Result<()> {
    let largest = finite_row(name, row)?;
    // Every format holds what f16 does.
    if largest > f16::MAX.to_f32_const() && saturates(to, row) {
        let fault = Diagnostic::error(Code::BadRange, "a weight holds numbers that its format cannot");
        return Err(fault
            .subject(name)
            .need(format!("magnitudes that {to} holds"))
            .have(largest)
            .help("choose a format with an f32 scale or bf16 for this weight")
            .into());
    }
    Ok(())
}
