//! The steps of a row: from the largest magnitudes, or from a search.

use super::search::Blocks;
use super::*;

laned! {
    /// Fits the steps of a row and gives the scale it begins with (1 where it has none).
    pub(super) fn row(
        dtype: DType,
        row: &[f32],
        importance: Option<&[f32]>,
        search: Search,
        steps: &mut [Step],
    ) -> f32 = fit_row
}

#[inline(always)]
fn fit_row<L: Lanes>(dtype: DType, row: &[f32], importance: Option<&[f32]>, search: Search, steps: &mut [Step]) -> f32 {
    if let DType::Lpbq4(group) = dtype {
        return lpbq::fit::<L>(&Blocks { row, importance, run: group.elements() }, search, steps);
    }
    let blocks = Blocks { row, importance, run: run(dtype).unwrap_or(row.len()) };
    for (at, step) in steps.iter_mut().enumerate() {
        let block = blocks.at(at);
        *step = plain::<L>(dtype, block.x);
        if search == Search::Error {
            *step = if let DType::Q4_1 | DType::Bw4(_) = dtype {
                search::affine::<L>(dtype, block, *step)
            } else {
                search::symmetric::<L>(dtype, block, *step)
            };
        }
    }
    if dtype.row_header_bytes() == 0 { 1.0 } else { steps[0].scale }
}

/// The step of the largest magnitude, as it is stored; for LPBQ the scale that a block would like.
#[inline(always)]
pub(super) fn plain<L: Lanes>(dtype: DType, x: &[f32]) -> Step {
    let (min, max) = extremes::<L>(x);
    let magnitude = max.max(-min).abs();
    match dtype {
        DType::Q4_0 => symmetric::<L>(dtype, q4_0_scale::<L>(x)),
        DType::Q8_0 | DType::Int8 => symmetric::<L>(dtype, magnitude / 127.0),
        DType::Int4 | DType::Lpbq4(_) => symmetric::<L>(dtype, (max / 7.0).max(-min / 8.0)),
        DType::Q4_1 | DType::Bw4(_) => affine::<L>(dtype, (max - min) / 15.0, min, magnitude),
        DType::F32 | DType::F16 | DType::BF16 | DType::Q5_0 | DType::Q5_1 => unreachable!("{dtype} has no grid"),
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => unreachable!("nor has {dtype}"),
    }
}

/// A step without a minimum, as it is stored.
#[inline(always)]
pub(super) fn symmetric<L: Lanes>(dtype: DType, scale: f32) -> Step {
    let scale = if let DType::Int8 | DType::Int4 = dtype {
        row_scale(scale, -f32::from(range(dtype).0))
    } else if let DType::Q4_0 | DType::Q8_0 = dtype {
        as_half::<L>(scale)
    } else {
        scale
    };
    Step { scale, min: 0.0 }
}

/// A scale of a row: positive, normal, and such that `largest` times it is finite; 1 for a row of zeros.
#[inline(always)]
pub(super) fn row_scale(scale: f32, largest: f32) -> f32 {
    if scale == 0.0 { 1.0 } else { scale.clamp(f32::MIN_POSITIVE, f32::MAX / (largest + 1.0)) }
}

/// A step whose smallest number is `min`, as it is stored; `magnitude` is the largest of the block.
///
/// An offset of Bw4 has 11 bits: a scale below 1/2048 of the magnitude could not be told apart.
#[inline(always)]
pub(super) fn affine<L: Lanes>(dtype: DType, scale: f32, min: f32, magnitude: f32) -> Step {
    if let DType::Bw4(_) = dtype {
        let scale = as_half::<L>(scale.max(magnitude / 2048.0));
        let offset = if scale == 0.0 { 0.0 } else { as_half::<L>(min / scale + 8.0) };
        Step { scale, min: offset }
    } else {
        Step { scale: as_half::<L>(scale), min: as_half::<L>(min) }
    }
}

/// The scale that makes the first element of the largest magnitude -8.
#[inline(always)]
pub(super) fn q4_0_scale<L: Lanes>(x: &[f32]) -> f32 {
    let (min, max) = extremes::<L>(x);
    let largest = if max == 0.0 && min == 0.0 {
        0.0
    } else if max == -min {
        *x.iter().find(|x| x.abs() == max).unwrap_or(&0.0)
    } else if max > -min {
        max
    } else {
        min
    };
    largest / -8.0
}

/// [`extremes`] as ggml finds them: a smallest element of 0 with the sign of the first one.
#[inline(always)]
pub(super) fn signed_extremes<L: Lanes>(x: &[f32]) -> (f32, f32) {
    let (min, max) = extremes::<L>(x);
    let min = if min == 0.0 { *x.iter().find(|x| **x == 0.0).unwrap_or(&min) } else { min };
    (min, max)
}

/// The largest magnitude.
#[inline(always)]
pub(super) fn magnitude<L: Lanes>(x: &[f32]) -> f32 {
    let (min, max) = extremes::<L>(x);
    max.max(-min).abs()
}

/// A scale whose half would be infinite becomes the largest finite half.
#[inline(always)]
pub(super) fn saturated<L: Lanes>(scale: f32) -> f32 {
    const INFINITE: f32 = 65520.0;
    if scale.abs() < INFINITE { scale } else { as_half::<L>(scale) }
}

/// The smallest and the largest element, 0 without a sign; of none, infinities.
#[inline(always)]
pub(super) fn extremes<L: Lanes>(x: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = (L::splat(f32::INFINITY), L::splat(f32::NEG_INFINITY));
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        let x = L::load(x);
        (low, high) = (x.at_most(low), x.at_least(high));
    }
    let (mut smallest, mut largest) = L::extremes(low, high);
    for x in rest {
        (smallest, largest) = (x.at_most(smallest), x.at_least(largest));
    }
    (smallest + 0.0, largest + 0.0)
}
