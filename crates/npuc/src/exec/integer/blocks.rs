//! Products of bf16 activations with weights in blocks, in the arithmetic of Torq's slices.
//!
//! `y = bf16(sum over blocks of bf16(sum of x·q) · scale)`, sums being wide: bit for bit what the simulator of torq-runtime 2.3.0
//! gives (1024x512 and 4608x256 weights, 4 and 8 bits).

use half::f16;
use npuc_kernels::DType;
use rayon::prelude::*;

use super::torq::rounded;
use crate::tensor::Tensor;

/// Whether the arithmetic is known for a format.
pub(super) const fn has_form(dtype: DType) -> bool {
    match dtype {
        DType::Q8_0 | DType::Q4_0 => true,
        DType::F32 | DType::F16 | DType::BF16 | DType::Int8 | DType::Int4 => false,
        DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => false,
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => false,
        DType::Lpbq4(_) | DType::Bw4(_) => false,
    }
}

/// `x [tokens, in]` by a matrix `[out, in]` whose format [`has_form`], with a bias `[out]` that is added afterwards. Gives how many
/// results are not finite.
pub(super) fn project(x: &[f32], matrix: &Tensor, bias: Option<&[f32]>, out: &mut [f32]) -> u64 {
    let (rows, cols) = (matrix.shape[0], matrix.shape[1]);
    let bytes = matrix.bytes();
    let row_bytes = bytes.len() / rows;
    let of_row = |x: &[f32], row: usize| {
        let blocks = bytes[row * row_bytes..][..row_bytes].chunks_exact(matrix.dtype.block_bytes());
        let sum: f32 = blocks.zip(x.chunks_exact(32)).map(|(block, x)| block_product(matrix.dtype, block, x)).sum();
        let y = rounded(sum);
        bias.map_or(y, |bias| rounded(y + bias[row]))
    };
    let of_token = |(x, out): (&[f32], &mut [f32])| -> u64 {
        out.par_iter_mut()
            .enumerate()
            .with_min_len(16)
            .map(|(row, y)| {
                *y = of_row(x, row);
                u64::from(!y.is_finite())
            })
            .sum()
    };
    x.chunks_exact(cols).zip(out.chunks_exact_mut(rows)).map(of_token).sum()
}

/// A block's part of a sum: its scale, and 32 numbers of 8 bits, or of 4 with the first 16 in the low halves.
fn block_product(dtype: DType, block: &[u8], x: &[f32]) -> f32 {
    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
    let numbers = &block[2..];
    let sum: f32 = if dtype == DType::Q8_0 {
        numbers.iter().zip(x).map(|(&q, x)| f32::from(q as i8) * x).sum()
    } else {
        let (low, high) = x.split_at(16);
        let pairs = numbers.iter().zip(low.iter().zip(high));
        pairs.map(|(q, (low, high))| f32::from((q & 15) as i8 - 8) * low + f32::from((q >> 4) as i8 - 8) * high).sum()
    };
    rounded(sum) * scale
}
