//! Scales of blocks as positive bf16 numbers, for NPUs that multiply with such: f16 holds every one that is near an f16 number.

use half::{bf16, f16};

use crate::DType;

/// Gives the blocks of a stored row positive scales that are bf16 numbers, and whole numbers that are the nearest to `row` under
/// these. Only formats whose blocks have an f16 scale and no minimum have any such scales; rows of others stay as they are.
///
/// Blocks of Q4_0 whose largest magnitude is positive have a negative scale in ggml's form, since nibbles reach from -8 to 7; they
/// get the best of a few positive ones.
///
/// # Panics
/// If `row` has another length than the stored row.
pub fn positive_bf16_scales(dtype: DType, row: &[f32], stored: &mut [u8]) {
    let lowest = match dtype {
        DType::Q8_0 => -127,
        DType::Q4_0 => -8,
        DType::F32 | DType::F16 | DType::BF16 | DType::Int8 | DType::Int4 => return,
        DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => return,
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => return,
        DType::Lpbq4(_) | DType::Bw4(_) => return,
    };
    let highest = if lowest == -8 { 7 } else { 127 };
    let blocks = stored.chunks_exact_mut(dtype.block_bytes());
    assert_eq!(row.len(), blocks.len() * dtype.block_len(), "elements of the row");
    for (stored, elements) in blocks.zip(row.chunks_exact(dtype.block_len())) {
        let old = f16::from_le_bytes([stored[0], stored[1]]).to_f32();
        let new = if old < 0.0 { best_scale(elements, lowest, highest) } else { rounded(old) };
        let number =
            |x: f32| if new == 0.0 { 0 } else { (x / new).round().clamp(lowest as f32, highest as f32) as i32 };
        stored[..2].copy_from_slice(&f16::from_f32(new).to_le_bytes());
        let numbers = &mut stored[2..];
        if dtype == DType::Q8_0 {
            numbers.iter_mut().zip(elements).for_each(|(q, &x)| *q = number(x) as i8 as u8);
        } else {
            let (low, high) = elements.split_at(16);
            for ((q, &low), &high) in numbers.iter_mut().zip(low).zip(high) {
                *q = (number(low) + 8) as u8 | ((number(high) + 8) as u8) << 4;
            }
        }
    }
}

/// The f16 number that is a bf16 number too and the nearest to a scale; 0 has no sign.
fn rounded(scale: f32) -> f32 {
    f16::from_f32(bf16::from_f32(scale).to_f32()).to_f32().abs()
}

/// The positive scale, of a few that give up the largest element or more steps for all others, with the least squared error.
fn best_scale(elements: &[f32], lowest: i32, highest: i32) -> f32 {
    let largest = elements.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let candidates = [8.0f32, 7.75, 7.5, 7.25, 7.0].map(|steps| rounded(largest / steps));
    let error = |scale: f32| {
        let off = |x: &f32| (x - (x / scale).round().clamp(lowest as f32, highest as f32) * scale).powi(2);
        elements.iter().map(off).sum::<f32>()
    };
    let best = candidates.into_iter().filter(|&scale| scale > 0.0).min_by(|a, b| error(*a).total_cmp(&error(*b)));
    best.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequant::dequantize_row;
    use crate::quantize::{Search, quantize_row};

    /// Every scale is a positive bf16 number afterwards, and every element within a step of what it was.
    #[test]
    fn scales() {
        for dtype in [DType::Q8_0, DType::Q4_0] {
            for magnitude in [1.0f32, 3.3e-3, 117.0, 2.5e-2, 0.0] {
                let row: Vec<f32> = (0..256).map(|i| magnitude * ((i * 37 % 101) as f32 / 50.0 - 1.0)).collect();
                let mut stored = vec![0; dtype.row_bytes(row.len()).expect("whole blocks")];
                quantize_row(dtype, &row, None, Search::Error, &mut stored);
                positive_bf16_scales(dtype, &row, &mut stored);
                let mut after = vec![0.0; row.len()];
                dequantize_row(dtype, &stored, &mut after);
                for (place, block) in stored.chunks_exact(dtype.block_bytes()).enumerate() {
                    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                    assert!(scale.is_sign_positive() && bf16::from_f32(scale).to_f32() == scale, "{dtype} {magnitude}");
                    let elements = place * 32..(place + 1) * 32;
                    for (x, y) in row[elements.clone()].iter().zip(&after[elements]) {
                        assert!((x - y).abs() <= 1.01 * scale, "{dtype} {magnitude}: {x} {y} at {scale}");
                    }
                }
            }
        }
    }
}
